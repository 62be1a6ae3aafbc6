// SPDX-License-Identifier: MIT OR Apache-2.0
//! The messages of a process, as its threads share them: those of the program, those of the ports, the *connecting
//! thread*, which makes inboxes and imports and so waits for other boards, and the *moving thread*, which runs the
//! transfers of handles.

use crate::beyond::Beyond;
use crate::cache::{Cache, PAGE};
use crate::error::{Error, Result};
use crate::grant::{Readable, Source};
use crate::link::{Found, LASTING, Link, Seen};
use crate::memory::Memory;
use crate::nodes::Nodes;
use crate::options::{Options, Progress};
use crate::pollers::Pollers;
use crate::port::{Port, TICK};
use crate::request::{Buffer, Event, Move, Request, Transfer, Writable};
use crate::state::{Due, Known, Signals, State};
use rustix::io::Errno;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use telegraphos::{MAX_COPY, Node, RegisterBuilder, Registration, Remote, Rights};
use telegraphos_msg_core::{Config, Engine, Failure, Place, Process};
use telegraphos_wire::names;

/// How long a process is waited for that a message is for.
pub(crate) const ANSWER: Duration = Duration::from_secs(10);
/// Processes of one node that have said hello, and have not answered, at most: no more of it are looked at until one of
/// these has answered, or its link ends. An inbox is made for each.
const UNANSWERED: usize = 16;
/// Bytes of the longest message that is registered as a whole: memory is pinned for it, and the window that others'
/// memory is imported into has to have room for all of it.
pub(crate) const WHOLE: u64 = 32 << 20;
/// Bytes of one piece of a longer message.
const PIECE: u64 = 4 << 20;
/// Between two looks whether a link that has ended is used no more.
const RETRY: Duration = Duration::from_millis(5);

/// How many forks this process is behind the one that counted first: what is asked before each message makes no system
/// call.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Has them counted from now on; how many there are.
fn count_forks() -> u32 {
    static COUNTED: Once = Once::new();
    extern "C" fn forked() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the function may be called at any fork.
    COUNTED.call_once(|| _ = unsafe { libc::pthread_atfork(None, None, Some(forked)) });
    FORKS.load(Ordering::Relaxed)
}

#[derive(Debug)]
pub(crate) struct Shared {
    /// Those that are open come first. Dropped before the node.
    ports: Box<[OnceLock<Port>]>,
    state: Mutex<State>,
    pub(crate) node: Node,
    pub(crate) me: Process,
    /// The system's number of the process that has opened this, and its [`FORKS`].
    opener: (u32, u32),
    pub(crate) nodes: Nodes,
    pub(crate) listens_at: Option<SocketAddr>,
    pub(crate) options: Options,
    pub(crate) signals: Arc<Signals>,
    pub(crate) pollers: Pollers,
    /// Dropped before the node.
    pub(crate) cache: Cache,
    /// To be joined.
    threads: Mutex<Vec<JoinHandle<()>>>,
    moving: OnceLock<()>,
}

/// Loads a message from another process's memory into its buffer.
fn load(theirs: &Remote, length: u64, buffer: Buffer) -> Result<()> {
    let (whole, rest) = (length & !7, length % 8);
    let (mut words, mut bytes) = (vec![0; whole as usize / 8], [0; 8]);
    theirs.get_slice(0, &mut words)?;
    theirs.get_slice(whole, &mut bytes[..rest as usize])?;
    words.push(u64::from_le_bytes(bytes));
    let state = theirs.state()?;
    if state.dead || state.cut || state.error.is_some() {
        return Err(Failure::Failed.into());
    }
    let mut words = words.into_iter();
    // SAFETY: the request has not ended, so its memory is there, and this message is its. One that may go to slots is
    // not longer than those.
    unsafe { buffer.write(0, length as u32, || words.next().unwrap_or(0)) };
    Ok(())
}

/// A number that no other process can predict.
fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| telegraphos::Error::Os { what: "asking for random numbers".into(), errno })?;
    Ok(u64::from_le_bytes(bytes))
}

