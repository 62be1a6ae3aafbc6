// SPDX-License-Identifier: MIT OR Apache-2.0
//! The homes of the copies here: which page copies which, when a home is declared silent, and what it may make this
//! node defer.

use super::page::{Moving, ReplicaPage};
use super::shares;
use crate::HibConfig;
use crate::config::Bug;
use crate::ctx::Ctx;
use crate::requester::Source;
use std::collections::{BTreeMap, BTreeSet};
use telegraphos_accounts::Account;
use telegraphos_wire::{Body, NodeId, Packet, Status};

/// All homes of pages here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Homes {
    /// The page here that copies a home's page; the inverse of [`ReplicaPage::sources`].
    pub(super) sources: BTreeMap<Source, u32>,
    /// (deadline, page) of each page that waits for its home.
    pub(super) deadlines: BTreeSet<(u64, u32)>,
    /// Acknowledgements that wait until the driver has unmapped the page, by home.
    deferred: Account<NodeId>,
}

impl Homes {
    pub(super) fn new(config: &HibConfig) -> Homes {
        let deferred = Account::new(shares::deferred_shares(config));
        Homes { sources: BTreeMap::new(), deadlines: BTreeSet::new(), deferred }
    }

    /// Starts or restarts the timer for the next packet of the home.
    pub(super) fn start_timer(&mut self, ctx: &Ctx, replica: &mut ReplicaPage) {
        if ctx.has(Bug::KeepSilentHomes) {
            return;
        }
        self.stop_timer(replica);
        let until = ctx.now.saturating_add(ctx.config.replica_limit);
        replica.home_deadline = Some(until);
        self.deadlines.insert((until, replica.page));
    }

    /// Stops the timer of the home.
    pub(super) fn stop_timer(&mut self, replica: &mut ReplicaPage) {
        if let Some(until) = replica.home_deadline.take() {
            self.deadlines.remove(&(until, replica.page));
        }
    }

    /// Takes a page whose home has exceeded its time limit.
    pub(super) fn take_overdue(&mut self, now: u64) -> Option<u32> {
        self.deadlines.first().filter(|(at, _)| *at <= now)?;
        self.deadlines.pop_first().map(|(_, page)| page)
    }

    /// Ends the move of a home because the page is an orphan or revoked: refuses the requests that wait for it.
    pub(super) fn end_moving(&mut self, ctx: &mut Ctx, replica: &mut ReplicaPage, status: Status) {
        let (moving, returned) = (replica.moving.take(), std::mem::take(&mut replica.returned));
        if let Some(Moving::Giving { to, packet }) = moving {
            self.sources.remove(&to);
            if let Some(packet) = packet {
                ctx.refuse(&packet, Status::NotHome);
            }
        }
        for packet in returned.into_values() {
            ctx.refuse(&packet, status);
        }
    }

    /// The page copies no home any more.
    pub(super) fn forget_page(&mut self, replica: &mut ReplicaPage) {
        self.stop_timer(replica);
        self.sources.retain(|_, page| *page != replica.page);
        replica.sources.clear();
    }

    /// Defers the acknowledgement of a store to a valid copy until the driver has unmapped the page; false if the
    /// home's share is used up.
    pub(super) fn defer(&mut self, replica: &mut ReplicaPage, packet: &Packet) -> bool {
        let charged = self.deferred.take(packet.src, 1).is_ok();
        if charged {
            replica.deferred.push(packet.clone());
        }
        charged
    }

    /// Sends the deferred acknowledgements of a page with this status.
    pub(super) fn send_deferred(&mut self, ctx: &mut Ctx, replica: &mut ReplicaPage, status: Status) {
        for packet in std::mem::take(&mut replica.deferred) {
            self.deferred.give(&packet.src, 1);
            ctx.reply_to(&packet, Body::CopyAck { status });
        }
    }

    /// The link went down: the deferred acknowledgements are dropped.
    pub(super) fn link_lost(&mut self) {
        self.deferred.clear();
    }
}
