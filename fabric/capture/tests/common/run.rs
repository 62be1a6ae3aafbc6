// SPDX-License-Identifier: MIT OR Apache-2.0
//! A seeded run of the real switch core with hosts that mostly behave, and some that do not.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use telegraphos_fabric_core::{Action, Event, Part, PortId, Switch, SwitchConfig};
use telegraphos_topology::{SwitchId, Topology};
use telegraphos_wire::link::Frame;
use telegraphos_wire::packet::MULTICAST;
use telegraphos_wire::{
    Body, Class, ImportEpoch, NodeId, PROTOCOL_VERSION, Packet, RemoteAddr, STREAM_BLOCK, Status, WindowLayout,
};

use telegraphos_testkit::Rng;

/// Nodes of the run.
pub(crate) const NODES: u32 = 5;
/// Ports of trunks are this and above.
const TRUNKS: PortId = 1 << 20;

fn config() -> SwitchConfig {
    let mut config = SwitchConfig::new(NODES);
    config.credits = [4; 4];
    config.base_incarnation = 0x7000;
    config.silence = Some(40_000);
    config.stall = Some(60_000);
    config
}

/// One switch that is alone.
pub(crate) fn alone() -> Vec<(SwitchId, SwitchConfig)> {
    vec![(2, config())]
}

/// The switches of a topology, all in one process.
pub(crate) fn together(flag: &str) -> Vec<(SwitchId, SwitchConfig)> {
    let topology = Arc::new(Topology::parse_flag(flag, NODES).unwrap());
    let config = |switch| {
        let mut config = config();
        config.window = Some(WindowLayout::default());
        config.part = Some(Part { topology: Arc::clone(&topology), switch });
        (switch, config)
    };
    (0..topology.switches()).map(config).collect()
}

#[derive(Debug, Default)]
struct Host {
    port: Option<PortId>,
    /// Credits it holds, by class.
    held: [u32; 4],
    incarnation: u64,
    /// Packets without an answer, or without their credit returned.
    inbox: Vec<Packet>,
    grouped: bool,
}

type Watch<'a> = &'a mut dyn FnMut(SwitchId, &Event, &[Action], u64);

struct Run<'a> {
    random: Rng,
    topology: Option<Arc<Topology>>,
    switches: BTreeMap<SwitchId, Switch>,
    hosts: BTreeMap<NodeId, Host>,
    next_port: PortId,
    tag: u32,
    now: u64,
    watch: Watch<'a>,
}

/// `steps` steps; `watch` sees each event, what the switch does about it, and the time.
pub(crate) fn run(seed: u64, steps: usize, switches: &[(SwitchId, SwitchConfig)], watch: Watch<'_>) {
    let hosts = (0..NODES as NodeId).map(|node| (node, Host::default())).collect();
    let topology = switches[0].1.part.as_ref().map(|part| Arc::clone(&part.topology));
    let switches = switches.iter().map(|(id, config)| (*id, Switch::new(config.clone()).unwrap())).collect();
    let mut run = Run { random: Rng::new(seed), topology, switches, hosts, next_port: 1, tag: 0, now: 0, watch };
    for trunk in 0..run.topology.as_ref().map_or(0, |t| t.trunks().len()) {
        run.join(trunk);
    }
    for _ in 0..steps {
        run.now += run.random.below(50);
        let node = run.random.below(NODES) as NodeId;
        run.step(node);
    }
}

