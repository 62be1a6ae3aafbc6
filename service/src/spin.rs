// SPDX-License-Identifier: MIT OR Apache-2.0
//! Polling before sleep: for how long a server's loop looks for work before it lets its thread sleep.
//!
//! To wake a sleeping thread costs more than most work that it is woken for. A loop that polls instead answers at once,
//! but occupies a processor: where another thread needs that one, perhaps the one whose work is waited for, polling
//! does harm. So a loop polls at most for the time it is given ([`Spin::new`]), and
//! - as long as it pays: where nothing arrives within that time, only one wait in [`RARELY`] polls, until something
//!   does;
//! - as long as a processor is free: the scheduler says how long the thread has waited for one
//!   (`/proc/thread-self/schedstat`). If that is more than a sixteenth of its time, it does not poll for a while.
//!
//! An idle loop sleeps: polling follows work only.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread::ThreadId;
use std::time::Instant;

/// Of the waits of a loop for which polling does not pay, one in so many polls.
pub const RARELY: u32 = 16;
/// Vain polls in a row, after many that paid, until polling counts as not paying.
const PATIENCE: u32 = 16;
/// Microseconds between two looks at what the scheduler says.
const INTERVAL: u64 = 1000;
/// Microseconds without polling when processors are found busy: the first time, and at most.
const REST: (u64, u64) = (10_000, 160_000);

/// What is decided from what has happened; without a clock. Times are microseconds.
#[derive(Clone, Debug)]
struct Policy {
    /// Vain polls until polling is rare.
    luck: u32,
    /// Waits since the last one that polled.
    skipped: u32,
    /// No polling until then.
    rests_until: u64,
    /// The length of the last rest; 0 if processors were free since.
    rest: u64,
    /// Run and wait of the thread in nanoseconds when they were last looked at, and when that was.
    seen: Option<(u64, [u64; 2])>,
}

impl Policy {
    fn new() -> Policy {
        Policy { luck: PATIENCE, skipped: 0, rests_until: 0, rest: 0, seen: None }
    }

    /// Whether a wait that begins now polls first.
    fn polls(&mut self, now: u64) -> bool {
        if now < self.rests_until {
            return false;
        }
        if self.luck == 0 {
            self.skipped += 1;
            if self.skipped < RARELY {
                return false;
            }
        }
        self.skipped = 0;
        true
    }

    /// A wait has polled: whether something was found by that.
    fn polled(&mut self, found: bool) {
        self.luck = if found { (self.luck + 2).min(PATIENCE) } else { self.luck.saturating_sub(1) };
    }

    /// Whether it is time for [`Policy::scheduled`].
    fn wants_schedule(&self, now: u64) -> bool {
        self.seen.is_none_or(|(at, _)| now >= at + INTERVAL)
    }

    /// How long the thread has run and has waited for a processor, in nanoseconds since its start.
    fn scheduled(&mut self, now: u64, times: [u64; 2]) {
        let Some((_, before)) = self.seen.replace((now, times)) else { return };
        let [ran, waited] = [0, 1].map(|kind| times[kind].saturating_sub(before[kind]));
        if waited > (ran + waited) / 16 {
            self.rest = (2 * self.rest).clamp(REST.0, REST.1);
            self.rests_until = now + self.rest;
            // What happens meanwhile says nothing about polling.
            self.seen = None;
        } else {
            self.rest = 0;
        }
    }
}

/// What the scheduler says of one thread.
#[derive(Debug)]
struct Schedule {
    thread: ThreadId,
    /// `None` where the kernel does not say.
    file: Option<File>,
}

impl Schedule {
    fn of_this_thread() -> Schedule {
        Schedule { thread: std::thread::current().id(), file: File::open("/proc/thread-self/schedstat").ok() }
    }

