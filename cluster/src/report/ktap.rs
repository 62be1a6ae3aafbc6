// SPDX-License-Identifier: MIT OR Apache-2.0
//! KTAP, the kernel's test protocol: read leniently, as it comes line by line from a guest, and written.

use super::{Outcome, Suite, Test};
use std::fmt::Write;
use std::time::Duration;

/// Levels of subtests; deeper ones count as notes.
const DEEPEST: usize = 16;
/// Bytes of a name, of the notes before one result, and of the tests of one report: a guest may print without end.
const LONGEST_NAME: usize = 512;
const NOTES: usize = 16 << 10;
const TESTS: usize = 8 << 20;
/// What a test costs beside its texts.
const EACH: usize = 200;

/// Reads one program's output. A line that is none of KTAP's is a note of the result that follows.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// The report and the subtests that are open in it, the innermost last.
    levels: Vec<Level>,
    bytes: usize,
    full: bool,
}

#[derive(Debug, Default)]
struct Level {
    /// What its lines begin with.
    prefix: String,
    /// From the line `# Subtest: NAME`.
    name: Option<String>,
    planned: Option<usize>,
    /// Results since the plan's beginning.
    results: usize,
    tests: Vec<Test>,
    /// Subtests whose own result has not come yet, and their name.
    inner: Vec<Test>,
    inner_name: Option<String>,
    notes: String,
    /// When the last result came.
    at: Duration,
}

/// A line of KTAP, without what it begins with.
enum Line<'a> {
    Version,
    Subtest(&'a str),
    Plan(usize, Option<&'a str>),
    Result { ok: bool, name: &'a str, directive: &'a str },
    Bail(&'a str),
}

impl Line<'_> {
    fn of(text: &str) -> Option<Line<'_>> {
        let text = text.trim_end();
        if text == "KTAP version 1" || matches!(text.strip_prefix("TAP version "), Some("13" | "14")) {
            return Some(Line::Version);
        }
        if let Some(name) = text.strip_prefix("# Subtest: ") {
            return Some(Line::Subtest(name.trim()));
        }
        if let Some(why) = text.strip_prefix("Bail out!") {
            return Some(Line::Bail(why.trim()));
        }
        if let Some(plan) = text.strip_prefix("1..") {
            let (number, directive) = plan.split_once('#').unwrap_or((plan, ""));
            let skipped = directive.trim().strip_prefix("SKIP").map(str::trim);
            return number.trim().parse().ok().map(|n| Line::Plan(n, skipped));
        }
        let (ok, rest) = match text.strip_prefix("not ok ") {
            Some(rest) => (false, rest),
            None => (true, text.strip_prefix("ok ")?),
        };
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, rest) = rest.split_at(digits);
        if number.is_empty() || !(rest.is_empty() || rest.starts_with(' ')) {
            return None;
        }
        let (name, directive) = rest.split_once('#').unwrap_or((rest, ""));
        let name = name.trim();
        Some(Line::Result { ok, name: name.strip_prefix("- ").unwrap_or(name).trim(), directive: directive.trim() })
    }
}

/// A line without what a kernel's log has before it: the level, the time, the processor or task, and what a syslog
/// daemon puts before these.
fn without_stamp(line: &str) -> &str {
    let unstamped = |line: &str| -> Option<usize> {
        let mut rest = line;
        if let Some((level, after)) = rest.strip_prefix('<').and_then(|line| line.split_once('>')) {
            rest = if level.parse::<u16>().is_ok() { after } else { return None };
        }
        let (time, mut rest) = rest.strip_prefix('[')?.split_once(']')?;
        let (seconds, fraction) = time.trim_start().split_once('.')?;
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(seconds) || !digits(fraction) {
            return None;
        }
        if let Some((caller, after)) = rest.strip_prefix('[').and_then(|line| line.split_once(']')) {
            rest = if digits(caller.trim_start().strip_prefix(['T', 'C'])?) { after } else { rest };
        }
        // One space is the log's; others are of the line.
        Some(line.len() - rest.strip_prefix(' ').unwrap_or(rest).len())
    };
    // `Nov 30 12:00:00 host kernel: `, or a time of ISO 8601.
    let is_time = |head: &str| {
        let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        let begins =
            head.starts_with(|c: char| c.is_ascii_digit()) || months.iter().any(|month| head.starts_with(month));
        begins && head.contains(':') && head.len() <= 80
    };
    let line = line.split_once(" kernel: ").filter(|(head, _)| is_time(head)).map_or(line, |(_, rest)| rest);
    unstamped(line).map_or(line, |at| &line[at..])
}

