// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which code ran in a region, as values and as a table.
//!
//! ```text
//! region address instructions
//!      7 0x7f1b4c0a2345 20
//!      7 0xffffffff81e00080 340
//! ```
//!
//! `address` is where a block of instructions begins that the emulator runs as one, `instructions` how many of it have
//! run in all passages of the region that have ended. What has which address only the guest knows.

use crate::{ParseError, Region};
use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use core::fmt::{self, Display};

/// Instructions of the blocks that ran in regions, by region and by the block's address.
///
/// A block is counted whole when it begins. The one that begins a region has begun before it, and the one that ends it
/// continues: this does not divide a few instructions. An exception in a block lets the rest of it count twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Code {
    /// By region, and by address.
    pub regions: BTreeMap<Region, BTreeMap<u64, u64>>,
}

const HEADER: [&str; 3] = ["region", "address", "instructions"];

impl Code {
    pub(crate) fn add(&mut self, region: Region, blocks: BTreeMap<u64, u64>) {
        let counts = self.regions.entry(region).or_default();
        for (address, instructions) in blocks {
            let count = counts.entry(address).or_default();
            *count = count.saturating_add(instructions);
        }
    }

    /// Reads a table that was printed.
    pub fn parse(text: &str) -> Result<Code, ParseError> {
        let mut code = Code::default();
        for (index, line) in text.lines().enumerate() {
            let wrong = |expected| ParseError { line: index + 1, found: line.to_owned(), expected };
            let mut words = line.split_whitespace();
            if index == 0 {
                if !words.eq(HEADER) {
                    return Err(wrong("the names of the columns"));
                }
                continue;
            }
            let mut next = || words.next().unwrap_or_default();
            let region = next().parse().map_err(|_| wrong("the number of a region"))?;
            let address = next().strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
            let address = address.ok_or_else(|| wrong("an address"))?;
            let instructions = next().parse().map_err(|_| wrong("a number"))?;
            if !next().is_empty() {
                return Err(wrong("three words"));
            }
            code.regions.entry(region).or_default().insert(address, instructions);
        }
        Ok(code)
    }
}

impl Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", HEADER.join(" "))?;
        for (region, blocks) in &self.regions {
            for (address, instructions) in blocks {
                writeln!(f, "{region:>6} {address:#x} {instructions}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_no_table_is_refused() {
        for (text, line) in [
            ("a b c", 1),
            ("region address instructions\n1 2 3", 2),
            ("region address instructions\n1 0xg 3", 2),
            ("region address instructions\n1 0x2", 2),
            ("region address instructions\n1 0x2 3\n1 0x3 4 5", 3),
            ("region address instructions\n70000 0x3 4", 2),
        ] {
            assert_eq!(Code::parse(text).map_err(|e| e.line), Err(line), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn every_table_survives_its_text(
            regions in proptest::collection::btree_map(
                any::<Region>(),
                proptest::collection::btree_map(any::<u64>(), any::<u64>(), 1..5),
                0..5,
            ),
        ) {
            let code = Code { regions };
            prop_assert_eq!(Code::parse(&alloc::format!("{code}")), Ok(code));
        }
    }
}
