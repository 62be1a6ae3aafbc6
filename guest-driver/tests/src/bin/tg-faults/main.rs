// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocations of the driver fail, one after the other: each failure ends with an error, and leaves nothing behind.
//!
//! The kernel's fault injection counts what a thread whose stack has a function of the driver allocates, and copies
//! from and to the process, and has the Nth of that fail (/proc/thread-self/fail-nth). A use of the board runs with N
//! from 1 on, in a process of its own, until it makes less than that. Then all run once more while one of so many fails
//! wherever it is made, in workers and in interrupts, too. In the end each site of the driver has failed (`sites`).

mod sites;

use sites::{Found, Log};
use std::collections::BTreeMap;
use std::fs::{read_to_string, write};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;
use telegraphos::{Node, Queue, RegistrationCache, Replicated, copy};
use telegraphos_guest_tests::cli::{self, Failure, Line, Outcome, Word};
use telegraphos_guest_tests::interface::{call, rows};
use telegraphos_guest_tests::{lab, pins};

const USAGE: &str = "\
tg-faults: has allocations of the driver fail, one after the other, and checks that each failure is met

Usage: tg-faults [--only TEXT] [--most N] [--anywhere N]

  --only TEXT      only uses of the board with TEXT in their names
  --most N         no more than N allocations of each [400]
  --anywhere N     rounds in which one of up to N allocations fails in whatever thread [40]

Needs root, and a kernel with ci/debug.config. It writes one line for each use: how many of its allocations have failed,
and of these how many it could do without; then a table of the places where the driver allocates or copies, and how
often each has failed. Of those that have not it says why; without a reason, if all uses have run, that is a failure.
Exit codes: 0 done, 1 a failure was not met, 2 usage, 3 the kernel has no
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
/// That of a program which was refused something.
const REFUSED: i32 = 3;

/// A use of the board: everything that it makes is gone when it ends.
struct Use {
    name: &'static str,
    run: fn() -> Outcome<()>,
    /// Every how many allocations one fails.
    step: usize,
}

const USES: &[Use] = &[
    Use { name: "segment", run: segment, step: 1 },
    Use { name: "copy", run: copies, step: 1 },
    Use { name: "registration", run: registration, step: 1 },
    Use { name: "queue", run: queue, step: 1 },
    Use { name: "replicated", run: replicated, step: 1 },
    // Most are of the kernel that makes a network device, and each time a module is loaded.
    Use { name: "network", run: network, step: 8 },
    // The board without its driver, and with it.
    Use { name: "probe", run: probe, step: 1 },
    Use { name: "tg0-down-and-up", run: down_and_up, step: 1 },
];

/// Beginning of the names of uses that are one ioctl.
const ONE: &str = "TG_IOCTL_";

fn main() -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    let ended = cli::main("tg-faults", USAGE, |parser| run(parser, &mut code));
    if ended == ExitCode::SUCCESS { code } else { ended }
}

fn run(parser: lexopt::Parser, code: &mut ExitCode) -> Outcome<()> {
    let (mut only, mut most, mut anywhere, mut words) = (String::new(), 400, 40, Vec::new());
    let mut line = Line::new(parser);
    while let Some(word) = line.next_word()? {
        match word {
            Word::Option(option) if option == "only" => only = line.text()?,
            Word::Option(option) if option == "most" => most = line.number("--most")?,
            Word::Option(option) if option == "anywhere" => anywhere = line.number("--anywhere")?,
            Word::Option(option) => return Err(cli::unknown(&option)),
            Word::Value(value) => words.push(cli::text(value)?),
        }
    }
    // What this program starts itself: a use, and which of its allocations fails.
    if let [name, nth] = &words[..] {
        *code = ExitCode::from(once(name, cli::number("N", nth)?)? as u8);
        return Ok(());
    }
    if !words.is_empty() {
        return Err(Failure::Usage(format!("arguments {words:?}: expected none")));
    }
    drop(Node::open()?);
    let mut all = BTreeMap::new();
    for module in ["telegraphos", "telegraphos_net"] {
        all.extend(sites::of(module)?);
    }
    prepare()?;
    let silence = Silence::begin()?;
    let mut watched = Watched { log: Log::open()?, found: Found::default() };
    let ioctls = rows::all()?.into_iter().map(|(ioctl, _)| (ioctl.name, 1));
    let uses: Vec<_> = USES.iter().map(|once| (once.name, once.step)).chain(ioctls).collect();
    for (name, step) in uses.iter().filter(|(name, _)| name.contains(&only)) {
        every_allocation(name, *step, most, &mut watched)?;
    }
    for interval in 1..=anywhere {
        one_anywhere(&uses, &only, interval, &mut watched)?;
    }
    drop(silence);
    let without = sites::table(&all, &watched.found);
    pins::nothing_is_pinned().map_err(Failure::Check)?;
    cli::check(without == 0 || !only.is_empty(), || format!("{without} sites of the driver have not failed"))
}

