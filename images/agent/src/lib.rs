// SPDX-License-Identifier: MIT OR Apache-2.0
//! The protocol between a harness outside and the agent inside a guest, over one serial line.
//!
//! Every message is one frame: magic, version, direction, length, a check of this header, the payload (the message in
//! postcard's encoding), a CRC-32C of all before. A line may carry other bytes between frames (a kernel message, the
//! rest of a frame cut off by a reset): the [`Decoder`] skips them. A damaged frame is dropped whole; nothing is sent
//! again, since QEMU's serial lines lose nothing while both ends are up.
//!
//! Rules of the conversation:
//!
//! - The agent says [`ToHost::Hello`] when it starts. A host that finds the line already in use says
//!   [`ToGuest::Attach`]: commands of an earlier host are killed and forgotten, and Hello comes again. What a host says
//!   before the first Hello may be lost.
//! - The host chooses command ids. [`ToGuest::Run`] is answered by `Started`, `NotStarted` or `Error`; after `Started`
//!   come any number of `Stdout`, `Stderr`, `StdinTaken`, and last `Exited`. The id is free again after `Exited`, or
//!   after a `NotStarted` or `Error` that answers `Run`.
//! - At most [`STDIN_WINDOW`] bytes of one command's standard input may be on the way: `Stdin` spends them,
//!   `StdinTaken` gives them back. More is refused with `Error`, for neither end buffers without bound.
//! - A command runs in a separate process group, to which `Signal` goes.
//! - What the kernel reported before a command ended comes as [`ToHost::Kernel`] before its `Exited`.
//!
//! Commands print their measurements as lines of [`Figure`]s.
#![deny(unsafe_code)]

pub mod bench;
pub mod child;
pub mod devices;
mod figure;
pub mod kernel;
pub mod memory;
pub mod network;
pub mod user;

use crc32c::crc32c;
pub use figure::{Chaos, Figure, Received, Spread, rounded};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Bytes of one frame's payload, at most.
pub const MAX_PAYLOAD: usize = 16 * 1024;
/// Bytes of `Stdin`, `Stdout` or `Stderr` in one message, at most.
pub const MAX_DATA: usize = 4 * 1024;
/// Bytes of one command's standard input that may be sent and not yet taken.
pub const STDIN_WINDOW: u32 = 16 * 1024;
/// Changes whenever a message changes.
pub const VERSION: u8 = 5;

const MAGIC: [u8; 4] = [0xf5, b'T', b'G', 0xa7];
/// Magic, version, direction, payload length, check.
const HEADER: usize = 10;
const TRAILER: usize = 4;

/// A message did not fit a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message takes {length} bytes, a frame holds {MAX_PAYLOAD}; send less at once")]
pub struct TooLong {
    /// Bytes it would have needed.
    pub length: usize,
}

/// From the harness to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGuest {
    /// A new host: kill what runs, say Hello.
    Attach,
    /// Start a command.
    Run {
        /// Chosen by the host, not in use.
        id: u32,
        /// User to run as. Its supplementary groups are those of the guest's `/etc/group`.
        uid: u32,
        gid: u32,
        /// Program and arguments; the program is looked up in `PATH`.
        argv: Vec<String>,
        /// Variables added to the agent's `PATH`, `HOME`, `USER`, `TERM`.
        env: Vec<(String, String)>,
        /// Working directory, `/` by default.
        cwd: Option<String>,
    },
    /// Bytes for its standard input.
    Stdin {
        id: u32,
        /// At most [`MAX_DATA`].
        bytes: Vec<u8>,
    },
    /// End of its standard input.
    CloseStdin { id: u32 },
    /// A signal for its process group.
    Signal {
        id: u32,
        /// Linux signal number.
        signal: i32,
    },
    /// Requests a Pong.
    Ping { nonce: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// It returned this code.
    Code(i32),
    Signal(i32),
}

/// From the agent to the harness.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToHost {
    Hello {
        /// `uname -r`.
        release: String,
        /// Milliseconds since the guest's kernel started.
        uptime_ms: u64,
        /// A board's device node is there, with its owner.
        board: bool,
        /// Differs from boot to boot, and not from agent to agent of one.
        boot: String,
    },
    /// The kernel has failed, and continues.
    Kernel {
        /// Of the record in the kernel's log; an agent that is started again reports all of them again.
        sequence: u64,
        /// The first line of the report.
        text: String,
    },
    Started {
        id: u32,
        /// Its process id in the guest.
        pid: u32,
    },
    Stdout {
        id: u32,
        /// At most [`MAX_DATA`].
        bytes: Vec<u8>,
    },
    Stderr {
        id: u32,
        /// At most [`MAX_DATA`].
        bytes: Vec<u8>,
    },
    /// So many bytes of standard input have left the agent: written, or discarded because the command does not read.
    StdinTaken { id: u32, bytes: u32 },
    /// The last message of a command.
    Exited { id: u32, exit: Exit },
    /// The only message of a command that does not begin.
    NotStarted {
        id: u32,
        /// As shells say it: 127 if there is no such program, 126 if it cannot be executed.
        code: u8,
        text: String,
    },
    Error {
        /// The command it was about.
        id: u32,
        text: String,
    },
    /// Answer to Ping.
    Pong {
        /// That of the Ping.
        nonce: u64,
    },
}

