// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients: good ones, slow ones, many of them, and those that send what is no request.

use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use telegraphos_fabric::control::protocol::MAX_REQUEST;
use telegraphos_fabric::control::{
    ClientError, ControlClient, ControlServer, Done, ErrorKind, Limits, Request, Response, Target,
};

use super::fake::{Peer, Served, error};

fn served() -> Served {
    Served::new(Limits::default())
}

#[test]
fn every_request_reaches_the_fabric_and_gets_its_answer() {
    let mut served = served();
    let mut peer = served.connect();
    assert!(served.ask(&mut peer, r#"{"do":"status"}"#).starts_with(r#"{"status":{"protocol":1,"#));
    assert!(served.ask(&mut peer, r#"{"do":"statistics"}"#).starts_with(r#"{"statistics":{"process":"#));
    assert!(served.ask(&mut peer, r#"{"do":"topology"}"#).contains("0123456789abcdef"));
    let set = r#"{"do":"set-faults","on":"trunk:0-1","faults":"latency=5ms loss=5%"}"#;
    assert_eq!(served.ask(&mut peer, set), r#"{"done":{"changed":1}}"#);
    assert_eq!(
        served.ask(&mut peer, r#"{"do":"faults"}"#),
        r#"{"faults":{"faults":[{"on":"trunk:0-1","faults":"loss=5% latency=5ms","down":false}]}}"#
    );
    served.ask(&mut peer, r#"{"do":"clear-faults","on":"trunk:0-1"}"#);
    assert_eq!(served.ask(&mut peer, r#"{"do":"faults"}"#), r#"{"faults":{"faults":[]}}"#);
    for line in [
        r#"{"do":"link","on":"node:3","up":false}"#,
        r#"{"do":"partition","groups":[["0","1"],["2"]]}"#,
        r#"{"do":"heal"}"#,
        r#"{"do":"slow","node":3,"bytes_per_second":1000}"#,
        r#"{"do":"slow","node":3}"#,
        r#"{"do":"crash","node":4}"#,
        r#"{"do":"restore","node":4}"#,
        r#"{"do":"capture-start","file":"/tmp/x","on":"links"}"#,
        r#"{"do":"capture-stop"}"#,
        r#"{"v":1,"do":"log","level":"debug"}"#,
    ] {
        assert_eq!(served.ask(&mut peer, line), r#"{"done":{"changed":1}}"#, "{line}");
    }
    let commands = [
        "link node:3 false",
        r#"partition [["0", "1"], ["2"]]"#,
        "partition []",
        "slow 3 Some(1000)",
        "slow 3 None",
        "crash 4 true",
        "crash 4 false",
        "capture /tmp/x links",
        "capture stop",
        "log debug",
    ];
    assert_eq!(served.fake.commands, commands);
    let refused = error(&served.ask(&mut peer, r#"{"do":"crash","node":64}"#));
    assert_eq!((refused.kind, refused.text.as_str()), (ErrorKind::Refused, "node is 64: expected 0 to 63"));
}

#[test]
fn a_wrong_line_is_answered_and_the_next_is_served() {
    let mut served = served();
    let mut peer = served.connect();
    assert_eq!(error(&served.ask(&mut peer, "{")).kind, ErrorKind::Malformed);
    peer.send(b"\xff\xfe\n\n  \r\n");
    served.turn();
    assert_eq!(error(&peer.line().unwrap()).kind, ErrorKind::Malformed);
    assert!(served.ask(&mut peer, r#"{"do":"status"}"#).contains("status"));
    assert!(!peer.is_closed());
}

#[test]
fn a_request_in_pieces_and_several_in_one_piece_are_served_in_order() {
    let mut served = served();
    let mut peer = served.connect();
    for byte in br#"{"do":"heal"}"# {
        peer.send(&[*byte]);
        served.turn();
        assert_eq!(peer.line(), None);
    }
    peer.send(b"\n");
    served.turn();
    assert_eq!(peer.line().unwrap(), r#"{"done":{"changed":1}}"#);
    for node in 0..40 {
        peer.send(format!("{{\"do\":\"crash\",\"node\":{node}}}\n").as_bytes());
    }
    // A client that has closed its sending side still gets its answers.
    peer.stream.shutdown(Shutdown::Write).unwrap();
    served.turn();
    let answers = std::iter::from_fn(|| peer.line()).count();
    assert_eq!((answers, served.fake.commands.len()), (40, 41));
    assert_eq!(served.fake.commands[40], "crash 39 true");
    assert!(peer.is_closed());
    assert_eq!(served.server.clients(), 0);
}

#[test]
fn a_line_without_end_is_answered_once_and_the_client_dropped() {
    let mut served = served();
    let mut peer = served.connect();
    let mut sent = 0;
    while sent <= MAX_REQUEST {
        peer.send(&[b'x'; 1000]);
        sent += 1000;
        served.turn();
    }
    let refused = error(&peer.line().unwrap());
    assert!(refused.kind == ErrorKind::Malformed && refused.text.contains("16384 bytes"), "{refused}");
    assert!(peer.is_closed());
    assert_eq!(served.server.clients(), 0);
}

#[test]
fn who_does_not_read_is_dropped_and_costs_one_answer() {
    let mut served = served();
    // An answer of about 2 MB does not fit into the socket.
    served.fake.ports = 40_000;
    let (mut slow, mut good) = (served.connect(), served.connect());
    for _ in 0..50 {
        slow.send(b"{\"do\":\"statistics\"}\n");
    }
    served.turn();
    assert_eq!(served.fake.snapshots, 1, "the second is not even read while the first waits");
    served.now += Limits::default().patience_us - 1;
    served.turn();
    assert_eq!(served.server.clients(), 2);
    assert!(served.ask(&mut good, r#"{"do":"status"}"#).contains("status"), "others are served meanwhile");
    assert_eq!(served.server.deadline(), Some(served.now + 1));
    served.now += 1;
    served.turn();
    assert_eq!((served.server.clients(), served.server.dropped()), (1, 1));
    while slow.line().is_some() {}
    assert!(slow.is_closed());
}

#[test]
fn a_reader_that_takes_its_time_gets_everything() {
    let mut served = served();
    served.fake.ports = 40_000;
    let mut peer = served.connect();
    peer.send(b"{\"do\":\"statistics\"}\n{\"do\":\"status\"}\n");
    served.turn();
    let mut lines = Vec::new();
    for _ in 0..1000 {
        lines.extend(peer.line());
        served.now += 1000;
        served.turn();
    }
    assert_eq!(lines.len(), 2);
    let Response::Statistics(snapshot) = serde_json::from_str(&lines[0]).unwrap() else { panic!() };
    assert_eq!(snapshot.ports.len(), 40_000);
}

#[test]
fn a_watch_comes_at_its_time_and_leaves_out_what_its_reader_missed() {
    let mut served = served();
    let mut peer = served.connect();
    assert!(served.ask(&mut peer, r#"{"do":"watch","every_ms":100}"#).contains("statistics"));
    for _ in 0..5 {
        assert_eq!(served.server.deadline(), Some(served.now + 100_000));
        served.now += 99_999;
        served.turn();
        assert_eq!(peer.line(), None);
        served.now += 1;
        served.turn();
        assert!(peer.line().is_some() && peer.line().is_none());
    }
    // The process was stopped: one answer, not ten, and the interval stays.
    served.now += 1_050_000;
    served.turn();
    assert!(peer.line().is_some() && peer.line().is_none());
    assert_eq!(served.server.deadline(), Some(served.now + 50_000));
    assert!(served.ask(&mut peer, r#"{"do":"status"}"#).contains("status"), "a question in between");
    assert_eq!(served.ask(&mut peer, r#"{"do":"watch","every_ms":0}"#), r#"{"done":{"changed":0}}"#);
    assert_eq!(served.server.deadline(), None);
}

#[test]
fn a_watcher_that_has_gone_is_noticed() {
    let mut served = served();
    let mut peer = served.connect();
    served.ask(&mut peer, r#"{"do":"watch","every_ms":100}"#);
    drop(peer);
    served.turn();
    served.now += 200_000;
    served.turn();
    assert_eq!((served.server.clients(), served.server.deadline()), (0, None));
}

#[test]
fn of_too_many_clients_the_silent_ones_make_place_and_watchers_stay() {
    let mut served = Served::new(Limits { clients: 3, ..Limits::default() });
    let ask = r#"{"do":"status"}"#;
    let mut peers: Vec<Peer> = (0..3).map(|_| served.connect()).collect();
    for (i, peer) in peers.iter_mut().enumerate() {
        served.now = 100 + [5, 3, 9][i];
        served.ask(peer, ask);
    }
    let mut fourth = served.connect();
    assert!(served.ask(&mut fourth, ask).contains("status"));
    assert_eq!(peers.iter_mut().map(Peer::is_closed).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!(served.server.clients(), 3);
    // When all watch, the newcomer gets an error.
    let [mut first, _, mut third]: [Peer; 3] = peers.try_into().ok().unwrap();
    for peer in [&mut first, &mut third, &mut fourth] {
        served.ask(peer, r#"{"do":"watch","every_ms":1000}"#);
    }
    let mut fifth = served.connect();
    let busy = error(&fifth.line().unwrap());
    assert!(busy.kind == ErrorKind::Busy && busy.text.contains("at most 3"), "{busy}");
    assert!(fifth.is_closed() && !first.is_closed() && !third.is_closed() && !fourth.is_closed());
    assert_eq!(served.server.clients(), 3);
}

#[test]
fn a_thousand_clients_come_and_go() {
    let mut served = served();
    for _ in 0..1000 {
        let mut peer = served.connect();
        assert!(served.ask(&mut peer, r#"{"do":"status"}"#).contains("status"));
    }
    served.turn();
    assert_eq!(served.server.clients(), 0);
}

#[test]
fn a_stream_of_the_process_itself_is_served_and_never_dropped_for_others() {
    let mut served = Served::new(Limits { clients: 1, ..Limits::default() });
    let (near, far) = UnixStream::pair().unwrap();
    served.server.adopt(far.into(), served.now).unwrap();
    let thread = std::thread::spawn(move || {
        let mut client = ControlClient::over(near).unwrap();
        let set = Request::SetFaults { on: Target::All, faults: "loss=7%".parse().unwrap() };
        assert_eq!(client.command(&set).unwrap(), Done::changed(1));
        let refused = client.command(&Request::Crash { node: 99 }).unwrap_err();
        assert!(matches!(refused, ClientError::Refused(_)), "{refused}");
        assert!(client.request(&Request::Topology {}).unwrap().line().starts_with("{\"topology\""));
        client
    });
    while !thread.is_finished() {
        served.turn();
        std::thread::yield_now();
    }
    let _client = thread.join().unwrap();
    let _a = served.connect();
    let _b = served.connect();
    assert_eq!(served.server.clients(), 2, "one of them, and the internal one");
}

#[test]
fn the_socket_is_private_goes_with_its_server_and_is_not_taken_from_a_living_one() {
    let served = served();
    assert_eq!(std::fs::metadata(&served.path).unwrap().permissions().mode() & 0o777, 0o600);
    let taken = ControlServer::bind(&served.path, "--control", Limits::default()).unwrap_err().to_string();
    assert!(taken.contains("--control") && taken.contains("control"), "{taken}");
    let path = served.path.clone();
    let Served { server, _dir: _keep, .. } = served;
    drop(server);
    assert!(!path.exists());
    // Left by a killed process.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let failed = ControlClient::connect(&path).unwrap_err().to_string();
    assert!(failed.contains("has ended"), "{failed}");
    let again = ControlServer::bind(&path, "--control", Limits::default()).unwrap();
    assert_eq!(again.path(), Some(path.as_path()));
    let missing = ControlClient::connect(&path.with_file_name("none")).unwrap_err().to_string();
    assert!(missing.contains("none") && missing.contains("--control"), "{missing}");
}
