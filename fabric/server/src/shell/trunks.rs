// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ends of trunks in this process: how each is opened, and opened again.

use std::fmt::Display;
use std::net::IpAddr;
use std::str::FromStr;

use log::{debug, warn};
use telegraphos_capture::Link;
use telegraphos_fabric_core::{Attached, Event, PortId};
use telegraphos_topology::{Plan, SwitchId, TrunkAddress, TrunkId};
use telegraphos_transport::Peer;
use telegraphos_transport::faults::{self, FaultyTransport, LinkFaults};
use telegraphos_transport::{Acceptor, InProcess, Transport};
use telegraphos_wire::link::Frame;

use super::config::{Config, FabricError, system};
use super::connection::{OUT_ROOM, Role};
use super::names::{between, link_name, trunk_name};
use super::ports::Ports;
use super::switches::Switches;
use super::watch::{READ, Source};
use crate::transports::{self, Address, Options};

/// First and longest pause between attempts to open a trunk, in microseconds.
const BACKOFF: (u64, u64) = (100_000, 1_000_000);
/// Connections of one trunk end at a time: the trunk, and those in their handshake.
const MOST: usize = 4;
/// Connections taken from one acceptor in a round of the loop.
const CALLERS_AT_ONCE: usize = 8;
/// Microseconds for which an acceptor rests after an error.
const REST: u64 = 100_000;
/// Unidentified connections at one acceptor.
const MOST_CALLERS: usize = 32;

/// How an end is opened.
#[derive(Debug)]
enum Way {
    /// Both ends are here: the index of the other one. The end with the lower index opens both.
    Inside(usize),
    /// The other process connects to this acceptor.
    Listen(usize),
    Connect(Address),
}

/// One end of a trunk.
#[derive(Debug)]
pub(super) struct TrunkEnd {
    pub(super) trunk: TrunkId,
    /// Names of its switches, with a dash, in the order of the topology.
    pub(super) name: String,
    /// The switch here, by its index.
    pub(super) switch: usize,
    /// The ids of this switch and of the other end's.
    pub(super) ids: (SwitchId, SwitchId),
    way: Way,
    pub(super) via: String,
    /// A command keeps it down.
    pub(super) down: bool,
    /// So does a partition.
    pub(super) cut: bool,
    /// The ports of its connections, the newest last.
    pub(super) ports: Vec<PortId>,
    /// When to try to open it, if this end opens it.
    retry: Option<u64>,
    backoff: u64,
    /// When it was opened last.
    opened: u64,
    /// The last log line said that it cannot be opened.
    logged_down: bool,
}

/// The ends of all trunks of the switches here, and the acceptors for them; both are known by their index.
#[derive(Debug, Default)]
pub(super) struct Trunks {
    pub(super) ends: Vec<TrunkEnd>,
    /// Where other processes call.
    pub(super) acceptors: Vec<Box<dyn Acceptor>>,
    /// By acceptor: not watched until then, since it failed.
    resting: Vec<Option<u64>>,
}

/// Transports for ends of trunks, by their index, each of which is to be [joined](Trunks::joined) in order.
pub(super) type Opened = Vec<(usize, Box<dyn Transport>)>;

