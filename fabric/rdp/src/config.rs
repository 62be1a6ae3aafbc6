// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sizes, limits and times of a connection.

use crate::datagram::MAX_PAYLOAD;
use crate::sequence::Sequence;

/// Sizes, limits and times of a connection. Times are microseconds. Start from [`Config::default`] and change fields.
#[derive(Clone, Debug)]
pub struct Config {
    /// The most segments on the way in one direction: the fixed window of SPEC item 35. Of both sides' the smaller
    /// counts.
    pub window: u16,
    /// After losses, the sender has fewer on the way for a while, but never fewer than this (and the window).
    pub window_floor: u16,
    /// Payload bytes of a segment, at most. Of both sides' the smaller counts.
    pub mtu: u16,
    /// Bytes taken by [`send`](crate::Connection::send) that have not been sent yet.
    pub send_buffer: usize,
    /// Bytes received that have not been read; a segment beyond them is refused by a capacity NACK.
    pub receive_buffer: usize,
    /// An explicit acknowledgement is delayed so long, for a segment the other way to carry it, ...
    pub ack_delay: u64,
    /// ... but not beyond so many segments.
    pub ack_every: u16,
    /// Retransmission timer before anything was measured.
    pub timeout_initial: u64,
    /// The shortest retransmission timer.
    pub timeout_min: u64,
    /// The longest, back-off included.
    pub timeout_max: u64,
    /// A connection ends when nothing came from the other side for so long. Half-way there it is asked.
    pub silence: u64,
    /// Connections of one [`Listener`](crate::Listener), those that are being set up included; beyond them, the oldest
    /// of those that are being set up makes room, and if there is none, the new one gets no answer.
    pub connections: usize,
    /// A deliberate bug that a check must find.
    #[cfg(feature = "bugs")]
    pub bug: Option<Bug>,
}

/// Deliberate bugs behind the `bugs` feature: for each statement one that makes its check fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// I16: damaged datagrams are believed.
    NoChecksum,
    /// I16, order: whatever segment comes is taken as the next.
    AcceptOutOfOrder,
    /// I16, loss: a segment without room is acknowledged and thrown away.
    AcknowledgeUndelivered,
    /// I16, once: a segment that came again is delivered again.
    DeliverDuplicates,
    /// I16, loss: numbers are compared as if they did not wrap.
    NoWrap,
    /// I16, window: the sender does not count what is on the way.
    IgnoreWindow,
    /// Room: the receiver takes more than it has room for.
    NoCapacityCheck,
    /// Room: the sender goes on after a capacity NACK.
    NoPause,
    /// Room: the receiver does not say when there is room again.
    ForgetRoom,
    /// Restart: datagrams are believed whatever ids they carry.
    IgnoreConnectionId,
    /// Restart: a connection replaced by its peer's new one goes on.
    KeepReplaced,
    /// Restart: an Open ends its peer's connection before it is confirmed.
    ReplaceUnconfirmed,
    /// Restart: datagrams of unknown connections get no answer.
    NoReset,
    /// Liveness: nothing is sent again.
    NoTimer,
    /// Liveness: a sequence NACK is ignored.
    IgnoreNack,
    /// Silence: it does not end a connection.
    EndlessPatience,
    /// Silence: nobody asks on an idle connection.
    NoKeepAlive,
    /// End: it is reported when its datagram comes, whatever is missing before it.
    FinishOvertakes,
}

/// The random numbers of one connection. They must be unpredictable and new for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// This side's id of the connection; not 0.
    pub id: u64,
    /// Number of this side's first segment.
    pub sequence: u32,
}

/// Why a configuration or an identity is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// `window` is outside 1..=[`Config::MAX_WINDOW`].
    Window(u16),
    /// `window_floor` is 0.
    WindowFloor,
    /// `mtu` is outside 1..=[`MAX_PAYLOAD`].
    Mtu(u16),
    /// `send_buffer` or `receive_buffer` is smaller than one segment.
    Buffer {
        /// The smaller one.
        bytes: usize,
        /// Bytes of a segment.
        mtu: u16,
    },
    /// The three timeouts are 0 or not in order.
    Timeouts {
        /// The shortest.
        min: u64,
        /// The first.
        initial: u64,
        /// The longest.
        max: u64,
    },
    /// `silence` is shorter than four of the longest timeouts: what is lost a few times would end the connection.
    Silence {
        /// The silence.
        silence: u64,
        /// The longest timeout.
        timeout_max: u64,
    },
    /// `connections` is 0.
    Connections,
    /// The connection id is 0.
    Id,
}

impl core::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ConfigError::Window(n) => {
                write!(f, "window is {n} segments: expected 1 to {}", Config::MAX_WINDOW)
            }
            ConfigError::WindowFloor => write!(f, "window_floor is 0 segments: expected at least 1"),
            ConfigError::Mtu(n) => write!(f, "mtu is {n} bytes: expected 1 to {MAX_PAYLOAD}"),
            ConfigError::Buffer { bytes, mtu } => write!(
                f,
                "a buffer has {bytes} bytes: expected at least {mtu}, the bytes of one segment; raise the buffer or lower \
                 the mtu"
            ),
            ConfigError::Timeouts { min, initial, max } => write!(
                f,
                "timeouts are {min}, {initial} and {max} us (least, initial, most): expected 0 < least <= initial <= most"
            ),
            ConfigError::Silence { silence, timeout_max } => write!(
                f,
                "silence is {silence} us: expected at least {} us, four of the longest timeouts; raise it or lower \
                 timeout_max",
                timeout_max.saturating_mul(4)
            ),
            ConfigError::Connections => write!(f, "connections of a listener are 0: expected at least 1"),
            ConfigError::Id => write!(f, "connection id is 0: expected a random number that is not"),
        }
    }
}

impl core::error::Error for ConfigError {}

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

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.window == 0 || self.window > Config::MAX_WINDOW {
            return Err(ConfigError::Window(self.window));
        }
        if self.window_floor == 0 {
            return Err(ConfigError::WindowFloor);
        }
        if self.mtu == 0 || usize::from(self.mtu) > MAX_PAYLOAD {
            return Err(ConfigError::Mtu(self.mtu));
        }
        let bytes = self.send_buffer.min(self.receive_buffer);
        if bytes < usize::from(self.mtu) {
            return Err(ConfigError::Buffer { bytes, mtu: self.mtu });
        }
        let (min, initial, max) = (self.timeout_min, self.timeout_initial, self.timeout_max);
        if min == 0 || initial < min || max < initial {
            return Err(ConfigError::Timeouts { min, initial, max });
        }
        if self.silence < max.saturating_mul(4) {
            return Err(ConfigError::Silence { silence: self.silence, timeout_max: max });
        }
        if self.connections == 0 {
            return Err(ConfigError::Connections);
        }
        Ok(())
    }

    /// A timeout after so many that came to nothing.
    pub(crate) fn back_off(&self, timeout: u64, times: u32) -> u64 {
        timeout.saturating_mul(1 << times.min(16)).clamp(self.timeout_min, self.timeout_max)
    }

    /// How many segments `a` is after `b`.
    pub(crate) fn distance(&self, a: Sequence, b: Sequence) -> i64 {
        if self.has(Bug::NoWrap) { i64::from(a.0) - i64::from(b.0) } else { i64::from(a.since(b)) }
    }

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
