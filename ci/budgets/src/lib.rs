// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two boards and a switch in one thread, without sockets, which perform one operation again and again.
//!
//! Between the boards packets pass the switch as bytes, which is what separate processes do, or a ring within the
//! process ([`Way`]), as in the host process of `telegraphos up`, `run`, `demo` and `bench`.
//!
//! The test beside this crate counts the instructions of each operation (`src/main.rs`), and `telegraphos bench`
//! measures how long they take on its machine. The same arguments execute the same instructions: time is a number that
//! each turn increases, and nothing is random.
// As in an example, what fails panics.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![forbid(unsafe_code)]

mod board;
mod cluster;
mod memory;
mod operations;
mod ring;

pub use cluster::Sizes;

use cluster::Nodes;
use memory::Lender;

/// What can be performed. Those with `-ring` are the same operations by the other [`Way`].
pub const OPERATIONS: [&str; 21] = [
    "store-own",
    "store",
    "stores",
    "load-own",
    "load",
    "fetch-add",
    "enqueue",
    "reflected",
    "copy-4k",
    "copy-1m",
    "frame",
    "message",
    "store-ring",
    "stores-ring",
    "load-ring",
    "fetch-add-ring",
    "enqueue-ring",
    "copy-4k-ring",
    "copy-1m-ring",
    "frame-ring",
    "message-ring",
];

/// The end of the name of an operation that passes a ring.
const BY_RING: &str = "-ring";

/// What packets between the two boards pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The switch, as bytes: each server is a process.
    Switch,
    /// A ring, whole, and with loans beside them: the boards are in one process.
    Ring,
}

/// An operation's name without its way, and that.
fn apart(operation: &str) -> (&str, Way) {
    operation.strip_suffix(BY_RING).map_or((operation, Way::Switch), |name| (name, Way::Ring))
}

/// What is between the boards of the cluster that is to perform an operation.
pub fn way(operation: &str) -> Way {
    apart(operation).1
}

/// How often [`perform`] performs an operation if it is to do so `count` times: copies of 1 MiB, which take long under
/// callgrind, 64 times less often.
pub fn rounds(operation: &str, count: u64) -> u64 {
    if apart(operation).0 == "copy-1m" { count.div_ceil(64) } else { count }
}

/// The instructions that an operation may take, by `budgets.toml`; `None` if it has no budget.
pub fn budget(operation: &str) -> Option<f64> {
    let table: toml::Table = include_str!("../budgets.toml").parse().expect("the table of this crate");
    table.get("instructions")?.get(operation)?.as_integer().map(|budget| budget as f64)
}

/// Two boards of a cluster, its switch, and for one of the ways a ring between the boards.
pub struct Cluster(Joined);

/// Each way has code of its own: the switch's costs nothing for the ring.
enum Joined {
    BySwitch(Nodes<Vec<u8>>),
    ByRing(Nodes<Lender>),
}

impl Cluster {
    /// Boots the boards, and has their drivers set up everything that operations use.
    pub fn new(sizes: Sizes) -> Cluster {
        Cluster::with(sizes, Way::Switch)
    }

    /// The same with this between the boards.
    pub fn with(sizes: Sizes, way: Way) -> Cluster {
        Cluster(match way {
            Way::Switch => Joined::BySwitch(Nodes::new(sizes)),
            Way::Ring => Joined::ByRing(Nodes::new(sizes)),
        })
    }
}

/// Performs one of [`OPERATIONS`] `count` times, at least once, and checks that the last one had its effect. Atomics
/// use the `context`. The test names this function to callgrind, which counts each call apart.
///
/// # Panics
/// The operation is unknown, has another [`way`] than the cluster, or has not had its effect.
#[inline(never)]
pub fn perform(cluster: &mut Cluster, operation: &str, count: u64, context: u16) {
    match (apart(operation), &mut cluster.0) {
        ((name, Way::Switch), Joined::BySwitch(nodes)) => nodes.perform(name, count, context),
        ((name, Way::Ring), Joined::ByRing(nodes)) => nodes.perform(name, count, context),
        ((_, way), _) => panic!("{operation}: expected a cluster of the way {way:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_has_a_budget_and_its_effect() {
        let mut clusters = [Way::Switch, Way::Ring].map(|way| Cluster::with(Sizes::default(), way));
        for operation in OPERATIONS {
            assert!(budget(operation).is_some_and(|budget| budget > 0.0), "{operation}");
            perform(&mut clusters[way(operation) as usize], operation, 3, 0);
        }
        assert_eq!(budget("none"), None);
    }

    #[test]
    fn by_a_ring_nothing_passes_the_switch_and_blocks_are_lent() {
        let mut nodes = Nodes::<Lender>::new(Sizes::default());
        let before = nodes.switched();
        for name in OPERATIONS.iter().filter_map(|operation| operation.strip_suffix(BY_RING)) {
            let before = nodes.boards[0].memory.lent;
            nodes.perform(name, 3, 0);
            let blocks = match name {
                "copy-4k" => 3,
                "copy-1m" => 16,
                _ => 0,
            };
            assert_eq!(nodes.boards[0].memory.lent - before, blocks, "{name}");
        }
        assert_eq!(nodes.switched(), before);
    }
}
