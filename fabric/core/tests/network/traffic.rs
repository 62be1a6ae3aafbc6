// SPDX-License-Identifier: MIT OR Apache-2.0
//! Adversarial traffic: everything full, in all directions, with few credits. Each request is answered (SPEC I13).

use std::collections::VecDeque;

use telegraphos_fabric_core::{Attached, Bug, CREDITED};
use telegraphos_testkit::{Rng, scale};
use telegraphos_wire::{Class, NodeId};

use super::schedule::topology;
use super::world::{Network, Settings};
use crate::common::{Failure, fail};

type Backlog = VecDeque<(NodeId, Class)>;

/// Every node sends what it has to as soon as it may, until all is sent and nothing moves. The pipes move in step, or
/// by chance.
fn drive(network: &mut Network, mut backlogs: Vec<Backlog>, chance: Option<Rng>) -> Result<(), Failure> {
    let mut chance = chance;
    for step in 0.. {
        let mut sent = false;
        for (node, backlog) in backlogs.iter_mut().enumerate() {
            while let Some((to, class)) = backlog.front().copied() {
                if network.send(node as NodeId, to, class).is_none() {
                    break;
                }
                backlog.pop_front();
                sent = true;
            }
        }
        match &mut chance {
            Some(rng) if step % 32 > 0 => {
                let busy = network.busy();
                if !busy.is_empty() {
                    network.deliver(busy[rng.below(busy.len())])?;
                }
                let nodes = network.nodes.len();
                network.consume(rng.below(nodes) as NodeId, 1)?;
            }
            _ => network.round()?,
        }
        let rests = network.busy().is_empty() && network.nodes.iter().all(super::node::Node::rests);
        if rests && !sent && (chance.is_none() || step % 32 == 0) {
            break;
        }
    }
    let waiting: usize = backlogs.iter().map(VecDeque::len).sum();
    let open: usize = network.nodes.iter().map(|node| node.open.len()).sum();
    if waiting + open > 0 {
        return fail("i13_no_deadlock", format!("{waiting} requests cannot be sent, {open} wait for an answer"));
    }
    network.rest()
}

/// Each node sends requests to all others, or to those at a distance, in all these classes.
fn backlogs(nodes: usize, distances: &[usize], classes: &[Class], rounds: usize) -> Vec<Backlog> {
    let one = |node: usize| {
        let to = move |distance: &usize| ((node + distance) % nodes) as NodeId;
        let all = distances.iter().flat_map(move |d| classes.iter().map(move |class| (to(d), *class)));
        std::iter::repeat_n(all, rounds).flatten().collect()
    };
    (0..nodes).map(one).collect()
}

/// On a ring each packet waits for the next trunk while it holds a place before the last: one layer closes the circle.
fn ring(shape: &str, nodes: u32, credits: u32, seed: Option<u64>, bug: Option<Bug>) -> Result<(), Failure> {
    let mut network = Network::whole(topology(shape, nodes), Settings::new(credits, credits, bug))?;
    network.audit = false;
    let all: Vec<usize> = (1..nodes as usize).collect();
    for distances in [&[nodes as usize / 2 - usize::from(nodes % 2 == 0)][..], &all] {
        drive(&mut network, backlogs(nodes as usize, distances, &CREDITED, 6), seed.map(Rng::new))?;
    }
    Ok(())
}

#[test]
fn i13_rings_do_not_deadlock() {
    for (shape, nodes) in [("torus:4x1", 4), ("torus:5x1", 5), ("torus:8x1", 8), ("torus:5x5", 25), ("torus:6x2", 12)] {
        for credits in [1, 2] {
            let seeds = (0..scale(1, 50)).map(Some);
            for seed in std::iter::once(None).chain(seeds) {
                ring(shape, nodes, credits, seed, None)
                    .unwrap_or_else(|e| panic!("{shape}, {credits} credits, {seed:?}: {e}"));
            }
        }
    }
}

