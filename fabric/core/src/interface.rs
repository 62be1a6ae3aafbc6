// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events, actions and diagnostics: what passes between the switch and its shell.

use telegraphos_topology::{SwitchId, TrunkId};
use telegraphos_wire::link::{Frame, Refusal};
use telegraphos_wire::{Class, NodeId};

/// The shell's name for a connection. It is not used again before the shell has reported [`Event::PortClosed`].
pub type PortId = u32;

/// A port's room that is never used up: for models and simulations without transport back-pressure.
pub const UNLIMITED: u32 = u32::MAX;

/// What a port is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Attached {
    Node(NodeId),
    /// A trunk, and the switch at its other end.
    Trunk(TrunkId, SwitchId),
}

impl core::fmt::Display for Attached {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Attached::Node(node) => write!(f, "node {node}"),
            Attached::Trunk(trunk, to) => write!(f, "trunk {trunk} to switch {to}"),
        }
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A connection was made. It has `room` for that many frames.
    PortOpened {
        port: PortId,
        /// Frames it can take now, or [`UNLIMITED`].
        room: u32,
        /// Bytes of the longest block in a packet that it may send; see [`Frame::NodeUp`].
        block: u32,
    },
    /// A connection was made that is to be this trunk, by either side. It has `room` for that many frames.
    TrunkOpened {
        port: PortId,
        /// Frames it can take now, or [`UNLIMITED`].
        room: u32,
        trunk: TrunkId,
    },
    /// Time has passed. Needed as often as silence is to be noticed: a quarter of
    /// [`SwitchConfig::silence`](crate::SwitchConfig::silence), say.
    Tick {
        /// Microseconds, of a clock that never goes back.
        now: u64,
    },
    /// The connection can now take `frames` frames, counted from this event on (not in addition). Zero: it is busy.
    ///
    /// Each [`Action::Send`] uses up one. At zero the switch keeps what it has for that port until the next such event.
    /// The answer to a Hello and the frame before a [`Action::Close`] are sent in any case.
    PortRoom {
        port: PortId,
        /// Frames it can take now, or [`UNLIMITED`].
        frames: u32,
    },
    Frame {
        port: PortId,
        frame: Frame,
    },
    /// Bytes arrived that are no frame.
    Malformed {
        port: PortId,
    },
    /// The connection has ended. Also reported, and ignored, after an [`Action::Close`].
    PortClosed {
        port: PortId,
    },
}

/// Something for the shell to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send a frame.
    Send(PortId, Frame),
    /// Send what is queued as far as the connection takes it, then end it.
    Close(PortId),
    /// Worth a log line (rate-limited: peers can trigger it).
    Diagnostic(Diagnostic),
}

