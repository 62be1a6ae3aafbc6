// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ends of trunks in this process: how each is opened, and opened again.

use std::fmt::Display;
use std::net::IpAddr;
use std::str::FromStr;

use log::{debug, warn};
use rustix::io::Errno;
use telegraphos_fabric_core::{Attached, Event, PortId};
use telegraphos_quic::Peer;
use telegraphos_topology::{Plan, SwitchId, TrunkAddress, TrunkId};
use telegraphos_transport::faults::{Faults, FaultyTransport, LinkFaults};
use telegraphos_transport::{Acceptor, InProcess, Transport};
use telegraphos_wire::link::Frame;

use super::config::{Config, FabricError, system};
use super::connection::{OUT_ROOM, Role};
use super::faults::trunk_name;
use super::watch::Source;
use super::{Fabric, Hosted};
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
    /// Its connections, the newest last.
    pub(super) ports: Vec<PortId>,
    /// When to try to open it, if this end opens it.
    pub(super) retry: Option<u64>,
    backoff: u64,
    /// When it was opened last.
    opened: u64,
    /// The last log line said that it cannot be opened.
    logged_down: bool,
}

/// The ends of all trunks of the switches here, and the acceptors for them.
pub(super) struct Trunks {
    pub(super) ends: Vec<TrunkEnd>,
    pub(super) acceptors: Vec<Box<dyn Acceptor>>,
}

