// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is in the slots that one process has at another. Both halves keep it: the sender has its sends there, the
//! receiver its messages.

use crate::config::Config;
use crate::packet::Violation;
use crate::store::Id;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slots(Vec<Option<Id>>);

impl Slots {
    pub(crate) fn new(config: &Config) -> Slots {
        Slots(vec![None; usize::from(config.slots)])
    }

    /// The first that has nothing.
    pub(crate) fn free(&self) -> Option<u16> {
        self.0.iter().position(Option::is_none).map(|slot| slot as u16) // there are not more of them
    }

    /// What is in one of them.
    pub(crate) fn get(&self, slot: u16) -> Result<Option<Id>, Violation> {
        let found = self.0.get(usize::from(slot)).copied();
        found.ok_or(Violation::NoSlot { slot, slots: self.0.len() as u16 })
    }

    /// Puts something, or nothing, into a slot that there is.
    pub(crate) fn set(&mut self, slot: u16, to: Option<Id>) {
        if let Some(place) = self.0.get_mut(usize::from(slot)) {
            *place = to;
        }
    }

    /// Empties a slot, if this is in it.
    pub(crate) fn take(&mut self, slot: u16, id: Id) -> bool {
        self.0.get_mut(usize::from(slot)).is_some_and(|place| place.take_if(|of| *of == id).is_some())
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = Id> {
        self.0.iter().flatten().copied()
    }

    pub(crate) fn in_use(&self) -> usize {
        self.ids().count()
    }
}
