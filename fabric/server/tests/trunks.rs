// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fabrics of several switches, in one process and in several: order and completeness across trunks, and what nodes are
//! notified when a process goes and comes back.

use std::path::Path;

use crate::common::{self, Node, ack, all_of, all_to_all, all_up, down, regular, serve_at, udp_port, up};
use telegraphos_fabric::{Config, Fabric, FabricError};
use telegraphos_topology::Plan;
use telegraphos_wire::link::{Frame, Refusal};
use telegraphos_wire::{Body, Packet, Status, WindowLayout};

/// Three processes in a row, two nodes each.
fn row(dir: &Path) -> Plan {
    let at = |name: &str| format!("unix:{}", dir.join(name).display());
    let text = format!(
        "nodes = 6\n\
         [[switch]]\nname = 'left'\nnodes = '0-1'\nprocess = 'l'\n\
         [[switch]]\nname = 'middle'\nnodes = '2-3'\nprocess = 'm'\n\
         [[switch]]\nname = 'right'\nnodes = '4-5'\nprocess = 'r'\n\
         [[trunk]]\nbetween = ['middle', 'left']\nat = '{}'\n\
         [[trunk]]\nbetween = ['middle', 'right']\nat = '{}'\n",
        at("trunks"),
        at("trunks")
    );
    Plan::from_toml(&text).unwrap()
}

fn part(dir: &Path, plan: &Plan, process: &str) -> common::Served {
    serve_at(&dir.join(process), |config| {
        config.nodes = plan.topology.nodes();
        config.plan = Some(plan.clone());
        config.process = Some(process.to_owned());
    })
}

#[test]
fn i8_per_pair_fifo_across_the_switches_of_one_process() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["tree:2x2", "mesh:3x2", "torus:4x2"] {
        let plan = regular(name, 8);
        let served = serve_at(&dir.path().join("fabric"), |config| {
            config.nodes = 8;
            config.plan = Some(plan);
        });
        all_to_all::<8>(all_of(&served), 2000, 64);
    }
}

#[test]
fn three_processes_and_one_that_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let plan = row(dir.path());
    let left = part(dir.path(), &plan, "l");
    let middle = part(dir.path(), &plan, "m");
    let right = part(dir.path(), &plan, "r");
    let mut nodes = [(&left, 0), (&middle, 2), (&right, 4), (&right, 5)].map(|(served, n)| Node::join(served, n));
    let first = all_up(&mut nodes[0], &[4, 2, 5])[0];
    for (index, peers) in [(1, [0, 4, 5]), (2, [0, 2, 5]), (3, [0, 2, 4])] {
        all_up(&mut nodes[index], &peers);
    }
    let mut nodes = all_to_all(nodes, 3000, 64);

    // Without the middle no node reaches the other side; the two on the right still reach each other.
    drop(middle);
    let mut missing = vec![2, 4, 5];
    while !missing.is_empty() {
        let frame = nodes[0].expect("the ends of all", |f| matches!(f, Frame::NodeDown { .. }));
        missing.retain(|peer| frame != Frame::NodeDown { node: *peer });
    }
    down(&mut nodes[2], 0);
    down(&mut nodes[3], 0);
    assert!(nodes[0].store(4, 7000));
    let refused = nodes[0].expect("an answer", |f| matches!(f, Frame::Packet(_)));
    let is_down = Body::WriteAck { status: Status::NodeDown };
    assert!(
        matches!(&refused, Frame::Packet(Packet { src: 4, tag: 7000, body, .. }) if *body == is_down),
        "{refused:?}"
    );
    assert!(nodes[3].store(4, 7001));
    nodes[3].link.flush().unwrap();
    let Frame::Packet(store) = nodes[2].expect("a store", |f| matches!(f, Frame::Packet(_))) else { return };
    nodes[2].link.send(&ack(&store)).unwrap();
    nodes[2].link.flush().unwrap();
    nodes[3].expect("its answer", |f| matches!(f, Frame::Packet(p) if p.tag == 7001));

    // It comes back: those that were only cut off look restarted to each other.
    let _middle = part(dir.path(), &plan, "m");
    let again = up(&mut nodes[0], 4);
    assert!(again > first, "{again:#x} after {first:#x}");
    let back = up(&mut nodes[2], 0);
    // A store for the life before the cut arrives under a life that the node never had; one for the present life under
    // its own.
    let own = nodes[2].incarnation;
    for (tag, target) in [(8000, first), (8001, again)] {
        let packet = Packet { target, ..nodes[0].write(4, tag) };
        nodes[0].link.send(&Frame::Packet(packet)).unwrap();
    }
    nodes[0].link.flush().unwrap();
    for (tag, fits) in [(8000, false), (8001, true)] {
        let Frame::Packet(store) = nodes[2].expect("a store", |f| matches!(f, Frame::Packet(_))) else { return };
        assert_eq!((store.tag, store.target == own, store.incarnation), (tag, fits, back));
        nodes[2].link.send(&ack(&store)).unwrap();
    }
    nodes[2].link.flush().unwrap();
    // Its answers carry the asker's own incarnation again.
    let Frame::Packet(answer) = nodes[0].expect("an answer", |f| matches!(f, Frame::Packet(_))) else { return };
    assert_eq!((answer.tag, answer.incarnation), (8000, nodes[0].incarnation));
}

