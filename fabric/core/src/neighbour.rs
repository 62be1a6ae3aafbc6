// SPDX-License-Identifier: MIT OR Apache-2.0
//! The other end of a port, a node or another switch: its credits as a sender, and the output that serves it as a
//! receiver.

use std::collections::{BTreeMap, VecDeque};
use std::hint::black_box;

use serde::{Deserialize, Serialize};
use telegraphos_topology::TrunkId;
use telegraphos_wire::link::{self, Frame, packet_len};
use telegraphos_wire::packet;
use telegraphos_wire::{Body, Class, NodeId, Packet};

use crate::channel::{Channel, MAX_CHANNELS};
use crate::groups::Groups;
use crate::lane::{Lane, Mark, Queued};
use crate::nodes::NodeSet;
use crate::{CREDITED, PortId, SwitchConfig, UNLIMITED};

/// The session's bits in the incarnations that nodes see: above the count of resets.
const SESSION_SHIFT: u32 = 12;

/// What a session adds to an incarnation.
pub(crate) fn session_part(session: u64) -> u64 {
    session << SESSION_SHIFT
}

/// Bytes on the link of the longest reply to a request.
fn reply_bytes(request: &Body) -> u64 {
    let payload = match request {
        Body::ReadBlock { length, .. } => *length as usize,
        _ => 0,
    };
    (link::HEAD_LEN + packet::HEADER_LEN + payload) as u64
}

/// The same for all requests of a class: only loads of the class [`Class::Request`] are answered with blocks.
fn longest_reply(class: Class, block: u32) -> u64 {
    let payload = if class == Class::Request { block as usize } else { 0 };
    (link::HEAD_LEN + packet::HEADER_LEN + payload) as u64
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Kind {
    Node(NodeId),
    Trunk { trunk: TrunkId, layers: u8 },
}

impl Kind {
    fn layers(self) -> u8 {
        match self {
            Kind::Node(_) => 1,
            Kind::Trunk { layers, .. } => layers,
        }
    }
}

/// What an output sends next.
#[derive(Debug)]
pub(crate) enum Next {
    /// A frame of the switch itself.
    Control(Frame),
    /// An answer on behalf of an absent node.
    Answer(Packet),
    /// A packet of another node (or of this one to itself).
    Packet { from: NodeId, channel: Channel, queued: Queued },
}

/// Senders whose lane offers a packet, by channel, in the order of service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Turns {
    by_channel: Box<[VecDeque<NodeId>]>,
    /// One bit for each channel with senders: each packet asks for it, and most often there are none.
    filled: u16,
}

const _: () = assert!(MAX_CHANNELS <= u16::BITS as usize);

impl From<Vec<VecDeque<NodeId>>> for Turns {
    fn from(by_channel: Vec<VecDeque<NodeId>>) -> Turns {
        let mut turns = Turns { by_channel: by_channel.into(), filled: 0 };
        turns.update();
        turns
    }
}

impl Turns {
    fn update(&mut self) {
        let filled = self.by_channel.iter().take(MAX_CHANNELS).enumerate().filter(|(_, senders)| !senders.is_empty());
        self.filled = filled.fold(0, |filled, (index, _)| filled | 1 << index);
    }

    /// Number of channels.
    fn channels(&self) -> usize {
        self.by_channel.len()
    }

    fn is_empty(&self, channel: Channel) -> bool {
        self.filled >> channel.index() & 1 == 0
    }

    /// The senders of a channel.
    fn of(&self, channel: Channel) -> &VecDeque<NodeId> {
        &self.by_channel[channel.index()]
    }

    fn push(&mut self, channel: Channel, node: NodeId) {
        self.by_channel[channel.index()].push_back(node);
        self.filled |= 1 << channel.index();
    }

    fn pop(&mut self, channel: Channel) -> Option<NodeId> {
        if self.is_empty(channel) {
            return None;
        }
        let senders = &mut self.by_channel[channel.index()];
        #[cfg(feature = "bugs")]
        crate::bugs::reorder_turns(senders);
        let node = senders.pop_front();
        if senders.is_empty() {
            self.filled &= !(1 << channel.index());
        }
        node
    }

    fn remove(&mut self, node: NodeId) {
        self.by_channel.iter_mut().for_each(|senders| senders.retain(|n| *n != node));
        self.update();
    }
}

