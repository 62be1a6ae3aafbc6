// SPDX-License-Identifier: MIT OR Apache-2.0
//! The nodes: boards, their drivers, which make and repair copies, and faults.

use crate::common::{Change, Changed, Cluster, EXPORTS, status_page};
use crate::record::{COUNTED, Home, LANES, Life, Page, Stored, WORDS, offset_of, word_at};
use hib_core::{Bug, Event};
use std::collections::BTreeMap;
use std::sync::OnceLock;
use telegraphos_wire::admin::{self, Command, ReplicaCommand};
use telegraphos_wire::{Rights, Status, UNIT, WindowLayout, context, event};

pub(crate) const NODES: u16 = 64;
pub(crate) const PAGES: usize = 200;
/// Export pages of a node. Each may hold a home or a copy, which its processor reaches through the import of the same number.
pub(crate) const SLOTS: u32 = 16;
/// Pages that many nodes copy and store to.
pub(crate) const BUSY_PAGES: usize = 6;
const RIGHTS: Rights = Rights(7);
const OFFSET_BITS: u8 = 20;

/// What the driver is doing about an export page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    Joining,
    /// It becomes the home of a page that has lost its own.
    Adopting,
    /// It is a copy or home; its import is being opened or acknowledged.
    Opening,
    /// Programs use it.
    Living,
    /// Its home serves it no more.
    Orphan,
    /// It will be free. Whether it is replicated still.
    Leaving {
        cleared: bool,
    },
    /// The same for a home, by revoking its memory.
    Revoking,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Join,
    Adopt,
    Open,
    Acknowledge,
    Close,
    Clear,
    Revoke,
    Grant,
}

/// An export page of a node.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) page: Option<usize>,
    /// The one before.
    pub(crate) last: Option<usize>,
    pub(crate) state: State,
    pub(crate) generation: u64,
    /// The command under way: its admin slot and number.
    command: Option<(u32, u32, Doing)>,
    /// The event said so, while a command was under way.
    told: bool,
    pub(crate) life: Life,
    /// It takes part: what it has is recorded and must be right.
    pub(crate) alive: bool,
    /// It has all that has been reported to be everywhere.
    pub(crate) current: bool,
    /// Something has happened to it or its home, so that its stores may fail.
    pub(crate) disturbed: bool,
    /// How often that was mended.
    pub(crate) mended: u32,
    shakes: u32,
    open: bool,
    /// No store has failed since the import was opened; stores since then.
    pub(crate) exact: bool,
    pub(crate) issued: u64,
    /// Stores that no quiet has reported yet, and the last of them that the board has not yet counted as taken.
    pub(crate) unreported: Vec<Stored>,
    pub(crate) untaken: Vec<Stored>,
}

impl Place {
    fn new() -> Place {
        Place {
            page: None,
            last: None,
            state: State::Free,
            generation: 0,
            command: None,
            told: false,
            life: Life::new(),
            alive: false,
            current: false,
            disturbed: false,
            mended: 0,
            shakes: 0,
            open: false,
            exact: false,
            issued: 0,
            unreported: Vec::new(),
            untaken: Vec::new(),
        }
    }

    /// Whether nothing is being done about it.
    pub(crate) fn is_idle(&self) -> bool {
        self.command.is_none()
    }
}

/// What can happen to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Reset,
    Crash,
    Flap,
}

/// How often what happened.
pub(crate) type Tally = BTreeMap<&'static str, u64>;

pub(crate) struct World {
    pub(crate) cluster: Cluster,
    pub(crate) pages: Vec<Page>,
    /// By node and slot.
    pub(crate) places: Vec<Place>,
    /// By node: what its program does besides storing.
    pub(crate) programs: Vec<crate::programs::Program>,
    /// Which nodes have no link.
    pub(crate) absent: Vec<Option<Fault>>,
    /// Nothing goes wrong.
    pub(crate) calm: bool,
    pub(crate) tally: Tally,
}

