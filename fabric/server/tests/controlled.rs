// SPDX-License-Identifier: MIT OR Apache-2.0
//! A running fabric with a client at its control socket, and a scraper.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use crate::common::{Node, Served, all_to_all, down, regular, serve, serve_at, up};
use telegraphos_fabric::control::snapshot::{FaultsView, PortState, Snapshot, Status};
use telegraphos_fabric::control::{
    ClientError, ControlClient, Done, FaultSpec, Request, Response, Target, default_path,
};
use telegraphos_fabric::{Config, Fabric, FabricError};
use telegraphos_topology::Plan;
use telegraphos_wire::{NodeId, WindowLayout};

/// A fabric with a control socket, perhaps of several switches.
fn controlled(plan: Option<Plan>) -> (Served, PathBuf) {
    let served = serve(|config| {
        config.control = Some(default_path(&config.listen));
        config.nodes = plan.as_ref().map_or(16, |plan| plan.topology.nodes());
        config.plan = plan;
    });
    let control = default_path(&served.path);
    (served, control)
}

fn client(control: &Path) -> ControlClient {
    ControlClient::connect(control).unwrap()
}

fn status(client: &mut ControlClient) -> Status {
    match client.request(&Request::Status {}).unwrap() {
        Response::Status(status) => status,
        other => panic!("{other:?}"),
    }
}

fn snapshot(client: &mut ControlClient) -> Snapshot {
    match client.request(&Request::Statistics {}).unwrap() {
        Response::Statistics(snapshot) => snapshot,
        other => panic!("{other:?}"),
    }
}

fn refused(client: &mut ControlClient, request: &Request) -> String {
    match client.request(request).unwrap_err() {
        ClientError::Refused(e) => e.text,
        other => panic!("{other}"),
    }
}

fn faults(client: &mut ControlClient) -> FaultsView {
    match client.request(&Request::Faults {}).unwrap() {
        Response::Faults(view) => view,
        other => panic!("{other:?}"),
    }
}

/// Two nodes that know each other.
fn two(served: &Served, a: NodeId, b: NodeId) -> [Node; 2] {
    let (mut first, mut second) = (Node::join(served, a), Node::join(served, b));
    up(&mut first, b);
    up(&mut second, a);
    [first, second]
}

#[test]
fn what_is_counted_is_what_was_sent() {
    let (served, control) = controlled(None);
    let mut client = client(&control);
    let before = status(&mut client);
    assert_eq!((before.present.len(), before.nodes, before.switches.as_slice()), (0, 16, &[0][..]));
    assert_eq!(before.process.pid, std::process::id());
    let [first, second] = two(&served, 3, 7);
    let [_first, second] = all_to_all([first, second], 500, 32);
    assert_eq!(status(&mut client).present, [3, 7]);
    let now = snapshot(&mut client);
    assert_eq!((now.totals.joined, now.ports.len()), (2, 2));
    for (port, node) in now.ports.iter().zip([3, 7]) {
        assert_eq!((port.node, port.state, port.joins), (node, PortState::Up, 1));
        let (request, reply) = (port.classes.request, port.classes.reply);
        for flow in [request.received, request.sent, reply.received, reply.sent] {
            assert_eq!(flow.packets, 500, "{port:?}");
            assert!(flow.bytes > 500 * 16, "{port:?}");
        }
    }
    // Each direction of the pair: stores and answers.
    let pairs: Vec<_> = now.pairs.iter().map(|p| (p.source, p.destination, p.classes.total().packets)).collect();
    assert_eq!(pairs.len(), 2);
    assert!(pairs.contains(&(3, 7, 1000)) && pairs.contains(&(7, 3, 1000)), "{pairs:?}");
    assert_eq!(now.other_pairs.total().packets, 0);
    drop(second);
    // What has gone is still reported, as down.
    let gone = loop {
        let now = snapshot(&mut client);
        if now.ports[1].state == PortState::Down {
            break now;
        }
    };
    assert_eq!(gone.ports[1].classes.request.received.packets, 500);
    assert!(gone.ports[1].since_us > now.ports[1].since_us);
}