/// What a port did wrong after it joined, or before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Violation {
    /// Bytes that are no frame.
    #[error("sent bytes that are no frame")]
    Malformed,
    /// A frame that HIBs do not send, or a second Hello.
    #[error("sent a frame that only a fabric sends, or a second hello")]
    Unexpected,
    /// A packet without a credit of its class.
    #[error("sent a packet of class {0:?} without a credit")]
    NoCredit(Class),
    /// A packet with, or a request for, a longer block than the port may send.
    #[error("sent a block of {length} bytes, or a request for one: expected at most {most}")]
    Block {
        /// Bytes of the block.
        length: u64,
        /// The limit of the port.
        most: u32,
    },
    /// A packet in another node's name.
    #[error("sent a packet in the name of node {0}")]
    ForgedSource(NodeId),
    /// A packet to a node id that cannot exist.
    #[error("sent a packet to node {node}: expected a node below {nodes}")]
    Destination {
        node: NodeId,
        /// Node ids are below this.
        nodes: u32,
    },
    /// More credits returned than were used.
    #[error("returned more credits of class {class:?} than were used: {held} of the {offered} it offered")]
    CreditOverflow {
        class: Class,
        /// Credits the switch would hold.
        held: u64,
        /// Credits the node offered.
        offered: u32,
    },
    /// Too many replies wait for one node.
    #[error("sent more replies than it can have received requests: {waiting} wait for one node, limit {limit}")]
    Replies {
        /// Replies that wait.
        waiting: u64,
        limit: u64,
    },
    /// A reset to an incarnation that is not above the last, or too far above it.
    #[error("was reset to incarnation {announced:#x}: expected more than the last, {last:#x}")]
    Incarnation { announced: u64, last: u64 },
    /// A multicast about a page without a group.
    #[error("sent a multicast about page {page} and had named no group for it")]
    NoGroup { page: u32 },
    /// A multicast of a class that has none.
    #[error("sent a multicast of class {0:?}: expected {expected:?}", expected = Class::Reflected)]
    MulticastClass(Class),
    /// A group with a member that cannot be: the sender, or one not above the member before it.
    #[error("named node {node} in the group of page {page}: expected others, in ascending order")]
    GroupMember { page: u32, node: NodeId },
    /// More groups of a node than the switch keeps.
    #[error("named {count} groups: expected at most {limit}")]
    Groups { count: u64, limit: u64 },
    /// A reset, though the node has joined and been reset too often.
    #[error("joined and was reset more often than {burst} times at once and {per_second} times a second")]
    Presence {
        /// How often it may at once.
        burst: u32,
        /// How often it may in a second from then on.
        per_second: u32,
    },
    /// More members in a node's groups than the switch keeps.
    #[error("named groups with {count} members together: expected at most {limit}")]
    Memberships {
        /// Members of all its groups.
        count: u64,
        limit: u64,
    },
    /// No frame arrived for too long, in spite of probes.
    #[error("was silent for {} ms: expected at most {}", silence / 1000, limit / 1000)]
    Silent {
        /// Microseconds of silence.
        silence: u64,
        limit: u64,
    },
    /// It returned no credit for too long, while packets waited for one.
    #[error("returned no credit of class {class:?} for {} ms while packets waited for one", limit / 1000)]
    Stalled {
        /// The class of the packets.
        class: Class,
        /// The limit, in microseconds.
        limit: u64,
    },
    /// By a trunk: something about or from a node that cannot come this way.
    #[error("sent something of or for node {0}, which is not on its way")]
    Astray(NodeId),
    /// By a trunk: a packet on a layer that is not its own.
    #[error("sent a packet on layer {layer}: expected that of its route, below {layers}")]
    Layer {
        /// The layer it came on.
        layer: u8,
        /// Layers of the topology.
        layers: u8,
    },
}

impl Violation {
    /// The values of the refusal: offered, expected.
    pub fn values(&self) -> (u64, u64) {
        match *self {
            Violation::Malformed | Violation::Unexpected => (0, 0),
            Violation::NoCredit(class) => (class as u64, 0),
            Violation::Block { length, most } => (length, most.into()),
            Violation::ForgedSource(node) => (u64::from(node), 0),
            Violation::Destination { node, nodes } => (u64::from(node), u64::from(nodes)),
            Violation::CreditOverflow { held, offered, .. } => (held, u64::from(offered)),
            Violation::Replies { waiting, limit } => (waiting, limit),
            Violation::Incarnation { announced, last } => (announced, last.saturating_add(1)),
            Violation::NoGroup { page } => (u64::from(page), 0),
            Violation::MulticastClass(class) => (class as u64, Class::Reflected as u64),
            Violation::GroupMember { node, .. } => (u64::from(node), 0),
            Violation::Groups { count, limit } | Violation::Memberships { count, limit } => (count, limit),
            Violation::Presence { burst, per_second } => (burst.into(), per_second.into()),
            Violation::Silent { silence, limit } => (silence, limit),
            Violation::Stalled { class, limit } => (class as u64, limit),
            Violation::Astray(node) => (u64::from(node), 0),
            Violation::Layer { layer, layers } => (u64::from(layer), u64::from(layers)),
        }
    }

    /// The reason of the refusal.
    pub fn refusal(&self) -> Refusal {
        match self {
            Violation::Silent { .. } => Refusal::Silent,
            Violation::Presence { .. } => Refusal::Rate,
            _ => Refusal::Protocol,
        }
    }
}

/// Worth a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Diagnostic {
    Joined {
        port: PortId,
        node: NodeId,
        incarnation: u64,
    },
    /// A joiner was refused, with the values of the refusal.
    Refused {
        port: PortId,
        /// The node id it claimed, if it came so far.
        node: Option<NodeId>,
        reason: Refusal,
        offered: u64,
        expected: u64,
    },
    /// The next joiner's refusal: its node's incarnations are used up; only a restart of the fabric helps.
    Exhausted {
        port: PortId,
        node: NodeId,
    },
    /// A neighbour broke the protocol and was disconnected; [`Diagnostic::Left`] or [`Diagnostic::TrunkDown`] follows.
    Violation {
        port: PortId,
        who: Attached,
        what: Violation,
    },
    Reset {
        node: NodeId,
        incarnation: u64,
    },
    TrunkUp {
        port: PortId,
        trunk: TrunkId,
        /// The switch at its other end.
        to: SwitchId,
        /// Its number: greater than at every earlier join.
        epoch: u64,
    },
    /// A trunk has broken. `dropped` packets that came by it or waited for it were in the switch.
    TrunkDown {
        trunk: TrunkId,
        /// The switch at its other end.
        to: SwitchId,
        dropped: u64,
    },
    /// The handshake of a trunk was refused, by this end or the other.
    TrunkRefused {
        trunk: TrunkId,
        reason: Refusal,
        offered: u64,
        expected: u64,
        by_peer: bool,
    },
    /// A node at another switch can be reached, or was reset.
    Reached {
        node: NodeId,
        incarnation: u64,
    },
    /// A node at another switch cannot be reached any more.
    Lost {
        node: NodeId,
    },
    /// A node has left. `dropped` packets, from it and to it, were still in the switch.
    Left {
        node: NodeId,
        dropped: u64,
    },
}

