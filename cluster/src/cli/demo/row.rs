// SPDX-License-Identifier: MIT OR Apache-2.0
//! A line of the table: what was done, what it took, and whether it is right.

use super::Part;
use std::ffi::OsStr;
use std::ops::{AddAssign, Sub};
use std::time::Duration;

/// What boards counted of their guests' accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Accesses(pub(super) [u64; 4]);

impl Accesses {
    /// What they are, in this order.
    const NAMES: [&str; 4] = ["store", "load", "atomic", "enqueue"];

    /// What one of `count` operations took, as "1 store".
    pub(super) fn each(self, count: u64) -> String {
        let each = |(number, name): (u64, _)| match (number, count) {
            (0, _) | (_, 0) => None,
            (number, count) if number == count => Some(format!("1 {name}")),
            (number, count) if number % count == 0 => Some(format!("{} {name}s", number / count)),
            (number, count) => Some(format!("{:.3} {name}s", number as f64 / count as f64)),
        };
        let all: Vec<String> = self.0.into_iter().zip(Accesses::NAMES).filter_map(each).collect();
        if all.is_empty() { "nothing".into() } else { all.join(", ") }
    }
}

impl AddAssign for Accesses {
    fn add_assign(&mut self, other: Accesses) {
        self.0.iter_mut().zip(other.0).for_each(|(number, other)| *number += other);
    }
}

impl Sub for Accesses {
    type Output = Accesses;
    fn sub(self, other: Accesses) -> Accesses {
        Accesses(std::array::from_fn(|n| self.0[n].wrapping_sub(other.0[n])))
    }
}

#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) part: Part,
    pub(super) what: &'static str,
    /// From where to where the data goes.
    pub(super) ways: Vec<(u16, u16)>,
    pub(super) way: &'static str,
    pub(super) count: u64,
    pub(super) time: Duration,
    /// Accesses to the board that one operation took.
    pub(super) took: String,
    pub(super) check: String,
    pub(super) ok: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Style {
    colour: bool,
}

impl Style {
    /// Colour on a terminal, unless it is not wanted (<https://no-color.org>).
    pub(super) fn of(plain: bool, terminal: bool, no_color: Option<&OsStr>) -> Style {
        Style { colour: terminal && !plain && no_color.is_none_or(OsStr::is_empty) }
    }

    fn painted(self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// What the run is made of, and the titles of the columns.
    pub(super) fn header(self, parts: &[String], kvm: bool) -> String {
        // "QEMU 1:11.1.3+ds-1 (bookworm)", "kernel 6.12.117+deb12-cloud-amd64 6.12.117-1 (bookworm)".
        let version = |name: &str| {
            let mut words =
                parts.iter().map(|part| part.split_whitespace()).find(|words| words.clone().next() == Some(name))?;
            let version = words.nth(1)?;
            Some(version.rsplit(':').next().unwrap_or(version).to_owned())
        };
        let qemu = version("QEMU").unwrap_or_default();
        let qemu = qemu.split('+').next().unwrap_or_default();
        let (kernel, by) = (version("kernel").unwrap_or_default(), if kvm { "KVM" } else { "emulation" });
        let first =
            format!("Three virtual machines with Telegraphos boards: stock QEMU {qemu} ({by}), kernel {kernel}.");
        let second =
            "In each a process of an ordinary user runs. \"At the board\" is what the boards' own counters say.";
        let titles = columns("operation", "nodes", "count", "time of one", "at the board", "check");
        format!("{first}\n{second}\n\n{}\n", self.painted("1", &titles))
    }

    pub(super) fn row(self, row: &Row) -> String {
        let (mark, colour) = if row.ok { ("ok   ", "32") } else { ("WRONG", "1;31") };
        let line = columns(row.what, row.way, &grouped(row.count), &short(row.time), &row.took, "");
        format!("{line}{} {}", self.painted(colour, mark), row.check)
    }

    pub(super) fn verdict(self, ok: bool, text: &str) -> String {
        format!("\n{}", self.painted(if ok { "1;32" } else { "1;31" }, text))
    }
}

fn columns(what: &str, way: &str, count: &str, time: &str, took: &str, check: &str) -> String {
    format!("{what:<26} {way:<8} {count:>6} {time:>11}  {took:<12} {check}")
}

/// Digits in groups of three.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// A time in the unit that fits it.
pub(super) fn short(time: Duration) -> String {
    match time.as_secs_f64() {
        s if s < 1e-3 => format!("{:.2} us", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.1} s"),
    }
}

#[cfg(test)]
pub(super) fn sample(part: Part, ok: bool) -> Row {
    Row {
        part,
        what: "store, 8 to 64 bit",
        ways: vec![(0, 1)],
        way: "0 -> 1",
        count: 35_424,
        time: Duration::from_nanos(812),
        took: "1 store".into(),
        check: if ok { "all words right".into() } else { "2 words wrong".into() },
        ok,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_columns() {
        let plain = Style { colour: false };
        assert_eq!(
            plain.row(&sample(Part::Store, true)),
            "store, 8 to 64 bit         0 -> 1   35 424     0.81 us  1 store      ok    all words right"
        );
        assert!(plain.row(&sample(Part::Store, false)).ends_with(" WRONG 2 words wrong"));
        let colour = Style { colour: true };
        assert!(colour.row(&sample(Part::Store, true)).contains("\x1b[32mok   \x1b[0m all"));
        assert!(colour.verdict(false, "no").contains("\x1b[1;31mno\x1b[0m"));
        let header =
            plain.header(&["QEMU 1:11.1.3+ds-1 (sid)".into(), "kernel 6.12.1-amd64 6.12.1-1 (sid)".into()], false);
        let first =
            "Three virtual machines with Telegraphos boards: stock QEMU 11.1.3 (emulation), kernel 6.12.1-amd64.";
        assert_eq!(header.lines().next(), Some(first));
        assert!(!header.contains('\x1b'));
    }

    #[test]
    fn colour_is_for_terminals() {
        let style =
            |plain, terminal, no_color: Option<&str>| Style::of(plain, terminal, no_color.map(OsStr::new)).colour;
        assert!(style(false, true, None) && style(false, true, Some("")));
        assert!(!style(true, true, None) && !style(false, false, None) && !style(false, true, Some("1")));
    }

    #[test]
    fn accesses_are_those_of_one_operation() {
        let all = Accesses([200, 0, 100, 0]);
        assert_eq!(all.each(100), "2 stores, 1 atomic");
        assert_eq!(Accesses([0, 101, 0, 0]).each(100), "1.010 loads");
        assert_eq!(Accesses::default().each(100), "nothing");
        assert_eq!(all - Accesses([50, 0, 0, 0]), Accesses([150, 0, 100, 0]));
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1 000", "1 234 567"]);
        let times = [812, 45_600, 2_300_000, 4_120_000_000].map(|ns| short(Duration::from_nanos(ns)));
        assert_eq!(times, ["0.81 us", "45.60 us", "2.3 ms", "4.1 s"]);
    }
}
