// SPDX-License-Identifier: MIT OR Apache-2.0
//! All interleavings of a few operations: what each process does is in order, and everything else is not.

use crate::common::{World, process};
use stateright::{Checker, Model, Property};
use std::time::Instant;
use telegraphos_msg_core::{Bug, Config, Endpoint, Pattern, Way};

/// What a process does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Do {
    Send { from: u32, to: (usize, u32), tag: u32, length: usize },
    Receive { thread: u32, pattern: Pattern, capacity: usize },
    WithdrawSend,
    WithdrawReceive,
    Close(u32),
    Die,
}

#[derive(Clone, Debug)]
struct Messages {
    config: Config,
    /// Of so many requests, one goes in pieces.
    pieces: usize,
    scripts: Vec<Vec<Do>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    world: World,
    /// How far each process is.
    at: Vec<usize>,
    fault: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Next(usize),
    Deliver(usize, usize),
    Finish(usize),
}

impl Messages {
    fn take(&self, state: &mut State, step: Step) -> Result<(), String> {
        let world = &mut state.world;
        let who = match step {
            Step::Deliver(from, to) => return world.deliver(from, to).map(drop),
            Step::Finish(at) => return world.finish(at, true),
            Step::Next(who) => who,
        };
        let next = self.scripts[who][state.at[who]];
        state.at[who] += 1;
        let own = |thread| Endpoint { process: process(who), thread };
        match next {
            Do::Send { to, .. } if world.is_gone(to.0) => Ok(()),
            Do::Send { from, to, tag, length } => {
                let to = Endpoint { process: process(to.0), thread: to.1 };
                world.send(own(from), to, tag, length).map(drop)
            }
            Do::Receive { thread, pattern, capacity } => world.receive(own(thread), pattern, capacity).map(drop),
            Do::WithdrawSend => {
                let last = world.sends.iter().rposition(|sent| sent.from.process == process(who));
                let open = last.filter(|send| world.sends[*send].outcome.is_none());
                open.map_or(Ok(()), |send| world.withdraw_send(send).map(drop))
            }
            Do::WithdrawReceive => {
                let last = world.receives.iter().rposition(|wanted| wanted.at.process == process(who));
                let open = last.filter(|receive| world.receives[*receive].outcome.is_none());
                open.map_or(Ok(()), |receive| world.withdraw_receive(receive).map(drop))
            }
            Do::Close(thread) => world.close(own(thread)),
            Do::Die => world.kill(who),
        }
    }
}

