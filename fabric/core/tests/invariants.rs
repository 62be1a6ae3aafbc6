// SPDX-License-Identifier: MIT OR Apache-2.0
//! The switch's promises on random schedules and in chosen situations; then, for each deliberate bug, that a check
//! finds it.

use crate::common::{
    Failure, WINDOW, class_of, fail, frame, handle, join_offering, joined_offering, multicast, opened, packet, sent_to,
};
use crate::world::{Op, Sizes, World, check_schedule, schedules};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use telegraphos_fabric_core::{
    Action, Attached, Bug, CREDITED, Diagnostic, Event, Switch, SwitchConfig, UNLIMITED, Violation,
};
use telegraphos_wire::link::{Frame, MAX_MEMBERSHIPS, Refusal};
use telegraphos_wire::packet::MULTICAST;
use telegraphos_wire::{
    AtomicOp, Body, Burst, BurstStore, Class, MAX_BLOCK, NodeId, PROTOCOL_VERSION, Packet, RemotePage, Rights,
    STREAM_BLOCK, Status, WindowLayout,
};

/// At least 1000 schedules; PROPTEST_CASES sets more.
fn config_of_runs() -> Config {
    let usual = Config::default();
    Config { cases: usual.cases.max(1000), failure_persistence: None, ..usual }
}

fn hello(node: NodeId) -> Frame {
    crate::common::hello(node, WINDOW, 4)
}

fn config(nodes: u32, bug: Option<Bug>) -> SwitchConfig {
    let mut config = SwitchConfig::new(nodes);
    config.credits = [4; 4];
    config.class_of = class_of;
    config.bug = bug;
    config
}

/// Opens port `node` and joins as `node`.
fn join(switch: &mut Switch, node: NodeId) -> Vec<Action> {
    join_offering(switch, node, 4)
}

/// A switch with all its nodes.
fn joined(config: SwitchConfig) -> Switch {
    joined_offering(config, 4)
}

// ---- random schedules of honest nodes ----

proptest! {
    #![proptest_config(config_of_runs())]

    /// Per-pair order (SPEC I8), no loss, credits never negative and conserved, none stranded, replies first (I13),
    /// room respected, absent nodes answered for, every session notified in order, and the switch's own audit.
    /// Multicasts among them: one copy to each member, in order with everything else, and one credit for all copies.
    #[test]
    fn i8_per_pair_fifo_and_the_rest_hold_on_random_schedules((sizes, ops) in schedules()) {
        if let Err(e) = check_schedule(sizes, &ops, None) {
            return Err(TestCaseError::fail(e.to_string()));
        }
    }

    #[test]
    fn round_robin_is_fair(backlogs in prop::collection::vec(1u32..=8, 2..6), class in 0usize..3) {
        if let Err(e) = round_robin(&backlogs, CREDITED[class], None) {
            return Err(TestCaseError::fail(e.to_string()));
        }
    }

    /// Whatever ports send: no panic, the audit holds, and each port with a Close is closed.
    #[test]
    fn hostile_frames_never_confuse_the_switch(events in prop::collection::vec(hostile(), 1..150)) {
        let mut switch = Switch::new(SwitchConfig { credits: [2; 4], ..config(3, None) }).unwrap();
        let mut out = Vec::new();
        for port in 0..3 {
            switch.handle(Event::PortOpened { port, room: 10, block: STREAM_BLOCK as u32 }, &mut out);
            switch.handle(Event::Frame { port, frame: hello(port as NodeId) }, &mut out);
        }
        for event in events {
            out.clear();
            switch.handle(event.clone(), &mut out);
            if let Err(e) = switch.audit() {
                return Err(TestCaseError::fail(format!("after {event:?}: {e}")));
            }
        }
    }
}

fn hostile() -> impl Strategy<Value = Event> {
    let number = prop_oneof![0u32..6, any::<u32>()];
    let class = (0u8..4).prop_map(|c| Class::from_u8(c).unwrap());
    let any_packet = (0u16..4, 0u16..5, class.clone(), any::<bool>()).prop_map(|(src, dst, class, reply)| {
        let mut p = packet(src, dst, class, 7, 1);
        if reply {
            p.body = Body::WriteAck { status: Status::Ok };
        }
        Frame::Packet(p)
    });
    let any_multicast = (0u16..4, 0u32..3, class.clone()).prop_map(|(src, page, class)| match class {
        Class::Reflected => Frame::Packet(multicast(src, page, 7, 1)),
        other => Frame::Packet(packet(src, MULTICAST, other, 7, 1)),
    });
    let any_group =
        (0u32..3, prop::collection::vec(0u16..4, 0..4), any::<bool>()).prop_map(|(page, mut members, sane)| {
            if sane {
                members.sort_unstable();
                members.dedup();
            }
            Frame::Group { page, members }
        });
    let any_frame = prop_oneof![
        4 => any_multicast,
        3 => any_group,
        2 => (0u16..4, 5u8..8, number.clone()).prop_map(|(node, node_bits, credits)| Frame::Hello {
            version: PROTOCOL_VERSION,
            node,
            window: WindowLayout { node_bits, offset_bits: 26 },
            credits: [credits; 4],
        }),
        12 => any_packet,
        3 => (class, number.clone()).prop_map(|(class, count)| Frame::Credit { class, count }),
        1 => number.prop_map(|n| Frame::Reset { incarnation: n.into() }),
        1 => Just(Frame::NodeDown { node: 1 }),
    ];
    let port = 0u32..5;
    prop_oneof![
        3 => (port.clone(), prop_oneof![0u32..5, Just(UNLIMITED)])
            .prop_map(|(port, frames)| Event::PortRoom { port, frames }),
        3 => (port.clone(), 0u32..5).prop_map(|(port, room)| Event::PortOpened { port, room, block: STREAM_BLOCK as u32 }),
        30 => (port.clone(), any_frame).prop_map(|(port, frame)| Event::Frame { port, frame }),
        1 => port.clone().prop_map(|port| Event::Malformed { port }),
        2 => port.prop_map(|port| Event::PortClosed { port }),
    ]
}

