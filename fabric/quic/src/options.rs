// SPDX-License-Identifier: MIT OR Apache-2.0
//! How QUIC connections are made.

use crate::QuicOptions;
#[cfg(feature = "bugs")]
use crate::bugs::Bug;

/// How QUIC connections are made.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// As for every transport.
    pub common: telegraphos_transport::Options,
    /// Certificate, key and peers; without them, connecting and listening are refused.
    pub quic: Option<QuicOptions>,
    /// A deliberate bug that the conformance suite must find.
    #[cfg(feature = "bugs")]
    pub bug: Option<Bug>,
}

impl Options {
    /// Options without a deliberate bug.
    pub fn new(common: telegraphos_transport::Options, quic: Option<QuicOptions>) -> Options {
        Options {
            common,
            quic,
            #[cfg(feature = "bugs")]
            bug: None,
        }
    }
}
