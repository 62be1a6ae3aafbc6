// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process's own page on the board (BAR2, one unit per context) and its status page in guest memory.
//!
//! An operation of a process that takes time uses one of the context's [`SLOTS`] slots, and ends with the word
//! `status << 48 | cookie` in `done[slot]` of the status page. The caller chooses the cookie, which distinguishes this
//! completion from the slot's earlier ones. All stores to the board take the same path, in order.
//!
//! - **quiet** (the papers' FENCE, s1; SPEC item 27): the process stores `import << 48 | cookie` to `QUIET[slot]`. It
//!   is done when every earlier store, atomic and copy of that import (or, with import `ffff`, of the whole context) is
//!   performed at its destination and acknowledged (SPEC E19). While an import has an unacknowledged (latched) error,
//!   its status is reported.
//! - **launch** (Telegraphos II, SPEC item 20): addresses are passed by stores of [`Argument`] words to the *argument*
//!   aperture of the window, at the target address, which the page tables of the process must allow; operands by
//!   stores to the slot's registers in this page; the store to `LAUNCH` starts the operation and consumes its
//!   arguments. A slot keeps its arguments however long the process is interrupted. The previous value of an atomic is
//!   written to `value[slot]` before `done[slot]`.
//!   An argument can be passed by the number of its import as well, by a store to `ARGUMENT` in this page: of imports
//!   that have no window, as large ones have not.
//! - **fetch** (s1, SPEC items 19 and 20: the last access of a launch is a read that returns the result): in place of
//!   the store to `LAUNCH`, a load of 4 or 8 bytes from `FETCH[slot]` performs the atomic in bits 63:56 of LENGTH on
//!   a word of that size, consumes the arguments, and is answered with the previous value. `done[slot]` is
//!   not written. A fetch that fails is answered with all ones, counts in `errors`, and latches its status on the
//!   import of its argument, or in ERROR if it has none.
//! - **queue arm**: the store of a queue's export page and of the tail that its consumer saw to `QUEUE_ARM` requests a
//!   CONTEXT event at the next element; if the tail has moved since, or the queue is not empty or stopped, it comes at
//!   once, so that no wake-up is lost. It can request events for more elements than the next, one at each, so that a
//!   consumer that sleeps again after each need not arm again ([`QueueArm::count`]).
//! - **word arm**: the store of what a process has seen in a word of its own exported or replicated memory to
//!   `WORD_ARM` requests one CONTEXT event at the board's next change of that word's export page, by a store of any
//!   node; if the word has changed since, it comes at once, so that no wake-up is lost ([`WordArm`]). Each arm of a
//!   page is for all threads of the context that granted it. Stores of the node's own processors to that memory are no
//!   changes.
//! - **arm**: the store of a cookie to `ARM[slot]` requests a CONTEXT event when that operation is done; if nothing
//!   with this cookie is outstanding in the slot, it comes at once, so that no wake-up is lost.

use crate::packet::AtomicOp;

/// Slots per context.
pub const SLOTS: usize = 64;
/// Bytes of the longest copy.
pub const MAX_COPY: u64 = 16 << 20;

c_consts! {
    /// Parts of words for the C header.
    pub BITS: u32, prefix "TG_CONTEXT_" {
        /// Bits of a cookie.
        COOKIE_BITS = 48,
        /// Bits of a context's key.
        KEY_BITS = 48,
    }
}

