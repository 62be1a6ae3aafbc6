// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests and answers survive the way there and back, and nothing else is taken for a request.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use telegraphos_fabric::control::protocol::{MAX_REQUEST, MAX_WATCH_MS, MIN_WATCH_MS, VERSION};
use telegraphos_fabric::control::snapshot::{
    Callers, Capture, FaultView, FaultsView, Flow, Flows, Pair, PerClass, Port, PortState, Process, Snapshot, Status,
    SwitchView, TopologyView, Totals, Traffic, TrunkEnd, TrunkView,
};
use telegraphos_fabric::control::{Done, ErrorAnswer, ErrorKind, FaultSpec, Request, Response, Target};
use telegraphos_testkit::{scale, seed_or};
use telegraphos_transport::faults::{Chance, Direction, FaultPlan};

fn check<S: Strategy>(strategy: S, property: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let seed = seed_or(1);
    let cases = scale(400, 20_000);
    let config = Config { cases, rng_seed: RngSeed::Fixed(seed), failure_persistence: None, ..Config::default() };
    if let Err(e) = TestRunner::new(config).run(&strategy, property) {
        panic!("TELEGRAPHOS_SEED={seed}: {e}");
    }
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![
        Just(Target::All),
        Just(Target::Links),
        Just(Target::Trunks),
        any::<u16>().prop_map(Target::Node),
        "[a-zA-Z0-9._-]{1,64}".prop_map(Target::Trunk),
    ]
}

prop_compose! {
    fn faults()(
        delays in [0..=86_400_000_000u64, 0..=86_400_000_000u64],
        rate in proptest::option::of(1..1u64 << 50),
        parts in [0..=1_000_000u32, 0..=1_000_000u32, 0..=1_000_000u32, 0..=1_000_000u32],
        down in any::<bool>(),
        only in 0..3usize,
    ) -> FaultSpec {
        let [loss, corrupt, duplicate, reorder] = parts.map(Chance::millionths);
        let only = [None, Some(Direction::Send), Some(Direction::Receive)][only];
        FaultSpec(FaultPlan { loss, corrupt, duplicate, reorder, latency: delays[0], jitter: delays[1], rate, down, only })
    }
}

fn request() -> impl Strategy<Value = Request> {
    let node = any::<u16>;
    prop_oneof![
        Just(Request::Status {}),
        Just(Request::Statistics {}),
        Just(Request::Topology {}),
        Just(Request::Faults {}),
        Just(Request::Heal {}),
        Just(Request::CaptureStop {}),
        prop_oneof![Just(0), MIN_WATCH_MS..=MAX_WATCH_MS].prop_map(|every_ms| Request::Watch { every_ms }),
        (target(), faults()).prop_map(|(on, faults)| Request::SetFaults { on, faults }),
        target().prop_map(|on| Request::ClearFaults { on }),
        (target(), any::<bool>()).prop_map(|(on, up)| Request::Link { on, up }),
        vec(1..9usize, 2..6).prop_map(|sizes| {
            let mut next = 0;
            let mut name = || {
                next += 1;
                format!("s{next}")
            };
            Request::Partition { groups: sizes.into_iter().map(|n| (0..n).map(|_| name()).collect()).collect() }
        }),
        (node(), proptest::option::of(1..u64::MAX))
            .prop_map(|(node, bytes_per_second)| Request::Slow { node, bytes_per_second }),
        node().prop_map(|node| Request::Crash { node }),
        node().prop_map(|node| Request::Restore { node }),
        ("/[^\0]{0,40}", target()).prop_map(|(file, on)| Request::CaptureStart { file, on }),
        ".{0,40}".prop_map(|level| Request::Log { level }),
    ]
}

prop_compose! {
    fn flow()(n in any::<[u64; 7]>(), zero in any::<bool>()) -> Flow {
        if zero { return Flow::default(); }
        Flow { packets: n[0], bytes: n[1], depth: n[2], depth_max: n[3], stalls: n[4], credit_stalls: n[5], dropped: n[6] }
    }
}

fn flows() -> impl Strategy<Value = PerClass<Flows>> {
    [(flow(), flow()), (flow(), flow()), (flow(), flow()), (flow(), flow())]
        .prop_map(|f| f.map(|(received, sent)| Flows { received, sent }))
        .prop_map(|[enqueue, request, reflected, reply]| PerClass { enqueue, request, reflected, reply })
}

fn traffic() -> impl Strategy<Value = PerClass<Traffic>> {
    any::<[(u64, u64); 4]>().prop_map(|t| {
        let [enqueue, request, reflected, reply] = t.map(|(packets, bytes)| Traffic { packets, bytes });
        PerClass { enqueue, request, reflected, reply }
    })
}

