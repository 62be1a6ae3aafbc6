// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes what goes into switches and what comes out.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::PathBuf;

use telegraphos_fabric_core::{Action, Event, PortId, Switch, SwitchConfig};
use telegraphos_wire::link::{Frame, HEAD_LEN};

use crate::config::Header;
use crate::pcapng::{self, Direction, Packet};
use crate::ports::Ports;
use crate::sink::{Pushed, Sink};
use crate::{Link, Record, SwitchId};

/// Bytes of what was no frame that are kept.
const MAX_MALFORMED: usize = 4096;
/// Bytes of a switch's state in one record.
const PIECE: usize = 32 << 10;
/// Bytes kept for the last words of a capture with a limit.
const LAST_WORDS: u64 = 256;
/// The smallest limit that leaves room for the header of any fabric without a topology.
const MIN_LIMIT: u64 = 4096;

/// What to capture, and where to.
#[derive(Clone, Debug, Default)]
pub struct CaptureOptions {
    /// The file; one that exists is emptied, unless it must be new. A named pipe needs a reader first.
    pub file: PathBuf,
    /// Refuse a file that exists: for commands over the control socket (`telegraphos ctl`).
    pub new: bool,
    /// The links to capture; none means all. Only a capture of all can be replayed.
    pub links: Vec<Link>,
    /// Bytes after which the capture stops.
    pub limit: Option<u64>,
    /// Bytes kept of each frame; `None`: all. What is cut off cannot be replayed.
    pub snap: Option<u32>,
    /// Microseconds since 1970 of the time 0 of the events.
    pub epoch: i64,
    /// The switches have handled events before: their states must follow, see [`Recorder::state`].
    pub late: bool,
}

/// Why a capture was not begun.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The file cannot be made.
    #[error("cannot create the capture {}: {source}; give --capture a file in a directory that exists and is writable{}",
        file.display(), if source.raw_os_error() == Some(6) { "; a named pipe must be opened by its reader first" } else { "" })]
    Create { file: PathBuf, source: io::Error },
    /// An option that cannot be for these switches, or their configuration cannot be written down.
    #[error("{0}")]
    Refused(String),
}

/// Why a capture stopped before its end. The fabric continues.
#[derive(Debug, thiserror::Error)]
pub enum Stopped {
    /// The file cannot be written any more.
    #[error("cannot write the capture {} beyond {offset} bytes: {source}; it ends there and can be read, the fabric continues without; \
        make room or take --capture-limit, then start again", file.display())]
    Write {
        file: PathBuf,
        /// Bytes that are in it.
        offset: u64,
        source: io::Error,
    },
    /// It has reached its limit.
    #[error("the capture {} has reached its limit of {limit} bytes and ends there; the fabric continues without", file.display())]
    Limit {
        file: PathBuf,
        /// The limit.
        limit: u64,
    },
    /// The last bytes were not taken in time.
    #[error("the reader of the capture {} does not take its end; it ends after {offset} bytes", file.display())]
    Slow {
        file: PathBuf,
        /// Bytes that are in it.
        offset: u64,
    },
}

/// Counters of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureStatistics {
    /// Frames and records given to the file.
    pub records: u64,
    /// Bytes given to the file.
    pub bytes: u64,
    /// Frames and records left out because the file could not take them fast enough.
    pub missing: u64,
    /// Frames and records left out after the capture had stopped.
    pub after_stop: u64,
    /// 1 once the capture has stopped before its end.
    pub stopped: u64,
}

/// Where, when and which way something happened.
#[derive(Clone, Copy)]
struct Place {
    switch: SwitchId,
    link: Link,
    now: u64,
    direction: Direction,
}

/// A capture in the making. None of its methods waits for the file but [`finish`](Recorder::finish), and none fails:
/// see [`stopped`](Recorder::stopped).
#[derive(Debug)]
pub struct Recorder {
    options: CaptureOptions,
    filter: Option<HashSet<Link>>,
    sink: Sink,
    /// The same node may call at two switches.
    interfaces: HashMap<(SwitchId, Link), u32>,
    switches: BTreeMap<SwitchId, Ports>,
    /// Left out since the last record that was taken.
    gap: u64,
    statistics: CaptureStatistics,
    reached_limit: bool,
    /// Reused between records.
    frame: Vec<u8>,
    blocks: Vec<u8>,
}

