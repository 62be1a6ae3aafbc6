// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which messages go to slots and which are requests: the switch between the two, for one other process. It follows
//! what has been faster, between two bounds of the configuration. No clocks: the owner says how long a message took.
//!
//! Lengths are in classes, each up to twice as long as the one before. Messages up to the threshold, which is the end
//! of a class or the lower bound, go to slots, longer ones are requests; of each class a few go the other way, so that
//! it is known how long that would take. Only messages that nothing else of this process waits with are measured: the
//! others would show how long the queue is.

use crate::config::Config;
use std::time::Duration;

/// Of so many measured messages of a class, one goes the other way.
const TRY: u32 = 64;
/// Before that, those do whose numbers are powers of two from this one on, so that both ways are known soon, and not
/// only what the first message takes.
const FIRST: u32 = 4;
/// What takes longer than expected counts by this part: a thread may have received late, or have been held up.
const PART: u64 = 8;
/// A change must save this part of the time of the messages that it is about.
const SAVED: u64 = 8;
/// So many measured messages of one class halve what all of them count.
const RECENT: u64 = 256;
/// Nanoseconds that count at most: so no sum of them is too large.
const LONGEST: u64 = 1 << 40;

/// How a message is to be sent: [`Engine::choose`](crate::Engine::choose).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Choice {
    /// As a request, whose memory boards must reach; else its bytes go to a slot.
    pub request: bool,
    /// Its time is to be reported, by [`Engine::took`](crate::Engine::took).
    pub measured: bool,
}

/// How messages to a process go: [`Engine::eager`](crate::Engine::eager).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Eager {
    /// Bytes of the longest message that goes to a slot, unless the other way is tried.
    pub threshold: u64,
    /// Messages that have been measured, of those that went to slots.
    pub slots: u64,
    pub requests: u64,
}

/// Messages up to a length.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Class {
    most: u64,
    /// Messages that have been measured, as far as they count.
    weight: u64,
    turn: u32,
    /// Nanoseconds, by slots and by requests. 0: not known yet.
    times: [u64; 2],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Threshold {
    floor: u64,
    now: u64,
    /// In their order; none if nothing is measured.
    classes: Vec<Class>,
    measured: [u64; 2],
}

impl Threshold {
    /// What fits into slots goes there, and nothing is measured.
    pub(crate) fn fixed(config: &Config) -> Threshold {
        Threshold { floor: config.eager, now: config.eager, classes: Vec::new(), measured: [0, 0] }
    }

    /// At first the upper bound.
    pub(crate) fn new(config: &Config) -> Threshold {
        let (floor, most) = (config.floor(), config.eager);
        let ends = std::iter::successors(Some(floor), |end| Some(end.saturating_mul(2).max(1).min(most)));
        let ends = ends.skip(1).scan(floor, |last, end| (std::mem::replace(last, end) < end).then_some(end));
        let classes = ends.map(|most| Class { most, weight: 0, turn: 0, times: [0, 0] }).collect();
        Threshold { floor, classes, ..Threshold::fixed(config) }
    }

    fn class(&mut self, length: u64) -> Option<&mut Class> {
        let classes = if length > self.floor { &mut self.classes[..] } else { &mut [] };
        classes.iter_mut().find(|class| length <= class.most)
    }

    /// How a message goes, which is sent then. `alone`: nothing else is on its way.
    pub(crate) fn choose(&mut self, length: u64, alone: bool) -> Choice {
        let request = length > self.now;
        let Some(class) = self.class(length).filter(|_| alone) else { return Choice { request, measured: false } };
        class.turn = class.turn.wrapping_add(1);
        let tries = class.turn % TRY == 0 || class.turn.is_power_of_two() && class.turn >= FIRST;
        Choice { request: request != tries, measured: true }
    }