#[test]
fn a_node_of_another_switch_and_callers_that_are_no_neighbours_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let plan = row(dir.path());
    let middle = part(dir.path(), &plan, "m");
    let mut node = Node::hello(&middle.path, 5, WindowLayout::default(), 16);
    assert_eq!(node.next(), Some(Frame::Refuse { reason: Refusal::Elsewhere, offered: 1, expected: 2 }));
    // Another topology, the wrong trunk, and what is no switch.
    let trunk = |switch, peer, topology| Frame::Trunk {
        version: telegraphos_wire::PROTOCOL_VERSION,
        switch,
        peer,
        epoch: 0,
        topology,
        credits: [8; 4],
    };
    let digest = plan.topology.digest();
    for (frame, expected) in [
        (trunk(0, 1, digest + 1), Refusal::Topology),
        (trunk(2, 0, digest), Refusal::NoTrunk),
        (Frame::Alive, Refusal::Handshake),
    ] {
        let link = telegraphos_link::LinkClient::connect(dir.path().join("trunks")).unwrap();
        let mut caller = Node::over(link, 9);
        caller.link.send(&frame).unwrap();
        caller.link.flush().unwrap();
        let refusal = caller.expect("a refusal", |f| matches!(f, Frame::Refuse { .. }));
        assert!(matches!(refusal, Frame::Refuse { reason, .. } if reason == expected), "{refusal:?}");
    }
    let known = plan.processes().to_vec();
    let config = Config { plan: Some(plan), process: Some("x".into()), nodes: 6, ..Config::new(dir.path().join("x")) };
    let error = Fabric::bind(config).unwrap_err();
    assert!(matches!(&error, FabricError::Process { known: k, .. } if *k == known));
    assert!(error.to_string().contains("--process is x: expected one of l, m, r"), "{error}");
}

