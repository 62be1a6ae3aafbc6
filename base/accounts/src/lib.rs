// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limits and fair shares (docs/security.md): whatever one party can make another spend is charged to an account.
//!
//! [`Account`] counts units that are held and given back: memory, table entries, credits, slots; [`Users`] divides them
//! among the users of a system; [`Slots`] are units that may be taken away again from the spender that has most.
//! [`Rate`] counts events per time: resets, connections, log lines; [`Rates`] counts them by spender. All are pure
//! values, part of the state machines that use them; time is a parameter. The table in `docs/security.md` lists every
//! account of the project.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod account;
mod rate;
mod rates;
mod slots;
mod users;

pub use account::{Account, Exhausted, Shares};
pub use rate::Rate;
pub use rates::Rates;
pub use slots::Slots;
pub use users::Users;
