// SPDX-License-Identifier: MIT OR Apache-2.0
//! What keeps a stream to a neighbour secret and whole: the Noise protocol, by the crate `snow`. It has no socket.
//!
//! ```text
//!   the end that connects            the end that accepts
//!   hello: MAGIC, psk, e, its process ──►
//!                      ◄── hello: MAGIC, e, ee, its process
//!   first record, which is empty ──►              only one with the key and that hello can have made it
//!   records in both directions: length of two bytes, ciphertext of at most RECORD bytes, tag
//! ```
//!
//! The pattern is NNpsk0: both ends have the key and show that by it, and the bytes are encrypted under keys that were
//! made for this connection, and are gone with it: the key does not decrypt what has been recorded.
//! Each direction numbers its records, so that one that is changed, missing, repeated, or of another place, direction
//! or connection is refused, and ends the stream. The last one says that the stream ends: a stream that ends without it
//! was cut off.

use snow::params::HashChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::{Builder, HandshakeState, StatelessTransportState};
use telegraphos_msg_core::Process;

/// Which end of a connection this one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Connects,
    Accepts,
}

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Bytes of the name of the protocol and its version, which both ends authenticate, too.
const MAGIC: [u8; 8] = *b"tgmsg\0\0\x02";
/// Bytes of a process's name.
const NAME: usize = 6;
/// Bytes that show that a record is whole.
const TAG: usize = 16;
/// Bytes of a public key.
const PUBLIC: usize = 32;
/// Bytes of a hello.
pub(crate) const HELLO: usize = MAGIC.len() + PUBLIC + NAME + TAG;
/// Bytes of a record's length.
pub(crate) const LENGTH: usize = 2;
/// Bytes of a frame that a record has room for.
const PART: usize = 16 << 10;
/// Bytes of the first record of the end that connects, behind its length.
pub(crate) const FIRST: usize = 1 + TAG;
/// Bytes of a record behind its length, at most.
pub(crate) const RECORD: usize = 1 + PART + TAG;

/// Why a session is refused, or has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Broken {
    #[error("what is there does not speak this protocol, or another version")]
    Protocol,
    #[error("it has another key, or its hello was changed on the way")]
    Key,
    #[error("that is this process itself")]
    Itself,
    #[error("a record that is not the next one of this connection: it was changed, left out, repeated or moved")]
    Record,
    #[error("a record of {0} bytes: expected {least} to {RECORD}", least = 1 + TAG)]
    Length(usize),
    #[error("a record of unknown kind {0}")]
    Kind(u8),
    #[error("a frame of more than {0} bytes")]
    Frame(usize),
    #[error("no random numbers, or no numbers for records, are left")]
    Exhausted,
}

/// The key of 32 bytes that Noise takes, from one of any length.
fn psk(key: &[u8]) -> Result<[u8; 32], Broken> {
    let mut hash = DefaultResolver.resolve_hash(&HashChoice::Blake2s).ok_or(Broken::Exhausted)?;
    let mut psk = [0; 32];
    hash.input(b"telegraphos messages, key of streams");
    hash.input(key);
    hash.result(&mut psk);
    Ok(psk)
}

fn name(process: Process) -> [u8; NAME] {
    let mut name = [0; NAME];
    name[..2].copy_from_slice(&process.node.to_le_bytes());
    name[2..].copy_from_slice(&process.number.to_le_bytes());
    name
}

/// One end of a connection, until both know each other.
pub(crate) struct Handshake {
    noise: HandshakeState,
    me: Process,
}

impl Handshake {
    pub(crate) fn new(side: Side, me: Process, key: &[u8]) -> Result<Handshake, Broken> {
        let psk = psk(key)?;
        // The pattern is a constant that the tests go through.
        let params = PATTERN.parse().map_err(|_| Broken::Protocol)?;
        let builder = Builder::new(params).prologue(&MAGIC).and_then(|builder| builder.psk(0, &psk));
        let noise = builder.and_then(|builder| match side {
            Side::Connects => builder.build_initiator(),
            Side::Accepts => builder.build_responder(),
        });
        Ok(Handshake { noise: noise.map_err(|_| Broken::Exhausted)?, me })
    }

    /// This end's hello. The one that accepts says it after it has heard the other's.
    pub(crate) fn say(&mut self) -> Result<[u8; HELLO], Broken> {
        let mut hello = [0; HELLO];
        let (magic, message) = hello.split_at_mut(MAGIC.len());
        magic.copy_from_slice(&MAGIC);
        let written = self.noise.write_message(&name(self.me), message).map_err(|_| Broken::Exhausted)?;
        if written == message.len() { Ok(hello) } else { Err(Broken::Protocol) }
    }

