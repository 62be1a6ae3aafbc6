// SPDX-License-Identifier: MIT OR Apache-2.0
//! What two processes have in each other's memory, and what they append to each other's queues: how packets of engines
//! look where a board moves them.
//!
//! ```text
//!   inbox: a segment that its process exports for one other process
//!     0    control: MAGIC, key, sizes, port written by its owner before it says hello
//!     64   replies, one for each slot       written by the other: where bytes go that it has a place for
//!     ...  slots                            written by the other: a head of four words, and bytes
//!
//!   element of the queue: 64 bits
//!     0..4  kind · 4..20 slot or node · 20..24 answer · 32..64 key, or number of the process that says hello
//! ```
//!
//! The key is the receiver's, for what one process says to it: those who cannot read the inbox do not know it.

use crate::address::Process;
use crate::config::Config;
use crate::packet::{Answer, Header, Packet, Place};

/// First word of an inbox.
pub const MAGIC: u64 = 0x3100_4753_4d20_4754;
/// Words of the control area: magic, key, slots and fragments and block, eager, longest, port.
pub const CONTROL: usize = 6;
/// The word of them that has the number of the queue which its owner takes the other's elements from.
pub const PORT: usize = 5;
/// A word of an inbox that its owner never reads: a store to it shows whether the owner is there.
pub const PROBE: u64 = 8 * CONTROL as u64;
const REPLIES: u64 = 64;
const REPLY: u64 = 16;
/// Bytes of a slot's head.
pub const HEAD: u64 = 32;
const UNIT: u64 = 64 << 10;

/// Where things are in an inbox; equal for all processes of a configuration.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    slots: u64,
    block: u64,
}

/// Words of a packet that do not fit into its element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words {
    /// Where they go in the receiver's inbox.
    pub at: u64,
    words: [u64; 4],
    count: usize,
}

impl Words {
    /// The words, of which the first goes there.
    pub fn words(&self) -> &[u64] {
        &self.words[..self.count]
    }
}

impl Layout {
    /// That of a configuration.
    pub fn of(config: &Config) -> Layout {
        Layout { slots: config.slots.into(), block: u64::from(config.block).next_multiple_of(8) }
    }

    /// Bytes of an inbox.
    pub fn size(self) -> u64 {
        (self.slot(0) + self.slots * (HEAD + self.block)).next_multiple_of(UNIT)
    }

    /// Slots of an inbox.
    pub fn slots(self) -> u64 {
        self.slots
    }

    /// Words of a slot, with its head.
    pub fn slot_words(self) -> usize {
        ((HEAD + self.block) / 8) as usize
    }

    /// Of the reply for a slot; the slot is one of the configuration.
    pub fn reply(self, slot: u16) -> u64 {
        REPLIES + u64::from(slot) * REPLY
    }

    /// Of a slot's head; its bytes follow.
    pub fn slot(self, slot: u16) -> u64 {
        REPLIES + self.slots * REPLY + u64::from(slot) * (HEAD + self.block)
    }

    /// What is stored into the receiver's inbox before a packet's element is appended. Bytes of a
    /// [`Packet::Eager`] follow the words.
    pub fn words(self, packet: Packet) -> Option<Words> {
        let (at, words, count) = match packet {
            Packet::Eager { slot, header, fragment } => (self.slot(slot), head(header, fragment, Place(0)), 4),
            Packet::Request { slot, header, at } => (self.slot(slot), head(header, 0, at), 4),
            Packet::Clear { slot, at, length } => (self.reply(slot), [at.0, length, 0, 0], 2),
            Packet::Stored { .. } | Packet::Withdraw { .. } | Packet::Done { .. } => return None,
        };
        Some(Words { at, words, count })
    }

    /// The mirror of [`Layout::words`] and [`kind_of`]: the packet that an element announces. `load` reads a word of
    /// the inbox. `None` if there is no such slot, or a word cannot be read.
    pub fn packet(self, kind: Kind, slot: u16, load: impl Fn(u64) -> Option<u64>) -> Option<Packet> {
        if u64::from(slot) >= self.slots {
            return None;
        }
        let word = |at: u64, n: u64| load(at + 8 * n);
        let head = || {
            let at = self.slot(slot);
            Some(of_head([word(at, 0)?, word(at, 1)?, word(at, 2)?, word(at, 3)?]))
        };
        Some(match kind {
            Kind::Eager => {
                let (header, fragment, _) = head()?;
                Packet::Eager { slot, header, fragment }
            }
            Kind::Request => {
                let (header, _, at) = head()?;
                Packet::Request { slot, header, at }
            }
            Kind::Clear => {
                let at = self.reply(slot);
                Packet::Clear { slot, at: Place(word(at, 0)?), length: word(at, 1)? }
            }
            Kind::Withdraw => Packet::Withdraw { slot },
            Kind::Stored { whole } => Packet::Stored { slot, whole },
            Kind::Done(answer) => Packet::Done { slot, answer },
        })
    }
}

