// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs' operations on replicated pages, and checks of their results.

use super::pending::{Atomic, Load, Quiet};
use super::record::{COUNTED, Stored, WORDS, lanes_at, offset_of};
use super::world::{BUSY_PAGES, NODES, PAGES, Place, SLOTS, State, World};
use crate::common::{Driver, atomic_steps};
use telegraphos_wire::context::{Launch, Operation};
use telegraphos_wire::{AtomicOp, Status};

/// Stores of one import that the board has not taken, at most.
const IN_FLIGHT: usize = 12;
/// Cache slots of context 0 for quiet and atomics.
const QUIET_SLOT: u64 = 0;
const ATOMIC_SLOT: u8 = 1;

fn repeated(number: u8, size: u8) -> u64 {
    (u64::from(number) * 0x0101_0101_0101_0101) & (u64::MAX >> (64 - 8 * u32::from(size)))
}

impl World {
    /// One action of the program or the driver of a node on one of its pages.
    pub(crate) fn act(&mut self, node: u16) -> Result<(), String> {
        let first = self.place(node, 0);
        // Busy pages are chosen more often.
        let mut place = first + self.below(SLOTS as usize);
        for _ in 0..3 {
            if self.places[place].page.is_some_and(|page| page < BUSY_PAGES) {
                break;
            }
            place = first + self.below(SLOTS as usize);
        }
        if !self.places[place].is_idle() {
            return Ok(());
        }
        let state = self.places[place].state;
        match state {
            State::Free => self.may_join(place),
            State::Orphan if self.below(8) == 0 && !self.programs[usize::from(node)].uses(place) => {
                self.leave(place);
                Ok(())
            }
            State::Orphan => self.mend(place),
            State::Living => self.use_page(node, place),
            _ => Ok(()),
        }
    }

    fn may_join(&mut self, place: usize) -> Result<(), String> {
        let (node, _) = World::at(place);
        let first = self.place(node, 0);
        let of_node = first..first + SLOTS as usize;
        let used = of_node.clone().filter(|place| self.places[*place].page.is_some()).count();
        if self.below(if used < 9 { 2 } else { 25 }) != 0 {
            return Ok(());
        }
        let last = self.places[place].last.filter(|_| self.cluster.rng.below(2) == 0);
        let page = match (last, self.below(3)) {
            (Some(page), _) => page,
            (None, 0) => self.below(BUSY_PAGES),
            (None, _) => self.below(PAGES),
        };
        let has = of_node.clone().any(|place| self.places[place].page == Some(page));
        let home = self.pages[page].home.filter(|home| home.node != node && !self.pages[page].resigning);
        if has || home.is_none() {
            return Ok(());
        }
        self.join(place, page)
    }

    fn use_page(&mut self, node: u16, place: usize) -> Result<(), String> {
        let Some(page) = self.places[place].page else { return Ok(()) };
        match self.below(1000) {
            0..=649 => {
                for _ in 0..1 + self.below(3) {
                    self.store(node, place, page);
                }
            }
            650..=739 => self.load(node, place),
            740..=829 => self.quiet(node, place),
            830..=979 => self.atomic(node, place, page),
            980..=996 if !self.is_home(place) && !self.programs[usize::from(node)].uses(place) => self.leave(place),
            997.. if !self.calm && self.is_home(place) && !self.programs[usize::from(node)].uses(place) => {
                self.revoke(place);
            }
            _ => {}
        }
        Ok(())
    }

    /// Size and offset of an access; mostly to the first two words.
    fn somewhere(&mut self) -> (u8, u64) {
        let size = [1u8, 2, 4, 8][self.below(4)];
        let word = if self.below(3) == 0 { self.below(COUNTED) } else { self.below(2) };
        (size, u64::from(WORDS[word]) + (self.below(8 / usize::from(size)) * usize::from(size)) as u64)
    }

    /// A store with a new number, if there is one.
    fn new_store(&mut self, page: usize, offset: u64, size: u8) -> Option<Stored> {
        let lanes = lanes_at(offset, size)?;
        let number = self.pages[page].number(lanes.start / 8)?;
        Some(Stored { lanes, number, losses: self.pages[page].losses })
    }