// ---- chosen situations, each a function of the bug ----

/// Nodes 1.. have backlogs for node 0, which takes one frame at a time: no two of them that both wait differ by more
/// than one packet in what they were given.
fn round_robin(backlogs: &[u32], class: Class, bug: Option<Bug>) -> Result<(), Failure> {
    let sizes = Sizes { nodes: backlogs.len() as u32 + 1, given: 8, offered: 1000 };
    let mut world = World::new(sizes, bug);
    for node in 0..sizes.nodes as NodeId {
        world.join(node)?;
        world.perform(Op::Room { node, frames: 1000 })?;
    }
    world.perform(Op::Room { node: 0, frames: 0 })?;
    for (i, backlog) in backlogs.iter().enumerate() {
        for _ in 0..*backlog {
            assert!(world.send(i as NodeId + 1, 0, class)?);
        }
    }
    let total: u32 = backlogs.iter().sum();
    let mut served = vec![0u32; backlogs.len()];
    for _ in 0..total {
        world.perform(Op::Room { node: 0, frames: 1 })?;
        let Some(from) = world.order.last() else { return fail("round_robin", "nothing was served") };
        served[usize::from(*from) - 1] += 1;
        for (i, a) in served.iter().enumerate() {
            for (j, b) in served.iter().enumerate() {
                if *a < backlogs[i] && *b > *a + 1 {
                    return fail(
                        "round_robin",
                        format!("node {} has {b} served, node {} waits with {a}", j + 1, i + 1),
                    );
                }
            }
        }
    }
    Ok(())
}

/// A node that sends requests without end and reads one frame at a time: the other one, which answers them, is never
/// disconnected.
fn slow_reader(bug: Option<Bug>) -> Result<(), Failure> {
    let mut world = World::new(Sizes { nodes: 2, given: 4, offered: 4 }, bug);
    for node in 0..2 {
        world.join(node)?;
        world.perform(Op::Room { node, frames: 100 })?;
    }
    for _ in 0..2000 {
        while world.send(0, 1, Class::Request)? {}
        world.perform(Op::Room { node: 1, frames: 1000 })?;
        world.consume(1, 1000)?;
        world.perform(Op::Room { node: 0, frames: 1 })?;
        world.hibs[0].inbox.clear();
    }
    world.rest()
}

/// Replies without a request disconnect their sender; the receiver is unaffected.
fn reply_flood(bug: Option<Bug>) -> Result<(), Failure> {
    let mut switch = joined(config(3, bug));
    handle(&mut switch, Event::PortRoom { port: 0, frames: 0 });
    let limit = 2 * 3 * 4;
    for n in 0..10 * limit {
        let mut reply = packet(1, 0, Class::Reply, n as u32, 0);
        reply.body = Body::WriteAck { status: Status::Ok };
        let actions = frame(&mut switch, 1, Frame::Packet(reply));
        if n < limit {
            assert_eq!(actions, [], "reply {n}");
            continue;
        }
        let refusal = Frame::Refuse { reason: Refusal::Protocol, offered: limit + 1, expected: limit };
        if !actions.contains(&Action::Close(1)) {
            return fail("replies_bounded", format!("{n} replies wait, limit {limit}"));
        }
        assert_eq!(sent_to(&actions, 1), [refusal]);
        assert_eq!(sent_to(&actions, 2), [Frame::NodeDown { node: 1 }]);
        let actions = handle(&mut switch, Event::PortRoom { port: 0, frames: 9 });
        assert_eq!(sent_to(&actions, 0), [Frame::NodeDown { node: 1 }], "the flood is gone");
        return Ok(());
    }
    fail("replies_bounded", "the flood never ended")
}