c_consts! {
    /// Context page layout for the C header.
    pub ALL: u64, prefix "TG_CONTEXT_" {
        /// Most contexts of a board: the word of an argument names one in 8 bits.
        COUNT = 256,
        /// Slots per context.
        SLOT_COUNT = 64,
        /// Offset of QUIET of slot 0 in the context page; that of slot k is 8 * k further.
        QUIET = 0,
        /// Import number that means the whole context.
        QUIET_ALL = 0xffff,
        /// Offset of ARM of slot 0 in the context page; that of slot k is 8 * k further.
        ARM = 512,
        /// Offset of the launch registers of slot 0; those of slot k are TG_CONTEXT_STRIDE * k further.
        REGISTERS = 1024,
        /// Bytes of a slot's launch registers.
        STRIDE = 32,
        /// Launch register: operand of an atomic.
        OPERAND = 0,
        /// Launch register: value a compare-and-swap compares with.
        COMPARE = 8,
        /// Launch register: bytes to copy in bits 47:0, and the low 3 bits (which an aligned store cannot pass) of the
        /// first argument's address in 51:48, of the second's in 55:52. For FETCH, the operation in 63:56.
        LENGTH = 16,
        /// Launch register: `operation << 56 | flags << 48 | cookie`; starts it.
        LAUNCH = 24,
        /// Offset of QUEUE_ARM: `further elements << 56 | export page << 32 | word 0 of the queue's first buffer as the
        /// consumer saw it`.
        QUEUE_ARM = 3072,
        /// Offset of ARGUMENT: an argument of a launch by the number of its import, which need not have a window:
        /// `slot << 58 | which << 57 | import << 41 | byte offset in the import`. It passes all bits of the address.
        ARGUMENT = 3080,
        /// Offset of WORD_ARM of the first 256 8-byte words of an export page; that of each 256 more is 8 further.
        /// `word modulo 256 << 56 | export page << 32 | upper half of the word ^ lower half, as the process saw it`.
        WORD_ARM = 3328,
        /// Offset of FETCH of slot 0: a load from it performs the slot's atomic and returns its result. That of slot k
        /// is 8 * k further.
        FETCH = 3584,
        /// Size of the status page in bytes.
        STATUS_SIZE = 4096,
    }
}

c_consts! {
    /// Operations of LAUNCH for the C header.
    pub OPERATIONS: u8, prefix "TG_OP_" {
        /// Fetch-and-store of the word at argument 0.
        SWAP = 1,
        /// Fetch-and-add to the word at argument 0.
        ADD = 2,
        /// Compare-and-swap of the word at argument 0.
        COMPARE_SWAP = 3,
        /// Copy LENGTH bytes to argument 0 from argument 1; at least one of them is on this node (put, get, remote
        /// copy).
        COPY = 4,
        /// Open the gate of the range that argument 0, its context's own import of it, is of: to the node in OPERAND,
        /// one of those that it was granted to, for the first LENGTH bytes. LENGTH 0 closes it: completes when no
        /// access through it is in flight. TG_ERR_BUSY: it is open to another node.
        GATE = 5,
    }
}

c_consts! {
    /// Flags of LAUNCH for the C header.
    pub FLAGS: u8, prefix "TG_LAUNCH_" {
        /// Atomics: the word has 8 bytes, else 4.
        WIDE = 1,
        /// Post a CONTEXT event when it is done.
        NOTIFY = 2,
    }
}

/// An operation of LAUNCH.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// An atomic on a word of `size` bytes, 4 or 8.
    Atomic {
        /// The operation.
        op: AtomicOp,
        /// Bytes of the word.
        size: u8,
    },
    /// A block copy.
    Copy,
    /// Opening or closing the gate of a range.
    Gate,
}

/// A parsed LAUNCH word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Launch {
    /// The operation.
    pub operation: Operation,
    /// Whether its end posts a CONTEXT event.
    pub notify: bool,
    /// The caller's number for it, 48 bits.
    pub cookie: u64,
}

impl Launch {
    /// The LAUNCH word.
    pub fn encode(&self) -> u64 {
        let (op, wide) = match self.operation {
            Operation::Atomic { op, size } => (op as u8, if size == 8 { WIDE } else { 0 }),
            Operation::Copy => (COPY, 0),
            Operation::Gate => (GATE, 0),
        };
        let flags = wide | if self.notify { NOTIFY } else { 0 };
        u64::from(op) << 56 | u64::from(flags) << 48 | (self.cookie & COOKIE_MASK)
    }

    /// Its parts; `None` if operation or flags are unknown.
    pub fn decode(word: u64) -> Option<Launch> {
        let (op, flags) = ((word >> 56) as u8, (word >> 48) as u8);
        if flags & !(WIDE | NOTIFY) != 0 {
            return None;
        }
        let operation = match AtomicOp::from_u8(op) {
            Some(op) => Operation::Atomic { op, size: if flags & WIDE != 0 { 8 } else { 4 } },
            None if op == COPY && flags & WIDE == 0 => Operation::Copy,
            None if op == GATE && flags & WIDE == 0 => Operation::Gate,
            None => return None,
        };
        Some(Launch { operation, notify: flags & NOTIFY != 0, cookie: word & COOKIE_MASK })
    }
}

