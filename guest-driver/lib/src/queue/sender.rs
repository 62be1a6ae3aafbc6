// SPDX-License-Identifier: MIT OR Apache-2.0
//! A queue of another node.

use super::receiver::Queue;
use crate::access::{Instructions, Word};
use crate::access_policy::Secret;
use crate::error::{Error, Object, Result};
use crate::node::Node;
use crate::remote::{ImportBuilder, Remote, State};
use crate::sys::Mapping;
use std::time::Duration;
use telegraphos_wire::{NodeId, Rights, Status, uapi};

/// How to import a queue; made by [`Queue::import`](crate::Queue::import).
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// use telegraphos::Queue;
///
/// let work = Queue::import(&node, 3, "work").secret(*b"0123456789abcdef").open()?;
/// println!("words of {} bytes", work.width());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is imported before open()"]
pub struct QueueImportBuilder {
    import: ImportBuilder,
}

impl Queue {
    /// Imports the queue `name` of node `id`, which may be this node, to append to it.
    pub fn import(node: &Node, id: NodeId, name: &str) -> QueueImportBuilder {
        let import = ImportBuilder::new(&node.context, Object::Queue, id, name).rights(Rights::ENQUEUE);
        QueueImportBuilder { import }
    }
}

impl QueueImportBuilder {
    /// The queue's secret.
    pub fn secret(self, secret: Secret) -> Self {
        QueueImportBuilder { import: self.import.secret(secret) }
    }

    /// An import that raises no SIGBUS when its owner is gone, see [`ImportBuilder::soft`]: elements that are enqueued
    /// then reach no queue.
    pub fn soft(self) -> Self {
        QueueImportBuilder { import: self.import.soft() }
    }

    /// Requests the import from the other node's board, which reserves hold slots, and maps the queue's enqueue
    /// aperture. Fails with [`Status::NoHold`] when that node has none left.
    pub fn open(self) -> Result<RemoteQueue> {
        let (remote, answer) = self.import.import()?;
        if !matches!(answer.width, 4 | 8) {
            return Err(Error::Failed { what: remote.what(), status: Status::NotQueue });
        }
        let offset = uapi::mmap_offset(uapi::MMAP_ENQUEUE, remote.handle());
        // Only its first word is used.
        let aperture = remote.handle.map(offset, u64::from(answer.width), Rights::WRITE)?;
        Ok(RemoteQueue { aperture, remote, width: answer.width })
    }
}

/// A notification queue of another node, or of this one, imported; closed on drop, without waiting: elements that were
/// enqueued still arrive, and [`RemoteQueue::quiet`] before it reports failures.
///
/// An import of a queue allows nothing but appending: its elements, head and tail cannot be accessed. Appending to a
/// dead one raises SIGBUS, see the crate's documentation, unless it is [soft](QueueImportBuilder::soft).
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// use telegraphos::Queue;
///
/// let work = Queue::import(&node, 3, "work").open()?;
/// work.enqueue(42)?; // one store instruction; never fails for lack of room
/// work.quiet()?; // it is in the queue
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct RemoteQueue {
    /// Unmapped before the import is closed.
    aperture: Mapping,
    pub(crate) remote: Remote,
    width: u32,
}

impl RemoteQueue {
    /// The node it belongs to.
    pub fn node(&self) -> NodeId {
        self.remote.node()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.remote.name()
    }

    /// Bytes of its words, 4 or 8: the size of an element.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// The driver's handle, which is the number of the import.
    pub fn handle(&self) -> u32 {
        self.remote.handle()
    }

    /// Where the queue's first word lies in its enqueue aperture, for programs that make stores of their own: one
    /// aligned scalar store of [`RemoteQueue::width`] bytes is one element. Valid until the import is dropped.
    pub fn as_ptr(&self) -> *mut u8 {
        self.aperture.at()
    }

    #[cold]
    fn too_wide(&self, value: u64) -> Error {
        let expected = "at most 0xffffffff, or a queue made with .wide()";
        Error::argument("an element of a queue of 4-byte words", format!("{value:#x}"), expected)
    }

    /// Fails if an element does not fit the queue's words.
    #[inline(always)]
    fn check(&self, value: u64) -> Result<()> {
        if self.width == 4 && value > u64::from(u32::MAX) {
            return Err(self.too_wide(value));
        }
        Ok(())
    }

    /// Exactly one store instruction.
    #[inline(always)]
    fn store(&self, value: u64) {
        let at = self.as_ptr();
        // SAFETY: the aperture is mapped for stores, and begins at a page; the width is that of the queue.
        unsafe {
            match self.width {
                4 => u32::window_store(at.cast(), value as u32),
                _ => u64::window_store(at.cast(), value),
            }
        }
    }

    /// Appends `value` with one store instruction, after all earlier puts of this thread to that node (SPEC I8).
    /// Returns before the other node has it; it is never refused for lack of room.
    ///
    /// When the receiver does not keep up, the element waits, in the receiver's node and then in this one; in the end
    /// the next enqueue waits in a page fault, as every store to a congested import does.
    #[inline]
    pub fn enqueue(&self, value: u64) -> Result<()> {
        self.check(value)?;
        self.store(value);
        Ok(())
    }

