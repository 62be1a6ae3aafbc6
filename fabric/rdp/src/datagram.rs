// SPDX-License-Identifier: MIT OR Apache-2.0
//! The format of a datagram. All numbers are little-endian.
//!
//! | Byte | Length | Field |
//! |---|---|---|
//! | 0 | 1 | [`VERSION`] |
//! | 1 | 1 | [`Kind`] |
//! | 2 | 2 | bytes of payload: the datagram is exactly that many longer than the header |
//! | 4 | 4 | CRC-32C (Castagnoli) of the whole datagram, with these four bytes zero |
//! | 8 | 8 | `to`: the receiver's id of the connection; 0 in [`Kind::Open`], which requests one |
//! | 16 | 8 | `from`: the sender's id of the connection, never 0 |
//! | 24 | 4 | `sequence`: number of this segment; in a datagram without one, of the next new segment |
//! | 28 | 4 | `acknowledge`: number of the segment expected next; all before it have been received |
//! | 32 | 4 | `stamp`: the sender's clock, microseconds, never 0 |
//! | 36 | 4 | `echo`: the stamp that this answers, or 0 |
//! | 40 | 2 | `round`: how often the sender has gone back; in a NACK, the round of the datagram that it refuses |
//! | 42 | 1 | flags: bit 0 [`Datagram::ask`], bit 1 [`Datagram::deliberate`]; others 0 |
//! | 43 | 1 | 0 |
//! | 44 | | payload |
//!
//! The payload of [`Kind::Open`] and [`Kind::Accept`] is a greeting:
//!
//! | Byte | Length | Field |
//! |---|---|---|
//! | 0 | 2 | the most segments that may be in flight to the sender of the greeting |
//! | 2 | 2 | the most payload bytes that it accepts in a segment |
//! | 4 | 8 | name of the side that opens (0: none); 0 in [`Kind::Accept`] |

use crate::sequence::Sequence;

/// The protocol's version, the first byte of each datagram.
pub const VERSION: u8 = 1;
/// Bytes before the payload.
pub const HEADER_LEN: usize = 44;
/// The longest payload, so that a datagram fits UDP's (65507 bytes over IPv4).
pub const MAX_PAYLOAD: usize = 65_000;
/// Bytes of a greeting.
pub(crate) const GREETING_LEN: usize = 12;

const ASK: u8 = 1;
const DELIBERATE: u8 = 2;

/// The kind of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Requests a new connection; carries a greeting and the first sequence number.
    Open = 1,
    /// The answer to [`Kind::Open`]: greeting, id, first sequence number; `acknowledge` is that of the Open.
    Accept = 2,
    /// A segment of the byte stream, of at least one byte.
    Data = 3,
    /// The segment behind the last: no more bytes follow.
    Finish = 4,
    /// Nothing but the fields of the header.
    Acknowledge = 5,
    /// Sequence NACK: a segment other than the expected one arrived. The sender must go back to the expected one.
    NackSequence = 6,
    /// Capacity NACK: the expected segment arrived and there is no room for it. The sender must pause.
    NackCapacity = 7,
    /// There is room again.
    Room = 8,
    /// Checks that the other side is alive. Answered by [`Kind::Acknowledge`].
    Probe = 9,
    /// The connection of these ids does not exist here, or was aborted. Never answered.
    Reset = 10,
}

impl Kind {
    fn from_u8(value: u8) -> Option<Kind> {
        use Kind::*;
        let all = [Open, Accept, Data, Finish, Acknowledge, NackSequence, NackCapacity, Room, Probe, Reset];
        all.into_iter().find(|kind| *kind as u8 == value)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    pub kind: Kind,
    /// The receiver's id of the connection.
    pub to: u64,
    /// The sender's id of the connection.
    pub from: u64,
    /// Number of the segment, or of the next.
    pub sequence: Sequence,
    /// Number of the segment expected next.
    pub acknowledge: Sequence,
    pub stamp: u32,
    /// The stamp answered, or 0.
    pub echo: u32,
    /// The sender's round, or the round refused.
    pub round: u16,
    /// The sender can send no more before this is acknowledged: the acknowledgement must not be delayed.
    pub ask: bool,
    /// Of a [`Kind::Reset`]: the connection was aborted on purpose, not unknown.
    pub deliberate: bool,
    pub payload: &'a [u8],
}

/// Why bytes are no valid datagram; such are discarded and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discard {
    /// Shorter than the header.
    Short,
    /// The length field and the length differ.
    Length,
    Checksum,
    /// The checksum is right, but the version is another one.
    Version(u8),
    /// The checksum is right, but a field is invalid: unknown kind or flag, or a payload of the wrong size.
    Malformed,
}

