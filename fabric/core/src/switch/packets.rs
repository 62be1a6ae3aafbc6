// SPDX-License-Identifier: MIT OR Apache-2.0
//! The way of a packet through the switch: in, into a lane or straight on, out; and its credit back.

use std::collections::BTreeMap;

use telegraphos_wire::link::Frame;
use telegraphos_wire::packet::MULTICAST;
use telegraphos_wire::{Class, NodeId, Packet, Status};

use super::{Place, Switch};
use crate::channel::Channel;
use crate::lane::{Paid, Queued};
use crate::neighbour::{Kind, Neighbour, Next, session_part};
use crate::statistics::bytes;
use crate::{Action, Bug, PortId, SwitchConfig, Violation};

impl Switch {
    // ---- in ----

    /// A packet of a node of this switch.
    pub(super) fn packet(
        &mut self,
        place: Place,
        node: NodeId,
        packet: Packet,
        out: &mut Vec<Action>,
    ) -> Result<(), Violation> {
        if packet.src != node && !self.config.has(Bug::BelieveSource) {
            return Err(Violation::ForgedSource(packet.src));
        }
        let class = self.config.class_of(&packet);
        let group = if packet.dst == MULTICAST {
            if class != Class::Reflected {
                return Err(Violation::MulticastClass(class));
            }
            let page = packet.body.page();
            let group = self.neighbour(place).and_then(|n| n.groups.of(page).cloned());
            Some(group.ok_or(Violation::NoGroup { page })?)
        } else {
            self.valid_destination(packet.dst)?;
            None
        };
        let lenient = self.config.has(Bug::AcceptWithoutCredit);
        let channel = Channel::new(class, 0);
        let Some(sender) = self.neighbour_mut(place) else { return Ok(()) };
        if class != Class::Reply {
            match sender.held[channel.index()].checked_sub(1) {
                Some(held) => sender.held[channel.index()] = held,
                None if lenient => {}
                None => return Err(Violation::NoCredit(class)),
            }
        }
        // It holds one less now: what is owed to it may have become due.
        self.touched.push(place);
        if let Some(counted) = self.class_statistics(place, class) {
            counted.received_packets += 1;
            counted.received_bytes += bytes(&packet);
        }
        match &group {
            Some(group) => group.iter().for_each(|member| self.pairs.count(node, *member, class, bytes(&packet))),
            None => self.pairs.count(node, packet.dst, class, bytes(&packet)),
        }
        if let Some(group) = group {
            let mut members = group.to_vec();
            if self.config.has(Bug::DuplicateMulticast) {
                members.extend(group.first());
            }
            if self.config.has(Bug::SkipMember) && group.len() > 1 {
                members.pop();
            }
            self.multicast(place, channel, packet, members, out);
            return Ok(());
        }
        let paid = Paid { place: place as u16, channel, multicast: None };
        let paid = Some(paid).filter(|_| class != Class::Reply);
        self.pass(place, Queued { packet, members: Vec::new(), paid }, out)
    }

    /// More packets of the class may be sent to this neighbour.
    pub(super) fn credited(&mut self, place: Place, class: Class, layer: u8, count: u32) -> Result<(), Violation> {
        self.clock.served(place, class);
        let channel = if place < self.nodes_here { Channel::new(class, 0) } else { self.channel_beyond(class, layer) };
        let Some(neighbour) = self.neighbour_mut(place) else { return Ok(()) };
        let held = u64::from(neighbour.credits[channel.index()]) + u64::from(count);
        // None of a layer that the topology does not have.
        let offered =
            if neighbour.credited_channels().any(|c| c == channel) { neighbour.offered[class as usize] } else { 0 };
        match u32::try_from(held) {
            Ok(held) if held <= offered => {
                neighbour.credits[channel.index()] = held;
                self.touched.push(place);
                Ok(())
            }
            _ => Err(Violation::CreditOverflow { class, held, offered }),
        }
    }