/// The boards of a seed: small and large counter caches, with and without fan-out by the switch, few credits.
pub(crate) fn boards(seed: u64, bug: Option<Bug>, switch_bug: Option<switch_core::Bug>) -> Cluster {
    Cluster::over_switch(NODES, seed, switch_bug, |config| {
        let node = u64::from(config.node);
        let one_of = |of: &[u32], choice: u64| of[(choice % of.len() as u64) as usize];
        config.bug = bug;
        config.window = WindowLayout::new(6, OFFSET_BITS).unwrap();
        config.imports = SLOTS as u16;
        config.pending_writes = one_of(&[1, 4, 32], if seed % 4 == 3 { node } else { seed % 4 }) as u16;
        config.fanout_by_switch = one_of(&[1, 0], if seed / 4 % 3 == 2 { node } else { seed / 4 % 3 }) == 1;
        config.credits = [one_of(&[1, 2, 4], seed / 12); 4];
        config.outstanding = one_of(&[1, 3, 8], seed / 36);
    })
}

impl World {
    pub(crate) fn new(seed: u64, bug: Option<Bug>, switch_bug: Option<switch_core::Bug>) -> Result<World, String> {
        let mut world = World {
            cluster: boards(seed, bug, switch_bug),
            pages: Vec::new(),
            places: vec![Place::new(); usize::from(NODES) * SLOTS as usize],
            programs: (0..NODES).map(|_| crate::programs::Program::default()).collect(),
            absent: vec![None; usize::from(NODES)],
            calm: seed % 5 == 4,
            tally: Tally::new(),
        };
        world.cluster.changes = Some(Vec::new());
        for node in 0..NODES {
            world.grant_all(node);
        }
        for page in 0..PAGES {
            let (node, slot) = ((page % usize::from(NODES)) as u16, (page / usize::from(NODES)) as u32);
            let at = world.place(node, slot);
            let generation = world.places[at].generation;
            world.pages.push(Page::new(Home { node, slot, generation }));
            world.places[at].page = Some(page);
            world.places[at].disturbed = false;
            let set = world.replica_set(at, Home { node, slot, generation });
            if world.cluster.admin(node, set.into()).status != 0 {
                return Err(format!("node {node} cannot be the home of page {page}"));
            }
            world.open(at);
        }
        world.cluster.settle();
        for node in 0..NODES {
            world.poll(node)?;
        }
        Ok(world)
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.cluster.rng.below(n)
    }

    pub(crate) fn place(&self, node: u16, slot: u32) -> usize {
        usize::from(node) * SLOTS as usize + slot as usize
    }

    pub(crate) fn at(place: usize) -> (u16, u32) {
        ((place / SLOTS as usize) as u16, place as u32 % SLOTS)
    }

    pub(crate) fn name(place: usize) -> String {
        let (node, slot) = World::at(place);
        format!("slot {slot} of node {node}")
    }

    pub(crate) fn is_home(&self, place: usize) -> bool {
        let (node, slot) = World::at(place);
        let home = self.places[place].page.and_then(|page| self.pages[page].home);
        home.is_some_and(|home| (home.node, home.slot) == (node, slot))
    }

    /// The values that a byte of a place has had.
    pub(crate) fn values(&self, place: usize, lane: usize) -> &[u8] {
        match self.places[place].page {
            Some(page) if self.is_home(place) => self.pages[page].order(lane),
            _ => self.places[place].life.had(lane),
        }
    }

    // ---- what the boards do ----

    /// Records what has been stored into exported memory since the last time.
    pub(crate) fn observe(&mut self) -> Result<(), String> {
        let Some(changes) = &mut self.cluster.changes else { return Ok(()) };
        for Change { node, address, bytes } in std::mem::take(changes) {
            let place = self.place(node, ((address - EXPORTS) / UNIT) as u32);
            let first = (address - EXPORTS) % UNIT;
            let result = match bytes {
                Changed::Word(size, data) => {
                    self.changed(place, first, &data.to_le_bytes()[..usize::from(size)], false)
                }
                Changed::Block(data) => {
                    let inside = |word: &&u32| (first..first + data.len() as u64).contains(&u64::from(**word));
                    WORDS.iter().filter(inside).try_for_each(|word| {
                        let from = (u64::from(*word) - first) as usize;
                        self.changed(place, u64::from(*word), &data[from..from + 8], true)
                    })
                }
            };
            result.map_err(|e| format!("{}, a copy of {:?}: {e}", World::name(place), self.places[place].page))?;
        }
        Ok(())
    }

