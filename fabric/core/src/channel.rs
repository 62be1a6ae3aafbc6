// SPDX-License-Identifier: MIT OR Apache-2.0
//! Channels: the units of credits and queues. A link has one for each class; a trunk one for each class and layer.

use serde::{Deserialize, Serialize};
use telegraphos_wire::Class;
use telegraphos_wire::link::MAX_LAYERS;

use crate::CREDITED;

/// Channels of a trunk with the most layers.
pub(crate) const MAX_CHANNELS: usize = 4 * MAX_LAYERS as usize;

/// A class on a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u8")]
pub(crate) struct Channel(u8);

impl TryFrom<u8> for Channel {
    type Error = String;

    fn try_from(index: u8) -> Result<Channel, String> {
        match usize::from(index) < MAX_CHANNELS {
            true => Ok(Channel(index)),
            false => Err(format!("channel {index}: expected one below {MAX_CHANNELS}")),
        }
    }
}

impl Channel {
    /// `layer` is below [`MAX_LAYERS`].
    pub(crate) fn new(class: Class, layer: u8) -> Channel {
        Channel(layer % MAX_LAYERS * 4 + class as u8)
    }

    pub(crate) fn class(self) -> Class {
        Class::ALL[usize::from(self.0 % 4)]
    }

    /// The layer, below [`MAX_LAYERS`].
    pub(crate) fn layer(self) -> u8 {
        self.0 / 4
    }

    /// Below [`MAX_CHANNELS`].
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// All channels of a trunk with so many layers, or of a link (one layer).
    pub(crate) fn all(layers: u8) -> impl Iterator<Item = Channel> + Clone {
        (0..4 * layers.min(MAX_LAYERS)).map(Channel)
    }

    /// The channels of a node whose packets need credits: [`CREDITED`].
    pub(crate) fn of_link() -> impl Iterator<Item = Channel> + Clone {
        CREDITED.into_iter().map(|class| Channel::new(class, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_is_its_class_and_layer() {
        let all: Vec<Channel> = Channel::all(MAX_LAYERS).collect();
        assert_eq!(all.len(), MAX_CHANNELS);
        for (index, channel) in all.into_iter().enumerate() {
            assert_eq!(channel.index(), index);
            assert_eq!(Channel::new(channel.class(), channel.layer()), channel);
        }
    }
}
