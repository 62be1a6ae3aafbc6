// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first and the last node of a cluster with their boards, the switch, perhaps a ring beside it, and what the
//! drivers of both have set up: a segment, a replicated page whose home is the first node, and a queue of the last.

use crate::board::Board;
use crate::memory::GuestMemory;
use crate::ring::Ring;
use std::ops::Range;
use telegraphos_device_core::{Bar, Event, HibConfig, RingEvent, WindowStore};
use telegraphos_fabric_core::{Action, Event as SwitchEvent, Switch, SwitchConfig, UNLIMITED};
use telegraphos_testkit::world::commands::{grant_set, publish, replica_set};
use telegraphos_testkit::world::{Driver, Kernel};
use telegraphos_wire::admin::{self, Command, Completion};
use telegraphos_wire::link::Frame;
use telegraphos_wire::queue::{HEAD_WORD, Shape, TAIL_WORD};
use telegraphos_wire::{
    Aperture, MAX_BLOCK, NodeId, PROTOCOL_VERSION, Rights, STREAM_BLOCK, UNIT, WindowAddress, WindowLayout,
};

/// How large the cluster is, besides the operation's own part of it.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Nodes that have joined the switch, at least two. Only the first and the last have a board.
    pub nodes: u16,
    /// Open contexts of each board, at least one.
    pub contexts: u16,
    /// Queues of the last node, at least one.
    pub queues: u16,
}

impl Default for Sizes {
    /// The smallest.
    fn default() -> Sizes {
        Sizes { nodes: 2, contexts: 1, queues: 1 }
    }
}

/// Requests, and as many elements, that the fabric gives each end of a ring credits for.
const RING_CREDITS: u32 = 64;

/// Window slots, at the first board; that of the segment at the last one, too.
pub(crate) const SEGMENT: u32 = 0;
pub(crate) const REPLICATED: u32 = 1;
pub(crate) const QUEUE: u32 = 2;

/// Imports of the first board, by which copies name places.
pub(crate) const BLOCKS: [u16; 2] = [5, 6];
/// Export pages of what is copied.
const BLOCK_PAGES: u32 = 16;

// Guest memory.
const STATUS_PAGES: u64 = 0x10_0000;
pub(crate) const SEGMENT_AT: u64 = 0x20_0000;
pub(crate) const REPLICATED_AT: u64 = SEGMENT_AT + UNIT;
const QUEUES_AT: u64 = REPLICATED_AT + UNIT;

/// Export pages of the segment and the replicated page; those of the queues follow.
const SEGMENT_PAGE: u32 = 0;
const REPLICATED_PAGE: u32 = 1;
const FIRST_QUEUE_PAGE: u32 = 2;

/// Export page of what is copied: behind those of the most queues that are measured.
fn blocks_page(sizes: Sizes) -> u32 {
    FIRST_QUEUE_PAGE + u32::from(sizes.queues).max(4096)
}

/// Loads, stores and atomics.
const RIGHTS: Rights = Rights(Rights::READ.0 | Rights::WRITE.0 | Rights::ATOMIC.0);

/// Queues of one page of memory, to which their buffers are aligned.
fn shape() -> Shape {
    Shape::new(512, 8).unwrap()
}

/// Two boards of a cluster and its switch, and a ring between the boards if their memory is lent.
pub(crate) struct Nodes<M> {
    pub(crate) boards: [Board<M>; 2],
    switch: Switch,
    /// Buffer, kept to reuse its allocation.
    actions: Vec<Action>,
    /// Microseconds; each turn takes one.
    now: u64,
    layout: WindowLayout,
    /// Address of the queue that is used: the last one.
    queue_at: u64,
    /// Address of what is copied, at each board.
    pub(crate) blocks_at: u64,
}