/// Each refused joiner gets both values and is closed; no other port is affected.
fn refusals(bug: Option<Bug>) -> Result<(), Failure> {
    let with = |version, node, node_bits, offset_bits| Frame::Hello {
        version,
        node,
        window: WindowLayout { node_bits, offset_bits },
        credits: [1; 4],
    };
    let none = Frame::Hello { version: PROTOCOL_VERSION, node: 2, window: WINDOW, credits: [1, 0, 1, 1] };
    for (first, reason, offered, expected) in [
        (with(PROTOCOL_VERSION, 1, 6, 26), Refusal::NodeTaken, 1, 0),
        (with(PROTOCOL_VERSION, 9, 6, 26), Refusal::NodeRange, 9, 5),
        (with(77, 2, 6, 26), Refusal::Version, 77, u64::from(PROTOCOL_VERSION)),
        (with(PROTOCOL_VERSION, 2, 7, 26), Refusal::NodeBits, 7, 6),
        (with(PROTOCOL_VERSION, 2, 6, 24), Refusal::OffsetBits, 24, 26),
        (none, Refusal::Protocol, 0, 1),
        (Frame::Credit { class: Class::Request, count: 1 }, Refusal::Handshake, 0, 0),
        (Frame::Packet(packet(2, 1, Class::Request, 0, 0)), Refusal::Handshake, 0, 0),
    ] {
        let mut switch = Switch::new(config(5, bug)).unwrap();
        join(&mut switch, 1);
        opened(&mut switch, 7, 0);
        let before = switch.state().clone();
        let actions = frame(&mut switch, 7, first.clone());
        if sent_to(&actions, 7) != [Frame::Refuse { reason, offered, expected }] {
            return fail("refusal_values", format!("{first:?}: {:?}", sent_to(&actions, 7)));
        }
        assert!(actions.contains(&Action::Close(7)), "{first:?}");
        assert_eq!(sent_to(&actions, 1), []);
        assert_ne!(*switch.state(), before, "the port is forgotten");
        assert_eq!(frame(&mut switch, 7, hello(2)), [], "a refused port is ignored");
    }
    Ok(())
}

