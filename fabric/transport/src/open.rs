// SPDX-License-Identifier: MIT OR Apache-2.0
//! From an address to a transport.

use std::io;

use crate::unix::{UnixAcceptor, UnixTransport};
use crate::{Acceptor, Address, OpenError, Transport};

/// How connections are made. Start from the default and change fields.
#[derive(Clone, Debug)]
pub struct Options {
    /// The command line's option that gave the address, for error messages.
    pub named: &'static str,
    /// Bytes that may wait at one end of a connection for a peer that does not read.
    pub buffer: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { named: "address", buffer: 256 << 10 }
    }
}

fn missing(address: &Address) -> (io::Error, String) {
    let why = format!("this program has no transport {}", address.scheme());
    (io::Error::new(io::ErrorKind::Unsupported, why), "choose unix:PATH or ring:PATH".to_owned())
}

/// Listens at `address`.
pub fn listen(address: &Address, options: &Options) -> Result<Box<dyn Acceptor>, OpenError> {
    match address {
        Address::Unix(path) => Ok(Box::new(UnixAcceptor::bind(path, options)?)),
        other => {
            let (why, hint) = missing(other);
            Err(OpenError::listen(other, why, hint))
        }
    }
}

/// Connects to `address`. Never blocks; whether somebody answers may show only later, as [`Received::End`](crate::Received::End) or
/// an error of the transport.
pub fn connect(address: &Address, options: &Options) -> Result<Box<dyn Transport>, OpenError> {
    match address {
        Address::Unix(path) => Ok(Box::new(UnixTransport::connect(path, options)?)),
        other => {
            let (why, hint) = missing(other);
            Err(OpenError::connect(other, why, hint))
        }
    }
}