/// Runs a use whose Nth allocation fails; 0 for none.
fn once(name: &str, nth: u32) -> Outcome<i32> {
    if name.starts_with(ONE) {
        return one_ioctl(name, nth);
    }
    let once = USES.iter().find(|once| once.name == name);
    let once = once.ok_or_else(|| Failure::Usage(format!("there is no use of the board named {name:?}")))?;
    under_fault(nth, once.run)
}

/// The kernel's log, and what was found in it.
struct Watched {
    log: Log,
    found: Found,
}

impl Watched {
    /// After a use: the kernel has reported nothing.
    fn look(&mut self, what: &str) -> Outcome<()> {
        self.log.read(&mut self.found)?;
        let reports = &self.found.reports;
        cli::check(reports.is_empty(), || format!("{what}: the kernel reports {reports:?}"))
    }
}

/// Stacks go to the log, and not to the console, until this is dropped.
struct Silence(String);

const CONSOLE: &str = "/proc/sys/kernel/printk";

impl Silence {
    fn begin() -> Outcome<Silence> {
        let before = read_to_string(CONSOLE).map_err(refused(CONSOLE))?;
        write(CONSOLE, "1").map_err(refused(CONSOLE))?;
        Ok(Silence(before))
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        if let Err(e) = write(CONSOLE, &self.0) {
            eprintln!("{CONSOLE}: {e}");
        }
    }
}

fn refused(path: impl AsRef<Path>) -> impl Fn(std::io::Error) -> Failure {
    move |e| {
        let path = path.as_ref().display();
        Failure::Refused(format!("{path}: {e}; expected root, and a kernel with ci/debug.config, debugfs mounted"))
    }
}

/// The kinds of failures.
const KINDS: [&str; 3] = ["failslab", "fail_page_alloc", "fail_usercopy"];
/// The modules of the driver lie within so many bytes from its first function on: the kernel puts modules one behind
/// the other, and a guest has few.
const MODULES: u64 = 64 << 20;

fn set(kind: &str, name: &str, value: &str) -> Outcome<()> {
    let path = format!("{DEBUGFS}/{kind}/{name}");
    write(&path, value).map_err(refused(&path))
}

/// Failures are those of the driver's allocations, also of the part of it that is loaded anew.
fn prepare() -> Outcome<()> {
    let first = text_of_the_driver()? & !0xff_ffff;
    let settings = [
        ("task-filter", "N".to_owned()),
        ("probability", "0".to_owned()),
        ("times", "-1".to_owned()),
        ("verbose", "2".to_owned()),
        ("verbose_ratelimit_interval_ms", "0".to_owned()),
        ("stacktrace-depth", "32".to_owned()),
        ("require-start", format!("{first:#x}")),
        ("require-end", format!("{:#x}", first + MODULES)),
    ];
    for kind in KINDS {
        settings.iter().try_for_each(|(name, value)| set(kind, name, value))?;
    }
    set("failslab", "ignore-gfp-wait", "N")?;
    set("fail_page_alloc", "ignore-gfp-wait", "N")?;
    set("fail_page_alloc", "ignore-gfp-highmem", "N")?;
    set("fail_page_alloc", "min-order", "0")
}

/// The address of the first function of the driver, and of no other module.
fn text_of_the_driver() -> Outcome<u64> {
    let others = "/proc/modules";
    let text = read_to_string(others).map_err(refused(others))?;
    if let Some(other) = text.lines().find(|line| !line.starts_with("telegraphos")) {
        let text =
            format!("{others} has {other:?}: expected the driver's modules alone, as failures are those of modules");
        return Err(Failure::Refused(text));
    }
    let all = "/proc/kallsyms";
    let text = read_to_string(all).map_err(refused(all))?;
    let functions = text.lines().filter(|line| line.contains("[telegraphos")).filter_map(|line| {
        let (address, rest) = line.split_once(' ')?;
        rest.starts_with(['t', 'T']).then(|| u64::from_str_radix(address, 16).ok())?
    });
    match functions.min() {
        None | Some(0) => {
            Err(Failure::Refused(format!("{all} has no function of telegraphos.ko: expected root, and the driver")))
        }
        Some(first) => Ok(first),
    }
}

