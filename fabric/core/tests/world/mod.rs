// SPDX-License-Identifier: MIT OR Apache-2.0
//! Honest HIBs around a switch, and what they must see: every check is a [`Failure`] with its name, so that the same
//! checks run against the switch as it is and against the switch with a deliberate bug.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;
use telegraphos_fabric_core::{Action, Bug, CREDITED, Diagnostic, Event, PortId, Switch, SwitchConfig};
use telegraphos_wire::link::Frame;
use telegraphos_wire::{Body, Class, NodeId, PROTOCOL_VERSION, Packet, STREAM_BLOCK, Status, WindowLayout};

use crate::common::{Failure, class_of, fail, multicast, packet};

/// One thing that HIBs or the transport do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Join(NodeId),
    Leave(NodeId),
    Reset(NodeId),
    Send {
        from: NodeId,
        to: NodeId,
        class: Class,
    },
    /// From now on, the nodes of these bits, without the sender, are the group of this page.
    Group {
        from: NodeId,
        page: u32,
        members: u16,
    },
    /// A multicast to the group of this page, if there is one.
    Multicast {
        from: NodeId,
        page: u32,
    },
    /// Process up to `count` packets: a request or a copy is answered, then every packet's credit is returned.
    Consume {
        node: NodeId,
        count: usize,
    },
    Room {
        node: NodeId,
        frames: u32,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) nodes: u32,
    /// Credits of the switch, per class.
    pub(crate) given: u32,
    /// Credits of the HIBs, per class.
    pub(crate) offered: u32,
}

pub(crate) fn schedules() -> impl Strategy<Value = (Sizes, Vec<Op>)> {
    (2u32..=4, 1u32..=4, 1u32..=4).prop_flat_map(|(nodes, given, offered)| {
        let node = 0..nodes as NodeId;
        let class = prop::sample::select(CREDITED.to_vec());
        let op = prop_oneof![
            2 => node.clone().prop_map(Op::Join),
            1 => node.clone().prop_map(Op::Leave),
            1 => node.clone().prop_map(Op::Reset),
            12 => (node.clone(), node.clone(), class).prop_map(|(from, to, class)| Op::Send { from, to, class }),
            2 => (node.clone(), 0u32..2, 0u16..16).prop_map(|(from, page, members)| Op::Group { from, page, members }),
            8 => (node.clone(), 0u32..2).prop_map(|(from, page)| Op::Multicast { from, page }),
            6 => (node.clone(), 0usize..4).prop_map(|(node, count)| Op::Consume { node, count }),
            6 => (node, 0u32..6).prop_map(|(node, frames)| Op::Room { node, frames }),
        ];
        let sizes = Sizes { nodes, given, offered };
        prop::collection::vec(op, 1..200).prop_map(move |mut ops| {
            // Most schedules begin with everybody there, in everybody's groups.
            let mut all: Vec<Op> = (0..nodes as NodeId).map(Op::Join).collect();
            all.extend((0..nodes as NodeId).map(|from| Op::Group { from, page: 0, members: u16::MAX }));
            if ops.len() % 8 != 0 {
                all.append(&mut ops);
                ops = all;
            }
            (sizes, ops)
        })
    })
}