    /// A packet that has come by `place` and paid there goes on to its destination.
    pub(super) fn pass(&mut self, place: Place, queued: Queued, out: &mut Vec<Action>) -> Result<(), Violation> {
        let (source, destination) = (queued.packet.src, queued.packet.dst);
        let class = self.config.class_of(&queued.packet);
        let to = match self.place_of(destination) {
            Some(to) => self.neighbour(to).map(|_| (to, 0)),
            None if self.state.presence.get(usize::from(destination)).is_some_and(|presence| presence.up) => {
                // The trunk is there: else the node could not be reached.
                self.hop(source, destination).filter(|(to, _)| *to != place && self.neighbour(*to).is_some())
            }
            None => None,
        };
        let Some((to, layer)) = to else {
            self.gone(queued.paid);
            self.absent(place, class, &queued.packet);
            return Ok(());
        };
        let channel = if to < self.nodes_here { Channel::new(class, 0) } else { self.channel_beyond(class, layer) };
        self.check_replies(place, &queued.packet, to, class)?;
        if self.config.has(Bug::DropWhenBlocked)
            && self.neighbour_mut(to).is_some_and(|n| n.clone().take_at_once(source, channel).is_none())
        {
            self.gone(queued.paid);
            return Ok(());
        }
        self.enter(to, channel, queued, out);
        Ok(())
    }

