// SPDX-License-Identifier: MIT OR Apache-2.0
//! The faults of one link: a handle to change them while the link is in use, their counts, and who hears of them.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::FaultPlan;

/// Which way, seen from the end that has the faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// What it sends.
    Send,
    /// What it receives.
    Receive,
}

/// What was done to a datagram, or to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// It vanished.
    Loss,
    /// One of its bits was flipped.
    Corrupt,
    /// It was doubled.
    Duplicate,
    /// It was held back for later ones.
    Reorder,
    /// It arrives later, by latency and jitter.
    Delay,
    /// It had to wait its turn, by the rate.
    Rate,
    /// It vanished because the link was down.
    Down,
    /// It vanished because too many waited: a slow link has a short queue.
    Overflow,
    /// A reliable connection was ended, in the place of a fault that it cannot have.
    Reset,
}

impl FaultKind {
    /// All of them, in the order of their numbers.
    pub const ALL: [FaultKind; 9] = [
        FaultKind::Loss,
        FaultKind::Corrupt,
        FaultKind::Duplicate,
        FaultKind::Reorder,
        FaultKind::Delay,
        FaultKind::Rate,
        FaultKind::Down,
        FaultKind::Overflow,
        FaultKind::Reset,
    ];

    /// Its name, for counters and comments.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::Loss => "loss",
            FaultKind::Corrupt => "corrupt",
            FaultKind::Duplicate => "duplicate",
            FaultKind::Reorder => "reorder",
            FaultKind::Delay => "delay",
            FaultKind::Rate => "rate",
            FaultKind::Down => "down",
            FaultKind::Overflow => "overflow",
            FaultKind::Reset => "reset",
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One fault that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultEvent<'a> {
    /// Name of the link.
    pub link: &'a str,
    /// When, in the microseconds of the caller's clock.
    pub now: u64,
    /// Which way.
    pub direction: Direction,
    /// What.
    pub kind: FaultKind,
    /// The how-manieth datagram (1024 bytes of a stream) of this direction it happened to, from 0.
    pub number: u64,
    /// Microseconds by which it was delayed, by [`FaultKind::Delay`] and [`FaultKind::Rate`].
    pub delay: u64,
    /// The bytes it happened to, as they were before; of a stream, those that the caller gave or would have got.
    pub bytes: &'a [u8],
}

/// Who wants to hear of each fault as it happens: a capture, for one. Called while a transport works: it must not wait.
pub trait FaultSink: Send + Sync {
    /// A fault happened.
    fn fault(&self, event: &FaultEvent<'_>);
}

impl<F: Fn(&FaultEvent<'_>) + Send + Sync> FaultSink for F {
    fn fault(&self, event: &FaultEvent<'_>) {
        self(event);
    }
}

/// How often each fault happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts([u64; FaultKind::ALL.len()]);

impl FaultCounts {
    /// Of one kind.
    pub fn of(&self, kind: FaultKind) -> u64 {
        self.0[kind as usize]
    }

    /// Of all kinds.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

struct Shared {
    name: String,
    seed: u64,
    plan: Mutex<FaultPlan>,
    /// Changes with the plan, so that it need not be locked to see that it has not.
    version: AtomicU64,
    counts: [AtomicU64; FaultKind::ALL.len()],
    sink: Mutex<Option<Arc<dyn FaultSink>>>,
    /// Connections that sleep and must hear of a change.
    bells: Mutex<Vec<Weak<OwnedFd>>>,
}

/// The faults of one link. Clones are the same link's: what one changes holds for all, from the next call on.
#[derive(Clone)]
pub struct LinkFaults(Arc<Shared>);

impl fmt::Debug for LinkFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LinkFaults({} seed {}: {})", self.0.name, self.0.seed, self.plan())
    }
}

