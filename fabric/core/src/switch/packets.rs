// SPDX-License-Identifier: MIT OR Apache-2.0
//! The path of a packet through the switch: its arrival, its lane if it must wait, its departure; and the return of its
//! credit.

use smallvec::SmallVec;
use telegraphos_topology::Hop;
use telegraphos_wire::link::{Frame, packet_len};
use telegraphos_wire::packet::MULTICAST;
use telegraphos_wire::{Class, NodeId, Packet, Status, WindowLayout};

use super::routes::{PortIndex, Routes};
use super::state::Neighbours;
use super::traffic::Traffic;
use crate::channel::Channel;
use crate::lane::{Paid, Queued};
use crate::neighbour::{Neighbour, Next, session_part};
use crate::presences::Presences;
use crate::{Action, PortId, SwitchConfig, Violation};

/// The members of a group that a multicast reaches by one trunk: its port index, the layer, and them.
pub(crate) type Beyond = ((PortIndex, u8), Vec<NodeId>);

/// What a packet meets on its way through the switch, while an event is handled. Connections, their handshakes and the
/// time are not in it.
pub(super) struct Crossing<'a> {
    pub(super) routes: &'a Routes,
    pub(super) neighbours: &'a mut Neighbours,
    pub(super) presence: &'a mut Presences,
    pub(super) traffic: &'a mut Traffic,
    pub(super) adopted: &'a Option<WindowLayout>,
    pub(super) out: &'a mut Vec<Action>,
}

