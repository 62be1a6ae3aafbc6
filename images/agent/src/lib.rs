// SPDX-License-Identifier: MIT OR Apache-2.0
//! The protocol between a harness outside and the agent inside a guest, over a serial line, which every kernel has, and
//! from the first large amount of data on over a port of virtio, where the guest has one: a thousand times faster.
//!
//! A message, in postcard's encoding, is one frame or, of more than [`MAX_PAYLOAD`] bytes, several in a row: magic,
//! version, direction and place in the message, length, a check of this header, the payload, a CRC-32C of all before. A
//! line may carry other bytes between frames (a kernel message, the rest of a frame cut off by a reset): the
//! [`Decoder`] skips them. A damaged frame is dropped whole, and so is its message; nothing is sent again, since QEMU's
//! lines lose nothing while both ends are up.
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
//!   `StdinTaken` gives them back. More is refused with `Error`, for neither end buffers without bound. Over the serial
//!   line a host has fewer on the way ([`SERIAL_WINDOW`]), behind which a signal does not wait long.
//! - The conversation begins on the serial line. When [`BULK`] bytes of output have been said, or the host says
//!   [`ToGuest::UsePort`], the agent looks for the port, once. If there is none it says [`ToHost::NoPort`]; else
//!   [`ToHost::OnPort`] is the last that it says on the line, and the host may from then on say [`ToGuest::OnPort`],
//!   which is its last on the line. What each says afterwards is on the port. Hello is always on the line, and begins
//!   anew: what is on the port then is of an earlier boot, or of an agent that has ended.
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
pub mod modules;
pub mod network;
pub mod port;
pub mod user;

use crc32c::crc32c;
pub use figure::{Chaos, Figure, Received, Spread, rounded};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
pub use serde_bytes::ByteBuf;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Bytes of one frame's payload, at most.
pub const MAX_PAYLOAD: usize = MAX_DATA + 64;
/// Bytes of one message, at most: more than Linux takes of a command's arguments (6 MiB, `execve(2)`).
pub const MAX_MESSAGE: usize = 8 << 20;
/// Bytes of `Stdin`, `Stdout` or `Stderr` in one message, at most.
pub const MAX_DATA: usize = 16 * 1024;
/// Bytes of one command's standard input that may be sent and not yet taken.
pub const STDIN_WINDOW: u32 = 256 * 1024;
/// The same over the serial line, which takes some 60 bytes in a millisecond.
pub const SERIAL_WINDOW: u32 = 16 * 1024;
/// After so many bytes the port is looked for.
pub const BULK: usize = 32 * 1024;
/// Where a guest with another root than the boot root has that.
pub const BOOT_ROOT: &str = "/run/telegraphos-image";
/// The name of the port.
pub const PORT: &str = "telegraphos.agent";
/// Changes whenever a message changes.
pub const VERSION: u8 = 6;

const MAGIC: [u8; 4] = [0xf5, b'T', b'G', 0xa7];
/// Magic, version, direction and place, payload length, check.
const HEADER: usize = 10;
const TRAILER: usize = 4;
/// Beside the direction: the message continues in the next frame, and the frame continues the message of the last.
const MORE: u8 = 0x80;
const CONTINUES: u8 = 0x40;
const PLACE: u8 = MORE | CONTINUES;

/// A message has more than [`MAX_MESSAGE`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message takes {length} bytes, expected {MAX_MESSAGE} at most; send less at once")]
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
    Run(Run),
    /// Bytes for its standard input.
    Stdin {
        id: u32,
        /// At most [`MAX_DATA`].
        #[serde(with = "serde_bytes")]
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
    /// Its terminal has this size from now on.
    Resize { id: u32, terminal: Terminal },
    /// Requests a Pong.
    Ping { nonce: u64 },
    /// Much data comes: the agent is to use the port, if there is one.
    UsePort,
    /// The last message on the serial line.
    OnPort,
}

/// A command to be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Chosen by the host, not in use.
    pub id: u32,
    /// User to run as. Its supplementary groups are those of the guest's `/etc/group`.
    pub uid: u32,
    pub gid: u32,
    /// Program and arguments, which need be no text; the program is looked up in `PATH`.
    pub argv: Vec<ByteBuf>,
    /// Variables added to the agent's `PATH`, `HOME`, `USER`, `TERM`.
    pub env: Vec<(String, String)>,
    /// Working directory, `/` by default.
    pub cwd: Option<String>,
    /// It gets a terminal, which is its session's; its standard error is its standard output then.
    pub terminal: Option<Terminal>,
}

