// SPDX-License-Identifier: MIT OR Apache-2.0
//! The requests of this node's processors that are forwarded to the homes of their pages.

use super::page::{Mode, ReplicaPage};
use crate::ctx::Ctx;
use crate::numbered::Numbered;
use std::collections::{BTreeSet, VecDeque};
use telegraphos_wire::{Body, NodeId, Packet};

/// A request of this node's processors that has been forwarded to the home.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Forward {
    pub(super) packet: Packet,
    /// The home that it was sent to.
    pub(super) home: NodeId,
    pub(super) page: u32,
    /// [`ReplicaPage::moves`] when it was sent.
    pub(super) moves: u32,
    /// Its ordinal among the page's requests that are in flight or returned.
    pub(super) ordinal: u64,
    /// The processor has been answered with a refusal because the page lost its home; the home's answer is discarded.
    pub(super) refused: bool,
}

/// A request of this node's processors that the home performs. Such requests are answered in issue order, so that the
/// count of stores taken (SPEC E22b) identifies them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct InOrder {
    pub(super) number: u64,
    pub(super) page: u32,
    /// The request and its answer, once it has arrived.
    pub(super) done: Option<(Packet, Body)>,
}

/// All forwarded requests.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Forwards {
    /// By number; the home's answer carries it.
    table: Numbered<Forward>,
    /// (page, ordinal) of each forwarded request.
    ordinals: BTreeSet<(u32, u64)>,
    /// Forwarded requests for pages in mode invalidate, in issue order, which is also the order of their answers.
    in_order: VecDeque<InOrder>,
}

impl Forwards {
    /// Adds a request for a page to its home, and returns the number.
    pub(super) fn insert(&mut self, replica: &ReplicaPage, home: NodeId, packet: Packet, ordinal: u64) -> u64 {
        let (page, moves) = (replica.page, replica.moves);
        let number = self.table.insert(Forward { packet, home, page, moves, ordinal, refused: false });
        if replica.mode == Mode::Invalidate {
            self.in_order.push_back(InOrder { number, page, done: None });
        }
        self.ordinals.insert((page, ordinal));
        number
    }

    /// Removes a request; `None` if there is no such request.
    pub(super) fn take(&mut self, number: u64) -> Option<Forward> {
        let forward = self.table.remove(number)?;
        self.ordinals.remove(&(forward.page, forward.ordinal));
        Some(forward)
    }

    /// The ordinals of a page's requests that its home has not answered, ascending.
    fn ordinals_of(&self, page: u32) -> impl DoubleEndedIterator<Item = u64> + '_ {
        self.ordinals.range((page, 0)..=(page, u64::MAX)).map(|(_, ordinal)| *ordinal)
    }

    /// The ordinal behind those of a page's requests.
    pub(super) fn next_ordinal(&self, page: u32) -> u64 {
        self.ordinals_of(page).next_back().map_or(0, |last| last + 1)
    }

    /// Whether a request for a page is unfinished.
    pub(super) fn has(&self, page: u32) -> bool {
        self.in_order.iter().any(|request| request.page == page) || self.ordinals_of(page).next().is_some()
    }

    /// Whether a request for a page that was sent before its last move is not answered.
    pub(super) fn has_before_move(&self, page: u32, moves: u32) -> bool {
        self.table.iter().any(|(_, forward)| forward.page == page && forward.moves != moves)
    }

    /// Marks the requests for a page as refused. Returns those that were not: number, home, request.
    pub(super) fn refuse(&mut self, page: u32) -> Vec<(u64, NodeId, Packet)> {
        let of_page = self.table.iter_mut().filter(|(_, forward)| forward.page == page);
        let refused = of_page.filter_map(|(number, forward)| {
            let refused = std::mem::replace(&mut forward.refused, true);
            (!refused).then(|| (number, forward.home, forward.packet.clone()))
        });
        refused.collect()
    }

    /// Answers a request, or records its answer if those to earlier ones are to be sent first
    /// ([`Forwards::next_answer`]).
    ///
    /// A load is answered at once. It was performed behind the earlier stores, but their acknowledgements may take the
    /// drivers of all copies, and the processor that stalls on the load may be the one that this node's driver needs.
    pub(super) fn answer(&mut self, ctx: &mut Ctx, number: u64, packet: Packet, body: Body) {
        let found = self.in_order.iter().position(|request| request.number == number && request.done.is_none());
        match found {
            Some(at) if matches!(packet.body, Body::Read { .. }) => {
                self.in_order.remove(at);
                ctx.reply_to(&packet, body);
            }
            Some(at) => self.in_order[at].done = Some((packet, body)),
            None => ctx.reply_to(&packet, body),
        }
    }

    /// Takes the answer that is the next in order, if it has arrived: page, request, answer.
    pub(super) fn next_answer(&mut self) -> Option<(u32, Packet, Body)> {
        self.in_order.front().filter(|request| request.done.is_some())?;
        let InOrder { page, done, .. } = self.in_order.pop_front()?;
        done.map(|(packet, body)| (page, packet, body))
    }
}