/// Runs a use in a process of its own: how that ended, and what it said.
fn start(name: &str, nth: u32) -> Outcome<(Option<i32>, String)> {
    let program = "/proc/self/exe";
    let output = Command::new(program).args([name, &nth.to_string()]).output().map_err(refused(program))?;
    Ok((output.status.code(), String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

fn goes_well(name: &str, what: &str) -> Outcome<()> {
    match start(name, 0)? {
        (Some(NOT_REACHED), _) => Ok(()),
        (code, said) => Err(Failure::Check(format!("{name} {what}: exit code {code:?}: {said}"))),
    }
}

fn every_allocation(name: &str, step: usize, most: u32, watched: &mut Watched) -> Outcome<()> {
    goes_well(name, "without failures")?;
    let (mut met, mut not_needed) = (0, 0);
    for nth in (1..=most).step_by(step) {
        let (code, said) = start(name, nth)?;
        match code {
            Some(NOT_REACHED) => break,
            Some(MET) => met += 1,
            Some(NOT_NEEDED) => not_needed += 1,
            code => {
                let text = format!("{name}, when allocation {nth} fails: exit code {code:?}: {said}");
                return Err(Failure::Check(text));
            }
        }
        watched.look(&format!("{name}, when allocation {nth} fails"))?;
    }
    goes_well(name, "after all failures")?;
    watched.look(name)?;
    println!("{name}: {} allocations failed, {not_needed} of them were not needed", met + not_needed);
    Ok(())
}

/// All uses, while of each kind one of so many allocations fails, whatever thread makes it.
fn one_anywhere(uses: &[(&str, usize)], only: &str, interval: u32, watched: &mut Watched) -> Outcome<()> {
    for (name, _) in uses.iter().filter(|(name, _)| name.contains(only)) {
        for kind in KINDS {
            set(kind, "interval", &interval.to_string())?;
            set(kind, "times", "1")?;
            set(kind, "probability", "100")?;
        }
        let ended = start(name, 0);
        for kind in KINDS {
            set(kind, "probability", "0")?;
            set(kind, "times", "-1")?;
        }
        // What has failed is unknown here: it was refused, or it was done without.
        let (code, said) = ended?;
        let right = [Some(NOT_REACHED), Some(REFUSED)].contains(&code);
        cli::check(right, || format!("{name}, when one of {interval} fails anywhere: exit code {code:?}: {said}"))?;
        watched.look(&format!("{name}, when one of {interval} fails anywhere"))?;
        // Nothing of it is left that another use would meet.
        goes_well(name, "after a failure anywhere")?;
    }
    Ok(())
}

/// One call of an ioctl whose Nth allocation fails; what is made for it is made before, and undone after.
fn one_ioctl(name: &str, nth: u32) -> Outcome<i32> {
    let world = rows::World::new()?;
    let (ioctl, row) = rows::row(name)?;
    let made = row.make(&world)?;
    let mut bytes = made.clone();
    let mut answer = Ok(());
    let ended = under_fault(nth, || {
        answer = call::sized(&world.file, ioctl, &mut bytes);
        call::sane(name, answer)?;
        let right = row.answers.contains(&answer.err().unwrap_or(0));
        if right { Ok(()) } else { Err(Failure::Refused(format!("{name}: errno {answer:?}"))) }
    })?;
    row.undo(&world, &made, &bytes, answer)?;
    // And once more, without.
    let made = row.make(&world)?;
    let mut bytes = made.clone();
    let answer = call::sized(&world.file, ioctl, &mut bytes);
    call::expect(format_args!("{name} after a failure"), answer, row.answers)?;
    row.undo(&world, &made, &bytes, answer)?;
    Ok(ended)
}

/// One use of the board whose Nth allocation fails; 0 for none.
fn under_fault(nth: u32, run: impl FnOnce() -> Outcome<()>) -> Outcome<i32> {
    write(NTH, nth.to_string()).map_err(refused(NTH))?;
    let result = run();
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

/// The driver of the network goes and comes; without memory there is a module without a device.
fn network() -> Outcome<()> {
    const NETWORK: &str = "telegraphos_net";
    // It is not there when it could not come before.
    lab::unload(NETWORK)?;
    lab::load(NETWORK, "")
}

const DRIVER: &str = "/sys/bus/pci/drivers/telegraphos";

/// The board's name on its bus, from the device that is there now or was there before.
fn board() -> Outcome<String> {
    let devices = "/sys/bus/pci/devices";
    let is_board =
        |name: &String| read_to_string(format!("{devices}/{name}/vendor")).is_ok_and(|vendor| vendor.trim() == VENDOR);
    let names = std::fs::read_dir(devices).map_err(refused(devices))?.flatten();
    let mut names = names.filter_map(|entry| entry.file_name().into_string().ok());
    names.find(is_board).ok_or_else(|| Failure::Refused(format!("{devices} has no board")))
}

/// Of the board's vendor id.
const VENDOR: &str = "0x7e1e";

/// The driver leaves the board, and takes it again.
fn probe() -> Outcome<()> {
    let board = board()?;
    if Path::new(DRIVER).join(&board).exists() {
        let unbind = format!("{DRIVER}/unbind");
        write(&unbind, &board).map_err(refused(&unbind))?;
    }
    let bind = format!("{DRIVER}/bind");
    write(&bind, &board).map_err(refused(&bind))?;
    drop(Node::open()?);
    Ok(())
}

/// The network goes down and comes up.
fn down_and_up() -> Outcome<()> {
    let device = "/sys/class/net/tg0/flags";
    for flags in ["0x1002", "0x1003"] {
        write(device, flags).map_err(refused(device))?;
    }
    Ok(())
}
