// SPDX-License-Identifier: MIT OR Apache-2.0
//! Units that are divided among the users of a system.

use crate::{Account, Exhausted, Shares};

/// The user id of root.
const ROOT: u32 = 0;

/// Units of one resource, by user id. A part is root's alone; beyond it root takes from the rest like any other user.
///
/// So no number of ordinary users, each within its own limit, keeps root out; and the first users that ask have their
/// guarantee whatever one of them holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Users {
    reserve: Account<u32>,
    common: Account<u32>,
}

impl Users {
    /// An account of which nothing is held: `common` for all users, and a reserve for root beside it.
    pub fn new(common: Shares, reserve: u64) -> Users {
        Users { reserve: Account::new(Shares::single(reserve)), common: Account::new(common) }
    }

    /// Takes units for a user: those of root from its reserve first.
    ///
    /// # Errors
    /// [`Exhausted`] if they are more than [`Users::available`]; nothing is taken then.
    pub fn take(&mut self, uid: u32, units: u64) -> Result<(), Exhausted> {
        let reserved = if uid == ROOT { units.min(self.reserve.available(&uid)) } else { 0 };
        let (held, limit) = (self.held(uid), self.held(uid) + self.available(uid));
        self.common.take(uid, units - reserved).map_err(|_| Exhausted { held, requested: units, limit })?;
        // That many are available.
        self.reserve.take(uid, reserved)
    }

    /// Gives back units of a user, at most what it holds: those of root to its reserve last.
    pub fn give(&mut self, uid: u32, units: u64) {
        let given = self.common.give(&uid, units);
        self.reserve.give(&uid, units - given);
    }

    /// Units that a user holds.
    pub fn held(&self, uid: u32) -> u64 {
        self.common.held(&uid) + self.reserve.held(&uid)
    }

    /// Units that a user could take now.
    pub fn available(&self, uid: u32) -> u64 {
        let reserved = if uid == ROOT { self.reserve.available(&uid) } else { 0 };
        reserved + self.common.available(&uid)
    }

    /// Units that all users hold.
    pub fn total(&self) -> u64 {
        self.common.total() + self.reserve.total()
    }

    /// Requests refused so far.
    pub fn refused(&self) -> u64 {
        self.common.refused()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ordinary_users_leave_the_reserve_to_root() {
        let mut users = Users::new(Shares { capacity: 10, spenders: 3, guaranteed: 1, limit: 6 }, 2);
        assert_eq!(users.take(1000, 6), Ok(()));
        assert_eq!(users.take(1000, 1), Err(Exhausted { held: 6, requested: 1, limit: 6 }));
        assert_eq!(users.take(1001, 3), Ok(()));
        assert_eq!((users.available(1001), users.available(1002), users.available(0)), (0, 1, 3));
        assert_eq!(users.take(1002, 1), Ok(()));
        // All that have a guarantee have it, and nothing is left beside that and the reserve.
        assert_eq!((users.available(1003), users.available(0)), (0, 2));
        assert_eq!(users.take(0, 3).unwrap_err(), Exhausted { held: 0, requested: 3, limit: 2 });
        assert_eq!(users.take(0, 2), Ok(()));
        assert_eq!((users.total(), users.refused()), (12, 2));
        users.give(0, 1);
        users.give(1000, 6);
        assert_eq!((users.held(0), users.held(1000)), (1, 0));
        assert_eq!(users.take(0, 6), Ok(()), "and what is left beside it");
        users.give(0, 100);
        assert_eq!((users.held(0), users.total()), (0, 4));
    }

    proptest! {
        #[test]
        fn root_always_has_its_reserve(
            capacity in 0u64..60,
            reserve in 0u64..20,
            limit in 0u64..70,
            steps in proptest::collection::vec((0u32..5, 0u64..30, any::<bool>()), 0..200),
        ) {
            let mut users = Users::new(Shares::half_guaranteed(capacity, 4, limit), reserve);
            for (uid, units, take) in steps {
                let (held, available) = (users.held(uid), users.available(uid));
                if take {
                    prop_assert_eq!(users.take(uid, units).is_ok(), units <= available);
                } else {
                    users.give(uid, units);
                    prop_assert_eq!(users.held(uid), held - units.min(held));
                }
                prop_assert!(users.held(0) + users.available(0) >= reserve);
                prop_assert!(users.total() <= capacity + reserve);
                prop_assert_eq!(users.total(), (0..5).map(|uid| users.held(uid)).sum::<u64>());
            }
        }
    }
}
