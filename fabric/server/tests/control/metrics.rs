// SPDX-License-Identifier: MIT OR Apache-2.0
//! The endpoint as a scraper sees it: it reports what the fabric counts, and a client that misbehaves costs no other.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use telegraphos_fabric::control::Limits;
use telegraphos_fabric::control::snapshot::{
    Callers, Flow, Flows, Pair, PerClass, Port, PortState, Process, Snapshot, Totals, Traffic, TrunkEnd,
};
use telegraphos_fabric::metrics::{MetricsServer, encode};

use super::fake::Served;

/// So long is waited for an answer: no assertion on speed, only against hanging for ever.
const PATIENCE: Duration = Duration::from_secs(60);

/// A fabric in a thread, and its endpoint.
struct Running {
    metrics: Option<MetricsServer>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(ports: u16) -> Running {
        let mut served = Served::new(Limits::default());
        served.fake.ports = ports;
        let (near, far) = UnixStream::pair().unwrap();
        served.server.adopt(far.into(), 0).unwrap();
        let metrics = MetricsServer::start("0".parse().unwrap(), near).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                served.turn();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Running { metrics: Some(metrics), stop, thread: Some(thread) }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.metrics.as_ref().unwrap().address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Status, head and body of the answer to these bytes.
    fn http(&self, request: &[u8]) -> (u16, String, String) {
        let mut stream = self.connect();
        stream.write_all(request).unwrap();
        answer(&mut stream)
    }

    fn end_fabric(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.metrics = None;
        self.end_fabric();
    }
}

fn answer(stream: &mut TcpStream) -> (u16, String, String) {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_owned(), body.to_owned())
}

const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n";

/// Samples by name and labels. Panics where the text is not what the format demands.
fn read(text: &str) -> BTreeMap<String, f64> {
    let mut samples = BTreeMap::new();
    let (mut kinds, mut helped) = (BTreeMap::new(), BTreeSet::new());
    let body = text.strip_suffix("# EOF\n").unwrap_or_else(|| panic!("no # EOF at the end of {text}"));
    for line in body.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", name, _] => assert!(helped.insert(name), "{name} is described twice"),
            ["#", "TYPE", name, kind] => assert!(kinds.insert(name, kind).is_none(), "{name} has two types"),
            _ => {
                let (name, value) = line.rsplit_once(' ').unwrap();
                let bare = name.split('{').next().unwrap();
                let family = bare.strip_suffix("_total").unwrap_or(bare);
                let kind = kinds.get(family).unwrap_or_else(|| panic!("{line} has no type"));
                assert_eq!(*kind == "counter", bare.ends_with("_total"), "{line} is a {kind}");
                assert!(helped.contains(family), "{line} is not described");
                assert!(bare.starts_with("telegraphos_"), "{line}");
                assert!(samples.insert(name.to_owned(), value.parse().unwrap()).is_none(), "{line} comes twice");
            }
        }
    }
    samples
}

fn example() -> Snapshot {
    let flow = |packets| Flow {
        packets,
        bytes: packets * 100,
        depth: 1,
        depth_max: 7,
        stalls: 2,
        credit_stalls: 1,
        dropped: 3,
    };
    let classes = PerClass {
        request: Flows { received: flow(10), sent: Flow::default() },
        reply: Flows { received: Flow::default(), sent: flow(9) },
        ..PerClass::default()
    };
    let pair = |source, destination, packets| Pair {
        source,
        destination,
        classes: PerClass { request: Traffic { packets, bytes: 64 * packets }, ..PerClass::default() },
    };
    Snapshot {
        process: Process {
            version: "0.1.0".into(),
            uptime_us: 1_500_000,
            memory: 4096,
            cpu_us: 250_000,
            wakeups: 77,
            ..Process::default()
        },
        nodes: 64,
        totals: Totals {
            joined: 3,
            refused: 1,
            violations: 0,
            answered: 5,
            unidentified: 2,
            rests: 9,
            rings: 11,
            rings_lost: 12,
            ring_packets: 13,
            callers: Callers { displaced: 6, ..Callers::default() },
        },
        ports: vec![
            Port { node: 0, state: PortState::Up, incarnation: 4096, joins: 2, classes, ..Port::default() },
            Port { node: 5, switch: 1, state: PortState::Down, joins: 1, ..Port::default() },
        ],
        trunks: vec![TrunkEnd {
            name: "0-1".into(),
            switch: 0,
            peer: 1,
            transport: "udp".into(),
            up: true,
            session: 2,
            resets: 1,
            rtt_us: Some(1250),
            retransmissions: 12,
            faulted: 34,
            classes,
            ..TrunkEnd::default()
        }],
        pairs: vec![pair(0, 5, 1000), pair(5, 0, 1)],
        other_pairs: PerClass { reply: Traffic { packets: 8, bytes: 9 }, ..PerClass::default() },
    }
}

