// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory is registered while its board goes: by a reset, without its driver, or unplugged. The board does not wait for
//! a page fault that a process holds, and nothing stays pinned or charged.

use rustix::process::{Resource, Rlimit, setrlimit};
use std::fs::{canonicalize, read_to_string, write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use telegraphos::Node;
use telegraphos_guest_tests::child::{Child, End, Ids, say, wait_for_go};
use telegraphos_guest_tests::cli::{self, Failure, Line, Outcome, check};
use telegraphos_guest_tests::patience::until;
use telegraphos_guest_tests::pins::nothing_is_pinned;
use telegraphos_guest_tests::userfault::{Missing, PAGE};
use telegraphos_guest_tests::{random, user};

pub(crate) const USAGE: &str = "\
tg-race: memory is registered while its board goes, and nothing of it stays pinned

Usage: tg-race [--storms N] [--seconds N] [--only TEXT]

  --storms N       so often the board goes while processes register without end [6]
  --seconds N      ends the storm then, even if the board has gone less often
  --only TEXT      only those with TEXT in their names: gone, reset, unbind, unplug, left, killed, storm

Needs root. It resets the board of this node, takes its driver away, and removes it from the bus as if it were unplugged;
each time the board is there again at the end. It prints a line for each way to go. Linux 6.1 does not have a
registration wait for the page faults that this program holds: it says so, and only registers memory that is there.
Exit codes: 0 done, 1 something stays pinned or charged, or a call ends in another way, 2 usage, 3 no board.

Example: telegraphos run --nodes 1 --user root --cpus 2 -- tg-race --storms 1000
";

const BOARD: &str = "/dev/telegraphos0";
const DRIVER: &str = "/sys/bus/pci/drivers/telegraphos";
const PATIENCE: Duration = Duration::from_secs(120);
/// How often it says how far a storm is.
const PROGRESS: Duration = Duration::from_secs(10);
/// Pages of the memory, and the one that is supplied last.
const PAGES: usize = 1024;
const LAST: usize = 700;
/// Of a kernel that does not wait, and the word for one that does.
const UNHELD: &str = "not tried: this kernel has no registration wait for a page";
const WAITS: &str = "waits";
/// Of a storm: threads that register, and what they say when a board has come that has taken a registration.
const THREADS: usize = 3;
const REGISTERED: &str = "registered";

pub(crate) fn run(mut line: Line) -> Outcome<()> {
    let (mut storms, mut most, mut only, mut child) = (6, Duration::MAX, String::new(), false);
    while let Some(option) = line.next_option()? {
        match option.as_str() {
            "storms" => storms = line.number("--storms")?,
            "seconds" => most = Duration::from_secs(line.number("--seconds")?),
            "only" => only = line.text()?,
            // What this program starts itself.
            "child" => child = true,
            _ => return Err(cli::unknown(&option)),
        }
    }
    let words = line.words();
    match words[..] {
        ["gone"] if child => gone_child(),
        ["held"] if child => held_child(),
        ["left"] if child => left_child(),
        ["storm", waits] if child => storm_child(waits == WAITS),
        [] if !child => all(Storms { count: storms, most }, &only),
        _ => Err(Failure::Usage(format!("arguments {words:?}: expected none"))),
    }
}

/// How often the board goes in a storm, and how long that lasts at most.
#[derive(Clone, Copy)]
struct Storms {
    count: u64,
    most: Duration,
}

/// How a board goes, and comes back.
#[derive(Clone, Copy, Debug)]
enum Way {
    Reset,
    Unbind,
    Unplug,
}

const WAYS: [Way; 3] = [Way::Reset, Way::Unbind, Way::Unplug];

struct Board {
    path: PathBuf,
    name: String,
    /// The group of its file, and the permission bits.
    group: (u32, u32),
}

impl Board {
    fn find() -> Outcome<Board> {
        let link = "/sys/class/telegraphos/telegraphos0/device";
        let path = canonicalize(link).map_err(refused(link))?;
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.ok_or_else(|| Failure::Refused(format!("{link} leads to {}", path.display())))?;
        Ok(Board { path, name, group: user::device_group()? })
    }

    fn go(&self, way: Way) -> Outcome<()> {
        match way {
            Way::Reset => set(self.path.join("reset"), "1"),
            Way::Unbind => set(format!("{DRIVER}/unbind"), &self.name),
            Way::Unplug => set(self.path.join("remove"), "1"),
        }
    }

    /// It is there again when this returns, for users, too: the kernel makes the file root's alone, and the system
    /// gives it to its group.
    fn come(&self, way: Way) -> Outcome<()> {
        match way {
            Way::Reset => {}
            Way::Unbind => set(format!("{DRIVER}/bind"), &self.name)?,
            Way::Unplug => set("/sys/bus/pci/rescan", "1")?,
        }
        let here = || Ok(user::device_group().ok() == Some(self.group));
        let late = || Failure::Check(format!("{BOARD} has not come back after {way:?}"));
        until(PATIENCE, Duration::from_millis(5), here, late)
    }
}

fn refused(path: impl AsRef<Path>) -> impl Fn(std::io::Error) -> Failure {
    move |e| Failure::Refused(format!("{}: {e}; expected root, and a board with its driver", path.as_ref().display()))
}

fn set(path: impl AsRef<Path>, value: &str) -> Outcome<()> {
    write(path.as_ref(), value).map_err(refused(path))
}

fn failed(text: impl std::fmt::Display) -> Failure {
    Failure::Check(text.to_string())
}

fn all(storms: Storms, only: &str) -> Outcome<()> {
    // Its error says what is missing.
    drop(Node::open()?);
    let board = Board::find()?;
    let (gid, _) = board.group;
    // An ordinary user is charged for what is locked.
    let ids = Some((user::ORDINARY, gid));
    let unprivileged = "/proc/sys/vm/unprivileged_userfaultfd";
    let before = read_to_string(unprivileged).map_err(refused(unprivileged))?;
    set(unprivileged, "1")?;
    let result = checks(&board, ids, storms, only);
    set(unprivileged, before.trim())?;
    result
}

fn checks(board: &Board, ids: Option<Ids>, storms: Storms, only: &str) -> Outcome<()> {
    let wanted = |name: &str| name.contains(only);
    if wanted("gone") {
        gone(board, ids)?;
        println!("gone: refused, nothing pinned, nothing charged");
    }
    let waits = waits()?;
    for way in WAYS {
        let name = format!("{way:?}").to_lowercase();
        match wanted(&name) {
            true if waits => {
                held(board, ids, way)?;
                println!("{name}: the board went and came while a page fault was held");
            }
            true => println!("{name}: {UNHELD}"),
            false => {}
        }
    }
    if wanted("left") {
        [Way::Unbind, Way::Unplug].into_iter().try_for_each(|way| left(board, ids, way))?;
        println!("left: a driver that goes leaves no range and no name at the board");
    }
    if wanted("killed") && !waits {
        println!("killed: {UNHELD}");
    } else if wanted("killed") {
        killed(board, ids)?;
        println!("killed: nothing stays of a process that was killed in such a page fault");
    }
    if wanted("storm") && storms.count > 0 {
        let [gone, registered, refused] = storm(board, ids, storms, waits)?;
        println!("storm: the board went {gone} times, {registered} registrations, {refused} refused");
    }
    Ok(())
}

/// Whether this kernel has a registration wait for a page, as it has an access by a processor; else it is EFAULT.
fn waits() -> Outcome<bool> {
    let (memory, node) = (Missing::new(1).map_err(failed)?, open()?);
    std::thread::scope(|scope| {
        let registering = scope.spawn(|| register(&node, memory.range()));
        while !registering.is_finished() {
            if let Some(page) = memory.faults().awaited(Duration::from_millis(1)).map_err(failed)? {
                memory.faults().supply(page).map_err(failed)?;
            }
        }
        match registering.join().map_err(|_| failed("the registering thread has panicked"))?? {
            None => Ok(true),
            Some(libc::EFAULT) => Ok(false),
            Some(errno) => Err(failed(format!("a page that comes late: errno {errno}"))),
        }
    })
}

/// The board that is there now; the process survives its end.
fn open() -> Outcome<Node> {
    let node = Node::open()?;
    node.soften()?;
    Ok(node)
}

/// A process that has come so far that it says this.
fn started(action: &str, ids: Option<Ids>, word: &str) -> Outcome<Child> {
    let mut child = Child::start(&[action], ids, PATIENCE)?;
    child.expect(word)?;
    Ok(child)
}

/// A process registers at a board that is gone, and at the one that is there instead.
fn gone(board: &Board, ids: Option<Ids>) -> Outcome<()> {
    let mut child = started("gone", ids, "open")?;
    board.go(Way::Reset)?;
    board.come(Way::Reset)?;
    child.go()?;
    refused_then_registers(child)
}

/// The board of its registration is gone. Nothing of that is left while it has it open yet, and it may register anew.
fn refused_then_registers(mut child: Child) -> Outcome<()> {
    child.expect("refused")?;
    nothing_is_pinned()?;
    child.go()?;
    child.must_end_saying("registered")?;
    Ok(nothing_is_pinned()?)
}

/// This process may lock the memory once, and not twice.
fn limit() -> Outcome<()> {
    let most = Some((PAGES * PAGE * 3 / 2) as u64);
    setrlimit(Resource::Memlock, Rlimit { current: most, maximum: most }).map_err(|e| failed(format!("setrlimit: {e}")))
}

fn supplied() -> Outcome<Missing> {
    let memory = Missing::new(PAGES).map_err(|e| failed(format!("userfaultfd: {e}")))?;
    (0..PAGES).filter(|page| *page != LAST).try_for_each(|page| memory.faults().supply(page)).map_err(failed)?;
    Ok(memory)
}

fn supplied_whole() -> Outcome<Missing> {
    let memory = supplied()?;
    memory.faults().supply(LAST).map_err(failed)?;
    Ok(memory)
}

/// Registers memory; the errno if it is refused.
fn register(node: &Node, memory: *mut [u8]) -> Outcome<Option<i32>> {
    // SAFETY: nothing accesses it, and it is unmapped after the registration has ended.
    match unsafe { node.register(memory) }.create() {
        Ok(registered) => Ok(registered.close().map(|()| None)?),
        Err(error) => Ok(Some(error.errno())),
    }
}

/// The board of a node is gone: it says so, and not anything else.
fn must_be_gone(found: Option<i32>) -> Outcome<()> {
    check(found == Some(libc::ENODEV), || format!("errno {found:?}: expected {} (ENODEV)", libc::ENODEV))
}

/// The memory is neither pinned nor charged any more, so it can be registered.
fn register_anew(memory: &Missing) -> Outcome<()> {
    let found = register(&open()?, memory.range())?;
    check(found.is_none(), || format!("the board that has come: errno {found:?}"))
}

fn gone_child() -> Outcome<()> {
    limit()?;
    let (memory, node) = (supplied_whole()?, open()?);
    say("open");
    wait_for_go();
    (0..3).try_for_each(|_| must_be_gone(register(&node, memory.range())?))?;
    say("refused");
    wait_for_go();
    register_anew(&memory)?;
    say("registered");
    Ok(())
}

/// The board goes, and comes back, while it waits for a page of a registration.
fn held(board: &Board, ids: Option<Ids>, way: Way) -> Outcome<()> {
    let mut child = started("held", ids, "held")?;
    board.go(way)?;
    board.come(way)?;
    child.go()?;
    refused_then_registers(child)
}

/// The driver goes from a board that continues, while a process has memory registered under a name.
fn left(board: &Board, ids: Option<Ids>, way: Way) -> Outcome<()> {
    let mut child = started("left", ids, "registered")?;
    board.go(way)?;
    nothing_is_pinned()?;
    board.come(way)?;
    child.go()?;
    child.must_end_saying("gone")?;
    Ok(nothing_is_pinned()?)
}

fn left_child() -> Outcome<()> {
    const NAME: &str = "left";
    let memory = supplied_whole()?;
    // SAFETY: nothing accesses it, and it is unmapped after the registrations have ended.
    let register = |node: &Node| unsafe { node.register(memory.range()) }.name(NAME).mode(0o606).create();
    let node = open()?;
    let registered = register(&node)?;
    say("registered");
    wait_for_go();
    let again = open()?;
    let found = again.import(again.id(), NAME).open().map(drop).map_err(|error| error.errno());
    check(found == Err(libc::ENOENT), || format!("what the driver before has left is found: {found:?}"))?;
    register(&again)?.close()?;
    say("gone");
    drop(registered);
    Ok(())
}

fn killed(board: &Board, ids: Option<Ids>) -> Outcome<()> {
    let mut child = started("held", ids, "held")?;
    board.go(Way::Unbind)?;
    child.must_be_killed()?;
    nothing_is_pinned()?;
    board.come(Way::Unbind)
}

fn held_child() -> Outcome<()> {
    limit()?;
    let (memory, node) = (supplied()?, open()?);
    std::thread::scope(|scope| -> Outcome<()> {
        let registering = scope.spawn(|| register(&node, memory.range()));
        let awaited = memory.faults().awaited(PATIENCE).map_err(failed)?;
        check(awaited == Some(LAST), || format!("page {awaited:?} is awaited: expected {LAST}"))?;
        say("held");
        wait_for_go();
        memory.faults().supply(LAST).map_err(failed)?;
        let result = registering.join().map_err(|_| failed("the registering thread has panicked"))?;
        must_be_gone(result?)
    })?;
    say("refused");
    wait_for_go();
    register_anew(&memory)?;
    say("registered");
    Ok(())
}

/// The board goes so often in all ways in turn, while processes register whatever board is there, some of which are
/// killed. How often it went, how many registrations there were, and how many were refused.
fn storm(board: &Board, ids: Option<Ids>, Storms { count, most }: Storms, waits: bool) -> Outcome<[u64; 3]> {
    let start = || Child::start(&["storm", if waits { WAITS } else { "" }], ids, PATIENCE).map_err(failed);
    let (mut steady, mut brief) = (start()?, start()?);
    let begun = Instant::now();
    let (mut told, mut gone) = (begun, 0);
    for n in (0..count).take_while(|_| begun.elapsed() < most) {
        gone += 1;
        if told.elapsed() >= PROGRESS {
            eprintln!("storm: the board has gone {n} times of {count}");
            told = Instant::now();
        }
        let way = WAYS[n as usize % WAYS.len()];
        // What it has said of boards that are gone.
        while steady.line_now()?.is_some() {}
        steady.expect(REGISTERED)?;
        // At any time of a registration.
        std::thread::sleep(Duration::from_micros(random::word(count, n) % 20_000));
        board.go(way)?;
        std::thread::sleep(Duration::from_micros(random::word(count, n + count) % 5_000));
        if n % 8 == 7 {
            brief.kill()?;
            brief = start()?;
        }
        board.come(way)?;
    }
    drop(brief);
    steady.go()?;
    let mut line = REGISTERED.to_owned();
    while line == REGISTERED {
        line = steady.line()?.unwrap_or_default();
    }
    steady.must_end(End::WELL)?;
    nothing_is_pinned()?;
    let counts: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match counts[..] {
        [registered, refused] => Ok([gone, registered, refused]),
        _ => Err(failed(format!("the storm ended with {line:?}"))),
    }
}

fn storm_child(waits: bool) -> Outcome<()> {
    let (over, counts) = (AtomicBool::new(false), [AtomicU64::new(0), AtomicU64::new(0)]);
    std::thread::scope(|scope| -> Outcome<()> {
        let threads: Vec<_> = (0..THREADS as u64)
            .map(|n| {
                let (over, counts) = (&over, &counts);
                scope.spawn(move || storm_thread(n, waits, over, counts))
            })
            .collect();
        wait_for_go();
        over.store(true, Ordering::Relaxed);
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| failed("a thread has panicked"))?)
    })?;
    let [registered, refused] = counts.map(AtomicU64::into_inner);
    say(format!("{registered} {refused}"));
    Ok(())
}

