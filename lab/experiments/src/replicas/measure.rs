// SPDX-License-Identifier: MIT OR Apache-2.0
//! How replicated pages are measured.

use super::figures::{Burst, Case, Figure, Figures, HOMES, Packets, Sample, best, median};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use telegraphos_cluster::{Boards, Error, LinkCount, PacketKind, ProgressMode, Result, Settings};
use telegraphos_device_client::{self as client, ClientError, Guest, MEMORY, Pages};
use telegraphos_wire::admin::COUNTERS;
use telegraphos_wire::regs::Register;
use telegraphos_wire::{Rights, Status, UNIT};

/// Copies of a page.
pub(super) const COPIES: [usize; 5] = [1, 2, 4, 8, 16];
/// The home and the copies of the largest page.
pub(super) const NODES: usize = 17;
/// Pending-write counters of some copies: node and counters (SPEC item 26).
pub(super) const CACHES: [(usize, u16); 4] = [(3, 1), (4, 4), (5, 16), (2, 32)];
/// Words of one burst, each stored to once.
pub(super) const WORDS: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// Bursts of each length in a round.
const BURSTS: usize = 4;
/// Single stores in a round, for each figure.
const SINGLES: usize = 5;
/// After so many others the ordinary store is measured again.
const BETWEEN: usize = 4;
/// Stores that are only posted.
const POSTED: usize = 16;
/// Stores of a stream.
const STREAM: u64 = 64;
/// How long memory is polled without a pause.
const SPIN: Duration = Duration::from_millis(2);
/// Updates of which every packet is counted.
const COUNTED: u64 = 64;

const RW: Rights = Rights(Rights::READ.0 | Rights::WRITE.0);

/// The export page of an ordinary segment at node 0, and of the page with copies of different numbers of counters.
const ORDINARY: u32 = (HOMES.len() * COPIES.len()) as u32;
const COUNTERS_PAGE: u32 = ORDINARY + 1;

fn address(page: u32) -> u64 {
    MEMORY + u64::from(page) * UNIT
}

/// The nodes with copies of a home's page.
fn copies_of(home: usize, copies: usize, nodes: usize) -> Vec<usize> {
    let other = HOMES.iter().map(|(node, _)| *node).find(|node| *node != home);
    (HOMES.len()..nodes).chain(other).take(copies).collect()
}

/// A page with a home and copies; it has the same number everywhere.
#[derive(Clone, Debug)]
struct Page {
    page: u32,
    home: usize,
    copies: Vec<usize>,
}

impl Page {
    fn members(&self) -> impl Iterator<Item = usize> + '_ {
        [self.home].into_iter().chain(self.copies.iter().copied())
    }

    /// Makes it one: grants, joins, and imports for stores to the own copy.
    fn set_up(&self, boards: &mut Boards) -> Result<()> {
        let mut home: Option<Pages> = None;
        for node in self.members() {
            let own = grant(boards, node, self.page)?;
            let home = *home.get_or_insert(own);
            boards.ask(node, |guest| {
                guest.replicate(self.page, COUNTERS, &home)?;
                guest.import(self.page as u16, &own, RW)
            })?;
        }
        Ok(())
    }
}

fn grant(boards: &mut Boards, node: usize, page: u32) -> Result<Pages> {
    boards.ask(node, |guest| guest.grant(node as u16, page, 1, address(page), RW))
}

/// A place to store to, and where it must arrive.
#[derive(Clone, Debug)]
struct Target {
    writer: usize,
    window: u64,
    address: u64,
    /// Where else than at the writer's, in the end.
    readers: Vec<usize>,
    /// The writer has a copy, or is the home.
    own: bool,
}

impl Target {
    fn of(page: &Page, writer: usize) -> Target {
        Target {
            writer,
            window: client::window(writer as u16, page.page as u16, 0),
            address: address(page.page),
            readers: page.members().filter(|node| *node != writer).collect(),
            own: true,
        }
    }
}

pub(super) struct Bench {
    boards: Boards,
    pages: BTreeMap<(usize, usize), Page>,
    /// Never stored twice, so that a value identifies its store.
    value: u64,
}

