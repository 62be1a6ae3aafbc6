// SPDX-License-Identifier: MIT OR Apache-2.0
//! Neighbours that lie: whatever frames come by a link or a trunk, the switch agrees with itself, only the liar is
//! disconnected, and when it is gone everything is as before.

use proptest::prelude::*;
use telegraphos_fabric_core::{Attached, Bug, Diagnostic};
use telegraphos_testkit::scale;
use telegraphos_topology::TrunkId;
use telegraphos_wire::link::Frame;
use telegraphos_wire::packet::MULTICAST;
use telegraphos_wire::{Body, Class, NodeId, PROTOCOL_VERSION, STREAM_BLOCK, Status, WindowLayout};

use super::schedule::topology;
use super::world::{Network, Settings};
use crate::common::{multicast, packet};

/// Any frame, often one that makes sense.
fn frame() -> impl Strategy<Value = Frame> {
    let number = prop_oneof![6 => 0u32..6, 1 => any::<u32>()];
    let node = prop_oneof![8 => 0u16..6, 1 => any::<u16>()];
    let class = (0u8..4).prop_map(|class| Class::from_u8(class).unwrap());
    let layer = 0u8..4;
    let members = prop::collection::btree_set(0u16..7, 0..4).prop_map(|all| all.into_iter().collect::<Vec<NodeId>>());
    let any_packet =
        (node.clone(), node.clone(), class.clone(), 0u8..4, number.clone()).prop_map(|(src, dst, class, kind, tag)| {
            match kind {
                0 => packet(src, MULTICAST, class, tag, tag.into()),
                1 => multicast(src, tag, tag, tag.into()),
                2 => {
                    let body = Body::WriteAck { status: Status::Ok };
                    telegraphos_wire::Packet { body, ..packet(src, dst, class, tag, tag.into()) }
                }
                _ => packet(src, dst, class, tag, tag.into()),
            }
        });
    let forward = (layer.clone(), members.clone(), any_packet.clone())
        .prop_map(|(layer, members, packet)| Frame::Forward { layer, members, packet });
    prop_oneof![
        10 => forward,
        6 => any_packet.prop_map(Frame::Packet),
        3 => (class.clone(), layer, number.clone()).prop_map(|(class, layer, count)| Frame::TrunkCredit { class, layer, count }),
        2 => (class, number.clone()).prop_map(|(class, count)| Frame::Credit { class, count }),
        4 => (node.clone(), number.clone(), number.clone())
            .prop_map(|(node, incarnation, session)| Frame::Reach { node, incarnation: incarnation.into(), session: session.into() }),
        2 => node.clone().prop_map(|node| Frame::NodeDown { node }),
        2 => (number.clone(), members).prop_map(|(page, members)| Frame::Group { page, members }),
        1 => number.clone().prop_map(|n| Frame::Reset { incarnation: 0x1000 + u64::from(n) }),
        1 => (node.clone(), number.clone()).prop_map(|(node, incarnation)| Frame::NodeUp { node, incarnation: incarnation.into(), block: STREAM_BLOCK as u32 }),
        1 => (node.clone(), 7u8..10, number.clone()).prop_map(|(node, node_bits, credits)| Frame::Hello {
            version: PROTOCOL_VERSION,
            node,
            window: WindowLayout { node_bits, offset_bits: 24 },
            credits: [credits; 4],
        }),
        1 => (0u16..4, 0u16..4, number, any::<bool>()).prop_map(|(switch, peer, epoch, right)| Frame::Trunk {
            version: PROTOCOL_VERSION,
            switch,
            peer,
            epoch: epoch.into(),
            topology: if right { topology(SHAPE, NODES).digest() } else { 1 },
            credits: [epoch; 4],
        }),
        1 => Just(Frame::Probe),
        1 => Just(Frame::Alive),
    ]
}

const SHAPE: &str = "torus:5x1";
const NODES: u32 = 5;

/// One thing that happens: a frame of the liar, or everything else moves.
#[derive(Clone, Debug)]
enum Step {
    Lie(Frame),
    Round,
    Room(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => frame().prop_map(Step::Lie),
        1 => Just(Step::Round),
        1 => (0u32..6).prop_map(Step::Room),
    ];
    prop::collection::vec(step, 1..60)
}

/// The liar speaks as node 1, or as the switch with the number of a trunk, which leads to the next one.
fn survives(by_trunk: Option<TrunkId>, steps: &[Step], bug: Option<Bug>) -> Result<(), String> {
    let settings = Settings::new(2, 2, bug);
    let mut network = Network::whole(topology(SHAPE, NODES), settings).map_err(|e| e.to_string())?;
    network.honest = false;
    let (end, liar) = match by_trunk {
        Some(trunk) => {
            let ends = network.topology.trunks()[usize::from(trunk)];
            assert_eq!((ends.a, ends.b), (trunk, trunk + 1));
            (network.pipes_of(trunk)[1], Attached::Trunk(trunk, trunk))
        }
        None => (network.pipe_of(1), Attached::Node(1)),
    };
    for step in steps {
        let done = match step {
            Step::Lie(frame) => network.inject(end, frame.clone()),
            Step::Round => network.round(),
            Step::Room(frames) => network.room(end, *frames),
        };
        done.map_err(|e| format!("{step:?}: {e}"))?;
    }
    // The liar is gone; its lies, too.
    if let Attached::Trunk(trunk, _) = liar {
        network.break_trunk(trunk, [0, 0]);
    }
    (0..NODES as NodeId).for_each(|node| network.leave(node, 0));
    network.settle().map_err(|e| e.to_string())?;
    for notice in &network.violations {
        // The other end of the trunk may have received impossible values and ended it: it is this trunk regardless.
        let same = |blamed: &Attached| match (blamed, liar) {
            (Attached::Trunk(a, _), Attached::Trunk(b, _)) => *a == b,
            _ => *blamed == liar,
        };
        if !matches!(notice, Diagnostic::Violation { who, .. } if same(who)) {
            return Err(format!("only {liar} has lied: {notice}"));
        }
    }
    network.honest = true;
    network.heal().map_err(|e| e.to_string())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: scale(150, 20_000),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn hostile_nodes_are_disconnected_alone(steps in steps()) {
        survives(None, &steps, None).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn hostile_trunks_are_disconnected_alone(trunk in 0u16..3, steps in steps()) {
        survives(Some(trunk), &steps, None).map_err(TestCaseError::fail)?;
    }
}

/// A packet from switch 0 to node 3, whose route does not cross switches 1 and 2. Switch 1 can check that switch 0 does
/// not send that; switch 2 cannot know that about switch 1, and sends it on; it ends at switch 3, which does not blame
/// switch 2.
#[test]
fn a_packet_off_its_route_is_blamed_on_its_source_or_not_at_all() {
    let body = Body::WriteAck { status: Status::Ok };
    let reply = telegraphos_wire::Packet { body, ..packet(0, 3, Class::Reply, 0, 0) };
    for (members, packet) in [(vec![], reply), (vec![3], multicast(0, 1, 1, 1))] {
        let lie = [Step::Lie(Frame::Forward { layer: 0, members, packet }), Step::Round];
        for trunk in [0, 1] {
            survives(Some(trunk), &lie, None).unwrap();
        }
        let blamed = survives(Some(1), &lie, Some(Bug::BlameMessenger)).unwrap_err();
        assert!(blamed.contains("only trunk 1 to switch 1 has lied"), "{blamed}");
    }
}
