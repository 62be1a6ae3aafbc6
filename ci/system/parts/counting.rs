// SPDX-License-Identifier: MIT OR Apache-2.0
//! "One store instruction" counted: by a plugin in QEMU that sees every instruction and every access of the guest.

use crate::help::{Export, LIMIT};
use crate::settings;
use crate::shares::Share;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use telegraphos_agent::Figure;
use telegraphos_cluster::{Cluster, Guest, GuestCommand, Net, ProgressMode, Settings, prepare};
use telegraphos_images::{Progress, Qemu, Store};
use telegraphos_plugin_core::{Accesses, Code, Passages, Range, Region, RegionCounts, Report, WATCHED};

/// Times `tg-count` does everything.
const PASSAGES: u64 = 20;

/// What a run of `tg-count` counted.
pub(crate) struct Counted {
    report: Report,
    code: Code,
    /// Numbers and names of its regions.
    regions: Vec<(Region, String)>,
    /// Addresses and names of the guest kernel's functions, in order.
    symbols: Vec<(u64, String)>,
}

/// What the plugin writes to a directory.
const OUT: &str = "counts";
const CODE: &str = "code";

impl Counted {
    /// Runs `tg-count` in a guest under a plugin that writes to a directory.
    fn by(command: GuestCommand, directory: &Path) -> Result<Counted> {
        let said = command.check()?;
        let regions = said.lines().filter_map(|line| match Figure::parse(line) {
            Some(Figure::Region { id, op }) => Some((id, op)),
            _ => None,
        });
        let regions = regions.collect();
        let table = |name: &str| {
            let file = directory.join(name);
            std::fs::read_to_string(&file).with_context(|| format!("the plugin has not written {}", file.display()))
        };
        let counts = table(OUT)?;
        println!("{counts}");
        let (report, code) = (Report::parse(&counts)?, Code::parse(&table(CODE)?)?);
        Ok(Counted { report, code, regions, symbols: Vec::new() })
    }

    /// Learns what has which address in that guest.
    fn with_symbols(mut self, guest: &Guest) -> Result<Counted> {
        for line in guest.argv(&["cat", "/proc/kallsyms"]).as_root().check()?.lines() {
            if let [address, "t" | "T" | "w" | "W", name, ..] = line.split_whitespace().collect::<Vec<_>>()[..] {
                self.symbols.push((u64::from_str_radix(address, 16)?, name.to_owned()));
            }
        }
        self.symbols.sort();
        ensure!(self.symbols.last().is_some_and(|(address, _)| *address >= KERNEL), "the kernel hides its symbols");
        Ok(self)
    }

    /// The function of the kernel that has code at an address.
    fn function(&self, address: u64) -> &str {
        let behind = self.symbols.partition_point(|(start, _)| *start <= address);
        behind.checked_sub(1).map_or("", |at| &self.symbols[at].1)
    }

    /// Instructions of the blocks that ran in a region, by address, of a passage in the mean.
    fn blocks(&self, op: &str) -> Result<Vec<(u64, f64)>> {
        let counts = self.of(op)?;
        let blocks = self.code.regions.get(&counts.region).with_context(|| format!("no code ran in {op}"))?;
        Ok(blocks.iter().map(|(address, instructions)| (*address, *instructions as f64 / PASSAGES as f64)).collect())
    }

    fn of(&self, op: &str) -> Result<&RegionCounts> {
        let (region, _) =
            self.regions.iter().find(|(_, name)| name == op).with_context(|| format!("no region is {op}"))?;
        let counts = self.report.region(*region).with_context(|| format!("{op} was not counted"))?;
        let number = counts.alone.number + counts.with_kernel.number;
        ensure!(
            (number, counts.broken) == (PASSAGES, 0),
            "{op}: {number} passages, {} broken: expected {PASSAGES} and 0",
            counts.broken
        );
        Ok(counts)
    }

