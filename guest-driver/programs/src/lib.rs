// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the programs of guests share (`src/bin/tg`; `tg --help` lists them; and `src/bin/tg-demo`).

pub mod child;
pub mod cli;
pub mod flood;
pub mod interface;
pub mod lab;
pub mod launch;
pub mod mapping;
#[cfg(feature = "all")]
pub mod mark;
#[cfg(feature = "all")]
pub mod messages;
pub mod notify;
pub mod patience;
pub mod pci;
pub mod peers;
pub mod pins;
pub mod queue;
pub mod random;
pub mod raw;
pub mod replica;
pub mod stats;
pub mod testdev;
pub mod user;
pub mod userfault;
