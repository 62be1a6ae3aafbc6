// SPDX-License-Identifier: MIT OR Apache-2.0
//! From events to counts.

use crate::report::{Accesses, Passages, Range, RegionCounts, Report};
use crate::{Code, Marker, Region};
use alloc::borrow::ToOwned;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

/// Instructions that one virtual processor has begun since it exists. Markers are not among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retired {
    /// At user addresses.
    pub user: u64,
    /// At kernel addresses: system calls, page faults, interrupts, other processes' system calls.
    pub kernel: u64,
}

/// One memory access of a virtual processor, as its instruction made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access<'a> {
    /// The device it went to, as the machine names it; `None` is RAM.
    pub device: Option<&'a str>,
    /// Of RAM, its page in the machine's memory.
    pub page: u64,
    /// Whether the instruction named a user address.
    pub user: bool,
    /// It was a store.
    pub store: bool,
    /// Bytes.
    pub size: u32,
}

/// What [`Report`] has as the device of accesses to watched pages.
pub const WATCHED: &str = "watched pages";

/// Counts between markers.
///
/// A region is measured on the virtual processor that executed [`Marker::Begin`], until the same one executes
/// [`Marker::End`]; one such time is a *passage*. Regions may lie within each other. A begin or an end without its
/// other half is *broken*: a process that moved to another virtual processor in between leaves one of each behind. To
/// move, it has been in the kernel, and so nothing of this reaches the passages in which the kernel did not run.
#[derive(Debug, Default)]
pub struct Observer {
    open: BTreeMap<u32, Vec<Passage>>,
    regions: BTreeMap<Region, RegionCounts>,
    code: Code,
    /// Pages of RAM.
    watched: BTreeSet<u64>,
}

/// One time through a region, not yet ended.
#[derive(Debug)]
struct Passage {
    region: Region,
    /// It watches, and counts nothing.
    watches: bool,
    begun: Retired,
    memory: Tally,
    devices: BTreeMap<String, Tally>,
    /// Instructions of blocks, by address.
    blocks: BTreeMap<u64, u64>,
    /// That are to be watched.
    pages: BTreeSet<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    loads: u64,
    loaded: u64,
    stores: u64,
    stored: u64,
}

impl Tally {
    fn count(&mut self, access: Access<'_>) {
        let (number, bytes) =
            if access.store { (&mut self.stores, &mut self.stored) } else { (&mut self.loads, &mut self.loaded) };
        *number = number.saturating_add(1);
        *bytes = bytes.saturating_add(access.size.into());
    }
}

impl RegionCounts {
    fn add(&mut self, passage: &Passage, ended: Retired) {
        let instructions = ended.user.saturating_sub(passage.begun.user);
        let kernel = ended.kernel.saturating_sub(passage.begun.kernel);
        let passages = if kernel > 0 { &mut self.with_kernel } else { &mut self.alone };
        passages.add(passage, instructions, kernel);
    }
}

impl Passages {
    /// Adds one. Devices stay in the order of their names.
    fn add(&mut self, passage: &Passage, instructions: u64, kernel: u64) {
        let first = self.number == 0;
        let merge =
            |range: &mut Range, value: u64| if first { *range = Range::exactly(value) } else { range.add(value) };
        let merge_all = |accesses: &mut Accesses, tally: Tally| {
            merge(&mut accesses.loads, tally.loads);
            merge(&mut accesses.loaded, tally.loaded);
            merge(&mut accesses.stores, tally.stores);
            merge(&mut accesses.stored, tally.stored);
        };
        merge(&mut self.instructions, instructions);
        merge(&mut self.kernel, kernel);
        merge_all(&mut self.memory, passage.memory);
        for name in passage.devices.keys() {
            if let Err(at) = self.devices.binary_search_by(|(other, _)| other.cmp(name)) {
                // Earlier passages did not touch it: its ranges begin at zero.
                self.devices.insert(at, (name.clone(), Accesses::default()));
            }
        }
        for (name, accesses) in &mut self.devices {
            merge_all(accesses, passage.devices.get(name).copied().unwrap_or_default());
        }
        self.number += 1;
    }
}

impl Observer {
    /// Has seen nothing.
    pub fn new() -> Observer {
        Observer::default()
    }

