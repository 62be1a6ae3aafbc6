// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is captured and is no frame: the other events and actions of a switch, as small records that look like frames
//! of kinds that no link carries ([`FIRST_RECORD_KIND`]), so that one dissector reads both.

use telegraphos_fabric_core::{Event, PortId};
use telegraphos_topology::TrunkId;
use telegraphos_wire::layout::{Check, Field, Kind, Show, Tail};
use telegraphos_wire::link::{FIRST_RECORD_KIND, HEAD_LEN};

/// Version of the records, in the place of a frame's.
pub const RECORD_VERSION: u8 = 2;

const OPENED: u8 = FIRST_RECORD_KIND;
const TRUNK_OPENED: u8 = FIRST_RECORD_KIND + 1;
const ROOM: u8 = FIRST_RECORD_KIND + 2;
const MALFORMED: u8 = FIRST_RECORD_KIND + 3;
const CLOSED: u8 = FIRST_RECORD_KIND + 4;
const TICK: u8 = FIRST_RECORD_KIND + 5;
const CLOSE: u8 = FIRST_RECORD_KIND + 6;
const NOTICE: u8 = FIRST_RECORD_KIND + 7;
const COMMENT: u8 = FIRST_RECORD_KIND + 8;
const GAP: u8 = FIRST_RECORD_KIND + 9;
const END: u8 = FIRST_RECORD_KIND + 10;
const STATE: u8 = FIRST_RECORD_KIND + 11;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// [`Event::PortOpened`].
    Opened {
        port: PortId,
        room: u32,
        /// The longest block on it.
        block: u32,
    },
    /// [`Event::TrunkOpened`].
    TrunkOpened { port: PortId, room: u32, trunk: TrunkId },
    /// [`Event::Tick`], its time.
    Tick(u64),
    /// [`Event::PortRoom`].
    Room { port: PortId, room: u32 },
    /// [`Event::PortClosed`].
    Closed(PortId),
    /// [`Event::Malformed`] and the bytes, as far as they were at hand.
    Malformed { port: PortId, bytes: Vec<u8> },
    /// The switch ends a connection.
    Close(PortId),
    /// A `Diagnostic` of the switch, as Rust's `Debug` writes it.
    Notice(String),
    /// A comment of another part: a fault, a drop.
    Comment(String),
    /// So many records are missing here: the file could not take them fast enough.
    Gap(u64),
    /// The capture ends here, whole, after so many records.
    End(u64),
    /// A piece of the state that a switch had when the capture began, in JSON.
    State {
        /// Pieces that follow.
        more: u32,
        text: String,
    },
}

const fn kind(number: u8, name: &'static str, len: usize, fields: &'static [Field], tail: Tail) -> Kind {
    Kind { number, name, class: None, len, fields, check: Check::None, tail }
}

const PORT: Field = Field { name: "port", at: 0, len: 4, show: Show::Dec };
const ROOM_FIELD: Field = Field { name: "room", at: 4, len: 4, show: Show::Dec };
const BLOCK: Field = Field { name: "longest_block", at: 8, len: 4, show: Show::Dec };
const MISSING: Field = Field { name: "missing", at: 0, len: 8, show: Show::Dec };

/// Where their fields are, as those of frames in [`telegraphos_wire::layout`].
pub const RECORDS: &[Kind] = &[
    kind(OPENED, "port-opened", 12, &[PORT, ROOM_FIELD, BLOCK], Tail::None),
    kind(
        TRUNK_OPENED,
        "trunk-opened",
        12,
        &[PORT, ROOM_FIELD, Field { name: "trunk", at: 8, len: 2, show: Show::Dec }],
        Tail::None,
    ),
    kind(ROOM, "port-room", 8, &[PORT, ROOM_FIELD], Tail::None),
    kind(MALFORMED, "no-frame", 4, &[PORT], Tail::Bytes),
    kind(CLOSED, "port-closed", 4, &[PORT], Tail::None),
    kind(TICK, "tick", 8, &[Field { name: "now", at: 0, len: 8, show: Show::Dec }], Tail::None),
    kind(CLOSE, "close", 4, &[PORT], Tail::None),
    kind(NOTICE, "notice", 0, &[], Tail::Text),
    kind(COMMENT, "comment", 0, &[], Tail::Text),
    kind(GAP, "gap", 8, &[MISSING], Tail::None),
    kind(END, "end", 8, &[Field { name: "records", at: 0, len: 8, show: Show::Dec }], Tail::None),
    kind(STATE, "state", 4, &[Field { name: "more", at: 0, len: 4, show: Show::Dec }], Tail::Text),
];

