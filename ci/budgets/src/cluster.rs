// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first and the last node of a cluster with their boards, the switch, and what the drivers of both have set up:
//! a segment, a replicated page whose home is the first node, and a queue of the last.

use crate::board::Board;
use telegraphos_device_core::{Bar, Event, HibConfig};
use telegraphos_fabric_core::{Action, Event as SwitchEvent, Switch, SwitchConfig, UNLIMITED};
use telegraphos_wire::admin::{self, Command, Completion, QueueCommand, ReplicaCommand};
use telegraphos_wire::link::Frame;
use telegraphos_wire::queue::{HEAD_WORD, Shape, TAIL_WORD};
use telegraphos_wire::regs::Register;
use telegraphos_wire::{
    Aperture, NodeId, PROTOCOL_VERSION, Rights, STREAM_BLOCK, Status, UNIT, WindowAddress, WindowLayout, context,
};

/// How large the cluster is, besides the operation's own part of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Nodes that have joined the switch. Only the first and the last have a board.
    pub(crate) nodes: u16,
    /// Open contexts of each board.
    pub(crate) contexts: u16,
    /// Queues of the last node.
    pub(crate) queues: u16,
}

/// Window slots, at the first board.
pub(crate) const SEGMENT: u32 = 0;
pub(crate) const REPLICATED: u32 = 1;
pub(crate) const QUEUE: u32 = 2;

// Guest memory.
const ADMIN: u64 = 0x1_0000;
const EVENTS: u64 = 0x2_0000;
const STATUS_PAGES: u64 = 0x10_0000;
pub(crate) const SEGMENT_AT: u64 = 0x20_0000;
pub(crate) const REPLICATED_AT: u64 = SEGMENT_AT + UNIT;
const QUEUES_AT: u64 = REPLICATED_AT + UNIT;

/// Entries of the event ring.
const RING: u32 = 64;
/// Export pages of the segment and the replicated page; those of the queues follow.
const SEGMENT_PAGE: u32 = 0;
const REPLICATED_PAGE: u32 = 1;
const FIRST_QUEUE_PAGE: u32 = 2;

/// Loads, stores and atomics.
const RIGHTS: Rights = Rights(Rights::READ.0 | Rights::WRITE.0 | Rights::ATOMIC.0);

/// The key of a context.
pub(crate) fn key(context: u16) -> u64 {
    0x5eed_0000_0001 + u64::from(context)
}

/// Queues of one page of memory, to which their buffers are aligned.
fn shape() -> Shape {
    Shape::new(512, 8).unwrap()
}

fn padded(name: &str) -> [u8; 64] {
    let mut out = [0; 64];
    out[..name.len()].copy_from_slice(name.as_bytes());
    out
}

#[derive(Clone, Copy, Default)]
struct Driver {
    /// Number of its last command.
    seq: u32,
    /// Events taken from the ring.
    taken: u32,
}

pub(crate) struct Cluster {
    pub(crate) boards: [Board; 2],
    drivers: [Driver; 2],
    switch: Switch,
    /// Buffer, kept to reuse its allocation.
    actions: Vec<Action>,
    /// Microseconds; each turn takes one.
    now: u64,
    layout: WindowLayout,
    /// Address of the queue that is used: the last one.
    queue_at: u64,
}

impl Cluster {
    pub(crate) fn new(sizes: Sizes) -> Cluster {
        // The same window for every number of nodes.
        let layout = WindowLayout::new(12, 24).unwrap();
        let queue_at = QUEUES_AT + u64::from(sizes.queues - 1) * shape().bytes();
        let memory = (queue_at + shape().bytes()) as usize;
        let board = |node| {
            let mut config = HibConfig::new(node);
            config.window = layout;
            // Room for the most queues that are measured, whatever their number.
            config.export_pages = FIRST_QUEUE_PAGE + u32::from(sizes.queues).max(4096);
            Board::new(config, memory)
        };
        let mut cluster = Cluster {
            boards: [board(0), board(sizes.nodes - 1)],
            drivers: [Driver::default(); 2],
            switch: Switch::new(SwitchConfig::new(u32::from(sizes.nodes))).unwrap(),
            actions: Vec::new(),
            now: 0,
            layout,
            queue_at,
        };
        for node in 0..sizes.nodes {
            cluster.join(node);
        }
        cluster.settle();
        for board in 0..2 {
            cluster.start(board, sizes.contexts);
        }
        cluster.share(sizes);
        cluster
    }

