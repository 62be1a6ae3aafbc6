// SPDX-License-Identifier: MIT OR Apache-2.0
//! What processes do with their boards: loads and stores, operations, elements for queues.

use super::driver::{Driver, key_of};
use super::memory::Memory;
use super::{Cluster, EXPORTS, status_page};
use std::ops::Range;
use telegraphos_device_core::{Bar, Event, WindowStore};
use telegraphos_wire::context::{Argument, Launch, NumberedArgument, Operation};
use telegraphos_wire::{Aperture, AtomicOp, Body, NodeId, Packet, Status, UNIT, WindowAddress, context};

/// One store of a launch.
#[derive(Clone, Copy, Debug)]
pub enum LaunchStep {
    /// Which argument, and the plain window address.
    Argument(u8, u64),
    /// Which register, and its data.
    Register(u64, u64),
}

/// The launch of a copy.
pub fn copying(cookie: u64) -> Launch {
    Launch { operation: Operation::Copy, notify: false, cookie }
}

/// The launch of an atomic.
pub fn operating(op: AtomicOp, size: u8, cookie: u64) -> Launch {
    Launch { operation: Operation::Atomic { op, size }, notify: false, cookie }
}

/// The steps of an atomic's launch, as a process performs them one by one.
pub fn atomic_steps(launch: Launch, operand: u64, compare: u64, address: u64) -> Vec<LaunchStep> {
    vec![
        LaunchStep::Argument(0, address),
        LaunchStep::Register(context::OPERAND, operand),
        LaunchStep::Register(context::COMPARE, compare),
        LaunchStep::Register(context::LENGTH, (address & 7) << 48),
        LaunchStep::Register(context::LAUNCH, launch.encode()),
    ]
}

/// The steps of a copy's launch.
pub fn copy_steps(launch: Launch, to: u64, from: u64, length: u64) -> Vec<LaunchStep> {
    let low = (to & 7) << 48 | (from & 7) << 52;
    vec![
        LaunchStep::Argument(0, to),
        LaunchStep::Argument(1, from),
        LaunchStep::Register(context::LENGTH, length & ((1 << 48) - 1) | low),
        LaunchStep::Register(context::LAUNCH, launch.encode()),
    ]
}

/// The stores before a load of FETCH.
pub fn fetch_steps(op: AtomicOp, operand: u64, compare: u64, address: u64) -> Vec<LaunchStep> {
    vec![
        LaunchStep::Argument(0, address),
        LaunchStep::Register(context::OPERAND, operand),
        LaunchStep::Register(context::COMPARE, compare),
        LaunchStep::Register(context::LENGTH, (address & 7) << 48 | (op as u64) << 56),
    ]
}

impl Cluster {
    // ---- loads and stores ----

    pub fn address(&self, node: NodeId, index: u32, offset: u64) -> u64 {
        self.aperture(Aperture::Plain, node, index, offset)
    }

    pub fn aperture(&self, aperture: Aperture, node: NodeId, index: u32, offset: u64) -> u64 {
        let layout = self.nodes[0].hib.config().window;
        let offset = u64::from(index) * UNIT + offset;
        layout.encode(WindowAddress { aperture, node, offset }).unwrap()
    }

    pub fn store(&mut self, id: NodeId, address: u64, size: u32, data: u64) {
        self.event(id, Event::Write { bar: Bar::Window, offset: address, size, data });
    }

    /// Stores that a process posts one after the other, as a server that finds all of them passes them on.
    pub fn store_all(&mut self, id: NodeId, stores: &[WindowStore]) {
        self.with_board(id, |hib, out| hib.stores(stores, out));
    }

    /// Stores n + 1 to word n of what is imported of a node at its first window slot.
    pub fn store_words(&mut self, id: NodeId, node: NodeId, words: Range<u64>) {
        words.for_each(|n| self.store(id, self.address(node, 0, 8 * n), 8, n + 1));
    }

    /// A store to the enqueue aperture.
    pub fn enqueue(&mut self, id: NodeId, node: NodeId, index: u32, width: u32, value: u64) {
        self.store(id, self.aperture(Aperture::Enqueue, node, index, 0), width, value);
    }