    /// The process that says this hello. Of one that connects, nothing is known before its first record.
    pub(crate) fn hear(&mut self, hello: &[u8; HELLO]) -> Result<Process, Broken> {
        let (magic, message) = hello.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(Broken::Protocol);
        }
        let mut name = [0; NAME + TAG];
        if self.noise.read_message(message, &mut name).map_err(|_| Broken::Key)? != NAME {
            return Err(Broken::Protocol);
        }
        let number = u32::from_le_bytes([name[2], name[3], name[4], name[5]]);
        let process = Process { node: u16::from_le_bytes([name[0], name[1]]), number };
        if process == self.me { Err(Broken::Itself) } else { Ok(process) }
    }

    /// Both hellos have been said and heard.
    pub(crate) fn finish(self) -> Result<(Sealer, Opener), Broken> {
        let noise = self.noise.into_stateless_transport_mode().map_err(|_| Broken::Protocol)?;
        let noise = std::sync::Arc::new(noise);
        Ok((Sealer { noise: noise.clone(), next: 0 }, Opener { noise, next: 0, frame: Vec::new() }))
    }
}

/// What a record has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    /// Nothing: the first of the end that connects.
    First = 0,
    /// A part of a frame, behind which there are more.
    Part = 1,
    /// The last part of a frame.
    Last = 2,
    /// Nothing: the stream ends.
    Close = 3,
}

impl Kind {
    fn of(kind: u8) -> Option<Kind> {
        [Kind::First, Kind::Part, Kind::Last, Kind::Close].into_iter().find(|known| *known as u8 == kind)
    }
}

/// Makes the records of one direction.
pub(crate) struct Sealer {
    noise: std::sync::Arc<StatelessTransportState>,
    next: u64,
}

impl Sealer {
    /// Appends a record to `to`.
    fn seal(&mut self, kind: Kind, part: &[u8], to: &mut Vec<u8>) -> Result<(), Broken> {
        self.seal_of_kind(kind as u8, part, to)
    }

    fn seal_of_kind(&mut self, kind: u8, part: &[u8], to: &mut Vec<u8>) -> Result<(), Broken> {
        let plain = [&[kind], part].concat();
        let length = plain.len() + TAG;
        // At most RECORD, by PART.
        to.extend((length as u16).to_le_bytes());
        let at = to.len();
        to.resize(at + length, 0);
        self.noise.write_message(self.next, &plain, &mut to[at..]).map_err(|_| Broken::Exhausted)?;
        self.next += 1;
        Ok(())
    }

    /// The record that the end that connects begins with.
    pub(crate) fn first(&mut self) -> Result<Vec<u8>, Broken> {
        let mut bytes = Vec::new();
        self.seal(Kind::First, &[], &mut bytes)?;
        Ok(bytes)
    }

    /// The records of a frame.
    pub(crate) fn frame(&mut self, frame: &[u8]) -> Result<Vec<u8>, Broken> {
        let mut bytes = Vec::new();
        let mut parts = frame.chunks(PART).peekable();
        while let Some(part) = parts.next() {
            let kind = if parts.peek().is_some() { Kind::Part } else { Kind::Last };
            self.seal(kind, part, &mut bytes)?;
        }
        Ok(bytes)
    }

    /// The record that a stream ends with.
    pub(crate) fn close(&mut self) -> Result<Vec<u8>, Broken> {
        let mut bytes = Vec::new();
        self.seal(Kind::Close, &[], &mut bytes)?;
        Ok(bytes)
    }
}

/// What a record of the other end brings.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    First,
    /// There is no frame yet.
    More,
    Frame(Vec<u8>),
    Close,
}

/// Takes the records of one direction.
pub(crate) struct Opener {
    noise: std::sync::Arc<StatelessTransportState>,
    next: u64,
    /// Parts of a frame.
    frame: Vec<u8>,
}

/// The bytes of a record behind its length.
pub(crate) fn record_length(length: [u8; LENGTH]) -> Result<usize, Broken> {
    let length = usize::from(u16::from_le_bytes(length));
    if (1 + TAG..=RECORD).contains(&length) { Ok(length) } else { Err(Broken::Length(length)) }
}

