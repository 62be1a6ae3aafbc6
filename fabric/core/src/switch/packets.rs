// SPDX-License-Identifier: MIT OR Apache-2.0
//! The path of a packet through the switch: its arrival, its lane if it must wait, its departure; and the return of its
//! credit.

use std::collections::BTreeMap;

use telegraphos_topology::Hop;
use telegraphos_wire::link::Frame;
use telegraphos_wire::packet::MULTICAST;
use telegraphos_wire::{Class, NodeId, Packet, Status};

use super::{PortIndex, Switch};
use crate::channel::Channel;
use crate::lane::{Paid, Queued};
use crate::neighbour::{Kind, Neighbour, Next, session_part};
use crate::statistics::bytes;
use crate::{Action, PortId, SwitchConfig, Violation};

impl Switch {
    // ---- in ----

    /// A packet of a node of this switch.
    pub(super) fn packet(
        &mut self,
        index: PortIndex,
        node: NodeId,
        packet: Packet,
        out: &mut Vec<Action>,
    ) -> Result<(), Violation> {
        if packet.src != node && !bug!(AcceptForgedSource) {
            return Err(Violation::ForgedSource(packet.src));
        }
        let class = self.config.class_of(&packet);
        let group = if packet.dst == MULTICAST {
            if class != Class::Reflected {
                return Err(Violation::MulticastClass(class));
            }
            let page = packet.body.page();
            let group = self.neighbour(index).and_then(|n| n.groups.of(page).cloned());
            Some(group.ok_or(Violation::NoGroup { page })?)
        } else {
            self.valid_destination(packet.dst)?;
            None
        };
        let channel = Channel::new(class, 0);
        self.received(index, channel, &packet)?;
        match &group {
            Some(group) => group.iter().for_each(|member| self.pairs.count(node, *member, class, bytes(&packet))),
            None => self.pairs.count(node, packet.dst, class, bytes(&packet)),
        }
        if let Some(group) = group {
            let members = group.to_vec();
            #[cfg(feature = "bugs")]
            let members = crate::bugs::members(members);
            self.multicast(index, channel, packet, members, out);
            return Ok(());
        }
        let paid = Paid { index: index as u16, channel, multicast: None };
        let paid = Some(paid).filter(|_| class != Class::Reply);
        self.pass(index, Queued { packet, members: Vec::new(), paid }, None, out)
    }

