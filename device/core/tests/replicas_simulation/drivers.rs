// SPDX-License-Identifier: MIT OR Apache-2.0
//! The drivers: they create copies and homes, open imports, adopt and release pages, and read events.

use super::record::{Home, LANES, Life, offset_of};
use super::world::{Doing, Place, RIGHTS, SLOTS, State, World, trace};
use crate::common::{
    Driver, EXPORTS, grant_clear, grant_set, import_ack, import_clear, import_pages, replica_clear, status_page,
};
use telegraphos_wire::admin;
use telegraphos_wire::admin::{Command, ReplicaCommand};
use telegraphos_wire::context;
use telegraphos_wire::event;
use telegraphos_wire::{Status, UNIT};

impl World {
    /// All export pages of a node are granted, and none is replicated.
    pub(crate) fn grant_all(&mut self, node: u16) {
        let generation = self.cluster.admin(node, World::grant(0, SLOTS)).generation;
        for slot in 0..SLOTS {
            let place = self.place(node, slot);
            self.places[place] = Place { generation, ..Place::new() };
        }
    }

    pub(crate) fn grant(index: u32, count: u32) -> Command {
        grant_set(index, count, EXPORTS + u64::from(index) * UNIT, RIGHTS)
    }

    pub(crate) fn post(&mut self, place: usize, doing: Doing, command: Command) {
        if let Some(page) = self.places[place].page {
            trace(page, || {
                format!(
                    "{} {} {:?} posts {doing:?} home {:?}",
                    self.cluster.moment,
                    World::name(place),
                    self.places[place].state,
                    self.pages[page].home
                )
            });
        }
        let (node, slot) = World::at(place);
        // An admin slot that is free.
        let first = self.place(node, 0);
        loop {
            let next = (self.cluster.last_command(node) + 1) % admin::SLOTS as u32;
            let of_node = &self.places[first..first + SLOTS as usize];
            if !of_node.iter().any(|place| place.command.is_some_and(|command| command.0 == next)) {
                break;
            }
            self.cluster.nodes[usize::from(node)].kernel.seq += 1;
        }
        let admin_slot = self.cluster.post(node, command);
        let seq = self.cluster.last_command(node);
        assert!(self.places[place].command.is_none(), "page {slot} of node {node} has a command under way");
        self.places[place].command = Some((admin_slot, seq, doing));
    }

    pub(crate) fn replica_set(&self, place: usize, home: Home) -> ReplicaCommand {
        ReplicaCommand {
            opcode: admin::REPLICA_SET,
            page: World::at(place).1,
            mode: admin::COUNTERS,
            node: home.node.into(),
            home_page: home.slot,
            home_generation: home.generation,
            ..ReplicaCommand::default()
        }
    }

    /// The export page becomes a copy of a page.
    pub(crate) fn join(&mut self, place: usize, page: usize) -> Result<(), String> {
        let Some(home) = self.pages[page].home else { return Ok(()) };
        let (node, slot) = World::at(place);
        self.end_life(place)?;
        if self.places[place].page != Some(page) {
            self.places[place].life = Life::new();
            // All of it will be filled.
            let at = (EXPORTS + u64::from(slot) * UNIT) as usize;
            let garbage = 251 + self.below(4) as u8; // No number of a store.
            let ram = &mut self.cluster.nodes[usize::from(node)].ram;
            ram[at..at + UNIT as usize].iter_mut().step_by(61).for_each(|byte| *byte = garbage);
        }
        let shakes = self.pages[page].shakes;
        let entry = &mut self.places[place];
        entry.life.begin();
        (entry.page, entry.state, entry.notified) = (Some(page), State::Joining, false);
        (entry.alive, entry.shakes) = (true, shakes);
        let set = self.replica_set(place, home);
        self.post(place, Doing::Join, set.into());
        self.count("joins");
        Ok(())
    }