    /// Of the passages without interrupt; there must be some, since the operation itself needs no kernel.
    fn alone(&self, op: &str) -> Result<&Passages> {
        let counts = self.of(op)?;
        ensure!(counts.alone.number > 0, "the kernel ran in every passage of {op}: {counts:?}");
        Ok(&counts.alone)
    }
}

/// Exactly `number` instructions, each a store (or load) of `bytes` to this device and nothing else.
fn is_exactly(counts: &Passages, number: u64, store: bool, bytes: u64, device: &str) -> Result<()> {
    let (count, size) = (Range::exactly(number), Range::exactly(number * bytes));
    let expected = match store {
        true => Accesses { stores: count, stored: size, ..Accesses::default() },
        false => Accesses { loads: count, loaded: size, ..Accesses::default() },
    };
    let what = if store { "store" } else { "load" };
    ensure!(counts.instructions == count, "{} instructions: expected {number}", counts.instructions);
    ensure!(counts.memory == expected, "accesses {:?}: expected {number} {what}s of {bytes} bytes", counts.memory);
    let found = counts.device(device);
    ensure!(found == expected, "accesses to {device} {found:?}: expected {number} {what}s of {bytes} bytes");
    Ok(())
}

/// What holds for every device with plain accesses.
fn plain_accesses(counted: &Counted, bytes: u64, device: &str) -> Result<()> {
    let nothing = counted.alone("nothing")?;
    ensure!(nothing.instructions == Range::exactly(0) && nothing.memory == Accesses::default(), "{nothing:?}");
    let check =
        |op: &str, number, store| is_exactly(counted.alone(op)?, number, store, bytes, device).context(op.to_owned());
    check("store", 1, true)?;
    check("stores-100", 100, true)?;
    check("load", 1, false)?;
    // That the test can fail.
    check("two-stores", 2, true)?;
    let two = is_exactly(counted.alone("two-stores")?, 1, true, bytes, device);
    ensure!(two.is_err(), "two stores pass for one");
    // As the compiler likes it: perhaps with instructions besides.
    let of_loop = counted.alone("loop-100")?;
    ensure!(of_loop.device(device).stores == Range::exactly(100), "loop-100: {of_loop:?}");
    ensure!(of_loop.instructions.least >= 100, "loop-100: {} instructions", of_loop.instructions);
    // One instruction of the program, and the kernel's; no passage without them.
    let call = counted.of("system-call")?;
    ensure!(call.alone.number == 0 && call.with_kernel.kernel.least > 0, "system-call: {call:?}");
    ensure!(call.with_kernel.instructions.least == 1, "system-call: {call:?}");
    Ok(())
}

/// The options of QEMU that load the plugin.
fn with_plugin(store: &Store, qemu: &Qemu, directory: &Path) -> Result<Vec<OsString>> {
    let plugin = store.plugin(qemu.version)?;
    let quoted = |path: &Path| path.display().to_string().replace(',', ",,");
    let (out, code) = (directory.join(OUT), directory.join(CODE));
    Ok(vec!["-plugin".into(), format!("{},out={},code={}", quoted(&plugin), quoted(&out), quoted(&code)).into()])
}