/// Bytes that are no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("record kind {0:#x} is unknown: expected one of this version of telegraphos")]
    Kind(u8),
    #[error("record version {0}: expected {RECORD_VERSION}")]
    Version(u8),
    /// Too short, or not as long as it says.
    #[error("record of {0} bytes, which is not the length of its kind")]
    Length(usize),
}

impl Record {
    /// Appends the record to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let halves = |long: &u64| [*long as u32, (*long >> 32) as u32];
        let (kind, words, tail): (u8, &[u32], &[u8]) = match self {
            Record::Opened { port, room, block } => (OPENED, &[*port, *room, *block], &[]),
            Record::TrunkOpened { port, room, trunk } => (TRUNK_OPENED, &[*port, *room, u32::from(*trunk)], &[]),
            Record::Tick(now) => (TICK, &halves(now), &[]),
            Record::Room { port, room } => (ROOM, &[*port, *room], &[]),
            Record::Closed(port) => (CLOSED, &[*port], &[]),
            Record::Malformed { port, bytes } => (MALFORMED, &[*port], bytes),
            Record::Close(port) => (CLOSE, &[*port], &[]),
            Record::Notice(text) => (NOTICE, &[], text.as_bytes()),
            Record::Comment(text) => (COMMENT, &[], text.as_bytes()),
            Record::Gap(missing) => (GAP, &halves(missing), &[]),
            Record::End(records) => (END, &halves(records), &[]),
            Record::State { more, text } => (STATE, &[*more], text.as_bytes()),
        };
        let length = (HEAD_LEN + 4 * words.len() + tail.len()) as u32;
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&[kind, RECORD_VERSION, 0, 0]);
        words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        out.extend_from_slice(tail);
    }

    /// The record of an event; a frame is captured as it is.
    pub fn of(event: &Event) -> Option<Record> {
        Some(match *event {
            Event::PortOpened { port, room, block } => Record::Opened { port, room, block },
            Event::TrunkOpened { port, room, trunk } => Record::TrunkOpened { port, room, trunk },
            Event::Tick { now } => Record::Tick(now),
            Event::PortRoom { port, frames } => Record::Room { port, room: frames },
            Event::Malformed { port } => Record::Malformed { port, bytes: Vec::new() },
            Event::PortClosed { port } => Record::Closed(port),
            Event::Frame { .. } => return None,
        })
    }

    /// The event it was, if any.
    pub fn event(&self) -> Option<Event> {
        Some(match *self {
            Record::Opened { port, room, block } => Event::PortOpened { port, room, block },
            Record::TrunkOpened { port, room, trunk } => Event::TrunkOpened { port, room, trunk },
            Record::Tick(now) => Event::Tick { now },
            Record::Room { port, room } => Event::PortRoom { port, frames: room },
            Record::Malformed { port, .. } => Event::Malformed { port },
            Record::Closed(port) => Event::PortClosed { port },
            Record::Close(_)
            | Record::Notice(_)
            | Record::Comment(_)
            | Record::Gap(_)
            | Record::End(_)
            | Record::State { .. } => return None,
        })
    }

    /// Whether these are the bytes of a record, not of a frame.
    pub fn is_record(bytes: &[u8]) -> bool {
        bytes.get(4).is_some_and(|kind| *kind >= FIRST_RECORD_KIND)
    }

    /// Parses a record.
    pub fn decode(bytes: &[u8]) -> Result<Record, RecordError> {
        let wrong = RecordError::Length(bytes.len());
        let (Some(head), Some(body)) = (bytes.get(..HEAD_LEN), bytes.get(HEAD_LEN..)) else { return Err(wrong) };
        let (number, version) = (head[4], head[5]);
        if version != RECORD_VERSION {
            return Err(RecordError::Version(version));
        }
        let Some(kind) = RECORDS.iter().find(|kind| kind.number == number) else {
            return Err(RecordError::Kind(number));
        };
        let longer_is_fine = matches!(kind.tail, Tail::Text | Tail::Bytes);
        let says = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        if says != bytes.len() || body.len() < kind.len || body.len() > kind.len && !longer_is_fine {
            return Err(wrong);
        }
        let word = |at: usize| body.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let long = || u64::from(word(0)) | u64::from(word(4)) << 32;
        let text = || String::from_utf8_lossy(&body[kind.len..]).into_owned();
        Ok(match number {
            OPENED => Record::Opened { port: word(0), room: word(4), block: word(8) },
            TRUNK_OPENED => Record::TrunkOpened { port: word(0), room: word(4), trunk: word(8) as u16 },
            TICK => Record::Tick(long()),
            ROOM => Record::Room { port: word(0), room: word(4) },
            MALFORMED => Record::Malformed { port: word(0), bytes: body[kind.len..].to_vec() },
            CLOSED => Record::Closed(word(0)),
            CLOSE => Record::Close(word(0)),
            NOTICE => Record::Notice(text()),
            COMMENT => Record::Comment(text()),
            GAP => Record::Gap(long()),
            END => Record::End(long()),
            STATE => Record::State { more: word(0), text: text() },
            other => return Err(RecordError::Kind(other)),
        })
    }

    /// What it says, for people: the comment in the capture.
    pub(crate) fn describe(&self) -> Option<String> {
        Some(match self {
            Record::Opened { port, room, block } => {
                format!("port {port} opened with {} and blocks of at most {block} bytes", room_text(*room))
            }
            Record::TrunkOpened { port, room, trunk } => {
                format!("port {port} opened for trunk {trunk} with {}", room_text(*room))
            }
            // Often, and it says nothing.
            Record::Tick(_) => return None,
            Record::Room { room, .. } => room_text(*room),
            Record::Closed(port) => format!("port {port} closed"),
            Record::Malformed { port, .. } => format!("bytes that are no frame on port {port}"),
            Record::Close(port) => format!("the switch closes port {port}"),
            Record::Notice(text) | Record::Comment(text) => text.clone(),
            Record::Gap(missing) => format!("{missing} records are missing here: the file was not written fast enough"),
            Record::End(_) => "end of the capture".into(),
            Record::State { more, .. } => format!("state of the switch when the capture began, {more} more records"),
        })
    }
}

