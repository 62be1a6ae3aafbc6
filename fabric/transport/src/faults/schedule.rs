// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults that come and go at given times, from a file.

use serde::Deserialize;
use toml::Spanned;

use super::plan::duration;
use super::{FaultPlan, Faults, UnknownLink};

/// A change at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduled {
    /// Microseconds after the start.
    pub at: u64,
    /// The links it concerns, by name; `*` is all.
    pub links: Vec<String>,
    /// What is wrong with them from then on.
    pub plan: FaultPlan,
}

/// Changes in the order of time. Its text is TOML:
///
/// ```toml
/// [[event]]
/// at = "5s"
/// link = "a-b"            # or a list of names, or "*"
/// set = "loss=5% down"
///
/// [[event]]
/// at = "10s"
/// link = "a-b"
/// clear = true
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    events: Vec<Scheduled>,
    /// The first that has not been made.
    next: usize,
}

/// Text that is no [`Schedule`]: says line, value and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("faults file: {0}")]
pub struct ScheduleError(String);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    event: Vec<Spanned<Event>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Event {
    at: String,
    link: Links,
    set: Option<String>,
    clear: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected the name of a link, a list of names, or \"*\"")]
enum Links {
    One(String),
    Many(Vec<String>),
}

impl Schedule {
    /// Reads a schedule.
    pub fn parse(text: &str) -> Result<Schedule, ScheduleError> {
        let file: File = toml::from_str(text).map_err(|e| ScheduleError(e.to_string().trim_end().to_owned()))?;
        let mut events = Vec::new();
        for event in file.event {
            let line = 1 + text.bytes().take(event.span().start).filter(|byte| *byte == b'\n').count();
            let wrong = |why: String| ScheduleError(format!("event at line {line}: {why}"));
            let Event { at, link, set, clear } = event.into_inner();
            let plan = match (set, clear) {
                (Some(set), None) => set.parse().map_err(|e: super::PlanError| wrong(format!("set = {set:?}: {e}")))?,
                (None, Some(true)) => FaultPlan::default(),
                (Some(_), Some(_)) => return Err(wrong("it has set and clear: leave one".to_owned())),
                (None, _) => {
                    return Err(wrong("it changes nothing: expected set = \"...\" or clear = true".to_owned()));
                }
            };
            let time = "a time from the start, such as \"5s\" or \"500ms\"";
            let at = duration(&at).ok_or_else(|| wrong(format!("at = {at:?}: expected {time}")))?;
            let links = match link {
                Links::One(name) => vec![name],
                Links::Many(names) => names,
            };
            if links.is_empty() || links.iter().any(String::is_empty) {
                return Err(wrong("link: it names no link".to_owned()));
            }
            events.push(Scheduled { at, links, plan });
        }
        // A stable sort: changes at the same time stay in the order of the file.
        events.sort_by_key(|event| event.at);
        Ok(Schedule { events, next: 0 })
    }

    /// When the next change is made, in microseconds after the start.
    pub fn deadline(&self) -> Option<u64> {
        self.events.get(self.next).map(|event| event.at)
    }

    /// Makes the changes up to `elapsed` microseconds after the start. Returns them, and the names that no link has.
    pub fn apply(&mut self, elapsed: u64, faults: &Faults) -> (&[Scheduled], Vec<UnknownLink>) {
        let first = self.next;
        let mut unknown = Vec::new();
        while let Some(event) = self.events.get(self.next).filter(|event| event.at <= elapsed) {
            unknown.extend(event.links.iter().filter_map(|name| faults.set(name, event.plan).err()));
            self.next += 1;
        }
        (&self.events[first..self.next], unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_happen_when_they_are_due() {
        let text = r#"
[[event]]
at = "10s"
link = ["a-b", "b-c"]
clear = true

[[event]]
at = "5s"
link = "*"
set = "down"

[[event]]
at = "5s"
link = "b-c"
set = "loss=5%"
"#;
        let mut schedule = Schedule::parse(text).unwrap();
        let faults = Faults::new(1);
        let (ab, bc) = (faults.link("a-b"), faults.link("b-c"));
        assert_eq!(schedule.deadline(), Some(5_000_000));
        assert_eq!(schedule.apply(4_999_999, &faults), (&[][..], vec![]));
        assert_eq!(schedule.apply(5_000_000, &faults).0.len(), 2);
        assert!(ab.plan().down && !bc.plan().down && bc.plan() == "loss=5%".parse().unwrap());
        assert_eq!(schedule.deadline(), Some(10_000_000));
        schedule.apply(u64::MAX, &faults);
        assert_eq!((ab.plan(), bc.plan()), Default::default());
        assert_eq!(schedule.deadline(), None);
    }

    #[test]
    fn a_missing_link_is_named_and_the_others_are_changed() {
        let text = "[[event]]\nat = \"1us\"\nlink = [\"x\", \"a\"]\nset = \"down\"\n";
        let faults = Faults::new(1);
        faults.link("a");
        let mut schedule = Schedule::parse(text).unwrap();
        let (_, unknown) = schedule.apply(1, &faults);
        assert_eq!(unknown.len(), 1);
        assert!(unknown[0].to_string().contains("\"x\"") && faults.link("a").plan().down);
    }

    #[test]
    fn errors_name_line_value_and_what_was_expected() {
        let event = |rest: &str| format!("# comment\n[[event]]\n{rest}\n");
        for (text, parts) in [
            (event("at = \"5s\"\nlink = \"a\""), ["line 2", "set = "]),
            (event("at = \"5s\"\nlink = \"a\"\nset = \"los=5%\""), ["line 2", "los=5%"]),
            (event("at = \"5\"\nlink = \"a\"\nclear = true"), ["line 2", "at = \"5\": expected a time"]),
            (event("at = \"5s\"\nlink = \"a\"\nset = \"down\"\nclear = true"), ["line 2", "leave one"]),
            (event("at = \"5s\"\nlink = []\nset = \"down\""), ["line 2", "names no link"]),
            (event("at = \"5s\"\nlink = 7\nset = \"down\""), ["line 4", "the name of a link, a list of names"]),
            (event("link = \"a\"\nset = \"down\""), ["line 2", "`at`"]),
            (event("at = \"5s\"\nlinks = \"a\""), ["line 4", "`links`"]),
            ("event = 3".to_owned(), ["line 1", "expected"]),
            ("[[event]".to_owned(), ["line 1", "faults file"]),
        ] {
            let error = Schedule::parse(&text).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{text}\n{error}");
        }
        assert_eq!(Schedule::parse("").unwrap().events, []);
    }
}
