// SPDX-License-Identifier: MIT OR Apache-2.0
//! When a guest's kernel has failed, and what its console says about it.
//!
//! That it has failed is never known from text alone, which every program of the guest can write there, and which has
//! many forms:
//!
//! - It has *died* if it reset its machine without a shutdown (which `panic=-1` asks for), or if its agent is silent
//!   and the console ends with a panic. Before the agent is up, the words of the console are the kernel's.
//! - It has *failed* and continues (an oops, `BUG:`) if its own log says so, which the agent reads.

use crate::Error;
use crate::node_name::NodeLabel;
use crate::process::{length, read_part};
use crate::symbols::places;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use telegraphos_agent::kernel::is_error;

/// How every kernel begins the line, behind its time stamp.
const PANIC: &str = "Kernel panic - not syncing";
/// What every kernel says before it resets or powers off its machine in order, at a level that is always shown.
const SHUTDOWNS: [&str; 4] =
    ["reboot: Restarting system", "reboot: machine restart", "reboot: Power down", "reboot: System halted"];
/// Of a console, so much is read at once.
const PIECE: u64 = 256 << 10;
/// Pieces that are read in one turn.
const PIECES: usize = 64;
/// A longer line is no kernel's.
const LONGEST_LINE: usize = 4 << 10;
/// What a report may come from, before the line and after it.
const CONTEXT: u64 = 32 << 10;
/// A console that has been silent for so long has all of the report, ...
const SILENT: Duration = Duration::from_millis(300);
/// ... and one that is never silent has it after so long.
const COMPLETE: Duration = Duration::from_secs(3);
/// A guest whose console ends with a panic, and whose agent has been silent for so long, is dead.
pub(crate) const SOON: Duration = Duration::from_secs(10);
/// Lines of the console that an error shows, and entries of the stack.
const LINES: usize = 25;
const ENTRIES: usize = 16;

/// What is known of a guest beside its console.
pub(crate) struct Signs<'a> {
    /// Times it has reset its machine by itself when it was up.
    pub(crate) resets: u64,
    /// Whether only its kernel writes on its console: its agent has not been heard at all, or not for
    /// [`SOON`].
    pub(crate) alone: &'a dyn Fn() -> bool,
}

/// Follows the log of one console.
#[derive(Debug)]
pub(crate) struct Console {
    log: PathBuf,
    /// The kernel's vmlinux, for places in its source.
    symbols: Option<PathBuf>,
    at: u64,
    /// Resets that are known.
    resets: u64,
    /// Where the last panic is that was not reported, unless a shutdown has begun since.
    panic_at: Option<u64>,
    /// A shutdown has begun since the last reset.
    shutdown: bool,
    /// The beginning of a line.
    partial: Vec<u8>,
}

impl Console {
    /// Follows the log from its present end on: what is there is of an earlier machine.
    pub(crate) fn follow(log: PathBuf, symbols: Option<PathBuf>) -> Console {
        let at = length(&log);
        Console { log, symbols, at, resets: 0, panic_at: None, shutdown: false, partial: Vec::new() }
    }

    /// The error of this node if its kernel has died since the last call. Waits for the end of the kernel's report.
    pub(crate) fn died(&mut self, node: &NodeLabel, signs: &Signs<'_>) -> Option<Error> {
        // What it wrote before a reset that is counted is there.
        self.look();
        let reset = signs.resets > self.resets;
        self.resets = signs.resets;
        if reset && self.panic_at.is_none() {
            return match std::mem::take(&mut self.shutdown) {
                true => None,
                false => Some(self.report(node, self.at, Report::of_reset)),
            };
        }
        let panic_at = self.panic_at.filter(|_| reset || (signs.alone)())?;
        self.panic_at = None;
        Some(self.report(node, panic_at, Report::of))
    }

    /// The error of this node after its kernel has reported this in its log.
    pub(crate) fn failed(&mut self, node: &NodeLabel, text: &str) -> Error {
        self.look();
        self.report(node, self.at, |console, symbols| Report::of_error(console, text, symbols))
    }