const COOKIE_MASK: u64 = (1 << COOKIE_BITS) - 1;

/// The data of an 8-byte store to the argument aperture: `context << 56 | slot << 50 | which << 48 | key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Argument {
    /// The context, 0 to 255.
    pub context: u8,
    /// Its slot, 0 to 63.
    pub slot: u8,
    /// Which argument of the operation: 0 or 1 (2 and 3 are refused).
    pub which: u8,
    /// The context's key, 48 bits.
    pub key: u64,
}

impl Argument {
    /// The word.
    pub fn encode(&self) -> u64 {
        let place = u64::from(self.slot & 63) << 2 | u64::from(self.which & 3);
        u64::from(self.context) << 56 | place << KEY_BITS | (self.key & ((1 << KEY_BITS) - 1))
    }

    /// Its parts.
    pub fn decode(word: u64) -> Argument {
        Argument {
            context: (word >> 56) as u8,
            slot: (word >> 50) as u8 & 63,
            which: (word >> 48) as u8 & 3,
            key: word & ((1 << KEY_BITS) - 1),
        }
    }
}

/// Bits of the byte offset in [`NumberedArgument`].
pub const ARGUMENT_OFFSET_BITS: u32 = 41;

/// The data of an 8-byte store to ARGUMENT: `slot << 58 | which << 57 | import << 41 | offset`. No key is needed: the
/// page says whose context it is, and the import must be of that context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NumberedArgument {
    /// The slot of the context, 0 to 63.
    pub slot: u8,
    /// Which argument of the operation: 0 or 1.
    pub which: u8,
    /// The number of the import.
    pub import: u16,
    /// Byte offset in the import, 41 bits.
    pub offset: u64,
}

impl NumberedArgument {
    /// The word.
    pub fn encode(&self) -> u64 {
        let place = u64::from(self.slot & 63) << 1 | u64::from(self.which & 1);
        let offset = self.offset & ((1 << ARGUMENT_OFFSET_BITS) - 1);
        place << 57 | u64::from(self.import) << ARGUMENT_OFFSET_BITS | offset
    }

    /// Its parts.
    pub fn decode(word: u64) -> NumberedArgument {
        NumberedArgument {
            slot: (word >> 58) as u8,
            which: (word >> 57) as u8 & 1,
            import: (word >> ARGUMENT_OFFSET_BITS) as u16,
            offset: word & ((1 << ARGUMENT_OFFSET_BITS) - 1),
        }
    }
}

/// The data of an 8-byte store to QUEUE_ARM: `(count - 1) << 56 | page << 32 | seen`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueArm {
    /// The number of elements, from the next one on, that post an event each: 1 to 256.
    pub count: u16,
    /// The queue's export page, 24 bits.
    pub page: u32,
    /// Word 0 of its first buffer as the consumer saw it.
    pub seen: u32,
}

impl QueueArm {
    /// The word.
    pub fn encode(&self) -> u64 {
        let more = u64::from(self.count.clamp(1, 256) - 1);
        more << 56 | u64::from(self.page & 0x00ff_ffff) << 32 | u64::from(self.seen)
    }

    /// Its parts.
    pub fn decode(word: u64) -> QueueArm {
        let (count, page) = ((word >> 56) as u16 + 1, (word >> 32) as u32 & 0x00ff_ffff);
        QueueArm { count, page, seen: word as u32 }
    }
}

/// An 8-byte store to a WORD_ARM: the word in the register's number and the upper bits of the data, and what was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WordArm {
    /// The export page, 24 bits.
    pub page: u32,
    /// Which 8-byte word of it, 0 to 8191.
    pub word: u16,
    /// [`WordArm::fold`] of the word as the process saw it.
    pub seen: u32,
}

/// Bytes of the context page that are WORD_ARM registers.
pub const WORD_ARM_SIZE: u64 = crate::UNIT / 8 / 256 * 8;
const _: () = assert!(WORD_ARM + WORD_ARM_SIZE <= FETCH);

