// SPDX-License-Identifier: MIT OR Apache-2.0
//! Feeds the captured events to switches and compares what they do.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use telegraphos_fabric_core::{Action, Event, PortId, Snapshot, Switch, SwitchConfig};
use telegraphos_wire::link::Frame;

use crate::ports::Ports;
use crate::{Captured, Direction, Link, ReadError, Reader, Record, SwitchId};

/// Limit on the length of a state, in bytes.
const MAX_STATE: usize = 256 << 20;

/// An action, as far as captures have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    Send(PortId, Frame),
    Close(PortId),
    /// A `Diagnostic`, as `Debug` writes it.
    Notice(String),
}

impl Said {
    fn of(action: Action) -> Said {
        match action {
            Action::Send(port, frame) => Said::Send(port, frame),
            Action::Close(port) => Said::Close(port),
            Action::Diagnostic(notice) => Said::Notice(format!("{notice:?}")),
        }
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Said::Send(port, frame) => write!(f, "{frame:?} to port {port}"),
            Said::Close(port) => write!(f, "close port {port}"),
            Said::Notice(text) => write!(f, "notice {text}"),
        }
    }
}

/// Something that a switch does otherwise than was captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The record that was expected; of something that was not, the event's.
    pub index: u64,
    /// The event that it answers.
    pub event: u64,
    /// Microseconds of the fabric's clock.
    pub time: u64,
    pub switch: SwitchId,
    pub link: Link,
    pub expected: Option<Said>,
    /// What the switch does now.
    pub found: Option<Said>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.time / 1_000_000, self.time % 1_000_000);
        write!(f, "record {} (event {}), {seconds}.{micros:06} s, {}", self.index, self.event, self.link)?;
        if self.link != Link::Switch(self.switch) {
            write!(f, " of switch {}", self.switch)?;
        }
        let side = |said: &Option<Said>| said.as_ref().map_or("nothing".into(), Said::to_string);
        write!(f, "\n  expected {}\n  found    {}", side(&self.expected), side(&self.found))
    }
}

/// Where a replay came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// At the end that the capture says it has.
    Whole,
    /// At the end of the file, which was not ended: its process was, or a limit was reached.
    Open,
    /// Where the file is cut off or damaged.
    Broken(ReadError),
    Gap {
        /// The record that says so.
        index: u64,
        missing: u64,
    },
}

/// What came of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// Switches of the capture.
    pub switches: usize,
    pub events: u64,
    pub actions: u64,
    pub differences: u64,
    pub ended: Ended,
}

/// Why a capture cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    #[error("{0}")]
    Read(#[from] ReadError),
    /// It has only some links.
    #[error("a capture of only some links cannot be replayed: this one has {0}; capture without --capture-link")]
    SomeLinks(String),
    /// A frame is not whole.
    #[error("record {index} has only {kept} of {length} bytes: a capture with a snap length cannot be replayed")]
    Snapped {
        index: u64,
        /// Bytes captured.
        kept: usize,
        /// Bytes it had.
        length: u32,
    },
    /// A record is none.
    #[error("record {index} cannot be replayed: {why}")]
    Record { index: u64, why: String },
    /// It began amid traffic, and what a switch knew then is not in it.
    #[error(
        "this capture began while the fabric was running, and the state that switch {0} had then is not in it (a limit was reached, or an \
         older version wrote it): capture again"
    )]
    Late(SwitchId),
    /// The state in it is impossible, or not for this version.
    #[error("the state of switch {switch} in the capture: {why}")]
    State { switch: SwitchId, why: String },
    /// The configuration in it is impossible, or not for this version.
    #[error("the configuration in the capture: {0}")]
    Config(String),
}

/// One switch, the event that it was fed last, and what is to be compared.
struct Replayed {
    switch: Switch,
    /// The pieces of its state that have been read; `None`: it has it.
    state: Option<String>,
    ports: Ports,
    event: Option<(u64, u64)>,
    expected: Vec<(u64, Link, Said)>,
    found: Vec<Action>,
}

