// SPDX-License-Identifier: MIT OR Apache-2.0
//! A consumer of a broadcast.

use super::ring::{Consumer, Found, Joined, Shape};
use crate::access_policy::Secret;
use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::node::Node;
use crate::replicated::{JoinBuilder, Replicated};
use std::sync::Arc;
use std::time::Duration;
use telegraphos_wire::NodeId;

/// The time that the producer may take from the creation of the segment to that of the ring in it.
const CREATION_LIMIT: Duration = Duration::from_secs(5);

/// How to consume a broadcast; made by [`Broadcast::join`](crate::Broadcast::join).
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// use telegraphos::Broadcast;
///
/// let news = Broadcast::join(&node, 0, "news").secret(*b"0123456789abcdef").open()?;
/// news.leave()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is consumed before open()"]
pub struct BroadcastJoinBuilder {
    join: JoinBuilder,
}

impl BroadcastJoinBuilder {
    pub(super) fn new(node: &Node, producer: NodeId, name: &str) -> BroadcastJoinBuilder {
        BroadcastJoinBuilder { join: Replicated::join(node, producer, name) }
    }

    /// The broadcast's secret.
    pub fn secret(self, secret: Secret) -> Self {
        BroadcastJoinBuilder { join: self.join.secret(secret) }
    }

    /// Makes a copy of the ring on this node, and takes a place in it. The first message is the first that the producer
    /// pushes after it has noticed.
    pub fn open(self) -> Result<BroadcastConsumer> {
        BroadcastConsumer::of(Arc::new(self.join.open()?))
    }
}

/// A consumer of a broadcast, for one thread at a time; it leaves its place on drop.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// # let mut news = telegraphos::Broadcast::join(&node, 0, "news").open()?;
/// let mut message = Vec::new(); // used again for each
/// while news.pop_into(&mut message, None)? {
///     println!("{} bytes", message.len());
/// }
/// assert!(news.ended());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct BroadcastConsumer {
    segment: Arc<Replicated>,
    /// `None` once it has left.
    consumer: Option<Consumer>,
    ended: bool,
}

/// The outcome of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Poll {
    Message,
    Empty,
    Ended,
}

impl BroadcastConsumer {
    pub(super) fn of(segment: Arc<Replicated>) -> Result<BroadcastConsumer> {
        let mut backoff = Backoff::new(Some(CREATION_LIMIT));
        let consumer = loop {
            let (value, expected) = match Consumer::join(&*segment, segment.size())? {
                Joined::Consumer(consumer) => break consumer,
                Joined::Unready if backoff.wait() => continue,
                Joined::Unready => ("with nothing in it", "a broadcast"),
                Joined::Unsound => ("with other words in it", "a broadcast of this version"),
                Joined::Full => ("with no place free", "a broadcast made for more .consumers()"),
            };
            return Err(Error::Argument {
                what: "the replicated segment",
                value: format!("{}, {value}", segment.what()),
                expected: expected.into(),
            });
        };
        Ok(BroadcastConsumer { consumer: Some(consumer), segment, ended: false })
    }

    /// One more consumer on this node, for another thread of this process.
    pub fn another(&self) -> Result<BroadcastConsumer> {
        BroadcastConsumer::of(self.segment.clone())
    }

    /// The segment that it lies in.
    pub fn segment(&self) -> &Replicated {
        &self.segment
    }

    /// Slots, bytes of a message, and places for consumers; `None` once it has ended.
    pub fn shape(&self) -> Option<Shape> {
        self.consumer.as_ref().map(Consumer::shape)
    }

    /// Whether all messages have been taken, and no other follows.
    pub fn ended(&self) -> bool {
        self.ended
    }

    fn what(&self) -> String {
        format!("broadcast {:?}", self.segment.name())
    }

    fn poll(&mut self, message: &mut Vec<u8>) -> Result<Poll> {
        if self.ended {
            return Ok(Poll::Ended);
        }
        let evicted = || Error::Evicted { what: format!("broadcast {:?}", self.segment.name()) };
        let Some(consumer) = &mut self.consumer else { return Err(evicted()) };
        match consumer.pop(&*self.segment, message)? {
            Found::Message => Ok(Poll::Message),
            Found::Empty => Ok(Poll::Empty),
            Found::Ended => {
                self.ended = true;
                self.quit()?;
                Ok(Poll::Ended)
            }
            Found::Evicted => {
                let evicted = evicted();
                self.quit()?;
                Err(evicted)
            }
        }
    }

    /// Takes the next message into `message`, replacing its content: false if there is none yet, or none follows
    /// ([`BroadcastConsumer::ended`]). A few loads of this node's memory; no system call.
    ///
    /// Fails with [`Error::Evicted`] when the producer has evicted this consumer.
    pub fn try_pop_into(&mut self, message: &mut Vec<u8>) -> Result<bool> {
        Ok(self.poll(message)? == Poll::Message)
    }

    /// Takes the next message, if there is one.
    pub fn try_pop(&mut self) -> Result<Option<Vec<u8>>> {
        let mut message = Vec::new();
        Ok(self.try_pop_into(&mut message)?.then_some(message))
    }

    /// Takes the next message into `message`, waiting for it by polling with growing pauses: false at the end; past
    /// `timeout` (`None`: never) [`Error::Pending`]. Fails with [`Error::Failed`] when the producer is gone without
    /// [finishing](crate::Broadcast::finish), unless SIGBUS is faster ([`Replicated`]).
    pub fn pop_into(&mut self, message: &mut Vec<u8>, timeout: Option<Duration>) -> Result<bool> {
        let mut backoff = Backoff::new(timeout);
        loop {
            match self.poll(message)? {
                Poll::Message => return Ok(true),
                Poll::Ended => return Ok(false),
                Poll::Empty => {}
            }
            if !backoff.wait() {
                return Err(self.segment.pending(format!("a message of {}", self.what()), &backoff));
            }
            if backoff.should_check() {
                self.segment.check_alive()?;
            }
        }
    }

    /// Takes the next message, waiting for it; `None` at the end. As [`BroadcastConsumer::pop_into`].
    pub fn pop(&mut self, timeout: Option<Duration>) -> Result<Option<Vec<u8>>> {
        let mut message = Vec::new();
        Ok(self.pop_into(&mut message, timeout)?.then_some(message))
    }

    /// Leaves the place and the segment. Dropping does the same, and only logs errors.
    pub fn leave(mut self) -> Result<()> {
        self.quit()
    }

    fn quit(&mut self) -> Result<()> {
        self.consumer.take().map_or(Ok(()), |consumer| consumer.leave(&*self.segment))
    }
}

impl Drop for BroadcastConsumer {
    fn drop(&mut self) {
        // The producer may be gone, and the mappings with it: a store would raise SIGBUS.
        if self.consumer.is_some() && self.segment.check_alive().is_ok() {
            if let Err(error) = self.quit() {
                log::warn!("leaving {}: {error}", self.what());
            }
        }
    }
}
