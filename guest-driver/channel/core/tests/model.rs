// SPDX-License-Identifier: MIT OR Apache-2.0
//! All interleavings of two ends, whose stores are under way for any time: in the buffer of a processor, or posted
//! through boards.

use crate::memory::{Posted, Words};
use stateright::{Checker, Model, Property};
use std::collections::VecDeque;
use telegraphos_channel_core::{Announce, Bug, End, Head, Layout, Look, Near, Progress, RECORDS, ROOM};

/// What the two ends have between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Carrier {
    announce: Announce,
    /// Whether a fence waits until stores are in the other end's memory: that of a processor does where memory is in
    /// common, and does not where stores are posted.
    fence_waits: bool,
}

const DIRECT: Carrier = Carrier { announce: Announce::Look, fence_waits: true };
const BOARDS: Carrier = Carrier { announce: Announce::Armed, fence_waits: false };
const ALWAYS: Carrier = Carrier { announce: Announce::Always, fence_waits: false };

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Run,
    /// It has said that it sleeps, and looks once more.
    LastLook,
    Asleep,
    Finished,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Side {
    end: End,
    at: At,
    /// Stores of this side into the other's memory.
    under_way: VecDeque<(u64, u64)>,
    memory: Words,
    sent: usize,
    taken: usize,
    has_ended: bool,
    is_closed: bool,
    /// The word that wakes it, before it began to sleep.
    seen: u64,
    /// What it waits for while it sleeps.
    what: u64,
    /// Wake-ups of the other end.
    wakes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    sides: [Side; 2],
    fault: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Next(usize),
    /// The oldest store that is under way arrives.
    Arrive(usize),
}

#[derive(Clone, Debug)]
struct Channel {
    carrier: Carrier,
    bug: Option<Bug>,
    /// The records of each side.
    records: [Vec<Vec<u8>>; 2],
}

/// Bytes of a ring: four records at most.
const RING_BYTES: u64 = 64;

fn layout() -> Layout {
    Layout::new(RING_BYTES).unwrap()
}

/// The word that wakes lies behind the memory: a wake-up takes the same way as stores.
fn wake() -> u64 {
    layout().size()
}

impl State {
    /// One operation of an end, with the view that it has.
    fn with<R>(&mut self, who: usize, waits: bool, run: impl FnOnce(&mut End, &Words, &mut Posted<'_>) -> R) -> R {
        let [a, b] = &mut self.sides;
        let (mine, other) = if who == 0 { (a, b) } else { (b, a) };
        let mut far = Posted { under_way: &mut mine.under_way, memory: &mut other.memory, fence_waits: waits };
        run(&mut mine.end, &mine.memory, &mut far)
    }
}

impl Channel {
    fn has_work(&self, side: &Side, who: usize) -> bool {
        side.sent < self.records[who].len() || !side.has_ended
    }

    fn progress(&self, state: &mut State, who: usize, progress: Progress) {
        if progress == Progress::Wake {
            let side = &mut state.sides[who];
            side.wakes += 1;
            side.under_way.push_back((wake(), side.wakes));
        }
    }

    /// Puts, ends, or takes: whether something was done.
    fn work(&self, state: &mut State, who: usize) -> Result<bool, String> {
        let waits = self.carrier.fence_waits;
        let violation = |e: &dyn std::fmt::Display| format!("the other end is said to lie: {e}");
        if let Some(record) = self.records[who].get(state.sides[who].sent) {
            let put = state.with(who, waits, |end, near, far| end.put(near, far, 1, &[record]));
            if let Some(progress) = put.map_err(|e| violation(&e))? {
                state.sides[who].sent += 1;
                self.progress(state, who, progress);
                return Ok(true);
            }
        } else if !state.sides[who].has_ended {
            let progress = state.with(who, waits, |end, near, far| end.end(near, far));
            state.sides[who].has_ended = true;
            self.progress(state, who, progress);
            return Ok(true);
        }
        if state.sides[who].is_closed {
            return Ok(false);
        }
        let look = state.with(who, waits, |end, near, _| end.look(near)).map_err(|e| violation(&e))?;
        let expected = self.records[1 - who].get(state.sides[who].taken);
        match look {
            Look::Empty => return Ok(false),
            Look::Ended if expected.is_some() => return Err("a record was lost".into()),
            Look::Ended => state.sides[who].is_closed = true,
            Look::Record(record) => {
                let mut bytes = vec![0; record.length];
                let progress = state.with(who, waits, |end, near, far| end.take(near, far, &mut bytes));
                self.progress(state, who, progress);
                let expected = expected.ok_or("a record was never sent")?;
                let never = state.sides[1 - who].sent <= state.sides[who].taken;
                if never {
                    return Err(format!("record {} was never sent: {bytes:?}", state.sides[who].taken));
                }
                if *expected != bytes {
                    return Err(format!("other bytes: {bytes:?} instead of {expected:?}"));
                }
                state.sides[who].taken += 1;
            }
        }
        Ok(true)
    }

    fn next(&self, state: &mut State, who: usize) -> Result<(), String> {
        let waits = self.carrier.fence_waits;
        let side = &state.sides[who];
        match side.at {
            At::Run if side.is_closed && !self.has_work(side, who) => state.sides[who].at = At::Finished,
            At::Run => {
                if !self.work(state, who)? {
                    let what = RECORDS | if self.has_work(&state.sides[who], who) { ROOM } else { 0 };
                    state.sides[who].seen = state.sides[who].memory.load(wake());
                    state.sides[who].what = what;
                    state.with(who, waits, |end, _, far| {
                        end.begin_sleep(far, what);
                    });
                    state.sides[who].at = At::LastLook;
                }
            }
            At::LastLook => {
                let found = self.work(state, who)?;
                state.sides[who].at = if found { At::Run } else { At::Asleep };
                if found {
                    state.with(who, waits, |end, _, far| end.end_sleep(far));
                }
            }
            At::Asleep => {
                state.with(who, waits, |end, _, far| end.end_sleep(far));
                state.sides[who].at = At::Run;
            }
            At::Finished => {}
        }
        Ok(())
    }