impl Run<'_> {
    /// Joins a trunk, or joins it again after it was broken.
    fn join(&mut self, trunk: usize) {
        let ends = self.topology.as_ref().unwrap().trunks()[trunk];
        let port = TRUNKS + trunk as PortId;
        for at in [ends.a, ends.b] {
            self.feed(at, Event::PortClosed { port });
        }
        // Both are open before either says anything to the other.
        let opened = Event::TrunkOpened { port, room: telegraphos_fabric_core::UNLIMITED, trunk: trunk as u16 };
        self.feed_all([(ends.a, opened.clone()), (ends.b, opened)].into());
    }

    /// The switch of a node.
    fn switch_of(&self, node: NodeId) -> SwitchId {
        match &self.topology {
            Some(topology) => topology.switch_of(node).unwrap(),
            None => *self.switches.keys().next().unwrap(),
        }
    }

    fn feed(&mut self, at: SwitchId, event: Event) {
        self.feed_all([(at, event)].into());
    }

    fn feed_all(&mut self, mut events: VecDeque<(SwitchId, Event)>) {
        while let Some((at, event)) = events.pop_front() {
            let mut actions = Vec::new();
            self.switches.get_mut(&at).unwrap().handle(event.clone(), &mut actions);
            (self.watch)(at, &event, &actions, self.now);
            for action in actions {
                let (port, frame) = match action {
                    Action::Send(port, frame) => (port, frame),
                    Action::Close(port) => {
                        for host in self.hosts.values_mut().filter(|host| host.port == Some(port)) {
                            *host = Host::default();
                        }
                        continue;
                    }
                    Action::Diagnostic(_) => continue,
                };
                if port >= TRUNKS {
                    let to = self.topology.as_ref().unwrap().other_end((port - TRUNKS) as u16, at);
                    events.push_back((to, Event::Frame { port, frame }));
                    continue;
                }
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
    }

    fn frame(&mut self, node: NodeId, frame: Frame) {
        if let Some(port) = self.hosts[&node].port {
            self.feed(self.switch_of(node), Event::Frame { port, frame });
        }
    }

    fn open(&mut self, at: SwitchId) -> PortId {
        let port = self.next_port;
        self.next_port += 1;
        let room = self.random.below(40) as u32;
        self.feed(at, Event::PortOpened { port, room, block: STREAM_BLOCK as u32 });
        port
    }

    fn step(&mut self, node: NodeId) {
        let at = self.switch_of(node);
        let Some(port) = self.hosts[&node].port else {
            let port = self.open(at);
            self.hosts.get_mut(&node).unwrap().port = Some(port);
            let hello =
                Frame::Hello { version: PROTOCOL_VERSION, node, window: WindowLayout::default(), credits: [6; 4] };
            return self.frame(node, hello);
        };
        match self.random.below(100) {
            // Rarely something goes wrong.
            0 => {
                *self.hosts.get_mut(&node).unwrap() = Host::default();
                self.feed(at, Event::PortClosed { port });
            }
            1 => {
                self.feed(at, Event::Malformed { port });
                self.feed(at, Event::PortClosed { port });
            }
            2 => {
                // Another connection claims this node; and one is no HIB at all.
                let other = self.open(at);
                let window = WindowLayout::default();
                let hello = Frame::Hello { version: PROTOCOL_VERSION, node, window, credits: [1; 4] };
                self.feed(at, Event::Frame { port: other, frame: hello });
                self.feed(at, Event::PortClosed { port: other });
                let other = self.open(at);
                self.feed(at, Event::Frame { port: other, frame: Frame::Probe });
            }
            3 => {
                let host = self.hosts.get_mut(&node).unwrap();
                host.incarnation += 1;
                host.grouped = false;
                let incarnation = host.incarnation;
                self.frame(node, Frame::Reset { incarnation });
            }
            // Time passes, sometimes too much.
            4..=6 => {
                self.now += [100, 3000, 9000, 30_000][self.random.below(4) as usize];
                let now = self.now;
                for at in self.switches.keys().copied().collect::<Vec<_>>() {
                    self.feed(at, Event::Tick { now });
                }
            }
            7 => {
                let trunks = self.topology.as_ref().map_or(0, |t| t.trunks().len() as u64);
                if trunks > 0 && self.random.below(3) == 0 {
                    let trunk = self.random.below(trunks) as usize;
                    self.join(trunk);
                }
            }
            8..=19 => {
                let frames = self.random.below(60) as u32;
                self.feed(at, Event::PortRoom { port, frames });
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
            0 => Body::Enqueue { at, context: 0, epoch: ImportEpoch::default(), size: 8, data, after: self.tag },
            1 => Body::Reflected { at, size: 8, data, writer: node },
            2 => Body::Read { at, context: 1, size: 8 },
            _ => Body::Write { at, context: 1, epoch: ImportEpoch { import: 1, epoch: self.tag }, size: 8, data },
        };
        let class = body.class();
        let host = self.hosts.get_mut(&node).unwrap();
        if host.held[class as usize] == 0 || class == Class::Reflected && !host.grouped {
            return;
        }
        host.held[class as usize] -= 1;
        let incarnation = host.incarnation;
        self.tag += 1;
        let dst = if class == Class::Reflected { MULTICAST } else { self.random.below(NODES) as NodeId };
        let packet = Packet { src: node, dst, tag: self.tag, incarnation, target: 0, body };
        self.frame(node, Frame::Packet(packet));
    }
}
