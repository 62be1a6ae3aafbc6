// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fabric with real HIB ends over real sockets: order and completeness under load, replies without a reader,
//! joiners that are refused, ends of all kinds.

use std::io::Write;
use std::os::unix::net::UnixStream;

use crate::common::{Node, ack, all_to_all, serve, traffic, wait};
use telegraphos_fabric::{Config, Fabric, FabricError};
use telegraphos_link::listener::ListenError;
use telegraphos_link::{LinkClient, OUT_LIMIT};
use telegraphos_wire::link::{Frame, Refusal};
use telegraphos_wire::packet::MULTICAST;
use telegraphos_wire::{Body, Class, NodeId, PROTOCOL_VERSION, Packet, RemoteAddr, STREAM_BLOCK, Status, WindowLayout};

/// 100 000 stores for each ordered pair of three nodes, all at once, each answered.
#[test]
fn i8_per_pair_fifo_and_no_loss_under_load() {
    let served = serve(|_| {});
    let nodes: [Node; 3] = std::array::from_fn(|node| Node::join(&served, node as NodeId));
    all_to_all(nodes, 100_000, 256);
}

/// A node that sends requests without end and reads nothing: those that answer it stay connected, and continue.
#[test]
fn unread_replies_harm_no_other_node() {
    let served = serve(|_| {});
    let mut deaf = Node::join(&served, 0);
    let mut answering = Node::join(&served, 1);
    let third = Node::join(&served, 2);
    let mut tag = 0;
    while deaf.store(1, tag) {
        tag += 1;
    }
    deaf.link.flush().unwrap();
    for _ in 0..tag {
        let is_store = |f: &Frame| matches!(f, Frame::Packet(p) if p.src == 0);
        let Frame::Packet(packet) = answering.expect("stores", is_store) else { continue };
        answering.link.send(&ack(&packet)).unwrap();
        answering.link.send(&Frame::Credit { class: Class::Request, count: 1 }).unwrap();
    }
    let _both = all_to_all([answering, third], 1000, 64);
    for expected in 0..tag {
        let is_reply = |f: &Frame| matches!(f, Frame::Packet(_));
        let Frame::Packet(packet) = deaf.expect("answers", is_reply) else { continue };
        assert_eq!(packet.tag, expected);
    }
}

/// A node that sends replies without requests to one that does not read is disconnected; the memory does not grow
/// first.
#[test]
fn a_flood_of_replies_ends_its_sender() {
    let served = serve(|_| {});
    let _deaf = Node::join(&served, 0);
    let mut flooder = Node::join(&served, 1);
    let mut watcher = Node::join(&served, 2);
    let reply = ack(&Packet { src: 0, dst: 1, ..flooder.write(0, 0) });
    let mut sent = 0u64;
    while !flooder.closed {
        while flooder.link.pending() < OUT_LIMIT / 2 {
            flooder.link.send(&reply).unwrap();
            sent += 1;
        }
        assert!(sent < 10_000_000, "never disconnected");
        wait(&flooder.link, None);
        flooder.exchange();
    }
    let refusal = flooder.frames.iter().find_map(|f| match f {
        Frame::Refuse { reason, offered, expected } => Some((*reason, *offered, *expected)),
        _ => None,
    });
    // Twice its credits in the switch, since there is no request: see the configuration of the switch.
    assert_eq!(refusal, Some((Refusal::Protocol, 1537, 1536)));
    watcher.expect("the end of node 1", |f| *f == Frame::NodeDown { node: 1 });
}

#[test]
fn refused_joiners_get_both_values() {
    let mut served = serve(|c| c.nodes = 5);
    let _zero = Node::join(&served, 0);
    let usual = WindowLayout::default();
    for (node, window, reason, offered, expected) in [
        (0, usual, Refusal::NodeTaken, 0, 0),
        (5, usual, Refusal::NodeRange, 5, 5),
        (1, WindowLayout { node_bits: 7, ..usual }, Refusal::NodeBits, 7, 6),
        (1, WindowLayout { offset_bits: 20, ..usual }, Refusal::OffsetBits, 20, 26),
    ] {
        let mut joiner = Node::hello(&served.path, node, window, 256);
        assert_eq!(joiner.next(), Some(Frame::Refuse { reason, offered, expected }));
        assert_eq!(joiner.next(), None, "the link is closed");
    }
    let mut other = LinkClient::connect(&served.path).unwrap();
    let hello = Frame::Hello { version: PROTOCOL_VERSION + 1, node: 1, window: usual, credits: [1; 4] };
    other.send(&hello).unwrap();
    let mut other = Node::over(other, 1);
    let (offered, expected) = (u64::from(PROTOCOL_VERSION) + 1, u64::from(PROTOCOL_VERSION));
    other.exchange();
    assert_eq!(other.next(), Some(Frame::Refuse { reason: Refusal::Version, offered, expected }));
    assert_eq!(other.next(), None);
    served.stop();
}

