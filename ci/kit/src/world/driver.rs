// SPDX-License-Identifier: MIT OR Apache-2.0
//! What drivers do with their boards, each from its beginning to its end.

use super::commands::{context_open, grant_set, import_set, lookup, publish, queue_set};
use super::memory::Memory;
use telegraphos_device_core::{Bar, Event};
use telegraphos_wire::admin::{self, Command, Completion};
use telegraphos_wire::queue::Shape;
use telegraphos_wire::regs::Register;
use telegraphos_wire::{NodeId, Rights, Status, UNIT, context};

pub const ADMIN: u64 = 0x1_0000;
pub const EVENTS: u64 = 0x2_0000;
/// Entries of the event ring.
const RING: u32 = 64;

/// What a driver has done with its board.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kernel {
    /// The number of its last command.
    pub seq: u32,
    /// Events that it has taken from the ring since its start.
    pub taken: u32,
}

/// Boards with their guests' memory.
pub trait Driver {
    type Memory: Memory;

    /// Something happens at a board.
    fn event(&mut self, id: NodeId, event: Event);

    /// Something else happens; false if there is nothing left.
    fn step(&mut self) -> bool;

    fn memory(&self, id: NodeId) -> &Self::Memory;
    fn memory_mut(&mut self, id: NodeId) -> &mut Self::Memory;
    fn kernel(&self, id: NodeId) -> &Kernel;
    fn kernel_mut(&mut self, id: NodeId) -> &mut Kernel;
    /// Where export pages lie in a guest's memory.
    fn exports(&self) -> u64;
    /// Where status pages lie in a guest's memory.
    fn status_pages(&self) -> u64;

    /// Runs until there is an answer.
    fn until<T>(&mut self, what: impl Fn() -> String, mut found: impl FnMut(&mut Self) -> Option<T>) -> T {
        for _ in 0..1_000_000 {
            if let Some(found) = found(self) {
                return found;
            }
            assert!(self.step(), "{}", what());
        }
        panic!("{}", what());
    }

    /// A store to a BAR.
    fn write(&mut self, id: NodeId, bar: Bar, offset: u64, data: u64) {
        self.event(id, Event::Write { bar, offset, size: 8, data });
    }

    fn register(&mut self, id: NodeId, register: Register, data: u64) {
        let (offset, size) = (register.offset(), register.size().into());
        self.event(id, Event::Write { bar: Bar::Control, offset, size, data });
    }

    /// A word of 8 bytes of a guest's memory.
    fn ram_u64(&self, id: NodeId, address: u64) -> u64 {
        self.memory(id).word(address, 8).expect("a word of the memory")
    }

    fn status_page(&self, context: u16) -> u64 {
        self.status_pages() + u64::from(context) * context::STATUS_SIZE
    }

    /// The driver sets its board up, with one context.
    fn start(&mut self, id: NodeId) {
        self.event(id, Event::BusMaster(true));
        self.register(id, Register::AdminBase, ADMIN);
        self.register(id, Register::EventBase, EVENTS);
        self.register(id, Register::EventSize, RING.into());
        self.kernel_mut(id).taken = 0;
        self.register(id, Register::Control, 1);
        self.open_context(id, 0);
    }

    /// Opens a context with the key and the status page of its number.
    fn open_context(&mut self, id: NodeId, context: u16) {
        let page = self.status_page(context);
        self.ok(id, context_open(context, page, key_of(context)));
    }

    // ---- commands ----

    /// Posts a command without waiting; returns its slot.
    fn post(&mut self, id: NodeId, command: impl Into<Command>) -> u32 {
        let seq = self.kernel(id).seq + 1;
        self.kernel_mut(id).seq = seq;
        let command = Command { seq, ..command.into() };
        // The driver may use fewer than all slots.
        let slot = seq % 64;
        let at = ADMIN + u64::from(slot) * admin::BLOCK_SIZE as u64;
        self.memory_mut(id).write(at, bytemuck::bytes_of(&command)).expect("the admin slots are in the memory");
        self.register(id, Register::AdminDoorbell, slot.into());
        slot
    }

    /// The number of a node's last command.
    fn last_command(&self, id: NodeId) -> u32 {
        self.kernel(id).seq
    }

    fn completion(&self, id: NodeId, slot: u32) -> Completion {
        let at = ADMIN + u64::from(slot) * admin::BLOCK_SIZE as u64 + admin::COMPLETION_OFFSET as u64;
        let bytes = self.memory(id).bytes(at, size_of::<Completion>()).expect("the admin slots are in the memory");
        bytemuck::pod_read_unaligned(&bytes)
    }

