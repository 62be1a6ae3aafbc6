// SPDX-License-Identifier: MIT OR Apache-2.0
//! `guest-driver/module/queue_handler.c`, the very file that the driver is built of, called step by step on memory of
//! ours.

use super::buffers::{Buffers, Raw as RawBuffers};

/// What the handler does wrong: TG_HANDLER_*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Variant {
    /// Nothing.
    Sound = 0,
    /// E11: it looks for BUSY and sets FULL by two accesses.
    TwoWords = 1,
    /// It does not look for BUSY.
    Blind = 2,
    /// It clears FULL before it sets HELD.
    HeldLate = 3,
    /// It copies again what has been copied.
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
                    _ => panic!("the C code knows a {} {value}", stringify!($name)),
                }
            }
        }
    };
}

c_enum! {
    /// `enum tg_stage`.
    Stage {
        /// The board takes elements.
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
        /// Sets FULL, and looks whether somebody is BUSY.
        Look = 0,
        /// Sets FULL, since somebody is.
        Flag = 1,
        /// Copies and links.
        Copy = 2,
        /// Sets HELD, since there is no room.
        Hold = 3,
        /// Clears FULL then.
        Unfull = 4,
        /// Waits for the board to go on.
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
        /// FULL is left to who is BUSY.
        Busy = 2,
        /// The board is to go on.
        Resume = 3,
        /// A header is not sound.
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

    /// Begins anew.
    pub(crate) fn begin(&mut self) {
        // SAFETY: as in `stopped`.
        self.call(&mut 0, std::ptr::null_mut(), Variant::Sound, |raw| unsafe { tg_handler_begin(raw) });
    }

    /// The next step, which is one access to `state`, or a call of the code of `buffers`.
    pub(crate) fn step(&mut self, state: &mut u64, buffers: &mut Buffers, variant: Variant) -> Next {
        // SAFETY: `with_raw` passes buffers that are as they say, and the word lives until the call is over.
        Next::of(buffers.with_raw(|raw| self.call(state, raw, variant, |handler| unsafe { tg_handler_step(handler) })))
    }

    /// The board has gone on.
    pub(crate) fn resumed(&mut self) {
        // SAFETY: as in `stopped`.
        self.call(&mut 0, std::ptr::null_mut(), Variant::Sound, |raw| unsafe { tg_handler_resumed(raw) });
    }

    /// Clears a BUSY of that owner.
    pub(crate) fn clear_busy(&mut self, state: &mut u64, owner: u32) {
        // SAFETY: this touches the word alone, which lives until the call is over.
        self.call(state, std::ptr::null_mut(), Variant::Sound, |raw| unsafe { tg_handler_clear_busy(raw, owner) });
    }

    /// Clears BUSY, whoever has set it.
    pub(crate) fn evict(&mut self, state: &mut u64) {
        // SAFETY: as in `clear_busy`.
        self.call(state, std::ptr::null_mut(), Variant::Sound, |raw| unsafe { tg_handler_evict(raw) });
    }
}