/// Bytes that are no frame end their connection alone, before and after the hello.
#[test]
fn malformed_bytes_end_their_own_link_only() {
    let served = serve(|_| {});
    let mut zero = Node::join(&served, 0);
    for garbage in [&[0xff; 40][..], &[0; 40], &[8, 0, 0, 0, 99, PROTOCOL_VERSION, 0, 0]] {
        let mut raw = UnixStream::connect(&served.path).unwrap();
        raw.write_all(garbage).unwrap();
        raw.set_nonblocking(true).unwrap();
        let link = LinkClient::from_stream(raw);
        let mut invalid = Node::over(link, 9);
        assert!(matches!(invalid.next(), Some(Frame::Refuse { reason: Refusal::Handshake, .. })));
        assert_eq!(invalid.next(), None);

        let one = UnixStream::connect(&served.path).unwrap();
        let mut raw = one.try_clone().unwrap();
        one.set_nonblocking(true).unwrap();
        let link = LinkClient::from_stream(one);
        let mut one = Node::over(link, 1);
        one.link.hello(1, WindowLayout::default(), [1; 4]).unwrap();
        one.link.flush().unwrap();
        assert!(matches!(one.next(), Some(Frame::Welcome { .. })));
        zero.expect("node 1", |f| matches!(f, Frame::NodeUp { node: 1, .. }));
        raw.write_all(garbage).unwrap();
        one.expect("the reason", |f| matches!(f, Frame::Refuse { reason: Refusal::Protocol, .. }));
        assert_eq!(one.next(), None);
        zero.expect("the end of node 1", |f| *f == Frame::NodeDown { node: 1 });
    }
    traffic(&mut zero, &[0], 100, 10, 100);
}

/// One packet on the link of the home, one on that of each copy, in order with packets to one of them; an absent member
/// is answered for.
#[test]
fn a_multicast_reaches_every_member_in_order() {
    const COUNT: u32 = 200;
    let served = serve(|_| {});
    let mut home = Node::join(&served, 0);
    let mut copies: Vec<Node> = (1..4).map(|n| Node::join(&served, n)).collect();
    home.link.send(&Frame::Group { page: 5, members: vec![1, 2, 3, 9] }).unwrap();
    let at = RemoteAddr { page: 5, offset: 0, generation: 1 };
    let incarnation = home.incarnation;
    let body = |n: u32| Body::Reflected { at, size: 8, data: n.into(), writer: 0 };
    let to = |dst, n: u32| Packet { src: 0, dst, tag: n, incarnation, target: 0, body: body(n) };
    for n in 0..COUNT {
        // Every tenth is for one of them alone.
        let dst = if n % 10 == 9 { 2 } else { MULTICAST };
        home.link.send(&Frame::Packet(to(dst, n))).unwrap();
    }
    home.link.flush().unwrap();
    for copy in &mut copies {
        let (node, life) = (copy.node, copy.incarnation);
        for n in (0..COUNT).filter(|n| node == 2 || n % 10 != 9) {
            let got = copy.expect("its copy", |f| matches!(f, Frame::Packet(_)));
            let target = if n % 10 == 9 { 0 } else { life };
            assert_eq!(got, Frame::Packet(Packet { target, ..to(node, n) }));
        }
    }
    for n in (0..COUNT).filter(|n| n % 10 != 9) {
        let got = home.expect("an answer for node 9", |f| matches!(f, Frame::Packet(_)));
        let body = Body::CopyAck { status: Status::NodeDown };
        assert_eq!(got, Frame::Packet(Packet { src: 9, dst: 0, tag: n, incarnation, target: 0, body }));
    }
}

