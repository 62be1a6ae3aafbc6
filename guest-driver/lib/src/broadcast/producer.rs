// SPDX-License-Identifier: MIT OR Apache-2.0
//! The producer of a broadcast.

use super::ring::{self, Memory, Producer, Shape};
use crate::access::publish;
use crate::access_policy::{AccessPolicy, access_options};
use crate::error::{Error, Result};
use crate::node::Node;
use crate::replicated::Replicated;
use crate::word_wait::WordWait;
use std::sync::Arc;
use std::time::Duration;

/// How to make a broadcast; made by [`Broadcast::create`].
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// use telegraphos::Broadcast;
///
/// let news = Broadcast::create(&node, "news")
///     .slots(256) // messages that the slowest consumer may be behind
///     .message(1000) // bytes of each, at most
///     .consumers(8)
///     .mode(0o606)
///     .create()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "there is no broadcast before create()"]
pub struct BroadcastBuilder {
    node: Node,
    name: String,
    slots: u32,
    message: u32,
    consumers: u32,
    access: AccessPolicy,
}

impl BroadcastBuilder {
    /// Messages that the slowest consumer may be behind, 1 to 65536; 64 by default.
    pub fn slots(mut self, slots: u32) -> Self {
        self.slots = slots;
        self
    }

    /// Bytes of a message, at most, 1 to 65528; rounded up to 8 less than a power of two. 248 by default.
    pub fn message(mut self, bytes: u32) -> Self {
        self.message = bytes;
        self
    }

    /// Consumers at a time, at most, 1 to 255; 16 by default.
    pub fn consumers(mut self, consumers: u32) -> Self {
        self.consumers = consumers;
        self
    }

    access_options! {
        self.access;
        /// Access rights, as the mode of a file: `0o600` (the default) admits processes of this user id, on any node,
        /// `0o606` everyone. Consumers store to the segment, too: they are trusted not to disturb each other.
        mode;
        /// A secret that consumers must present; zeros mean none.
        secret;
        /// Admits only these nodes, below 256; without it, every node is admitted.
        nodes;
    }

    fn shape(&self) -> Result<Shape> {
        Shape::new(self.slots, self.message, self.consumers).ok_or_else(|| {
            let (bytes, consumers) = (ring::MESSAGE_MAX, ring::CONSUMERS_MAX);
            Error::argument(
                "the shape of a broadcast",
                format!("{} slots of {} bytes for {} consumers", self.slots, self.message, self.consumers),
                format!("1 to 65536 slots of 1 to {bytes} bytes for 1 to {consumers} consumers"),
            )
        })
    }

    /// Makes the replicated segment, whose home this node is, and in it an empty ring.
    pub fn create(self) -> Result<Broadcast> {
        let shape = self.shape()?;
        let segment = Replicated::create(&self.node, &self.name, shape.bytes()).access(self.access).create()?;
        let segment = Arc::new(segment);
        let producer = Producer::create(shape, &*segment)?;
        Ok(Broadcast { segment, producer })
    }
}

/// The producer of a broadcast; for one thread at a time. When it is dropped, consumers get an error
/// ([`Broadcast::finish`] is the end without one).
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// # let mut news = telegraphos::Broadcast::create(&node, "news").create()?;
/// if !news.try_push(b"ready")? {
///     // The ring is full: the slowest consumer is evicted.
///     let slowest = news.behind()?.into_iter().max_by_key(|(_, behind)| *behind);
///     if let Some((place, _)) = slowest {
///         news.evict(place)?;
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Broadcast {
    pub(super) segment: Arc<Replicated>,
    producer: Producer,
}

impl Broadcast {
    /// A new broadcast under `name`, with this node as the producer's.
    #[allow(clippy::new_ret_no_self, reason = "as Node::export and Node::import, it returns a builder")]
    pub fn create(node: &Node, name: &str) -> BroadcastBuilder {
        BroadcastBuilder {
            node: node.clone(),
            name: name.into(),
            slots: 64,
            message: 248,
            consumers: 16,
            access: AccessPolicy::default(),
        }
    }

    /// The segment that it lies in.
    pub fn segment(&self) -> &Replicated {
        &self.segment
    }

    /// Slots, bytes of a message, and places for consumers.
    pub fn shape(&self) -> Shape {
        self.producer.shape()
    }

    /// Messages pushed so far.
    pub fn pushed(&self) -> u64 {
        self.producer.pushed()
    }

    fn what(&self) -> String {
        format!("broadcast {:?}", self.segment.name())
    }