    pub(crate) fn joined(&mut self, place: usize, page: usize) -> Result<(), String> {
        // The path to the home may have been cut meanwhile; then an event will follow.
        let whole = self.places[place].shakes == self.pages[page].shakes && self.pages[page].home.is_some();
        let entry = &mut self.places[place];
        entry.alive &= whole;
        entry.current = entry.alive;
        entry.disturbed = !entry.alive || self.pages[page].resigning;
        if entry.alive && !self.pages[page].resigning {
            self.pages[page].has_reported(&self.places[place].life)?;
        }
        self.use_it(place);
        Ok(())
    }

    /// The import of a copy or home is opened, or used again.
    pub(crate) fn use_it(&mut self, place: usize) {
        self.places[place].mended += 1;
        self.places[place].state = State::Opening;
        if !self.places[place].open {
            self.open(place);
        } else if self.below(2) == 0 {
            self.post(place, Doing::Acknowledge, import_ack(World::at(place).1 as u16));
        } else {
            self.close(place);
        }
    }

    pub(crate) fn open(&mut self, place: usize) {
        let (node, slot) = World::at(place);
        // The count of stores taken restarts.
        let taken = self.taken_word(slot) as usize;
        self.cluster.nodes[usize::from(node)].ram[taken..taken + 8].fill(0);
        let set = Command {
            taken: 1 + slot,
            ..import_pages(slot as u16, node, slot, (slot, 1), self.places[place].generation, RIGHTS)
        };
        self.places[place].state = State::Opening;
        self.post(place, Doing::Open, set);
    }

    pub(crate) fn close(&mut self, place: usize) {
        self.post(place, Doing::Close, import_clear(World::at(place).1 as u16));
    }

    pub(crate) fn clear(&mut self, place: usize) {
        self.post(place, Doing::Clear, replica_clear(World::at(place).1));
    }

    pub(crate) fn taken_word(&self, slot: u32) -> u64 {
        status_page(0) + context::TAKEN_OFFSET + 8 * u64::from(slot)
    }

    /// Releases the export page; the import is closed first or last.
    pub(crate) fn leave(&mut self, place: usize) {
        if self.is_home(place) {
            let Some(page) = self.places[place].page else { return };
            self.pages[page].resigning = true;
            self.disturb(page, false);
            self.places[place].disturbed = true;
        } else {
            self.count("leaves");
        }
        self.places[place].state = State::Leaving { cleared: false };
        if self.places[place].open && self.below(2) == 0 {
            self.close(place);
        } else {
            self.clear(place);
        }
    }

    /// A home's memory is revoked, with operations in flight.
    pub(crate) fn revoke(&mut self, place: usize) {
        let Some(page) = self.places[place].page else { return };
        self.pages[page].resigning = true;
        self.disturb(page, false);
        self.places[place].disturbed = true;
        self.places[place].state = State::Revoking;
        let index = World::at(place).1;
        self.post(place, Doing::Revoke, grant_clear(index, 1));
        self.count("homes that are revoked");
    }

    /// The driver's action for an export page that needs one.
    pub(crate) fn mend(&mut self, place: usize) -> Result<(), String> {
        let (State::Orphan, Some(page)) = (self.places[place].state, self.places[place].page) else { return Ok(()) };
        if self.pages[page].home.is_some() {
            return if self.pages[page].resigning { Ok(()) } else { self.join(place, page) };
        }
        if self.pages[page].adopter.is_some() {
            return Ok(());
        }
        let current = |entry: &Place| entry.page == Some(page) && entry.current;
        if self.places[place].current || !self.places.iter().any(current) {
            let (node, slot) = World::at(place);
            let generation = self.places[place].generation;
            self.pages[page].adopter = Some(place);
            self.places[place].state = State::Adopting;
            self.places[place].notified = false;
            let set = self.replica_set(place, Home { node, slot, generation });
            self.post(place, Doing::Adopt, set.into());
        }
        Ok(())
    }