/// Counts everything that `tg-count` does, between two nodes.
pub(crate) fn count() -> Result<Counted> {
    let directory = tempfile::tempdir()?;
    let settings = Settings { net: Some(Net::Nodes), ..settings("counting") };
    let qemu = prepare(&settings, ProgressMode::Plain)?.qemu;
    let options = with_plugin(&Store::open(None, Progress::Plain)?, &qemu, directory.path())?;
    let cluster = Cluster::builder()
        .nodes(2)
        .settings(settings)
        .each(|node| node.lab = true)
        .node(0, |node| node.qemu_options = options)
        .boot()?;
    let _box = Export::of(cluster.node(1), "box", "64K")?;
    let mut sinks = Vec::new();
    for width in ["4", "8"] {
        let argv = ["tg-queue", "hold", &format!("sink-{width}"), "--width", width];
        let mut sink = cluster.node(1).argv(&argv).keep_input_open().spawn()?;
        sink.wait_for_line(LIMIT, |line| line.starts_with("queue "))?;
        sinks.push(sink);
    }
    let (echo, server) = (["tg-msg", "echo", "echo", "--progress", "blocking"], ["tg-net", "serve"]);
    let mut partners = Vec::new();
    for argv in [&echo[..], &server] {
        let mut partner = cluster.node(1).argv(argv).spawn()?;
        partner.wait_for_line(LIMIT, |line| line == "serving")?;
        partners.push(partner);
    }
    let passages = PASSAGES.to_string();
    let argv = ["tg-count", "1", "box", "--passages", &passages, "--queue", "sink", "--message", "echo"];
    let command = cluster.node(0).argv(&argv);
    Counted::by(command, directory.path())?.with_symbols(cluster.node(0))
}

/// A remote store is one instruction, and that is a store of 8 bytes to the window; a remote load is one load.
pub(crate) fn a_remote_store_is_one_store_instruction(counted: &Counted) -> Result<()> {
    plain_accesses(counted, 8, WINDOW)?;
    // What the library does for one word: the same single access, and no system call.
    for (op, store) in [("put", true), ("get", false)] {
        let counts = counted.alone(op)?;
        let window = counts.device(WINDOW);
        let (number, other) = if store { (window.stores, window.loads) } else { (window.loads, window.stores) };
        ensure!((number, other) == (Range::exactly(1), Range::exactly(0)), "{op}: {counts:?}");
        ensure!(counts.devices.len() == 1, "{op} touches more than the window: {counts:?}");
    }
    launches(counted)?;
    queues(counted)?;
    messages(counted)?;
    // A fence is one store to the process's own page, and waiting in memory.
    let quiet = counted.of("quiet")?;
    if quiet.alone.number > 0 {
        let passages = &quiet.alone;
        ensure!(passages.device(CONTEXT).stores == Range::exactly(1), "quiet: {passages:?}");
        ensure!(passages.device(WINDOW) == Accesses::default(), "quiet: {passages:?}");
    }
    // Where the kernel runs, it may run another thread, such as that which looks whether other processes are there.
    if quiet.with_kernel.number > 0 {
        let passages = &quiet.with_kernel;
        let (context, window) = (passages.device(CONTEXT), passages.device(WINDOW));
        let least = (context.stores.least, window.stores.least, window.loads.least);
        ensure!(least == (1, 0, 0), "quiet: {passages:?}");
    }
    Ok(())
}

/// A fetch-and-add launched from user level: one store to the argument aperture, some to the process's own page, no
/// kernel; and fewer instructions than by way of the kernel.
fn launches(counted: &Counted) -> Result<()> {
    let launch = counted.alone("launch")?;
    let (window, context) = (launch.device(WINDOW), launch.device(CONTEXT));
    ensure!((window.stores, window.loads) == (Range::exactly(1), Range::exactly(0)), "launch: {launch:?}");
    ensure!(context.stores.most <= 4 && context.loads == Range::exactly(0), "launch: {launch:?}");
    let mut least = Vec::new();
    for style in ["add-context", "add-special", "add-plain"] {
        let counts = counted.of(style)?;
        // From user level it may pass without the kernel; then that is what it takes.
        let passages = if counts.alone.number > 0 { &counts.alone } else { &counts.with_kernel };
        let (user, kernel) = (passages.instructions.least, passages.kernel.least);
        println!("  {style}: at least {user} instructions of the program, {kernel} of the kernel");
        least.push(user + kernel);
    }
    println!("  launch alone: {} instructions", launch.instructions);
    ensure!(
        launch.instructions.most < least[2],
        "a launch takes {}: more than {} by the kernel",
        launch.instructions,
        least[2]
    );
    Ok(())
}