/// Credits of one channel that the neighbour has as a sender: credits = held + packets in the switch + owed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Given {
    pub(crate) held: u32,
    /// Of packets that have left the switch; they are not returned yet.
    pub(crate) owed: u32,
}

/// All arrays are indexed by channel; what is in the place of a link's reply class is unused.
///
/// The order of the fields in memory is that in which they are written here: of thousands of ports little is in a
/// cache, so a packet looks at one cache line of the neighbour that it comes from (`given`) and one of the neighbour
/// that it goes to (`credits`), and at the first of both.
#[repr(C, align(64))]
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Saved", into = "Saved")]
pub(crate) struct Neighbour {
    pub(crate) kind: Kind,
    /// The channel to serve next, of those that are served round-robin.
    rotation: u8,
    /// A Probe is to be sent.
    probe: bool,
    /// An Alive is to be sent.
    alive: bool,
    /// Something else than packets and credits is to be sent: what [`Neighbour::is_pending`] computes.
    pending: bool,
    pub(crate) port: PortId,
    /// Frames the port can take now.
    pub(crate) room: u32,
    /// What waits, by sender; idle lanes are not kept.
    lanes: BTreeMap<NodeId, Lane>,
    turns: Turns,
    // The second cache line, of which two layers use all but the end.
    /// Replies of this node that wait for trunks.
    pub(crate) replies_beyond: u64,
    /// As a receiver: credits of each class (on each layer) that it offered, up to the limit.
    pub(crate) offered: [u32; 4],
    /// As a receiver: the credits the switch holds, of those that it offered.
    pub(crate) credits: [u32; MAX_CHANNELS],
    /// Senders whose mark waits only for room.
    marks: VecDeque<NodeId>,
    /// Bytes of the longest replies to the requests that it has taken and not answered; see
    /// [`Neighbour::takes_answer`].
    pub(crate) unanswered: u64,
    // The fourth.
    /// As a sender.
    pub(crate) given: [Given; MAX_CHANNELS],
    /// Bytes of the longest block that it may send.
    pub(crate) block: u32,
    /// Answers on behalf of absent nodes.
    answers: VecDeque<Packet>,
    /// Nodes whose NodeDown is still to be sent.
    down: NodeSet,
    /// Nodes that the neighbour was notified of.
    notified: NodeSet,
    /// Replies of this node that wait for anything.
    pub(crate) replies_waiting: u64,
    /// Its multicasts with copies in the switch, by the lowest numbers that were free: how many copies. Each counts as
    /// one packet.
    pub(crate) multicasts: BTreeMap<u32, u32>,
    pub(crate) groups: Groups,
}

const _: () = assert!(std::mem::offset_of!(Neighbour, replies_beyond) == 64);
const _: () = assert!(std::mem::offset_of!(Neighbour, given) == 192);

/// How a neighbour is written into a snapshot.
#[derive(Serialize, Deserialize)]
struct Saved {
    kind: Kind,
    rotation: u8,
    probe: bool,
    port: PortId,
    room: u32,
    block: u32,
    turns: Vec<VecDeque<NodeId>>,
    lanes: BTreeMap<NodeId, Lane>,
    marks: VecDeque<NodeId>,
    #[serde(with = "crate::snapshot::packets")]
    answers: VecDeque<Packet>,
    down: NodeSet,
    credits: [u32; MAX_CHANNELS],
    offered: [u32; 4],
    replies_beyond: u64,
    held: [u32; MAX_CHANNELS],
    owed: [u32; MAX_CHANNELS],
    replies_waiting: u64,
    unanswered: u64,
    alive: bool,
    #[serde(rename = "told")]
    notified: NodeSet,
    multicasts: BTreeMap<u32, u32>,
    groups: Groups,
}

impl From<Neighbour> for Saved {
    fn from(of: Neighbour) -> Saved {
        Saved {
            kind: of.kind,
            rotation: of.rotation,
            probe: of.probe,
            port: of.port,
            room: of.room,
            block: of.block,
            turns: of.turns.by_channel.into(),
            lanes: of.lanes,
            marks: of.marks,
            answers: of.answers,
            down: of.down,
            credits: of.credits,
            offered: of.offered,
            replies_beyond: of.replies_beyond,
            held: of.given.map(|given| given.held),
            owed: of.given.map(|given| given.owed),
            replies_waiting: of.replies_waiting,
            unanswered: of.unanswered,
            alive: of.alive,
            notified: of.notified,
            multicasts: of.multicasts,
            groups: of.groups,
        }
    }
}