    /// A command from beginning to end.
    fn admin(&mut self, id: NodeId, command: impl Into<Command>) -> Completion {
        let command = command.into();
        let slot = self.post(id, command);
        let seq = self.last_command(id);
        let never = || format!("command {command:?} never completes");
        self.until(never, |c| Some(c.completion(id, slot)).filter(|completion| completion.seq == seq))
    }

    /// The same, which must succeed.
    fn ok(&mut self, id: NodeId, command: impl Into<Command>) -> Completion {
        let command = command.into();
        let done = self.admin(id, command);
        assert_eq!(Status::from_u16(done.status as u16), Status::Ok, "{command:?} of node {id}");
        done
    }

    /// The same: what comes of it.
    fn status(&mut self, id: NodeId, command: impl Into<Command>) -> Status {
        Status::from_u16(self.admin(id, command).status as u16)
    }

    // ---- exports and imports ----

    /// Grants export pages and publishes them as `name`. Returns their generation.
    fn export(&mut self, id: NodeId, name: &str, index: u32, count: u32, rights: Rights) -> u64 {
        let address = self.exports() + u64::from(index) * UNIT;
        let generation = self.ok(id, grant_set(index, count, address, rights)).generation;
        self.ok(id, publish(name, index, u64::from(count) * UNIT, generation, rights));
        generation
    }

    /// Makes export page `page` a queue of that shape, armed by context 0.
    fn set_queue(&mut self, id: NodeId, page: u32, shape: Shape, address: u64) -> u64 {
        for word in [0, 1] {
            let at = address + word * u64::from(shape.width());
            let empty = shape.empty().encode().into();
            self.memory_mut(id).set_word(at, shape.width(), empty).expect("the queue is in the memory");
        }
        self.ok(id, queue_set(page, shape, address)).generation
    }

    /// The same in the memory of that page, published as `name`.
    fn make_queue(&mut self, id: NodeId, name: &str, page: u32, shape: Shape) {
        let address = self.exports() + u64::from(page) * UNIT;
        let generation = self.set_queue(id, page, shape, address);
        self.ok(id, publish(name, page, shape.bytes(), generation, Rights::ENQUEUE));
    }

    fn lookup(&mut self, id: NodeId, node: NodeId, name: &str) -> Completion {
        self.admin(id, lookup(node, name))
    }

    /// The command that imports a segment, which is looked up.
    fn import_command(&mut self, id: NodeId, node: NodeId, name: &str, import: u16, index: u32) -> Command {
        let found = self.ok(id, lookup(node, name));
        import_set(import, node, index, &found)
    }

    /// Looks a segment up and imports it as `import` at window slot `index`.
    fn import(&mut self, id: NodeId, node: NodeId, name: &str, import: u16, index: u32) {
        self.import_into(id, 0, node, name, import, index);
    }

    /// The same for any context.
    fn import_into(&mut self, id: NodeId, context: u16, node: NodeId, name: &str, import: u16, index: u32) {
        let set = Command { context, ..self.import_command(id, node, name, import, index) };
        self.ok(id, set);
    }

    // ---- events ----

    /// The entry of the event ring with this number: kind, index, value.
    fn entry(&self, id: NodeId, number: u32) -> Option<(u16, u16, u64)> {
        let entry = EVENTS + u64::from(number % RING) * 16;
        let word = self.ram_u64(id, entry + 8);
        (word != 0).then(|| (word as u16, (word >> 16) as u16, self.ram_u64(id, entry)))
    }

    /// The next new event, as the driver takes it.
    fn take_event(&mut self, id: NodeId) -> Option<(u16, u16, u64)> {
        let taken = self.kernel(id).taken;
        let next = taken.wrapping_add(1);
        let word = self.ram_u64(id, EVENTS + u64::from(taken % RING) * 16 + 8);
        if word >> 32 != u64::from(next) {
            return None;
        }
        self.kernel_mut(id).taken = next;
        self.entry(id, taken)
    }

    /// All new events.
    fn take_events(&mut self, id: NodeId) -> Vec<(u16, u16, u64)> {
        let events: Vec<_> = std::iter::from_fn(|| self.take_event(id)).collect();
        if !events.is_empty() {
            let taken = self.kernel(id).taken;
            self.register(id, Register::EventConsumer, taken.into());
        }
        events
    }

    /// The first entries of the ring, taken or not.
    fn events(&self, id: NodeId, count: u32) -> Vec<(u16, u16, u64)> {
        (0..count).filter_map(|number| self.entry(id, number)).collect()
    }
}

/// The key of a context in these tests.
pub fn key_of(context: u16) -> u64 {
    0x5eed_0000_0001 + u64::from(context) * 0x1111
}
