// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inputs worth beginning with: what the system itself says and reads. The example `corpus` writes them, a test
//! compares.
#![allow(clippy::unwrap_used, reason = "what is made here is valid")]

mod captures;
mod messages;
mod packets;
mod rdp;
mod scripts;
mod texts;
mod vfio;

/// Inputs of a target, by name.
pub(crate) type Inputs = Vec<(String, Vec<u8>)>;

/// The inputs of each target by its name.
pub(crate) fn all() -> Vec<(&'static str, Inputs)> {
    vec![
        ("vfio_user", named(vfio::streams())),
        ("packet", packets::packets()),
        ("link_frame", named(packets::streams())),
        ("hib", named(scripts::scripts())),
        ("rdp", named(rdp::scripts())),
        ("settings", named(texts::files())),
        ("capture", named(captures::files())),
        ("messages", named(messages::scripts())),
        ("routes", named(messages::gateways())),
        ("sockets", named(messages::streams())),
        ("channel", named(messages::channels())),
        ("tgd", named(messages::letters())),
    ]
}

fn named(inputs: Vec<(&str, Vec<u8>)>) -> Inputs {
    inputs.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect()
}
