// SPDX-License-Identifier: MIT OR Apache-2.0
//! QUIC, in programs that are built with it: the feature `quic`. It alone needs TLS, which takes as long to compile as
//! the rest of the fabric.

use telegraphos_transport::{Acceptor, HostPort, OpenError, Transport};

use super::options::Options;

#[cfg(feature = "quic")]
pub(super) use opened::{connect, listen};

#[cfg(not(feature = "quic"))]
pub(super) use absent::{connect, listen};

#[cfg(feature = "quic")]
mod opened {
    use super::{Acceptor, HostPort, OpenError, Options, Transport};
    use telegraphos_quic::{QuicAcceptor, QuicTransport};

    fn for_quic(options: &Options) -> telegraphos_quic::Options {
        telegraphos_quic::Options::new(options.common.clone(), options.quic.clone())
    }

    pub(crate) fn listen(at: &HostPort, options: &Options) -> Result<Box<dyn Acceptor>, OpenError> {
        Ok(Box::new(QuicAcceptor::bind(at, &for_quic(options))?))
    }

    pub(crate) fn connect(at: &HostPort, options: &Options) -> Result<Box<dyn Transport>, OpenError> {
        Ok(Box::new(QuicTransport::connect(at, &for_quic(options))?))
    }
}

#[cfg(any(test, not(feature = "quic")))]
mod absent {
    use super::{Acceptor, HostPort, OpenError, Options, Transport};
    use std::io;
    use telegraphos_transport::scheme;

    const HINT: &str = "use telegraphos-fabric, or build this program with --features quic";

    fn absent() -> io::Error {
        io::Error::new(io::ErrorKind::Unsupported, "this program was built without QUIC")
    }

    pub(crate) fn listen(at: &HostPort, _: &Options) -> Result<Box<dyn Acceptor>, OpenError> {
        Err(OpenError::listen(&format_args!("{}:{at}", scheme::QUIC), absent(), HINT))
    }

    pub(crate) fn connect(at: &HostPort, _: &Options) -> Result<Box<dyn Transport>, OpenError> {
        Err(OpenError::connect(&format_args!("{}:{at}", scheme::QUIC), absent(), HINT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_it_an_address_is_refused_with_what_to_do() {
        let at: HostPort = "host-b:7001".parse().unwrap();
        let options = Options::default();
        let errors = [absent::listen(&at, &options).err().unwrap(), absent::connect(&at, &options).err().unwrap()];
        for error in errors.map(|error| error.to_string()) {
            let parts = ["quic:host-b:7001", "built without QUIC", "--features quic"];
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }
}
