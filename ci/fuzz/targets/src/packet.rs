// SPDX-License-Identifier: MIT OR Apache-2.0

use telegraphos_wire::Packet;

/// One packet. What is decoded is encoded to the same length, and decoded again to the same packet.
pub fn packet(data: &[u8]) {
    let Ok(packet) = Packet::decode(data) else { return };
    // What the state machines ask of any packet.
    let _ =
        (packet.class(), packet.body.page(), packet.body.name(), packet.body.refusal(telegraphos_wire::Status::Reset));
    let mut bytes = Vec::new();
    assert_eq!(packet.encode(&mut bytes), data.len(), "{packet:?}");
    assert_eq!(Packet::decode(&bytes), Ok(packet));
}
