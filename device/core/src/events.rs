// SPDX-License-Identifier: MIT OR Apache-2.0
//! The event queue: causes wait as sticky bits and are posted, oldest first, while the ring in guest memory has room.
//!
//! A cause is noted by whoever has changed something; what its event says is asked of its organ when it is posted,
//! after the board has done with the event that it is handling ([`Ctx::next_cause`]).

use crate::config::Bug;
use crate::ctx::Ctx;
use crate::tables::AfterWrite;
use crate::{Action, Bar};
use std::collections::{BTreeSet, VecDeque};
use telegraphos_wire::regs::{CONTROL_IRQ_ENABLE, Register};
use telegraphos_wire::{NodeId, Status};

/// Something the driver should look at. Each cause is pending at most once; its value is taken when it is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Cause {
    AdminDone(u32),
    ImportState(u16),
    NodeState(NodeId),
    LinkState,
    Error,
    Context(u16),
    ContextState(u16),
    Counter(u16),
    Queue(u32),
    Replica(u32),
}

/// The ring as the driver has programmed it, and the causes that wait for it.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Events {
    pub(crate) base: u64,
    pub(crate) size: u32,
    posted: u32,
    consumer: u32,
    posting: bool,
    pending: BTreeSet<Cause>,
    order: VecDeque<Cause>,
}

impl Events {
    /// The ring is unusable: causes stay pending until the driver programs another one.
    pub(crate) fn disable(&mut self) {
        self.size = 0;
        self.posting = false;
    }

    pub(crate) fn consumer(&self) -> u32 {
        self.consumer
    }

    fn full(&self) -> bool {
        self.posted.wrapping_sub(self.consumer) >= self.size
    }
}

impl Ctx {
    /// Notes a cause.
    pub(crate) fn cause(&mut self, cause: Cause) {
        if self.has(Bug::ForgetCause) && self.events.size > 0 && self.events.full() {
            return;
        }
        if self.events.pending.insert(cause) {
            self.events.order.push_back(cause);
        }
    }

    /// Takes the cause that can be posted now, if there is one: one at a time.
    pub(crate) fn next_cause(&mut self) -> Option<Cause> {
        if self.events.posting || self.events.size == 0 || !self.bus_master || self.events.full() {
            return None;
        }
        let cause = self.events.order.pop_front()?;
        self.events.pending.remove(&cause);
        Some(cause)
    }

    /// Stores an event into the ring.
    pub(crate) fn post_event(&mut self, kind: u16, index: u16, value: u64) {
        let queue = &mut self.events;
        queue.posting = true;
        let entry = queue.base + u64::from(queue.posted & (queue.size - 1)) * 16;
        let seq = queue.posted.wrapping_add(1);
        let word = u64::from(kind) | u64::from(index) << 16 | u64::from(seq) << 32;
        self.write_table([(entry, value), (entry + 8, word)], AfterWrite::EventPosted);
    }

    /// The event is in the ring.
    pub(crate) fn event_posted(&mut self) {
        let queue = &mut self.events;
        queue.posting = false;
        if queue.size == 0 {
            return;
        }
        let was_empty = queue.posted == queue.consumer;
        queue.posted = queue.posted.wrapping_add(1);
        self.counters.events += 1;
        if was_empty {
            self.interrupt();
        }
    }

    fn interrupt(&mut self) {
        if u64::from(self.registers.control) & CONTROL_IRQ_ENABLE != 0 {
            self.out.push(Action::Interrupt);
        }
    }

    /// CONTROL was written: with events left unconsumed, enabling interrupts raises one.
    pub(crate) fn control_written(&mut self) {
        if self.events.posted != self.events.consumer {
            self.interrupt();
        }
    }

    /// EVENT_SIZE was written: a new ring starts at entry 0.
    pub(crate) fn set_event_size(&mut self, size: u32) {
        let ok = size == 0 || (size.is_power_of_two() && (4..=65_536).contains(&size) && self.events.base % 16 == 0);
        if !ok {
            return self.bad_access(Bar::Control, Register::EventSize.offset(), 4, Status::Invalid);
        }
        let queue = &mut self.events;
        queue.size = size;
        queue.posted = 0;
        queue.consumer = 0;
    }

    /// EVENT_CONSUMER was written.
    pub(crate) fn consume_events(&mut self, consumer: u32) {
        let queue = &mut self.events;
        let unconsumed = queue.posted.wrapping_sub(queue.consumer);
        if consumer.wrapping_sub(queue.consumer) > unconsumed {
            self.latch_error(Bar::Control, Register::EventConsumer.offset(), 4, Status::Invalid);
            return;
        }
        queue.consumer = consumer;
        if queue.posted != consumer {
            self.interrupt();
        }
    }
}