impl Bench {
    pub(super) fn start(settings: &Settings, progress: ProgressMode, nodes: usize, count_links: bool) -> Result<Bench> {
        let options = |node: usize| {
            let mut options = Vec::new();
            if let Some((_, counters)) = CACHES.iter().find(|(n, _)| *n == node) {
                options.push(("pending-writes".to_owned(), counters.to_string()));
            }
            if node == HOMES[1].0 {
                options.push(("fanout-by-switch".to_owned(), "false".to_owned()));
            }
            options
        };
        let mut boards = Boards::start(settings, progress, nodes, count_links, options)?;
        let mut pages = BTreeMap::new();
        let counts = COPIES.iter().copied().filter(|copies| *copies < nodes);
        for (copies, (index, (home, _))) in counts.flat_map(|copies| HOMES.iter().enumerate().map(move |h| (copies, h)))
        {
            let page = Page { page: pages.len() as u32, home: *home, copies: copies_of(*home, copies, nodes) };
            page.set_up(&mut boards)?;
            pages.insert((index, copies), page);
        }
        Ok(Bench { boards, pages, value: 0 })
    }

    pub(super) fn cases(&self) -> Vec<Case> {
        let both = |(home, copies): &(usize, usize)| {
            [true, false].map(|at_home| Case { at_home, home: *home, copies: *copies })
        };
        self.pages.keys().flat_map(both).collect()
    }

    fn page(&self, case: Case) -> Result<&Page> {
        let page = self.pages.get(&(case.home, case.copies));
        page.ok_or_else(|| Error::Usage(format!("there is no page with {} copies", case.copies)))
    }

    fn target(&self, case: Case) -> Result<Target> {
        let page = self.page(case)?;
        Ok(Target::of(page, if case.at_home { page.home } else { page.copies[0] }))
    }

    fn store(&mut self, target: &Target, offset: u64) -> Result<u64> {
        self.value += 1;
        let (window, value) = (target.window + offset, self.value.to_le_bytes());
        self.boards.ask(target.writer, |guest| guest.client.store(client::WINDOW, window, &value))?;
        Ok(self.value)
    }

    fn quiet(&mut self, writer: usize) -> Result<()> {
        self.boards.ask(writer, |guest| match guest.quiet()? {
            Status::Ok => Ok(()),
            status => Err(ClientError::Store { status }),
        })
    }

    /// Stores as many values from an offset on to one word after the other, or all to one, in one go.
    fn store_all(&mut self, target: &Target, count: u64, stride: u64) -> Result<()> {
        let first = self.value;
        self.value += count;
        let stores = (0..count).map(|n| (target.window + stride * n, first + 1 + n));
        self.boards.ask(target.writer, |guest| guest.client.store_all(client::WINDOW, stores))
    }

    /// Waits until the memories of these nodes show a value, in any order.
    fn shown(&self, address: u64, value: u64, mut nodes: Vec<usize>) -> Result<()> {
        let guests = self.boards.guests();
        let mut look = || {
            while let Some(node) = nodes.last() {
                match guests[*node].load64(address) {
                    Ok(found) if found == value => nodes.pop(),
                    Ok(_) => return None,
                    Err(e) => return Some(Err((*node, e))),
                };
            }
            Some(Ok(()))
        };
        let begun = Instant::now();
        // A yield here would return only when everything has happened.
        let mut found = look();
        while found.is_none() && begun.elapsed() < SPIN {
            std::hint::spin_loop();
            found = look();
        }
        let arrived = match found {
            Some(found) => Ok(found),
            None => client::wait_for("the arrival of a store", look),
        };
        arrived.map_err(|e| (0, e)).and_then(|done| done).map_err(|(node, e)| self.boards.error(node, e))
    }

    /// Measures a store of this kind.
    fn sample(&mut self, target: &Target) -> Result<Sample> {
        let writer = target.writer;
        self.store(target, 0)?;
        self.quiet(writer)?;
        let mut sample = Sample::new();
        let mut posted = Vec::new();
        for _ in 0..POSTED {
            let begun = Instant::now();
            self.store(target, 0)?;
            posted.push(nanoseconds(begun));
        }
        sample.insert(Figure::Posted, best(posted));
        self.quiet(writer)?;
        let mut singles: BTreeMap<Figure, Vec<f64>> = BTreeMap::new();
        for _ in 0..SINGLES {
            let begun = Instant::now();
            self.store(target, 0)?;
            self.quiet(writer)?;
            singles.entry(Figure::Quiet).or_default().push(nanoseconds(begun));
            let begun = Instant::now();
            let value = self.store(target, 0)?;
            if target.own {
                self.shown(target.address, value, vec![writer])?;
                singles.entry(Figure::Own).or_default().push(nanoseconds(begun));
            }
            self.shown(target.address, value, target.readers.clone())?;
            singles.entry(Figure::Last).or_default().push(nanoseconds(begun));
            if !target.own {
                singles.entry(Figure::Own).or_default().push(nanoseconds(begun));
            }
            self.quiet(writer)?;
        }
        let one = |figure: Figure, values| if figure == Figure::Own { best(values) } else { median(values) };
        sample.extend(singles.into_iter().map(|(figure, values)| (figure, one(figure, values))));
        let begun = Instant::now();
        self.store_all(target, STREAM, 0)?;
        self.quiet(writer)?;
        sample.insert(Figure::Stream, nanoseconds(begun) / STREAM as f64);
        Ok(sample)
    }