impl Model for Messages {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let mut world = World::new(self.scripts.len(), 2, &self.config);
        world.pieces = self.pieces;
        vec![State { world, at: vec![0; self.scripts.len()], fault: None }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.fault.is_some() {
            return;
        }
        for (who, script) in self.scripts.iter().enumerate() {
            if state.at[who] < script.len() && !state.world.is_gone(who) {
                steps.push(Step::Next(who));
            }
        }
        steps.extend(state.world.channels.keys().map(|(from, to)| Step::Deliver(*from, *to)));
        steps.extend((0..state.world.moves()).map(Step::Finish));
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        if let Err(fault) = self.take(&mut state, step) {
            state.fault = Some(fault);
        } else {
            let mut steps = Vec::new();
            self.actions(&state, &mut steps);
            if steps.is_empty() {
                // Whatever came of it, nothing is left when everything has been received.
                state.fault = state.world.clone().drain().err();
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Messages>> {
        vec![Property::always("each message once, whole, in order, and nothing kept", |_, state: &State| {
            state.fault.is_none()
        })]
    }
}

fn any() -> Pattern {
    Pattern::default()
}

fn from(node: usize, thread: u32, tag: u32) -> Pattern {
    Pattern::exactly(Endpoint { process: process(node), thread }, tag)
}

fn send(to: (usize, u32), tag: u32, length: usize) -> Do {
    Do::Send { from: 0, to, tag, length }
}

fn receive(thread: u32, pattern: Pattern) -> Do {
    Do::Receive { thread, pattern, capacity: 8 }
}

fn config(slots: u16, way: Way, bug: Option<Bug>) -> Config {
    // Up to 2 bytes in a fragment, up to 4 in a message of two; longer ones are requests.
    Config { slots, block: 2, fragments: 2, eager: 4, way, chains: 1, bug, ..Config::default() }
}

fn check(name: &str, config: Config, scripts: Vec<Vec<Do>>) -> Option<String> {
    check_pieces(name, config, 0, scripts)
}

fn check_pieces(name: &str, config: Config, pieces: usize, scripts: Vec<Vec<Do>>) -> Option<String> {
    let begun = Instant::now();
    let checker = Messages { config, pieces, scripts }.checker().threads(2).spawn_bfs().join();
    println!("{name}: {} states, {:.1} s", checker.unique_state_count(), begun.elapsed().as_secs_f32());
    let path = checker.discoveries().into_values().next()?;
    let fault = path.last_state().fault.clone().unwrap_or_default();
    let steps: Vec<_> = path.into_actions().iter().map(|step| format!("{step:?}")).collect();
    Some(format!("{name}: {fault}\n{}", steps.join("\n")))
}

/// Each with all ways of moving bytes.
fn sound(name: &str, slots: u16, scripts: &[Vec<Do>]) {
    for way in [Way::Get, Way::Put] {
        is_sound(&format!("{name}, {way:?}"), config(slots, way, None), scripts);
    }
    let found = check_pieces(&format!("{name}, in pieces"), config(slots, Way::Get, None), 1, scripts.to_vec());
    assert!(found.is_none(), "{}", found.unwrap_or_default());
}

fn is_sound(name: &str, config: Config, scripts: &[Vec<Do>]) {
    let found = check(name, config, scripts.to_vec());
    assert!(found.is_none(), "{}", found.unwrap_or_default());
}

/// Every other message of a sender goes to a slot, or to two, although the one before was a request, and the other way
/// round: whatever the threshold is, and whenever it moves.
#[test]
fn i17_i18_messages_of_one_length_that_go_both_ways() {
    let scripts = [
        vec![send((1, 0), 1, 4), send((1, 0), 1, 4), send((1, 0), 1, 3), Do::WithdrawSend],
        vec![receive(0, any()), receive(0, from(0, 0, 1)), Do::WithdrawReceive, receive(0, any())],
    ];
    for (slots, way) in [(1, Way::Get), (1, Way::Put), (2, Way::Get)] {
        let config = Config { eager_floor: 1, ..config(slots, way, None) };
        is_sound(&format!("both ways, {slots} slots, {way:?}"), config, &scripts);
    }
}

#[test]
fn i18_fragments_of_two_senders_and_wildcards_with_one_slot() {
    let scripts = [
        vec![send((2, 0), 1, 4), send((2, 0), 2, 1)],
        vec![send((2, 0), 1, 3)],
        vec![receive(0, any()), receive(0, from(0, 0, 2)), receive(0, from(1, 0, 1))],
    ];
    sound("fragments", 1, &scripts);
    sound("fragments, two slots", 2, &scripts);
}

#[test]
fn i17_requests_in_both_directions_that_are_withdrawn_at_any_time() {
    let scripts = [
        vec![send((1, 0), 1, 6), Do::WithdrawSend, receive(0, any())],
        vec![receive(0, any()), Do::WithdrawReceive, send((0, 0), 1, 7), receive(0, from(0, 0, 1))],
    ];
    sound("withdrawn", 1, &scripts);
    sound("withdrawn, two slots", 2, &scripts);
}

#[test]
fn i17_i18_a_thread_that_closes_at_any_time() {
    let scripts = [
        vec![send((1, 0), 1, 4), send((1, 0), 1, 6), send((1, 1), 1, 3)],
        vec![receive(0, any()), Do::Close(0), receive(1, any())],
    ];
    sound("closed", 1, &scripts);
    sound("closed, two slots", 2, &scripts);
}

#[test]
fn i17_i18_a_process_that_ends_at_any_time() {
    let scripts = [
        vec![send((1, 0), 1, 4), send((1, 0), 1, 6), Do::Die],
        vec![receive(0, any()), receive(0, from(0, 0, 1)), send((0, 0), 1, 5), send((2, 0), 1, 4)],
        vec![receive(0, any())],
    ];
    sound("ended", 2, &scripts);
    let scripts = [
        vec![receive(0, any()), receive(0, any()), Do::Die],
        vec![send((0, 0), 1, 4), send((0, 0), 1, 6), receive(0, any())],
    ];
    sound("receiver ended", 1, &scripts);
}

#[test]
fn each_bug_has_a_shortest_counterexample() {
    let fragments = vec![vec![send((1, 0), 1, 4), send((1, 0), 1, 1)], vec![receive(0, any()), receive(0, any())]];
    let request = vec![vec![send((1, 0), 1, 6), Do::WithdrawSend], vec![receive(0, any()), receive(0, any())]];
    let mixed = vec![
        vec![send((1, 0), 1, 1), send((1, 0), 2, 1)],
        vec![receive(0, any()), receive(0, from(0, 0, 1)), receive(0, any())],
    ];
    let no_thread = vec![vec![send((1, 5), 1, 1)], vec![]];
    let death = vec![vec![send((1, 0), 1, 1)], vec![Do::Die]];
    for (bug, scripts) in [
        (Bug::TransferTwice, &request),
        (Bug::WithdrawMatched, &request),
        (Bug::ForgetOffset, &fragments),
        (Bug::ReturnEarly, &fragments),
        (Bug::KeepRefused, &no_thread),
        (Bug::NewestFirst, &mixed),
        (Bug::ExactFirst, &mixed),
        (Bug::IgnoreSlots, &fragments),
        (Bug::ForgetSends, &death),
    ] {
        let found = check(&format!("{bug:?}"), config(1, Way::Get, Some(bug)), scripts.clone())
            .or_else(|| check(&format!("{bug:?}"), config(2, Way::Get, Some(bug)), scripts.clone()));
        println!("{}", found.unwrap_or_else(|| panic!("{bug:?} is not found")));
    }
    let found = check_pieces("RepeatPiece", config(1, Way::Get, Some(Bug::RepeatPiece)), 1, request);
    println!("{}", found.expect("RepeatPiece is not found"));
}