impl From<Saved> for Neighbour {
    fn from(saved: Saved) -> Neighbour {
        let mut given = [Given::default(); MAX_CHANNELS];
        for (given, (held, owed)) in given.iter_mut().zip(saved.held.into_iter().zip(saved.owed)) {
            *given = Given { held, owed };
        }
        let mut neighbour = Neighbour {
            kind: saved.kind,
            rotation: saved.rotation,
            probe: saved.probe,
            alive: saved.alive,
            pending: false,
            port: saved.port,
            room: saved.room,
            block: saved.block,
            lanes: saved.lanes,
            turns: saved.turns.into(),
            replies_beyond: saved.replies_beyond,
            offered: saved.offered,
            credits: saved.credits,
            marks: saved.marks,
            unanswered: saved.unanswered,
            given,
            answers: saved.answers,
            down: saved.down,
            notified: saved.notified,
            replies_waiting: saved.replies_waiting,
            multicasts: saved.multicasts,
            groups: saved.groups,
        };
        neighbour.pending = neighbour.is_pending();
        neighbour
    }
}

impl Neighbour {
    /// `given`: credits of each class (and layer) that it may use.
    pub(crate) fn new(
        kind: Kind,
        port: PortId,
        room: u32,
        block: u32,
        given: [u32; 4],
        offered: [u32; 4],
    ) -> Neighbour {
        let layers = kind.layers();
        let by_channel = |of: [u32; 4]| {
            let mut all = [0; MAX_CHANNELS];
            for channel in Channel::all(layers) {
                all[channel.index()] = of[channel.class() as usize];
            }
            all
        };
        Neighbour {
            kind,
            port,
            room,
            block,
            given: by_channel(given).map(|held| Given { held, owed: 0 }),
            groups: Groups::default(),
            multicasts: BTreeMap::new(),
            replies_beyond: 0,
            replies_waiting: 0,
            unanswered: 0,
            offered,
            credits: by_channel(offered),
            lanes: BTreeMap::new(),
            turns: vec![VecDeque::new(); Channel::all(layers).count()].into(),
            rotation: 0,
            marks: VecDeque::new(),
            answers: VecDeque::new(),
            notified: NodeSet::default(),
            down: NodeSet::default(),
            probe: false,
            alive: false,
            pending: false,
        }
    }

    /// Reads a word of each cache line that a packet's arrival or departure needs; see `Switch::look_ahead`.
    pub(crate) fn look_ahead(&self) {
        black_box((self.port, self.replies_beyond, self.given[0].held));
    }

    /// Whether the other end is a switch.
    pub(crate) fn is_trunk(&self) -> bool {
        matches!(self.kind, Kind::Trunk { .. })
    }

    /// Whether packets of the channel travel against credits here. A node takes every reply, since it sent the request.
    pub(crate) fn credited(&self, channel: Channel) -> bool {
        channel.class() != Class::Reply || self.is_trunk()
    }

    pub(crate) fn credited_channels(&self) -> impl Iterator<Item = Channel> + use<> {
        let trunk = self.is_trunk();
        Channel::all(self.kind.layers()).filter(move |channel| trunk || channel.class() != Class::Reply)
    }

    /// Whether credits of the channel are to be returned now: when the neighbour holds no more than are owed to it. So
    /// it never runs out of credits while there is room, and few frames are needed: one per half of the free credits.
    pub(crate) fn credit_due(&self, channel: Channel) -> bool {
        let Given { held, owed } = self.given[channel.index()];
        #[cfg(feature = "bugs")]
        if bug!(StrandCredit) {
            return crate::bugs::all_owed(owed, channel);
        }
        owed > 0 && owed >= held
    }

    /// A node whose replies wait for trunks gets no more requests until they have drained: so what it makes the switch
    /// hold is bounded. Requests may wait for replies (contract 3).
    pub(crate) fn gated(&self) -> bool {
        self.replies_beyond > 0 && self.replies_beyond >= SwitchConfig::together(&self.offered)
    }

    /// Whether credits allow a packet of the channel to leave.
    fn may_leave(&self, channel: Channel) -> bool {
        if !self.credited(channel) {
            return true;
        }
        (self.credits[channel.index()] > 0 || bug!(IgnoreReceiverCredit)) && !self.gated()
    }

