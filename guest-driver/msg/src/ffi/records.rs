// SPDX-License-Identifier: MIT OR Apache-2.0
//! Structures that C fills or reads.

use super::argument;
use crate::error::Result;
use crate::options::{Options, Progress, Routing};
use std::ffi::c_char;
use telegraphos::c_record;
use telegraphos::ffi::boundary::text;
use telegraphos_msg_core::{Config, Eager, Endpoint, Pattern, Process, Received, Way};

c_record! { PROCESS, "tg_msg_process",
    /// A process of the cluster.
    pub struct ProcessRecord {
        /// The node that it runs on.
        pub node: u32,
        /// Its number there, which no later process has.
        pub number: u32,
    }
}

c_record! { ENDPOINT, "tg_msg_endpoint",
    /// A thread of a process: what messages are from and for.
    pub struct EndpointRecord {
        /// Its process.
        pub process: ProcessRecord,
        /// Its number there.
        pub thread: u32,
    }
}

c_record! { PATTERN, "tg_msg_pattern",
    /// Which messages a receive accepts. All zeros, or NULL, means: all.
    pub struct PatternRecord {
        /// Process and thread that they are from.
        pub from: EndpointRecord,
        /// Their tag.
        pub tag: u32,
        /// The fields that count, TG_MSG_MATCH_*; what is in the others may be anything.
        pub fields: u32,
    }
}

c_record! { RECEIVED, "tg_msg_received",
    /// A message that was received.
    pub struct ReceivedRecord {
        /// The thread that sent it.
        pub from: EndpointRecord,
        /// Its tag.
        pub tag: u32,
        /// Its bytes, all of them: if there was less room, the first ones are there.
        pub length: u64,
    }
}

c_record! { EAGER, "tg_msg_eager",
    /// Which messages to a process go to slots.
    pub struct EagerRecord {
        /// Bytes of the longest one, unless the other way is tried; between eager_floor and eager of the options.
        pub threshold: u64,
        /// Messages that have been measured, of those that went to slots.
        pub slots: u64,
        /// The same of those that were requests.
        pub requests: u64,
    }
}

c_record! { OPTIONS, "tg_msg_options",
    /// How to open messages; what is 0 is the default, and so is NULL. slots, block, fragments, eager and longest must
    /// be the same for all processes that talk to each other.
    pub struct OptionsRecord {
        /// Messages, or fragments of them, that one process may have at another, until the thread there has them, up to
        /// 65535; 0 means 64.
        pub slots: u32,
        /// Bytes of a message that a slot has room for; 0 means 4096.
        pub block: u32,
        /// Fragments of one message, up to 65535; 0 means 1.
        pub fragments: u32,
        /// Other processes, at most; 0 means 1024.
        pub peers: u32,
        /// Bytes of the longest message that goes to slots before it is received, at most what the fragments have room
        /// for; 0 means 4096, UINT64_MAX that none does.
        pub eager: u64,
        /// Bytes of the longest message that goes to a slot in any case; between this and eager, messages go the way
        /// that has been faster to that process. 0 means 128, UINT64_MAX that all go to slots which may. Need not be
        /// the same.
        pub eager_floor: u64,
        /// Bytes of the longest message; 0 means no limit.
        pub longest: u64,
        /// Threads that can receive, at most; 0 means 4096.
        pub threads: u32,
        /// Sends that have not ended, at most; 0 means 16384.
        pub sends: u32,
        /// Receives that have not ended, at most; 0 means 16384.
        pub receives: u32,
        /// Chains that the hash of the matching chooses from, up to 65535; 0 means 256.
        pub chains: u32,
        /// Queues with a thread each, up to 64; 0 means 8.
        pub ports: u32,
        /// Which board moves the bytes of long messages that this process receives: TG_MSG_GET or TG_MSG_PUT.
        pub way: u32,
        /// How messages are waited for: TG_MSG_BLOCKING, TG_MSG_POLLING or TG_MSG_ADAPTIVE.
        pub progress: u32,
        /// Not 0: threads that look for messages keep the processor between two looks.
        pub no_yield: u32,
        /// The number of this cluster's node 0 among the nodes of all clusters: the same for all processes of the
        /// cluster.
        pub first_node: u32,
        /// Not 0: others reach further processes by this one.
        pub gateway: u32,
        /// What all processes that route have in common, at least 16 bytes of text; NULL: this one does not.
        pub key: *const c_char,
        /// Where neighbours connect to, HOST:PORT, or NULL.
        pub listen: *const c_char,
        /// Neighbours to connect to, up to 64, each HOST:PORT, with commas between; or NULL.
        pub neighbours: *const c_char,
    }
}

