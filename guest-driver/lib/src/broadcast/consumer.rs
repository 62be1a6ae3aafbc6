// SPDX-License-Identifier: MIT OR Apache-2.0
//! A consumer of a broadcast.

use super::producer::{Broadcast, pause_for};
use super::ring::{Consumer, Found, Joined, Shape};
use crate::access_policy::Secret;
use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::node::Node;
use crate::replicated::{JoinBuilder, Replicated};
use crate::word_wait::WordWait;
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

impl Broadcast {
    /// Becomes a consumer of the broadcast `name` whose producer is on node `producer`, another than this. A node has
    /// one copy, which belongs to one process: further consumers there are threads of that process
    /// ([`BroadcastConsumer::another`]).
    pub fn join(node: &Node, producer: NodeId, name: &str) -> BroadcastJoinBuilder {
        BroadcastJoinBuilder { join: Replicated::join(node, producer, name) }
    }

    /// A consumer on the producer's own node, for another thread of this process.
    pub fn consumer(&self) -> Result<BroadcastConsumer> {
        BroadcastConsumer::of(self.segment.clone())
    }
}

impl BroadcastJoinBuilder {
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
            let value = format!("{}, {value}", segment.what());
            return Err(Error::argument("the replicated segment", value, expected));
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

    /// Takes the next message into `message`: true, false at the end, `None` if there is none yet.
    fn poll(&mut self, message: &mut Vec<u8>) -> Result<Option<bool>> {
        if self.ended {
            return Ok(Some(false));
        }
        let found = match &mut self.consumer {
            Some(consumer) => consumer.pop(&*self.segment, message)?,
            None => Found::Evicted,
        };
        match found {
            Found::Message => Ok(Some(true)),
            Found::Empty => Ok(None),
            Found::Ended => {
                self.ended = true;
                self.quit().map(|()| Some(false))
            }
            Found::Evicted => {
                self.quit()?;
                Err(Error::Evicted { what: self.what() })
            }
        }
    }

    /// Takes the next message into `message`, replacing its content: false if there is none yet, or none follows
    /// ([`BroadcastConsumer::ended`]). A few loads of this node's memory; no system call.
    ///
    /// Fails with [`Error::Evicted`] when the producer has evicted this consumer.
    pub fn try_pop_into(&mut self, message: &mut Vec<u8>) -> Result<bool> {
        Ok(self.poll(message)? == Some(true))
    }

    /// Takes the next message, if there is one.
    pub fn try_pop(&mut self) -> Result<Option<Vec<u8>>> {
        let mut message = Vec::new();
        Ok(self.try_pop_into(&mut message)?.then_some(message))
    }

    /// Takes the next message into `message`, waiting for it by polling, and asleep after 20 ms: false at the end; past
    /// `timeout` (`None`: never) [`Error::Pending`]. Fails with [`Error::Failed`] when the producer is gone without
    /// [finishing](crate::Broadcast::finish), unless SIGBUS is faster ([`Replicated`]).
    pub fn pop_into(&mut self, message: &mut Vec<u8>, timeout: Option<Duration>) -> Result<bool> {
        let mut wait = WordWait::new(timeout);
        loop {
            if let Some(more) = self.poll(message)? {
                return Ok(more);
            }
            let words = self.consumer.iter().flat_map(Consumer::waits_for);
            if !pause_for(&self.segment, words, &mut wait)? {
                return Err(self.segment.pending(format!("a message of {}", self.what()), &wait.backoff));
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
