// SPDX-License-Identifier: MIT OR Apache-2.0
//! How trunks are opened, whatever carries them.

use telegraphos_transport::QuicOptions;

/// How connections are made. Start from the default and change fields.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whatever carries them.
    pub common: telegraphos_transport::Options,
    /// Certificate, key and peers, for `quic:`.
    pub quic: Option<QuicOptions>,
    /// Whether `udp:` may leave this host, where everybody on the way can read, forge and inject what it carries.
    pub allow_insecure: bool,
}
