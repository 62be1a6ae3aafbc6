// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report of a run, in whole numbers: the same run gives the same bytes.

use crate::units::{Time, show_time};
use serde::Serialize;
use std::fmt;
use telegraphos_wire::NodeId;

/// How many of the hottest pairs and busiest trunks are shown.
pub(crate) const HOTTEST: usize = 8;

/// The report of a run. Durations are picoseconds of virtual time; counts are of the operations, without the set-up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    pub nodes: u32,
    pub topology: String,
    pub seed: u64,
    /// From the first operation to the end of the last.
    pub duration_ps: Time,
    /// Each operation that was issued or refused.
    pub operations: Vec<OperationReport>,
    /// Each class in which something ended.
    pub classes: Vec<ClassReport>,
    pub packets: Packets,
    /// Pairs with most operations.
    pub hottest_pairs: Vec<Pair>,
    /// Trunks, one entry for each direction.
    pub trunks: Vec<TrunkReport>,
    /// Elements that consumers took from queues, and overflows of queues.
    pub elements: u64,
    /// Overflows of queues that drivers handled.
    pub overflows: u64,
    /// Links of boards closed by their switch.
    pub disconnected: u64,
    /// Faults that happened, of those in the workload.
    pub faults: [u64; 2],
    /// Stores and elements out of order, lost or doubled between two nodes: 0, or something is wrong.
    pub disorder: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OperationReport {
    pub operation: &'static str,
    pub issued: u64,
    pub completed: u64,
    /// Ended with an error.
    pub failed: u64,
    /// Not issued, since their partner was unreachable.
    pub refused: u64,
    /// Under way when their own node crashed.
    pub aborted: u64,
    /// Of those performed, from when each was to be issued.
    pub latency: Latency,
    /// Those performed in a second of virtual time.
    pub per_second: u64,
    /// Bytes of those issued in a second of virtual time.
    pub bytes_per_second: u64,
}

/// A distribution of latencies, in picoseconds; percentiles to 1/64.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// The least.
    pub min: Time,
    pub mean: Time,
    /// Half are not above.
    pub p50: Time,
    /// 90 of 100 are not above.
    pub p90: Time,
    /// 99 of 100 are not above.
    pub p99: Time,
    pub max: Time,
}

/// How a class of operations was shared, and how it waited in the switches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClassReport {
    /// Which: enqueue, request (all others) or reflected (multicast).
    pub class: &'static str,
    /// The nodes' shares of it while all had more to issue.
    pub fairness: Option<Fairness>,
    /// Packets of this class that boards took from their links.
    pub delivered: u64,
    /// Packets that waited in a switch, for a credit, room, or others before them.
    pub stalls: u64,
    /// Those of them that found no credit.
    pub credit_stalls: u64,
    /// The most that waited for one output.
    pub depth_max: u64,
}

/// Shares of the nodes that issue operations, up to the moment when the first one had issued its last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fairness {
    /// Nodes that share.
    pub nodes: u64,
    /// Jain's index, (sum x)^2 / (n sum x^2), in millionths: 1000000 if all are equal.
    pub jain_ppm: u64,
    /// The least share.
    pub min: u64,
    pub max: u64,
}

/// Packets of the operations. A packet is a frame with a packet; it counts once, however many hops it makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Packets {
    /// Given to their links by boards. A multicast counts once.
    pub sent: u64,
    /// Taken from their links by boards. Of a multicast each copy counts.
    pub delivered: u64,
    /// Links and trunks they crossed.
    pub hops: u64,
    /// On links and trunks when these broke.
    pub lost: u64,
    /// Delivered for an operation that was performed, in thousandths.
    pub per_operation_milli: u64,
}

/// Operations of one node for one other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pair {
    pub from: NodeId,
    pub to: NodeId,
    pub operations: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// One direction of a trunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TrunkReport {
    pub from: u16,
    pub to: u16,
    pub packets: u64,
    /// Bytes, with those of credits and presence.
    pub bytes: u64,
    /// Time in which it was sending, of the whole, in thousandths.
    pub load_milli: u64,
}