const MATCH_PROCESS: u32 = 1;
const MATCH_THREAD: u32 = 2;
const MATCH_TAG: u32 = 4;

/// Fields of a pattern that count.
pub(super) const FIELDS: [(&str, u64, &str); 3] = [
    ("TG_MSG_MATCH_PROCESS", MATCH_PROCESS as u64, "Only messages from the process from.process."),
    ("TG_MSG_MATCH_THREAD", MATCH_THREAD as u64, "Only messages from threads with the number from.thread."),
    ("TG_MSG_MATCH_TAG", MATCH_TAG as u64, "Only messages with that tag."),
];

const WAYS: [Way; 2] = [Way::Get, Way::Put];
const MODES: [Progress; 3] = [Progress::Blocking, Progress::Polling, Progress::Adaptive];

/// Names of [`WAYS`], by their places there.
pub(super) const WAY_NAMES: [(&str, u64, &str); WAYS.len()] = [
    ("TG_MSG_GET", 0, "The receiver's board fetches them. The default."),
    ("TG_MSG_PUT", 1, "The sender's board stores them, when the receiver asks it to."),
];

/// Names of [`MODES`], by their places there.
pub(super) const MODE_NAMES: [(&str, u64, &str); MODES.len()] = [
    ("TG_MSG_BLOCKING", 0, "A thread sleeps until an interrupt. The default."),
    ("TG_MSG_POLLING", 1, "A thread looks all the time: for processes with a processor to spare."),
    ("TG_MSG_ADAPTIVE", 2, "Threads that wait look themselves while that is worth it, and sleep then."),
];

/// A number from C that has fewer bits in Rust.
fn narrow(what: &'static str, number: u32) -> Result<u16> {
    u16::try_from(number).map_err(|_| argument(what, number, "0 to 65535"))
}

/// One of a few values, by its place among them.
fn choice<T: Copy>(values: &[T], what: &'static str, number: u32, expected: &str) -> Result<T> {
    values.get(number as usize).copied().ok_or_else(|| argument(what, number, expected))
}

/// An option, unless it is zero, which leaves the default.
fn set<T: Default + PartialEq>(option: &mut T, value: T) {
    if value != T::default() {
        *option = value;
    }
}

impl From<Process> for ProcessRecord {
    fn from(process: Process) -> ProcessRecord {
        ProcessRecord { node: process.node.into(), number: process.number }
    }
}

impl From<Endpoint> for EndpointRecord {
    fn from(endpoint: Endpoint) -> EndpointRecord {
        EndpointRecord { process: endpoint.process.into(), thread: endpoint.thread }
    }
}

impl From<Received> for ReceivedRecord {
    fn from(received: Received) -> ReceivedRecord {
        ReceivedRecord { from: received.from.into(), tag: received.tag, length: received.length }
    }
}

impl ProcessRecord {
    pub(super) fn process(&self) -> Result<Process> {
        Ok(Process { node: narrow("process.node", self.node)?, number: self.number })
    }
}

impl From<Eager> for EagerRecord {
    fn from(eager: Eager) -> EagerRecord {
        EagerRecord { threshold: eager.threshold, slots: eager.slots, requests: eager.requests }
    }
}

