// SPDX-License-Identifier: MIT OR Apache-2.0
//! `guest-driver/module/division.c`, the same file by which the driver divides command slots and the board's tables,
//! against `telegraphos-accounts`, which does the same for the boards and the fabric.

use telegraphos_accounts::{Account, Shares};
use telegraphos_testkit::Rng;

/// `struct tg_division`.
#[repr(C)]
struct Division {
    guaranteed: u32,
    limit: u32,
    pool: u32,
}

#[link(name = "division", kind = "static")]
unsafe extern "C" {
    fn tg_division_allows(division: *const Division, borrowed: u32, held: u32, units: u32) -> bool;
    fn tg_division_take(division: *const Division, borrowed: *mut u32, held: *mut u32, units: u32);
    fn tg_division_give(division: *const Division, borrowed: *mut u32, held: *mut u32, units: u32);
}

/// Units and their holders, as the driver keeps them.
struct Driver {
    division: Division,
    borrowed: u32,
    held: Vec<u32>,
}

impl Driver {
    fn new(division: Division, spenders: usize) -> Driver {
        Driver { division, borrowed: 0, held: vec![0; spenders] }
    }

    fn take(&mut self, spender: usize, units: u32) -> bool {
        // SAFETY: all three outlive the calls, and the code keeps no pointer.
        unsafe {
            let allowed = tg_division_allows(&self.division, self.borrowed, self.held[spender], units);
            if allowed {
                tg_division_take(&self.division, &mut self.borrowed, &mut self.held[spender], units);
            }
            allowed
        }
    }

    fn give(&mut self, spender: usize, units: u32) {
        // SAFETY: as in `take`.
        unsafe { tg_division_give(&self.division, &mut self.borrowed, &mut self.held[spender], units) }
    }
}

/// Long random histories: each request has the same result as with an account of the crate, and guaranteed units are
/// always available.
#[test]
fn accounts_of_the_driver_are_those_of_the_crate() {
    for seed in 0..200 {
        let mut random = Rng::new(seed);
        let spenders = 1 + random.below(9);
        let capacity = spenders + random.below(200);
        let guaranteed = random.below(capacity / spenders + 1);
        let limit = guaranteed + random.below(capacity - guaranteed + 1);
        let pool = capacity - guaranteed * spenders;
        let mut driver = Driver::new(Division { guaranteed, limit, pool }, spenders as usize);
        let mut account = Account::new(Shares {
            capacity: capacity.into(),
            spenders: spenders.into(),
            guaranteed: guaranteed.into(),
            limit: limit.into(),
        });
        for step in 0..400 {
            let spender = random.below(spenders);
            let at = spender as usize;
            let units = random.below(20);
            if random.below(3) > 0 {
                let before = driver.held[at];
                let allowed = driver.take(at, units);
                assert_eq!(allowed, account.take(spender, units.into()).is_ok(), "seed {seed}, step {step}");
                assert!(
                    allowed || before + units > guaranteed,
                    "seed {seed}, step {step}: what is guaranteed is refused"
                );
            } else {
                let units = units.min(driver.held[at]);
                driver.give(at, units);
                assert_eq!(account.give(&spender, units.into()), u64::from(units), "seed {seed}, step {step}");
            }
            let total: u32 = driver.held.iter().sum();
            assert!(total <= capacity, "seed {seed}, step {step}: {total} of {capacity}");
        }
    }
}

/// The slots of commands that wait for another node, as `tg_admin_divide()` divides them among 256 contexts and the
/// driver: contexts whose commands never complete use no slots of others. The earlier division (12 slots, first come,
/// first served) fails this test.
#[test]
fn stuck_commands_of_some_contexts_leave_each_other_one_its_slot() {
    const CONTEXTS: usize = 257;
    let served = |division: Division, capacity: u32| {
        let mut driver = Driver::new(division, CONTEXTS);
        // Twelve contexts have as many commands stuck as they can get.
        for context in 0..12 {
            while driver.take(context, 1) && driver.held.iter().sum::<u32>() < capacity {}
        }
        (12..CONTEXTS).filter(|context| driver.held.iter().sum::<u32>() < capacity && driver.take(*context, 1)).count()
    };
    assert_eq!(served(Division { guaranteed: 1, limit: 11, pool: 20 }, 277), CONTEXTS - 12);
    assert_eq!(served(Division { guaranteed: 0, limit: 12, pool: 12 }, 12), 0);
}