/// The arguments of a command, for [`Run`].
pub fn words<S: AsRef<OsStr>>(argv: impl IntoIterator<Item = S>) -> Vec<ByteBuf> {
    argv.into_iter().map(|word| ByteBuf::from(word.as_ref().as_bytes())).collect()
}

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminal {
    pub rows: u16,
    pub columns: u16,
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
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    Stderr {
        id: u32,
        /// At most [`MAX_DATA`].
        #[serde(with = "serde_bytes")]
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
    /// The last message on the serial line.
    OnPort,
    /// There is no port, and will be none as long as this agent runs.
    NoPort,
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

/// The frames of a message.
pub fn encode<M: Message>(message: &M) -> Result<Vec<u8>, TooLong> {
    #[allow(
        clippy::expect_used,
        reason = "messages are derived and have lengths, and a vector takes every byte: no error is left"
    )]
    let message = postcard::to_allocvec(message).expect("every message can be encoded");
    if message.len() > MAX_MESSAGE {
        return Err(TooLong { length: message.len() });
    }
    let mut frames = Vec::with_capacity(message.len() + (message.len() / MAX_PAYLOAD + 1) * (HEADER + TRAILER));
    let mut rest = message.as_slice();
    let mut place = 0;
    loop {
        let (payload, behind) = rest.split_at(rest.len().min(MAX_PAYLOAD));
        let more = if behind.is_empty() { 0 } else { MORE };
        put_frame(&mut frames, M::DIRECTION | place | more, payload);
        if behind.is_empty() {
            return Ok(frames);
        }
        (rest, place) = (behind, CONTINUES);
    }
}

fn put_frame(frames: &mut Vec<u8>, kind: u8, payload: &[u8]) {
    let begin = frames.len();
    frames.extend_from_slice(&MAGIC);
    frames.push(VERSION);
    frames.push(kind);
    // At most MAX_PAYLOAD.
    frames.extend_from_slice(&(payload.len() as u16).to_le_bytes());
    frames.extend_from_slice(&header_check(&frames[begin..]));
    frames.extend_from_slice(payload);
    frames.extend_from_slice(&crc32c(&frames[begin..]).to_le_bytes());
}

/// Finds messages in a stream of bytes. Call [`Decoder::next`] until it returns `None` after each [`Decoder::push`];
/// what then stays inside is less than one message.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    at: usize,
    skipped: u64,
    /// The beginning of a message of several frames.
    begun: Option<Vec<u8>>,
}