impl Trunks {
    /// Listens where the plan says so.
    pub(super) fn of(config: &Config, switches: &Switches, faults: &faults::Faults) -> Result<Trunks, FabricError> {
        let mut trunks = Trunks::default();
        let Some(plan) = &config.plan else { return Ok(trunks) };
        let here = |switch: SwitchId| switches.index_of(switch);
        // One acceptor may serve several trunks.
        let mut listening: Vec<(&str, usize)> = Vec::new();
        for (trunk, both) in plan.topology.trunks().iter().enumerate() {
            let trunk = trunk as TrunkId;
            let first = trunks.ends.len();
            let name = || between(&plan.topology, both.a, both.b);
            let mut end = |switch: usize, from: SwitchId, to: SwitchId, way: Way| {
                let at = plan.address(trunk).map_or("process", |address| &address.at);
                let via = at.split(':').next().unwrap_or(at).to_owned();
                trunks.ends.push(TrunkEnd::new(trunk, name(), switch, (from, to), way, via));
            };
            match (here(both.a), here(both.b)) {
                (None, None) => {}
                (Some(a), Some(b)) => {
                    end(a, both.a, both.b, Way::Inside(first + 1));
                    end(b, both.b, both.a, Way::Inside(first));
                }
                (a, b) => {
                    let (switch, from, to) = match (a, b) {
                        (Some(a), _) => (a, both.a, both.b),
                        (_, b) => (b.unwrap_or(0), both.b, both.a),
                    };
                    // The plan has one for each trunk between processes.
                    let Some(meeting) = plan.address(trunk) else { continue };
                    let failed = |why: &dyn Display| FabricError::Trunk { name: name(), why: why.to_string() };
                    let address = Address::from_str(&meeting.at).map_err(|why| failed(&why))?;
                    if meeting.listener != from {
                        end(switch, from, to, Way::Connect(address));
                        continue;
                    }
                    let known = listening.iter().find(|(at, _)| *at == meeting.at).map(|(_, index)| *index);
                    let index = known.unwrap_or(trunks.acceptors.len());
                    end(switch, from, to, Way::Listen(index));
                    if known.is_none() {
                        // Until a caller has named its trunk.
                        let link = faults.link(&trunk_name(&name()));
                        let callers = plan.topology.trunks().iter().enumerate().filter_map(|(trunk, _)| {
                            let other = plan.address(trunk as TrunkId).filter(|other| other.at == meeting.at)?;
                            plan.process_of(other.caller)
                        });
                        let mut options = options(config, link, callers);
                        options.common.named = "trunk";
                        if let Some(quic) = &mut options.quic {
                            quic.addresses = calling_from(plan, &meeting.at);
                        }
                        let acceptor = transports::listen(&address, &options).map_err(|why| failed(&why))?;
                        listening.push((&meeting.at, index));
                        trunks.acceptors.push(acceptor);
                        trunks.resting.push(None);
                    }
                }
            }
        }
        Ok(trunks)
    }

    /// Watches the acceptors.
    pub(super) fn watch(&self, ports: &Ports) -> Result<(), FabricError> {
        for (acceptor, index) in self.acceptors.iter().zip(0..) {
            ports
                .watch
                .add(acceptor.fd(), Source::Acceptor(index).place(), READ)
                .map_err(system("watch a descriptor"))?;
        }
        Ok(())
    }

    /// When there is something to do without any event.
    pub(super) fn deadline(&self) -> Option<u64> {
        let ends = self.ends.iter().filter_map(|end| end.retry);
        let acceptors = self.acceptors.iter().filter_map(|acceptor| acceptor.deadline());
        ends.chain(acceptors).chain(self.resting.iter().flatten().copied()).min()
    }

    /// Every link and trunk end of this process, whether it is up or not: its name, its switch, and what a capture
    /// calls it.
    pub(super) fn named<'a>(&'a self, switches: &'a Switches) -> impl Iterator<Item = (String, SwitchId, Link)> + 'a {
        switches.0.iter().flat_map(|hosted| {
            hosted.switch.statistics().ports.iter().filter_map(|port| match port.attached {
                Attached::Node(node) => Some((link_name(node), hosted.id, Link::Node(node))),
                Attached::Trunk(trunk, to) => {
                    let end = self.ends.iter().find(|end| end.trunk == trunk)?;
                    Some((trunk_name(&end.name), hosted.id, Link::Trunk(hosted.id, to)))
                }
            })
        })
    }

    // ---- calls of other processes ----

