// SPDX-License-Identifier: MIT OR Apache-2.0
//! What has been counted, as values and as a table.
//!
//! The table has one line for each region and below it one for each device touched in it, e.g.
//!
//! ```text
//! region passages broken instructions kernel loads loaded stores stored device
//!      2       19      0            1      0     0      0      1      8 -
//!      2       19      0            -      -     0      0      1      8 vfio-user:/run/hib0 BAR 4
//!      2        1      0            1   3295  1032   7151    638   4728 -
//!      2        1      0            -      -     0      0      2      8 apic-msi
//!      2        1      0            -      -     0      0      1      8 vfio-user:/run/hib0 BAR 4
//! ```
//!
//! `instructions` and `kernel` are those at user and kernel addresses; `loads` and `stores` are accesses, `loaded` and
//! `stored` their bytes, of the whole region (device `-`, RAM included) or of one device. Numbers are per passage; if
//! passages differ, the least and the most: `3..17`. `broken` is begins and ends without their other half.
//!
//! Passages in which the kernel ran have lines of their own, as here one that an interrupt fell into; so those without
//! are exact.

use crate::Region;
use alloc::borrow::ToOwned;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::{self, Display};

/// The least and the most of several passages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// The least.
    pub least: u64,
    /// The most.
    pub most: u64,
}

impl Range {
    /// The same in every passage.
    pub const fn exactly(value: u64) -> Range {
        Range { least: value, most: value }
    }

    pub(crate) fn add(&mut self, value: u64) {
        self.least = self.least.min(value);
        self.most = self.most.max(value);
    }

    fn parse(text: &str) -> Option<Range> {
        match text.split_once("..") {
            Some((least, most)) => Some(Range { least: least.parse().ok()?, most: most.parse().ok()? }),
            None => text.parse().ok().map(Range::exactly),
        }
    }
}

impl Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.least == self.most {
            return f.pad(&self.least.to_string());
        }
        f.pad(&alloc::format!("{}..{}", self.least, self.most))
    }
}

/// Memory accesses of one passage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    pub loads: Range,
    /// Bytes loaded.
    pub loaded: Range,
    pub stores: Range,
    /// Bytes stored.
    pub stored: Range,
}

/// Counts of some passages of a region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passages {
    pub number: u64,
    /// Instructions at user addresses. One that faults counts each time it is begun.
    pub instructions: Range,
    /// Instructions at kernel addresses.
    pub kernel: Range,
    /// All accesses, to RAM and to devices.
    pub memory: Accesses,
    /// Accesses to each device touched, by name.
    pub devices: Vec<(String, Accesses)>,
}

impl Passages {
    /// Accesses to the first device with a name that ends in `name`; none if it was not accessed.
    pub fn device(&self, end: &str) -> Accesses {
        self.devices.iter().find(|(name, _)| name.ends_with(end)).map(|(_, accesses)| *accesses).unwrap_or_default()
    }
}

/// Counts of one region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionCounts {
    pub region: Region,
    /// Begins and ends without their other half.
    pub broken: u64,
    /// Passages in which the kernel did not run: nothing but the guest program's own instructions.
    pub alone: Passages,
    /// Passages with a system call, a fault or an interrupt in them, whatever else then ran on the processor included.
    /// The least of them is what the region's own system calls need.
    pub with_kernel: Passages,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub regions: Vec<RegionCounts>,
}

/// Why a text is no table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The line, from 1.
    pub line: usize,
    pub found: String,
    pub expected: &'static str,
}

impl Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} of the table of counts is {:?}: expected {}", self.line, self.found, self.expected)
    }
}

impl core::error::Error for ParseError {}

const HEADER: [&str; 10] =
    ["region", "passages", "broken", "instructions", "kernel", "loads", "loaded", "stores", "stored", "device"];
/// Printed for a number that a device has not, and for the device of a whole region.
const NONE: &str = "-";

/// A device's name as one line can carry it and give it back.
fn printable(name: &str) -> String {
    let name: String = name.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    let name = name.trim();
    if name.is_empty() || name == NONE { "?".to_owned() } else { name.to_owned() }
}

/// The passages of the last line, and their region.
fn last(regions: &mut [RegionCounts]) -> Option<(Region, &mut Passages)> {
    let counts = regions.last_mut()?;
    let with_kernel = counts.with_kernel.number > 0;
    Some((counts.region, if with_kernel { &mut counts.with_kernel } else { &mut counts.alone }))
}

impl Report {
    /// The counts of one region.
    pub fn region(&self, region: Region) -> Option<&RegionCounts> {
        self.regions.iter().find(|counts| counts.region == region)
    }

