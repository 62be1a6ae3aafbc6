// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a run to its report.

use crate::report::{ClassReport, Fairness, HOTTEST, Latency, OperationReport, Packets, Pair, Report, TrunkReport};
use crate::simulation::{Simulation, SimulationError};
use crate::units::{SECOND, Time};
use crate::workload::Operation;
use telegraphos_wire::{Class, NodeId};

impl Simulation {
    /// Sets the cluster up, performs all operations, and says how it went.
    pub fn run(mut self) -> Result<Report, SimulationError> {
        self.set_up()?;
        self.operate()?;
        Ok(self.report())
    }

    /// The report of the operations so far.
    pub fn report(&self) -> Report {
        let (plan, statistics) = (&self.plan, self.statistics());
        let duration = statistics.last_end.saturating_sub(self.started);
        let operations: Vec<OperationReport> = Operation::ALL
            .into_iter()
            .zip(&statistics.operations)
            .filter(|(_, counted)| counted.issued + counted.refused > 0)
            .map(|(operation, counted)| {
                let latency = &counted.latency;
                OperationReport {
                    operation: operation.name(),
                    issued: counted.issued,
                    completed: latency.count,
                    failed: counted.failed,
                    refused: counted.refused,
                    aborted: counted.aborted,
                    latency: Latency {
                        min: latency.least,
                        mean: latency.mean(),
                        p50: latency.percentile(50),
                        p90: latency.percentile(90),
                        p99: latency.percentile(99),
                        max: latency.greatest,
                    },
                    per_second: per_second(latency.count, duration),
                    bytes_per_second: per_second(counted.bytes, duration),
                }
            })
            .collect();
        let issues = |node: usize, class: Class| {
            class == Class::Reflected && plan.home(node as NodeId).is_some() || !plan.partners[node].nodes.is_empty()
        };
        let classes = [
            (Class::Enqueue, "enqueue"),
            (Class::Request, "request"),
            (Class::Reflected, "reflected"),
            (Class::Reply, "reply"),
        ];
        let classes = classes
            .into_iter()
            .filter(|(class, _)| statistics.delivered_of[*class as usize] > 0)
            .map(|(class, name)| {
                let index = class as usize;
                let shares = self.shares.iter().flatten().enumerate();
                let (stalls, credit_stalls, depth_max) = self.waits_of_operations(class);
                ClassReport {
                    class: name,
                    fairness: fairness(
                        shares.filter(|(node, _)| issues(*node, class)).map(|(_, shares)| shares[index]),
                    ),
                    delivered: statistics.delivered_of[index],
                    stalls,
                    credit_stalls,
                    depth_max,
                }
            })
            .collect();
        let performed: u64 = operations.iter().map(|operation| operation.completed).sum();
        let trunks = self.trunk_reports(duration);
        let mut pairs: Vec<Pair> = Vec::new();
        for (node, partners) in self.nodes().zip(&plan.partners) {
            let traffic = partners.nodes.iter().zip(&node.guest.traffic).filter(|(_, traffic)| traffic.0 > 0);
            pairs.extend(traffic.map(|(to, traffic)| Pair {
                from: node.id,
                to: *to,
                operations: traffic.0,
                bytes: traffic.1,
            }));
            if pairs.len() > 4096 {
                hottest(&mut pairs);
            }
        }
        hottest(&mut pairs);
        Report {
            nodes: plan.nodes,
            topology: self.label.clone(),
            seed: plan.seed,
            duration_ps: duration,
            packets: Packets {
                sent: statistics.sent,
                delivered: statistics.delivered,
                hops: self.hops(),
                lost: statistics.lost,
                per_operation_milli: statistics.delivered * 1000 / performed.max(1),
            },
            operations,
            classes,
            hottest_pairs: pairs,
            trunks,
            elements: statistics.consumed,
            overflows: statistics.overflows,
            disconnected: statistics.disconnected,
            faults: [self.faults_met as u64, plan.workload.faults.len() as u64],
            disorder: statistics.disorder,
        }
    }

    fn trunk_reports(&self, duration: Time) -> Vec<TrunkReport> {
        let directions = self.topology.trunks().iter().flat_map(|trunk| [(trunk.a, trunk.b), (trunk.b, trunk.a)]);
        let report = |(direction, (from, to))| {
            let sender = &self.output(from, direction).sender;
            let load_milli = share_milli(sender.busy, duration);
            TrunkReport { from, to, packets: sender.packets, bytes: sender.bytes, load_milli }
        };
        (0..).zip(directions).map(report).collect()
    }
}

fn per_second(count: u64, duration: Time) -> u64 {
    (u128::from(count) * u128::from(SECOND) / u128::from(duration.max(1))) as u64
}

fn fairness(shares: impl Iterator<Item = u64>) -> Option<Fairness> {
    let shares: Vec<u64> = shares.collect();
    let sum: u128 = shares.iter().map(|x| u128::from(*x)).sum();
    let squares: u128 = shares.iter().map(|x| u128::from(*x) * u128::from(*x)).sum();
    if sum == 0 {
        return None;
    }
    Some(Fairness {
        nodes: shares.len() as u64,
        jain_ppm: (sum * sum * 1_000_000 / (shares.len() as u128 * squares)) as u64,
        min: shares.iter().copied().min().unwrap_or(0),
        max: shares.iter().copied().max().unwrap_or(0),
    })
}

fn hottest(pairs: &mut Vec<Pair>) {
    pairs.sort_by_key(|pair| (std::cmp::Reverse(pair.operations), std::cmp::Reverse(pair.bytes), pair.from, pair.to));
    pairs.truncate(HOTTEST);
}

/// Thousandths of `whole` that `part` is.
fn share_milli(part: Time, whole: Time) -> u64 {
    (u128::from(part) * 1000 / u128::from(whole.max(1))) as u64
}
