// SPDX-License-Identifier: MIT OR Apache-2.0
//! The alive messages (s3 §6.1): each node has one word in a page that all nodes have a copy of, and stores to it once
//! a period. The board multicasts that one store; so there are N messages a period in the cluster, whoever looks.
//!
//! The page is naively replicated (SPEC item 24): it has no home whose death would matter, and naive copies diverge
//! only where two nodes store to one word.

use super::Input;
use log::debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::SyncSender;
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

/// This node's word.
pub(crate) struct Alive {
    shared: Arc<Shared>,
    node: u16,
    number: u16,
}

impl Alive {
    /// Makes the page, and reports who is heard, once a period. Who has been silent for so many is heard from the
    /// second change on.
    pub(crate) fn open(
        board: &Node,
        nodes: u16,
        period: Duration,
        silence: u32,
        to: SyncSender<Input>,
    ) -> Result<Alive, String> {
        let page = Replicated::create(board, NAME, offset(nodes)).replica_mode(ReplicaMode::Naive).create();
        let page = page.map_err(|error| format!("the page of alive messages: {error}"))?;
        let shared = Arc::new(Shared { page, silent: (0..nodes).map(|_| AtomicU32::new(JOIN)).collect() });
        let node = board.id();
        let alive = Alive { shared: shared.clone(), node, number: 0 };
        let listener = shared.clone();
        super::thread("listen", move || listen(&listener, node, period, silence, &to))?;
        super::thread("join", move || join(&shared, node, period))?;
        Ok(alive)
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

/// Reports whose word has changed. Ends with the daemon.
fn listen(shared: &Shared, own: u16, period: Duration, silence: u32, to: &SyncSender<Input>) {
    let mut seen = vec![(0, 0); shared.silent.len()];
    loop {
        thread::sleep(period);
        for ((node, silent), (last, changes)) in (0_u16..).zip(&shared.silent).zip(&mut seen) {
            let Ok(word) = shared.page.load::<u64>(offset(node)) else { return };
            if node == own || word == *last {
                // A node is joined earlier. What that page then has may be a store of before: one of a node that is not
                // dead yet, which it makes look alive for one silence longer.
                if silent.fetch_add(1, Relaxed) >= silence {
                    *changes = 0;
                }
                continue;
            }
            silent.store(0, Relaxed);
            (*last, *changes) = (word, (*changes + 1).min(CHANGES));
            let (incarnation, load) = parts(word);
            if *changes >= CHANGES && to.send(Input::Event(Event::Heard { node, incarnation, load })).is_err() {
                return;
            }
        }
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
