// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tests say often.

use anyhow::{Context, Result, bail, ensure};
use std::process::Command;
use std::time::{Duration, Instant};
use telegraphos_agent::Figure;
use telegraphos_cluster::{Cluster, Guest, GuestCommand, Output, OutputLine, Running};
use telegraphos_wire::regs::Register;

/// No wait of a test is longer for what takes some seconds at most on a machine that has nothing else to do: it says
/// whether something comes at all, and nothing of speed.
pub(crate) const LIMIT: Duration = Duration::from_secs(180);

/// Signals of Linux.
pub(crate) const BUS: i32 = 7;
pub(crate) const KILL: i32 = 9;
pub(crate) const CONT: i32 = 18;
pub(crate) const STOP: i32 = 19;

/// Programs of guests that say when they are ready.
pub(crate) trait Start {
    /// Starts it, and waits until it says this.
    fn until(self, line: &str) -> Result<Running>;

    /// The same with a line that begins so.
    fn until_begins(self, with: &str) -> Result<Running>;
}

impl Start for GuestCommand {
    fn until(self, line: &str) -> Result<Running> {
        Ok(self.spawn_until(LIMIT, |said| said == line)?)
    }

    fn until_begins(self, with: &str) -> Result<Running> {
        Ok(self.spawn_until(LIMIT, |said| said.starts_with(with))?)
    }
}

/// Waits for the end of a program with many steps, each of which writes a line: within [`LIMIT`] of the one before,
/// however many there are.
pub(crate) fn step_by_step(mut program: Running) -> Result<Output> {
    let (mut stdout, mut stderr) = (String::new(), String::new());
    while let Some(line) = program.next_line(LIMIT)? {
        let to = if matches!(line, OutputLine::Stdout(_)) { &mut stdout } else { &mut stderr };
        *to += line.text();
        to.push('\n');
    }
    match program.ended() {
        Some(status) => Ok(Output { status, stdout, stderr }),
        None => bail!("no line within {LIMIT:?} of the last one; until then:\n{stdout}{stderr}"),
    }
}

/// A process of a guest that exports a segment until it is dropped.
pub(crate) struct Export {
    process: Running,
    node: usize,
    name: String,
}

impl Export {
    /// Of that size, by an ordinary user, for everybody.
    pub(crate) fn of(guest: &Guest, name: &str, size: &str) -> Result<Export> {
        Export::with(guest, name, &["tg-export", name, size])
    }

    /// The same in the memory of a trust group.
    pub(crate) fn direct(guest: &Guest, name: &str, size: &str, group: &str) -> Result<Export> {
        Export::with(guest, name, &["tg-export", name, size, "--direct", group])
    }

    fn with(guest: &Guest, name: &str, argv: &[&str]) -> Result<Export> {
        let process = guest.argv(argv).keep_input_open().until_begins("exported")?;
        Ok(Export { process, node: guest.node(), name: name.to_owned() })
    }

    /// The word there, as the exporting process itself sees its memory.
    pub(crate) fn word(&mut self, offset: u64) -> Result<u64> {
        self.process.write(&format!("{offset}\n"))?;
        hex(&self.process.wait_for_line(LIMIT, |_| true)?)
    }

    /// The exporting process stores into its own memory.
    pub(crate) fn set_word(&mut self, offset: u64, value: u64) -> Result<()> {
        self.process.write(&format!("{offset} {value}\n"))?;
        // With the option it is there.
        let found = self.word(offset)?;
        ensure!(found == value, "node {} stored {value:#x} into its own memory and found {found:#x}", self.node);
        Ok(())
    }

    /// Another node's process stores one word into it; returns when the value has arrived.
    pub(crate) fn store_from(&self, guest: &Guest, offset: u64, value: u64) -> Result<()> {
        let (node, offset, value) = (self.node.to_string(), offset.to_string(), value.to_string());
        guest.argv(&["tg-store", &node, &self.name, &offset, &value]).check()?;
        Ok(())
    }