    fn changed(&mut self, place: usize, offset: u64, bytes: &[u8], fill: bool) -> Result<(), String> {
        let home = self.is_home(place);
        let moment = self.cluster.moment;
        let Place { page: Some(page), alive, life, state, .. } = &mut self.places[place] else { return Ok(()) };
        if word_at(offset).is_some() {
            trace(*page, || {
                format!(
                    "{moment} {} {state:?} home {home} alive {alive}: {offset:#x} fill {fill} {bytes:x?}",
                    World::name(place)
                )
            });
        }
        let Some(word) = word_at(offset).filter(|_| home || *alive) else { return Ok(()) };
        if word == COUNTED {
            let value = bytes.try_into().map(u64::from_le_bytes).map_err(|_| "a part of a counted word is stored")?;
            match (home, fill) {
                (true, _) => return Ok(()),
                (false, true) => life.count_filled(value),
                (false, false) => life.count_stored(value)?,
            }
            return Ok(());
        }
        for (lane, value) in (word * 8 + (offset & 7) as usize..).zip(bytes.iter().copied()) {
            match (home, fill) {
                (true, _) => self.pages[*page].ordered(lane, value)?,
                (false, true) => life.filled(lane, value),
                (false, false) => life.stored(lane, value)?,
            }
        }
        Ok(())
    }

    // ---- drivers ----

    /// All export pages of a node are granted, and none is replicated.
    fn grant_all(&mut self, node: u16) {
        let generation = self.cluster.admin(node, World::grant(0, SLOTS)).generation;
        for slot in 0..SLOTS {
            let place = self.place(node, slot);
            self.places[place] = Place { generation, ..Place::new() };
        }
    }

    fn grant(index: u32, count: u32) -> Command {
        Command {
            opcode: admin::GRANT_SET,
            index,
            count,
            address: EXPORTS + u64::from(index) * UNIT,
            length: u64::from(count) * UNIT,
            rights: RIGHTS.0,
            nodes: [u64::MAX; 4],
            ..Command::default()
        }
    }