impl core::fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Diagnostic::Joined { node, incarnation, .. } => {
                write!(f, "node {node} joined, incarnation {incarnation:#x}")
            }
            Diagnostic::Refused { node: Some(node), reason, offered, expected, .. } => {
                write!(f, "refused node {node}: ")?;
                match reason {
                    Refusal::NodeTaken => {
                        write!(f, "the node id {node} is taken: stop the other HIB or choose another")
                    }
                    Refusal::NodeRange => write!(f, "node id {offered}: expected below {expected}"),
                    Refusal::Version => write!(f, "link protocol version {offered}: expected {expected}"),
                    Refusal::NodeBits => write!(f, "window node bits {offered}: expected {expected}"),
                    Refusal::OffsetBits => write!(f, "window offset bits {offered}: expected {expected}"),
                    Refusal::Handshake | Refusal::Protocol => {
                        write!(f, "a value of its hello is {offered}: expected at least {expected}")
                    }
                    Refusal::Elsewhere => write!(f, "it is attached to switch {expected}, this is switch {offered}"),
                    Refusal::Topology => write!(f, "its topology has the digest {offered:#x}: expected {expected:#x}"),
                    Refusal::NoTrunk => write!(f, "no trunk joins the switches {offered} and {expected}"),
                    Refusal::Silent => write!(f, "it was silent for {offered} us: expected at most {expected}"),
                    Refusal::Rate => write!(
                        f,
                        "it joins and is reset too often: expected at most {offered} times at once and {expected} times a second"
                    ),
                }
            }
            Diagnostic::Refused { node: None, .. } => f.write_str("refused a connection: its first frame was no hello"),
            Diagnostic::Exhausted { node, .. } => {
                write!(f, "incarnations of node {node} are used up: restart the fabric")
            }
            Diagnostic::Violation { who, what, .. } => write!(f, "disconnected {who}: it {what}"),
            Diagnostic::TrunkUp { trunk, to, epoch, .. } => {
                write!(f, "trunk {trunk} to switch {to} is joined, epoch {epoch}")
            }
            Diagnostic::TrunkDown { trunk, to, dropped } => {
                write!(f, "trunk {trunk} to switch {to} has broken; {dropped} packets dropped")
            }
            Diagnostic::TrunkRefused { trunk, reason, offered, expected, by_peer } => {
                let who = if by_peer { "the other end refused" } else { "refused a connection that was to be" };
                write!(f, "{who} trunk {trunk}: ")?;
                match reason {
                    Refusal::Topology => write!(
                        f,
                        "its topology has the digest {offered:#x}, expected {expected:#x}: give all fabric processes the same"
                    ),
                    Refusal::NoTrunk => write!(
                        f,
                        "switch {offered} called switch {expected}: the two ends disagree on which trunk listens there"
                    ),
                    Refusal::Version => write!(f, "link protocol version {offered}: expected {expected}"),
                    Refusal::Handshake if offered != expected => write!(
                        f,
                        "it was greeted with epoch {offered}, and joined by another connection since, with epoch {expected}"
                    ),
                    other => write!(f, "{other:?}, offered {offered}, expected {expected}"),
                }
            }
            Diagnostic::Reached { node, incarnation } => {
                write!(f, "node {node} can be reached, incarnation {incarnation:#x}")
            }
            Diagnostic::Lost { node } => write!(f, "node {node} cannot be reached any more"),
            Diagnostic::Reset { node, incarnation } => write!(f, "node {node} was reset, incarnation {incarnation:#x}"),
            Diagnostic::Left { node, dropped: 0 } => write!(f, "node {node} left"),
            Diagnostic::Left { node, dropped } => {
                write!(f, "node {node} left; {dropped} packets from or to it dropped")
            }
        }
    }
}
