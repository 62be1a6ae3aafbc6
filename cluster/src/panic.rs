// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the panic of a guest's kernel on its console, or an error that should end it (an oops, `BUG:`), and what it
//! says about it.

use crate::Error;
use crate::node_name::NodeLabel;
use crate::process::{length, read_part};
use crate::symbols::places;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How every kernel begins the line, behind its time stamp.
const PANIC: &str = "Kernel panic - not syncing";
/// How lines of other fatal errors begin: memory that is not there, `BUG()`, what KASAN and lockdep's friends find. A
/// warning (`WARNING:`) is none.
const ERRORS: [&str; 3] = ["BUG: ", "Oops: ", "kernel BUG at "];
/// That a machine is slow is not its kernel's error.
const SLOW: &str = "BUG: workqueue lockup";
/// Of a console, so much is read at once.
const PIECE: u64 = 256 << 10;
/// A longer line is no kernel's.
const LONGEST_LINE: usize = 4 << 10;
/// What a report may come from, before the line and after it.
const CONTEXT: u64 = 32 << 10;
/// A console that has been silent for so long has all of the report, ...
const SILENT: Duration = Duration::from_millis(300);
/// ... and one that is never silent has it after so long.
const COMPLETE: Duration = Duration::from_secs(3);
/// Lines of the console that an error shows, and entries of the stack.
const LINES: usize = 25;
const ENTRIES: usize = 16;

/// Follows the log of one console.
#[derive(Debug)]
pub(crate) struct Console {
    log: PathBuf,
    /// The kernel's vmlinux, for places in its source.
    symbols: Option<PathBuf>,
    at: u64,
    /// Where the first error that is no panic is.
    error_at: Option<u64>,
    /// Where the first panic is that was not reported.
    panic_at: Option<u64>,
    /// The beginning of a line.
    partial: Vec<u8>,
}

impl Console {
    /// Follows the log from its present end on: what is there is of an earlier machine.
    pub(crate) fn follow(log: PathBuf, symbols: Option<PathBuf>) -> Console {
        let at = length(&log);
        Console { log, symbols, at, error_at: None, panic_at: None, partial: Vec::new() }
    }

    /// The error of this node if its kernel has panicked since the last call. Waits for the end of the kernel's report.
    pub(crate) fn panicked(&mut self, node: &NodeLabel) -> Option<Error> {
        self.look();
        let line_at = self.panic_at.take()?;
        Some(self.report(node, line_at))
    }

    /// The same, also of an error without a panic, once.
    pub(crate) fn failed(&mut self, node: &NodeLabel) -> Option<Error> {
        self.panicked(node).or_else(|| {
            let line_at = self.error_at.take()?;
            Some(self.report(node, line_at))
        })
    }

    fn report(&self, node: &NodeLabel, line_at: u64) -> Error {
        let begun = Instant::now();
        let mut changed = (length(&self.log), begun);
        while begun.elapsed() < COMPLETE && changed.1.elapsed() < SILENT {
            std::thread::sleep(Duration::from_millis(20));
            let now = length(&self.log);
            if now != changed.0 {
                changed = (now, Instant::now());
            }
        }
        let from = line_at.saturating_sub(CONTEXT);
        let text = String::from_utf8_lossy(&read_part(&self.log, from, line_at - from + CONTEXT)).replace('\r', "");
        let Report { what, tail } = Report::of(&text, self.symbols.as_deref());
        Error::Dead { node: node.clone(), what, tail }
    }

    /// Looks at what is new, up to the first panic.
    fn look(&mut self) {
        let bytes = read_part(&self.log, self.at, PIECE);
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.at += piece.len() as u64;
            if self.partial.len() < LONGEST_LINE {
                self.partial.extend_from_slice(piece);
            }
            if !piece.ends_with(b"\n") {
                continue;
            }
            let line = String::from_utf8_lossy(&self.partial);
            let (panic, error) = (is_panic(&line), is_error(&line));
            self.partial.clear();
            if error {
                self.error_at.get_or_insert(self.at);
            }
            if panic {
                // The error before it is its cause.
                (self.panic_at, self.error_at) = (Some(self.at), None);
                return;
            }
        }
    }
}

/// A line of the kernel without its time stamp, and without its processor or task.
fn words(line: &str) -> &str {
    let mut rest = line.trim();
    while let Some((_, after)) = rest.strip_prefix('[').and_then(|stamp| stamp.split_once(']')) {
        rest = after.trim_start();
    }
    rest
}

