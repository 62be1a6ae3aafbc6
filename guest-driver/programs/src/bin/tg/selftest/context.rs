// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a test works with.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use std::thread::ScopedJoinHandle;
use std::time::Duration;
use telegraphos::{
    Error, JoinBuilder, Node, NodeId, Queue, QueueBuilder, Remote, RemoteQueue, ReplicaMode, Replicated,
    ReplicatedBuilder, Segment, State,
};
use telegraphos_guest_tests::child::{Child, Ids};
use telegraphos_guest_tests::cli::{Failure, Outcome};
use telegraphos_guest_tests::peers::{Peers, import_patiently};
use telegraphos_guest_tests::{patience, queue, random, replica, user};

pub(crate) use telegraphos_guest_tests::patience::{MILLISECOND, YIELD};

/// How long is waited for what must come.
pub(crate) const SOON: Duration = Duration::from_secs(30);
/// How long is waited for what must not.
pub(crate) const LONG: Duration = Duration::from_millis(50);

/// Result of a test.
pub(crate) type Verdict<T = ()> = Result<T, Stop>;

/// Why a test ends before its end.
pub(crate) enum Stop {
    Fail(String),
    /// It cannot be made here.
    Skip(String),
    /// No test can be made any more.
    Bail(Failure),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Fail(error.to_string())
    }
}

impl From<String> for Stop {
    fn from(text: String) -> Stop {
        Stop::Fail(text)
    }
}

impl From<&str> for Stop {
    fn from(text: &str) -> Stop {
        Stop::Fail(text.into())
    }
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Stop {
        Stop::Fail(error.to_string())
    }
}

/// Barriers per test. A test that fails midway continues to the last.
const STEPS: u64 = 64;

pub(crate) struct Context<'a> {
    pub(crate) peers: &'a Peers,
    pub(crate) seconds: Duration,
    pub(crate) patience: Duration,
    index: u64,
    step: u64,
    notes: Vec<String>,
    /// Kept until everybody has ended the test: a node that fails early must not pull memory from under the others.
    kept: Vec<Arc<dyn Any>>,
    seed: u64,
}

impl<'a> Context<'a> {
    pub(crate) fn new(peers: &'a Peers, index: u64, seconds: Duration, patience: Duration) -> Context<'a> {
        Context { peers, seconds, patience, index, step: 0, notes: Vec::new(), kept: Vec::new(), seed: random::seed() }
    }

    pub(crate) fn begin(&mut self) -> Outcome<()> {
        self.peers.barrier(self.index * STEPS + 1)?;
        self.step = 1;
        Ok(())
    }

    pub(crate) fn end(self) -> Outcome<()> {
        self.peers.barrier((self.index + 1) * STEPS)
    }

    /// All nodes have come here; what each stored to another before is there.
    pub(crate) fn sync(&mut self) -> Verdict {
        self.step += 1;
        assert!(self.step < STEPS, "a test has too many steps");
        self.peers.barrier(self.index * STEPS + self.step).map_err(Stop::Bail)
    }

    pub(crate) fn notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Something for the reader of the report.
    pub(crate) fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    pub(crate) fn node(&self) -> &'a Node {
        &self.peers.node
    }

    pub(crate) fn me(&self) -> NodeId {
        self.peers.me()
    }

    /// A name for a segment of this test.
    pub(crate) fn name(&self, part: &str) -> String {
        format!("selftest-{}-{part}", self.index)
    }

