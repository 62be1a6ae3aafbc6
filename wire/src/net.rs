// SPDX-License-Identifier: MIT OR Apache-2.0
//! The boards' network device: the addresses of nodes, and where nodes' kernels find each other. `docs/net.md` has what
//! they do there.

use alloc::format;
use alloc::string::String;

use crate::NodeId;

c_strings! {
    /// The name for the C header.
    pub NAMES {
        /// The kernel's own segment where nodes find each other: word N is of node N, {cookie, echo}. The number is
        /// that of what frames look like: nodes with another do not find each other.
        HELLO as "TG_NET_HELLO" = "tg0.3",
    }
}

c_consts! {
    /// Places in the memory of the network device for the C header.
    pub ALL: u64, prefix "TG_NET_" {
        /// The upper 4 bytes of a node's Ethernet address; the lower 2 are its number.
        ETHERNET = 0x0254_4700,
        /// Units of the segment HELLO.
        HELLO_UNITS = 2,
        /// Offset in HELLO of the word that rings for a hello: the watch of a page ends with any store there.
        BELL = crate::UNIT,
        /// Of the memory for the frames of one other node: the unit of its tail.
        TAIL_UNIT = 0,
        /// The unit of the head for this node's frames to that one.
        HEAD_UNIT = 1,
        /// The first unit of frames.
        FRAME_UNITS = 2,
        /// Bytes behind the frames, for copies of frames to all.
        WORDS = 64,
        /// Offset in these of the number of the copy that the other node has made, 0 for none.
        JOIN = 0,
        /// Offset in these of where it continues to read that.
        ALL_HEAD = 8,
        /// Of the memory of frames to all nodes: the unit of its tail.
        ALL_TAIL_UNIT = 0,
        /// The unit of frames and, behind these, of a word for each node.
        ALL_FRAME_UNIT = 1,
        /// Units of that memory.
        ALL_UNITS = 2,
    }
}

/// The Ethernet address of a node's network device.
pub fn ethernet(node: NodeId) -> String {
    let ([a, b, c, d], [e, f]) = ((ETHERNET as u32).to_be_bytes(), node.to_be_bytes());
    format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
}

/// The node whose network device has an Ethernet address; `None` for any other device's.
pub fn node_of(ethernet: &str) -> Option<NodeId> {
    let mut bytes = [0; 6];
    let mut texts = ethernet.split(':');
    for byte in &mut bytes {
        *byte = texts.next().filter(|text| text.len() == 2).and_then(|text| u8::from_str_radix(text, 16).ok())?;
    }
    let [a, b, c, d, e, f] = bytes;
    let ours = texts.next().is_none() && u64::from(u32::from_be_bytes([a, b, c, d])) == ETHERNET;
    ours.then(|| NodeId::from_be_bytes([e, f]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_boards_name_their_nodes_and_no_others_do() {
        assert_eq!((ethernet(266).as_str(), node_of(&ethernet(266))), ("02:54:47:00:01:0a", Some(266)));
        let short = ["02:54:47:00:01", "02:54:47:00:01:0g", "02:54:47:00:001:0a", "02:54:47:00:01:0a:00", ""];
        for bad in short.into_iter().chain(["02:54:47:01:01:0a", "52:54:00:12:34:56"]) {
            assert_eq!(node_of(bad), None, "{bad}");
        }
    }
}
