// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocations of the driver fail, one after the other: each failure ends with an error, and leaves nothing behind.
//!
//! The kernel's fault injection counts what a thread whose stack has a function of the driver allocates, and copies
//! from and to the process, and has the Nth of that fail (/proc/thread-self/fail-nth). A use of the board runs with N
//! from 1 on, in a process of its own, until it makes less than that.

use std::ffi::CStr;
use std::fs::{File, read_to_string, write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;
use telegraphos::{Node, Queue, RegistrationCache, Replicated, copy};
use telegraphos_guest_tests::cli::{self, Failure, Line, Outcome, Word};
use telegraphos_guest_tests::pins;

const USAGE: &str = "\
tg-faults: has allocations of the driver fail, one after the other, and checks that each failure is met

Usage: tg-faults [--only TEXT] [--most N]

  --only TEXT      only uses of the board with TEXT in their names
  --most N         no more than N allocations of each [400]

Needs root, and a kernel with ci/debug.config. It writes one line for each use: how many of its allocations have failed,
and of these how many it could do without. Exit codes: 0 done, 1 a failure was not met, 2 usage, 3 the kernel has no
fault injection, or the board refused.

Example: telegraphos run --nodes 1 --user root --kernel ~/linux --memory 1G -- tg-faults
";

const DEBUGFS: &str = "/sys/kernel/debug";
const NTH: &str = "/proc/thread-self/fail-nth";
const PATIENCE: Duration = Duration::from_secs(60);
/// Exit codes of a process that uses the board once.
const NOT_REACHED: i32 = 0;
const NOT_NEEDED: i32 = 10;
const MET: i32 = 11;

/// A use of the board: everything that it makes is gone when it ends.
struct Use {
    name: &'static str,
    run: fn() -> Outcome<()>,
    /// Every how many allocations one fails.
    step: usize,
}

const USES: [Use; 6] = [
    Use { name: "segment", run: segment, step: 1 },
    Use { name: "copy", run: copies, step: 1 },
    Use { name: "registration", run: registration, step: 1 },
    Use { name: "queue", run: queue, step: 1 },
    Use { name: "replicated", run: replicated, step: 1 },
    // Most are of the kernel that makes a network device, and each time a module is loaded.
    Use { name: "network", run: network, step: 8 },
];

fn main() -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    let ended = cli::main("tg-faults", USAGE, |parser| run(parser, &mut code));
    if ended == ExitCode::SUCCESS { code } else { ended }
}

fn run(parser: lexopt::Parser, code: &mut ExitCode) -> Outcome<()> {
    let (mut only, mut most, mut words) = (String::new(), 400, Vec::new());
    let mut line = Line::new(parser);
    while let Some(word) = line.next_word()? {
        match word {
            Word::Option(option) if option == "only" => only = line.text()?,
            Word::Option(option) if option == "most" => most = line.number("--most")?,
            Word::Option(option) => return Err(cli::unknown(&option)),
            Word::Value(value) => words.push(cli::text(value)?),
        }
    }
    // What this program starts itself: a use, and which of its allocations fails.
    if let [name, nth] = &words[..] {
        let once = USES.iter().find(|once| once.name == name);
        let once = once.ok_or_else(|| Failure::Usage(format!("there is no use of the board named {name:?}")))?;
        *code = ExitCode::from(under_fault(once, cli::number("N", nth)?)? as u8);
        return Ok(());
    }
    if !words.is_empty() {
        return Err(Failure::Usage(format!("arguments {words:?}: expected none")));
    }
    drop(Node::open()?);
    prepare()?;
    for once in USES.iter().filter(|once| once.name.contains(&only)) {
        every_allocation(once, most)?;
    }
    pins::nothing_is_pinned().map_err(Failure::Check)
}

fn refused(path: impl AsRef<Path>) -> impl Fn(std::io::Error) -> Failure {
    move |e| {
        let path = path.as_ref().display();
        Failure::Refused(format!("{path}: {e}; expected root, and a kernel with ci/debug.config, debugfs mounted"))
    }
}