impl<M: GuestMemory> Nodes<M> {
    /// See [`Cluster::new`](crate::Cluster::new).
    pub(crate) fn new(sizes: Sizes) -> Nodes<M> {
        // The same window for every number of nodes.
        let layout = WindowLayout::new(12, 24).unwrap();
        let queue_at = QUEUES_AT + u64::from(sizes.queues - 1) * shape().bytes();
        let blocks_at = (queue_at + shape().bytes()).next_multiple_of(UNIT);
        let memory = (blocks_at + u64::from(BLOCK_PAGES) * UNIT) as usize;
        let board = |node| {
            let mut config = HibConfig::new(node);
            config.window = layout;
            config.export_pages = blocks_page(sizes) + BLOCK_PAGES;
            Board::new(config, memory)
        };
        let mut nodes = Nodes {
            boards: [board(0), board(sizes.nodes - 1)],
            switch: Switch::new(SwitchConfig::new(u32::from(sizes.nodes))).unwrap(),
            actions: Vec::new(),
            now: 0,
            layout,
            queue_at,
            blocks_at,
        };
        let ids = nodes.ids();
        if M::RING {
            ids.into_iter().for_each(|node| nodes.join(node));
            nodes.settle();
            nodes.announce(1..sizes.nodes - 1);
            nodes.connect();
        } else {
            (0..sizes.nodes).for_each(|node| nodes.join(node));
            nodes.settle();
        }
        for id in ids {
            nodes.start(id);
            (1..sizes.contexts).for_each(|context| nodes.open_context(id, context));
        }
        nodes.share(sizes);
        for id in ids {
            // In a large cluster more nodes have come than the ring has room for events.
            while !nodes.take_events(id).is_empty() {}
        }
        nodes
    }

    /// The nodes with a board.
    fn ids(&self) -> [NodeId; 2] {
        [0, 1].map(|board| self.boards[board].node)
    }

    /// Which of the boards is a node's.
    fn at(&self, id: NodeId) -> usize {
        usize::from(id != self.boards[0].node)
    }

    /// An address of the first board's window.
    pub(crate) fn window(&self, aperture: Aperture, node: NodeId, offset: u64) -> u64 {
        self.layout.encode(WindowAddress { aperture, node, offset }).unwrap()
    }

    /// Accesses of a guest, and all that follows from them. The guest makes no others meanwhile, so the server finds
    /// its socket empty.
    pub(crate) fn guest(&mut self, board: usize, events: impl IntoIterator<Item = Event>) {
        self.now += 1;
        let board = &mut self.boards[board];
        board.begin_turn(self.now);
        for event in events {
            match event {
                Event::Write { bar: Bar::Window, offset, size, data } => {
                    board.take_store(WindowStore { offset, size, data });
                }
                event => {
                    board.pass_stores();
                    board.feed(event);
                }
            }
        }
        board.pass_stores();
        board.feed(Event::IntakeDry);
        board.end_turn();
        self.settle();
    }

