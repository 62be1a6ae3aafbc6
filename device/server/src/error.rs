// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a server ended or did not start.

use rustix::io::Errno;
use telegraphos_link::listener::ListenError;

use crate::fabric_link::RefusedByFabric;

/// Why a server ended or did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The socket could not be created.
    #[error(transparent)]
    Bind(#[from] ListenError),
    /// The fabric refuses this board.
    #[error(transparent)]
    Fabric(#[from] RefusedByFabric),
    #[error("{what}: {errno}")]
    System { what: &'static str, errno: Errno },
}

/// The failure of a system call, by the operation that failed.
pub(crate) fn system(what: &'static str) -> impl Fn(Errno) -> ServeError {
    move |errno| ServeError::System { what, errno }
}
