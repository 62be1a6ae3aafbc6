// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sizes and limits of the switch.

use std::sync::Arc;

use telegraphos_accounts::Rate;
use telegraphos_topology::{SwitchId, Topology};
#[cfg(feature = "bugs")]
use telegraphos_wire::Packet;
use telegraphos_wire::link::DEFAULT_CREDITS;
use telegraphos_wire::window::LayoutError;
use telegraphos_wire::{Class, NodeId, WindowLayout};

#[cfg(feature = "bugs")]
use crate::Bug;
use crate::CREDITED;

/// The most nodes a window can address (12 node bits).
pub const MAX_NODES: u32 = 1 << 12;

/// Credits of each class that a node is taken to have, unless the switch itself gives more: the most that a board
/// can be configured to use, and of enqueues, which wait in the board, the elements that it can hold.
pub const MAX_ACCEPTED_CREDITS: [u32; 4] = [1 << 14, 1 << 11, 1 << 11, 0];

/// The topology that a switch is part of, and which of its switches it is.
#[derive(Clone, Debug)]
pub struct Part {
    /// The topology; all its switches must have been given the same.
    pub topology: Arc<Topology>,
    pub switch: SwitchId,
}

/// Sizes and limits of the switch. Start from [`SwitchConfig::new`] and change fields.
#[derive(Clone, Debug)]
pub struct SwitchConfig {
    /// Number of nodes of the whole fabric, 1 to [`MAX_NODES`]; node ids are below it.
    pub nodes: u32,
    /// What this switch is part of, if it is not alone.
    pub part: Option<Part>,
    /// Window layout every node must have. `None`: that of the first node to join, as long as any node is present; only
    /// a switch that is alone can do without.
    pub window: Option<WindowLayout>,
    /// Packets of each class that one port may have in the switch, on a trunk of each class and layer, by class number;
    /// at least 1 each. That of the reply class is announced to nodes and means nothing to them.
    pub credits: [u32; 4],
    /// Microseconds after which a port is disconnected that sends nothing, not even an answer to a probe; `None`:
    /// never.
    pub silence: Option<u64>,
    /// Microseconds after which a port is disconnected that returns no credit while packets of the classes request,
    /// reflected or (a trunk's) reply wait for one; `None`: never. A trunk has twice the time, so that the switch
    /// beyond it can disconnect the node that keeps them first. Enqueue credits may be kept for as long as a queue is
    /// stopped (SPEC E12).
    pub stall: Option<u64>,
    /// Replies of one node that may wait for one other; more disconnect their sender.
    ///
    /// `None` computes a limit that no node can exceed which sends one reply per request and has never more requests to
    /// answer than it offered credits, however slowly the requester reads: twice the requests that can be on the way
    /// between the two, that is twice the receiver's credits in the switch plus those the sender offered, up to
    /// [`MAX_ACCEPTED_CREDITS`]. This holds because a port gets its credits back only when no reply waits for it any
    /// more. Replies without a request may be twice the credits that a node has in the switch, for all receivers
    /// together.
    pub reply_limit: Option<u32>,
    /// Incarnations given are greater than this; the low 12 bits are ignored. A restarted fabric passes another,
    /// greater value, so that it does not give an incarnation twice. The epochs of trunks begin with it, too, for the
    /// same reason.
    pub base_incarnation: u64,
    /// How often one node may join or be reset, counted together, over all its connections: every other node is
    /// notified of each. Beyond that a joiner is refused and a node that is reset is disconnected. Microseconds are
    /// those of [`Event::Tick`](crate::Event::Tick); `None`: no limit.
    pub presence_rate: Option<Rate>,
    /// Pairs of nodes that are counted, see [`Pairs::new`](crate::pairs::Pairs::new); 0: none. Each switch counts what
    /// its own nodes send.
    pub pairs: usize,
    /// A deliberate bug that a check must find.
    #[cfg(feature = "bugs")]
    pub bug: Option<Bug>,
    /// Classes of packets for checks, since today's packets are all requests and replies.
    #[cfg(feature = "bugs")]
    pub class_of: fn(&Packet) -> Class,
}