    /// An address of the first board's window.
    pub(crate) fn window(&self, aperture: Aperture, node: NodeId, offset: u64) -> u64 {
        self.layout.encode(WindowAddress { aperture, node, offset }).unwrap()
    }

    /// Accesses of a guest, and all that follows from them. The guest makes no others meanwhile, so the server finds
    /// its socket empty.
    pub(crate) fn guest(&mut self, board: usize, events: impl IntoIterator<Item = Event>) {
        self.now += 1;
        self.boards[board].turn(self.now, events.into_iter().chain([Event::IntakeDry]));
        self.settle();
    }

    /// The consumer takes an element of the queue, by loads and a store of the processor.
    pub(crate) fn take_element(&mut self) -> Option<u64> {
        let board = &mut self.boards[1];
        let header = |board: &Board, word: u64| shape().header(board.word(self.queue_at + 8 * word)).unwrap();
        let (head, tail) = (header(board, HEAD_WORD), header(board, TAIL_WORD));
        if head == tail {
            return None;
        }
        let element = board.word(self.queue_at + 8 * u64::from(head.index));
        board.set_word(self.queue_at + 8 * HEAD_WORD, head.advanced().encode().into());
        Some(element)
    }

    /// Turns of boards and switch until nothing is left to do.
    fn settle(&mut self) {
        loop {
            let mut idle = true;
            for at in 0..2 {
                if !self.boards[at].output.is_empty() {
                    self.relay(at);
                    idle = false;
                }
            }
            for board in &mut self.boards {
                if !board.input.is_empty() || board.more {
                    self.now += 1;
                    board.turn(self.now, []);
                    idle = false;
                }
            }
            if idle {
                return;
            }
        }
    }

    /// The switch reads what a board has sent.
    fn relay(&mut self, board: usize) {
        let port = u32::from(self.boards[board].node);
        let bytes = std::mem::take(&mut self.boards[board].output);
        let mut rest = bytes.as_slice();
        while let Some((frame, used)) = Frame::decode(rest).expect("boards send frames") {
            rest = &rest[used..];
            self.switch_event(SwitchEvent::Frame { port, frame });
        }
        let board = &mut self.boards[board];
        board.output = bytes;
        board.output.clear();
    }

    fn switch_event(&mut self, event: SwitchEvent) {
        let mut actions = std::mem::take(&mut self.actions);
        self.switch.handle(event, &mut actions);
        for action in actions.drain(..) {
            match action {
                Action::Send(port, frame) => {
                    // The other nodes have no boards; what they are sent ends here.
                    if let Some(board) = self.boards.iter_mut().find(|board| u32::from(board.node) == port) {
                        frame.encode(&mut board.input);
                    }
                }
                Action::Close(port) => panic!("the switch closes port {port}"),
                Action::Diagnostic(_) => {}
            }
        }
        self.actions = actions;
    }

    fn join(&mut self, node: NodeId) {
        let config = self.boards[0].hib.config();
        let (window, credits) = (config.window, config.offered());
        self.switch_event(SwitchEvent::PortOpened { port: node.into(), room: UNLIMITED, block: STREAM_BLOCK as u32 });
        let frame = Frame::Hello { version: PROTOCOL_VERSION, node, window, credits };
        self.switch_event(SwitchEvent::Frame { port: node.into(), frame });
    }

    // ---- the drivers ----

    fn register(&mut self, board: usize, register: Register, data: u64) {
        let (offset, size) = (register.offset(), u32::from(register.size()));
        self.guest(board, [Event::Write { bar: Bar::Control, offset, size, data }]);
    }

    fn start(&mut self, board: usize, contexts: u16) {
        self.guest(board, [Event::BusMaster(true)]);
        self.register(board, Register::AdminBase, ADMIN);
        self.register(board, Register::EventBase, EVENTS);
        self.register(board, Register::EventSize, RING.into());
        self.register(board, Register::Control, 1);
        for context in 0..contexts {
            let address = STATUS_PAGES + u64::from(context) * context::STATUS_SIZE;
            let key = key(context);
            self.admin(board, Command { opcode: admin::CONTEXT_OPEN, context, address, key, ..Command::default() });
        }
    }