    /// Takes room and credit for a packet that can be sent at once, with nothing before it; the port to send it to.
    /// Relies on the switch having sent everything it could before (see `Switch::audit`).
    pub(crate) fn take_at_once(&mut self, from: NodeId, channel: Channel) -> Option<PortId> {
        let credited = !self.credited(channel)
            || self.credits[channel.index()] > 0 && self.turns.is_empty(channel) && !self.gated();
        if self.room == 0 || !credited || self.lanes.contains_key(&from) {
            return None;
        }
        self.use_room();
        self.use_credit(channel);
        Some(self.port)
    }

    /// A request was sent to this node, which may answer it. The count is bounded by what a node can have unanswered,
    /// since some requests get no answer.
    pub(crate) fn expect_reply(&mut self, request: &Packet) {
        let most: u64 = CREDITED
            .iter()
            .map(|class| longest_reply(*class, self.block) * u64::from(self.offered[*class as usize]))
            .sum();
        self.unanswered = self.unanswered.saturating_add(reply_bytes(&request.body)).min(most);
    }

    /// A reply of this node arrived. True if it fits requests that are counted as unanswered, as many as it answers.
    pub(crate) fn takes_answer(&mut self, reply: &Packet) -> bool {
        let answers = if bug!(CountOneAnswer) { 1 } else { reply.body.answers() };
        match self.unanswered.checked_sub(packet_len(reply) * u64::from(answers)) {
            Some(rest) => {
                self.unanswered = rest;
                true
            }
            None => false,
        }
    }

    fn use_credit(&mut self, channel: Channel) {
        if self.credited(channel) {
            let credits = &mut self.credits[channel.index()];
            *credits = credits.saturating_sub(1);
        }
    }

    /// Replies from `from` that wait.
    pub(crate) fn replies_from(&self, from: NodeId) -> u64 {
        self.lanes.get(&from).map_or(0, Lane::replies)
    }

    /// Queues a packet of `from` behind its others of the channel.
    pub(crate) fn push(&mut self, from: NodeId, channel: Channel, queued: Queued) {
        let lane = self.lanes.entry(from).or_default();
        let offered = lane.offers(channel);
        lane.push(channel, queued);
        if !offered && lane.offers(channel) {
            self.turns.push(channel, from);
        }
    }

    /// Begins a multicast of this neighbour; returns its number.
    pub(crate) fn new_multicast(&mut self) -> u32 {
        let free = (0..).zip(self.multicasts.keys()).find(|(free, used)| free != *used).map(|(free, _)| free);
        let number = free.unwrap_or(self.multicasts.len() as u32);
        self.multicasts.insert(number, 0);
        number
    }

    /// A copy of a multicast has left the switch; true if it was the last.
    pub(crate) fn copy_gone(&mut self, multicast: u32) -> bool {
        let Some(copies) = self.multicasts.get_mut(&multicast) else { return false };
        *copies = copies.saturating_sub(1);
        let last = *copies == 0 || bug!(ReleaseEarly);
        if last {
            self.multicasts.remove(&multicast);
        }
        last
    }

    /// Queues an answer on behalf of an absent node.
    pub(crate) fn push_answer(&mut self, packet: Packet) {
        self.answers.push_back(packet);
        self.pending = true;
    }

    /// An Alive is to be sent.
    pub(crate) fn answer_probe(&mut self) {
        (self.alive, self.pending) = (true, true);
    }

    /// A Probe is to be sent.
    pub(crate) fn ask(&mut self) {
        (self.probe, self.pending) = (true, true);
    }

    /// Whether something else than packets and credits is to be sent.
    fn is_pending(&self) -> bool {
        self.alive || self.probe || !(self.down.is_empty() && self.answers.is_empty() && self.marks.is_empty())
    }

    /// The notification of a node, if it can be sent at once, with nothing before it, and where to.
    pub(crate) fn notify_at_once(&mut self, node: NodeId, mark: Mark) -> Option<(PortId, Frame)> {
        if self.room == 0 || self.pending || !self.lanes.is_empty() {
            return None;
        }
        self.use_room();
        Some((self.port, self.notification(node, mark)))
    }

    fn notification(&mut self, node: NodeId, Mark { incarnation, session, block }: Mark) -> Frame {
        self.notified.insert(node);
        match self.kind {
            Kind::Node(_) => {
                let incarnation = incarnation.wrapping_add(session_part(session));
                Frame::NodeUp { node, incarnation, block: block.min(self.block) }
            }
            Kind::Trunk { .. } => Frame::Reach { node, incarnation, session },
        }
    }

