// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages of a process, and its threads that send and receive.

use crate::error::{Error, Result};
use crate::layout::Element;
use crate::link::{Found, Link, Other, memory_name, queue_name};
use crate::request::{Buffer, Request, Transfer};
use crate::state::State;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use telegraphos::{Node, Queue, Registration, Rights, Segment};
use telegraphos_msg_core::{
    Config, Endpoint, Engine, Failure, Pattern, Place, Process, ReceiveId, Received, SendId, Way,
};

/// How long a process is waited for that a message is for.
const ANSWER: Duration = Duration::from_secs(10);
/// How often processes are looked after that may have died.
const TICK: Duration = Duration::from_millis(250);
/// Most bytes that a board moves at a time.
const PART: u64 = 16 << 20;
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
    /// A link has changed.
    linked: Condvar,
    /// There is something for the connecting thread.
    work: Condvar,
    /// Of memory that is registered under a name.
    memories: AtomicU64,
}

fn random() -> Result<u32> {
    let mut bytes = [0; 4];
    let what = || "asking for random numbers".to_owned();
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| telegraphos::Error::Os { what: what(), errno })?;
    Ok(u32::from_le_bytes(bytes))
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
            let mut work = false;
            for word in &words[..count] {
                work |= state.element(*word, &self.config);
            }
            if looked.elapsed() >= TICK {
                looked = Instant::now();
                work |= Shared::look(&mut state);
            }
            drop(state);
            if work {
                self.linked.notify_all();
                self.work.notify_all();
            }
        }
    }

    /// Looks whether processes have died, or have not answered. True if one has.
    fn look(state: &mut State) -> bool {
        let is_lost = |link: &Link| match &link.other {
            Some(other) if link.up => other.is_lost(),
            _ => link.begun.elapsed() > ANSWER,
        };
        let lost: Vec<Process> = state.links.iter().filter(|(_, link)| is_lost(link)).map(|(p, _)| *p).collect();
        lost.iter().for_each(|process| state.lose(*process));
        !lost.is_empty()
    }

    /// Connects to processes, and closes links, until the messages are closed.
    fn connect_all(&self) {
        let mut state = self.lock();
        loop {
            let ended = std::mem::take(&mut state.ended);
            let process = state.wanted.pop_first();
            if ended.is_empty() && process.is_none() {
                if state.closed {
                    return;
                }
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            drop(state);
            drop(ended);
            if let Some(process) = process {
                if let Err(error) = self.link(process) {
                    let mut state = self.lock();
                    state.lose(process);
                    // Whoever says hello and goes is not asked for.
                    if state.refused.len() < self.config.peers as usize {
                        state.refused.insert(process, error);
                    }
                }
                self.linked.notify_all();
            }
            state = self.lock();
        }
    }

    /// Does what can be done now to connect to a process.
    fn link(&self, process: Process) -> Result<()> {
        let known = self.lock().links.contains_key(&process);
        let elements = match known {
            true => None,
            false => {
                // It is there: nobody else has memory made for it.
                let elements = Other::elements(&self.node, process)?;
                let key = random()?;
                let link = Link::open(&self.node, &self.config, self.me, process, key)?;
                let mut state = self.lock();
                if state.links.len() >= self.config.peers as usize {
                    return Err(telegraphos_msg_core::Error::Peers(self.config.peers).into());
                }
                state.add(process, link);
                drop(state);
                elements.enqueue(Element::Hello(self.me).encode())?;
                Some(elements)
            }
        };
        if self.lock().links.get(&process).is_none_or(|link| link.other.is_some()) {
            return Ok(());
        }
        let elements = elements.map_or_else(|| Other::elements(&self.node, process), Ok)?;
        match Other::find(&self.node, &self.config, self.me, process, elements)? {
            Found::Yes(other) => {
                other.elements.enqueue(Element::Ready { key: other.key }.encode())?;
                let mut state = self.lock();
                if let Some(link) = state.links.get_mut(&process) {
                    link.other = Some(*other);
                }
                state.try_up(process);
            }
            Found::NotYet => {}
            Found::Unlike => {
                if let Some(link) = self.lock().links.get_mut(&process) {
                    link.unlike = true;
                }
            }
        }
        Ok(())
    }

    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        for link in state.links.values().filter(|link| link.up) {
            if let Some(other) = &link.other {
                // Else it finds out.
                _ = other.elements.enqueue(Element::Goodbye { key: other.key }.encode());
            }
        }
        for request in state.sends.values_mut() {
            request.end(Err(Failure::Gone));
        }
        for request in state.receives.values_mut() {
            request.end(Err(Failure::Closed));
        }
        drop(state);
        self.work.notify_all();
        self.linked.notify_all();
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
        let me = Process { node: node.id(), number: random()? };
        let queue = Queue::create(&node, &queue_name(me)).wide().create()?;
        let state = Mutex::new(State::new(engine, &config));
        let (linked, work) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { queue, node, me, config, state, linked, work, memories: AtomicU64::new(1) });
        let mut messages = Messages { shared, threads: Vec::new() };
        for (name, run) in [("msg-progress", Shared::progress as fn(&Shared)), ("msg-connect", Shared::connect_all)] {
            let shared = messages.shared.clone();
            let spawned = std::thread::Builder::new().name(name.into()).spawn(move || run(&shared));
            messages.threads.push(spawned.map_err(|error| telegraphos::Error::Os {
                what: format!("starting the thread {name}"),
                errno: rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN),
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
        // Numbers are from 1 on, so that 0 is not there yet.
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
    /// [`Error::NoAnswer`], [`Error::Unlike`].
    pub fn connect(&self, process: Process, time: Duration) -> Result<()> {
        let Shared { linked, work, .. } = &*self.shared;
        let begun = Instant::now();
        let mut state = self.shared.lock();
        if !state.is_up(process) {
            state.refused.remove(&process);
            state.wanted.insert(process);
            work.notify_all();
        }
        loop {
            if state.closed {
                return Err(Error::Closed);
            }
            if state.is_up(process) {
                return Ok(());
            }
            if let Some(error) = state.refused.remove(&process) {
                return Err(error);
            }
            if state.links.get(&process).is_some_and(|link| link.unlike) {
                return Err(Error::Unlike(process));
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
    unsafe fn memory(&self, buffer: Buffer, nodes: Option<u16>) -> Result<(Registration, Place)> {
        let id = self.shared.memories.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        let mut builder =
            unsafe { self.shared.node.register(buffer.as_slice()) }.name(&memory_name(self.shared.me, id));
        if let Some(node) = nodes {
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
        let (buffer, length) = (Buffer::of(bytes), bytes.len() as u64);
        let long = length > shared.config.eager && length <= shared.config.longest;
        // SAFETY: boards only read it, and the registration ends before this returns.
        let memory = long.then(|| unsafe { self.messages.memory(buffer, Some(to.process.node)) }).transpose()?;
        let (memory, place) = memory.map_or((None, None), |(memory, place)| (Some(memory), Some(place)));
        let mut state = shared.lock();
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
            self.messages.connect(process, ANSWER)?;
        }
        let (buffer, capacity) = (Buffer::of_mut(bytes), bytes.len() as u64);
        let put = shared.config.way == Way::Put && capacity > shared.config.eager;
        let nodes = pattern.process.map(|process| process.node);
        // SAFETY: nothing accesses it before this returns, and the registration ends before that.
        let memory = put.then(|| unsafe { self.messages.memory(buffer, nodes) }).transpose()?;
        let (memory, place) = memory.map_or((None, None), |(memory, place)| (Some(memory), Some(place)));
        let mut state = shared.lock();
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
        let (begun, mut withdrawn) = (Instant::now(), false);
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
                    (Err(Failure::Withdrawn), Some(time)) if withdrawn => Err(Error::TimedOut(time)),
                    (outcome, _) => Ok(outcome?),
                };
            }
            let wake = request.wake.clone();
            let left = time.filter(|_| !withdrawn).map(|time| time.saturating_sub(begun.elapsed()));
            if let (Some(Duration::ZERO), Which::Receive(id)) = (left, which) {
                // Else it has a message, which comes.
                withdrawn = true;
                state.engine.withdraw_receive(*id);
                state.perform();
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
                memory.insert(unsafe { node.register(buffer.as_slice()) }.create()?)
            }
        };
        let right = if fetch { Rights::READ } else { Rights::WRITE };
        let rights = Rights(right.0 | Rights::DMA.0);
        let theirs = node.import(other.node, &memory_name(other, at.0)).rights(rights).soft().open()?;
        for offset in (0..length).step_by(PART as usize) {
            let part = PART.min(length - offset);
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
