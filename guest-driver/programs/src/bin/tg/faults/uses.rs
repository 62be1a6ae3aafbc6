// SPDX-License-Identifier: MIT OR Apache-2.0
//! The uses of the board whose allocations fail.

use std::fs::{read_to_string, write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use telegraphos::{Node, Queue, RegistrationCache, Replicated, copy};
use telegraphos_guest_tests::cli::{self, Failure, Outcome};
use telegraphos_guest_tests::interface::call::{PAGE, Pages};
use telegraphos_guest_tests::lab;
use telegraphos_guest_tests::pci::Device;
use telegraphos_wire::ids;

/// How long a use waits for what must come.
const PATIENCE: Duration = Duration::from_secs(60);

/// The error of a file of the kernel's.
pub(crate) fn refused(path: impl AsRef<Path>) -> impl Fn(std::io::Error) -> Failure {
    move |e| {
        let path = path.as_ref().display();
        Failure::Refused(format!("{path}: {e}; expected root, and a kernel with ci/debug.config, debugfs mounted"))
    }
}

/// A use of the board: everything that it makes is gone when it ends.
#[derive(Clone, Copy)]
pub(crate) struct Use {
    pub(crate) name: &'static str,
    /// None for the ioctl of this name.
    pub(crate) run: Option<fn() -> Outcome<()>>,
    /// Every how many allocations one fails; 0 if only places are made to fail.
    pub(crate) step: usize,
    /// Only so many from the first on.
    pub(crate) most: u32,
    /// In which turn places are made to fail in it: what takes a board away takes seconds, and comes last. None where a
    /// module is loaded anew, whose functions are elsewhere then.
    pub(crate) turn: Option<u8>,
    /// Whether `telegraphos_net.ko` is there: with it a board takes seconds to go.
    pub(crate) network: bool,
}

/// The last turn.
pub(crate) const LAST_TURN: u8 = 2;

/// No less than it makes.
pub(crate) const ALL: u32 = u32::MAX;

pub(crate) const USES: &[Use] = &[
    Use { name: "segment", run: Some(segment), step: 1, most: ALL, turn: Some(0), network: true },
    Use { name: "copy", run: Some(copies), step: 1, most: ALL, turn: Some(0), network: true },
    Use { name: "registration", run: Some(registration), step: 1, most: ALL, turn: Some(0), network: true },
    Use { name: "discarded", run: Some(discarded), step: 1, most: ALL, turn: Some(0), network: true },
    Use { name: "events", run: Some(events), step: 1, most: ALL, turn: Some(0), network: true },
    Use { name: "queue", run: Some(queue), step: 1, most: ALL, turn: Some(0), network: true },
    Use { name: "replicated", run: Some(replicated), step: 1, most: ALL, turn: Some(0), network: true },
    Use { name: "frames", run: Some(frames), step: 0, most: ALL, turn: Some(0), network: true },
    Use { name: "tg0-down-and-up", run: Some(down_and_up), step: 1, most: ALL, turn: Some(0), network: true },
    // Most are of the kernel that makes a network device, and each time a module is loaded.
    Use { name: "network", run: Some(network), step: 8, most: ALL, turn: None, network: true },
    Use { name: "probe-network", run: Some(probe_and_frames), step: 0, most: ALL, turn: Some(2), network: true },
    Use { name: "probe", run: Some(probe), step: 1, most: ALL, turn: Some(1), network: false },
    // What loads the driver itself; those behind are a probe's.
    Use { name: "load", run: Some(load), step: 1, most: 200, turn: None, network: false },
];

/// The module of `tg0`.
pub(crate) const NETWORK: &str = "telegraphos_net";

/// Whether the driver of the network is there.
pub(crate) fn set_network(wanted: bool) -> Outcome<()> {
    match (wanted, Path::new("/sys/module").join(NETWORK).exists()) {
        (true, false) => lab::load(NETWORK, ""),
        (false, true) => lab::unload(NETWORK).map(drop),
        _ => Ok(()),
    }
}

fn same(what: &str, found: u64, expected: u64) -> Outcome<()> {
    match found == expected {
        true => Ok(()),
        false => Err(Failure::Check(format!("{what} is {found:#x}: expected {expected:#x}"))),
    }
}

fn segment() -> Outcome<()> {
    let node = Node::open()?;
    let segment = node.export("fault", 128 << 10).create()?;
    let remote = node.import(node.id(), "fault").open()?;
    remote.put64(8, 0x1234)?;
    remote.put64(100 << 10, 0x5678)?;
    remote.quiet()?;
    same("a word", segment.load(8)?, 0x1234)?;
    same("a word of the last unit", remote.get64(100 << 10)?, 0x5678)?;
    same("an atomic's result", remote.fetch_add(8, 1_u64)?, 0x1234)?;
    remote.close()?;
    Ok(segment.close()?)
}

fn copies() -> Outcome<()> {
    let node = Node::open()?;
    let segment = node.export("fault", 64 << 10).create()?;
    let remote = node.import(node.id(), "fault").open()?;
    segment.store(0, 0x1234_u64)?;
    copy(&remote, 4096, &remote, 0, 4096)?;
    same("a copied word", segment.load(4096)?, 0x1234)?;
    let mut waits = telegraphos::copy_nbi(&remote, 8192, &remote, 0, 4096)?;
    waits.wait_event(Some(PATIENCE))?;
    same("a word copied aside", segment.load(8192)?, 0x1234)
}

fn registration() -> Outcome<()> {
    let node = Node::open()?;
    let segment = node.export("fault", 64 << 10).create()?;
    let remote = node.import(node.id(), "fault").open()?;
    let mut cache = RegistrationCache::new(&node, 1 << 20);
    let mut words = vec![0x1234_u64; 8192];
    let bytes = std::ptr::slice_from_raw_parts_mut(words.as_mut_ptr().cast(), 8192);
    // SAFETY: nothing else has the memory, and the registration ends before it does.
    let named = unsafe { node.register(bytes) }.name("words").create()?;
    let far = node.import(node.id(), "words").open()?;
    far.put64(0, 0x5678)?;
    far.quiet()?;
    far.close()?;
    named.close()?;
    same("a registered word", words[0], 0x5678)?;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    cache.put(&remote, 0, &bytes)?;
    same("a word that was put", segment.load(8)?, 0x1234)
}

/// Registered memory whose pages have gone: the driver compares them, and the registration ends. A page of a file is
/// one that the comparison has to allocate; without a file it would be the kernel's page of zeros.
fn discarded() -> Outcome<()> {
    const PAGES: usize = 8;
    let node = Node::open()?;
    let memory = Pages::shared(PAGES)?;
    memory.put(0, &[1; PAGES * PAGE]);
    let bytes = std::ptr::slice_from_raw_parts_mut(memory.at(0), PAGES * PAGE);
    // SAFETY: no reference to the memory exists, and the registration ends before it does.
    let registered = unsafe { node.register(bytes) }.create()?;
    // SAFETY: as above.
    let discarded = unsafe { libc::madvise(memory.at(0).cast(), PAGES * PAGE, libc::MADV_REMOVE) };
    cli::check(discarded == 0, || format!("madvise(): {}", std::io::Error::last_os_error()))?;
    let begun = Instant::now();
    while registered.is_alive()? {
        cli::check(begun.elapsed() < PATIENCE, || "a registration outlives its pages".into())?;
    }
    Ok(registered.close()?)
}

/// Events of operations, read from the board's file by a process that a lost board does not end.
fn events() -> Outcome<()> {
    let node = Node::open()?;
    node.soften()?;
    let _segment = node.export("fault", 64 << 10).create()?;
    let remote = node.import(node.id(), "fault").open()?;
    let mut operation = remote.fetch_inc_nbi::<u64>(0)?;
    operation.arm()?;
    let mut count = [0; 8];
    let read = rustix::io::read(&node, &mut count).map_err(|e| Failure::Refused(format!("read(): {e}")))?;
    same("bytes of a count of events", read as u64, 8)?;
    same("events", u64::from_ne_bytes(count), 1)?;
    same("what a word was", operation.wait(Some(PATIENCE))?, 0)
}

fn queue() -> Outcome<()> {
    let node = Node::open()?;
    let queue = Queue::create(&node, "fault").words(8).quota(4).create()?;
    let sender = Queue::import(&node, node.id(), "fault").open()?;
    for element in 1..=20 {
        sender.enqueue(element)?;
    }
    sender.quiet()?;
    for element in 1..=20 {
        match queue.pop_wait(Some(PATIENCE))? {
            Some(found) => same("an element", found, element)?,
            None => return Err(Failure::Check(format!("element {element} has not come"))),
        }
    }
    sender.close()?;
    Ok(queue.close()?)
}

fn replicated() -> Outcome<()> {
    let node = Node::open()?;
    let pages = Replicated::create(&node, "fault", 128 << 10).create()?;
    pages.store(8, 0x1234_u64)?;
    pages.store(100 << 10, 0x5678_u64)?;
    pages.quiet()?;
    same("a word", pages.load(8)?, 0x1234)?;
    same("a word of the last page", pages.load(100 << 10)?, 0x5678)?;
    Ok(pages.leave()?)
}

/// What a module allocates when it goes does not count: it is another thread's.
fn unload_aside(module: &str) -> Outcome<()> {
    std::thread::scope(|scope| {
        let unloading = scope.spawn(|| lab::unload(module).map(drop));
        unloading.join().map_err(|_| Failure::Check("the unloading thread has panicked".into()))?
    })
}

/// The driver of the network goes and comes; without memory there is a module without a device.
fn network() -> Outcome<()> {
    // It is not there when it could not come before.
    unload_aside(NETWORK)?;
    lab::load(NETWORK, "")
}

/// The driver of the board goes and comes.
fn load() -> Outcome<()> {
    const BOARD: &str = "telegraphos";
    unload_aside(BOARD)?;
    lab::load(BOARD, "")?;
    // Without memory it has no board.
    drop(Node::open()?);
    Ok(())
}

/// Short and long frames to the other nodes and back.
fn frames() -> Outcome<()> {
    let own = Node::open()?.id();
    // Without memory there is a module without a device.
    let device = "/sys/class/net/tg0";
    std::fs::metadata(device).map_err(refused(device))?;
    let hosts = "/etc/hosts";
    let text = read_to_string(hosts).map_err(refused(hosts))?;
    let names = text.lines().flat_map(|line| line.split_whitespace().skip(1));
    for name in names.filter(|name| name.starts_with("node") && *name != format!("node{own}")) {
        for size in ["56", "8000"] {
            let begun = Instant::now();
            // The other node may be about to take or to leave its board.
            while !ping(name, size)? {
                cli::check(begun.elapsed() < PATIENCE, || format!("no frame of {size} bytes comes back from {name}"))?;
            }
        }
    }
    Ok(())
}

fn ping(name: &str, size: &str) -> Outcome<bool> {
    let ended =
        Command::new("ping").args(["-c", "1", "-w", "5", "-s", size, name]).output().map_err(refused("ping"))?;
    Ok(ended.status.success())
}

/// The device ids of the board, and of the memory of its trust group, each with its driver.
const DRIVERS: [(u32, &str); 2] = [
    (ids::DEVICE_ID_NIC, "/sys/bus/pci/drivers/telegraphos"),
    (ids::DEVICE_ID_MEMORY, "/sys/bus/pci/drivers/telegraphos-memory"),
];

/// Whether the board is of a trust group.
pub(crate) fn is_in_group() -> bool {
    Device::of(ids::VENDOR_ID, ids::DEVICE_ID_MEMORY).is_some()
}

/// The drivers leave their devices, and take them again.
fn probe() -> Outcome<()> {
    let there = DRIVERS.iter().filter_map(|(id, driver)| Some((Device::of(ids::VENDOR_ID, *id)?, Path::new(driver))));
    let devices: Vec<_> = there.collect();
    let set =
        |path: PathBuf, device: &Device| write(&path, device.name().as_os_str().as_bytes()).map_err(refused(&path));
    for (device, driver) in &devices {
        if driver.join(device.name()).exists() {
            set(driver.join("unbind"), device)?;
        }
    }
    for (device, driver) in &devices {
        set(driver.join("bind"), device)?;
    }
    drop(Node::open()?);
    Ok(())
}

fn probe_and_frames() -> Outcome<()> {
    probe()?;
    frames()
}

/// The network goes down and comes up.
fn down_and_up() -> Outcome<()> {
    let device = "/sys/class/net/tg0/flags";
    for flags in ["0x1002", "0x1003"] {
        write(device, flags).map_err(refused(device))?;
    }
    frames()
}
