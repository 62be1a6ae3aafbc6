// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages of a process, and its threads that send and receive.

use crate::error::{Error, Result};
use crate::layout::Element;
use crate::link::{Found, Link, Other, memory_name, queue_name};
use crate::request::{Buffer, Lent, Request, Transfer};
use crate::state::{Signals, State};
use rustix::io::Errno;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use telegraphos::{MAX_COPY, Node, Queue, Registration, Rights, Segment};
use telegraphos_msg_core::{
    Config, Endpoint, Engine, Failure, Pattern, Place, Process, ReceiveId, Received, SendId, Way,
};

/// How long a process is waited for that a message is for.
const ANSWER: Duration = Duration::from_secs(10);
/// How often processes are looked after that may have died.
const TICK: Duration = Duration::from_millis(250);
/// Elements that are taken at a time, under one lock.
const BATCH: usize = 32;

#[derive(Debug)]
struct Shared {
    /// Dropped before the node.
    queue: Queue,
    node: Node,
    me: Process,
    config: Config,
    state: Mutex<State>,
    signals: Arc<Signals>,
}

fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| telegraphos::Error::Os { what: "asking for random numbers".into(), errno })?;
    Ok(u64::from_le_bytes(bytes))
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes elements until the messages are closed.
    fn progress(&self) {
        let (mut words, mut looked) = ([0; BATCH], Instant::now());
        loop {
            let count = match self.queue.pop_wait(Some(TICK)) {
                Ok(None) => 0,
                Ok(Some(word)) => {
                    words[0] = word;
                    // What else there is.
                    1 + self.queue.pop_batch(&mut words[1..]).unwrap_or(0)
                }
                Err(error) => {
                    log::error!("no more messages are received: {error}");
                    self.close();
                    return;
                }
            };
            let mut state = self.lock();
            if state.closed {
                return;
            }
            for word in &words[..count] {
                state.element(*word, &self.config);
            }
            if looked.elapsed() >= TICK {
                looked = Instant::now();
                Shared::look(&mut state);
            }
        }
    }

    /// Looks whether processes have died, or have not answered.
    fn look(state: &mut State) {
        let is_lost = |link: &Link| link.is_lost() || !link.up && link.begun.elapsed() > ANSWER;
        let lost: Vec<Process> = state.links.iter().filter(|(_, link)| is_lost(link)).map(|(p, _)| *p).collect();
        lost.iter().for_each(|process| state.lose(*process));
    }

    /// Connects to processes, and closes links, until the messages are closed.
    fn connect_all(&self) {
        let mut state = self.lock();
        loop {
            let ended = std::mem::take(&mut state.ended);
            if state.closed && ended.is_empty() {
                return;
            }
            let process = state.wanted.pop_first().or_else(|| state.hellos.pop_first());
            if ended.is_empty() && process.is_none() {
                state = self.signals.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.connecting = process;
            if let Some(process) = process {
                state.refused.remove(&process);
            }
            drop(state);
            // Before an inbox of the same name is made.
            drop(ended);
            let outcome = process.map_or(Ok(()), |process| self.link(process));
            state = self.lock();
            state.connecting = None;
            if let (Some(process), Err(error)) = (process, outcome) {
                state.lose(process);
                // Whoever says hello and goes is not asked for.
                if state.refused.len() < self.config.peers as usize {
                    state.refused.insert(process, error.to_string());
                }
            }
            self.signals.linked.notify_all();
        }
    }

    /// Does what can be done now to connect to a process.
    fn link(&self, process: Process) -> Result<()> {
        if !self.lock().links.contains_key(&process) {
            let link = Link::open(&self.node, &self.config, self.me, process, random()? as u32)?;
            let mut state = self.lock();
            if state.links.len() >= self.config.peers as usize {
                return Err(telegraphos_msg_core::Error::Peers(self.config.peers).into());
            }
            link.elements.enqueue(Element::Hello(self.me).encode())?;
            state.add(process, link);
        }
        let found = Other::find(&self.node, &self.config, self.me, process)?;
        let mut state = self.lock();
        let Some(link) = state.links.get_mut(&process) else { return Ok(()) };
        match (found, &link.other) {
            (Found::NotYet, _) => {}
            (Found::Unlike, _) => link.unlike = true,
            // A hello that is late, or another's.
            (Found::Yes(other), Some(before)) if before.key == other.key => {}
            (Found::Yes(_), Some(_)) if link.up => {
                // It has begun anew: so does this one.
                state.lose(process);
                state.hellos.insert(process);
            }
            (Found::Yes(other), _) => {
                let of = link.key as u16;
                link.other = Some(*other);
                link.say(|key| Element::Ready { key, of });
                state.try_up(process);
            }
        }
        Ok(())
    }

    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.wanted.clear();
        state.hellos.clear();
        for link in state.links.values() {
            link.say(|key| Element::Goodbye { key });
        }
        for request in state.sends.values_mut().filter(|request| request.outcome.is_none()) {
            request.end(Err(Failure::Gone));
        }
        for request in state.receives.values_mut().filter(|request| request.outcome.is_none()) {
            request.end(Err(Failure::Closed));
        }
        drop(state);
        self.signals.notify();
    }
}