/// Groups that are no frame, or impossible, end the link of their sender.
#[test]
fn impossible_groups_end_their_own_link_only() {
    let served = serve(|_| {});
    let mut watcher = Node::join(&served, 0);
    for (members, offered, expected) in [
        (vec![3, 2], 0, 0),    // No frame.
        (vec![1], 1, 0),       // Itself.
        (vec![0, 64], 64, 64), // No node can have that number.
        (vec![0, 2, u16::MAX], 65_535, 64),
    ] {
        let mut node = Node::join(&served, 1);
        node.link.send(&Frame::Group { page: 1, members }).unwrap();
        node.link.flush().unwrap();
        let refusal = node.expect("a refusal", |f| matches!(f, Frame::Refuse { .. }));
        assert_eq!(refusal, Frame::Refuse { reason: Refusal::Protocol, offered, expected });
        watcher.expect("its end", |f| *f == Frame::NodeDown { node: 1 });
    }
    traffic(&mut watcher, &[0], 100, 10, 100);
}

/// A HIB that dies with data under way and comes back at once is never taken for its own double, and has a new life.
#[test]
fn a_node_that_comes_back_at_once_is_welcome() {
    // More often than a node may.
    let served = serve(|c| c.presence_rate = None);
    let mut watcher = Node::join(&served, 0);
    let mut last = 0;
    for round in 0..200 {
        let mut one = Node::join(&served, 1);
        assert!(one.incarnation > last && one.incarnation & 0xfff == 0);
        last = one.incarnation;
        let up = Frame::NodeUp { node: 1, incarnation: last, block: STREAM_BLOCK as u32 };
        watcher.expect("node 1", |f| *f == up);
        for tag in 0..round {
            one.store(1, tag);
        }
        one.link.send(&Frame::Reset { incarnation: last + 1 }).unwrap();
        last += 1;
        one.link.flush().unwrap();
        drop(one);
        let reset = Frame::NodeUp { node: 1, incarnation: last, block: STREAM_BLOCK as u32 };
        watcher.expect("the reset", |f| *f == reset);
        watcher.expect("the end of node 1", |f| *f == Frame::NodeDown { node: 1 });
        if round % 2 == 0 {
            continue;
        }
        // Without waiting for a time limit.
        drop(Node::join(&served, 1));
        let again = Node::join(&served, 1);
        assert!(again.incarnation > last);
        last = again.incarnation;
        drop(again);
        for _ in 0..2 {
            watcher.expect("the end of node 1", |f| *f == Frame::NodeDown { node: 1 });
        }
    }
}

/// Connections that never say hello make room for those that do.
#[test]
fn unidentified_connections_cannot_keep_nodes_out() {
    let served = serve(|c| c.nodes = 2);
    let mut unidentified: Vec<UnixStream> = (0..200).map(|_| UnixStream::connect(&served.path).unwrap()).collect();
    let one = Node::join(&served, 1);
    assert!(one.incarnation > 0);
    let mut rest = Vec::new();
    use std::io::Read;
    assert_eq!(unidentified[0].read_to_end(&mut rest).unwrap(), 0, "the oldest was ended");
}

#[test]
fn nothing_to_do_is_nothing_done() {
    let served = serve(|_| {});
    let mut zero = Node::join(&served, 0);
    traffic(&mut zero, &[0], 1000, 64, 1000);
    let switches = || {
        let status = std::fs::read_to_string(format!("/proc/self/task/{}/status", served.tid)).unwrap();
        let line = status.lines().find(|l| l.starts_with("voluntary_ctxt_switches:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    // Half a second without a wake-up, on a loaded machine perhaps not at once; a timer would never let it pass.
    let quiet = || {
        let before = switches();
        std::thread::sleep(std::time::Duration::from_millis(500));
        switches() == before
    };
    assert!((0..20).any(|_| quiet()), "the fabric keeps waking up without a reason");
}

#[test]
fn shutting_down_ends_links_and_removes_the_socket() {
    let mut served = serve(|_| {});
    let mut zero = Node::join(&served, 0);
    assert!(served.path.exists());
    assert!(matches!(Fabric::bind(Config::new(&served.path)), Err(FabricError::Listen(ListenError::Live { .. }))));
    served.stop();
    assert!(!served.path.exists());
    while zero.next().is_some() {}
    let error = LinkClient::connect(&served.path).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);

    // As a killed one would have left it.
    drop(std::os::unix::net::UnixListener::bind(&served.path).unwrap());
    let again = Fabric::bind(Config::new(&served.path)).unwrap();
    assert!(LinkClient::connect(&served.path).is_ok());
    // Shut down before it runs.
    again.shutdown_handle().shut_down();
    again.run().unwrap();
    assert!(!served.path.exists());
}