    fn store(&mut self, node: u16, place: usize, page: usize) {
        if self.places[place].untaken.len() >= IN_FLIGHT {
            return;
        }
        let (size, offset) = self.somewhere();
        let Some(store) = self.new_store(page, offset, size) else { return };
        let (_, slot) = World::at(place);
        let address = self.cluster.address(node, slot, offset);
        let entry = &mut self.places[place];
        entry.life.issued(&store);
        entry.issued += 1;
        let data = repeated(store.number, size);
        super::world::trace(page, || {
            format!(
                "{} {} stores {} at {offset:#x} issued {}",
                self.cluster.moment,
                World::name(place),
                store.number,
                entry.issued
            )
        });
        entry.unreported.push(store.clone());
        entry.untaken.push(store);
        self.cluster.store(node, address, size.into(), data);
        self.count("stores");
    }

    fn load(&mut self, node: u16, place: usize) {
        if self.programs[usize::from(node)].load.is_some() {
            return;
        }
        let (size, offset) = self.somewhere();
        let (_, slot) = World::at(place);
        let address = self.cluster.address(node, slot, offset);
        let entry = &self.places[place];
        let mut newest = Vec::new();
        for lane in lanes_at(offset, size).unwrap_or(0..0) {
            let own = entry.unreported.iter().rev().find(|store| store.lanes.contains(&lane));
            newest.extend(own.map(|store| (lane, store.number)));
        }
        let mended = entry.mended;
        let token = self.cluster.start_load(node, address, size.into());
        self.programs[usize::from(node)].load = Some(Load { mended, token, place, offset, size, newest });
        self.count("loads");
    }

    pub(crate) fn quiet(&mut self, node: u16, place: usize) {
        if self.programs[usize::from(node)].quiet.is_some() {
            return;
        }
        let mended = self.places[place].mended;
        let cookie = self.cluster.cookie();
        let (_, slot) = World::at(place);
        self.cluster.start_quiet(node, QUIET_SLOT, slot.into(), cookie);
        let stores = self.places[place].unreported.clone();
        let older = self.programs[usize::from(node)].atomic.as_ref();
        let older = older.is_some_and(|atomic| atomic.place == place && atomic.mended != mended);
        self.programs[usize::from(node)].quiet = Some(Quiet { mended, older, cookie, place, stores });
        self.count("quiets");
    }

    fn atomic(&mut self, node: u16, place: usize, page: usize) {
        if self.programs[usize::from(node)].atomic.is_some() {
            return;
        }
        let (_, slot) = World::at(place);
        let mended = self.places[place].mended;
        let cookie = self.cluster.cookie();
        let losses = self.pages[page].losses;
        let size = [4u8, 8][self.below(2)];
        let (op, offset, store, compare) = match self.below(3) {
            0 => {
                let nothing = Stored { lanes: 0..0, number: 0, losses };
                (AtomicOp::Add, u64::from(WORDS[COUNTED]), nothing, None)
            }
            which => {
                let offset =
                    u64::from(WORDS[self.below(2)]) + (self.below(8 / usize::from(size)) * usize::from(size)) as u64;
                let Some(store) = self.new_store(page, offset, size) else { return };
                self.places[place].life.issued(&store);
                if which == 1 {
                    (AtomicOp::Swap, offset, store, None)
                } else {
                    // Often the present value.
                    let mut bytes = [0; 8];
                    for (byte, lane) in bytes.iter_mut().zip(store.lanes.clone()) {
                        *byte = self.values(place, lane).last().copied().unwrap_or(0);
                    }
                    (AtomicOp::CompareSwap, offset, store, Some(u64::from_le_bytes(bytes)))
                }
            }
        };
        let size = if op == AtomicOp::Add { 8 } else { size };
        let operand = if op == AtomicOp::Add { 1 } else { repeated(store.number, size) };
        let address = self.cluster.address(node, slot, offset);
        let launch = Launch { operation: Operation::Atomic { op, size }, notify: false, cookie };
        self.cluster.launch(node, 0, ATOMIC_SLOT, atomic_steps(launch, operand, compare.unwrap_or(0), address));
        self.programs[usize::from(node)].atomic = Some(Atomic { mended, cookie, place, store, compare });
        self.count("atomics");
    }

    // ---- results ----

    /// Whether an export page has had no fault since it was last repaired, this many times before.
    fn sound(&self, place: usize, mended: u32) -> bool {
        !self.places[place].disturbed && self.places[place].mended == mended
    }

    pub(crate) fn poll_program(&mut self, node: u16) -> Result<(), String> {
        let first = self.place(node, 0);
        self.load_answered(node)?;
        self.quiet_done(node)?;
        self.atomic_done(node)?;
        for place in first..first + SLOTS as usize {
            self.failed(node, place)?;
            self.taken(node, place)?;
        }
        Ok(())
    }