    /// Queues the notification of `node`, behind everything it sent to this neighbour before.
    pub(crate) fn push_mark(&mut self, node: NodeId, mark: Mark) {
        #[cfg(feature = "bugs")]
        let overtakes = crate::bugs::mark_overtakes(self.is_trunk());
        let lane = self.lanes.entry(node).or_default();
        let marked = lane.mark().is_some();
        lane.push_mark(mark);
        #[cfg(feature = "bugs")]
        if overtakes {
            lane.mark_overtakes();
        }
        if !marked && lane.mark().is_some() {
            self.marks.push_back(node);
            self.pending = true;
        }
    }

    /// Removes everything that `node` sent to this neighbour and queues its NodeDown if the neighbour was notified of
    /// it. Returns what is dropped.
    pub(crate) fn forget(&mut self, node: NodeId) -> Vec<(Channel, Queued)> {
        let mut dropped = Vec::new();
        if !bug!(DeliverAfterDown) {
            if let Some(lane) = self.lanes.remove(&node) {
                dropped.extend(lane.into_packets());
                self.marks.retain(|n| *n != node);
                self.turns.remove(node);
            }
        }
        if self.notified.remove(node) && !bug!(ForgetDown) {
            self.down.insert(node);
        }
        self.pending = self.is_pending();
        dropped
    }

    pub(crate) fn waiting(&self) -> impl Iterator<Item = (NodeId, Channel, &Queued)> {
        self.lanes.iter().flat_map(|(from, lane)| lane.packets().map(|(channel, queued)| (*from, channel, queued)))
    }

    /// The same, taken, of a neighbour that has left.
    pub(crate) fn into_waiting(self) -> impl Iterator<Item = (NodeId, Channel, Queued)> {
        self.lanes
            .into_iter()
            .flat_map(|(from, lane)| lane.into_packets().map(move |(channel, queued)| (from, channel, queued)))
    }

    /// Whether packets of the class wait for credits of this neighbour.
    pub(crate) fn starved(&self, class: Class) -> bool {
        let mut channels = self.credited_channels().filter(|channel| channel.class() == class);
        channels.any(|channel| self.credits[channel.index()] == 0 && !self.turns.is_empty(channel) && !self.gated())
    }

    /// The next frame for this neighbour that nothing holds back but room.
    pub(crate) fn next(&mut self) -> Option<Next> {
        // The fast path: for each packet this is called for its sender and its receiver, and most often nothing waits.
        if !self.pending && self.lanes.is_empty() {
            return self.take_credit();
        }
        let next = self.next_of_all();
        self.pending = self.is_pending();
        next
    }

    fn next_of_all(&mut self) -> Option<Next> {
        // First what is bounded by the number of nodes.
        if let Some(node) = self.down.pop_first() {
            return Some(Next::Control(Frame::NodeDown { node }));
        }
        while let Some(node) = self.marks.pop_front() {
            if let Some(frame) = self.take_mark(node) {
                return Some(Next::Control(frame));
            }
        }
        if std::mem::take(&mut self.alive) {
            return Some(Next::Control(Frame::Alive));
        }
        if std::mem::take(&mut self.probe) {
            return Some(Next::Control(Frame::Probe));
        }
        if self.is_trunk() {
            return self.take_credit().or_else(|| self.take_turn());
        }
        const REPLY: Class = Class::Reply;
        #[cfg(feature = "bugs")]
        if bug!(RequestsFirst) {
            if let Some(next) = self.take(Channel::new(Class::Request, 0)) {
                return Some(next);
            }
        }
        #[cfg(feature = "bugs")]
        if bug!(CreditsFirst) {
            if let Some(next) = self.take_credit() {
                return Some(next);
            }
        }
        // Replies before everything that may wait (SPEC I13). There are no more than the node sent requests, and it
        // cannot send more as long as any wait (see below): so nothing starves.
        if let Some(packet) = self.answers.pop_front() {
            return Some(Next::Answer(packet));
        }
        if let Some(next) = self.take(Channel::new(REPLY, 0)) {
            return Some(next);
        }
        // Behind the replies: a node that does not read its replies gets no credit for more requests
        // (`SwitchConfig::reply_limit`).
        self.take_credit().or_else(|| self.take_turn())
    }