/// An enqueue is one store of the queue's width to the window, and that is all of it; a dequeue touches neither the
/// board nor the kernel (SPEC items 2, 3 and 13).
fn queues(counted: &Counted) -> Result<()> {
    let one = |number: u64, bytes: u64| Accesses {
        stores: Range::exactly(number),
        stored: Range::exactly(bytes),
        ..Accesses::default()
    };
    for (op, bytes) in [("req-4", 4), ("req-8", 8)] {
        is_exactly(counted.alone(op)?, 1, true, bytes, WINDOW).context(op)?;
    }
    // The library's checks cost instructions, and no further access to the board; put_notify's data is stored to it
    // besides.
    for (op, stores, bytes) in
        [("enqueue-4", 1, 4), ("enqueue-8", 1, 8), ("notify-1", 2, 8 + 4), ("notify-16", 17, 17 * 8)]
    {
        let counts = counted.alone(op)?;
        ensure!(counts.device(WINDOW) == one(stores, bytes), "{op}: {counts:?}");
        ensure!(counts.devices.len() == 1, "{op} touches more than the window: {counts:?}");
        println!("  {op}: {} instructions", counts.instructions);
    }
    let mut instructions = Vec::new();
    for op in ["pop", "pop-empty"] {
        let counts = counted.alone(op)?;
        ensure!(counts.devices.is_empty(), "{op} touches the board: {counts:?}");
        ensure!(counts.kernel == Range::exactly(0), "{op} enters the kernel: {counts:?}");
        println!("  {op}: {} instructions, none of the kernel", counts.instructions);
        instructions.push(counts.instructions.most);
    }
    let kernel = counted.of("pop-kernel")?;
    ensure!(kernel.alone.number == 0, "pop-kernel without the kernel: {kernel:?}");
    let passages = &kernel.with_kernel;
    let least = passages.instructions.least + passages.kernel.least;
    println!(
        "  pop-kernel: at least {} instructions and {} of the kernel",
        passages.instructions.least, passages.kernel.least
    );
    ensure!(instructions[0] < least, "try_pop takes {} instructions: more than {least} by the kernel", instructions[0]);
    Ok(())
}

/// Handing over a message takes no system call, and fewer instructions than the system's sockets do; an element with
/// its data, at most a tenth of theirs (s2: 20 us for a start where the system's took 1 ms).
fn messages(counted: &Counted) -> Result<()> {
    let message = counted.alone("message-8")?;
    // The head of four words, the bytes, and the element; unless the thread that answers is at it, and does this, too.
    let window = message.device(WINDOW);
    ensure!((window.stores.most, window.stored.most) == (6, 48), "message-8: {message:?}");
    ensure!(message.devices.len() == 1, "message-8 touches more than the window: {message:?}");
    ensure!(message.kernel == Range::exactly(0), "message-8 enters the kernel: {message:?}");
    // The least that a socket takes.
    let by_socket = |bytes: u64| -> Result<u64> {
        let socket = counted.of(&format!("socket-{bytes}"))?;
        ensure!(socket.alone.number == 0, "socket-{bytes} without the kernel: {socket:?}");
        Ok(socket.with_kernel.instructions.least + socket.with_kernel.kernel.least)
    };
    for bytes in [8, 1024] {
        let (message, by_socket) = (counted.of(&format!("message-{bytes}"))?, by_socket(bytes)?);
        println!(
            "  {bytes} bytes: {} messages of {} instructions, {} with the kernel; at least {by_socket} by a socket",
            message.alone.number, message.alone.instructions, message.with_kernel.number
        );
    }
    let (by_message, by_socket) = (message.instructions.most, by_socket(8)?);
    let notify = counted.alone("notify-1")?.instructions;
    ensure!(by_socket > by_message, "message-8: {by_message} instructions, {by_socket} by a socket");
    ensure!(
        by_socket >= 10 * notify.most,
        "notify-1: {notify} instructions, {by_socket} by a socket: expected a tenth"
    );
    Ok(())
}

