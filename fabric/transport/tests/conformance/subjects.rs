// SPDX-License-Identifier: MIT OR Apache-2.0
//! The transports under test. A new one is a line in `conformance.rs`, and passes.

use std::path::Path;

use telegraphos_transport::faults::LinkFaults;
use telegraphos_transport::quic::{QuicAcceptor, QuicTransport};
use telegraphos_transport::{Acceptor, Address, HostPort, InProcess, Options, Transport, connect, listen};

use super::drive::accept;
use super::pki::Cluster;

static PORTS: std::sync::Mutex<Vec<u16>> = std::sync::Mutex::new(Vec::new());

/// How to make connections of one kind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subject {
    /// By address: `{}` is a directory of the test's own.
    Address(&'static str),
    /// The same with faults on both ends.
    Faulty(&'static str, &'static str),
    /// Between two processes of a cluster made for it, at any free port, with these faults below.
    Quic(&'static str),
    /// Both ends at once.
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

/// A port that nobody had a moment ago, and that no other test of this process gets.
fn port() -> u16 {
    let mut given = PORTS.lock().unwrap();
    loop {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        if !given.contains(&port) {
            given.push(port);
            return port;
        }
    }
}

impl Subject {
    pub(crate) fn options(self) -> Options {
        let faults = match self {
            Subject::Faulty(_, plan) | Subject::Quic(plan) => {
                Some(LinkFaults::new("test", 1).with(plan.parse().unwrap()))
            }
            _ => None,
        };
        // A killed peer of datagrams is noticed by its silence.
        Options { buffer: BUFFER, faults, silence: 6_000_000, ..Options::default() }
    }

    pub(crate) fn address(self, directory: &Path) -> Option<Address> {
        match self {
            Subject::Address(text) | Subject::Faulty(text, _) => {
                let text = text.replace("{}", directory.to_str().unwrap());
                Some(text.replace("{port}", &port().to_string()).parse().unwrap())
            }
            Subject::Quic(_) | Subject::InProcess => None,
        }
    }

    pub(crate) fn pair(self) -> Pair {
        let directory = tempfile::tempdir().unwrap();
        match self.address(directory.path()) {
            Some(address) => {
                let mut acceptor = listen(&address, &self.options()).unwrap();
                let mut a = connect(&address, &self.options()).unwrap();
                let b = accept(&mut *acceptor, &mut [&mut *a]);
                Pair { a, b, _acceptor: Some(acceptor), _directory: directory }
            }
            None if matches!(self, Subject::Quic(_)) => {
                let cluster = Cluster::new();
                let options = |name, peer| Options { quic: Some(cluster.process(name, &[peer])), ..self.options() };
                let at = |port| HostPort { host: "127.0.0.1".to_owned(), port };
                let mut acceptor = QuicAcceptor::bind(&at(0), &options("b", "a")).unwrap();
                let port = acceptor.local().port();
                let mut a = QuicTransport::connect(&at(port), &options("a", "b")).unwrap();
                let b = accept(&mut acceptor, &mut [&mut a]);
                Pair { a: Box::new(a), b, _acceptor: Some(Box::new(acceptor)), _directory: directory }
            }
            None => {
                let (a, b) = InProcess::pair(&self.options()).unwrap();
                Pair { a: Box::new(a), b: Box::new(b), _acceptor: None, _directory: directory }
            }
        }
    }
}
