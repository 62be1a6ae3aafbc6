// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the other end is, and by which transport: one line of text.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use telegraphos_transport::{HostPort, scheme};

/// An address, written as `unix:PATH`, `ring:PATH`, `unix-datagram:PATH`, `udp:HOST:PORT` or `quic:HOST:PORT`. A text
/// that begins with `/` or `.` is the path of a Unix stream socket.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    Unix(PathBuf),
    /// Shared-memory rings, agreed upon over a Unix stream socket.
    Ring(PathBuf),
    /// RDP over a Unix datagram socket.
    UnixDatagram(PathBuf),
    /// RDP over UDP.
    Udp(HostPort),
    Quic(HostPort),
}

/// Text that is no [`Address`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "address {text:?}: {why}; expected unix:PATH | ring:PATH | unix-datagram:PATH | udp:HOST:PORT | quic:HOST:PORT"
)]
pub struct AddressError {
    pub text: String,
    /// What is wrong with it.
    pub why: String,
}

impl Address {
    /// The word before the first colon.
    pub fn scheme(&self) -> &'static str {
        match self {
            Address::Unix(_) => scheme::UNIX,
            Address::Ring(_) => scheme::RING,
            Address::UnixDatagram(_) => scheme::UNIX_DATAGRAM,
            Address::Udp(_) => scheme::UDP,
            Address::Quic(_) => scheme::QUIC,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) | Address::Ring(path) | Address::UnixDatagram(path) => {
                write!(f, "{}:{}", self.scheme(), path.display())
            }
            Address::Udp(at) | Address::Quic(at) => write!(f, "{}:{at}", self.scheme()),
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        let wrong = |why: String| AddressError { text: text.to_owned(), why };
        if text.starts_with(['/', '.']) {
            return Ok(Address::Unix(text.into()));
        }
        let (scheme, rest) = text.split_once(':').ok_or_else(|| wrong("it names no transport".to_owned()))?;
        let path = || match rest {
            "" => Err(wrong("the path is empty".to_owned())),
            path if path.contains('\0') => Err(wrong("the path contains a zero byte".to_owned())),
            path => Ok(PathBuf::from(path)),
        };
        match scheme {
            scheme::UNIX => path().map(Address::Unix),
            scheme::RING => path().map(Address::Ring),
            scheme::UNIX_DATAGRAM => path().map(Address::UnixDatagram),
            scheme::UDP => rest.parse().map(Address::Udp).map_err(wrong),
            scheme::QUIC => rest.parse().map(Address::Quic).map_err(wrong),
            other => Err(wrong(format!("there is no transport {other:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_parses_to_the_same() {
        for text in [
            "unix:/run/fabric.sock",
            "ring:relative/path",
            "unix-datagram:/a:b",
            "udp:10.0.0.1:7000",
            "udp:[::1]:0",
            "quic:host-b.example:65535",
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
            assert_eq!(address.to_string().parse::<Address>().unwrap(), address);
        }
        assert_eq!("/a".parse(), Ok(Address::Unix("/a".into())));
        assert_eq!("./a".parse(), Ok(Address::Unix("./a".into())));
    }

    #[test]
    fn errors_name_the_value_and_what_was_expected() {
        for (text, part) in [
            ("", "names no transport"),
            ("fabric.sock", "names no transport"),
            ("tcp:1.2.3.4:5", "no transport \"tcp\""),
            ("unix:", "path is empty"),
            ("udp:host", "has no port"),
            ("udp:host:70000", "\"70000\" is not a number from 0 to 65535"),
            ("udp::7", "is no host"),
            ("udp:::1:7", "in brackets, [::1]"),
            ("quic:[::1:7", "closing bracket"),
            ("udp:a b:7", "is no host"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains(part), "{error}");
            assert!(error.contains("expected unix:PATH | ring:PATH | "), "{error}");
        }
    }

    #[test]
    fn a_number_needs_no_name_server() {
        let Address::Udp(at) = "udp:[::1]:9".parse().unwrap() else { panic!("not UDP") };
        assert_eq!(at.resolve().unwrap(), ["[::1]:9".parse().unwrap()]);
    }
}