    /// Stores `data` from `offset` of `segment` on, then appends `value`, usually the place of the data: a consumer
    /// that pops it sees all the data. Both belong to the same node, since only towards one node stores are in order.
    ///
    /// # Data that is lost The two are different imports, and a lost store of the one does not stop the other: the
    /// receiver would be notified of a message that is not there. So the data's import is checked between the two (one
    /// load from memory), and the element is not sent while that import has an error: [`Error::Failed`], until
    /// [`Remote::acknowledge`]. A store may still be lost after the check, when its node refuses it or fails;
    /// [`Remote::quiet`] reports that. A sender that must detect it before the receiver is notified calls
    /// [`Remote::quiet`] between a put and the enqueue, at the cost of a round trip; or receivers check a number within
    /// the message.
    pub fn put_notify<T: Word>(&self, segment: &Remote, offset: u64, data: &[T], value: u64) -> Result<()> {
        if segment.node() != self.node() {
            let (node, label) = (self.node(), &self.remote.handle.label);
            let expected = format!("{node}, the node of {label}: only towards one node are stores in order");
            return Err(Error::argument("the node of the data", segment.node(), expected));
        }
        self.check(value)?;
        segment.put_slice(offset, data)?;
        segment.check_sound()?;
        self.store(value);
        Ok(())
    }

    /// Returns when every earlier element has been appended (SPEC E19). An element that waits for room has not been.
    ///
    /// Fails with [`Error::Failed`] while an error is latched: elements were lost.
    pub fn quiet(&self) -> Result<()> {
        self.remote.quiet()
    }

    /// [`RemoteQueue::quiet`] that fails after `timeout` with [`Error::Pending`]; it may be called again.
    pub fn quiet_timeout(&self, timeout: Duration) -> Result<()> {
        self.remote.quiet_timeout(timeout)
    }

    /// Its state. A system call.
    pub fn state(&self) -> Result<State> {
        self.remote.state()
    }

    /// Clears the latched error and accepts elements again after a cut. Lost elements stay lost.
    pub fn acknowledge(&self) -> Result<()> {
        self.remote.acknowledge()
    }

    /// Closes the import. Elements that were enqueued still arrive; [`RemoteQueue::quiet`] before it reports failures.
    /// Dropping does the same, and only logs errors.
    pub fn close(self) -> Result<()> {
        let RemoteQueue { aperture, remote, .. } = self;
        drop(aperture);
        remote.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access_policy::{FULL, READ_WRITE};
    use crate::context::Context;
    use std::sync::Arc;

    impl RemoteQueue {
        /// For tests of what does not reach the board.
        fn without_board(remote: Remote, width: u32) -> RemoteQueue {
            RemoteQueue { aperture: Mapping::anonymous(4096), remote, width }
        }
    }

    fn queue(context: &Arc<Context>, width: u32) -> RemoteQueue {
        RemoteQueue::without_board(Remote::without_board(context, 9, 3, Rights::ENQUEUE), width)
    }

    fn words(queue: &RemoteQueue) -> [u64; 2] {
        // SAFETY: the test's own page.
        unsafe { [0, 8].map(|at| queue.as_ptr().add(at).cast::<u64>().read_volatile()) }
    }

    #[test]
    fn an_element_is_one_word_of_the_queues_width() {
        let context = Arc::new(Context::without_board());
        let narrow = queue(&context, 4);
        narrow.enqueue(u64::MAX >> 32).unwrap();
        assert_eq!(words(&narrow), [u64::MAX >> 32, 0]);
        let error = narrow.enqueue(1 << 32).unwrap_err().to_string();
        assert!(error.contains("0x100000000") && error.contains("wide"), "{error}");
        assert_eq!(words(&narrow), [u64::MAX >> 32, 0]);
        let wide = queue(&context, 8);
        wide.enqueue(u64::MAX - 1).unwrap();
        assert_eq!(words(&wide), [u64::MAX - 1, 0]);
    }

    #[test]
    fn put_notify_stores_the_data_first_and_to_the_same_node() {
        let context = Arc::new(Context::without_board());
        let (queue, data) = (queue(&context, 8), Remote::without_board(&context, 4, 3, READ_WRITE));
        queue.put_notify(&data, 16, &[7u32, 8], 16).unwrap();
        assert_eq!((data.get32(16).unwrap(), data.get32(20).unwrap()), (7, 8));
        assert_eq!(words(&queue), [16, 0]);
        // Nothing is sent unless all of it can be.
        assert!(matches!(queue.put_notify(&data, 4000, &[1u8], 1), Err(Error::Bounds { .. })));
        let elsewhere = Remote::without_board(&context, 5, 2, FULL);
        let error = queue.put_notify(&elsewhere, 0, &[1u8], 1).unwrap_err().to_string();
        assert!(error.starts_with("the node of the data is 2: expected 3"), "{error}");
        assert_eq!(words(&queue), [16, 0]);
    }

    /// The context has had an error since the last check: the driver must say which import has it. Here no driver
    /// answers.
    #[test]
    fn put_notify_does_not_announce_data_that_may_be_lost() {
        let context = Arc::new(Context::without_board());
        let (queue, data) = (queue(&context, 8), Remote::without_board(&context, 4, 3, READ_WRITE));
        queue.put_notify(&data, 0, &[1u64], 1).unwrap();
        context.slots.count_error();
        assert!(queue.put_notify(&data, 0, &[2u64], 2).is_err());
        assert_eq!(words(&queue), [1, 0]);
    }
}
