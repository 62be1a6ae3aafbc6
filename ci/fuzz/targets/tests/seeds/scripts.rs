// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scripts for the target `hib`: what drivers and processes of two nodes do. They are made by doing it, since later
//! commands carry what earlier ones have returned.

use telegraphos_device_core::Bar;
use telegraphos_fuzz_targets::hib::{Op, World};
use telegraphos_testkit::world::commands::{
    context_open, grant_clear, grant_set, import_ack, import_clear, import_pages, import_set, lookup, publish,
    queue_resume, queue_set, replica_clear, replica_move, replica_set,
};
use telegraphos_testkit::world::{ADMIN, EVENTS, STATUS_PAGES};
use telegraphos_wire::admin::{self, BLOCK_SIZE, COMPLETION_OFFSET, Command, Completion};
use telegraphos_wire::context::{self, Argument, Launch, NumberedArgument, Operation};
use telegraphos_wire::queue::Shape;
use telegraphos_wire::range::{self, Run};
use telegraphos_wire::regs::Register;
use telegraphos_wire::{Aperture, AtomicOp, Packet, Rights, UNIT, WindowAddress, WindowLayout};

use super::packets;

/// Export page p of a node lies here.
const EXPORTS: u64 = 0x4_0000;
const INCARNATION: u64 = 0x1000;
const KEY: u64 = 0x5eed_0000_0001;

struct Script {
    world: World,
    bytes: Vec<u8>,
    seq: u32,
    cookie: u64,
}

impl Script {
    /// Two boards that have joined, with drivers that have opened context 0.
    fn started(bits: u8) -> Script {
        let mut s = Script { world: World::new(bits), bytes: vec![bits], seq: 0, cookie: 0 };
        for at in 0..2 {
            s.join(at);
        }
        for at in 0..2 {
            s.start(at);
        }
        s
    }

    fn op(&mut self, at: usize, op: Op) {
        op.encode(at, &mut self.bytes);
        self.world.apply(at, op);
    }

    fn join(&mut self, at: usize) {
        self.op(at, Op::LinkUp { incarnation: INCARNATION, credits: 8 });
        for node in 0..2 {
            self.op(at, Op::NodeUp { node, incarnation: INCARNATION });
        }
    }

    fn start(&mut self, at: usize) {
        self.op(at, Op::BusMaster(true));
        self.register(at, Register::AdminBase, ADMIN);
        self.register(at, Register::EventBase, EVENTS);
        self.register(at, Register::EventSize, 64);
        self.register(at, Register::Control, 1);
        self.ok(at, context_open(0, STATUS_PAGES, KEY));
    }

    fn register(&mut self, at: usize, register: Register, data: u64) {
        self.op(at, Op::Write { bar: Bar::Control, offset: register.offset(), size: register.size(), data });
    }

    /// The guest writes its memory; zeros at the end are left out.
    fn memory(&mut self, at: usize, address: u64, bytes: &[u8]) {
        let length = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        self.op(at, Op::Memory { address: address as u32, bytes: bytes[..length].to_vec() });
    }

    /// A command from its post to its completion.
    fn admin(&mut self, at: usize, command: impl Into<Command>) -> Completion {
        self.seq += 1;
        let command = Command { seq: self.seq, ..command.into() };
        // Its own slot, which is zero, as far as there are enough.
        let slot = u64::from(self.seq % 64);
        let address = ADMIN + slot * BLOCK_SIZE as u64;
        self.memory(at, address, bytemuck::bytes_of(&command));
        self.register(at, Register::AdminDoorbell, slot);
        self.op(at, Op::Run);
        let from = address as usize + COMPLETION_OFFSET;
        let done: Completion =
            bytemuck::pod_read_unaligned(&self.world.memory(at)[from..from + size_of::<Completion>()]);
        assert_eq!(done.seq, command.seq, "{command:?} has not completed");
        done
    }

    fn ok(&mut self, at: usize, command: impl Into<Command>) -> Completion {
        let command = command.into();
        let done = self.admin(at, command);
        assert_eq!(done.status, 0, "{command:?}");
        done
    }