    /// A packet arrives by `index` on `channel`: its sender's credit is used, and it is counted.
    ///
    /// # Errors
    /// The sender holds no credit of a channel that needs one, or the block is longer than it may send.
    pub(super) fn received(&mut self, index: PortIndex, channel: Channel, packet: &Packet) -> Result<(), Violation> {
        let Some(sender) = self.neighbour_mut(index) else { return Ok(()) };
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
            self.touched.push(index);
        }
        if let Some(counted) = self.class_statistics(index, channel.class()) {
            counted.received_packets += 1;
            counted.received_bytes += bytes(packet);
        }
        Ok(())
    }

    /// The neighbour returns `count` credits of a class on a layer.
    ///
    /// # Errors
    /// It would hold more than the neighbour offered.
    pub(super) fn credited(&mut self, index: PortIndex, class: Class, layer: u8, count: u32) -> Result<(), Violation> {
        self.clock.served(index, class);
        let channel = if index < self.nodes_here { Channel::new(class, 0) } else { self.channel_beyond(class, layer) };
        let Some(neighbour) = self.neighbour_mut(index) else { return Ok(()) };
        let held = u64::from(neighbour.credits[channel.index()]) + u64::from(count);
        // None of a layer that the topology does not have.
        let offered =
            if neighbour.credited_channels().any(|c| c == channel) { neighbour.offered[class as usize] } else { 0 };
        match u32::try_from(held) {
            Ok(held) if held <= offered => {
                neighbour.credits[channel.index()] = held;
                self.touched.push(index);
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
    pub(super) fn pass(
        &mut self,
        index: PortIndex,
        queued: Queued,
        next: Option<Hop>,
        out: &mut Vec<Action>,
    ) -> Result<(), Violation> {
        let (source, destination) = (queued.packet.src, queued.packet.dst);
        let class = self.config.class_of(&queued.packet);
        let to = match self.index_of(destination) {
            Some(to) => self.neighbour(to).map(|_| (to, 0)),
            None if self.is_up(destination) => {
                // The trunk is there: else the node could not be reached.
                let hop = next.or_else(|| self.next_hop(source, destination)).and_then(|next| self.hop_of(next));
                hop.filter(|(to, _)| *to != index && self.neighbour(*to).is_some())
            }
            None => None,
        };
        let Some((to, layer)) = to else {
            self.release(queued.paid);
            self.absent(index, class, &queued.packet);
            return Ok(());
        };
        let channel = if to < self.nodes_here { Channel::new(class, 0) } else { self.channel_beyond(class, layer) };
        self.check_replies(index, &queued.packet, to, class)?;
        #[cfg(feature = "bugs")]
        if bug!(DropWhenBlocked)
            && self.neighbour_mut(to).is_some_and(|n| n.clone().take_at_once(source, channel).is_none())
        {
            self.release(queued.paid);
            return Ok(());
        }
        self.enter(to, channel, queued, out);
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
        if class != Class::Reply || index >= self.nodes_here || bug!(UnlimitedReplies) {
            return Ok(());
        }
        let requested = self.neighbour_mut(index).is_some_and(|sender| sender.takes_answer(reply));
        let (Some(sender), Some(receiver)) = (self.neighbour(index), self.neighbour(to)) else { return Ok(()) };
        if !requested && !bug!(UnaskedPerReceiver) {
            // All its receivers may be in league with it and not read.
            let (waiting, limit) = (sender.replies_waiting + 1, self.config.unrequested());
            if waiting > limit {
                return Err(Violation::Replies { waiting, limit });
            }
        }
        let (waiting, limit) = if receiver.is_trunk() {
            // Beyond this limit it gets no more requests, but it may still have as many as it offered credits.
            let limit = u64::from(self.config.reply_limit.unwrap_or(0));
            (sender.replies_beyond, limit.max(3 * SwitchConfig::together(&sender.offered)))
        } else {
            (receiver.replies_from(reply.src), self.config.replies_from(&sender.offered))
        };
        // If it can be sent at once, nothing waits.
        if waiting + 1 > limit { Err(Violation::Replies { waiting: waiting + 1, limit }) } else { Ok(()) }
    }

    /// A packet, to each member of a group. Its sender has paid on `channel`.
    pub(super) fn multicast(
        &mut self,
        index: PortIndex,
        channel: Channel,
        packet: Packet,
        members: Vec<NodeId>,
        out: &mut Vec<Action>,
    ) {
        const CLASS: Class = Class::Reflected;
        let Some(number) = self.neighbour_mut(index).map(Neighbour::new_multicast) else { return };
        let paid = Some(Paid { index: index as u16, channel, multicast: Some(number) });
        let mut here = Vec::new();
        let mut absent = Vec::new();
        let mut beyond: BTreeMap<(PortIndex, u8), Vec<NodeId>> = BTreeMap::new();
        for dst in members {
            let up = self.is_up(dst);
            match self.index_of(dst) {
                Some(to) if up => here.push((to, dst)),
                None if up => match self.hop(packet.src, dst) {
                    Some((to, layer)) if to != index => beyond.entry((to, layer)).or_default().push(dst),
                    _ => absent.push(dst),
                },
                _ => absent.push(dst),
            }
        }
        #[cfg(feature = "bugs")]
        let beyond = crate::bugs::trunk_copies(beyond);
        // The multicast itself counts as one until all have their copy.
        self.copies(index, number, 1 + here.len() as u32 + beyond.len() as u32);
        for (to, dst) in here {
            let target = if bug!(AnyLife) { 0 } else { self.last_incarnation(dst) };
            let packet = Packet { dst, target, ..packet.clone() };
            self.enter(to, Channel::new(CLASS, 0), Queued { packet, members: Vec::new(), paid }, out);
        }
        for ((to, layer), members) in beyond {
            let channel = self.channel_beyond(CLASS, layer);
            self.enter(to, channel, Queued { packet: packet.clone(), members, paid }, out);
        }
        for dst in absent {
            if !bug!(ForgetAbsentMember) {
                self.absent(index, CLASS, &Packet { dst, ..packet.clone() });
            }
        }
        self.release(Some(Paid { index: index as u16, channel, multicast: Some(number) }));
    }

    /// The channel of a trunk.
    pub(super) fn channel_beyond(&self, class: Class, layer: u8) -> Channel {
        let class = if class == Class::Enqueue && bug!(MixClasses) { Class::Request } else { class };
        Channel::new(class, if bug!(OneLayer) { 0 } else { layer })
    }

    fn copies(&mut self, index: PortIndex, multicast: u32, count: u32) {
        if let Some(copies) = self.neighbour_mut(index).and_then(|n| n.multicasts.get_mut(&multicast)) {
            *copies = count;
        }
    }

    /// A packet reaches the output that it leaves by: straight on, or into its lane.
    fn enter(&mut self, to: PortIndex, channel: Channel, mut queued: Queued, out: &mut Vec<Action>) {
        let source = queued.packet.src;
        if to < self.nodes_here && self.index_of(source).is_none() {
            let copy = queued.paid.is_some_and(|paid| paid.multicast.is_some());
            self.translate(channel.class(), copy, &mut queued.packet);
            if channel.class() == Class::Reply && !bug!(RepliesHoldTrunk) {
                // A node takes every reply (SPEC I13), so this one delays no other node's replies.
                self.release(queued.paid.take());
            }
        }
        let Some(receiver) = self.neighbour_mut(to) else { return self.release(queued.paid) };
        if let Some(port) = receiver.take_at_once(source, channel) {
            return self.sent(to, channel, port, queued, out);
        }
        self.wait(to, source, channel, queued);
    }

    /// Translates between the incarnations at another switch and those that this switch's nodes see, which include the
    /// session: see [`Switch`], "Trunks".
    fn translate(&self, class: Class, copy: bool, packet: &mut Packet) {
        let Some(presence) = self.state.presence.get(packet.src) else { return };
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
        let Some(receiver) = self.neighbour_mut(to) else { return };
        let starved = receiver.credited(channel) && receiver.credits[channel.index()] == 0;
        receiver.push(source, channel, queued);
        let trunk = u64::from(receiver.is_trunk());
        self.touched.push(to);
        if let Some(counted) = self.class_statistics(to, channel.class()) {
            counted.stalls += 1;
            counted.credit_stalls += u64::from(starved);
            counted.depth += 1;
            counted.depth_max = counted.depth_max.max(counted.depth);
        }
        if channel.class() == Class::Reply {
            if let Some(sender) = self.index_of(source).and_then(|index| self.neighbour_mut(index)) {
                sender.replies_waiting += 1;
                sender.replies_beyond += trunk;
            }
        }
    }

    /// A packet has left its lane.
    pub(super) fn unqueued(&mut self, to: PortIndex, source: NodeId, channel: Channel) {
        if let Some(counted) = self.class_statistics(to, channel.class()) {
            counted.depth = counted.depth.saturating_sub(1);
        }
        if channel.class() != Class::Reply {
            return;
        }
        let trunk = to >= self.nodes_here;
        let Some(index) = self.index_of(source) else { return };
        let Some(sender) = self.neighbour_mut(index) else { return };
        sender.replies_waiting = sender.replies_waiting.saturating_sub(1);
        if trunk {
            sender.replies_beyond = sender.replies_beyond.saturating_sub(1);
            // The node may have been gated.
            self.touched.push(index);
        }
    }

    /// A packet whose destination is absent: the switch answers a request of one of its own nodes. A reply is dropped,
    /// and so is what came by a trunk: a NodeDown is on its way to the sender.
    fn absent(&mut self, index: PortIndex, class: Class, packet: &Packet) {
        let answered = class != Class::Reply && !bug!(SwallowUnanswered);
        match answer(packet) {
            Some(reply) if answered && index < self.nodes_here => {
                self.statistics.answered += 1;
                if let Some(sender) = self.neighbour_mut(index) {
                    sender.push_answer(reply);
                    self.touched.push(index);
                }
            }
            _ => self.count_lost(index, class),
        }
    }

    // ---- out ----

    /// Sends to a neighbour whatever can be sent.
    pub(super) fn serve(&mut self, index: PortIndex, out: &mut Vec<Action>) {
        loop {
            let Some(neighbour) = self.neighbour_mut(index) else { return };
            if neighbour.room == 0 && !bug!(IgnoreRoom) {
                return;
            }
            let Some(next) = neighbour.next() else { return };
            neighbour.use_room();
            let port = neighbour.port;
            match next {
                Next::Control(frame) => out.push(Action::Send(port, frame)),
                Next::Answer(packet) => {
                    self.count_sent(index, Class::Reply, &packet);
                    out.push(Action::Send(port, Frame::Packet(packet)));
                }
                Next::Packet { from, channel, queued } => {
                    self.unqueued(index, from, channel);
                    self.sent(index, channel, port, queued, out);
                }
            }
        }
    }

    /// A packet leaves the switch.
    fn sent(&mut self, to: PortIndex, channel: Channel, port: PortId, queued: Queued, out: &mut Vec<Action>) {
        let Queued { packet, members, paid } = queued;
        self.count_sent(to, channel.class(), &packet);
        let trunk = to >= self.nodes_here;
        if !trunk && channel.class() != Class::Reply {
            if let Some(receiver) = self.neighbour_mut(to) {
                receiver.expect_reply(&packet);
            }
        }
        out.push(Action::Send(
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
        let Some(neighbour) = self.neighbour_mut(index) else { return };
        if multicast.is_some_and(|number| !neighbour.copy_gone(number)) {
            return;
        }
        // At most the credits that were given, which are 32 bits.
        let owed = &mut neighbour.given[channel.index()].owed;
        *owed = owed.saturating_add(1);
        if neighbour.credit_due(channel) {
            self.touched.push(index);
        }
    }

    // ---- bookkeeping ----

    fn count_sent(&mut self, index: PortIndex, class: Class, packet: &Packet) {
        if let Some(counted) = self.class_statistics(index, class) {
            counted.sent_packets += 1;
            counted.sent_bytes += bytes(packet);
        }
    }

    /// Counts a packet from or to a port as dropped.
    pub(super) fn count_lost(&mut self, index: PortIndex, class: Class) {
        if let Some(counted) = self.class_statistics(index, class) {
            counted.dropped += 1;
        }
    }

    /// A packet from a node, which waited for a port, is dropped.
    pub(super) fn count_dropped(&mut self, from: NodeId, to: PortIndex, class: Class) {
        let from = self.index_of(from);
        if let Some(from) = from.filter(|from| *from != to) {
            self.count_lost(from, class);
        }
        self.count_lost(to, class);
    }

    /// The neighbour's name, for messages.
    pub(super) fn name(&self, index: PortIndex) -> String {
        match self.neighbour(index).map(|neighbour| neighbour.kind) {
            Some(Kind::Node(node)) => format!("node {node}"),
            Some(Kind::Trunk { trunk, .. }) => format!("trunk {trunk}"),
            None => format!("absent index {index}"),
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