#[test]
fn i13_trees_and_meshes_do_not_deadlock() {
    for (shape, nodes) in [("star", 5), ("tree:2x2", 8), ("tree:3x1", 9), ("mesh:4x4", 16), ("mesh:6x1", 6)] {
        for seed in [None, Some(1)] {
            ring(shape, nodes, 1, seed, None).unwrap_or_else(|e| panic!("{shape}: {e}"));
        }
    }
}

#[test]
fn one_layer_deadlocks_on_a_ring() {
    for (shape, nodes) in [("torus:5x1", 5), ("torus:8x1", 8)] {
        let failure = ring(shape, nodes, 1, None, Some(Bug::OneLayer)).unwrap_err();
        assert_eq!(failure.check, "i13_no_deadlock", "{shape}: {failure}");
    }
}

/// The deadlock of SPEC E12: queues at both ends are full and take no more elements, while each node loads from the
/// other. Elements fill everything up to their senders; loads and stores continue as if they were not there. When the
/// queues are emptied, nothing is lost.
fn stopped_queues(shape: &str, nodes: u32, credits: u32, bug: Option<Bug>) -> Result<(), Failure> {
    let mut network = Network::whole(topology(shape, nodes), Settings::new(credits, credits, bug))?;
    let count = nodes as usize;
    network.nodes.iter_mut().for_each(|node| node.stopped[Class::Enqueue as usize] = true);
    let (mut elements, mut before) = (0, None);
    while before.replace(elements) != Some(elements) {
        for shift in 1..count {
            for node in 0..count {
                let to = ((node + shift) % count) as NodeId;
                elements += usize::from(network.send(node as NodeId, to, Class::Enqueue).is_some());
            }
            network.settle()?;
        }
    }
    for turn in 0..3 * count {
        for node in 0..count {
            for class in [Class::Request, Class::Reflected] {
                let to = ((node + 1 + turn % (count - 1)) % count) as NodeId;
                if network.send(node as NodeId, to, class).is_none() {
                    return fail("e12_loads_continue", format!("node {node} may not send {class:?}"));
                }
            }
        }
        network.settle()?;
        let open: usize = network.nodes.iter().map(|node| node.open.len()).sum();
        if open != elements {
            return fail("e12_loads_continue", format!("{} loads are not answered", open - elements));
        }
    }
    network.nodes.iter_mut().for_each(|node| node.stopped = [false; 4]);
    network.rest()
}

#[test]
fn e12_loads_continue_while_queues_at_both_ends_are_stopped() {
    for (shape, nodes) in [("star", 2), ("mesh:2x1", 2), ("mesh:3x1", 6), ("torus:5x1", 5), ("tree:2x2", 8)] {
        for credits in [1, 2, 4] {
            stopped_queues(shape, nodes, credits, None).unwrap_or_else(|e| panic!("{shape}, {credits}: {e}"));
            let trunks = shape != "star";
            let found = stopped_queues(shape, nodes, credits, Some(Bug::MixClasses)).err().map(|failure| failure.check);
            assert_eq!(found, trunks.then_some("e12_loads_continue"), "{shape}, {credits}");
        }
    }
}

/// A node beyond a trunk with many requests that reads nothing. Others beyond the same trunk get their answers.
fn non_reader(bug: Option<Bug>) -> Result<(), Failure> {
    let mut network = Network::whole(topology("mesh:2x1", 4), Settings::new(4, 4, bug))?;
    for class in CREDITED {
        while network.send(2, 0, class).is_some() {}
    }
    network.deafen(2)?;
    network.settle()?;
    for _ in 0..20 {
        for class in CREDITED {
            while network.send(3, 1, class).is_some() {}
            while network.send(1, 3, class).is_some() {}
        }
        network.settle()?;
        if !network.nodes[1].open.is_empty() || !network.nodes[3].open.is_empty() {
            return fail("i13_a_non_reader_stops_no_other", "nodes 1 and 3 wait for each other's answers");
        }
    }
    network.deaf.clear();
    network.rest()?;
    network.heal()
}

#[test]
fn i13_a_node_that_does_not_read_stops_no_replies_of_others() {
    non_reader(None).unwrap();
    assert_eq!(non_reader(Some(Bug::RepliesHoldTrunk)).unwrap_err().check, "i13_a_non_reader_stops_no_other");
}

