// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocations of the driver fail, one after the other: each failure ends with an error, and leaves nothing behind.
//!
//! The kernel's fault injection counts what a thread whose stack has a function of the driver allocates, and copies
//! from and to the process, and has the Nth of that fail (/proc/thread-self/fail-nth). A use of the board runs with N
//! from 1 on, in a process of its own, until it makes less than that. What is made in workers and in interrupts, or
//! seldom, does not fail so: each place of the driver that allocates or copies (`sites`) and has not failed yet is then
//! made to fail by itself, whatever thread comes there, while the uses run, until one has come there.

mod sites;
mod uses;

use sites::{Found, Log, Site};
use std::collections::BTreeMap;
use std::fs::{read_to_string, write};
use std::ops::Range;
use telegraphos::Node;
use telegraphos_guest_tests::cli::{self, Failure, Line, Outcome};
use telegraphos_guest_tests::interface::{call, rows};
use telegraphos_guest_tests::{child, pins};
use uses::{ALL, LAST_TURN, NETWORK, USES, Use, refused, set_network};

pub(crate) const USAGE: &str = "\
tg-faults: has allocations of the driver fail, one after the other, and checks that each failure is met

Usage: tg-faults [--only TEXT] [--most N] [--places TEXT]

  --only TEXT      only uses of the board with TEXT in their names
  --most N         no more than N allocations of each [400]
  --places TEXT    only places with TEXT in their names, such as \"telegraphos_net: \"

Needs root, a kernel with ci/debug.config, and another node, to which frames go. It writes one line for each use: how
many of its allocations have failed, and of these how many it could do without; one for each place in the driver that
had to be made to fail by itself; then a table of the places where the driver allocates or copies, and how often each has
failed. Of those that have not it says why; without a reason, if all uses have run, that is a failure.
Exit codes: 0 done, 1 a failure was not met, 2 usage, 3 the kernel has no fault injection, or the board refused.

Example: telegraphos run --nodes 2 --user root --kernel ~/linux --memory 1G -- tg-faults
";

const DEBUGFS: &str = "/sys/kernel/debug";
const NTH: &str = "/proc/thread-self/fail-nth";
/// Allocations of one use.
const MOST: u32 = 400;
/// Exit codes of a process that uses the board once.
const NOT_REACHED: i32 = 0;
const NOT_NEEDED: i32 = 10;
const MET: i32 = 11;
/// That of a program which was refused something.
const REFUSED: i32 = 3;

/// Beginning of the names of uses that are one ioctl.
const ONE: &str = "TG_IOCTL_";

pub(crate) fn run(mut line: Line) -> Outcome<()> {
    let (mut only, mut most, mut places) = (String::new(), MOST, String::new());
    while let Some(option) = line.next_option()? {
        match option.as_str() {
            "only" => only = line.text()?,
            "places" => places = line.text()?,
            "most" => most = line.number("--most")?,
            _ => return Err(cli::unknown(&option)),
        }
    }
    // What this program starts itself: a use, and which of its allocations fails.
    let words = line.words();
    if let [name, nth] = words[..] {
        return Err(Failure::Code(once(name, cli::number("N", nth)?)?));
    }
    cli::must(words.is_empty(), Failure::Usage, || format!("arguments {words:?}: expected none"))?;
    drop(Node::open()?);
    let mut all = BTreeMap::new();
    for module in ["telegraphos", "telegraphos_net"] {
        all.extend(sites::of(module)?);
    }
    all.retain(|site, _| site.to_string().contains(&places));
    cli::must(!all.is_empty(), Failure::Usage, || format!("--places {places:?}: no place has this in its name"))?;
    prepare()?;
    let silence = Silence::begin()?;
    let mut watched = Watched { log: Log::open()?, found: Found::default() };
    let ioctl = |name| Use { name, run: None, step: 1, most: ALL, turn: Some(0), network: true };
    let ioctls = rows::all()?.into_iter().map(|(row, _)| ioctl(row.name));
    let uses: Vec<_> = ioctls.chain(USES.iter().copied()).filter(|of| of.name.contains(&only)).collect();
    cli::must(!uses.is_empty(), Failure::Usage, || {
        format!("--only {only:?}: no use of the board has this in its name")
    })?;
    for of in uses.iter().filter(|of| of.step > 0) {
        every_allocation(of, most, &mut watched)?;
    }
    for turn in 0..=LAST_TURN {
        let of_turn: Vec<_> = uses.iter().filter(|of| of.turn == Some(turn)).collect();
        // The modules lie where they are until another turn.
        set_network(of_turn.iter().all(|of| of.network))?;
        let functions = functions()?;
        for (site, callee) in &all {
            let Some(function) = functions.get(&(site.module.clone(), site.function.clone())) else { continue };
            if !watched.found.failed.contains_key(site) && sites::reason(site, callee).is_none() {
                one_place(site, function + site.offset, &of_turn, &mut watched)?;
            }
        }
    }
    set_network(true)?;
    drop(silence);
    let without = sites::table(&all, &watched.found);
    pins::nothing_is_pinned()?;
    cli::check(without == 0 || !only.is_empty() || most < MOST, || {
        format!("{without} sites of the driver have not failed")
    })
}

