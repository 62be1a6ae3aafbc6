// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why something failed.

use std::io;
use std::path::PathBuf;
use telegraphos_daemon_core::Refusal;
use telegraphos_daemon_core::protocol::Malformed;

/// Why a daemon did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no daemon.
    #[error("no daemon at {}: {source}; is tgd running on this node?", path.display())]
    NotRunning { path: PathBuf, source: io::Error },
    /// It has refused, with an errno.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// What was asked for is beyond a limit, or what was answered is no message.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// It has ended, or the connection has.
    #[error("the daemon of this node has closed the connection: {0}")]
    Closed(io::Error),
    /// The outputs of tasks cannot be received.
    #[error("cannot listen for the outputs of tasks: {0}")]
    Listen(io::Error),
    /// An answer that does not fit what was asked.
    #[error("the daemon of this node answered with something else than was asked for: is it another version?")]
    Unexpected,
}

/// The result of most functions here.
pub type Result<T> = std::result::Result<T, Error>;