/// The control area of an inbox.
pub fn control(config: &Config, key: u32, port: u16) -> [u64; CONTROL] {
    let sizes = u64::from(config.slots) | u64::from(config.fragments) << 16 | u64::from(config.block) << 32;
    [MAGIC, key.into(), sizes, config.eager, config.longest, port.into()]
}

/// The port of its word, which is not that of a control area if it is another number.
pub fn port_of(word: u64) -> u16 {
    u16::try_from(word).unwrap_or(0)
}

fn head(header: Header, fragment: u16, at: Place) -> [u64; 4] {
    let Header { from, to, tag, length } = header;
    [u64::from(from) | u64::from(to) << 32, u64::from(tag) | u64::from(fragment) << 32, length, at.0]
}

/// What a slot's head says: the mirror of [`head`].
fn of_head(words: [u64; 4]) -> (Header, u16, Place) {
    let [threads, tag, length, at] = words;
    let header = Header { from: threads as u32, to: (threads >> 32) as u32, tag: tag as u32, length };
    (header, (tag >> 32) as u16, Place(at))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// A process has made an inbox for this one.
    Hello(Process),
    /// Of the process with that key: it has what it needs to exchange packets, with the inbox of its own whose key ends
    /// so.
    Ready {
        key: u32,
        /// The end of the sender's.
        of: u16,
    },
    Goodbye {
        key: u32,
    },
    /// A packet; its head or reply is in the inbox.
    Packet {
        key: u32,
        kind: Kind,
        slot: u16,
    },
}

/// Of a packet, whose words are in the inbox as far as they do not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// [`Packet::Eager`].
    Eager,
    /// [`Packet::Request`].
    Request,
    /// [`Packet::Clear`].
    Clear,
    /// [`Packet::Withdraw`].
    Withdraw,
    /// [`Packet::Stored`].
    Stored {
        /// Whether the bytes are there.
        whole: bool,
    },
    /// [`Packet::Done`].
    Done(Answer),
}

const ANSWERS: [Answer; 4] = [Answer::Taken, Answer::NoThread, Answer::Withdrawn, Answer::Failed];

impl Element {
    /// The element's bits.
    pub fn encode(self) -> u64 {
        let word = |kind: u64, slot: u16, answer: u64, high: u32| {
            kind | u64::from(slot) << 4 | answer << 20 | u64::from(high) << 32
        };
        match self {
            Element::Hello(process) => word(0, process.node, 0, process.number),
            Element::Ready { key, of } => word(1, of, 0, key),
            Element::Goodbye { key } => word(2, 0, 0, key),
            Element::Packet { key, kind, slot } => {
                let (kind, answer) = match kind {
                    Kind::Eager => (3, 0),
                    Kind::Request => (4, 0),
                    Kind::Clear => (5, 0),
                    Kind::Withdraw => (6, 0),
                    Kind::Stored { whole } => (7, u64::from(whole)),
                    // It is one of them.
                    Kind::Done(answer) => (8, ANSWERS.iter().position(|a| *a == answer).unwrap_or(0) as u64),
                };
                word(kind, slot, answer, key)
            }
        }
    }

    /// The mirror of [`Element::encode`]; `None` for what that never makes.
    pub fn decode(word: u64) -> Option<Element> {
        let (slot, answer, key) = ((word >> 4) as u16, word >> 20 & 15, (word >> 32) as u32);
        let packet = |kind| Some(Element::Packet { key, kind, slot });
        let element = match word & 15 {
            0 => Some(Element::Hello(Process { node: slot, number: key })),
            1 => Some(Element::Ready { key, of: slot }),
            2 => Some(Element::Goodbye { key }),
            3 => packet(Kind::Eager),
            4 => packet(Kind::Request),
            5 => packet(Kind::Clear),
            6 => packet(Kind::Withdraw),
            7 => packet(Kind::Stored { whole: answer == 1 }),
            8 => packet(Kind::Done(*ANSWERS.get(answer as usize)?)),
            _ => None,
        };
        element.filter(|element| element.encode() == word)
    }
}

