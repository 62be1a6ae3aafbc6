// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the simulations of one switch and of networks have in common: checks by name, and packets of any class.

use telegraphos_fabric_core::{Action, Event, PortId, Switch, SwitchConfig, UNLIMITED};
use telegraphos_wire::link::Frame;
use telegraphos_wire::packet::MULTICAST;
use telegraphos_wire::{Body, Class, NodeId, PROTOCOL_VERSION, Packet, RemoteAddr, STREAM_BLOCK, WindowLayout};

pub(crate) const WINDOW: WindowLayout = WindowLayout { node_bits: 6, offset_bits: 26 };

#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) check: &'static str,
    pub(crate) detail: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.check, self.detail)
    }
}

/// What the switch does about an event.
pub(crate) fn handle(switch: &mut Switch, event: Event) -> Vec<Action> {
    let mut out = Vec::new();
    switch.handle(event, &mut out);
    out
}

pub(crate) fn frame(switch: &mut Switch, port: PortId, frame: Frame) -> Vec<Action> {
    handle(switch, Event::Frame { port, frame })
}

/// A connection is made that has room for so many frames.
pub(crate) fn opened(switch: &mut Switch, port: PortId, room: u32) {
    handle(switch, Event::PortOpened { port, room, block: STREAM_BLOCK as u32 });
}

/// Opens port `node` and joins as `node` with so many credits of each class.
pub(crate) fn join_offering(switch: &mut Switch, node: NodeId, credits: u32) -> Vec<Action> {
    opened(switch, node.into(), UNLIMITED);
    frame(switch, node.into(), hello(node, WINDOW, credits))
}

pub(crate) fn hello(node: NodeId, window: WindowLayout, credits: u32) -> Frame {
    Frame::Hello { version: PROTOCOL_VERSION, node, window, credits: [credits; 4] }
}

/// A switch with all its nodes, each of which has so many credits of each class.
pub(crate) fn joined_offering(config: SwitchConfig, credits: u32) -> Switch {
    let nodes = config.nodes as NodeId;
    let mut switch = Switch::new(config).unwrap();
    (0..nodes).for_each(|node| _ = join_offering(&mut switch, node, credits));
    switch
}

/// The frames to a port.
pub(crate) fn sent_to(actions: &[Action], to: PortId) -> Vec<Frame> {
    let sent = |action: &Action| match action {
        Action::Send(port, frame) if *port == to => Some(frame.clone()),
        _ => None,
    };
    actions.iter().filter_map(sent).collect()
}

pub(crate) fn fail<T>(check: &'static str, detail: impl Into<String>) -> Result<T, Failure> {
    Err(Failure { check, detail: detail.into() })
}

/// The class of the packets here: requests name it in the context, since today's packets are all requests and replies.
pub(crate) fn class_of(packet: &Packet) -> Class {
    match packet.body {
        Body::Write { context, .. } => Class::from_u8(context as u8).unwrap_or(Class::Request),
        _ => packet.class(),
    }
}

/// A packet of any class that carries its sender's incarnation.
pub(crate) fn packet(src: NodeId, dst: NodeId, class: Class, tag: u32, life: u64) -> Packet {
    let at = RemoteAddr { page: 0, offset: 0, generation: 0 };
    let body =
        Body::Write { at, context: class as u16, epoch: telegraphos_wire::ImportEpoch::default(), size: 8, data: life };
    Packet { src, dst, tag, incarnation: life, target: 0, body }
}

/// A multicast about a page.
pub(crate) fn multicast(src: NodeId, page: u32, tag: u32, life: u64) -> Packet {
    let at = RemoteAddr { page, offset: 0, generation: 0 };
    let body = Body::Reflected { at, size: 8, data: life, writer: src };
    Packet { src, dst: MULTICAST, tag, incarnation: life, target: 0, body }
}