/// A node that breaks the protocol is disconnected, with both values, and the others are notified; no other node is.
fn violations(bug: Option<Bug>) -> Result<(), Failure> {
    let request = |src, dst| Frame::Packet(packet(src, dst, Class::Request, 0, 0));
    let inc = 0x1000;
    type Case = (&'static str, Vec<Frame>, u64, u64, Violation);
    let group = |members: &[NodeId]| Frame::Group { page: 7, members: members.to_vec() };
    let of_page = |page| Frame::Packet(multicast(1, page, 0, 0));
    let no_group = Violation::NoGroup { page: 7 };
    let most = STREAM_BLOCK as u32;
    let read = |length| {
        let at = telegraphos_wire::RemoteAddr { page: 3, offset: 0, generation: 1 };
        Frame::Packet(Packet { body: Body::ReadBlock { at, context: 1, length }, ..packet(1, 0, Class::Request, 0, 0) })
    };
    let longer = u64::from(most) + 1;
    let cases: [Case; 17] = [
        (
            "long_block",
            vec![read(most), read(most + 1)],
            longer,
            most.into(),
            Violation::Block { length: longer, most },
        ),
        ("forged_source", vec![request(2, 0)], 2, 0, Violation::ForgedSource(2)),
        ("destination", vec![request(1, 3)], 3, 3, Violation::Destination { node: 3, nodes: 3 }),
        ("no_credit", vec![request(1, 0); 5], 1, 0, Violation::NoCredit(Class::Request)),
        (
            "credit_overflow",
            vec![Frame::Credit { class: Class::Enqueue, count: u32::MAX }],
            u64::from(u32::MAX) + 4,
            4,
            Violation::CreditOverflow { class: Class::Enqueue, held: u64::from(u32::MAX) + 4, offered: 4 },
        ),
        (
            "reset_backwards",
            vec![Frame::Reset { incarnation: inc }],
            inc,
            inc + 1,
            Violation::Incarnation { announced: inc, last: inc },
        ),
        ("multicast_without_group", vec![group(&[0, 2]), of_page(8)], 8, 0, Violation::NoGroup { page: 8 }),
        ("multicast_to_ended_group", vec![group(&[2]), group(&[]), of_page(7)], 7, 0, no_group),
        (
            "groups_end_with_a_life",
            vec![group(&[2]), Frame::Reset { incarnation: inc + 1 }, of_page(7)],
            7,
            0,
            no_group,
        ),
        (
            "multicast_class",
            vec![group(&[0, 2]), Frame::Packet(packet(1, MULTICAST, Class::Request, 0, 0))],
            1,
            2,
            Violation::MulticastClass(Class::Request),
        ),
        ("group_of_itself", vec![group(&[0, 1])], 1, 0, Violation::GroupMember { page: 7, node: 1 }),
        ("member_twice", vec![group(&[2, 2])], 2, 0, Violation::GroupMember { page: 7, node: 2 }),
        ("member_out_of_order", vec![group(&[2, 0])], 0, 0, Violation::GroupMember { page: 7, node: 0 }),
        ("member_beyond", vec![group(&[0, 3])], 3, 3, Violation::Destination { node: 3, nodes: 3 }),
        ("second_hello", vec![hello(1)], 0, 0, Violation::Unexpected),
        ("welcome", vec![Frame::Welcome { incarnation: 1, nodes: 1, credits: [1; 4] }], 0, 0, Violation::Unexpected),
        ("node_down", vec![Frame::NodeDown { node: 0 }], 0, 0, Violation::Unexpected),
    ];
    for (name, frames, offered, expected, what) in cases {
        let mut switch = joined(config(3, bug));
        // Nothing leaves to node 0, so that credits stay used.
        handle(&mut switch, Event::PortRoom { port: 0, frames: 0 });
        let last = frames.len() - 1;
        for (i, f) in frames.into_iter().enumerate() {
            let actions = frame(&mut switch, 1, f);
            if i < last {
                assert_eq!(sent_to(&actions, 1), [], "{name}");
                continue;
            }
            let refusal = Frame::Refuse { reason: Refusal::Protocol, offered, expected };
            if sent_to(&actions, 1) != [refusal] || !actions.contains(&Action::Close(1)) {
                return fail(name, format!("{actions:?}"));
            }
            assert!(
                actions.contains(&Action::Diagnostic(Diagnostic::Violation { port: 1, who: Attached::Node(1), what })),
                "{actions:?}"
            );
            assert_eq!(sent_to(&actions, 2), [Frame::NodeDown { node: 1 }], "{name}");
            assert_eq!(frame(&mut switch, 1, of_page(7)), [], "{name}");
            assert_eq!(frame(&mut switch, 1, request(1, 2)), [], "{name}: what was on the way means nothing");
            switch.audit().unwrap();
        }
    }
    Ok(())
}

#[test]
fn a_slow_reader_gathers_no_more_replies_than_it_may_ask_for() {
    slow_reader(None).unwrap();
}

#[test]
fn a_flood_of_replies_ends_its_sender() {
    reply_flood(None).unwrap();
}

#[test]
fn refused_joiners_get_both_values() {
    refusals(None).unwrap();
}

#[test]
fn violations_end_the_violator_alone() {
    violations(None).unwrap();
}

#[test]
fn the_longest_block_of_a_pair_is_that_of_both_ports() {
    let mut switch = Switch::new(config(3, None)).unwrap();
    let limits = |actions: &[Action], to| {
        let limit = |frame| if let Frame::NodeUp { node, block, .. } = frame { Some((node, block)) } else { None };
        sent_to(actions, to).into_iter().filter_map(limit).collect::<Vec<_>>()
    };
    let [most, least] = [MAX_BLOCK, STREAM_BLOCK].map(|limit| limit as u32);
    let mut join = |node: NodeId, block| {
        handle(&mut switch, Event::PortOpened { port: node.into(), room: UNLIMITED, block });
        frame(&mut switch, node.into(), hello(node))
    };
    assert_eq!(limits(&join(0, most), 0), [(0, most)]);
    let second = join(1, most);
    assert_eq!((limits(&second, 0), limits(&second, 1)), (vec![(1, most)], vec![(0, most), (1, most)]));
    let third = join(2, least);
    assert_eq!(limits(&third, 0), [(2, least)]);
    assert_eq!(limits(&third, 2), [(0, least), (1, least), (2, least)]);
}

#[test]
fn malformed_bytes_end_their_port() {
    let mut switch = joined(config(2, None));
    let actions = handle(&mut switch, Event::Malformed { port: 1 });
    assert!(actions.contains(&Action::Close(1)));
    assert_eq!(sent_to(&actions, 0), [Frame::NodeDown { node: 1 }]);
    opened(&mut switch, 5, 1);
    let actions = handle(&mut switch, Event::Malformed { port: 5 });
    assert_eq!(sent_to(&actions, 5), [Frame::Refuse { reason: Refusal::Handshake, offered: 0, expected: 0 }]);
}

#[test]
fn an_absent_node_is_answered_for_in_kind() {
    let status = Status::NodeDown;
    let name = [0; 64];
    let epoch = telegraphos_wire::ImportEpoch { import: 7, epoch: 2 };
    let at = telegraphos_wire::RemoteAddr { page: 3, offset: 8, generation: 1 };
    for (request, reply) in [
        (Body::Write { at, context: 1, epoch, size: 8, data: 5 }, Body::WriteAck { status }),
        (
            Body::WriteBurst {
                on: RemotePage { page: 3, generation: 1 },
                context: 1,
                epoch,
                stores: Burst::new([BurstStore { data: 5, offset: 8, size: 8 }; 2]).unwrap(),
            },
            Body::BurstRefused { status, performed: 0 },
        ),
        (Body::Read { at, context: 1, size: 4 }, Body::ReadReply { status, data: u64::MAX }),
        (
            Body::Lookup { name: Box::new(name), secret: [0; 16], uid: 0, rights: Rights::READ },
            Body::LookupReply { status, page: 0, count: 0, length: 0, generation: 0, rights: Rights(0), width: 0 },
        ),
        (
            Body::Atomic { at, context: 1, epoch, size: 8, op: AtomicOp::Add, operand: 1, compare: 0 },
            Body::AtomicReply { status, data: u64::MAX },
        ),
        (Body::Enqueue { at, context: 1, epoch, size: 4, data: 5, after: 0 }, Body::WriteAck { status }),
        (Body::Reserve { at, imports: 1 }, Body::ReserveReply { status, holds: 0 }),
        (Body::WriteBlock { at, context: 1, epoch, data: [1, 2, 3].into() }, Body::WriteAck { status }),
        (Body::ReadBlock { at, context: 1, length: 9 }, Body::BlockReply { status, data: [].into() }),
    ] {
        let mut switch = Switch::new(SwitchConfig::new(4)).unwrap();
        join(&mut switch, 0);
        let packet = Packet { src: 0, dst: 3, tag: 42, incarnation: 0x1000, target: 0, body: request };
        let answer = Packet { src: 3, dst: 0, body: reply.clone(), ..packet };
        let stray = Packet { src: 0, dst: 3, body: reply, ..packet };
        assert_eq!(sent_to(&frame(&mut switch, 0, Frame::Packet(packet)), 0), [Frame::Packet(answer)]);
        // A reply to an absent node, whose request is gone with it.
        assert_eq!(frame(&mut switch, 0, Frame::Packet(stray)), []);
        assert_eq!(switch.statistics().answered, 1);
    }
}

#[test]
fn a_restarted_node_and_a_restarted_fabric_give_greater_incarnations() {
    let mut config = config(2, None);
    config.base_incarnation = 0x0123_4567;
    let mut switch = Switch::new(config).unwrap();
    let welcome = |actions: &[Action]| match &sent_to(actions, 1)[0] {
        Frame::Welcome { incarnation, .. } => *incarnation,
        other => panic!("{other:?}"),
    };
    join(&mut switch, 0);
    assert_eq!(welcome(&join(&mut switch, 1)), 0x0123_5000);
    // More resets than the low bits count.
    let bumped = 0x0123_5000 + 0x1001;
    let notified = frame(&mut switch, 1, Frame::Reset { incarnation: bumped });
    assert_eq!(sent_to(&notified, 0), [Frame::NodeUp { node: 1, incarnation: bumped, block: STREAM_BLOCK as u32 }]);
    assert_eq!(sent_to(&notified, 1), []);
    let gone = handle(&mut switch, Event::PortClosed { port: 1 });
    assert_eq!(sent_to(&gone, 0), [Frame::NodeDown { node: 1 }]);
    let again = join(&mut switch, 1);
    assert_eq!(welcome(&again), 0x0123_7000);
    assert_eq!(sent_to(&again, 0), [Frame::NodeUp { node: 1, incarnation: 0x0123_7000, block: STREAM_BLOCK as u32 }]);

    // Used up: refused, not wrapped.
    let mut config = self::config(2, None);
    config.base_incarnation = u64::MAX;
    let mut switch = Switch::new(config).unwrap();
    let refused = join(&mut switch, 1);
    assert!(refused.contains(&Action::Close(1)), "{refused:?}");
    assert!(refused.contains(&Action::Diagnostic(Diagnostic::Exhausted { port: 1, node: 1 })));
}

#[test]
fn the_window_is_adopted_from_the_first_and_forgotten_with_the_last() {
    let mut switch = Switch::new(config(64, None)).unwrap();
    let small = |node| crate::common::hello(node, WindowLayout { node_bits: 1, offset_bits: 20 }, 1);
    opened(&mut switch, 0, 9);
    let actions = frame(&mut switch, 0, small(0));
    // A window of two nodes makes a cluster of two.
    assert!(matches!(sent_to(&actions, 0)[0], Frame::Welcome { nodes: 2, .. }));
    opened(&mut switch, 1, 9);
    let actions = frame(&mut switch, 1, small(2));
    assert_eq!(sent_to(&actions, 1), [Frame::Refuse { reason: Refusal::NodeRange, offered: 2, expected: 2 }]);
    let actions = join(&mut switch, 2);
    assert_eq!(sent_to(&actions, 2), [Frame::Refuse { reason: Refusal::NodeBits, offered: 6, expected: 1 }]);
    handle(&mut switch, Event::PortClosed { port: 0 });
    assert!(matches!(sent_to(&join(&mut switch, 2), 2)[0], Frame::Welcome { nodes: 64, .. }));
    assert_eq!(switch.window(), Some(WINDOW));
}

#[test]
fn impossible_configurations_are_refused() {
    use telegraphos_fabric_core::ConfigError;
    assert_eq!(Switch::new(SwitchConfig::new(0)).unwrap_err(), ConfigError::Nodes(0));
    assert_eq!(Switch::new(SwitchConfig::new(4097)).unwrap_err(), ConfigError::Nodes(4097));
    let mut c = SwitchConfig::new(65);
    c.window = Some(WINDOW);
    assert_eq!(Switch::new(c.clone()).unwrap_err(), ConfigError::WindowNodes { nodes: 65, window: 64 });
    c.nodes = 64;
    c.credits[1] = 0;
    assert_eq!(Switch::new(c).unwrap_err(), ConfigError::Credits { class: 1 });
}

/// One credit frame for many packets, where nothing holds them up.
#[test]
fn credit_returns_are_coalesced() {
    let mut config = config(2, None);
    config.credits = [256; 4];
    let mut switch = Switch::new(config).unwrap();
    join(&mut switch, 0);
    join_offering(&mut switch, 1, 10_000);
    let mut returned = 0;
    for n in 0..2048 {
        let actions = frame(&mut switch, 0, Frame::Packet(packet(0, 1, Class::Request, n, 0)));
        returned += sent_to(&actions, 0).len();
    }
    assert_eq!(returned, 16);
}

#[test]
fn statistics_are_no_part_of_the_state() {
    use std::collections::HashSet;
    let mut switch = joined(SwitchConfig { credits: [1; 4], ..config(2, None) });
    let before = switch.clone();
    frame(&mut switch, 0, Frame::Packet(packet(0, 1, Class::Request, 0, 0)));
    assert_ne!(switch, before, "a credit of the receiver is used");
    let answer = Packet { body: Body::WriteAck { status: Status::Ok }, ..packet(1, 0, Class::Reply, 0, 0) };
    frame(&mut switch, 1, Frame::Packet(answer));
    frame(&mut switch, 1, Frame::Credit { class: Class::Request, count: 1 });
    assert_eq!(switch, before);
    assert_ne!(switch.statistics(), before.statistics());
    assert_eq!(HashSet::from([switch, before]).len(), 1);
}

#[test]
fn stalls_and_depth_are_counted() {
    let mut switch = joined(config(2, None));
    handle(&mut switch, Event::PortRoom { port: 1, frames: 0 });
    for n in 0..3 {
        frame(&mut switch, 0, Frame::Packet(packet(0, 1, Class::Request, n, 0)));
    }
    let counted = |s: &Switch, node: usize| s.statistics().ports[node].classes[Class::Request as usize];
    assert_eq!((counted(&switch, 1).stalls, counted(&switch, 1).depth), (3, 3));
    assert_eq!((counted(&switch, 0).received_packets, counted(&switch, 0).received_bytes), (3, 3 * 72));
    handle(&mut switch, Event::PortRoom { port: 1, frames: 2 });
    assert_eq!((counted(&switch, 1).sent_packets, counted(&switch, 1).depth), (2, 1));
    handle(&mut switch, Event::PortClosed { port: 1 });
    let c = counted(&switch, 1);
    assert_eq!((c.depth, c.depth_max, c.dropped), (0, 3, 1));
}

// ---- multicasts ----

/// One packet on the link of the sender, one on that of each member, whatever waits; and one credit.
#[test]
fn a_multicast_is_one_packet_on_each_link() {
    const MEMBERS: u16 = 5;
    for blocked in [0, 1, 3, 5] {
        let mut switch = joined(config(7, None));
        frame(&mut switch, 0, Frame::Group { page: 9, members: (1..=MEMBERS).collect() });
        for node in 1..=blocked {
            handle(&mut switch, Event::PortRoom { port: node, frames: 0 });
        }
        let mut copies = 0;
        for tag in 0..3 {
            let actions = frame(&mut switch, 0, Frame::Packet(multicast(0, 9, tag, 0)));
            copies += actions.iter().filter(|a| matches!(a, Action::Send(_, Frame::Packet(_)))).count();
            switch.audit().unwrap();
        }
        assert_eq!(copies as u32, 3 * (u32::from(MEMBERS) - blocked));
        for node in 1..=blocked {
            let actions = handle(&mut switch, Event::PortRoom { port: node, frames: UNLIMITED });
            let target = switch.incarnation(node as NodeId).unwrap();
            let copy = |tag| Frame::Packet(Packet { dst: node as NodeId, target, ..multicast(0, 9, tag, 0) });
            assert_eq!(sent_to(&actions, node), [copy(0), copy(1), copy(2)], "in order");
            // The credits come back with the last copies: the node holds one of four, and three are owed to it.
            let returned = sent_to(&actions, 0);
            let all = Frame::Credit { class: Class::Reflected, count: 3 };
            assert_eq!(returned, if node == blocked { vec![all] } else { vec![] }, "{node} of {blocked}");
            switch.audit().unwrap();
        }
        let counted = |node: usize| switch.statistics().ports[node].classes[Class::Reflected as usize];
        assert_eq!((counted(0).received_packets, counted(0).sent_packets), (3, 0));
        for node in 1..=usize::from(MEMBERS) {
            assert_eq!((counted(node).received_packets, counted(node).sent_packets), (0, 3));
        }
        assert_eq!(counted(6).sent_packets, 0, "it is no member");
    }
}

/// A member that leaves while its copy waits gives the credit back; the others get their copies.
#[test]
fn a_member_that_leaves_holds_no_credit() {
    let mut switch = joined(config(4, None));
    frame(&mut switch, 0, Frame::Group { page: 1, members: vec![1, 2, 3] });
    for port in 1..4 {
        handle(&mut switch, Event::PortRoom { port, frames: 0 });
    }
    for tag in 0..4 {
        assert_eq!(frame(&mut switch, 0, Frame::Packet(multicast(0, 1, tag, 0))), []);
    }
    let returned =
        |actions: &[Action]| sent_to(actions, 0).contains(&Frame::Credit { class: Class::Reflected, count: 4 });
    assert!(!returned(&handle(&mut switch, Event::PortClosed { port: 1 })));
    assert!(!returned(&handle(&mut switch, Event::PortRoom { port: 2, frames: UNLIMITED })));
    switch.audit().unwrap();
    assert!(returned(&handle(&mut switch, Event::PortClosed { port: 3 })));
    switch.audit().unwrap();
    // Two of three are not there: each is answered for.
    frame(&mut switch, 2, Frame::Credit { class: Class::Reflected, count: 4 });
    let actions = frame(&mut switch, 0, Frame::Packet(multicast(0, 1, 9, 5)));
    let answer = |src| {
        let body = Body::CopyAck { status: Status::NodeDown };
        Frame::Packet(Packet { src, dst: 0, tag: 9, incarnation: 5, target: 0, body })
    };
    assert_eq!(sent_to(&actions, 0), [answer(1), answer(3)]);
    assert_eq!(sent_to(&actions, 2).len(), 1);
    assert_eq!(switch.statistics().answered, 2);
}

/// What waits while its receiver is reset says for which life it is.
#[test]
fn a_copy_is_meant_for_the_life_that_its_receiver_had() {
    let mut switch = joined(config(3, None));
    frame(&mut switch, 0, Frame::Group { page: 1, members: vec![1, 2] });
    handle(&mut switch, Event::PortRoom { port: 1, frames: 0 });
    frame(&mut switch, 0, Frame::Packet(multicast(0, 1, 1, 0)));
    let before = switch.incarnation(1).unwrap();
    frame(&mut switch, 1, Frame::Reset { incarnation: before + 1 });
    frame(&mut switch, 0, Frame::Packet(multicast(0, 1, 2, 0)));
    let actions = handle(&mut switch, Event::PortRoom { port: 1, frames: UNLIMITED });
    let targets: Vec<u64> = sent_to(&actions, 1)
        .iter()
        .filter_map(|f| if let Frame::Packet(p) = f { Some(p.target) } else { None })
        .collect();
    assert_eq!(targets, [before, before + 1]);
}

/// Groups take bounded memory: a node that names too many members is disconnected.
#[test]
fn groups_are_bounded() {
    let nodes = 4096;
    let mut switch = Switch::new(SwitchConfig::new(nodes)).unwrap();
    let window = WindowLayout { node_bits: 12, offset_bits: 20 };
    opened(&mut switch, 0, UNLIMITED);
    frame(&mut switch, 0, crate::common::hello(0, window, 1));
    let all: Vec<NodeId> = (1..nodes as NodeId).collect();
    let pages = MAX_MEMBERSHIPS / all.len();
    for page in 0..pages as u32 {
        assert_eq!(frame(&mut switch, 0, Frame::Group { page, members: all.clone() }), []);
    }
    switch.audit().unwrap();
    // Anew is not in addition; an ended one makes place.
    assert_eq!(frame(&mut switch, 0, Frame::Group { page: 0, members: all.clone() }), []);
    assert_eq!(frame(&mut switch, 0, Frame::Group { page: 0, members: vec![] }), []);
    assert_eq!(frame(&mut switch, 0, Frame::Group { page: 1 << 30, members: all.clone() }), []);
    let actions = frame(&mut switch, 0, Frame::Group { page: 0, members: all });
    let (offered, expected) = ((pages as u64 + 1) * 4095, MAX_MEMBERSHIPS as u64);
    assert_eq!(sent_to(&actions, 0), [Frame::Refuse { reason: Refusal::Protocol, offered, expected }]);
}

/// A node that multicasts without end and reads one frame at a time: the members, which answer honestly, are never
/// blamed. One reply for each copy is no more than the bound on replies expects.
fn slow_home(bug: Option<Bug>) -> Result<(), Failure> {
    let mut world = World::new(Sizes { nodes: 4, given: 4, offered: 4 }, bug);
    for node in 0..4 {
        world.join(node)?;
        world.perform(Op::Room { node, frames: 100 })?;
    }
    world.group(0, 5, u16::MAX)?;
    for round in 0..2000 {
        while world.multicast(0, 5)? {}
        for node in 1..4 {
            // One of them is slower than the others.
            if node < 3 || round % 7 == 0 {
                world.perform(Op::Room { node, frames: 1000 })?;
                world.consume(node, 1000)?;
            }
        }
        world.perform(Op::Room { node: 0, frames: 1 })?;
        world.hibs[0].inbox.clear();
    }
    world.rest()
}

#[test]
fn i13_a_home_that_reads_slowly_gathers_no_more_acknowledgements_than_copies() {
    slow_home(None).unwrap();
}

// ---- the checks find the bugs ----

/// Whether this very check fails on some random schedule (others may fail on others: a lost reply is also one that did
/// not go first).
fn found_by_schedules(bug: Bug, check: &str) -> bool {
    let config = Config { cases: 3000, max_shrink_iters: 0, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let result = runner.run(&schedules(), |(sizes, ops)| match check_schedule(sizes, &ops, Some(bug)) {
        Err(failure) if failure.check == check => Err(TestCaseError::fail(failure.detail)),
        _ => Ok(()),
    });
    match result {
        Ok(()) => false,
        Err(TestError::Fail(..)) => true,
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    }
}

#[test]
fn random_schedules_find_each_bug() {
    for (bug, check) in [
        (Bug::LifoLane, "i8_per_pair_fifo"),
        (Bug::DropWhenBlocked, "no_loss"),
        (Bug::IgnoreReceiverCredit, "credits_never_negative"),
        (Bug::LeakCredit, "no_stranded_credit"),
        (Bug::LeakCredit, "credits_conserved"),
        (Bug::StrandCredit, "credits_conserved"),
        (Bug::IgnoreRoom, "room_respected"),
        (Bug::SwallowUnanswered, "absent_answered"),
        (Bug::ReuseIncarnation, "incarnation_grows"),
        (Bug::ResetOvertakes, "life_order"),
        (Bug::DeliverAfterDown, "life_order"),
        (Bug::ForgetDown, "presence_told"),
        (Bug::RequestsFirst, "i13_replies_first"),
        (Bug::DuplicateMulticast, "i8_per_pair_fifo"),
        (Bug::SkipMember, "no_loss"),
        (Bug::MulticastOvertakes, "i8_per_pair_fifo"),
        (Bug::ReleaseEarly, "credits_cover_packets"),
        (Bug::ForgetAbsentMember, "absent_answered"),
        (Bug::AnyLife, "i8_per_pair_fifo"),
    ] {
        assert!(found_by_schedules(bug, check), "{bug:?} is not found by {check}");
    }
}

#[test]
fn chosen_situations_find_each_bug() {
    let found = |result: Result<(), Failure>| result.err().map(|f| f.check);
    assert_eq!(found(round_robin(&[4, 4], Class::Request, Some(Bug::LowestFirst))), Some("round_robin"));
    assert_eq!(found(slow_reader(Some(Bug::CreditsFirst))), Some("honest_nodes_stay"));
    assert_eq!(found(reply_flood(Some(Bug::UnlimitedReplies))), Some("replies_bounded"));
    assert_eq!(found(refusals(Some(Bug::SwapRefusal))), Some("refusal_values"));
    assert_eq!(found(violations(Some(Bug::AcceptForgedSource))), Some("forged_source"));
    assert_eq!(found(violations(Some(Bug::AcceptLongBlock))), Some("long_block"));
    assert_eq!(found(violations(Some(Bug::AcceptWithoutCredit))), Some("no_credit"));
    assert_eq!(found(violations(Some(Bug::KeepGroups))), Some("groups_end_with_a_life"));
    assert_eq!(found(slow_home(Some(Bug::CreditsFirst))), Some("honest_nodes_stay"));
}

#[test]
fn the_audit_finds_an_early_release() {
    let mut switch = joined(config(3, Some(Bug::ReleaseEarly)));
    frame(&mut switch, 0, Frame::Group { page: 1, members: vec![1, 2] });
    handle(&mut switch, Event::PortRoom { port: 2, frames: 0 });
    switch.audit().unwrap();
    frame(&mut switch, 0, Frame::Packet(multicast(0, 1, 1, 0)));
    assert!(switch.audit().unwrap_err().contains("multicasts of node 0"));
}

#[test]
fn the_audit_finds_a_leaked_credit() {
    let mut switch = joined(config(2, Some(Bug::LeakCredit)));
    handle(&mut switch, Event::PortRoom { port: 1, frames: 0 });
    frame(&mut switch, 0, Frame::Packet(packet(0, 1, Class::Request, 0, 0)));
    switch.audit().unwrap();
    handle(&mut switch, Event::PortClosed { port: 1 });
    assert!(switch.audit().unwrap_err().contains("credits of node 0"));
}
