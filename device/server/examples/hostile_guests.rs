// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a hostile guest does to others: two boards exchange stores and loads, and a third board's guest attacks, each
//! board and the fabric a process of its own.
//!
//! `cargo run --release -p telegraphos-device --example hostile_guests [ROUNDS]`. Latencies of the honest pair, in
//! microseconds: medians with the attack, beside medians in which the attacker keeps as many processors busy without
//! its board. The two take turns.
// An example fails by panicking, its helpers too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ffi::OsString;
use std::io::Read;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use telegraphos_device::vfio::message::{DmaMap, DmaUnmap, command, dma_map};
use telegraphos_device_client::{Client, Guest, MEMORY, Pages, WINDOW, memfd, wait_for, window};
use telegraphos_testkit::Daemon;
use telegraphos_wire::admin::{self, Command as Admin};
use telegraphos_wire::context::{self, Argument, Launch, Operation};
use telegraphos_wire::{Aperture, Rights, Status, UNIT, WindowLayout};

/// How long one attack, or its baseline, is measured at a time.
const SPELL: Duration = Duration::from_millis(400);
const CONTEXTS: u32 = 2;
const CONFIG: u32 = 7;
/// Memory of the attacker that is large enough for copies of 16 MiB.
const LARGE: u64 = 0x1000_0000;
const LARGE_SIZE: u64 = 48 << 20;
const COPY: u64 = 16 << 20;

const ATTACKS: [(&str, &str); 7] = [
    ("mmio", "raw accesses to all BARs as fast as it can"),
    ("copies", "copies of 16 MiB within its node, launched without pause"),
    ("quiets", "QUIET stores behind a store, without pause"),
    ("launches", "launches that are refused, without pause"),
    ("maps", "DMA maps of 3 TiB until one is refused, and unmaps"),
    ("words", "launches with bus mastering off, then on"),
    ("fetches", "atomics by load, one after the other"),
];

/// A process of this program.
struct Process(Daemon);

impl Process {
    fn start(args: &[&str]) -> Process {
        let mut command = Command::new(std::env::current_exe().expect("our own program"));
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        Process(Daemon::start(&mut command))
    }

    /// Waits until it has written a byte.
    fn ready(&mut self) {
        let mut byte = [0];
        self.0.stdout.as_mut().expect("a pipe").read_exact(&mut byte).expect("a process that is ready");
    }

    /// Ends it; how many bytes it has written since it was ready.
    fn end(mut self) -> usize {
        let _ = self.0.kill();
        let mut bytes = Vec::new();
        self.0.stdout.as_mut().expect("a pipe").read_to_end(&mut bytes).expect("the end of the pipe");
        bytes.len()
    }
}

fn guest(dir: &Path, node: u16) -> Guest {
    let socket = dir.join(format!("hib{node}.sock"));
    wait_for("the socket", || std::os::unix::net::UnixStream::connect(&socket).ok()).unwrap();
    // The board takes one connection at a time, and may not have seen the end of the one that looked.
    let mut guest = wait_for("the board", || Guest::boot(Client::new(&socket).ok()?).ok()).unwrap();
    guest.join().unwrap();
    guest.open_context(0).unwrap();
    guest
}

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    match args.get(1).and_then(|word| word.to_str()) {
        Some("hib") => return telegraphos_device::cli_main(args.into_iter().skip(1)),
        Some("fabric") => return telegraphos_fabric::cli_main(args.into_iter().skip(1)),
        Some("attack") => attack(args[2].to_str().unwrap(), Path::new(&args[3])),
        Some("spin") => spin(),
        rounds => measure(rounds.map_or(6, |n| n.parse().expect("usage: hostile_guests [ROUNDS]"))),
    }
    ExitCode::SUCCESS
}

