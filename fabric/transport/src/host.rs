// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hosts and ports of transports between hosts.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// A host, by name or number, and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    /// A name, an IPv4 address, or an IPv6 address (without brackets).
    pub host: String,
    /// The port; 0 selects any free one when listening.
    pub port: u16,
}

impl HostPort {
    /// The socket addresses of the host. A number needs no look-up; for a name that is not in the hosts file a name
    /// server is queried, which may take seconds.
    pub fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        let found: Vec<SocketAddr> = (self.host.as_str(), self.port).to_socket_addrs()?.collect();
        if found.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("the name {} has no address", self.host)));
        }
        Ok(found)
    }

    /// Whether all its addresses are loopback addresses.
    pub fn is_loopback(&self) -> io::Result<bool> {
        Ok(self.resolve()?.iter().all(|at| at.ip().to_canonical().is_loopback()))
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<HostPort, String> {
        let (host, port) = text.rsplit_once(':').ok_or_else(|| format!("{text:?} has no port"))?;
        let port = port.parse().map_err(|_| format!("the port {port:?} is not a number from 0 to 65535"))?;
        let host = match host.strip_prefix('[').map(|rest| rest.strip_suffix(']')) {
            Some(Some(inner)) => inner,
            Some(None) => return Err(format!("the host {host:?} lacks its closing bracket")),
            None if host.contains(':') => return Err(format!("an IPv6 host is written in brackets, [{host}]")),
            None => host,
        };
        if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c == '/' || c == '[' || c == ']') {
            return Err(format!("{host:?} is no host"));
        }
        Ok(HostPort { host: host.to_owned(), port })
    }
}