    /// Virtual processor `vcpu` has executed a marker, and `retired` instructions before it. After [`Marker::Report`]
    /// the caller has something to do.
    pub fn marker(&mut self, vcpu: u32, marker: Marker, retired: Retired) {
        match marker {
            Marker::Begin(region) | Marker::Watch(region) => {
                let passages = self.open.entry(vcpu).or_default();
                let open = passages.len();
                passages.retain(|p| p.region != region);
                let broken = open - passages.len();
                passages.push(Passage {
                    region,
                    watches: marker == Marker::Watch(region),
                    begun: retired,
                    memory: Tally::default(),
                    devices: BTreeMap::new(),
                    blocks: BTreeMap::new(),
                    pages: BTreeSet::new(),
                });
                if broken > 0 {
                    self.region(region).broken += 1;
                }
            }
            Marker::End(region) => {
                let passages = self.open.entry(vcpu).or_default();
                let ended = passages.iter().position(|p| p.region == region).map(|at| passages.swap_remove(at));
                match ended {
                    // Else some pages are of other code that ran meanwhile.
                    Some(mut passage) if passage.watches && passage.begun.kernel == retired.kernel => {
                        self.watched.append(&mut passage.pages);
                    }
                    Some(passage) if passage.watches => {}
                    Some(passage) => {
                        self.region(region).add(&passage, retired);
                        if !passage.blocks.is_empty() {
                            self.code.add(region, passage.blocks);
                        }
                    }
                    None => self.region(region).broken += 1,
                }
            }
            Marker::Report => {}
            Marker::Clear => *self = Observer::default(),
        }
    }

    /// Virtual processor `vcpu` has accessed memory. Only needed while a region is open.
    pub fn access(&mut self, vcpu: u32, access: Access<'_>) {
        let Some(passages) = self.open.get_mut(&vcpu) else { return };
        let watched = access.device.is_none() && self.watched.contains(&access.page);
        let device = if watched { Some(WATCHED) } else { access.device };
        for passage in passages {
            passage.memory.count(access);
            if passage.watches && access.user && access.device.is_none() {
                passage.pages.insert(access.page);
            }
            let Some(device) = device else { continue };
            match passage.devices.get_mut(device) {
                Some(tally) => tally.count(access),
                None => passage.devices.entry(device.to_owned()).or_default().count(access),
            }
        }
    }

    /// Virtual processor `vcpu` begins a block of so many instructions at this address. Only needed while a region is
    /// open, and only for [`Observer::code`].
    pub fn block(&mut self, vcpu: u32, address: u64, instructions: u64) {
        for passage in self.open.get_mut(&vcpu).into_iter().flatten() {
            let count = passage.blocks.entry(address).or_default();
            *count = count.saturating_add(instructions);
        }
    }

    /// Number of passages begun and not ended, on all virtual processors. While it is 0, accesses need not be reported.
    pub fn open(&self) -> usize {
        self.open.values().map(Vec::len).sum()
    }

    /// What has been counted in passages that have ended. Those still open are not in it.
    pub fn report(&self) -> Report {
        Report { regions: self.regions.values().cloned().collect() }
    }

    /// The code that ran in passages that have ended.
    pub fn code(&self) -> &Code {
        &self.code
    }

