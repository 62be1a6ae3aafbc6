// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes, gateways and streams that come and go, in random order, against the graph that they make.

use crate::common::process;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use telegraphos_msg_core::far::{Body, Far, Frame, Passage, Sizes, Step, Why, Word, Wrong};
use telegraphos_msg_core::routes::{self, LONGEST_NAME, MOST_HOPS, MOST_NAMES, News, Route, Routes, StreamId};
use telegraphos_msg_core::{Bug, Config, Process};
use telegraphos_testkit::{Rng, bugs_are_found, counts, over_seeds_on_all_processors};

/// A stream: the processes at its ends, and what is on its way to each.
#[derive(Debug)]
struct Stream {
    ends: [usize; 2],
    to: [VecDeque<Frame>; 2],
}

impl Stream {
    fn end(&self, who: usize) -> usize {
        usize::from(self.ends[1] == who)
    }
}

counts! {
    struct Counts {
        ups, bodies, gone,
        /// Passages over five streams or more.
        long,
    }
}

#[derive(Default)]
struct World {
    far: Vec<Far>,
    gateways: Vec<bool>,
    streams: BTreeMap<StreamId, Stream>,
    next: u64,
    /// What each has said to each other one, and heard from it, since their session began there.
    said: BTreeMap<(usize, usize), u64>,
    heard: BTreeMap<(usize, usize), u64>,
    counts: Counts,
}

impl World {
    fn new(gateways: &[bool], bug: Option<Bug>) -> World {
        let config = Config { bug, ..Config::default() };
        let of = |(n, gateway): (usize, &bool)| Far::new(&config, process(n), *gateway, (n as u64) << 32);
        let far = gateways.iter().enumerate().map(of).collect();
        World { far, gateways: gateways.to_vec(), ..World::default() }
    }

    fn connect(&mut self, a: usize, b: usize) -> Result<(), String> {
        let id = StreamId(self.next);
        self.next += 1;
        self.streams.insert(id, Stream { ends: [a, b], to: Default::default() });
        self.far[a].join(id, process(b));
        self.act(a)?;
        self.far[b].join(id, process(a));
        self.act(b)
    }

    /// What is on its way is lost.
    fn cut(&mut self, id: StreamId) -> Result<(), String> {
        let Some(stream) = self.streams.remove(&id) else { return Ok(()) };
        for end in stream.ends {
            self.far[end].leave(id);
            self.act(end)?;
        }
        Ok(())
    }

    fn act(&mut self, who: usize) -> Result<(), String> {
        while let Some(step) = self.far[who].step() {
            match step {
                Step::Say { over, frame, .. } => {
                    if let Frame::Passage(Passage { path, .. }) = &frame {
                        self.counts.long += u64::from(path.len() > 5);
                    }
                    if let Some(stream) = self.streams.get_mut(&over) {
                        let end = 1 - stream.end(who);
                        stream.to[end].push_back(frame);
                    }
                }
                Step::Up(with) => {
                    self.counts.ups += 1;
                    let with = usize::from(with.node);
                    self.said.insert((who, with), 0);
                    self.heard.insert((who, with), 0);
                }
                Step::Body(from, body) => {
                    let Body::Bytes { number, .. } = body else { return Err(format!("order: {body:?}")) };
                    let next = self.heard.entry((who, from.node.into())).or_default();
                    if number != *next {
                        return Err(format!("order: {who} heard {number} of {from}, expected {next}"));
                    }
                    *next += 1;
                    self.counts.bodies += 1;
                }
                Step::Gone(..) => self.counts.gone += 1,
            }
        }
        Ok(())
    }

    fn say(&mut self, who: usize, to: usize) -> Result<(), String> {
        if self.far[who].is_up(process(to)) {
            let number = self.said.entry((who, to)).or_default();
            self.far[who].say(process(to), Body::Bytes { number: *number, bytes: None });
            *number += 1;
        }
        self.act(who)
    }