    /// Export pages, published.
    fn export(&mut self, at: usize, page: u32, count: u32, rights: Rights, text: &str) {
        let address = EXPORTS + u64::from(page) * UNIT;
        let done = self.ok(at, grant_set(page, count, address, rights));
        self.ok(at, publish(text, page, u64::from(count) * UNIT, done.generation, rights));
    }

    /// The segment of that name as this import, at the window slot of the same number.
    fn import(&mut self, at: usize, node: u16, import: u16, text: &str, taken: u32) {
        let found = self.ok(at, lookup(node, text));
        self.ok(at, Command { taken, ..import_set(import, node, import.into(), &found) });
    }

    fn window(aperture: Aperture, node: u16, slot: u64, offset: u64) -> u64 {
        let layout = WindowLayout::new(3, 20).unwrap();
        layout.encode(WindowAddress { aperture, node, offset: slot * UNIT + offset }).unwrap()
    }

    fn store(&mut self, at: usize, node: u16, slot: u64, offset: u64, size: u8, data: u64) {
        let offset = Script::window(Aperture::Plain, node, slot, offset);
        self.op(at, Op::Write { bar: Bar::Window, offset, size, data });
    }

    fn load(&mut self, at: usize, node: u16, slot: u64, offset: u64, size: u8) {
        let offset = Script::window(Aperture::Plain, node, slot, offset);
        self.op(at, Op::Read { bar: Bar::Window, offset, size });
    }

    fn context(&mut self, at: usize, register: u64, data: u64) {
        self.op(at, Op::Write { bar: Bar::Contexts, offset: register, size: 8, data });
    }

    fn quiet(&mut self, at: usize) {
        self.cookie += 1;
        self.context(at, context::QUIET, self.cookie);
    }

    /// Passes the address of an offset in an import as an argument of slot 1.
    fn argument(&mut self, at: usize, which: u8, node: u16, slot: u64, offset: u64) {
        let data = Argument { context: 0, slot: 1, which, key: KEY }.encode();
        let offset = Script::window(Aperture::Argument, node, slot, offset);
        self.op(at, Op::Write { bar: Bar::Window, offset, size: 8, data });
    }

    fn launch(&mut self, at: usize, operation: Operation, length: u64) {
        self.cookie += 1;
        let launch = Launch { operation, notify: true, cookie: self.cookie };
        let slot = context::REGISTERS + context::STRIDE;
        self.context(at, slot + context::LENGTH, length);
        self.context(at, slot + context::LAUNCH, launch.encode());
    }
}

const DATA: Rights = Rights(23);

/// A driver starts, then looks at its board.
fn start() -> Script {
    let mut s = Script::started(2);
    for register in Register::ALL {
        s.op(0, Op::Read { bar: Bar::Control, offset: register.offset(), size: register.size() });
    }
    s.op(0, Op::Write { bar: Bar::Window, offset: 1, size: 3, data: 0 });
    s.register(0, Register::ErrorAck, 1);
    s.op(0, Op::Reset);
    s.op(0, Op::Run);
    s
}

/// Stores, loads and quiet, with a refusal and its acknowledgement.
fn stores() -> Script {
    let mut s = Script::started(0);
    s.export(1, 0, 2, DATA, "segment");
    s.import(0, 1, 0, "segment", 0);
    for n in 0..6 {
        s.store(0, 1, 0, 8 * n, 8, n);
    }
    s.load(0, 1, 0, 8, 8);
    s.quiet(0);
    s.op(0, Op::Run);
    s.store(0, 1, 1, UNIT - 1, 1, 5);
    s.op(0, Op::Deliver);
    s.op(1, Op::Perform(0));
    s.ok(1, grant_clear(0, 2));
    s.store(0, 1, 0, 0, 4, 1);
    s.quiet(0);
    s.op(0, Op::Run);
    s.ok(0, import_ack(0));
    s.ok(0, import_clear(0));
    s.op(0, Op::IntakeDry);
    s
}

