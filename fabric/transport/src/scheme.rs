// SPDX-License-Identifier: MIT OR Apache-2.0
//! The word before the first colon of an address, by which a transport is named in errors too.

/// Unix stream sockets: `unix:PATH`.
pub const UNIX: &str = "unix";
/// Shared-memory rings: `ring:PATH`.
pub const RING: &str = "ring";
/// RDP over Unix datagram sockets: `unix-datagram:PATH`.
pub const UNIX_DATAGRAM: &str = "unix-datagram";
/// RDP over UDP: `udp:HOST:PORT`.
pub const UDP: &str = "udp";
/// QUIC, by `telegraphos-quic`: `quic:HOST:PORT`.
pub const QUIC: &str = "quic";