    /// Bursts of stores to different words at a copy.
    fn burst(&mut self, target: &Target, words: u64) -> Result<Burst> {
        let stalls = |guest: &mut Guest| guest.client.register(Register::CountCounterStalls);
        let start = self.boards.ask(target.writer, stalls)?;
        let mut times = Vec::new();
        for _ in 0..BURSTS {
            let begun = Instant::now();
            self.store_all(target, words, 8)?;
            self.quiet(target.writer)?;
            times.push(nanoseconds(begun) / words as f64);
        }
        let middle = self.boards.ask(target.writer, stalls)?;
        for _ in 0..BURSTS {
            for word in 0..words {
                self.store(target, 8 * word)?;
            }
            self.quiet(target.writer)?;
        }
        let end = self.boards.ask(target.writer, stalls)?;
        let rate = |stalls: u64| 100.0 * stalls as f64 / (BURSTS as u64 * words) as f64;
        let (at_once, one_by_one) = (rate(middle.saturating_sub(start)), rate(end.saturating_sub(middle)));
        Ok(Burst { at_once, one_by_one, time: median(times) })
    }

    pub(super) fn measure(&mut self, rounds: u32, progress: ProgressMode) -> Result<Figures> {
        let ordinary = grant(&mut self.boards, HOMES[0].0, ORDINARY)?;
        let writer = CACHES[3].0;
        self.boards.ask(writer, |guest| guest.import(ORDINARY as u16, &ordinary, RW))?;
        let window = client::window(ordinary.node, ORDINARY as u16, 0);
        let ordinary = Target { writer, window, address: address(ORDINARY), readers: vec![HOMES[0].0], own: false };
        let copies = CACHES.iter().map(|(node, _)| *node).collect();
        let counted = Page { page: COUNTERS_PAGE, home: HOMES[0].0, copies };
        counted.set_up(&mut self.boards)?;
        let cases = self.cases();
        let mut figures = Figures::default();
        let mut step = progress.step(format!("Measuring, {rounds} rounds of everything in turn"), None);
        for round in 0..rounds {
            step.detail(&format!("round {} of {rounds}", round + 1));
            // Each is measured near the ordinary store in some round.
            let first = round as usize % cases.len();
            let mut baselines: BTreeMap<Figure, Vec<f64>> = BTreeMap::new();
            for (n, case) in cases[first..].iter().chain(&cases[..first]).enumerate() {
                if n % BETWEEN == 0 {
                    for (figure, time) in self.sample(&ordinary)? {
                        baselines.entry(figure).or_default().push(time);
                    }
                }
                let target = self.target(*case)?;
                let sample = self.sample(&target)?;
                figures.cases.entry(*case).or_default().push(sample);
            }
            figures.ordinary.push(baselines.into_iter().map(|(figure, times)| (figure, median(times))).collect());
            for words in WORDS {
                for (node, counters) in CACHES {
                    let burst = self.burst(&Target::of(&counted, node), words)?;
                    figures.bursts.entry((counters, words)).or_default().push(burst);
                }
            }
        }
        step.done();
        let pages: Vec<Page> = self.pages.values().cloned().chain([counted]).collect();
        self.compare(&pages)?;
        Ok(figures)
    }

    /// After all that, all copies are equal (I2).
    fn compare(&mut self, pages: &[Page]) -> Result<()> {
        for page in pages {
            let mut expected: Option<Vec<u8>> = None;
            for node in page.members() {
                let mut bytes = vec![0; UNIT as usize];
                self.boards.ask(node, |guest| guest.read(address(page.page), &mut bytes))?;
                if *expected.get_or_insert_with(|| bytes.clone()) != bytes {
                    let command = format!("a comparison of the copies of page {}", page.page);
                    let why = format!("its copy is not that of node {}", page.home);
                    return Err(Error::Command { node: node.into(), command, why });
                }
            }
        }
        Ok(())
    }