/// The bytes at `at`; 0 if they are not there.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..at + N).and_then(|b| b.try_into().ok()).unwrap_or([0; N])
}

/// CRC-32C of a datagram of at least [`HEADER_LEN`] bytes, its checksum field taken as zero.
fn checksum(bytes: &[u8]) -> u32 {
    let head = crc32c::crc32c(&bytes[..4]);
    crc32c::crc32c_append(crc32c::crc32c_append(head, &[0; 4]), &bytes[8..])
}

/// The payload of a datagram, if the length is the one in the header.
fn payload(bytes: &[u8]) -> Result<&[u8], Discard> {
    let payload = bytes.get(HEADER_LEN..).ok_or(Discard::Short)?;
    if payload.len() != usize::from(u16::from_le_bytes(field(bytes, 2))) {
        return Err(Discard::Length);
    }
    Ok(payload)
}

impl<'a> Datagram<'a> {
    /// A datagram without segment, payload and flags, sent at `now` (microseconds).
    pub(crate) fn bare(kind: Kind, to: u64, from: u64, now: u64) -> Datagram<'a> {
        Datagram {
            kind,
            to,
            from,
            sequence: Sequence(0),
            acknowledge: Sequence(0),
            // 0 means that there is no stamp.
            stamp: (now as u32).max(1),
            echo: 0,
            round: 0,
            ask: false,
            deliberate: false,
            payload: &[],
        }
    }

    /// Decodes a whole datagram: SPEC item 35, "CRC, minimum length and length mismatch".
    ///
    /// # Errors
    /// Why it must be discarded; lengths are checked first, then the checksum, then the fields.
    pub fn parse(bytes: &'a [u8]) -> Result<Datagram<'a>, Discard> {
        payload(bytes)?;
        if checksum(bytes) != u32::from_le_bytes(field(bytes, 4)) {
            return Err(Discard::Checksum);
        }
        Datagram::decode(bytes)
    }

    /// The same without the checksum.
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Datagram<'a>, Discard> {
        let payload = payload(bytes)?;
        if bytes[0] != VERSION {
            return Err(Discard::Version(bytes[0]));
        }
        let flags = bytes[42];
        let datagram = Datagram {
            kind: Kind::from_u8(bytes[1]).ok_or(Discard::Malformed)?,
            to: u64::from_le_bytes(field(bytes, 8)),
            from: u64::from_le_bytes(field(bytes, 16)),
            sequence: Sequence(u32::from_le_bytes(field(bytes, 24))),
            acknowledge: Sequence(u32::from_le_bytes(field(bytes, 28))),
            stamp: u32::from_le_bytes(field(bytes, 32)),
            echo: u32::from_le_bytes(field(bytes, 36)),
            round: u16::from_le_bytes(field(bytes, 40)),
            ask: flags & ASK != 0,
            deliberate: flags & DELIBERATE != 0,
            payload,
        };
        let fits = match datagram.kind {
            Kind::Open | Kind::Accept => payload.len() == GREETING_LEN,
            Kind::Data => !payload.is_empty() && payload.len() <= MAX_PAYLOAD,
            _ => payload.is_empty(),
        };
        let addressed = datagram.from != 0 && (datagram.kind == Kind::Open) == (datagram.to == 0);
        if !fits || !addressed || datagram.stamp == 0 || flags & !(ASK | DELIBERATE) != 0 || bytes[43] != 0 {
            return Err(Discard::Malformed);
        }
        Ok(datagram)
    }

    /// Replaces the contents of `out` by the encoded datagram. The payload has at most [`MAX_PAYLOAD`] bytes; more are
    /// cut off.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let payload = &self.payload[..self.payload.len().min(MAX_PAYLOAD)];
        out.clear();
        out.extend_from_slice(&[VERSION, self.kind as u8]);
        out.extend_from_slice(&(payload.len() as u16).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.to.to_le_bytes());
        out.extend_from_slice(&self.from.to_le_bytes());
        out.extend_from_slice(&self.sequence.0.to_le_bytes());
        out.extend_from_slice(&self.acknowledge.0.to_le_bytes());
        out.extend_from_slice(&self.stamp.to_le_bytes());
        out.extend_from_slice(&self.echo.to_le_bytes());
        out.extend_from_slice(&self.round.to_le_bytes());
        out.extend_from_slice(&[(u8::from(self.ask) * ASK) | (u8::from(self.deliberate) * DELIBERATE), 0]);
        out.extend_from_slice(payload);
        let sum = checksum(out);
        out[4..8].copy_from_slice(&sum.to_le_bytes());
    }
}

/// What each side announces in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) window: u16,
    pub(crate) mtu: u16,
    pub(crate) name: u64,
}