#[test]
fn every_counter_is_there_with_its_labels() {
    let samples = read(&encode(example()).unwrap());
    let port = r#"{switch="0",node="0",class="request",direction="received"}"#;
    let trunk = r#"{trunk="0-1",switch="0",class="reply",direction="sent"}"#;
    for (name, value) in [
        ("telegraphos_build{version=\"0.1.0\"}".to_owned(), 1.0),
        ("telegraphos_uptime_seconds".to_owned(), 1.5),
        ("telegraphos_memory_bytes".to_owned(), 4096.0),
        ("telegraphos_cpu_seconds_total".to_owned(), 0.25),
        ("telegraphos_wakeups_total".to_owned(), 77.0),
        ("telegraphos_nodes".to_owned(), 64.0),
        ("telegraphos_joins_total".to_owned(), 3.0),
        ("telegraphos_refused_joins_total".to_owned(), 1.0),
        ("telegraphos_violations_total".to_owned(), 0.0),
        ("telegraphos_unidentified_ended_total".to_owned(), 2.0),
        ("telegraphos_rests_total".to_owned(), 9.0),
        ("telegraphos_rings".to_owned(), 11.0),
        ("telegraphos_ring_packets_total".to_owned(), 13.0),
        ("telegraphos_lost_rings_total".to_owned(), 12.0),
        ("telegraphos_answered_requests_total".to_owned(), 5.0),
        (r#"telegraphos_trunk_callers_total{result="displaced"}"#.to_owned(), 6.0),
        (r#"telegraphos_trunk_callers_total{result="accepted"}"#.to_owned(), 0.0),
        (r#"telegraphos_node_up{switch="0",node="0"}"#.to_owned(), 1.0),
        (r#"telegraphos_node_up{switch="1",node="5"}"#.to_owned(), 0.0),
        (r#"telegraphos_node_incarnation{switch="0",node="0"}"#.to_owned(), 4096.0),
        (r#"telegraphos_node_joins_total{switch="0",node="0"}"#.to_owned(), 2.0),
        (format!("telegraphos_packets_total{port}"), 10.0),
        (format!("telegraphos_bytes_total{port}"), 1000.0),
        (format!("telegraphos_queue_packets{port}"), 1.0),
        (format!("telegraphos_queue_packets_max{port}"), 7.0),
        (format!("telegraphos_stalls_total{port}"), 2.0),
        (format!("telegraphos_credit_stalls_total{port}"), 1.0),
        (format!("telegraphos_dropped_packets_total{port}"), 3.0),
        (r#"telegraphos_trunk_up{trunk="0-1",switch="0",peer="1",transport="udp"}"#.to_owned(), 1.0),
        (r#"telegraphos_trunk_session{trunk="0-1",switch="0"}"#.to_owned(), 2.0),
        (r#"telegraphos_trunk_resets_total{trunk="0-1",switch="0"}"#.to_owned(), 1.0),
        (r#"telegraphos_trunk_round_trip_seconds{trunk="0-1",switch="0"}"#.to_owned(), 0.00125),
        (r#"telegraphos_trunk_retransmissions_total{trunk="0-1",switch="0"}"#.to_owned(), 12.0),
        (r#"telegraphos_trunk_faulted_total{trunk="0-1",switch="0"}"#.to_owned(), 34.0),
        (format!("telegraphos_trunk_packets_total{trunk}"), 9.0),
        (format!("telegraphos_trunk_stalls_total{trunk}"), 2.0),
        (r#"telegraphos_pair_packets_total{source="0",destination="5",class="request"}"#.to_owned(), 1000.0),
        (r#"telegraphos_pair_bytes_total{source="5",destination="0",class="request"}"#.to_owned(), 64.0),
        (r#"telegraphos_pair_packets_total{source="other",destination="other",class="reply"}"#.to_owned(), 8.0),
    ] {
        assert_eq!(samples.get(&name), Some(&value), "{name} in {samples:#?}");
    }
    // What never was used has packets and bytes, so that rates can be taken from the first packet on, and nothing else.
    let unused = samples.keys().filter(|k| k.contains(r#"node="5",class"#)).count();
    assert_eq!(unused, 2 * 4 * 2);
}

#[test]
fn every_metric_is_in_the_documentation() {
    let doc = include_str!("../../../../docs/monitoring.md");
    for name in read(&encode(example()).unwrap()).keys() {
        let bare = name.split('{').next().unwrap();
        assert!(doc.contains(&format!("`{bare}`")), "docs/monitoring.md does not name {bare}");
    }
}

#[test]
fn an_empty_fabric_has_metrics_too() {
    let samples = read(&encode(Snapshot::default()).unwrap());
    assert_eq!(samples["telegraphos_nodes"], 0.0);
    assert!(!samples.keys().any(|k| k.contains("trunk")));
}

#[test]
fn a_scraper_gets_what_the_fabric_counts() {
    let running = Running::start(3);
    for round in 1..4u32 {
        let (status, head, body) = running.http(GET);
        assert_eq!(status, 200);
        assert!(head.contains("Content-Type: application/openmetrics-text; version=1.0.0"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        let samples = read(&body);
        assert_eq!(
            samples["telegraphos_uptime_seconds"],
            f64::from(round) / 1e6,
            "the fake counts snapshots as its time"
        );
        assert_eq!(samples.iter().filter(|(k, v)| k.contains("node_up") && **v == 1.0).count(), 3);
    }
    let (status, head, body) = running.http(b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(status == 200 && body.is_empty() && !head.contains("Content-Length: 0"), "{head}");
}

#[test]
fn what_is_no_scrape_is_refused_by_number() {
    let running = Running::start(1);
    let long = [&b"GET /metrics HTTP/1.1\r\na: "[..], &[b'x'; 9000]].concat();
    for (request, expected) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], 404),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"hello there\r\n\r\n", 400),
        (b"\0\0\0\0", 400),
        (&long, 431),
    ] {
        let (status, head, body) = running.http(request);
        assert_eq!(status, expected, "{head}");
        assert!(body.contains("expected"), "{body}");
        assert_eq!(head.contains("Allow: GET"), expected == 405);
    }
    assert_eq!(running.http(GET).0, 200);
}

#[test]
fn slow_and_many_clients_do_not_keep_others_out() {
    let running = Running::start(5000);
    let mut silent: Vec<TcpStream> = (0..40).map(|_| running.connect()).collect();
    silent[39].write_all(b"GET /met").unwrap();
    // Sends a request and does not read.
    let mut deaf = running.connect();
    deaf.write_all(GET).unwrap();
    for _ in 0..3 {
        let (status, _, body) = running.http(GET);
        assert_eq!((status, body.matches("telegraphos_node_up{").count()), (200, 5000));
    }
    // The newest of those that are slow may still finish; the oldest had to make place.
    silent[39].write_all(b"rics HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(answer(&mut silent[39]).0, 200);
    let mut rest = Vec::new();
    assert!(matches!(silent[0].read_to_end(&mut rest), Ok(0) | Err(_)));
    // And slow ones are dropped in the end.
    assert!(matches!(silent[38].read_to_end(&mut rest), Ok(0) | Err(_)));
}

#[test]
fn a_port_in_use_is_named() {
    let running = Running::start(1);
    let (near, _far) = UnixStream::pair().unwrap();
    let address = running.metrics.as_ref().unwrap().address();
    let error = MetricsServer::start(address.to_string().parse().unwrap(), near).unwrap_err().to_string();
    assert!(error.contains(&address.to_string()) && error.contains("choose another port"), "{error}");
}

#[test]
fn the_endpoint_ends_with_the_fabric_in_any_order() {
    let mut running = Running::start(1);
    assert_eq!(running.http(GET).0, 200);
    let address = running.metrics.as_ref().unwrap().address();
    // The fabric first: the other end of the pair is closed, and the thread sees it.
    running.end_fabric();
    let mut rest = String::new();
    if let Ok(mut stream) = TcpStream::connect(address) {
        let _ = stream.write_all(GET);
        let _ = stream.read_to_string(&mut rest);
    }
    assert!(!rest.contains("200 OK"), "{rest}");
    drop(running);
    assert!(TcpStream::connect(address).is_err());
}