    /// The first frame of a stream to one of its ends arrives.
    fn deliver(&mut self, id: StreamId, end: usize) -> Result<bool, String> {
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(false) };
        let Some(frame) = stream.to[end].pop_front() else { return Ok(false) };
        let who = stream.ends[end];
        self.far[who].frame(id, frame).map_err(|wrong| format!("rules: {wrong}"))?;
        self.act(who)?;
        Ok(true)
    }

    fn settle(&mut self, random: &mut Rng) -> Result<(), String> {
        for _ in 0..200_000 {
            let busy = |(id, stream): (&StreamId, &Stream)| {
                let ends = (0..2).filter(|end| !stream.to[*end].is_empty());
                ends.map(|end| (*id, end)).collect::<Vec<_>>()
            };
            let waiting: Vec<_> = self.streams.iter().flat_map(busy).collect();
            if waiting.is_empty() {
                return Ok(());
            }
            let (id, end) = waiting[random.below(waiting.len())];
            self.deliver(id, end)?;
        }
        Err("loop: it does not come to an end".into())
    }

    fn tick(&mut self, random: &mut Rng) -> Result<(), String> {
        for who in 0..self.far.len() {
            self.far[who].tick();
            self.act(who)?;
        }
        self.settle(random)
    }

    fn are_neighbours(&self, a: usize, b: usize) -> bool {
        self.streams.values().any(|stream| stream.ends == [a, b] || stream.ends == [b, a])
    }

    /// Streams from one process to another, at least.
    fn hops(&self, from: usize, to: usize) -> Option<usize> {
        let (mut seen, mut now) = (BTreeSet::from([from]), vec![from]);
        for hops in 1..=MOST_HOPS {
            let passing: Vec<usize> = now.into_iter().filter(|n| *n == from || self.gateways[*n]).collect();
            let next = |n: usize| passing.iter().any(|by| self.are_neighbours(*by, n));
            now = (0..self.far.len()).filter(|n| !seen.contains(n) && next(*n)).collect();
            if now.contains(&to) {
                return Some(hops);
            }
            seen.extend(&now);
        }
        None
    }

    /// Nothing is on its way: tables are those of the graph, and sessions go by paths that there are.
    fn check(&self) -> Result<(), String> {
        let pairs = (0..self.far.len()).flat_map(|a| (0..self.far.len()).map(move |b| (a, b)));
        for (a, b) in pairs.filter(|(a, b)| a != b) {
            let known = self.far[a].routes().path(process(b)).map(|path| path.len() - 1);
            if known != self.hops(a, b) {
                return Err(format!("table: {a} reaches {b} in {known:?}, expected {:?}", self.hops(a, b)));
            }
            if !self.far[a].is_up(process(b)) {
                continue;
            }
            let path = self.far[a].path(process(b)).unwrap();
            let broken = path.windows(2).any(|hop| !self.are_neighbours(hop[0].node.into(), hop[1].node.into()));
            if broken || !self.far[b].is_up(process(a)) {
                return Err(format!("told: {a} has a session with {b} by {path:?}"));
            }
            let (said, heard) = (self.said.get(&(a, b)), self.heard.get(&(b, a)));
            if said != heard {
                return Err(format!("order: {a} has said {said:?} to {b}, which has heard {heard:?}"));
            }
        }
        Ok(())
    }
}

