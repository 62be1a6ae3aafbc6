// SPDX-License-Identifier: MIT OR Apache-2.0
//! Log lines that a guest or a peer can trigger: a few at once, then a trickle, and what is left out is counted.

use std::collections::BTreeMap;

use telegraphos_accounts::Rate;

/// Lines admitted at once; then one a second.
const BURST: u64 = 20;

/// The lines of one kind.
#[derive(Debug)]
struct Lines {
    rate: Rate,
    suppressed: u64,
}

impl Default for Lines {
    fn default() -> Lines {
        Lines { rate: Rate::new(1, BURST as u32), suppressed: 0 }
    }
}

impl Lines {
    fn admit(&mut self, now: u64) -> Option<u64> {
        if self.rate.take(now) {
            return Some(std::mem::take(&mut self.suppressed));
        }
        self.suppressed += 1;
        None
    }
}

/// Buckets by kind, and within a kind by peer. Kinds are literals, so there are few; peers are up to `MOST_PEERS`, the
/// others are one.
#[derive(Debug, Default)]
pub struct Limiter {
    buckets: BTreeMap<(&'static str, u64), Lines>,
}

/// Peers that have a bucket of their own.
const MOST_PEERS: usize = 1 << 13;
/// The peer that all others are together.
const OTHERS: u64 = u64::MAX;
/// No peer in particular.
const NONE: u64 = u64::MAX - 1;

impl Limiter {
    /// Whether a line of `kind` may be written at `now` (microseconds), and if so what to append to it: nothing, or how
    /// many lines of its kind were left out since the last.
    pub fn admit(&mut self, kind: &'static str, now: u64) -> Option<Suffix> {
        self.admit_of(kind, NONE, now)
    }

    /// The same for a line that one peer has caused, by a number of the caller's: lines of other peers are not left out
    /// for it.
    pub fn admit_of(&mut self, kind: &'static str, peer: u64, now: u64) -> Option<Suffix> {
        let known = self.buckets.contains_key(&(kind, peer));
        if !known && self.buckets.len() >= MOST_PEERS {
            // Those that have their whole burst again are as good as new.
            self.buckets.retain(|_, lines| lines.suppressed > 0 || !lines.rate.is_full(now));
        }
        let peer = if known || self.buckets.len() < MOST_PEERS { peer } else { OTHERS };
        self.buckets.entry((kind, peer)).or_default().admit(now).map(Suffix)
    }
}

/// What to append to an admitted line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suffix(u64);

impl std::fmt::Display for Suffix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            0 => Ok(()),
            n => write!(f, " ({n} more of this kind were not logged)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_becomes_a_trickle_that_counts() {
        let mut limiter = Limiter::default();
        let mut admitted = 0;
        let mut accounted = 0;
        for now in (0..60_000_000).step_by(1000) {
            if let Some(Suffix(n)) = limiter.admit("flood", now) {
                admitted += 1;
                accounted += 1 + n;
            }
        }
        assert_eq!(admitted, BURST + 59);
        assert!(accounted > 59_000, "{accounted} of 60000 are written or counted");
        assert_eq!(limiter.admit("other", 60_000_000), Some(Suffix(0)));
    }

    #[test]
    fn a_peer_that_floods_leaves_the_lines_of_others() {
        let mut limiter = Limiter::default();
        for peer in 0..2 * MOST_PEERS as u64 {
            for _ in 0..2 * BURST {
                limiter.admit_of("k", peer, 0);
            }
        }
        assert_eq!(limiter.buckets.len(), MOST_PEERS + 1, "bounded");
        assert_eq!(limiter.admit_of("k", 3, 0), None);
        assert_eq!(limiter.admit("k", 0), None, "all others are one");
        let mut limiter = Limiter::default();
        for _ in 0..2 * BURST {
            limiter.admit_of("k", 3, 0);
        }
        assert_eq!((limiter.admit_of("k", 3, 0), limiter.admit_of("k", 4, 0)), (None, Some(Suffix(0))));
        assert_eq!(limiter.admit("k", 0), Some(Suffix(0)));
    }

    #[test]
    fn a_pause_restores_the_burst() {
        let mut limiter = Limiter::default();
        for _ in 0..2 * BURST {
            limiter.admit("k", 5);
        }
        assert_eq!(limiter.admit("k", 5), None);
        let later = 5 + BURST * 1_000_000;
        assert_eq!(limiter.admit("k", later), Some(Suffix(BURST + 1)));
        assert!((1..BURST).all(|_| limiter.admit("k", later) == Some(Suffix(0))));
        assert_eq!(limiter.admit("k", later), None);
    }
}
