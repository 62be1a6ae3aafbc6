// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state machine.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use telegraphos_wire::link::{Frame, MAX_MEMBERSHIPS, Refusal};
use telegraphos_wire::packet::MULTICAST;
use telegraphos_wire::{Class, NodeId, PROTOCOL_VERSION, Packet, Status, WindowLayout};

use crate::config::ConfigError;
use crate::lane::Queued;
use crate::member::{Member, Next};
use crate::statistics::bytes;
use crate::{Action, Bug, CREDITED, Event, NodeStatistics, Notice, PortId, Statistics, SwitchConfig, Violation};

/// Bits of an incarnation below the join counter: they count resets (`Frame::Welcome`).
const RESET_BITS: u32 = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Port {
    /// No Hello yet.
    Waiting {
        room: u32,
    },
    Joined(NodeId),
}

/// The protocol state: what models hash and compare. Statistics and limits are not in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    ports: BTreeMap<PortId, Port>,
    /// By node id.
    members: Vec<Option<Member>>,
    /// By node id: the last incarnation given or announced.
    incarnations: Vec<u32>,
    /// The layout adopted from the first joiner, where none is configured.
    adopted: Option<WindowLayout>,
}

/// The switch: [`Switch::handle`] takes events and says what to do.
///
/// # Life cycle
///
/// A connection is nobody until its Hello is accepted ([`Frame::Welcome`]); then it is its node's port until it ends.
/// The joiner is told of every present node, itself included, and every other node is told of the joiner.
///
/// When a port ends, what its node sent and the switch still holds is dropped (it was never acknowledged), and so is what
/// others sent to it; their credits come back. Everyone who was told of the node is told of its end, before anything
/// else: requests on the way to it or dropped get no other answer than this [`Frame::NodeDown`]. A request to a node that
/// is absent when it reaches the switch is answered with [`Status::NodeDown`] in that node's name; a reply to an absent
/// node is dropped, for nobody waits for it.
///
/// # Credits
///
/// Of each class but replies, `credits` = those the node holds + its packets in the switch + those owed to it. They are
/// returned as soon as the node holds no more than is owed to it. So a node without credits really has all of them in
/// packets that wait: no credit is ever stranded.
///
/// Credits that a node returns for [`Class::Reply`] are ignored, since replies use none.
///
/// # Multicasts
///
/// A packet of [`Class::Reflected`] to [`MULTICAST`] takes one credit of its sender and becomes one copy for each member of the group
/// that its sender last named for its page ([`Frame::Group`]). The copies join the lanes of their receivers at once, so each is in order
/// with everything else from that sender to that receiver. The credit comes back when the last copy has left, or was dropped
/// because its receiver left. An absent member is answered for as above. A copy carries the incarnation of its receiver at that
/// moment as `target`: what waits in the switch while the receiver is reset is refused by its new life like any other packet that was
/// meant for the old one. The switch does not know of which life of a member its sender thinks: see `docs/replication.md`.
///
/// What one node can make the switch hold is bounded: [`MAX_MEMBERSHIPS`] members of groups; for each of its credits of the class one
/// copy, or one answer, per node.
#[derive(Clone, Debug)]
pub struct Switch {
    config: SwitchConfig,
    state: State,
    statistics: Statistics,
    /// Outputs that may have something to send; empty between events.
    touched: Vec<NodeId>,
}

impl PartialEq for Switch {
    fn eq(&self, other: &Self) -> bool {
        self.state == other.state
    }
}

impl Eq for Switch {}

impl Hash for Switch {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.state.hash(state);
    }
}

impl Switch {
    /// An empty switch.
    pub fn new(config: SwitchConfig) -> Result<Switch, ConfigError> {
        config.check()?;
        let nodes = config.nodes as usize;
        let base = config.base_incarnation & !((1 << RESET_BITS) - 1);
        Ok(Switch {
            state: State {
                ports: BTreeMap::new(),
                members: vec![None; nodes],
                incarnations: vec![base; nodes],
                adopted: None,
            },
            statistics: Statistics { nodes: vec![NodeStatistics::default(); nodes], ..Statistics::default() },
            config,
            touched: Vec::new(),
        })
    }