fn run(seed: u64, bug: Option<Bug>) -> Result<Counts, String> {
    let mut random = Rng::new(seed);
    let size = 2 + random.below(7_usize);
    let gateways: Vec<bool> = (0..size).map(|_| random.percent(60)).collect();
    let mut world = World::new(&gateways, bug);
    for _ in 0..1 + random.below(4_u32) {
        for _ in 0..random.below(200_u32) {
            let (a, b) = (random.below(size), random.below(size));
            let streams: Vec<StreamId> = world.streams.keys().copied().collect();
            match random.below(100_u32) {
                0..10 if a != b && streams.len() < 2 * size => world.connect(a, b)?,
                10..13 if !streams.is_empty() => world.cut(streams[random.below(streams.len())])?,
                13..25 if a != b => {
                    _ = world.far[a].open(process(b));
                    world.act(a)?;
                }
                25..27 => {
                    world.far[a].close(process(b), Why::Ended);
                    world.act(a)?;
                }
                27..50 => world.say(a, b)?,
                50..51 => world.far[a].tick(),
                _ if !streams.is_empty() => {
                    world.deliver(streams[random.below(streams.len())], random.below(2))?;
                }
                _ => {}
            }
            world.act(a)?;
        }
        // What was lost is missed at the next tick or the one after that, and what was said of that at the next.
        world.settle(&mut random)?;
        (0..4).try_for_each(|_| world.tick(&mut random))?;
        world.check()?;
    }
    for (a, b) in (0..size).flat_map(|a| (0..size).map(move |b| (a, b))).filter(|(a, b)| a != b) {
        let reached = world.far[a].open(process(b)).is_ok();
        world.act(a)?;
        world.settle(&mut random)?;
        world.say(a, b)?;
        world.settle(&mut random)?;
        if reached != world.hops(a, b).is_some() || reached != world.far[a].is_up(process(b)) {
            return Err(format!("reached: {a} and {b}: {reached}"));
        }
    }
    world.check()?;
    Ok(world.counts)
}

#[test]
fn s4_tables_are_those_of_the_graph_and_sessions_lose_nothing_unnoticed() {
    let (seeds, counts) = over_seeds_on_all_processors(3000, 300_000, Counts::add, |seed| run(seed, None));
    println!("{seeds} seeds: {counts:?}");
    assert!(seeds == 1 || Counts { long: u64::MAX, ..counts }.least() > 1000 && counts.long > 0, "{counts:?}");
}

bugs_are_found! {
    0..4000, run;
    fn s4_paths_that_lead_back_are_found() => Bug::OwnPath, "rules";
    fn s4_routes_of_a_neighbour_that_has_left_are_found() => Bug::KeepRoutes, "table";
    fn s4_frames_that_are_missing_are_found() => Bug::CountNoFrames, "order";
    fn s4_broken_paths_without_a_notification_are_found() => Bug::DropSilently, "told";
}

/// A line of processes, of which all but the ends are gateways.
fn line(long: usize) -> World {
    let mut world = World::new(&(0..long).map(|n| n > 0 && n + 1 < long).collect::<Vec<_>>(), None);
    (1..long).for_each(|n| world.connect(n - 1, n).unwrap());
    world.settle(&mut Rng::new(1)).unwrap();
    world
}

#[test]
fn s4_a_path_has_eight_hops_and_not_nine() {
    assert_eq!(line(MOST_HOPS + 1).far[0].open(process(MOST_HOPS)), Ok(()));
    assert_eq!(line(MOST_HOPS + 2).far[0].open(process(MOST_HOPS + 1)), Err(Why::NoRoute));
}

#[test]
fn the_session_with_a_silent_process_ends() {
    let mut world = line(3);
    world.far[0].open(process(2)).unwrap();
    world.act(0).unwrap();
    world.settle(&mut Rng::new(1)).unwrap();
    for tick in 0..=telegraphos_msg_core::far::SILENCE {
        assert!(world.far[0].is_up(process(2)), "after {tick} ticks");
        world.far[0].tick();
    }
    assert!(!world.far[0].is_up(process(2)));
    let steps = std::iter::from_fn(|| world.far[0].step());
    assert!(steps.into_iter().any(|step| step == Step::Gone(process(2), Why::Silent)));
}

