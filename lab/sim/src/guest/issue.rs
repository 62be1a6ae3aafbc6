// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the processors of a guest issue operations, by accesses to their board.

use super::{Launched, OWN_PAGE, PARTNERS};
use crate::layout::{self, ATOMIC, COPY, KEY, Segment};
use crate::node::Node;
use crate::units::Time;
use crate::workload::{MAX_COPY, Operation};
use crate::world::World;
use telegraphos_device_core::{Bar, Event};
use telegraphos_wire::context::{self, Argument, Launch};
use telegraphos_wire::{Aperture, AtomicOp, UNIT};

impl Node {
    pub(crate) fn issue(&mut self, world: &mut World<'_>) {
        if self.guest.called.is_none_or(|called| called > world.now) {
            return; // An earlier call has taken its place.
        }
        self.guest.called = None;
        self.guest.arrive(world);
        let load = &world.plan.workload.load;
        let room = self.guest.under_way < load.outstanding && self.guest.busy_until <= world.now;
        if room && self.guest.ready.front().is_some_and(|at| *at <= world.now) {
            if let Some(since) = self.guest.ready.pop_front() {
                self.issue_one(world, since);
            }
        }
        self.guest.call(world, self.id);
    }

    fn issue_one(&mut self, world: &mut World<'_>, since: Time) {
        let plan = world.plan;
        let operation = plan.operation(self.guest.random.below(plan.parts()));
        let partners = &plan.partners[usize::from(self.id)];
        let index = if partners.nodes.is_empty() { 0 } else { partners.pick(&mut self.guest.random) };
        let path = 2 * index + usize::from(operation == Operation::Enqueue);
        let reachable = match operation {
            Operation::Multicast => self.guest.own_page && self.guest.has_copy,
            Operation::Put | Operation::Get => {
                self.guest.own_data && self.guest.paths.get(path).is_some_and(|path| path.open)
            }
            _ => self.guest.paths.get(path).is_some_and(|path| path.open),
        };
        let costs = &plan.workload.costs;
        if !reachable {
            self.guest.busy_until = world.now + costs.processor;
            world.statistics.of(operation).refused += 1;
            world.statistics.ended(world.now);
            return self.guest.next(world, self.id, costs.retry);
        }
        world.statistics.under_way += 1;
        self.guest.under_way += 1;
        let bytes = match operation {
            Operation::Put | Operation::Get => u64::from(plan.workload.sizes.copy),
            Operation::Atomic | Operation::Enqueue => 8,
            _ => u64::from(plan.workload.sizes.word),
        };
        let counted = world.statistics.of(operation);
        counted.issued += 1;
        counted.bytes += bytes;
        if let Some(traffic) = self.guest.traffic.get_mut(index).filter(|_| operation != Operation::Multicast) {
            traffic.0 += 1;
            traffic.1 += bytes;
        }
        let accesses = match operation {
            Operation::Store | Operation::Load | Operation::Enqueue => 1,
            Operation::Multicast => 2,
            Operation::Atomic | Operation::Put | Operation::Get => 4,
        };
        self.guest.busy_until = world.now + accesses * costs.processor;
        match operation {
            Operation::Store | Operation::Enqueue => self.store(world, path, operation, since),
            Operation::Load => self.load(world, path, since),
            _ => self.launch(world, path, operation, since),
        }
    }

    fn store(&mut self, world: &mut World<'_>, index: usize, operation: Operation, since: Time) {
        let window = world.plan.window;
        let path = &mut self.guest.paths[index];
        path.number += 1;
        let (offset, size, data) = match operation {
            Operation::Enqueue => {
                let offset = layout::address(window, Aperture::Enqueue, path.node, Segment::Queue, 0);
                (offset, 8, u64::from(self.id) << 32 | path.number & u64::from(u32::MAX))
            }
            _ => {
                let word = 8 * u64::from(self.id);
                let offset = layout::address(window, Aperture::Plain, path.node, Segment::Data, word);
                (offset, world.plan.workload.sizes.word.into(), path.number)
            }
        };
        self.access(world, Bar::Window, offset, size, data);
        let path = &mut self.guest.paths[index];
        let (issued, finished) = self.hib.import_progress(index as u16 + PARTNERS).unwrap_or((0, 0));
        if issued - finished > path.pending.len() as u64 {
            path.pending.push_back(since);
        } else {
            // Not accepted; the import is cut.
            self.guest.ended(world, self.id, operation, since, false);
        }
    }

    fn load(&mut self, world: &mut World<'_>, path: usize, since: Time) {
        self.tell_time(world);
        let token = match self.guest.free_loads.pop() {
            Some(token) => token,
            None => {
                self.guest.loads.push(None);
                self.guest.loads.len() as u32 - 1
            }
        };
        self.guest.loads[token as usize] = Some(since);
        let word = 8 * u64::from(self.id);
        let node = self.guest.paths[path].node;
        let offset = layout::address(world.plan.window, Aperture::Plain, node, Segment::Data, word);
        let size = world.plan.workload.sizes.word.into();
        self.handle(world, Event::Read { token: token.into(), bar: Bar::Window, offset, size });
    }

    /// An operation that ends in a slot of the status page. There is one: no more are under way than slots.
    fn launch(&mut self, world: &mut World<'_>, path: usize, operation: Operation, since: Time) {
        let Some(slot) = self.guest.free_slots.pop() else {
            return self.guest.ended(world, self.id, operation, since, false);
        };
        self.guest.cookie = (self.guest.cookie + 1) & ((1 << context::COOKIE_BITS) - 1);
        let cookie = self.guest.cookie;
        self.guest.slots[usize::from(slot)] = Some(Launched { operation, since, cookie });
        let (id, window) = (self.id, world.plan.window);
        if operation == Operation::Multicast {
            let offset = layout::address(window, Aperture::Plain, id, Segment::Page, 8 * u64::from(id));
            self.access(world, Bar::Window, offset, world.plan.workload.sizes.word.into(), cookie);
            let data = u64::from(OWN_PAGE) << context::COOKIE_BITS | cookie;
            return self.access(world, Bar::Contexts, context::QUIET + 8 * u64::from(slot), 8, data);
        }
        let node = self.guest.paths[path].node;
        let copy = (world.plan.workload.sizes.copy, context::Operation::Copy);
        let (arguments, count, (length, launched)) = match operation {
            Operation::Put => ([(node, COPY), (id, COPY)], 2, copy),
            Operation::Get => ([(id, COPY), (node, COPY)], 2, copy),
            _ => ([(node, ATOMIC); 2], 1, (0, context::Operation::Atomic { op: AtomicOp::Add, size: 8 })),
        };
        for (which, (node, offset)) in arguments.into_iter().take(count).enumerate() {
            let argument = Argument { context: 0, slot, which: which as u8, key: KEY };
            let offset = layout::address(window, Aperture::Argument, node, Segment::Data, offset);
            self.access(world, Bar::Window, offset, 8, argument.encode());
        }
        let registers = context::REGISTERS + u64::from(slot) * context::STRIDE;
        if operation == Operation::Atomic {
            self.access(world, Bar::Contexts, registers + context::OPERAND, 8, 1);
        }
        self.access(world, Bar::Contexts, registers + context::LENGTH, 8, length.into());
        let launch = Launch { operation: launched, notify: false, cookie };
        self.access(world, Bar::Contexts, registers + context::LAUNCH, 8, launch.encode());
    }
}

const _: () = assert!(COPY + MAX_COPY as u64 <= UNIT);
