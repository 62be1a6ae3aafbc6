// SPDX-License-Identifier: MIT OR Apache-2.0
//! What must hold in the cluster when everything has come to rest.

use crate::layout::{ATOMIC, Segment};
use crate::simulation::Simulation;
use crate::workload::Operation;
use telegraphos_testkit::world::Memory;
use telegraphos_wire::{NodeId, UNIT};

impl Simulation {
    /// Whether memories, boards and switches agree with what was performed. Call it after [`Simulation::operate`]; it
    /// takes time.
    pub fn audit(&self) -> Result<(), String> {
        self.report().check()?;
        self.switches()
            .enumerate()
            .try_for_each(|(id, switch)| switch.audit().map_err(|e| format!("switch {id}: {e}")))?;
        for node in self.nodes().filter(|node| node.up) {
            if !node.hib.is_quiescent() || node.hib.waiting() > 0 {
                return Err(format!("node {}: its board is not at rest", node.id));
            }
        }
        if self.plan.workload.faults.is_empty() {
            self.audit_effects()?;
        }
        Ok(())
    }

    /// Without faults every operation has its effect, once.
    fn audit_effects(&self) -> Result<(), String> {
        let statistics = self.statistics();
        let equal = |what: &str, found: u64, operation: Operation| {
            let counted = &statistics.operations[operation as usize];
            if counted.failed + counted.refused + counted.aborted > 0 {
                return Err(format!("{}: some failed without any fault", operation.name()));
            }
            let expected = counted.latency.count;
            if found == expected { Ok(()) } else { Err(format!("{what}: {found}, expected {expected}")) }
        };
        let words = self.nodes().map(|node| node.memory.word(Segment::Data.address() + ATOMIC, 8).unwrap_or(0));
        equal("sum of the words that atomics count up", words.sum(), Operation::Atomic)?;
        equal("elements taken from queues", statistics.consumed, Operation::Enqueue)?;
        for operation in [Operation::Store, Operation::Load, Operation::Put, Operation::Get, Operation::Multicast] {
            equal("", statistics.operations[operation as usize].latency.count, operation)?;
        }
        if !self.plan.has(Operation::Multicast) {
            return Ok(());
        }
        for node in self.nodes() {
            let Some(home) = self.plan.home(node.id) else { continue };
            let page = |id: NodeId| self.node(id).memory.bytes(Segment::Page.address(), UNIT as usize);
            if page(node.id) != page(home) {
                return Err(format!("I2: the copies of nodes {} and {home} differ", node.id));
            }
        }
        Ok(())
    }
}