/// Registers memory whose pages come late, if the kernel waits for them, at whatever board is there.
fn storm_thread(seed: u64, waits: bool, over: &AtomicBool, counts: &[AtomicU64; 2]) -> Outcome<()> {
    for round in 0.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let dice = random::word(seed + 1, round);
        let pages = 1 + dice as usize % 64;
        let memory = Missing::new(pages).map_err(failed)?;
        if !waits {
            (0..pages).try_for_each(|page| memory.faults().supply(page)).map_err(failed)?;
        }
        // Between two boards there is none.
        let Ok(node) = open() else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| -> Outcome<()> {
            let supplier = scope.spawn(|| -> Result<(), std::io::Error> {
                while !done.load(Ordering::Relaxed) {
                    if let Some(page) = memory.faults().awaited(Duration::from_millis(1))? {
                        if dice >> 8 & 3 == 0 {
                            std::thread::sleep(Duration::from_micros(dice >> 16 & 0x3ff));
                        }
                        memory.faults().supply(page)?;
                    }
                }
                Ok(())
            });
            let mut result = Ok(None);
            for _ in 0..4 {
                result = register(&node, memory.range());
                if !matches!(result, Ok(None)) {
                    counts[1].fetch_add(1, Ordering::Relaxed);
                    break;
                }
                counts[0].fetch_add(1, Ordering::Relaxed);
                say(REGISTERED);
            }
            done.store(true, Ordering::Relaxed);
            supplier.join().map_err(|_| failed("a supplier has panicked"))?.map_err(failed)?;
            match result {
                // Its end, or it was never there.
                Ok(None | Some(libc::ENODEV)) | Err(Failure::Refused(_)) => Ok(()),
                Ok(Some(errno)) => Err(failed(format!("a registration ends with errno {errno}"))),
                Err(failure) => Err(failure),
            }
        })?;
    }
    Ok(())
}