#[test]
fn a_crashed_node_is_kept_out_until_it_is_restored() {
    let (served, control) = controlled(None);
    let mut client = client(&control);
    let [mut first, mut second] = two(&served, 0, 1);
    for (out, back) in [
        (Request::Crash { node: 1 }, Request::Restore { node: 1 }),
        (Request::Link { on: Target::Node(1), up: false }, Request::Link { on: Target::Node(1), up: true }),
    ] {
        assert_eq!(client.command(&out).unwrap(), Done::changed(1));
        down(&mut first, 1);
        while second.next().is_some() {}
        assert_eq!(client.command(&out).unwrap(), Done::changed(0), "it is out already");
        let view = faults(&mut client);
        assert_eq!(view.crashed.len() + view.faults.len(), 1, "{view:?}");
        let crashed = view.crashed == [1];
        let state = snapshot(&mut client).ports[1].state;
        assert_eq!(state, if crashed { PortState::Crashed } else { PortState::Down });
        let mut again = Node::hello(&served.path, 1, WindowLayout::default(), 256);
        assert_eq!(again.next(), None, "its connection is ended silently");
        assert_eq!(client.command(&back).unwrap(), Done::changed(1));
        let incarnation = second.incarnation;
        second = Node::join(&served, 1);
        assert!(second.incarnation > incarnation);
        up(&mut first, 1);
        up(&mut second, 0);
    }
    assert_eq!(snapshot(&mut client).ports[1].joins, 3);
    all_to_all([first, second], 100, 32);
}

#[test]
fn trunks_go_down_and_come_back_and_a_partition_heals() {
    let (served, control) = controlled(Some(regular("mesh:3x1", 3)));
    let mut client = client(&control);
    let [mut first, mut last] = two(&served, 0, 2);
    let shown = snapshot(&mut client).trunks;
    let names: Vec<_> = shown.iter().map(|t| (t.name.as_str(), t.switch, t.peer, t.up)).collect();
    assert_eq!(names.len(), 4, "two trunks with two ends each");
    assert!(names.contains(&("x1y0-x2y0", 2, 1, true)), "{names:?}");
    let before = shown[0].session;
    assert_eq!((shown[0].transport.as_str(), before > 0), ("process", true));
    for (cut, heal) in [
        (
            Request::Link { on: Target::Trunk("x0y0-x1y0".into()), up: false },
            Request::Link { on: Target::Trunk("1-0".into()), up: true },
        ),
        (Request::Partition { groups: vec![vec!["0".into(), "x1y0".into()], vec!["x2y0".into()]] }, Request::Heal {}),
        (Request::Link { on: Target::Trunks, up: false }, Request::Link { on: Target::Trunks, up: true }),
    ] {
        let changed = client.command(&cut).unwrap();
        assert_eq!(
            changed,
            Done::changed(if cut == (Request::Link { on: Target::Trunks, up: false }) { 2 } else { 1 })
        );
        down(&mut first, 2);
        down(&mut last, 0);
        assert!(snapshot(&mut client).trunks.iter().any(|t| !t.up && t.resets > 0));
        client.command(&heal).unwrap();
        up(&mut first, 2);
        up(&mut last, 0);
        [first, last] = all_to_all([first, last], 50, 32);
    }
    let now = snapshot(&mut client);
    assert!(now.trunks.iter().all(|t| t.up && t.session > before), "{:?}", now.trunks);
    assert!(now.trunks.iter().all(|t| t.classes.request.received.packets >= 150), "{:?}", now.trunks);
    // Each packet is counted once as a pair's, by the switch of its sender.
    assert!(now.pairs.iter().all(|p| p.classes.total().packets == 300), "{:?}", now.pairs);
    let view = faults(&mut client);
    assert_eq!(view, Default::default());
}

