// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the server costs, without a VM: two boards, a fabric between them (each a thread of this process), a client in
//! QEMU's place.
//!
//! `cargo run --release -p telegraphos-device --example speed [--spin-us N]`. Wall time; compare rows of one run, not
//! of two.
// An example fails by panicking, its helpers too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::any::Any;
use std::path::Path;
use std::time::{Duration, Instant};

use support::crate_server::CrateServer;
use support::linked::{Node, Switch, joined};
use support::{Guest, RAM, window};
use telegraphos_device::Settings;
use telegraphos_device::vfio::message::{Access, SmallWrite, command};
use telegraphos_wire::Status;
use telegraphos_wire::regs::Register;

const MEMORY: u64 = RAM + 0x10_0000;

/// A guest of a board, and what keeps the board running.
fn board(dir: &Path, node: u16, spin: u64, with_crate: bool) -> (Guest, Box<dyn Any>) {
    let settings = Settings { spin_us: Some(spin), ..Settings::default() };
    if with_crate {
        let server = CrateServer::start(Node::config(dir, node, settings));
        (joined(&server.socket), Box::new(server))
    } else {
        let server = Node::start(dir, node, settings);
        (server.guest(), Box::new(server))
    }
}

fn report(what: &str, count: u32, took: Duration) {
    println!("{what:<58} {count:>8} {:>10.2} us each", took.as_secs_f64() * 1e6 / f64::from(count));
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let spin = match args.as_slice() {
        [] => 0,
        [name, value] if name == "--spin-us" => value.parse().expect("--spin-us takes a number"),
        _ => panic!("usage: speed [--spin-us N]"),
    };
    for with_crate in [false, true] {
        println!("server: {}, spin {spin} us", if with_crate { "crate" } else { "own" });
        let dir = tempfile::tempdir().unwrap();
        let _fabric = Switch::start(dir.path());
        let (mut a, _board_a) = board(dir.path(), 0, spin, with_crate);
        let (mut b, _board_b) = board(dir.path(), 1, spin, with_crate);
        a.export("a", 0, 1, MEMORY, 3);
        b.export("b", 0, 1, MEMORY, 3);
        for (node, name) in [(0u16, "a"), (1, "b")] {
            a.reach(node, node, name, 3);
        }
        let mut timed = |what: &str, count: u32, f: &mut dyn FnMut(&mut Guest, u32)| {
            let begun = Instant::now();
            for n in 0..count {
                f(&mut a, n);
            }
            report(what, count, begun.elapsed());
        };
        timed("register load (one round trip of the socket)", 20_000, &mut |a, _| {
            a.client.register(Register::Magic);
        });
        timed("load from own memory through the window", 20_000, &mut |a, _| {
            a.client.read(4, window(0, 0, 0), 8);
        });
        timed("load from the other node", 10_000, &mut |a, _| {
            a.client.read(4, window(1, 1, 0), 8);
        });
        timed("store to the other node and quiet", 10_000, &mut |a, n| {
            a.client.store(4, window(1, 1, 0), &u64::from(n).to_le_bytes());
            assert_eq!(a.quiet(), Status::Ok);
        });
        for (what, node) in [("own memory", 0u16), ("the other node", 1)] {
            let begun = Instant::now();
            for n in 0..200_000u64 {
                a.client.store(4, window(node, node, 8 * (n % 8192)), &n.to_le_bytes());
            }
            assert_eq!(a.quiet(), Status::Ok);
            report(&format!("posted stores to {what}, to completion"), 200_000, begun.elapsed());
        }
        if !with_crate {
            let begun = Instant::now();
            for chunk in 0..1000u64 {
                let writes: Vec<SmallWrite> = (0..200)
                    .map(|n| SmallWrite {
                        access: Access { offset: window(1, 1, 8 * n), region: 4, count: 8 },
                        data: chunk.to_le_bytes(),
                    })
                    .collect();
                let mut body = 200u64.to_le_bytes().to_vec();
                body.extend_from_slice(bytemuck::cast_slice(&writes));
                a.client.post(command::REGION_WRITE_MULTI, &body);
            }
            assert_eq!(a.quiet(), Status::Ok);
            report("the same, 200 in one message", 200_000, begun.elapsed());
        }
    }
}