/// Where the kernel's addresses begin.
const KERNEL: u64 = 1 << 63;

/// Bytes of the messages that boards fetch.
const LONG: u64 = 64 << 10;
const LONGEST: u64 = 1 << 20;

/// From the beginning of a long message's send to the end of its receive no processor of the guest loads or stores a
/// byte of its memory at either end, in the program or in the kernel; and what it stores elsewhere grows by far less
/// than the message: by a 16th at a sender, by half at a receiver, which waits for its board, and maps memory that the
/// other program registers anew. A socket's bytes are loaded and stored, and that is seen, as is the copy from a slot.
pub(crate) fn no_intermediate_copy(counted: &Counted) -> Result<()> {
    let more = LONGEST - LONG;
    // Bytes stored in the least of the passages: others have more interrupts in them, and more waiting.
    let stored = |op: &str| -> Result<u64> { Ok(counted.of(op)?.with_kernel.memory.stored.least) };
    let growth = |op: &str| -> Result<u64> {
        let (short, long) = (stored(&format!("{op}-{LONG}"))?, stored(&format!("{op}-{LONGEST}"))?);
        println!("  {op}: {short} bytes stored for {LONG}, {long} for {LONGEST}");
        Ok(long.saturating_sub(short))
    };
    for (op, part) in [("sent", 16), ("received", 2)] {
        for length in [LONG, LONGEST] {
            let passages = &counted.of(&format!("{op}-{length}"))?.with_kernel;
            let touched = passages.device(WATCHED);
            ensure!(touched == Accesses::default(), "{op}-{length}: a processor accesses the message: {touched:?}");
        }
        let growth = growth(op)?;
        ensure!(growth < more / part, "{op}: {growth} bytes more are stored for {more} more of the message");
    }
    // In the most of the passages: what watches pages may have been interrupted once.
    let watched = |op: &str, what: fn(Accesses) -> Range| -> Result<u64> {
        let counts = counted.of(op)?;
        let [alone, with_kernel] = [&counts.alone, &counts.with_kernel].map(|p| what(p.device(WATCHED)).most);
        Ok(alone.max(with_kernel))
    };
    // What the checks are to find, they find: where the program itself compares both ends, and where a socket's bytes
    // go to the kernel.
    for (op, times) in [("checked", 2), ("socket", 1)] {
        for length in [LONG, LONGEST] {
            let loaded = watched(&format!("{op}-{length}"), |accesses| accesses.loaded)?;
            println!("  {op}: {loaded} bytes loaded of the whole pages in {times} times {length}");
            ensure!(loaded >= times * (length - 2 * 4096), "{op}-{length}: {loaded} bytes are loaded");
        }
    }
    ensure!(growth("socket")? >= more, "a socket's copies are not seen");
    let stored = watched("received-4096", |accesses| accesses.stored)?;
    ensure!(stored == 4096, "received-4096: {stored} bytes are stored to the page of the message");
    Ok(())
}