impl Decoder {
    /// Takes bytes from the line.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.at);
        self.at = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Bytes thrown away so far because they were in no message of this side.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    #[allow(clippy::should_implement_trait, reason = "not an iterator: more may come after nothing")]
    pub fn next<M: Message>(&mut self) -> Option<M> {
        loop {
            let rest = &self.buffer[self.at..];
            match parse::<M>(rest) {
                Parsed::Frame { place, payload, length } => {
                    let begun = self.begun.take();
                    let before = if place & CONTINUES == 0 { Some(Vec::new()) } else { begun };
                    let message = before.filter(|before| before.len() + payload.len() <= MAX_MESSAGE).map(|mut all| {
                        // Most are in one frame, and are not copied.
                        if place == 0 {
                            return Ok(read(payload));
                        }
                        all.extend_from_slice(payload);
                        if place & MORE == 0 { Ok(read(&all)) } else { Err(all) }
                    });
                    self.at += length;
                    match message {
                        Some(Ok(Some(message))) => return Some(message),
                        Some(Err(begun)) => self.begun = Some(begun),
                        // Its beginning is lost, it is too long, or it is none.
                        Some(Ok(None)) | None => self.skipped += length as u64,
                    }
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
        let begin = (1..rest.len()).find(|begin| matches!(parse::<M>(&rest[*begin..]), Parsed::Frame { .. }))?;
        self.skip(begin);
        self.next()
    }

    fn skip(&mut self, length: usize) {
        self.at += length;
        self.skipped += length as u64;
    }
}

enum Parsed<'a> {
    Frame {
        /// [`MORE`], [`CONTINUES`].
        place: u8,
        payload: &'a [u8],
        /// Of the whole frame.
        length: usize,
    },
    /// A whole frame that is none of this side's.
    Foreign(usize),
    Incomplete,
    Garbage,
}

fn parse<M: Message>(bytes: &[u8]) -> Parsed<'_> {
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
    let length = end + TRAILER;
    match header[5] & !PLACE == M::DIRECTION {
        true => Parsed::Frame { place: header[5] & PLACE, payload: &content[HEADER..], length },
        false => Parsed::Foreign(length),
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

    /// A command with one argument of so many bytes.
    fn long(length: usize, byte: u8) -> ToGuest {
        let argv = words([OsStr::from_bytes(&vec![byte; length])]);
        ToGuest::Run(Run { id: 1, uid: 0, gid: 0, argv, env: Vec::new(), cwd: None, terminal: None })
    }

    fn to_guest() -> impl Strategy<Value = ToGuest> {
        let text = || "[ -~äß\n]{0,20}";
        prop_oneof![
            Just(ToGuest::Attach),
            (any::<[u32; 3]>(), vec(text(), 0..5), vec((text(), text()), 0..4), proptest::option::of("/[a-z]{1,9}"))
                .prop_map(|([id, uid, gid], argv, env, cwd)| {
                    let terminal = (id % 2 == 0).then_some(Terminal { rows: 24, columns: id as u16 });
                    ToGuest::Run(Run { id, uid, gid, argv: words(argv), env, cwd, terminal })
                }),
            (MAX_PAYLOAD - 40..3 * MAX_PAYLOAD, any::<u8>()).prop_map(|(length, byte)| long(length, byte)),
            (any::<u32>(), any::<u16>())
                .prop_map(|(id, rows)| { ToGuest::Resize { id, terminal: Terminal { rows, columns: 80 } } }),
            Just(ToGuest::UsePort),
            Just(ToGuest::OnPort),
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
            Just(ToHost::OnPort),
            Just(ToHost::NoPort),
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
            assert!(decoder.begun.as_ref().is_none_or(|begun| begun.len() <= MAX_MESSAGE));
        }
        (out, decoder)
    }

    #[test]
    fn too_long_is_refused_with_its_length() {
        let m = ToGuest::Stdin { id: 1, bytes: vec![0; MAX_MESSAGE] };
        assert_eq!(encode(&m), Err(TooLong { length: MAX_MESSAGE + 6 }));
        let most = encode(&ToGuest::Stdin { id: 1, bytes: vec![0; MAX_DATA] }).unwrap();
        assert!(most.len() <= HEADER + MAX_PAYLOAD + TRAILER, "data is in one frame");
    }

    /// A message of several frames is whole or not there: neither its pieces nor those of two make another.
    #[test]
    fn a_message_of_several_frames_comes_whole_or_not_at_all() {
        let frames = |message: &ToGuest| -> Vec<Vec<u8>> {
            let all = encode(message).unwrap();
            all.chunks(HEADER + MAX_PAYLOAD + TRAILER).map(<[u8]>::to_vec).collect()
        };
        let (first, second) = (long(3 * MAX_PAYLOAD, 1), long(3 * MAX_PAYLOAD, 2));
        let (a, b) = (frames(&first), frames(&second));
        assert_eq!(a.len(), 4);
        let ping = ToGuest::Ping { nonce: 7 };
        let gives = |pieces: &[&Vec<u8>], expected: &ToGuest, why: &str| {
            let stream: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
            let got = decode::<ToGuest>(&stream, 999).0;
            assert_eq!(got.iter().collect::<Vec<_>>(), [expected], "{why}");
        };
        gives(&[&a[0], &a[1], &a[2], &a[3]], &first, "all are there");
        gives(&[&a[0], &a[2], &a[3], &b[0], &b[1], &b[2], &b[3]], &second, "one is lost");
        gives(&[&a[1], &a[2], &a[3], &b[0], &b[1], &b[2], &b[3]], &second, "the first is");
        gives(&[&a[0], &a[1], &b[0], &b[1], &b[2], &b[3]], &second, "a reset within it");
        let said = encode(&ping).unwrap();
        gives(&[&a[0], &a[1], &said, &a[2], &a[3]], &ping, "nothing is sent within one");
        // None is longer than all may be, however many pieces come.
        let more = &a[1];
        let endless: Vec<&Vec<u8>> = [&a[0]].into_iter().chain(std::iter::repeat_n(more, 600)).chain([&said]).collect();
        gives(&endless, &ping, "it is too long");
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