/// One side's messages.
pub trait Message: Serialize + DeserializeOwned {
    /// The direction in the header of a frame.
    #[doc(hidden)]
    const DIRECTION: u8;
}

impl Message for ToGuest {
    const DIRECTION: u8 = 1;
}

impl Message for ToHost {
    const DIRECTION: u8 = 2;
}

/// The message that a payload is, whole.
fn read<M: Message>(payload: &[u8]) -> Option<M> {
    postcard::take_from_bytes(payload).ok().filter(|(_, rest)| rest.is_empty()).map(|(message, _)| message)
}

/// The beginning of a text, of at most so many bytes.
pub fn bounded(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    &text[..end]
}

/// The frame of a message.
pub fn encode<M: Message>(message: &M) -> Result<Vec<u8>, TooLong> {
    #[allow(
        clippy::expect_used,
        reason = "messages are derived and have lengths, and a vector takes every byte: no error is left"
    )]
    let payload = postcard::to_allocvec(message).expect("every message can be encoded");
    let length = u16::try_from(payload.len())
        .ok()
        .filter(|_| payload.len() <= MAX_PAYLOAD)
        .ok_or(TooLong { length: payload.len() })?;
    let mut frame = Vec::with_capacity(HEADER + payload.len() + TRAILER);
    frame.extend_from_slice(&MAGIC);
    frame.push(VERSION);
    frame.push(M::DIRECTION);
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(&header_check(&frame));
    frame.extend_from_slice(&payload);
    frame.extend_from_slice(&crc32c(&frame).to_le_bytes());
    Ok(frame)
}

/// Finds frames in a stream of bytes. Call [`Decoder::next`] until it returns `None` after each [`Decoder::push`]; what
/// then stays inside is less than one frame.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    at: usize,
    skipped: u64,
}

impl Decoder {
    /// Takes bytes from the line.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.at);
        self.at = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Bytes thrown away so far because they were in no frame of this side's messages.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    #[allow(clippy::should_implement_trait, reason = "not an iterator: more may come after nothing")]
    pub fn next<M: Message>(&mut self) -> Option<M> {
        loop {
            let rest = &self.buffer[self.at..];
            match parse(rest) {
                Parsed::Message(message, length) => {
                    self.at += length;
                    return Some(message);
                }
                Parsed::Foreign(length) => self.skip(length),
                Parsed::Incomplete => return None,
                Parsed::Garbage => {
                    // Only from the next possible begin of a frame; the bytes of a false one may hold a true one.
                    let next = rest.iter().skip(1).position(|b| *b == MAGIC[0]).map_or(rest.len(), |p| p + 1);
                    self.skip(next);
                    if self.at == self.buffer.len() {
                        return None;
                    }
                }
            }
        }
    }

    /// The next whole message behind a frame that has begun and not ended, whose bytes are skipped: its sender was
    /// reset within it. To be called only when the line has been silent for a while: a frame that is merely delayed
    /// stays, unless its own payload so far contains a frame.
    pub fn next_behind<M: Message>(&mut self) -> Option<M> {
        let rest = &self.buffer[self.at..];
        let (begin, message, length) = (1..rest.len()).find_map(|begin| match parse(&rest[begin..]) {
            Parsed::Message(message, length) => Some((begin, message, length)),
            _ => None,
        })?;
        self.skip(begin);
        self.at += length;
        Some(message)
    }

    fn skip(&mut self, length: usize) {
        self.at += length;
        self.skipped += length as u64;
    }
}

enum Parsed<M> {
    Message(M, usize),
    /// A whole frame that is none of this side's messages.
    Foreign(usize),
    Incomplete,
    Garbage,
}

