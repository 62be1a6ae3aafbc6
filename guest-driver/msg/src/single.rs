// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asynchronous messages with a single buffer (s2; SPEC item 34).

use crate::error::{Error, Result};
use crate::handle::{Ended, Handle};
use crate::memory::Memory;
use crate::thread::Thread;
use telegraphos_msg_core::{Pattern, Received};

/// One buffer of a thread, into which messages come while it does something else: one at a time, so that a second
/// sender waits until the first one's message has been used (SPEC item 34).
///
/// The senders' part is [`Thread::send`]. What has no such limit is [`Thread::send_copy`], at the sender's cost.
///
/// ```no_run
/// # use telegraphos_msg::{Config, Messages, Pattern, SingleBuffer};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let messages = Messages::open(telegraphos::Node::open()?, Config::default())?;
/// # let thread = messages.thread(1)?;
/// let mut buffer = SingleBuffer::open(&thread, Pattern::default(), 4096)?;
/// // ... the first message comes meanwhile, and its sender continues
/// let bytes = buffer.next(|message, bytes| bytes[..message.length as usize].to_vec())?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct SingleBuffer<'a> {
    thread: &'a Thread<'a>,
    pattern: Pattern,
    /// There is one, unless it could not be made.
    handle: Option<Handle>,
}

impl<'a> SingleBuffer<'a> {
    /// A buffer for one message that the pattern accepts.
    pub fn open(thread: &'a Thread<'a>, pattern: Pattern, capacity: usize) -> Result<SingleBuffer<'a>> {
        let handle = Some(thread.receive_copy(pattern, capacity)?);
        Ok(SingleBuffer { thread, pattern, handle })
    }

    /// Whether there is a message. Does not wait.
    pub fn test(&self) -> bool {
        self.handle.as_ref().is_some_and(Handle::test)
    }

    /// Waits for the message, and uses it and the bytes of it that there was room for. Then the buffer is there for
    /// the next one.
    ///
    /// # Errors
    ///
    /// Why there is no message; nor will there be one after [`Error::Closed`].
    pub fn next<R>(&mut self, with: impl FnOnce(&Received, &[u8]) -> R) -> Result<R> {
        let Ended { memory, outcome } = self.handle.take().ok_or(Error::Closed)?.wait();
        let result = outcome.and_then(|received| {
            let received = received.ok_or(Error::Closed)?;
            let length = memory.len().min(received.length as usize);
            Ok(with(&received, &memory[..length]))
        });
        self.offer(memory)?;
        result
    }

    fn offer(&mut self, memory: Memory) -> Result<()> {
        self.handle = Some(self.thread.receive_dma(self.pattern, memory)?);
        Ok(())
    }
}
