// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fields of frames and packets as tables, from which the Wireshark dissector and docs/packets.md are generated.
//!
//! The tables of kinds come from the declarations of [`Frame`](crate::link::Frame) and [`Body`](crate::Body), as their
//! encoding does.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::field::field;
use crate::link::{self, HEAD_LEN, Refusal};
use crate::packet::{self, HEADER_LEN, MAX_BLOCK};
use crate::{AtomicOp, Class, Rights, Status};

pub use crate::field::{Check, Field, Kind, Show, Tail};

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
    ("MAX_BURST", crate::MAX_BURST as u64),
    ("STORE_LEN", crate::STORE_LEN as u64),
    ("MAX_MEMBERS", link::MAX_MEMBERS as u64),
    ("MAX_LAYERS", link::MAX_LAYERS as u64),
    ("RING_SIDES", link::RING_SIDES as u64),
    ("UNIT", crate::UNIT),
    ("MULTICAST", packet::MULTICAST as u64),
    ("NO_NODE", packet::NO_NODE as u64),
    ("HELLO", link::HELLO as u64),
    ("TRUNK", link::TRUNK as u64),
];

/// Number and name of each value of a field with this way of showing, in ascending order; of [`Show::Rights`] each bit.
pub fn values(show: Show) -> Vec<(u64, String)> {
    match show {
        Show::Class => Class::ALL.iter().map(|class| (*class as u64, format!("{class:?}"))).collect(),
        Show::Atomic => AtomicOp::ALL.iter().map(|op| (*op as u64, format!("{op:?}"))).collect(),
        Show::Refusal => Refusal::ALL.iter().map(|refusal| (*refusal as u64, format!("{refusal:?}"))).collect(),
        Show::Status => {
            Status::ALL.iter().map(|(_, n, _)| (*n, format!("{:?}", Status::from_u16(*n as u16)))).collect()
        }
        Show::Rights => {
            let name = |name: &str| name.trim_start_matches("TG_RIGHT_").to_ascii_lowercase();
            Rights::NAMES.iter().map(|(c_name, bit, _)| (*bit, name(c_name))).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Frame;
    use crate::{PROTOCOL_VERSION, Packet};
    use alloc::vec;

    /// The tables have exactly the kinds that decode accepts.
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