impl Greeting {
    /// The payload of an Open or Accept.
    pub(crate) fn encode(self) -> [u8; GREETING_LEN] {
        let mut out = [0; GREETING_LEN];
        out[..2].copy_from_slice(&self.window.to_le_bytes());
        out[2..4].copy_from_slice(&self.mtu.to_le_bytes());
        out[4..].copy_from_slice(&self.name.to_le_bytes());
        out
    }

    /// `None` if the length is wrong, or the window or the payload size is 0.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Greeting> {
        let greeting = Greeting {
            window: u16::from_le_bytes(field(bytes, 0)),
            mtu: u16::from_le_bytes(field(bytes, 2)),
            name: u64::from_le_bytes(field(bytes, 4)),
        };
        (bytes.len() == GREETING_LEN && greeting.window > 0 && greeting.mtu > 0).then_some(greeting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(payload: &[u8]) -> Datagram<'_> {
        Datagram {
            kind: Kind::Data,
            to: 0x1122_3344_5566_7788,
            from: 0x99aa_bbcc_ddee_ff00,
            sequence: Sequence(0xffff_fff0),
            acknowledge: Sequence(5),
            stamp: 77,
            echo: 78,
            round: 9,
            ask: true,
            deliberate: false,
            payload,
        }
    }

    #[test]
    fn the_table_above_is_what_is_written() {
        let mut bytes = Vec::new();
        sample(b"xyz").encode(&mut bytes);
        assert_eq!(bytes.len(), 47);
        assert_eq!(bytes[..4], [1, 3, 3, 0]);
        assert_eq!(bytes[8..16], [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        assert_eq!(bytes[16..24], [0x00, 0xff, 0xee, 0xdd, 0xcc, 0xbb, 0xaa, 0x99]);
        assert_eq!(bytes[24..28], [0xf0, 0xff, 0xff, 0xff]);
        assert_eq!(bytes[28..44], [5, 0, 0, 0, 77, 0, 0, 0, 78, 0, 0, 0, 9, 0, 1, 0]);
        assert_eq!(&bytes[44..], b"xyz");
        // The checksum by its definition, one bit at a time: reflected polynomial 0x82f63b78.
        let mut zeroed = bytes.clone();
        zeroed[4..8].fill(0);
        let sum = !zeroed.iter().fold(u32::MAX, |sum, byte| {
            (0..8).fold(sum ^ u32::from(*byte), |s, _| if s & 1 == 1 { (s >> 1) ^ 0x82f6_3b78 } else { s >> 1 })
        });
        assert_eq!(bytes[4..8], sum.to_le_bytes());
        assert_eq!(Datagram::parse(&bytes), Ok(sample(b"xyz")));
    }

    #[test]
    fn damaged_datagrams_are_discarded() {
        let mut bytes = Vec::new();
        sample(b"payload").encode(&mut bytes);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let expected = if (16..32).contains(&bit) { Discard::Length } else { Discard::Checksum };
            assert_eq!(Datagram::parse(&damaged), Err(expected), "bit {bit}");
        }
        for len in 0..bytes.len() {
            let expected = if len < HEADER_LEN { Discard::Short } else { Discard::Length };
            assert_eq!(Datagram::parse(&bytes[..len]), Err(expected), "{len} bytes");
        }
        bytes.push(0);
        assert_eq!(Datagram::parse(&bytes), Err(Discard::Length));
    }

    #[test]
    fn whole_datagrams_with_invalid_fields_are_discarded() {
        let discarded = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = Vec::new();
            sample(b"payload").encode(&mut bytes);
            change(&mut bytes);
            let sum = checksum(&bytes);
            bytes[4..8].copy_from_slice(&sum.to_le_bytes());
            Datagram::parse(&bytes).expect_err("must be discarded")
        };
        assert_eq!(discarded(&|b| b[0] = 2), Discard::Version(2));
        assert_eq!(discarded(&|b| b[1] = 0), Discard::Malformed);
        assert_eq!(discarded(&|b| b[1] = 11), Discard::Malformed);
        assert_eq!(discarded(&|b| b[1] = Kind::Acknowledge as u8), Discard::Malformed);
        assert_eq!(discarded(&|b| b[1] = Kind::Open as u8), Discard::Malformed);
        assert_eq!(discarded(&|b| b[8..16].fill(0)), Discard::Malformed);
        assert_eq!(discarded(&|b| b[16..24].fill(0)), Discard::Malformed);
        assert_eq!(discarded(&|b| b[32..36].fill(0)), Discard::Malformed);
        assert_eq!(discarded(&|b| b[42] = 4), Discard::Malformed);
        assert_eq!(discarded(&|b| b[43] = 1), Discard::Malformed);
    }
}
