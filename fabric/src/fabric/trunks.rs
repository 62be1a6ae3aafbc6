// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ends of trunks in this process: how each is opened, and opened again.

use std::str::FromStr;
use std::sync::Arc;

use fabric_topology::{SwitchId, TrunkId};

use crate::plan::Plan;
use log::{debug, warn};
use rustix::io::Errno;
use switch_core::{Event, PortId};
use telegraphos_transport::{Acceptor, Address, OpenError, Options, Transport, UnixTransport};

use super::config::{Config, FabricError};
use super::connection::{OUT_ROOM, Role};
use super::watch::Source;
use super::{Fabric, Hosted};

/// First and longest pause between attempts to open a trunk, in microseconds.
const BACKOFF: (u64, u64) = (100_000, 1_000_000);
/// Connections of one trunk end at once: the trunk, and those that want to take its place.
const MOST: usize = 4;

/// How an end is opened.
#[derive(Debug)]
enum Way {
    /// Both ends are here: the index of the other one. The end with the lower index opens both.
    Inside(usize),
    /// The other process connects.
    Listen(Box<dyn Acceptor>),
    /// The other process listens.
    Connect(Address),
}

/// One end of a trunk.
#[derive(Debug)]
pub(super) struct TrunkEnd {
    pub(super) trunk: TrunkId,
    /// Names of its switches, with a dash: this end first.
    pub(super) name: String,
    /// The switch here, by its index.
    pub(super) switch: usize,
    way: Way,
    /// Its connections, the newest last.
    pub(super) ports: Vec<PortId>,
    /// When to try to open it, if it is for this end to do.
    retry: Option<u64>,
    backoff: u64,
    /// When it was opened last.
    opened: u64,
    /// What was logged last is that it cannot be opened.
    told_down: bool,
}

impl TrunkEnd {
    fn new(trunk: TrunkId, name: String, switch: usize, way: Way) -> TrunkEnd {
        let opens = !matches!(way, Way::Listen(_));
        TrunkEnd {
            trunk,
            name,
            switch,
            way,
            ports: Vec::new(),
            retry: if opens { Some(0) } else { None },
            backoff: BACKOFF.0,
            opened: 0,
            told_down: false,
        }
    }

    pub(super) fn acceptor(&self) -> Option<&dyn Acceptor> {
        match &self.way {
            Way::Listen(acceptor) => Some(acceptor.as_ref()),
            _ => None,
        }
    }

    /// When [`Fabric::open_trunks`] has something to do for it.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.retry.or_else(|| self.acceptor()?.deadline())
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

/// The ends of all trunks of the switches here.
pub(super) fn ends(config: &Config, plan: &Arc<Plan>, hosted: &[Hosted]) -> Result<Vec<TrunkEnd>, FabricError> {
    let topology = plan.topology();
    let here = |switch: SwitchId| hosted.iter().position(|hosted| hosted.id == switch);
    let mut ends: Vec<TrunkEnd> = Vec::new();
    for (trunk, ends_of) in topology.trunks().iter().enumerate() {
        let trunk = trunk as TrunkId;
        let name = |from, to| format!("{}-{}", plan.switch_name(from), plan.switch_name(to));
        match (here(ends_of.a), here(ends_of.b)) {
            (None, None) => {}
            (Some(a), Some(b)) => {
                let first = ends.len();
                ends.push(TrunkEnd::new(trunk, name(ends_of.a, ends_of.b), a, Way::Inside(first + 1)));
                ends.push(TrunkEnd::new(trunk, name(ends_of.b, ends_of.a), b, Way::Inside(first)));
            }
            (a, b) => {
                let (switch, id, other) = match (a, b) {
                    (Some(a), _) => (a, ends_of.a, ends_of.b),
                    (_, b) => (b.unwrap_or(0), ends_of.b, ends_of.a),
                };
                let name = name(id, other);
                let failed = |why: OpenError| FabricError::Trunk { name: name.clone(), why };
                // The plan has checked that it is there.
                let text = plan.address(trunk).unwrap_or_default();
                let address =
                    Address::from_str(text).map_err(|why| FabricError::Address { name: name.clone(), why })?;
                let way = if plan.listens(trunk) == Some(id) {
                    let options = Options { named: "trunk", ..config.transport.clone() };
                    Way::Listen(telegraphos_transport::listen(&address, &options).map_err(failed)?)
                } else {
                    Way::Connect(address)
                };
                ends.push(TrunkEnd::new(trunk, name, switch, way));
            }
        }
    }
    Ok(ends)
}

impl Fabric {
    /// Opens what is to be opened now.
    pub(super) fn open_trunks(&mut self) -> Result<(), FabricError> {
        for index in 0..self.trunks.len() {
            if self.trunks[index].acceptor().is_some_and(|a| a.deadline().is_some_and(|at| at <= self.now)) {
                self.accept_trunk(index)?;
            }
            if self.trunks[index].retry.is_some_and(|at| at <= self.now) {
                self.trunks[index].retry = None;
                self.open_trunk(index)?;
            }
        }
        Ok(())
    }

