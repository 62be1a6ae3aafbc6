// SPDX-License-Identifier: MIT OR Apache-2.0
//! Admission of handshakes: accounts of what clients can make a listener spend before they are authenticated.
//!
//! Until its certificate is checked, a client is an address. Addresses of configured peers, those that the
//! configuration names and those from which a peer was authenticated last, have separate slots and rates; all others
//! share one set, of which each gets at most a part. A client at an address that is not configured must first prove by
//! a Retry, which costs no memory, that it receives at that address.
//!
//! When a share is used up, a new handshake displaces an old one ([`Slots`]): the oldest of the address that has most,
//! never one of an address with fewer than the new one's. So an address that holds handshakes open, or begins many,
//! displaces its own first. An honest client, which needs a round trip or two, succeeds even during a flood from the
//! same address: no handshake is displaced by another of its address within half a second, so honest clients that
//! connect all at once do not displace each other.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use telegraphos_accounts::{Exhausted, Rate, Rates, Shares, Slots};

use crate::Peer;
use crate::entry::Key;

/// Handshakes at a time of all addresses that are not configured, and of one of them.
const OTHERS: u64 = 128;
const OTHER: u64 = 16;
/// Handshakes at a time of one configured address, at most and at least, and of all of them.
const CONFIGURED: (u64, u64) = (64, 8);
const ALL_CONFIGURED: u64 = 512;
/// Handshakes of a configured address at a time from which on its clients must prove that they receive there.
const VALIDATED: u64 = 4;
/// Handshakes per second, and at once, of an address that is not configured, and of all of them together.
const OTHER_RATE: (u32, u32) = (64, 8);
const OTHERS_RATE: (u32, u32) = (256, 64);
/// Addresses for which a rate is kept.
const REMEMBERED: usize = 1024;
/// The same of one configured address.
const CONFIGURED_RATE: (u32, u32) = (256, 16);
/// Microseconds before a handshake may be displaced by another of the same address.
const GRACE: u64 = 500_000;

/// The unit of accounting: an IPv4 address, or an IPv6 network of 64 bits, all of which one host may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Origin(IpAddr);

impl From<IpAddr> for Origin {
    fn from(address: IpAddr) -> Origin {
        Origin(match address.to_canonical() {
            IpAddr::V6(six) => IpAddr::V6(Ipv6Addr::from(u128::from(six) & !u128::from(u64::MAX))),
            four => four,
        })
    }
}

/// Why a client gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Crowded {
    /// It begins more handshakes per second than its rate.
    #[error("more handshakes per second than {0}")]
    Rate(u32),
    /// Its share is used up by handshakes that have only begun.
    #[error("handshakes under way: its own {0}, none of them old")]
    Busy(u64),
    /// It may have none.
    #[error("handshakes under way: it {0}")]
    Share(#[from] Exhausted),
}

/// The handshakes that a listener has in progress.
#[derive(Debug)]
pub(crate) struct Admission {
    named: Vec<Origin>,
    /// By peer: the origin where it was authenticated last.
    learned: BTreeMap<Peer, Origin>,
    configured: Slots<Origin, Key>,
    others: Slots<Origin, Key>,
    configured_rates: Rates<Origin>,
    other_rates: Rates<Origin>,
    /// When each handshake began.
    begun: BTreeMap<Key, u64>,
}

impl Admission {
    /// With nothing in progress. `peers`: how many are configured; `named`: the addresses configured for them.
    pub(crate) fn new(peers: usize, named: impl IntoIterator<Item = IpAddr>) -> Admission {
        let mut named: Vec<Origin> = named.into_iter().map(Origin::from).collect();
        named.sort_unstable();
        named.dedup();
        let spenders = (named.len() + peers).max(1) as u64;
        let (most, least) = CONFIGURED;
        let each = (ALL_CONFIGURED / spenders).clamp(least, most);
        let rate = |(per_second, burst): (u32, u32), times: u64| {
            let times = u32::try_from(times).unwrap_or(u32::MAX);
            Rate::new(per_second.saturating_mul(times), burst.saturating_mul(times))
        };
        let all = rate(CONFIGURED_RATE, spenders);
        Admission {
            named,
            learned: BTreeMap::new(),
            configured: Slots::new(Shares::equal(each * spenders, spenders)),
            others: Slots::new(Shares { capacity: OTHERS, spenders: 1, guaranteed: 0, limit: OTHER }),
            configured_rates: Rates::new(rate(CONFIGURED_RATE, 1), all, spenders as usize),
            begun: BTreeMap::new(),
            other_rates: Rates::new(rate(OTHER_RATE, 1), rate(OTHERS_RATE, 1), REMEMBERED),
        }
    }

    fn is_configured(&self, origin: Origin) -> bool {
        self.named.binary_search(&origin).is_ok() || self.learned.values().any(|known| *known == origin)
    }

    /// Whether a client at `from` must first prove by a Retry that it receives there.
    pub(crate) fn must_validate(&self, from: IpAddr) -> bool {
        let origin = Origin::from(from);
        !self.is_configured(origin) || self.configured.account().held(&origin) >= VALIDATED
    }