fn parse<M: Message>(bytes: &[u8]) -> Parsed<M> {
    let known = bytes.len().min(MAGIC.len());
    if bytes[..known] != MAGIC[..known] {
        return Parsed::Garbage;
    }
    let Some(header) = bytes.first_chunk::<HEADER>() else {
        return Parsed::Incomplete;
    };
    let length = usize::from(u16::from_le_bytes([header[6], header[7]]));
    if header[8..10] != header_check(&header[..8]) || header[4] != VERSION || length > MAX_PAYLOAD {
        return Parsed::Garbage;
    }
    let end = HEADER + length;
    let Some((content, trailer)) =
        bytes.split_at_checked(end).and_then(|(c, t)| Some((c, t.first_chunk::<TRAILER>()?)))
    else {
        return Parsed::Incomplete;
    };
    if crc32c(content).to_le_bytes() != *trailer {
        return Parsed::Garbage;
    }
    match read(&content[HEADER..]).filter(|_| header[5] == M::DIRECTION) {
        Some(message) => Parsed::Message(message, end + TRAILER),
        None => Parsed::Foreign(end + TRAILER),
    }
}

/// So a false header does not make the decoder wait for a frame that never comes.
fn header_check(header: &[u8]) -> [u8; 2] {
    let crc = crc32c(header).to_le_bytes();
    [crc[0], crc[1]]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn to_guest() -> impl Strategy<Value = ToGuest> {
        let text = || "[ -~äß\n]{0,20}";
        prop_oneof![
            Just(ToGuest::Attach),
            (any::<[u32; 3]>(), vec(text(), 0..5), vec((text(), text()), 0..4), proptest::option::of("/[a-z]{1,9}"))
                .prop_map(|([id, uid, gid], argv, env, cwd)| ToGuest::Run { id, uid, gid, argv, env, cwd }),
            (any::<u32>(), vec(any::<u8>(), 0..200)).prop_map(|(id, bytes)| ToGuest::Stdin { id, bytes }),
            any::<u32>().prop_map(|id| ToGuest::CloseStdin { id }),
            any::<(u32, i32)>().prop_map(|(id, signal)| ToGuest::Signal { id, signal }),
            any::<u64>().prop_map(|nonce| ToGuest::Ping { nonce }),
        ]
    }

    fn to_host() -> impl Strategy<Value = ToHost> {
        let data = || (any::<u32>(), vec(any::<u8>(), 0..200));
        prop_oneof![
            ("[ -~]{0,30}", any::<u64>(), "[0-9a-f]{8}").prop_map(|(release, uptime_ms, boot)| ToHost::Hello {
                release,
                uptime_ms,
                board: uptime_ms % 2 == 1,
                boot
            }),
            (any::<u64>(), "[ -~]{0,30}").prop_map(|(sequence, text)| ToHost::Kernel { sequence, text }),
            any::<(u32, u32)>().prop_map(|(id, pid)| ToHost::Started { id, pid }),
            data().prop_map(|(id, bytes)| ToHost::Stdout { id, bytes }),
            data().prop_map(|(id, bytes)| ToHost::Stderr { id, bytes }),
            any::<(u32, u32)>().prop_map(|(id, bytes)| ToHost::StdinTaken { id, bytes }),
            any::<(u32, i32)>().prop_map(|(id, c)| ToHost::Exited { id, exit: Exit::Code(c) }),
            any::<(u32, i32)>().prop_map(|(id, s)| ToHost::Exited { id, exit: Exit::Signal(s) }),
            (any::<u32>(), "[ -~ü]{0,30}").prop_map(|(id, text)| ToHost::Error { id, text }),
            (any::<u32>(), any::<u8>(), "[ -~ü]{0,30}").prop_map(|(id, code, text)| ToHost::NotStarted {
                id,
                code,
                text
            }),
            any::<u64>().prop_map(|nonce| ToHost::Pong { nonce }),
        ]
    }

    /// Feeds the stream in pieces and collects what comes out.
    fn decode<M: Message>(stream: &[u8], piece: usize) -> (Vec<M>, Decoder) {
        let mut decoder = Decoder::default();
        let mut out = Vec::new();
        for bytes in stream.chunks(piece) {
            decoder.push(bytes);
            while let Some(m) = decoder.next() {
                out.push(m);
            }
            assert!(decoder.buffer.len() - decoder.at < HEADER + MAX_PAYLOAD + TRAILER + piece);
        }
        (out, decoder)
    }

    #[test]
    fn too_long_is_refused_with_its_length() {
        let m = ToGuest::Stdin { id: 1, bytes: vec![0; MAX_PAYLOAD] };
        assert_eq!(encode(&m), Err(TooLong { length: MAX_PAYLOAD + 5 }));
        let huge = ToGuest::Stdin { id: 1, bytes: vec![0; 70_000] };
        assert!(encode(&huge).is_err());
        assert!(encode(&ToGuest::Stdin { id: 1, bytes: vec![0; MAX_DATA] }).is_ok());
    }

    #[test]
    fn the_other_sides_messages_are_skipped() {
        let mut stream = encode(&ToGuest::Ping { nonce: 7 }).unwrap();
        let foreign = stream.len() as u64;
        stream.extend(encode(&ToHost::Pong { nonce: 7 }).unwrap());
        let (got, decoder) = decode::<ToHost>(&stream, 5);
        assert_eq!(got, [ToHost::Pong { nonce: 7 }]);
        assert_eq!(decoder.skipped(), foreign);
    }

    /// A frame cut off by a reset right before another: the second must come through although the first one's
    /// header asked for more bytes, once so many have come.
    #[test]
    fn a_frame_cut_short_does_not_swallow_the_next() {
        let long = encode(&ToHost::Stdout { id: 1, bytes: vec![b'x'; 100] }).unwrap();
        let next =
            encode(&ToHost::Hello { release: "6.12".into(), uptime_ms: 5, board: true, boot: "1".into() }).unwrap();
        for cut in 1..long.len() {
            let mut stream = long[..cut].to_vec();
            for _ in 0..8 {
                stream.extend_from_slice(&next);
            }
            let (got, _) = decode::<ToHost>(&stream, 7);
            assert_eq!(got.len(), 8, "cut after {cut}");
        }
    }

    /// The same with nothing behind the second frame: it is found once the line is silent, and a frame that is only
    /// delayed is kept.
    #[test]
    fn a_frame_behind_one_cut_short_is_found_when_the_line_is_silent() {
        let long = encode(&ToHost::Stdout { id: 1, bytes: vec![b'x'; MAX_DATA] }).unwrap();
        let hello = ToHost::Hello { release: "6.12".into(), uptime_ms: 5, board: true, boot: "1".into() };
        for cut in [1, HEADER - 1, HEADER, HEADER + 1, 1000, long.len() - 1] {
            let mut decoder = Decoder::default();
            decoder.push(&long[..cut]);
            assert_eq!(decoder.next::<ToHost>(), None);
            assert_eq!(decoder.next_behind::<ToHost>(), None, "only delayed, cut after {cut}");
            decoder.push(&encode(&hello).unwrap());
            let found = decoder.next::<ToHost>().or_else(|| decoder.next_behind());
            assert_eq!(found, Some(hello.clone()), "cut after {cut}");
            decoder.push(&long);
            assert!(decoder.next::<ToHost>().is_some(), "the stream continues, cut after {cut}");
        }
    }

    proptest! {
        #[test]
        fn guest_messages_survive_any_cutting(messages in vec(to_guest(), 0..12), piece in 1usize..400) {
            let stream: Vec<u8> = messages.iter().flat_map(|m| encode(m).unwrap()).collect();
            let (got, decoder) = decode::<ToGuest>(&stream, piece);
            prop_assert_eq!(got, messages);
            prop_assert_eq!(decoder.skipped(), 0);
        }

        #[test]
        fn host_messages_survive_garbage_between_them(
            items in vec((to_host(), vec(any::<u8>(), 0..60)), 0..12), piece in 1usize..400,
        ) {
            let mut stream = Vec::new();
            for (message, garbage) in &items {
                stream.extend_from_slice(garbage);
                // Bytes that look like the begin of a frame are the hard case.
                stream.extend_from_slice(&MAGIC[..garbage.len() % 5]);
                stream.extend(encode(message).unwrap());
            }
            let (got, _) = decode::<ToHost>(&stream, piece);
            let wanted: Vec<_> = items.into_iter().map(|i| i.0).collect();
            prop_assert_eq!(got, wanted);
        }

        #[test]
        fn a_flipped_bit_loses_at_most_that_message(
            messages in vec(to_host(), 3..6), byte in any::<prop::sample::Index>(), bit in 0u8..8,
        ) {
            let frames: Vec<_> = messages.iter().map(|m| encode(m).unwrap()).collect();
            let mut stream = frames.concat();
            let at = byte.index(frames[0].len());
            stream[at] ^= 1 << bit;
            // A length made longer ends with the bytes that follow, so some must follow.
            stream.extend(std::iter::repeat_n(b'\n', HEADER + MAX_PAYLOAD + TRAILER));
            let (got, _) = decode::<ToHost>(&stream, 64);
            prop_assert_eq!(&got[..], &messages[1..]);
        }

        #[test]
        fn no_bytes_make_it_panic_or_grow(bytes in vec(any::<u8>(), 0..3000), piece in 1usize..100) {
            decode::<ToGuest>(&bytes, piece);
            decode::<ToHost>(&bytes, piece);
            let (_, mut decoder) = decode::<ToHost>(&MAGIC.repeat(500), piece);
            prop_assert!(decoder.next::<ToGuest>().is_none());
        }

        #[test]
        fn no_payload_makes_it_panic(payload in vec(any::<u8>(), 0..200)) {
            let _ = read::<ToGuest>(&payload);
            let _ = read::<ToHost>(&payload);
        }
    }
}