/// Atomics and copies.
fn launches() -> Script {
    let mut s = Script::started(0);
    for at in 0..2 {
        s.export(at, 0, 2, DATA, "segment");
    }
    s.import(0, 1, 0, "segment", 0);
    s.import(0, 0, 2, "segment", 0);
    s.argument(0, 0, 1, 0, 0x40);
    s.context(0, context::REGISTERS + context::STRIDE + context::OPERAND, 5);
    s.launch(0, Operation::Atomic { op: AtomicOp::Add, size: 8 }, 0);
    s.op(0, Op::Run);
    for (to, from) in [((1, 0), (0, 2)), ((0, 2), (1, 0))] {
        s.argument(0, 0, to.0, to.1, 0);
        s.argument(0, 1, from.0, from.1, 0x100);
        s.launch(0, Operation::Copy, 20_000);
    }
    s.op(0, Op::Run);
    s.quiet(0);
    s.op(0, Op::Run);
    s
}

/// Memory in four runs, told in two lists: copies from it and to it, words of it, bad lists, and its revocation in the
/// middle of a copy.
fn ranges() -> Script {
    const LIST: u64 = 0x3_8000;
    const LENGTH: u64 = 4079 + 4096 + 8192 + 100;
    let mut s = Script::started(0);
    s.export(1, 0, 2, DATA, "segment");
    s.import(0, 1, 0, "segment", 0);
    let runs = [(0x6_0011, 4079), (0x6_4000, 4096), (0x6_2000, 8192), (0x7_0000, 100)];
    let runs = runs.map(|(address, length)| Run { address, length });
    let page = range::first_page(3);
    let grant = |s: &mut Script, runs: &[Run], total: u32, generation: u64| {
        let mut list: Vec<u8> = runs.iter().flat_map(|run| bytemuck::bytes_of(run).to_vec()).collect();
        // So that no zeros are left out, where an earlier list was.
        list.push(1);
        s.memory(0, LIST, &list);
        let command = Command {
            opcode: admin::GRANT_RANGE,
            index: page,
            count: runs.len() as u32,
            page: total,
            address: LIST,
            generation,
            rights: DATA.0,
            nodes: [u64::MAX; 4],
            ..Command::default()
        };
        s.admin(0, command)
    };
    let first = grant(&mut s, &runs[..2], 4, 0);
    assert_eq!(first.status, 0);
    let generation = first.generation;
    // No list continues with another generation, anew, or with a short run in the middle.
    for (list, generation) in [(&runs[2..], generation + 1), (&runs[2..], 0), (&runs[3..], generation)] {
        assert_ne!(grant(&mut s, list, 4, generation).status, 0);
    }
    assert_eq!(grant(&mut s, &runs[2..], 4, generation).status, 0);
    s.ok(0, publish("range", page, LENGTH, generation, DATA));
    s.import(1, 0, 5, "range", 0);
    s.ok(0, Command { length: LENGTH, ..import_pages(4, 0, 0, (page, 0), generation, DATA) });
    let numbered = |s: &mut Script, which: u8, import: u16, offset: u64| {
        let argument = NumberedArgument { slot: 1, which, import, offset };
        s.context(0, context::ARGUMENT, argument.encode());
    };
    let copy = |s: &mut Script, to: (u16, u64), from: (u16, u64), length: u64| {
        numbered(s, 0, to.0, to.1);
        numbered(s, 1, from.0, from.1);
        s.launch(0, Operation::Copy, length);
    };
    copy(&mut s, (0, 0x100), (4, 5), 16_000);
    s.op(0, Op::Run);
    copy(&mut s, (4, 77), (0, 3), 12_345);
    s.op(0, Op::Run);
    numbered(&mut s, 0, 4, 4079);
    s.context(0, context::REGISTERS + context::STRIDE + context::OPERAND, 5);
    s.launch(0, Operation::Atomic { op: AtomicOp::Add, size: 8 }, 0);
    for offset in [4079, 4078, LENGTH - 4] {
        s.store(1, 0, 5, offset, 8, 9);
        s.load(1, 0, 5, offset, 8);
        s.op(0, Op::Run);
    }
    copy(&mut s, (0, 0), (4, 0), LENGTH);
    s.op(0, Op::Perform(0));
    s.op(1, Op::Deliver);
    s.ok(0, grant_clear(page, 1));
    copy(&mut s, (4, 0), (0, 0), 8);
    s.op(0, Op::Run);
    s.ok(0, import_clear(4));
    s.op(0, Op::Run);
    s
}

