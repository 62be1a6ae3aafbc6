// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random schedules, from a seed: what the nodes do, when the pipes move, and what breaks. A schedule that fails is
//! made as short as it still fails.

use telegraphos_fabric_core::Bug;
use telegraphos_testkit::Rng;
use telegraphos_topology::{SwitchId, Topology, TrunkId};
use telegraphos_wire::{Class, NodeId};

use super::world::{Network, Settings};
use crate::common::{Failure, fail};

/// One thing that happens. Pipes are given by any number, which is brought into range: so a schedule keeps its sense
/// when it is shortened.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Join(NodeId),
    Leave(NodeId, usize),
    Reset(NodeId),
    Send(NodeId, NodeId, Class),
    Group(NodeId, u32, u32),
    Multicast(NodeId, u32),
    Consume(NodeId, usize),
    Room(usize, u32),
    Deliver(usize, usize),
    Dial {
        trunk: TrunkId,
        by_second: bool,
        anyway: bool,
    },
    Break(TrunkId, [usize; 2]),
    Restart(SwitchId, usize),
    /// Nothing comes out of a pipe any more.
    Stick(usize),
    /// All of them flow again.
    Unstick,
    /// Every pipe and node, so many times.
    Rounds(usize),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) topology: &'static str,
    pub(crate) nodes: u32,
    pub(crate) given: u32,
    pub(crate) offered: u32,
    pub(crate) room: u32,
}

/// What may happen to a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Faults {
    None,
    /// Nodes leave, come back, and are reset.
    Nodes,
    /// That, and trunks break and are joined again.
    Trunks,
    /// That, and switches are started again, and both ends of a trunk call each other.
    All,
}

pub(crate) fn topology(text: &str, nodes: u32) -> Topology {
    Topology::parse_flag(text, nodes).unwrap()
}

pub(crate) fn generate(seed: u64, faults: Faults) -> (Sizes, Vec<Op>) {
    const TOPOLOGIES: [(&str, u32); 7] = [
        ("mesh:2x1", 3),
        ("mesh:3x1", 3),
        ("tree:2x1", 4),
        ("mesh:4x1", 4),
        ("mesh:2x2", 4),
        ("torus:5x1", 5),
        ("torus:3x2", 6),
    ];
    let mut rng = Rng::new(seed);
    let (name, nodes) = TOPOLOGIES[rng.below(TOPOLOGIES.len())];
    let mut small = || 1 + rng.below(4) as u32;
    let sizes = Sizes { topology: name, nodes, given: small(), offered: small(), room: 3 };
    let topology = topology(name, nodes);
    let mut ops = Vec::new();
    // Most schedules begin with everybody there.
    if rng.below(8) > 0 {
        ops.extend((0..topology.trunks().len() as TrunkId).map(|trunk| Op::Dial {
            trunk,
            by_second: false,
            anyway: false,
        }));
        ops.extend((0..nodes as NodeId).map(Op::Join));
        ops.push(Op::Rounds(20));
        ops.extend((0..nodes as NodeId).map(|node| Op::Group(node, 0, u32::MAX)));
    }
    let length = 20 + rng.below(250);
    // A few of the nodes, pipes and trunks have most of what happens.
    let busy = rng.below(nodes as usize);
    for _ in 0..length {
        let node = |rng: &mut Rng| match rng.below(3) {
            0 => busy as NodeId,
            _ => rng.below(nodes as usize) as NodeId,
        };
        let class = Class::ALL[rng.below(3)];
        let trunk = rng.below(topology.trunks().len()) as TrunkId;
        let keep = |rng: &mut Rng| if rng.below(2) == 0 { 0 } else { rng.below(6) };
        ops.push(match rng.below(100) {
            0..=27 => Op::Send(node(&mut rng), node(&mut rng), class),
            28..=29 => Op::Group(node(&mut rng), rng.below(2) as u32, rng.next() as u32),
            30..=37 => Op::Multicast(node(&mut rng), rng.below(2) as u32),
            38..=47 => Op::Consume(node(&mut rng), rng.below(5)),
            48..=55 => Op::Room(rng.next() as usize, rng.below(6) as u32),
            56..=82 => Op::Deliver(rng.next() as usize, 1 + rng.below(6)),
            83..=84 => Op::Stick(rng.next() as usize),
            85 => Op::Unstick,
            86..=89 => Op::Rounds(1 + rng.below(2)),
            90 if faults != Faults::None => Op::Leave(node(&mut rng), keep(&mut rng)),
            91..=92 if faults != Faults::None => Op::Reset(node(&mut rng)),
            93 if faults == Faults::All && rng.below(2) == 0 => {
                Op::Restart(rng.below(topology.switches()), keep(&mut rng))
            }
            94..=95 if matches!(faults, Faults::Trunks | Faults::All) => {
                Op::Break(trunk, [keep(&mut rng), keep(&mut rng)])
            }
            96..=97 => {
                let (by_second, anyway) = (rng.below(2) == 0, faults == Faults::All && rng.below(4) == 0);
                Op::Dial { trunk, by_second: by_second && faults == Faults::All, anyway }
            }
            _ => Op::Join(node(&mut rng)),
        });
    }
    (sizes, ops)
}