#[test]
fn faults_are_set_seen_counted_and_cleared() {
    let (served, control) = controlled(Some(regular("mesh:2x1", 2)));
    let mut client = client(&control);
    let [first, last] = two(&served, 0, 1);
    let set = |on: Target, faults: &str| Request::SetFaults { on, faults: faults.parse().unwrap() };
    let trunk = Target::Trunk("x0y0-x1y0".into());
    assert_eq!(client.command(&set(trunk.clone(), "latency=2ms")).unwrap(), Done::changed(1));
    assert_eq!(client.command(&set(Target::Links, "latency=1ms jitter=1ms")).unwrap(), Done::changed(2));
    assert_eq!(client.command(&Request::Slow { node: 1, bytes_per_second: Some(1 << 20) }).unwrap(), Done::changed(1));
    let [mut first, mut last] = all_to_all([first, last], 100, 32);
    let now = snapshot(&mut client);
    assert_eq!(now.ports[0].faults.to_string(), "latency=1ms jitter=1ms");
    assert!(now.trunks[0].faulted > 0 && now.trunks[0].faults.to_string() == "latency=2ms", "{:?}", now.trunks[0]);
    let view = faults(&mut client);
    let listed: Vec<String> = view.faults.iter().map(|f| format!("{} {}", f.on, f.faults)).collect();
    let expected = [
        "node:0 latency=1ms jitter=1ms",
        "node:1 latency=1ms jitter=1ms rate=1048576B/s",
        "trunk:x0y0-x1y0 latency=2ms",
    ];
    assert_eq!(listed, expected);
    // A fault that a reliable transport cannot have ends it; it comes back.
    client.command(&set(trunk, "down")).unwrap();
    down(&mut first, 1);
    down(&mut last, 0);
    assert_eq!(client.command(&Request::ClearFaults { on: Target::All }).unwrap(), Done::changed(3));
    // Perhaps more than once, as the trunk came and went.
    while snapshot(&mut client).trunks.iter().any(|t| !t.up) {
        std::thread::yield_now();
    }
    let view = faults(&mut client);
    assert_eq!(view, Default::default());
}

#[test]
fn a_node_alone_is_slow_until_it_is_not() {
    let (_served, control) = controlled(None);
    let mut client = client(&control);
    let listed = |client: &mut ControlClient| {
        faults(client).faults.iter().map(|f| format!("{} {}", f.on, f.faults)).collect::<Vec<_>>()
    };
    client.command(&Request::Slow { node: 3, bytes_per_second: Some(64_000) }).unwrap();
    assert_eq!(listed(&mut client), ["node:3 rate=64000B/s only=send"]);
    client.command(&Request::Slow { node: 3, bytes_per_second: None }).unwrap();
    assert!(listed(&mut client).is_empty());
}

#[test]
fn a_capture_is_begun_and_ended_while_packets_cross() {
    let (served, control) = controlled(None);
    let mut client = client(&control);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.pcapng");
    let path = file.to_str().unwrap().to_owned();
    let start = Request::CaptureStart { file: path.clone(), on: Target::Node(0) };
    let [first, last] = two(&served, 0, 1);
    assert_eq!(client.command(&start).unwrap(), Done::changed(1));
    all_to_all([first, last], 100, 32);
    let capture = status(&mut client).capture.unwrap();
    assert_eq!(
        (capture.file.as_str(), capture.links.as_slice(), capture.lost),
        (path.as_str(), &["node 0".to_owned()][..], 0)
    );
    assert!(capture.records >= 400, "{capture:?}");
    assert_eq!(client.command(&Request::CaptureStop {}).unwrap().note, path);
    assert_eq!(status(&mut client).capture, None);
    assert!(std::fs::metadata(&file).unwrap().len() > 400 * 32);
    let again = refused(&mut client, &start);
    assert!(again.contains("exists already"), "{again}");
    let nowhere = Request::CaptureStart { file: "/does/not/exist/x".into(), on: Target::All };
    assert!(refused(&mut client, &nowhere).contains("/does/not/exist/x"));
}

#[test]
fn a_capture_that_begins_amid_traffic_can_be_replayed() {
    let plan = regular("mesh:2x1", 4);
    let (served, control) = controlled(Some(plan));
    let mut client = client(&control);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("amid.pcapng");
    let [first, last] = two(&served, 0, 3);
    let crossed = |client: &mut ControlClient| -> u64 {
        snapshot(client).trunks.iter().map(|end| end.classes.total().received.packets).sum()
    };
    let crossing = std::thread::spawn(move || all_to_all([first, last], 30_000, 32));
    while crossed(&mut client) < 1000 {
        assert!(!crossing.is_finished(), "all packets crossed before the capture began");
    }
    client.command(&Request::CaptureStart { file: file.to_str().unwrap().to_owned(), on: Target::All }).unwrap();
    let before = crossed(&mut client);
    while crossed(&mut client) < before + 2000 && !crossing.is_finished() {}
    client.command(&Request::CaptureStop {}).unwrap();
    let mut differences = Vec::new();
    let outcome = telegraphos_capture::replay(&file, |difference| differences.push(difference.to_string())).unwrap();
    assert_eq!((outcome.ended, outcome.switches, differences), (telegraphos_capture::Ended::Whole, 2, Vec::new()));
    assert!(outcome.events > 2000 && outcome.actions > 2000, "{} events", outcome.events);
    let _nodes = crossing.join().unwrap();
}