/// Runs a use whose Nth allocation fails; 0 for none.
fn once(name: &str, nth: u32) -> Outcome<i32> {
    if name.starts_with(ONE) {
        return one_ioctl(name, nth);
    }
    let run = USES.iter().find(|of| of.name == name).and_then(|of| of.run);
    let run = run.ok_or_else(|| Failure::Usage(format!("there is no use of the board named {name:?}")))?;
    under_fault(nth, run)
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

/// The kinds of failures.
const KINDS: [&str; 3] = ["failslab", "fail_page_alloc", "fail_usercopy"];
/// The modules of the driver lie within so many bytes from its first function on: the kernel puts modules one behind
/// the other, and a guest has few.
const MODULES: u64 = 64 << 20;

fn setting(kind: &str, name: &str) -> String {
    format!("{DEBUGFS}/{kind}/{name}")
}

fn set(kind: &str, name: &str, value: &str) -> Outcome<()> {
    let path = setting(kind, name);
    write(&path, value).map_err(refused(&path))
}

fn get(kind: &str, name: &str) -> Outcome<String> {
    let path = setting(kind, name);
    Ok(read_to_string(&path).map_err(refused(&path))?.trim().to_owned())
}

/// Failures are those under a return address in this range.
fn restrict(range: Range<u64>) -> Outcome<()> {
    KINDS.iter().try_for_each(|kind| {
        set(kind, "require-start", &format!("{:#x}", range.start))?;
        set(kind, "require-end", &format!("{:#x}", range.end))
    })
}

/// Failures are those of the driver's allocations, also of the part of it that is loaded anew.
fn prepare() -> Outcome<()> {
    let functions = functions()?;
    let Some(first) = functions.values().min() else {
        return Err(Failure::Refused(format!("{SYMBOLS} has no function of telegraphos.ko: expected the driver")));
    };
    let first = first & !0xff_ffff;
    restrict(first..first + MODULES)?;
    let settings = [
        ("task-filter", "N"),
        ("probability", "0"),
        ("times", "-1"),
        ("verbose", "2"),
        ("verbose_ratelimit_interval_ms", "0"),
        ("stacktrace-depth", "32"),
    ];
    for kind in KINDS {
        settings.iter().try_for_each(|(name, value)| set(kind, name, value))?;
    }
    set("failslab", "ignore-gfp-wait", "N")?;
    set("fail_page_alloc", "ignore-gfp-wait", "N")?;
    set("fail_page_alloc", "ignore-gfp-highmem", "N")?;
    set("fail_page_alloc", "min-order", "0")
}

const SYMBOLS: &str = "/proc/kallsyms";

/// The addresses of the driver's functions, by module and name; an error if there are other modules.
fn functions() -> Outcome<BTreeMap<(String, String), u64>> {
    let others = "/proc/modules";
    let text = read_to_string(others).map_err(refused(others))?;
    if let Some(other) = text.lines().find(|line| !line.starts_with("telegraphos")) {
        let text =
            format!("{others} has {other:?}: expected the driver's modules alone, as failures are those of modules");
        return Err(Failure::Refused(text));
    }
    let text = read_to_string(SYMBOLS).map_err(refused(SYMBOLS))?;
    let functions = text.lines().filter_map(|line| {
        let (line, module) = line.strip_suffix(']')?.split_once("\t[")?;
        let (address, rest) = line.split_once(' ')?;
        let name = rest.strip_prefix("t ").or_else(|| rest.strip_prefix("T "))?;
        let address = u64::from_str_radix(address, 16).ok().filter(|address| *address != 0)?;
        module.starts_with("telegraphos").then(|| ((module.to_owned(), name.to_owned()), address))
    });
    Ok(functions.collect())
}

/// Runs a use in a process of its own: how that ended, and what it said.
fn start(name: &str, nth: u32) -> Outcome<(Option<i32>, String)> {
    let output = child::again().args([name, &nth.to_string()]).output().map_err(refused(name))?;
    Ok((output.status.code(), String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

fn goes_well(name: &str, what: &str) -> Outcome<()> {
    match start(name, 0)? {
        (Some(NOT_REACHED), _) => Ok(()),
        (code, said) => Err(Failure::Check(format!("{name} {what}: exit code {code:?}: {said}"))),
    }
}

fn every_allocation(of: &Use, most: u32, watched: &mut Watched) -> Outcome<()> {
    let name = of.name;
    set_network(of.network)?;
    goes_well(name, "without failures")?;
    let (mut met, mut not_needed) = (0, 0);
    for nth in (1..=most.min(of.most)).step_by(of.step) {
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

/// What a place allocates or copies fails once, whatever thread comes there in one of the uses.
fn one_place(site: &Site, address: u64, uses: &[&Use], watched: &mut Watched) -> Outcome<()> {
    restrict(address..address + 1)?;
    for Use { name, .. } in uses {
        // No ioctl comes to the driver of the network.
        if site.module == NETWORK && name.starts_with(ONE) {
            continue;
        }
        // What has failed is unknown here: it was refused, or it was done without.
        let ((code, said), failed) = failing_once(name)?;
        let right = [Some(NOT_REACHED), Some(REFUSED)].contains(&code);
        let what = format!("{name}, when {site} fails");
        cli::check(right, || format!("{what}: exit code {code:?}: {said}"))?;
        watched.look(&what)?;
        if failed {
            // Of an allocation that may fail silently there is none in the log.
            watched.found.failed.entry(site.clone()).or_insert(1);
            // Nothing of it is left that another use would meet.
            goes_well(name, &format!("after {site} has failed"))?;
            println!("{site}: failed in {name}");
            return Ok(());
        }
    }
    Ok(())
}

/// Runs a use while the first of each kind that may fail does: how that ended, what it said, and whether one did.
fn failing_once(name: &str) -> Outcome<((Option<i32>, String), bool)> {
    for kind in KINDS {
        set(kind, "times", "1")?;
        set(kind, "probability", "100")?;
    }
    let ended = start(name, 0);
    let mut failed = false;
    for kind in KINDS {
        set(kind, "probability", "0")?;
        // How many may still fail.
        failed |= get(kind, "times")? == "0";
        set(kind, "times", "-1")?;
    }
    Ok((ended?, failed))
}

/// One call of an ioctl whose Nth allocation fails; what is made for it is made before, and undone after.
fn one_ioctl(name: &str, nth: u32) -> Outcome<i32> {
    let world = rows::World::new()?;
    let (ioctl, row) = rows::row(name)?;
    let call = |nth| -> Outcome<i32> {
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
        Ok(ended)
    };
    let ended = call(nth)?;
    // And once more, without.
    call(0)?;
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
