// SPDX-License-Identifier: MIT OR Apache-2.0
//! The three blocks of a pcapng file that captures are written in (draft-ietf-opsawg-pcapng): section header, interface
//! description, enhanced packet. Reading is the crate `pcap_parser`'s; no maintained crate for writing was found that
//! fits (docs/capture.md).

/// LINKTYPE_USER0: private use.
pub(crate) const LINKTYPE: u16 = 147;
/// `if_tsresol`: timestamps are microseconds.
pub(crate) const MICROSECONDS: u8 = 6;
/// Bytes of one option, at most; longer comments become several.
const MAX_OPTION: usize = u16::MAX as usize;

pub(crate) const SECTION_HEADER: u32 = 0x0a0d_0d0a;
/// Says in which order the bytes of numbers are.
pub(crate) const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;

const END_OF_OPTIONS: u16 = 0;
pub(crate) const COMMENT: u16 = 1;
const SHB_USERAPPL: u16 = 4;
pub(crate) const IF_NAME: u16 = 2;
pub(crate) const IF_DESCRIPTION: u16 = 3;
pub(crate) const IF_TSRESOL: u16 = 9;
pub(crate) const EPB_FLAGS: u16 = 2;
pub(crate) const EPB_QUEUE: u16 = 6;

/// Which way a frame went, seen from the switch: the two low bits of `epb_flags`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Direction {
    /// Neither: what is no frame of the link.
    None = 0,
    /// Received by the switch.
    Inbound = 1,
    /// Sent by it.
    Outbound = 2,
}

impl Direction {
    pub(crate) fn from_flags(flags: u32) -> Direction {
        match flags & 3 {
            1 => Direction::Inbound,
            2 => Direction::Outbound,
            _ => Direction::None,
        }
    }
}

fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    body(out);
    let length = ((out.len() - start + 4) as u32).to_le_bytes();
    out.extend_from_slice(&length);
    out[start + 4..start + 8].copy_from_slice(&length);
}

fn pad(out: &mut Vec<u8>, length: usize) {
    out.extend_from_slice(&[0; 3][..(4 - length % 4) % 4]);
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(MAX_OPTION)];
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&(value.len() as u16).to_le_bytes());
    out.extend_from_slice(value);
    pad(out, value.len());
}

/// Appends a section header with the program's name and `comment`, in as many options as it needs.
pub(crate) fn section_header(out: &mut Vec<u8>, program: &str, comment: &str) {
    block(out, SECTION_HEADER, |out| {
        out.extend_from_slice(&BYTE_ORDER.to_le_bytes());
        out.extend_from_slice(&1u16.to_le_bytes());
        out.extend_from_slice(&0u16.to_le_bytes());
        // Its length is not known beforehand.
        out.extend_from_slice(&u64::MAX.to_le_bytes());
        option(out, SHB_USERAPPL, program.as_bytes());
        let mut rest = comment;
        while !rest.is_empty() {
            let mut end = rest.len().min(MAX_OPTION);
            while !rest.is_char_boundary(end) {
                end -= 1;
            }
            option(out, COMMENT, &rest.as_bytes()[..end]);
            rest = &rest[end..];
        }
        option(out, END_OF_OPTIONS, &[]);
    });
}

/// Appends the description of the next interface; `snap` 0 means no limit.
pub(crate) fn interface(out: &mut Vec<u8>, name: &str, description: &str, snap: u32) {
    block(out, INTERFACE_DESCRIPTION, |out| {
        out.extend_from_slice(&LINKTYPE.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&snap.to_le_bytes());
        option(out, IF_NAME, name.as_bytes());
        option(out, IF_DESCRIPTION, description.as_bytes());
        option(out, IF_TSRESOL, &[MICROSECONDS]);
        option(out, END_OF_OPTIONS, &[]);
    });
}

/// What a packet block says besides its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<'a> {
    pub(crate) interface: u32,
    /// Microseconds since 1970.
    pub(crate) time: u64,
    pub(crate) direction: Direction,
    pub(crate) port: Option<u32>,
    pub(crate) comment: Option<&'a str>,
}

/// Appends a packet of these bytes, of which at most `snap` are kept.
pub(crate) fn packet(out: &mut Vec<u8>, packet: Packet<'_>, bytes: &[u8], snap: usize) {
    block(out, ENHANCED_PACKET, |out| {
        let captured = &bytes[..bytes.len().min(snap)];
        for word in [
            packet.interface,
            (packet.time >> 32) as u32,
            packet.time as u32,
            captured.len() as u32,
            bytes.len() as u32,
        ] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(captured);
        pad(out, captured.len());
        if let Some(comment) = packet.comment {
            option(out, COMMENT, comment.as_bytes());
        }
        if packet.direction != Direction::None {
            option(out, EPB_FLAGS, &(packet.direction as u32).to_le_bytes());
        }
        if let Some(port) = packet.port {
            option(out, EPB_QUEUE, &port.to_le_bytes());
        }
        option(out, END_OF_OPTIONS, &[]);
    });
}

/// Bytes of `bytes` that are whole blocks; `bytes` begins with a block.
pub(crate) fn whole_blocks(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(length) = bytes.get(at + 4..at + 8).and_then(|b| <[u8; 4]>::try_from(b).ok()) {
        let length = u32::from_le_bytes(length) as usize;
        if length < 12 || bytes.len() - at < length {
            break;
        }
        at += length;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_whole_words_with_their_length_at_both_ends() {
        for length in 0..9 {
            let mut out = Vec::new();
            let about = Packet {
                interface: 3,
                time: 5 << 32 | 6,
                direction: Direction::Outbound,
                port: Some(9),
                comment: Some("x"),
            };
            packet(&mut out, about, &[7; 9][..length], usize::MAX);
            let word = |at: usize| u32::from_le_bytes(out[at..at + 4].try_into().unwrap());
            assert_eq!(out.len() % 4, 0);
            assert_eq!(
                (word(0), word(4) as usize, word(out.len() - 4) as usize),
                (ENHANCED_PACKET, out.len(), out.len())
            );
            assert_eq!([word(8), word(12), word(16), word(20)], [3, 5, 6, length as u32]);
            assert_eq!(whole_blocks(&out), out.len());
            assert_eq!(whole_blocks(&out[..out.len() - 1]), 0);
            let first = out.len();
            interface(&mut out, "node 3", "switch 0", 0);
            assert_eq!(whole_blocks(&out), out.len());
            assert_eq!(whole_blocks(&out[..out.len() - 1]), first);
        }
    }
}