    /// Another node's process loads one word from it.
    pub(crate) fn load_from(&self, guest: &Guest, offset: u64) -> Result<u64> {
        hex(&guest.argv(&["tg-load", &self.node.to_string(), &self.name, &offset.to_string()]).check()?)
    }
}

/// What a command of the host has said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    /// All of these are in what it said on stderr.
    pub(crate) fn names(&self, words: &[&str]) -> Result<()> {
        words.iter().try_for_each(|word| {
            ensure!(self.err.contains(word), "{word:?} is not in what it said:\n{}", self.err);
            Ok(())
        })
    }
}

/// Runs a command, which ends with this code.
pub(crate) fn ends(command: &mut Command, code: i32) -> Result<Said> {
    ended(command.output()?, code).with_context(|| format!("{command:?}"))
}

pub(crate) fn ended(output: std::process::Output, code: i32) -> Result<Said> {
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    let status = output.status;
    ensure!(status.code() == Some(code), "it ended with {status}: expected {code}; it said:\n{out}{err}");
    Ok(Said { out, err })
}

/// Runs a command, expects this exit code, and all these words in what it says on stderr.
pub(crate) fn refused(mut command: Command, code: i32, words: &[&str]) -> Result<()> {
    ends(&mut command, code)?.names(words)
}

pub(crate) fn hex(text: &str) -> Result<u64> {
    let text = text.trim();
    let digits = text.strip_prefix("0x").with_context(|| format!("{text:?} is no number"))?;
    u64::from_str_radix(digits, 16).with_context(|| format!("{text:?} is no number"))
}

/// How many stores `tg-flood` has issued, or `tg-watch` has seen.
pub(crate) fn stores_of(said: &str) -> Option<u64> {
    said.lines().find_map(|line| match Figure::parse(line) {
        Some(Figure::Flood { stores, .. } | Figure::Watched { stores, .. }) => Some(stores),
        _ => None,
    })
}

/// Plugs a board in, and waits for its device.
pub(crate) fn plug(guest: &Guest) -> Result<()> {
    guest.device_add()?;
    Ok(guest.wait_for_device()?)
}

/// The same with a new HIB: QEMU never connects to it by itself, only a new plug brings the board back.
pub(crate) fn plug_anew(guest: &Guest) -> Result<()> {
    guest.device_del()?;
    guest.restart_hib()?;
    plug(guest)
}

/// Two nodes' processes store into and load from each other's memory, and the owner sees it.
pub(crate) fn both_ways(a: &Guest, b: &Guest) -> Result<()> {
    for (from, to) in [(a, b), (b, a)] {
        one_way(from, to).with_context(|| format!("from node {} to node {}", from.node(), to.node()))?;
    }
    Ok(())
}

fn one_way(from: &Guest, to: &Guest) -> Result<()> {
    let mut export = Export::of(to, "both-ways", "64K")?;
    let value = fresh();
    export.store_from(from, 8, value)?;
    let found = export.word(8)?;
    ensure!(found == value, "stored {value:#x}, and the owner found {found:#x}");
    let value = fresh();
    export.set_word(65528, value)?;
    let found = export.load_from(from, 65528)?;
    ensure!(found == value, "the owner stored {value:#x}, and {found:#x} was loaded");
    Ok(())
}

/// A value that was not used before.
fn fresh() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // Seeded anew for each use.
    let value = std::collections::hash_map::RandomState::new().build_hasher().finish();
    // Never the answer of a failed load.
    value & (u64::MAX >> 1)
}

/// Tries until it works, or returns the last error after [`LIMIT`].
pub(crate) fn within(mut attempt: impl FnMut() -> Result<()>) -> Result<()> {
    let begun = Instant::now();
    loop {
        match attempt() {
            Ok(()) => return Ok(()),
            Err(e) if begun.elapsed() > LIMIT => return Err(e.context(format!("not within {LIMIT:?}"))),
            Err(_) => telegraphos_cluster::sleep(Duration::from_millis(200))?,
        }
    }
}