    fn region(&mut self, region: Region) -> &mut RegionCounts {
        self.regions.entry(region).or_insert_with(|| RegionCounts { region, ..RegionCounts::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(user: u64, kernel: u64) -> Retired {
        Retired { user, kernel }
    }

    fn store(device: Option<&str>) -> Access<'_> {
        Access { device, page: 0, user: true, store: true, size: 8 }
    }

    fn load(device: Option<&str>) -> Access<'_> {
        Access { device, page: 0, user: true, store: false, size: 4 }
    }

    fn counts(report: &Report, region: Region) -> &RegionCounts {
        report.region(region).expect("the region was measured")
    }

    fn one(report: &Report, region: Region) -> &Passages {
        &counts(report, region).alone
    }

    #[test]
    fn one_store_between_markers_is_one_store() {
        let mut o = Observer::new();
        o.access(0, store(Some("window")));
        o.marker(0, Marker::Begin(7), at(1000, 50));
        o.access(0, store(Some("window")));
        o.marker(0, Marker::End(7), at(1001, 50));
        o.access(0, store(Some("window")));
        let report = o.report();
        let counts = one(&report, 7);
        assert_eq!(counts.number, 1);
        assert_eq!(report.region(7).map(|r| (r.broken, &r.with_kernel)), Some((0, &Passages::default())));
        assert_eq!((counts.instructions, counts.kernel), (Range::exactly(1), Range::exactly(0)));
        assert_eq!((counts.memory.loads, counts.memory.stores), (Range::exactly(0), Range::exactly(1)));
        let window = counts.device("window");
        assert_eq!((window.stores, window.stored), (Range::exactly(1), Range::exactly(8)));
        assert_eq!(counts.device("registers"), Accesses::default());
    }

    #[test]
    fn blocks_are_added_up_over_the_passages_of_their_region() {
        let mut o = Observer::new();
        o.block(0, 0x1000, 5);
        for _ in 0..3 {
            o.marker(0, Marker::Begin(2), at(0, 0));
            o.block(0, 0x1000, 5);
            o.marker(0, Marker::Begin(3), at(0, 0));
            o.block(0, u64::MAX, 7);
            // Another processor's.
            o.block(1, 0x1000, 5);
            o.marker(0, Marker::End(3), at(0, 7));
            o.block(0, 0x1000, 5);
            o.marker(0, Marker::End(2), at(10, 7));
            o.block(0, 0x1000, 5);
        }
        // Not ended.
        o.marker(0, Marker::Begin(2), at(0, 0));
        o.block(0, 0x1000, 5);
        let expected = [(2, [(0x1000, 30), (u64::MAX, 21)].into()), (3, [(u64::MAX, 21)].into())];
        assert_eq!(o.code().regions, expected.into());
        o.marker(0, Marker::Clear, at(0, 0));
        assert_eq!(o.code(), &Code::default());
    }

    #[test]
    fn watched_pages_count_by_whatever_address_they_are_accessed() {
        let mut o = Observer::new();
        let of = |page, user| Access { page, user, ..load(None) };
        o.marker(0, Marker::Watch(9), at(0, 0));
        o.access(0, of(5, true));
        // The kernel's, another processor's, and a device's.
        o.access(0, of(6, false));
        o.access(1, of(7, true));
        o.access(0, Access { page: 8, ..load(Some("d")) });
        o.marker(0, Marker::End(9), at(10, 0));
        o.access(0, of(6, true));
        // What else ran meanwhile is not known.
        o.marker(0, Marker::Watch(9), at(10, 0));
        o.access(0, of(8, true));
        o.marker(0, Marker::End(9), at(20, 10));
        o.marker(0, Marker::Begin(1), at(10, 0));
        for page in 5..9 {
            o.access(0, of(page, page != 5));
        }
        o.marker(0, Marker::End(1), at(14, 0));
        let report = o.report();
        assert_eq!(report.regions.len(), 1, "a region that watches is not reported");
        assert_eq!(one(&report, 1).memory.loads, Range::exactly(4));
        assert_eq!(one(&report, 1).device(WATCHED).loads, Range::exactly(1));
        o.marker(0, Marker::Clear, at(14, 0));
        o.marker(0, Marker::Begin(1), at(14, 0));
        o.access(0, of(5, true));
        o.marker(0, Marker::End(1), at(15, 0));
        assert_eq!(one(&o.report(), 1).device(WATCHED), Accesses::default(), "nothing is watched any more");
    }

    #[test]
    fn ram_counts_as_memory_and_as_no_device() {
        let mut o = Observer::new();
        o.marker(0, Marker::Begin(1), at(0, 0));
        o.access(0, load(None));
        o.access(0, load(Some("a")));
        o.access(0, load(Some("b")));
        o.marker(0, Marker::End(1), at(3, 0));
        let report = o.report();
        assert_eq!(one(&report, 1).memory.loads, Range::exactly(3));
        assert_eq!(one(&report, 1).memory.loaded, Range::exactly(12));
        let names: Vec<_> = one(&report, 1).devices.iter().map(|(n, a)| (n.as_str(), a.loads)).collect();
        assert_eq!(names, [("a", Range::exactly(1)), ("b", Range::exactly(1))]);
    }

    #[test]
    fn other_processors_do_not_count() {
        let mut o = Observer::new();
        o.marker(1, Marker::Begin(1), at(0, 0));
        o.access(0, store(Some("d")));
        o.access(2, store(Some("d")));
        o.marker(1, Marker::End(1), at(0, 0));
        assert_eq!(one(&o.report(), 1).memory, Accesses::default());
        assert!(one(&o.report(), 1).devices.is_empty());
    }

    #[test]
    fn passages_that_differ_show_least_and_most() {
        let mut o = Observer::new();
        for (stores, instructions) in [(2, 10), (0, 4), (5, 7)] {
            o.marker(0, Marker::Begin(1), at(100, 0));
            (0..stores).for_each(|_| o.access(0, store(Some("d"))));
            o.marker(0, Marker::End(1), at(100 + instructions, 0));
        }
        let report = o.report();
        assert_eq!(one(&report, 1).instructions, Range { least: 4, most: 10 });
        assert_eq!(one(&report, 1).device("d").stores, Range { least: 0, most: 5 });
    }

    #[test]
    fn a_passage_with_an_interrupt_does_not_blur_the_others() {
        let mut o = Observer::new();
        for interrupted in [false, true, false, true] {
            let kernel = if interrupted { 3000 } else { 0 };
            o.marker(0, Marker::Begin(1), at(0, 0));
            o.access(0, store(Some("window")));
            if interrupted {
                o.access(0, store(Some("apic")));
            }
            o.marker(0, Marker::End(1), at(1, kernel));
        }
        let report = o.report();
        let counts = counts(&report, 1);
        assert_eq!((counts.alone.number, counts.with_kernel.number), (2, 2));
        assert_eq!((counts.alone.memory.stores, counts.alone.devices.len()), (Range::exactly(1), 1));
        assert_eq!(counts.with_kernel.kernel, Range::exactly(3000));
        assert_eq!(counts.with_kernel.device("apic").stores, Range::exactly(1));
    }

    #[test]
    fn a_device_first_touched_late_was_not_touched_before() {
        let mut o = Observer::new();
        for touched in [false, true] {
            o.marker(0, Marker::Begin(1), at(0, 0));
            if touched {
                o.access(0, load(Some("d")));
            }
            o.marker(0, Marker::End(1), at(0, 0));
        }
        assert_eq!(one(&o.report(), 1).device("d").loads, Range { least: 0, most: 1 });
    }

    #[test]
    fn regions_lie_within_each_other() {
        let mut o = Observer::new();
        o.marker(0, Marker::Begin(1), at(0, 0));
        o.access(0, store(Some("d")));
        o.marker(0, Marker::Begin(2), at(10, 0));
        o.access(0, store(Some("d")));
        assert_eq!(o.open(), 2);
        o.marker(0, Marker::End(2), at(15, 0));
        o.marker(0, Marker::End(1), at(20, 0));
        assert_eq!(o.open(), 0);
        let report = o.report();
        assert_eq!(
            (one(&report, 1).instructions, one(&report, 2).instructions),
            (Range::exactly(20), Range::exactly(5))
        );
        assert_eq!(
            (one(&report, 1).memory.stores, one(&report, 2).memory.stores),
            (Range::exactly(2), Range::exactly(1))
        );
    }

    #[test]
    fn a_process_that_moves_breaks_its_passage() {
        let mut o = Observer::new();
        o.marker(0, Marker::Begin(1), at(0, 0));
        o.marker(1, Marker::End(1), at(1000, 0));
        assert_eq!((one(&o.report(), 1).number, counts(&o.report(), 1).broken), (0, 1));
        // The next passage where it began is not prolonged by it.
        o.marker(0, Marker::Begin(1), at(500, 0));
        o.marker(0, Marker::End(1), at(501, 0));
        let report = o.report();
        assert_eq!((one(&report, 1).number, counts(&report, 1).broken), (1, 2));
        assert_eq!(one(&report, 1).instructions, Range::exactly(1));
    }

    #[test]
    fn clear_forgets_everything() {
        let mut o = Observer::new();
        o.marker(0, Marker::Begin(1), at(0, 0));
        o.marker(0, Marker::End(1), at(1, 0));
        o.marker(0, Marker::Begin(2), at(1, 0));
        o.marker(1, Marker::Clear, at(0, 0));
        assert_eq!((o.open(), o.report()), (0, Report::default()));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Marker(u32, Marker),
        Access(u32, Option<usize>, bool, u32),
    }

    const DEVICES: [&str; 3] = ["a", "b BAR 4", "c"];

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..3u32, 0..4u16).prop_map(|(v, r)| Step::Marker(v, Marker::Begin(r))),
            (0..3u32, 0..4u16).prop_map(|(v, r)| Step::Marker(v, Marker::End(r))),
            (0..3u32, proptest::option::of(0..3usize), any::<bool>(), 1..17u32)
                .prop_map(|(v, d, s, n)| Step::Access(v, d, s, n)),
        ]
    }

    proptest! {
        /// Against a count by hand of what lies between each begin and its end.
        #[test]
        fn counts_are_those_of_the_events_between(steps in proptest::collection::vec(step(), 0..200)) {
            // Three quarters of the time nothing of the kernel's runs.
            let retired = |now: usize| at(now as u64, 2 * (now / 16) as u64);
            let mut o = Observer::new();
            for (now, step) in steps.iter().enumerate() {
                match *step {
                    Step::Marker(v, m) => o.marker(v, m, retired(now)),
                    Step::Access(v, d, store, size) => {
                        let device = d.and_then(|d| DEVICES.get(d).copied());
                        o.access(v, Access { device, page: 0, user: true, store, size });
                    }
                }
            }
            let report = o.report();
            prop_assert_eq!(Report::parse(&report.to_string()).unwrap(), report.clone());
            for region in 0..4u16 {
                // (first event, last event) of each passage.
                let mut passages = Vec::new();
                let mut broken = 0;
                for vcpu in 0..3u32 {
                    let mut begun = None;
                    for (now, step) in steps.iter().enumerate() {
                        match *step {
                            Step::Marker(v, Marker::Begin(r)) if (v, r) == (vcpu, region) => {
                                broken += u64::from(begun.replace(now).is_some());
                            }
                            Step::Marker(v, Marker::End(r)) if (v, r) == (vcpu, region) => match begun.take() {
                                Some(from) => passages.push((vcpu, from, now)),
                                None => broken += 1,
                            },
                            _ => {}
                        }
                    }
                }
                let Some(counts) = report.region(region) else {
                    prop_assert!(passages.is_empty() && broken == 0);
                    continue;
                };
                prop_assert_eq!(counts.broken, broken);
                let enters = |p: &(u32, usize, usize)| retired(p.2).kernel > retired(p.1).kernel;
                let (with_kernel, alone): (Vec<_>, Vec<_>) = passages.into_iter().partition(enters);
                for (passages, counts) in [(alone, &counts.alone), (with_kernel, &counts.with_kernel)] {
                prop_assert_eq!(counts.number, passages.len() as u64);
                let range = |of: &dyn Fn(&(u32, usize, usize)) -> u64| Range {
                    least: passages.iter().map(of).min().unwrap_or(0),
                    most: passages.iter().map(of).max().unwrap_or(0),
                };
                prop_assert_eq!(counts.instructions, range(&|p| (p.2 - p.1) as u64));
                prop_assert_eq!(counts.kernel, range(&|p| retired(p.2).kernel - retired(p.1).kernel));
                let sum = |p: &(u32, usize, usize), device: Option<usize>, store: bool, bytes: bool| {
                    steps[p.1..p.2].iter().map(|step| match *step {
                        Step::Access(v, d, s, n) if v == p.0 && s == store && (device.is_none() || d == device) => {
                            if bytes { n.into() } else { 1 }
                        }
                        _ => 0u64,
                    }).sum::<u64>()
                };
                for (device, found) in [(None, counts.memory), (Some(1), counts.device("b BAR 4"))] {
                    prop_assert_eq!(found.loads, range(&|p| sum(p, device, false, false)));
                    prop_assert_eq!(found.loaded, range(&|p| sum(p, device, false, true)));
                    prop_assert_eq!(found.stores, range(&|p| sum(p, device, true, false)));
                    prop_assert_eq!(found.stored, range(&|p| sum(p, device, true, true)));
                }
                }
            }
        }
    }
}