    pub(crate) fn adopted(&mut self, place: usize, page: usize) -> Result<(), String> {
        let (node, slot) = World::at(place);
        self.pages[page].adopter = None;
        let Place { alive, current, generation, .. } = self.places[place];
        if alive && current {
            self.places[place].life.follows(&self.pages[page])?;
            let life = self.places[place].life.clone();
            self.end_lives(page)?;
            self.pages[page].adopted(&life)?;
            self.count("adoptions");
        } else {
            self.end_lives(page)?;
            let memory = &self.cluster.nodes[usize::from(node)].ram;
            let at = (EXPORTS + u64::from(slot) * UNIT) as usize;
            self.pages[page].lost(|lane| memory[at + offset_of(lane) as usize]);
            self.count("adoptions of what is left");
        }
        self.pages[page].home = Some(Home { node, slot, generation });
        for lane in 0..LANES {
            let byte = self.cluster.nodes[usize::from(node)].ram
                [(EXPORTS + u64::from(slot) * UNIT + offset_of(lane)) as usize];
            if byte != self.pages[page].latest(lane) {
                return Err(format!("the new home has {byte}, its order is {:?}", self.pages[page].order(lane)));
            }
        }
        self.places[place].disturbed = false;
        self.use_it(place);
        Ok(())
    }

    /// Checks the values that an export page has had, and stops recording.
    pub(crate) fn end_life(&mut self, place: usize) -> Result<(), String> {
        let home = self.is_home(place);
        let entry = &mut self.places[place];
        entry.current = false;
        if let (true, Some(page), false) = (std::mem::take(&mut entry.alive), entry.page, home) {
            let result = entry.life.follows(&self.pages[page]);
            return result.map_err(|e| format!("{}: {e}", World::name(place)));
        }
        Ok(())
    }

    pub(crate) fn end_lives(&mut self, page: usize) -> Result<(), String> {
        let of_page = |place: &usize| self.places[*place].page == Some(page);
        let places: Vec<usize> = (0..self.places.len()).filter(of_page).collect();
        places.into_iter().try_for_each(|place| self.end_life(place))
    }

    /// Stores to a page may fail from now on; the home may have dropped its copies.
    pub(crate) fn disturb(&mut self, page: usize, dropped: bool) {
        if dropped {
            self.pages[page].shakes += 1;
        }
        self.places.iter_mut().filter(|entry| entry.page == Some(page)).for_each(|entry| entry.disturbed = true);
    }

    /// The driver reads new events, in order; programs check their results.
    pub(crate) fn poll(&mut self, node: u16) -> Result<(), String> {
        self.observe()?;
        for (kind, index, value) in self.cluster.take_events(node) {
            let done = |place: &usize| self.places[*place].command.is_some_and(|c| c.0 == u32::from(index));
            let first = self.place(node, 0);
            let places = first..first + SLOTS as usize;
            match kind {
                event::ADMIN_DONE => {
                    let Some(place) = places.clone().find(done) else { continue };
                    let completion = self.cluster.completion(node, index.into());
                    if let Some((_, _, doing)) = self.places[place].command.filter(|c| c.1 == completion.seq) {
                        self.places[place].command = None;
                        self.places[place].generation =
                            if doing == Doing::Grant { completion.generation } else { self.places[place].generation };
                        let status = Status::from_u16(completion.status as u16);
                        self.finish(place, doing, status).map_err(|e| format!("{}: {e}", World::name(place)))?;
                    }
                }
                event::REPLICA if value & event::REPLICA_ORPHANED != 0 => {
                    let place = first + (value >> 32) as usize;
                    // An event may precede the join.
                    let innocent = !self.places[place].disturbed;
                    if innocent && (self.calm || self.places[place].state != State::Joining) {
                        return Err(format!(
                            "{} has an unexpected event {value:#x}, of {:?}",
                            World::name(place),
                            self.places[place].page
                        ));
                    }
                    self.count("orphans");
                    if let Some(page) = self.places[place].page {
                        trace(page, || format!("{} {} event {value:#x}", self.cluster.moment, World::name(place)));
                    }
                    let entry = &mut self.places[place];
                    entry.notified = true;
                    // It may have learned of the home's resignation from a refused store, before it had everything that
                    // the home sent.
                    let status = Status::from_u16((value >> 16) as u16);
                    entry.current &= matches!(status, Status::NodeDown | Status::LinkDown | Status::Reset);
                    if entry.state == State::Living && entry.command.is_none() {
                        entry.state = State::Orphan;
                    }
                }
                _ => {}
            }
        }
        self.poll_program(node)
    }

