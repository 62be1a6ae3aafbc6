// SPDX-License-Identifier: MIT OR Apache-2.0
//! Page access counters: how often a remote page was read and written (s1, SPEC item 22).

use crate::bell::{listen, new_eventfd};
use crate::error::{Error, Result, status_of};
use crate::node::Inner;
use crate::remote::Remote;
use crate::sys;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use telegraphos_wire::{event, uapi};

/// The driver is asked this often whether the board is still there.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Two counters armed for one page of an import, for reads and for writes; disarmed on drop.
///
/// Each access of *this node* to the page, through whichever import, decrements its counter unless that is 0; the step
/// from 1 to 0 is one event. Large values make a profile, small ones an alarm for replication.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// use std::time::Duration;
/// # let table = node.import(3, "table").open()?;
/// let counter = table.arm_counter(0, 1000, 0)?; // the 1000th load from its first page is an event
/// if counter.wait(Some(Duration::from_secs(1)))? {
///     println!("a page that is worth a copy of its own");
/// }
/// counter.disarm()?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct PageCounter {
    inner: Arc<Inner>,
    number: u32,
    event: OwnedFd,
    label: Arc<str>,
}

/// What page access counters say.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// # let table = node.import(3, "table").open()?;
/// let counter = table.arm_counter(0, u64::MAX, u64::MAX)?; // a profile: no event
/// let count = counter.read()?;
/// println!("{} loads, {} stores", u64::MAX - count.reads, u64::MAX - count.writes);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Reads left until the event; 0 if it has come, or none are counted.
    pub reads: u64,
    /// Writes left until the event; 0 if it has come, or none are counted.
    pub writes: u64,
    /// Whether the reads have gone from 1 to 0.
    pub reads_fired: bool,
    /// Whether the writes have gone from 1 to 0.
    pub writes_fired: bool,
}

impl Remote {
    /// Arms counters for page `page` of this import, in units of [`Info::unit`](crate::Info::unit) (64 KiB) from 0:
    /// events at the `reads`-th load (or block copied from there) and at the `writes`-th store (or atomic, or block
    /// copied to there); 0 counts none.
    ///
    /// Fails with [`Error::Argument`] for a page beyond the segment or when both are 0, and with
    /// [`Status::NoSpace`](crate::Status::NoSpace) when all of the board's counters are armed.
    pub fn arm_counter(&self, page: u32, reads: u64, writes: u64) -> Result<PageCounter> {
        let pages = self.size().div_ceil(self.inner.unit);
        if u64::from(page) >= pages {
            return Err(Error::Argument {
                what: "the page of an access counter",
                value: page.to_string(),
                expected: format!("below {pages}, the units of {}", self.label),
            });
        }
        if reads == 0 && writes == 0 {
            return Err(Error::Argument {
                what: "the reads and writes of an access counter",
                value: "0 and 0".into(),
                expected: "one of them at least 1".into(),
            });
        }
        let event = new_eventfd()?;
        let mut counter = uapi::Counter {
            handle: self.handle(),
            page,
            eventfd: event.as_raw_fd(),
            reads,
            writes,
            ..uapi::Counter::default()
        };
        sys::counter_arm(self.inner.fd(), &mut counter).map_err(|errno| {
            let what = format!("access counters of {}", self.label);
            match status_of(errno) {
                Some(status) => Error::Failed { what, status },
                None => self.inner.error(&format!("arming {what}"), errno),
            }
        })?;
        Ok(PageCounter { inner: self.inner.clone(), number: counter.counter, event, label: self.label.clone() })
    }
}

impl PageCounter {
    /// For tests of what does not reach the board: it goes off when told.
    #[cfg(test)]
    pub(crate) fn without_board(inner: &Arc<Inner>) -> PageCounter {
        PageCounter { inner: inner.clone(), number: u32::MAX, event: new_eventfd().unwrap(), label: "x".into() }
    }

    /// What the driver does when it goes off.
    #[cfg(test)]
    pub(crate) fn fire(&self) {
        rustix::io::write(&self.event, &1u64.to_ne_bytes()).unwrap();
    }

    /// What is left, and what has gone off. A system call.
    pub fn read(&self) -> Result<Count> {
        let mut counter = uapi::Counter { counter: self.number, ..uapi::Counter::default() };
        sys::counter_read(self.inner.fd(), &mut counter)
            .map_err(|errno| self.inner.error(&format!("reading the access counters of {}", self.label), errno))?;
        let fired = |bit: u64| u64::from(counter.fired) & bit != 0;
        Ok(Count {
            reads: counter.reads,
            writes: counter.writes,
            reads_fired: fired(event::COUNTER_READS),
            writes_fired: fired(event::COUNTER_WRITES),
        })
    }

    /// Waits for an event that was not yet waited for: true, or false when `timeout` (`None`: for ever) has passed.
    /// [`PageCounter::read`] tells which.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        loop {
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if listen(self.event.as_fd(), left.unwrap_or(CHECK_EVERY).min(CHECK_EVERY))? {
                return Ok(true);
            }
            if left == Some(Duration::ZERO) {
                return Ok(false);
            }
            self.read()?;
        }
    }

    /// Disarms them. Dropping does the same, without telling of errors.
    pub fn disarm(mut self) -> Result<()> {
        self.shut()
    }

    fn shut(&mut self) -> Result<()> {
        if self.number == u32::MAX {
            return Ok(());
        }
        let number = std::mem::replace(&mut self.number, u32::MAX);
        let mut counter = uapi::Counter { counter: number, ..uapi::Counter::default() };
        sys::counter_disarm(self.inner.fd(), &mut counter)
            .map_err(|errno| self.inner.error(&format!("disarming the access counters of {}", self.label), errno))
    }
}

/// Readable when there is an event that was not waited for: an eventfd, for a program's own poll.
impl AsFd for PageCounter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Drop for PageCounter {
    fn drop(&mut self) {
        match self.shut() {
            Ok(()) | Err(Error::Gone { .. }) => {}
            Err(error) => log::warn!("{error}"),
        }
    }
}
