// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver and consumer of a queue, as seen by the board: whole dequeues and whole overflow handlings, each in one
//! step. The models cover their inner steps.

use super::Cluster;
use super::commands::queue_resume;
use super::driver::Driver;
use std::collections::VecDeque;
use telegraphos_wire::queue::{FIRST, HEAD_WORD, HeaderWord, Shape, TAIL_WORD};
use telegraphos_wire::{Status, event};

pub struct Owner {
    pub id: u16,
    pub page: u32,
    pub shape: Shape,
    /// Elements in linked buffers, oldest first.
    pub linked: VecDeque<u64>,
    /// Slot and number of the last resume.
    resume: Option<(u32, u32)>,
}

impl Owner {
    /// Makes the queue and publishes it under `name`.
    pub fn new(c: &mut Cluster, id: u16, page: u32, name: &str, words: u32, width: u32) -> Owner {
        let shape = Shape::new(words, width).unwrap();
        c.make_queue(id, name, page, shape);
        Owner { id, page, shape, linked: VecDeque::new(), resume: None }
    }

    pub fn header(&self, c: &Cluster, word: u64) -> HeaderWord {
        let value = c.peek(self.id, self.page, word, self.shape.width());
        self.shape.header(value).unwrap_or_else(|| panic!("word {word} is {value:#x}"))
    }

    /// Elements of the first buffer; removed if `take`.
    fn committed(&self, c: &mut Cluster, take: Option<usize>) -> Vec<u64> {
        let (tail, mut head) = (self.header(c, TAIL_WORD), self.header(c, HEAD_WORD));
        let mut out = Vec::new();
        while head != tail && out.len() < take.unwrap_or(usize::MAX) {
            out.push(c.peek(self.id, self.page, head.index.into(), self.shape.width()));
            head = head.advanced();
        }
        c.poke(self.id, self.page, HEAD_WORD, self.shape.width(), head.encode().into());
        out
    }

    /// The oldest element, if there is one.
    pub fn pop(&mut self, c: &mut Cluster) -> Option<u64> {
        self.linked.pop_front().or_else(|| self.committed(c, Some(1)).first().copied())
    }

    /// Whether the board has stopped the queue and the stop is not handled yet.
    pub fn is_stopped(&self, c: &Cluster) -> bool {
        let state = c.nodes[usize::from(self.id)].hib.queue_state(self.page);
        state & event::QUEUE_OVERFLOW != 0
    }

    /// Copies, links, and resumes the board.
    pub fn handle(&mut self, c: &mut Cluster) {
        assert!(self.is_stopped(c));
        let words = self.committed(c, None);
        self.linked.extend(words);
        let first = HeaderWord { size: self.shape.words(), index: FIRST };
        c.poke(self.id, self.page, HEAD_WORD, self.shape.width(), first.encode().into());
        self.resume = Some((c.post(self.id, queue_resume(self.page)), c.last_command(self.id)));
    }

    /// Whether the last resume has been answered, as it must.
    pub fn resumed(&self, c: &Cluster) -> bool {
        let Some((slot, seq)) = self.resume else { return true };
        let done = c.completion(self.id, slot);
        assert!(done.seq != seq || done.status == Status::Ok as u32, "{done:?}");
        // Or even a later command of that slot.
        done.seq >= seq
    }

    /// All elements, oldest first; handles overflows as they occur.
    pub fn drain(&mut self, c: &mut Cluster) -> Vec<u64> {
        let mut out = Vec::new();
        loop {
            c.settle();
            if self.is_stopped(c) {
                self.handle(c);
                continue;
            }
            match self.pop(c) {
                Some(value) => out.push(value),
                None => return out,
            }
        }
    }
}
