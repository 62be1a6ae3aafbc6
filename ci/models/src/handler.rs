// SPDX-License-Identifier: MIT OR Apache-2.0
//! `guest-driver/module/queue_handler.c`, the same file that the driver is built of, called step by step on memory of
//! the test.

use super::buffers::{Buffers, Raw as RawBuffers};

/// Faults of the handler: TG_HANDLER_*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Variant {
    Sound = 0,
    /// E11: it checks BUSY and sets FULL in two accesses.
    TwoWords = 1,
    /// It does not check BUSY.
    Blind = 2,
    /// It clears FULL before it sets HELD.
    HeldLate = 3,
    /// It repeats a copy that is done.
    ForgetsCopy = 4,
}

macro_rules! c_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$each:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum $name { $($(#[$each])* $variant = $value,)* }

        impl $name {
            fn of(value: u32) -> $name {
                match value {
                    $($value => $name::$variant,)*
                    _ => panic!("the C code has an unknown {} {value}", stringify!($name)),
                }
            }
        }
    };
}

c_enum! {
    /// `enum tg_stage`.
    Stage {
        Running = 0,
        /// It has stopped.
        Stopped = 1,
        /// It has, and no buffer is free.
        Held = 2,
        /// The first buffer has been copied.
        Copied = 3,
    }
}

c_enum! {
    /// `enum tg_handler_at`.
    At {
        /// Sets FULL, and checks BUSY.
        Look = 0,
        /// Sets FULL, since BUSY is set.
        Flag = 1,
        /// Copies and links.
        Copy = 2,
        /// Sets HELD, since there is no room.
        Hold = 3,
        /// Clears FULL then.
        Unfull = 4,
        /// Waits for the board to resume.
        Resume = 5,
        /// Clears FULL and HELD.
        Clear = 6,
    }
}

c_enum! {
    /// `enum tg_handler_next`.
    Next {
        /// There is another step.
        Step = 0,
        /// FULL is clear.
        Done = 1,
        /// The consumer that set BUSY handles FULL.
        Busy = 2,
        Resume = 3,
        Broken = 4,
    }
}

/// `struct tg_handler`.
#[repr(C)]
struct Raw {
    state: *mut u64,
    buffers: *mut RawBuffers,
    stage: u32,
    at: u32,
    variant: u32,
}

#[link(name = "queue_handler", kind = "static")]
unsafe extern "C" {
    fn tg_handler_stopped(handler: *mut Raw);
    fn tg_handler_begin(handler: *mut Raw);
    fn tg_handler_step(handler: *mut Raw) -> u32;
    fn tg_handler_resumed(handler: *mut Raw);
    fn tg_handler_clear_busy(handler: *mut Raw, owner: u32);
    fn tg_handler_evict(handler: *mut Raw);
}

/// What the driver keeps of a queue's handler between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Handler {
    pub(crate) stage: Stage,
    pub(crate) at: At,
}

impl Handler {
    pub(crate) const NEW: Handler = Handler { stage: Stage::Running, at: At::Look };

    fn call<T>(
        &mut self,
        state: &mut u64,
        buffers: *mut RawBuffers,
        variant: Variant,
        run: impl FnOnce(*mut Raw) -> T,
    ) -> T {
        let mut raw = Raw { state, buffers, stage: self.stage as u32, at: self.at as u32, variant: variant as u32 };
        let result = run(&mut raw);
        *self = Handler { stage: Stage::of(raw.stage), at: At::of(raw.at) };
        result
    }

    /// The board has stopped the queue.
    pub(crate) fn stopped(&mut self) {
        // SAFETY: this touches neither the word nor the buffers.
        self.call(&mut 0, std::ptr::null_mut(), Variant::Sound, |raw| unsafe { tg_handler_stopped(raw) });
    }

    pub(crate) fn begin(&mut self) {
        // SAFETY: as in `stopped`.
        self.call(&mut 0, std::ptr::null_mut(), Variant::Sound, |raw| unsafe { tg_handler_begin(raw) });
    }

    /// The next step, which is one access to `state`, or a call of the code of `buffers`.
    pub(crate) fn step(&mut self, state: &mut u64, buffers: &mut Buffers, variant: Variant) -> Next {
        // SAFETY: `with_raw` passes valid buffers, and the word outlives the call.
        Next::of(buffers.with_raw(|raw| self.call(state, raw, variant, |handler| unsafe { tg_handler_step(handler) })))
    }

    pub(crate) fn resumed(&mut self) {
        // SAFETY: as in `stopped`.
        self.call(&mut 0, std::ptr::null_mut(), Variant::Sound, |raw| unsafe { tg_handler_resumed(raw) });
    }

    /// Clears a BUSY of that owner.
    pub(crate) fn clear_busy(&mut self, state: &mut u64, owner: u32) {
        // SAFETY: this accesses only the word, which outlives the call.
        self.call(state, std::ptr::null_mut(), Variant::Sound, |raw| unsafe { tg_handler_clear_busy(raw, owner) });
    }

    /// Clears BUSY of any owner.
    pub(crate) fn evict(&mut self, state: &mut u64) {
        // SAFETY: as in `clear_busy`.
        self.call(state, std::ptr::null_mut(), Variant::Sound, |raw| unsafe { tg_handler_evict(raw) });
    }
}
