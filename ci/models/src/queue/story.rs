// SPDX-License-Identifier: MIT OR Apache-2.0
//! Printed counterexamples.

use super::driver::Holder;
use super::{Action, QueueModel, State};

impl QueueModel {
    fn actor(&self, state: &State, action: Action) -> String {
        let name = |number: usize| match (self.setup.consumers, number) {
            (1, _) => "consumer".to_owned(),
            (_, number) => format!("consumer {}", number + 1),
        };
        match (action, state.driver.mutex) {
            (Action::Arrive(_) | Action::Board | Action::Arm(_), _) => "board".into(),
            (Action::Interrupt, _) => "interrupt".into(),
            (Action::Work | Action::Bound, _) | (Action::Handler, Some(Holder::Worker) | None) => "worker".into(),
            (Action::Handler, Some(Holder::Consumer(number))) => format!("{} in the driver", name(number)),
            (Action::Consumer(number) | Action::Kill(number) | Action::Restart(number), _) => name(number),
        }
    }

    /// A path as text: one line for consecutive steps of one party.
    pub(crate) fn describe(&self, path: Vec<(State, Option<Action>)>) -> Vec<String> {
        let mut lines: Vec<(String, Vec<String>)> = Vec::new();
        let mut end = None;
        for (state, action) in path {
            let Some(action) = action else {
                let apart = "the driver handles an overflow, and a consumer is in the dequeue section";
                end = state.fault.map(|fault| fault.to_string()).or(state.overlaps().then(|| apart.into()));
                break;
            };
            let actor = self.actor(&state, action);
            let mut said = Vec::new();
            self.apply(&mut state.clone(), action, &mut |words| said.push(words.to_string()));
            match lines.last_mut() {
                Some((last, words)) if *last == actor => words.extend(said),
                _ => lines.push((actor, said)),
            }
        }
        let mut lines: Vec<String> =
            lines.into_iter().map(|(actor, words)| format!("{actor}: {}", words.join(", "))).collect();
        lines.push(format!("=> {}", end.unwrap_or_else(|| "and nothing can happen any more".into())));
        lines
    }
}