fn measure(rounds: u32) {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let fabric = path("fabric.sock");
    let mut processes = vec![Process::start(&["fabric", "--listen", &fabric, "--log", "error"])];
    for node in 0..3 {
        let socket = path(&format!("hib{node}.sock"));
        let node = node.to_string();
        let args = ["hib", "--socket", &socket, "--node", &node, "--fabric", &fabric, "--log", "error"];
        processes.push(Process::start(&args));
    }
    let (mut near, mut far) = (guest(dir.path(), 0), guest(dir.path(), 1));
    let pages = far.grant(1, 0, 1, MEMORY, Rights(3)).unwrap();
    wait_for("the other node", || {
        near.admin_ok(Admin { opcode: admin::LOOKUP, node: 1, name: [1; 64], ..Admin::default() }).err().and_then(|e| {
            // Its board answers that there is no such name.
            (!e.to_string().contains(Status::NodeDown.describe())).then_some(())
        })
    })
    .unwrap();
    near.import(1, &pages, Rights(3)).unwrap();
    println!(
        "{:<58} {:>8} {:>8} {:>6} {:>9}   {:>8} {:>8} {:>6} {:>9}",
        "us", "spin", "attack", "ratio", "worst", "spin", "attack", "ratio", "worst"
    );
    println!("{:<58} {:^34}   {:^34}", "", "store and quiet", "load");
    for (name, what) in ATTACKS {
        let mut turns = 0;
        let mut samples = [[Vec::new(), Vec::new()], [Vec::new(), Vec::new()]];
        for _ in 0..rounds {
            for (n, samples) in samples.iter_mut().enumerate() {
                let socket = path("hib2.sock");
                let mut attacker = match n {
                    0 => Process::start(&["spin"]),
                    _ => Process::start(&["attack", name, &socket]),
                };
                attacker.ready();
                let begun = Instant::now();
                let mut count = 0u64;
                while begun.elapsed() < SPELL {
                    count += 1;
                    let at = Instant::now();
                    near.client.store(WINDOW, window(1, 1, 8 * (count % 1000)), &count.to_le_bytes()).unwrap();
                    assert_eq!(near.quiet().unwrap(), Status::Ok);
                    samples[0].push(at.elapsed());
                    let at = Instant::now();
                    assert_eq!(near.client.read(WINDOW, window(1, 1, 8 * (count % 1000)), 8).unwrap(), count);
                    samples[1].push(at.elapsed());
                }
                turns += attacker.end();
            }
        }
        print!("{what:<58}");
        let [spinning, attacked] = &mut samples;
        for (spinning, attacked) in spinning.iter_mut().zip(attacked) {
            let [spin, attack] = [spinning, attacked].map(|times| {
                times.sort_unstable();
                (times[times.len() / 2].as_secs_f64() * 1e6, times[times.len() - 1].as_secs_f64() * 1e6)
            });
            print!(" {:>8.1} {:>8.1} {:>6.2} {:>9.0}  ", spin.0, attack.0, attack.0 / spin.0, attack.1);
        }
        println!(" {turns:>8} turns");
        assert!(turns > 0, "the attacker has not come round once");
    }
}

/// One turn of an attack is over.
fn say_turn() {
    use std::io::Write;
    std::io::stdout().write_all(b".").unwrap();
    std::io::stdout().flush().unwrap();
}

/// Ready; ends when the process that started this one does so.
fn say_ready() {
    use std::io::Write;
    std::io::stdout().write_all(b"!").unwrap();
    std::io::stdout().flush().unwrap();
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
}

/// As many processors as an attack keeps busy: the attacker's, and its board's.
fn spin() {
    say_ready();
    std::thread::spawn(|| {
        loop {
            std::hint::spin_loop()
        }
    });
    loop {
        std::hint::spin_loop();
    }
}

/// The place in the argument aperture that names an address of the plain one.
fn argument(address: u64) -> u64 {
    let layout = WindowLayout::default();
    let mut parts = layout.decode(address);
    parts.aperture = Aperture::Argument;
    layout.encode(parts).unwrap()
}

