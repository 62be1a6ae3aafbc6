// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where datagrams go.

use std::fmt;
use std::path::PathBuf;

use crate::{HostPort, scheme};

/// Where an RDP connection's other end is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatagramAddress {
    Unix(PathBuf),
    Udp(HostPort),
}

impl fmt::Display for DatagramAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DatagramAddress::Unix(path) => write!(f, "{}:{}", scheme::UNIX_DATAGRAM, path.display()),
            DatagramAddress::Udp(at) => write!(f, "{}:{at}", scheme::UDP),
        }
    }
}