    pub(crate) fn finish(&mut self, place: usize, doing: Doing, status: Status) -> Result<(), String> {
        let Some(page) = self.places[place].page else { return Err(format!("{doing:?} of nothing")) };
        trace(page, || {
            format!(
                "{} {} {:?} {doing:?} {status:?} home {:?}",
                self.cluster.moment,
                World::name(place),
                self.places[place].state,
                self.pages[page].home
            )
        });
        let unexpected = || Err(format!("{doing:?} of page {page} ends with {status:?}"));
        match (doing, status) {
            (Doing::Join, Status::Ok) if self.places[place].notified => self.places[place].state = State::Orphan,
            (Doing::Join, Status::Ok) => self.joined(place, page)?,
            (Doing::Join, _) => {
                let faults = ["resets", "crashes", "links that break"];
                let sound = !faults.iter().any(|fault| self.tally.contains_key(fault));
                if sound && !self.places[place].disturbed && !self.pages[page].resigning {
                    return unexpected();
                }
                self.places[place].state = State::Orphan;
                self.places[place].alive = false;
                self.places[place].disturbed = true;
            }
            (Doing::Adopt, Status::Ok) => self.adopted(place, page)?,
            (Doing::Open | Doing::Acknowledge, Status::Ok) => {
                let entry = &mut self.places[place];
                if doing == Doing::Open {
                    (entry.open, entry.exact, entry.issued) = (true, true, 0);
                } else {
                    entry.exact = false;
                }
                entry.unreported.clear();
                entry.untaken.clear();
                entry.state = if std::mem::take(&mut entry.notified) { State::Orphan } else { State::Living };
            }
            // Its word of the status page is still being stored.
            (Doing::Open, Status::Busy) => self.open(place),
            (Doing::Close, Status::Ok) => {
                self.places[place].open = false;
                match self.places[place].state {
                    State::Leaving { cleared: false } => {
                        self.all_done(place, page)?;
                        self.clear(place);
                    }
                    State::Leaving { cleared: true } => self.free(place)?,
                    State::Revoking => self.free(place)?,
                    _ => self.open(place),
                }
            }
            // The board may never have made it a copy.
            (Doing::Clear, Status::Ok | Status::Invalid) => {
                self.all_done(place, page)?;
                self.end_life(place)?;
                self.end_home(place, page);
                self.places[place].state = State::Leaving { cleared: true };
                if self.places[place].open { self.close(place) } else { self.free(place)? }
            }
            (Doing::Revoke, Status::Ok) => {
                self.end_home(place, page);
                let (_, slot) = World::at(place);
                self.post(place, Doing::Grant, World::grant(slot, 1));
            }
            (Doing::Grant, Status::Ok) if self.places[place].open => self.close(place),
            (Doing::Grant, Status::Ok) => self.free(place)?,
            _ => return unexpected(),
        }
        Ok(())
    }

    pub(crate) fn end_home(&mut self, place: usize, page: usize) {
        if self.is_home(place) {
            self.pages[page].home = None;
            self.pages[page].resigning = false;
        }
    }

    /// An export page without faults leaves none of its stores behind.
    pub(crate) fn all_done(&mut self, place: usize, page: usize) -> Result<(), String> {
        let entry = &mut self.places[place];
        let stores = std::mem::take(&mut entry.unreported);
        if entry.disturbed {
            return Ok(());
        }
        for store in stores {
            store.lanes.into_iter().try_for_each(|lane| self.pages[page].report(lane, store.number))?;
        }
        Ok(())
    }

    pub(crate) fn free(&mut self, place: usize) -> Result<(), String> {
        self.end_life(place)?;
        let Place { page, generation, .. } = self.places[place];
        if page.is_some_and(|page| self.pages[page].adopter == Some(place)) {
            return Err("it is free and about to be a home".into());
        }
        self.places[place] = Place { last: page, generation, ..Place::new() };
        Ok(())
    }
}