/// Replays the capture `file` and calls `report` with each difference.
///
/// # Errors
/// The capture cannot be read, or not be replayed.
pub fn replay(file: &Path, report: impl FnMut(&Difference)) -> Result<Replay, ReplayError> {
    replay_with(file, |_| {}, report)
}

/// The same with configurations that `change` has changed: what would another configuration have done?
pub fn replay_with(
    file: &Path,
    change: impl Fn(&mut SwitchConfig),
    mut report: impl FnMut(&Difference),
) -> Result<Replay, ReplayError> {
    let mut reader = Reader::open(file)?;
    if !reader.links().is_empty() {
        return Err(ReplayError::SomeLinks(reader.links().join(", ")));
    }
    let mut switches = BTreeMap::new();
    let late = reader.header().late;
    for (id, mut config) in reader.header().configs().map_err(ReplayError::Config)? {
        change(&mut config);
        let ports = Ports::new(id, &config);
        let switch = Switch::new(config).map_err(|e| ReplayError::Config(format!("switch {id}: {e}")))?;
        let replayed = Replayed {
            switch,
            state: late.then(String::new),
            ports,
            event: None,
            expected: Vec::new(),
            found: Vec::new(),
        };
        switches.insert(id, replayed);
    }
    let mut outcome = Replay { switches: switches.len(), events: 0, actions: 0, differences: 0, ended: Ended::Open };
    outcome.ended = loop {
        let captured = match reader.next_record() {
            Ok(Some(captured)) => captured,
            Ok(None) => break Ended::Open,
            Err(e) => break Ended::Broken(e),
        };
        let (index, id) = (captured.index, captured.switch);
        let wrong = |why: String| ReplayError::Record { index, why };
        let Some(replayed) = switches.get_mut(&id) else {
            return Err(wrong(format!("it belongs to switch {id}, whose configuration is not in the capture")));
        };
        match happening(captured)? {
            Happening::State(more, text) => replayed.restore(id, more, &text)?,
            Happening::Event(..) | Happening::Action(..) if replayed.state.is_some() => {
                return Err(ReplayError::Late(id));
            }
            Happening::Event(time, event) => {
                replayed.settle(id, true, &mut outcome, &mut report);
                replayed.ports.before(&event);
                replayed.event = Some((index, time));
                replayed.switch.handle(event, &mut replayed.found);
                outcome.events += 1;
            }
            Happening::Action(link, said) => {
                if replayed.event.is_none() {
                    return Err(wrong("it is an action before any event".into()));
                }
                replayed.expected.push((index, link, said));
            }
            Happening::Gap(missing) => break Ended::Gap { index, missing },
            Happening::End => break Ended::Whole,
            Happening::Nothing => {}
        }
    };
    if let Some((id, _)) = switches.iter().find(|(_, replayed)| replayed.state.is_some()) {
        return Err(ReplayError::Late(*id));
    }
    // Where the capture breaks off, the last actions may be missing.
    let whole = outcome.ended == Ended::Whole;
    for (id, replayed) in &mut switches {
        replayed.settle(*id, whole, &mut outcome, &mut report);
    }
    Ok(outcome)
}

enum Happening {
    Event(u64, Event),
    Action(Link, Said),
    State(u32, String),
    Gap(u64),
    End,
    Nothing,
}