/// A place that no one else knows, for one message.
fn random_place() -> Result<Place> {
    Ok(Place(random()? & !(LASTING | Place::PIECES)))
}

/// Whether memory was not registered since its user may lock no more of it, or the system has no more.
pub(crate) fn is_beyond_limit(error: &Error) -> bool {
    matches!(error, Error::Board(telegraphos::Error::Register { errno: Errno::NOMEM, .. }))
}

/// Registers as much of so many bytes as can be at once. How much that is, and what it is.
fn most<T>(length: u64, mut register: impl FnMut(u64) -> Result<T>) -> Result<(u64, T)> {
    let mut most = length;
    loop {
        match register(most) {
            Err(error) if most > PAGE && is_beyond_limit(&error) => most = (most / 2).next_multiple_of(PAGE),
            registered => return registered.map(|registered| (most, registered)),
        }
    }
}

/// Whether an import has found no room in the window of its node.
fn is_without_room(error: &Error) -> bool {
    matches!(error, Error::Board(telegraphos::Error::Import { errno: Errno::NOSPC, .. }))
}

impl Shared {
    /// `listens_at` is where neighbours connect to, if they may.
    pub(crate) fn open(node: Node, options: Options, listens_at: Option<SocketAddr>) -> Result<Arc<Shared>> {
        let engine = Engine::new(options.config.clone())?;
        if !(1..=Options::MOST_PORTS).contains(&options.ports) {
            return Err(Error::Ports { ports: options.ports, most: Options::MOST_PORTS });
        }
        let first = options.routing.as_ref().map_or(0, |routing| routing.first_node);
        let count = node.info()?.nodes;
        let nodes = Nodes::new(first, count)
            .ok_or_else(|| Error::Routing(format!("first_node is {first}: expected at most 65536 - {count}")))?;
        let me = Process { node: nodes.global(node.id()), number: random()? as u32 };
        let signals = Arc::new(Signals::default());
        let mut state = State::new(engine, &options.config, signals.clone());
        if let Some(routing) = &options.routing {
            state.beyond = Some(Beyond::new(&options.config, me, routing.gateway, random()?));
        }
        let shared = Arc::new(Shared {
            ports: (0..options.ports).map(|_| OnceLock::new()).collect(),
            state: Mutex::new(state),
            node,
            me,
            opener: (std::process::id(), count_forks()),
            nodes,
            listens_at,
            pollers: Pollers::new(options.yields),
            options,
            signals,
            cache: Cache::default(),
            threads: Mutex::default(),
            moving: OnceLock::new(),
        });
        shared.open_port(0)?;
        shared.spawn("msg-connect", |shared| shared.connect_all())?;
        Ok(shared)
    }