    /// Reads a table that was printed.
    pub fn parse(text: &str) -> Result<Report, ParseError> {
        let mut report = Report::default();
        for (index, line) in text.lines().enumerate() {
            let wrong = |expected| ParseError { line: index + 1, found: line.to_owned(), expected };
            if index == 0 {
                if !line.split_whitespace().eq(HEADER) {
                    return Err(wrong("the names of the columns"));
                }
                continue;
            }
            let mut rest = line;
            let mut next = || {
                let from = rest.trim_start();
                let (word, tail) = from.split_once(char::is_whitespace).unwrap_or((from, ""));
                rest = tail;
                word
            };
            let words: [&str; 9] = core::array::from_fn(|_| next());
            let device = rest.trim();
            let number = |at: usize| words[at].parse().map_err(|_| wrong("a number"));
            let range = |at: usize| Range::parse(words[at]).ok_or_else(|| wrong("a number, or LEAST..MOST"));
            let region = words[0].parse().map_err(|_| wrong("the number of a region"))?;
            let memory = Accesses { loads: range(5)?, loaded: range(6)?, stores: range(7)?, stored: range(8)? };
            if device != NONE {
                match last(&mut report.regions) {
                    Some((above, passages)) if above == region && !device.is_empty() => {
                        passages.devices.push((device.to_owned(), memory));
                    }
                    _ => return Err(wrong("a device of the region above")),
                }
                continue;
            }
            let passages = Passages {
                number: number(1)?,
                instructions: range(3)?,
                kernel: range(4)?,
                memory,
                devices: Vec::new(),
            };
            let broken = number(2)?;
            if report.regions.last().is_none_or(|last| last.region != region) {
                report.regions.push(RegionCounts { region, broken, ..RegionCounts::default() });
            }
            let Some(counts) = report.regions.last_mut() else { continue };
            let place = if passages.kernel.most > 0 { &mut counts.with_kernel } else { &mut counts.alone };
            *place = passages;
        }
        Ok(report)
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = alloc::vec![HEADER.map(ToOwned::to_owned).to_vec()];
        for r in &self.regions {
            for passages in [&r.alone, &r.with_kernel] {
                // A region that was only ever broken still has its line.
                let only_broken = core::ptr::eq(passages, &r.alone) && r.with_kernel.number == 0;
                if passages.number == 0 && !only_broken {
                    continue;
                }
                let Passages { number, instructions, kernel, memory, devices } = passages;
                let mut line = |instructions: &dyn Display, kernel: &dyn Display, a: &Accesses, device: &str| {
                    let region: [&dyn Display; 5] = [&r.region, number, &r.broken, instructions, kernel];
                    let accesses: [&dyn Display; 5] = [&a.loads, &a.loaded, &a.stores, &a.stored, &device];
                    lines.push(region.into_iter().chain(accesses).map(ToString::to_string).collect::<Vec<_>>());
                };
                line(instructions, kernel, memory, NONE);
                devices.iter().for_each(|(name, accesses)| line(&NONE, &NONE, accesses, &printable(name)));
            }
        }
        let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
        let widths: [usize; 9] = core::array::from_fn(width);
        for line in &lines {
            for (word, width) in line.iter().zip(widths) {
                write!(f, "{word:>width$} ")?;
            }
            writeln!(f, "{}", line[9])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let one = Accesses { stores: Range::exactly(1), stored: Range::exactly(8), ..Accesses::default() };
        let alone = Passages {
            number: 19,
            instructions: Range::exactly(1),
            memory: one,
            devices: alloc::vec![("vfio-user:/run/a  b/hib0 BAR 4".into(), one)],
            ..Passages::default()
        };
        let with_kernel = Passages { number: 1, kernel: Range { least: 5, most: 2715 }, ..alone.clone() };
        Report {
            regions: alloc::vec![
                RegionCounts { region: 1, broken: 1, ..RegionCounts::default() },
                RegionCounts { region: 2, broken: 0, alone, with_kernel: with_kernel.clone() },
                RegionCounts { region: 12, with_kernel, ..RegionCounts::default() },
            ],
        }
    }

    #[test]
    fn the_table_is_for_people() {
        let expected = "\
region passages broken instructions  kernel loads loaded stores stored device
     1        0      1            0       0     0      0      0      0 -
     2       19      0            1       0     0      0      1      8 -
     2       19      0            -       -     0      0      1      8 vfio-user:/run/a  b/hib0 BAR 4
     2        1      0            1 5..2715     0      0      1      8 -
     2        1      0            -       -     0      0      1      8 vfio-user:/run/a  b/hib0 BAR 4
    12        1      0            1 5..2715     0      0      1      8 -
    12        1      0            -       -     0      0      1      8 vfio-user:/run/a  b/hib0 BAR 4
";
        assert_eq!(report().to_string(), expected);
    }

    #[test]
    fn the_table_is_read_back() {
        assert_eq!(Report::parse(&report().to_string()), Ok(report()));
        assert_eq!(Report::parse(&Report::default().to_string()), Ok(Report::default()));
        assert_eq!(Report::parse(""), Ok(Report::default()));
        assert_eq!(report().region(12).map(|r| r.with_kernel.device("BAR 4").stores), Some(Range::exactly(1)));
    }

    #[test]
    fn names_that_would_break_the_table_do_not() {
        for (name, shown) in [("a\nb", "a?b"), ("-", "?"), ("  ", "?"), ("", "?"), ("\t x ", "? x")] {
            let mut report = report();
            report.regions[1].alone.devices[0].0 = name.into();
            let read = Report::parse(&report.to_string()).unwrap();
            assert_eq!(read.regions[1].alone.devices[0].0, shown, "{name:?}");
        }
    }

    #[test]
    fn what_is_no_table_is_named_by_line() {
        let header = HEADER.join(" ");
        for (text, line, expected) in [
            ("something else".to_owned(), 1, "columns"),
            (alloc::format!("{header}\nx 1 0 0 0 0 0 0 0 -"), 2, "number of a region"),
            (alloc::format!("{header}\n1 1 0 0..x 0 0 0 0 0 -"), 2, "LEAST..MOST"),
            (alloc::format!("{header}\n1 1 0 0 0 0 0 0 0 -\n2 1 0 - - 0 0 0 0 dev"), 3, "region above"),
            (alloc::format!("{header}\n1 1 0"), 2, "a number"),
        ] {
            let error = Report::parse(&text).unwrap_err();
            assert_eq!(error.line, line, "{text}");
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