/// The messages of a process.
#[derive(Debug)]
pub struct Messages {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// A name of a process, until it is dropped.
#[derive(Debug)]
pub struct Name {
    _segment: Segment,
}

fn name_of(name: &str) -> String {
    format!("msg.at.{name}")
}

impl Messages {
    /// Opens messages for this process, which is another [`Process`] each time. Processes of the same user, on any
    /// node, with an equal configuration, can send to it.
    pub fn open(node: Node, config: Config) -> Result<Messages> {
        let engine = Engine::new(config.clone())?;
        let me = Process { node: node.id(), number: random()? as u32 };
        let queue = Queue::create(&node, &queue_name(me)).wide().create()?;
        let signals = Arc::new(Signals::default());
        let state = Mutex::new(State::new(engine, &config, signals.clone()));
        let shared = Arc::new(Shared { queue, node, me, config, state, signals });
        let mut messages = Messages { shared, threads: Vec::new() };
        for (name, run) in [("msg-progress", Shared::progress as fn(&Shared)), ("msg-connect", Shared::connect_all)] {
            let shared = messages.shared.clone();
            let spawned = std::thread::Builder::new().name(name.into()).spawn(move || run(&shared));
            messages.threads.push(spawned.map_err(|error| telegraphos::Error::Os {
                what: format!("starting the thread {name}"),
                errno: Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
            })?);
        }
        Ok(messages)
    }

    /// This process.
    pub fn process(&self) -> Process {
        self.shared.me
    }

    /// Gives this process a name on its node, by which others find it.
    pub fn publish(&self, name: &str) -> Result<Name> {
        let segment = self.shared.node.export(&name_of(name), 8).create()?;
        // With a bit more, so that 0 is not there yet.
        segment.store(0, u64::from(self.shared.me.number) | 1 << 32)?;
        Ok(Name { _segment: segment })
    }

    /// The process of that name on a node.
    ///
    /// # Errors
    ///
    /// [`Error::NoName`].
    pub fn find(&self, node: u16, name: &str) -> Result<Process> {
        let none = || Error::NoName { node, name: name.to_owned() };
        let import = self.shared.node.import(node, &name_of(name)).rights(Rights::READ).soft().open();
        let word = import.map_err(|_| none())?.get64(0)?;
        if word >> 32 != 1 {
            return Err(none());
        }
        Ok(Process { node, number: word as u32 })
    }