impl EndpointRecord {
    pub(super) fn endpoint(&self) -> Result<Endpoint> {
        Ok(Endpoint { process: self.process.process()?, thread: self.thread })
    }
}

impl PatternRecord {
    pub(super) fn pattern(&self) -> Result<Pattern> {
        let has = |field| self.fields & field != 0;
        if self.fields & !(MATCH_PROCESS | MATCH_THREAD | MATCH_TAG) != 0 {
            let expected = "TG_MSG_MATCH_PROCESS, _THREAD and _TAG, or some of them";
            return Err(argument("pattern.fields", format!("{:#x}", self.fields), expected));
        }
        Ok(Pattern {
            process: has(MATCH_PROCESS).then(|| self.from.process.process()).transpose()?,
            thread: has(MATCH_THREAD).then_some(self.from.thread),
            tag: has(MATCH_TAG).then_some(self.tag),
        })
    }
}

impl OptionsRecord {
    /// Those of s4's profile (SPEC E21); the others are the defaults.
    pub(super) fn paper() -> OptionsRecord {
        let Config { block, fragments, eager, eager_floor, longest, .. } = Config::paper();
        OptionsRecord {
            slots: 0,
            block,
            fragments: fragments.into(),
            peers: 0,
            eager,
            eager_floor,
            longest,
            threads: 0,
            sends: 0,
            receives: 0,
            chains: 0,
            ports: 0,
            way: 0,
            progress: 0,
            no_yield: 0,
            first_node: 0,
            gateway: 0,
            key: std::ptr::null(),
            listen: std::ptr::null(),
            neighbours: std::ptr::null(),
        }
    }

    /// # Safety
    /// Its texts are such, or NULL.
    unsafe fn routing(&self) -> Result<Option<Routing>> {
        let given = |pointer: *const c_char, what| match pointer.is_null() {
            true => Ok(None),
            // SAFETY: the caller's promise.
            false => unsafe { text(pointer, what) }.map(|text| Some(text.to_owned())),
        };
        let neighbours = given(self.neighbours, "neighbours")?.unwrap_or_default();
        let routing = Routing {
            first_node: narrow("first_node", self.first_node)?,
            gateway: self.gateway != 0,
            listen: given(self.listen, "listen")?,
            neighbours: neighbours.split(',').filter(|at| !at.is_empty()).map(str::to_owned).collect(),
            key: given(self.key, "key")?.unwrap_or_default().into_bytes(),
        };
        Ok((routing != Routing::default()).then_some(routing))
    }

