// SPDX-License-Identifier: MIT OR Apache-2.0
//! Honest HIBs: what they send, and what they must get.

use std::collections::VecDeque;

use telegraphos_wire::link::{Frame, Refusal};
use telegraphos_wire::{Body, Class, NodeId, Packet, Status};

use super::ledger::State;
use super::node::{Inbound, Node};
use super::world::{Network, Settings};
use crate::common::{Failure, class_of, fail, multicast, packet};

impl Network {
    fn node(&mut self, node: NodeId) -> &mut Node {
        &mut self.nodes[usize::from(node)]
    }

    /// Its connection has ended, or it has itself. When it comes back it is another HIB.
    pub(crate) fn node_gone(&mut self, node: NodeId) {
        for (tag, to) in std::mem::take(&mut self.node(node).open) {
            self.ledger.ended(tag, to, State::Over);
        }
        let gone = self.node(node).clone();
        *self.node(node) = Node {
            greatest: gone.greatest,
            eras: gone.eras,
            next_tag: gone.next_tag,
            stopped: gone.stopped,
            ..Node::new(node)
        };
    }

    // ---- what it sends ----

    pub(crate) fn reset(&mut self, node: NodeId) {
        if !self.node(node).joined {
            return;
        }
        for (tag, to) in std::mem::take(&mut self.node(node).open) {
            self.ledger.ended(tag, to, State::Over);
        }
        let hib = self.node(node);
        hib.life += 1;
        hib.greatest = hib.life;
        hib.groups.clear();
        let incarnation = hib.life;
        self.node_sends(node, Frame::Reset { incarnation });
    }

    /// The tag and the receiver; `None` if it may not: a node sends to those only that it was notified of.
    pub(crate) fn send(&mut self, from: NodeId, to: NodeId, class: Class) -> Option<(u32, NodeId)> {
        let hib = self.node(from);
        let target = *hib.notified.get(&to)?;
        let held = &mut hib.held[class as usize];
        *held = held.checked_sub(1)?;
        hib.next_tag += 1;
        let (tag, life, era) = (hib.next_tag, hib.life, (hib.life, hib.era(to)));
        hib.open.insert((tag, to));
        self.ledger.sent(tag, from, to, class, era, false);
        let sent = Packet { target, ..packet(from, to, class, tag, life) };
        self.node_sends(from, Frame::Packet(sent));
        Some((tag, to))
    }

    /// Sets the group of this page to those of these nodes that the node was notified of.
    pub(crate) fn group(&mut self, from: NodeId, page: u32, members: u32) {
        let hib = self.node(from);
        if !hib.joined {
            return;
        }
        let members: Vec<NodeId> =
            hib.notified.keys().copied().filter(|n| *n != from && members >> (n % 32) & 1 == 1).collect();
        hib.groups.remove(&page);
        if !members.is_empty() {
            hib.groups.insert(page, members.clone());
        }
        self.node_sends(from, Frame::Group { page, members });
    }

    pub(crate) fn multicast(&mut self, from: NodeId, page: u32) -> bool {
        const CLASS: Class = Class::Reflected;
        let hib = self.node(from);
        let Some(group) = hib.groups.get(&page).cloned() else { return false };
        // A home removes members that are down.
        if hib.held[CLASS as usize] == 0 || group.iter().any(|member| !hib.notified.contains_key(member)) {
            return false;
        }
        hib.held[CLASS as usize] -= 1;
        hib.next_tag += 1;
        let (tag, life) = (hib.next_tag, hib.life);
        for to in group {
            let era = (life, self.node(from).era(to));
            self.node(from).open.insert((tag, to));
            self.ledger.sent(tag, from, to, CLASS, era, true);
        }
        self.node_sends(from, Frame::Packet(multicast(from, page, tag, life)));
        true
    }

    /// Performs up to so many requests, and answers them.
    pub(crate) fn consume(&mut self, node: NodeId, count: usize) -> Result<(), Failure> {
        for _ in 0..count {
            let hib = self.node(node);
            let Some(first) = hib.inbox.iter().position(|inbound| hib.takes(inbound)) else { return Ok(()) };
            let Some(Inbound { packet, notified }) = hib.inbox.remove(first) else { return Ok(()) };
            let life = hib.life;
            let status = if packet.src == node || packet.target == life { Status::Ok } else { Status::Reset };
            if status == Status::Ok {
                self.ledger.performed(packet.tag, node, (life, notified))?;
            }
            self.ledger.replied(packet.tag, node, status);
            let body = match packet.body {
                Body::Reflected { .. } => Body::CopyAck { status },
                _ => Body::WriteAck { status },
            };
            let (class, incarnation) = (class_of(&packet), packet.incarnation);
            let reply = Packet { src: node, dst: packet.src, tag: packet.tag, incarnation, target: 0, body };
            self.node_sends(node, Frame::Packet(reply));
            self.return_credit(node, class);
        }
        Ok(())
    }