    /// Connects to a process, for at most this time. The first message to it does so, too.
    ///
    /// # Errors
    ///
    /// [`Error::NotReached`], [`Error::NoAnswer`], [`Error::Unlike`].
    pub fn connect(&self, process: Process, time: Duration) -> Result<()> {
        let Signals { linked, work } = &*self.shared.signals;
        let (begun, mut tried) = (Instant::now(), false);
        let mut state = self.shared.lock();
        loop {
            if state.closed {
                return Err(Error::Closed);
            }
            if state.is_up(process) {
                return Ok(());
            }
            let busy = state.wanted.contains(&process) || state.connecting == Some(process);
            let link = state.links.get(&process);
            if let Some(why) = state.refused.get(&process).filter(|_| tried && !busy) {
                return Err(Error::NotReached { process, why: why.clone() });
            }
            if link.is_some_and(|link| link.unlike) && tried && !busy {
                return Err(Error::Unlike(process));
            }
            // At first, and where the link that was made has ended.
            if !tried || link.is_none() && !busy {
                tried = true;
                state.wanted.insert(process);
                work.notify_all();
            }
            let left = time.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(Error::NoAnswer { process, time });
            }
            state = linked.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A thread of this process, which can receive from now on. Its number is its own.
    pub fn thread(&self, number: u32) -> Result<Thread<'_>> {
        self.shared.lock().engine.open(number)?;
        Ok(Thread { messages: self, number })
    }

    /// Memory for a long message, under a number by which others have their boards reach it.
    ///
    /// # Safety
    /// As for [`Node::register`].
    unsafe fn memory(&self, buffer: Buffer, mode: u32, node: Option<u16>) -> Result<(Registration, Place)> {
        // Nobody guesses it.
        let id = random()?;
        // SAFETY: the caller's promise.
        let memory = unsafe { self.shared.node.register(buffer.first(u64::MAX)) };
        let mut builder = memory.name(&memory_name(self.shared.me, id)).mode(mode);
        if let Some(node) = node {
            builder = builder.nodes(&[node]);
        }
        Ok((builder.create()?, Place(id)))
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        self.shared.close();
        for thread in self.threads.drain(..) {
            // It has not panicked, or has said so.
            _ = thread.join();
        }
        let mut state = self.shared.lock();
        state.ended.clear();
        state.links.clear();
    }
}

/// A thread that sends and receives. It need not be a thread of the system's, and may be used by several.
#[derive(Debug)]
pub struct Thread<'a> {
    messages: &'a Messages,
    number: u32,
}

enum Which {
    Send(SendId),
    Receive(ReceiveId),
}