    /// An error in a child, which has the memory of this as it was, with locks that threads have which there are not,
    /// but none of the board's.
    pub(crate) fn here(&self) -> Result<()> {
        match self.opener.1 == FORKS.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err(Error::Forked { opener: self.opener.0 }),
        }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.options.config
    }

    /// Opens a port that is not. Only one thread does so at a time.
    fn open_port(self: &Arc<Shared>, number: u16) -> Result<()> {
        let port = Port::open(&self.node, self.me, number)?;
        _ = self.ports[usize::from(number)].set(port);
        if number > 0 && self.options.progress == Progress::Polling {
            return Ok(());
        }
        self.spawn(&format!("msg-port-{number}"), move |shared| {
            if let Some(port) = shared.ports[usize::from(number)].get() {
                shared.run_port(port, number == 0);
            }
        })
    }

    /// A thread that ends when the messages are closed, or before.
    pub(crate) fn spawn(self: &Arc<Shared>, name: &str, run: impl FnOnce(Arc<Shared>) + Send + 'static) -> Result<()> {
        let shared = self.clone();
        let spawned = std::thread::Builder::new().name(name.into()).spawn(move || run(shared));
        let thread = spawned.map_err(|error| telegraphos::Error::Os {
            what: format!("starting the thread {name}"),
            errno: Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
        })?;
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        // Those of streams come and go.
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    /// Ports that are open.
    pub(crate) fn open_ports(&self) -> impl Iterator<Item = &Port> {
        self.ports.iter().map_while(OnceLock::get)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and does what that calls for.
    pub(crate) fn with<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let result = change(&mut state);
        loop {
            state.perform();
            let Due { links, requests } = state.take_due();
            drop(state);
            drop(requests);
            let lost: Vec<_> = links.into_iter().filter(|(_, link)| !link.drain(&self.node)).collect();
            if lost.is_empty() {
                return result;
            }
            state = self.lock();
            lost.iter().for_each(|(process, link)| state.lose_by(*process, link));
        }
    }

    /// Waits for the next event of a request; `None` if there is none until `limit`.
    pub(crate) fn next(&self, request: &Request, limit: Option<Instant>) -> Option<Event> {
        if self.options.progress != Progress::Adaptive {
            return request.next(limit);
        }
        let came = || {
            request.try_next().or_else(|| {
                // A port's own thread finds out as well what is wrong, and says so.
                _ = self.poll();
                request.try_next()
            })
        };
        self.pollers.wait(limit, came, || request.next(limit))
    }

    /// Handles what has come, in the thread that calls.
    pub(crate) fn poll(&self) -> Result<()> {
        self.open_ports().try_for_each(|port| port.poll(|words| self.handle(words)))
    }

    fn handle(&self, words: &[u64]) {
        self.with(|state| words.iter().for_each(|word| state.element(*word)));
    }

    /// Takes elements of a port until the messages are closed. One port looks after all links.
    fn run_port(&self, port: &Port, looks: bool) {
        let mut looked = Instant::now();
        while !self.signals.is_closed() {
            let sleep = || port.sleep(|words| self.handle(words));
            let taken = match self.options.progress {
                Progress::Blocking => sleep(),
                // One thread for all of them.
                Progress::Polling => self.poll().map(|()| self.pollers.rest()),
                Progress::Adaptive if self.pollers.stand_aside() => Ok(()),
                Progress::Adaptive => sleep(),
            };
            if let Err(error) = taken {
                log::error!("no more messages are received: {error}");
                self.close();
                return;
            }
            if looks && looked.elapsed() >= TICK {
                looked = Instant::now();
                self.look();
            }
        }
    }

    /// Looks whether processes have died, or have not answered.
    fn look(&self) {
        let links: Vec<_> = self.lock().links().map(|(process, link, up)| (process, link.clone(), up)).collect();
        for (process, link, up) in links {
            let (begun, seen) = (Instant::now(), link.look());
            if seen == Seen::Lost || !up && link.begun.elapsed() > ANSWER {
                self.with(|state| state.lose_by(process, &link));
            } else if seen == Seen::There {
                self.with(|state| state.is_there(process, begun));
            }
        }
    }

    /// Connects to processes, and closes links, until the messages are closed.
    fn connect_all(self: &Arc<Shared>) {
        let mut state = self.lock();
        loop {
            if self.signals.is_closed() && state.ended.is_empty() {
                return;
            }
            // Links that a thread still has something to do with are looked at later.
            let (ended, used) = std::mem::take(&mut state.ended)
                .into_iter()
                .partition::<Vec<_>, _>(|(_, link)| Arc::strong_count(link) == 1);
            let waits = !used.is_empty();
            state.ended = used;
            let process = Shared::next_to_connect(&mut state);
            if ended.is_empty() && process.is_none() {
                let work = &self.signals.work;
                state = if waits {
                    work.wait_timeout(state, RETRY).unwrap_or_else(PoisonError::into_inner).0
                } else {
                    work.wait(state).unwrap_or_else(PoisonError::into_inner)
                };
                continue;
            }
            state.connecting = process;
            if let Some(process) = process {
                state.refused.remove(&process);
            }
            drop(state);
            for (_, link) in ended {
                link.goodbye();
            }
            let outcome = process.map_or(Ok(()), |process| self.link(process));
            if let (Some(process), Err(_)) = (process, &outcome) {
                self.with(|state| state.lose(process));
            }
            state = self.lock();
            state.connecting = None;
            if let (Some(process), Err(error)) = (process, outcome) {
                state.refuse(process, error.to_string());
            }
            self.signals.linked.notify_all();
        }
    }

    /// A process that is to be connected to, and whose last link, if there was one, is closed: inboxes have names.
    fn next_to_connect(state: &mut State) -> Option<Process> {
        let unanswered = |node| state.links().filter(|(process, _, up)| !up && process.node == node).count();
        let is_free = |process: &Process| state.ended.iter().all(|(ended, _)| ended != process);
        // The hello of a process that has a link is its answer.
        let is_known = |process: &Process| state.link(*process).is_some();
        let is_admitted =
            |process: &Process| is_free(process) && (is_known(process) || unanswered(process.node) < UNANSWERED);
        let wanted = state.wanted.iter().find(|process| is_free(process)).copied();
        let process = wanted.or_else(|| state.hellos.iter().find(|process| is_admitted(process)).copied())?;
        state.wanted.remove(&process);
        state.hellos.remove(&process);
        Some(process)
    }

    /// The port for one more link: another one, or that with the fewest links.
    fn port(self: &Arc<Shared>) -> u16 {
        let open = self.open_ports().count();
        let mut links = vec![0; open];
        // No port is closed.
        self.lock().links().for_each(|(_, link, _)| links[usize::from(link.port)] += 1);
        let least = (0..open).min_by_key(|port| links[*port]).unwrap_or(0);
        if links[least] > 0 && open < self.ports.len() {
            match self.open_port(open as u16) {
                Ok(()) => return open as u16,
                // It goes without.
                Err(error) => log::debug!("port {open} is not opened: {error}"),
            }
        }
        least as u16
    }

    /// Does what can be done now to connect to a process.
    fn link(self: &Arc<Shared>, process: Process) -> Result<()> {
        let known = self.lock().link(process).cloned();
        let link = match known {
            Some(link) => link,
            None => {
                let mine = (self.me, self.port());
                let Some(at) = self.nodes.local(process.node) else {
                    return Err(Error::NotReached { process, why: "no board has that node".into() });
                };
                let link = Link::open(&self.node, self.config(), mine, (process, at), random()? as u32)?;
                let link = Arc::new(link);
                let mut state = self.lock();
                if state.links().count() >= self.config().peers as usize {
                    return Err(telegraphos_msg_core::Error::Peers(self.config().peers).into());
                }
                state.add(process, link.clone());
                drop(state);
                link.hello()?;
                link
            }
        };
        let found = link.find(&self.node, self.config(), process)?;
        match (found, link.other()) {
            (Found::NotYet, _) => {}
            (Found::Unlike, _) => self.lock().is_unlike(process),
            // A hello that is late, or another's.
            (Found::Yes(other), Some(before)) if before.key == other.key => {}
            (Found::Yes(_), Some(_)) => self.with(|state| {
                // It has begun anew: so does this one.
                state.lose(process);
                state.hellos.insert(process);
            }),
            (Found::Yes(other), None) => drop(self.with(|state| state.meet(process, &link, *other))),
        }
        Ok(())
    }

    /// Connects to a process, for at most this time.
    pub(crate) fn connect(&self, process: Process, time: Duration) -> Result<()> {
        match self.nodes.local(process.node) {
            Some(_) => self.connect_near(process, time),
            None => self.connect_far(process, time),
        }
    }

    /// The same by boards.
    fn connect_near(&self, process: Process, time: Duration) -> Result<()> {
        let Signals { linked, work, .. } = &*self.signals;
        let (begun, mut tried) = (Instant::now(), false);
        let mut state = self.lock();
        loop {
            if self.signals.is_closed() {
                return Err(Error::Closed);
            }
            let busy = state.wanted.contains(&process) || state.connecting == Some(process);
            let known = state.knows(process);
            if known == Known::Up {
                return Ok(());
            }
            if let Some(why) = state.refused.get(&process).filter(|_| tried && !busy) {
                return Err(Error::NotReached { process, why: why.clone() });
            }
            if known == Known::Unlike && tried && !busy {
                return Err(Error::Unlike(process));
            }
            // At first, and where the link that was made has ended.
            if !tried || known == Known::Nothing && !busy {
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

    /// Memory for a long message that another's board stores, under a number by which it finds it. It does so while
    /// the gate is open, which is closed at first.
    ///
    /// # Safety
    /// As for [`Node::register`].
    pub(crate) unsafe fn register_writable(
        &self,
        buffer: Buffer,
        node: Option<u16>,
    ) -> Result<(Arc<Registration>, Place)> {
        let place = random_place()?;
        // SAFETY: the caller's promise.
        let mut builder =
            unsafe { self.register(buffer) }.name(&names::memory(self.me.number.into(), place.0)).mode(0o200).gated();
        if let Some(node) = node.and_then(|node| self.nodes.local(node)) {
            builder = builder.nodes(&[node]);
        }
        Ok((Arc::new(builder.create()?), place))
    }

    /// # Safety
    /// As for [`Node::register`].
    unsafe fn register(&self, buffer: Buffer) -> RegisterBuilder {
        // SAFETY: the caller's promise.
        unsafe { self.node.register(buffer.first(u64::MAX)) }
    }

    /// Where a long message to a process comes from, which is registered for it.
    fn source(&self, readable: &Arc<Readable>, length: u64) -> Result<Source> {
        Ok(Source { place: readable.place, grant: Some(readable.grant(length)?) })
    }

    /// Where a long message to a process that no board reaches comes from: no place, and nothing is registered.
    fn far_source(&self) -> Result<Source> {
        Ok(Source { place: random_place()?, grant: None })
    }

    /// The same of one that is stored piece by piece.
    pub(crate) fn source_in_pieces() -> Result<Source> {
        Ok(Source { place: Place(random_place()?.0 | Place::PIECES), grant: None })
    }

    /// Whether a message to a process goes in pieces, whatever can be registered.
    pub(crate) fn is_in_pieces(&self, to: Process, length: u64) -> bool {
        length > WHOLE && self.nodes.local(to.node).is_some()
    }

    /// Lets a process read the first bytes of memory that a long message is sent to it from.
    pub(crate) fn readable(&self, memory: &mut Memory, to: Process, length: u64) -> Result<Source> {
        memory.belong_to(self.me);
        if let Some(readable) =
            memory.readable.as_ref().filter(|readable| readable.reader == to && readable.is_usable())
        {
            return self.source(readable, length);
        }
        // Before the memory is registered anew: both count as locked.
        memory.readable = None;
        // SAFETY: the bytes stay where they are until the registration is closed, since both are `Memory`'s.
        let Some(readable) = unsafe { self.register_readable(Buffer::of_mut(memory), to) }? else {
            return self.far_source();
        };
        let source = self.source(&readable, length);
        memory.readable = Some(readable);
        source
    }

    /// Lets a process read a buffer that a long message is sent to it from, while that is under way.
    ///
    /// # Safety
    /// As for [`Node::register`], until the buffer is given back to the system.
    pub(crate) unsafe fn readable_buffer(&self, buffer: Buffer, to: Process) -> Result<Source> {
        let length = buffer.range().1;
        if let Some(readable) = self.cache.readable(buffer, to) {
            return self.source(&readable, length);
        }
        // SAFETY: the caller's promise.
        let Some(readable) = unsafe { self.register_readable(buffer, to) }? else { return self.far_source() };
        let source = self.source(&readable, length);
        self.cache.keep_readable(buffer, readable);
        source
    }

    /// The registration of a buffer that this board fetches a long message into.
    ///
    /// # Safety
    /// As above.
    unsafe fn private_buffer(&self, buffer: Buffer) -> Result<Arc<Registration>> {
        if let Some(registration) = self.cache.private(buffer) {
            return Ok(registration);
        }
        // SAFETY: the caller's promise.
        let registration = unsafe { self.register_private(buffer) }?;
        self.cache.keep_private(buffer, registration.clone());
        Ok(registration)
    }

    /// Registers memory that a process may read during messages to it; `None` if no board reaches that.
    ///
    /// # Safety
    /// As for [`Node::register`].
    unsafe fn register_readable(&self, buffer: Buffer, to: Process) -> Result<Option<Arc<Readable>>> {
        let Some(node) = self.nodes.local(to.node) else { return Ok(None) };
        let place = Place(random_place()?.0 | LASTING);
        // SAFETY: the caller's promise.
        let builder = unsafe { self.register(buffer) }.name(&names::memory(self.me.number.into(), place.0)).mode(0o400);
        let registration = builder.nodes(&[node]).gated().create()?;
        Ok(Some(Readable::new(registration, place, to, node)))
    }

    /// Registers memory that only this board accesses.
    ///
    /// # Safety
    /// As for [`Node::register`].
    unsafe fn register_private(&self, buffer: Buffer) -> Result<Arc<Registration>> {
        // SAFETY: the caller's promise.
        Ok(Arc::new(unsafe { self.register(buffer) }.create()?))
    }

    /// The registration of memory for long messages that this board fetches.
    pub(crate) fn private(&self, memory: &mut Memory) -> Result<Arc<Registration>> {
        memory.belong_to(self.me);
        if let Some(private) = &memory.private {
            return Ok(private.clone());
        }
        // SAFETY: as above, and it has no name by which other nodes find it.
        let private = unsafe { self.register_private(Buffer::of_mut(memory)) }?;
        Ok(memory.private.insert(private).clone())
    }

    /// Starts the moving thread, if it is not there yet.
    pub(crate) fn start_moving(self: &Arc<Shared>) -> Result<()> {
        if self.moving.get().is_none() && self.moving.set(()).is_ok() {
            self.spawn("msg-move", |shared| shared.move_all())?;
        }
        Ok(())
    }

    /// Runs the transfers of handles until the messages are closed.
    fn move_all(&self) {
        let mut state = self.lock();
        while !self.signals.is_closed() {
            let Some((transfer, lease)) = state.moves.pop_front() else {
                state = self.signals.moves.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            let request = lease.request();
            self.transfer(transfer, request, request.own.as_deref());
            drop(lease);
            state = self.lock();
        }
        // Their requests have ended, and their memory is not used.
        state.moves.clear();
    }

    /// Has this board move the bytes of a message, from one process's memory into the other's (I17), or another's board
    /// do so, and says how that ended.
    pub(crate) fn transfer(&self, transfer: Transfer, request: &Arc<Request>, own: Option<&Registration>) {
        let moved = match transfer.what {
            Move::Offer(offset) => {
                let place = self.offer(request, offset, transfer);
                if let Err(error) = &place {
                    log::debug!("nothing of a message from {} can come: {error}", transfer.other);
                }
                return self.with(|state| state.engine.offered(transfer.id, place.ok()));
            }
            Move::Fetch(at) if self.nodes.local(transfer.other.node).is_none() => {
                self.fetch_far((transfer.other, at), transfer.length, request.buffer)
            }
            Move::Fetch(at) => self.copy(transfer, at, Rights::READ, request.buffer, own),
            Move::Store(at, offset) => {
                // What is registered begins where the buffer does.
                let own = own.filter(|_| offset == 0);
                self.copy(transfer, at, Rights::WRITE, request.buffer.beyond(offset), own)
            }
        };
        if let Err(error) = &moved {
            log::debug!("a message with {} was not moved: {error}", transfer.other);
        }
        self.with(|state| state.transferred(transfer, request, moved.is_ok()));
    }

    /// Makes room for the next piece of a message: as much of its buffer as can be registered.
    fn offer(&self, request: &Request, offset: u64, transfer: Transfer) -> Result<(Place, u64)> {
        if let Some(place) = request.place().filter(|_| offset == 0) {
            // All of it is already.
            return Ok((place, transfer.length));
        }
        // That of the last piece: both would count as locked.
        request.replace(None);
        let rest = request.buffer.beyond(offset);
        // SAFETY: the request has not ended, and has the registration, which it ends before its memory is used.
        let register = |length| unsafe { self.register_writable(rest.cut(length), Some(transfer.other.node)) };
        let (length, (registration, place)) = most(transfer.length.min(PIECE), register)?;
        request.replace(Some(Writable { registration, place }));
        Ok((place, length))
    }

    /// Copies between the beginning of a buffer, of which `own` is the registration if there is one, and a place of
    /// another process: as a whole, or as much at once as can be registered.
    fn copy(
        &self,
        Transfer { other, length, .. }: Transfer,
        at: Place,
        right: Rights,
        buffer: Buffer,
        own: Option<&Registration>,
    ) -> Result<()> {
        let link = self.lock().link(other).cloned();
        let link = link.ok_or(Failure::Gone)?;
        let theirs = self.memory(&link, other, at, right)?;
        let mut done = 0;
        while done < length {
            let rest = buffer.beyond(done);
            // SAFETY: the request has not ended, so its memory is there; nor does it until this returns. What comes
            // later is not moved by it.
            let register = |length| unsafe { self.private_buffer(rest.cut(length)) };
            let made = own.is_none().then(|| most(length - done, register)).transpose();
            let (registered, made) = match made {
                Ok(Some((registered, made))) => (registered, Some(made)),
                Ok(None) => (length, None),
                // What might have gone to a slot needs no more locked memory than that.
                Err(error) if right == Rights::READ && length <= self.config().eager => {
                    log::debug!("{length} bytes are loaded, not copied: {error}");
                    return load(&theirs, length, buffer);
                }
                Err(error) => return Err(error),
            };
            let Some(own) = own.or(made.as_deref()) else { return Ok(()) };
            for offset in (0..registered).step_by(MAX_COPY as usize) {
                let part = MAX_COPY.min(registered - offset);
                let moved = match right {
                    Rights::READ => theirs.get_block(done + offset, own, offset, part),
                    _ => theirs.put_block(done + offset, own, offset, part),
                };
                moved.inspect_err(|_| link.forget(at))?;
            }
            done += registered;
        }
        Ok(())
    }

    /// Memory of another process, imported to be read or written by this board. Imports that are kept for later
    /// messages give way to it, and it waits while those of other transfers leave no room in the window of its node.
    fn memory(&self, link: &Link, other: Process, at: Place, right: Rights) -> Result<Arc<Remote>> {
        let begun = Instant::now();
        loop {
            let error = match link.memory(&self.node, other, at, right) {
                Err(error) if is_without_room(&error) => error,
                imported => return imported,
            };
            let same_node =
                |(process, link, _): (Process, &Arc<Link>, bool)| (process.node == other.node).then(|| link.clone());
            let links: Vec<Arc<Link>> = self.lock().links().filter_map(same_node).collect();
            // All of them.
            if links.iter().filter(|link| link.forget_unused()).count() > 0 {
                continue;
            }
            if self.signals.is_closed() || begun.elapsed() > ANSWER {
                return Err(error);
            }
            std::thread::sleep(RETRY);
        }
    }

    /// No message goes to or fro any more.
    pub(crate) fn close(&self) {
        self.with(State::close);
        let state = self.lock();
        state.beyond.iter().flat_map(Beyond::streams).for_each(|stream| stream.close());
    }

    /// Waits for all threads but the program's.
    pub(crate) fn join(&self) {
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // It has not panicked, or has said so.
            _ = thread.join();
        }
    }
}
