// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine of a process: dispatches to its two halves.

use crate::action::{Action, Direction, ReceiveId, SendId, TransferId};
use crate::address::{Endpoint, Pattern, Process};
use crate::config::{Config, ConfigError};
use crate::error::Error;
use crate::packet::{Header, Packet, Place, Violation};
use crate::receiver::Receiver;
use crate::sender::Sender;
use crate::threshold::{Choice, Eager};
use std::collections::VecDeque;
use std::time::Duration;

/// Sends and receives of all threads of a process. See the [crate's documentation](crate).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Engine {
    config: Config,
    sender: Sender,
    receiver: Receiver,
    out: VecDeque<Action>,
}

impl Engine {
    /// An engine without threads, which knows no other process.
    ///
    /// # Errors
    ///
    /// The field of the configuration that is not sound.
    pub fn new(config: Config) -> Result<Engine, ConfigError> {
        config.check()?;
        let (sender, receiver) = (Sender::new(&config), Receiver::new(&config));
        Ok(Engine { config, sender, receiver, out: VecDeque::new() })
    }

    /// A thread can receive from now on.
    ///
    /// # Errors
    ///
    /// [`Error::ThreadOpen`], [`Error::Threads`].
    pub fn open(&mut self, thread: u32) -> Result<(), Error> {
        self.receiver.open_thread(&self.config, thread)
    }

    /// A thread receives no more. Its receives end with [`Failure::Closed`](crate::Failure::Closed), except those that
    /// have a message; messages that have not been received end with [`Failure::NoThread`](crate::Failure::NoThread) at
    /// their senders.
    ///
    /// # Errors
    ///
    /// [`Error::NoThread`].
    pub fn close(&mut self, thread: u32) -> Result<(), Error> {
        self.receiver.close_thread(thread, &mut self.out)
    }

    /// Packets can be exchanged with another process, or with this one, whose engine has an equal configuration and
    /// does the same.
    ///
    /// # Errors
    ///
    /// [`Error::Connected`], [`Error::Peers`].
    pub fn connect(&mut self, peer: Process) -> Result<(), Error> {
        self.connect_by(peer, false)
    }

    /// The same, with one that no board reaches: the way of long messages is [`Way::Get`](crate::Way::Get), and their
    /// bytes are asked for ([`Engine::bytes_of`]).
    ///
    /// # Errors
    ///
    /// As before.
    pub fn connect_far(&mut self, peer: Process) -> Result<(), Error> {
        self.connect_by(peer, true)
    }

    fn connect_by(&mut self, peer: Process, far: bool) -> Result<(), Error> {
        self.receiver.connect(&self.config, peer, far)?;
        self.sender.connect(&self.config, peer, far);
        Ok(())
    }

    /// The send whose bytes a process may read: a request that is in a slot there, has that place, and has so many
    /// bytes at least.
    pub fn bytes_of(&self, peer: Process, at: Place, bytes: u64) -> Option<SendId> {
        self.sender.bytes_of(peer, at, bytes)
    }

    /// Another process has gone: sends to it, receives from exactly it, and its messages that are not whole or not
    /// received end. Those whose buffers a board still uses end with its transfer.
    pub fn gone(&mut self, peer: Process) {
        self.sender.gone(&self.config, peer, &mut self.out);
        self.receiver.gone(peer, &mut self.out);
    }

    /// How a message that is sent now is to go to a process: to a slot, or as a request, with a place. To one that no
    /// board reaches, all go to slots that fit.
    pub fn choose(&mut self, to: Process, length: u64) -> Choice {
        self.sender.choose(&self.config, to, length)
    }

    /// A message of so many bytes has taken so long that was to be [measured](Choice::measured): from what its owner
    /// did before it was sent, until [`Action::Sent`] without a failure.
    pub fn took(&mut self, to: Process, length: u64, choice: Choice, time: Duration) {
        self.sender.took(to, length, choice, time);
    }

    /// How messages to a process go, if it is connected.
    pub fn eager(&self, to: Process) -> Option<Eager> {
        self.sender.eager(to)
    }