impl Thread<'_> {
    /// What others send to.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint { process: self.messages.shared.me, thread: self.number }
    }

    /// Sends a message: returns when the receiving thread has it (SPEC item 32).
    pub fn send(&self, to: Endpoint, tag: u32, bytes: &[u8]) -> Result<()> {
        let shared = &*self.messages.shared;
        if !shared.lock().is_up(to.process) {
            self.messages.connect(to.process, ANSWER)?;
        }
        let length = bytes.len() as u64;
        let long = length > shared.config.eager && length <= shared.config.longest;
        let (mut copy, _lent) = (Vec::new(), Lent);
        // SAFETY: others may only read it, and the registration ends before this returns.
        let register = |buffer| unsafe { self.messages.memory(buffer, 0o400, Some(to.process.node)) };
        let memory = match long.then(|| register(Buffer::of(bytes))).transpose() {
            // A program's constants cannot be pinned, for example.
            Err(Error::Board(telegraphos::Error::Register { errno: Errno::FAULT, .. })) => {
                copy = bytes.to_vec();
                Some(register(Buffer::of(&copy))?)
            }
            memory => memory?,
        };
        let buffer = Buffer::of(if copy.is_empty() { bytes } else { &copy });
        let (memory, place) = memory.map_or((None, None), |(memory, place)| (Some(memory), Some(place)));
        let mut state = shared.lock();
        if state.closed {
            return Err(Error::Closed);
        }
        let id = state.engine.send(self.number, to, tag, length, place)?;
        state.sends.insert(id, Request::new(buffer));
        state.perform();
        self.wait(state, &Which::Send(id), memory, None).map(|_| ())
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
        if let Some(process) = pattern.process.filter(|process| !shared.lock().is_up(*process)) {
            self.messages.connect(process, time.map_or(ANSWER, |time| time.min(ANSWER)))?;
        }
        let _lent = Lent;
        let (buffer, capacity) = (Buffer::of_mut(bytes), bytes.len() as u64);
        let put = shared.config.way == Way::Put && capacity > shared.config.eager;
        let node = pattern.process.map(|process| process.node);
        // SAFETY: nothing accesses it before this returns, and the registration ends before that.
        let memory = put.then(|| unsafe { self.messages.memory(buffer, 0o200, node) }).transpose()?;
        let (memory, place) = memory.map_or((None, None), |(memory, place)| (Some(memory), Some(place)));
        let mut state = shared.lock();
        if state.closed {
            return Err(Error::Closed);
        }
        let id = state.engine.receive(self.number, pattern, capacity, place)?;
        state.receives.insert(id, Request::new(buffer));
        state.perform();
        // A receive that has not failed has a message.
        self.wait(state, &Which::Receive(id), memory, time)?.ok_or(Error::Closed)
    }

    /// Waits until a request has ended, and runs its transfer meanwhile.
    fn wait<'s>(
        &'s self,
        mut state: MutexGuard<'s, State>,
        which: &Which,
        mut memory: Option<Registration>,
        time: Option<Duration>,
    ) -> Result<Option<Received>> {
        let shared = &*self.messages.shared;
        let (begun, mut passed) = (Instant::now(), 0);
        loop {
            let request = match which {
                Which::Send(id) => state.sends.get_mut(id),
                Which::Receive(id) => state.receives.get_mut(id),
            };
            // It is there until it is removed below.
            let Some(request) = request else { return Err(Error::Closed) };
            if let Some(transfer) = request.transfer.take() {
                let buffer = request.buffer;
                drop(state);
                let moved = self.transfer(transfer, buffer, &mut memory);
                if let Err(error) = &moved {
                    log::debug!("a message with {} was not moved: {error}", transfer.other);
                }
                state = shared.lock();
                state.engine.transferred(transfer.id, moved.is_ok());
                state.perform();
                continue;
            }
            if let Some(outcome) = request.outcome.take() {
                match which {
                    Which::Send(id) => state.sends.remove(id),
                    Which::Receive(id) => state.receives.remove(id),
                };
                drop(state);
                // Nobody reaches the memory any more.
                drop(memory);
                return match (outcome, time) {
                    (Err(Failure::Withdrawn), Some(time)) if passed > 0 => Err(Error::TimedOut(time)),
                    (outcome, _) => Ok(outcome?),
                };
            }
            let wake = request.wake.clone();
            // One that has a message is not withdrawn: that comes, or its sender is given up.
            let limit = match passed {
                0 => time,
                1 => time.map(|time| time + ANSWER),
                _ => None,
            };
            let left = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
            if let (Some(Duration::ZERO), Which::Receive(id)) = (left, which) {
                passed += 1;
                match state.engine.matched(*id) {
                    Some(process) if passed > 1 => state.lose(process),
                    _ => {
                        state.engine.withdraw_receive(*id);
                        state.perform();
                    }
                }
                continue;
            }
            state = match left {
                Some(left) => wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
                None => wake.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Has this board move the bytes of a message, from one process's memory into the other's (I17).
    fn transfer(&self, transfer: Transfer, buffer: Buffer, memory: &mut Option<Registration>) -> Result<()> {
        let node = &self.messages.shared.node;
        let Transfer { fetch, other, at, length, .. } = transfer;
        let own = match memory {
            Some(own) => own,
            None => {
                // SAFETY: it is the thread's, which is here; it ends before the thread returns.
                memory.insert(unsafe { node.register(buffer.first(length)) }.create()?)
            }
        };
        let right = if fetch { Rights::READ } else { Rights::WRITE };
        let rights = Rights(right.0 | Rights::DMA.0);
        let theirs = node.import(other.node, &memory_name(other, at.0)).rights(rights).soft().open()?;
        for offset in (0..length).step_by(MAX_COPY as usize) {
            let part = MAX_COPY.min(length - offset);
            match fetch {
                true => theirs.get_block(offset, own, offset, part)?,
                false => theirs.put_block(offset, own, offset, part)?,
            }
        }
        Ok(())
    }
}

impl Drop for Thread<'_> {
    fn drop(&mut self) {
        let mut state = self.messages.shared.lock();
        // It is open.
        _ = state.engine.close(self.number);
        state.perform();
    }
}