    fn post(&mut self, place: usize, doing: Doing, command: Command) {
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
            self.cluster.nodes[usize::from(node)].seq += 1;
        }
        let admin_slot = self.cluster.post(node, command);
        let seq = self.cluster.last_command(node);
        assert!(self.places[place].command.is_none(), "page {slot} of node {node} has a command under way");
        self.places[place].command = Some((admin_slot, seq, doing));
    }

    fn replica_set(&self, place: usize, home: Home) -> ReplicaCommand {
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

    /// The place becomes a copy of a page.
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
        (entry.page, entry.state, entry.told) = (Some(page), State::Joining, false);
        (entry.alive, entry.shakes) = (true, shakes);
        let set = self.replica_set(place, home);
        self.post(place, Doing::Join, set.into());
        self.count("joins");
        Ok(())
    }

    fn joined(&mut self, place: usize, page: usize) -> Result<(), String> {
        // Meanwhile the way to the home may have been cut; then it will hear of it.
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
    fn use_it(&mut self, place: usize) {
        self.places[place].mended += 1;
        self.places[place].state = State::Opening;
        if !self.places[place].open {
            self.open(place);
        } else if self.below(2) == 0 {
            let ack = Command { opcode: admin::IMPORT_ACK, import: World::at(place).1 as u16, ..Command::default() };
            self.post(place, Doing::Acknowledge, ack);
        } else {
            self.close(place);
        }
    }

    fn open(&mut self, place: usize) {
        let (node, slot) = World::at(place);
        // The count of stores taken begins anew.
        let taken = self.taken_word(slot) as usize;
        self.cluster.nodes[usize::from(node)].ram[taken..taken + 8].fill(0);
        let set = Command {
            opcode: admin::IMPORT_SET,
            import: slot as u16,
            node,
            index: slot,
            count: 1,
            page: slot,
            generation: self.places[place].generation,
            length: UNIT,
            rights: RIGHTS.0,
            taken: 1 + slot,
            ..Command::default()
        };
        self.places[place].state = State::Opening;
        self.post(place, Doing::Open, set);
    }

    fn close(&mut self, place: usize) {
        let clear = Command { opcode: admin::IMPORT_CLEAR, import: World::at(place).1 as u16, ..Command::default() };
        self.post(place, Doing::Close, clear);
    }

    fn clear(&mut self, place: usize) {
        let clear = Command { opcode: admin::REPLICA_CLEAR, index: World::at(place).1, ..Command::default() };
        self.post(place, Doing::Clear, clear);
    }

    pub(crate) fn taken_word(&self, slot: u32) -> u64 {
        status_page(0) + context::TAKEN_OFFSET + 8 * u64::from(slot)
    }

    /// The place will be free; the import goes first or last.
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

    /// A home's memory is taken back, whatever is under way.
    pub(crate) fn revoke(&mut self, place: usize) {
        let Some(page) = self.places[place].page else { return };
        self.pages[page].resigning = true;
        self.disturb(page, false);
        self.places[place].disturbed = true;
        self.places[place].state = State::Revoking;
        let index = World::at(place).1;
        self.post(place, Doing::Revoke, Command { opcode: admin::GRANT_CLEAR, index, count: 1, ..Command::default() });
        self.count("homes that are revoked");
    }

    /// What the driver does about a place that needs it.
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
            self.places[place].told = false;
            let set = self.replica_set(place, Home { node, slot, generation });
            self.post(place, Doing::Adopt, set.into());
        }
        Ok(())
    }

    fn adopted(&mut self, place: usize, page: usize) -> Result<(), String> {
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

    /// What a place has had is checked, and not looked at any more.
    fn end_life(&mut self, place: usize) -> Result<(), String> {
        let home = self.is_home(place);
        let entry = &mut self.places[place];
        entry.current = false;
        if let (true, Some(page), false) = (std::mem::take(&mut entry.alive), entry.page, home) {
            let result = entry.life.follows(&self.pages[page]);
            return result.map_err(|e| format!("{}: {e}", World::name(place)));
        }
        Ok(())
    }

    fn end_lives(&mut self, page: usize) -> Result<(), String> {
        let of_page = |place: &usize| self.places[*place].page == Some(page);
        let places: Vec<usize> = (0..self.places.len()).filter(of_page).collect();
        places.into_iter().try_for_each(|place| self.end_life(place))
    }

    /// Stores to a page may fail from now on; its copies may have been given up by the home.
    fn disturb(&mut self, page: usize, given_up: bool) {
        if given_up {
            self.pages[page].shakes += 1;
        }
        self.places.iter_mut().filter(|entry| entry.page == Some(page)).for_each(|entry| entry.disturbed = true);
    }

    /// The driver takes the events that have come, in order; programs look at their results.
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
                    // A join may meet what happened before it.
                    let innocent = !self.places[place].disturbed;
                    if innocent && (self.calm || self.places[place].state != State::Joining) {
                        return Err(format!(
                            "{} is told {value:#x} for nothing, of {:?}",
                            World::name(place),
                            self.places[place].page
                        ));
                    }
                    self.count("orphans");
                    if let Some(page) = self.places[place].page {
                        trace(page, || format!("{} {} told {value:#x}", self.cluster.moment, World::name(place)));
                    }
                    let entry = &mut self.places[place];
                    entry.told = true;
                    // Of a home that resigned it may have heard by a store that was refused, before it had all that the home sent.
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

    fn finish(&mut self, place: usize, doing: Doing, status: Status) -> Result<(), String> {
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
            (Doing::Join, Status::Ok) if self.places[place].told => self.places[place].state = State::Orphan,
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
                entry.state = if std::mem::take(&mut entry.told) { State::Orphan } else { State::Living };
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

    fn end_home(&mut self, place: usize, page: usize) {
        if self.is_home(place) {
            self.pages[page].home = None;
            self.pages[page].resigning = false;
        }
    }

    /// A place that nothing has happened to leaves behind none of its stores.
    fn all_done(&mut self, place: usize, page: usize) -> Result<(), String> {
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

    fn free(&mut self, place: usize) -> Result<(), String> {
        self.end_life(place)?;
        let Place { page, generation, .. } = self.places[place];
        if page.is_some_and(|page| self.pages[page].adopter == Some(place)) {
            return Err("it is free and about to be a home".into());
        }
        self.places[place] = Place { last: page, generation, ..Place::new() };
        Ok(())
    }

    // ---- faults ----

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
                    // It stays what it is, and goes on without its copies.
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
                let before = self.cluster.nodes[usize::from(node)].resets;
                self.cluster.event(node, Event::Reset);
                while self.cluster.nodes[usize::from(node)].resets == before {
                    if !self.cluster.step() {
                        return Err(format!("the reset of node {node} never ends"));
                    }
                }
                let end = (EXPORTS + u64::from(SLOTS) * UNIT) as usize;
                self.cluster.nodes[usize::from(node)].ram[..end].fill(0);
                self.begin(node);
            }
        }
        Ok(())
    }

    fn forget(&mut self, node: u16) {
        let first = self.place(node, 0);
        self.places[first..first + SLOTS as usize].fill(Place::new());
        self.programs[usize::from(node)] = crate::programs::Program::default();
    }

    fn begin(&mut self, node: u16) {
        self.cluster.start(node);
        self.grant_all(node);
    }

    /// A node that was away is back.
    pub(crate) fn come_back(&mut self, node: u16) {
        let Some(fault) = self.absent[usize::from(node)].take() else { return };
        self.cluster.connect(node);
        if fault == Fault::Crash {
            self.begin(node);
        }
    }

    /// A page that nobody has any more begins anew.
    pub(crate) fn found_again(&mut self, page: usize) {
        let nobody = !self.places.iter().any(|entry| entry.page == Some(page));
        let Some(place) = (0..self.places.len()).find(|place| {
            self.places[*place].state == State::Free && self.absent[usize::from(World::at(*place).0)].is_none()
        }) else {
            return;
        };
        if self.pages[page].home.is_some() || !nobody {
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

    // ---- the end ----

    /// Everybody is back, and drivers mend what there is until nothing happens any more.
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

    /// I2 and more: all copies are what their homes are, and nobody waits for anything.
    pub(crate) fn check_rest(&mut self) -> Result<(), String> {
        for place in 0..self.places.len() {
            let Place { state, page, command, .. } = self.places[place];
            if command.is_some() || !matches!(state, State::Free | State::Living) {
                return Err(format!("{} is {state:?}, {command:?} at rest", World::name(place)));
            }
            let Some(page) = page else { continue };
            let Some(home) = self.pages[page].home else {
                return Err(format!("{} was never told that its home is no more", World::name(place)));
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

    /// Everything is given back.
    pub(crate) fn take_down(&mut self) -> Result<(), String> {
        let places = 0..self.places.len();
        // First copies, so that the homes have none when they go.
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

/// What every driver has besides replicated pages is given back, and the events are taken.
pub(crate) fn give_back(cluster: &mut Cluster) {
    for node in 0..NODES {
        let clear = Command { opcode: admin::GRANT_CLEAR, count: SLOTS, ..Command::default() };
        cluster.event(node, Event::IntakeDry);
        cluster.admin(node, clear);
        cluster.admin(node, Command { opcode: admin::CONTEXT_CLOSE, ..Command::default() });
    }
    cluster.settle();
    for node in 0..NODES {
        while !cluster.take_events(node).is_empty() {
            cluster.settle();
        }
    }
}

/// With `TELEGRAPHOS_PAGE=n`, all that happens to that page is printed.
pub(crate) fn trace(page: usize, what: impl Fn() -> String) {
    static PAGE: OnceLock<Option<usize>> = OnceLock::new();
    if *PAGE.get_or_init(|| std::env::var("TELEGRAPHOS_PAGE").ok()?.parse().ok()) == Some(page) {
        println!("{}", what());
    }
}
