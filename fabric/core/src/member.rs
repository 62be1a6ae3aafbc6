// SPDX-License-Identifier: MIT OR Apache-2.0
//! A present node: its credits as a sender, and the output that serves it as a receiver.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use telegraphos_wire::link::Frame;
use telegraphos_wire::{Class, NodeId, Packet};

use crate::lane::{Lane, Queued};
use crate::{Bug, CREDITED, PortId, SwitchConfig, UNLIMITED};

/// What an output sends next.
#[derive(Debug)]
pub(crate) enum Next {
    /// Something the switch itself says.
    Control(Frame),
    /// An answer on behalf of an absent node.
    Answer(Packet),
    /// A packet of another node (or of this one to itself).
    Packet { from: NodeId, class: Class, queued: Queued },
}

/// All arrays are indexed by class number; what is in the place of the reply class is unused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Member {
    pub(crate) port: PortId,
    /// Frames the port can take now.
    pub(crate) room: u32,

    // As a sender. Of each class: credits = held + packets in the switch + owed.
    /// Credits the node holds.
    pub(crate) held: [u32; 4],
    /// Credits of packets that have left the switch and are not returned yet.
    pub(crate) owed: [u32; 4],
    /// Its groups, by page: members in ascending order, never none.
    pub(crate) groups: BTreeMap<u32, Arc<[NodeId]>>,
    /// Its multicasts with copies in the switch, by the lowest numbers that were free: how many copies. Each counts as one packet.
    pub(crate) multicasts: BTreeMap<u32, u32>,

    // As a receiver.
    /// Credits the node offered when it joined.
    pub(crate) offered: [u32; 4],
    /// Those of them the switch holds.
    pub(crate) credits: [u32; 4],
    /// What waits, by sender; idle lanes are not kept.
    lanes: BTreeMap<NodeId, Lane>,
    /// By class: whose turn it is, among the senders whose lane offers a packet.
    turns: [VecDeque<NodeId>; 4],
    /// Senders whose mark waits for nothing but room.
    marks: VecDeque<NodeId>,
    /// Answers on behalf of absent nodes.
    answers: VecDeque<Packet>,
    /// Nodes whose presence was told.
    told: BTreeSet<NodeId>,
    /// Nodes whose end is still to be told.
    down: BTreeSet<NodeId>,
}

impl Member {
    pub(crate) fn new(port: PortId, room: u32, given: [u32; 4], offered: [u32; 4]) -> Member {
        Member {
            port,
            room,
            held: given,
            owed: [0; 4],
            groups: BTreeMap::new(),
            multicasts: BTreeMap::new(),
            offered,
            credits: offered,
            lanes: BTreeMap::new(),
            turns: Default::default(),
            marks: VecDeque::new(),
            answers: VecDeque::new(),
            told: BTreeSet::new(),
            down: BTreeSet::new(),
        }
    }

    /// Whether credits of the class are to be returned: when the node holds no more than what is owed to it. So it never
    /// runs dry while room is free, and frames stay few: one per half of what is free.
    pub(crate) fn credit_due(&self, class: Class, config: &SwitchConfig) -> bool {
        let (held, owed) = (self.held[class as usize], self.owed[class as usize]);
        if config.has(Bug::StrandCredit) {
            return owed == config.credits[class as usize];
        }
        owed > 0 && owed >= held
    }

    /// Whether a packet from `from` could be sent at once, with nothing before it. Relies on the switch having sent
    /// everything it could before (see `Switch::audit`).
    fn ready_for(&self, from: NodeId, class: Class) -> bool {
        let credited =
            class == Class::Reply || (self.credits[class as usize] > 0 && self.turns[class as usize].is_empty());
        self.room > 0 && credited && !self.lanes.contains_key(&from)
    }

    /// Takes room and credit for a packet that can be sent at once; the port to send it to.
    pub(crate) fn take_at_once(&mut self, from: NodeId, class: Class) -> Option<PortId> {
        if !self.ready_for(from, class) {
            return None;
        }
        self.use_room();
        if class != Class::Reply {
            self.credits[class as usize] -= 1;
        }
        Some(self.port)
    }