impl Recorder {
    /// Begins a capture of these switches of one topology.
    pub fn create(options: CaptureOptions, switches: &[(SwitchId, &SwitchConfig)]) -> Result<Recorder, CaptureError> {
        let least = [("limit", options.limit, MIN_LIMIT), ("snap", options.snap.map(u64::from), HEAD_LEN as u64)];
        for (name, value, least) in least {
            if let Some(value) = value.filter(|value| *value < least) {
                let why = format!("--capture-{name} is {value}: expected at least {least} bytes");
                return Err(CaptureError::Refused(why));
            }
        }
        for link in &options.links {
            check_link(*link, switches)?;
        }
        let links = options.links.iter().map(Link::to_string).collect();
        let header = Header::new(options.epoch, links, options.late, switches);
        let header = header
            .to_text()
            .map_err(|e| CaptureError::Refused(format!("cannot write down the configuration in the capture: {e}")))?;
        let sink = Sink::open(&options.file, options.new)
            .map_err(|source| CaptureError::Create { file: options.file.clone(), source })?;
        let mut recorder = Recorder {
            filter: (!options.links.is_empty()).then(|| options.links.iter().copied().collect()),
            options,
            sink,
            interfaces: HashMap::new(),
            switches: switches.iter().map(|(id, config)| (*id, Ports::new(*id, config))).collect(),
            gap: 0,
            statistics: CaptureStatistics::default(),
            reached_limit: false,
            frame: Vec::new(),
            blocks: Vec::new(),
        };
        pcapng::section_header(&mut recorder.blocks, concat!("telegraphos ", env!("CARGO_PKG_VERSION")), &header);
        recorder.statistics.bytes = recorder.blocks.len() as u64;
        recorder.sink.push(&recorder.blocks);
        // So that the interfaces are there, in order, even if nothing happens on them.
        for (id, _) in switches {
            recorder.say(*id, 0, &Record::Comment(format!("capture of switch {id} begins")));
        }
        Ok(recorder)
    }

    /// The state of a switch that has handled events before the capture began, between two events: with it a replay
    /// continues. A capture that cannot be replayed anyway goes without.
    pub fn state(&mut self, id: SwitchId, switch: &Switch, now: u64) {
        let Some(ports) = self.switches.get_mut(&id) else { return };
        for (attached, port, _) in switch.open_ports() {
            ports.attached(port, attached);
        }
        if self.filter.is_some() || self.options.snap.is_some() {
            return;
        }
        match serde_json::to_string(&switch.snapshot()) {
            Ok(text) => {
                // Of ASCII only: every place is one to cut at.
                let pieces = text.as_bytes().chunks(PIECE);
                let mut more = pieces.len() as u32;
                for piece in pieces {
                    more -= 1;
                    let text = String::from_utf8_lossy(piece).into_owned();
                    self.say(id, now, &Record::State { more, text });
                }
            }
            // It is of numbers and texts, so this is not reached; the replay would say that the state is missing.
            Err(e) => self.say(id, now, &Record::Comment(format!("the state cannot be written down: {e}"))),
        }
    }

    /// An event, before the switch handles it at `now` (microseconds).
    pub fn event(&mut self, switch: SwitchId, event: &Event, now: u64) {
        let Some(ports) = self.switches.get_mut(&switch) else { return };
        let place = Place { switch, link: ports.before(event), now, direction: Direction::Inbound };
        match event {
            Event::Frame { port, frame } => self.frame(place, *port, frame),
            other => self.record(place, &Record::Event(other.clone(), Vec::new())),
        }
    }

    /// [`Event::Malformed`], with the bytes that came.
    pub fn malformed(&mut self, switch: SwitchId, port: PortId, bytes: &[u8], now: u64) {
        let Some(ports) = self.switches.get_mut(&switch) else { return };
        let event = Event::Malformed { port };
        let place = Place { switch, link: ports.before(&event), now, direction: Direction::Inbound };
        self.record(place, &Record::Event(event, bytes[..bytes.len().min(MAX_MALFORMED)].to_vec()));
    }

    /// An action that the switch has answered the last event with.
    pub fn action(&mut self, switch: SwitchId, action: &Action, now: u64) {
        let Some(ports) = self.switches.get(&switch) else { return };
        let link = match action {
            Action::Send(port, _) | Action::Close(port) => ports.link(*port),
            Action::Diagnostic(_) => Link::Switch(switch),
        };
        let place = Place { switch, link, now, direction: Direction::Outbound };
        match action {
            Action::Send(port, frame) => self.frame(place, *port, frame),
            Action::Close(port) => self.record(place, &Record::Close(*port)),
            Action::Diagnostic(notice) => self.write(place, None, usize::MAX, |bytes| {
                Record::Notice(format!("{notice:?}")).encode(bytes);
                Some(notice.to_string())
            }),
        }
    }

    /// Something worth knowing about a link, which no switch has seen: a fault, a drop.
    pub fn comment(&mut self, switch: SwitchId, link: Link, text: &str, now: u64) {
        self.record(Place { switch, link, now, direction: Direction::None }, &Record::Comment(text.to_owned()));
    }

    fn say(&mut self, switch: SwitchId, now: u64, record: &Record) {
        self.record(Place { switch, link: Link::Switch(switch), now, direction: Direction::None }, record);
    }

    fn frame(&mut self, place: Place, port: PortId, frame: &Frame) {
        let snap = self.options.snap.map_or(usize::MAX, |snap| snap as usize);
        self.write(place, Some(port), snap, |bytes| {
            frame.encode(bytes);
            None
        });
    }

    fn record(&mut self, place: Place, record: &Record) {
        self.write(place, None, usize::MAX, |bytes| {
            record.encode(bytes);
            record.describe()
        });
    }

