// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the fields of frames and packets are, as tables: what the Wireshark dissector and docs/packets.md are
//! generated from.
//!
//! The tables of kinds come from the declarations of [`Frame`](crate::link::Frame) and [`Body`](crate::Body), as their
//! encoding does.

use crate::link::{self, HEAD_LEN};
use crate::packet::{self, HEADER_LEN, MAX_BLOCK};
use crate::{Class, Status};

/// How a field is to be read and shown. All integers are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// A decimal number.
    Dec,
    /// A hexadecimal number.
    Hex,
    /// 0 or not.
    Flag,
    /// A node id, [`MULTICAST`](packet::MULTICAST) or [`NO_NODE`](packet::NO_NODE).
    Node,
    /// A [`Class`].
    Class,
    /// A [`Status`].
    Status,
    /// A [`Refusal`](crate::link::Refusal).
    Refusal,
    /// [`Rights`](crate::Rights).
    Rights,
    /// An [`AtomicOp`](crate::AtomicOp).
    Atomic,
    /// Text, padded with NUL.
    Text,
    /// Bytes.
    Bytes,
}

/// One field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name, a word that a display filter can have: `telegraphos.page`. A name means the same, in the same way of
    /// showing, wherever it occurs.
    pub name: &'static str,
    /// Bytes from the start of the frame's body or of the packet.
    pub at: usize,
    /// Bytes.
    pub len: usize,
    /// How to read it.
    pub show: Show,
}

/// What follows the fixed part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// Nothing.
    None,
    /// A packet.
    Packet,
    /// Node ids of 2 bytes to the end, ascending, at most [`MAX_MEMBERS`](link::MAX_MEMBERS).
    Members,
    /// As many node ids as the field `count` says, ascending, then a packet.
    MembersAndPacket,
    /// As many bytes as the field `length` says, at most [`MAX_BLOCK`].
    Block,
    /// Text to the end.
    Text,
    /// Bytes to the end.
    Bytes,
}

/// What must hold of an access besides its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Nothing.
    None,
    /// `size` is 1, 2, 4 or 8; `offset` is a multiple of it and the access within one unit.
    Access,
    /// The same, and `size` is 4 or 8.
    Word,
    /// `length` is 1 to [`MAX_BLOCK`], and the block within one unit from `offset`.
    Block,
}

/// One kind of frame or packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Its number.
    pub number: u8,
    /// Its name, as in logs.
    pub name: &'static str,
    /// The class of a packet.
    pub class: Option<Class>,
    /// Bytes of the fixed part: a frame's behind the head, a packet's with the header.
    pub len: usize,
    /// The fields in the fixed part that the kind has besides the head or header.
    pub fields: &'static [Field],
    /// What must hold of them.
    pub check: Check,
    /// What follows.
    pub tail: Tail,
}

/// A field.
pub(crate) const fn field(name: &'static str, at: usize, len: usize, show: Show) -> Field {
    Field { name, at, len, show }
}

pub use crate::link::FRAMES;
pub use crate::packet::PACKETS;

/// Each frame begins with these.
pub const HEAD: &[Field] =
    &[field("frame_length", 0, 4, Show::Dec), field("kind", 4, 1, Show::Dec), field("version", 5, 1, Show::Dec)];

/// Each packet begins with these. Requests have [`TARGET`] besides.
pub const HEADER: &[Field] = &[
    field("packet_version", 0, 1, Show::Dec),
    field("packet_kind", 1, 1, Show::Hex),
    field("src", 4, 2, Show::Node),
    field("dst", 6, 2, Show::Node),
    field("tag", 8, 4, Show::Dec),
    field("incarnation", 56, 8, Show::Hex),
];

/// In packets of all classes but [`Class::Reply`].
pub const TARGET: &[Field] = &[field("target_low", 40, 4, Show::Hex), field("target_high", 12, 4, Show::Hex)];