fn room_text(frames: u32) -> String {
    if frames == telegraphos_fabric_core::UNLIMITED { "unlimited room".into() } else { format!("room {frames}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn records() -> impl Strategy<Value = Record> {
        prop_oneof![
            any::<(u32, u32, u32)>().prop_map(|(port, room, block)| Record::Opened { port, room, block }),
            any::<(u32, u32)>().prop_map(|(port, room)| Record::Room { port, room }),
            any::<(u32, u32, u16)>().prop_map(|(port, room, trunk)| Record::TrunkOpened { port, room, trunk }),
            any::<u64>().prop_map(Record::Tick),
            any::<u32>().prop_map(Record::Closed),
            (any::<u32>(), prop::collection::vec(any::<u8>(), 0..20))
                .prop_map(|(port, bytes)| Record::Malformed { port, bytes }),
            any::<u32>().prop_map(Record::Close),
            ".*".prop_map(Record::Notice),
            ".*".prop_map(Record::Comment),
            any::<u64>().prop_map(Record::Gap),
            any::<u64>().prop_map(Record::End),
            (any::<u32>(), ".*").prop_map(|(more, text)| Record::State { more, text }),
        ]
    }

    proptest! {
        #[test]
        fn decode_inverts_encode_and_no_cut_is_taken_for_whole(record in records()) {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            prop_assert!(Record::is_record(&bytes));
            prop_assert_eq!(Record::decode(&bytes), Ok(record));
            for cut in 0..bytes.len() {
                prop_assert!(Record::decode(&bytes[..cut]).is_err());
            }
        }

        #[test]
        fn no_bytes_make_it_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..40), kind in FIRST_RECORD_KIND..) {
            let _ = Record::decode(&bytes);
            if bytes.len() >= HEAD_LEN {
                bytes[4] = kind;
                bytes[5] = RECORD_VERSION;
                let length = bytes.len() as u32;
                bytes[..4].copy_from_slice(&length.to_le_bytes());
                let _ = Record::decode(&bytes);
            }
        }
    }
}
