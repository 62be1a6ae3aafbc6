// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sizes, limits and times of a connection.

use std::fmt;

use crate::bugs::Bug;
use crate::datagram::{Datagram, Discard, MAX_PAYLOAD};
use crate::sequence::Sequence;

/// Sizes, limits and times of a connection. Times are microseconds. Start from [`Config::default`] and change fields.
#[derive(Clone, Debug)]
pub struct Config {
    /// The most segments in flight in one direction: the fixed window of SPEC item 35. The smaller value of the two
    /// sides applies.
    pub window: u16,
    /// After losses the sender reduces the segments in flight for a while, but not below this (or `window`, if that is
    /// smaller).
    pub window_floor: u16,
    /// Payload bytes of a segment, at most. The smaller value of the two sides applies.
    pub mtu: u16,
    /// Bytes accepted by [`send`](crate::Connection::send) that may wait to be sent for the first time.
    pub send_buffer: usize,
    /// Bytes received that may wait to be read; a segment beyond them is refused by a capacity NACK.
    pub receive_buffer: usize,
    /// How long an explicit acknowledgement is delayed, so that a segment the other way can carry it.
    pub ack_delay: u64,
    /// Segments after which an acknowledgement is sent without delay.
    pub ack_every: u16,
    /// Retransmission timeout before the first measurement.
    pub timeout_initial: u64,
    pub timeout_min: u64,
    /// The longest retransmission timeout, back-off included.
    pub timeout_max: u64,
    /// A connection ends when nothing has arrived from the other side for this long. Probes are sent after a third of
    /// it.
    pub silence: u64,
    /// Connections of one [`Listener`](crate::Listener), those in the handshake included. Beyond them the oldest
    /// handshake is dropped for a new one; without any, the new Open is not answered.
    pub connections: usize,
    /// A deliberate bug that a check must find.
    #[cfg(feature = "bugs")]
    pub bug: Option<Bug>,
}

/// The random numbers of one connection. They must be unpredictable and new for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// This side's id of the connection; not 0.
    pub id: u64,
    /// Number of this side's first segment.
    pub sequence: u32,
}

/// Why a configuration or an identity is refused: the field, its value, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

/// The error `why` unless `holds`.
pub(crate) fn require(holds: bool, why: fmt::Arguments<'_>) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(ConfigError(why.to_string())) }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            window: 64,
            window_floor: 16,
            mtu: 1400,
            send_buffer: 256 << 10,
            receive_buffer: 256 << 10,
            ack_delay: 500,
            ack_every: 16,
            timeout_initial: 20_000,
            timeout_min: 2_000,
            timeout_max: 500_000,
            silence: 10_000_000,
            connections: 1024,
            #[cfg(feature = "bugs")]
            bug: None,
        }
    }
}

impl Config {
    /// The greatest window.
    pub const MAX_WINDOW: u16 = 4096;

    /// Checks every field against its range and against the others.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let Config { window, window_floor, mtu, silence, connections, .. } = *self;
        let most = Config::MAX_WINDOW;
        require((1..=most).contains(&window), format_args!("window is {window} segments: expected 1 to {most}"))?;
        require(window_floor > 0, format_args!("window_floor is 0 segments: expected at least 1"))?;
        require(
            (1..=MAX_PAYLOAD).contains(&usize::from(mtu)),
            format_args!("mtu is {mtu} bytes: expected 1 to {MAX_PAYLOAD}"),
        )?;
        let bytes = self.send_buffer.min(self.receive_buffer);
        require(
            bytes >= usize::from(mtu),
            format_args!(
                "a buffer has {bytes} bytes: expected at least {mtu}, the bytes of one segment; raise the buffer or \
                 lower the mtu"
            ),
        )?;
        let (min, initial, max) = (self.timeout_min, self.timeout_initial, self.timeout_max);
        require(
            0 < min && min <= initial && initial <= max,
            format_args!(
                "timeouts are {min}, {initial} and {max} us (least, initial, most): expected 0 < least <= initial <= most"
            ),
        )?;
        let least = max.saturating_mul(4);
        // A few losses in a row would end the connection.
        require(
            silence >= least,
            format_args!(
                "silence is {silence} us: expected at least {least} us, four of the longest timeouts; raise it or lower \
                 timeout_max"
            ),
        )?;
        require(connections > 0, format_args!("connections of a listener are 0: expected at least 1"))
    }

    /// The timeout after `times` consecutive expirations: doubled each time, within `timeout_min..=timeout_max`.
    pub(crate) fn back_off(&self, timeout: u64, times: u32) -> u64 {
        timeout.saturating_mul(1 << times.min(16)).clamp(self.timeout_min, self.timeout_max)
    }

    /// How many segments `a` is after `b`; negative if it is before.
    pub(crate) fn distance(&self, a: Sequence, b: Sequence) -> i64 {
        if self.has(Bug::NoWrap) { i64::from(a.0) - i64::from(b.0) } else { i64::from(a.since(b)) }
    }

    /// Decodes a datagram, as [`Datagram::parse`].
    pub(crate) fn parse<'a>(&self, bytes: &'a [u8]) -> Result<Datagram<'a>, Discard> {
        if self.has(Bug::NoChecksum) { Datagram::decode(bytes) } else { Datagram::parse(bytes) }
    }

    /// The hook of deliberate bugs: always false without the feature `bugs`.
    #[inline]
    pub(crate) fn has(&self, bug: Bug) -> bool {
        #[cfg(feature = "bugs")]
        return self.bug == Some(bug);
        #[cfg(not(feature = "bugs"))]
        {
            let _ = bug;
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_configurations_are_refused_by_name() {
        let refused = |change: &dyn Fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.check().expect_err("must be refused").to_string()
        };
        assert_eq!(refused(&|c| c.window = 0), "window is 0 segments: expected 1 to 4096");
        assert_eq!(refused(&|c| c.window = 5000), "window is 5000 segments: expected 1 to 4096");
        assert!(refused(&|c| c.window_floor = 0).starts_with("window_floor is 0"));
        assert!(refused(&|c| c.mtu = 65_001).starts_with("mtu is 65001 bytes"));
        assert!(refused(&|c| c.receive_buffer = 1399).starts_with("a buffer has 1399 bytes"));
        assert!(refused(&|c| c.timeout_min = 30_000).starts_with("timeouts are 30000, 20000 and 500000 us"));
        assert!(refused(&|c| c.silence = 1_999_999).starts_with("silence is 1999999 us"));
        assert!(refused(&|c| c.connections = 0).starts_with("connections of a listener are 0"));
        assert_eq!(Config::default().check(), Ok(()));
    }

    #[test]
    fn back_off_doubles_up_to_its_bound() {
        let config = Config::default();
        assert_eq!(config.back_off(3_000, 0), 3_000);
        assert_eq!(config.back_off(3_000, 3), 24_000);
        assert_eq!(config.back_off(3_000, 60), 500_000);
        assert_eq!(config.back_off(u64::MAX, 60), 500_000);
    }
}