    /// Stores fail only after a fault.
    fn failed(&mut self, node: u16, place: usize) -> Result<(), String> {
        let (_, slot) = World::at(place);
        let status = self.cluster.hib(node).import_state(slot as u16) >> 16;
        if self.places[place].state != State::Living || status == 0 {
            return Ok(());
        }
        if !self.places[place].disturbed {
            let status = Status::from_u16(status as u16);
            let page = self.places[place].page;
            return Err(format!("stores to {}, {page:?}, fail with {status:?} for nothing", World::name(place)));
        }
        if std::mem::take(&mut self.places[place].exact) {
            self.count("imports that fail");
        }
        self.places[place].untaken.clear();
        Ok(())
    }

    /// E22b: stores counted as taken are in the node's own copy.
    fn taken(&mut self, node: u16, place: usize) -> Result<(), String> {
        let Place { state, exact, alive, issued, .. } = self.places[place];
        if state != State::Living || !exact || !(alive || self.is_home(place)) {
            return Ok(());
        }
        let taken = self.cluster.ram_u64(node, self.taken_word(World::at(place).1));
        let waiting = self.places[place].untaken.len() as u64;
        if taken > issued || taken + waiting < issued {
            return Err(format!("E22b: {} has {issued} stores, {taken} taken", World::name(place)));
        }
        let done = self.places[place].untaken.len() - (issued - taken) as usize;
        let done: Vec<Stored> = self.places[place].untaken.drain(..done).collect();
        for store in done {
            for lane in store.lanes {
                let values = self.values(place, lane);
                if !values.contains(&store.number) {
                    let (name, number) = (World::name(place), store.number);
                    return Err(format!(
                        "E22b: {number} is taken, byte {:#x} of {name}, page {:?}, had {values:?}",
                        offset_of(lane),
                        self.places[place].page
                    ));
                }
            }
        }
        Ok(())
    }

    /// I4, and that every value read was stored.
    fn load_answered(&mut self, node: u16) -> Result<(), String> {
        let Some(Load { token, .. }) = self.programs[usize::from(node)].load else { return Ok(()) };
        let Some(found) = self.cluster.answer(node, token) else { return Ok(()) };
        let Some(load) = self.programs[usize::from(node)].load.take() else { return Ok(()) };
        let entry = &self.places[load.place];
        let failed = found == u64::MAX >> (64 - 8 * u32::from(load.size));
        let ready = entry.state == State::Living
            && (entry.alive || self.is_home(load.place))
            && self.sound(load.place, load.mended);
        if !ready {
            return Ok(());
        }
        if failed {
            return Err(format!("a load from {} fails for nothing", World::name(load.place)));
        }
        for (byte, lane) in lanes_at(load.offset, load.size).unwrap_or(0..0).enumerate() {
            let value = (found >> (8 * byte)) as u8;
            let values = self.values(load.place, lane);
            let place_in = |value: u8| values.iter().position(|v| *v == value);
            let own = load.newest.iter().find(|own| own.0 == lane).map(|own| own.1);
            let right = match (place_in(value), own) {
                (None, _) => false,
                (Some(_), None) => true,
                (Some(found), Some(own)) => place_in(own).is_some_and(|own| own <= found),
            };
            if !right {
                let (name, offset) = (World::name(load.place), offset_of(lane));
                return Err(format!(
                    "I4: {name} gives {value} for byte {offset:#x}, which had {values:?}; own {own:?}"
                ));
            }
        }
        Ok(())
    }

    /// I7: stores before a quiet that reports success are in every copy.
    fn quiet_done(&mut self, node: u16) -> Result<(), String> {
        let Some(Quiet { cookie, .. }) = self.programs[usize::from(node)].quiet else { return Ok(()) };
        let (status, found) = self.cluster.quiet_word(node, QUIET_SLOT);
        if found != cookie {
            return Ok(());
        }
        let Some(quiet) = self.programs[usize::from(node)].quiet.take() else { return Ok(()) };
        let name = World::name(quiet.place);
        if status != 0 {
            if self.sound(quiet.place, quiet.mended) && !quiet.older {
                return Err(format!(
                    "quiet of {name} {:?} fails with {:?} for nothing",
                    self.places[quiet.place].page,
                    Status::from_u16(status)
                ));
            }
            self.places[quiet.place].unreported.clear();
            return Ok(());
        }
        let Some(page) = self.places[quiet.place].page else { return Ok(()) };
        // The same; or its driver has acknowledged an error in between, which quiet no longer reports.
        if self.pages[page].adopter == Some(quiet.place) || self.places[quiet.place].mended != quiet.mended {
            return Ok(());
        }
        let count = quiet.stores.len().min(self.places[quiet.place].unreported.len());
        self.places[quiet.place].unreported.drain(..count);
        self.reported(page, &quiet.stores).map_err(|e| format!("after quiet of {name}, {page}: {e}"))
    }