    /// Replies from `from` that wait.
    pub(crate) fn replies_from(&self, from: NodeId) -> u64 {
        self.lanes.get(&from).map_or(0, Lane::replies)
    }

    pub(crate) fn push(&mut self, from: NodeId, class: Class, queued: Queued, config: &SwitchConfig) {
        let lane = self.lanes.entry(from).or_default();
        let offered = lane.offers(class);
        let overtakes = queued.multicast.is_some() && config.has(Bug::MulticastOvertakes);
        lane.push(class, queued, overtakes);
        if !offered && lane.offers(class) {
            self.turns[class as usize].push_back(from);
        }
    }

    /// A multicast of this node that is not complete: its name.
    pub(crate) fn new_multicast(&mut self) -> u32 {
        let free = (0..).zip(self.multicasts.keys()).find(|(free, used)| free != *used).map(|(free, _)| free);
        let number = free.unwrap_or(self.multicasts.len() as u32);
        self.multicasts.insert(number, 0);
        number
    }

    /// A copy of a multicast is in the switch no more; true if it was the last.
    pub(crate) fn copy_gone(&mut self, multicast: u32, config: &SwitchConfig) -> bool {
        let Some(copies) = self.multicasts.get_mut(&multicast) else { return false };
        *copies = copies.saturating_sub(1);
        let last = *copies == 0 || config.has(Bug::ReleaseEarly);
        if last {
            self.multicasts.remove(&multicast);
        }
        last
    }

    pub(crate) fn push_answer(&mut self, packet: Packet) {
        self.answers.push_back(packet);
    }

    /// Tells of `node`, behind everything it sent here before.
    pub(crate) fn push_mark(&mut self, node: NodeId, incarnation: u32) {
        let lane = self.lanes.entry(node).or_default();
        let marked = lane.mark().is_some();
        lane.push_mark(incarnation);
        if !marked && lane.mark().is_some() {
            self.marks.push_back(node);
        }
    }

    /// Forgets everything `node` sent here and tells its end if its presence was told. Returns the packets dropped, by
    /// class number.
    pub(crate) fn forget(&mut self, node: NodeId, config: &SwitchConfig) -> [u64; 4] {
        let mut dropped = [0; 4];
        if !config.has(Bug::DeliverAfterDown) {
            if let Some(lane) = self.lanes.remove(&node) {
                dropped = Class::ALL.map(|c| lane.count(c));
            }
            self.marks.retain(|n| *n != node);
            for turns in &mut self.turns {
                turns.retain(|n| *n != node);
            }
        }
        if self.told.remove(&node) && !config.has(Bug::ForgetDown) {
            self.down.insert(node);
        }
        dropped
    }