    /// Charges a new handshake, with a greater key than those before, at `now` (microseconds): `Ok` if it is admitted,
    /// with the one that it displaces.
    pub(crate) fn admit(&mut self, key: Key, from: IpAddr, now: u64) -> Result<Option<Key>, Crowded> {
        let origin = Origin::from(from);
        let configured = self.is_configured(origin);
        let (slots, rates, limit) = match configured {
            true => (&mut self.configured, &mut self.configured_rates, CONFIGURED_RATE.0),
            false => (&mut self.others, &mut self.other_rates, OTHER_RATE.0),
        };
        if let Some(victim) = slots.would_displace(origin).filter(|victim| slots.spender(*victim) == Some(origin)) {
            let begun = self.begun.get(&victim).copied().unwrap_or(0);
            if now.saturating_sub(begun) < GRACE {
                return Err(Crowded::Busy(slots.account().held(&origin)));
            }
        }
        if !rates.take(origin, now) {
            return Err(Crowded::Rate(limit));
        }
        let displaced = slots.take(origin, key)?;
        self.begun.insert(key, now);
        if let Some(displaced) = displaced {
            self.begun.remove(&displaced);
        }
        Ok(displaced)
    }

    /// Gives back what a handshake was charged, however it ended.
    pub(crate) fn ended(&mut self, key: Key) {
        self.begun.remove(&key);
        // It is charged where it began, even if its address was configured since.
        if !self.configured.give(key) {
            self.others.give(key);
        }
    }

    /// Ends the handshake of a peer that was authenticated at `from`: from now on that address counts as configured,
    /// instead of the peer's last one.
    pub(crate) fn authenticated(&mut self, key: Key, peer: &Peer, from: IpAddr) {
        self.ended(key);
        self.learned.insert(peer.clone(), from.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    /// Fills the share of one address, within its rate. Some are refused because those before them are too recent.
    fn fill(admission: &mut Admission, from: IpAddr, keys: std::ops::Range<Key>, now: &mut u64) {
        for key in keys {
            *now += 40_000;
            let admitted = admission.admit(key, from, *now);
            assert!(matches!(admitted, Ok(_) | Err(Crowded::Busy(_))), "{admitted:?}");
        }
    }

    #[test]
    fn a_configured_address_is_served_whatever_others_hold() {
        let mut admission = Admission::new(1, [address(1)]);
        let mut now = 0;
        for host in 2..=200 {
            fill(&mut admission, address(host), Key::from(host) * 100..Key::from(host) * 100 + 60, &mut now);
        }
        assert_eq!(admission.others.len() as u64, OTHERS);
        assert!(!admission.must_validate(address(1)));
        assert_eq!(admission.admit(100_000, address(1), now), Ok(None));
        assert!(admission.configured.contains(100_000));
    }

    #[test]
    fn the_address_with_most_makes_room() {
        let mut admission = Admission::new(1, []);
        let mut now = 0;
        for host in 0..8 {
            fill(&mut admission, address(host), Key::from(host) * 16..Key::from(host + 1) * 16, &mut now);
        }
        assert_eq!(admission.others.len() as u64, OTHERS);
        // A ninth address: the oldest of one of the others goes.
        assert_eq!(admission.admit(1000, address(9), now), Ok(Some(0)));
        // One of the flood takes from itself.
        assert_eq!(admission.admit(1001, address(3), now + 1_000_000), Ok(Some(48)));
        // The ninth is not displaced until it has as many.
        for n in 0..200 {
            now += 40_000;
            let displaced = admission.admit(2000 + n, address((n % 8) as u8), now).unwrap();
            assert_ne!(displaced, Some(1000), "after {n}");
        }
    }

    #[test]
    fn a_flood_from_the_same_address_displaces_its_oldest_and_no_more_than_the_rate() {
        let mut admission = Admission::new(1, [address(1)]);
        let slots = admission.configured.account().shares().limit;
        let (mut now, mut began, mut displaced) = (0, 0, None);
        assert_eq!(admission.admit(0, address(1), now), Ok(None));
        for key in 1..20_000 {
            now += 100;
            match admission.admit(key, address(1), now) {
                Ok(gone) => {
                    began += 1;
                    if gone == Some(0) {
                        displaced = Some(now);
                    }
                }
                Err(why) => assert!(matches!(why, Crowded::Rate(_) | Crowded::Busy(_)), "{why}"),
            }
        }
        assert!(began <= u64::from(2 * CONFIGURED_RATE.0 + CONFIGURED_RATE.1), "{began} handshakes in 2 s");
        assert_eq!(admission.configured.len() as u64, slots);
        // What its own handshakes have at least, however fast the flood.
        assert!(displaced.unwrap() >= GRACE, "{displaced:?}");
    }

    #[test]
    fn where_a_peer_was_authenticated_is_configured_and_only_its_last_address() {
        let mut admission = Admission::new(1, []);
        let peer = Peer::Name("a".into());
        assert!(admission.must_validate(address(1)));
        admission.admit(1, address(1), 0).unwrap();
        admission.authenticated(1, &peer, address(1));
        assert!(!admission.must_validate(address(1)));
        admission.authenticated(2, &peer, address(2));
        assert!(admission.must_validate(address(1)) && !admission.must_validate(address(2)));
        assert!(admission.others.is_empty() && admission.configured.is_empty());
        // A handshake is charged where it began.
        admission.admit(3, address(2), 0).unwrap();
        admission.authenticated(4, &peer, address(3));
        admission.ended(3);
        assert!(admission.configured.is_empty());
    }

    #[test]
    fn addresses_of_one_host_count_together() {
        let origin = |text: &str| Origin::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(origin("2001:db8::1"), origin("2001:db8::ffff:1:2:3"));
        assert_ne!(origin("2001:db8::1"), origin("2001:db8:0:1::1"));
        assert_eq!(origin("::ffff:10.0.0.1"), origin("10.0.0.1"));
        assert_ne!(origin("10.0.0.1"), origin("10.0.0.2"));
    }
}
