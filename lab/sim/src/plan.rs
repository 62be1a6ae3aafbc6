// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does not change during a run: the workload, checked, and what follows from it and the number of nodes.

use crate::layout::{self, Segment};
use crate::pattern::{self, Partners};
use crate::pipe::Wire;
use crate::units::Time;
use crate::workload::{Operation, Workload, WorkloadError};
use telegraphos_device_core::HibConfig;
use telegraphos_wire::link::HEAD_LEN;
use telegraphos_wire::queue::Shape;
use telegraphos_wire::{NodeId, WindowLayout};

/// See the module.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) workload: Workload,
    pub(crate) nodes: u32,
    pub(crate) seed: u64,
    pub(crate) window: WindowLayout,
    pub(crate) shape: Shape,
    pub(crate) partners: Vec<Partners>,
    /// By node: nodes of which it is a partner.
    pub(crate) senders: Vec<u32>,
    /// Operations with a part, and the sum of parts up to each.
    mix: Vec<(u64, Operation)>,
    /// Picoseconds between the operations of a node; 0 without a rate.
    pub(crate) interval: u64,
    #[cfg(feature = "bugs")]
    pub(crate) bugs: crate::Bugs,
}

impl Plan {
    /// Checks the workload and derives everything else.
    pub(crate) fn new(workload: Workload, nodes: u32, seed: u64) -> Result<Plan, WorkloadError> {
        workload.check(nodes)?;
        let partners = pattern::partners(&workload.pattern, nodes, seed);
        let mut senders = vec![0; nodes as usize];
        for partner in partners.iter().flat_map(|partners| &partners.nodes) {
            senders[usize::from(*partner)] += 1;
        }
        let mut sum = 0;
        let parts = Operation::ALL.into_iter().zip(workload.operations.parts()).filter(|(_, part)| *part > 0);
        let mix = parts
            .map(|(operation, part)| {
                sum += u64::from(part);
                (sum, operation)
            })
            .collect();
        let shape = Shape::new(workload.queue.words, 8).ok_or_else(|| WorkloadError::Value {
            key: "queue.words".into(),
            value: workload.queue.words.to_string(),
            expected: "a power of two from 8 to 8192".into(),
        })?;
        let interval = workload.load.rate.map_or(0, |rate| crate::units::SECOND / rate);
        Ok(Plan {
            window: layout::window(nodes),
            shape,
            partners,
            senders,
            mix,
            interval,
            nodes,
            seed,
            workload,
            #[cfg(feature = "bugs")]
            bugs: crate::Bugs::default(),
        })
    }

    /// The configuration of a node's board.
    pub(crate) fn board(&self, node: NodeId) -> HibConfig {
        let index = usize::from(node);
        let partners = self.partners[index].nodes.len();
        HibConfig {
            #[cfg(feature = "bugs")]
            bug: self.bugs.board,
            ..layout::board(&self.workload, node, self.nodes, partners, self.senders[index])
        }
    }

    /// What a direction of a trunk takes.
    pub(crate) fn trunk_wire(&self) -> Wire {
        let costs = &self.workload.costs;
        (costs.trunk_bandwidth, costs.trunk_latency + costs.switch_crossing)
    }

    /// No cell of the agenda concerns another sooner; `links`: boards and switches are cells of their own.
    pub(crate) fn look_ahead(&self, links: bool) -> Time {
        // No frame arrives sooner after it was sent by a trunk.
        let (per_byte, latency) = self.trunk_wire();
        let trunk = latency + HEAD_LEN as u64 * per_byte;
        // A board notices after as long that its switch has closed the link.
        if links { trunk.min(self.workload.costs.link_latency) } else { trunk }
    }

    /// The interval at which switches get the time; `None` if they get none.
    pub(crate) fn tick_interval(&self) -> Option<Time> {
        self.workload.switch.silence.map(|silence| silence / 4)
    }

    /// The operation of a random number below [`Plan::parts`].
    pub(crate) fn operation(&self, draw: u64) -> Operation {
        let at = self.mix.partition_point(|(sum, _)| *sum <= draw);
        // The check has found a part above 0.
        self.mix.get(at).map_or(Operation::Store, |(_, operation)| *operation)
    }

    /// The sum of the parts of all operations.
    pub(crate) fn parts(&self) -> u64 {
        self.mix.last().map_or(1, |(sum, _)| *sum)
    }

    /// Whether an operation has a part.
    pub(crate) fn has(&self, operation: Operation) -> bool {
        self.mix.iter().any(|(_, other)| *other == operation)
    }

    /// Whether partners need each other's segment of this kind.
    pub(crate) fn needs(&self, segment: Segment) -> bool {
        match segment {
            Segment::Queue => self.has(Operation::Enqueue),
            Segment::Page => self.has(Operation::Multicast),
            Segment::Data => self.mix.iter().any(|(_, o)| !matches!(o, Operation::Enqueue | Operation::Multicast)),
        }
    }

    /// Whether copies have their other end in the own data segment.
    pub(crate) fn needs_own_data(&self) -> bool {
        self.has(Operation::Put) || self.has(Operation::Get)
    }

    /// The home of a node's replicated page. A last group of one has none.
    pub(crate) fn home(&self, node: NodeId) -> Option<NodeId> {
        let group = self.workload.replicas.group;
        let home = u32::from(node) / group * group;
        (self.has(Operation::Multicast) && home + 1 < self.nodes).then_some(home as NodeId)
    }
}
