// SPDX-License-Identifier: MIT OR Apache-2.0
//! How parts of a [`Snapshot`](crate::Snapshot) are written for which serde has no form: packets as on the link, in
//! hexadecimal.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use telegraphos_wire::Packet;

fn text(packet: &Packet) -> String {
    let mut bytes = Vec::new();
    packet.encode(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse<E: Error>(text: &str) -> Result<Packet, E> {
    let pairs = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    let bytes: Option<Vec<u8>> = pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect();
    let bytes = bytes.ok_or_else(|| E::custom("a packet that is not in hexadecimal"))?;
    Packet::decode(&bytes).map_err(E::custom)
}

pub(crate) mod packet {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(packet: &Packet, serializer: S) -> Result<S::Ok, S::Error> {
        text(packet).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Packet, D::Error> {
        parse(&String::deserialize(deserializer)?)
    }
}

/// Packets in a row.
pub(crate) mod packets {
    use super::*;
    use std::collections::VecDeque;

    pub(crate) fn serialize<S: Serializer>(packets: &VecDeque<Packet>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(packets.iter().map(text))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<VecDeque<Packet>, D::Error> {
        Vec::<String>::deserialize(deserializer)?.iter().map(|text| parse(text)).collect()
    }
}

pub(crate) mod window {
    use super::*;
    use telegraphos_wire::WindowLayout;

    pub(crate) fn serialize<S: Serializer>(window: &Option<WindowLayout>, serializer: S) -> Result<S::Ok, S::Error> {
        window.map(|window| [window.node_bits, window.offset_bits]).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<WindowLayout>, D::Error> {
        let bits = Option::<[u8; 2]>::deserialize(deserializer)?;
        bits.map(|[node, offset]| WindowLayout::new(node, offset)).transpose().map_err(D::Error::custom)
    }
}