    /// Accepts what waits at acceptors that have rested, or whose time has come.
    pub(super) fn tend(&mut self, ports: &mut Ports) {
        for index in 0..self.acceptors.len() {
            if self.resting[index].is_some_and(|at| at <= ports.now) {
                let place = Source::Acceptor(index as u32).place();
                self.resting[index] = match ports.watch.add(self.acceptors[index].fd(), place, READ) {
                    Ok(()) => None,
                    Err(e) => {
                        ports.complain(format_args!("calls for trunks cannot be watched: {e}"));
                        Some(ports.now.saturating_add(REST))
                    }
                };
            }
            if self.acceptors[index].deadline().is_some_and(|at| at <= ports.now) {
                self.accept(ports, index);
            }
        }
    }

    /// Accepts the pending connections of an acceptor.
    pub(super) fn accept(&mut self, ports: &mut Ports, index: usize) {
        for _ in 0..CALLERS_AT_ONCE {
            let Some(acceptor) = self.acceptors.get_mut(index) else { return };
            match acceptor.accept(ports.now) {
                Ok(Some(transport)) => {
                    drop_oldest_caller(ports, index);
                    if let Err(e) = ports.connect(transport, 0, Role::Caller(index)) {
                        ports.complain(format_args!("a connection for a trunk cannot be watched: {e}; it is ended"));
                    }
                }
                Ok(None) => return,
                Err(e) => {
                    ports.complain(format_args!("cannot accept a connection for a trunk: {e}"));
                    // It would be ready again at once.
                    if self.resting[index].is_none() && ports.watch.remove(self.acceptors[index].fd()).is_ok() {
                        self.resting[index] = Some(ports.now.saturating_add(REST));
                    }
                    return;
                }
            }
        }
    }

    /// The first frame of a caller names its trunk: the index of the end here, and whether the caller may be that
    /// trunk. None if the acceptor is of no trunk.
    pub(super) fn identify(
        &self,
        ports: &mut Ports,
        config: &Config,
        faults: &faults::Faults,
        (port, acceptor): (PortId, usize),
        frame: Option<&Frame>,
    ) -> Option<(usize, bool)> {
        let of_this_acceptor = |end: &TrunkEnd| matches!(end.way, Way::Listen(at) if at == acceptor);
        let meant = match frame {
            Some(Frame::Trunk { switch, peer, .. }) => {
                self.ends.iter().position(|end| of_this_acceptor(end) && end.ids == (*peer, *switch))
            }
            _ => None,
        };
        // One that names no trunk is refused at the first.
        let index = meant.or_else(|| self.ends.iter().position(of_this_acceptor))?;
        let end = &self.ends[index];
        let expected = end.process_beyond(config);
        if let Some(connection) = ports.get_mut(port) {
            connection.transport.set_faults(&end.faults(faults));
            // One acceptor may serve several processes; each speaks for its own switches.
            if let Some(peer) = connection.transport.peer().filter(|peer| Some(peer.as_str()) != expected) {
                ports.close(port);
                let (name, expected) = (&end.name, expected.unwrap_or_default());
                ports.complain_of(
                    port,
                    format_args!("trunk {name}: {peer:?} called for it: expected process {expected}"),
                );
                return Some((index, false));
            }
        }
        Some((index, true))
    }

    // ---- ends ----

    /// The ends that are to be opened now; each is asked for once.
    pub(super) fn due(&mut self, now: u64) -> Vec<usize> {
        let mut due = Vec::new();
        for (index, end) in self.ends.iter_mut().enumerate() {
            if end.retry.is_some_and(|at| at <= now) {
                end.retry = None;
                due.push(index);
            }
        }
        due
    }

    /// Opens an end, and the other one where that is here.
    pub(super) fn open(&self, index: usize, config: &Config, faults: &faults::Faults) -> Result<Opened, String> {
        let end = &self.ends[index];
        if end.kept_down() {
            return Ok(Vec::new());
        }
        match &end.way {
            Way::Listen(_) => Ok(Vec::new()),
            Way::Inside(other) if *other < index => Ok(Vec::new()),
            Way::Inside(other) => {
                // One end makes the faults of both directions.
                let (near, far) = InProcess::pair(&config.transport.common).map_err(|e| e.to_string())?;
                let near = FaultyTransport::new(Box::new(near), end.faults(faults)).map_err(|e| e.to_string())?;
                Ok(vec![(*other, Box::new(far)), (index, Box::new(near))])
            }
            Way::Connect(address) => {
                // The trunk's name: a restarted caller's new connection ends its old one at once.
                let mut options = options(config, end.faults(faults), end.process_beyond(config).into_iter());
                options.common.name = u64::from(end.trunk) + 1;
                Ok(vec![(index, transports::connect(address, &options).map_err(|e| e.to_string())?)])
            }
        }
    }

