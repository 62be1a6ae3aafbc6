// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver of a simulated guest: it exports and imports by real admin commands, takes events from the ring, handles
//! queue overflows, and opens again what a peer's end has closed.

use crate::layout::{ADMIN, EVENTS, KEY, RING, STATUS, Segment};
use crate::memory::Pages;
use crate::plan::Plan;
use std::collections::VecDeque;
use telegraphos_testkit::world::Memory;
use telegraphos_testkit::world::commands::{
    context_open, grant_set, import_clear, import_set, lookup, publish, queue_resume, queue_set, replica_set,
};
use telegraphos_wire::admin::{self, Command, Completion};
use telegraphos_wire::event::Entry;
use telegraphos_wire::queue::{FIRST, HEAD_WORD, HeaderWord, Shape, TAIL_WORD};
use telegraphos_wire::{NodeId, Status, UNIT};

/// Something the driver is to do, by one or two admin commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Opens context 0.
    Context,
    /// Grants a segment, or makes the queue, and publishes it.
    Export(Segment),
    /// Looks a segment of a node up and opens the import with this number.
    Import { node: NodeId, segment: Segment, import: u16 },
    /// Closes that import.
    Close { import: u16 },
    /// Makes the own page a copy of the page of that home, or the home.
    Join { home: NodeId },
    /// The queue has been emptied after an overflow.
    Resume,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Driver {
    tasks: VecDeque<Task>,
    /// The first of them is under way: what its first command has found.
    under_way: bool,
    found: Option<Completion>,
    seq: u32,
    taken: u32,
    /// Elements of the queue that an overflow has moved out of the buffer.
    linked: VecDeque<u64>,
}

impl Driver {
    /// Adds a task behind the others.
    pub(crate) fn add(&mut self, task: Task) {
        self.tasks.push_back(task);
    }

    /// Whether a task is waiting or in progress.
    pub(crate) fn has(&self, task: Task) -> bool {
        self.tasks.contains(&task)
    }

    /// Writes the next command into its slot and returns that, for the doorbell; `None` if a command is in progress or
    /// there is no task.
    pub(crate) fn start(&mut self, memory: &mut Pages, plan: &Plan) -> Option<u32> {
        if self.under_way {
            return None;
        }
        let task = *self.tasks.front()?;
        self.under_way = true;
        self.seq = self.seq.wrapping_add(1);
        let slot = self.seq % admin::SLOTS as u32;
        let command = Command { seq: self.seq, ..self.command(task, memory, plan) };
        memory.write(ADMIN + u64::from(slot) * admin::BLOCK_SIZE as u64, bytemuck::bytes_of(&command));
        Some(slot)
    }

    fn command(&self, task: Task, memory: &mut Pages, plan: &Plan) -> Command {
        let found = self.found.unwrap_or_default();
        match task {
            Task::Context => context_open(0, STATUS, KEY),
            Task::Export(segment) if self.found.is_some() => {
                let length = if segment == Segment::Queue { plan.shape.bytes() } else { UNIT };
                publish(segment.name(), segment.page(), length, found.generation, segment.rights())
            }
            Task::Export(Segment::Queue) => {
                for word in [TAIL_WORD, HEAD_WORD] {
                    set_word(memory, word, plan.shape.empty());
                }
                queue_set(Segment::Queue.page(), plan.shape, Segment::Queue.address()).into()
            }
            Task::Export(segment) => grant_set(segment.page(), 1, segment.address(), segment.rights()),
            Task::Import { node, segment, import } if self.found.is_some() => {
                import_set(import, node, segment.page(), &found)
            }
            Task::Join { home } if self.found.is_some() => {
                replica_set(Segment::Page.page(), admin::COUNTERS, home, found.index, found.generation).into()
            }
            Task::Import { node, segment, .. } => find(node, segment),
            Task::Join { home } => find(home, Segment::Page),
            Task::Close { import } => import_clear(import),
            Task::Resume => queue_resume(Segment::Queue.page()),
        }
    }

    /// The board has stored the last word of the completion at `address`. Returns the task and its outcome if that
    /// was its last command.
    pub(crate) fn completed(&mut self, address: u64, memory: &Pages) -> Option<(Task, Status)> {
        let block = (address - ADMIN) / admin::BLOCK_SIZE as u64;
        let at = ADMIN + block * admin::BLOCK_SIZE as u64 + admin::COMPLETION_OFFSET as u64;
        let completion: Completion = bytemuck::pod_read_unaligned(&memory.bytes(at, size_of::<Completion>())?);
        let task = *self.tasks.front()?;
        if !self.under_way || completion.seq != self.seq {
            return None;
        }
        self.under_way = false;
        let status = Status::from_u16(completion.status as u16);
        let two = matches!(task, Task::Export(_) | Task::Import { .. } | Task::Join { .. });
        if two && status.is_ok() && self.found.is_none() {
            self.found = Some(completion);
            return None;
        }
        self.found = None;
        self.tasks.pop_front();
        Some((task, status))
    }

    /// Takes the next event from the ring, if there is one.
    pub(crate) fn take_event(&mut self, memory: &Pages) -> Option<Entry> {
        let at = EVENTS + u64::from(self.taken & (RING - 1)) * size_of::<Entry>() as u64;
        let entry: Entry = bytemuck::pod_read_unaligned(&memory.bytes(at, size_of::<Entry>())?);
        let new = entry.seq == self.taken.wrapping_add(1);
        self.taken = self.taken.wrapping_add(new.into());
        new.then_some(entry)
    }

    /// Events taken so far: what EVENT_CONSUMER is to hold.
    pub(crate) fn events_taken(&self) -> u32 {
        self.taken
    }

    // ---- the queue's owner ----

    /// Takes the oldest element, if there is one.
    pub(crate) fn take_element(&mut self, memory: &mut Pages, plan: &Plan) -> Option<u64> {
        if let Some(element) = self.linked.pop_front() {
            return Some(element);
        }
        let shape = plan.shape;
        let (tail, head) = (header(memory, shape, TAIL_WORD)?, header(memory, shape, HEAD_WORD)?);
        if head == tail {
            return None;
        }
        let element = word(memory, head.index.into());
        set_word(memory, HEAD_WORD, head.advanced());
        element
    }

    /// The board has stopped the queue: moves its elements out, in their order, and has the board resume it.
    pub(crate) fn empty_queue(&mut self, memory: &mut Pages, plan: &Plan) {
        let shape = plan.shape;
        let (Some(tail), Some(mut head)) = (header(memory, shape, TAIL_WORD), header(memory, shape, HEAD_WORD)) else {
            return;
        };
        while head != tail {
            self.linked.extend(word(memory, head.index.into()));
            head = head.advanced();
        }
        set_word(memory, HEAD_WORD, HeaderWord { size: shape.words(), index: FIRST });
        self.add(Task::Resume);
    }
}

fn find(node: NodeId, segment: Segment) -> Command {
    Command { rights: segment.rights().0, ..lookup(node, segment.name()) }
}

/// A word of the queue.
fn word(memory: &Pages, word: u64) -> Option<u64> {
    memory.word(Segment::Queue.address() + 8 * word, 8)
}

fn header(memory: &Pages, shape: Shape, at: u64) -> Option<HeaderWord> {
    shape.header(word(memory, at)?)
}

fn set_word(memory: &mut Pages, word: u64, header: HeaderWord) {
    memory.set_word(Segment::Queue.address() + 8 * word, 8, header.encode().into());
}