    fn reported(&mut self, page: usize, stores: &[Stored]) -> Result<(), String> {
        let losses = self.pages[page].losses;
        for store in stores.iter().filter(|store| store.losses == losses) {
            store.lanes.clone().try_for_each(|lane| self.pages[page].report(lane, store.number))?;
        }
        if self.pages[page].resigning || self.pages[page].home.is_none() {
            return Ok(()); // Copies may have it already without a notification.
        }
        let joined = |place: &Place| place.alive && place.current && place.page == Some(page);
        for place in 0..self.places.len() {
            let ready = matches!(self.places[place].state, State::Living | State::Opening);
            if ready && joined(&self.places[place]) && !self.is_home(place) {
                let life = &self.places[place].life;
                self.pages[page].has_reported(life).map_err(|e| format!("{}: {e}", World::name(place)))?;
            }
        }
        Ok(())
    }

    /// E20: an atomic that reports success has been performed once, at the home, and returns the previous value.
    fn atomic_done(&mut self, node: u16) -> Result<(), String> {
        let Some(Atomic { cookie, .. }) = self.programs[usize::from(node)].atomic else { return Ok(()) };
        if self.cluster.done(node, 0, ATOMIC_SLOT).1 != cookie {
            return Ok(());
        }
        let Some(atomic) = self.programs[usize::from(node)].atomic.take() else { return Ok(()) };
        let (status, found) = self.cluster.finish(node, 0, ATOMIC_SLOT, cookie);
        let name = World::name(atomic.place);
        if status != Status::Ok {
            if self.sound(atomic.place, atomic.mended) {
                return Err(format!("an atomic of {name} fails with {status:?} for nothing"));
            }
            return Ok(());
        }
        let Some(page) = self.places[atomic.place].page else { return Ok(()) };
        if self.pages[page].adopter == Some(atomic.place) {
            return Ok(()); // It is performed by a home whose driver has not read that event yet.
        }
        if atomic.store.losses != self.pages[page].losses {
            return Ok(());
        }
        if atomic.store.lanes.is_empty() {
            if !self.pages[page].added.insert(found) {
                return Err(format!("E20: fetch-and-add of {name} gives {found} a second time"));
            }
            return Ok(());
        }
        let stored = atomic.compare.is_none_or(|compare| compare == found);
        for (byte, lane) in atomic.store.lanes.clone().enumerate() {
            let (number, order) = (atomic.store.number, self.pages[page].order(lane));
            let place = order.iter().position(|value| *value == number);
            let before = place.and_then(|place| place.checked_sub(1)).map(|before| order[before]);
            let right = if stored { before == Some((found >> (8 * byte)) as u8) } else { place.is_none() };
            if !right {
                let offset = offset_of(lane);
                return Err(format!(
                    "E20: atomic {number} of {name} {page} gives {found:#x}; byte {offset:#x} was {order:?}"
                ));
            }
        }
        if stored {
            self.reported(page, &[atomic.store]).map_err(|e| format!("after an atomic of {name}, {page}: {e}"))?;
        }
        Ok(())
    }

    /// At rest no operation is pending, and each store without an error is in the home's order.
    pub(crate) fn check_programs(&mut self) -> Result<(), String> {
        for place in 0..self.places.len() {
            let (node, _) = World::at(place);
            if self.places[place].state == State::Living {
                self.quiet(node, place);
                self.cluster.settle();
                self.observe()?;
                self.poll_program(node)?;
                let left = &self.places[place].unreported;
                if !left.is_empty() && !self.places[place].disturbed {
                    return Err(format!("{} has {} stores without an answer", World::name(place), left.len()));
                }
            }
        }
        match (0..NODES).find(|node| self.programs[usize::from(*node)].waits()) {
            Some(node) => Err(format!("the program of node {node} waits for ever")),
            None => Ok(()),
        }
    }
}
