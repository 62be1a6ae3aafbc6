// SPDX-License-Identifier: MIT OR Apache-2.0
//! The transports under test. A new one is a line in `conformance.rs`, and passes.

use std::path::Path;

use telegraphos_transport::faults::LinkFaults;
use telegraphos_transport::{Acceptor, Address, InProcess, Options, Transport, connect, listen};

use super::drive::accept;

static PORTS: std::sync::Mutex<Vec<u16>> = std::sync::Mutex::new(Vec::new());

/// How to make connections of one kind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subject {
    /// By address: `{}` is a directory of the test's own.
    Address(&'static str),
    /// The same with faults on both ends.
    Faulty(&'static str, &'static str),
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
            Subject::Faulty(_, plan) => Some(LinkFaults::new("test", 1).with(plan.parse().unwrap())),
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
            Subject::InProcess => None,
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
            None => {
                let (a, b) = InProcess::pair(&self.options()).unwrap();
                Pair { a: Box::new(a), b: Box::new(b), _acceptor: None, _directory: directory }
            }
        }
    }
}
