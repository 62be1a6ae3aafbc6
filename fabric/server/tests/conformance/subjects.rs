// SPDX-License-Identifier: MIT OR Apache-2.0
//! The transports under test. A new one is a line in `conformance.rs`, and passes.

use std::path::Path;

use telegraphos_fabric::transports::{self, Address, Options};
use telegraphos_quic::{Bug, QuicAcceptor, QuicOptions, QuicTransport};
use telegraphos_transport::faults::LinkFaults;
use telegraphos_transport::{Acceptor, InProcess, OpenError, Transport};

use super::drive::accept;
use super::pki::Cluster;
use crate::common::udp_port;

/// How to make connections of one kind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subject {
    /// By address: `{}` is a directory of the test's own.
    Address(&'static str),
    /// The same with faults on both ends.
    Faulty(&'static str, &'static str),
    /// Between processes that have one certificate, made for it, with these faults below.
    Quic(&'static str),
    /// The same with a deliberate bug.
    QuicWith(Bug),
    InProcess,
}

/// Bytes that may wait at one end.
pub(crate) const BUFFER: usize = 64 << 10;

/// Two connected ends and what has to live as long.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) a: Box<dyn Transport>,
    pub(crate) b: Box<dyn Transport>,
    _acceptor: Option<Box<dyn Acceptor>>,
    _directory: tempfile::TempDir,
}

/// The certificate of both ends, in files of the test's own directory; a child finds what its parent has made.
fn certificate(directory: &Path) -> QuicOptions {
    const FILES: [&str; 3] = ["ca.pem", "x.pem", "x.key"];
    let [ca, certificate, key] = FILES.map(|name| directory.join(name));
    if !key.exists() {
        let cluster = Cluster::new();
        cluster.process("x", &["x"]);
        // With its mode.
        for name in FILES {
            std::fs::copy(cluster.path(name), directory.join(name)).unwrap();
        }
    }
    let peers = vec![telegraphos_quic::Peer::Name("x".into())];
    QuicOptions { certificate, key, peers_ca: Some(ca), peers, addresses: Vec::new() }
}

impl Subject {
    /// `directory`: the test's own.
    fn options(self, directory: &Path) -> Options {
        let faults = match self {
            Subject::Faulty(_, plan) | Subject::Quic(plan) => {
                Some(LinkFaults::new("test", 1).with(plan.parse().unwrap()))
            }
            _ => None,
        };
        // A killed peer of datagrams is noticed by its silence.
        let common =
            telegraphos_transport::Options { buffer: BUFFER, faults, silence: 6_000_000, ..Default::default() };
        let mut options = Options { common, ..Options::default() };
        if matches!(self, Subject::Quic(_) | Subject::QuicWith(_)) {
            options.quic = Some(certificate(directory));
        }
        options
    }

    /// The options of QUIC alone, for a deliberate bug, which the set of transports has no place for.
    fn with_bug(self, directory: &Path) -> Option<telegraphos_quic::Options> {
        let Subject::QuicWith(bug) = self else { return None };
        let Options { common, quic, .. } = self.options(directory);
        let mut options = telegraphos_quic::Options::new(common, quic);
        options.bug = Some(bug);
        Some(options)
    }

    /// Listens at `address`. `directory`: the test's own.
    pub(crate) fn listen(self, address: &Address, directory: &Path) -> Result<Box<dyn Acceptor>, OpenError> {
        match (self.with_bug(directory), address) {
            (Some(options), Address::Quic(at)) => Ok(Box::new(QuicAcceptor::bind(at, &options)?)),
            _ => transports::listen(address, &self.options(directory)),
        }
    }

    /// Connects to `address`. `directory`: the test's own.
    pub(crate) fn connect(self, address: &Address, directory: &Path) -> Result<Box<dyn Transport>, OpenError> {
        match (self.with_bug(directory), address) {
            (Some(options), Address::Quic(at)) => Ok(Box::new(QuicTransport::connect(at, &options)?)),
            _ => transports::connect(address, &self.options(directory)),
        }
    }

    pub(crate) fn address(self, directory: &Path) -> Option<Address> {
        let text = match self {
            Subject::Address(text) | Subject::Faulty(text, _) => text,
            Subject::Quic(_) | Subject::QuicWith(_) => "quic:127.0.0.1:{port}",
            Subject::InProcess => return None,
        };
        let text = text.replace("{}", directory.to_str().unwrap());
        Some(text.replace("{port}", &udp_port().to_string()).parse().unwrap())
    }

    pub(crate) fn pair(self) -> Pair {
        let directory = tempfile::tempdir().unwrap();
        match self.address(directory.path()) {
            Some(address) => {
                let mut acceptor = self.listen(&address, directory.path()).unwrap();
                let mut a = self.connect(&address, directory.path()).unwrap();
                let b = accept(&mut *acceptor, &mut [&mut *a]);
                Pair { a, b, _acceptor: Some(acceptor), _directory: directory }
            }
            None => {
                let (a, b) = InProcess::pair(&self.options(directory.path()).common).unwrap();
                Pair { a: Box::new(a), b: Box::new(b), _acceptor: None, _directory: directory }
            }
        }
    }
}