/// Thousandths as a decimal number.
fn milli(value: u64) -> String {
    format!("{}.{:03}", value / 1000, value % 1000)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { nodes, topology, seed, packets, .. } = self;
        writeln!(f, "{nodes} nodes, {topology}, seed {seed}: {} of virtual time", show_time(self.duration_ps))?;
        writeln!(
            f,
            "\n{:<10}{:>11}{:>11}{:>9}{:>12}{:>12}{:>12}{:>12}{:>12}{:>13}{:>10}",
            "operation", "issued", "completed", "failed", "min", "p50", "p90", "p99", "max", "per s", "MB/s"
        )?;
        for o in &self.operations {
            let l = &o.latency;
            let [min, p50, p90, p99, max] = [l.min, l.p50, l.p90, l.p99, l.max].map(show_time);
            writeln!(
                f,
                "{:<10}{:>11}{:>11}{:>9}{min:>12}{p50:>12}{p90:>12}{p99:>12}{max:>12}{:>13}{:>10}",
                o.operation,
                o.issued,
                o.completed,
                o.failed,
                o.per_second,
                milli(o.bytes_per_second / 1000)
            )?;
            if o.refused + o.aborted > 0 {
                writeln!(f, "{:10}{} not issued, {} ended with their node", "", o.refused, o.aborted)?;
            }
        }
        writeln!(
            f,
            "\npackets: {} sent, {} delivered ({} for each operation), {} hops, {} lost on broken links",
            packets.sent,
            packets.delivered,
            milli(packets.per_operation_milli),
            packets.hops,
            packets.lost
        )?;
        writeln!(
            f,
            "\n{:<10}{:>12}{:>11}{:>11}{:>10}{:>8}{:>10}{:>10}{:>10}",
            "class", "delivered", "stalls", "no credit", "deepest", "nodes", "Jain", "least", "most"
        )?;
        for c in &self.classes {
            write!(f, "{:<10}{:>12}{:>11}{:>11}{:>10}", c.class, c.delivered, c.stalls, c.credit_stalls, c.depth_max)?;
            match &c.fairness {
                Some(s) => {
                    let jain = format!("{}.{:06}", s.jain_ppm / 1_000_000, s.jain_ppm % 1_000_000);
                    writeln!(f, "{:>8}{jain:>10}{:>10}{:>10}", s.nodes, s.min, s.max)?;
                }
                None => writeln!(f)?,
            }
        }
        if self.elements + self.overflows > 0 {
            writeln!(f, "\nqueues: {} elements taken, {} overflows", self.elements, self.overflows)?;
        }
        if !self.hottest_pairs.is_empty() {
            writeln!(f, "\nhottest pairs (operations, bytes)")?;
            for p in &self.hottest_pairs {
                writeln!(f, "  {} -> {}: {}, {}", p.from, p.to, p.operations, p.bytes)?;
            }
        }
        self.show_trunks(f)?;
        if self.faults[1] > 0 {
            writeln!(
                f,
                "\nfaults: {} of {} happened; {} boards were disconnected",
                self.faults[0], self.faults[1], self.disconnected
            )?;
        }
        if self.disorder > 0 {
            writeln!(f, "\nOUT OF ORDER, LOST OR DOUBLED: {}", self.disorder)?;
        }
        Ok(())
    }
}

impl Report {
    /// The busiest trunks; JSON has all.
    fn show_trunks(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.trunks.is_empty() {
            return Ok(());
        }
        let mut busiest: Vec<&TrunkReport> = self.trunks.iter().collect();
        busiest.sort_by_key(|t| (std::cmp::Reverse(t.load_milli), std::cmp::Reverse(t.bytes), t.from, t.to));
        let sum: u64 = busiest.iter().map(|trunk| trunk.load_milli).sum();
        let mean = sum / busiest.len() as u64;
        writeln!(f, "\ntrunks: {} directions, {} % busy on average; the busiest", busiest.len(), percent(mean))?;
        for t in busiest.iter().take(HOTTEST) {
            writeln!(
                f,
                "  {} -> {}: {} packets, {} bytes, {} % busy",
                t.from,
                t.to,
                t.packets,
                t.bytes,
                percent(t.load_milli)
            )?;
        }
        Ok(())
    }

    /// Whether every operation has ended exactly once, and nothing came out of order: `Err` says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        for o in &self.operations {
            let ended = o.completed + o.failed + o.aborted;
            if ended != o.issued {
                return Err(format!("{}: {} issued, but {ended} ended", o.operation, o.issued));
            }
        }
        if self.disorder > 0 {
            return Err(format!("{} stores or elements out of order, lost or doubled", self.disorder));
        }
        Ok(())
    }
}

fn percent(milli: u64) -> String {
    format!("{}.{}", milli / 10, milli % 10)
}
