// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread that sends and receives.

use crate::error::{Error, Result};
use crate::grant::Source;
use crate::handle::Handle;
use crate::memory::Memory;
use crate::messages::Messages;
use crate::request::{Buffer, Event, Lent, Request, Writable};
use crate::shared::{ANSWER, Shared, WHOLE, is_beyond_limit};
use crate::state::{State, Timed};
use rustix::io::Errno;
use std::sync::Arc;
use std::time::{Duration, Instant};
use telegraphos::Registration;
use telegraphos_msg_core::{Endpoint, Failure, Pattern, Place, Process, ReceiveId, Received, Way};

/// A thread that sends and receives. It need not be a thread of the system's, and may be used by several.
#[derive(Debug)]
pub struct Thread<'a> {
    pub(crate) messages: &'a Messages,
    pub(crate) number: u32,
}

impl Messages {
    /// A thread of this process, which can receive from now on. Its number is its own.
    pub fn thread(&self, number: u32) -> Result<Thread<'_>> {
        self.shared.here()?;
        self.shared.with(|state| state.engine.open(number))?;
        Ok(Thread { messages: self, number })
    }
}

impl Thread<'_> {
    /// What others send to.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint { process: self.messages.shared.me, thread: self.number }
    }

    /// Begins something with a process, and connects to that before if it has not been.
    fn begin<R>(
        &self,
        process: Option<Process>,
        time: Option<Duration>,
        mut change: impl FnMut(&mut State) -> Result<R>,
    ) -> Result<R> {
        let shared = &self.messages.shared;
        let mut begin = || {
            shared.with(|state| match shared.signals.is_closed() {
                true => Err(Error::Closed),
                false => change(state),
            })
        };
        match (begin(), process) {
            (Err(Error::Refused(telegraphos_msg_core::Error::NoProcess(_))), Some(process)) => {
                shared.connect(process, time.map_or(ANSWER, |time| time.min(ANSWER)))?;
                begin()
            }
            (begun, _) => begun,
        }
    }

    /// How a message of so many bytes is to go, and since when that is measured. One that is too long is refused
    /// elsewhere.
    fn choose(&self, to: Process, length: u64) -> (bool, Option<Timed>) {
        let shared = &self.messages.shared;
        let config = shared.config();
        if length <= config.floor() || length > config.eager {
            return (length > config.eager && length <= config.longest, None);
        }
        let choice = shared.lock().engine.choose(to, length);
        let timed = choice.measured.then(|| Timed { to, length, choice, begun: Instant::now() });
        (choice.request, timed)
    }

    /// What `register` says of the memory of a message, if that is a request. What cannot be registered as a whole goes
    /// in pieces.
    fn prepare(
        &self,
        to: Process,
        length: u64,
        register: impl FnOnce() -> Result<Source>,
    ) -> Result<(Option<Source>, Option<Timed>)> {
        let shared = &self.messages.shared;
        let (request, timed) = self.choose(to, length);
        if request && shared.is_in_pieces(to, length) {
            return Ok((Some(Shared::source_in_pieces()?), None));
        }
        match request.then(register).transpose() {
            // It goes to a slot. Those that follow do, too, if this is not only now.
            Err(error) if length <= shared.config().eager => {
                log::debug!("a message of {length} bytes is no request: {error}");
                if let Some(Timed { choice, .. }) = timed {
                    shared.lock().engine.took(to, length, choice, Duration::MAX);
                }
                Ok((None, None))
            }
            Err(error) if is_beyond_limit(&error) => {
                log::debug!("a message of {length} bytes goes in pieces: {error}");
                Ok((Some(Shared::source_in_pieces()?), None))
            }
            memory => Ok((memory?, timed)),
        }
    }

    /// Whether others' boards store into the buffers of long messages. Into those that have room only for what may go
    /// to a slot, they do not: most would be registered for nothing.
    fn is_stored_to(&self, capacity: u64) -> bool {
        let config = self.messages.shared.config();
        config.way == Way::Put && capacity > config.eager && capacity <= WHOLE
    }

    /// A registration, unless there is too little memory for it: what comes is registered then, piece by piece.
    fn if_possible<T>(registered: Result<T>) -> Result<Option<T>> {
        match registered {
            Err(error) if is_beyond_limit(&error) => Ok(None),
            registered => registered.map(Some),
        }
    }

    /// Sends a message: returns when the receiving thread has it (SPEC item 32).
    ///
    /// Memory of a message that goes as a request is registered for the next one from there, as that of a [`Memory`]
    /// is: the receiving process's node can read it until this returns. Constants cannot be: they are copied before.
    pub fn send(&self, to: Endpoint, tag: u32, bytes: &[u8]) -> Result<()> {
        let shared = &*self.messages.shared;
        shared.here()?;
        let (mut copy, _lent) = (Vec::new(), Lent);
        // SAFETY: others may only read it.
        let register = |buffer| unsafe { shared.readable_buffer(buffer, to.process) };
        let length = bytes.len() as u64;
        let (source, timed) = match self.prepare(to.process, length, || register(Buffer::of(bytes))) {
            // A program's constants cannot be pinned, for example.
            Err(Error::Board(telegraphos::Error::Register { errno: Errno::FAULT, .. })) => {
                copy = bytes.to_vec();
                (Some(register(Buffer::of(&copy))?), None)
            }
            prepared => prepared?,
        };
        let request = Request::of_thread(Buffer::of(if copy.is_empty() { bytes } else { &copy }), None);
        let place = source.as_ref().map(|source| source.place);
        self.start_send(to, tag, (length, place, timed), &request)?;
        let grant = source.and_then(|source| source.grant);
        let sent = self.wait(&request, grant.as_ref().map(|grant| &**grant.registration()), None);
        // No other node reads the buffer any more.
        drop(grant);
        sent.map(|_| ())
    }

    fn start_send(
        &self,
        to: Endpoint,
        tag: u32,
        (length, place, timed): (u64, Option<Place>, Option<Timed>),
        request: &Arc<Request>,
    ) -> Result<()> {
        self.begin(Some(to.process), None, |state| {
            let id = state.engine.send(self.number, to, tag, length, place)?;
            state.sends(id, request.clone(), timed);
            Ok(())
        })
    }

    fn start_receive(
        &self,
        pattern: Pattern,
        capacity: u64,
        place: Option<Place>,
        request: &Arc<Request>,
        time: Option<Duration>,
    ) -> Result<ReceiveId> {
        self.begin(pattern.process, time, |state| {
            let id = state.engine.receive(self.number, pattern, capacity, place)?;
            state.receives(id, request.clone());
            Ok(id)
        })
    }

    /// Sends a copy of bytes, and does not wait (s4's `sendCopy`). The first message to a process connects to it
    /// before.
    pub fn send_copy(&self, to: Endpoint, tag: u32, bytes: &[u8]) -> Result<Handle> {
        let length = bytes.len();
        self.send_dma(to, tag, bytes.to_vec(), length)
    }

    /// Sends the first `length` bytes of memory, which the handle holds until the receiving thread has the message
    /// (s4's `sendDMA`). The first message to a process connects to it before.
    ///
    /// # Errors
    ///
    /// [`Error::Beyond`], and those of [`Thread::send`]. The memory is lost then.
    pub fn send_dma(&self, to: Endpoint, tag: u32, memory: impl Into<Memory>, length: usize) -> Result<Handle> {
        self.messages.shared.here()?;
        let mut memory = memory.into();
        if length > memory.len() {
            return Err(Error::Beyond { length, most: memory.len() });
        }
        let (shared, length) = (&self.messages.shared, length as u64);
        let (source, timed) = self.prepare(to.process, length, || {
            shared.start_moving()?;
            shared.readable(&mut memory, to.process, length)
        })?;
        let place = source.as_ref().map(|source| source.place);
        let grant = source.and_then(|source| source.grant);
        let own = grant.as_ref().map(|grant| grant.registration().clone());
        let request = Request::of_handle(memory, own, None, grant);
        self.start_send(to, tag, (length, place, timed), &request)?;
        Ok(Handle::new(shared.clone(), request, None))
    }

    /// Waits for a message. Of one that is longer than the buffer the beginning is there; its length is the whole one.
    pub fn receive(&self, pattern: Pattern, buffer: &mut [u8]) -> Result<Received> {
        self.receive_within(pattern, buffer, None)
    }

    /// The same, for at most this time.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`]: no message has been lost.
    pub fn receive_timeout(&self, pattern: Pattern, buffer: &mut [u8], time: Duration) -> Result<Received> {
        self.receive_within(pattern, buffer, Some(time))
    }

    fn receive_within(&self, pattern: Pattern, bytes: &mut [u8], time: Option<Duration>) -> Result<Received> {
        let shared = &*self.messages.shared;
        shared.here()?;
        let _lent = Lent;
        let (buffer, capacity) = (Buffer::of_mut(bytes), bytes.len() as u64);
        let node = pattern.process.map(|process| process.node);
        // SAFETY: nothing accesses it before this returns, and the registration ends before that.
        let register = || unsafe { shared.register_writable(buffer, node) };
        let writable = match self.is_stored_to(capacity) {
            true => Thread::if_possible(register())?.map(Writable::from),
            false => None,
        };
        let memory = writable.as_ref().map(|writable| writable.registration.clone());
        let place = writable.as_ref().map(|writable| writable.place);
        let request = Request::of_thread(buffer, writable);
        let id = self.start_receive(pattern, capacity, place, &request, time)?;
        let outcome = self.wait(&request, memory.as_deref(), time.map(|time| (id, time)));
        // Nothing reaches the buffer any more.
        drop((memory, request.take_owned()));
        // A receive that has not failed has a message.
        outcome?.ok_or(Error::Closed)
    }

    /// Waits for a message in memory that is made for it, and does not wait (s4's `recvCopy`). The first bytes are
    /// there of one that has more than `capacity`.
    pub fn receive_copy(&self, pattern: Pattern, capacity: usize) -> Result<Handle> {
        self.receive_dma(pattern, vec![0; capacity])
    }

    /// Has a message come into memory, which the handle holds until then (s4's `recvDMA`).
    ///
    /// # Errors
    ///
    /// Those of [`Thread::receive`]. The memory is lost then.
    pub fn receive_dma(&self, pattern: Pattern, memory: impl Into<Memory>) -> Result<Handle> {
        self.messages.shared.here()?;
        let (shared, mut memory) = (&self.messages.shared, memory.into());
        let (buffer, capacity) = (Buffer::of_mut(&mut memory), memory.len() as u64);
        let node = pattern.process.map(|process| process.node);
        let (mut private, mut writable) = (None, None);
        // The senders decide which messages are requests.
        shared.start_moving()?;
        if self.is_stored_to(capacity) {
            // SAFETY: nothing but the request, which has the memory, accesses it before its end, and `Owned` is what
            // then closes the registration.
            writable = Thread::if_possible(unsafe { shared.register_writable(buffer, node) })?.map(Writable::from);
        } else if capacity > shared.config().eager && capacity <= WHOLE {
            private = Thread::if_possible(shared.private(&mut memory))?;
        }
        let place = writable.as_ref().map(|writable| writable.place);
        let request = Request::of_handle(memory, private, writable, None);
        let id = self.start_receive(pattern, capacity, place, &request, None)?;
        Ok(Handle::new(shared.clone(), request, Some(id)))
    }

    /// Waits until a request has ended, and runs its transfer meanwhile.
    fn wait(
        &self,
        request: &Arc<Request>,
        memory: Option<&Registration>,
        receive: Option<(ReceiveId, Duration)>,
    ) -> Result<Option<Received>> {
        let shared = &*self.messages.shared;
        let (begun, mut passed) = (Instant::now(), 0);
        let mut moved = begun;
        loop {
            // One that has a message is not withdrawn: that comes, or its sender is declared gone. Each piece of it has
            // its own time.
            let limit = match (receive, passed) {
                (Some((_, time)), 0) => begun.checked_add(time),
                (Some((_, time)), 1) => begun.checked_add(time).and_then(|end| end.max(moved).checked_add(ANSWER)),
                _ => None,
            };
            match shared.next(request, limit) {
                Some(Event::Transfer(transfer)) => {
                    shared.transfer(transfer, request, memory);
                    moved = Instant::now();
                }
                Some(Event::Ended(outcome)) => {
                    return match (outcome, receive) {
                        (Err(Failure::Withdrawn), Some((_, time))) if passed > 0 => Err(Error::TimedOut(time)),
                        (outcome, _) => Ok(outcome?),
                    };
                }
                None => {
                    passed += 1;
                    let Some((id, _)) = receive else { continue };
                    shared.with(|state| match state.engine.matched(id) {
                        Some(process) if passed > 1 => state.lose(process),
                        _ => {
                            state.engine.withdraw_receive(id);
                        }
                    });
                }
            }
        }
    }
}

impl Drop for Thread<'_> {
    fn drop(&mut self) {
        if self.messages.shared.here().is_err() {
            return;
        }
        // It is open.
        _ = self.messages.shared.with(|state| state.engine.close(self.number));
    }
}
