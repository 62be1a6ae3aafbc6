// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver of a simulated guest: it exports and imports by real admin commands, takes events from the ring, handles
//! queue overflows, and opens again what a peer's end has closed.

use crate::layout::{ADMIN, EVENTS, KEY, RING, STATUS, Segment};
use crate::memory::Memory;
use crate::plan::Plan;
use std::collections::VecDeque;
use telegraphos_wire::admin::{self, Command, Completion, QueueCommand, ReplicaCommand};
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
    pub(crate) fn start(&mut self, memory: &mut Memory, plan: &Plan) -> Option<u32> {
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

    fn command(&self, task: Task, memory: &mut Memory, plan: &Plan) -> Command {
        let found = self.found.unwrap_or_default();
        match task {
            Task::Context => Command { opcode: admin::CONTEXT_OPEN, address: STATUS, key: KEY, ..Command::default() },
            Task::Export(segment) if self.found.is_some() => Command {
                opcode: admin::SEGMENT_PUBLISH,
                index: segment.page(),
                count: 1,
                length: if segment == Segment::Queue { plan.shape.bytes() } else { UNIT },
                generation: found.generation,
                rights_owner: segment.rights().0,
                rights_others: segment.rights().0,
                name: segment.name(),
                ..Command::default()
            },
            Task::Export(Segment::Queue) => {
                let shape = plan.shape;
                let empty = u64::from(shape.empty().encode());
                for word in [TAIL_WORD, HEAD_WORD] {
                    memory.set_word(Segment::Queue.address() + 8 * word, 8, empty);
                }
                QueueCommand {
                    opcode: admin::QUEUE_SET,
                    page: Segment::Queue.page(),
                    words: shape.words().into(),
                    width: shape.width().into(),
                    address: Segment::Queue.address(),
                    nodes: [u64::MAX; 4],
                    ..QueueCommand::default()
                }
                .into()
            }
            Task::Export(segment) => Command {
                opcode: admin::GRANT_SET,
                index: segment.page(),
                count: 1,
                address: segment.address(),
                length: UNIT,
                rights: segment.rights().0,
                nodes: [u64::MAX; 4],
                ..Command::default()
            },
            Task::Import { node, segment, import } if self.found.is_some() => Command {
                opcode: admin::IMPORT_SET,
                import,
                node,
                index: segment.page(),
                count: found.count,
                page: found.index,
                generation: found.generation,
                length: found.length,
                rights: found.rights as u16,
                ..Command::default()
            },
            Task::Join { home } if self.found.is_some() => ReplicaCommand {
                opcode: admin::REPLICA_SET,
                page: Segment::Page.page(),
                mode: admin::COUNTERS,
                node: home.into(),
                home_page: found.index,
                home_generation: found.generation,
                ..ReplicaCommand::default()
            }
            .into(),
            Task::Import { node, segment, .. } => lookup(node, segment),
            Task::Join { home } => lookup(home, Segment::Page),
            Task::Close { import } => Command { opcode: admin::IMPORT_CLEAR, import, ..Command::default() },
            Task::Resume => Command { opcode: admin::QUEUE_RESUME, index: Segment::Queue.page(), ..Command::default() },
        }
    }

    /// The board has stored the last word of the completion at `address`. Returns the task and its outcome if that
    /// was its last command.
    pub(crate) fn completed(&mut self, address: u64, memory: &Memory) -> Option<(Task, Status)> {
        let block = (address - ADMIN) / admin::BLOCK_SIZE as u64;
        let mut completion = Completion::default();
        let at = ADMIN + block * admin::BLOCK_SIZE as u64 + admin::COMPLETION_OFFSET as u64;
        memory.read(at, bytemuck::bytes_of_mut(&mut completion));
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
    pub(crate) fn take_event(&mut self, memory: &Memory) -> Option<Entry> {
        let mut entry = Entry::default();
        let at = EVENTS + u64::from(self.taken & (RING - 1)) * size_of::<Entry>() as u64;
        memory.read(at, bytemuck::bytes_of_mut(&mut entry));
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
    pub(crate) fn take_element(&mut self, memory: &mut Memory, plan: &Plan) -> Option<u64> {
        if let Some(element) = self.linked.pop_front() {
            return Some(element);
        }
        let shape = plan.shape;
        let (tail, head) = (header(memory, shape, TAIL_WORD)?, header(memory, shape, HEAD_WORD)?);
        if head == tail {
            return None;
        }
        let element = memory.word(Segment::Queue.address() + 8 * u64::from(head.index), 8);
        memory.set_word(Segment::Queue.address() + 8 * HEAD_WORD, 8, head.advanced().encode().into());
        Some(element)
    }

    /// The board has stopped the queue: moves its elements out, in their order, and has the board resume it.
    pub(crate) fn empty_queue(&mut self, memory: &mut Memory, plan: &Plan) {
        let shape = plan.shape;
        let (Some(tail), Some(mut head)) = (header(memory, shape, TAIL_WORD), header(memory, shape, HEAD_WORD)) else {
            return;
        };
        while head != tail {
            self.linked.push_back(memory.word(Segment::Queue.address() + 8 * u64::from(head.index), 8));
            head = head.advanced();
        }
        let first = HeaderWord { size: shape.words(), index: FIRST };
        memory.set_word(Segment::Queue.address() + 8 * HEAD_WORD, 8, first.encode().into());
        self.add(Task::Resume);
    }
}

fn lookup(node: NodeId, segment: Segment) -> Command {
    Command { opcode: admin::LOOKUP, node, name: segment.name(), rights: segment.rights().0, ..Command::default() }
}

fn header(memory: &Memory, shape: Shape, word: u64) -> Option<HeaderWord> {
    shape.header(memory.word(Segment::Queue.address() + 8 * word, 8))
}
