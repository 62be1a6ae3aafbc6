// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end: runs until no event is left, compares all copies, and releases everything.

use super::world::{NODES, PAGES, Place, State, World, give_back};
use crate::common::EXPORTS;
use telegraphos_wire::UNIT;

impl World {
    /// All nodes return, and drivers repair all pages until no event is left.
    pub(crate) fn rest(&mut self) -> Result<(), String> {
        for node in 0..NODES {
            self.come_back(node);
        }
        for _ in 0..500 {
            self.cluster.settle();
            for node in 0..NODES {
                self.poll(node)?;
            }
            let before = self.cluster.moment;
            for page in 0..PAGES {
                self.found_again(page);
            }
            for place in 0..self.places.len() {
                if self.places[place].is_idle() {
                    self.mend(place)?;
                }
            }
            self.cluster.settle();
            if self.cluster.moment == before {
                return Ok(());
            }
        }
        let restless = (0..self.places.len()).filter(|place| {
            let entry = &self.places[*place];
            entry.command.is_some() || !matches!(entry.state, State::Free | State::Living)
        });
        let restless: Vec<String> = restless
            .map(|place| format!("{} {:?} {:?}", World::name(place), self.places[place].state, self.places[place].page))
            .collect();
        Err(format!("the drivers never come to rest: {}", restless.join(", ")))
    }

    /// I2 and more: all copies equal their homes, and nothing waits.
    pub(crate) fn check_rest(&mut self) -> Result<(), String> {
        for place in 0..self.places.len() {
            let Place { state, page, command, .. } = self.places[place];
            if command.is_some() || !matches!(state, State::Free | State::Living) {
                return Err(format!("{} is {state:?}, {command:?} at rest", World::name(place)));
            }
            let Some(page) = page else { continue };
            let Some(home) = self.pages[page].home else {
                return Err(format!("{} was never notified that its home is gone", World::name(place)));
            };
            let memory = |node: u16, slot: u32| {
                let at = (EXPORTS + u64::from(slot) * UNIT) as usize;
                &self.cluster.nodes[usize::from(node)].ram[at..at + UNIT as usize]
            };
            let (node, slot) = World::at(place);
            let (its, homes) = (memory(node, slot), memory(home.node, home.slot));
            if let Some(at) = (0..its.len()).find(|at| its[*at] != homes[*at]) {
                let (its, homes) = (its[at], homes[at]);
                return Err(format!("I2: byte {at:#x} of {} is {its}, its home's is {homes}", World::name(place)));
            }
            if self.places[place].alive && !self.is_home(place) {
                let life = &self.places[place].life;
                life.follows(&self.pages[page]).map_err(|e| format!("{}: {e}", World::name(place)))?;
            }
        }
        for (id, node) in self.cluster.nodes.iter().enumerate() {
            let pending = node.hib.pending_counters();
            if pending != 0 {
                return Err(format!("I2: {pending} counters of node {id} are not 0"));
            }
        }
        Ok(())
    }

    pub(crate) fn take_down(&mut self) -> Result<(), String> {
        let places = 0..self.places.len();
        // First copies, so that the homes have none when they resign.
        let homes: Vec<bool> = places.clone().map(|place| self.is_home(place)).collect();
        for of_homes in [false, true] {
            for place in places.clone().filter(|place| homes[*place] == of_homes) {
                if self.places[place].state == State::Living {
                    self.leave(place);
                }
            }
            for _ in 0..4 {
                self.cluster.settle();
                (0..NODES).try_for_each(|node| self.poll(node))?;
            }
        }
        for place in places {
            if self.places[place].state != State::Free {
                return Err(format!("{} is {:?} in the end", World::name(place), self.places[place].state));
            }
        }
        give_back(&mut self.cluster);
        Ok(())
    }
}