/// Failures are those of the driver's allocations.
fn prepare() -> Outcome<()> {
    let (first, last) = text_of_the_driver()?;
    let settings = [
        ("task-filter", "N".to_owned()),
        ("probability", "0".to_owned()),
        ("verbose", "0".to_owned()),
        ("stacktrace-depth", "32".to_owned()),
        ("require-start", format!("{first:#x}")),
        ("require-end", format!("{:#x}", last + 1)),
    ];
    let set = |kind: &str, name: &str, value: &str| {
        let path = format!("{DEBUGFS}/{kind}/{name}");
        write(&path, value).map_err(refused(&path))
    };
    for kind in ["failslab", "fail_page_alloc", "fail_usercopy"] {
        settings.iter().try_for_each(|(name, value)| set(kind, name, value))?;
    }
    set("failslab", "ignore-gfp-wait", "N")?;
    set("fail_page_alloc", "ignore-gfp-wait", "N")?;
    set("fail_page_alloc", "ignore-gfp-highmem", "N")?;
    set("fail_page_alloc", "min-order", "0")
}

/// The first and the last function of the driver.
fn text_of_the_driver() -> Outcome<(u64, u64)> {
    let all = "/proc/kallsyms";
    let text = read_to_string(all).map_err(refused(all))?;
    let functions = text.lines().filter(|line| line.ends_with("[telegraphos]")).filter_map(|line| {
        let (address, rest) = line.split_once(' ')?;
        rest.starts_with(['t', 'T']).then(|| u64::from_str_radix(address, 16).ok())?
    });
    let (first, last) = functions.fold((u64::MAX, 0), |(first, last), at| (first.min(at), last.max(at)));
    match last {
        0 => Err(Failure::Refused(format!("{all} has no function of telegraphos.ko: expected root, and the driver"))),
        last => Ok((first, last)),
    }
}

fn every_allocation(once: &Use, most: u32) -> Outcome<()> {
    let start = |nth: u32| -> Outcome<(Option<i32>, String)> {
        let program = "/proc/self/exe";
        let output = Command::new(program).args([once.name, &nth.to_string()]).output().map_err(refused(program))?;
        Ok((output.status.code(), String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    };
    let expect = |found: (Option<i32>, String), what: &str| match found.0 {
        Some(NOT_REACHED) => Ok(()),
        code => Err(Failure::Check(format!("{} {what}: exit code {code:?}: {}", once.name, found.1))),
    };
    expect(start(0)?, "without failures")?;
    let (mut met, mut not_needed) = (0, 0);
    for nth in (1..=most).step_by(once.step) {
        let (code, said) = start(nth)?;
        match code {
            Some(NOT_REACHED) => break,
            Some(MET) => met += 1,
            Some(NOT_NEEDED) => not_needed += 1,
            code => {
                let text = format!("{}, when allocation {nth} fails: exit code {code:?}: {said}", once.name);
                return Err(Failure::Check(text));
            }
        }
    }
    expect(start(0)?, "after all failures")?;
    println!("{}: {} allocations failed, {not_needed} of them were not needed", once.name, met + not_needed);
    Ok(())
}

/// One use of the board whose Nth allocation fails; 0 for none.
fn under_fault(once: &Use, nth: u32) -> Outcome<i32> {
    write(NTH, nth.to_string()).map_err(refused(NTH))?;
    let result = (once.run)();
    let left = read_to_string(NTH).map_err(refused(NTH))?;
    write(NTH, "0").map_err(refused(NTH))?;
    let failed = nth > 0 && left.trim() == "0";
    match result {
        // Without a failure it has no reason for an error.
        result if !failed => result.map(|()| NOT_REACHED),
        Ok(()) => Ok(NOT_NEEDED),
        Err(Failure::Refused(text)) => {
            eprintln!("{text}");
            Ok(MET)
        }
        Err(other) => Err(other),
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
    // SAFETY: nobody else has the memory, and the registration ends before it does.
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

const NETWORK: &CStr = c"telegraphos_net";

/// The driver of the network goes and comes; without memory there is a module without a device.
fn network() -> Outcome<()> {
    let failed = |what: &str| Failure::Refused(format!("{what}: {}", std::io::Error::last_os_error()));
    // SAFETY: the name ends with a zero.
    let gone = unsafe { libc::syscall(libc::SYS_delete_module, NETWORK.as_ptr(), 0) } == 0;
    // It is not there when it could not come before.
    if !gone && std::io::Error::last_os_error().raw_os_error() != Some(libc::ENOENT) {
        return Err(failed("telegraphos_net does not go"));
    }
    let path = "/lib/telegraphos/telegraphos_net.ko";
    let module = File::open(path).map_err(refused(path))?;
    // SAFETY: the parameters end with a zero.
    if unsafe { libc::syscall(libc::SYS_finit_module, module.as_raw_fd(), c"".as_ptr(), 0) } != 0 {
        return Err(failed("telegraphos_net does not come"));
    }
    Ok(())
}