fn happening(captured: Captured) -> Result<Happening, ReplayError> {
    let Captured { index, time, link, direction, port, bytes, length, .. } = captured;
    if bytes.len() < length as usize {
        return Err(ReplayError::Snapped { index, kept: bytes.len(), length });
    }
    let wrong = |why: String| ReplayError::Record { index, why };
    if !Record::is_record(&bytes) {
        let frame = match Frame::decode(&bytes) {
            Ok(Some((frame, used))) if used == bytes.len() => frame,
            Ok(_) => return Err(wrong(format!("{} bytes are not one whole frame", bytes.len()))),
            Err(e) => return Err(wrong(e.to_string())),
        };
        let port = port.ok_or_else(|| wrong("a frame without the number of its port (epb_queue)".into()))?;
        return match direction {
            Direction::Inbound => Ok(Happening::Event(time, Event::Frame { port, frame })),
            Direction::Outbound => Ok(Happening::Action(link, Said::Send(port, frame))),
            Direction::None => Err(wrong("a frame that went neither in nor out (epb_flags)".into())),
        };
    }
    Ok(match Record::decode(&bytes).map_err(|e| wrong(e.to_string()))? {
        Record::Event(event, _) => Happening::Event(time, event),
        Record::Close(port) => Happening::Action(link, Said::Close(port)),
        Record::Notice(text) => Happening::Action(link, Said::Notice(text)),
        Record::Gap(missing) => Happening::Gap(missing),
        Record::End(_) => Happening::End,
        Record::State { more, text } => Happening::State(more, text),
        Record::Comment(_) => Happening::Nothing,
    })
}

/// Adds a piece of a state, of which a file may take up to `most` bytes of memory.
fn append(state: &mut String, text: &str, most: usize) -> Result<(), String> {
    if state.len() + text.len() > most {
        return Err(format!("it is longer than {most} bytes"));
    }
    state.push_str(text);
    Ok(())
}

impl Replayed {
    /// A piece of the state that the switch had when the capture began.
    fn restore(&mut self, id: SwitchId, more: u32, text: &str) -> Result<(), ReplayError> {
        let wrong = |why: String| ReplayError::State { switch: id, why };
        let Some(state) = &mut self.state else {
            return Err(wrong("expected none, for it has one".into()));
        };
        append(state, text, MAX_STATE).map_err(wrong)?;
        if more == 0 {
            let snapshot: Snapshot = serde_json::from_str(state).map_err(|e| wrong(e.to_string()))?;
            self.switch = Switch::restore(self.switch.config().clone(), snapshot).map_err(wrong)?;
            for (attached, port, _) in self.switch.open_ports() {
                self.ports.attached(port, attached);
            }
            self.state = None;
        }
        Ok(())
    }

    /// Compares what the last event was answered with. If not `whole`, captured actions may be missing at the end.
    fn settle(&mut self, switch: SwitchId, whole: bool, outcome: &mut Replay, report: &mut impl FnMut(&Difference)) {
        let Some((event, time)) = self.event.take() else { return };
        let mut expected = std::mem::take(&mut self.expected);
        let mut found: Vec<Said> = self.found.drain(..).map(Said::of).collect();
        if !whole {
            found.truncate(expected.len());
        }
        outcome.actions += expected.len() as u64;
        // One that is too many or too few shall not make all behind it differ.
        let pairs = |(one, other): &(&(u64, Link, Said), &Said)| one.2 == **other;
        let begin = expected.iter().zip(&found).take_while(pairs).count();
        let end = expected[begin..].iter().rev().zip(found[begin..].iter().rev()).take_while(pairs).count();
        expected.truncate(expected.len() - end);
        found.truncate(found.len() - end);
        let (mut expected, mut found) = (expected.drain(begin..), found.drain(begin..));
        loop {
            let (expected, found) = (expected.next(), found.next());
            let (index, link) = match (&expected, &found) {
                (None, None) => return,
                (Some((index, link, _)), _) => (*index, *link),
                (None, Some(Said::Send(port, _) | Said::Close(port))) => (event, self.ports.link(*port)),
                (None, Some(Said::Notice(_))) => (event, Link::Switch(switch)),
            };
            let expected = expected.map(|(_, _, said)| said);
            if expected == found {
                continue;
            }
            outcome.differences += 1;
            report(&Difference { index, event, time, switch, link, expected, found });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::append;

    #[test]
    fn a_file_takes_so_much_memory_for_a_state_and_no_more() {
        let mut state = String::new();
        assert_eq!(append(&mut state, "123456", 8), Ok(()));
        assert_eq!(append(&mut state, "789", 8), Err("it is longer than 8 bytes".into()));
        assert_eq!(append(&mut state, "78", 8), Ok(()));
        assert_eq!(state, "12345678");
    }
}