/// The kind and the slot of a packet.
pub fn kind_of(packet: Packet) -> (Kind, u16) {
    match packet {
        Packet::Eager { slot, .. } => (Kind::Eager, slot),
        Packet::Request { slot, .. } => (Kind::Request, slot),
        Packet::Clear { slot, .. } => (Kind::Clear, slot),
        Packet::Stored { slot, whole } => (Kind::Stored { whole }, slot),
        Packet::Withdraw { slot } => (Kind::Withdraw, slot),
        Packet::Done { slot, answer } => (Kind::Done(answer), slot),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kinds() -> impl Strategy<Value = Kind> {
        prop_oneof![
            Just(Kind::Eager),
            Just(Kind::Request),
            Just(Kind::Clear),
            Just(Kind::Withdraw),
            any::<bool>().prop_map(|whole| Kind::Stored { whole }),
            (0..4usize).prop_map(|n| Kind::Done(ANSWERS[n])),
        ]
    }

    /// Slots of the inbox that packets are put into.
    const SLOTS: u16 = 100;

    fn packets() -> impl Strategy<Value = Packet> {
        let header = any::<(u32, u32, u32, u64)>().prop_map(|(from, to, tag, length)| Header { from, to, tag, length });
        let packet = (kinds(), 0..SLOTS, header, any::<(u16, u64, u64)>());
        packet.prop_map(|(kind, slot, header, (fragment, at, length))| match kind {
            Kind::Eager => Packet::Eager { slot, header, fragment },
            Kind::Request => Packet::Request { slot, header, at: Place(at) },
            Kind::Clear => Packet::Clear { slot, at: Place(at), length },
            Kind::Withdraw => Packet::Withdraw { slot },
            Kind::Stored { whole } => Packet::Stored { slot, whole },
            Kind::Done(answer) => Packet::Done { slot, answer },
        })
    }

    fn elements() -> impl Strategy<Value = Element> {
        prop_oneof![
            any::<(u16, u32)>().prop_map(|(node, number)| Element::Hello(Process { node, number })),
            any::<(u32, u16)>().prop_map(|(key, of)| Element::Ready { key, of }),
            any::<u32>().prop_map(|key| Element::Goodbye { key }),
            (any::<u32>(), kinds(), any::<u16>()).prop_map(|(key, kind, slot)| Element::Packet { key, kind, slot }),
        ]
    }

    proptest! {
        #[test]
        fn an_element_says_what_was_said(element in elements()) {
            prop_assert_eq!(Element::decode(element.encode()), Some(element));
        }

        #[test]
        fn any_word_is_an_element_or_is_not(word: u64) {
            if let Some(element) = Element::decode(word) {
                prop_assert_eq!(element.encode(), word);
            }
        }

        #[test]
        fn a_head_says_what_was_said(from: u32, to: u32, tag: u32, length: u64, fragment: u16, at: u64) {
            let header = Header { from, to, tag, length };
            prop_assert_eq!(of_head(head(header, fragment, Place(at))), (header, fragment, Place(at)));
        }

        #[test]
        fn an_inbox_and_an_element_say_what_a_packet_says(packet in packets()) {
            let layout = Layout::of(&Config { slots: SLOTS, ..Config::default() });
            let (kind, slot) = kind_of(packet);
            let words = layout.words(packet);
            let load = |at: u64| {
                let words = words.as_ref()?;
                words.words().get(((at - words.at) / 8) as usize).copied()
            };
            prop_assert_eq!(layout.packet(kind, slot, load), Some(packet));
            prop_assert_eq!(layout.packet(kind, SLOTS, load), None);
        }
    }

    #[test]
    fn nothing_of_an_inbox_overlaps() {
        for config in [Config::default(), Config::paper(), Config { slots: 1, block: 5, eager: 5, ..Config::default() }]
        {
            let layout = Layout::of(&config);
            assert!(layout.reply(0) >= 8 * CONTROL as u64);
            assert_eq!(layout.reply(config.slots), layout.slot(0), "replies end where slots begin");
            assert!(layout.slot(0) + HEAD + u64::from(config.block) <= layout.slot(1));
            assert!(layout.slot(config.slots) <= layout.size());
            assert_eq!(layout.slot(1) % 8, 0);
        }
    }
}