prop_compose! {
    fn port()(
        node in any::<u16>(), switch in any::<u16>(), state in 0..3usize, incarnation in any::<u32>(),
        n in any::<[u64; 2]>(), faults in faults(), classes in flows(),
    ) -> Port {
        let state = [PortState::Up, PortState::Down, PortState::Crashed][state];
        Port { node, switch, state, incarnation: incarnation.into(), since_us: n[0], joins: n[1], faults, classes }
    }
}

prop_compose! {
    fn trunk()(
        name in "[a-z0-9-]{1,9}", switches in any::<[u16; 2]>(), transport in "[a-z]{1,9}", up in any::<bool>(),
        n in any::<[u64; 5]>(), rtt_us in any::<Option<u64>>(), faults in faults(), classes in flows(),
    ) -> TrunkEnd {
        TrunkEnd {
            name, switch: switches[0], peer: switches[1], transport, up, session: n[0], since_us: n[1], resets: n[2],
            rtt_us, retransmissions: n[3], faulted: n[4], faults, classes,
        }
    }
}

prop_compose! {
    fn process()(pid in any::<u32>(), text in [".{0,9}", ".{0,9}"], n in any::<[u64; 4]>()) -> Process {
        let [version, listen] = text;
        Process { pid, version, listen, uptime_us: n[0], memory: n[1], cpu_us: n[2], wakeups: n[3] }
    }
}

prop_compose! {
    fn snapshot()(
        process in process(), nodes in any::<u32>(), t in any::<[u64; 9]>(), ports in vec(port(), 0..4),
        trunks in vec(trunk(), 0..3), pairs in vec((any::<(u16, u16)>(), traffic()), 0..4), other_pairs in traffic(),
    ) -> Snapshot {
        let callers = Callers { accepted: t[1], crowded: t[2], validated: t[3], ..Callers::default() };
        let [joined, refused, violations, answered, unidentified, rests, rings, rings_lost, ring_packets] = t;
        let totals =
            Totals { joined, refused, violations, answered, unidentified, rests, rings, rings_lost, ring_packets, callers };
        let pair = |((source, destination), classes)| Pair { source, destination, classes };
        Snapshot { process, nodes, totals, ports, trunks, pairs: pairs.into_iter().map(pair).collect(), other_pairs }
    }
}

fn response() -> impl Strategy<Value = Response> {
    let kinds = [ErrorKind::Malformed, ErrorKind::Version, ErrorKind::Refused, ErrorKind::Busy];
    let capture = (".{0,9}", vec(".{0,9}", 0..3), any::<[u64; 2]>()).prop_map(|(file, links, n)| Capture {
        file,
        links,
        records: n[0],
        lost: n[1],
    });
    let status = (process(), any::<[u32; 3]>(), vec(any::<u16>(), 0..5), proptest::option::of(capture), ".{0,9}")
        .prop_map(|(process, n, present, capture, log)| Status {
            protocol: VERSION,
            process,
            nodes: n[0],
            switches: present.clone(),
            present,
            trunks: n[1],
            trunks_up: n[2],
            capture,
            log,
        });
    let switch = (any::<u16>(), "[a-z]{0,5}", any::<bool>(), vec(any::<u16>(), 0..4))
        .prop_map(|(switch, name, here, nodes)| SwitchView { switch, name, here, nodes });
    let trunk = ("[a-z]{0,5}", any::<(u16, u16)>()).prop_map(|(name, (a, b))| TrunkView { name, a, b });
    let topology = ("[0-9a-f]{16}", vec(switch, 0..4), vec(trunk, 0..4))
        .prop_map(|(digest, switches, trunks)| TopologyView { digest, switches, trunks });
    let fault = (target(), faults(), any::<bool>()).prop_map(|(on, faults, down)| FaultView { on, faults, down });
    let nodes = || vec(any::<u16>(), 0..4);
    let broken = (vec(fault, 0..4), vec(nodes(), 0..3), nodes()).prop_map(|(faults, partition, crashed)| FaultsView {
        faults,
        partition,
        crashed,
    });
    prop_oneof![
        (0..4usize, ".{0,40}").prop_map(move |(k, text)| Response::Error(ErrorAnswer { kind: kinds[k], text })),
        (any::<u32>(), ".{0,20}").prop_map(|(changed, note)| Response::Done(Done { changed, note })),
        status.prop_map(Response::Status),
        snapshot().prop_map(Response::Statistics),
        topology.prop_map(Response::Topology),
        broken.prop_map(Response::Faults),
    ]
}

fn parse(text: &str) -> Result<Request, ErrorAnswer> {
    Request::parse(text.as_bytes())
}

