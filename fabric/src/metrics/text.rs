// SPDX-License-Identifier: MIT OR Apache-2.0
//! A snapshot as OpenMetrics text. `docs/monitoring.md` lists the names.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, MetricEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::control::snapshot::{Flow, Flows, PerClass, Port, PortState, Snapshot, TrunkEnd, class_name};

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
            Number::Counter(_) | Number::Seconds(_) => MetricType::Counter,
            Number::Gauge(_) | Number::GaugeSeconds(_) => MetricType::Gauge,
        }
    }

    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Number::Counter(n) => ConstCounter::new(*n).encode(encoder),
            Number::Seconds(s) => ConstCounter::new(*s).encode(encoder),
            Number::Gauge(n) => ConstGauge::new(*n).encode(encoder),
            Number::GaugeSeconds(s) => ConstGauge::new(*s).encode(encoder),
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

/// What is counted for each class and direction: its name and help for ports and for trunks, and where it is found.
struct Counted {
    name: &'static str,
    help: &'static str,
    value: fn(&Flow) -> u64,
    number: fn(u64) -> Number,
}

const COUNTED: [Counted; 7] = [
    Counted { name: "packets", help: "Packets on the link", value: |f| f.packets, number: Number::Counter },
    Counted { name: "bytes", help: "Bytes of packets on the link", value: |f| f.bytes, number: Number::Counter },
    Counted { name: "queue_packets", help: "Packets in the switch now", value: |f| f.depth, number: Number::Gauge },
    Counted {
        name: "queue_packets_max",
        help: "The most packets that ever were in the switch",
        value: |f| f.depth_max,
        number: Number::Gauge,
    },
    Counted {
        name: "stalls",
        help: "Packets that had to wait for a credit, for room or for others",
        value: |f| f.stalls,
        number: Number::Counter,
    },
    Counted {
        name: "credit_stalls",
        help: "Packets that had to wait and found no credit",
        value: |f| f.credit_stalls,
        number: Number::Counter,
    },
    Counted {
        name: "dropped_packets",
        help: "Packets dropped because their sender or receiver had gone",
        value: |f| f.dropped,
        number: Number::Counter,
    },
];