impl Trunks {
    /// Listens where the plan says so.
    pub(super) fn of(config: &Config, hosted: &[Hosted], faults: &Faults) -> Result<Trunks, FabricError> {
        let mut trunks = Trunks { ends: Vec::new(), acceptors: Vec::new() };
        let Some(plan) = &config.plan else { return Ok(trunks) };
        let here = |switch: SwitchId| hosted.iter().position(|hosted| hosted.id == switch);
        // One acceptor may serve several trunks.
        let mut listening: Vec<(&str, usize)> = Vec::new();
        for (trunk, both) in plan.topology.trunks().iter().enumerate() {
            let trunk = trunk as TrunkId;
            let first = trunks.ends.len();
            let name = || format!("{}-{}", plan.topology.name(both.a), plan.topology.name(both.b));
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
                    }
                }
            }
        }
        Ok(trunks)
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

    /// Whether it may be open.
    pub(super) fn kept_down(&self) -> bool {
        self.down || self.cut
    }

    /// It may be open again: this end tries at once, if it is the one that opens.
    pub(super) fn let_up(&mut self, now: u64) {
        if !matches!(self.way, Way::Listen(_)) {
            (self.backoff, self.retry) = (BACKOFF.0, Some(now));
        }
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

impl Fabric {
    /// Opens what is to be opened now.
    pub(super) fn open_trunks(&mut self) {
        for index in 0..self.acceptors.len() {
            if self.resting[index].is_some_and(|at| at <= self.now) {
                self.resting[index] = match self.watch.add(self.acceptors[index].fd(), Source::Acceptor(index as u32)) {
                    Ok(()) => None,
                    Err(e) => {
                        self.complain(format_args!("calls for trunks cannot be watched: {e}"));
                        Some(self.now.saturating_add(REST))
                    }
                };
            }
            if self.acceptors[index].deadline().is_some_and(|at| at <= self.now) {
                self.accept_trunk(index);
            }
        }
        for index in 0..self.trunks.len() {
            if self.trunks[index].retry.is_some_and(|at| at <= self.now) {
                self.trunks[index].retry = None;
                self.open_trunk(index);
            }
        }
    }

    fn open_trunk(&mut self, index: usize) {
        if self.trunks[index].kept_down() {
            return;
        }
        let opened = match &self.trunks[index].way {
            Way::Listen(_) => return,
            Way::Inside(other) if *other < index => return,
            Way::Inside(other) => {
                let other = *other;
                // One end makes the faults of both directions.
                match InProcess::pair(&self.config.transport.common)
                    .and_then(|(near, far)| Ok((FaultyTransport::new(Box::new(near), self.trunk_faults(index))?, far)))
                {
                    Ok((near, far)) => {
                        self.trunk_opened(other, Box::new(far)).map(|()| Box::new(near) as Box<dyn Transport>)
                    }
                    Err(e) => Err(e.to_string()),
                }
            }
            Way::Connect(address) => {
                // The trunk's name: a restarted caller's new connection ends its old one at once.
                let mut options =
                    options(&self.config, self.trunk_faults(index), self.process_beyond(index).into_iter());
                options.common.name = u64::from(self.trunks[index].trunk) + 1;
                transports::connect(address, &options).map_err(|e| e.to_string())
            }
        };
        match opened.and_then(|transport| self.trunk_opened(index, transport)) {
            Ok(()) => {}
            Err(why) => {
                let end = &mut self.trunks[index];
                if end.logged_down {
                    debug!("still no trunk {}: {why}", end.name);
                } else {
                    warn!("no trunk {}: {why} (trying again until it is there)", end.name);
                    end.logged_down = true;
                }
                end.again(self.now);
            }
        }
    }

    /// Accepts the pending connections of an acceptor.
    pub(super) fn accept_trunk(&mut self, index: usize) {
        for _ in 0..CALLERS_AT_ONCE {
            let Some(acceptor) = self.acceptors.get_mut(index) else { return };
            match acceptor.accept(self.now) {
                Ok(Some(transport)) => {
                    self.drop_oldest_caller(index);
                    if let Err(e) = self.connect(transport, 0, Role::Caller(index)) {
                        self.complain(format_args!("a connection for a trunk cannot be watched: {e}; it is ended"));
                    }
                }
                Ok(None) => return,
                Err(e) => {
                    self.complain(format_args!("cannot accept a connection for a trunk: {e}"));
                    // It would be ready again at once.
                    if self.resting[index].is_none() && self.watch.remove(self.acceptors[index].fd()).is_ok() {
                        self.resting[index] = Some(self.now.saturating_add(REST));
                    }
                    return;
                }
            }
        }
    }

    /// Bounds the unidentified connections at an acceptor.
    fn drop_oldest_caller(&mut self, index: usize) {
        let callers = self.connections.iter().enumerate().filter_map(|(port, connection)| {
            let connection = connection.as_ref().filter(|c| c.role == Role::Caller(index))?;
            Some((connection.number, port as PortId))
        });
        let callers: Vec<(u64, PortId)> = callers.collect();
        if let Some((_, port)) = callers.iter().min().filter(|_| callers.len() >= MOST_CALLERS) {
            self.end(*port);
        }
    }

    /// The first frame of a caller names its trunk. Returns the index of its switch here.
    pub(super) fn identify_trunk(&mut self, port: PortId, acceptor: usize, frame: Option<&Frame>) -> usize {
        let of_this_acceptor = |end: &TrunkEnd| matches!(end.way, Way::Listen(at) if at == acceptor);
        let meant = match frame {
            Some(Frame::Trunk { switch, peer, .. }) => {
                self.trunks.iter().position(|end| of_this_acceptor(end) && end.ids == (*peer, *switch))
            }
            _ => None,
        };
        // One that names no trunk is refused at the first.
        let Some(index) = meant.or_else(|| self.trunks.iter().position(of_this_acceptor)) else { return 0 };
        let link = self.trunk_faults(index);
        let expected = self.process_beyond(index).map(str::to_owned);
        if let Some(connection) = self.connection(port) {
            connection.transport.set_faults(&link);
            // One acceptor may serve several processes; each speaks for its own switches.
            if let Some(peer) = connection.transport.peer().filter(|peer| Some(peer) != expected.as_ref()) {
                self.close(port);
                let expected = expected.unwrap_or_default();
                let name = self.trunks[index].name.clone();
                self.complain_of(
                    port,
                    format_args!("trunk {name}: {peer:?} called for it: expected process {expected}"),
                );
                return self.trunks[index].switch;
            }
        }
        self.join_end(index, port);
        self.trunks[index].switch
    }

    /// The process at the other end of a trunk.
    fn process_beyond(&self, index: usize) -> Option<&str> {
        self.config.plan.as_ref()?.process_of(self.trunks[index].ids.1)
    }

    fn trunk_faults(&self, index: usize) -> LinkFaults {
        self.faults.link(&trunk_name(&self.trunks[index].name))
    }

    fn trunk_opened(&mut self, index: usize, transport: Box<dyn Transport>) -> Result<(), String> {
        let switch = self.trunks[index].switch;
        let port = self.connect(transport, switch, Role::Trunk(index)).map_err(|e| e.to_string())?;
        self.join_end(index, port);
        Ok(())
    }

    /// A connection becomes this end of a trunk; its switch sends the opening frame.
    fn join_end(&mut self, index: usize, port: PortId) {
        if self.trunks[index].kept_down() {
            return self.close(port);
        }
        if self.trunks[index].ports.len() >= MOST {
            // The oldest may be the trunk, the newest may be the one that replaces it: one in between makes room.
            if let Some(between) = self.trunks[index].ports.get(1).copied() {
                self.close(between);
            }
        }
        let end = &mut self.trunks[index];
        (end.opened, end.logged_down) = (self.now, false);
        end.ports.push(port);
        let (switch, trunk) = (end.switch, end.trunk);
        if let Some(connection) = self.connection(port) {
            connection.switch = switch;
        }
        self.identified(port, Role::Trunk(index));
        self.event(switch, Event::TrunkOpened { port, room: OUT_ROOM as u32, trunk });
    }

    /// Measures the round trip of each trunk that is up. The other switch answers each probe; those of a switch come
    /// only when nothing else does.
    pub(super) fn probe_trunks(&mut self) {
        let switches = self.switches.iter().flat_map(|hosted| hosted.switch.open_ports());
        let trunks = switches.filter(|(attached, ..)| matches!(attached, Attached::Trunk(..)));
        for port in trunks.map(|(_, port, _)| port).collect::<Vec<_>>() {
            self.probe_trunk(port);
        }
    }

    pub(super) fn probe_trunk(&mut self, port: PortId) {
        let now = self.now;
        if let Some(connection) = self.connection(port).filter(|connection| connection.may_probe()) {
            connection.queue(Frame::Probe);
            connection.probed(now);
            self.touch(port);
        }
    }

    /// A connection of a trunk has ended.
    pub(super) fn trunk_ended(&mut self, index: usize, port: PortId) {
        let now = self.now;
        let Some(end) = self.trunks.get_mut(index) else { return };
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

    /// Descriptors of the acceptors.
    pub(super) fn watch_trunks(&self) -> Result<(), FabricError> {
        for (index, acceptor) in self.acceptors.iter().enumerate() {
            self.watch.add(acceptor.fd(), Source::Acceptor(index as u32)).map_err(system("watch a descriptor"))?;
        }
        Ok(())
    }
}

/// Whether an error of accepting passes when something is closed.
pub(super) fn passes(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
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
