// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a host process costs, without a VM: two boards and the fabric in one thread, a client in QEMU's place in
//! another.
//!
//! `cargo run --release -p telegraphos-host --example host_speed [--spin-us N] [--copies]`. Wall time, and for copies
//! the processor time of the host's thread beside it, which other programs on the machine change less; compare rows of
//! one run, not of two. `telegraphos bench` measures in guests.
// An example fails by panicking, its helpers too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::thread::{Pid, gettid};
use telegraphos_device::{HibServer, Settings};
use telegraphos_device_client::{Client, Guest, MEMORY, WINDOW, window};
use telegraphos_fabric::{Config, Fabric};
use telegraphos_host::Host;
use telegraphos_testkit::eventually;
use telegraphos_wire::regs::Register;
use telegraphos_wire::{Rights, Status};

/// Export pages of each node, of 64 KiB: room for the longest copy.
const PAGES: u32 = 256;

fn board(dir: &Path, node: u16, spin: u64) -> (u16, HibServer) {
    let settings = Settings {
        socket: Some(dir.join(format!("hib{node}.sock"))),
        node: Some(node),
        fabric: Some(dir.join("fabric.sock")),
        spin_us: Some(spin),
        ..Settings::default()
    };
    (node, HibServer::bind(settings.config().unwrap()).unwrap())
}

fn guest(dir: &Path, node: u16) -> Guest {
    let mut guest = Guest::boot(Client::new(&dir.join(format!("hib{node}.sock"))).unwrap()).unwrap();
    guest.join().unwrap();
    guest.open_context(0).unwrap();
    guest
}

fn each(count: u32, took: Duration) -> f64 {
    took.as_secs_f64() * 1e6 / f64::from(count)
}

fn report(what: &str, count: u32, took: Duration) {
    println!("{what:<58} {count:>8} {:>10.2} us each", each(count, took));
}

/// The same with the processor time of the thread that worked.
fn report_both(what: &str, count: u32, took: Duration, worked: Duration) {
    println!("{what:<58} {count:>8} {:>10.2} us each {:>10.2} us of processor", each(count, took), each(count, worked));
}

/// The processor time that a thread of this process has had.
fn processor_time(thread: Pid) -> Duration {
    let path = format!("/proc/self/task/{}/schedstat", thread.as_raw_nonzero());
    let text = std::fs::read_to_string(path).unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// Until an operation has ended, by looking.
fn ended(guest: &Guest, slot: u8, cookie: u64) {
    loop {
        if let Some(status) = guest.done(slot, cookie).unwrap() {
            assert_eq!(status, Status::Ok);
            return;
        }
        std::thread::yield_now();
    }
}

/// Single loads, stores and atomics, and posted stores.
fn accesses(a: &mut Guest, far: u16) {
    let mut timed = |what: &str, count: u32, f: &mut dyn FnMut(&mut Guest, u32)| {
        let begun = Instant::now();
        (0..count).for_each(|n| f(a, n));
        report(what, count, begun.elapsed());
    };
    timed("register load (one round trip of the socket)", 20_000, &mut |a, _| {
        a.client.register(Register::Magic).unwrap();
    });
    timed("load from own memory through the window", 20_000, &mut |a, _| {
        a.client.read(WINDOW, window(0, 0, 0), 8).unwrap();
    });
    timed("load from the other node", 20_000, &mut |a, _| {
        a.client.read(WINDOW, window(1, far, 0), 8).unwrap();
    });
    timed("store to the other node and quiet", 20_000, &mut |a, n| {
        a.client.store(WINDOW, window(1, far, 0), &u64::from(n).to_le_bytes()).unwrap();
        let cookie = a.begin_quiet().unwrap();
        ended(a, 0, cookie);
    });
    timed("fetch-and-add at the other node", 20_000, &mut |a, _| {
        let cookie = a.begin_add(1, 1, far, 8, 1).unwrap();
        ended(a, 1, cookie);
    });
    for (what, node, slot) in [("own memory", 0u16, 0), ("the other node", 1, far)] {
        let begun = Instant::now();
        for n in 0..200_000u64 {
            a.client.store(WINDOW, window(node, slot, 8 * (n % 8192)), &n.to_le_bytes()).unwrap();
        }
        assert_eq!(a.quiet().unwrap(), Status::Ok);
        report(&format!("posted stores to {what}, to completion"), 200_000, begun.elapsed());
    }
}

fn main() {
    // As the server does when it starts.
    telegraphos_service::allocator::return_large_blocks();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (mut spin, mut copies, mut args) = (0, false, args.iter());
    while let Some(arg) = args.next() {
        match (arg.as_str(), args.as_slice()) {
            ("--copies", _) => copies = true,
            ("--spin-us", [value, ..]) => {
                spin = value.parse().expect("--spin-us takes a number");
                args.next();
            }
            _ => panic!("usage: host_speed [--spin-us N] [--copies]"),
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let fabric = Fabric::bind(Config::new(dir.path().join("fabric.sock"))).unwrap();
    let stop = fabric.shutdown_handle();
    let boards = vec![board(dir.path(), 0, spin), board(dir.path(), 1, spin)];
    let (send, server) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        send.send(gettid()).unwrap();
        Host::new(fabric, boards).unwrap().run()
    });
    let server = server.recv().unwrap();
    let (mut a, mut b) = (guest(dir.path(), 0), guest(dir.path(), 1));
    let rights = Rights::ALL;
    let rights = Rights(rights.0 & !Rights::ENQUEUE.0);
    let own = a.grant(0, 0, PAGES, MEMORY, rights).unwrap();
    let other = b.grant(1, 0, PAGES, MEMORY, rights).unwrap();
    a.import(0, &own, rights).unwrap();
    a.import(PAGES as u16, &other, rights).unwrap();
    let far = PAGES as u16;
    eventually("the other node", || (a.client.read(WINDOW, window(1, far, 0), 8).unwrap() != u64::MAX).then_some(()));

    if !copies {
        accesses(&mut a, far);
    }
    for (size, count) in [(64u64, 10_000u32), (4 << 10, 10_000), (64 << 10, 1000), (1 << 20, 200), (16 << 20, 30)] {
        let (from, mut to) = (vec![1u8; size as usize], vec![2u8; size as usize]);
        let (begun, worked) = (Instant::now(), processor_time(gettid()));
        for _ in 0..count {
            to.copy_from_slice(std::hint::black_box(&from));
            std::hint::black_box(&mut to);
        }
        let (took, worked) = (begun.elapsed(), processor_time(gettid()) - worked);
        report_both(&format!("memcpy of {size} bytes"), count, took, worked);
        for (what, places) in [("put", [(1, far, 0), (0, 0, 0)]), ("get", [(0, 0, 0), (1, far, 0)])] {
            let mut copy = || {
                let cookie = a.begin_copy(2, places, size).unwrap();
                ended(&a, 2, cookie);
            };
            // The first one finds memory that has never been touched.
            copy();
            let (begun, worked) = (Instant::now(), processor_time(server));
            (0..count).for_each(|_| copy());
            let (took, worked) = (begun.elapsed(), processor_time(server) - worked);
            report_both(&format!("{what} of {size} bytes"), count, took, worked);
        }
    }
    stop.shut_down();
    thread.join().unwrap().unwrap();
}
