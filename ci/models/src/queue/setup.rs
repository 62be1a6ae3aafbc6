// SPDX-License-Identifier: MIT OR Apache-2.0
//! The setup of a check.

use super::SENDERS;
use crate::buffers::Reading;
use crate::consumer::Most;
use crate::handler::Variant;
use crate::memory::WORDS;
use std::fmt;
use telegraphos::queue::dequeue::Literal;
use telegraphos_device_core::Bug;

/// What a consumer does to know of wake-ups that its board still holds (the library's `queue/arms.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    /// Each element that it takes is one less, and none is left once another consumer was inside.
    Sound,
    /// What it takes does not count.
    Uncounted,
    /// What others take is not noticed.
    Unshared,
}

/// The size of a model, its properties, and its faults.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Number of buffers that can be linked.
    pub(crate) quota: u32,
    /// Elements that have passed through the queue before: determines the initial head and tail.
    pub(crate) gone: u32,
    /// Elements that are in the queue already.
    pub(crate) fill: u32,
    /// Elements that each sender will send, and how many of them may be unacknowledged.
    pub(crate) elements: [u32; SENDERS],
    pub(crate) hold: u32,
    pub(crate) consumers: usize,
    pub(crate) most: Most,
    /// The elements for which a consumer arms the queue at a time, and how it knows whether it needs to.
    pub(crate) wakes: u16,
    pub(crate) counting: Counting,
    /// A consumer stops after this many elements; `None`: it waits for more forever.
    pub(crate) takes: Option<u32>,
    /// The number of kills of a consumer, and whether it restarts.
    pub(crate) kills: u8,
    pub(crate) restarts: bool,
    /// The number of times that a consumer is BUSY for too long (E13).
    pub(crate) bounds: u8,
    pub(crate) literal: Literal,
    pub(crate) reading: Reading,
    pub(crate) bug: Option<Bug>,
    /// With [`Variant::TwoWords`] BUSY and FULL are two words, read and written by plain accesses (SPEC item 12 on
    /// several processors, E11).
    pub(crate) handler: Variant,
}

impl Setup {
    /// One consumer of a queue with a quota of 1, without elements.
    pub(crate) const SMALL: Setup = Setup {
        quota: 1,
        gone: 0,
        fill: 0,
        elements: [0; SENDERS],
        hold: 2,
        consumers: 1,
        most: Most::One,
        wakes: 1,
        counting: Counting::Sound,
        takes: None,
        kills: 0,
        restarts: true,
        bounds: 0,
        literal: Literal::Sound,
        reading: Reading::Sound,
        bug: None,
        handler: Variant::Sound,
    };
}

impl Setup {
    /// BUSY and FULL are two words.
    pub(super) fn has_two_words(&self) -> bool {
        self.handler == Variant::TwoWords
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Setup { quota, gone, fill, elements: [a, b], hold, consumers, most, kills, restarts, .. } = self;
        write!(
            f,
            "quota {quota}, {fill} elements in it at {}, then {a} + {b} (hold {hold}), ",
            3 + gone % (WORDS - 3)
        )?;
        write!(f, "{consumers} consumer{}", if *consumers == 1 { "" } else { "s" })?;
        match most {
            Most::One => write!(f, " taking one")?,
            Most::All => write!(f, " taking all")?,
        }
        if self.wakes != 1 {
            write!(f, ", arming for {}", self.wakes)?;
        }
        if self.counting != Counting::Sound {
            write!(f, ", counting {:?}", self.counting)?;
        }
        if let Some(takes) = self.takes {
            write!(f, ", taking {takes}")?;
        }
        match (kills, restarts) {
            (0, _) => {}
            (n, true) => write!(f, ", {n} killed and restarted")?,
            (n, false) => write!(f, ", {n} killed for good")?,
        }
        if self.bounds > 0 {
            write!(f, ", inside for too long {}x", self.bounds)?;
        }
        if self.literal != Literal::Sound {
            write!(f, ", dequeue {:?}", self.literal)?;
        }
        if self.reading != Reading::Sound {
            write!(f, ", driver {:?}", self.reading)?;
        }
        if let Some(bug) = self.bug {
            write!(f, ", board {bug:?}")?;
        }
        if self.handler != Variant::Sound { write!(f, ", handler {:?}", self.handler) } else { Ok(()) }
    }
}
