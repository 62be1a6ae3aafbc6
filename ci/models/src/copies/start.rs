// SPDX-License-Identifier: MIT OR Apache-2.0
//! Boards that have joined a fabric and become home and copies of each other's pages, by the commands of a driver.

use super::{ADMIN, EXPORTS, STATUS_PAGE, Setup};
use std::collections::VecDeque;
use telegraphos_device_core::{Action, Bar, Event, Hib, HibConfig, Step, StepResult};
use telegraphos_wire::admin::{self, COMPLETION_OFFSET, Command, ReplicaCommand};
use telegraphos_wire::regs::Register;
use telegraphos_wire::{Block, Class, NodeId, Packet, Rights, STREAM_BLOCK, UNIT, WindowLayout};

const INCARNATION: u64 = 1;

/// The boards of a model, in the order of their nodes: every page has a copy at every node.
pub(super) fn boards(setup: &Setup) -> Vec<Hib> {
    let n = setup.programs.len() as u16;
    let pages = setup.homes.len() as u32;
    let mut nodes = Vec::new();
    for id in 0..n {
        let mut config = HibConfig::new(id);
        config.window = WindowLayout::new(if n > 4 { 3 } else { 2 }, 18).expect("nodes of 256 KiB");
        config.contexts = 1;
        config.imports = 4;
        config.export_pages = pages;
        config.counters = 0;
        config.credits = [64; 4];
        config.outstanding = 64;
        config.pending_writes = setup.counters;
        // One packet for each copy: the ideal network has no groups.
        config.fanout_by_switch = false;
        config.bug = setup.bug;
        let credits = config.offered();
        let mut world = Loose { hib: Hib::new(config), out: Vec::new(), answer: None };
        world.event(Event::LinkUp { incarnation: INCARNATION, nodes: n.into(), credits }, None);
        for node in 0..n {
            world.event(Event::NodeUp { node, incarnation: INCARNATION, block: STREAM_BLOCK as u32 }, None);
        }
        world.event(Event::BusMaster(true), None);
        world.register(Register::AdminBase, ADMIN);
        world.command(Command { opcode: admin::CONTEXT_OPEN, address: STATUS_PAGE, ..Command::default() });
        nodes.push(world);
    }
    // Every node exports every page; the homes' are joined.
    let mut generations = vec![Vec::new(); usize::from(n)];
    for id in 0..n {
        for page in 0..pages {
            let grant = Command {
                opcode: admin::GRANT_SET,
                index: page,
                count: 1,
                address: EXPORTS + u64::from(page) * UNIT,
                length: UNIT,
                rights: 7,
                nodes: [u64::MAX; 4],
                ..Command::default()
            };
            let generation = nodes[usize::from(id)].command(grant);
            generations[usize::from(id)].push(generation);
            let import = Command {
                opcode: admin::IMPORT_SET,
                import: page as u16,
                node: id,
                index: page,
                count: 1,
                page,
                generation,
                length: UNIT,
                rights: Rights(7).0,
                taken: 1 + page,
                ..Command::default()
            };
            nodes[usize::from(id)].command(import);
        }
    }
    let mut become_copy = |id: NodeId, page: u32, home: NodeId| {
        let set = ReplicaCommand {
            opcode: admin::REPLICA_SET,
            page,
            mode: setup.mode,
            node: home.into(),
            home_page: page,
            home_generation: generations[usize::from(home)][page as usize],
            ..ReplicaCommand::default()
        };
        nodes[usize::from(id)].begin(set.into());
        exchange(&mut nodes);
        assert!(nodes[usize::from(id)].answer.take().is_some(), "node {id} does not become a copy of node {home}");
    };
    for page in 0..pages {
        let home = setup.homes[page as usize];
        let others = |of: NodeId| (0..n).filter(move |id| *id != of);
        if setup.mode == admin::NAIVE {
            (0..n).for_each(|id| become_copy(id, page, id));
            (0..n).for_each(|id| others(id).for_each(|other| become_copy(id, page, other)));
        } else {
            become_copy(home, page, home);
            others(home).for_each(|id| become_copy(id, page, home));
        }
    }
    nodes.into_iter().map(|world| world.hib).collect()
}

/// A board during the setup: every step is immediate.
struct Loose {
    hib: Hib,
    out: Vec<Packet>,
    answer: Option<u64>,
}

impl Loose {
    fn register(&mut self, register: Register, data: u64) {
        let (offset, size) = (register.offset(), register.size().into());
        self.event(Event::Write { bar: Bar::Control, offset, size, data }, None);
    }

    fn begin(&mut self, command: Command) {
        let register = Register::AdminDoorbell;
        let event =
            Event::Write { bar: Bar::Control, offset: register.offset(), size: register.size().into(), data: 0 };
        self.answer = None;
        self.event(event, Some(Command { seq: 1, ..command }));
    }

    fn command(&mut self, command: Command) -> u64 {
        self.begin(command);
        self.answer.take().expect("the command completes at once")
    }

    fn event(&mut self, event: Event, command: Option<Command>) {
        let mut events = VecDeque::from([event]);
        let mut generation = 0;
        while let Some(event) = events.pop_front() {
            let mut actions = Vec::new();
            self.hib.handle(event, &mut actions);
            // Stores to replicated pages are acknowledged at once, whatever a turn is.
            assert!(!self.hib.owes_acknowledgements());
            for action in actions {
                match action {
                    Action::Send(packet) => self.out.push(packet),
                    Action::Step { step, op } => {
                        let result = match op {
                            Step::LoadCommand { .. } => StepResult::Command(command.expect("a command was given")),
                            Step::LoadBlock { length, .. } => StepResult::Block(Block::from(vec![0; length as usize])),
                            Step::Store { address, data, .. } => {
                                let completion = ADMIN + COMPLETION_OFFSET as u64;
                                if address == completion + 16 {
                                    generation = data;
                                }
                                if address == completion {
                                    assert_eq!(data >> 32, 0, "status of {command:?}");
                                    self.answer = Some(generation);
                                }
                                StepResult::Stored
                            }
                            Step::StoreBlock { .. } => StepResult::Stored,
                            other => panic!("unexpected action of the board: {other:?}"),
                        };
                        events.push_back(Event::StepDone { step, result });
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Delivers all packets between boards during the setup.
fn exchange(nodes: &mut [Loose]) {
    loop {
        let packets: Vec<Packet> = nodes.iter_mut().flat_map(|node| std::mem::take(&mut node.out)).collect();
        if packets.is_empty() {
            return;
        }
        for packet in packets {
            let (src, class) = (packet.src, packet.class());
            nodes[usize::from(packet.dst)].event(Event::Packet(packet), None);
            if class != Class::Reply {
                nodes[usize::from(src)].event(Event::Credit { class, count: 1 }, None);
            }
        }
    }
}