/// Memory behind a gate, which is opened, passed and closed, also while a copy is under way, and what opens none.
fn gates() -> Script {
    const LIST: u64 = 0x3_8000;
    const LENGTH: u64 = 4096 + 8192;
    let mut s = Script::started(0);
    s.export(1, 0, 2, DATA, "segment");
    let runs = [(0x6_4000, 4096), (0x6_6000, 8192)].map(|(address, length)| Run { address, length });
    let mut list: Vec<u8> = runs.iter().flat_map(|run| bytemuck::bytes_of(run).to_vec()).collect();
    list.push(1);
    s.memory(0, LIST, &list);
    let page = range::first_page(3);
    let grant = Command {
        opcode: admin::GRANT_GATED,
        index: page,
        count: 2,
        page: 2,
        address: LIST,
        rights: DATA.0,
        nodes: [0b11, 0, 0, 0],
        ..Command::default()
    };
    let generation = s.ok(0, grant).generation;
    s.ok(0, publish("range", page, LENGTH, generation, DATA));
    s.ok(0, Command { length: LENGTH, ..import_pages(4, 0, 0, (page, 0), generation, DATA) });
    let gate = |s: &mut Script, import: u16, node: u64, length: u64| {
        let argument = NumberedArgument { slot: 1, which: 0, import, offset: 0 };
        s.context(0, context::ARGUMENT, argument.encode());
        s.context(0, context::REGISTERS + context::STRIDE + context::OPERAND, node);
        s.launch(0, Operation::Gate, length);
        s.op(0, Op::Run);
    };
    assert_ne!(s.admin(1, lookup(0, "range")).status, 0);
    gate(&mut s, 4, 1, LENGTH);
    s.import(1, 0, 5, "range", 0);
    s.import(1, 1, 6, "segment", 0);
    s.load(1, 0, 5, 64, 8);
    s.op(0, Op::Run);
    for (import, node, length) in
        [(4, 0, 8), (4, 2, 8), (4, 1, LENGTH + 1), (5, 1, 8), (4, 1, 100), (4, 0, 0), (4, 0, 0)]
    {
        gate(&mut s, import, node, length);
    }
    s.load(1, 0, 5, 64, 8);
    s.op(0, Op::Run);
    gate(&mut s, 4, 1, LENGTH);
    s.argument(1, 0, 1, 6, 0);
    s.argument(1, 1, 0, 5, 0);
    s.launch(1, Operation::Copy, LENGTH);
    s.op(0, Op::Perform(0));
    s.op(1, Op::Deliver);
    gate(&mut s, 4, 0, 0);
    s.ok(0, grant_clear(page, 1));
    s.op(0, Op::Run);
    s
}

/// A queue, until it overflows, and then some.
fn queue() -> Script {
    let mut s = Script::started(0);
    let shape = Shape::new(8, 4).unwrap();
    let address = EXPORTS + 2 * UNIT;
    let empty = shape.empty().encode().to_le_bytes();
    s.memory(1, address, &[&empty[..4], &empty[..4]].concat());
    let done = s.ok(1, queue_set(2, shape, address));
    s.ok(1, publish("queue", 2, shape.bytes(), done.generation, Rights::ENQUEUE));
    s.import(0, 1, 1, "queue", 0);
    let offset = Script::window(Aperture::Enqueue, 1, 1, 0);
    for data in 1..=10 {
        s.op(0, Op::Write { bar: Bar::Window, offset, size: 4, data });
    }
    s.op(0, Op::Run);
    s.memory(1, address, &[&empty[..4], &empty[..4]].concat());
    s.admin(1, queue_resume(2));
    s.quiet(0);
    s.op(0, Op::Run);
    s
}