#[test]
fn every_request_is_read_as_it_was_written() {
    check(request(), |request| {
        let line = request.line();
        prop_assert_eq!(line.matches('\n').count(), 1);
        prop_assert_eq!(parse(line.trim_end()), Ok(request.clone()));
        // The version may be said.
        let with = line.replacen('{', "{\"v\":1,", 1);
        prop_assert_eq!(parse(with.trim_end()), Ok(request));
        Ok(())
    });
}

#[test]
fn every_answer_is_read_as_it_was_written() {
    check(response(), |response| {
        let line = response.line();
        prop_assert_eq!(line.matches('\n').count(), 1);
        let read: Response = serde_json::from_str(&line).map_err(|e| TestCaseError::fail(format!("{e}: {line}")))?;
        prop_assert_eq!(read, response);
        Ok(())
    });
}

#[test]
fn names_of_links_and_faults_are_read_as_they_are_written() {
    check((target(), faults()), |(target, faults)| {
        prop_assert_eq!(target.to_string().parse(), Ok(target));
        prop_assert_eq!(faults.to_string().parse(), Ok(faults));
        Ok(())
    });
}

#[test]
fn any_bytes_and_any_piece_of_a_request_are_refused_or_read_without_a_panic() {
    check(vec(any::<u8>(), 0..200), |bytes| {
        let _ = Request::parse(&bytes);
        Ok(())
    });
    check(
        (request(), any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()),
        |(request, at, cut, byte)| {
            let mut line = request.line().into_bytes();
            line.pop();
            let cut = cut.index(line.len());
            prop_assert!(Request::parse(&line[..cut]).is_err(), "a part of a request is no request");
            let at = at.index(line.len());
            line[at] = byte;
            let _ = Request::parse(&line);
            Ok(())
        },
    );
}

#[test]
fn errors_name_the_value_and_what_was_expected() {
    use ErrorKind::{Malformed, Refused, Version};
    for (line, kind, parts) in [
        ("hello", Malformed, ["\"hello\"", "expected an object"]),
        ("[1]", Malformed, ["\"[1]\"", "expected a"]),
        (r#"{"do":"reboot"}"#, Malformed, ["`reboot`", "`status`"]),
        (r#"{"do":"status","now":1}"#, Malformed, ["`now`", "expected"]),
        (r#"{"do":"crash"}"#, Malformed, ["`node`", "missing"]),
        (r#"{"do":"crash","node":70000}"#, Malformed, ["70000", "u16"]),
        (r#"{"do":"crash","node":"x"}"#, Malformed, ["\"x\"", "u16"]),
        (r#"{"do":"crash","node":1} trailing"#, Malformed, ["trailing", "column"]),
        (r#"{"v":2,"do":"status"}"#, Version, ["\"v\" is 2", "expected 1"]),
        (r#"{"do":"link","on":"port 3","up":true}"#, Malformed, ["\"port 3\"", "node:N"]),
        (r#"{"do":"set-faults","on":"all","faults":{"loss":5}}"#, Malformed, ["map", "string"]),
        (r#"{"do":"set-faults","on":"all","faults":"loss=101%"}"#, Malformed, ["loss=101%", "100%"]),
        (r#"{"do":"set-faults","on":"all","faults":"rain"}"#, Malformed, ["rain", "loss=5%"]),
        (r#"{"do":"watch","every_ms":1}"#, Refused, ["every_ms is 1", "50 to 3600000"]),
        (r#"{"do":"slow","node":1,"bytes_per_second":0}"#, Refused, ["is 0", "at least 1"]),
        (r#"{"do":"partition","groups":[["0"]]}"#, Refused, ["has 1", "2 to 256"]),
        (r#"{"do":"partition","groups":[["0"],[]]}"#, Refused, ["empty", "expected"]),
        (r#"{"do":"partition","groups":[["0"],["1","0"]]}"#, Refused, ["switch 0", "one group"]),
        (r#"{"do":"capture-start","file":"a.pcapng","on":"all"}"#, Refused, ["\"a.pcapng\"", "absolute"]),
    ] {
        let error = parse(line).unwrap_err();
        assert_eq!(error.kind, kind, "{line}: {error}");
        assert!(parts.iter().all(|p| error.text.contains(p)), "{line}: {error}");
    }
    let long = format!("{{\"do\":\"log\",\"level\":\"{}\"}}", "x".repeat(MAX_REQUEST));
    let error = parse(&long).unwrap_err();
    assert!(error.text.len() < 300 && error.text.contains("16384 bytes"), "{error}");
    let deep = format!("{{\"do\":{}", "[".repeat(10_000));
    assert_eq!(parse(&deep).unwrap_err().kind, Malformed);
}