    /// Keeps something until all have ended the test.
    pub(crate) fn keep<T: 'static>(&mut self, it: T) -> Arc<T> {
        let it = Arc::new(it);
        self.kept.push(it.clone());
        it
    }

    /// Exports memory that everybody may reach, and keeps it until all have ended the test.
    pub(crate) fn export(&mut self, part: &str, size: u64) -> Verdict<Arc<Segment>> {
        let segment = self.node().export(&self.name(part), size).mode(0o606).create()?;
        Ok(self.keep(segment))
    }

    /// A segment of this test that this node has exported.
    pub(crate) fn exported(&self, part: &str) -> Verdict<&Segment> {
        let name = self.name(part);
        let mut segments = self.kept.iter().filter_map(|it| it.downcast_ref::<Segment>());
        segments.find(|segment| segment.name() == name).ok_or_else(|| format!("{name:?} is not exported here").into())
    }

    /// Imports a segment of this test that is being exported about now.
    pub(crate) fn import(&self, node: NodeId, part: &str) -> Verdict<Remote> {
        Ok(import_patiently(self.node(), node, &self.name(part), self.patience)?)
    }

    /// Own memory, into which the left neighbour stores, and the right neighbour's.
    pub(crate) fn neighbour(&mut self, size: u64) -> Verdict<(Arc<Segment>, Remote)> {
        let mine = self.export("data", size)?;
        let right = self.import(self.peers.right(), "data")?;
        Ok((mine, right))
    }

    /// Makes a queue to which everybody may append, and keeps it until all have ended the test.
    pub(crate) fn queue(&mut self, part: &str, how: impl FnOnce(QueueBuilder) -> QueueBuilder) -> Verdict<Arc<Queue>> {
        let builder = Queue::create(self.node(), &self.name(part)).mode(0o602);
        let queue = how(builder).create()?;
        Ok(self.keep(queue))
    }

    /// Imports a queue of this test that is being made about now.
    pub(crate) fn enqueuer(&self, node: NodeId, part: &str) -> Verdict<RemoteQueue> {
        Ok(queue::import_patiently(self.node(), node, &self.name(part), self.patience)?)
    }

    /// An own queue, to which the left neighbour appends, and the right neighbour's.
    pub(crate) fn queue_pair(
        &mut self,
        part: &str,
        how: impl FnOnce(QueueBuilder) -> QueueBuilder,
    ) -> Verdict<(Arc<Queue>, RemoteQueue)> {
        let mine = self.queue(part, how)?;
        let right = self.enqueuer(self.peers.right(), part)?;
        Ok((mine, right))
    }

    /// Makes a replicated segment, with its home at this node, which all may join, and keeps it until all have
    /// ended the test.
    pub(crate) fn replicated(
        &mut self,
        part: &str,
        size: u64,
        how: impl FnOnce(ReplicatedBuilder) -> ReplicatedBuilder,
    ) -> Verdict<Arc<Replicated>> {
        let builder = Replicated::create(self.node(), &self.name(part), size).mode(0o606);
        let segment = how(builder).create()?;
        Ok(self.keep(segment))
    }

    /// Joins a replicated segment of this test that is being made about now.
    pub(crate) fn join(
        &self,
        home: NodeId,
        part: &str,
        how: impl FnOnce(JoinBuilder) -> JoinBuilder,
    ) -> Verdict<Replicated> {
        let join = how(Replicated::join(self.node(), home, &self.name(part)).mode(0o606));
        Ok(replica::join_patiently(join, self.patience)?)
    }

    /// Replicated segments of every node as the home, each with copies at all others, in the order of the nodes; all
    /// are there.
    pub(crate) fn boards(&mut self, part: &str, size: u64) -> Verdict<Vec<Arc<Replicated>>> {
        self.boards_in(ReplicaMode::Counters, part, size)
    }

    /// The same in another mode.
    pub(crate) fn boards_in(&mut self, mode: ReplicaMode, part: &str, size: u64) -> Verdict<Vec<Arc<Replicated>>> {
        self.boards_named(mode, |_| part.into(), size)
    }

    /// The same with names by the home's place.
    pub(crate) fn boards_named(
        &mut self,
        mode: ReplicaMode,
        part: impl Fn(usize) -> String,
        size: u64,
    ) -> Verdict<Vec<Arc<Replicated>>> {
        let (_, me) = self.place();
        let own = self.replicated(&part(me), size, |builder| builder.replica_mode(mode))?;
        let mut boards = Vec::new();
        for (place, home) in self.peers.all.clone().into_iter().enumerate() {
            boards.push(match place == me {
                true => own.clone(),
                false => {
                    let copy = self.join(home, &part(place), |join| join.replica_mode(mode))?;
                    self.keep(copy)
                }
            });
        }
        self.sync()?;
        Ok(boards)
    }

    /// How many nodes take part, and this one's place among them.
    pub(crate) fn place(&self) -> (usize, usize) {
        self.peers.place()
    }

    /// Sends a node a word, which is there after the next step.
    pub(crate) fn mail(&self, to: NodeId, slot: u64, word: u64) -> Verdict {
        self.peers.send(to, slot, word).map_err(Stop::Bail)
    }

    pub(crate) fn mail_all(&self, slot: u64, word: u64) -> Verdict {
        self.peers.all.iter().try_for_each(|id| self.mail(*id, slot, word))
    }

    /// The word that a node has sent to this one.
    pub(crate) fn mail_of(&self, from: NodeId, slot: u64) -> Verdict<u64> {
        self.peers.received(from, slot).map_err(Stop::Bail)
    }

    /// Those of all nodes, in order.
    pub(crate) fn mail_of_all(&self, slot: u64) -> Verdict<Vec<u64>> {
        self.peers.all.iter().map(|id| self.mail_of(*id, slot)).collect()
    }

    /// The seed of this node's data and that of the left neighbour's.
    pub(crate) fn seeds(&mut self) -> Verdict<(u64, u64)> {
        self.mail(self.peers.right(), 0, self.seed)?;
        self.sync()?;
        Ok((self.seed, self.mail_of(self.peers.left(), 0)?))
    }

    /// What was stored by this is there, and so have all nodes come here.
    pub(crate) fn sync_behind(&mut self, stores: &impl Stores) -> Verdict {
        stores.arrive()?;
        self.sync()
    }

    /// Another open file of the board: it has contexts, objects and events of its own.
    pub(crate) fn other_file(&self) -> Verdict<Node> {
        Ok(Node::open_path(self.node().path())?)
    }

    pub(crate) fn child(&self, args: &[&str]) -> Verdict<Child> {
        Ok(Child::start(args, None, self.patience)?)
    }

    /// A process that has come so far that it says this.
    pub(crate) fn child_saying(&self, word: &str, args: &[&str]) -> Verdict<Child> {
        let mut child = self.child(args)?;
        child.expect(word)?;
        Ok(child)
    }

    /// A process of an ordinary user in the device's group.
    pub(crate) fn ordinary_child(&self, args: &[&str]) -> Verdict<Child> {
        Ok(Child::start(args, ordinary()?, self.patience)?)
    }

    /// A process with these ids.
    pub(crate) fn child_of(&self, ids: Ids, args: &[&str]) -> Verdict<Child> {
        if user::uid() != 0 {
            return Err(Stop::Skip("needs root, to become other users: telegraphos run --user root".into()));
        }
        Ok(Child::start(args, Some(ids), self.patience)?)
    }

    /// Waits until the state of an import is as wanted.
    pub(crate) fn state_becomes(&self, remote: &Remote, what: &str, wanted: impl Fn(&State) -> bool) -> Verdict {
        becomes(
            Duration::from_secs(20),
            MILLISECOND,
            || Ok(remote.state()?),
            wanted,
            |state| format!("the state of {:?} stays {state:?}: expected {what}", remote.name()),
        )
        .map(drop)
    }
}

