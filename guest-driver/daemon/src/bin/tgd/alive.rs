// SPDX-License-Identifier: MIT OR Apache-2.0
//! The alive messages (s3 §6.1): each node has one word in a page that all nodes have a copy of, and stores to it once
//! a period. The board multicasts that one store; so there are N messages a period in the cluster, regardless of the
//! number of readers.
//!
//! The page is naively replicated (SPEC item 24): it has no home whose death would matter, and naive copies diverge
//! only where two nodes store to one word.

use log::debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::Duration;
use telegraphos::{Node, ReplicaMode, Replicated};
use telegraphos_daemon_core::{Event, INCARNATION_BITS, Incarnation};

const NAME: &str = "tgd.alive";
/// Periods of silence after which a node is joined, as if for the first time.
const JOIN: u32 = 3;
/// Changes of a word of which the first says nothing: a page that is joined replaces the content of this one, which may
/// have missed the last store of a node that is dead.
const CHANGES: u32 = 2;

/// A word: the incarnation, the load, and a number that is another each time.
fn word(incarnation: Incarnation, load: u32, number: u16) -> u64 {
    let least = |value: u32| u64::from(value) & ((1 << INCARNATION_BITS) - 1);
    least(incarnation) << 40 | least(load) << 16 | u64::from(number)
}

/// The incarnation and the load, of 24 bits each.
fn parts(word: u64) -> (Incarnation, u32) {
    ((word >> 40) as u32, (word >> 16) as u32 & ((1 << INCARNATION_BITS) - 1))
}

fn offset(node: u16) -> u64 {
    u64::from(node) * 8
}

struct Shared {
    page: Replicated,
    /// Of each node: periods since its word changed.
    silent: Vec<AtomicU32>,
}

/// This node's word, and what those of the others were.
pub(crate) struct Alive {
    shared: Arc<Shared>,
    node: u16,
    number: u16,
    silence: u32,
    /// Of each node: its word when it was read last, and how often it has changed.
    seen: Vec<(u64, u32)>,
}

impl Alive {
    /// Makes the page. A node that has been silent for so many periods is heard from the second change on.
    pub(crate) fn open(board: &Node, nodes: u16, period: Duration, silence: u32) -> Result<Alive, String> {
        let page = Replicated::create(board, NAME, offset(nodes)).replica_mode(ReplicaMode::Naive).create();
        let page = page.map_err(|error| format!("the page of alive messages: {error}"))?;
        let shared = Arc::new(Shared { page, silent: (0..nodes).map(|_| AtomicU32::new(JOIN)).collect() });
        let node = board.id();
        let (joined, seen) = (shared.clone(), vec![(0, 0); usize::from(nodes)]);
        super::thread("join", move || join(&joined, node, period))?;
        Ok(Alive { shared, node, number: 0, silence, seen })
    }

    /// The nodes whose words have changed: once a period, by the thread that counts the periods. So what others have
    /// that thread do does not make them look silent.
    pub(crate) fn heard(&mut self) -> telegraphos::Result<Vec<Event>> {
        let mut heard = Vec::new();
        for ((node, silent), (last, changes)) in (0_u16..).zip(&self.shared.silent).zip(&mut self.seen) {
            let word = self.shared.page.load::<u64>(offset(node))?;
            if node == self.node || word == *last {
                // A node is joined earlier. What that page then has may be a store of before: one of a node that is not
                // dead yet, which it makes look alive for one silence longer.
                if silent.fetch_add(1, Relaxed) >= self.silence {
                    *changes = 0;
                }
                continue;
            }
            silent.store(0, Relaxed);
            (*last, *changes) = (word, (*changes + 1).min(CHANGES));
            let (incarnation, load) = parts(word);
            if *changes >= CHANGES {
                heard.push(Event::Heard { node, incarnation, load });
            }
        }
        Ok(heard)
    }

    /// Says that this node is alive: by one store.
    pub(crate) fn beat(&mut self, incarnation: Incarnation, load: u32) -> telegraphos::Result<()> {
        self.number = self.number.wrapping_add(1);
        self.shared.page.store(offset(self.node), word(incarnation, load, self.number))
    }
}

/// Joins those that are not heard. This may wait long for a node that is gone, so nothing else waits for it.
fn join(shared: &Shared, own: u16, period: Duration) {
    loop {
        for (node, silent) in (0_u16..).zip(&shared.silent) {
            if node != own && silent.load(Relaxed) >= JOIN {
                // One that has not been lost meanwhile is refused, and so is one where no daemon is.
                match shared.page.join_peer(node) {
                    Ok(()) => debug!("the alive messages of node {node} come"),
                    Err(error) => debug!("node {node}: {error}"),
                }
            }
        }
        thread::sleep(period);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_has_its_parts() {
        for (incarnation, load) in [(1, 0), (0x00ff_ffff, 0x00ff_ffff), (77, 256)] {
            assert_eq!(parts(word(incarnation, load, 0xffff)), (incarnation, load));
            assert_ne!(word(incarnation, load, 1), word(incarnation, load, 2));
        }
    }
}