    /// A node that sends more replies than it can have been asked for is thrown out; what other switches send on is
    /// bounded by credits.
    fn check_replies(&mut self, place: Place, reply: &Packet, to: Place, class: Class) -> Result<(), Violation> {
        if class != Class::Reply || place >= self.nodes_here || self.config.has(Bug::UnlimitedReplies) {
            return Ok(());
        }
        let asked = self.neighbour_mut(place).is_some_and(|sender| sender.answers(reply));
        let (Some(sender), Some(receiver)) = (self.neighbour(place), self.neighbour(to)) else { return Ok(()) };
        if !asked && !self.config.has(Bug::UnaskedPerReceiver) {
            // All its receivers may agree with it and not read.
            let (waiting, limit) = (sender.replies_waiting + 1, self.config.unasked());
            if waiting > limit {
                return Err(Violation::Replies { waiting, limit });
            }
        }
        let (waiting, limit) = if receiver.is_trunk() {
            // Beyond this it gets nothing more to reply to, but has taken what it offered to take.
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
        place: Place,
        channel: Channel,
        packet: Packet,
        members: Vec<NodeId>,
        out: &mut Vec<Action>,
    ) {
        const CLASS: Class = Class::Reflected;
        let Some(number) = self.neighbour_mut(place).map(Neighbour::new_multicast) else { return };
        let paid = Some(Paid { place: place as u16, channel, multicast: Some(number) });
        let mut here = Vec::new();
        let mut absent = Vec::new();
        let mut beyond: BTreeMap<(Place, u8), Vec<NodeId>> = BTreeMap::new();
        for dst in members {
            let up = self.state.presence.get(usize::from(dst)).is_some_and(|presence| presence.up);
            match self.place_of(dst) {
                Some(to) if up => here.push((to, dst)),
                None if up => match self.hop(packet.src, dst) {
                    Some((to, layer)) if to != place => beyond.entry((to, layer)).or_default().push(dst),
                    _ => absent.push(dst),
                },
                _ => absent.push(dst),
            }
        }
        let mut beyond: Vec<((Place, u8), Vec<NodeId>)> = beyond.into_iter().collect();
        if self.config.has(Bug::SendAllToEach) {
            beyond = beyond.into_iter().flat_map(|(to, all)| vec![(to, all.clone()); all.len()]).collect();
        }
        // The multicast itself counts as one until all have their copy.
        self.copies(place, number, 1 + here.len() as u32 + beyond.len() as u32);
        for (to, dst) in here {
            let target = if self.config.has(Bug::AnyLife) { 0 } else { self.own_incarnation(dst) };
            let packet = Packet { dst, target, ..packet.clone() };
            self.enter(to, Channel::new(CLASS, 0), Queued { packet, members: Vec::new(), paid }, out);
        }
        for ((to, layer), members) in beyond {
            let channel = self.channel_beyond(CLASS, layer);
            self.enter(to, channel, Queued { packet: packet.clone(), members, paid }, out);
        }
        for dst in absent {
            if !self.config.has(Bug::ForgetAbsentMember) {
                self.absent(place, CLASS, &Packet { dst, ..packet.clone() });
            }
        }
        self.gone(Some(Paid { place: place as u16, channel, multicast: Some(number) }));
    }

    /// The channel of a trunk.
    pub(super) fn channel_beyond(&self, class: Class, layer: u8) -> Channel {
        let class = if class == Class::Enqueue && self.config.has(Bug::MixClasses) { Class::Request } else { class };
        Channel::new(class, if self.config.has(Bug::OneLayer) { 0 } else { layer })
    }

    fn own_incarnation(&self, node: NodeId) -> u64 {
        self.state.presence.get(usize::from(node)).map_or(0, |presence| presence.incarnation)
    }

    fn copies(&mut self, place: Place, multicast: u32, count: u32) {
        if let Some(copies) = self.neighbour_mut(place).and_then(|n| n.multicasts.get_mut(&multicast)) {
            *copies = count;
        }
    }

    /// A packet reaches the output that it leaves by: straight on, or into its lane.
    fn enter(&mut self, to: Place, channel: Channel, mut queued: Queued, out: &mut Vec<Action>) {
        let source = queued.packet.src;
        if to < self.nodes_here && self.place_of(source).is_none() {
            let copy = queued.paid.is_some_and(|paid| paid.multicast.is_some());
            self.translate(channel.class(), copy, &mut queued.packet);
            if channel.class() == Class::Reply && !self.config.has(Bug::RepliesHoldTrunk) {
                // Its node takes it in any case (SPEC I13): no other node's replies wait behind it.
                self.gone(queued.paid.take());
            }
        }
        let Some(receiver) = self.neighbour_mut(to) else { return self.gone(queued.paid) };
        if let Some(port) = receiver.take_at_once(source, channel) {
            return self.sent(to, channel, port, queued, out);
        }
        self.wait(to, source, channel, queued);
    }

    /// From the incarnations as another switch's node knows them to those that this switch's nodes know, and back: see
    /// [`Switch`], "Trunks".
    fn translate(&self, class: Class, copy: bool, packet: &mut Packet) {
        let Some(presence) = self.state.presence.get(usize::from(packet.src)) else { return };
        let session = session_part(presence.session);
        if class == Class::Reply {
            // That of the requester, as the replier was told it.
            packet.incarnation = packet.incarnation.wrapping_sub(session);
        } else {
            packet.incarnation = packet.incarnation.wrapping_add(session);
            // That of a multicast's copy is this switch's word.
            if !copy {
                packet.target = packet.target.wrapping_sub(session);
            }
        }
    }

    /// A packet joins its lane.
    fn wait(&mut self, to: Place, source: NodeId, channel: Channel, queued: Queued) {
        let config = &self.config;
        let Some(receiver) = self.state.neighbours.get_mut(to).and_then(Option::as_mut) else { return };
        let starved = receiver.credited(channel) && receiver.credits[channel.index()] == 0;
        receiver.push(source, channel, queued, config);
        let trunk = u64::from(receiver.is_trunk());
        self.touched.push(to);
        if let Some(counted) = self.class_statistics(to, channel.class()) {
            counted.stalls += 1;
            counted.credit_stalls += u64::from(starved);
            counted.depth += 1;
            counted.depth_max = counted.depth_max.max(counted.depth);
        }
        if channel.class() == Class::Reply {
            if let Some(sender) = self.place_of(source).and_then(|place| self.neighbour_mut(place)) {
                sender.replies_waiting += 1;
                sender.replies_beyond += trunk;
            }
        }
    }

    /// A packet has left its lane.
    pub(super) fn unqueued(&mut self, to: Place, source: NodeId, channel: Channel) {
        if let Some(counted) = self.class_statistics(to, channel.class()) {
            counted.depth = counted.depth.saturating_sub(1);
        }
        let trunk = to >= self.nodes_here;
        if channel.class() == Class::Reply {
            if let Some(place) = self.place_of(source) {
                if let Some(sender) = self.neighbour_mut(place) {
                    sender.replies_waiting = sender.replies_waiting.saturating_sub(1);
                    if trunk {
                        sender.replies_beyond = sender.replies_beyond.saturating_sub(1);
                        // It may have been gated.
                        self.touched.push(place);
                    }
                }
            }
        }
    }

    /// A packet whose destination is not there: a request of a node of this switch gets its answer from the switch. A
    /// reply is dropped, and so is what came by a trunk: its sender is being told that the destination is down.
    fn absent(&mut self, place: Place, class: Class, packet: &Packet) {
        let answered = class != Class::Reply && !self.config.has(Bug::SwallowUnanswered);
        match answer(packet) {
            Some(reply) if answered && place < self.nodes_here => {
                self.statistics.answered += 1;
                if let Some(sender) = self.neighbour_mut(place) {
                    sender.push_answer(reply);
                    self.touched.push(place);
                }
            }
            _ => self.count_lost(place, class),
        }
    }

    // ---- out ----

    /// Sends to a neighbour whatever can be sent.
    pub(super) fn serve(&mut self, place: Place, out: &mut Vec<Action>) {
        loop {
            let config = &self.config;
            let Some(neighbour) = self.state.neighbours.get_mut(place).and_then(Option::as_mut) else { return };
            if neighbour.room == 0 && !config.has(Bug::IgnoreRoom) {
                return;
            }
            let Some(next) = neighbour.next(config) else { return };
            neighbour.use_room();
            let port = neighbour.port;
            match next {
                Next::Control(frame) => out.push(Action::Send(port, frame)),
                Next::Answer(packet) => {
                    if let Some(counted) = self.class_statistics(place, Class::Reply) {
                        counted.sent_packets += 1;
                        counted.sent_bytes += bytes(&packet);
                    }
                    out.push(Action::Send(port, Frame::Packet(packet)));
                }
                Next::Packet { from, channel, queued } => {
                    self.unqueued(place, from, channel);
                    self.sent(place, channel, port, queued, out);
                }
            }
        }
    }

    /// A packet leaves the switch.
    fn sent(&mut self, to: Place, channel: Channel, port: PortId, queued: Queued, out: &mut Vec<Action>) {
        let Queued { packet, members, paid } = queued;
        if let Some(counted) = self.class_statistics(to, channel.class()) {
            counted.sent_packets += 1;
            counted.sent_bytes += bytes(&packet);
        }
        let trunk = to >= self.nodes_here;
        if !trunk && channel.class() != Class::Reply {
            if let Some(receiver) = self.neighbour_mut(to) {
                receiver.asked(&packet);
            }
        }
        out.push(Action::Send(
            port,
            if trunk { Frame::Forward { layer: channel.layer(), members, packet } } else { Frame::Packet(packet) },
        ));
        self.gone(paid);
    }

    /// A packet, or one copy of a multicast, is in the switch no more: when it was the last, its credit is owed to whom
    /// it came from.
    pub(super) fn gone(&mut self, paid: Option<Paid>) {
        let Some(Paid { place, channel, multicast }) = paid else { return };
        let place = usize::from(place);
        let config = &self.config;
        let Some(neighbour) = self.state.neighbours.get_mut(place).and_then(Option::as_mut) else { return };
        if multicast.is_some_and(|number| !neighbour.copy_gone(number, config)) {
            return;
        }
        // At most the credits that were given, which are 32 bits.
        let owed = &mut neighbour.owed[channel.index()];
        *owed = owed.saturating_add(1);
        if neighbour.credit_due(channel, config) {
            self.touched.push(place);
        }
    }

    // ---- bookkeeping ----

    pub(super) fn count_lost(&mut self, place: Place, class: Class) {
        if let Some(counted) = self.class_statistics(place, class) {
            counted.dropped += 1;
        }
    }

    /// A packet from a node, which waited for a port, is dropped.
    pub(super) fn count_dropped(&mut self, from: NodeId, to: Place, class: Class) {
        let from = self.place_of(from);
        if let Some(from) = from.filter(|from| *from != to) {
            self.count_lost(from, class);
        }
        self.count_lost(to, class);
    }

    /// Whom a place is of, for messages.
    pub(super) fn name(&self, place: Place) -> String {
        match self.neighbour(place).map(|neighbour| neighbour.kind) {
            Some(Kind::Node(node)) => format!("node {node}"),
            Some(Kind::Trunk { trunk, .. }) => format!("trunk {trunk}"),
            None => format!("absent place {place}"),
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
