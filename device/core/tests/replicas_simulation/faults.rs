// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults, and recovery from them.

use super::record::Home;
use super::world::{Doing, Fault, Place, SLOTS, State, World, trace};
use crate::common::{Driver, EXPORTS};
use telegraphos_wire::UNIT;

impl World {
    pub(crate) fn fault(&mut self, node: u16, fault: Fault) -> Result<(), String> {
        self.observe()?;
        self.count(match fault {
            Fault::Reset => "resets",
            Fault::Crash => "crashes",
            Fault::Flap => "links that break",
        });
        let first = self.place(node, 0);
        for place in first..first + SLOTS as usize {
            let Some(page) = self.places[place].page else { continue };
            trace(page, || format!("{} {}: {fault:?}", self.cluster.moment, World::name(place)));
            if !self.is_home(place) {
                self.end_life(place)?;
                self.places[place].disturbed = true;
                self.places[place].shakes = u32::MAX;
            } else {
                self.disturb(page, true);
                if fault == Fault::Flap {
                    // It remains the home, and continues without its copies.
                    self.end_lives(page)?;
                    self.places[place].disturbed = false;
                } else {
                    self.pages[page].home = None;
                    self.pages[page].resigning = false;
                }
            }
            if self.pages[page].adopter == Some(place) && fault != Fault::Flap {
                self.pages[page].adopter = None;
            }
        }
        match fault {
            Fault::Flap => {
                self.cluster.disconnect(node);
                self.absent[usize::from(node)] = Some(fault);
            }
            Fault::Crash => {
                self.forget(node);
                self.cluster.replace(node);
                self.absent[usize::from(node)] = Some(fault);
            }
            Fault::Reset => {
                self.forget(node);
                self.cluster.reset(node);
                let end = (EXPORTS + u64::from(SLOTS) * UNIT) as usize;
                self.cluster.nodes[usize::from(node)].ram[..end].fill(0);
                self.begin(node);
            }
        }
        Ok(())
    }

    pub(crate) fn forget(&mut self, node: u16) {
        let first = self.place(node, 0);
        self.places[first..first + SLOTS as usize].fill(Place::new());
        self.programs[usize::from(node)] = super::pending::Program::default();
    }

    pub(crate) fn begin(&mut self, node: u16) {
        self.cluster.start(node);
        self.grant_all(node);
    }

    /// An absent node returns.
    pub(crate) fn come_back(&mut self, node: u16) {
        let Some(fault) = self.absent[usize::from(node)].take() else { return };
        self.cluster.connect(node);
        if fault == Fault::Crash {
            self.begin(node);
        }
    }

    /// A page without any copy starts again.
    pub(crate) fn found_again(&mut self, page: usize) {
        let unused = !self.places.iter().any(|entry| entry.page == Some(page));
        let Some(place) = (0..self.places.len()).find(|place| {
            self.places[*place].state == State::Free && self.absent[usize::from(World::at(*place).0)].is_none()
        }) else {
            return;
        };
        if self.pages[page].home.is_some() || !unused {
            return;
        }
        let (node, slot) = World::at(place);
        let at = (EXPORTS + u64::from(slot) * UNIT) as usize;
        self.cluster.nodes[usize::from(node)].ram[at..at + UNIT as usize].fill(0);
        let generation = self.places[place].generation;
        self.places[place].page = Some(page);
        self.places[place].state = State::Adopting;
        self.pages[page].adopter = Some(place);
        let set = self.replica_set(place, Home { node, slot, generation });
        self.post(place, Doing::Adopt, set.into());
        self.count("pages begun anew");
    }
}
