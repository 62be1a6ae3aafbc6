// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why there is no connection.

use std::fmt::Display;
use std::io;

use telegraphos_link::listener::ListenError;

/// Why listening or connecting gives nothing: what, where, why, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No socket's file.
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("cannot {action} {address}: {why}; {hint}")]
    Refused {
        /// `connect to` or `listen at`.
        action: &'static str,
        /// The address, as it is written.
        address: String,
        kind: io::ErrorKind,
        why: String,
        hint: String,
    },
}

impl OpenError {
    /// Nothing answers at `address`.
    pub fn connect(address: &impl Display, error: impl Into<io::Error>, hint: impl Into<String>) -> OpenError {
        OpenError::refused("connect to", address, error.into(), hint.into())
    }

    /// `address` cannot be listened at.
    pub fn listen(address: &impl Display, error: impl Into<io::Error>, hint: impl Into<String>) -> OpenError {
        OpenError::refused("listen at", address, error.into(), hint.into())
    }

    fn refused(action: &'static str, address: &impl Display, error: io::Error, hint: String) -> OpenError {
        OpenError::Refused { action, address: address.to_string(), kind: error.kind(), why: error.to_string(), hint }
    }

    /// The reason, for programs: `NotFound`, `ConnectionRefused` and `WouldBlock` may pass by themselves.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            OpenError::Listen(ListenError::Live { .. }) => io::ErrorKind::AddrInUse,
            OpenError::Listen(ListenError::NotASocket { .. }) => io::ErrorKind::AlreadyExists,
            OpenError::Listen(ListenError::Directory { .. }) => io::ErrorKind::NotFound,
            OpenError::Listen(ListenError::Io { errno, .. }) => io::Error::from(*errno).kind(),
            OpenError::Refused { kind, .. } => *kind,
        }
    }
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> io::Error {
        io::Error::new(error.kind(), error.to_string())
    }
}