/// The spaces, tabs and comment signs that a line begins with, as kselftest and KUnit put them before subtests.
fn prefix(line: &str) -> &str {
    let mut end = 0;
    loop {
        let rest = &line[end..];
        end += match rest.as_bytes() {
            [b' ' | b'\t', ..] => 1,
            // `# Subtest:` is a line by itself.
            [b'#', b' ', ..] if !rest.starts_with("# Subtest: ") => 2,
            _ => return &line[..end],
        };
    }
}

/// The beginning of a text, of so many bytes.
fn bounded(text: &str, most: usize) -> String {
    telegraphos_agent::bounded(text, most).to_owned()
}

fn outcome(ok: bool, directive: &str) -> Outcome {
    let (word, why) = directive.split_once([' ', ':']).unwrap_or((directive, ""));
    let why = bounded(why.trim(), LONGEST_NAME);
    match (word.to_ascii_uppercase().as_str(), ok) {
        ("SKIP", _) => Outcome::Skipped(why),
        // A failure that is known, which the kernel's tools count as no failure either.
        (word @ ("XFAIL" | "TODO"), _) => Outcome::Skipped(format!("{word} {why}").trim().to_owned()),
        (_, true) => Outcome::Passed,
        (word @ ("TIMEOUT" | "ERROR"), false) => Outcome::Failed(format!("{word} {why}").trim().to_owned()),
        (_, false) => Outcome::Failed(String::new()),
    }
}

impl Reader {
    /// Takes the next line, which came `at` after the beginning.
    pub(super) fn line(&mut self, line: &str, at: Duration) {
        let line = without_stamp(line.trim_end_matches(['\r', '\n']));
        // Of the innermost level, or of one around it, whose line then closes those within.
        let known = (0..self.levels.len()).rev().find_map(|level| {
            let rest = line.strip_prefix(self.levels[level].prefix.as_str())?;
            Line::of(rest).map(|line| (level, line))
        });
        match known {
            Some((level, Line::Version)) => {
                self.close_within(level);
                // Another program's report, behind that of the first.
                self.levels[level].end_of_plan();
            }
            Some((level, Line::Subtest(name))) if level + 1 == self.levels.len() => {
                self.levels[level].name.get_or_insert_with(|| bounded(name, LONGEST_NAME));
            }
            Some((level, Line::Plan(planned, skipped))) => {
                self.close_within(level);
                self.levels[level].planned = Some(planned);
                if let Some(why) = skipped {
                    self.put(level, "all tests", Outcome::Skipped(bounded(why, LONGEST_NAME)), at);
                    self.levels[level].planned = None;
                }
            }
            Some((level, Line::Result { ok, name, directive })) => {
                self.close_within(level);
                self.levels[level].results += 1;
                self.put(level, name, outcome(ok, directive), at);
            }
            Some((level, Line::Bail(why))) => {
                self.close_within(level);
                let why = format!("Bail out! {}", bounded(why, LONGEST_NAME));
                self.put(level, "Bail out!", Outcome::Failed(why), at);
                // What was planned and has not come is no second failure.
                self.levels[level].planned = None;
            }
            Some((_, Line::Subtest(_))) | None => self.unknown(line, at),
        }
    }

    /// A line of no open level: it opens one, or it is a note.
    fn unknown(&mut self, line: &str, at: Duration) {
        let prefix = prefix(line);
        let opens = match Line::of(&line[prefix.len()..]) {
            Some(Line::Version) => Some(None),
            // KUnit before Linux 6.2 has no version before subtests.
            Some(Line::Subtest(name)) if !self.levels.is_empty() => Some(Some(bounded(name, LONGEST_NAME))),
            _ => None,
        };
        let deeper = self.levels.last().is_none_or(|inner| prefix.len() > inner.prefix.len());
        if let (Some(name), true) = (opens, deeper && self.levels.len() < DEEPEST) {
            self.levels.push(Level { prefix: prefix.to_owned(), name, at, ..Level::default() });
            return;
        }
        let Some(level) = self.levels.last_mut() else { return };
        let note = line.strip_prefix(level.prefix.as_str()).unwrap_or(line);
        if level.notes.len() + note.len() < NOTES {
            level.notes += note.strip_prefix("# ").unwrap_or(note);
            level.notes.push('\n');
        }
    }