    /// Performs a command, which must succeed.
    fn admin(&mut self, board: usize, mut command: Command) -> Completion {
        self.drivers[board].seq += 1;
        let seq = self.drivers[board].seq;
        command.seq = seq;
        let slot = u64::from(seq % 64);
        let at = ADMIN + slot * admin::BLOCK_SIZE as u64;
        self.boards[board].set_bytes(at, bytemuck::bytes_of(&command));
        self.register(board, Register::AdminDoorbell, slot);
        let completion = self.boards[board].bytes(at + admin::COMPLETION_OFFSET as u64, size_of::<Completion>());
        let completion: Completion = bytemuck::pod_read_unaligned(completion);
        assert_eq!((completion.seq, completion.status), (seq, Status::Ok as u32), "{command:?}");
        self.take_events(board);
        completion
    }

    /// Takes the events from the ring, so that it is never full.
    fn take_events(&mut self, board: usize) {
        let before = self.drivers[board].taken;
        let mut taken = before;
        while self.boards[board].word(EVENTS + u64::from(taken % RING) * 16 + 8) >> 32 == u64::from(taken + 1) {
            taken += 1;
        }
        if taken != before {
            self.drivers[board].taken = taken;
            self.register(board, Register::EventConsumer, taken.into());
        }
    }

    /// Exports and imports everything that operations use.
    fn share(&mut self, sizes: Sizes) {
        let [own, remote] = [0, 1].map(|board| self.boards[board].node);
        for board in 0..2 {
            self.export(board, "segment", SEGMENT_PAGE, SEGMENT_AT);
            self.export(board, "replicated", REPLICATED_PAGE, REPLICATED_AT);
        }
        for board in 0..2 {
            let found = self.lookup(board, own, "replicated");
            let set = ReplicaCommand {
                opcode: admin::REPLICA_SET,
                page: REPLICATED_PAGE,
                mode: admin::COUNTERS,
                node: own.into(),
                home_page: found.index,
                home_generation: found.generation,
                ..ReplicaCommand::default()
            };
            self.admin(board, set.into());
        }
        for queue in 0..sizes.queues {
            self.make_queue(queue.into(), queue + 1 == sizes.queues);
        }
        let imports = [
            (own, "segment", SEGMENT),
            (remote, "segment", SEGMENT),
            (own, "replicated", REPLICATED),
            (remote, "queue", QUEUE),
        ];
        for (import, (node, name, index)) in (0..).zip(imports) {
            let found = self.lookup(0, node, name);
            let set = Command {
                opcode: admin::IMPORT_SET,
                // The context that atomics use, which must have the imports of its arguments.
                context: sizes.contexts - 1,
                import,
                node,
                index,
                count: found.count,
                page: found.index,
                generation: found.generation,
                length: found.length,
                rights: found.rights as u16,
                ..Command::default()
            };
            self.admin(0, set);
        }
    }

    fn export(&mut self, board: usize, name: &str, index: u32, address: u64) {
        let grant = Command {
            opcode: admin::GRANT_SET,
            index,
            count: 1,
            address,
            length: UNIT,
            rights: RIGHTS.0,
            nodes: [u64::MAX; 4],
            ..Command::default()
        };
        let generation = self.admin(board, grant).generation;
        self.publish(board, name, index, generation, UNIT, RIGHTS);
    }

    fn publish(&mut self, board: usize, name: &str, index: u32, generation: u64, length: u64, rights: Rights) {
        let publish = Command {
            opcode: admin::SEGMENT_PUBLISH,
            index,
            count: 1,
            length,
            generation,
            rights_owner: rights.0,
            rights_others: rights.0,
            name: padded(name),
            ..Command::default()
        };
        self.admin(board, publish);
    }

    fn make_queue(&mut self, number: u32, publish: bool) {
        let shape = shape();
        let address = QUEUES_AT + u64::from(number) * shape.bytes();
        for word in [TAIL_WORD, HEAD_WORD] {
            self.boards[1].set_word(address + 8 * word, shape.empty().encode().into());
        }
        let page = FIRST_QUEUE_PAGE + number;
        let set = QueueCommand {
            opcode: admin::QUEUE_SET,
            page,
            words: shape.words().into(),
            width: shape.width().into(),
            address,
            nodes: [u64::MAX; 4],
            ..QueueCommand::default()
        };
        let generation = self.admin(1, set.into()).generation;
        if publish {
            self.publish(1, "queue", page, generation, shape.bytes(), Rights::ENQUEUE);
        }
    }

    fn lookup(&mut self, board: usize, node: NodeId, name: &str) -> Completion {
        self.admin(board, Command { opcode: admin::LOOKUP, node, name: padded(name), ..Command::default() })
    }
}
