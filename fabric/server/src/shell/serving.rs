// SPDX-License-Identifier: MIT OR Apache-2.0
//! Serves connections in turns: reads their frames, and sends what the switch has for them.

use log::debug;
use telegraphos_fabric_core::{Event, PortId};
use telegraphos_transport::Received;
use telegraphos_wire::link::Frame;

use super::Fabric;
use super::connection::Role;
use super::turns::{BYTES, CALL, FRAME, Flow, GROUP, relieve};

impl Fabric {
    /// One round of turns.
    pub(super) fn take_turns(&mut self) {
        let mut idle = true;
        for _ in 0..self.turns.identified.len() {
            let Some(port) = self.turns.identified.pop_front() else { break };
            let Some(connection) = self.connection(port) else { continue };
            if !connection.flow.begin() {
                self.turns.identified.push_back(port);
                continue;
            }
            idle = false;
            let flow = connection.flow;
            let (flow, more) = self.turn(port, flow);
            if let Some(connection) = self.connection(port) {
                connection.flow = flow;
                connection.queued = more;
                if more {
                    self.turns.identified.push_back(port);
                }
            }
        }
        if !self.turns.unidentified.is_empty() && self.turns.common.begin() {
            idle = false;
            for _ in 0..self.turns.unidentified.len() {
                if !self.turns.common.may_continue() {
                    break;
                }
                let Some(port) = self.turns.unidentified.pop_front() else { break };
                let flow = self.turns.common;
                let (flow, more) = self.turn(port, flow);
                self.turns.common = flow;
                let Some(connection) = self.connection(port) else { continue };
                // It may have been identified meanwhile.
                connection.queued = false;
                let ended = connection.ended;
                if more {
                    self.ready(port, ended);
                }
            }
        }
        if idle && !self.turns.is_empty() {
            let mut waiting = self.turns.identified.clone();
            waiting.make_contiguous().sort_unstable();
            let connections = self.connections.iter_mut().enumerate();
            let flows = connections.filter(|(port, _)| waiting.binary_search(&(*port as PortId)).is_ok());
            let flows = flows.filter_map(|(_, connection)| Some(&mut connection.as_mut()?.flow));
            let common = Some(&mut self.turns.common).filter(|_| !self.turns.unidentified.is_empty());
            relieve(flows.chain(common));
        }
    }

    /// The frames that a connection has sent, as far as its turn goes: one receive; after a hang-up as many as the
    /// transport still holds, so that the end is seen. Says what is left of the flow, and whether there is more to do
    /// at once.
    fn turn(&mut self, port: PortId, mut flow: Flow) -> (Flow, bool) {
        let mut received = false;
        loop {
            loop {
                let Some(connection) = self.connection(port) else { return (flow, false) };
                if connection.closing || connection.rests() {
                    return (flow, false);
                }
                if !flow.may_continue() {
                    return (flow, connection.ended || connection.has_unread());
                }
                let next = connection.next();
                self.work = FRAME;
                match next {
                    Ok(Some(frame)) => {
                        let waits = self.must_wait(port, &frame);
                        if waits || self.must_rest(port, &frame) {
                            flow.spend(if waits { CALL } else { 0 });
                            if let Some(connection) = self.connection(port) {
                                connection.put_back(frame);
                            }
                            return (flow, waits);
                        }
                        if self.kept_out(port, &frame) {
                            return (flow, false);
                        }
                        if matches!(frame, Frame::Group { .. }) {
                            self.work += GROUP;
                        }
                        let now = self.now;
                        if let (Frame::Alive, Some(connection)) = (&frame, self.connection(port)) {
                            connection.alive(now);
                        }
                        if !self.takes_ring_frame(port, &frame) {
                            let switch = self.introduce(port, Some(&frame));
                            self.event(switch, Event::Frame { port, frame });
                        }
                    }
                    Ok(None) => break,
                    Err(e) => self.malformed(port, &e),
                }
                flow.spend(self.work);
            }
            let now = self.now;
            let Some(connection) = self.connection(port) else { return (flow, false) };
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
        self.complain_of(port, format_args!("port {port}: {what}"));
        let switch = self.introduce(port, None);
        self.record_malformed(switch, port);
        self.event(switch, Event::Malformed { port });
    }

    /// Whether a hello must wait until the connection that its node had before has been read to its end: a HIB that
    /// comes back finds its place free.
    fn must_wait(&mut self, port: PortId, frame: &Frame) -> bool {
        let Frame::Hello { node, .. } = frame else { return false };
        if self.connection(port).is_none_or(|connection| connection.role != Role::Unidentified) {
            return false;
        }
        let Some(old) = self.port_of(*node).filter(|old| *old != port) else { return false };
        let Some(connection) = self.connection(old) else { return false };
        if !connection.ended && !connection.has_hung_up() {
            return false;
        }
        self.ready(old, true);
        true
    }
}