    /// The consumer takes an element of the queue, by loads and a store of the processor.
    pub(crate) fn take_element(&mut self) -> Option<u64> {
        let memory = &mut self.boards[1].memory;
        let [head, tail] = [HEAD_WORD, TAIL_WORD]
            .map(|word| shape().header(memory.word(self.queue_at + 8 * word, 8).unwrap()).unwrap());
        if head == tail {
            return None;
        }
        let element = memory.word(self.queue_at + 8 * u64::from(head.index), 8);
        memory.set_word(self.queue_at + 8 * HEAD_WORD, 8, head.advanced().encode().into());
        element
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
            for at in 0..2 {
                let board = &self.boards[at];
                if !board.input.is_empty() || board.more || board.is_called() {
                    self.turn(at);
                    idle = false;
                }
            }
            if idle {
                return;
            }
        }
    }

    /// A turn of a board without accesses of its guest.
    fn turn(&mut self, at: usize) {
        self.now += 1;
        let [first, last] = &mut self.boards;
        let (board, peer) = if at == 0 { (first, last) } else { (last, first) };
        board.memory.reach(&mut peer.memory);
        board.begin_turn(self.now);
        board.end_turn();
        board.memory.reach(&mut peer.memory);
    }

    /// Packets that have passed the switch.
    #[cfg(test)]
    pub(crate) fn switched(&self) -> u64 {
        self.switch.statistics().ports.iter().flat_map(|port| &port.classes).map(|class| class.sent_packets).sum()
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
        let block = if M::RING { MAX_BLOCK } else { STREAM_BLOCK } as u32;
        self.switch_event(SwitchEvent::PortOpened { port: node.into(), room: UNLIMITED, block });
        let frame = Frame::Hello { version: PROTOCOL_VERSION, node, window, credits };
        self.switch_event(SwitchEvent::Frame { port: node.into(), frame });
    }

    /// Both boards are notified of other nodes. These do not join the switch, which takes time that is quadratic in
    /// their number, and nothing of which is on the path of a ring.
    fn announce(&mut self, others: Range<NodeId>) {
        let incarnation = self.boards[0].hib.incarnation();
        for at in 0..2 {
            let up = |node| Event::NodeUp { node, incarnation, block: MAX_BLOCK as u32 };
            self.guest(at, others.clone().map(up));
        }
    }

    /// Both boards get their ends of a ring, as the fabric offers it, and use it from now on.
    fn connect(&mut self) {
        let nodes = self.ids();
        for (board, ring) in self.boards.iter_mut().zip(Ring::pair(nodes)) {
            board.open_ring(ring);
        }
        let incarnations = [0, 1].map(|at| self.boards[at].hib.incarnation());
        for at in 0..2 {
            let (peer, incarnation, own) = (nodes[1 - at], incarnations[1 - at], incarnations[at]);
            assert!(self.boards[at].hib.accepts_ring(peer, incarnation, own));
            let what = RingEvent::Up { incarnation, own, credits: RING_CREDITS, lends: true };
            self.guest(at, [Event::Ring { peer, what }]);
        }
    }

    // ---- the drivers ----

    /// Exports and imports everything that operations use.
    fn share(&mut self, sizes: Sizes) {
        let nodes @ [own, remote] = self.ids();
        let blocks = Rights(RIGHTS.0 | Rights::DMA.0);
        for id in nodes {
            self.export(id, "segment", SEGMENT_PAGE, 1, RIGHTS);
            self.export(id, "replicated", REPLICATED_PAGE, 1, RIGHTS);
            let grant = grant_set(blocks_page(sizes), BLOCK_PAGES, self.blocks_at, blocks);
            let generation = self.ok(id, grant).generation;
            let length = u64::from(BLOCK_PAGES) * UNIT;
            self.ok(id, publish("blocks", blocks_page(sizes), length, generation, blocks));
        }
        for id in nodes {
            let found = self.lookup(id, own, "replicated");
            self.ok(id, replica_set(REPLICATED_PAGE, admin::COUNTERS, own, found.index, found.generation));
        }
        for queue in 0..u32::from(sizes.queues) {
            let page = FIRST_QUEUE_PAGE + queue;
            let generation = self.set_queue(remote, page, shape(), QUEUES_AT + u64::from(queue) * shape().bytes());
            if queue + 1 == u32::from(sizes.queues) {
                self.ok(remote, publish("queue", page, shape().bytes(), generation, Rights::ENQUEUE));
            }
        }
        let imports = [
            (own, "segment", SEGMENT),
            (remote, "segment", SEGMENT),
            (own, "replicated", REPLICATED),
            (remote, "queue", QUEUE),
        ];
        self.import_into(remote, 0, own, "segment", 0, SEGMENT);
        for (import, (node, name, index)) in (0..).zip(imports) {
            // The context that atomics use, which must have the imports of its arguments.
            self.import_into(own, sizes.contexts - 1, node, name, import, index);
        }
        for (import, node) in BLOCKS.into_iter().zip(nodes) {
            let index = u32::from(import) * BLOCK_PAGES;
            self.import_into(own, sizes.contexts - 1, node, "blocks", import, index);
        }
    }
}

impl<M: GuestMemory> Driver for Nodes<M> {
    type Memory = M;

    fn event(&mut self, id: NodeId, event: Event) {
        self.guest(self.at(id), [event]);
    }

    /// All that follows from an event is done.
    fn step(&mut self) -> bool {
        false
    }

    fn memory(&self, id: NodeId) -> &M {
        &self.boards[self.at(id)].memory
    }

    fn memory_mut(&mut self, id: NodeId) -> &mut M {
        let at = self.at(id);
        &mut self.boards[at].memory
    }

    fn kernel(&self, id: NodeId) -> &Kernel {
        &self.boards[self.at(id)].kernel
    }

    fn kernel_mut(&mut self, id: NodeId) -> &mut Kernel {
        let at = self.at(id);
        &mut self.boards[at].kernel
    }

    fn exports(&self) -> u64 {
        SEGMENT_AT
    }

    fn status_pages(&self) -> u64 {
        STATUS_PAGES
    }

    /// The events are taken from the ring, so that it is never full.
    fn admin(&mut self, id: NodeId, command: impl Into<Command>) -> Completion {
        let slot = self.post(id, command);
        let completion = self.completion(id, slot);
        assert_eq!(completion.seq, self.last_command(id));
        self.take_events(id);
        completion
    }
}
