// SPDX-License-Identifier: MIT OR Apache-2.0
//! What losses cost, in virtual time: the table in `docs/rdp.md`.
//!
//! ```text
//! cargo test -p telegraphos-rdp-core goodput:: -- --nocapture
//! ```

use crate::world::{Faults, Plan, World};
use telegraphos_rdp_core::Config;
use telegraphos_testkit::Rng;

/// A way between two sides.
struct Way {
    name: &'static str,
    delay: u64,
    bandwidth: u64,
}

const WAYS: [Way; 3] = [
    Way { name: "one host", delay: 25, bandwidth: 750_000_000 },
    Way { name: "1 Gbit/s, 0.1 ms", delay: 100, bandwidth: 125_000_000 },
    Way { name: "100 Mbit/s, 5 ms", delay: 5_000, bandwidth: 12_500_000 },
];

/// Bytes per second that arrive, and arrived segments per datagram sent by the sender, in percent.
fn measure(way: &Way, loss: u64) -> (u64, u64) {
    let bytes = 4_000_000;
    let mut plan = Plan::calm(Config::default(), [bytes, 0]);
    plan.faults = Faults { loss, delay: way.delay, bandwidth: way.bandwidth, queue: 20_000, ..Faults::default() };
    plan.calm = u64::MAX / 2;
    let mut world = World::new(plan, Rng::new(loss));
    world.look_every(way.delay.min(100));
    let started = world.now;
    while world.read_by_server() < bytes {
        world.step().unwrap_or_else(|e| panic!("{e}"));
        assert!(world.now < 300_000_000, "{}: stuck at {} bytes", way.name, world.read_by_server());
    }
    let sent = world.client.statistics().datagrams_sent;
    let arrived = bytes.div_ceil(1400);
    (bytes * 1_000_000 / (world.now - started), arrived * 100 / sent)
}

#[test]
fn go_back_n_does_not_collapse() {
    println!("| Way | Loss | Mbyte/s | Segments that count, of datagrams sent |");
    println!("|---|---|---|---|");
    for way in &WAYS {
        let mut before = u64::MAX;
        for loss in [0, 10, 50, 200] {
            let (speed, share) = measure(way, loss);
            println!(
                "| {} | {} % | {}.{:02} | {share} % |",
                way.name,
                loss / 10,
                speed / 1_000_000,
                speed / 10_000 % 100
            );
            let least = match loss {
                0 => 98,
                10 => 80,
                50 => 50,
                _ => 18,
            };
            assert!(share >= least, "{} at {loss} permille: only {share} % of the datagrams count", way.name);
            assert!(speed < before);
            before = speed;
        }
    }
}