    fn is_woken(&self, side: &Side) -> bool {
        match self.carrier.announce {
            Announce::Armed => side.end.waits_for(side.what).any(|(at, seen)| side.memory.load(at) != seen),
            _ => side.memory.load(wake()) != side.seen,
        }
    }
}

impl Model for Channel {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let layout = layout();
        let Carrier { announce, .. } = self.carrier;
        let side = Side {
            end: End::new(layout, layout, announce, announce == Announce::Look).with_bug(self.bug),
            at: At::Run,
            under_way: VecDeque::new(),
            memory: Words::of(layout),
            sent: 0,
            taken: 0,
            has_ended: false,
            is_closed: false,
            seen: 0,
            what: 0,
            wakes: 0,
        };
        vec![State { sides: [side.clone(), side], fault: None }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.fault.is_some() {
            return;
        }
        for (who, side) in state.sides.iter().enumerate() {
            let may_run = match side.at {
                At::Run | At::LastLook => true,
                At::Asleep => self.is_woken(side),
                At::Finished => false,
            };
            steps.extend(may_run.then_some(Step::Next(who)));
            steps.extend((!side.under_way.is_empty()).then_some(Step::Arrive(who)));
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        let done = match step {
            Step::Next(who) => self.next(&mut state, who),
            Step::Arrive(who) => {
                if let Some((at, word)) = state.sides[who].under_way.pop_front() {
                    state.sides[1 - who].memory.set(at, word);
                }
                Ok(())
            }
        };
        state.fault = done.err();
        let mut steps = Vec::new();
        self.actions(&state, &mut steps);
        if steps.is_empty() && state.fault.is_none() {
            let asleep = state.sides.iter().position(|side| side.at != At::Finished);
            state.fault = asleep.map(|who| format!("end {who} sleeps for ever"));
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Channel>> {
        vec![Property::always(
            "each record once, whole and in order, and no end sleeps for ever",
            |_, state: &State| state.fault.is_none(),
        )]
    }
}

/// What is wrong, with the shortest way there, if anything is.
fn check(name: &str, carrier: Carrier, bug: Option<Bug>, records: [Vec<Vec<u8>>; 2]) -> Option<String> {
    let checker = Channel { carrier, bug, records }.checker().threads(2).spawn_bfs().join();
    println!("{name}: {} states", checker.unique_state_count());
    let path = checker.discoveries().into_values().next()?;
    let fault = path.last_state().fault.clone().unwrap_or_default();
    let steps: Vec<_> = path.into_actions().iter().map(|step| format!("{step:?}")).collect();
    Some(format!("{name}: {fault}\n{}", steps.join(" ")))
}

fn record(n: u8, length: usize) -> Vec<u8> {
    vec![n; length]
}

/// One direction that waits for room, for three laps of the ring.
fn stream() -> [Vec<Vec<u8>>; 2] {
    [vec![record(1, 16), record(2, 9), record(3, 16), record(4, 0), record(5, 16), record(6, 16)], vec![]]
}

/// Both directions.
fn exchange() -> [Vec<Vec<u8>>; 2] {
    [vec![record(1, 8), record(2, 16), record(3, 16)], vec![record(4, 16), record(5, 8)]]
}

/// A record whose bytes are the head that a later one has, where the receiver will expect that one.
fn disguised() -> [Vec<Vec<u8>>; 2] {
    let head = Head { length: 8, kind: 1, number: 4 }.encode();
    let bytes = [7, head].iter().flat_map(|word| word.to_le_bytes()).collect();
    [vec![bytes, record(1, 8), record(2, 8), record(3, 16), record(4, 8)], vec![]]
}

#[test]
fn each_record_comes_once_and_no_wake_up_is_lost() {
    for (name, carrier) in [("direct", DIRECT), ("boards", BOARDS), ("always", ALWAYS)] {
        for (what, records) in [("stream", stream()), ("exchange", exchange()), ("disguised", disguised())] {
            let found = check(&format!("{name}, {what}"), carrier, None, records);
            assert!(found.is_none(), "{}", found.unwrap_or_default());
        }
    }
}

/// What is right in memory in common, where stores are posted: both looks come before either store.
#[test]
fn a_look_behind_a_posted_store_loses_wake_ups() {
    let looks = Carrier { fence_waits: false, ..DIRECT };
    let found = check("looks through boards", looks, None, stream()).unwrap();
    assert!(found.contains("sleeps for ever"), "{found}");
    println!("{found}");
}

#[test]
fn each_bug_has_a_shortest_counterexample() {
    for (bug, says, carrier, records) in [
        (Bug::HeadFirst, "other bytes", BOARDS, stream()),
        (Bug::KeepOldWord, "never sent", DIRECT, disguised()),
        (Bug::IgnoreCredits, "other end", DIRECT, stream()),
        (Bug::KeepCredits, "sleeps for ever", BOARDS, stream()),
        (Bug::WakerWithoutFence, "sleeps for ever", DIRECT, stream()),
        (Bug::SleeperWithoutFence, "sleeps for ever", DIRECT, stream()),
        (Bug::SameSleep, "sleeps for ever", DIRECT, stream()),
    ] {
        let found = check(&format!("{bug:?}"), carrier, Some(bug), records);
        let found = found.unwrap_or_else(|| panic!("{bug:?} is not found"));
        assert!(found.contains(says), "{bug:?} is found by another check than {says:?}: {found}");
        println!("{found}");
    }
}
