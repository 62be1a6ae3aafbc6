// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which workloads are possible.

use super::{Fault, FaultKind, MAX_COPY, Pattern, Workload};
use crate::units::{self, MICROSECOND, NANOSECOND};
use telegraphos_wire::NodeId;

/// What is wrong with a workload.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum WorkloadError {
    /// The file is no TOML of this form.
    #[error("{0}")]
    Syntax(String),
    /// A value is out of its range, or does not fit the others.
    #[error("{key} is {value}: expected {expected}")]
    Value { key: String, value: String, expected: String },
}

fn wrong(key: &str, value: impl ToString, expected: impl Into<String>) -> WorkloadError {
    WorkloadError::Value { key: key.to_owned(), value: value.to_string(), expected: expected.into() }
}

impl Workload {
    /// Reads a workload file. Call [`Workload::check`] with the number of nodes before it is used.
    pub fn parse(text: &str) -> Result<Workload, WorkloadError> {
        let mut workload: Workload =
            toml::from_str(text).map_err(|e| WorkloadError::Syntax(e.to_string().trim_end().to_owned()))?;
        if workload.operations.sum() == 0 {
            workload.operations.store = 1;
        }
        Ok(workload)
    }

    /// Whether its values are possible, among so many nodes.
    pub fn check(&self, nodes: u32) -> Result<(), WorkloadError> {
        let between = |key, value: u64, from: u64, to: u64| {
            if (from..=to).contains(&value) { Ok(()) } else { Err(wrong(key, value, format!("{from} to {to}"))) }
        };
        between("nodes", nodes.into(), 2, 4096)?;
        let mix = &self.operations;
        if mix.sum() == 0 {
            return Err(wrong("operations", "without any part", "a part of at least one operation above 0"));
        }
        if !matches!(self.sizes.word, 1 | 2 | 4 | 8) {
            return Err(wrong("sizes.word", self.sizes.word, "1, 2, 4 or 8"));
        }
        between("sizes.copy", self.sizes.copy.into(), 1, MAX_COPY.into())?;
        // Operations that end in the status page have one of the context's 64 slots each.
        let slots = u64::from(mix.atomic) + u64::from(mix.multicast) + u64::from(mix.put) + u64::from(mix.get);
        between("load.outstanding", self.load.outstanding.into(), 1, if slots > 0 { 64 } else { 512 })?;
        between("load.operations", self.load.operations, 1, 1 << 40)?;
        between("load.burst", self.load.burst.into(), 1, 1 << 20)?;
        if let Some(rate) = self.load.rate {
            between("load.rate", rate, 1, 1_000_000_000)?;
        } else if self.load.burst != 1 {
            return Err(wrong("load.burst", self.load.burst, "1 without load.rate"));
        }
        let words = self.queue.words;
        if !words.is_power_of_two() || !(8..=8192).contains(&words) {
            return Err(wrong("queue.words", words, "a power of two from 8 to 8192"));
        }
        between("queue.hold", self.queue.hold.into(), 1, 8192)?;
        between("replicas.group", self.replicas.group.into(), 2, 64)?;
        between("board.outstanding", self.board.outstanding.into(), 1, 4096)?;
        between("board.credits", self.board.credits.into(), 1, 65_536)?;
        between("switch.credits", self.switch.credits.into(), 1, 65_536)?;
        between("switch.room", self.switch.room.into(), 1, 1 << 20)?;
        if let Some(silence) = self.switch.silence.filter(|silence| *silence < 40 * MICROSECOND) {
            // The switch counts microseconds, and sends several probes before it declares a node down.
            return Err(wrong("switch.silence", units::show_time(silence), "at least 40 us"));
        }
        self.check_costs()?;
        self.check_pattern(nodes)?;
        self.faults.iter().enumerate().try_for_each(|(index, fault)| fault.check(index, nodes))
    }

    fn check_costs(&self) -> Result<(), WorkloadError> {
        let costs = &self.costs;
        let all = [
            ("costs.link-latency", costs.link_latency),
            ("costs.trunk-latency", costs.trunk_latency),
            ("costs.switch-crossing", costs.switch_crossing),
            ("costs.board", costs.board),
            ("costs.memory", costs.memory),
            ("costs.processor", costs.processor),
            ("costs.interrupt", costs.interrupt),
            ("costs.retry", costs.retry),
            ("queue.consume", self.queue.consume),
            ("load.think", self.load.think),
        ];
        if let Some((key, value)) = all.iter().find(|(_, value)| *value > 10 * units::SECOND) {
            return Err(wrong(key, units::show_time(*value), "at most 10 s"));
        }
        // Otherwise a node could issue operations without end in no time.
        for (key, value) in [("costs.processor", costs.processor), ("costs.retry", costs.retry)] {
            if value < NANOSECOND {
                return Err(wrong(key, units::show_time(value), "at least 1 ns"));
            }
        }
        Ok(())
    }

    fn check_pattern(&self, nodes: u32) -> Result<(), WorkloadError> {
        let target = |target: NodeId| {
            if u32::from(target) < nodes {
                Ok(())
            } else {
                Err(wrong("pattern.target", target, format!("a node below {nodes}")))
            }
        };
        match &self.pattern {
            Pattern::Uniform { partners: 0 } | Pattern::HotSpot { partners: 0, .. } => {
                Err(wrong("pattern.partners", 0, "at least 1"))
            }
            Pattern::HotSpot { target: node, percent, .. } => match percent {
                1..=100 => target(*node),
                _ => Err(wrong("pattern.percent", percent, "1 to 100")),
            },
            Pattern::AllToOne { target: node } => target(*node),
            Pattern::Neighbour { width: Some(width) } if *width == 0 || nodes % width != 0 => {
                Err(wrong("pattern.width", width, format!("a divisor of the number of nodes, {nodes}")))
            }
            Pattern::Transpose {} if nodes.isqrt().pow(2) != nodes => {
                Err(wrong("pattern.kind", "transpose", format!("a square number of nodes, not {nodes}")))
            }
            _ => Ok(()),
        }
    }
}

impl Fault {
    /// Whether it names what its kind happens to. `index` counts the faults of the workload from 0.
    fn check(&self, index: usize, nodes: u32) -> Result<(), WorkloadError> {
        let name = self.kind.name();
        let key = |field: &str| format!("{field} of fault {} ({name})", index + 1);
        let of_trunk = matches!(self.kind, FaultKind::TrunkDown | FaultKind::TrunkUp);
        match (of_trunk, self.node, self.trunk) {
            (false, Some(node), None) if u32::from(node) < nodes => {}
            (false, Some(node), None) => return Err(wrong(&key("node"), node, format!("a node below {nodes}"))),
            (false, None, _) => return Err(wrong(&key("node"), "missing", "a node")),
            (false, _, Some(_)) => return Err(wrong(&key("trunk"), "given", "none: this happens to a node")),
            (true, None, Some(_)) => {}
            (true, _, None) => return Err(wrong(&key("trunk"), "missing", "the two switches it joins, as in [0, 1]")),
            (true, Some(_), _) => return Err(wrong(&key("node"), "given", "none: this happens to a trunk")),
        }
        match (self.kind, self.lasts) {
            (FaultKind::Hang, None) => Err(wrong(&key("lasts"), "missing", "how long it hangs, as in \"3ms\"")),
            (FaultKind::Hang, Some(_)) | (_, None) => Ok(()),
            (_, Some(_)) => Err(wrong(&key("lasts"), "given", "nothing: only a hang ends by itself")),
        }
    }
}
