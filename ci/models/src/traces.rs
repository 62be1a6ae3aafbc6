// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver's copy-and-link and its own dequeue, on long random traces, against lists of elements.

use super::buffers::{Buffers, Reading, Refusal};
use std::collections::VecDeque;
use telegraphos_testkit::{Rng, Scale};
use telegraphos_wire::queue::{FIRST, HEAD_WORD, HeaderWord, NEXT_WORD, TAIL_WORD};

const TAIL: u32 = TAIL_WORD as u32;
const HEAD: u32 = HEAD_WORD as u32;
const NEXT: u32 = NEXT_WORD as u32;

/// A queue whose elements are also kept in plain lists.
struct Trace {
    buffers: Buffers,
    words: u32,
    quota: usize,
    /// Elements of the linked buffers, oldest first, and of the first buffer.
    linked: VecDeque<VecDeque<u64>>,
    first: VecDeque<u64>,
    pending: Option<u64>,
    /// Elements that are not in the queue yet.
    next: u64,
}

impl Trace {
    fn new(words: u32, width: u32, quota: usize) -> Trace {
        let mut buffers = Buffers::new(words, width, 1 + quota as u32, Reading::Sound);
        buffers.init();
        Trace { buffers, words, quota, linked: VecDeque::new(), first: VecDeque::new(), pending: None, next: 1 }
    }

    fn header(&self, buffer: usize, word: u32) -> HeaderWord {
        let value = self.buffers.word(buffer, word) as u32;
        HeaderWord::decode(value).unwrap_or_else(|| panic!("word {word} of buffer {buffer} is {value:#x}"))
    }

    /// The board performs an element (SPEC item 8, E1).
    fn enqueue(&mut self) {
        if self.pending.is_some() {
            return;
        }
        let tail = self.header(0, TAIL);
        self.buffers.set_word(0, tail.index.into(), self.next);
        if tail.advanced() == self.header(0, HEAD) {
            assert_eq!(self.first.len() as u32, self.words - 4, "E1: it stops at element size - 3");
            self.pending = Some(self.next);
        } else {
            self.buffers.set_word(0, TAIL, tail.advanced().encode().into());
            self.first.push_back(self.next);
        }
        self.next += 1;
    }

    /// The driver handles an overflow, and the board resumes.
    fn overflow(&mut self) {
        let Some(pending) = self.pending else { return };
        while self.linked.front().is_some_and(VecDeque::is_empty) {
            self.linked.pop_front();
        }
        let expected = if self.linked.len() < self.quota { Ok(()) } else { Err(Refusal::NoRoom) };
        assert_eq!(self.buffers.overflow(), expected);
        if expected.is_err() {
            return self.chain();
        }
        self.linked.push_back(std::mem::take(&mut self.first));
        self.chain();
        assert_eq!(self.header(0, HEAD).index, FIRST);
        self.buffers.set_word(0, FIRST.into(), pending);
        let first = HeaderWord { index: FIRST, ..self.header(0, HEAD) };
        self.buffers.set_word(0, TAIL, first.advanced().encode().into());
        self.first.push_back(pending);
        self.pending = None;
    }

    /// The `next` words link the first buffer to the newest, and so on to the oldest (E3).
    fn chain(&self) {
        let mut at = 0;
        for buffer in self.buffers.linked().iter().rev() {
            assert_eq!(self.buffers.word(at, NEXT), u64::from(*buffer) * u64::from(self.words));
            at = usize::from(*buffer);
        }
        assert_eq!(self.buffers.word(at, NEXT), 0);
        assert_eq!(self.buffers.linked().len(), self.linked.len());
    }

    fn expected(&mut self) -> Option<u64> {
        while self.linked.front().is_some_and(VecDeque::is_empty) {
            self.linked.pop_front();
        }
        self.linked.front_mut().unwrap_or(&mut self.first).pop_front()
    }

    fn pop(&mut self) {
        let expected = self.expected();
        assert_eq!(self.buffers.pop(), Ok(expected));
    }

    /// The same in two calls, with another peek in between.
    fn peek_and_take(&mut self) {
        let expected = self.expected();
        assert_eq!((self.buffers.peek(), self.buffers.peek()), (Ok(expected), Ok(expected)));
        assert_eq!(self.buffers.take(), expected.map(|_| ()).ok_or(Refusal::Unsound));
    }