    fn return_credit(&mut self, node: NodeId, class: Class) {
        self.node(node).free[class as usize] += 1;
        self.node_sends(node, Frame::Credit { class, count: 1 });
    }

    // ---- what it gets ----

    pub(crate) fn received(&mut self, node: NodeId, frame: Frame) -> Result<(), Failure> {
        let Settings { given, offered, without, .. } = self.settings;
        let hib = self.node(node);
        match frame {
            Frame::Welcome { incarnation, credits, .. } => {
                if incarnation <= hib.greatest || incarnation & 0xfff != 0 {
                    return fail("incarnation_grows", format!("{node}: {incarnation:#x} after {:#x}", hib.greatest));
                }
                (hib.life, hib.greatest, hib.joined) = (incarnation, incarnation, true);
                (hib.held, hib.free) = (credits, [offered; 4]);
            }
            Frame::Refuse { reason, .. } => {
                // It came back before its switch had noticed that it had gone.
                if reason != Refusal::NodeTaken && self.honest {
                    return fail("honest_stay", format!("node {node} was refused: {reason:?}"));
                }
            }
            Frame::Credit { class, count } => {
                let held = &mut hib.held[class as usize];
                *held += count;
                if *held > given || count == 0 {
                    return fail("credits_conserved", format!("node {node} holds {held} of {given} after {count}"));
                }
            }
            Frame::NodeUp { node: peer, incarnation, .. } => {
                if !hib.heard.insert((peer, incarnation)) && without != Some("incarnation_is_new") {
                    return fail("incarnation_is_new", format!("node {node} heard {incarnation:#x} of {peer} again"));
                }
                hib.notified.insert(peer, incarnation);
                *hib.eras.entry(peer).or_default() += 1;
                self.ledger.count("node up");
            }
            Frame::NodeDown { node: peer } => {
                if hib.notified.remove(&peer).is_none() {
                    return fail("presence_told", format!("node {node} heard the end of {peer}, not its beginning"));
                }
                self.peer_down(node, peer);
            }
            Frame::Packet(packet) if class_of(&packet) == Class::Reply => return self.reply_received(node, packet),
            Frame::Packet(packet) => return self.request_received(node, packet),
            Frame::Probe => self.node_sends(node, Frame::Alive),
            Frame::Alive => {}
            other => return fail("honest_stay", format!("node {node} got {other:?}")),
        }
        Ok(())
    }

    fn peer_down(&mut self, node: NodeId, peer: NodeId) {
        let hib = self.node(node);
        let ended: Vec<(u32, NodeId)> = hib.open.iter().copied().filter(|(_, to)| *to == peer).collect();
        hib.open.retain(|(_, to)| *to != peer);
        let (forgotten, kept): (VecDeque<Inbound>, _) =
            std::mem::take(&mut hib.inbox).into_iter().partition(|inbound| inbound.packet.src == peer);
        hib.inbox = kept;
        for (tag, to) in ended {
            self.ledger.ended(tag, to, State::Down);
        }
        // A request whose sender will not get the reply is not performed.
        for inbound in forgotten {
            self.return_credit(node, class_of(&inbound.packet));
        }
    }

    fn reply_received(&mut self, node: NodeId, packet: Packet) -> Result<(), Failure> {
        let (Body::WriteAck { status } | Body::CopyAck { status }) = packet.body else {
            return fail("answered_truly", format!("node {node} got {packet:?}"));
        };
        let hib = self.node(node);
        if packet.dst != node {
            return fail("right_receiver", format!("node {node} got {packet:?}"));
        }
        if status != Status::NodeDown && !hib.notified.contains_key(&packet.src) {
            return fail("life_order", format!("node {node} got a reply of {}, which is down", packet.src));
        }
        if packet.incarnation != hib.life {
            return Ok(()); // An answer to an earlier life, or to one that was cut off.
        }
        hib.open.remove(&(packet.tag, packet.src));
        self.ledger.answered(packet.tag, node, packet.src, status)
    }

    fn request_received(&mut self, node: NodeId, packet: Packet) -> Result<(), Failure> {
        let class = class_of(&packet);
        let hib = self.node(node);
        if packet.dst != node {
            return fail("right_receiver", format!("node {node} got {packet:?}"));
        }
        // What was sent in one life, or before a cut, is not delivered outside it.
        let notified = hib.notified.get(&packet.src).copied();
        if packet.src != node && notified != Some(packet.incarnation) {
            return fail("life_order", format!("node {node} has {notified:x?} and got {packet:x?}"));
        }
        match hib.free[class as usize].checked_sub(1) {
            Some(free) => hib.free[class as usize] = free,
            None => return fail("credits_never_negative", format!("node {node} has no place for {packet:?}")),
        }
        let notified = hib.era(packet.src);
        let (tag, src) = (packet.tag, packet.src);
        hib.inbox.push_back(Inbound { packet, notified });
        self.order[usize::from(node)].push(src);
        self.ledger.delivered(tag, src, node, class)
    }
}