/// Waits until what is found is as wanted, at most so long.
pub(crate) fn becomes<T>(
    limit: Duration,
    pause: Duration,
    look: impl FnMut() -> Verdict<T>,
    wanted: impl Fn(&T) -> bool,
    late: impl FnOnce(&T) -> String,
) -> Verdict<T> {
    patience::becomes(limit, pause, look, wanted, |last| Stop::Fail(late(last)))
}

/// The same for what is so, or is not yet.
pub(crate) fn until(
    limit: Duration,
    pause: Duration,
    ready: impl FnMut() -> Verdict<bool>,
    late: impl FnOnce() -> String,
) -> Verdict {
    becomes(limit, pause, ready, |ready| *ready, |_| late()).map(drop)
}

/// The end of a thread.
pub(crate) fn joined<T>(thread: ScopedJoinHandle<'_, Verdict<T>>) -> Verdict<T> {
    thread.join().unwrap_or_else(|_| Err("a thread has panicked".into()))
}

/// Runs so many threads at once: what each comes to, or why the first stops that does.
pub(crate) fn in_threads<T: Send>(count: u64, run: impl Fn(u64) -> Verdict<T> + Sync) -> Verdict<Vec<T>> {
    std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..count).map(|thread| scope.spawn(move || run(thread))).collect();
        let ends: Vec<Verdict<T>> = threads.into_iter().map(joined).collect();
        ends.into_iter().collect()
    })
}

