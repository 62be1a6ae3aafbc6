// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which processes are reached over streams, and by which paths: the routing table of a process (SPEC item 42).
//!
//! Each process advertises itself and its names to its neighbours, those at the other ends of its streams, and a
//! gateway advertises all that it reaches. It sends the whole path of each. A path that a process is on is of no use to
//! it, so none leads in a circle, and a process that is lost is not looked for in ever longer ones. Tables change with
//! each process that joins or leaves, and neighbours get the changes only.

use crate::address::Process;
use crate::bugs::Bug;
use crate::config::Config;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Streams that a path may lead over.
pub const MOST_HOPS: usize = 8;
/// Processes that a neighbour may tell of.
pub const MOST_ROUTES: usize = 4096;
/// Names that a process may have.
pub const MOST_NAMES: usize = 64;
/// Bytes of a name.
pub const LONGEST_NAME: usize = 200;
/// Routes of one [`News`].
const MOST_NEWS: usize = 64;

/// A stream of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// How a process is reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Route {
    /// From the process that advertises it to the process itself, both included.
    pub path: Vec<Process>,
    /// Names of the process.
    pub names: Vec<String>,
}

impl Route {
    pub fn process(&self) -> Option<Process> {
        self.path.last().copied()
    }
}

/// What has changed for a neighbour.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct News {
    /// They replace what was sent before of these processes.
    pub routes: Vec<Route>,
    /// Processes that are not reached by this one any more.
    pub lost: Vec<Process>,
}

/// What a neighbour says of routes against the rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// A path that is none.
    #[error("a path of {hops} processes: expected 1 to {MOST_HOPS}")]
    Length { hops: usize },
    #[error("a path that does not begin at {0}, who tells of it")]
    Beginning(Process),
    #[error("a path that is at {0} twice, or leads back to there")]
    Loop(Process),
    /// Names that are not.
    #[error("names of {0}: expected at most {MOST_NAMES}, of 1 to {LONGEST_NAME} bytes")]
    Names(Process),
    #[error("routes to more than {MOST_ROUTES} processes")]
    Routes,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Neighbour {
    process: Process,
    heard: BTreeMap<Process, Route>,
    told: BTreeMap<Process, Route>,
}

/// The routing table of a process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Routes {
    config: Config,
    me: Process,
    gateway: bool,
    names: BTreeSet<String>,
    neighbours: BTreeMap<StreamId, Neighbour>,
}

impl Routes {
    /// That of a process, which others reach further ones by if it is a gateway.
    pub fn new(config: &Config, me: Process, gateway: bool) -> Routes {
        Routes { config: config.clone(), me, gateway, names: BTreeSet::new(), neighbours: BTreeMap::new() }
    }

    /// Whether others reach further processes by this one.
    pub fn is_gateway(&self) -> bool {
        self.gateway
    }

    /// Gives this process a name, or takes it. False if it has it already, or has not, or may have no more of them.
    pub fn name(&mut self, name: &str, has: bool) -> bool {
        match has {
            true if name.is_empty() || name.len() > LONGEST_NAME || self.names.len() >= MOST_NAMES => false,
            true => self.names.insert(name.to_owned()),
            false => self.names.remove(name),
        }
    }

    /// A stream leads to a neighbour from now on. There may be others that do.
    pub fn join(&mut self, stream: StreamId, process: Process) {
        self.neighbours.insert(stream, Neighbour { process, heard: BTreeMap::new(), told: BTreeMap::new() });
    }

    /// A stream has ended. Returns the processes that are not reached any more.
    pub fn leave(&mut self, stream: StreamId) -> Vec<Process> {
        let left = match self.config.has(Bug::KeepRoutes) {
            true => self.neighbours.get(&stream).cloned(),
            false => self.neighbours.remove(&stream),
        };
        let reached = left.into_iter().flat_map(|left| left.heard.into_keys());
        reached.filter(|process| self.path(*process).is_none()).collect()
    }

    /// A neighbour tells what has changed. Returns the processes that are not reached any more.
    ///
    /// # Errors
    ///
    /// What is against the rules. Nothing of it counts then, and its stream is to be ended.
    pub fn hear(&mut self, stream: StreamId, news: News) -> Result<Vec<Process>, Wrong> {
        let Some(neighbour) = self.neighbours.get_mut(&stream) else { return Ok(Vec::new()) };
        for route in &news.routes {
            check(&self.config, self.me, neighbour.process, route)?;
        }
        let mut lost = Vec::new();
        for process in news.lost {
            lost.extend(neighbour.heard.remove(&process).map(|_| process));
        }
        for route in news.routes {
            // It has been checked that there is one.
            let Some(process) = route.process() else { continue };
            neighbour.heard.insert(process, route);
        }
        if neighbour.heard.len() > MOST_ROUTES {
            return Err(Wrong::Routes);
        }
        lost.retain(|process| self.path(*process).is_none());
        Ok(lost)
    }

