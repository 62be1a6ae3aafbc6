// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is captured and is no frame: the other events and actions of a switch, as small records that look like frames
//! of kinds that no link carries ([`FIRST_RECORD_KIND`]), so that one dissector reads both.

use telegraphos_fabric_core::{Event, PortId};
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
    /// An event, and of [`Event::Malformed`] the bytes, as far as they were at hand. One that is a frame is no record:
    /// it is captured as it is.
    Event(Event, Vec<u8>),
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
            Record::Event(event, bytes) => match event {
                Event::PortOpened { port, room, block } => (OPENED, &[*port, *room, *block], &[]),
                Event::TrunkOpened { port, room, trunk } => (TRUNK_OPENED, &[*port, *room, u32::from(*trunk)], &[]),
                Event::Tick { now } => (TICK, &halves(now), &[]),
                Event::PortRoom { port, frames } => (ROOM, &[*port, *frames], &[]),
                Event::PortClosed { port } => (CLOSED, &[*port], &[]),
                Event::Malformed { port } => (MALFORMED, &[*port], bytes),
                Event::Frame { frame, .. } => {
                    frame.encode(out);
                    return;
                }
            },
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
        let event = |event| Record::Event(event, Vec::new());
        Ok(match number {
            OPENED => event(Event::PortOpened { port: word(0), room: word(4), block: word(8) }),
            TRUNK_OPENED => event(Event::TrunkOpened { port: word(0), room: word(4), trunk: word(8) as u16 }),
            TICK => event(Event::Tick { now: long() }),
            ROOM => event(Event::PortRoom { port: word(0), frames: word(4) }),
            MALFORMED => Record::Event(Event::Malformed { port: word(0) }, body[kind.len..].to_vec()),
            CLOSED => event(Event::PortClosed { port: word(0) }),
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
            Record::Event(Event::PortOpened { port, room, block }, _) => {
                format!("port {port} opened with {} and blocks of at most {block} bytes", room_text(*room))
            }
            Record::Event(Event::TrunkOpened { port, room, trunk }, _) => {
                format!("port {port} opened for trunk {trunk} with {}", room_text(*room))
            }
            // Often, and it says nothing.
            Record::Event(Event::Tick { .. } | Event::Frame { .. }, _) => return None,
            Record::Event(Event::PortRoom { frames, .. }, _) => room_text(*frames),
            Record::Event(Event::PortClosed { port }, _) => format!("port {port} closed"),
            Record::Event(Event::Malformed { port }, _) => format!("bytes that are no frame on port {port}"),
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
        fn event(event: Event) -> Record {
            Record::Event(event, Vec::new())
        }
        prop_oneof![
            any::<(u32, u32, u32)>().prop_map(|(port, room, block)| event(Event::PortOpened { port, room, block })),
            any::<(u32, u32)>().prop_map(|(port, frames)| event(Event::PortRoom { port, frames })),
            any::<(u32, u32, u16)>().prop_map(|(port, room, trunk)| event(Event::TrunkOpened { port, room, trunk })),
            any::<u64>().prop_map(|now| event(Event::Tick { now })),
            any::<u32>().prop_map(|port| event(Event::PortClosed { port })),
            (any::<u32>(), prop::collection::vec(any::<u8>(), 0..20))
                .prop_map(|(port, bytes)| Record::Event(Event::Malformed { port }, bytes)),
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