/// Why a configuration is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// `nodes` is outside 1..=[`MAX_NODES`].
    #[error("number of nodes is {0}: expected 1 to {MAX_NODES}")]
    Nodes(u32),
    /// The window addresses fewer nodes than `nodes`.
    #[error(
        "number of nodes is {nodes}, but the window addresses only {window}: expected at most {window}; raise the \
         window's node bits or lower the nodes"
    )]
    WindowNodes {
        nodes: u32,
        /// Nodes the window can address.
        window: u32,
    },
    /// The window layout is impossible.
    #[error("{0}")]
    Window(LayoutError),
    /// A class has no credits.
    #[error("credits of class {class} are 0: expected at least 1, or nothing of it could be sent")]
    Credits { class: u8 },
    /// The topology has another number of nodes.
    #[error("number of nodes is {nodes}, but the topology has {topology}: expected the same")]
    TopologyNodes {
        nodes: u32,
        /// Nodes of the topology.
        topology: u32,
    },
    /// The topology has no such switch.
    #[error("switch {switch}: expected one below {switches}, the number of switches of the topology")]
    NoSwitch {
        switch: SwitchId,
        /// Switches of the topology.
        switches: u16,
    },
    /// The switch has trunks and no window layout.
    #[error(
        "no window layout: expected one, since the switches of a fabric cannot agree on one; give --node-bits and \
         --offset-bits"
    )]
    NoWindow,
}

impl SwitchConfig {
    /// The defaults for a number of nodes.
    pub fn new(nodes: u32) -> SwitchConfig {
        SwitchConfig {
            nodes,
            part: None,
            window: None,
            credits: [DEFAULT_CREDITS; 4],
            silence: None,
            stall: None,
            reply_limit: None,
            base_incarnation: 0,
            presence_rate: None,
            pairs: 0,
            #[cfg(feature = "bugs")]
            bug: None,
            #[cfg(feature = "bugs")]
            class_of: Packet::class,
        }
    }

    /// Checks the sizes against each other and against the topology.
    ///
    /// # Errors
    /// The first that is impossible.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.nodes == 0 || self.nodes > MAX_NODES {
            return Err(ConfigError::Nodes(self.nodes));
        }
        if let Some(w) = self.window {
            WindowLayout::new(w.node_bits, w.offset_bits).map_err(ConfigError::Window)?;
            if w.nodes() < self.nodes {
                return Err(ConfigError::WindowNodes { nodes: self.nodes, window: w.nodes() });
            }
        }
        if let Some(class) = CREDITED.iter().find(|c| self.credits[**c as usize] == 0) {
            return Err(ConfigError::Credits { class: *class as u8 });
        }
        let Some(Part { topology, switch }) = &self.part else { return Ok(()) };
        if *switch >= topology.switches() {
            return Err(ConfigError::NoSwitch { switch: *switch, switches: topology.switches() });
        }
        if topology.nodes() != self.nodes {
            return Err(ConfigError::TopologyNodes { nodes: self.nodes, topology: topology.nodes() });
        }
        let trunks = !topology.trunks().is_empty();
        if trunks && self.credits[telegraphos_wire::Class::Reply as usize] == 0 {
            return Err(ConfigError::Credits { class: telegraphos_wire::Class::Reply as u8 });
        }
        if trunks && self.window.is_none() {
            return Err(ConfigError::NoWindow);
        }
        Ok(())
    }

    /// The credits of each class that the switch uses, of those that a node offers. The limit is the fabric's: the
    /// replies that a node can make the switch hold do not grow with its own figures.
    pub(crate) fn accepted(&self, offered: &[u32; 4]) -> [u32; 4] {
        let mut accepted = *offered;
        if !bug!(AcceptAnyOffer) {
            for class in Class::ALL {
                let entry = &mut accepted[class as usize];
                *entry = (*entry).min(MAX_ACCEPTED_CREDITS[class as usize].max(self.credits[class as usize]));
            }
        }
        accepted
    }

    /// Packets of the credited classes together.
    pub(crate) fn together(credits: &[u32; 4]) -> u64 {
        CREDITED.iter().map(|c| u64::from(credits[*c as usize])).sum()
    }

    /// The limit on waiting replies from a sender that is taken to have these credits.
    pub(crate) fn replies_from(&self, accepted: &[u32; 4]) -> u64 {
        match self.reply_limit {
            Some(limit) => u64::from(limit),
            None => 2 * (SwitchConfig::together(accepted) + SwitchConfig::together(&self.credits)),
        }
    }

    /// Replies of one sender without a request that may wait, for all receivers together.
    pub(crate) fn unrequested(&self) -> u64 {
        self.reply_limit.map_or(2 * SwitchConfig::together(&self.credits), u64::from)
    }

    /// Whether a node id is below the number of nodes.
    pub(crate) fn valid_node(&self, node: NodeId) -> bool {
        u32::from(node) < self.nodes
    }

    /// The class of a packet; checks may set another rule.
    pub(crate) fn class_of(&self, packet: &telegraphos_wire::Packet) -> telegraphos_wire::Class {
        #[cfg(feature = "bugs")]
        return (self.class_of)(packet);
        #[cfg(not(feature = "bugs"))]
        packet.class()
    }
}
