// SPDX-License-Identifier: MIT OR Apache-2.0
//! Page access counters: how often a remote page was read and written (s1, SPEC item 22).

use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::eventfd::{new_eventfd, wait_readable};
use crate::handle::{End, Handle};
use crate::remote::Remote;
use crate::sys;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use telegraphos_wire::{event, uapi};

/// How often a wait checks with the driver that the board is still there.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// A pair of counters armed for one page of an import, for reads and for writes; disarmed on drop.
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
///     println!("this page is worth a local copy");
/// }
/// counter.disarm()?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct PageCounter {
    handle: Handle,
    event: OwnedFd,
}

/// Disarms them.
const END: End = (disarm, "disarming the access counters of");

fn disarm(fd: BorrowedFd<'_>, handle: &mut uapi::Handle) -> rustix::io::Result<()> {
    sys::counter_disarm(fd, &mut uapi::Counter { counter: handle.handle, ..uapi::Counter::default() })
}

/// The values of page access counters.
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
        let Handle { context, label, .. } = &self.handle;
        let pages = self.size().div_ceil(context.unit);
        if u64::from(page) >= pages {
            let expected = format!("below {pages}, the units of {label}");
            return Err(Error::argument("the page of an access counter", page, expected));
        }
        if reads == 0 && writes == 0 {
            let what = "the reads and writes of an access counter";
            return Err(Error::argument(what, "0 and 0", "one of them at least 1"));
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
        sys::counter_arm(context.device.fd(), &mut counter)
            .map_err(|errno| context.device.refusal(format!("arming access counters of {label}"), errno))?;
        Ok(PageCounter { handle: Handle::new(context.clone(), counter.counter, label.clone(), Some(END)), event })
    }
}

impl PageCounter {
    /// For tests of what does not reach the board: its event comes from [`PageCounter::fire`].
    #[cfg(test)]
    pub(crate) fn without_board(context: &std::sync::Arc<crate::context::Context>) -> PageCounter {
        PageCounter { handle: Handle::new(context.clone(), 0, "x", None), event: new_eventfd().unwrap() }
    }

    /// Signals the event, as the driver does.
    #[cfg(test)]
    pub(crate) fn fire(&self) {
        rustix::io::write(&self.event, &1u64.to_ne_bytes()).unwrap();
    }

    /// The present values. A system call.
    pub fn read(&self) -> Result<Count> {
        let mut counter = uapi::Counter { counter: self.handle.number, ..uapi::Counter::default() };
        self.handle.call(sys::counter_read, &mut counter, "reading the access counters of")?;
        let fired = |bit: u64| u64::from(counter.fired) & bit != 0;
        Ok(Count {
            reads: counter.reads,
            writes: counter.writes,
            reads_fired: fired(event::COUNTER_READS),
            writes_fired: fired(event::COUNTER_WRITES),
        })
    }

    /// Waits for an event that no earlier wait has returned: true, or false when `timeout` (`None`: for ever) has
    /// passed. [`PageCounter::read`] says which of the two counters it was.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        let backoff = Backoff::new(timeout);
        loop {
            let left = backoff.left();
            if wait_readable(self.event.as_fd(), left.unwrap_or(CHECK_EVERY).min(CHECK_EVERY))? {
                return Ok(true);
            }
            if left == Some(Duration::ZERO) {
                return Ok(false);
            }
            self.read()?;
        }
    }

    /// Disarms them. Dropping does the same, and only logs errors.
    pub fn disarm(self) -> Result<()> {
        self.handle.close()
    }
}

/// An eventfd for a program's own poll: readable when there is an event that no wait has returned.
impl AsFd for PageCounter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
