// SPDX-License-Identifier: MIT OR Apache-2.0
//! The event queue: causes wait as sticky bits and are posted, oldest first, while the ring in guest memory has room.

use crate::config::Bug;
use crate::hib::{AfterWrite, Hib};
use crate::{Action, Bar, Notice};
use std::collections::{BTreeSet, VecDeque};
use telegraphos_wire::regs::{CONTROL_IRQ_ENABLE, Register};
use telegraphos_wire::{NodeId, Status, event};

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
pub(crate) struct EventQueue {
    pub(crate) base: u64,
    pub(crate) size: u32,
    posted: u32,
    consumer: u32,
    posting: bool,
    pending: BTreeSet<Cause>,
    order: VecDeque<Cause>,
}

impl EventQueue {
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

impl Hib {
    /// Notes a cause; posts it at once if the ring has room.
    pub(crate) fn cause(&mut self, cause: Cause, out: &mut Vec<Action>) {
        if self.config.has(Bug::ForgetCause) && self.events.size > 0 && self.events.full() {
            return;
        }
        if self.events.pending.insert(cause) {
            self.events.order.push_back(cause);
        }
        self.post_events(out);
    }

    pub(crate) fn post_events(&mut self, out: &mut Vec<Action>) {
        if self.events.posting || self.events.size == 0 || !self.bus_master || self.events.full() {
            return;
        }
        let Some(cause) = self.events.order.pop_front() else { return };
        self.events.pending.remove(&cause);
        let (kind, index, value) = match cause {
            Cause::AdminDone(slot) => (event::ADMIN_DONE, slot as u16, 0),
            Cause::ImportState(import) => (event::IMPORT_STATE, import, self.import_state(import)),
            Cause::NodeState(node) => {
                let peer = self.requester.peers.get(usize::from(node));
                let value = peer.and_then(|p| p.incarnation).map_or(0, u64::from);
                (event::NODE_STATE, node, value)
            }
            Cause::LinkState => (event::LINK_STATE, 0, u64::from(self.link.is_up())),
            Cause::Error => (event::ERROR, 0, self.registers.error),
            Cause::Context(context) => (event::CONTEXT, context, 0),
            Cause::ContextState(context) => (event::CONTEXT_STATE, context, self.context_state(context)),
            Cause::Replica(page) => {
                let (home, value) = self.replica_event(page);
                (event::REPLICA, home, value)
            }
            Cause::Queue(page) => (event::QUEUE, 0, self.queue_event(page)),
            Cause::Counter(counter) => (event::COUNTER, counter, self.page_counters.take_news(counter)),
        };
        let queue = &mut self.events;
        queue.posting = true;
        let entry = queue.base + u64::from(queue.posted & (queue.size - 1)) * 16;
        let seq = queue.posted.wrapping_add(1);
        let word = u64::from(kind) | u64::from(index) << 16 | u64::from(seq) << 32;
        self.write_table([(entry, value), (entry + 8, word)], AfterWrite::EventPosted, out);
    }

    pub(crate) fn event_posted(&mut self, out: &mut Vec<Action>) {
        let queue = &mut self.events;
        queue.posting = false;
        if queue.size == 0 {
            return;
        }
        let was_empty = queue.posted == queue.consumer;
        queue.posted = queue.posted.wrapping_add(1);
        self.counters.events += 1;
        if was_empty {
            self.interrupt(out);
        }
        self.post_events(out);
    }

    fn interrupt(&mut self, out: &mut Vec<Action>) {
        if u64::from(self.registers.control) & CONTROL_IRQ_ENABLE != 0 {
            out.push(Action::Interrupt);
        }
    }

    /// CONTROL was written: with events left unconsumed, enabling interrupts raises one.
    pub(crate) fn control_written(&mut self, out: &mut Vec<Action>) {
        if self.events.posted != self.events.consumer {
            self.interrupt(out);
        }
    }

    /// EVENT_SIZE was written: a new ring starts at entry 0.
    pub(crate) fn set_event_size(&mut self, size: u32, out: &mut Vec<Action>) {
        let ok = size == 0 || (size.is_power_of_two() && (4..=65_536).contains(&size) && self.events.base % 16 == 0);
        if !ok {
            out.push(Action::Notice(Notice::BadAccess {
                bar: Bar::Control,
                offset: Register::EventSize.offset(),
                size: 4,
                status: Status::Invalid,
            }));
            self.latch_error(Bar::Control, Register::EventSize.offset(), 4, Status::Invalid, out);
            return;
        }
        let queue = &mut self.events;
        queue.size = size;
        queue.posted = 0;
        queue.consumer = 0;
        self.post_events(out);
    }

    /// EVENT_CONSUMER was written.
    pub(crate) fn consume_events(&mut self, consumer: u32, out: &mut Vec<Action>) {
        let queue = &mut self.events;
        let unconsumed = queue.posted.wrapping_sub(queue.consumer);
        if consumer.wrapping_sub(queue.consumer) > unconsumed {
            self.latch_error(Bar::Control, Register::EventConsumer.offset(), 4, Status::Invalid, out);
            return;
        }
        queue.consumer = consumer;
        if queue.posted != consumer {
            self.interrupt(out);
        }
        self.post_events(out);
    }
}
