// SPDX-License-Identifier: MIT OR Apache-2.0
//! Captures: what crosses the links and trunks of switches, in pcapng files that Wireshark opens and that a switch can
//! be fed again.
//!
//! ```text
//!   switch core ──events, actions──► Recorder ──► Sink (thread) ──► FILE ──► Wireshark, with fabric/capture/dissector/telegraphos.lua
//!                                                                    │                        ▲
//!                                                                  Reader                 dissector  (from the tables of wire)
//!                                                                    └──► replay: the real core, and the differences
//! ```
//!
//! - [`Recorder`] takes every event that goes into a switch and every action that comes out. It never waits for the
//!   file: what it cannot write fast enough is counted and left out, and an error ends the capture and nothing else.
//! - A frame is captured as it is on the wire; all else is a [`Record`], which has the shape of a frame of a kind that
//!   no link carries. Each [`Link`] is an interface of the file. The configuration is in the file's first comment.
//! - [`Reader`] reads such files, as far as they go.
//! - [`replay`] feeds the events to switches of the same configuration and compares the actions.
//! - [`dissector`] generates the Wireshark dissector.
//!
//! `docs/capture.md` is the page for users.
#![forbid(unsafe_code)]

mod config;
pub mod dissector;
mod link;
mod pcapng;
mod ports;
mod reader;
mod record;
mod recorder;
mod replay;
mod sink;

pub use link::{Link, LinkError};
pub use pcapng::Direction;
pub use reader::{Captured, ReadError, Reader};
pub use record::{RECORD_VERSION, RECORDS, Record, RecordError};
pub use recorder::{CaptureError, CaptureOptions, CaptureStatistics, Recorder, Stopped};
pub use replay::{Difference, Ended, Replay, ReplayError, Said, replay, replay_with};
pub use telegraphos_topology::SwitchId;