    fn open_trunk(&mut self, index: usize) -> Result<(), FabricError> {
        let opened = match &self.trunks[index].way {
            Way::Listen(_) => return Ok(()),
            Way::Inside(other) if *other < index => return Ok(()),
            Way::Inside(other) => {
                let other = *other;
                let options = &self.config.transport;
                match in_process(options) {
                    Ok((near, far)) => {
                        self.trunk_opened(other, Box::new(far))?;
                        Ok(Box::new(near) as Box<dyn Transport>)
                    }
                    Err(e) => Err(e.to_string()),
                }
            }
            Way::Connect(address) => {
                telegraphos_transport::connect(address, &self.config.transport).map_err(|e| e.to_string())
            }
        };
        match opened {
            Ok(transport) => self.trunk_opened(index, transport),
            Err(why) => {
                let end = &mut self.trunks[index];
                if end.told_down {
                    debug!("still no trunk {}: {why}", end.name);
                } else {
                    warn!("no trunk {}: {why} (trying again until it is there)", end.name);
                    end.told_down = true;
                }
                end.again(self.now);
                Ok(())
            }
        }
    }

    /// Takes the connections that wait at a trunk's acceptor.
    pub(super) fn accept_trunk(&mut self, index: usize) -> Result<(), FabricError> {
        loop {
            let Some(Way::Listen(acceptor)) = self.trunks.get_mut(index).map(|end| &mut end.way) else { return Ok(()) };
            match acceptor.accept(self.now) {
                Ok(Some(transport)) => self.trunk_opened(index, transport)?,
                Ok(None) => return Ok(()),
                Err(e) => {
                    // Out of descriptors, mostly: somebody will end. The descriptor stays readable: not every time.
                    let name = &self.trunks[index].name;
                    let text = format!("trunk {name}: cannot accept a connection: {e}");
                    self.complain(format_args!("{text}"));
                    return Ok(());
                }
            }
        }
    }

    fn trunk_opened(&mut self, index: usize, transport: Box<dyn Transport>) -> Result<(), FabricError> {
        if self.trunks[index].ports.len() >= MOST {
            // The newest may be the one that will work; the oldest may be the trunk. What is in between wants to be.
            if let Some(port) = self.trunks[index].ports.get(1).copied() {
                self.end(port)?;
            }
        }
        let end = &mut self.trunks[index];
        (end.opened, end.told_down) = (self.now, false);
        let (switch, trunk) = (end.switch, end.trunk);
        let port = self.connect(transport, switch, Role::Trunk(index))?;
        self.trunks[index].ports.push(port);
        self.event(switch, Event::TrunkOpened { port, room: OUT_ROOM as u32, trunk });
        Ok(())
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
        for (index, end) in self.trunks.iter().enumerate() {
            if let Some(acceptor) = end.acceptor() {
                self.watch.add(acceptor.fd(), Source::Acceptor(index as u32))?;
            }
        }
        Ok(())
    }
}

/// Whether an error of accepting passes when something is closed.
pub(super) fn passes(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
}

fn in_process(options: &Options) -> std::io::Result<(UnixTransport, UnixTransport)> {
    let (a, b) = std::os::unix::net::UnixStream::pair()?;
    a.set_nonblocking(true)?;
    b.set_nonblocking(true)?;
    Ok((UnixTransport::from_stream(a, options), UnixTransport::from_stream(b, options)))
}