impl Crossing<'_> {
    /// # Errors
    /// The node is not below the number of nodes in force.
    pub(super) fn valid_destination(&self, node: NodeId) -> Result<(), Violation> {
        self.routes.valid_destination(self.routes.window(*self.adopted), node)
    }

    // ---- in ----

    /// A packet of a node of this switch.
    pub(super) fn packet(&mut self, index: PortIndex, node: NodeId, packet: Packet) -> Result<(), Violation> {
        if packet.src != node && !bug!(AcceptForgedSource) {
            return Err(Violation::ForgedSource(packet.src));
        }
        let class = self.routes.class_of(&packet);
        let group = if packet.dst == MULTICAST {
            if class != Class::Reflected {
                return Err(Violation::MulticastClass(class));
            }
            let page = packet.body.page();
            let group = self.neighbours.get(index).and_then(|n| n.groups.of(page).cloned());
            Some(group.ok_or(Violation::NoGroup { page })?)
        } else {
            self.valid_destination(packet.dst)?;
            None
        };
        let channel = Channel::new(class, 0);
        let bytes = self.received(index, channel, &packet)?;
        match &group {
            Some(group) => group.iter().for_each(|member| self.traffic.pairs.count(node, *member, class, bytes)),
            None => self.traffic.pairs.count(node, packet.dst, class, bytes),
        }
        if let Some(group) = group {
            #[cfg(feature = "bugs")]
            let group = crate::bugs::members(group.to_vec());
            self.multicast(index, channel, packet, &group);
            return Ok(());
        }
        let paid = Paid { index: index as u16, channel, multicast: None };
        let paid = Some(paid).filter(|_| class != Class::Reply);
        self.pass(index, Queued { packet, members: Vec::new(), paid }, None)
    }

    /// A packet arrives by `index` on `channel`: its sender's credit is used, and it is counted. Returns its bytes on
    /// the link.
    ///
    /// # Errors
    /// The sender holds no credit of a channel that needs one, or the block is longer than it may send.
    pub(super) fn received(&mut self, index: PortIndex, channel: Channel, packet: &Packet) -> Result<u64, Violation> {
        let bytes = packet_len(packet);
        let Some(sender) = self.neighbours.get_mut(index) else { return Ok(bytes) };
        // Its limit is not in the cache line that all packets need.
        let length = packet.body.block_len();
        if length > 0 && length > u64::from(sender.block) && !bug!(AcceptLongBlock) {
            return Err(Violation::Block { length, most: sender.block });
        }
        if sender.credited(channel) {
            let held = &mut sender.given[channel.index()].held;
            match held.checked_sub(1) {
                Some(less) => *held = less,
                None if bug!(AcceptWithoutCredit) => {}
                None => return Err(Violation::NoCredit(channel.class())),
            }
        }
        // The sender holds one less: a credit that is owed to it may have become due.
        if sender.credited(channel) && sender.credit_due(channel) {
            self.traffic.touched.push(index);
        }
        self.traffic.received(index, channel.class(), bytes);
        Ok(bytes)
    }

    /// The neighbour returns `count` credits of a class on a layer.
    ///
    /// # Errors
    /// It would hold more than the neighbour offered.
    pub(super) fn credited(&mut self, index: PortIndex, class: Class, layer: u8, count: u32) -> Result<(), Violation> {
        let channel = self.routes.channel(index, class, layer);
        let Some(neighbour) = self.neighbours.get_mut(index) else { return Ok(()) };
        let held = u64::from(neighbour.credits[channel.index()]) + u64::from(count);
        // None of a layer that the topology does not have.
        let offered =
            if neighbour.credited_channels().any(|c| c == channel) { neighbour.offered[class as usize] } else { 0 };
        match u32::try_from(held) {
            Ok(held) if held <= offered => {
                neighbour.credits[channel.index()] = held;
                self.traffic.touched.push(index);
                Ok(())
            }
            _ => Err(Violation::CreditOverflow { class, held, offered }),
        }
    }

    /// Forwards a packet that arrived by `index` and used a credit there; `next` is the next step of its route, if that
    /// is known.
    ///
    /// # Errors
    /// It is one reply more than its sender may have waiting.
    pub(super) fn pass(&mut self, index: PortIndex, queued: Queued, next: Option<Hop>) -> Result<(), Violation> {
        let (source, destination) = (queued.packet.src, queued.packet.dst);
        let class = self.routes.class_of(&queued.packet);
        let to = match self.routes.index_of(destination) {
            Some(to) => self.neighbours.get(to).map(|_| (to, 0)),
            None if self.presence.is_up(destination) => {
                // The trunk is there: else the node could not be reached.
                let hop = next
                    .or_else(|| self.routes.next_hop(source, destination))
                    .and_then(|next| self.routes.hop_of(next));
                hop.filter(|(to, _)| *to != index && self.neighbours.get(*to).is_some())
            }
            None => None,
        };
        let Some((to, layer)) = to else {
            self.release(queued.paid);
            self.absent(index, class, &queued.packet);
            return Ok(());
        };
        let channel = self.routes.channel(to, class, layer);
        self.check_replies(index, &queued.packet, to, class)?;
        #[cfg(feature = "bugs")]
        if bug!(DropWhenBlocked)
            && self.neighbours.get_mut(to).is_some_and(|n| n.clone().take_at_once(source, channel).is_none())
        {
            self.release(queued.paid);
            return Ok(());
        }
        self.enter(to, channel, queued);
        Ok(())
    }

    /// A node that sends more replies than it can have received requests is disconnected; what other switches forward
    /// is bounded by credits.
    fn check_replies(
        &mut self,
        index: PortIndex,
        reply: &Packet,
        to: PortIndex,
        class: Class,
    ) -> Result<(), Violation> {
        if class != Class::Reply || self.routes.is_trunk(index) || bug!(UnlimitedReplies) {
            return Ok(());
        }
        let requested = self.neighbours.get_mut(index).is_some_and(|sender| sender.takes_answer(reply));
        let (Some(sender), Some(receiver)) = (self.neighbours.get(index), self.neighbours.get(to)) else {
            return Ok(());
        };
        if !requested && !bug!(UnaskedPerReceiver) {
            // All its receivers may be in league with it and not read.
            let (waiting, limit) = (sender.replies_waiting + 1, self.routes.config.unrequested());
            if waiting > limit {
                return Err(Violation::Replies { waiting, limit });
            }
        }
        let (waiting, limit) = if receiver.is_trunk() {
            // Beyond this limit it gets no more requests, but it may still have as many as it offered credits.
            let limit = u64::from(self.routes.config.reply_limit.unwrap_or(0));
            (sender.replies_beyond, limit.max(3 * SwitchConfig::together(&sender.offered)))
        } else {
            (receiver.replies_from(reply.src), self.routes.config.replies_from(&sender.offered))
        };
        // If it can be sent at once, nothing waits.
        if waiting + 1 > limit { Err(Violation::Replies { waiting: waiting + 1, limit }) } else { Ok(()) }
    }

    /// A packet, to each member of a group. Its sender has paid on `channel`.
    pub(super) fn multicast(&mut self, index: PortIndex, channel: Channel, packet: Packet, members: &[NodeId]) {
        const CLASS: Class = Class::Reflected;
        let Some(number) = self.neighbours.get_mut(index).map(Neighbour::new_multicast) else { return };
        let paid = Some(Paid { index: index as u16, channel, multicast: Some(number) });
        // The multicast itself counts as a copy until all have theirs.
        self.count_copy(index, number);
        let mut absent = SmallVec::<[NodeId; 8]>::new();
        let mut beyond = SmallVec::<[Beyond; 4]>::new();
        for dst in members.iter().copied() {
            let up = self.presence.is_up(dst);
            match self.routes.index_of(dst) {
                Some(to) if up => {
                    let target = if bug!(AnyLife) { 0 } else { self.presence.last_incarnation(dst) };
                    let packet = Packet { dst, target, ..packet.clone() };
                    self.count_copy(index, number);
                    self.enter(to, Channel::new(CLASS, 0), Queued { packet, members: Vec::new(), paid });
                }
                None if up => match self.routes.hop(packet.src, dst).filter(|(to, _)| *to != index) {
                    Some(hop) => match beyond.binary_search_by_key(&hop, |(hop, _)| *hop) {
                        Ok(at) => beyond[at].1.push(dst),
                        Err(at) => beyond.insert(at, (hop, vec![dst])),
                    },
                    None => absent.push(dst),
                },
                _ => absent.push(dst),
            }
        }
        #[cfg(feature = "bugs")]
        let beyond = crate::bugs::trunk_copies(beyond);
        for ((to, layer), members) in beyond {
            let channel = self.routes.channel_beyond(CLASS, layer);
            self.count_copy(index, number);
            self.enter(to, channel, Queued { packet: packet.clone(), members, paid });
        }
        for dst in absent {
            if !bug!(ForgetAbsentMember) {
                self.absent(index, CLASS, &Packet { dst, ..packet.clone() });
            }
        }
        self.release(paid);
    }

    /// One more copy of a multicast is in the switch.
    fn count_copy(&mut self, index: PortIndex, multicast: u32) {
        if let Some(copies) = self.neighbours.get_mut(index).and_then(|n| n.multicasts.get_mut(&multicast)) {
            *copies += 1;
        }
    }

    /// A packet reaches the output that it leaves by: straight on, or into its lane.
    fn enter(&mut self, to: PortIndex, channel: Channel, mut queued: Queued) {
        let source = queued.packet.src;
        if !self.routes.is_trunk(to) && self.routes.index_of(source).is_none() {
            let copy = queued.paid.is_some_and(|paid| paid.multicast.is_some());
            self.translate(channel.class(), copy, &mut queued.packet);
            if channel.class() == Class::Reply && !bug!(RepliesHoldTrunk) {
                // A node takes every reply (SPEC I13), so this one delays no other node's replies.
                self.release(queued.paid.take());
            }
        }
        let Some(receiver) = self.neighbours.get_mut(to) else { return self.release(queued.paid) };
        if let Some(port) = receiver.take_at_once(source, channel) {
            return self.sent(to, channel, port, queued);
        }
        self.wait(to, source, channel, queued);
    }

    /// Translates between the incarnations at another switch and those that this switch's nodes see, which include the
    /// session: see [`Switch`](super::Switch), "Trunks".
    fn translate(&self, class: Class, copy: bool, packet: &mut Packet) {
        let Some(presence) = self.presence.get(packet.src) else { return };
        let session = session_part(presence.session);
        if class == Class::Reply {
            // The requester's incarnation, as the replier's switch announced it.
            packet.incarnation = packet.incarnation.wrapping_sub(session);
        } else {
            packet.incarnation = packet.incarnation.wrapping_add(session);
            // This switch has set the target of a multicast's copy.
            if !copy {
                packet.target = packet.target.wrapping_sub(session);
            }
        }
    }

    /// A packet joins its lane.
    fn wait(&mut self, to: PortIndex, source: NodeId, channel: Channel, queued: Queued) {
        let Some(receiver) = self.neighbours.get_mut(to) else { return };
        let starved = receiver.credited(channel) && receiver.credits[channel.index()] == 0;
        receiver.push(source, channel, queued);
        let trunk = u64::from(receiver.is_trunk());
        self.traffic.touched.push(to);
        if let Some(counted) = self.traffic.of(to, channel.class()) {
            counted.stalls += 1;
            counted.credit_stalls += u64::from(starved);
            counted.depth += 1;
            counted.depth_max = counted.depth_max.max(counted.depth);
        }
        if channel.class() == Class::Reply {
            if let Some(sender) = self.routes.index_of(source).and_then(|index| self.neighbours.get_mut(index)) {
                sender.replies_waiting += 1;
                sender.replies_beyond += trunk;
            }
        }
    }

    /// A packet has left its lane.
    pub(super) fn unqueued(&mut self, to: PortIndex, source: NodeId, channel: Channel) {
        if let Some(counted) = self.traffic.of(to, channel.class()) {
            counted.depth = counted.depth.saturating_sub(1);
        }
        if channel.class() != Class::Reply {
            return;
        }
        let trunk = self.routes.is_trunk(to);
        let Some(index) = self.routes.index_of(source) else { return };
        let Some(sender) = self.neighbours.get_mut(index) else { return };
        sender.replies_waiting = sender.replies_waiting.saturating_sub(1);
        if trunk {
            sender.replies_beyond = sender.replies_beyond.saturating_sub(1);
            // The node may have been gated.
            self.traffic.touched.push(index);
        }
    }

    /// A packet whose destination is absent: the switch answers a request of one of its own nodes. A reply is dropped,
    /// and so is what came by a trunk: a NodeDown is on its way to the sender.
    fn absent(&mut self, index: PortIndex, class: Class, packet: &Packet) {
        let answered = class != Class::Reply && !bug!(SwallowUnanswered);
        match answer(packet) {
            Some(reply) if answered && !self.routes.is_trunk(index) => {
                self.traffic.statistics.answered += 1;
                if let Some(sender) = self.neighbours.get_mut(index) {
                    sender.push_answer(reply);
                    self.traffic.touched.push(index);
                }
            }
            _ => self.traffic.lost(index, class),
        }
    }

    // ---- out ----

    /// Sends to a neighbour whatever can be sent.
    pub(super) fn serve(&mut self, index: PortIndex) {
        loop {
            let Some(neighbour) = self.neighbours.get_mut(index) else { return };
            if neighbour.room == 0 && !bug!(IgnoreRoom) {
                return;
            }
            let Some(next) = neighbour.next() else { return };
            neighbour.use_room();
            let port = neighbour.port;
            match next {
                Next::Control(frame) => self.out.push(Action::Send(port, frame)),
                Next::Answer(packet) => {
                    self.traffic.sent(index, Class::Reply, &packet);
                    self.out.push(Action::Send(port, Frame::Packet(packet)));
                }
                Next::Packet { from, channel, queued } => {
                    self.unqueued(index, from, channel);
                    self.sent(index, channel, port, queued);
                }
            }
        }
    }

    /// A packet leaves the switch.
    fn sent(&mut self, to: PortIndex, channel: Channel, port: PortId, queued: Queued) {
        let Queued { packet, members, paid } = queued;
        self.traffic.sent(to, channel.class(), &packet);
        let trunk = self.routes.is_trunk(to);
        if !trunk && channel.class() != Class::Reply {
            if let Some(receiver) = self.neighbours.get_mut(to) {
                receiver.expect_reply(&packet);
            }
        }
        self.out.push(Action::Send(
            port,
            if trunk { Frame::Forward { layer: channel.layer(), members, packet } } else { Frame::Packet(packet) },
        ));
        self.release(paid);
    }

    /// A packet, or one copy of a multicast, has left the switch. After the last copy its credit is owed to the
    /// neighbour that it came from.
    pub(super) fn release(&mut self, paid: Option<Paid>) {
        let Some(Paid { index, channel, multicast }) = paid else { return };
        let index = usize::from(index);
        let Some(neighbour) = self.neighbours.get_mut(index) else { return };
        if multicast.is_some_and(|number| !neighbour.copy_gone(number)) {
            return;
        }
        // At most the credits that were given, which are 32 bits.
        let owed = &mut neighbour.given[channel.index()].owed;
        *owed = owed.saturating_add(1);
        if neighbour.credit_due(channel) {
            self.traffic.touched.push(index);
        }
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