fn attack(kind: &str, socket: &Path) {
    // The board may still be busy with the end of the attacker before this one.
    let mut guest = wait_for("the board", || Guest::boot(Client::new(socket).ok()?).ok()).unwrap();
    guest.join().unwrap();
    guest.open_context(0).unwrap();
    let file = memfd(LARGE_SIZE).unwrap();
    let map = |address, size| DmaMap {
        argsz: size_of::<DmaMap>() as u32,
        flags: dma_map::READ | dma_map::WRITE,
        offset: 0,
        address,
        size,
    };
    guest.client.map(map(LARGE, LARGE_SIZE), Some(&file)).unwrap().ok("memory").unwrap();
    let units = (2 * COPY / UNIT) as u32;
    let Pages { generation, length, .. } = guest.grant(2, 0, units, LARGE, Rights(23)).unwrap();
    let pages = Pages { node: 2, page: 0, count: units, length, generation };
    guest.import(0, &pages, Rights(23)).unwrap();
    let registers = |slot: u64, register: u64| context::REGISTERS + context::STRIDE * slot + register;
    let launch = Launch { operation: Operation::Copy, notify: false, cookie: 7 }.encode();
    let word = |slot: u64, which| Argument { context: 0, slot: slot as u8, which, key: 0 }.encode();
    let (to, from) = (window(2, 0, COPY), window(2, 0, 0));
    say_ready();
    let client = &mut guest.client;
    loop {
        match kind {
            "mmio" => {
                client.store_all(WINDOW, (0..400).map(|n| (window(2, 0, 8 * n), n))).unwrap();
                client.store_all(WINDOW, (0..100).map(|n| (window(3, 9, 8 * n), n))).unwrap();
                client.store_all(CONTEXTS, (0..400).map(|n| (8 * n, n))).unwrap();
                client.store_all(0, (0..100).map(|n| (8 * n % 0x60, 0))).unwrap();
                client.read(0, 0, 8).unwrap();
            }
            "copies" => {
                for slot in 0..64 {
                    let arguments = [(argument(to), word(slot, 0)), (argument(from), word(slot, 1))];
                    client.store_all(WINDOW, arguments).unwrap();
                    let rest = [(registers(slot, context::LENGTH), COPY), (registers(slot, context::LAUNCH), launch)];
                    client.store_all(CONTEXTS, rest).unwrap();
                }
            }
            "quiets" => {
                client.store_all(WINDOW, [(window(2, 0, 0), 1)]).unwrap();
                let quiet = context::QUIET_ALL << context::COOKIE_BITS;
                client.store_all(CONTEXTS, (0..1000).map(|n| (8 * (n % 64), quiet | n))).unwrap();
            }
            "launches" => {
                client.store_all(CONTEXTS, (0..1000).map(|n| (registers(n % 64, context::LAUNCH), launch))).unwrap();
            }
            "maps" => {
                let sparse = memfd(3 << 40).unwrap();
                let mut n = 1;
                while client.map(map(n << 42, 3 << 40), Some(&sparse)).unwrap().errno().is_none() {
                    n += 1;
                }
                for n in 1..n {
                    let unmap =
                        DmaUnmap { argsz: size_of::<DmaUnmap>() as u32, flags: 0, address: n << 42, size: 3 << 40 };
                    client.call_with(command::DMA_UNMAP, bytemuck::bytes_of(&unmap), &[]).unwrap();
                }
            }
            "words" => {
                client.write(CONFIG, 4, &2u16.to_le_bytes()).unwrap();
                client.store_all(CONTEXTS, (0..5000).map(|n| (registers(n % 64, context::LAUNCH), launch))).unwrap();
                client.write(CONFIG, 4, &6u16.to_le_bytes()).unwrap();
            }
            "fetches" => {
                client.store_all(WINDOW, [(argument(from), word(1, 0))]).unwrap();
                let rest = [(registers(1, context::OPERAND), 1), (registers(1, context::LENGTH), 2 << 56)];
                client.store_all(CONTEXTS, rest).unwrap();
                client.read(CONTEXTS, context::FETCH + 8, 8).unwrap();
            }
            other => panic!("{other} is no attack"),
        }
        say_turn();
    }
}
