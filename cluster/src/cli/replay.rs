// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos replay`: feeds a capture to switches and prints what they do otherwise.

use super::{usage, written};
use crate::Result;
use std::io::{self, Write};
use std::path::Path;
use telegraphos_capture::{Difference, Ended, Replay};

/// Replays `file`; at most `limit` differences are printed. The exit code.
pub(super) fn replay(file: &Path, limit: u64) -> Result<u8> {
    let mut out = io::stdout().lock();
    let (mut printed, mut failed) = (0, Ok(()));
    let outcome = telegraphos_capture::replay(file, |difference: &Difference| {
        if printed < limit && failed.is_ok() {
            failed = writeln!(out, "{difference}");
            printed += 1;
        }
    });
    written(failed)?;
    let outcome = outcome.map_err(usage)?;
    let left_out = outcome.differences - printed;
    if left_out > 0 {
        written(writeln!(out, "... and {left_out} more; --limit {} prints all", outcome.differences))?;
    }
    written(writeln!(out, "{}", summary(&outcome)).and_then(|()| out.flush()))?;
    Ok(u8::from(outcome.differences > 0))
}

fn summary(outcome: &Replay) -> String {
    let count = |n: u64, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let differences = match outcome.differences {
        0 => "no difference".to_owned(),
        n => count(n, "difference"),
    };
    let text = format!(
        "{differences} in {} and {} of {}",
        count(outcome.events, "event"),
        count(outcome.actions, "action"),
        if outcome.switches == 1 { "1 switch".to_owned() } else { format!("{} switches", outcome.switches) }
    );
    match &outcome.ended {
        Ended::Whole => text,
        Ended::Open => {
            format!("{text}, up to the end of the file, which does not end as a capture does that was ended")
        }
        Ended::Broken(why) => format!("{text}, up to where the file breaks off: {why}"),
        Ended::Gap { index, missing } => {
            format!("{text}, up to record {index}, where {missing} records are missing: the disk was too slow")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_counts_and_says_where_it_ended() {
        let whole = Replay { switches: 1, events: 1, actions: 2, differences: 0, ended: Ended::Whole };
        assert_eq!(summary(&whole), "no difference in 1 event and 2 actions of 1 switch");
        let gap = Ended::Gap { index: 7, missing: 5 };
        let text = summary(&Replay { switches: 3, differences: 1, ended: gap, ..whole });
        assert!(text.starts_with("1 difference in 1 event and 2 actions of 3 switches, up to record 7"), "{text}");
    }
}
