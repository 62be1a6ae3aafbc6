// SPDX-License-Identifier: MIT OR Apache-2.0
//! The membership that a REPLICA_SET requests, and its checks.

use super::Below;
use super::page::{Mode, ReplicaPage};
use crate::requester::Source;
use telegraphos_wire::admin::{self, Command};
use telegraphos_wire::{NodeId, Status, UNIT};

/// The membership that a REPLICA_SET requests, after those checks that do not depend on the page's present state.
pub(super) struct Membership {
    pub(super) page: u32,
    /// Generation of the page's grant on this node.
    pub(super) generation: u64,
    pub(super) mode: Mode,
    /// The home, or in mode naive the peer; this node's own page if `here`.
    pub(super) source: Source,
    pub(super) here: bool,
}

/// What a REPLICA_SET changes at a page that is replicated already.
#[derive(PartialEq, Eq)]
pub(super) enum Change {
    /// Its home, or a further peer in mode naive.
    Join,
    /// Only its content: a copy in mode invalidate is filled again.
    Refill,
    /// Nothing: the copy is valid.
    Nothing,
}

impl Membership {
    /// Checks the command; `queue` says that the page belongs to a notification queue.
    pub(super) fn new(below: &mut Below<'_>, command: &Command, queue: bool) -> Result<Membership, Status> {
        let command = command.replica();
        let page = command.page;
        let mode = match command.mode {
            admin::NAIVE => Mode::Naive,
            admin::OWNER => Mode::Owner,
            admin::COUNTERS => Mode::Counters,
            admin::INVALIDATE => Mode::Invalidate,
            _ => return Err(Status::Invalid),
        };
        let grant = below.grants.pages.get(page).filter(|grant| grant.valid == UNIT);
        let generation = grant.ok_or(Status::NotGranted)?.generation;
        if queue {
            return Err(Status::NotGranted);
        }
        let node = NodeId::try_from(command.node).map_err(|_| Status::BadNode)?;
        let here = node == below.ctx.config.node;
        if !here {
            below.requester.peers.reachable(below.ctx, node)?;
        } else if command.home_page != page {
            return Err(Status::Invalid);
        }
        let source = Source { node, page: command.home_page, generation: command.home_generation };
        Ok(Membership { page, generation, mode, source, here })
    }

    /// Whether the REPLICA_SET may change a page that is replicated already, and how. Only an orphan may get another
    /// home, and a naive page another peer: two homes cannot be claimed for one page.
    pub(super) fn change_of(&self, page: &ReplicaPage) -> Result<Change, Status> {
        let joins = page.mode == Mode::Naive && self.mode == Mode::Naive && !page.sources.contains(&self.source);
        if page.setting.is_some() || page.clearing.is_some() || page.revoked {
            return Err(Status::Busy);
        }
        // A naive page has at most one source at each other node.
        if joins && page.sources.iter().any(|other| other.node == self.source.node) {
            return Err(Status::Busy);
        }
        if page.mode == Mode::Invalidate && self.mode == Mode::Invalidate && page.sources.contains(&self.source) {
            return match page.orphaned {
                Some(status) => Err(status),
                None if page.filled && !page.invalid => Ok(Change::Nothing),
                // An invalid copy joins again when the driver has unmapped the page.
                None if page.invalid || page.joining.is_some() || page.is_leaving() => Err(Status::Busy),
                None => Ok(Change::Refill),
            };
        }
        if page.orphaned.is_none() && (!joins || self.here) {
            return Err(Status::NotHome);
        }
        Ok(Change::Join)
    }
}
