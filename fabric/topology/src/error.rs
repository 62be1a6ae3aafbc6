// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a topology is refused.

use crate::lists::ranges;

/// Why a topology, or the file that describes it, is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// What is wrong, by its name and value, and what was expected.
    #[error("{0}")]
    Refused(String),
    /// The routes of a graph need more layers than they may use.
    #[error("the routes need {needed} layers, and {allowed} {} allowed: {why}", if *allowed == 1 { "is" } else { "are" })]
    NeedsLayers {
        needed: usize,
        /// How many they may use.
        allowed: u8,
        /// The cycle that is left.
        why: CheckError,
    },
}

/// One direction of a trunk in one layer, by the names of the switches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    pub from: String,
    pub to: String,
    pub layer: u8,
}

/// A promise that a topology does not keep. Routes are lists of names of switches.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// Packets could block each other for ever: in each of these channels one waits for room in the next, and in the
    /// last for room in the first.
    #[error(
        "packets could wait for each other in a circle: {}; expected none: allow more layers, or remove a trunk of \
         the circle",
        circle(.0)
    )]
    Cycle(Vec<Channel>),
    /// A route does not arrive.
    #[error("the route {} does not lead to {destination}: expected one that does", .route.join(" -> "))]
    Lost { route: Vec<String>, destination: String },
    /// A way back uses other trunks.
    #[error(
        "the way there is {}, the way back is {}: expected the same trunks",
        .there.join(" -> "),
        .back.join(" -> ")
    )]
    Asymmetric { there: Vec<String>, back: Vec<String> },
    /// A step uses a layer that does not exist.
    #[error("the route {} uses layer {layer}: expected layers below {layers}", .route.join(" -> "))]
    Layer { route: Vec<String>, layer: u8, layers: u8 },
}

/// A cycle of channels by their names, with its layer, or with that of each channel where they differ.
fn circle(channels: &[Channel]) -> String {
    let (start, layer) = channels.first().map_or(("", 0), |first| (first.from.as_str(), first.layer));
    let one_layer = channels.iter().all(|channel| channel.layer == layer);
    let step = |Channel { from, layer, .. }: &Channel| match one_layer {
        true => format!("{from} -> "),
        false => format!("{from} -({layer})-> "),
    };
    let steps: String = channels.iter().map(step).collect();
    let layers = if one_layer { format!("layer {layer}") } else { "layers in brackets".to_owned() };
    format!("{steps}{start} ({layers})")
}

/// A [`TopologyError::Refused`] with a text as of `format!`.
macro_rules! refused {
    ($($text:tt)*) => {
        $crate::TopologyError::Refused(format!($($text)*))
    };
}
pub(crate) use refused;

/// Not each of the nodes, `missing` of them, is at a switch. Names enough of them to find the mistake.
pub(crate) fn missing_nodes(missing: impl Iterator<Item = crate::NodeId>, nodes: usize) -> TopologyError {
    const SHOWN: usize = 8;
    let mut ranges = ranges(missing);
    if ranges.len() > SHOWN {
        ranges.truncate(SHOWN);
        ranges.push("...".to_owned());
    }
    let (first, last) = (ranges.join(","), nodes - 1);
    refused!("nodes without a switch: {first}; expected each of the {nodes} nodes (0 to {last}) at one switch")
}
