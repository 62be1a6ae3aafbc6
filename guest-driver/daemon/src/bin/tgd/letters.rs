// SPDX-License-Identifier: MIT OR Apache-2.0
//! Letters between daemons, as messages (`telegraphos-msg`). Those admit processes of the same user only, so a letter
//! is from a process of root's on its node.

use super::Input;
use log::{debug, warn};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use telegraphos::Node;
use telegraphos_daemon_core::Incarnation;
use telegraphos_daemon_core::protocol::{Envelope, MAX_MESSAGE, decode, encode};
use telegraphos_msg::{Config, Endpoint, Messages, Pattern, Process};

const NAME: &str = "tgd";
/// The thread of each daemon that receives.
const RECEIVER: u32 = 0;
/// Letters to one node that wait, at most: all requests of one client, and as many answers.
const WAITING: usize = 1024;

/// The letters of this daemon.
pub(crate) struct Letters {
    messages: Arc<Messages>,
    to: SyncSender<Input>,
    /// By node: the incarnation that letters are for, and the way to the thread that sends them.
    peers: BTreeMap<u16, (Incarnation, SyncSender<Envelope>)>,
    /// The number of the last thread.
    last: u32,
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
        Ok(Letters { messages, to, peers: BTreeMap::new(), last: RECEIVER })
    }

    /// Sends a letter, and reports if it cannot be delivered. Does not wait.
    pub(crate) fn send(&mut self, node: u16, envelope: Envelope) {
        let incarnation = envelope.to;
        if self.peers.get(&node).is_none_or(|(of, _)| *of != incarnation) {
            let (sender, waiting) = sync_channel(WAITING);
            self.last = self.last.checked_add(1).unwrap_or(RECEIVER + 1);
            let (messages, to, number) = (self.messages.clone(), self.to.clone(), self.last);
            let body = move || {
                if let Err(why) = deliver(&messages, node, number, &waiting) {
                    debug!("letters to node {node}: {why}");
                    _ = to.send(Input::Unreachable { node, incarnation });
                    // Those that still come are lost, as it has been said.
                    while waiting.recv().is_ok() {}
                }
            };
            if super::thread("deliver", body).is_err() {
                self.unreachable(node, incarnation);
            }
            self.peers.insert(node, (incarnation, sender));
        }
        let Some((_, sender)) = self.peers.get(&node) else { return };
        if let Err(TrySendError::Full(_)) = sender.try_send(envelope) {
            warn!("node {node} does not take its letters: {WAITING} wait");
            self.unreachable(node, incarnation);
        }
    }

    fn unreachable(&self, node: u16, incarnation: Incarnation) {
        let to = self.to.clone();
        // Not by the thread that reads what is sent: it would wait for itself.
        _ = super::thread("unreachable", move || _ = to.send(Input::Unreachable { node, incarnation }));
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
                if to.send(Input::Letter { from, envelope }).is_err() {
                    return Ok(());
                }
            }
            Err(error) => debug!("a letter of node {from}: {error}"),
        }
    }
}

fn deliver(messages: &Messages, node: u16, number: u32, waiting: &Receiver<Envelope>) -> Result<(), String> {
    let mut found: Option<(telegraphos_msg::Thread<'_>, Process)> = None;
    while let Ok(envelope) = waiting.recv() {
        let bytes = encode(&envelope).map_err(|error| error.to_string())?;
        let send = |found: &mut Option<_>| -> telegraphos_msg::Result<()> {
            let (thread, process) = match found {
                Some(found) => found,
                None => found.insert((messages.thread(number)?, messages.find(node, NAME)?)),
            };
            thread.send(Endpoint { process: *process, thread: RECEIVER }, 0, &bytes)
        };
        send(&mut found).map_err(|error| error.to_string())?;
    }
    Ok(())
}
