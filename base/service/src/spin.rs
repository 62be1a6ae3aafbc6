// SPDX-License-Identifier: MIT OR Apache-2.0
//! Polling before sleep: for how long a server's loop looks for work before it lets its thread sleep.
//!
//! To wake a sleeping thread costs more than most work that it is woken for. A loop that polls instead answers at once,
//! but occupies a processor: where another thread needs that one, perhaps the one whose work is waited for, polling
//! does harm. So a loop polls at most for the time it is given ([`Spin::new`]), and
//! - as long as it pays: the loop learns how long its waits last, and polls for twice as long as that; where waits last
//!   longer than it may poll, it does not poll;
//! - as long as a processor is free: the scheduler says how long the thread has waited for one
//!   (`/proc/thread-self/schedstat`). If that is more than a sixteenth of its time, it does not poll for a while.
//!
//! An idle loop sleeps: after three long waits none polls, also where a timer ends them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread::ThreadId;
use std::time::Instant;

/// A wait changes the expected length by one part in so many.
const WEIGHT: u64 = 8;
/// A wait counts as at most so many times the longest poll: work that begins again is noticed soon.
const LONGEST: u64 = 4;
/// Microseconds that a sleeper is woken late. They are not part of what it has waited for.
const WAKE_UP: u64 = 25;
/// Shortest poll in microseconds, where waits are expected to last no time.
const SHORTEST: u64 = 4;
/// Microseconds between two looks at what the scheduler says.
const INTERVAL: u64 = 1000;
/// Microseconds without polling when processors are found busy: the first time, and at most.
const REST: (u64, u64) = (10_000, 160_000);

/// What is decided from what has happened; without a clock. Times are microseconds.
#[derive(Clone, Debug)]
struct Policy {
    most: u64,
    /// How long a wait is expected to last, in parts of a microsecond: [`WEIGHT`] are one.
    gap: u64,
    /// No polling until then.
    rests_until: u64,
    /// The length of the last rest; 0 if processors were free since.
    rest: u64,
    /// Run and wait of the thread in nanoseconds when they were last looked at, and when that was.
    seen: Option<(u64, [u64; 2])>,
}

impl Policy {
    fn new(most: u64) -> Policy {
        // As if waits had lasted half as long as they may: the first ones poll.
        Policy { most, gap: most * WEIGHT / 2, rests_until: 0, rest: 0, seen: None }
    }

    /// How long a wait that begins now polls first.
    fn polls(&self, now: u64) -> u64 {
        let gap = self.gap / WEIGHT;
        if now < self.rests_until || gap > self.most { 0 } else { (2 * gap).max(SHORTEST).min(self.most) }
    }

    /// A wait has ended that lasted so long, and slept at last or did not.
    fn waited(&mut self, gap: u64, slept: bool) {
        let gap = if slept { gap.saturating_sub(WAKE_UP) } else { gap };
        let counted = gap.min(LONGEST * self.most);
        self.gap = self.gap - self.gap / WEIGHT + counted;
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
    policy: Policy,
    started: Instant,
    schedule: Option<Schedule>,
}

impl Spin {
    /// Polls for at most so many microseconds before each sleep; never, if that is 0.
    pub fn new(most: u64) -> Spin {
        Spin { policy: Policy::new(most), started: Instant::now(), schedule: None }
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
        let limit = timeout();
        // A wait without length is no wait.
        if self.policy.most == 0 || limit == Some(0) {
            return poll(limit).map(drop);
        }
        let begun = self.now();
        let until = begun + limit.map_or(u64::MAX, |limit| limit).min(self.policy.polls(begun));
        let mut now = begun;
        let polls = now < until;
        while now < until {
            if poll(Some(0))? {
                self.policy.waited(now - begun, false);
                self.look_at_schedule(now);
                return Ok(());
            }
            std::hint::spin_loop();
            now = self.now();
        }
        if polls {
            self.look_at_schedule(now);
        }
        poll(timeout())?;
        self.policy.waited(self.now() - begun, true);
        Ok(())
    }