/// A port that sends nothing and answers no probe is disconnected; one that answers is not.
#[test]
fn a_silent_node_is_disconnected() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve_at(&dir.path().join("fabric"), |config| config.silence = Some(300_000));
    let mut silent = Node::join(&served, 0);
    let mut quiet = Node::join(&served, 1);
    let mut probes = 0;
    loop {
        match quiet.next() {
            Some(Frame::Probe) => {
                probes += 1;
                quiet.link.send(&Frame::Alive).unwrap();
                quiet.link.flush().unwrap();
            }
            Some(Frame::NodeDown { node: 0 }) => break,
            Some(Frame::NodeUp { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(probes > 0, "it was probed");
    let refusal = silent.expect("a refusal", |f| matches!(f, Frame::Refuse { .. }));
    assert!(matches!(refusal, Frame::Refuse { reason: Refusal::Silent, expected: 300_000, .. }), "{refusal:?}");
    // Under the same id, a greater incarnation.
    let again = Node::join(&served, 0);
    assert!(again.incarnation > silent.incarnation);
    assert_eq!(up(&mut quiet, 0), again.incarnation);
}

/// A trunk goes down for a while, as scheduled: a partition, and then everybody is back, under greater incarnations.
#[test]
fn a_scheduled_partition_heals() {
    let dir = tempfile::tempdir().unwrap();
    let plan = regular("mesh:2x1", 2);
    let name = format!("trunk:{}-{}", plan.topology.name(0), plan.topology.name(1));
    let schedule = format!(
        "[[event]]\nat = '1s'\nlink = '{name}'\nset = 'down'\n[[event]]\nat = '2s'\nlink = '{name}'\nclear = true\n"
    );
    let served = serve_at(&dir.path().join("fabric"), |config| {
        config.nodes = 2;
        config.plan = Some(plan);
        config.schedule = telegraphos_transport::faults::Schedule::parse(&schedule).unwrap();
        // Slow from the start, so that the link's place for faults is used, too.
        config.faults = vec![("node:1".into(), "latency=1ms".parse().unwrap())];
    });
    let (mut left, mut right) = (Node::join(&served, 0), Node::join(&served, 1));
    let before = up(&mut left, 1);
    up(&mut right, 0);
    let [mut left, mut right] = all_to_all([left, right], 100, 64);
    down(&mut left, 1);
    down(&mut right, 0);
    assert!(up(&mut left, 1) > before);
    up(&mut right, 0);
    all_to_all([left, right], 100, 64);
}

#[test]
fn faults_of_what_is_not_there_are_refused_with_the_names_there_are() {
    let dir = tempfile::tempdir().unwrap();
    let faults = vec![("node:7".to_owned(), "loss=1%".parse().unwrap())];
    let error = Fabric::bind(Config { nodes: 2, faults, ..Config::new(dir.path().join("x")) }).unwrap_err().to_string();
    assert!(error.contains("node:7") && error.contains("node:0, node:1"), "{error}");
}

/// A capture of a fabric of several switches gives the same when it is replayed, and names the faults.
#[test]
fn a_capture_can_be_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("capture.pcapng");
    let plan = regular("torus:3x1", 3);
    let trunk = format!("trunk:{}-{}", plan.topology.name(0), plan.topology.name(1));
    let mut served = serve_at(&dir.path().join("fabric"), |config| {
        config.nodes = 3;
        config.plan = Some(plan);
        config.capture = Some(telegraphos_capture::CaptureOptions {
            file: file.clone(),
            ..telegraphos_capture::CaptureOptions::default()
        });
        config.faults = vec![(trunk, "latency=2ms".parse().unwrap())];
    });
    drop(all_to_all::<3>(all_of(&served), 200, 64));
    served.stop();
    let mut different = Vec::new();
    let replayed = telegraphos_capture::replay(&file, |difference| different.push(difference.to_string())).unwrap();
    assert!(different.is_empty(), "{different:?}");
    println!("{replayed:?}");
    let mut reader = telegraphos_capture::Reader::open(&file).unwrap();
    let mut faults = 0;
    while let Some(record) = reader.next_record().unwrap() {
        faults += usize::from(format!("{record:?}").contains("fault: "));
    }
    assert!(faults > 0, "no fault is noted");
}

/// A trunk between hosts: encrypted, and both ends have shown which process they are; one with another cluster's keys
/// is not let in.
#[test]
fn a_trunk_by_quic_is_for_processes_of_the_cluster() {
    use telegraphos_quic::QuicOptions;
    let dir = tempfile::tempdir().unwrap();
    let keys = |cluster: &str, process: &str| {
        let at = dir.path().join(cluster);
        if !at.exists() {
            telegraphos_fabric::keys::new_cluster(&at).unwrap();
        }
        if !at.join(format!("{process}.key")).exists() {
            telegraphos_fabric::keys::new_process(&at, process, 30).unwrap();
        }
        QuicOptions {
            certificate: at.join(format!("{process}.pem")),
            key: at.join(format!("{process}.key")),
            peers_ca: Some(at.join("ca.pem")),
            peers: Vec::new(),
            addresses: Vec::new(),
        }
    };
    let port = udp_port();
    let text = format!(
        "nodes = 2\n[[switch]]\nname = 'l'\nnodes = '0'\nprocess = 'left'\n[[switch]]\nname = 'r'\nnodes = '1'\nprocess = 'right'\n\
         [[trunk]]\nbetween = ['l', 'r']\nat = 'quic:127.0.0.1:{port}'\n"
    );
    let plan = Plan::from_toml(&text).unwrap();
    let start = |name: &str, process: &str, quic: QuicOptions| {
        serve_at(&dir.path().join(name), |config| {
            config.nodes = 2;
            config.plan = Some(plan.clone());
            config.process = Some(process.to_owned());
            config.transport.quic = Some(quic);
        })
    };
    let left = start("a", "left", keys("same", "left"));
    let mut near = Node::join(&left, 0);
    // Another cluster's CA has signed this one's name.
    let foreign = start("b", "right", keys("other", "right"));
    let mut far = Node::join(&foreign, 1);
    assert!(
        !common::wait(&far.link, Some(1500)) || {
            far.exchange();
            far.frames.iter().all(|frame| !matches!(frame, Frame::NodeUp { node: 0, .. }))
        }
    );
    drop(far);
    drop(foreign);
    let right = start("c", "right", keys("same", "right"));
    let mut far = Node::join(&right, 1);
    all_up(&mut near, &[1]);
    all_up(&mut far, &[0]);
    all_to_all([near, far], 500, 64);
}
