// SPDX-License-Identifier: MIT OR Apache-2.0
//! The transports under test. A new one is a line in `conformance.rs`, and passes.

use std::path::Path;

use telegraphos_transport::faults::LinkFaults;
use telegraphos_transport::{Acceptor, Address, InProcess, Options, Transport, connect, listen};

use super::drive::accept;

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

impl Subject {
    pub(crate) fn options(self) -> Options {
        let faults = match self {
            Subject::Faulty(_, plan) => Some(LinkFaults::new("test", 1).with(plan.parse().unwrap())),
            _ => None,
        };
        Options { buffer: BUFFER, faults, ..Options::default() }
    }

    pub(crate) fn address(self, directory: &Path) -> Option<Address> {
        match self {
            Subject::Address(text) | Subject::Faulty(text, _) => {
                Some(text.replace("{}", directory.to_str().unwrap()).parse().unwrap())
            }
            Subject::InProcess => None,
        }
    }

    pub(crate) fn pair(self) -> Pair {
        let directory = tempfile::tempdir().unwrap();
        match self.address(directory.path()) {
            Some(address) => {
                let mut acceptor = listen(&address, &self.options()).unwrap();
                let a = connect(&address, &self.options()).unwrap();
                let b = accept(&mut *acceptor);
                Pair { a, b, _acceptor: Some(acceptor), _directory: directory }
            }
            None => {
                let (a, b) = InProcess::pair(&self.options()).unwrap();
                Pair { a: Box::new(a), b: Box::new(b), _acceptor: None, _directory: directory }
            }
        }
    }
}