    /// Run and wait, in nanoseconds.
    fn times(&self) -> Option<[u64; 2]> {
        let mut bytes = [0; 64];
        let read = self.file.as_ref()?.read_at(&mut bytes, 0).ok()?;
        let mut words = std::str::from_utf8(bytes.get(..read)?).ok()?.split_ascii_whitespace();
        let mut next = || words.next()?.parse().ok();
        Some([next()?, next()?])
    }
}

/// The polling of one loop; see the module.
#[derive(Debug)]
pub struct Spin {
    /// Microseconds.
    most: u64,
    policy: Policy,
    started: Instant,
    schedule: Option<Schedule>,
    /// Until when the wait that is under way polls.
    until: Option<u64>,
}

impl Spin {
    /// Polls for at most so many microseconds before each sleep; never, if that is 0.
    pub fn new(most: u64) -> Spin {
        Spin { most, policy: Policy::new(), started: Instant::now(), schedule: None, until: None }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Waits until `poll`, which is given how many microseconds it may sleep and returns whether it has found events,
    /// does: at first without sleep, then for as long as `timeout` says.
    pub fn wait<E>(
        &mut self,
        timeout: impl Fn() -> Option<u64>,
        mut poll: impl FnMut(Option<u64>) -> Result<bool, E>,
    ) -> Result<(), E> {
        self.begin(timeout());
        while self.goes_on() {
            if poll(Some(0))? {
                self.found();
                return Ok(());
            }
        }
        poll(timeout()).map(drop)
    }

    /// A wait begins that ends after `limit` microseconds, if given. Poll as long as [`Spin::goes_on`] says so, then
    /// sleep.
    fn begin(&mut self, limit: Option<u64>) {
        self.until = None;
        // A wait without length is no wait.
        if self.most == 0 || limit == Some(0) {
            return;
        }
        let now = self.now();
        if self.policy.polls(now) {
            self.until = Some(now + limit.map_or(self.most, |limit| limit.min(self.most)));
        }
    }

    /// Whether to poll once more before sleep.
    fn goes_on(&mut self) -> bool {
        let Some(until) = self.until else { return false };
        let now = self.now();
        if now < until {
            std::hint::spin_loop();
            return true;
        }
        self.end(now, false);
        false
    }

    /// A poll has found something to do: the wait is over.
    fn found(&mut self) {
        if self.until.is_some() {
            self.end(self.now(), true);
        }
    }

    fn end(&mut self, now: u64, found: bool) {
        self.until = None;
        self.policy.polled(found);
        if !self.policy.wants_schedule(now) {
            return;
        }
        // The loop may have moved to another thread since.
        let this = std::thread::current().id();
        let schedule = match self.schedule.take() {
            Some(schedule) if schedule.thread == this => schedule,
            _ => {
                self.policy.seen = None;
                Schedule::of_this_thread()
            }
        };
        if let Some(times) = schedule.times() {
            self.policy.scheduled(now, times);
        }
        self.schedule = Some(schedule);
    }
}

/// For how long to poll where nobody has said so, in microseconds: twice what it takes to wake a sleeper, if there is a
/// processor for each of so many threads that run at the same time, and else not at all.
pub fn suitable(threads: usize, processors: usize) -> u64 {
    if threads <= processors { 50 } else { 0 }
}

/// Warns if this process may use fewer processors than the threads that run at the same time while one polls: `threads`
/// of them, which are `what`.
pub fn warn_of_few_processors(spin: u64, threads: usize, what: &str) {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if let Some(warning) = few_processors(spin, threads, what, processors) {
        log::warn!("{warning}");
    }
}

fn few_processors(spin: u64, threads: usize, what: &str, processors: usize) -> Option<String> {
    (spin > 0 && processors < threads).then(|| {
        format!(
            "--spin-us is {spin}, but there are {processors} processors for {what}: while they are busy nothing is polled; \
             expected at least {threads} processors, or --spin-us 0"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of so many waits, how many poll, if each poll finds something or each does not.
    fn polls(policy: &mut Policy, waits: u32, found: bool) -> u32 {
        let mut polled = 0;
        for _ in 0..waits {
            if policy.polls(0) {
                polled += 1;
                policy.polled(found);
            }
        }
        polled
    }

    #[test]
    fn polling_goes_on_while_it_pays() {
        let mut policy = Policy::new();
        assert_eq!(polls(&mut policy, 1000, true), 1000);
        // A few in vain change nothing.
        assert_eq!(polls(&mut policy, PATIENCE - 1, false), PATIENCE - 1);
        assert_eq!(polls(&mut policy, 1000, true), 1000);
    }

    #[test]
    fn polling_in_vain_becomes_rare_and_returns_when_it_pays() {
        let mut policy = Policy::new();
        assert_eq!(polls(&mut policy, PATIENCE, false), PATIENCE);
        assert_eq!(polls(&mut policy, 160 * RARELY, false), 160);
        assert!(polls(&mut policy, 2 * RARELY, true) > RARELY, "after one that paid each polls");
    }

    #[test]
    fn there_is_no_polling_while_processors_are_busy() {
        let mut policy = Policy::new();
        let times = |run: u64, wait: u64| [run * 1_000_000, wait * 1_000_000];
        policy.scheduled(0, times(0, 0));
        assert!(!policy.wants_schedule(INTERVAL - 1) && policy.wants_schedule(INTERVAL));
        policy.scheduled(1000, times(15, 0));
        assert!(policy.polls(1000), "it has waited for no processor");
        policy.scheduled(2000, times(29, 2));
        assert!(!policy.polls(2000) && !policy.polls(2000 + REST.0 - 1) && policy.polls(2000 + REST.0));
        // Each time longer, up to a limit; the first look after a rest is a new beginning.
        let (mut now, mut run) = (2000 + REST.0, 100);
        for rest in [2, 4, 8, 16, 16].map(|times| times * REST.0) {
            policy.scheduled(now, times(run, run));
            assert!(policy.polls(now));
            run += 10;
            policy.scheduled(now + INTERVAL, times(run, run));
            assert!(!policy.polls(now + INTERVAL + rest - 1) && policy.polls(now + INTERVAL + rest), "{rest}");
            now += INTERVAL + rest;
        }
        policy.scheduled(now, times(run, run));
        policy.scheduled(now + INTERVAL, times(run + 10, run));
        assert!(policy.polls(now + INTERVAL));
        assert_eq!(policy.rest, 0, "the next rest is a short one again");
    }

    #[test]
    fn the_scheduler_says_how_long_this_thread_ran() {
        let schedule = Schedule::of_this_thread();
        let Some(before) = schedule.times() else { return };
        let begun = Instant::now();
        while schedule.times().is_some_and(|times| times[0] == before[0]) {
            assert!(begun.elapsed().as_secs() < 10, "the time does not change: {before:?}");
        }
    }

    #[test]
    fn without_a_processor_for_each_thread_nothing_polls_by_default() {
        assert_eq!([suitable(3, 2), suitable(3, 3), suitable(3, 64)], [0, 50, 50]);
    }

    #[test]
    fn too_few_processors_are_named() {
        assert_eq!(few_processors(0, 65, "64 guests and their boards", 1), None);
        assert_eq!(few_processors(50, 3, "2 guests and their boards", 3), None);
        let warning = few_processors(50, 3, "2 guests and their boards", 2).unwrap_or_default();
        for part in ["--spin-us is 50", "2 processors for 2 guests", "at least 3"] {
            assert!(warning.contains(part), "{warning}");
        }
    }

    #[test]
    fn a_wait_without_length_and_a_loop_without_spin_never_poll() {
        let mut none = Spin::new(0);
        none.begin(None);
        assert!(!none.goes_on());
        let mut some = Spin::new(1_000_000);
        some.begin(Some(0));
        assert!(!some.goes_on());
        some.begin(None);
        assert!(some.goes_on());
        some.found();
        assert!(!some.goes_on(), "the wait is over");
        let mut short = Spin::new(1);
        short.begin(None);
        while short.goes_on() {}
    }
}