fn is_panic(line: &str) -> bool {
    words(line).starts_with(PANIC)
}

fn is_error(line: &str) -> bool {
    let words = words(line);
    ERRORS.iter().any(|begin| words.starts_with(begin)) && !words.starts_with(SLOW)
}

/// What a console says about a panic or another error.
#[derive(Debug, PartialEq, Eq)]
struct Report {
    what: String,
    tail: String,
}

impl Report {
    /// Of a text with the line of a panic, or of another error.
    fn of(text: &str, symbols: Option<&Path>) -> Report {
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let Some(at) = lines.iter().position(|line| is_panic(line)) else {
            let at = lines.iter().position(|line| is_error(line)).unwrap_or(0);
            let what = format!("the kernel has failed: {}", lines.get(at).map_or("", |line| words(line)));
            return Report { what, tail: ends(&lines, at, symbols) };
        };
        let reason =
            lines.get(at).map_or("", |line| words(line).trim_start_matches(PANIC).trim_start_matches(':').trim());
        let mut what = format!("the kernel has panicked: {reason}");
        // The cause of a fatal exception has a line of its own, before.
        let cause = lines[..at].iter().rev().map(|line| words(line)).find(|line| line.starts_with("BUG: "));
        if let Some(cause) = cause.filter(|_| reason.contains("exception")) {
            what += &format!(" ({cause})");
        }
        Report { what, tail: ends(&lines, at, symbols) }
    }
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

    #[test]
    fn an_error_without_a_panic_is_found_and_a_warning_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("console.0.log");
        let mut console = Console::follow(log.clone(), None);
        let append = |text: &str| append(&log, text);
        append("[ 1.0] WARNING: CPU: 0 PID: 1 at kernel/x.c:1 x+0x1/0x2\n[ 1.0] Call Trace:\n[ 1.0]  y+0x1/0x2\n");
        append("[ 1.0] BUG: workqueue lockup - pool cpus=0\na program says: BUG: x\n[ 1.0] a BUG: in words\n");
        assert!(console.failed(&3.into()).is_none());
        let (oops, panic) = OOPS.split_at(OOPS.find("[ 1.1]").unwrap());
        append(oops);
        assert!(console.panicked(&3.into()).is_none(), "an oops is no panic");
        let text = console.failed(&3.into()).unwrap().to_string();
        assert!(
            text.starts_with("node 3: the kernel has failed: BUG: kernel NULL pointer dereference, address: 0\n"),
            "{text}"
        );
        assert!(
            text.contains("--- the kernel's stack\ntg_open+0x12/0x40 [telegraphos]\nchrdev_open+0xb0/0x200\n---"),
            "{text}"
        );
        assert!(console.failed(&3.into()).is_none(), "it is reported once");
        // With a panic behind it, it is the panic's cause.
        append(oops);
        append(panic);
        let text = console.failed(&3.into()).unwrap().to_string();
        assert!(text.contains("has panicked: Fatal exception (BUG: kernel NULL"), "{text}");
        assert!(console.failed(&3.into()).is_none());
        for line in [
            "Oops: 0000 [#1] PREEMPT SMP",
            "[ 2.0][ T9] kernel BUG at mm/slub.c:435!",
            "BUG: KASAN: use-after-free in x",
        ] {
            append(&format!("{line}\n"));
            assert!(console.failed(&3.into()).unwrap().to_string().contains(words(line)), "{line}");
        }
    }

    #[test]
    fn a_panic_is_found_in_whatever_pieces_it_comes_and_only_a_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("console.0.log");
        let mut console = Console::follow(log.clone(), None);
        assert!(console.panicked(&3.into()).is_none(), "no log yet");
        let append = |text: &str| append(&log, text);
        append("a user says: Kernel panic - not syncing\n");
        let (first, rest) = SYSRQ.split_at(60);
        append(first);
        assert!(console.panicked(&3.into()).is_none());
        append(rest);
        let text = console.panicked(&3.into()).unwrap().to_string();
        assert!(text.starts_with("node 3: the kernel has panicked: sysrq triggered crash\n"), "{text}");
        assert!(console.panicked(&3.into()).is_none());
        assert!(Console::follow(log.clone(), None).panicked(&3.into()).is_none(), "that of an earlier machine");
        // A line that never ends is kept only in part.
        for _ in 0..3 {
            append(&"x".repeat(LONGEST_LINE));
            assert!(console.panicked(&3.into()).is_none());
            assert_eq!(console.partial.len(), LONGEST_LINE);
        }
    }
}
