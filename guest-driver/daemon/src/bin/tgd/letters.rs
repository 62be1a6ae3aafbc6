// SPDX-License-Identifier: MIT OR Apache-2.0
//! Letters between daemons, as messages (`telegraphos-msg`). Those admit processes of the same user only, so a letter
//! is from a process of root's on its node.

use super::Input;
use log::{debug, warn};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;
use telegraphos::Node;
use telegraphos_daemon_core::protocol::{Envelope, MAX_MESSAGE, decode, encode};
use telegraphos_daemon_core::{Event, Incarnation};
use telegraphos_msg::{Config, Endpoint, Messages, Pattern, Process, Thread};

const NAME: &str = "tgd";
/// The thread of each daemon that receives.
const RECEIVER: u32 = 0;
/// A letter that cannot be delivered is sent again after so long, then after twice as long, up to the second.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(250)];

/// The way to a node.
struct Peer {
    /// The engine bounds what waits.
    letters: Sender<Envelope>,
    waiting: Arc<Mutex<Receiver<Envelope>>>,
    /// The incarnation that is alive, or 0.
    alive: Arc<AtomicU32>,
    runs: bool,
}

/// The letters of this daemon. Each node has one thread that sends, so letters keep their order.
pub(crate) struct Letters {
    messages: Arc<Messages>,
    to: SyncSender<Input>,
    peers: BTreeMap<u16, Peer>,
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

    fn peer(&mut self, node: u16) -> &mut Peer {
        self.peers.entry(node).or_insert_with(|| {
            let (letters, waiting) = channel();
            Peer { letters, waiting: Arc::new(Mutex::new(waiting)), alive: Arc::default(), runs: false }
        })
    }

    /// Which incarnation of a node is alive, or 0: letters to it are sent until they arrive, others once.
    pub(crate) fn alive(&mut self, node: u16, incarnation: Incarnation) {
        self.peer(node).alive.store(incarnation, Relaxed);
    }

    /// Sends a letter, and reports its end. Does not wait.
    pub(crate) fn send(&mut self, node: u16, envelope: Envelope) {
        // The receiver is this one's.
        _ = self.peer(node).letters.send(envelope);
        self.start();
    }

    /// Starts the threads that are missing. Where there is none to be had, letters wait until there is.
    pub(crate) fn start(&mut self) {
        for (node, peer) in self.peers.iter_mut().filter(|(_, peer)| !peer.runs) {
            let (messages, to, node) = (self.messages.clone(), self.to.clone(), *node);
            let (waiting, alive) = (peer.waiting.clone(), peer.alive.clone());
            let body = move || {
                let Ok(thread) = messages.thread(RECEIVER + 1 + u32::from(node)) else { return };
                let mut found = None;
                let send = |envelope: &Envelope| send(&messages, &thread, node, &mut found, envelope);
                let waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                deliver(node, &waiting, &alive, send, || to.send(Input::Event(Event::Sent { node })).is_ok());
            };
            match super::thread("deliver", body) {
                Ok(()) => peer.runs = true,
                Err(why) => debug!("letters to node {node} wait: {why}"),
            }
        }
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

/// Sends what waits for a node, each letter until it arrives or its incarnation is dead, and reports its end.
fn deliver(
    node: u16,
    waiting: &Receiver<Envelope>,
    alive: &AtomicU32,
    mut send: impl FnMut(&Envelope) -> Result<(), String>,
    sent: impl Fn() -> bool,
) {
    while let Ok(envelope) = waiting.recv() {
        let [mut pause, longest] = PAUSES;
        while let Err(why) = send(&envelope) {
            debug!("a letter to node {node}: {why}");
            // Silence is what it dies of, not this.
            if alive.load(Relaxed) != envelope.to {
                break;
            }
            sleep(pause);
            pause = (pause * 2).min(longest);
        }
        if !sent() {
            return;
        }
    }
}

/// Sends a letter to the daemon that was found there before, or if that has gone, to the one that is there now.
fn send(
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::thread::spawn;
    use telegraphos_daemon_core::protocol::Letter;

    fn envelope(number: u64) -> Envelope {
        Envelope { from: 1, to: 7, number, letter: Letter::ClientGone { client: number } }
    }

    #[test]
    fn a_letter_that_cannot_be_delivered_is_sent_again_and_the_others_wait() {
        let (to, waiting) = channel();
        (1..=2000).for_each(|number| to.send(envelope(number)).unwrap());
        drop(to);
        let (mut failures, mut arrived) = (3, Vec::new());
        let send = |envelope: &Envelope| {
            if envelope.number == 1000 && failures > 0 {
                failures -= 1;
                return Err("not now".into());
            }
            arrived.push(envelope.number);
            Ok(())
        };
        let ended = AtomicUsize::new(0);
        let sent = || ended.fetch_add(1, Relaxed) < usize::MAX;
        deliver(1, &waiting, &AtomicU32::new(7), send, sent);
        assert!(arrived.iter().copied().eq(1..=2000));
        assert_eq!((failures, ended.into_inner()), (0, 2000));
    }

    #[test]
    fn letters_to_an_incarnation_that_has_died_are_sent_once() {
        let (to, waiting) = channel();
        (1..=3).for_each(|number| to.send(envelope(number)).unwrap());
        drop(to);
        let alive = Arc::new(AtomicU32::new(7));
        let (tries, of_all) = channel();
        let own = alive.clone();
        let thread = spawn(move || {
            let send = |envelope: &Envelope| {
                tries.send(envelope.number).unwrap();
                Err("no".into())
            };
            deliver(1, &waiting, &own, send, || true);
        });
        assert_eq!((of_all.recv().unwrap(), of_all.recv().unwrap()), (1, 1));
        alive.store(8, Relaxed);
        thread.join().unwrap();
        let rest: Vec<u64> = of_all.iter().skip_while(|number| *number == 1).collect();
        assert_eq!(rest, [2, 3]);
    }
}
