// SPDX-License-Identifier: MIT OR Apache-2.0
//! A snapshot as OpenMetrics text. `docs/monitoring.md` lists the names.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, MetricEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::control::snapshot::{Flow, Flows, PerClass, Port, PortState, Snapshot, Traffic, TrunkEnd, class_name};
use Number::{Counter, Gauge, GaugeSeconds, Seconds};

/// The text of all metrics.
pub fn encode(snapshot: Snapshot) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Metrics(snapshot)));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

#[derive(Debug)]
struct Metrics(Snapshot);

/// A value of a metric: counters only rise.
enum Number {
    Counter(u64),
    Seconds(f64),
    Gauge(u64),
    GaugeSeconds(f64),
}

impl Number {
    fn kind(&self) -> MetricType {
        match self {
            Counter(_) | Seconds(_) => MetricType::Counter,
            Gauge(_) | GaugeSeconds(_) => MetricType::Gauge,
        }
    }

    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Counter(n) => ConstCounter::new(*n).encode(encoder),
            Seconds(s) => ConstCounter::new(*s).encode(encoder),
            Gauge(n) => ConstGauge::new(*n).encode(encoder),
            GaugeSeconds(s) => ConstGauge::new(*s).encode(encoder),
        }
    }
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

/// A metric with labels: one sample each; without samples, nothing.
fn family<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (L, Number)>,
) -> fmt::Result {
    let mut samples = samples.into_iter().peekable();
    let Some((_, first)) = samples.peek() else { return Ok(()) };
    let mut metric = encoder.encode_descriptor(name, help, None, first.kind())?;
    for (labels, number) in samples {
        number.encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

type Label = (&'static str, String);
/// The name and help of a metric, and its value in a port or trunk.
type Value<T, N> = (&'static str, &'static str, fn(&T) -> N);

/// What is counted for each class and direction of ports and of trunks. A way that nothing has ever taken has the first
/// two, both 0, and no more.
const COUNTED: [Value<Flow, Number>; 7] = [
    ("packets", "Packets on the link", |f| Counter(f.packets)),
    ("bytes", "Bytes of packets on the link", |f| Counter(f.bytes)),
    ("queue_packets", "Packets in the switch now", |f| Gauge(f.depth)),
    ("queue_packets_max", "The most packets that ever were in the switch", |f| Gauge(f.depth_max)),
    ("stalls", "Packets that had to wait for a credit, for room or for others", |f| Counter(f.stalls)),
    ("credit_stalls", "Packets that had to wait and found no credit", |f| Counter(f.credit_stalls)),
    ("dropped_packets", "Packets dropped because their sender or receiver had gone", |f| Counter(f.dropped)),
];

/// The metrics of [`COUNTED`], with a name that begins so, of the ports or trunks with these labels.
fn flows<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    prefix: &str,
    ways: impl Iterator<Item = (Vec<Label>, &'a PerClass<Flows>)> + Clone,
) -> fmt::Result {
    for (nth, (name, help, value)) in COUNTED.into_iter().enumerate() {
        let samples = ways.clone().flat_map(move |(labels, classes)| {
            let ways = classes.iter().flat_map(|(class, f)| [(class, "received", f.received), (class, "sent", f.sent)]);
            ways.filter_map(move |(class, direction, flow)| {
                let number = value(&flow);
                if nth >= 2 && flow.packets == 0 && matches!(number, Counter(0) | Gauge(0)) {
                    return None;
                }
                let mut labels = labels.clone();
                labels.extend([("class", class_name(class).to_owned()), ("direction", direction.to_owned())]);
                Some((labels, number))
            })
        });
        family(encoder, &format!("{prefix}{name}"), help, samples)?;
    }
    Ok(())
}

fn of_port(port: &Port) -> Vec<Label> {
    vec![("switch", port.switch.to_string()), ("node", port.node.to_string())]
}

fn of_trunk(trunk: &TrunkEnd) -> Vec<Label> {
    vec![("trunk", trunk.name.clone()), ("switch", trunk.switch.to_string())]
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.process(&mut encoder)?;
        self.ports(&mut encoder)?;
        self.trunks(&mut encoder)?;
        self.pairs(&mut encoder)
    }
}

impl Metrics {
    fn process(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Snapshot { process, totals, nodes, .. } = &self.0;
        let version = [("version", process.version.clone())];
        family(e, "telegraphos_build", "The version of the fabric, as a label", [(version, Gauge(1))])?;
        for (name, help, number) in [
            ("uptime_seconds", "Time since the start", GaugeSeconds(seconds(process.uptime_us))),
            ("memory_bytes", "Resident memory", Gauge(process.memory)),
            ("cpu_seconds", "Processor time used", Seconds(seconds(process.cpu_us))),
            ("wakeups", "Times the loop was woken", Counter(process.wakeups)),
            ("nodes", "Nodes of the cluster, present or not", Gauge(u64::from(*nodes))),
            ("joins", "Nodes that joined", Counter(totals.joined)),
            ("refused_joins", "Joiners refused", Counter(totals.refused)),
            ("violations", "Nodes and trunks disconnected for breaking the protocol", Counter(totals.violations)),
            ("answered_requests", "Requests to absent nodes that a switch answered", Counter(totals.answered)),
            (
                "unidentified_ended",
                "Unidentified connections ended to make room for others",
                Counter(totals.unidentified),
            ),
            (
                "rests",
                "Times a node was not read for a while, because it sent too much that no credit pays for",
                Counter(totals.rests),
            ),
            ("rings", "Rings between HIBs that are in use, beside the switch", Gauge(totals.rings)),
            (
                "ring_packets",
                "Packets by rings within this process, also counted at ports",
                Counter(totals.ring_packets),
            ),
            ("lost_rings", "Rings closed by a HIB because the other broke the rules", Counter(totals.rings_lost)),
        ] {
            number.encode(e.encode_descriptor(&format!("telegraphos_{name}"), help, None, number.kind())?)?;
        }
        // Where there are no trunks there are no callers for them.
        let callers = totals.callers.iter().filter(|(_, count)| *count > 0 || !self.0.trunks.is_empty());
        let callers = callers.map(|(result, count)| ([("result", result)], Counter(count)));
        family(e, "telegraphos_trunk_callers", "Attempts to connect for trunks over datagrams", callers)
    }

    fn ports(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let ports = &self.0.ports;
        let values: [Value<Port, Number>; 3] = [
            ("up", "Whether the node is present", |p| Gauge(u64::from(p.state == PortState::Up))),
            ("incarnation", "The node's incarnation", |p| Gauge(p.incarnation)),
            ("joins", "How often the node joined", |p| Counter(p.joins)),
        ];
        for (name, help, value) in values {
            family(e, &format!("telegraphos_node_{name}"), help, ports.iter().map(|p| (of_port(p), value(p))))?;
        }
        flows(e, "telegraphos_", ports.iter().map(|p| (of_port(p), &p.classes)))
    }

    fn trunks(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let trunks = &self.0.trunks;
        let samples = trunks.iter().map(|t| {
            let mut labels = of_trunk(t);
            labels.extend([("peer", t.peer.to_string()), ("transport", t.transport.clone())]);
            (labels, Gauge(u64::from(t.up)))
        });
        family(e, "telegraphos_trunk_up", "Whether packets can cross the trunk", samples)?;
        let values: [Value<TrunkEnd, Option<Number>>; 5] = [
            ("session", "The trunk's session", |t| Some(Gauge(t.session))),
            ("resets", "How often the trunk went down", |t| Some(Counter(t.resets))),
            ("round_trip_seconds", "Round trip to the other switch", |t| Some(GaugeSeconds(seconds(t.rtt_us?)))),
            ("retransmissions", "Datagrams sent again", |t| Some(Counter(t.retransmissions))),
            ("faulted", "Datagrams hit by faults that are set", |t| Some(Counter(t.faulted))),
        ];
        for (name, help, value) in values {
            let samples = trunks.iter().filter_map(|t| Some((of_trunk(t), value(t)?)));
            family(e, &format!("telegraphos_trunk_{name}"), help, samples)?;
        }
        flows(e, "telegraphos_trunk_", trunks.iter().map(|t| (of_trunk(t), &t.classes)))
    }

    fn pairs(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Snapshot { pairs, other_pairs, .. } = &self.0;
        let labelled = pairs.iter().map(|p| (p.source.to_string(), p.destination.to_string(), &p.classes));
        let other = ("other".to_owned(), "other".to_owned(), other_pairs);
        let all: Vec<_> = labelled.chain([other]).collect();
        let values: [Value<Traffic, Number>; 2] = [
            ("packets", "Packets of the hottest pairs of nodes, and of all others", |t| Counter(t.packets)),
            ("bytes", "Bytes of the hottest pairs of nodes, and of all others", |t| Counter(t.bytes)),
        ];
        for (name, help, value) in values {
            let samples = all.iter().flat_map(|(source, destination, classes)| {
                classes.iter().filter(|(_, t)| t.packets > 0).map(move |(class, t)| {
                    let class = class_name(class).to_owned();
                    ([("source", source.clone()), ("destination", destination.clone()), ("class", class)], value(t))
                })
            });
            family(e, &format!("telegraphos_pair_{name}"), help, samples)?;
        }
        Ok(())
    }
}