/// Runs both ends of a test at once; the first that stops decides.
pub(crate) fn both(here: impl FnOnce() -> Verdict + Send, there: impl FnOnce() -> Verdict) -> Verdict {
    std::thread::scope(|scope| {
        let thread = scope.spawn(here);
        let result = there();
        joined(thread).and(result)
    })
}

/// What has stores, or elements, that may be on their way.
pub(crate) trait Stores {
    /// Waits until all of them are there.
    fn arrive(&self) -> Result<(), Error>;
}

impl Stores for Remote {
    fn arrive(&self) -> Result<(), Error> {
        self.quiet()
    }
}

impl Stores for RemoteQueue {
    fn arrive(&self) -> Result<(), Error> {
        self.quiet_timeout(SOON)
    }
}

impl<T: Stores> Stores for Arc<T> {
    fn arrive(&self) -> Result<(), Error> {
        (**self).arrive()
    }
}

impl Stores for Replicated {
    fn arrive(&self) -> Result<(), Error> {
        self.quiet_timeout(SOON)
    }
}

/// Two other ordinary users in the device's group.
pub(crate) fn two_users() -> Verdict<(Ids, Ids)> {
    let (gid, _) = user::device_group().map_err(|e| e.to_string())?;
    Ok(((user::ORDINARY + 1, gid), (user::ORDINARY + 2, gid)))
}

/// Ids of an ordinary user in the device's group, if this process may become one.
fn ordinary() -> Verdict<Option<Ids>> {
    if user::uid() != 0 {
        return Ok(None);
    }
    let (gid, _) = user::device_group().map_err(|e| e.to_string())?;
    Ok(Some((user::ORDINARY, gid)))
}

/// Fails unless they are the same.
pub(crate) fn same<T: PartialEq + Debug>(what: impl std::fmt::Display, found: T, expected: T) -> Verdict {
    if found == expected {
        return Ok(());
    }
    Err(Stop::Fail(format!("{what} is {found:?}: expected {expected:?}")))
}

/// Fails unless it holds.
pub(crate) fn must(holds: bool, message: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(Stop::Fail(message())) }
}

/// Fails unless it was refused with this errno.
pub(crate) fn refused<T>(what: &str, result: Result<T, Error>, errno: i32) -> Verdict {
    match result {
        Err(error) if error.errno() == errno => Ok(()),
        Err(error) => Err(Stop::Fail(format!("{what}: errno {} ({error}): expected errno {errno}", error.errno()))),
        Ok(_) => Err(Stop::Fail(format!("{what} succeeded: expected errno {errno}"))),
    }
}

/// A peer that dies takes its memory with it; then the report must say so instead of ending in silence.
pub(crate) fn explain_sigbus() {
    extern "C" fn explain(_: libc::c_int) {
        const TEXT: &[u8] = b"Bail out! SIGBUS: a peer's memory is gone; see its own output\n";
        // SAFETY: both are async-signal-safe; the text is static.
        unsafe {
            libc::write(1, TEXT.as_ptr().cast(), TEXT.len());
            libc::_exit(3);
        }
    }
    // SAFETY: the handler calls only async-signal-safe functions and does not return.
    unsafe {
        libc::signal(libc::SIGBUS, explain as *const () as libc::sighandler_t);
    }
}