/// What starting a message is made of, as s2's table has it (SPEC item 31): instructions of a node that sends one and
/// receives one.
pub(crate) fn shares_of_a_start(counted: &Counted) -> Result<()> {
    const OPS: [&str; 2] = ["sent-8", "received-8"];
    let (mut total, mut of_kernel) = (0.0, [0.0; 3]);
    let mut parts: BTreeMap<Share, f64> = BTreeMap::new();
    let mut rest: BTreeMap<&str, f64> = BTreeMap::new();
    for op in OPS {
        let range = counted.of(op)?.with_kernel.kernel;
        of_kernel[0] += range.least as f64;
        of_kernel[2] += range.most as f64;
        for (address, instructions) in counted.blocks(op)? {
            let function = (address >= KERNEL).then(|| counted.function(address));
            let share = function.map_or(Share::Communication, Share::of);
            if let Some(function) = function {
                of_kernel[1] += instructions;
                if share == Share::Rest {
                    *rest.entry(function).or_default() += instructions;
                }
            }
            *parts.entry(share).or_default() += instructions;
            total += instructions;
        }
    }
    println!("  {total:.0} instructions of a node for a message there and back, {:.0} of the kernel:", of_kernel[1]);
    for (share, instructions) in &parts {
        let papers = share.in_s2().map_or("-".into(), |papers| format!("{papers:.1} %"));
        println!("  {:>6.1} % {instructions:>6.0} {share:?} (s2: {papers})", 100.0 * instructions / total);
    }
    let mut rest: Vec<(&str, f64)> = rest.into_iter().collect();
    rest.sort_by(|a, b| b.1.total_cmp(&a.1));
    let rest: Vec<String> = rest.iter().take(12).map(|(name, count)| format!("{name} {count:.0}")).collect();
    println!("  of the rest: {}", rest.join(", "));
    // The code that ran is what was counted: some blocks have begun twice.
    let [least, found, most] = of_kernel;
    ensure!(least <= found && found <= 1.1 * most, "the kernel's blocks have {found}: expected {least} to {most}");
    for share in Share::ALL {
        ensure!(parts.contains_key(&share), "no instruction is of {share:?}: {parts:?}");
    }
    Ok(())
}

/// As QEMU names the board's regions: their names end so.
const WINDOW: &str = "BAR 4";
const CONTEXT: &str = "BAR 2";

/// The plugin built on the crate `qemu-plugin`, in the last Debian's QEMU, which has no HIB.
///
/// The crate needs a newer Rust than everything else (1.88); with an older one this part fails.
pub(crate) fn the_crates_plugin_counts_the_same() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let store = Store::open(None, Progress::Plain)?;
    let qemu = store.qemu_of("trixie")?;
    println!("  QEMU {}", qemu.version);
    let options = with_plugin(&store, &qemu, directory.path())?;
    let builder = Cluster::builder().nodes(1).settings(settings("counting-crate"));
    let cluster = builder
        .each(|node| {
            (node.hib, node.driver, node.test_device) = (false, false, true);
            node.qemu = Some(qemu);
            node.qemu_options = options;
        })
        .boot()?;
    // It is the one built on the crate that this QEMU has loaded, and nothing is counted yet.
    let loaded = cluster.node(0).pids().into_iter().any(|pid| {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        maps.lines().any(|line| line.contains("/plugin-api-v4/") && line.ends_with("/libtelegraphos_plugin.so"))
    });
    ensure!(loaded, "no process of the cluster has mapped the plugin built on the crate");
    let out = directory.path().join(OUT);
    ensure!(!out.exists(), "the plugin has written {} before anything ran", out.display());
    let command = cluster.node(0).argv(&["tg-count", "--testdev", "--passages", &PASSAGES.to_string()]);
    let counted = Counted::by(command.as_root(), directory.path())?;
    // A passage without the kernel, and one with it: both are counted.
    let (store, call) = (counted.alone("store")?, counted.of("system-call")?);
    ensure!(store.number > 0 && store.memory.stores.least > 0, "no store was counted: {store:?}");
    ensure!(call.with_kernel.number == PASSAGES, "system-call: {call:?}");
    // The blocks of the kernel have as many instructions: one of them may have begun twice.
    let (least, most) = (call.with_kernel.kernel.least as f64, call.with_kernel.kernel.most as f64);
    let of_kernel: f64 = counted.blocks("system-call")?.iter().filter(|(at, _)| *at >= KERNEL).map(|(_, n)| n).sum();
    ensure!((least..1.1 * most).contains(&of_kernel), "blocks of the kernel have {of_kernel}: {call:?}");
    plain_accesses(&counted, 1, TESTDEV)
}

/// As QEMU names BAR0 of its pci-testdev.
const TESTDEV: &str = "pci-testdev-mmio";