/// As many pages are unpinned as were pinned, by a guest's `/proc/vmstat`.
pub(crate) fn nothing_is_pinned(vmstat: &str) -> Result<()> {
    let pins = ["nr_foll_pin_acquired ", "nr_foll_pin_released "];
    let pins = pins.map(|name| vmstat.lines().find_map(|line| line.strip_prefix(name)));
    ensure!(pins[0].is_some() && pins[0] == pins[1], "pages pinned and unpinned: {pins:?}");
    Ok(())
}

/// Tables of the driver's: what of these kinds a guest has.
pub(crate) fn tables(guest: &Guest, kinds: &[&str]) -> Result<String> {
    let kinds = kinds.join(" ");
    let script = format!(
        "at=/sys/kernel/debug/telegraphos/telegraphos0
        test -d $at || mount -t debugfs debugfs /sys/kernel/debug || exit 1
        cd $at && exec cat {kinds}"
    );
    Ok(guest.sh(&script).as_root().check()?)
}

/// A node loses its power, `work` gets the time at which it went, and looks at the others; then the node boots again.
pub(crate) fn without_power(node: &Guest, work: impl FnOnce(Instant) -> Result<()>) -> Result<()> {
    let begun = Instant::now();
    node.kill_qemu();
    let done = work(begun);
    // Whatever came of it: the parts after this one need the node.
    let booted = node.restart_qemu();
    done.and_then(|()| Ok(booted?))
}

/// Runs something for each of these guests at once; the first error.
pub(crate) fn at_once<T: Send>(guests: &[Guest], work: impl Fn(&Guest) -> Result<T> + Sync) -> Result<Vec<T>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = guests.iter().map(|guest| scope.spawn(|| work(guest))).collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

/// The module for comparisons, in guests.
const LAB: &str = "/lib/telegraphos/telegraphos_lab.ko";

/// Does something while these guests have the module for comparisons.
pub(crate) fn with_lab<T>(guests: &[Guest], work: impl FnOnce() -> Result<T>) -> Result<T> {
    let as_root = |argv: &[&str]| at_once(guests, |guest| guest.argv(argv).as_root().check().map_err(Into::into));
    as_root(&["insmod", LAB])?;
    let done = work();
    // First what went wrong in between.
    let unloaded = as_root(&["rmmod", "telegraphos_lab"]);
    done.and_then(|done| unloaded.map(|_| done))
}

/// A process of the cluster that does nothing until this is dropped: its links hold what they carry.
pub(crate) struct Held(u32);

impl Held {
    /// The switch, and with it all links.
    pub(crate) fn fabric(cluster: &Cluster) -> Result<Held> {
        let others: Vec<u32> = cluster.guests().iter().flat_map(Guest::pids).collect();
        let fabric = cluster.pids().into_iter().find(|pid| !others.contains(pid));
        Held::process(fabric.context("no fabric runs")?)
    }

    /// One node's board.
    pub(crate) fn hib(guest: &Guest) -> Result<Held> {
        ensure!(guest.hib_memory().is_some(), "node {} has no HIB", guest.node());
        // The last of them.
        Held::process(guest.pids().pop().context("no HIB runs")?)
    }

    fn process(pid: u32) -> Result<Held> {
        signal(pid, "STOP")?;
        let held = Held(pid);
        // The signal is on its way.
        let begun = Instant::now();
        loop {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
            if stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T')) {
                return Ok(held);
            }
            ensure!(begun.elapsed() < LIMIT, "process {pid} does not stop: {stat}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Err(e) = signal(self.0, "CONT") {
            eprintln!("{e:#}");
        }
    }
}

/// Sends a signal to a process of the host.
pub(crate) fn signal(pid: u32, signal: &str) -> Result<()> {
    let status = Command::new("kill").arg(format!("-{signal}")).arg(pid.to_string()).status()?;
    ensure!(status.success(), "kill -{signal} {pid} says {status}");
    Ok(())
}

/// A register of a guest's board.
pub(crate) fn register(guest: &Guest, register: Register) -> Result<u64> {
    let [value] = guest.registers([register])?;
    Ok(value)
}