/// Deliveries of each source to one receiver, which is slower than any of them, while all have more to send.
fn hot_spot(shape: &str, nodes: u32, credits: u32, bug: Option<Bug>) -> Result<Vec<u64>, Failure> {
    let mut network = Network::whole(topology(shape, nodes), Settings::new(credits, credits, bug))?;
    network.audit = false;
    network.nodes[0].pace = 3;
    // Long enough for the queues to fill, and then for many turns.
    let (warm, counted) = (credits as usize * nodes as usize, 60 * nodes as usize);
    while network.order[0].len() < warm + counted {
        for node in 1..nodes as NodeId {
            while network.send(node, 0, Class::Request).is_some() {}
        }
        network.round()?;
    }
    let mut counts = vec![0; nodes as usize];
    for from in &network.order[0][warm..] {
        counts[usize::from(*from)] += 1;
    }
    counts.remove(0);
    network.rest()?;
    Ok(counts)
}

fn fair(shape: &str, nodes: u32, credits: u32, bug: Option<Bug>) -> Result<f64, Failure> {
    let counts = hot_spot(shape, nodes, credits, bug)?;
    let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    if *least as f64 >= 0.9 * *most as f64 {
        return Ok(*least as f64 / *most as f64);
    }
    fail("fair_within_10_percent", format!("{shape}, {credits} credits: {counts:?}"))
}

const HOT_SPOTS: [(&str, u32); 6] =
    [("star", 8), ("mesh:2x1", 8), ("mesh:4x1", 12), ("tree:2x2", 12), ("mesh:4x4", 16), ("torus:5x1", 10)];

/// Trunks have credits for at least two packets of each node that sends by them. With fewer, not every sender has a
/// packet in the switch when its turn comes, and those that are nearer get more.
#[test]
fn a_hot_spot_is_shared_fairly_across_trunks() {
    for (shape, nodes) in HOT_SPOTS {
        for credits in [32, 256] {
            let ratio = fair(shape, nodes, credits, None).unwrap_or_else(|e| panic!("{e}"));
            println!("{shape}, {nodes} nodes, {credits} credits: the least gets {ratio:.3} of what the most gets");
        }
    }
}

#[test]
fn an_unfair_turn_is_found() {
    for (shape, nodes) in HOT_SPOTS {
        let failure = fair(shape, nodes, 32, Some(Bug::LowestFirst)).unwrap_err();
        assert_eq!(failure.check, "fair_within_10_percent", "{shape}: {failure}");
    }
}

/// Where packets wait for trunks is counted there.
#[test]
fn stalls_before_trunks_are_counted() {
    let mut network = Network::whole(topology("mesh:2x1", 2), Settings::new(2, 2, None)).unwrap();
    network.nodes[1].stopped[Class::Enqueue as usize] = true;
    for _ in 0..3 {
        while network.send(0, 1, Class::Enqueue).is_some() {}
        network.settle().unwrap();
    }
    let class = |switch: usize, of: Attached| {
        network.switches[switch].statistics().of(of).unwrap().classes[Class::Enqueue as usize]
    };
    // Two in the node, two at its switch, two that find no credit of the trunk.
    let (trunk, link) = (class(0, Attached::Trunk(0, 1)), class(1, Attached::Node(1)));
    assert_eq!((trunk.sent_packets, trunk.credit_stalls, trunk.stalls, trunk.depth), (4, 2, 2, 2));
    assert_eq!((link.sent_packets, link.credit_stalls, link.depth), (2, 2, 2));
    assert_eq!(class(1, Attached::Trunk(0, 0)).received_packets, 4);
    assert_eq!(class(0, Attached::Node(0)).received_packets, 6);
    assert_eq!(network.switches[0].statistics().trunks_joined, 1);
    network.nodes[1].stopped = [false; 4];
    network.rest().unwrap();
    let counted = network.switches[0].statistics().of(Attached::Trunk(0, 1)).unwrap().classes[Class::Enqueue as usize];
    assert_eq!((counted.sent_packets, counted.depth, counted.depth_max, counted.dropped), (6, 0, 2, 0));
}
