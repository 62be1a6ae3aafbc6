// SPDX-License-Identifier: MIT OR Apache-2.0
//! Letters between daemons, as messages (`telegraphos-msg`). Those admit processes of the same user only, so a letter
//! is from a process of root's on its node.

use super::Input;
use log::{debug, warn};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use telegraphos::Node;
use telegraphos_daemon_core::Event;
use telegraphos_daemon_core::protocol::{Envelope, MAX_MESSAGE, decode, encode};
use telegraphos_msg::{Config, Endpoint, Messages, Pattern, Process, Thread};

const NAME: &str = "tgd";
/// The thread of each daemon that receives.
const RECEIVER: u32 = 0;
/// Letters to one node that wait, at most: all requests of one client, and as many answers.
const WAITING: usize = 1024;

/// The letters of this daemon. Each node has one thread that sends, so letters keep their order.
pub(crate) struct Letters {
    messages: Arc<Messages>,
    to: SyncSender<Input>,
    /// By node: the way to its thread.
    peers: BTreeMap<u16, SyncSender<Envelope>>,
}

impl Letters {
    /// Opens messages, by which other daemons find this one, and reports letters.
    pub(crate) fn open(node: Node, to: SyncSender<Input>) -> Result<Letters, String> {
        let open = || -> telegraphos_msg::Result<_> {
            let messages = Messages::open(node, Config::default())?;
            let name = messages.publish(NAME)?;
            Ok((Arc::new(messages), name))
        };
        let (messages, name) = open().map_err(|error| format!("messages between daemons: {error}"))?;
        let (own, events) = (messages.clone(), to.clone());
        super::thread("letters", move || {
            // As long as it receives.
            let _name = name;
            if let Err(error) = receive(&own, &events) {
                _ = events.send(Input::Broken(format!("letters of other daemons: {error}")));
            }
        })?;
        Ok(Letters { messages, to, peers: BTreeMap::new() })
    }

    /// Sends a letter, and reports if it cannot be delivered; false if that is known at once. Does not wait.
    pub(crate) fn send(&mut self, node: u16, envelope: Envelope) -> bool {
        if !self.peers.contains_key(&node) {
            let (sender, waiting) = sync_channel(WAITING);
            let (messages, to) = (self.messages.clone(), self.to.clone());
            if super::thread("deliver", move || deliver(&messages, node, &waiting, &to)).is_err() {
                return false;
            }
            self.peers.insert(node, sender);
        }
        let Some(sender) = self.peers.get(&node) else { return false };
        match sender.try_send(envelope) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                warn!("node {node} does not take its letters: {WAITING} wait");
                return false;
            }
            // Its thread has ended, with the board.
            Err(TrySendError::Disconnected(_)) => _ = self.peers.remove(&node),
        }
        true
    }
}

fn receive(messages: &Messages, to: &SyncSender<Input>) -> telegraphos_msg::Result<()> {
    let thread = messages.thread(RECEIVER)?;
    let mut buffer = vec![0; MAX_MESSAGE];
    loop {
        let received = thread.receive(Pattern::default(), &mut buffer)?;
        let from = received.from.process.node;
        // A longer one is none.
        let bytes = usize::try_from(received.length).ok().and_then(|length| buffer.get(..length)).unwrap_or_default();
        match decode::<Envelope>(bytes) {
            Ok(envelope) => {
                if to.send(Input::Event(Event::Letter { from, envelope })).is_err() {
                    return Ok(());
                }
            }
            Err(error) => debug!("a letter of node {from}: {error}"),
        }
    }
}

/// Sends what waits for a node.
fn deliver(messages: &Messages, node: u16, waiting: &Receiver<Envelope>, to: &SyncSender<Input>) {
    let Ok(thread) = messages.thread(RECEIVER + 1 + u32::from(node)) else { return };
    let mut found: Option<Process> = None;
    while let Ok(envelope) = waiting.recv() {
        let incarnation = envelope.to;
        if let Err(why) = deliver_one(messages, &thread, node, &mut found, &envelope) {
            debug!("a letter to node {node}: {why}");
            if to.send(Input::Event(Event::Unreachable { node, incarnation })).is_err() {
                return;
            }
        }
    }
}

/// Sends a letter to the daemon that was found there before, or if that has gone, to the one that is there now.
fn deliver_one(
    messages: &Messages,
    thread: &Thread<'_>,
    node: u16,
    found: &mut Option<Process>,
    envelope: &Envelope,
) -> Result<(), String> {
    let bytes = match encode(envelope) {
        Ok(bytes) => bytes,
        // That is this daemon's mistake, and no reason to call the other one dead.
        Err(error) => {
            warn!("a letter to node {node} is not sent: {error}");
            return Ok(());
        }
    };
    let send = |process| thread.send(Endpoint { process, thread: RECEIVER }, 0, &bytes);
    if found.is_some_and(|process| send(process).is_ok()) {
        return Ok(());
    }
    *found = None;
    let process = messages.find(node, NAME).map_err(|error| error.to_string())?;
    send(process).map_err(|error| error.to_string())?;
    *found = Some(process);
    Ok(())
}