    /// The last error that the console shows of this boot, for a guest that does not answer. It may be a program's.
    pub(crate) fn last_error(&mut self) -> Option<String> {
        self.look();
        let text =
            String::from_utf8_lossy(&read_part(&self.log, self.at.saturating_sub(CONTEXT), CONTEXT)).into_owned();
        text.lines().map(words).rfind(|line| is_error(line)).map(str::to_owned)
    }

    /// What the console says, about the place `at`.
    fn report(&self, node: &NodeLabel, at: u64, report: impl Fn(&str, Option<&Path>) -> Report) -> Error {
        let begun = Instant::now();
        let mut changed = (length(&self.log), begun);
        while begun.elapsed() < COMPLETE && changed.1.elapsed() < SILENT {
            std::thread::sleep(Duration::from_millis(20));
            let now = length(&self.log);
            if now != changed.0 {
                changed = (now, Instant::now());
            }
        }
        let from = at.saturating_sub(CONTEXT);
        let text = String::from_utf8_lossy(&read_part(&self.log, from, at - from + CONTEXT)).replace('\r', "");
        let Report { what, tail } = report(&text, self.symbols.as_deref());
        Error::Dead { node: node.clone(), what, tail }
    }

    /// Looks at what is new.
    fn look(&mut self) {
        for _ in 0..PIECES {
            let bytes = read_part(&self.log, self.at, PIECE);
            if bytes.is_empty() {
                return;
            }
            for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
                self.take(piece);
            }
        }
    }

    fn take(&mut self, piece: &[u8]) {
        self.at += piece.len() as u64;
        if self.partial.len() < LONGEST_LINE {
            self.partial.extend_from_slice(piece);
        }
        if !piece.ends_with(b"\n") {
            return;
        }
        let line = String::from_utf8_lossy(&self.partial);
        if is_panic(&line) {
            (self.panic_at, self.shutdown) = (Some(self.at), false);
        } else if SHUTDOWNS.iter().any(|said| line.contains(said)) {
            (self.panic_at, self.shutdown) = (None, true);
        }
        self.partial.clear();
    }
}

/// A line of the kernel without its level (`console_msg_format=syslog`), its time stamp, and its processor or task.
fn words(line: &str) -> &str {
    let line = line.trim();
    let level = line.strip_prefix('<').and_then(|line| line.split_once('>'));
    let mut rest = match level {
        Some((level, after)) if level.parse::<u32>().is_ok() => after,
        _ => line,
    };
    while let Some((_, after)) = rest.strip_prefix('[').and_then(|stamp| stamp.split_once(']')) {
        rest = after.trim_start();
    }
    rest
}

/// A line of a panic may begin with what a program has not ended, such as the prompt of a shell; then there is a time
/// stamp between.
fn is_panic(line: &str) -> bool {
    panic_in(line).is_some()
}

/// What the kernel says in a line of a panic.
fn panic_in(line: &str) -> Option<&str> {
    let stamped = || line.match_indices(PANIC).find(|(at, _)| line[..*at].trim_end().ends_with(']')).map(|(at, _)| at);
    let text = words(line);
    if text.starts_with(PANIC) { Some(text) } else { stamped().map(|at| &line[at..]) }
}

/// What a console says about a panic or another error.
#[derive(Debug, PartialEq, Eq)]
struct Report {
    what: String,
    tail: String,
}

impl Report {
    /// Of a machine that was reset without a shutdown and without a panic.
    fn of_reset(text: &str, symbols: Option<&Path>) -> Report {
        let lines = lines(text);
        let error = lines.iter().rposition(|line| is_error(words(line)));
        let why = match error {
            Some(at) => format!("the last of its errors: {}", words(lines[at])),
            None => "a panic that its console does not show, a triple fault, or a reset that a program has asked for \
                     (sysrq b)"
                .into(),
        };
        let what = format!("the kernel has reset its machine without a shutdown: {why}");
        Report { what, tail: ends(&lines, error.unwrap_or(lines.len()), symbols) }
    }

    /// Of an error that the kernel's log has, whether or not the console shows it.
    fn of_error(text: &str, error: &str, symbols: Option<&Path>) -> Report {
        let lines = lines(text);
        let at = lines.iter().rposition(|line| words(line).starts_with(error.trim())).unwrap_or(lines.len());
        Report { what: format!("the kernel has failed: {error}"), tail: ends(&lines, at, symbols) }
    }