/// A page with a copy in the other node; then its home moves.
fn replicas() -> Script {
    // Multicasts are the switch's.
    let mut s = Script::started(1);
    for at in 0..2 {
        s.export(at, 0, 1, Rights(7), "page");
        s.import(at, at as u16, 3, "page", 8);
    }
    for at in 0..2 {
        let home = s.ok(at, lookup(0, "page"));
        s.ok(at, replica_set(0, admin::COUNTERS, 0, home.index, home.generation));
    }
    for n in 0..3 {
        for at in 0..2 {
            s.store(at, at as u16, 3, 8 * n, 8, 10 + n);
        }
    }
    s.op(0, Op::Run);
    s.admin(1, replica_move(0));
    s.store(0, 0, 3, 0, 4, 1);
    s.op(0, Op::Pass(10_000_000));
    s.admin(1, replica_clear(0));
    s.op(0, Op::Run);
    s
}

/// Forged packets, and links that break.
fn forged() -> Script {
    let mut s = Script::started(0);
    s.export(0, 0, 2, DATA, "segment");
    s.import(1, 0, 0, "segment", 0);
    s.store(1, 0, 0, 0, 8, 1);
    for (_, bytes) in packets::packets() {
        let mut packet = Packet::decode(&bytes).unwrap();
        (packet.src, packet.dst) = (1, 0);
        (packet.incarnation, packet.target) = (INCARNATION, if packet.target == 0 { 0 } else { INCARNATION });
        let mut bytes = Vec::new();
        packet.encode(&mut bytes);
        s.op(0, Op::Forged(bytes));
    }
    s.op(0, Op::Run);
    s.op(1, Op::NodeDown(0));
    s.load(1, 0, 0, 0, 4);
    s.op(1, Op::NodeUp { node: 0, incarnation: INCARNATION + 1 });
    s.op(1, Op::LinkDown);
    s.op(1, Op::Pass(2_000_000));
    s.join(1);
    s.op(1, Op::Credit { class: 1, count: 4 });
    s.op(1, Op::Run);
    s.op(0, Op::BusMaster(false));
    s
}

/// A ring between the two: used, withdrawn, offered again; a reset behind which there is a new one; a hostile peer.
fn rings() -> Script {
    let mut s = Script::started(0);
    let up = |s: &mut Script, of: [u64; 2]| {
        for at in 0..2 {
            s.op(at, Op::RingUp { incarnation: of[1 - at], own: of[at], credits: 4 });
        }
        s.op(0, Op::Run);
    };
    up(&mut s, [INCARNATION; 2]);
    s.export(1, 0, 2, DATA, "segment");
    s.import(0, 1, 0, "segment", 0);
    for what in [0, 1] {
        for n in 0..6 {
            s.store(0, 1, 0, 8 * n, 8, n);
        }
        for at in 0..2 {
            s.op(at, Op::RingUse { what, incarnation: INCARNATION });
        }
        s.load(0, 1, 0, 8, 8);
        s.op(1, Op::RingDeliver);
        s.quiet(0);
        s.op(0, Op::Run);
    }
    s.store(0, 1, 0, 0, 4, 1);
    s.op(1, Op::Reset);
    s.op(0, Op::Run);
    up(&mut s, [INCARNATION, INCARNATION + 1]);
    s.op(0, Op::RingCredit { class: 4, count: 0 });
    let (_, bytes) = packets::packets().swap_remove(0);
    let mut packet = Packet::decode(&bytes).unwrap();
    (packet.src, packet.dst, packet.incarnation, packet.target) = (1, 0, INCARNATION + 1, INCARNATION);
    let mut bytes = Vec::new();
    packet.encode(&mut bytes);
    s.op(0, Op::RingForged(bytes));
    s.op(0, Op::RingCredit { class: 1, count: 9 });
    s.op(1, Op::RingUse { what: 2, incarnation: INCARNATION });
    s.op(0, Op::Run);
    s
}

pub(super) fn scripts() -> Vec<(&'static str, Vec<u8>)> {
    let all = [
        ("start", start()),
        ("stores", stores()),
        ("launches", launches()),
        ("ranges", ranges()),
        ("gates", gates()),
        ("queue", queue()),
        ("replicas", replicas()),
        ("forged", forged()),
        ("rings", rings()),
    ];
    all.into_iter().map(|(name, script)| (name, script.bytes)).collect()
}