    /// An end could not be opened.
    pub(super) fn failed(&mut self, index: usize, now: u64, why: &str) {
        let end = &mut self.ends[index];
        if end.logged_down {
            debug!("still no trunk {}: {why}", end.name);
        } else {
            warn!("no trunk {}: {why} (trying again until it is there)", end.name);
            end.logged_down = true;
        }
        end.again(now);
    }

    /// A connection becomes an end of a trunk: for its switch, which sends the opening frame. None if the end is kept
    /// down; then the connection ends.
    pub(super) fn joined(&mut self, ports: &mut Ports, index: usize, port: PortId) -> Option<Event> {
        let end = &mut self.ends[index];
        if end.kept_down() {
            ports.close(port);
            return None;
        }
        if end.ports.len() >= MOST {
            // The oldest may be the trunk, the newest may be the one that replaces it: one in between makes room.
            if let Some(between) = end.ports.get(1).copied() {
                ports.close(between);
            }
        }
        (end.opened, end.logged_down) = (ports.now, false);
        end.ports.push(port);
        if let Some(connection) = ports.get_mut(port) {
            connection.switch = end.switch;
        }
        // It came by no listener for HIBs, so it is on no account.
        ports.identified(port, Role::Trunk(index));
        Some(Event::TrunkOpened { port, room: OUT_ROOM as u32, trunk: end.trunk })
    }

    /// A connection of a trunk has ended.
    pub(super) fn ended(&mut self, index: usize, port: PortId, now: u64) {
        let Some(end) = self.ends.get_mut(index) else { return };
        end.ports.retain(|p| *p != port);
        if end.ports.is_empty() {
            match end.way {
                Way::Listen(_) => {}
                // Both ends end; the lower one opens both.
                Way::Inside(other) if other < index => {}
                Way::Inside(_) | Way::Connect(_) => end.again(now),
            }
        }
    }

    /// Changes whether an end is kept down.
    pub(super) fn change(&mut self, ports: &mut Ports, index: usize, change: impl FnOnce(&mut TrunkEnd)) {
        let end = &mut self.ends[index];
        let was = end.kept_down();
        change(end);
        let is = end.kept_down();
        if is && !was {
            end.ports.iter().for_each(|port| ports.close(*port));
        } else if was && !is && !matches!(end.way, Way::Listen(_)) {
            // This end tries at once, if it is the one that opens.
            (end.backoff, end.retry) = (BACKOFF.0, Some(ports.now));
        }
    }
}

/// Bounds the unidentified connections at an acceptor.
fn drop_oldest_caller(ports: &mut Ports, acceptor: usize) {
    let callers = ports.iter().filter(|(_, connection)| connection.role == Role::Caller(acceptor));
    let callers: Vec<(u64, PortId)> = callers.map(|(port, connection)| (connection.number, port)).collect();
    if let Some((_, port)) = callers.iter().min().filter(|_| callers.len() >= MOST_CALLERS) {
        // No switch has heard of it, and it is on no account.
        if let Some(connection) = ports.take(*port) {
            ports.forget(*port, &connection.place());
        }
    }
}

/// Measures the round trip of a trunk. The other switch answers each probe; those of a switch come only when nothing
/// else does.
pub(super) fn probe(ports: &mut Ports, port: PortId) {
    let now = ports.now;
    if let Some(connection) = ports.get_mut(port).filter(|connection| connection.may_probe()) {
        connection.queue(Frame::Probe);
        connection.probed(now);
        ports.touch(port);
    }
}