    /// A result of this level: what has come since its last one belongs to it.
    fn put(&mut self, level: usize, name: &str, outcome: Outcome, at: Duration) {
        let Level { tests, inner, inner_name, notes, at: last, .. } = &mut self.levels[level];
        let subtest = inner_name.take();
        let name = match (name, inner.is_empty()) {
            ("", false) => subtest.unwrap_or_default(),
            _ => bounded(name, LONGEST_NAME),
        };
        let name = if name.is_empty() { format!("test {}", tests.len() + 1) } else { name };
        let (notes, subtests) = (std::mem::take(notes), std::mem::take(inner));
        let took = at.saturating_sub(*last);
        *last = at;
        self.bytes += EACH + name.len() + notes.len();
        if self.bytes < TESTS {
            tests.push(Test { name, outcome, notes, took, subtests });
        } else if !self.full {
            self.full = true;
            let why = format!("the report is longer than {TESTS} bytes: what follows is not in here");
            tests.push(Test { name: "the rest".into(), outcome: Outcome::Failed(why), ..Test::default() });
        }
    }

    /// Closes the levels within this one.
    fn close_within(&mut self, level: usize) {
        while self.levels.len() > level + 1 {
            let Some(mut closed) = self.levels.pop() else { return };
            closed.end_of_plan();
            let Some(outer) = self.levels.last_mut() else { return };
            outer.inner.append(&mut closed.tests);
            outer.inner_name = closed.name;
            if outer.notes.len() + closed.notes.len() < NOTES {
                outer.notes += &closed.notes;
            }
        }
    }

    /// Whether a report has begun.
    pub(super) fn has_begun(&self) -> bool {
        !self.levels.is_empty()
    }

    /// All tests; none if the output was no report. What was planned and did not come has failed.
    pub(super) fn end(mut self) -> Option<Vec<Test>> {
        self.close_within(0);
        let mut level = self.levels.pop()?;
        if !level.inner.is_empty() {
            let name = level.inner_name.take().unwrap_or_else(|| "subtests".into());
            let outcome = Outcome::Failed("the report ends before the result of these subtests".into());
            let subtests = std::mem::take(&mut level.inner);
            level.tests.push(Test { name, outcome, subtests, ..Test::default() });
        }
        level.end_of_plan();
        if level.tests.is_empty() {
            let outcome = Outcome::Failed("the report ends before its first result".into());
            level.tests.push(Test { name: "report".into(), outcome, notes: level.notes, ..Test::default() });
        }
        Some(level.tests)
    }
}

impl Level {
    /// Fails if there are fewer or more results than planned.
    fn end_of_plan(&mut self) {
        let came = std::mem::take(&mut self.results);
        if let Some(planned) = self.planned.take().filter(|planned| *planned != came) {
            let outcome = Outcome::Failed(format!("{came} results came: expected {planned}"));
            let notes = std::mem::take(&mut self.notes);
            self.tests.push(Test { name: "plan".into(), outcome, notes, ..Test::default() });
        }
    }
}

/// The report of a cluster: each node's tests are the subtests of one.
pub(super) fn merged(suites: &[Suite]) -> String {
    let mut text = format!("KTAP version 1\n1..{}\n", suites.len());
    for (n, suite) in suites.iter().enumerate() {
        level(&mut text, "  ", Some(&suite.name), &suite.tests);
        let bad = suite.tests.iter().any(Test::has_failed);
        // It cannot fail: the text is memory.
        let _ = writeln!(text, "{} {} {}", if bad { "not ok" } else { "ok" }, n + 1, name(&suite.name));
    }
    text
}

fn level(text: &mut String, indent: &str, subtest: Option<&str>, tests: &[Test]) {
    let _ = writeln!(text, "{indent}KTAP version 1");
    if let Some(subtest) = subtest {
        let _ = writeln!(text, "{indent}# Subtest: {}", name(subtest));
    }
    let _ = writeln!(text, "{indent}1..{}", tests.len());
    for (n, test) in tests.iter().enumerate() {
        if !test.subtests.is_empty() {
            level(text, &format!("{indent}  "), Some(&test.name), &test.subtests);
        }
        let (outcome, words) = match &test.outcome {
            Outcome::Passed => ("ok", String::new()),
            Outcome::Skipped(why) => ("ok", format!(" # SKIP {}", line(why)).trim_end().to_owned()),
            Outcome::Failed(_) => ("not ok", String::new()),
            Outcome::Error { timeout: true, .. } => ("not ok", " # TIMEOUT".to_owned()),
            Outcome::Error { .. } => ("not ok", " # ERROR".to_owned()),
        };
        for note in test.outcome.why().lines().chain(test.notes.lines()) {
            let _ = writeln!(text, "{indent}# {}", line(note));
        }
        let _ = writeln!(text, "{indent}{outcome} {} {}{words}", n + 1, name(&test.name));
    }
}

