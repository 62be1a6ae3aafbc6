// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks that stateright lacks: that a good end is reachable from every state; and long random walks.

use super::queue::{Action, QueueModel, State};
use crate::digest::digest;
use stateright::Model;
use std::collections::HashMap;
use telegraphos_testkit::Rng;

/// The path from a state back to the first: the previous state, and the step.
type Way = Option<(usize, Action)>;

fn story(model: &QueueModel, actions: impl IntoIterator<Item = Action>) -> Vec<String> {
    let mut state = model.init_states().remove(0);
    let mut path = Vec::new();
    for action in actions {
        path.push((state.clone(), Some(action)));
        model.apply(&mut state, action, &mut |_| {});
    }
    path.push((state, None));
    model.describe(path)
}

/// Visits all states, then searches backwards from those in which everything is done. Returns the number of states, or
/// the path to a state from which no good end is reachable (a deadlock or a livelock).
pub(crate) fn always_possible(model: &QueueModel) -> Result<usize, Vec<String>> {
    let mut numbers: HashMap<u64, usize> = HashMap::new();
    let mut ways: Vec<Way> = Vec::new();
    // The steps' ends and beginnings; and the good ends.
    let mut back: Vec<Vec<u32>> = Vec::new();
    let mut good = Vec::new();
    let mut pending: Vec<(usize, State)> = Vec::new();
    for state in model.init_states() {
        numbers.insert(digest(&state), ways.len());
        pending.push((ways.len(), state));
        ways.push(None);
        back.push(Vec::new());
    }
    let mut actions = Vec::new();
    while let Some((number, state)) = pending.pop() {
        actions.clear();
        model.actions(&state, &mut actions);
        if actions.is_empty() && state.fault.is_none() && state.is_done() {
            good.push(number);
        }
        for action in actions.iter().copied() {
            let mut next = state.clone();
            model.apply(&mut next, action, &mut |_| {});
            let to = *numbers.entry(digest(&next)).or_insert_with(|| {
                ways.push(Some((number, action)));
                back.push(Vec::new());
                pending.push((ways.len() - 1, next));
                ways.len() - 1
            });
            back[to].push(number as u32);
        }
    }
    let mut reaches = vec![false; ways.len()];
    while let Some(number) = good.pop() {
        if !std::mem::replace(&mut reaches[number], true) {
            good.extend(back[number].iter().map(|from| *from as usize));
        }
    }
    let Some(mut lost) = reaches.iter().position(|reaches| !reaches) else { return Ok(ways.len()) };
    let mut path = Vec::new();
    while let Some((before, action)) = ways[lost] {
        path.push(action);
        lost = before;
    }
    Err(story(model, path.into_iter().rev()))
}

/// Takes random steps until none is possible. Returns their number, or the path to a violation. With every other seed
/// the consumers are slow.
pub(crate) fn walk(model: &QueueModel, seed: u64) -> Result<usize, Vec<String>> {
    let properties = model.properties();
    let mut random = Rng::new(seed);
    let mut taken = Vec::new();
    let mut actions = Vec::new();
    let mut state = model.init_states().remove(0);
    loop {
        if let Some(violated) = properties.iter().find(|property| !(property.condition)(model, &state)) {
            let mut lines = story(model, taken);
            lines.push(format!("against {:?}", violated.name));
            return Err(lines);
        }
        actions.clear();
        model.actions(&state, &mut actions);
        if actions.is_empty() {
            return Ok(taken.len());
        }
        let mut pick = || actions[random.below(actions.len())];
        let mut action = pick();
        for _ in 0..seed % 2 * 3 {
            if matches!(action, Action::Consumer(_)) {
                action = pick();
            }
        }
        model.apply(&mut state, action, &mut |_| {});
        taken.push(action);
    }
}