    fn take_mark(&mut self, node: NodeId) -> Option<Frame> {
        let lane = self.lanes.get_mut(&node)?;
        let mark = lane.take_mark()?;
        for channel in Channel::all(self.turns.channels() as u8 / 4) {
            // Replies pass marks: their turns are there already.
            if channel.class() != Class::Reply && lane.offers(channel) {
                self.turns.push(channel, node);
            }
        }
        if lane.idle() {
            self.lanes.remove(&node);
        } else if lane.mark().is_some() {
            self.marks.push_back(node);
        }
        Some(self.notification(node, mark))
    }

    fn take_credit(&mut self) -> Option<Next> {
        let channel = match self.kind {
            Kind::Node(_) => Channel::of_link().find(|c| self.credit_due(*c)),
            Kind::Trunk { .. } => self.credited_channels().find(|c| self.credit_due(*c)),
        }?;
        let given = &mut self.given[channel.index()];
        let count = core::mem::take(&mut given.owed);
        given.held += count;
        let (class, layer) = (channel.class(), channel.layer());
        Some(Next::Control(match self.kind {
            Kind::Node(_) => Frame::Credit { class, count },
            Kind::Trunk { .. } => Frame::TrunkCredit { class, layer, count },
        }))
    }

    /// A packet of the next channel, round-robin, of those with credits.
    fn take_turn(&mut self) -> Option<Next> {
        let count = self.turns.channels() as u8;
        let at = self.rotation;
        let turns = Channel::all(count / 4).cycle().skip(usize::from(at)).take(usize::from(count));
        for channel in turns {
            if !self.credited(channel) {
                continue;
            }
            if let Some(next) = self.take(channel) {
                self.rotation = (channel.index() as u8 + 1) % count;
                return Some(next);
            }
        }
        None
    }

    fn take(&mut self, channel: Channel) -> Option<Next> {
        if !self.may_leave(channel) {
            return None;
        }
        let from = self.turns.pop(channel)?;
        let lane = self.lanes.get_mut(&from)?;
        let marked = lane.mark().is_some();
        let queued = lane.take(channel)?;
        if lane.offers(channel) {
            self.turns.push(channel, from);
        }
        if lane.idle() {
            self.lanes.remove(&from);
        } else if !marked && lane.mark().is_some() {
            self.marks.push_back(from);
        }
        self.use_credit(channel);
        Some(Next::Packet { from, channel, queued })
    }

    /// Uses up room for one frame.
    pub(crate) fn use_room(&mut self) {
        if self.room != UNLIMITED {
            self.room = self.room.saturating_sub(1);
        }
    }

    /// Whether indices that a snapshot holds are within what they index.
    pub(crate) fn is_sound(&self, kind: Kind, ports: usize) -> bool {
        let channels = Channel::all(self.kind.layers()).count();
        self.kind == kind
            && self.turns.channels() == channels
            && usize::from(self.rotation) < channels
            && self.lanes.values().all(|lane| lane.is_sound(channels))
            && self.waiting().all(|(_, _, queued)| queued.paid.is_none_or(|paid| usize::from(paid.index) < ports))
    }

    /// Checks that the bookkeeping is consistent; see `Switch::audit`.
    pub(crate) fn audit(&self) -> Result<(), String> {
        for channel in Channel::all(self.kind.layers()) {
            let (index, class) = (channel.index(), channel.class());
            for (node, lane) in &self.lanes {
                let turns = self.turns.of(channel).iter().filter(|n| *n == node).count();
                if turns != usize::from(lane.offers(channel)) {
                    return Err(format!("lane of node {node} has {turns} turns in {channel:?}"));
                }
            }
            if let Some(node) = self.turns.of(channel).iter().find(|n| !self.lanes.contains_key(n)) {
                return Err(format!("node {node} has a turn in {channel:?} and no lane"));
            }
            let (credits, offered) = (self.credits[index], self.offered[class as usize]);
            if self.credited(channel) && credits > offered {
                return Err(format!("credits of {channel:?}: {credits} > {offered}"));
            }
        }
        for (node, lane) in &self.lanes {
            let marks = self.marks.iter().filter(|n| *n == node).count();
            if lane.idle() || marks != usize::from(lane.mark().is_some()) {
                return Err(format!("lane of node {node}: idle {}, {marks} marks", lane.idle()));
            }
        }
        if self.pending != self.is_pending() {
            return Err(format!("pending is {}", self.pending));
        }
        if self.room > 0 {
            if let Some(next) = self.clone().next() {
                return Err(format!("could be sent but is kept: {next:?}"));
            }
        }
        Ok(())
    }
}