    /// Learns, once in a while, whether the thread has had to wait for a processor.
    fn look_at_schedule(&mut self, now: u64) {
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

/// For how long to poll by default, in microseconds: twice what it takes to wake a sleeper, if there is a
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

    /// How long waits poll after so many that lasted `gap`.
    fn after(policy: &mut Policy, waits: u32, gap: u64, slept: bool) -> u64 {
        (0..waits).for_each(|_| policy.waited(gap, slept));
        policy.polls(0)
    }

    #[test]
    fn a_wait_polls_for_twice_as_long_as_waits_last() {
        let mut policy = Policy::new(50);
        assert_eq!(policy.polls(0), 50, "the first ones poll");
        assert_eq!(after(&mut policy, 100, 10, false), 20);
        assert_eq!(after(&mut policy, 100, 0, false), SHORTEST);
        assert_eq!(after(&mut policy, 100, 40, false), 50, "never longer than it may");
        assert_eq!(after(&mut policy, 100, 40 + WAKE_UP, true), 50, "a sleeper is woken late");
        assert_eq!(after(&mut policy, 100, 60, false), 0, "what arrives too late is not polled for");
    }

    #[test]
    fn an_idle_loop_stops_to_poll_and_a_busy_one_begins_again() {
        let mut policy = Policy::new(50);
        assert_eq!(after(&mut policy, 100, 5, false), 10);
        // As a timer of a tenth of a second ends the waits.
        assert!(after(&mut policy, 1, 100_000, true) > 0, "a single long wait changes little");
        assert_eq!(after(&mut policy, 2, 100_000, true), 0);
        assert_eq!(after(&mut policy, 10_000, 100_000, true), 0, "none polls");
        assert!(after(&mut policy, 12, 5 + WAKE_UP, true) > 0, "arrivals are counted by sleepers, too");
    }

    #[test]
    fn bursts_with_pauses_are_polled_for_within_the_bursts() {
        let mut policy = Policy::new(50);
        let mut polled = 0;
        for _ in 0..100 {
            // 32 arrivals 3 us apart, then a pause of 10 ms.
            for _ in 0..32 {
                polled += u32::from(policy.polls(0) >= 3);
                policy.waited(3, policy.polls(0) < 3);
            }
            policy.waited(10_000, true);
        }
        assert!(polled > 3000, "{polled} of 3200");
    }

    #[test]
    fn there_is_no_polling_while_processors_are_busy() {
        let mut policy = Policy::new(50);
        let times = |run: u64, wait: u64| [run * 1_000_000, wait * 1_000_000];
        policy.scheduled(0, times(0, 0));
        assert!(!policy.wants_schedule(INTERVAL - 1) && policy.wants_schedule(INTERVAL));
        policy.scheduled(1000, times(15, 0));
        assert!(policy.polls(1000) > 0, "it has waited for no processor");
        policy.scheduled(2000, times(29, 2));
        let polls = |policy: &Policy, now| policy.polls(now) > 0;
        assert!(!polls(&policy, 2000) && !polls(&policy, 2000 + REST.0 - 1) && polls(&policy, 2000 + REST.0));
        // Each time longer, up to a limit; the first look after a rest is a new beginning.
        let (mut now, mut run) = (2000 + REST.0, 100);
        for rest in [2, 4, 8, 16, 16].map(|times| times * REST.0) {
            policy.scheduled(now, times(run, run));
            assert!(polls(&policy, now));
            run += 10;
            policy.scheduled(now + INTERVAL, times(run, run));
            now += INTERVAL + rest;
            assert!(!polls(&policy, now - 1) && polls(&policy, now), "{rest}");
        }
        policy.scheduled(now, times(run, run));
        policy.scheduled(now + INTERVAL, times(run + 10, run));
        assert!(polls(&policy, now + INTERVAL));
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

    /// How many times a wait asks without sleep, if the sleep finds something.
    fn asked(spin: &mut Spin, limit: Option<u64>) -> u32 {
        let mut asked = 0;
        let poll = |sleep: Option<u64>| {
            let sleeps = sleep != Some(0) || limit == Some(0);
            asked += u32::from(!sleeps);
            Ok::<_, ()>(sleeps)
        };
        assert_eq!(spin.wait(|| limit, poll), Ok(()));
        asked
    }

    #[test]
    fn a_wait_without_length_and_a_loop_without_spin_never_poll() {
        assert_eq!(asked(&mut Spin::new(0), None), 0);
        let mut spin = Spin::new(10_000);
        assert_eq!(asked(&mut spin, Some(0)), 0);
        assert!(asked(&mut spin, None) > 0);
    }

    #[test]
    fn a_loop_that_only_a_timer_wakes_does_not_poll() {
        let mut spin = Spin::new(50);
        let mut polls = 0;
        for tick in 0..100 {
            let poll = |sleep: Option<u64>| {
                if sleep == Some(0) {
                    polls += u32::from(tick >= 10);
                    return Ok(false);
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
                Ok::<_, ()>(false)
            };
            assert_eq!(spin.wait(|| Some(1000), poll), Ok(()));
        }
        assert_eq!(polls, 0);
    }

    #[test]
    fn what_a_poll_finds_ends_the_wait() {
        let mut spin = Spin::new(1_000_000);
        let mut polls = 0;
        let found = spin.wait(
            || None,
            |sleep| {
                polls += 1;
                assert_eq!(sleep, Some(0), "it is found before the first sleep");
                Ok::<_, ()>(polls == 10)
            },
        );
        assert_eq!((found, polls), (Ok(()), 10));
    }
}