impl Opener {
    /// Takes the next record, without its length. Frames have at most `longest` bytes.
    pub(crate) fn open(&mut self, record: &[u8], longest: usize) -> Result<Opened, Broken> {
        let mut plain = [0; RECORD];
        let length = self.noise.read_message(self.next, record, &mut plain).map_err(|_| Broken::Record)?;
        self.next += 1;
        let (kind, part) = plain[..length].split_first().ok_or(Broken::Length(record.len()))?;
        let kind = Kind::of(*kind).ok_or(Broken::Kind(*kind))?;
        let empty = matches!(kind, Kind::First | Kind::Close);
        if empty != part.is_empty() || empty && !self.frame.is_empty() {
            return Err(Broken::Length(record.len()));
        }
        if self.frame.len() + part.len() > longest {
            return Err(Broken::Frame(longest));
        }
        match kind {
            Kind::First => Ok(Opened::First),
            Kind::Close => Ok(Opened::Close),
            Kind::Part => {
                self.frame.extend(part);
                Ok(Opened::More)
            }
            Kind::Last => {
                self.frame.extend(part);
                Ok(Opened::Frame(std::mem::take(&mut self.frame)))
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use telegraphos_testkit::Rng;

    const KEY: &[u8] = b"the key of both ends";
    const LONGEST: usize = 100_000;

    fn process(node: u16) -> Process {
        Process { node, number: 0x0102_0304 }
    }

    fn ends() -> [Handshake; 2] {
        [(Side::Connects, 0), (Side::Accepts, 1)].map(|(side, node)| Handshake::new(side, process(node), KEY).unwrap())
    }

    /// Both directions of a connection that connects, and of one that accepts.
    fn connected() -> [(Sealer, Opener); 2] {
        let [mut a, mut b] = ends();
        assert_eq!(b.hear(&a.say().unwrap()), Ok(process(0)));
        assert_eq!(a.hear(&b.say().unwrap()), Ok(process(1)));
        [a, b].map(|end| end.finish().unwrap())
    }

    /// The records in some bytes, without their lengths.
    fn records(mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        while let Some((length, rest)) = bytes.split_first_chunk() {
            let (record, rest) = rest.split_at(record_length(*length).unwrap());
            records.push(record.to_vec());
            bytes = rest;
        }
        records
    }

    #[test]
    fn frames_of_any_length_arrive_and_so_does_the_end() {
        let [(mut to, _), (_, mut from)] = connected();
        let first = to.first().unwrap();
        assert_eq!(from.open(&records(&first)[0], LONGEST), Ok(Opened::First));
        for length in [1, 100, PART - 1, PART, PART + 1, 3 * PART, LONGEST] {
            let frame: Vec<u8> = (0..length).map(|n| (n * 7) as u8).collect();
            let records = records(&to.frame(&frame).unwrap());
            assert!(records.iter().all(|record| record.len() <= RECORD));
            let (last, parts) = records.split_last().unwrap();
            assert!(parts.iter().all(|part| from.open(part, LONGEST) == Ok(Opened::More)));
            assert_eq!(from.open(last, LONGEST), Ok(Opened::Frame(frame)));
        }
        assert_eq!(from.open(&records(&to.close().unwrap())[0], LONGEST), Ok(Opened::Close));
    }

    #[test]
    fn a_hello_of_another_key_version_or_place_is_refused() {
        let [mut a, mut b] = ends();
        let hello = a.say().unwrap();
        for at in 0..HELLO {
            let [_, mut b] = ends();
            let mut changed = hello;
            changed[at] ^= 1;
            let wanted = if at < MAGIC.len() { Broken::Protocol } else { Broken::Key };
            assert_eq!(b.hear(&changed), Err(wanted), "byte {at}");
        }
        let mut other = Handshake::new(Side::Accepts, process(1), b"the key of another end").unwrap();
        assert_eq!(other.hear(&hello), Err(Broken::Key));
        let mut same = Handshake::new(Side::Accepts, process(0), KEY).unwrap();
        assert_eq!(same.hear(&hello), Err(Broken::Itself));
        // Its own, or that of another connection, as an answer.
        assert_eq!(a.hear(&hello), Err(Broken::Key));
        let [mut c, mut d] = ends();
        b.hear(&c.say().unwrap()).unwrap();
        d.hear(&hello).unwrap();
        assert_eq!(c.hear(&d.say().unwrap()), Err(Broken::Key));
    }

    #[test]
    fn a_hello_that_is_repeated_does_not_bring_a_first_record_along() {
        let [mut a, mut b] = ends();
        let hello = a.say().unwrap();
        b.hear(&hello).unwrap();
        a.hear(&b.say().unwrap()).unwrap();
        let first = a.finish().unwrap().0.first().unwrap();
        let [_, mut again] = ends();
        again.hear(&hello).unwrap();
        again.say().unwrap();
        assert_eq!(again.finish().unwrap().1.open(&records(&first)[0], LONGEST), Err(Broken::Record));
    }

    #[test]
    fn a_record_that_is_not_the_next_one_is_refused() {
        let [(mut to, mut back), (_, mut from)] = connected();
        let records: Vec<Vec<u8>> = (1..4).flat_map(|n| records(&to.frame(&[n; 50]).unwrap())).collect();
        assert_eq!(from.open(&records[1], LONGEST), Err(Broken::Record), "one is missing");
        assert_eq!(back.open(&records[0], LONGEST), Err(Broken::Record), "its own");
        for at in 0..records[0].len() {
            let mut changed = records[0].clone();
            changed[at] ^= 0x80;
            assert_eq!(from.open(&changed, LONGEST), Err(Broken::Record), "byte {at}");
        }
        for length in 0..records[0].len() {
            assert!(from.open(&records[0][..length], LONGEST).is_err(), "{length} bytes");
        }
        assert_eq!(from.open(&records[0], LONGEST), Ok(Opened::Frame(vec![1; 50])));
        assert_eq!(from.open(&records[0], LONGEST), Err(Broken::Record), "it is repeated");
        let [_, (_, mut other)] = connected();
        assert_eq!(other.open(&records[0], LONGEST), Err(Broken::Record), "of another connection");
    }

    /// Any sequence of records of a peer with the key, against what the module says.
    #[test]
    fn records_of_any_kind_and_length_are_put_together_or_refused() {
        let mut rng = Rng::new(7);
        let mut random = |below: u64| rng.below(below);
        for round in 0..300 {
            let [(mut to, _), (_, mut from)] = connected();
            let mut frame = Vec::new();
            for _ in 0..20 {
                let (kind, byte) = (random(6) as u8, random(256) as u8);
                let length = [0, 1, random(PART as u64), PART as u64][random(4) as usize] as usize;
                let part = vec![byte; length];
                let mut bytes = Vec::new();
                to.seal_of_kind(kind, &part, &mut bytes).unwrap();
                let opened = from.open(&records(&bytes)[0], LONGEST);
                let expected = match (kind, length) {
                    (0, 0) if frame.is_empty() => Ok(Opened::First),
                    (3, 0) if frame.is_empty() => Ok(Opened::Close),
                    (0 | 3, _) | (1 | 2, 0) => Err(Broken::Length(1 + length + TAG)),
                    (4.., _) => Err(Broken::Kind(kind)),
                    _ if frame.len() + length > LONGEST => Err(Broken::Frame(LONGEST)),
                    (1, _) => Ok(Opened::More),
                    (_, _) => Ok(Opened::Frame([&frame[..], &part].concat())),
                };
                assert_eq!(opened, expected, "round {round}: kind {kind}, {length} bytes");
                match opened {
                    Ok(Opened::More) => frame.extend(part),
                    Ok(Opened::Frame(_)) => frame.clear(),
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
        }
    }

    #[test]
    fn what_a_peer_with_the_key_says_wrong_is_refused() {
        for (kind, part, wrong) in [
            (Kind::Part, &[][..], Broken::Length(1 + TAG)),
            (Kind::Last, &[], Broken::Length(1 + TAG)),
            (Kind::Close, &[1], Broken::Length(2 + TAG)),
            (Kind::First, &[1], Broken::Length(2 + TAG)),
        ] {
            let [(mut to, _), (_, mut from)] = connected();
            let mut bytes = Vec::new();
            to.seal(kind, part, &mut bytes).unwrap();
            assert_eq!(from.open(&records(&bytes)[0], LONGEST), Err(wrong));
        }
        let [(mut to, _), (_, mut from)] = connected();
        let long = records(&to.frame(&vec![0; LONGEST + 1]).unwrap());
        let opened: Vec<_> = long.iter().map(|record| from.open(record, LONGEST)).collect();
        assert_eq!(opened.last(), Some(&Err(Broken::Frame(LONGEST))));
        for length in [0, TAG, RECORD + 1, 0xffff] {
            assert_eq!(record_length((length as u16).to_le_bytes()), Err(Broken::Length(length)));
        }
    }
}
