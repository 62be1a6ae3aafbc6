// SPDX-License-Identifier: MIT OR Apache-2.0
//! A seeded run of the real switch core with hosts that mostly behave, and some that do not.

use std::collections::BTreeMap;

use switch_core::{Action, Event, PortId, Switch, SwitchConfig};
use telegraphos_wire::link::Frame;
use telegraphos_wire::packet::MULTICAST;
use telegraphos_wire::{Body, Class, NodeId, PROTOCOL_VERSION, Packet, RemoteAddr, Status, WindowLayout};

use super::Random;

/// Nodes of the run.
pub(crate) const NODES: u32 = 5;

pub(crate) fn config() -> SwitchConfig {
    let mut config = SwitchConfig::new(NODES);
    config.credits = [4; 4];
    config.base_incarnation = 0x7000;
    config
}

#[derive(Debug, Default)]
struct Host {
    port: Option<PortId>,
    /// Credits it holds, by class.
    held: [u32; 4],
    incarnation: u32,
    /// Packets it has not answered, or whose credit it has not returned.
    inbox: Vec<Packet>,
    grouped: bool,
}

struct Run<'a> {
    random: Random,
    switch: Switch,
    hosts: BTreeMap<NodeId, Host>,
    next_port: PortId,
    tag: u32,
    now: u64,
    watch: &'a mut dyn FnMut(&Event, &[Action], u64),
}

/// `steps` steps; `watch` sees each event, what the switch does about it, and the time.
pub(crate) fn run(seed: u64, steps: usize, watch: &mut dyn FnMut(&Event, &[Action], u64)) {
    let switch = Switch::new(config()).unwrap();
    let hosts = (0..NODES as NodeId).map(|node| (node, Host::default())).collect();
    let mut run = Run { random: Random(seed), switch, hosts, next_port: 1, tag: 0, now: 0, watch };
    for _ in 0..steps {
        run.now += run.random.below(50);
        let node = run.random.below(NODES.into()) as NodeId;
        run.step(node);
    }
}

impl Run<'_> {
    fn feed(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.switch.handle(event.clone(), &mut actions);
        (self.watch)(&event, &actions, self.now);
        for action in actions {
            let (port, frame) = match action {
                Action::Send(port, frame) => (port, frame),
                Action::Close(port) => {
                    for host in self.hosts.values_mut().filter(|host| host.port == Some(port)) {
                        *host = Host::default();
                    }
                    continue;
                }
                Action::Notice(_) => continue,
            };
            let Some(host) = self.hosts.values_mut().find(|host| host.port == Some(port)) else { continue };
            match frame {
                Frame::Welcome { incarnation, credits, .. } => {
                    host.incarnation = incarnation;
                    host.held = credits;
                }
                Frame::Credit { class, count } => host.held[class as usize] += count,
                Frame::Packet(packet) => host.inbox.push(packet),
                _ => {}
            }
        }
    }

    fn frame(&mut self, node: NodeId, frame: Frame) {
        if let Some(port) = self.hosts[&node].port {
            self.feed(Event::Frame { port, frame });
        }
    }

    fn open(&mut self) -> PortId {
        let port = self.next_port;
        self.next_port += 1;
        let room = self.random.below(40) as u32;
        self.feed(Event::PortOpened { port, room });
        port
    }

    fn step(&mut self, node: NodeId) {
        let Some(port) = self.hosts[&node].port else {
            let port = self.open();
            self.hosts.get_mut(&node).unwrap().port = Some(port);
            let hello =
                Frame::Hello { version: PROTOCOL_VERSION, node, window: WindowLayout::default(), credits: [6; 4] };
            return self.frame(node, hello);
        };
        match self.random.below(100) {
            // Rarely something goes wrong.
            0 => {
                *self.hosts.get_mut(&node).unwrap() = Host::default();
                self.feed(Event::PortClosed { port });
            }
            1 => {
                self.feed(Event::Malformed { port });
                self.feed(Event::PortClosed { port });
            }
            2 => {
                // Somebody else wants to be this node; and somebody is no HIB at all.
                let other = self.open();
                let window = WindowLayout::default();
                let hello = Frame::Hello { version: PROTOCOL_VERSION, node, window, credits: [1; 4] };
                self.feed(Event::Frame { port: other, frame: hello });
                self.feed(Event::PortClosed { port: other });
                let other = self.open();
                self.feed(Event::Frame { port: other, frame: Frame::Probe });
            }
            3 => {
                let host = self.hosts.get_mut(&node).unwrap();
                host.incarnation += 1;
                host.grouped = false;
                let incarnation = host.incarnation;
                self.frame(node, Frame::Reset { incarnation });
            }
            4..=19 => {
                let frames = self.random.below(60) as u32;
                self.feed(Event::PortRoom { port, frames });
            }
            20..=24 => {
                let members = (0..NODES as NodeId).filter(|member| *member != node).collect();
                self.hosts.get_mut(&node).unwrap().grouped = true;
                self.frame(node, Frame::Group { page: 1, members });
            }
            25..=59 => self.answer(node),
            _ => self.ask(node),
        }
    }

    /// Returns the credit of the oldest packet, and answers it.
    fn answer(&mut self, node: NodeId) {
        let host = self.hosts.get_mut(&node).unwrap();
        if host.inbox.is_empty() {
            return;
        }
        let packet = host.inbox.remove(0);
        let class = packet.class();
        if class == Class::Reply {
            return;
        }
        self.frame(node, Frame::Credit { class, count: 1 });
        let Some(body) = packet.body.refusal(Status::Ok) else { return };
        let reply =
            Packet { src: node, dst: packet.src, tag: packet.tag, incarnation: packet.incarnation, target: 0, body };
        self.frame(node, Frame::Packet(reply));
    }

    fn ask(&mut self, node: NodeId) {
        let at = RemoteAddr { page: 1, offset: 8 * self.random.below(100) as u32, generation: 3 };
        let data = self.random.next();
        let body = match self.random.below(6) {
            0 => Body::Enqueue { at, context: 0, size: 8, data, after: self.tag },
            1 => Body::Reflected { at, size: 8, data, writer: node },
            2 => Body::Read { at, context: 1, size: 8 },
            _ => Body::Write { at, context: 1, size: 8, data },
        };
        let class = body.class();
        let host = self.hosts.get_mut(&node).unwrap();
        if host.held[class as usize] == 0 || class == Class::Reflected && !host.grouped {
            return;
        }
        host.held[class as usize] -= 1;
        let incarnation = host.incarnation;
        self.tag += 1;
        let dst = if class == Class::Reflected { MULTICAST } else { self.random.below(NODES.into()) as NodeId };
        let packet = Packet { src: node, dst, tag: self.tag, incarnation, target: 0, body };
        self.frame(node, Frame::Packet(packet));
    }
}