    /// Packets that wait for this node, by sender and class number.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (NodeId, [u64; 4])> + '_ {
        self.lanes.iter().map(|(from, lane)| (*from, Class::ALL.map(|c| lane.count(c))))
    }

    /// How many of a sender's packets of the class reflected that wait for this node are copies of multicasts.
    pub(crate) fn copies_from(&self, from: NodeId) -> u64 {
        self.lanes.get(&from).map_or(0, |lane| lane.multicasts().count() as u64)
    }

    /// Copies that wait for this node: sender, and the multicast they belong to.
    pub(crate) fn waiting_copies(&self) -> impl Iterator<Item = (NodeId, u32)> + '_ {
        self.lanes.iter().flat_map(|(from, lane)| lane.multicasts().map(|multicast| (*from, multicast)))
    }

    /// The next frame for this node that nothing holds back but room.
    pub(crate) fn next(&mut self, config: &SwitchConfig) -> Option<Next> {
        // First what is bounded by the number of nodes.
        if let Some(node) = self.down.pop_first() {
            return Some(Next::Control(Frame::NodeDown { node }));
        }
        while let Some(node) = self.marks.pop_front() {
            if let Some(frame) = self.take_mark(node) {
                return Some(Next::Control(frame));
            }
        }
        if config.has(Bug::RequestsFirst) {
            if let Some(next) = self.take(Class::Request, config) {
                return Some(next);
            }
        }
        if config.has(Bug::CreditsFirst) {
            if let Some(next) = self.take_credit(config) {
                return Some(next);
            }
        }
        // Replies before everything that may wait (SPEC I13).
        if let Some(packet) = self.answers.pop_front() {
            return Some(Next::Answer(packet));
        }
        if let Some(next) = self.take(Class::Reply, config) {
            return Some(next);
        }
        // Behind the replies: a node that does not read its replies gets no credit to ask for more
        // (`SwitchConfig::reply_limit`).
        if let Some(next) = self.take_credit(config) {
            return Some(next);
        }
        CREDITED.iter().find_map(|class| self.take(*class, config))
    }

    fn take_mark(&mut self, node: NodeId) -> Option<Frame> {
        let lane = self.lanes.get_mut(&node)?;
        let incarnation = lane.take_mark()?;
        for class in CREDITED {
            if lane.offers(class) {
                self.turns[class as usize].push_back(node);
            }
        }
        if lane.idle() {
            self.lanes.remove(&node);
        } else if lane.mark().is_some() {
            self.marks.push_back(node);
        }
        self.told.insert(node);
        Some(Frame::NodeUp { node, incarnation })
    }

    fn take_credit(&mut self, config: &SwitchConfig) -> Option<Next> {
        let class = CREDITED.into_iter().find(|c| self.credit_due(*c, config))?;
        let count = core::mem::take(&mut self.owed[class as usize]);
        self.held[class as usize] += count;
        Some(Next::Control(Frame::Credit { class, count }))
    }

    fn take(&mut self, class: Class, config: &SwitchConfig) -> Option<Next> {
        let index = class as usize;
        if class != Class::Reply && self.credits[index] == 0 && !config.has(Bug::IgnoreReceiverCredit) {
            return None;
        }
        let from = if config.has(Bug::LowestFirst) {
            let lowest = self.turns[index].iter().copied().min()?;
            self.turns[index].retain(|n| *n != lowest);
            lowest
        } else {
            self.turns[index].pop_front()?
        };
        let lane = self.lanes.get_mut(&from)?;
        let marked = lane.mark().is_some();
        let queued = lane.take(class, config.has(Bug::LifoLane))?;
        if lane.offers(class) {
            self.turns[index].push_back(from);
        }
        if lane.idle() {
            self.lanes.remove(&from);
        } else if !marked && lane.mark().is_some() {
            self.marks.push_back(from);
        }
        if class != Class::Reply {
            self.credits[index] = self.credits[index].saturating_sub(1);
        }
        Some(Next::Packet { from, class, queued })
    }

    /// Uses up room for one frame.
    pub(crate) fn use_room(&mut self) {
        if self.room != UNLIMITED {
            self.room = self.room.saturating_sub(1);
        }
    }

    /// Whether the bookkeeping agrees with itself; see `Switch::audit`.
    pub(crate) fn audit(&self, config: &SwitchConfig) -> Result<(), String> {
        for class in Class::ALL {
            let index = class as usize;
            for (node, lane) in &self.lanes {
                let turns = self.turns[index].iter().filter(|n| *n == node).count();
                if turns != usize::from(lane.offers(class)) {
                    return Err(format!("lane of node {node} has {turns} turns in class {class:?}"));
                }
            }
            if let Some(node) = self.turns[index].iter().find(|n| !self.lanes.contains_key(n)) {
                return Err(format!("node {node} has a turn in class {class:?} and no lane"));
            }
            if class != Class::Reply && self.credits[index] > self.offered[index] {
                return Err(format!("credits of class {class:?}: {} > {}", self.credits[index], self.offered[index]));
            }
        }
        for (node, lane) in &self.lanes {
            let marks = self.marks.iter().filter(|n| *n == node).count();
            if lane.idle() || marks != usize::from(lane.mark().is_some()) {
                return Err(format!("lane of node {node}: idle {}, {marks} marks", lane.idle()));
            }
        }
        if self.room > 0 {
            if let Some(next) = self.clone().next(config) {
                return Err(format!("could be sent but is kept: {next:?}"));
            }
        }
        Ok(())
    }
}