    fn begin_load(&mut self, id: NodeId, bar: Bar, offset: u64, size: u32) -> u64 {
        let node = &mut self.nodes[usize::from(id)];
        node.next_token += 1;
        let token = node.next_token;
        self.event(id, Event::Read { token, bar, offset, size });
        token
    }

    pub fn start_load(&mut self, id: NodeId, address: u64, size: u32) -> u64 {
        self.begin_load(id, Bar::Window, address, size)
    }

    /// The answer to a load, if it has come.
    pub fn answer(&mut self, id: NodeId, token: u64) -> Option<u64> {
        self.nodes[usize::from(id)].reads.remove(&token)
    }

    /// Runs until a load is answered.
    pub fn finish_load(&mut self, id: NodeId, token: u64) -> u64 {
        self.until(|| "a load is never answered".into(), |c| c.answer(id, token))
    }

    pub fn load(&mut self, id: NodeId, address: u64, size: u32) -> u64 {
        let token = self.start_load(id, address, size);
        self.finish_load(id, token)
    }

    /// Where word `word` of export page `page` lies.
    fn word_at(page: u32, word: u64, width: u8) -> u64 {
        EXPORTS + u64::from(page) * UNIT + word * u64::from(width)
    }

    /// Word `word` of export page `page`, as the processor reads it.
    pub fn peek(&self, id: NodeId, page: u32, word: u64, width: u8) -> u64 {
        self.nodes[usize::from(id)].ram.word(Cluster::word_at(page, word, width), width).unwrap()
    }

    /// The processor stores to word `word` of export page `page`.
    pub fn poke(&mut self, id: NodeId, page: u32, word: u64, width: u8, value: u64) {
        self.nodes[usize::from(id)].ram.set_word(Cluster::word_at(page, word, width), width, value).unwrap();
    }

    // ---- operations ----

    /// The argument aperture at `address` of the plain one.
    pub fn argument_address(&self, address: u64) -> u64 {
        let layout = self.nodes[0].hib.config().window;
        let parts = layout.decode(address);
        layout.encode(WindowAddress { aperture: Aperture::Argument, offset: parts.offset & !7, ..parts }).unwrap()
    }

    /// A store to the argument aperture at `address` of the plain one.
    pub fn argument_at(&mut self, id: NodeId, address: u64, argument: Argument) {
        self.store(id, self.argument_address(address), 8, argument.encode());
    }

    /// Passes `address` as argument `which` of slot `slot` of a context, with its key.
    pub fn argument(&mut self, id: NodeId, context: u16, slot: u8, which: u8, address: u64) {
        let argument = Argument { context: context as u8, slot, which, key: key_of(context) };
        self.argument_at(id, address, argument);
    }

    /// Writes a launch register of a slot.
    pub fn slot_register(&mut self, id: NodeId, context: u16, slot: u8, register: u64, data: u64) {
        let page = u64::from(context) * UNIT + context::REGISTERS + u64::from(slot) * context::STRIDE;
        self.write(id, Bar::Contexts, page + register, data);
    }

    pub fn launch_step(&mut self, id: NodeId, context: u16, slot: u8, step: LaunchStep) {
        match step {
            LaunchStep::Argument(which, address) => self.argument(id, context, slot, which, address),
            LaunchStep::Register(register, data) => self.slot_register(id, context, slot, register, data),
        }
    }

    /// All steps of a launch.
    pub fn launch(&mut self, id: NodeId, context: u16, slot: u8, steps: Vec<LaunchStep>) {
        steps.into_iter().for_each(|step| self.launch_step(id, context, slot, step));
    }

    /// Passes an argument by the number of its import.
    pub fn numbered(&mut self, id: NodeId, context: u16, argument: NumberedArgument) {
        self.write(id, Bar::Contexts, u64::from(context) * UNIT + context::ARGUMENT, argument.encode());
    }

    /// Context 0 launches a copy between places in imports, each the import's number and an offset.
    pub fn launch_numbered(&mut self, id: NodeId, slot: u8, cookie: u64, places: [(u16, u64); 2], length: u64) {
        for (which, (import, offset)) in (0..).zip(places) {
            self.numbered(id, 0, NumberedArgument { slot, which, import, offset });
        }
        self.slot_register(id, 0, slot, context::LENGTH, length);
        self.slot_register(id, 0, slot, context::LAUNCH, copying(cookie).encode());
    }