    /// Waits until `done`.
    fn wait(
        &mut self,
        timeout: Option<Duration>,
        what: &str,
        mut done: impl FnMut(&mut Broadcast) -> Result<bool>,
    ) -> Result<()> {
        let mut wait = WordWait::new(timeout);
        while !done(self)? {
            if !pause_for(&self.segment, self.producer.waits_for(), &mut wait)? {
                return Err(self.segment.pending(format!("{what} {}", self.what()), &wait.backoff));
            }
        }
        Ok(())
    }

    /// Stores a message for all consumers, if the slowest leaves room for it: whether it was stored. One store for
    /// each 8 bytes, and one more.
    pub fn try_push(&mut self, message: &[u8]) -> Result<bool> {
        let most = self.shape().message();
        if message.len() > most as usize {
            let expected = format!("at most {most} bytes, or a broadcast made with a larger .message()");
            return Err(Error::argument("the length of a message", message.len(), expected));
        }
        self.producer.push(&*self.segment, message)
    }

    /// Stores a message for all consumers, waiting for the slowest if the ring is full; past `timeout` (`None`: never)
    /// [`Error::Pending`], and the message is not stored. Without consumers the message is lost.
    pub fn push(&mut self, message: &[u8], timeout: Option<Duration>) -> Result<()> {
        self.wait(timeout, "room in", |this| this.try_push(message))
    }

    /// The place of each consumer, and the number of messages that it has not taken yet, by its last report: each
    /// reports after a quarter of the ring, and when it has taken all.
    pub fn behind(&mut self) -> Result<Vec<(u32, u64)>> {
        self.producer.look(&*self.segment)?;
        let pushed = self.pushed();
        Ok(self.producer.wanted().map(|(place, next)| (place, pushed - next)).collect())
    }

    /// Waits until there are `count` consumers at least: what is pushed then is for all of them. Past `timeout`
    /// (`None`: never) [`Error::Pending`].
    pub fn wait_consumers(&mut self, count: usize, timeout: Option<Duration>) -> Result<()> {
        self.wait(timeout, "consumers of", |this| Ok(this.behind()?.len() >= count))
    }

    /// Waits until all consumers have taken all messages; past `timeout` (`None`: never) [`Error::Pending`].
    pub fn drain(&mut self, timeout: Option<Duration>) -> Result<()> {
        self.wait(timeout, "the consumers of", |this| Ok(this.behind()?.iter().all(|(_, behind)| *behind == 0)))
    }

    /// Evicts the consumer of that place, which is too slow, or dead: it gets [`Error::Evicted`] before it takes a
    /// message that has been overwritten. False if the place has no consumer. The place is free again when the consumer
    /// has noticed; that of a dead one is lost.
    pub fn evict(&mut self, place: u32) -> Result<bool> {
        self.producer.evict(&*self.segment, place)
    }

    /// Ends the broadcast: waits until all consumers have taken all messages and have left, which they do at the
    /// end. Past `timeout` (`None`: never) it fails with [`Error::Pending`], and the rest lose what they have
    /// not taken.
    pub fn finish(mut self, timeout: Option<Duration>) -> Result<()> {
        self.producer.end(&*self.segment)?;
        self.wait(timeout, "the last consumers of", |this| Ok(this.behind()?.is_empty()))?;
        Arc::into_inner(self.segment).map_or(Ok(()), Replicated::leave)
    }
}

/// Pauses before the next poll of these words of the ring; false at the limit of `wait`.
pub(super) fn pause_for(ring: &Replicated, words: impl Iterator<Item = u32>, wait: &mut WordWait) -> Result<bool> {
    let arm = || {
        for word in words {
            if !ring.arm_word(8 * u64::from(word))? {
                return Ok(false);
            }
        }
        Ok(true)
    };
    wait.pause(&ring.remote().handle.context, arm, || ring.check_alive())
}

impl Memory for Replicated {
    type Error = Error;

    #[inline]
    fn load(&self, word: u32) -> Result<u64> {
        self.peek(8 * u64::from(word))
    }

    #[inline]
    fn store(&self, word: u32, value: u64) -> Result<()> {
        // A reader of this word may rely on it that earlier loads of this thread are complete.
        publish();
        Replicated::store(self, 8 * u64::from(word), value)
    }

    fn compare_swap(&self, word: u32, expected: u64, new: u64) -> Result<u64> {
        Replicated::compare_swap(self, 8 * u64::from(word), expected, new)
    }

    fn quiet(&self) -> Result<()> {
        Replicated::quiet(self)
    }
}

#[cfg(test)]
mod tests;