impl WordArm {
    /// What an arm says of the value of a word: values that follow one another, as counters, tickets and numbers of
    /// messages do, differ in it.
    pub fn fold(word: u64) -> u32 {
        (word >> 32) as u32 ^ word as u32
    }

    /// Offset in the context page, and the data.
    pub fn encode(&self) -> (u64, u64) {
        let data = u64::from(self.word & 0xff) << 56 | u64::from(self.page & 0x00ff_ffff) << 32 | u64::from(self.seen);
        (WORD_ARM + u64::from(self.word >> 8) * 8, data)
    }

    /// Its parts; `None` if the offset is that of no WORD_ARM.
    pub fn decode(offset: u64, data: u64) -> Option<WordArm> {
        let register = offset.checked_sub(WORD_ARM).filter(|at| *at < WORD_ARM_SIZE && at % 8 == 0)? / 8;
        let word = (register as u16) << 8 | (data >> 56) as u16;
        Some(WordArm { page: (data >> 32) as u32 & 0x00ff_ffff, word, seen: data as u32 })
    }
}

c_struct! {
    LITTLE {}
    /// The status page: written by the HIB, one 8-byte word at a time with release ordering, read by the process.
    pub struct StatusPage as "tg_status_page" {
        /// Last completion of each slot: `status << 48 | cookie`.
        pub done: [u64; 64],
        /// Number of errors latched on imports of this context.
        pub errors: u64,
        /// The driver counts here when registrations of this context may no longer be of their process's memory.
        pub revoked: u64,
        /// Zero.
        pub reserved: [u64; 62],
        /// Previous value of the word of each slot's last atomic; written before `done`.
        pub value: [u64; 64],
        /// Per import of replicated pages (tg_admin_command.taken): stores of it that are in this node's copy.
        pub taken: [u64; 256],
        /// Zero.
        pub reserved2: [u64; 64],
    }
}

const _: () = assert!(size_of::<StatusPage>() == STATUS_SIZE as usize);
/// Offset of `errors` in the status page.
pub const ERRORS_OFFSET: u64 = core::mem::offset_of!(StatusPage, errors) as u64;
/// Offset of `revoked` in the status page.
pub const REVOKED_OFFSET: u64 = core::mem::offset_of!(StatusPage, revoked) as u64;
/// Offset of `taken[0]` in the status page.
pub const TAKEN_OFFSET: u64 = core::mem::offset_of!(StatusPage, taken) as u64;
/// Number of words in `taken`.
pub const TAKEN_WORDS: u32 = 256;
/// Offset of `value[0]` in the status page.
pub const VALUE_OFFSET: u64 = core::mem::offset_of!(StatusPage, value) as u64;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn words_survive_their_coding(word: u64) {
            prop_assert_eq!(Argument::decode(word).encode(), word);
            prop_assert_eq!(NumberedArgument::decode(word).encode(), word);
            prop_assert_eq!(QueueArm::decode(word).encode(), word);
            for offset in 0..crate::UNIT {
                match WordArm::decode(offset, word) {
                    Some(arm) => prop_assert_eq!(arm.encode(), (offset, word)),
                    None => prop_assert!(offset % 8 != 0 || !(WORD_ARM..WORD_ARM + WORD_ARM_SIZE).contains(&offset)),
                }
            }
            if let Some(launch) = Launch::decode(word) {
                prop_assert_eq!(launch.encode(), word);
            }
        }
    }

    #[test]
    fn values_that_follow_one_another_fold_to_different_ones() {
        for (word, step) in [(0, 1), (u64::from(u32::MAX), 1), (3, 1 << 16), (u64::from(u32::MAX) << 4 | 248, 1 << 32)]
        {
            assert_ne!(WordArm::fold(word), WordArm::fold(word + step), "{word:#x}");
        }
    }

    #[test]
    fn unknown_operations_and_flags_are_refused() {
        for word in [0, 6 << 56, 1 << 56 | 4 << 48, 4 << 56 | 1 << 48, 5 << 56 | 1 << 48, u64::MAX] {
            assert_eq!(Launch::decode(word), None, "{word:#x}");
        }
    }
}
