// SPDX-License-Identifier: MIT OR Apache-2.0
//! Page access counters (SPEC item 22): two for each armed remote page, for reads and for writes. The requester and the
//! launcher count the accesses that this node issues. An access decrements its counter unless that is zero; the step
//! from 1 to 0 posts an event.
//!
//! A store, a load, an atomic (a write) and each block of a copy count as one access.

use crate::config::Bug;
use crate::ctx::Ctx;
use crate::events::Cause;

use std::collections::BTreeSet;
use telegraphos_wire::admin::{Command, Completion};
use telegraphos_wire::{NodeId, Status, event};

/// One armed pair of counters.
#[derive(Clone, Copy, Debug, Hash)]
struct Counter {
    node: NodeId,
    page: u32,
    reads: u64,
    writes: u64,
    /// TG_COUNTER_* bits of counters that reached zero since the last event.
    fired: u64,
}

/// The armed counters of the board.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct PageCounters {
    /// By index; `None` if disarmed.
    counters: Vec<Option<Counter>>,
    /// Armed counters by remote page: node, page, index of the counter.
    by_page: BTreeSet<(NodeId, u32, u16)>,
}

impl PageCounters {
    /// Takes the value of a COUNTER event: the bits of the counters that have reached zero since the last one.
    pub(crate) fn take_fired(&mut self, index: u16) -> u64 {
        let counter = self.counters.get_mut(usize::from(index)).and_then(Option::as_mut);
        counter.map_or(0, |c| std::mem::take(&mut c.fired))
    }

    /// Counts accepted accesses to a remote page, as many as `times`.
    #[inline]
    pub(crate) fn count(&mut self, ctx: &mut Ctx, node: NodeId, page: u32, write: bool, times: u32) {
        if !self.by_page.is_empty() {
            (0..times).for_each(|_| self.count_one(ctx, node, page, write));
        }
    }

    fn count_one(&mut self, ctx: &mut Ctx, node: NodeId, page: u32, write: bool) {
        let armed: Vec<u16> =
            self.by_page.range((node, page, 0)..=(node, page, u16::MAX)).map(|(_, _, i)| *i).collect();
        for index in armed {
            let Some(Some(counter)) = self.counters.get_mut(usize::from(index)) else { continue };
            let (left, bit) = if write {
                (&mut counter.writes, event::COUNTER_WRITES)
            } else {
                (&mut counter.reads, event::COUNTER_READS)
            };
            if *left == 0 && !ctx.has(Bug::CounterRepeats) {
                continue;
            }
            *left = left.saturating_sub(1);
            if *left == 0 {
                counter.fired |= bit;
                ctx.cause(Cause::Counter(index));
            }
        }
    }

    /// COUNTER_SET. Arms a counter, or disarms it if both values are zero.
    pub(crate) fn set(&mut self, ctx: &Ctx, command: &Command) -> Result<(), Status> {
        let command = command.counter();
        let node = NodeId::try_from(command.node).ok().filter(|n| u32::from(*n) < ctx.config.window.nodes());
        let node = node.ok_or(Status::BadNode)?;
        if command.index >= u32::from(ctx.config.counters) {
            return Err(Status::Invalid);
        }
        let index = command.index as u16;
        if self.counters.len() <= usize::from(index) {
            self.counters.resize(usize::from(index) + 1, None);
        }
        let entry = &mut self.counters[usize::from(index)];
        if let Some(old) = entry.take() {
            self.by_page.remove(&(old.node, old.page, index));
        }
        if command.reads != 0 || command.writes != 0 {
            let (page, reads, writes) = (command.page, command.reads, command.writes);
            *entry = Some(Counter { node, page, reads, writes, fired: 0 });
            self.by_page.insert((node, page, index));
        }
        Ok(())
    }

    /// COUNTER_GET. Returns the remaining reads and writes; fails with `Invalid` if the counter is not armed.
    pub(crate) fn get(&self, command: &Command) -> Result<Completion, Status> {
        let command = command.counter();
        let counter = self.counters.get(command.index as usize).copied().flatten();
        let counter = counter.ok_or(Status::Invalid)?;
        let status = Completion::of(command.seq, Status::Ok);
        Ok(Completion { generation: counter.reads, length: counter.writes, ..status })
    }
}