    /// A consumer takes the oldest element of the oldest buffer, without the C code.
    fn consume(&mut self) {
        let oldest = self.buffers.linked().first().map_or(0, |buffer| usize::from(*buffer));
        let head = self.header(oldest, HEAD);
        if head == self.header(oldest, TAIL) {
            return;
        }
        let list = match self.linked.len() {
            0 => &mut self.first,
            _ => &mut self.linked[0],
        };
        assert_eq!(Some(self.buffers.word(oldest, head.index.into())), list.pop_front());
        self.buffers.set_word(oldest, HEAD, head.advanced().encode().into());
    }

    /// A process writes any value to a `next` word: it must have no effect.
    fn scribble(&mut self, random: &mut Rng) {
        let buffer = random.below(1 + self.quota as u32) as usize;
        self.buffers.set_word(buffer, NEXT, u64::from(random.below(u32::MAX)));
    }
}

#[test]
fn i9_i10_e2_e3_the_drivers_code_keeps_long_random_traces_in_order() {
    let steps = Scale::from_env().pick(20_000, 1_000_000);
    for (seed, (words, width, quota)) in
        [(8, 4, 1), (8, 4, 2), (8, 8, 3), (16, 4, 5), (32, 8, 2), (256, 8, 1), (8, 4, 1024)].into_iter().enumerate()
    {
        let mut random = Rng::new(seed as u64);
        let mut trace = Trace::new(words, width, quota);
        let (mut held, mut linked) = (0, 0);
        for _ in 0..steps {
            // Senders and consumers are faster in turn.
            let pace = if trace.next / (u64::from(words) * (quota as u64 + 2)) % 2 == 0 { 9 } else { 2 };
            match random.below(16_u64) {
                0 => trace.pop(),
                1 => trace.peek_and_take(),
                2 => trace.scribble(&mut random),
                3..=5 => trace.overflow(),
                n if n < 6 + pace => trace.enqueue(),
                _ => trace.consume(),
            }
            held += u32::from(trace.pending.is_some() && trace.linked.len() == quota);
            linked = linked.max(trace.linked.len());
        }
        println!("{words} words of {width}, quota {quota}: {} elements, at most {linked} linked", trace.next);
        assert!(linked > 0 && (words > 32 || quota > 100 || held > 0), "the quota was never used up");
        loop {
            trace.overflow();
            match trace.buffers.pop() {
                Ok(None) if trace.pending.is_none() => break,
                found => assert_eq!(found, Ok(trace.expected())),
            }
        }
        assert!(trace.first.is_empty() && trace.linked.is_empty());
    }
}

#[test]
fn i11_an_unsound_header_is_refused_and_nothing_is_stored() {
    for (words, width) in [(8, 4), (16, 8)] {
        let bad = |index: u64, size: u64| size << 16 | index;
        let mut values =
            vec![0, bad(3, 0), bad(3, u64::from(words) * 2), bad(3, u64::from(words) / 2), bad(0, words.into())];
        values.extend([bad(2, words.into()), bad(words.into(), words.into()), bad(0xffff, words.into()), 0xffff_ffff]);
        if width == 8 {
            values.push(1 << 32 | bad(3, words.into()));
        }
        for (buffer, word) in [(0, TAIL), (0, HEAD), (1, TAIL), (1, HEAD)] {
            for value in &values {
                let mut trace = Trace::new(words, width, 2);
                // One linked buffer, which is full but for one element, and the first one stopped.
                while trace.linked.is_empty() || trace.pending.is_none() {
                    trace.overflow();
                    trace.enqueue();
                }
                trace.consume();
                trace.buffers.set_word(buffer, word, *value);
                let all = |trace: &Trace| -> Vec<u64> {
                    (0..3)
                        .flat_map(|b| (0..words).map(move |w| (b, w)))
                        .map(|(b, w)| trace.buffers.word(b, w))
                        .collect()
                };
                let before = all(&trace);
                assert_eq!(
                    trace.buffers.overflow(),
                    Err(Refusal::Unsound),
                    "{value:#x} in word {word} of buffer {buffer}"
                );
                assert_eq!(trace.buffers.linked(), [1]);
                if buffer == 1 {
                    assert_eq!(trace.buffers.pop(), Err(Refusal::Unsound));
                    assert_eq!(trace.buffers.peek(), Err(Refusal::Unsound));
                    assert_eq!(trace.buffers.take(), Err(Refusal::Unsound));
                }
                assert_eq!(all(&trace), before);
            }
        }
    }
}
