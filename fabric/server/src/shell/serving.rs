// SPDX-License-Identifier: MIT OR Apache-2.0
//! Serves connections: accepts them, reads their frames in turns, and opens the trunks.

use log::debug;
use rustix::io::Errno;
use telegraphos_fabric_core::{Event, PortId};
use telegraphos_transport::{Received, Transport, UnixTransport};
use telegraphos_wire::link::Frame;
use telegraphos_wire::{MAX_BLOCK, STREAM_BLOCK};

use super::Fabric;
use super::connection::{OUT_ROOM, Role};
use super::doorway;
use super::turns::{BYTES, CALL, FRAME, Flow, GROUP};
use crate::peer;

/// Whether an error of accepting passes when something is closed.
fn passes(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
}

impl Fabric {
    // ---- connections of HIBs ----

    /// Accepts pending connections, as far as the rate allows, a few per round.
    pub(super) fn accept(&mut self) {
        for _ in 0..doorway::AT_ONCE {
            if !self.doorway.admits(&mut self.ports) {
                return;
            }
            match self.doorway.listener.accept() {
                Ok(Some(stream)) => self.let_in(UnixTransport::from_stream(stream, &self.config.transport.common)),
                Ok(None) => return,
                // Another process ended what waited here.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(e) => {
                    // An unidentified connection makes room for one that may be a node's.
                    let made = passes(e) && self.end_unidentified(None);
                    let hint = if passes(e) { " (raise the limit: ulimit -n)" } else { "" };
                    self.ports.complain(format_args!("cannot accept a connection: {e}{hint}"));
                    if !made {
                        return self.doorway.rest(&mut self.ports);
                    }
                }
            }
        }
    }

    /// A new connection, on the account of the process that made it.
    fn let_in(&mut self, transport: UnixTransport) {
        let process = peer::process(transport.fd());
        if let Err(e) = self.doorway.charge(process) {
            // The oldest of this process, if it has its full share; else of the process with the most.
            let own = self.doorway.is_full(process);
            self.ports.complain_of_process(
                process,
                format_args!("process {process} {e} connections that have not said hello: ending one that waits"),
            );
            if !self.end_unidentified(own.then_some(process)) || self.doorway.charge(process).is_err() {
                return;
            }
        }
        self.doorway.let_in(&mut self.ports, transport, process);
    }

    /// Ends the [oldest](doorway::Doorway::oldest) unidentified connection. False if none is.
    pub(super) fn end_unidentified(&mut self, of: Option<u32>) -> bool {
        let Some(port) = self.doorway.oldest(&self.ports, of) else { return false };
        self.doorway.ended += 1;
        self.end(port);
        true
    }

    /// Those that have rested are read again.
    pub(super) fn end_rests(&mut self) {
        while let Some((port, watched)) = self.unpaid.rested(&mut self.ports) {
            match watched {
                Ok(()) => self.ports.ready(port, false),
                Err(e) => self.end_unwatched(port, e),
            }
        }
    }

    // ---- trunks ----

    /// Opens what is to be opened now.
    pub(super) fn open_trunks(&mut self) {
        self.trunks.tend(&mut self.ports);
        for index in self.trunks.due(self.ports.now) {
            let opened = self.trunks.open(index, &self.config, &self.faults.links);
            let joined = opened.and_then(|ends| {
                ends.into_iter().try_for_each(|(end, transport)| {
                    let port = self.ports.connect(transport, self.trunks.ends[end].switch, Role::Trunk(end));
                    self.join_trunk(end, port.map_err(|e| e.to_string())?);
                    Ok::<_, String>(())
                })
            });
            if let Err(why) = joined {
                self.trunks.failed(index, self.ports.now, &why);
            }
        }
    }

    /// A connection becomes an end of a trunk.
    fn join_trunk(&mut self, end: usize, port: PortId) {
        if let Some(opened) = self.trunks.joined(&mut self.ports, end, port) {
            self.event(self.trunks.ends[end].switch, opened);
        }
    }

    // ---- turns ----

    /// One round of turns.
    pub(super) fn take_turns(&mut self) {
        let mut idle = true;
        for _ in 0..self.ports.turns.identified.len() {
            let Some(port) = self.ports.turns.identified.pop_front() else { break };
            let Some(connection) = self.ports.get_mut(port) else { continue };
            if !connection.flow.begin() {
                self.ports.turns.identified.push_back(port);
                continue;
            }
            idle = false;
            let flow = connection.flow;
            let (flow, more) = self.turn(port, flow);
            if let Some(connection) = self.ports.get_mut(port) {
                connection.flow = flow;
                connection.queued = more;
                if more {
                    self.ports.turns.identified.push_back(port);
                }
            }
        }
        if !self.ports.turns.unidentified.is_empty() && self.ports.turns.common.begin() {
            idle = false;
            for _ in 0..self.ports.turns.unidentified.len() {
                if !self.ports.turns.common.may_continue() {
                    break;
                }
                let Some(port) = self.ports.turns.unidentified.pop_front() else { break };
                let flow = self.ports.turns.common;
                let (flow, more) = self.turn(port, flow);
                self.ports.turns.common = flow;
                let Some(connection) = self.ports.get_mut(port) else { continue };
                // It may have been identified meanwhile.
                connection.queued = false;
                let ended = connection.ended;
                if more {
                    self.ports.ready(port, ended);
                }
            }
        }
        if idle && !self.ports.turns.is_empty() {
            self.ports.relieve();
        }
    }

    /// The frames that a connection has sent, as far as its turn goes: one receive; after a hang-up as many as the
    /// transport still holds, so that the end is seen. Says what is left of the flow, and whether there is more to do
    /// at once.
    fn turn(&mut self, port: PortId, mut flow: Flow) -> (Flow, bool) {
        let mut received = false;
        loop {
            loop {
                let Some(connection) = self.ports.get_mut(port) else { return (flow, false) };
                if connection.closing || connection.rests() {
                    return (flow, false);
                }
                if !flow.may_continue() {
                    return (flow, connection.ended || connection.has_unread());
                }
                let next = connection.next();
                self.ports.work = FRAME;
                match next {
                    Ok(Some(frame)) => {
                        let waits = self.must_wait(port, &frame);
                        if waits || self.unpaid.must_rest(&mut self.ports, port, &frame) {
                            flow.spend(if waits { CALL } else { 0 });
                            if let Some(connection) = self.ports.get_mut(port) {
                                connection.put_back(frame);
                            }
                            return (flow, waits);
                        }
                        match frame {
                            Frame::Hello { node, .. } if self.commands.keeps_out(node) => {
                                self.ports.close(port);
                                return (flow, false);
                            }
                            Frame::Group { .. } => self.ports.work += GROUP,
                            Frame::Alive => {
                                let now = self.ports.now;
                                if let Some(connection) = self.ports.get_mut(port) {
                                    connection.alive(now);
                                }
                            }
                            _ => {}
                        }
                        if !self.rings.takes(&mut self.ports, port, &frame) {
                            let switch = self.introduce(port, Some(&frame));
                            self.event(switch, Event::Frame { port, frame });
                        }
                    }
                    Ok(None) => break,
                    Err(e) => self.malformed(port, &e),
                }
                flow.spend(self.ports.work);
            }
            let now = self.ports.now;
            let Some(connection) = self.ports.get_mut(port) else { return (flow, false) };
            if received && !connection.ended {
                return (flow, false);
            }
            if connection.is_full() {
                // What was no more than a hello could be is no hello.
                self.malformed(port, &"its first frame is longer than a hello");
                continue;
            }
            flow.spend(CALL);
            received = true;
            match connection.fill(now) {
                Ok(Received::Bytes(bytes)) => flow.spend((bytes / BYTES) as i64),
                // A broken transport holds no more bytes.
                Ok(Received::Nothing) if !connection.broken => return (flow, false),
                Ok(Received::Nothing | Received::End) => {
                    self.end(port);
                    return (flow, false);
                }
                Err(e) => {
                    debug!("port {port}: {e}");
                    self.end(port);
                    return (flow, false);
                }
            }
        }
    }

    fn malformed(&mut self, port: PortId, what: &dyn std::fmt::Display) {
        self.ports.complain_of(port, format_args!("port {port}: {what}"));
        let switch = self.introduce(port, None);
        if let (Some(capturing), Some(hosted)) = (&mut self.faults.capturing, self.switches.0.get(switch)) {
            capturing.malformed(&self.ports, hosted.id, port);
        }
        self.event(switch, Event::Malformed { port });
    }

    /// The switch of a connection. The first frame identifies it: that of a HIB names its node, that of another switch
    /// the trunk. A connection that names neither is refused by the first switch, or at the first trunk of its
    /// acceptor.
    fn introduce(&mut self, port: PortId, frame: Option<&Frame>) -> usize {
        let Some(connection) = self.ports.get_mut(port) else { return 0 };
        match connection.role {
            Role::Unidentified => {
                let home = match (frame, &self.config.plan) {
                    (Some(Frame::Hello { node, .. }), Some(plan)) => plan.topology.switch_of(*node),
                    _ => None,
                };
                let switch = home.and_then(|home| self.switches.index_of(home)).unwrap_or(0);
                (connection.switch, connection.role) = (switch, Role::Joining);
                let block = if connection.is_in_memory() { MAX_BLOCK } else { STREAM_BLOCK } as u32;
                self.event(switch, Event::PortOpened { port, room: OUT_ROOM as u32, block });
                switch
            }
            Role::Caller(acceptor) => {
                let (ports, faults) = (&mut self.ports, &self.faults.links);
                let named = self.trunks.identify(ports, &self.config, faults, (port, acceptor), frame);
                let Some((end, may_join)) = named else { return 0 };
                if may_join {
                    self.join_trunk(end, port);
                }
                self.trunks.ends[end].switch
            }
            Role::Joining | Role::Link | Role::Trunk(_) => connection.switch,
        }
    }

    /// Whether a hello must wait until the connection that its node had before has been read to its end: a HIB that
    /// comes back finds its place free.
    fn must_wait(&mut self, port: PortId, frame: &Frame) -> bool {
        let Frame::Hello { node, .. } = frame else { return false };
        if self.ports.get(port).is_none_or(|connection| connection.role != Role::Unidentified) {
            return false;
        }
        let Some(old) = self.switches.port_of(*node).filter(|old| *old != port) else { return false };
        let waits = self.ports.get(old).is_some_and(|connection| connection.ended || connection.has_hung_up());
        if waits {
            self.ports.ready(old, true);
        }
        waits
    }
}
