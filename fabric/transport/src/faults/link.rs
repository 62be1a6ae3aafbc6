// SPDX-License-Identifier: MIT OR Apache-2.0
//! The faults of one link: a handle to change them while the link is in use, their counters, and their observer.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use rustix::io::Errno;
use telegraphos_link::bell::Bell;

use super::{Direction, FaultPlan};
use crate::lock;

/// What was done to a datagram, or to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// It was lost.
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
    /// It was lost because the link was down.
    Down,
    /// It was lost because too many waited: a slow link has a short queue.
    Overflow,
    /// A reliable connection was reset, in place of a fault that it cannot have.
    Reset,
}

impl FaultKind {
    /// Its name, for counters and comments.
    pub fn name(self) -> &'static str {
        NAMES[self as usize]
    }
}

/// By the number of the kind.
const NAMES: [&str; 9] = ["loss", "corrupt", "duplicate", "reorder", "delay", "rate", "down", "overflow", "reset"];

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
    pub direction: Direction,
    pub kind: FaultKind,
    /// The ordinal, from 0, of the datagram (of the 1024 bytes of a stream) in this direction.
    pub number: u64,
    /// Microseconds by which it was delayed, by [`FaultKind::Delay`] and [`FaultKind::Rate`].
    pub delay: u64,
    /// The bytes it happened to, as they were before; of a stream, those that the caller gave or would have got.
    pub bytes: &'a [u8],
}

/// Observes each fault as it happens, for instance for a capture. Called from within a transport: it must not block.
pub trait FaultSink: Send + Sync {
    fn fault(&self, event: &FaultEvent<'_>);
}

impl<F: Fn(&FaultEvent<'_>) + Send + Sync> FaultSink for F {
    fn fault(&self, event: &FaultEvent<'_>) {
        self(event);
    }
}

/// How often each fault happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts([u64; NAMES.len()]);

impl FaultCounts {
    pub fn of(&self, kind: FaultKind) -> u64 {
        self.0[kind as usize]
    }

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
    counts: [AtomicU64; NAMES.len()],
    sink: Mutex<Option<Arc<dyn FaultSink>>>,
    /// Of connections, which may be polled while the plan changes.
    signals: Mutex<Vec<Weak<Bell>>>,
}

/// The faults of one link. Clones share them: a change by one applies to all, from the next call on.
#[derive(Clone)]
pub struct LinkFaults(Arc<Shared>);

impl fmt::Debug for LinkFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LinkFaults({} seed {}: {})", self.0.name, self.0.seed, self.plan())
    }
}

impl LinkFaults {
    /// A link without faults. Its random numbers depend on `seed` and `name`.
    pub fn new(name: impl Into<String>, seed: u64) -> LinkFaults {
        LinkFaults(Arc::new(Shared {
            name: name.into(),
            seed,
            plan: Mutex::default(),
            version: AtomicU64::new(1),
            counts: Default::default(),
            sink: Mutex::default(),
            signals: Mutex::default(),
        }))
    }

    /// The same with faults from the start.
    #[must_use]
    pub fn with(self, plan: FaultPlan) -> LinkFaults {
        self.set(plan);
        self
    }

    pub fn name(&self) -> &str {
        &self.0.name
    }

    pub fn plan(&self) -> FaultPlan {
        *lock(&self.0.plan)
    }

    /// Replaces the plan. Data in flight keeps its delay, unless the link goes down. May be called from any thread.
    pub fn set(&self, plan: FaultPlan) {
        // All under one lock: a reader of the version, and then of the plan, can clear the signal raised for them.
        let mut locked = lock(&self.0.plan);
        *locked = plan;
        self.0.version.fetch_add(1, Ordering::Release);
        lock(&self.0.signals).retain(|signal| signal.upgrade().inspect(|signal| signal.raise()).is_some());
    }

    /// The counters of all connections of the link.
    pub fn counts(&self) -> FaultCounts {
        FaultCounts(std::array::from_fn(|at| self.0.counts[at].load(Ordering::Relaxed)))
    }

    /// Reports each fault to `sink` from now on, instead of the one before.
    pub fn report_to(&self, sink: Option<Arc<dyn FaultSink>>) {
        *lock(&self.0.sink) = sink;
    }

    /// The random numbers of one direction. Each connection of the link has the same.
    pub(super) fn rng(&self, direction: Direction) -> fastrand::Rng {
        // FNV-1a over the name, so that links differ.
        let named = self
            .0
            .name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        // The first numbers of neighbouring seeds lie at equal distances; those of their forks do not.
        fastrand::Rng::with_seed(self.0.seed ^ named ^ (direction as u64) << 63).fork()
    }

    /// Counts a fault and reports it, with the link's name, to the observer.
    pub(super) fn fault(&self, event: FaultEvent<'_>) {
        self.0.counts[event.kind as usize].fetch_add(1, Ordering::Relaxed);
        let sink = lock(&self.0.sink).clone();
        if let Some(sink) = sink {
            sink.fault(&FaultEvent { link: &self.0.name, ..event });
        }
    }

    /// A signal that is raised when the plan changes.
    pub(super) fn change_signal(&self) -> Result<ChangeSignal, Errno> {
        let signal = Arc::new(Bell::new()?);
        self.add(&signal);
        Ok(signal)
    }

    /// Has `signal` raised for this link, too.
    pub(super) fn add(&self, signal: &ChangeSignal) {
        let mut signals = lock(&self.0.signals);
        signals.retain(|signal| signal.strong_count() > 0);
        signals.push(Arc::downgrade(signal));
    }
}

/// Readable from a change of the plan until cleared.
pub(super) type ChangeSignal = Arc<Bell>;

/// The plan as one connection last saw it.
#[derive(Debug)]
pub(super) struct Seen {
    link: LinkFaults,
    version: u64,
    plan: FaultPlan,
}

impl Seen {
    /// Nothing seen yet: the first update is a change.
    pub(super) fn new(link: LinkFaults) -> Seen {
        Seen { link, version: 0, plan: FaultPlan::default() }
    }

    pub(super) fn link(&self) -> &LinkFaults {
        &self.link
    }

    /// The present plan, and whether it has changed since the last call.
    pub(super) fn update(&mut self) -> (FaultPlan, bool) {
        let version = self.link.0.version.load(Ordering::Acquire);
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
    fn each_kind_has_its_name() {
        use FaultKind::*;
        let kinds = [Loss, Corrupt, Duplicate, Reorder, Delay, Rate, Down, Overflow, Reset];
        assert_eq!(kinds.map(|kind| format!("{kind:?}").to_lowercase()), NAMES);
        assert_eq!(kinds.map(FaultKind::name), NAMES);
    }

    #[test]
    fn links_and_directions_have_distinct_random_numbers() {
        let draw = |name: &str, seed, direction| LinkFaults::new(name, seed).rng(direction).u64(..);
        assert_eq!(draw("a-b", 1, Direction::Send), draw("a-b", 1, Direction::Send));
        assert_ne!(draw("a-b", 1, Direction::Send), draw("a-b", 1, Direction::Receive));
        assert_ne!(draw("a-b", 1, Direction::Send), draw("a-c", 1, Direction::Send));
        assert_ne!(draw("a-b", 1, Direction::Send), draw("a-b", 2, Direction::Send));
    }
}