    /// Of a text with the line of a panic.
    fn of(text: &str, symbols: Option<&Path>) -> Report {
        let lines = lines(text);
        let Some(at) = lines.iter().rposition(|line| is_panic(line)) else { return Report::of_reset(text, symbols) };
        let said = lines.get(at).and_then(|line| panic_in(line)).unwrap_or_default();
        let reason = said.trim_start_matches(PANIC).trim_start_matches(':').trim();
        let mut what = format!("the kernel has panicked: {reason}");
        // The cause of a fatal exception has a line of its own, before.
        let cause = lines[..at].iter().rev().map(|line| words(line)).find(|line| line.starts_with("BUG: "));
        if let Some(cause) = cause.filter(|_| reason.contains("exception")) {
            what += &format!(" ({cause})");
        }
        Report { what, tail: ends(&lines, at, symbols) }
    }
}

/// Those that are not empty.
fn lines(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.trim().is_empty()).collect()
}

/// The stack of the panic or error in this line, and the end of the console.
fn ends(lines: &[&str], at: usize, symbols: Option<&Path>) -> String {
    let mut tail = String::new();
    let (exact, stack) = stack(lines, at);
    if !stack.is_empty() {
        tail += "\n--- the kernel's stack";
        let places = symbols.map(|vmlinux| places(vmlinux, &stack, exact)).unwrap_or_default();
        for (n, entry) in stack.iter().enumerate() {
            tail += &format!("\n{entry}");
            if let Some(Some(place)) = places.get(n) {
                tail += &format!(" ({place})");
            }
        }
    }
    tail += "\n--- end of the console";
    for line in &lines[lines.len().saturating_sub(LINES)..] {
        tail += &format!("\n{line}");
    }
    tail
}

/// The functions on the stack, the innermost first. The trace of an exception stands before the line of the panic, with
/// the instruction that it happened at; any other panic has its trace behind. Whether the first is such an instruction.
fn stack<'a>(lines: &[&'a str], panic: usize) -> (bool, Vec<&'a str>) {
    let is_trace = |line: &&str| words(line).starts_with("Call Trace:");
    let after = lines[panic..].iter().position(is_trace).map(|at| panic + at);
    let before = lines[..panic].iter().rposition(is_trace);
    let exception = lines.get(panic).is_some_and(|line| line.contains("exception"));
    let Some(trace) = (if exception { before.or(after) } else { after }) else { return (false, Vec::new()) };
    let at = lines[..trace].iter().rev().take(40).map(|line| words(line)).find_map(|line| line.strip_prefix("RIP: "));
    let at = at.and_then(|at| at.split_once(':')).map(|(_segment, at)| at).filter(|at| is_entry(at));
    let entries = lines[trace + 1..].iter().map(|line| words(line));
    let entries =
        entries.take_while(|line| !line.starts_with("</TASK>") && !is_panic(line) && !line.starts_with("---["));
    // Those with a question mark are only values that look like a return address.
    let entries = entries.filter(|line| is_entry(line) && !line.starts_with('?'));
    (at.is_some(), at.into_iter().chain(entries).take(ENTRIES).collect())
}

