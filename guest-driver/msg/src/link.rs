// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a process has for another one: an inbox that the other writes to, and the other's inbox and queue.

use crate::error::Result;
use crate::layout::{CONTROL, Element, Layout, control};
use std::time::Instant;
use telegraphos::{Node, Queue, Remote, RemoteQueue, Rights, Segment, Status};
use telegraphos_msg_core::{Config, Process};

/// Name of a process's queue.
pub(crate) fn queue_name(process: Process) -> String {
    format!("msg.{:08x}", process.number)
}

fn inbox_name(of: Process, for_whom: Process) -> String {
    format!("msg.{:08x}.{}.{:08x}", of.number, for_whom.node, for_whom.number)
}

/// Name of memory of a process that is registered for a long message.
pub(crate) fn memory_name(of: Process, id: u64) -> String {
    format!("msg.{:08x}.m{id:x}", of.number)
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) inbox: Segment,
    /// What the other's elements carry.
    pub(crate) key: u32,
    /// The other's queue. All that is said to it goes by this import, and stays in order.
    pub(crate) elements: RemoteQueue,
    /// The other's inbox, once it is imported.
    pub(crate) other: Option<Other>,
    /// The other has imported this one's inbox, and takes packets in one of its own whose key ends so.
    pub(crate) ready: Option<u16>,
    /// Packets are exchanged.
    pub(crate) up: bool,
    /// Its sizes are others.
    pub(crate) unlike: bool,
    /// When it was made.
    pub(crate) begun: Instant,
}

#[derive(Debug)]
pub(crate) struct Other {
    inbox: Remote,
    /// What elements to it carry.
    pub(crate) key: u32,
}

/// What came of an attempt to import another's inbox.
pub(crate) enum Found {
    Yes(Box<Other>),
    /// It has not made it yet, and will say hello when it has.
    NotYet,
    Unlike,
}

impl Link {
    /// Makes an inbox for another process.
    pub(crate) fn open(node: &Node, config: &Config, me: Process, other: Process, key: u32) -> Result<Link> {
        // It is there: nobody else has memory made for it.
        let elements = Queue::import(node, other.node, &queue_name(other)).soft().open()?;
        let size = Layout::of(config).size();
        let inbox = node.export(&inbox_name(me, other), size).nodes(&[other.node]).create()?;
        let words = control(config, key);
        for (n, word) in words.iter().enumerate().rev() {
            // The magic is the last.
            inbox.store(8 * n as u64, *word)?;
        }
        Ok(Link { inbox, key, elements, other: None, ready: None, up: false, unlike: false, begun: Instant::now() })
    }

    /// Says something to the other, if there is the key that it takes it with.
    pub(crate) fn say(&self, element: impl Fn(u32) -> Element) {
        // If it has gone, that is found out elsewhere.
        _ = self.say_with(None, element);
    }

    /// The same, after words have been stored into its inbox.
    pub(crate) fn say_with(
        &self,
        words: Option<(u64, &[u64])>,
        element: impl Fn(u32) -> Element,
    ) -> telegraphos::Result<()> {
        let Some(other) = &self.other else { return Ok(()) };
        let element = element(other.key).encode();
        match words {
            Some((at, words)) => self.elements.put_notify(&other.inbox, at, words, element),
            None => self.elements.enqueue(element),
        }
    }

    /// Whether the other is gone, as far as is known. A store finds out more until the next time.
    pub(crate) fn is_lost(&self) -> bool {
        let lost = |state: telegraphos::Result<telegraphos::State>| {
            state.map_or(true, |state| state.dead || state.cut || state.error.is_some())
        };
        // A word of the control area that nobody reads.
        let inbox = |inbox: &Remote| inbox.put64(8 * (CONTROL as u64), 1).is_err() || lost(inbox.state());
        self.other.as_ref().is_some_and(|other| inbox(&other.inbox)) || lost(self.elements.state())
    }

    /// Copies words of the inbox, which are there: the other process has said so.
    pub(crate) fn words<const N: usize>(&self, at: u64) -> Result<[u64; N]> {
        let mut words = [0; N];
        for (n, word) in words.iter_mut().enumerate() {
            *word = self.inbox.load(at + 8 * n as u64)?;
        }
        Ok(words)
    }
}

impl Other {
    /// Imports the inbox that a process has for this one.
    pub(crate) fn find(node: &Node, config: &Config, me: Process, other: Process) -> Result<Found> {
        let rights = Rights(Rights::READ.0 | Rights::WRITE.0);
        let import = node.import(other.node, &inbox_name(other, me)).rights(rights).soft();
        let inbox = match import.open() {
            Err(error) if error.status() == Some(Status::NoSegment) => return Ok(Found::NotYet),
            inbox => inbox?,
        };
        if inbox.size() < Layout::of(config).size() {
            return Ok(Found::Unlike);
        }
        let mut words = [0; CONTROL];
        inbox.get_slice(0, &mut words)?;
        if inbox.state()?.dead {
            return Ok(Found::NotYet);
        }
        let key = words[1] as u32;
        Ok(match words == control(config, key) {
            true => Found::Yes(Box::new(Other { inbox, key })),
            false if words[0] == 0 => Found::NotYet,
            false => Found::Unlike,
        })
    }
}