/// Addresses from which the processes call that connect to `at`, as far as the plan says: where it says that they
/// connect from, and where they listen themselves. Names are not looked up.
fn calling_from(plan: &Plan, at: &str) -> Vec<IpAddr> {
    let addresses = || (0..plan.topology.trunks().len()).filter_map(|trunk| plan.address(trunk as TrunkId));
    let callers: Vec<&TrunkAddress> = addresses().filter(|meeting| meeting.at == at).collect();
    let listens = addresses().filter_map(|meeting| {
        let process = plan.process_of(meeting.listener);
        let calls = callers.iter().any(|caller| plan.process_of(caller.caller) == process);
        match Address::from_str(&meeting.at) {
            Ok(Address::Quic(own) | Address::Udp(own)) if calls => own.host.parse().ok(),
            _ => None,
        }
    });
    callers.iter().filter_map(|caller| caller.from).chain(listens).collect()
}

/// How trunks to these processes are opened.
fn options<'a>(config: &Config, faults: LinkFaults, processes: impl Iterator<Item = &'a str>) -> Options {
    let mut options = config.transport.clone();
    options.common.faults = Some(faults);
    if let Some(quic) = &mut options.quic {
        quic.peers = processes.map(|name| Peer::Name(name.to_owned())).collect();
    }
    options
}

impl TrunkEnd {
    fn new(trunk: TrunkId, name: String, switch: usize, ids: (SwitchId, SwitchId), way: Way, via: String) -> TrunkEnd {
        let opens = !matches!(way, Way::Listen(_));
        TrunkEnd {
            trunk,
            name,
            switch,
            ids,
            way,
            via,
            down: false,
            cut: false,
            ports: Vec::new(),
            retry: if opens { Some(0) } else { None },
            backoff: BACKOFF.0,
            opened: 0,
            logged_down: false,
        }
    }

    /// Whether it may not be open.
    fn kept_down(&self) -> bool {
        self.down || self.cut
    }

    /// The process at the other end.
    fn process_beyond<'a>(&self, config: &'a Config) -> Option<&'a str> {
        config.plan.as_ref()?.process_of(self.ids.1)
    }

    fn faults(&self, faults: &faults::Faults) -> LinkFaults {
        faults.link(&trunk_name(&self.name))
    }

    /// It is to be tried again, later each time, unless it was open for a while.
    fn again(&mut self, now: u64) {
        if now > self.opened.saturating_add(BACKOFF.1) {
            self.backoff = BACKOFF.0;
        }
        self.retry = Some(now.saturating_add(self.backoff));
        self.backoff = (self.backoff * 2).min(BACKOFF.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_known_by_what_the_plan_says_of_them() {
        let text = "nodes = 3\n\
             [[switch]]\nname = 'a'\nprocess = 'a'\n[[switch]]\nname = 'b'\nprocess = 'b'\n[[switch]]\nname = 'c'\nprocess = 'c'\n\
             [[trunk]]\nbetween = ['a', 'b']\nat = 'quic:10.0.0.1:7001'\n\
             [[trunk]]\nbetween = ['b', 'c']\nat = 'quic:10.0.0.2:7001'\nfrom = '10.0.0.3'\n\
             [[trunk]]\nbetween = ['a', 'c']\nat = 'quic:10.0.0.1:7001'\nfrom = '10.1.0.3'\n";
        let plan = Plan::from_toml(text).unwrap();
        let from = |at: &str| calling_from(&plan, at).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(from("quic:10.0.0.1:7001"), ["10.1.0.3", "10.0.0.2"]);
        assert_eq!(from("quic:10.0.0.2:7001"), ["10.0.0.3"]);
        for wrong in [
            text.replace("10.0.0.3", "host-c"),
            text.replacen("at =", "# ", 1).replacen("'b']", "'b']\nfrom = '::1'", 1),
        ] {
            let error = Plan::from_toml(&wrong).unwrap_err().to_string();
            assert!(error.contains("from = ") && error.contains("10.0.0.2"), "{error}");
        }
    }
}