/// Whether it is a function with an offset: `name+0x16/0x20`.
fn is_entry(line: &str) -> bool {
    let word = line.split_whitespace().next().unwrap_or("");
    word.split_once("+0x").is_some_and(|(name, rest)| !name.is_empty() && rest.contains("/0x"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYSRQ: &str = "[    4.1] sysrq: Trigger a crash\r\n[    4.2] Kernel panic - not syncing: sysrq triggered crash\r\n\
        [    4.3] CPU: 0 PID: 70 Comm: sh\r\n[    4.4] Call Trace:\r\n[    4.5]  <TASK>\r\n\
        [    4.6]  dump_stack_lvl+0x44/0x5c\r\n[    4.7]  panic+0x118/0x2ed\r\n[    4.7]  ? _printk+0x58/0x73\r\n\
        [    4.8]  sysrq_handle_crash+0x16/0x20\r\n[    4.9]  </TASK>\r\n[    5.0] Kernel Offset: disabled\r\n";
    const OOPS: &str = "[ 1.0][  T1] BUG: kernel NULL pointer dereference, address: 0\n[ 1.0] RIP: 0010:tg_open+0x12/0x40 [telegraphos]\n\
        [ 1.0] Code: 0f 0b\n[ 1.0] Call Trace:\n[ 1.0]  <TASK>\n[ 1.0]  chrdev_open+0xb0/0x200\n[ 1.0]  </TASK>\n\
        [ 1.0] ---[ end trace 0000 ]---\n[ 1.1] Kernel panic - not syncing: Fatal exception\n[ 1.2] Kernel Offset: disabled\n";

    fn report(text: &str) -> (String, String) {
        let Report { what, tail } = Report::of(&text.replace('\r', ""), None);
        (what, tail)
    }

    #[test]
    fn a_report_has_the_reason_the_stack_and_the_end() {
        let (what, tail) = report(SYSRQ);
        assert_eq!(what, "the kernel has panicked: sysrq triggered crash");
        let stack =
            "\n--- the kernel's stack\ndump_stack_lvl+0x44/0x5c\npanic+0x118/0x2ed\nsysrq_handle_crash+0x16/0x20\n---";
        assert!(tail.starts_with(stack) && tail.ends_with("Kernel Offset: disabled"), "{tail}");
        let (what, tail) = report(OOPS);
        assert_eq!(what, "the kernel has panicked: Fatal exception (BUG: kernel NULL pointer dereference, address: 0)");
        let stack = "\n--- the kernel's stack\ntg_open+0x12/0x40 [telegraphos]\nchrdev_open+0xb0/0x200\n---";
        assert!(tail.starts_with(stack), "{tail}");
        // A panic before there is a trace, or only half of a line.
        assert_eq!(report("Kernel panic - not syncing").0, "the kernel has panicked: ");
    }

    /// As QEMU writes what the console says.
    fn append(log: &Path, text: &str) {
        use std::io::Write;
        let log = std::fs::OpenOptions::new().create(true).append(true).open(log);
        log.unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// A guest that has reset its machine so often, and whose agent answers.
    fn answers(resets: u64) -> Signs<'static> {
        Signs { resets, alone: &|| false }
    }

    /// One whose agent does not answer.
    fn silent(resets: u64) -> Signs<'static> {
        Signs { resets, alone: &|| true }
    }

    /// A console, and what appends to it.
    fn console() -> (tempfile::TempDir, Console, impl Fn(&str)) {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("console.0.log");
        let console = Console::follow(log.clone(), None);
        (dir, console, move |text: &str| append(&log, text))
    }

    fn died(console: &mut Console, signs: &Signs<'_>) -> Option<String> {
        console.died(&3.into(), signs).map(|error| error.to_string())
    }

    #[test]
    fn a_reset_without_a_shutdown_is_a_death_whatever_the_console_says() {
        let (_dir, mut console, append) = console();
        assert_eq!(died(&mut console, &answers(0)), None, "no log yet");
        // In order.
        append("[ 1.0] reboot: Restarting system\n[ 1.1] reboot: machine restart\n");
        assert_eq!(died(&mut console, &answers(0)), None);
        assert_eq!(died(&mut console, &answers(1)), None);
        append("[ 0.0] Linux version 6.12\n");
        assert_eq!(died(&mut console, &answers(1)), None);
        // Behind the prompt of a shell.
        append("root@node0:/# \x1b[6n[    3.835938] reboot: Restarting system\n");
        assert_eq!(died(&mut console, &answers(2)), None);
        append("[ 1.0] reboot: Restarting system\n[ 1.1] reboot: machine restart\n[ 0.0] Linux version 6.12\n");
        assert_eq!(died(&mut console, &answers(3)), None);
        // Each reset has its own shutdown.
        let text = died(&mut console, &answers(4)).unwrap();
        assert!(
            text.starts_with("node 3: the kernel has reset its machine without a shutdown: a panic that"),
            "{text}"
        );
        assert!(text.ends_with("\n[ 1.1] reboot: machine restart\n[ 0.0] Linux version 6.12"), "{text}");
        // Levels before the time, and a panic that follows a shutdown.
        append("<0>[    9.8] reboot: Restarting system\n<1>[    9.9] BUG: unable to handle page fault\n");
        append(
            "root@node0:/# <0>[   10.0] Kernel panic - not syncing: Fatal exception\n<0>[   10.0] Kernel Offset: disabled\n",
        );
        let text = died(&mut console, &answers(5)).unwrap();
        assert!(text.contains("has panicked: Fatal exception (BUG: unable to handle page fault)"), "{text}");
        assert_eq!(died(&mut console, &answers(5)), None, "it is reported once");
        // One that says why, and not how.
        append("[ 2.0] Oops: 0000 [#1] PREEMPT SMP\n[ 0.0] Linux version 6.12\n");
        let text = died(&mut console, &answers(6)).unwrap();
        assert!(text.contains("without a shutdown: the last of its errors: Oops: 0000 [#1] PREEMPT SMP\n"), "{text}");
    }

    #[test]
    fn words_of_programs_are_no_death() {
        let (_dir, mut console, append) = console();
        append("[myapp] Oops: cannot reach the server\nKernel panic - not syncing: says a program\n");
        append("[    5.1] Kernel panic - not syncing: says another\n");
        assert_eq!(died(&mut console, &answers(0)), None);
        append("[    6.0] reboot: Restarting system\n");
        assert_eq!(died(&mut console, &answers(1)), None, "it was restarted in order");
        append("Kernel panic - not syncing: once more\n");
        assert_eq!(died(&mut console, &answers(1)), None);
        // The guest does not answer.
        let text = died(&mut console, &silent(1)).unwrap();
        assert!(text.starts_with("node 3: the kernel has panicked: once more\n"), "{text}");
    }

    #[test]
    fn an_error_of_the_kernels_log_is_shown_with_its_stack() {
        let (_dir, mut console, append) = console();
        let (oops, panic) = OOPS.split_at(OOPS.find("[ 1.1]").unwrap());
        append(oops);
        assert_eq!(died(&mut console, &answers(0)), None, "an oops is no panic");
        let text = console.failed(&3.into(), "BUG: kernel NULL pointer dereference, address: 0").to_string();
        let begin = "node 3: the kernel has failed: BUG: kernel NULL pointer dereference, address: 0\n--- the kernel's stack\n\
                     tg_open+0x12/0x40 [telegraphos]\nchrdev_open+0xb0/0x200\n---";
        assert!(text.starts_with(begin), "{text}");
        // A console may show less than the log has.
        let text = console.failed(&3.into(), "kernel BUG at x.c:1!").to_string();
        assert!(
            text.starts_with("node 3: the kernel has failed: kernel BUG at x.c:1!\n--- end of the console\n"),
            "{text}"
        );
        assert_eq!(console.last_error().unwrap(), "BUG: kernel NULL pointer dereference, address: 0");
        // With a panic behind it, it is the panic's cause.
        append(panic);
        let text = died(&mut console, &answers(1)).unwrap();
        assert!(text.contains("has panicked: Fatal exception (BUG: kernel NULL"), "{text}");
    }

    #[test]
    fn a_panic_is_found_in_whatever_pieces_it_comes_and_only_a_new_one() {
        let (dir, mut console, append) = console();
        append("a user says: Kernel panic - not syncing\n");
        let (first, rest) = SYSRQ.split_at(60);
        append(first);
        assert_eq!(died(&mut console, &silent(0)), None);
        append(rest);
        let text = died(&mut console, &silent(0)).unwrap();
        assert!(text.starts_with("node 3: the kernel has panicked: sysrq triggered crash\n"), "{text}");
        assert_eq!(died(&mut console, &silent(0)), None);
        let mut later = Console::follow(dir.path().join("console.0.log"), None);
        assert_eq!(died(&mut later, &silent(0)), None, "that of an earlier machine");
        // A line that never ends is kept only in part.
        for _ in 0..3 {
            append(&"x".repeat(LONGEST_LINE));
            assert_eq!(died(&mut console, &silent(0)), None);
            assert_eq!(console.partial.len(), LONGEST_LINE);
        }
    }
}