    /// Writes what `encode` appends, at most `snap` bytes of it, with the comment that it returns.
    fn write(
        &mut self,
        place: Place,
        port: Option<PortId>,
        snap: usize,
        encode: impl FnOnce(&mut Vec<u8>) -> Option<String>,
    ) {
        let Place { switch, link, now, direction } = place;
        if self.statistics.stopped > 0 {
            self.statistics.after_stop += 1;
            return;
        }
        if self.filter.as_ref().is_some_and(|links| !links.contains(&link)) {
            return;
        }
        let time = self.options.epoch.saturating_add_unsigned(now).max(0) as u64;
        self.blocks.clear();
        let next = self.interfaces.len() as u32;
        let interface = self.interfaces.get(&(switch, link)).copied().unwrap_or(next);
        if interface == next {
            let (name, at) = (link.to_string(), Link::Switch(switch).to_string());
            pcapng::interface(&mut self.blocks, &name, &at, self.options.snap.unwrap_or(0));
        }
        if self.gap > 0 {
            let gap = Record::Gap(self.gap);
            self.frame.clear();
            gap.encode(&mut self.frame);
            let text = gap.describe();
            let about = Packet { interface, time, direction: Direction::None, port: None, comment: text.as_deref() };
            pcapng::packet(&mut self.blocks, about, &self.frame, usize::MAX);
        }
        let records = 1 + u64::from(self.gap > 0);
        self.frame.clear();
        let comment = encode(&mut self.frame);
        let about = Packet { interface, time, direction, port, comment: comment.as_deref() };
        pcapng::packet(&mut self.blocks, about, &self.frame, snap);
        let after = self.statistics.bytes + self.blocks.len() as u64;
        self.reached_limit = self.options.limit.is_some_and(|limit| after + LAST_WORDS > limit);
        let pushed = if self.reached_limit { Pushed::Failed } else { self.sink.push(&self.blocks) };
        match pushed {
            Pushed::Taken => {
                self.interfaces.insert((switch, link), interface);
                self.gap = 0;
                self.statistics.bytes = after;
                self.statistics.records += records;
            }
            Pushed::Full => {
                self.gap += 1;
                self.statistics.missing += 1;
            }
            Pushed::Failed => {
                self.statistics.stopped = 1;
                self.statistics.after_stop += 1;
            }
        }
    }

    /// Why the capture has stopped before its end, if it has; reported once. To be called now and then; worth a line of
    /// the log.
    pub fn stopped(&mut self) -> Option<Stopped> {
        let file = || self.options.file.clone();
        if let Some(failure) = self.sink.take_failure() {
            let stopped = Stopped::Write { file: file(), offset: failure.offset, source: failure.source };
            self.statistics.stopped = 1;
            return Some(stopped);
        }
        let limit = self.options.limit.filter(|_| std::mem::take(&mut self.reached_limit))?;
        Some(Stopped::Limit { file: self.options.file.clone(), limit })
    }

    pub fn statistics(&self) -> CaptureStatistics {
        self.statistics
    }

    /// Ends the capture at `now`: what waits is written, for which it waits some seconds at most.
    pub fn finish(mut self, now: u64) -> Result<CaptureStatistics, Stopped> {
        if let Some(switch) = self.switches.keys().next().copied().filter(|_| self.statistics.stopped == 0) {
            let end = Record::End(self.statistics.records);
            // The end is recorded whatever links are captured; it has room within the limit.
            self.filter = None;
            self.options.limit = None;
            self.say(switch, now, &end);
        }
        let whole = self.sink.close();
        if let Some(stopped) = self.stopped() {
            return Err(stopped);
        }
        if !whole {
            return Err(Stopped::Slow { file: self.options.file.clone(), offset: self.sink.written() });
        }
        Ok(self.statistics)
    }
}

fn check_link(link: Link, switches: &[(SwitchId, &SwitchConfig)]) -> Result<(), CaptureError> {
    let there = |id: SwitchId| switches.iter().any(|(switch, _)| *switch == id);
    let nodes = switches.iter().map(|(_, config)| config.nodes).max().unwrap_or(0);
    let ids = || switches.iter().map(|(id, _)| id.to_string()).collect::<Vec<_>>().join(", ");
    let topology = switches.iter().find_map(|(_, config)| config.part.as_ref()).map(|part| &part.topology);
    let trunk_to = |at: SwitchId, to: SwitchId| {
        topology.is_some_and(|t| t.trunks_of(at).iter().any(|trunk| t.other_end(*trunk, at) == to))
    };
    let (fits, expected) = match link {
        Link::Switch(id) => (there(id), format!("`switch:S`, S one of {}", ids())),
        Link::Trunk(at, to) => {
            (there(at) && trunk_to(at, to), format!("`trunk:A-B`, A one of {}, B joined with it", ids()))
        }
        Link::Node(node) => match topology {
            Some(t) => (t.switch_of(node).is_some_and(there), format!("`node:N`, N a node of a switch of {}", ids())),
            None => (u32::from(node) < nodes, format!("`node:N`, N below {nodes}")),
        },
    };
    let why = || format!("--capture-link {link}: no switch of this process has it; expected {expected}");
    if fits { Ok(()) } else { Err(CaptureError::Refused(why())) }
}