fn perform(network: &mut Network, op: Op) -> Result<(), Failure> {
    match op {
        Op::Join(node) => network.join(node)?,
        Op::Leave(node, keep) => network.leave(node, keep),
        Op::Reset(node) => network.reset(node),
        Op::Send(from, to, class) => _ = network.send(from, to, class),
        Op::Group(from, page, members) => network.group(from, page, members),
        Op::Multicast(from, page) => _ = network.multicast(from, page),
        Op::Consume(node, count) => network.consume(node, count)?,
        Op::Room(which, frames) => {
            let ends = network.ends();
            if !ends.is_empty() {
                network.room(ends[which % ends.len()], frames)?;
            }
        }
        Op::Deliver(which, count) => {
            let busy = network.busy();
            if !busy.is_empty() {
                let pipe = busy[which % busy.len()];
                (0..count).try_for_each(|_| network.deliver(pipe))?;
            }
        }
        Op::Dial { trunk, by_second, anyway } => network.dial(trunk, by_second, anyway)?,
        Op::Break(trunk, keep) => network.break_trunk(trunk, keep),
        Op::Restart(switch, keep) => network.restart(switch, keep),
        Op::Stick(which) => {
            let busy = network.busy();
            if !busy.is_empty() {
                network.stuck.insert(busy[which % busy.len()]);
            }
        }
        Op::Unstick => network.stuck.clear(),
        Op::Rounds(count) => (0..count).try_for_each(|_| network.round())?,
    }
    Ok(())
}

/// Everything that must hold on a schedule, but the one check.
pub(crate) fn check(
    sizes: Sizes,
    ops: &[Op],
    bug: Option<Bug>,
    without: Option<&'static str>,
) -> Result<Network, Failure> {
    let settings = Settings { room: sizes.room, without, ..Settings::new(sizes.given, sizes.offered, bug) };
    let mut network = Network::new(topology(sizes.topology, sizes.nodes), settings);
    for op in ops {
        perform(&mut network, *op)?;
    }
    network.stuck.clear();
    network.settings.room = 1000;
    network.rest()?;
    network.heal()?;
    Ok(network)
}

/// The same; a panic of the switch is a failure, too.
fn outcome(sizes: Sizes, ops: &[Op], bug: Option<Bug>) -> Result<Network, Failure> {
    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(sizes, ops, bug, None)));
    checked.unwrap_or_else(|_| fail("no_panic", "see above"))
}

/// The shortest part of the schedule that one finds by leaving out pieces, on which the same check fails.
fn shortened(sizes: Sizes, mut ops: Vec<Op>, bug: Option<Bug>, failure: Failure) -> (Vec<Op>, Failure) {
    let mut last = failure;
    let mut piece = ops.len() / 2;
    while piece > 0 {
        let mut at = 0;
        let before = ops.len();
        while at < ops.len() {
            let mut fewer = ops.clone();
            fewer.drain(at..(at + piece).min(ops.len()));
            match outcome(sizes, &fewer, bug) {
                Err(failure) if failure.check == last.check => (ops, last) = (fewer, failure),
                _ => at += piece,
            }
        }
        if piece > 1 || ops.len() == before {
            piece /= 2;
        }
    }
    (ops, last)
}

/// Runs a seed; the failure names the seed and the smallest schedule.
pub(crate) fn run(seed: u64, faults: Faults, bug: Option<Bug>) -> Result<Network, String> {
    let (sizes, ops) = generate(seed, faults);
    outcome(sizes, &ops, bug).map_err(|failure| {
        let (ops, failure) = shortened(sizes, ops, bug, failure);
        let steps: Vec<String> = ops.iter().map(|op| format!("    {op:?}")).collect();
        format!("seed {seed} ({faults:?}), {sizes:?}: {failure}\n  smallest schedule:\n{}", steps.join("\n"))
    })
}

/// Whether this very check finds the bug on one of so many seeds; one other check may be left out.
pub(crate) fn found(bug: Bug, faults: Faults, check: &str, without: Option<&'static str>, seeds: u64) -> bool {
    (0..seeds).any(|seed| {
        let (sizes, ops) = generate(seed, faults);
        matches!(self::check(sizes, &ops, Some(bug), without), Err(failure) if failure.check == check)
    })
}
