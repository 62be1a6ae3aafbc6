// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Prometheus endpoint (`docs/monitoring.md`): a separate thread that requests statistics over the control socket's
//! protocol, so that neither a slow scraper nor the writing of text holds up a packet.

mod http;
mod server;
mod text;

pub use server::{MetricsError, MetricsServer};
pub use text::encode;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use serde::Deserialize;
use telegraphos_service::settings::Given;

/// Where the endpoint listens: an address with a port, or a port of the loopback address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Given")]
pub struct MetricsAddress(pub SocketAddr);

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for MetricsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<MetricsAddress, String> {
        if let Ok(port) = text.parse() {
            return Ok(MetricsAddress(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)));
        }
        text.parse().map(MetricsAddress).map_err(|_| {
            format!("{text:?} is no address: expected a port, which is then of 127.0.0.1, or ADDRESS:PORT, such as 9464 or [::1]:9464")
        })
    }
}

/// In a TOML file a port may be a number.
impl TryFrom<Given> for MetricsAddress {
    type Error = String;

    fn try_from(given: Given) -> Result<MetricsAddress, String> {
        given.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_of_the_loopback_address() {
        for (text, address) in
            [("9464", "127.0.0.1:9464"), ("0", "127.0.0.1:0"), ("[::1]:7", "[::1]:7"), ("0.0.0.0:7", "0.0.0.0:7")]
        {
            assert_eq!(text.parse::<MetricsAddress>().unwrap().to_string(), address);
        }
        for text in ["", "localhost:80", "70000", "1.2.3.4", ":80"] {
            let error = text.parse::<MetricsAddress>().unwrap_err();
            assert!(error.contains("expected a port") && error.contains(text), "{error}");
        }
    }
}
