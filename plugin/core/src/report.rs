// SPDX-License-Identifier: MIT OR Apache-2.0
//! What has been counted, as values and as a table.
//!
//! The table has one line for each region and below it one for each device touched in it, e.g.
//!
//! ```text
//! region passages broken instructions kernel loads loaded stores stored device
//!      2       20      0            1      0     0      0      1      8 -
//!      2       20      0            -      -     0      0      1      8 vfio-user:hib0 BAR 4
//! ```
//!
//! `instructions` and `kernel` are those at user and kernel addresses; `loads` and `stores` are accesses, `loaded` and
//! `stored` their bytes, of the whole region (device `-`, RAM included) or of one device. Numbers are per passage; if
//! passages differ, the least and the most: `3..17`.

use crate::Region;
use alloc::borrow::ToOwned;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

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

impl fmt::Display for Range {
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
    /// Loads.
    pub loads: Range,
    /// Bytes loaded.
    pub loaded: Range,
    /// Stores.
    pub stores: Range,
    /// Bytes stored.
    pub stored: Range,
}

/// Counts of one region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionCounts {
    /// Its number.
    pub region: Region,
    /// Times it was passed and counted.
    pub passages: u64,
    /// Times it was passed and not counted.
    pub broken: u64,
    /// Instructions at user addresses. One that faults counts each time it is begun.
    pub instructions: Range,
    /// Instructions at kernel addresses.
    pub kernel: Range,
    /// All accesses, to RAM and to devices.
    pub memory: Accesses,
    /// Accesses to each device touched, by name.
    pub devices: Vec<(String, Accesses)>,
}

impl RegionCounts {
    /// Accesses to devices whose names end so; none if there is no such device, the first one's if there are several.
    pub fn device(&self, end: &str) -> Accesses {
        self.devices.iter().find(|(name, _)| name.ends_with(end)).map(|(_, accesses)| *accesses).unwrap_or_default()
    }
}

/// What has been counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Its regions, by number.
    pub regions: Vec<RegionCounts>,
}

/// Why a text is no table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The line, from 1.
    pub line: usize,
    /// What it says.
    pub found: String,
    /// What was expected there.
    pub expected: &'static str,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} of the table of counts is {:?}: expected {}", self.line, self.found, self.expected)
    }
}

impl core::error::Error for ParseError {}

const HEADER: [&str; 10] =
    ["region", "passages", "broken", "instructions", "kernel", "loads", "loaded", "stores", "stored", "device"];
/// Stands for a number that a device has not, and for the device of a whole region.
const NONE: &str = "-";

/// A device's name as one line can carry it and give it back.
fn printable(name: &str) -> String {
    let name: String = name.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    let name = name.trim();
    if name.is_empty() || name == NONE { "?".to_owned() } else { name.to_owned() }
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
            if device == NONE {
                report.regions.push(RegionCounts {
                    region,
                    passages: number(1)?,
                    broken: number(2)?,
                    instructions: range(3)?,
                    kernel: range(4)?,
                    memory,
                    devices: Vec::new(),
                });
                continue;
            }
            match report.regions.last_mut() {
                Some(last) if last.region == region && !device.is_empty() => {
                    last.devices.push((device.to_owned(), memory));
                }
                _ => return Err(wrong("a device of the region above")),
            }
        }
        Ok(report)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = alloc::vec![HEADER.map(ToOwned::to_owned)];
        for r in &self.regions {
            let line = |instructions: String, kernel: String, a: &Accesses, device: String| {
                [
                    r.region.to_string(),
                    r.passages.to_string(),
                    r.broken.to_string(),
                    instructions,
                    kernel,
                    a.loads.to_string(),
                    a.loaded.to_string(),
                    a.stores.to_string(),
                    a.stored.to_string(),
                    device,
                ]
            };
            lines.push(line(r.instructions.to_string(), r.kernel.to_string(), &r.memory, NONE.to_owned()));
            for (name, accesses) in &r.devices {
                lines.push(line(NONE.to_owned(), NONE.to_owned(), accesses, printable(name)));
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
        Report {
            regions: alloc::vec![
                RegionCounts { region: 1, passages: 20, ..RegionCounts::default() },
                RegionCounts {
                    region: 12,
                    passages: 20,
                    broken: 1,
                    instructions: Range::exactly(1),
                    kernel: Range { least: 0, most: 2715 },
                    memory: one,
                    devices: alloc::vec![("vfio-user:/run/a  b/hib0 BAR 4".into(), one)],
                },
            ],
        }
    }

    #[test]
    fn the_table_is_for_people() {
        let expected = "\
region passages broken instructions  kernel loads loaded stores stored device
     1       20      0            0       0     0      0      0      0 -
    12       20      1            1 0..2715     0      0      1      8 -
    12       20      1            -       -     0      0      1      8 vfio-user:/run/a  b/hib0 BAR 4
";
        assert_eq!(report().to_string(), expected);
    }

    #[test]
    fn the_table_is_read_back() {
        assert_eq!(Report::parse(&report().to_string()), Ok(report()));
        assert_eq!(Report::parse(&Report::default().to_string()), Ok(Report::default()));
        assert_eq!(Report::parse(""), Ok(Report::default()));
        assert_eq!(report().region(12).map(|r| r.device("BAR 4").stores), Some(Range::exactly(1)));
    }

    #[test]
    fn names_that_would_break_the_table_do_not() {
        for (name, shown) in [("a\nb", "a?b"), ("-", "?"), ("  ", "?"), ("", "?"), ("\t x ", "? x")] {
            let mut report = report();
            report.regions[1].devices[0].0 = name.into();
            let read = Report::parse(&report.to_string()).unwrap();
            assert_eq!(read.regions[1].devices[0].0, shown, "{name:?}");
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