/// A name with which a line of KTAP stays one: without the sign of a directive.
fn name(text: &str) -> String {
    line(text).replace('#', "_")
}

/// A text in one line, without control characters.
fn line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\t' { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Vec<Test>> {
        let mut reader = Reader::default();
        for (n, line) in text.lines().enumerate() {
            reader.line(line, Duration::from_secs(n as u64));
        }
        reader.end()
    }

    /// Names with a sign of the outcome, subtests in parentheses.
    fn short(tests: &[Test]) -> String {
        let one = |test: &Test| {
            let sign = match &test.outcome {
                Outcome::Passed => "+".to_owned(),
                Outcome::Failed(_) | Outcome::Error { .. } => "-".to_owned(),
                Outcome::Skipped(why) => format!("~[{why}]"),
            };
            let inner = if test.subtests.is_empty() { String::new() } else { format!("({})", short(&test.subtests)) };
            format!("{sign}{}{inner}", test.name)
        };
        tests.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_report_with_all_kinds_of_results() {
        let text = "booting\nKTAP version 1\n1..6\n# node 0\nok 1 first # time=3ms\n# left: 1\nright: 2\nnot ok 2 - second\n\
                    ok 3 third # SKIP no board\nnot ok 4 fourth # TODO later\nnot ok 5 fifth # TIMEOUT 45 seconds\nok 6\n";
        let tests = read(text).unwrap();
        assert_eq!(short(&tests), "+first -second ~[no board]third ~[TODO later]fourth -fifth +test 6");
        assert_eq!((tests[1].notes.as_str(), tests[1].took), ("left: 1\nright: 2\n", Duration::from_secs(3)));
        assert_eq!(tests[4].outcome.why(), "TIMEOUT 45 seconds");
    }

    #[test]
    fn subtests_belong_to_the_result_behind_them() {
        let kunit = "KTAP version 1\n1..2\n    KTAP version 1\n    # Subtest: list\n    1..2\n        KTAP version 1\n        \
                     # Subtest: deep\n        ok 1 a=1\n        not ok 2 a=2\n    not ok 1 deep\n    ok 2 sort\nnot ok 1 list\n\
                     ok 2 other\n";
        assert_eq!(short(&read(kunit).unwrap()), "-list(-deep(+a=1 -a=2) +sort) +other");
        let old = "TAP version 14\n1..1\n    # Subtest: list\n    1..1\n    ok 1 - one\nok 1 - list\n";
        assert_eq!(short(&read(old).unwrap()), "+list(+one)");
        let kselftest = "TAP version 13\n1..1\n# timeout set to 45\n# selftests: mm: x\n# TAP version 13\n# 1..2\n# ok 1 one\n\
                         # # why\n# not ok 2 two\nnot ok 1 selftests: mm: x # exit=1\n";
        let tests = read(kselftest).unwrap();
        assert_eq!(short(&tests), "-selftests: mm: x(+one -two)");
        assert_eq!(tests[0].subtests[1].notes, "why\n");
    }

    /// KUnit's, as `dmesg` and consoles show it.
    #[test]
    fn a_report_behind_stamps_of_a_log_is_read() {
        let kunit = "KTAP version 1\n1..2\n    KTAP version 1\n    # Subtest: list\n    # module: list_test\n    1..2\n    \
                     ok 1 init\n    # swap: EXPECTATION FAILED at lib/list-test.c:1\n    not ok 2 swap\nnot ok 1 list\nok 2 sort\n";
        for stamp in [
            "[    1.234567] ",
            "[12345.000001] ",
            "[    1.234567][    T1] ",
            "[    1.234567][ C0] ",
            "<6>[    1.234567] ",
            "Nov 30 12:00:00 host kernel: [    1.234567] ",
            "2026-11-30T12:00:00.123456+00:00 host kernel: ",
        ] {
            let mut text = format!("{stamp}random: crng init done\n");
            kunit.lines().for_each(|line| text += &format!("{stamp}{line}\n"));
            let tests = read(&text).unwrap_or_else(|| panic!("{stamp}: no report"));
            assert_eq!(short(&tests), "-list(+init -swap) +sort", "{stamp}");
            let notes = "module: list_test\n";
            assert_eq!(tests[0].subtests[0].notes, notes, "{stamp}");
            assert_eq!(tests[0].subtests[1].notes, "swap: EXPECTATION FAILED at lib/list-test.c:1\n", "{stamp}");
        }
        for line in ["[x] ok 1 a", "[1] ok 1 a", "[ 1.2x] ok 1 a", "<a>[ 1.2] ok 1", "says kernel: what"] {
            assert_eq!(without_stamp(line), line);
        }
    }

    #[test]
    fn what_was_planned_and_did_not_come_has_failed() {
        for (text, wanted, why) in [
            ("KTAP version 1\n1..3\nok 1 a\n", "+a -plan", "1 results came: expected 3"),
            ("KTAP version 1\n1..1\nok 1 a\nok 2 b\n", "+a +b -plan", "2 results came: expected 1"),
            ("KTAP version 1\n1..3\nok 1 a\nBail out! no device\n", "+a -Bail out!", "Bail out! no device"),
            ("KTAP version 1\n", "-report", "the report ends before its first result"),
            (
                "KTAP version 1\n1..2\n  KTAP version 1\n  # Subtest: s\n  1..1\n  ok 1 a\nkernel says\n",
                "-s(+a) -plan",
                "0 results came: expected 2",
            ),
        ] {
            let tests = read(text).unwrap();
            assert_eq!(short(&tests), wanted, "{text}");
            assert_eq!(tests.last().unwrap().outcome.why(), why);
        }
        // Each of several reports has its own plan.
        let two = "KTAP version 1\n1..1\nok 1 a\nKTAP version 1\n1..2\nok 1 b\nok 2 c\n";
        assert_eq!(short(&read(two).unwrap()), "+a +b +c");
        assert_eq!(short(&read("TAP version 13\n1..0 # SKIP no root\n").unwrap()), "~[no root]all tests");
    }

    #[test]
    fn what_is_no_report_has_no_tests() {
        for text in ["", "hello\n1..5\nok 1 a\n", "ok then\n", "KTAP version 2\nok 1 a\n"] {
            assert_eq!(read(text), None, "{text}");
        }
        assert_eq!(short(&read("KTAP version 1\n1..1\nok computer\nok 1x\nok 1 a\n").unwrap()), "+a");
    }

    #[test]
    fn a_report_without_end_is_bounded() {
        let mut reader = Reader::default();
        reader.line("KTAP version 1", Duration::ZERO);
        let long = "x".repeat(3000);
        for n in 0..20_000 {
            reader.line(&format!("# {long}"), Duration::ZERO);
            reader.line(&format!("ok {n} {long}"), Duration::ZERO);
            reader.line(&format!("{}KTAP version 1", " ".repeat(n % 100 + 1)), Duration::ZERO);
        }
        let tests = reader.end().unwrap();
        assert!(tests.len() < 3000 && tests.last().unwrap().outcome.why().contains("longer than"), "{}", tests.len());
        assert!(tests.iter().all(|test| test.notes.len() <= NOTES && test.name.len() <= LONGEST_NAME));
    }

    #[test]
    fn the_merged_report_can_be_read_and_has_every_node() {
        let tests = read(
            "KTAP version 1\n1..2\n  KTAP version 1\n  1..1\n  # odd\n  not ok 1 in#ner\nnot ok 1 outer\nok 2 b # SKIP no",
        );
        let dead = Outcome::Error { why: "node 1: dead\nat last".into(), timeout: false };
        let error = Test { name: "sh -c 'a\n#b'".into(), outcome: dead, ..Test::default() };
        let suites = [
            Suite { name: "node0".into(), tests: tests.unwrap(), ..Suite::default() },
            Suite { name: "left".into(), tests: vec![error], ..Suite::default() },
        ];
        let text = merged(&suites);
        let again = read(&text).unwrap();
        assert_eq!(short(&again), "-node0(-outer(-in) ~[no]b) -left(-sh -c 'a _b')");
        assert_eq!(again[0].subtests[0].subtests[0].notes, "odd\n");
        let wanted = "  # node 1: dead\n  # at last\n  not ok 1 sh -c 'a _b' # ERROR\nnot ok 2 left\n";
        assert!(text.starts_with("KTAP version 1\n1..2\n  KTAP version 1\n  # Subtest: node0\n  1..2\n"), "{text}");
        assert!(text.ends_with(wanted), "{text}");
    }
}