    /// Counts the packets of [`COUNTED`] updates; the links on which there were others than there must be.
    pub(super) fn count(&mut self, case: Case) -> Result<(Packets, Vec<String>)> {
        let (page, target) = (self.page(case)?.clone(), self.target(case)?);
        // Behind this, nothing of the page's beginning is on its way.
        self.store(&target, 0)?;
        self.quiet(target.writer)?;
        let before = self.boards.links();
        for n in 0..COUNTED {
            self.store(&target, 8 * (n % 8))?;
            if n % 4 == 3 {
                self.quiet(target.writer)?;
            }
        }
        let links: Vec<LinkCount> =
            self.boards.links().iter().zip(&before).map(|(now, before)| now.since(before)).collect();
        let mut wrong = Vec::new();
        for (node, link) in links.iter().enumerate() {
            for kind in PacketKind::ALL {
                let found = (link.sent(kind), link.received(kind));
                let expected = expected(&page, target.writer, HOMES[case.home].0 == HOMES[0].0, node, kind);
                if found != expected {
                    let (place, (out, back), (must_out, must_back)) = (case.name(), found, expected);
                    wrong.push(format!(
                        "{} copies, store at {place}: {kind:?} packets on the link of node {node} for {COUNTED} updates: \
                         {out} out and {back} in, expected {must_out} and {must_back}",
                        case.copies
                    ));
                }
            }
        }
        let each = |count: u64| count as f64 / COUNTED as f64;
        let copy_in = page.copies.iter().map(|node| links[*node].received(PacketKind::Reflected)).max();
        let of_writer = |kind| links[target.writer].sent(kind) + links[target.writer].received(kind);
        let packets = Packets {
            case,
            home_out: each(links[page.home].sent(PacketKind::Reflected)),
            home_in: each(links[page.home].received(PacketKind::CopyAck)),
            copy_in: each(copy_in.unwrap_or(0)),
            writer: each(PacketKind::ALL.into_iter().map(of_writer).sum()),
        };
        Ok((packets, wrong))
    }
}

/// The packets of [`COUNTED`] updates that must cross a node's link, out and in: with fan-out by the switch one
/// reflected store on each.
fn expected(page: &Page, writer: usize, by_switch: bool, node: usize, kind: PacketKind) -> (u64, u64) {
    let copies = page.copies.len() as u64;
    let (home, copy) = (node == page.home, page.copies.contains(&node));
    let (writes, updated) = (node == writer && !home, home && node != writer);
    let (out, back) = match kind {
        PacketKind::Reflected if home => (if by_switch { 1 } else { copies }, copy.into()),
        PacketKind::Reflected => (0, copy.into()),
        PacketKind::CopyAck => (copy.into(), if home { copies } else { 0 }),
        PacketKind::Update => (writes.into(), updated.into()),
        PacketKind::WriteAck => (updated.into(), writes.into()),
        PacketKind::Write | PacketKind::Other => (0, 0),
    };
    (COUNTED * out, COUNTED * back)
}

fn nanoseconds(begun: Instant) -> f64 {
    begun.elapsed().as_nanos() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_has_its_home_and_other_nodes() {
        for (home, _) in HOMES {
            for copies in COPIES {
                let nodes = copies_of(home, copies, NODES);
                assert!(nodes.len() == copies && !nodes.contains(&home) && nodes[0] == CACHES[3].0, "{nodes:?}");
            }
        }
        assert!(address(COUNTERS_PAGE) + UNIT <= client::RAM + client::RAM_SIZE);
    }

    /// What enters the switch leaves it: the expectations are consistent.
    #[test]
    fn expected_packets_add_up() {
        let page = Page { page: 0, home: 0, copies: vec![2, 3, 4] };
        for (writer, by_switch) in [(0, true), (0, false), (3, true), (3, false)] {
            let sum = |kind| {
                let all = (0..5).map(|node| expected(&page, writer, by_switch, node, kind));
                all.fold((0, 0), |(out, back), (o, b)| (out + o, back + b))
            };
            for kind in [PacketKind::CopyAck, PacketKind::Update, PacketKind::WriteAck] {
                assert_eq!(sum(kind).0, sum(kind).1, "{kind:?}");
            }
            let (out, back) = sum(PacketKind::Reflected);
            assert_eq!((out, back), (if by_switch { COUNTED } else { 3 * COUNTED }, 3 * COUNTED));
        }
    }
}
