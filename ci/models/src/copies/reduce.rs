// SPDX-License-Identifier: MIT OR Apache-2.0
//! The steps that suffice to explore.
//!
//! Properties and outcomes depend only on each node's sequence of events: the values its memory has, the stores its
//! board takes, what its program reads. Two runs with the same sequences at all nodes are equivalent. One of them
//! suffices.
//!
//! **Nodes.** A step of a node depends only on the node's state, and affects other nodes only by the packets it appends
//! to wires. So steps of different nodes commute, unless one of them sends what the other takes. A set of nodes is
//! *closed* if no new packet can reach one of them from outside before they have made a step: each wire into it from
//! outside has a packet already, which remains the next one, or will never have one again. (A home sends while there
//! are stores to its page that it has not performed, and a copy while its own board has not taken all of its
//! program's.) Then every run eventually takes a next step of a closed set, and every step before it is independent of
//! it: it may as well come first. So the steps of one closed set suffice: a persistent set. Of the closed sets, the one
//! with the fewest steps is chosen. Runs are finite, so no step is postponed forever.
//!
//! **One packet.** If taking a packet commutes with every local step of the node until then (same states, same packets
//! on each wire), it may be taken first. This is computed by doing both. It usually holds for a node's own returning
//! store, and for a store of another node that is masked or to another word.
//!
//! **Memory.** A board's step in memory happens with the event that begins it. This omits events at the same node
//! between a step's begin and its end; they wait in the board for the end, for one store or several, because work on a
//! page is serialised. So they can as well arrive after it. A load in between reads the same as before the step. The
//! only effect of a waiting store is its counter (SPEC item 25): writes that arrive meanwhile are masked, as if they
//! arrived after it. A step of another page of the same home waits as well.
//!
//! **Posting.** A program's store goes into the queue of posted stores as soon as it is next: only its own later
//! operations and the queue's emptiness depend on it.
//!
//! **Acknowledgements** arrive when no other step is possible. Without fences only the board uses them, for two
//! purposes: it counts them, and it frees their numbers. The value of a number is irrelevant, and no step waits for a
//! free number: the board allows as many requests and multicasts in flight as these programs make.
//!
//! The first two hold for any board. The other three are derived from its code; `coherence.rs` checks for small models
//! that the outcomes at all nodes are the same with and without all of these.

use super::{ARRIVE, CopiesModel, Next, Node, Op, REPLY, RUN, Setup, State, Steps, Tables, WIRE_SHIFT, ends, wire};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use telegraphos_wire::{Class, NodeId, admin};

/// Not with fences, which wait for acknowledgements; and the argument about possible senders assumes homes and copies.
pub(super) fn admits(setup: &Setup) -> bool {
    let waits = |op: &Op| matches!(op, Op::Fence | Op::Await(..));
    let waits = setup.stalled_reads || setup.programs.iter().flatten().any(waits);
    !waits && setup.mode != admin::NAIVE && !setup.unordered
}

/// The packets on one wire.
pub(super) fn on_wire(wires: &[u32], wire: u32) -> &[u32] {
    let first = wires.partition_point(|word| word >> WIRE_SHIFT < wire);
    let end = wires.partition_point(|word| word >> WIRE_SHIFT <= wire);
    &wires[first..end]
}

/// Stores of a program to a page.
fn stores(program: &[Op], of: u32) -> u64 {
    let to_page = |op: &&Op| matches!(op, Op::Store(word, _) | Op::Wide(word, ..) if word.page == of);
    program.iter().filter(to_page).count() as u64
}

const REQUEST: u8 = Class::Request as u8;
const REFLECTED: u8 = Class::Reflected as u8;

/// Whether this node may yet send a packet of the class to another.
fn may_send(setup: &Setup, from: NodeId, node: &Node, to: NodeId, class: u8) -> bool {
    let mut pages = setup.homes.iter().zip(0..);
    if class == REQUEST {
        let program = &setup.programs[usize::from(from)];
        pages.any(|(home, page)| *home == to && node.taken(page) < stores(program, page))
    } else {
        let all = |page| setup.programs.iter().map(|program| stores(program, page)).sum::<u64>();
        pages.any(|(home, page)| *home == from && node.stored(page) < all(page))
    }
}

/// The codes of a node's possible local steps.
pub(super) fn own_steps(setup: &Setup, node: &Node) -> Vec<u32> {
    let run = node.can_run(setup).then_some(RUN);
    let arrive = (!node.posted.is_empty()).then_some(ARRIVE);
    run.into_iter().chain(arrive).collect()
}

