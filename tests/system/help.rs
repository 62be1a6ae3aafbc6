// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tests say often.

use anyhow::{Context, Result, ensure};
use std::time::{Duration, Instant};
use telegraphos_cluster::{Guest, Running};

/// A process of a guest that exports a segment until it is dropped.
pub(crate) struct Export {
    process: Running,
    node: usize,
    name: String,
}

impl Export {
    /// Of that size, by an ordinary user, for everybody.
    pub(crate) fn of(guest: &Guest, name: &str, size: &str) -> Result<Export> {
        let mut process = guest.argv(&["tg-export", name, size]).keep_input_open().spawn()?;
        process.wait_for_line(Duration::from_secs(30), |line| line.starts_with("exported"))?;
        Ok(Export { process, node: guest.node(), name: name.to_owned() })
    }

    /// The word there, as the exporting process itself sees its memory.
    pub(crate) fn word(&mut self, offset: u64) -> Result<u64> {
        self.process.write(&format!("{offset}\n"))?;
        hex(&self.process.wait_for_line(Duration::from_secs(30), |_| true)?)
    }

    /// The exporting process stores into its own memory.
    pub(crate) fn set_word(&mut self, offset: u64, value: u64) -> Result<()> {
        self.process.write(&format!("{offset} {value}\n"))?;
        // Asked for, it is there.
        let found = self.word(offset)?;
        ensure!(found == value, "node {} stored {value:#x} into its own memory and found {found:#x}", self.node);
        Ok(())
    }

    /// Another node's process stores one word into it; returns when the value has arrived.
    pub(crate) fn store_from(&self, guest: &Guest, offset: u64, value: u64) -> Result<()> {
        let (node, offset, value) = (self.node.to_string(), offset.to_string(), value.to_string());
        guest.argv(&["tg-store", &node, &self.name, &offset, &value]).check()?;
        Ok(())
    }

    /// Another node's process loads one word from it.
    pub(crate) fn load_from(&self, guest: &Guest, offset: u64) -> Result<u64> {
        hex(&guest.argv(&["tg-load", &self.node.to_string(), &self.name, &offset.to_string()]).check()?)
    }
}

pub(crate) fn hex(text: &str) -> Result<u64> {
    let text = text.trim();
    let digits = text.strip_prefix("0x").with_context(|| format!("{text:?} is no number"))?;
    u64::from_str_radix(digits, 16).with_context(|| format!("{text:?} is no number"))
}

/// Two nodes' processes store into and load from each other's memory, and the owner sees it.
pub(crate) fn both_ways(a: &Guest, b: &Guest) -> Result<()> {
    for (from, to) in [(a, b), (b, a)] {
        one_way(from, to).with_context(|| format!("from node {} to node {}", from.node(), to.node()))?;
    }
    Ok(())
}

fn one_way(from: &Guest, to: &Guest) -> Result<()> {
    let mut export = Export::of(to, "both-ways", "64K")?;
    let value = fresh();
    export.store_from(from, 8, value)?;
    let found = export.word(8)?;
    ensure!(found == value, "stored {value:#x}, and the owner found {found:#x}");
    let value = fresh();
    export.set_word(65528, value)?;
    let found = export.load_from(from, 65528)?;
    ensure!(found == value, "the owner stored {value:#x}, and {found:#x} was loaded");
    Ok(())
}

/// A value nobody has used before.
fn fresh() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // Seeded anew for each use.
    let value = std::collections::hash_map::RandomState::new().build_hasher().finish();
    // Never the answer of a failed load.
    value & (u64::MAX >> 1)
}

/// Tries until it works, or returns the last error.
pub(crate) fn within(limit: Duration, attempt: impl Fn() -> Result<()>) -> Result<()> {
    let begun = Instant::now();
    loop {
        match attempt() {
            Ok(()) => return Ok(()),
            Err(e) if begun.elapsed() > limit => return Err(e.context(format!("not within {limit:?}"))),
            Err(_) => telegraphos_cluster::sleep(Duration::from_millis(200))?,
        }
    }
}

/// Runs something for each of these guests at once; the first error.
pub(crate) fn at_once<T: Send>(guests: &[&Guest], work: impl Fn(&Guest) -> Result<T> + Sync) -> Result<Vec<T>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = guests.iter().map(|guest| scope.spawn(|| work(guest))).collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}