/// Samples of one counter for each class and direction. A way that nothing has ever taken has packets and bytes, both
/// 0, and no more.
fn flows<'a>(
    classes: &'a PerClass<Flows>,
    labels: Vec<Label>,
    counted: &'a Counted,
) -> impl Iterator<Item = (Vec<Label>, Number)> + 'a {
    let always = ["packets", "bytes"].contains(&counted.name);
    classes.iter().flat_map(|(class, f)| [(class, "received", f.received), (class, "sent", f.sent)]).filter_map(
        move |(class, direction, flow)| {
            let value = (counted.value)(&flow);
            if !always && value == 0 && flow.packets == 0 {
                return None;
            }
            let mut labels = labels.clone();
            labels.push(("class", class_name(class).to_owned()));
            labels.push(("direction", direction.to_owned()));
            Some((labels, (counted.number)(value)))
        },
    )
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
        family(e, "telegraphos_build", "The version of the fabric, as a label", [(version, Number::Gauge(1))])?;
        for (name, help, number) in [
            ("uptime_seconds", "Time since the start", Number::GaugeSeconds(seconds(process.uptime_us))),
            ("memory_bytes", "Resident memory", Number::Gauge(process.memory)),
            ("cpu_seconds", "Processor time used", Number::Seconds(seconds(process.cpu_us))),
            ("wakeups", "Times the loop was woken", Number::Counter(process.wakeups)),
            ("nodes", "Nodes of the cluster, present or not", Number::Gauge(u64::from(*nodes))),
            ("joins", "Nodes that joined", Number::Counter(totals.joined)),
            ("refused_joins", "Joiners refused", Number::Counter(totals.refused)),
            (
                "violations",
                "Nodes and trunks disconnected for breaking the protocol",
                Number::Counter(totals.violations),
            ),
            ("answered_requests", "Requests to absent nodes that a switch answered", Number::Counter(totals.answered)),
            (
                "unidentified_ended",
                "Unidentified connections ended to make room for others",
                Number::Counter(totals.unidentified),
            ),
            (
                "rests",
                "Times a node was not read for a while, because it sent too much that no credit pays for",
                Number::Counter(totals.rests),
            ),
        ] {
            number.encode(e.encode_descriptor(&format!("telegraphos_{name}"), help, None, number.kind())?)?;
        }
        // Where there are no trunks there are no callers for them.
        let callers = totals.callers.iter().filter(|(_, count)| *count > 0 || !self.0.trunks.is_empty());
        let callers = callers.map(|(result, count)| ([("result", result)], Number::Counter(count)));
        family(e, "telegraphos_trunk_callers", "Attempts to connect for trunks over datagrams", callers)
    }

    fn ports(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let ports = &self.0.ports;
        let values: [Value<Port, Number>; 3] = [
            ("up", "Whether the node is present", |p| Number::Gauge(u64::from(p.state == PortState::Up))),
            ("incarnation", "The node's incarnation", |p| Number::Gauge(p.incarnation)),
            ("joins", "How often the node joined", |p| Number::Counter(p.joins)),
        ];
        for (name, help, value) in values {
            family(e, &format!("telegraphos_node_{name}"), help, ports.iter().map(|p| (of_port(p), value(p))))?;
        }
        for counted in &COUNTED {
            let name = format!("telegraphos_{}", counted.name);
            let samples = ports.iter().flat_map(|p| flows(&p.classes, of_port(p), counted));
            family(e, &name, counted.help, samples)?;
        }
        Ok(())
    }

    fn trunks(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let trunks = &self.0.trunks;
        let samples = trunks.iter().map(|t| {
            let mut labels = of_trunk(t);
            labels.push(("peer", t.peer.to_string()));
            labels.push(("transport", t.transport.clone()));
            (labels, Number::Gauge(u64::from(t.up)))
        });
        family(e, "telegraphos_trunk_up", "Whether packets can cross the trunk", samples)?;
        let values: [Value<TrunkEnd, Option<Number>>; 5] = [
            ("session", "The trunk's session", |t| Some(Number::Gauge(t.session))),
            ("resets", "How often the trunk went down", |t| Some(Number::Counter(t.resets))),
            ("round_trip_seconds", "Round trip to the other switch", |t| {
                Some(Number::GaugeSeconds(seconds(t.rtt_us?)))
            }),
            ("retransmissions", "Datagrams sent again", |t| Some(Number::Counter(t.retransmissions))),
            ("faulted", "Datagrams hit by faults that are set", |t| Some(Number::Counter(t.faulted))),
        ];
        for (name, help, value) in values {
            let samples = trunks.iter().filter_map(|t| Some((of_trunk(t), value(t)?)));
            family(e, &format!("telegraphos_trunk_{name}"), help, samples)?;
        }
        for counted in &COUNTED {
            let name = format!("telegraphos_trunk_{}", counted.name);
            let samples = trunks.iter().flat_map(|t| flows(&t.classes, of_trunk(t), counted));
            family(e, &name, counted.help, samples)?;
        }
        Ok(())
    }

    fn pairs(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Snapshot { pairs, other_pairs, .. } = &self.0;
        let labelled = pairs.iter().map(|p| (p.source.to_string(), p.destination.to_string(), &p.classes));
        let other = ("other".to_owned(), "other".to_owned(), other_pairs);
        let all: Vec<_> = labelled.chain([other]).collect();
        let samples = |value: fn(u64, u64) -> u64| {
            all.iter().flat_map(move |(source, destination, classes)| {
                classes.iter().filter(|(_, t)| t.packets > 0).map(move |(class, t)| {
                    let labels = [
                        ("source", source.clone()),
                        ("destination", destination.clone()),
                        ("class", class_name(class).to_owned()),
                    ];
                    (labels, Number::Counter(value(t.packets, t.bytes)))
                })
            })
        };
        family(
            e,
            "telegraphos_pair_packets",
            "Packets of the hottest pairs of nodes, and of all others",
            samples(|p, _| p),
        )?;
        family(e, "telegraphos_pair_bytes", "Bytes of the hottest pairs of nodes, and of all others", samples(|_, b| b))
    }
}
