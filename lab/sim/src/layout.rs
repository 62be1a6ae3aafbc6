// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where things lie in the memory of a simulated guest, and in the window of its board.

use telegraphos_wire::link::DEFAULT_CREDITS;
use telegraphos_wire::{Aperture, NodeId, Rights, UNIT, WindowAddress, WindowLayout};

use crate::workload::Workload;
use telegraphos_device_core::HibConfig;

pub(crate) const ADMIN: u64 = 0x1_0000;
/// The event ring.
pub(crate) const EVENTS: u64 = 0x2_0000;
pub(crate) const RING: u32 = 64;
/// Status page of context 0.
pub(crate) const STATUS: u64 = 0x3_0000;
/// Bytes of guest memory.
pub(crate) const MEMORY: u64 = 0x13_0000;
/// The key of context 0.
pub(crate) const KEY: u64 = 0x5eed_0000_0001;

/// What a node exports; each is one export page, and has one slot of the window in the range of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// A word for each node at `8 * node`, for its stores and loads; then [`ATOMIC`]; then [`COPY`].
    Data,
    Queue,
    /// A replicated page, with a word for each node.
    Page,
}

/// The word for atomics, in [`Segment::Data`].
pub(crate) const ATOMIC: u64 = 0x8000;
/// Bytes for block copies, in [`Segment::Data`].
pub(crate) const COPY: u64 = 0x9000;

impl Segment {
    pub(crate) fn page(self) -> u32 {
        self as u32
    }

    /// Where it lies in guest memory.
    pub(crate) fn address(self) -> u64 {
        0x10_0000 + u64::from(self.page()) * UNIT
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Segment::Data => "data",
            Segment::Queue => "queue",
            Segment::Page => "page",
        }
    }

    pub(crate) fn rights(self) -> Rights {
        match self {
            Segment::Data => Rights(Rights::READ.0 | Rights::WRITE.0 | Rights::ATOMIC.0 | Rights::DMA.0),
            Segment::Queue => Rights::ENQUEUE,
            Segment::Page => Rights(Rights::READ.0 | Rights::WRITE.0 | Rights::ATOMIC.0),
        }
    }
}

/// The window of a cluster of so many nodes: four slots in the range of each node.
pub(crate) fn window(nodes: u32) -> WindowLayout {
    let node_bits = nodes.next_power_of_two().trailing_zeros().max(1) as u8;
    WindowLayout { node_bits, offset_bits: 18 }
}

/// The window address of a byte of another node's segment, or of the own.
pub(crate) fn address(window: WindowLayout, aperture: Aperture, node: NodeId, segment: Segment, offset: u64) -> u64 {
    let offset = u64::from(segment.page()) * UNIT + offset;
    // Nodes and segments of a plan are within its window.
    window.encode(WindowAddress { aperture, node, offset }).unwrap_or(0)
}

/// The board of a node with so many partners, to which so many nodes may send elements.
pub(crate) fn board(workload: &Workload, node: NodeId, nodes: u32, partners: usize, senders: u32) -> HibConfig {
    HibConfig {
        window: window(nodes),
        outstanding: workload.board.outstanding,
        credits: [workload.board.credits; 4],
        contexts: 1,
        imports: (2 + 2 * partners) as u16,
        export_pages: 4,
        hold: workload.queue.hold,
        holds: (senders * workload.queue.hold).max(DEFAULT_CREDITS),
        ..HibConfig::new(node)
    }
}