/// Numbers that a reader of frames needs: name, value, what it is.
pub const CONSTANTS: &[(&str, u64)] = &[
    ("PROTOCOL_VERSION", crate::PROTOCOL_VERSION as u64),
    ("HEAD_LEN", HEAD_LEN as u64),
    ("HEADER_LEN", HEADER_LEN as u64),
    ("MAX_LEN", link::MAX_LEN as u64),
    ("MAX_BLOCK", MAX_BLOCK as u64),
    ("MAX_MEMBERS", link::MAX_MEMBERS as u64),
    ("MAX_LAYERS", link::MAX_LAYERS as u64),
    ("UNIT", crate::UNIT),
    ("MULTICAST", packet::MULTICAST as u64),
    ("NO_NODE", packet::NO_NODE as u64),
    ("HELLO", link::HELLO as u64),
    ("TRUNK", link::TRUNK as u64),
];

/// Names of the values of a field shown so, in ascending order.
pub fn values(show: Show) -> alloc::vec::Vec<(u64, alloc::string::String)> {
    use alloc::string::ToString;
    let numbers = |of: &dyn Fn(u64) -> Option<alloc::string::String>| {
        (0..0x100).filter_map(|number| Some((number, of(number)?))).collect()
    };
    match show {
        Show::Class => numbers(&|n| Class::from_u8(n as u8).map(|class| alloc::format!("{class:?}"))),
        Show::Atomic => numbers(&|n| crate::AtomicOp::from_u8(n as u8).map(|op| alloc::format!("{op:?}"))),
        Show::Refusal => numbers(&|n| {
            // Every number is read as some refusal; its own is what it is written as.
            let refusal = link::Refusal::from_u16(n as u16);
            (refusal as u64 == n).then(|| alloc::format!("{refusal:?}"))
        }),
        Show::Status => Status::ALL
            .iter()
            .map(|(_, number, _)| (*number, Status::from_u16(*number as u16)))
            .map(|(number, status)| (number, alloc::format!("{status:?}")))
            .collect(),
        Show::Rights => crate::Rights::NAMES
            .iter()
            .map(|(name, bit, _)| (*bit, name.trim_start_matches("TG_RIGHT_").to_ascii_lowercase().to_string()))
            .collect(),
        _ => alloc::vec::Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Frame;
    use crate::{PROTOCOL_VERSION, Packet};
    use alloc::vec;

    /// Of all kinds that decode knows, the tables know each, and no other.
    #[test]
    fn every_kind_is_in_the_tables_and_no_other() {
        for kind in 0..=u8::MAX {
            // A kind that is known complains of something else, or of nothing.
            let mut packet = vec![0; HEADER_LEN];
            (packet[0], packet[1]) = (PROTOCOL_VERSION, kind);
            let known = Packet::decode(&packet) != Err(crate::packet::PacketError::Kind(kind));
            assert_eq!(known, PACKETS.iter().any(|k| k.number == kind), "packet kind {kind:#x}");
            // A frame so short is of a wrong length, if its kind is known, but for those without a body.
            let frame = vec![9, 0, 0, 0, kind, PROTOCOL_VERSION, 0, 0, 0];
            let known = Frame::decode(&frame) != Err(link::FrameError::Kind(kind));
            assert_eq!(known, FRAMES.iter().any(|k| k.number == kind), "frame kind {kind}");
            assert!(!known || kind < link::FIRST_RECORD_KIND);
        }
    }

    #[test]
    fn no_field_leaves_its_kind_and_no_two_overlap() {
        for (kinds, common) in [(FRAMES, &[][..]), (PACKETS, HEADER)] {
            for kind in kinds {
                let target = kind.class.filter(|class| *class != Class::Reply).map_or(&[][..], |_| TARGET);
                let mut used = vec![false; kind.len];
                for field in common.iter().chain(target).chain(kind.fields) {
                    for byte in &mut used[field.at..field.at + field.len] {
                        assert!(!*byte, "{}: {}", kind.name, field.name);
                        *byte = true;
                    }
                }
            }
        }
    }

    /// Wireshark has one field for a name.
    #[test]
    fn a_name_is_shown_in_one_way() {
        let all = || FRAMES.iter().chain(PACKETS).flat_map(|kind| kind.fields).chain(HEAD).chain(HEADER).chain(TARGET);
        for one in all() {
            for other in all().filter(|other| other.name == one.name) {
                assert_eq!((one.show, one.len > 4), (other.show, other.len > 4), "{}", one.name);
            }
        }
    }
}