    /// Sends `length` bytes from a thread of this process: to a slot, if they are without a place or not more than
    /// [`Config::eager_floor`], else as a request, in pieces if the place says so ([`Place::PIECES`]). Only up to [`Config::eager`] they need no place. That is not changed
    /// later, wherever the threshold moves.
    ///
    /// # Errors
    ///
    /// [`Error::TooLong`], [`Error::NoPlace`], [`Error::NoProcess`], [`Error::Sends`]. That there is no such thread is
    /// found out later.
    pub fn send(
        &mut self,
        from: u32,
        to: Endpoint,
        tag: u32,
        length: u64,
        place: Option<Place>,
    ) -> Result<SendId, Error> {
        let header = Header { from, to: to.thread, tag, length };
        self.sender.send(&self.config, to, header, place, &mut self.out)
    }

    /// A thread waits for a message, of which it has room for `capacity` bytes. Without a place the way of long ones is
    /// [`Way::Get`](crate::Way::Get).
    ///
    /// # Errors
    ///
    /// [`Error::NoThread`], [`Error::NoProcess`], [`Error::Receives`].
    pub fn receive(
        &mut self,
        thread: u32,
        pattern: Pattern,
        capacity: u64,
        place: Option<Place>,
    ) -> Result<ReceiveId, Error> {
        self.receiver.receive(&self.config, thread, pattern, capacity, place, &mut self.out)
    }

    /// Withdraws a send. If it was not too late it ends with [`Failure::Withdrawn`](crate::Failure::Withdrawn).
    ///
    /// Returns false if it is too late for certain: fragments of it have been sent, its bytes are moved, or it has
    /// ended.
    pub fn withdraw_send(&mut self, send: SendId) -> bool {
        self.sender.withdraw(send.0, &mut self.out)
    }

    /// Withdraws a receive, which then ends with [`Failure::Withdrawn`](crate::Failure::Withdrawn).
    ///
    /// Returns false if it has a message.
    pub fn withdraw_receive(&mut self, receive: ReceiveId) -> bool {
        self.receiver.cancel(receive.0, &mut self.out)
    }

    /// The process whose message a receive has, which has not all come. The owner declares a process gone that lets
    /// others wait for too long ([`Engine::gone`]).
    pub fn matched(&self, receive: ReceiveId) -> Option<Process> {
        self.receiver.matched(receive.0)
    }

    /// Another process says something. After an error it is gone.
    ///
    /// # Errors
    ///
    /// What it has said against the rules.
    pub fn packet(&mut self, from: Process, packet: Packet) -> Result<(), Violation> {
        if !self.receiver.knows(from) {
            // It has gone, and this was on its way.
            return Ok(());
        }
        let (config, out) = (&self.config, &mut self.out);
        let result = match packet {
            Packet::Eager { slot, header, fragment } => self.receiver.eager(config, from, slot, header, fragment, out),
            Packet::Request { slot, header, at } => self.receiver.request(config, from, slot, header, at, out),
            Packet::Stored { slot, whole } => self.receiver.stored(from, slot, whole, out),
            Packet::Withdraw { slot } => self.receiver.withdrawn(config, from, slot, out),
            Packet::Clear { slot, at, length } => self.sender.clear(from, slot, at, length, out),
            Packet::Done { slot, answer } => self.sender.done(config, from, slot, answer, out),
        };
        if result.is_err() {
            self.gone(from);
        }
        result
    }

    /// A transfer has ended; `whole` if all bytes were moved.
    pub fn transferred(&mut self, transfer: TransferId, whole: bool) {
        match transfer.0 {
            Direction::Fetch(message) => self.receiver.fetched(message, whole, &mut self.out),
            Direction::Store(send) => self.sender.stored(&self.config, send, whole, &mut self.out),
            Direction::Offer(_) => self.offered(transfer, None),
        }
    }

    /// A process may store so many bytes to a place, from where [`Action::Offer`] said on; or nothing can be made
    /// accessible to it, and the message fails.
    pub fn offered(&mut self, transfer: TransferId, place: Option<(Place, u64)>) {
        if let Direction::Offer(message) = transfer.0 {
            self.receiver.offered(message, place, &mut self.out);
        }
    }

    /// What is to be done next.
    pub fn action(&mut self) -> Option<Action> {
        self.out.pop_front()
    }

    /// Whether nothing is under way: no send, no receive, no message, no slot.
    pub fn is_idle(&self) -> bool {
        self.out.is_empty()
            && self.sender.open() == 0
            && self.receiver.open() == 0
            && self.receiver.messages() == 0
            && self.sender.slots_in_use() == 0
    }
}