fn life_of(packet: &Packet) -> Option<u64> {
    match packet.body {
        Body::Write { data, .. } | Body::Reflected { data, .. } => Some(data),
        _ => None,
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Hib {
    pub(crate) port: Option<PortId>,
    pub(crate) life: u64,
    joined_as: u64,
    pub(crate) held: [u32; 4],
    pub(crate) room: u32,
    /// Places left for packets of each class.
    free: [u32; 4],
    pub(crate) inbox: VecDeque<Packet>,
    notified: BTreeMap<NodeId, u64>,
    greatest: BTreeMap<NodeId, u64>,
    /// Requests that the switch must answer: the node that it answers for, and tags.
    unanswered: BTreeSet<(NodeId, u32)>,
    /// By page; never empty.
    groups: BTreeMap<u32, Vec<NodeId>>,
}

pub(crate) struct World {
    pub(crate) switch: Switch,
    pub(crate) hibs: Vec<Hib>,
    sizes: Sizes,
    /// Accepted and not delivered, by sender, receiver, class.
    pub(crate) pending: BTreeMap<(NodeId, NodeId, Class), VecDeque<Packet>>,
    incarnations: Vec<u64>,
    next_tag: u32,
    next_port: PortId,
    /// Also run [`Switch::audit`] after each event.
    pub(crate) audit: bool,
    /// Senders of what was delivered, in order.
    pub(crate) order: Vec<NodeId>,
}

impl World {
    pub(crate) fn new(sizes: Sizes, bug: Option<Bug>) -> World {
        let mut config = SwitchConfig::new(sizes.nodes);
        config.credits = [sizes.given; 4];
        // Exactly what honest nodes can have on the way: without the factor of safety.
        config.reply_limit = Some(3 * (sizes.given + sizes.offered));
        config.class_of = class_of;
        config.bug = bug;
        World {
            switch: Switch::new(config).unwrap(),
            hibs: vec![Hib::default(); sizes.nodes as usize],
            sizes,
            pending: BTreeMap::new(),
            incarnations: vec![0; sizes.nodes as usize],
            next_tag: 0,
            next_port: 100,
            audit: bug.is_none(),
            order: Vec::new(),
        }
    }

    fn hib(&mut self, node: NodeId) -> &mut Hib {
        &mut self.hibs[usize::from(node)]
    }

    fn present(&self, node: NodeId) -> bool {
        self.hibs[usize::from(node)].port.is_some()
    }

    pub(crate) fn perform(&mut self, op: Op) -> Result<(), Failure> {
        match op {
            Op::Join(node) => self.join(node),
            Op::Leave(node) => self.leave(node),
            Op::Reset(node) => {
                let Some(port) = self.hib(node).port else { return Ok(()) };
                self.hib(node).life += 1;
                let incarnation = self.hib(node).life;
                self.incarnations[usize::from(node)] = incarnation;
                self.hib(node).groups.clear();
                self.event(Event::Frame { port, frame: Frame::Reset { incarnation } })
            }
            Op::Send { from, to, class } => self.send(from, to, class).map(|_| ()),
            Op::Group { from, page, members } => self.group(from, page, members),
            Op::Multicast { from, page } => self.multicast(from, page).map(|_| ()),
            Op::Consume { node, count } => self.consume(node, count),
            Op::Room { node, frames } => {
                let Some(port) = self.hib(node).port else { return Ok(()) };
                self.hib(node).room = frames;
                self.event(Event::PortRoom { port, frames })
            }
        }
    }

    pub(crate) fn join(&mut self, node: NodeId) -> Result<(), Failure> {
        if self.present(node) {
            return Ok(());
        }
        let port = self.next_port;
        self.next_port += 1;
        let offered = [self.sizes.offered; 4];
        *self.hib(node) = Hib { port: Some(port), room: 3, free: offered, ..Hib::default() };
        self.event(Event::PortOpened { port, room: 3, block: STREAM_BLOCK as u32 })?;
        let window = WindowLayout::default();
        self.event(Event::Frame {
            port,
            frame: Frame::Hello { version: PROTOCOL_VERSION, node, window, credits: offered },
        })
    }

    pub(crate) fn leave(&mut self, node: NodeId) -> Result<(), Failure> {
        let Some(port) = self.hib(node).port.take() else { return Ok(()) };
        self.pending.retain(|(from, to, _), _| *from != node && *to != node);
        self.event(Event::PortClosed { port })
    }

    /// False if there is no credit for it.
    pub(crate) fn send(&mut self, from: NodeId, to: NodeId, class: Class) -> Result<bool, Failure> {
        let hib = self.hib(from);
        if hib.port.is_none() || hib.held[class as usize] == 0 {
            return Ok(false);
        }
        hib.held[class as usize] -= 1;
        let life = hib.life;
        self.next_tag += 1;
        self.transmit(packet(from, to, class, self.next_tag, life))?;
        Ok(true)
    }

    pub(crate) fn group(&mut self, from: NodeId, page: u32, members: u16) -> Result<(), Failure> {
        let nodes = self.sizes.nodes as NodeId;
        let members: Vec<NodeId> = (0..nodes).filter(|n| *n != from && members >> n & 1 == 1).collect();
        let hib = self.hib(from);
        let Some(port) = hib.port else { return Ok(()) };
        hib.groups.remove(&page);
        if !members.is_empty() {
            hib.groups.insert(page, members.clone());
        }
        self.event(Event::Frame { port, frame: Frame::Group { page, members } })
    }

    /// False if there is no group or no credit for it.
    pub(crate) fn multicast(&mut self, from: NodeId, page: u32) -> Result<bool, Failure> {
        const CLASS: Class = Class::Reflected;
        let hib = self.hib(from);
        let (Some(port), Some(group)) = (hib.port, hib.groups.get(&page).cloned()) else { return Ok(false) };
        if hib.held[CLASS as usize] == 0 {
            return Ok(false);
        }
        hib.held[CLASS as usize] -= 1;
        let life = hib.life;
        self.next_tag += 1;
        let sent = multicast(from, page, self.next_tag, life);
        for dst in group {
            if self.present(dst) {
                let copy = Packet { dst, target: self.incarnations[usize::from(dst)], ..sent.clone() };
                self.pending.entry((from, dst, CLASS)).or_default().push_back(copy);
            } else {
                self.hib(from).unanswered.insert((dst, sent.tag));
            }
        }
        self.event(Event::Frame { port, frame: Frame::Packet(sent) })?;
        Ok(true)
    }

    fn transmit(&mut self, packet: Packet) -> Result<(), Failure> {
        let (from, to, class) = (packet.src, packet.dst, class_of(&packet));
        let Some(port) = self.hib(from).port else { return Ok(()) };
        if self.present(to) {
            self.pending.entry((from, to, class)).or_default().push_back(packet.clone());
        } else if class != Class::Reply {
            self.hib(from).unanswered.insert((to, packet.tag));
        }
        self.event(Event::Frame { port, frame: Frame::Packet(packet) })
    }

    pub(crate) fn consume(&mut self, node: NodeId, count: usize) -> Result<(), Failure> {
        for _ in 0..count {
            let Some(port) = self.hib(node).port else { return Ok(()) };
            let Some(taken) = self.hib(node).inbox.pop_front() else { return Ok(()) };
            let class = class_of(&taken);
            if class == Class::Request || matches!(taken.body, Body::Reflected { .. }) {
                let life = self.hib(node).life;
                self.transmit(packet(node, taken.src, Class::Reply, taken.tag, life))?;
            }
            if class != Class::Reply {
                self.hib(node).free[class as usize] += 1;
                self.event(Event::Frame { port, frame: Frame::Credit { class, count: 1 } })?;
            }
        }
        Ok(())
    }

    pub(crate) fn event(&mut self, event: Event) -> Result<(), Failure> {
        let mut actions = Vec::new();
        self.switch.handle(event, &mut actions);
        for action in actions {
            match action {
                Action::Send(port, frame) => {
                    let Some(node) = self.hibs.iter().position(|h| h.port == Some(port)) else {
                        return fail("life_order", format!("{frame:?} to port {port}, which is closed"));
                    };
                    self.received(node as NodeId, frame)?;
                }
                Action::Close(port) => return fail("honest_nodes_stay", format!("port {port} was closed")),
                Action::Diagnostic(Diagnostic::Violation { what, .. }) => {
                    return fail("honest_nodes_stay", format!("violation: {what}"));
                }
                Action::Diagnostic(_) => {}
            }
        }
        self.credits_add_up()?;
        if self.audit {
            if let Err(e) = self.switch.audit() {
                return fail("audit", e);
            }
        }
        Ok(())
    }

    /// A node has no more credits than the switch has places for its packets, and a node without credits has all of
    /// them in packets that wait. A multicast is one packet as long as any copy of it waits.
    fn credits_add_up(&self) -> Result<(), Failure> {
        for (node, hib) in self.hibs.iter().enumerate() {
            if hib.port.is_none() || hib.joined_as == 0 {
                continue;
            }
            for class in CREDITED {
                let waiting: BTreeSet<u32> = self
                    .pending
                    .iter()
                    .filter(|((from, _, c), _)| usize::from(*from) == node && *c == class)
                    .flat_map(|(_, packets)| packets.iter().map(|packet| packet.tag))
                    .collect();
                let (held, waiting) = (hib.held[class as usize] as usize, waiting.len());
                if held + waiting > self.sizes.given as usize {
                    return fail(
                        "credits_cover_packets",
                        format!("node {node} holds {held} credits of class {class:?}, and {waiting} packets wait"),
                    );
                }
                if hib.room > 0 && held == 0 && waiting < self.sizes.given as usize {
                    return fail(
                        "no_stranded_credit",
                        format!("node {node} has no credit of class {class:?}, and {waiting} packets in the switch"),
                    );
                }
            }
        }
        Ok(())
    }

    fn received(&mut self, node: NodeId, frame: Frame) -> Result<(), Failure> {
        let given = self.sizes.given;
        let hib = &mut self.hibs[usize::from(node)];
        if !matches!(frame, Frame::Welcome { .. } | Frame::Refuse { .. }) && hib.room == 0 {
            return fail("room_respected", format!("node {node} has no room for {frame:?}"));
        }
        hib.room = hib.room.saturating_sub(1);
        match frame {
            Frame::Welcome { incarnation, nodes, credits } => {
                let last = &mut self.incarnations[usize::from(node)];
                if incarnation <= *last || incarnation & 0xfff != 0 {
                    return fail("incarnation_grows", format!("node {node}: {incarnation:#x} after {:#x}", *last));
                }
                *last = incarnation;
                (hib.life, hib.joined_as, hib.held) = (incarnation, incarnation, credits);
                assert_eq!((nodes, credits), (self.sizes.nodes, [given; 4]));
            }
            Frame::Credit { class, count } => {
                let held = &mut hib.held[class as usize];
                *held += count;
                if *held > given || count == 0 {
                    return fail("credits_conserved", format!("node {node} holds {held} of {given} after {count}"));
                }
            }
            Frame::NodeUp { node: peer, incarnation, .. } => {
                if hib.greatest.insert(peer, incarnation).is_some_and(|g| g >= incarnation) {
                    return fail("incarnation_grows", format!("node {node} heard {incarnation:#x} of {peer} again"));
                }
                hib.notified.insert(peer, incarnation);
            }
            Frame::NodeDown { node: peer } => {
                if hib.notified.remove(&peer).is_none() {
                    return fail("presence_told", format!("node {node} heard the end of {peer}, not its beginning"));
                }
            }
            Frame::Packet(packet) => return self.delivered(node, packet),
            other => return fail("honest_nodes_stay", format!("node {node} got {other:?}")),
        }
        Ok(())
    }

    fn delivered(&mut self, node: NodeId, packet: Packet) -> Result<(), Failure> {
        let class = class_of(&packet);
        let hib = &mut self.hibs[usize::from(node)];
        if packet.dst != node {
            return fail("i8_per_pair_fifo", format!("node {node} got a packet of node {}", packet.dst));
        }
        if let Body::WriteAck { status: Status::NodeDown } | Body::CopyAck { status: Status::NodeDown } = packet.body {
            if !hib.unanswered.remove(&(packet.src, packet.tag)) {
                return fail("absent_answered", format!("node {node} got an answer to nothing: {packet:?}"));
            }
            return Ok(());
        }
        // What was sent in one life is not delivered outside it; a reply alone may pass the news of a reset.
        let (notified, life) = (hib.notified.get(&packet.src).copied(), life_of(&packet));
        let in_life = if packet.src == node {
            true // A node is not notified of its own resets.
        } else if class == Class::Reply {
            notified.is_some() && notified <= life
        } else {
            notified == life
        };
        if !in_life {
            return fail("life_order", format!("node {node} has {notified:x?} and got {packet:x?}"));
        }
        if class != Class::Reply {
            match hib.free[class as usize].checked_sub(1) {
                Some(free) => hib.free[class as usize] = free,
                None => return fail("credits_never_negative", format!("node {node} has no place for {packet:?}")),
            }
            // A reply waits for no other class.
            let mut replies = self.pending.iter().filter(|((_, to, other), _)| *to == node && *other == Class::Reply);
            if replies.any(|(_, waiting)| !waiting.is_empty()) {
                return fail("i13_replies_first", format!("node {node} got {class:?} before a reply"));
            }
        }
        self.order.push(packet.src);
        hib.inbox.push_back(packet.clone());
        let queue = self.pending.entry((packet.src, node, class)).or_default();
        match queue.pop_front() {
            Some(first) if first == packet => Ok(()),
            first => fail("i8_per_pair_fifo", format!("node {node} got {packet:?}: expected {first:?}")),
        }
    }

    /// Lets everything come to rest, then nothing may be missing.
    pub(crate) fn rest(&mut self) -> Result<(), Failure> {
        for _ in 0..10_000 {
            for node in 0..self.hibs.len() as NodeId {
                self.perform(Op::Room { node, frames: 50 })?;
                self.consume(node, 50)?;
            }
            if self.hibs.iter().all(|h| h.inbox.is_empty()) && self.pending.values().all(VecDeque::is_empty) {
                break;
            }
        }
        if let Some((pair, packets)) = self.pending.iter().find(|(_, q)| !q.is_empty()) {
            return fail("no_loss", format!("{pair:?}: {} packets never arrived", packets.len()));
        }
        let present: BTreeMap<NodeId, u64> = (0..self.hibs.len() as NodeId)
            .filter(|n| self.present(*n))
            .map(|n| (n, self.hibs[usize::from(n)].life))
            .collect();
        for node in present.keys() {
            let hib = &self.hibs[usize::from(*node)];
            if let Some((absent, tag)) = hib.unanswered.first() {
                return fail("absent_answered", format!("node {node}: {tag} to node {absent} was not answered"));
            }
            for class in CREDITED {
                if hib.held[class as usize] * 2 < self.sizes.given {
                    return fail(
                        "credits_conserved",
                        format!("at rest node {node} holds {} of {}", hib.held[class as usize], self.sizes.given),
                    );
                }
            }
            let mut expected = present.clone();
            // A node is not notified of its own resets.
            expected.insert(*node, hib.joined_as);
            if hib.notified != expected {
                return fail("presence_told", format!("node {node} has {:x?}: expected {expected:x?}", hib.notified));
            }
        }
        Ok(())
    }
}

/// Everything that must hold on a schedule.
pub(crate) fn check_schedule(sizes: Sizes, ops: &[Op], bug: Option<Bug>) -> Result<(), Failure> {
    let mut world = World::new(sizes, bug);
    for op in ops {
        world.perform(*op)?;
    }
    world.rest()
}