/// What a panic of another thread left is still a plan.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LinkFaults {
    /// A link without faults. Its dice depend on `seed` and `name`.
    pub fn new(name: impl Into<String>, seed: u64) -> LinkFaults {
        LinkFaults(Arc::new(Shared {
            name: name.into(),
            seed,
            plan: Mutex::default(),
            version: AtomicU64::new(1),
            counts: Default::default(),
            sink: Mutex::default(),
            bells: Mutex::default(),
        }))
    }

    /// The same with faults from the start.
    #[must_use]
    pub fn with(self, plan: FaultPlan) -> LinkFaults {
        self.set(plan);
        self
    }

    /// The link's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What is wrong at present.
    pub fn plan(&self) -> FaultPlan {
        *lock(&self.0.plan)
    }

    /// Changes what is wrong. What is on its way keeps its delay, unless the link goes down. May be called from any
    /// thread.
    pub fn set(&self, plan: FaultPlan) {
        // All under one lock: who has seen the version, and then the plan, can hush the bell that was rung for it.
        let mut locked = lock(&self.0.plan);
        *locked = plan;
        self.0.version.fetch_add(1, Ordering::Release);
        lock(&self.0.bells).retain(|bell| match bell.upgrade() {
            Some(bell) => {
                // It fails only when it rings already.
                let _ = rustix::io::write(&*bell, &1u64.to_ne_bytes());
                true
            }
            None => false,
        });
    }

    /// What happened so far, over all connections of the link.
    pub fn counts(&self) -> FaultCounts {
        FaultCounts(std::array::from_fn(|at| self.0.counts[at].load(Ordering::Relaxed)))
    }

    /// Has `sink` hear of each fault from now on, in the place of the one before.
    pub fn report_to(&self, sink: Option<Arc<dyn FaultSink>>) {
        *lock(&self.0.sink) = sink;
    }

    /// Dice of one direction. A connection that comes after another throws other ones.
    pub(super) fn dice(&self, direction: Direction) -> fastrand::Rng {
        // FNV-1a over the name, so that links differ.
        let named = self
            .0
            .name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        fastrand::Rng::with_seed(self.0.seed ^ named ^ (direction as u64) << 63)
    }

    pub(super) fn fault(&self, event: FaultEvent<'_>) {
        self.0.counts[event.kind as usize].fetch_add(1, Ordering::Relaxed);
        let sink = lock(&self.0.sink).clone();
        if let Some(sink) = sink {
            sink.fault(&FaultEvent { link: &self.0.name, ..event });
        }
    }

    pub(super) fn version(&self) -> u64 {
        self.0.version.load(Ordering::Acquire)
    }

    /// A bell that rings when the plan changes.
    pub(super) fn bell(&self) -> Result<Bell, Errno> {
        let fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let bell = Bell(fd);
        self.add(&bell);
        Ok(bell)
    }

    /// Has `bell` ring for this link too.
    pub(super) fn add(&self, bell: &Bell) {
        let mut bells = lock(&self.0.bells);
        bells.retain(|bell| bell.strong_count() > 0);
        bells.push(Arc::downgrade(&bell.0));
    }
}

/// Readable since the plan changed, until hushed.
#[derive(Debug)]
pub(super) struct Bell(Arc<OwnedFd>);

impl Bell {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub(super) fn ring(&self) {
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    pub(super) fn hush(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0; 8]);
    }
}

/// The plan as one connection last saw it.
#[derive(Debug)]
pub(super) struct Seen {
    link: LinkFaults,
    version: u64,
    plan: FaultPlan,
}

impl Seen {
    pub(super) fn new(link: LinkFaults) -> Seen {
        Seen { link, version: 0, plan: FaultPlan::default() }
    }

    pub(super) fn link(&self) -> &LinkFaults {
        &self.link
    }

    /// The plan of now, and whether it has changed.
    pub(super) fn update(&mut self) -> (FaultPlan, bool) {
        let version = self.link.version();
        let changed = version != self.version;
        if changed {
            self.version = version;
            self.plan = self.link.plan();
        }
        (self.plan, changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_numbered_in_order() {
        for (at, kind) in FaultKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, at);
        }
    }

    #[test]
    fn links_and_directions_have_dice_of_their_own() {
        let throw = |name: &str, seed, direction| LinkFaults::new(name, seed).dice(direction).u64(..);
        assert_eq!(throw("a-b", 1, Direction::Send), throw("a-b", 1, Direction::Send));
        assert_ne!(throw("a-b", 1, Direction::Send), throw("a-b", 1, Direction::Receive));
        assert_ne!(throw("a-b", 1, Direction::Send), throw("a-c", 1, Direction::Send));
        assert_ne!(throw("a-b", 1, Direction::Send), throw("a-b", 2, Direction::Send));
    }
}