#[test]
fn processes_of_other_sizes_are_refused() {
    let mut world = World::new(&[false, false], None);
    world.far[1] = Far::new(&Config { slots: 3, ..Config::default() }, process(1), false, 1 << 32);
    world.connect(0, 1).unwrap();
    world.settle(&mut Rng::new(1)).unwrap();
    world.far[0].open(process(1)).unwrap();
    let open = std::iter::from_fn(|| world.far[0].step()).last().unwrap();
    let Step::Say { over, frame, .. } = open else { panic!("{open:?}") };
    world.far[1].frame(over, frame).unwrap();
    let refuse = std::iter::from_fn(|| world.far[1].step()).last().unwrap();
    let Step::Say { over, frame, .. } = refuse else { panic!("{refuse:?}") };
    world.far[0].frame(over, frame).unwrap();
    assert_eq!(world.far[0].step(), Some(Step::Gone(process(1), Why::Unlike)));
}

fn news(path: &[usize], names: &[&str]) -> News {
    let path = path.iter().map(|n| process(*n)).collect();
    News { routes: vec![Route { path, names: names.iter().map(|name| (*name).into()).collect() }], lost: vec![] }
}

#[test]
fn s4_routes_that_are_lies_are_refused() {
    let stream = StreamId(1);
    let mut routes = Routes::new(&Config::default(), process(0), true);
    routes.join(stream, process(1));
    let long: Vec<usize> = (1..MOST_HOPS + 2).collect();
    let names = vec!["x"; MOST_NAMES + 1];
    for (lie, wrong) in [
        (news(&[], &[]), routes::Wrong::Length { hops: 0 }),
        (news(&long, &[]), routes::Wrong::Length { hops: MOST_HOPS + 1 }),
        (news(&[2, 3], &[]), routes::Wrong::Beginning(process(1))),
        (news(&[1, 2, 3, 2], &[]), routes::Wrong::Loop(process(2))),
        (news(&[1, 0], &[]), routes::Wrong::Loop(process(0))),
        (news(&[1, 0, 2], &[]), routes::Wrong::Loop(process(0))),
        (news(&[1, 2], &names), routes::Wrong::Names(process(2))),
        (news(&[1, 2], &[&"x".repeat(LONGEST_NAME + 1)]), routes::Wrong::Names(process(2))),
        (news(&[1, 2], &[""]), routes::Wrong::Names(process(2))),
    ] {
        assert_eq!(routes.hear(stream, lie), Err(wrong));
    }
    assert_eq!(routes.hear(stream, news(&[1, 2], &["worker"])), Ok(vec![]));
    assert_eq!(
        (routes.find(2, "worker"), routes.find(2, "x"), routes.find(1, "worker")),
        (Some(process(2)), None, None)
    );
}

#[test]
fn a_neighbour_may_tell_of_so_many_processes_and_no_more() {
    let mut routes = Routes::new(&Config::default(), process(0), true);
    routes.join(StreamId(1), process(1));
    for n in 0..routes::MOST_ROUTES as u32 {
        let path = vec![process(1), Process { node: 2, number: n }];
        let one = News { routes: vec![Route { path, names: vec![] }], lost: vec![] };
        assert_eq!(routes.hear(StreamId(1), one), Ok(vec![]));
    }
    assert_eq!(routes.hear(StreamId(1), news(&[1, 3], &[])), Err(routes::Wrong::Routes));
}

#[test]
fn s4_frames_on_paths_that_lead_elsewhere_are_refused() {
    let mut world = line(3);
    let stream = world.far[1].routes().stream(process(0)).unwrap();
    for (path, at) in [
        (vec![0, 1], 0),
        (vec![0, 1], 2),
        (vec![0, 2], 1),
        (vec![2, 1], 1),
        (vec![0, 1, 0], 1),
        (vec![0, 1, 2, 2], 1),
        (vec![1], 0),
        (vec![], 0),
        ((0..MOST_HOPS + 2).collect(), 1),
        (vec![0, 1, 2], 255),
    ] {
        let word = Word::Open(Sizes::of(&Config::default()));
        let long = path.len();
        let path = path.into_iter().map(process).collect();
        let frame = Frame::Passage(Passage { path, at, session: 1, word });
        assert_eq!(world.far[1].frame(stream, frame), Err(Wrong::Path(long)));
        assert_eq!(world.far[1].step(), None);
    }
}