    /// # Safety
    /// Its texts are such, or NULL.
    pub(super) unsafe fn options(&self) -> Result<Options> {
        let mut options = Options::default();
        let config = &mut options.config;
        set(&mut config.slots, narrow("slots", self.slots)?);
        set(&mut config.block, self.block);
        set(&mut config.fragments, narrow("fragments", self.fragments)?);
        set(&mut config.peers, self.peers);
        match self.eager {
            u64::MAX => config.eager = 0,
            eager => set(&mut config.eager, eager),
        }
        set(&mut config.eager_floor, self.eager_floor);
        set(&mut config.longest, self.longest);
        set(&mut config.threads, self.threads);
        set(&mut config.sends, self.sends);
        set(&mut config.receives, self.receives);
        set(&mut config.chains, narrow("chains", self.chains)?);
        config.way = choice(&WAYS, "way", self.way, "TG_MSG_GET or TG_MSG_PUT")?;
        set(&mut options.ports, narrow("ports", self.ports)?);
        let modes = "TG_MSG_BLOCKING, TG_MSG_POLLING or TG_MSG_ADAPTIVE";
        options.progress = choice(&MODES, "progress", self.progress, modes)?;
        options.yields = self.no_yield == 0;
        // SAFETY: the caller's promise.
        options.routing = unsafe { self.routing() }?;
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SAFETY: all fields are numbers, or pointers that may be NULL.
    const NOTHING: OptionsRecord = unsafe { std::mem::zeroed() };

    fn options(record: &OptionsRecord) -> Result<Options> {
        // SAFETY: texts are constants here.
        unsafe { record.options() }
    }

    #[test]
    fn zeros_are_the_defaults() {
        assert_eq!(options(&NOTHING).unwrap(), Options::default());
        assert_eq!(options(&OptionsRecord::paper()).unwrap(), Config::paper().into());
    }

    #[test]
    fn routing_is_what_was_given() {
        let given = OptionsRecord {
            first_node: 100,
            gateway: 1,
            key: c"what all of them have".as_ptr(),
            listen: c"0.0.0.0:7000".as_ptr(),
            neighbours: c"10.84.0.1:7000,gateway.example:7000".as_ptr(),
            ..NOTHING
        };
        let routing = Routing {
            first_node: 100,
            gateway: true,
            listen: Some("0.0.0.0:7000".into()),
            neighbours: vec!["10.84.0.1:7000".into(), "gateway.example:7000".into()],
            key: b"what all of them have".to_vec(),
        };
        assert_eq!(options(&given).unwrap().routing, Some(routing));
        let error = options(&OptionsRecord { first_node: 65_536, ..given }).unwrap_err().to_string();
        assert!(error.starts_with("first_node is 65536"), "{error}");
    }

    #[test]
    fn options_are_those_that_were_given() {
        let given = OptionsRecord {
            slots: 7,
            eager: u64::MAX,
            eager_floor: 64,
            ports: 3,
            way: 1,
            progress: 2,
            no_yield: 1,
            ..NOTHING
        };
        let options_of = options(&given).unwrap();
        let config = Config { slots: 7, eager: 0, eager_floor: 64, way: Way::Put, ..Config::default() };
        assert_eq!(options_of, Options { ports: 3, progress: Progress::Adaptive, yields: false, ..config.into() });
        for (wrong, expected) in [
            (OptionsRecord { slots: 65_536, ..NOTHING }, "slots is 65536: expected 0 to 65535"),
            (OptionsRecord { way: 2, ..NOTHING }, "way is 2: expected TG_MSG_GET or TG_MSG_PUT"),
            (OptionsRecord { progress: 3, ..NOTHING }, "progress is 3: expected TG_MSG_BLOCKING, "),
        ] {
            let error = options(&wrong).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn names_stand_at_the_places_of_their_values() {
        for names in [&WAY_NAMES[..], &MODE_NAMES[..]] {
            assert!(names.iter().enumerate().all(|(place, name)| name.1 == place as u64));
        }
        assert_eq!(WAYS[0], Config::default().way);
        assert_eq!(MODES[0], Progress::default());
    }

    #[test]
    fn only_the_fields_that_count_do() {
        let process = Process { node: 3, number: 9 };
        let from = Endpoint { process, thread: 5 };
        let record = |fields| PatternRecord { from: from.into(), tag: 8, fields };
        assert_eq!(record(0).pattern().unwrap(), Pattern::default());
        assert_eq!(record(7).pattern().unwrap(), Pattern::exactly(from, 8));
        let tag = Pattern { tag: Some(8), ..Pattern::default() };
        assert_eq!(record(MATCH_TAG).pattern().unwrap(), tag);
        let thread = Pattern { thread: Some(5), ..Pattern::default() };
        assert_eq!(record(MATCH_THREAD).pattern().unwrap(), thread);
        let error = record(8).pattern().unwrap_err().to_string();
        assert!(error.starts_with("pattern.fields is 0x8"), "{error}");
        let far = PatternRecord {
            from: EndpointRecord { process: ProcessRecord { node: 1 << 16, number: 0 }, thread: 0 },
            tag: 0,
            fields: MATCH_PROCESS,
        };
        assert!(far.pattern().is_err());
        let any = PatternRecord { fields: 0, ..far };
        assert_eq!(any.pattern().unwrap(), Pattern::default(), "a node that does not count may be any number");
    }
}
