// SPDX-License-Identifier: MIT OR Apache-2.0
//! `guest-driver/module/queue_buffers.c`, the same file that the driver is built of, called on memory of the test.

use std::ffi::{c_int, c_void};

/// The readings of the papers' overflow handling: TG_BUFFERS_*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Reading {
    /// As E2 and E3 say.
    Sound = 0,
    /// The literal reading of E2: the copy is full, including the pending element.
    LiteralCopy = 1,
    /// The literal reading of E3: the copy is linked at the end.
    AppendAtEnd = 2,
}

/// `struct tg_buffers`.
#[repr(C)]
pub(crate) struct Raw {
    words: u32,
    width: u32,
    count: u32,
    linked: u32,
    order: *mut u16,
    base: *mut *mut c_void,
    variant: u32,
}

#[link(name = "queue_buffers", kind = "static")]
unsafe extern "C" {
    fn tg_buffers_init(buffers: *mut Raw);
    fn tg_buffers_overflow(buffers: *mut Raw) -> c_int;
    fn tg_buffers_peek(buffers: *mut Raw, value: *mut u64) -> c_int;
    fn tg_buffers_take(buffers: *mut Raw) -> c_int;
    fn tg_buffers_pop(buffers: *mut Raw, value: *mut u64) -> c_int;
}

/// Why the C code did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// -ENOSPC: no buffer is free.
    NoRoom,
    /// -EINVAL: a header is not sound.
    Unsound,
}

/// Guard words between and around the buffers.
const GUARD_WORDS: usize = 4;
const GUARD: u64 = 0xdead_4ead_feed_face;

/// The buffers of one queue, each in an allocation with guard words around it, and the driver's list of them.
pub(crate) struct Buffers {
    words: u32,
    width: u32,
    /// Per buffer its bytes, in units that are aligned for any word.
    memory: Vec<Vec<u64>>,
    /// Numbers of the linked buffers, oldest first; behind `linked` anything.
    order: Vec<u16>,
    linked: u32,
    reading: Reading,
}

impl Buffers {
    /// Buffers of zeros.
    pub(crate) fn new(words: u32, width: u32, count: u32, reading: Reading) -> Buffers {
        assert!(matches!(width, 4 | 8) && words % 2 == 0 && count > 0);
        let units = (words * width / 8) as usize;
        let mut buffer = vec![GUARD; units + 2 * GUARD_WORDS];
        buffer[GUARD_WORDS..GUARD_WORDS + units].fill(0);
        // One more than the C code may use.
        let order = vec![0xdead; count as usize];
        Buffers { words, width, memory: vec![buffer; count as usize], order, linked: 0, reading }
    }

    fn units(&self) -> usize {
        (self.words * self.width / 8) as usize
    }

    fn place(&self, word: u32) -> (usize, u32) {
        assert!(word < self.words, "word {word} of a buffer of {}", self.words);
        match self.width {
            8 => (GUARD_WORDS + word as usize, 0),
            _ => (GUARD_WORDS + word as usize / 2, word % 2 * 32),
        }
    }

    /// A word of a buffer.
    pub(crate) fn word(&self, buffer: usize, word: u32) -> u64 {
        let (unit, shift) = self.place(word);
        let unit = self.memory[buffer][unit];
        if self.width == 8 { unit } else { unit >> shift & 0xffff_ffff }
    }

    /// Stores a word of a buffer.
    pub(crate) fn set_word(&mut self, buffer: usize, word: u32, value: u64) {
        let (at, shift) = self.place(word);
        let unit = &mut self.memory[buffer][at];
        let mask = if self.width == 8 { u64::MAX } else { 0xffff_ffff << shift };
        *unit = *unit & !mask | value << shift & mask;
    }

    /// Numbers of the linked buffers, oldest first.
    pub(crate) fn linked(&self) -> &[u16] {
        &self.order[..self.linked as usize]
    }

    /// Sets the driver's list.
    pub(crate) fn set_linked(&mut self, order: &[u16]) {
        assert!(order.len() < self.memory.len());
        self.order[..order.len()].copy_from_slice(order);
        self.linked = order.len() as u32;
    }

    /// Runs the C code, and checks that it has stayed within the buffers and the list.
    fn call<T>(&mut self, run: impl FnOnce(*mut Raw) -> T) -> T {
        let mut base: Vec<*mut c_void> =
            self.memory.iter_mut().map(|buffer| buffer[GUARD_WORDS..].as_mut_ptr().cast()).collect();
        let mut raw = Raw {
            words: self.words,
            width: self.width,
            count: base.len() as u32,
            linked: self.linked,
            order: self.order.as_mut_ptr(),
            base: base.as_mut_ptr(),
            variant: self.reading as u32,
        };
        let result = run(&mut raw);
        self.linked = raw.linked;
        let units = self.units();
        let guards = |buffer: &Vec<u64>| {
            buffer[..GUARD_WORDS].iter().chain(&buffer[GUARD_WORDS + units..]).all(|unit| *unit == GUARD)
        };
        assert!(self.memory.iter().all(guards), "the C code stored outside the buffers");
        assert_eq!(self.order.last(), Some(&0xdead), "the C code stored outside its list");
        assert!((self.linked as usize) < self.memory.len(), "{} buffers are linked", self.linked);
        result
    }

    /// Calls C code with these buffers, as [`Buffers::call`] does.
    pub(crate) fn with_raw<T>(&mut self, run: impl FnOnce(*mut Raw) -> T) -> T {
        self.call(run)
    }

    /// Makes every buffer empty and links none.
    pub(crate) fn init(&mut self) {
        // SAFETY: `call` passes buffers of the size that it says, an order with room for all of them, and exclusive
        // access.
        self.call(|raw| unsafe { tg_buffers_init(raw) });
    }

    /// Copies the first buffer and links the copy.
    pub(crate) fn overflow(&mut self) -> Result<(), Refusal> {
        // SAFETY: as in `init`.
        match self.call(|raw| unsafe { tg_buffers_overflow(raw) }) {
            0 => Ok(()),
            code => Err(refusal(code)),
        }
    }

    /// The oldest element, which stays.
    pub(crate) fn peek(&mut self) -> Result<Option<u64>, Refusal> {
        let mut value = 0;
        // SAFETY: as in `init`; the value lives until the call is over.
        let code = self.call(|raw| unsafe { tg_buffers_peek(raw, &mut value) });
        found(code, value)
    }

    /// Takes the element that `peek` found.
    pub(crate) fn take(&mut self) -> Result<(), Refusal> {
        // SAFETY: as in `init`.
        match self.call(|raw| unsafe { tg_buffers_take(raw) }) {
            0 => Ok(()),
            code => Err(refusal(code)),
        }
    }

    pub(crate) fn pop(&mut self) -> Result<Option<u64>, Refusal> {
        let mut value = 0;
        // SAFETY: as in `peek`.
        let code = self.call(|raw| unsafe { tg_buffers_pop(raw, &mut value) });
        found(code, value)
    }
}

fn found(code: c_int, value: u64) -> Result<Option<u64>, Refusal> {
    match code {
        1 => Ok(Some(value)),
        0 => Ok(None),
        code => Err(refusal(code)),
    }
}

fn refusal(code: c_int) -> Refusal {
    match -code {
        libc::ENOSPC => Refusal::NoRoom,
        libc::EINVAL => Refusal::Unsound,
        _ => panic!("the C code returned {code}"),
    }
}