    /// What is to be sent to a neighbour next, if there is anything.
    pub fn news(&mut self, stream: StreamId) -> Option<News> {
        let for_whom = self.neighbours.get(&stream)?.process;
        let mut now = BTreeMap::new();
        if self.gateway {
            // A longer path than may be is nobody's.
            let others = self.all().filter(|route| {
                let leads_back = route.path.contains(&for_whom) && !self.config.has(Bug::OwnPath);
                route.path.len() < MOST_HOPS && !leads_back
            });
            for Route { path, names } in others {
                let path: Vec<Process> = std::iter::once(self.me).chain(path.iter().copied()).collect();
                now.extend(path.last().copied().map(|process| (process, Route { path, names: names.clone() })));
            }
        }
        now.insert(self.me, Route { path: vec![self.me], names: self.names.iter().cloned().collect() });
        let told = &mut self.neighbours.get_mut(&stream)?.told;
        let lost = told.keys().filter(|process| !now.contains_key(process)).copied();
        let lost: Vec<Process> = lost.take(MOST_NEWS).collect();
        let changed = now.into_iter().filter(|(process, route)| told.get(process) != Some(route));
        let changed: Vec<(Process, Route)> = changed.take(MOST_NEWS).collect();
        lost.iter().for_each(|process| drop(told.remove(process)));
        told.extend(changed.iter().cloned());
        let news = News { routes: changed.into_iter().map(|(_, route)| route).collect(), lost };
        (news != News::default()).then_some(news)
    }

    /// The best route to each process that is reached, but to this one itself.
    pub fn all(&self) -> impl Iterator<Item = &Route> {
        let mut best = BTreeMap::<Process, &Route>::new();
        for (process, route) in self.neighbours.values().flat_map(|neighbour| &neighbour.heard) {
            let known = best.entry(*process).or_insert(route);
            if rank(route) < rank(known) {
                *known = route;
            }
        }
        best.into_values()
    }

    /// The best path from this process to another, both included.
    pub fn path(&self, process: Process) -> Option<Vec<Process>> {
        let routes = self.neighbours.values().filter_map(|neighbour| neighbour.heard.get(&process));
        let best = routes.min_by(|a, b| rank(a).cmp(&rank(b)))?;
        Some(std::iter::once(self.me).chain(best.path.iter().copied()).collect())
    }

    /// The process of a node that has a name.
    pub fn find(&self, node: u16, name: &str) -> Option<Process> {
        let of_node = self.all().filter(|route| route.process().is_some_and(|process| process.node == node));
        of_node.filter(|route| route.names.iter().any(|known| known == name)).find_map(Route::process)
    }

    /// The stream that what is for a neighbour goes by: always the one that has been there for longest, so that it
    /// stays in order.
    pub fn stream(&self, neighbour: Process) -> Option<StreamId> {
        self.neighbours.iter().find(|(_, there)| there.process == neighbour).map(|(stream, _)| *stream)
    }

    /// The process at the other end of a stream.
    pub fn neighbour(&self, stream: StreamId) -> Option<Process> {
        self.neighbours.get(&stream).map(|neighbour| neighbour.process)
    }

    /// Streams that there are.
    pub fn streams(&self) -> Vec<StreamId> {
        self.neighbours.keys().copied().collect()
    }
}

/// Shorter ones are better, and of those one always is.
fn rank(route: &Route) -> (usize, &[Process]) {
    (route.path.len(), &route.path)
}

/// The first process that a path is at twice.
pub(crate) fn circle(path: &[Process]) -> Option<Process> {
    let mut seen = BTreeSet::new();
    path.iter().find(|process| !seen.insert(**process)).copied()
}

fn check(config: &Config, me: Process, neighbour: Process, route: &Route) -> Result<(), Wrong> {
    let Route { path, names } = route;
    let (Some(first), Some(process), 1..=MOST_HOPS) = (path.first(), path.last(), path.len()) else {
        return Err(Wrong::Length { hops: path.len() });
    };
    if *first != neighbour {
        return Err(Wrong::Beginning(neighbour));
    }
    let back = path.contains(&me).then_some(me);
    if let Some(twice) = back.or_else(|| circle(path)).filter(|_| !config.has(Bug::OwnPath)) {
        return Err(Wrong::Loop(twice));
    }
    if names.len() > MOST_NAMES || names.iter().any(|name| name.is_empty() || name.len() > LONGEST_NAME) {
        return Err(Wrong::Names(*process));
    }
    Ok(())
}
