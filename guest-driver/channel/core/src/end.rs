// SPDX-License-Identifier: MIT OR Apache-2.0
//! One end of a channel: both directions.

#[cfg(feature = "bugs")]
use crate::bugs::Bug;
use crate::error::{PutError, Violation};
use crate::layout::{CONSUMED, Layout};
use crate::memory::{Far, Near};
use crate::receiver::{Look, Receiver};
use crate::sender::Sender;
use crate::sleep::{Announce, RECORDS, ROOM, Sleeper, Waker};

/// What the caller has to do after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "the other end may sleep"]
pub enum Progress {
    /// Nothing.
    Done,
    /// To wake the other end, by a way on which the wake-up does not pass what was stored.
    Wake,
}

/// One end of a channel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct End {
    sender: Sender,
    receiver: Receiver,
    sleeper: Sleeper,
    waker: Waker,
    /// Whether this end says that it sleeps: the other one looks, or always wakes.
    says: bool,
    /// The first thing that the other end must not have stored: nothing is loaded after it.
    broken: Option<Violation>,
}

impl End {
    /// An end over zeroed memory. `far` is the layout of the other end's memory, and `announce` how this end learns of
    /// its sleep; `near` and `says` are the same of this end: whether the other one does not rely on arms alone.
    pub fn new(near: Layout, far: Layout, announce: Announce, says: bool) -> End {
        let (sender, receiver) = (Sender::new(far), Receiver::new(near));
        End { sender, receiver, sleeper: Sleeper::new(), waker: Waker::new(announce), says, broken: None }
    }

    /// The same with a deliberate bug.
    #[cfg(feature = "bugs")]
    #[must_use]
    pub fn with_bug(mut self, bug: Option<Bug>) -> End {
        (self.sender.bug, self.receiver.bug, self.sleeper.bug, self.waker.bug) = (bug, bug, bug, bug);
        self
    }

    /// From now on this end learns of the other's sleep this way: where memory that was in common is reached through
    /// boards for a while, [`Announce::Always`].
    pub fn set_announce(&mut self, announce: Announce) {
        self.waker.announce = announce;
    }

    /// Bytes of the longest record that this end may put.
    pub fn max_record(&self) -> u64 {
        self.sender.max_record()
    }

    fn progress(&mut self, near: &impl Near, far: &mut impl Far, what: u64) -> Progress {
        if self.waker.must_wake(near, far, what) { Progress::Wake } else { Progress::Done }
    }

    /// Puts a record of these parts, one behind the other, of which all but the last have a multiple of 8 bytes. `None`
    /// while the ring has no room for it. Nothing was stored if it fails; a [`Violation`] is for good.
    pub fn put(
        &mut self,
        near: &impl Near,
        far: &mut impl Far,
        kind: u8,
        parts: &[&[u8]],
    ) -> Result<Option<Progress>, PutError> {
        if let Some(violation) = self.broken {
            return Err(violation.into());
        }
        let put = self.sender.put(near, far, kind, parts).inspect_err(|error| {
            if let PutError::Violation(violation) = error {
                self.broken = Some(*violation);
            }
        })?;
        Ok(put.then(|| self.progress(near, far, RECORDS)))
    }

    /// What there is to take. The next record is the same until it is [taken](End::take), and a [`Violation`] for good.
    pub fn look(&mut self, near: &impl Near) -> Result<Look, Violation> {
        match self.broken {
            Some(violation) => Err(violation),
            None => self.receiver.look(near).inspect_err(|violation| self.broken = Some(*violation)),
        }
    }

    /// Takes the record that [`End::look`] has found, of which as many bytes as fit come into `to`: the rest is gone.
    pub fn take(&mut self, near: &impl Near, far: &mut impl Far, to: &mut [u8]) -> Progress {
        match self.receiver.take(near, far, to) {
            true => self.progress(near, far, ROOM),
            false => Progress::Done,
        }
    }

    /// Ends this end's direction: the other one finds the end behind the last record. Once is enough.
    pub fn end(&mut self, near: &impl Near, far: &mut impl Far) -> Progress {
        self.sender.end(far);
        self.progress(near, far, RECORDS)
    }

    /// Before this end sleeps for `what` ([`RECORDS`], [`ROOM`] or both): it must look once more after this, and sleep
    /// only if there is nothing. A wake-up that comes after this call must end that sleep.
    pub fn begin_sleep(&mut self, far: &mut impl Far, what: u64) {
        if self.says {
            self.sleeper.begin(far, what);
        }
    }

    /// After that sleep, or instead of it.
    pub fn end_sleep(&mut self, far: &mut impl Far) {
        if self.says {
            self.sleeper.end(far);
        }
    }

    /// The words of this end's memory of which one changes before there is `what` this end waits for, and what each is
    /// until then: for a board that is armed ([`Announce::Armed`]).
    pub fn waits_for(&self, what: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
        let records = self.receiver.waits_for().filter(move |_| what & RECORDS != 0).map(|at| (at, 0));
        records.chain((what & ROOM != 0).then_some((CONSUMED, self.sender.consumed())))
    }
}
