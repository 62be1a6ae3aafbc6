// SPDX-License-Identifier: MIT OR Apache-2.0
//! The nodes and their replicated pages: the test's state of them, and the observed changes of their boards.

use super::record::{COUNTED, Home, Life, Page, Stored, WORDS, word_at};
use crate::common::{Change, Changed, Cluster, Driver, EXPORTS, context_close, grant_clear};
use std::collections::BTreeMap;
use std::sync::OnceLock;
use telegraphos_device_core::{Bug, Event};
use telegraphos_wire::{Rights, UNIT, WindowLayout};

pub(crate) const NODES: u16 = 64;
pub(crate) const PAGES: usize = 200;
/// Export pages of a node. Each may hold a home or a copy, which its processor reaches through the import of the same
/// number.
pub(crate) const SLOTS: u32 = 16;
/// Pages that many nodes copy and store to.
pub(crate) const BUSY_PAGES: usize = 6;
pub(crate) const RIGHTS: Rights = Rights(7);
const OFFSET_BITS: u8 = 20;

/// The driver's current activity for an export page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    Joining,
    /// It becomes the home of a page that has lost its home.
    Adopting,
    /// It is a copy or home; its import is being opened or acknowledged.
    Opening,
    /// Programs use it.
    Living,
    /// Its home serves it no more.
    Orphan,
    /// It is being released. Whether it is still replicated.
    Leaving {
        cleared: bool,
    },
    /// The same for a home, by revoking its memory.
    Revoking,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
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
    pub(crate) last: Option<usize>,
    pub(crate) state: State,
    pub(crate) generation: u64,
    /// The command in flight: its admin slot and number.
    pub(crate) command: Option<(u32, u32, Doing)>,
    /// An event reported this while a command was in flight.
    pub(crate) notified: bool,
    pub(crate) life: Life,
    /// It is checked: its values are recorded and must be correct.
    pub(crate) alive: bool,
    /// It has all values that were reported to be at all copies.
    pub(crate) current: bool,
    /// It or its home has had a fault, so that its stores may fail.
    pub(crate) disturbed: bool,
    /// How often that was repaired.
    pub(crate) mended: u32,
    pub(crate) shakes: u32,
    pub(crate) open: bool,
    /// No store has failed since the import was opened; stores since then.
    pub(crate) exact: bool,
    pub(crate) issued: u64,
    /// Stores that no quiet has reported yet, and the last of them that the board has not yet counted as taken.
    pub(crate) unreported: Vec<Stored>,
    pub(crate) untaken: Vec<Stored>,
}

impl Place {
    pub(crate) fn new() -> Place {
        Place {
            page: None,
            last: None,
            state: State::Free,
            generation: 0,
            command: None,
            notified: false,
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

    /// Whether its driver is idle.
    pub(crate) fn is_idle(&self) -> bool {
        self.command.is_none()
    }
}

/// The faults of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Reset,
    Crash,
    Flap,
}

/// Number of events by kind.
pub(crate) type Tally = BTreeMap<&'static str, u64>;

pub(crate) struct World {
    pub(crate) cluster: Cluster,
    pub(crate) pages: Vec<Page>,
    pub(crate) places: Vec<Place>,
    /// By node: the pending operations of its program.
    pub(crate) programs: Vec<super::pending::Program>,
    /// The nodes without a link.
    pub(crate) absent: Vec<Option<Fault>>,
    /// No faults.
    pub(crate) calm: bool,
    pub(crate) tally: Tally,
}

/// The boards of a seed: small and large counter caches, with and without fan-out by the switch, few credits.
pub(crate) fn boards(seed: u64, bug: Option<Bug>, switch_bug: Option<telegraphos_fabric_core::Bug>) -> Cluster {
    let mut cluster = Cluster::over_switch(
        NODES,
        seed,
        |switch| switch.bug = switch_bug,
        |config| {
            let node = u64::from(config.node);
            let one_of = |of: &[u32], choice: u64| of[(choice % of.len() as u64) as usize];
            config.bug = bug;
            config.window = WindowLayout::new(6, OFFSET_BITS).unwrap();
            config.imports = SLOTS as u16;
            config.pending_writes = one_of(&[1, 4, 32], if seed % 4 == 3 { node } else { seed % 4 }) as u16;
            config.fanout_by_switch = one_of(&[1, 0], if seed / 4 % 3 == 2 { node } else { seed / 4 % 3 }) == 1;
            config.credits = [one_of(&[1, 2, 4], seed / 12); 4];
            config.outstanding = one_of(&[1, 3, 8], seed / 36);
        },
    );
    if seed % 8 == 1 {
        cluster.use_rings(true);
    }
    cluster
}

impl World {
    pub(crate) fn new(
        seed: u64,
        bug: Option<Bug>,
        switch_bug: Option<telegraphos_fabric_core::Bug>,
    ) -> Result<World, String> {
        let mut world = World {
            cluster: boards(seed, bug, switch_bug),
            pages: Vec::new(),
            places: vec![Place::new(); usize::from(NODES) * SLOTS as usize],
            programs: (0..NODES).map(|_| super::pending::Program::default()).collect(),
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
            if world.cluster.admin(node, set).status != 0 {
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

    /// Records the stores into exported memory since the last call.
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

    pub(crate) fn changed(&mut self, place: usize, offset: u64, bytes: &[u8], fill: bool) -> Result<(), String> {
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
}

/// Releases everything else that drivers have, and reads the events.
pub(crate) fn give_back(cluster: &mut Cluster) {
    for node in 0..NODES {
        let clear = grant_clear(0, SLOTS);
        cluster.event(node, Event::IntakeDry);
        cluster.admin(node, clear);
        cluster.admin(node, context_close(0));
    }
    cluster.settle();
    for node in 0..NODES {
        while !cluster.take_events(node).is_empty() {
            cluster.settle();
        }
    }
}

/// With `TELEGRAPHOS_PAGE=n`, prints all events of that page.
pub(crate) fn trace(page: usize, what: impl Fn() -> String) {
    static PAGE: OnceLock<Option<usize>> = OnceLock::new();
    if *PAGE.get_or_init(|| std::env::var("TELEGRAPHOS_PAGE").ok()?.parse().ok()) == Some(page) {
        println!("{}", what());
    }
}
