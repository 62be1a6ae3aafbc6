// SPDX-License-Identifier: MIT OR Apache-2.0
//! The identity of this process and the peers that it accepts, for a transport that authenticates both ends. What there
//! is to configure needs no TLS, so that a program without the transport has it, too.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

/// The identity of this process, and the peers that it accepts. Each end checks the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuicOptions {
    /// File with this process's certificate in PEM, and any intermediate certificates.
    pub certificate: PathBuf,
    /// File with its private key in PEM, readable by its owner only.
    pub key: PathBuf,
    /// File with the certificates of the CAs, in PEM, that sign the peers' certificates. Needed for peers given by
    /// name.
    pub peers_ca: Option<PathBuf>,
    /// The peers that are accepted: when connecting the one that is expected, when listening all that may connect.
    pub peers: Vec<Peer>,
    /// Addresses from which peers connect, as far as they are known when listening: handshakes from there have a
    /// guaranteed share. Those from which a peer was authenticated last have one, too.
    pub addresses: Vec<IpAddr>,
}

/// A peer that is accepted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Peer {
    /// By a name in its certificate (a DNS name among the subject's alternative names), signed by one of the CAs.
    Name(String),
    /// By the SHA-256 of its certificate alone, whatever its signer and age.
    Pinned([u8; 32]),
}

/// How a pinned peer is written: `sha256:` and 64 hexadecimal digits, colons between them allowed.
pub const PIN: &str = "sha256:";

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Name(name) => f.write_str(name),
            Peer::Pinned(pin) => {
                f.write_str(PIN)?;
                pin.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}
