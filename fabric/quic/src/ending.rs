// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a connection has ended, as text.

use std::io;
use std::net::SocketAddr;

use quinn_proto::{ConnectionError, TransportErrorCode};

/// Why a connection has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The peer ended it: it closed, was restarted, or fell silent.
    Gone(&'static str),
    /// It failed: why, and what to do.
    Failed(io::ErrorKind, String),
}

impl Ending {
    /// As an error of a call.
    pub(crate) fn error(&self) -> io::Error {
        match self {
            Ending::Gone(why) => io::Error::new(io::ErrorKind::ConnectionReset, *why),
            Ending::Failed(kind, why) => io::Error::new(*kind, why.clone()),
        }
    }
}

/// The TLS alert in an error code of QUIC (RFC 9001 §4.8).
fn alert(code: TransportErrorCode) -> Option<u8> {
    u64::from(code).checked_sub(0x100).and_then(|alert| u8::try_from(alert).ok())
}

/// The text of an alert and what to do; `owner` is the owner of the certificate that it may be about, as `its`.
fn alert_text(alert: u8, owner: &str) -> Option<String> {
    let why = match alert {
        42 => "names no peer that is expected: compare its name with the peers that are accepted",
        43 => "is not made for this: make one with telegraphos-fabric keys",
        44 => "has been revoked",
        45 => "has expired, or is not valid yet: make a new one, or set the clock",
        46 | 49 => "is not accepted",
        48 => "is signed by an unknown CA: use one certificate authority for the whole cluster",
        51 => {
            let why = "certificate is wrong: certificate and key, or CA, do not belong together";
            return Some(format!("a signature of {owner} {why}"));
        }
        ALERT_VERSION | ALERT_PROTOCOL => {
            return Some("it speaks another protocol: is it a fabric of Telegraphos of the same version?".to_owned());
        }
        116 => "is missing: every process needs one",
        _ => return None,
    };
    Some(format!("{owner} certificate {why}"))
}

const ALERT_VERSION: u8 = 70;
const ALERT_PROTOCOL: u8 = 120;

/// The text for `reason`. `established`: whether the connection was ever established; `peer`: address of the peer.
pub(crate) fn ending(reason: &ConnectionError, established: bool, peer: SocketAddr) -> Ending {
    use io::ErrorKind;
    match reason {
        ConnectionError::TimedOut if established => Ending::Gone("the peer fell silent"),
        ConnectionError::TimedOut => Ending::Failed(
            ErrorKind::TimedOut,
            format!(
                "nothing answers at quic:{peer}: is the other fabric running there, and does the network let UDP through?"
            ),
        ),
        ConnectionError::Reset => Ending::Gone("the peer was restarted"),
        ConnectionError::ApplicationClosed(_) | ConnectionError::LocallyClosed => {
            Ending::Gone("the peer closed the connection")
        }
        // This end refuses.
        ConnectionError::TransportError(error) => match alert(error.code) {
            Some(alert) => {
                let why = alert_text(alert, "its").unwrap_or_else(|| "the TLS handshake failed".to_owned());
                Ending::Failed(ErrorKind::PermissionDenied, format!("the peer is refused: {why} ({})", error.reason))
            }
            None => Ending::Failed(ErrorKind::InvalidData, format!("the peer broke the protocol: {error}")),
        },
        // The peer refuses.
        ConnectionError::ConnectionClosed(close) => match alert(close.error_code) {
            Some(alert) => {
                let why = alert_text(alert, "this process's").unwrap_or_else(|| close.to_string());
                Ending::Failed(ErrorKind::PermissionDenied, format!("the peer refuses: {why}"))
            }
            None if close.error_code == TransportErrorCode::NO_ERROR => Ending::Gone("the peer closed the connection"),
            None if close.error_code == TransportErrorCode::CONNECTION_REFUSED => Ending::Failed(
                ErrorKind::ConnectionRefused,
                "the peer takes no more connections now: try again later".to_owned(),
            ),
            None if established => Ending::Gone("the peer ended the connection because of an error"),
            None => Ending::Failed(ErrorKind::ConnectionRefused, format!("the peer ended the handshake: {close}")),
        },
        ConnectionError::VersionMismatch => Ending::Failed(
            ErrorKind::Unsupported,
            "the peer speaks no version of QUIC that this program does: is it a fabric of Telegraphos?".to_owned(),
        ),
        ConnectionError::CidsExhausted => {
            Ending::Failed(ErrorKind::OutOfMemory, "there are too many connections".to_owned())
        }
    }
}
