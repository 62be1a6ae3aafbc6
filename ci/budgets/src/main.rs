// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the test beside this program counts the instructions of.
//!
//! `operations COUNT OPERATION... [--nodes N] [--contexts N] [--queues N]` performs each operation COUNT times.
#![allow(clippy::expect_used, reason = "as in an example, what fails panics")]
#![forbid(unsafe_code)]

use telegraphos_budgets::{Cluster, Sizes, Way, perform, way};

const USAGE: &str = "usage: operations COUNT OPERATION... [--nodes N] [--contexts N] [--queues N]";

fn main() {
    let mut args = std::env::args().skip(1);
    let count: u64 = args.next().and_then(|count| count.parse().ok()).filter(|count| *count > 0).expect(USAGE);
    let mut operations = Vec::new();
    let mut sizes = Sizes::default();
    while let Some(arg) = args.next() {
        let mut value = || args.next().and_then(|value| value.parse().ok()).expect(USAGE);
        match arg.as_str() {
            "--nodes" => sizes.nodes = value(),
            "--contexts" => sizes.contexts = value(),
            "--queues" => sizes.queues = value(),
            _ => operations.push(arg),
        }
    }
    for of in [Way::Switch, Way::Ring] {
        let mut cluster = None;
        for operation in operations.iter().filter(|operation| way(operation) == of) {
            let cluster = cluster.get_or_insert_with(|| Cluster::with(sizes, of));
            perform(cluster, operation, count, sizes.contexts - 1);
        }
    }
}