impl CopiesModel {
    /// The steps that suffice in a state.
    pub(super) fn enough(&self, state: &State, actions: &mut Vec<Next>) {
        debug_assert!(self.setup.steps == Steps::Reduced);
        let n = self.n() as NodeId;
        let wires = &state.0[self.n()..];
        let tables = self.known();
        let nodes: Vec<Arc<Node>> = state.0[..self.n()].iter().map(|node| tables.node(*node).clone()).collect();
        drop(tables);
        let mut best: Option<(usize, u32)> = None;
        // By node: the sources whose packets may arrive next.
        let mut waits_for = vec![0u32; self.n()];
        let mut steps = vec![0; self.n()];
        for to in 0..n {
            let at = usize::from(to);
            steps[at] = own_steps(&self.setup, &nodes[at]).len();
            let mut heads = Vec::new();
            for from in (0..n).filter(|from| *from != to) {
                for class in [REQUEST, REFLECTED] {
                    match on_wire(wires, wire(from, to, class)).first() {
                        Some(head) => heads.push(*head),
                        None if may_send(&self.setup, from, &nodes[usize::from(from)], to, class) => {
                            waits_for[at] |= 1 << from;
                        }
                        None => {}
                    }
                }
            }
            steps[at] += heads.len();
            if let (&[head], 0) = (&heads[..], waits_for[at]) {
                if self.is_first(state.0[at], head) {
                    let (src, dst, class) = ends(head);
                    actions.push(Next::Deliver(src, dst, class, 0));
                    return;
                }
            }
        }
        for start in 0..n {
            let mut set = 1u32 << start;
            loop {
                let grown =
                    (0..n).filter(|id| set >> id & 1 == 1).fold(set, |all, id| all | waits_for[usize::from(id)]);
                if grown == set {
                    break;
                }
                set = grown;
            }
            let count = (0..n).filter(|id| set >> id & 1 == 1).map(|id| steps[usize::from(id)]).sum();
            if count > 0 && best.is_none_or(|(least, _)| count < least) {
                best = Some((count, set));
            }
        }
        let Some((_, set)) = best else {
            // Only acknowledgements remain.
            let reply = wires.first().map(|word| ends(*word));
            actions.extend(reply.map(|(src, dst, class)| Next::Deliver(src, dst, class, 0)));
            return;
        };
        for id in (0..n).filter(|id| set >> id & 1 == 1) {
            for code in own_steps(&self.setup, &nodes[usize::from(id)]) {
                actions.push(if code == RUN { Next::Run(id) } else { Next::Arrive(id) });
            }
        }
        for queue in wires.chunk_by(|a, b| a >> WIRE_SHIFT == b >> WIRE_SHIFT) {
            let (src, dst, class) = ends(queue[0]);
            if class != REPLY && set >> dst & 1 == 1 {
                actions.push(Next::Deliver(src, dst, class, 0));
            }
        }
    }

    /// Whether taking a packet commutes with all local steps of a node.
    fn is_first(&self, node: u32, packet: u32) -> bool {
        if let Some(found) = self.known().first.get(&(node, packet)) {
            return *found;
        }
        let steps_of = |tables: &Tables, node: u32| own_steps(&self.setup, tables.node(node));
        let mut seen = BTreeSet::from([node]);
        let mut ahead = vec![node];
        let mut is_first = true;
        while let Some(before) = ahead.pop() {
            let (after, sent_first) = self.step(before, packet);
            let steps = steps_of(&self.known(), before);
            is_first &= steps == steps_of(&self.known(), after);
            for code in steps {
                let (other, sent_other) = self.step(before, code);
                let (one, sent_one) = self.step(other, packet);
                let (two, sent_two) = self.step(after, code);
                is_first &= one == two && by_wire(&sent_other, &sent_one) == by_wire(&sent_first, &sent_two);
                if seen.insert(other) {
                    ahead.push(other);
                }
            }
            if !is_first {
                break;
            }
        }
        self.learn().first.insert((node, packet), is_first);
        is_first
    }
}

fn by_wire(first: &[u32], then: &[u32]) -> BTreeMap<u32, Vec<u32>> {
    let mut wires: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for word in first.iter().chain(then) {
        wires.entry(word >> WIRE_SHIFT).or_default().push(*word);
    }
    wires
}