    /// The configuration.
    pub fn config(&self) -> &SwitchConfig {
        &self.config
    }

    /// The protocol state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The counters.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// The incarnation of a present node.
    pub fn incarnation(&self, node: NodeId) -> Option<u32> {
        self.member(node)?;
        self.state.incarnations.get(usize::from(node)).copied()
    }

    /// The window layout in force: the configured one, or that of the present nodes.
    pub fn window(&self) -> Option<WindowLayout> {
        self.config.window.or(self.state.adopted)
    }

    /// Takes one event and appends what is to be done. Never panics.
    pub fn handle(&mut self, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::PortOpened { port, room } => {
                self.close(port, out);
                self.state.ports.insert(port, Port::Waiting { room });
            }
            Event::PortRoom { port, frames } => match self.state.ports.get_mut(&port) {
                Some(Port::Waiting { room }) => *room = frames,
                Some(Port::Joined(node)) => {
                    let node = *node;
                    if let Some(member) = self.member_mut(node) {
                        member.room = frames;
                        self.touched.push(node);
                    }
                }
                None => {}
            },
            Event::Frame { port, frame } => match self.state.ports.get(&port).copied() {
                Some(Port::Waiting { room }) => self.hello(port, room, frame, out),
                Some(Port::Joined(node)) => {
                    if let Err(what) = self.frame(node, frame, out) {
                        self.throw_out(port, node, what, out);
                    }
                }
                // Thrown out: what was still on the way means nothing.
                None => {}
            },
            Event::Malformed { port } => match self.state.ports.get(&port).copied() {
                Some(Port::Waiting { .. }) => self.refuse(port, None, Refusal::Handshake, 0, 0, out),
                Some(Port::Joined(node)) => self.throw_out(port, node, Violation::Malformed, out),
                None => {}
            },
            Event::PortClosed { port } => self.close(port, out),
        }
        while let Some(node) = self.touched.pop() {
            self.serve(node, out);
        }
    }

    // ---- joining and leaving ----

    fn hello(&mut self, port: PortId, room: u32, frame: Frame, out: &mut Vec<Action>) {
        let Frame::Hello { version, node, window, credits } = frame else {
            return self.refuse(port, None, Refusal::Handshake, 0, 0, out);
        };
        let nodes = match self.check_hello(version, node, window, &credits) {
            Ok(nodes) => nodes,
            Err((reason, offered, expected)) if self.config.has(Bug::SwapRefusal) => {
                return self.refuse(port, Some(node), reason, expected, offered, out);
            }
            Err((reason, offered, expected)) => return self.refuse(port, Some(node), reason, offered, expected, out),
        };
        let Some(incarnation) = self.next_incarnation(node) else {
            let last = self.state.incarnations.get(usize::from(node)).copied().unwrap_or(0);
            out.push(Action::Notice(Notice::Exhausted { port, node }));
            return self.refuse(port, Some(node), Refusal::Protocol, last.into(), 0, out);
        };

        self.state.adopted = if self.config.window.is_none() { Some(window) } else { None };
        self.state.ports.insert(port, Port::Joined(node));
        let mut member = Member::new(port, room, self.config.credits, credits);
        member.use_room();
        let welcome = Frame::Welcome { incarnation, nodes, credits: self.config.credits };
        out.push(Action::Send(port, welcome));
        out.push(Action::Notice(Notice::Joined { port, node, incarnation }));
        self.statistics.joined += 1;
        if let Some(last) = self.state.incarnations.get_mut(usize::from(node)) {
            *last = incarnation;
        }
        if let Some(place) = self.state.members.get_mut(usize::from(node)) {
            *place = Some(member);
        }
        let present: Vec<(NodeId, u32)> = self
            .present()
            .map(|(other, _)| (other, self.state.incarnations.get(usize::from(other)).copied().unwrap_or(0)))
            .collect();
        for (other, its) in present {
            if let Some(member) = self.member_mut(node) {
                member.push_mark(other, its);
            }
            if other != node {
                self.tell(other, node, incarnation);
            }
        }
        self.touched.push(node);
    }

    /// The number of nodes if the joiner is welcome, else the reason and the values offered and expected.
    fn check_hello(
        &self,
        version: u8,
        node: NodeId,
        window: WindowLayout,
        credits: &[u32; 4],
    ) -> Result<u32, (Refusal, u64, u64)> {
        let equal = |reason, offered: u8, expected: u8| {
            if offered == expected { Ok(()) } else { Err((reason, u64::from(offered), u64::from(expected))) }
        };
        equal(Refusal::Version, version, PROTOCOL_VERSION)?;
        let expected = self.window().unwrap_or_else(|| {
            // An impossible layout differs from the usual one in at least one field.
            WindowLayout::new(window.node_bits, window.offset_bits).unwrap_or_default()
        });
        equal(Refusal::NodeBits, window.node_bits, expected.node_bits)?;
        equal(Refusal::OffsetBits, window.offset_bits, expected.offset_bits)?;
        let nodes = self.config.nodes.min(expected.nodes());
        if u32::from(node) >= nodes {
            return Err((Refusal::NodeRange, node.into(), nodes.into()));
        }
        if self.member(node).is_some() {
            return Err((Refusal::NodeTaken, node.into(), 0));
        }
        if CREDITED.iter().any(|c| credits[*c as usize] == 0) {
            // Packets of that class could never leave the switch.
            return Err((Refusal::Protocol, 0, 1));
        }
        Ok(nodes)
    }

    /// The base incarnation of the node's next join; `None` when 32 bits hold no greater one.
    fn next_incarnation(&self, node: NodeId) -> Option<u32> {
        let last = self.state.incarnations.get(usize::from(node)).copied()?;
        if self.config.has(Bug::ReuseIncarnation) {
            return Some(last.max(1 << RESET_BITS));
        }
        (last >> RESET_BITS).checked_add(1)?.checked_mul(1 << RESET_BITS)
    }

    fn tell(&mut self, whom: NodeId, node: NodeId, incarnation: u32) {
        if let Some(member) = self.member_mut(whom) {
            member.push_mark(node, incarnation);
            self.touched.push(whom);
        }
    }

    fn refuse(
        &mut self,
        port: PortId,
        node: Option<NodeId>,
        reason: Refusal,
        offered: u64,
        expected: u64,
        out: &mut Vec<Action>,
    ) {
        self.statistics.refused += 1;
        self.state.ports.remove(&port);
        out.push(Action::Send(port, Frame::Refuse { reason, offered, expected }));
        out.push(Action::Close(port));
        out.push(Action::Notice(Notice::Refused { port, node, reason, offered, expected }));
    }

    fn throw_out(&mut self, port: PortId, node: NodeId, what: Violation, out: &mut Vec<Action>) {
        self.statistics.violations += 1;
        let (offered, expected) = what.values();
        out.push(Action::Send(port, Frame::Refuse { reason: Refusal::Protocol, offered, expected }));
        out.push(Action::Close(port));
        out.push(Action::Notice(Notice::Violation { port, node, what }));
        self.close(port, out);
    }

    fn close(&mut self, port: PortId, out: &mut Vec<Action>) {
        let Some(Port::Joined(node)) = self.state.ports.remove(&port) else { return };
        let Some(member) = self.state.members.get_mut(usize::from(node)).and_then(Option::take) else { return };
        let mut total = 0;
        // To it: senders get their credits back; that of a multicast when this was the last copy.
        for (from, counts) in member.waiting() {
            let copies = member.copies_from(from);
            for class in Class::ALL {
                let count = counts[class as usize];
                total += count;
                self.count_dropped(from, node, class, count);
                if !self.config.has(Bug::LeakCredit) {
                    self.release(from, class, if class == Class::Reflected { count - copies } else { count });
                }
            }
        }
        for (from, multicast) in member.waiting_copies() {
            self.gone(from, Class::Reflected, Some(multicast));
        }
        // From it.
        for other in 0..self.state.members.len() {
            let Some(member) = self.state.members.get_mut(other).and_then(Option::as_mut) else { continue };
            let counts = member.forget(node, &self.config);
            for class in Class::ALL {
                let count = counts[class as usize];
                total += count;
                self.count_dropped(node, other as NodeId, class, count);
            }
            self.touched.push(other as NodeId);
        }
        if self.present().next().is_none() {
            self.state.adopted = None;
        }
        out.push(Action::Notice(Notice::Left { node, dropped: total }));
    }

    // ---- frames of a joined node ----

    fn frame(&mut self, node: NodeId, frame: Frame, out: &mut Vec<Action>) -> Result<(), Violation> {
        match frame {
            Frame::Packet(packet) => self.packet(node, packet, out),
            Frame::Credit { class: Class::Reply, .. } => Ok(()),
            Frame::Credit { class, count } => {
                let Some(member) = self.member_mut(node) else { return Ok(()) };
                let held = u64::from(member.credits[class as usize]) + u64::from(count);
                let offered = member.offered[class as usize];
                match u32::try_from(held) {
                    Ok(held) if held <= offered => {
                        member.credits[class as usize] = held;
                        self.touched.push(node);
                        Ok(())
                    }
                    _ => Err(Violation::CreditOverflow { class, held, offered }),
                }
            }
            Frame::Reset { incarnation } => {
                let last = self.state.incarnations.get(usize::from(node)).copied().unwrap_or(0);
                if incarnation <= last {
                    return Err(Violation::Incarnation { announced: incarnation, last });
                }
                if let Some(last) = self.state.incarnations.get_mut(usize::from(node)) {
                    *last = incarnation;
                }
                let keep = self.config.has(Bug::KeepGroups);
                if let Some(member) = self.member_mut(node).filter(|_| !keep) {
                    member.groups.clear();
                }
                out.push(Action::Notice(Notice::Reset { node, incarnation }));
                let others: Vec<NodeId> = self.present().map(|(n, _)| n).filter(|n| *n != node).collect();
                for other in others {
                    if self.config.has(Bug::ResetOvertakes) {
                        if let Some(member) = self.member_mut(other) {
                            out.push(Action::Send(member.port, Frame::NodeUp { node, incarnation }));
                        }
                        continue;
                    }
                    self.tell(other, node, incarnation);
                }
                Ok(())
            }
            Frame::Group { page, members } => self.group(node, page, members),
            Frame::Hello { .. }
            | Frame::Welcome { .. }
            | Frame::Refuse { .. }
            | Frame::NodeUp { .. }
            | Frame::NodeDown { .. }
            | Frame::Trunk { .. }
            | Frame::Reach { .. }
            | Frame::Forward { .. }
            | Frame::TrunkCredit { .. }
            | Frame::Probe
            | Frame::Alive => Err(Violation::Unexpected),
        }
    }

    /// From now on, whom multicasts of `node` about `page` are for.
    fn group(&mut self, node: NodeId, page: u32, members: Vec<NodeId>) -> Result<(), Violation> {
        let mut before = None;
        for member in members.iter().copied() {
            self.valid_destination(member)?;
            if member == node || before >= Some(member) {
                return Err(Violation::GroupMember { page, node: member });
            }
            before = Some(member);
        }
        let Some(sender) = self.member_mut(node) else { return Ok(()) };
        sender.groups.remove(&page);
        if members.is_empty() {
            return Ok(());
        }
        let others: u64 = sender.groups.values().map(|group| group.len() as u64).sum();
        let (count, limit) = (others + members.len() as u64, MAX_MEMBERSHIPS as u64);
        if count > limit {
            return Err(Violation::Memberships { count, limit });
        }
        sender.groups.insert(page, Arc::from(members));
        Ok(())
    }

    fn valid_destination(&self, node: NodeId) -> Result<(), Violation> {
        let nodes = self.window().map_or(self.config.nodes, |w| w.nodes().min(self.config.nodes));
        if u32::from(node) >= nodes || !self.config.valid_node(node) {
            return Err(Violation::Destination { node, nodes });
        }
        Ok(())
    }

    fn packet(&mut self, node: NodeId, packet: Packet, out: &mut Vec<Action>) -> Result<(), Violation> {
        if packet.src != node && !self.config.has(Bug::BelieveSource) {
            return Err(Violation::ForgedSource(packet.src));
        }
        let class = self.config.class_of(&packet);
        let group = if packet.dst == MULTICAST {
            if class != Class::Reflected {
                return Err(Violation::MulticastClass(class));
            }
            let page = packet.body.page();
            Some(self.member(node).and_then(|m| m.groups.get(&page).cloned()).ok_or(Violation::NoGroup { page })?)
        } else {
            self.valid_destination(packet.dst)?;
            None
        };
        let lenient = self.config.has(Bug::AcceptWithoutCredit);
        let Some(sender) = self.member_mut(node) else { return Ok(()) };
        let offered = sender.offered;
        if class != Class::Reply {
            match sender.held[class as usize].checked_sub(1) {
                Some(held) => sender.held[class as usize] = held,
                None if lenient => {}
                None => return Err(Violation::NoCredit(class)),
            }
        }
        // It holds one less now: what is owed to it may have become due.
        self.touched.push(node);
        if let Some(counted) = self.class_statistics(node, class) {
            counted.received_packets += 1;
            counted.received_bytes += bytes(&packet);
        }
        if let Some(group) = group {
            self.multicast(node, &group, packet, out);
            return Ok(());
        }

        let (limit, unlimited) = (self.config.replies_from(&offered), self.config.has(Bug::UnlimitedReplies));
        let drops = self.config.has(Bug::DropWhenBlocked);
        let Some(receiver) = self.member_mut(packet.dst) else {
            self.release(node, class, 1);
            self.absent(node, class, &packet);
            return Ok(());
        };
        if let Some(port) = receiver.take_at_once(node, class) {
            self.sent(node, class, port, Queued { packet, multicast: None }, out);
            return Ok(());
        }
        let waiting = receiver.replies_from(node) + 1;
        if class == Class::Reply && waiting > limit && !unlimited {
            return Err(Violation::Replies { waiting, limit });
        }
        if drops {
            self.release(node, class, 1);
            return Ok(());
        }
        self.wait(node, class, Queued { packet, multicast: None });
        Ok(())
    }

    /// A packet of a sender that is present and has paid its credit, to each member of a group.
    fn multicast(&mut self, node: NodeId, group: &[NodeId], packet: Packet, out: &mut Vec<Action>) {
        const CLASS: Class = Class::Reflected;
        let Some(number) = self.member_mut(node).map(Member::new_multicast) else { return };
        let mut members: Vec<NodeId> = group.to_vec();
        if self.config.has(Bug::DuplicateMulticast) {
            members.extend(group.first());
        }
        if self.config.has(Bug::SkipMember) && group.len() > 1 {
            members.pop();
        }
        // The multicast itself counts as one until all have their copy.
        self.copies(node, number, 1 + members.len() as u32);
        for dst in members {
            let target = match self.state.incarnations.get(usize::from(dst)) {
                Some(target) if !self.config.has(Bug::AnyLife) => *target,
                _ => 0,
            };
            let queued = Queued { packet: Packet { dst, target, ..packet.clone() }, multicast: Some(number) };
            match self.member_mut(dst).map(|receiver| receiver.take_at_once(node, CLASS)) {
                None => {
                    self.gone(node, CLASS, queued.multicast);
                    if !self.config.has(Bug::ForgetAbsentMember) {
                        self.absent(node, CLASS, &queued.packet);
                    }
                }
                Some(Some(port)) => self.sent(node, CLASS, port, queued, out),
                Some(None) => self.wait(node, CLASS, queued),
            }
        }
        self.gone(node, CLASS, Some(number));
    }

    fn copies(&mut self, node: NodeId, multicast: u32, count: u32) {
        if let Some(copies) = self.member_mut(node).and_then(|member| member.multicasts.get_mut(&multicast)) {
            *copies = count;
        }
    }

    /// A packet joins its lane.
    fn wait(&mut self, node: NodeId, class: Class, queued: Queued) {
        let destination = queued.packet.dst;
        let Some(receiver) = self.state.members.get_mut(usize::from(destination)).and_then(Option::as_mut) else {
            return;
        };
        receiver.push(node, class, queued, &self.config);
        self.touched.push(destination);
        if let Some(counted) = self.class_statistics(destination, class) {
            counted.stalls += 1;
            counted.depth += 1;
            counted.depth_max = counted.depth_max.max(counted.depth);
        }
    }

    /// A packet whose destination is not there: a request gets its answer from the switch, a reply is dropped.
    fn absent(&mut self, node: NodeId, class: Class, packet: &Packet) {
        match answer(packet) {
            Some(reply) if class != Class::Reply && !self.config.has(Bug::SwallowUnanswered) => {
                self.statistics.answered += 1;
                if let Some(sender) = self.member_mut(node) {
                    sender.push_answer(reply);
                }
            }
            _ => self.count_lost(node, class, 1),
        }
    }

    // ---- outputs ----

    /// Sends to a node whatever can be sent.
    fn serve(&mut self, node: NodeId, out: &mut Vec<Action>) {
        loop {
            let config = &self.config;
            let Some(member) = self.state.members.get_mut(usize::from(node)).and_then(Option::as_mut) else { return };
            if member.room == 0 && !config.has(Bug::IgnoreRoom) {
                return;
            }
            let Some(next) = member.next(config) else { return };
            member.use_room();
            let port = member.port;
            match next {
                Next::Control(frame) => out.push(Action::Send(port, frame)),
                Next::Answer(packet) => {
                    if let Some(counted) = self.class_statistics(node, Class::Reply) {
                        counted.sent_packets += 1;
                        counted.sent_bytes += bytes(&packet);
                    }
                    out.push(Action::Send(port, Frame::Packet(packet)));
                }
                Next::Packet { from, class, queued } => {
                    if let Some(counted) = self.class_statistics(node, class) {
                        counted.depth -= 1;
                    }
                    self.sent(from, class, port, queued, out);
                }
            }
        }
    }

    /// A packet leaves the switch.
    fn sent(&mut self, from: NodeId, class: Class, port: PortId, queued: Queued, out: &mut Vec<Action>) {
        let Queued { packet, multicast } = queued;
        if let Some(counted) = self.class_statistics(packet.dst, class) {
            counted.sent_packets += 1;
            counted.sent_bytes += bytes(&packet);
        }
        out.push(Action::Send(port, Frame::Packet(packet)));
        self.gone(from, class, multicast);
    }

    /// A packet, or one copy of a multicast, is in the switch no more.
    fn gone(&mut self, from: NodeId, class: Class, multicast: Option<u32>) {
        let last = match multicast {
            None => true,
            Some(number) => {
                let member = self.state.members.get_mut(usize::from(from)).and_then(Option::as_mut);
                member.is_some_and(|member| member.copy_gone(number, &self.config))
            }
        };
        if last {
            self.release(from, class, 1);
        }
    }

    /// Owes the sender the credits of packets that are not in the switch any more.
    fn release(&mut self, from: NodeId, class: Class, count: u64) {
        if class == Class::Reply || count == 0 {
            return;
        }
        let Some(member) = self.state.members.get_mut(usize::from(from)).and_then(Option::as_mut) else { return };
        // At most the credits the sender was given, which are 32 bits.
        member.owed[class as usize] += count as u32;
        if member.credit_due(class, &self.config) {
            self.touched.push(from);
        }
    }

    // ---- bookkeeping ----

    fn present(&self) -> impl Iterator<Item = (NodeId, &Member)> {
        self.state.members.iter().enumerate().filter_map(|(n, m)| Some((n as NodeId, m.as_ref()?)))
    }

    fn member(&self, node: NodeId) -> Option<&Member> {
        self.state.members.get(usize::from(node))?.as_ref()
    }

    fn member_mut(&mut self, node: NodeId) -> Option<&mut Member> {
        self.state.members.get_mut(usize::from(node))?.as_mut()
    }

    fn class_statistics(&mut self, node: NodeId, class: Class) -> Option<&mut crate::ClassStatistics> {
        Some(&mut self.statistics.nodes.get_mut(usize::from(node))?.classes[class as usize])
    }

    fn count_lost(&mut self, node: NodeId, class: Class, count: u64) {
        if let Some(counted) = self.class_statistics(node, class) {
            counted.dropped += count;
        }
    }

    fn count_dropped(&mut self, from: NodeId, to: NodeId, class: Class, count: u64) {
        self.count_lost(from, class, count);
        if to != from {
            self.count_lost(to, class, count);
        }
        if let Some(counted) = self.class_statistics(to, class) {
            counted.depth -= count;
        }
    }

    /// Whether the state agrees with itself: credits are conserved, turns and lanes match, queues are within their
    /// bounds, nothing is kept that could be sent. For checks; it takes time.
    pub fn audit(&self) -> Result<(), String> {
        let mut inside = vec![[0u64; 4]; self.state.members.len()];
        let mut copies: Vec<BTreeMap<u32, u32>> = vec![BTreeMap::new(); self.state.members.len()];
        for (node, member) in self.present() {
            member.audit(&self.config).map_err(|e| format!("output of node {node}: {e}"))?;
            for (from, counts) in member.waiting() {
                let Some(sender) = self.member(from) else {
                    return Err(format!("output of node {node} holds packets of node {from}, which is absent"));
                };
                for class in Class::ALL {
                    inside[usize::from(from)][class as usize] += counts[class as usize];
                }
                inside[usize::from(from)][Class::Reflected as usize] -= member.copies_from(from);
                let replies = counts[Class::Reply as usize];
                if replies > self.config.replies_from(&sender.offered) {
                    return Err(format!("output of node {node} holds {replies} replies of node {from}"));
                }
            }
        }
        for (from, multicast) in self.present().flat_map(|(_, member)| member.waiting_copies()) {
            *copies[usize::from(from)].entry(multicast).or_default() += 1;
        }
        for (node, member) in self.present() {
            let copies = &copies[usize::from(node)];
            if *copies != member.multicasts {
                return Err(format!("multicasts of node {node}: {:?}, in the lanes {copies:?}", member.multicasts));
            }
            inside[usize::from(node)][Class::Reflected as usize] += copies.len() as u64;
            let members: usize = member.groups.values().map(|group| group.len()).sum();
            if members > MAX_MEMBERSHIPS || member.groups.values().any(|group| group.is_empty()) {
                return Err(format!("groups of node {node} have {members} members, or one has none"));
            }
            for class in CREDITED {
                let index = class as usize;
                let (held, owed) = (u64::from(member.held[index]), u64::from(member.owed[index]));
                let sum = held + owed + inside[usize::from(node)][index];
                if sum != u64::from(self.config.credits[index]) {
                    return Err(format!(
                        "credits of node {node}, class {class:?}: {held} held + {owed} owed + {} in the switch, expected {}",
                        inside[usize::from(node)][index],
                        self.config.credits[index]
                    ));
                }
            }
        }
        Ok(())
    }
}

/// What an absent node would answer if it could.
fn answer(request: &Packet) -> Option<Packet> {
    let body = request.body.refusal(Status::NodeDown)?;
    Some(Packet {
        src: request.dst,
        dst: request.src,
        tag: request.tag,
        incarnation: request.incarnation,
        target: 0,
        body,
    })
}