    /// A message has taken so long, from its send until it was known that the other thread has it.
    pub(crate) fn took(&mut self, length: u64, request: bool, time: Duration) {
        let Some(class) = self.class(length) else { return };
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).clamp(1, LONGEST);
        let expected = &mut class.times[usize::from(request)];
        // One that was held up for long counts no more than one that took twice the time.
        *expected = match *expected {
            0 => time,
            before if time < before => time,
            before => before + (time.min(2 * before) - before) / PART,
        };
        class.weight += 1;
        let full = class.weight >= RECENT;
        self.measured[usize::from(request)] += 1;
        if full {
            self.classes.iter_mut().for_each(|class| class.weight /= 2);
        }
        self.decide();
    }

    /// Moves to where most is saved, of those places the nearest.
    fn decide(&mut self) {
        let now = self.now;
        let mut best = (0, now);
        let ends = std::iter::once(self.floor).chain(self.classes.iter().map(|class| class.most));
        for end in ends.filter(|end| *end != now) {
            // Those that would go the other way, as far as that is known.
            let (from, to) = (end.min(now), end.max(now));
            let moved = self.classes.iter().filter(|class| class.most > from && class.most <= to);
            let known = moved.filter(|class| !class.times.contains(&0));
            let requests = usize::from(end < now);
            let (before, after) = known.fold((0, 0), |(before, after), class| {
                let [slots, request] = class.times.map(|time| time * class.weight);
                let [is, other] = if requests == 1 { [slots, request] } else { [request, slots] };
                (before + is, after + other)
            });
            let saved = before.saturating_sub(after);
            let near = |at: u64| at.abs_diff(now);
            if saved > 0 && saved >= before / SAVED && (saved > best.0 || saved == best.0 && near(end) < near(best.1)) {
                best = (saved, end);
            }
        }
        self.now = best.1;
    }

    pub(crate) fn eager(&self) -> Eager {
        let [slots, requests] = self.measured;
        Eager { threshold: self.now, slots, requests }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn config(eager_floor: u64, eager: u64) -> Config {
        Config { eager_floor, eager, block: 1 << 20, ..Config::default() }
    }

    /// What a message takes, in nanoseconds: a part for each, and one for each byte.
    #[derive(Clone, Copy, Debug)]
    struct Costs {
        slots: (u64, u64),
        requests: (u64, u64),
    }

    /// Stores into slots that are cheap for short messages, and requests that are cheap for long ones: equal at 1500.
    const CROSSING: Costs = Costs { slots: (10_000, 100), requests: (145_000, 10) };

    impl Costs {
        fn of(self, length: u64, request: bool) -> u64 {
            let (each, byte) = if request { self.requests } else { self.slots };
            each + byte * length
        }
    }

    /// Sends such messages one after the other, which take what they cost and so much more; how many were requests.
    fn run(threshold: &mut Threshold, costs: Costs, lengths: &[u64], late: impl Fn(usize) -> u64) -> usize {
        let mut requests = 0;
        for (n, length) in lengths.iter().enumerate() {
            let Choice { request, measured } = threshold.choose(*length, true);
            requests += usize::from(request);
            if measured {
                threshold.took(*length, request, Duration::from_nanos(costs.of(*length, request) + late(n)));
            }
        }
        requests
    }

    /// So many messages of all classes in turn.
    fn all(count: usize) -> Vec<u64> {
        [200, 400, 900, 1900, 3900].into_iter().cycle().take(count).collect()
    }

    #[test]
    fn it_moves_to_where_the_ways_are_equal_and_follows_that() {
        let mut threshold = Threshold::new(&config(256, 4096));
        assert_eq!(threshold.eager(), Eager { threshold: 4096, slots: 0, requests: 0 });
        run(&mut threshold, CROSSING, &all(1000), |_| 0);
        assert_eq!(threshold.now, 1024);
        // Requests become slow.
        let slow = Costs { requests: (1_000_000, 10), ..CROSSING };
        run(&mut threshold, slow, &all(2000), |_| 0);
        assert_eq!(threshold.now, 4096);
        // Slots do, for all lengths.
        let slow = Costs { slots: (2_000_000, 100), ..CROSSING };
        run(&mut threshold, slow, &all(2000), |_| 0);
        assert_eq!(threshold.now, 256);
        run(&mut threshold, CROSSING, &all(2000), |_| 0);
        assert_eq!(threshold.now, 1024);
        let Eager { slots, requests, .. } = threshold.eager();
        assert!(slots > 100 && requests > 100);
    }

    #[test]
    fn messages_of_one_length_find_their_way() {
        for (length, requests) in [(3000, true), (500, false)] {
            let mut threshold = Threshold::new(&config(256, 4096));
            run(&mut threshold, CROSSING, &vec![length; 200], |_| 0);
            assert_eq!(length > threshold.now, requests);
            // The other way is tried still, and seldom.
            let tried = run(&mut threshold, CROSSING, &vec![length; 640], |_| 0);
            assert_eq!(if requests { 640 - tried } else { tried }, 10);
        }
    }

    #[test]
    fn threads_that_receive_late_do_not_change_it() {
        let mut threshold = Threshold::new(&config(256, 4096));
        // Of seven, two by more than any message takes.
        let late = |n: usize| if n % 7 < 2 { 5_000_000 * (1 + n as u64 % 3) } else { 0 };
        run(&mut threshold, CROSSING, &all(2000), late);
        assert_eq!(threshold.now, 1024);
    }

    #[test]
    fn what_is_not_in_between_is_not_measured() {
        let mut threshold = Threshold::new(&config(256, 4096));
        let choice = |request| Choice { request, measured: false };
        for _ in 0..200 {
            assert_eq!(threshold.choose(0, true), choice(false));
            assert_eq!(threshold.choose(256, true), choice(false));
            assert_eq!(threshold.choose(4097, true), choice(true));
            assert_eq!(threshold.choose(1000, false), choice(false), "what waits with others");
        }
        for fixed in [config(4096, 4096), config(u64::MAX, 4096)] {
            let mut fixed = Threshold::new(&fixed);
            run(&mut fixed, Costs { slots: (1_000_000, 0), requests: (1, 0) }, &all(1000), |_| 0);
            assert_eq!(fixed.eager(), Eager { threshold: 4096, slots: 0, requests: 0 });
        }
        let mut none = Threshold::new(&config(0, 0));
        assert_eq!((none.choose(0, true), none.choose(1, true)), (choice(false), choice(true)));
    }

    #[test]
    fn classes_are_between_the_bounds_and_reach_the_upper_one() {
        let ends = |floor, most| -> Vec<u64> {
            Threshold::new(&config(floor, most)).classes.iter().map(|class| class.most).collect()
        };
        assert_eq!(ends(256, 4096), [512, 1024, 2048, 4096]);
        assert_eq!(ends(100, 450), [200, 400, 450]);
        assert_eq!(ends(0, 5), [1, 2, 4, 5]);
        assert_eq!(ends(7, 7), []);
    }

    proptest! {
        /// Whatever another process makes messages take: the threshold stays between its bounds, and what is shorter
        /// than the lower one goes to a slot, what is longer than the upper one never does.
        #[test]
        fn it_stays_between_its_bounds(
            floor in 0..5000u64, eager in 0..5000u64,
            steps in prop::collection::vec((0..6000u64, any::<u64>(), any::<bool>()), 0..400),
        ) {
            let config = config(floor, eager);
            let floor = floor.min(eager);
            let (mut threshold, mut same) = (Threshold::new(&config), Threshold::new(&config));
            for (length, time, alone) in steps {
                let choice = threshold.choose(length, alone);
                prop_assert_eq!(choice, same.choose(length, alone), "nothing but its inputs decides");
                prop_assert!(length > floor || !choice.request);
                prop_assert!(length <= eager || choice.request);
                // Also what was not to be measured.
                threshold.took(length, choice.request, Duration::from_nanos(time));
                same.took(length, choice.request, Duration::from_nanos(time));
                prop_assert!((floor..=eager).contains(&threshold.now));
                prop_assert_eq!(&threshold, &same);
            }
        }

        /// Wherever the ways are equal: no class whose time the other way would shorten by half goes the wrong one.
        #[test]
        fn it_finds_the_faster_way(
            slots in (1_000..1_000_000u64, 0..1_000u64), requests in (1_000..1_000_000u64, 0..1_000u64),
        ) {
            // Long ones are never slower to fetch, compared with short ones, than to store.
            prop_assume!(requests.1 <= slots.1);
            let costs = Costs { slots, requests };
            let mut threshold = Threshold::new(&config(256, 4096));
            run(&mut threshold, costs, &all(3000), |_| 0);
            for length in [400, 900, 1900, 3900] {
                let [is, other] = [length > threshold.now, length <= threshold.now].map(|way| costs.of(length, way));
                prop_assert!(other * 2 > is, "{length} bytes take {is} instead of {other}: {threshold:?}");
            }
        }
    }
}