    /// Status and cookie of a context's slot.
    pub fn done(&self, id: NodeId, context: u16, slot: u8) -> (u16, u64) {
        let word = self.ram_u64(id, status_page(context) + 8 * u64::from(slot));
        ((word >> context::COOKIE_BITS) as u16, word & ((1 << context::COOKIE_BITS) - 1))
    }

    /// Runs until the operation with this cookie is done: its status and value.
    pub fn finish(&mut self, id: NodeId, context: u16, slot: u8, cookie: u64) -> (Status, u64) {
        let never = || format!("operation {cookie} never completes");
        let status =
            self.until(never, |c| Some(c.done(id, context, slot)).filter(|done| done.1 == cookie).map(|done| done.0));
        let value = self.ram_u64(id, status_page(context) + context::VALUE_OFFSET + 8 * u64::from(slot));
        (Status::from_u16(status), value)
    }

    /// An atomic of context 0 from beginning to end, in slot 1.
    pub fn atomic(
        &mut self,
        id: NodeId,
        op: AtomicOp,
        size: u8,
        address: u64,
        operand: u64,
        compare: u64,
    ) -> (Status, u64) {
        let cookie = self.cookie();
        self.launch(id, 0, 1, atomic_steps(operating(op, size, cookie), operand, compare, address));
        self.finish(id, 0, 1, cookie)
    }

    /// A copy of context 0 from beginning to end, in slot 2.
    pub fn copy(&mut self, id: NodeId, to: u64, from: u64, length: u64) -> Status {
        let cookie = self.cookie();
        self.launch(id, 0, 2, copy_steps(copying(cookie), to, from, length));
        self.finish(id, 0, 2, cookie).0
    }

    pub fn cookie(&mut self) -> u64 {
        self.cookies += 1;
        self.cookies
    }

    /// Begins a load of FETCH.
    pub fn start_fetch(&mut self, id: NodeId, context: u16, slot: u8, size: u32) -> u64 {
        let offset = u64::from(context) * UNIT + context::FETCH + 8 * u64::from(slot);
        self.begin_load(id, Bar::Contexts, offset, size)
    }

    /// An atomic by a load, from beginning to end.
    pub fn fetch(&mut self, id: NodeId, op: AtomicOp, size: u32, address: u64, operand: u64, compare: u64) -> u64 {
        self.launch(id, 0, 1, fetch_steps(op, operand, compare, address));
        let token = self.start_fetch(id, 0, 1, size);
        self.finish_load(id, token)
    }

    pub fn start_quiet(&mut self, id: NodeId, slot: u64, scope: u64, cookie: u64) {
        self.write(id, Bar::Contexts, context::QUIET + 8 * slot, scope << context::COOKIE_BITS | cookie);
    }

    /// The (status, cookie) of a quiet slot.
    pub fn quiet_word(&self, id: NodeId, slot: u64) -> (u16, u64) {
        self.done(id, 0, slot as u8)
    }

    pub fn quiet(&mut self, id: NodeId, scope: u64, cookie: u64) -> u16 {
        self.start_quiet(id, 0, scope, cookie);
        let done = |c: &mut Cluster| Some(c.quiet_word(id, 0)).filter(|done| done.1 == cookie);
        self.until(|| "quiet never completes".into(), done).0
    }

    // ---- what no process can do ----

    /// A packet that its source's board would not send.
    pub fn forged(&self, src: NodeId, dst: NodeId, tag: u32, body: Body) -> Packet {
        let [incarnation, target] = [src, dst].map(|id| self.nodes[usize::from(id)].hib.incarnation());
        Packet { src, dst, tag, incarnation, target, body }
    }

    /// Such a packet arrives.
    pub fn forge(&mut self, src: NodeId, dst: NodeId, tag: u32, body: Body) {
        let packet = self.forged(src, dst, tag, body);
        self.event(dst, Event::Packet(packet));
    }
}