#[test]
fn the_topology_is_reported() {
    let (_served, control) = controlled(Some(regular("mesh:2x1", 4)));
    let Response::Topology(view) = client(&control).request(&Request::Topology {}).unwrap() else { panic!() };
    assert_eq!(view.digest.len(), 16);
    let switches: Vec<_> = view.switches.iter().map(|s| (s.switch, s.name.as_str(), s.here, s.nodes.len())).collect();
    assert_eq!(switches, [(0, "x0y0", true, 2), (1, "x1y0", true, 2)]);
    assert_eq!((view.trunks[0].name.as_str(), view.trunks[0].a, view.trunks[0].b), ("x0y0-x1y0", 0, 1));
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let (_served, control) = controlled(Some(regular("mesh:2x1", 4)));
    let mut client = client(&control);
    let partition = |names: [&str; 2]| Request::Partition { groups: names.map(|n| vec![n.to_owned()]).to_vec() };
    for (request, parts) in [
        (Request::Crash { node: 9 }, ["node is 9", "0 to 3"]),
        (Request::Link { on: Target::Node(4), up: false }, ["node is 4", "0 to 3"]),
        (Request::Link { on: Target::Trunk("a-b".into()), up: false }, ["\"a-b\"", "x0y0-x1y0"]),
        (partition(["0", "2"]), ["\"2\"", "0 to 1"]),
        (partition(["0", "x0y0"]), ["switch x0y0", "one group"]),
        (Request::SetFaults { on: Target::Node(9), faults: FaultSpec::default() }, ["node is 9", "0 to 3"]),
        (Request::CaptureStop {}, ["nothing", "captured"]),
        (Request::Log { level: "loud".into() }, ["\"loud\"", "expected off"]),
    ] {
        let text = refused(&mut client, &request);
        assert!(parts.iter().all(|p| text.contains(p)), "{request:?}: {text}");
    }
}

#[test]
fn an_idle_control_socket_wakes_no_thread() {
    let (_served, control) = controlled(None);
    let mut client = client(&control);
    let (before, after) = (snapshot(&mut client), snapshot(&mut client));
    // One round for the request; the loop looks for silent nodes now and then, too.
    assert!(
        after.process.wakeups - before.process.wakeups <= 3,
        "{} to {}",
        before.process.wakeups,
        after.process.wakeups
    );
}

#[test]
fn a_scraper_reads_the_same_counters() {
    let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = probe.local_addr().unwrap();
    let taken = |metrics: &str| {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::new(dir.path().join("fabric"));
        config.metrics = metrics.parse().ok();
        Fabric::bind(config).map(drop)
    };
    let error = taken(&address.to_string()).unwrap_err();
    assert!(matches!(error, FabricError::Metrics(_)) && error.to_string().contains(&address.to_string()), "{error}");
    drop(probe);
    // Without a control socket, too.
    let served = serve(|config| config.metrics = address.to_string().parse().ok());
    let [first, second] = two(&served, 0, 1);
    all_to_all([first, second], 100, 32);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let sample = r#"telegraphos_packets_total{switch="0",node="1",class="request",direction="sent"} 100"#;
    assert!(text.starts_with("HTTP/1.1 200 OK") && text.contains(sample), "{text}");
    drop(served);
    assert!(TcpStream::connect(address).is_err(), "it ends with the fabric");
}

#[test]
fn a_control_socket_that_is_taken_is_an_error_and_both_sockets_go_with_the_fabric() {
    let dir = tempfile::tempdir().unwrap();
    let control = dir.path().join("first.control");
    let served = serve_at(&dir.path().join("first"), |config| config.control = Some(control.clone()));
    let mut config = Config::new(dir.path().join("second"));
    config.control = Some(control.clone());
    let error = Fabric::bind(config).map(drop).unwrap_err();
    assert!(matches!(error, FabricError::Listen(_)), "{error}");
    assert!(error.to_string().contains("--control"), "{error}");
    assert!(control.exists());
    drop(served);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
