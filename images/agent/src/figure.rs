// SPDX-License-Identifier: MIT OR Apache-2.0
//! Results of the tools inside a guest: a line of JSON for each.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A median, and what a part of all values is below and above; each tool says which part.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Half of the values are below.
    pub median: f64,
    pub low: f64,
    /// As many are above.
    pub high: f64,
}

impl From<[f64; 3]> for Spread {
    /// Median, low, high, [rounded].
    fn from(values: [f64; 3]) -> Spread {
        let [median, low, high] = values.map(rounded);
        Spread { median, low, high }
    }
}

impl Spread {
    /// Median, low, high.
    pub fn values(self) -> [f64; 3] {
        [self.median, self.low, self.high]
    }
}

/// To thousandths: more digits are noise.
pub fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// What a node says at the end of `tg-chaos`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chaos {
    pub node: u16,
    /// How stores reach the copies.
    pub mode: String,
    pub seconds: f64,
    /// Stores of this node.
    pub stores: u64,
    /// Loads of its readers.
    pub looks: u64,
    /// Those that found another value than the one before.
    pub changes: u64,
    /// Values that came back after others.
    pub again: u64,
    /// Values older than one of the same writer seen before.
    pub older: u64,
    /// Loads that gave an older store of this node than its last one.
    pub stale: u64,
    /// Nodes with copies unlike this one: when all is quiet, and a second later.
    pub differ: [usize; 2],
    /// Words of this copy that did not take another node's last store.
    pub pending: u64,
    /// Digest of the copy, in hexadecimal digits.
    pub sum: String,
}

/// What the receiver of `tg-queue` says at the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Received {
    /// Elements, each counted once.
    pub received: u64,
    /// Those that came after a later one of the same sender.
    pub disordered: u64,
    /// Those sent that never came.
    pub lost: u64,
    /// Those that came a second time.
    pub doubled: u64,
    /// Those that were never sent.
    pub foreign: u64,
    /// Those handed over again after a consumer was killed with them in its hands.
    pub again: u64,
    /// Overflows of the queue.
    pub overflows: u64,
    /// Consumers that took too long over an element.
    pub evictions: u64,
    pub kills: u64,
    /// Consumers stopped for a while.
    pub stops: u64,
    /// From the first element to the last.
    pub seconds: f64,
}

/// One result of a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Figure {
    /// `tg-bench`: all that was measured in one round.
    Round {
        /// Counted from 1.
        round: u32,
        /// Nanoseconds, by operation.
        ns: BTreeMap<String, f64>,
    },
    /// `tg-bench`: what is wrong with the values of an operation.
    Mark {
        /// Which; empty: all.
        op: String,
        why: String,
    },
    /// `tg-notify`: one part of a notification.
    Notify {
        method: String,
        senders: u32,
        part: String,
        /// Nanoseconds, with quartiles.
        ns: Spread,
        samples: usize,
    },
    /// `tg-notify`: messages sent while the receiver polls.
    Rate {
        method: String,
        senders: u32,
        /// Messages, with quartiles.
        per_second: Spread,
        rounds: usize,
    },
    /// `tg-notify`: what became of the messages sent while the receiver polls.
    Lost {
        method: String,
        senders: u32,
        sent: u64,
        /// Those of them that the receiver never saw.
        lost: u64,
    },
    /// `tg-demo`: what came of one step.
    Step {
        /// The node that made it.
        node: u16,
        /// Which: the command's first word.
        step: String,
        /// Operations that it made or checked.
        count: u64,
        /// Nanoseconds of all of them.
        ns: u64,
        /// Those whose result is not what it must be.
        wrong: u64,
    },
    /// `tg-mixed`: increments of one word by two processes.
    Mixed {
        /// What the owner increments with.
        with: String,
        own: u64,
        other: u64,
        /// The word in the end.
        found: u64,
        /// Increments that are not in it.
        lost: u64,
    },
    /// `tg-flood`: a stream of stores.
    Flood {
        stores: u64,
        /// Until the last was issued.
        seconds: f64,
        per_second: f64,
        /// Stores that waited noticeably.
        stalls: u64,
        /// Milliseconds of the one that waited longest.
        longest_ms: f64,
        stalled_seconds: f64,
        /// Milliseconds of the quiet behind them.
        quiet_ms: f64,
    },
    /// `tg-watch`: the receiver of such a stream, all of which is there and in order.
    Watched {
        stores: u64,
        looks: u64,
        /// Those that found a new store.
        changes: u64,
    },
    /// `tg-queue`: a sender.
    Sent {
        sender: u32,
        elements: u32,
        /// Until the last was issued.
        seconds: f64,
        per_second: f64,
        /// Milliseconds of the one that waited longest.
        longest_ms: f64,
    },
    /// `tg-queue`: the receiver.
    Received(Received),
    /// `tg-chaos`: a node.
    Chaos(Chaos),
    /// `tg-count`: which operation the plugin counts under which number.
    Region { id: u16, op: String },
}

impl Figure {
    /// The line, without its end.
    pub fn line(&self) -> String {
        #[allow(
            clippy::expect_used,
            reason = "figures are derived, without maps; what is no number is written as null"
        )]
        serde_json::to_string(self).expect("every figure can be written")
    }

    /// What a line says; nothing if it is no figure.
    pub fn parse(line: &str) -> Option<Figure> {
        serde_json::from_str(line).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_lines_of_json() {
        let round = Figure::Round { round: 3, ns: [("load".to_owned(), 85_000.5), ("store".to_owned(), 900.0)].into() };
        let line = r#"{"round":{"round":3,"ns":{"load":85000.5,"store":900.0}}}"#;
        assert_eq!(round.line(), line);
        assert_eq!(Figure::parse(line), Some(round));
        let ns = Spread::from([85_000.000_4, 80_000.0, 99_000.5]);
        let notify = Figure::Notify { method: "req".into(), senders: 2, part: "send".into(), ns, samples: 40 };
        let line = r#"{"notify":{"method":"req","senders":2,"part":"send","ns":{"median":85000.0,"low":80000.0,"high":99000.5},"samples":40}}"#;
        assert_eq!(notify.line(), line);
        let lost = Figure::Lost { method: "flag".into(), senders: 4, sent: 768, lost: 697 };
        assert_eq!(lost.line(), r#"{"lost":{"method":"flag","senders":4,"sent":768,"lost":697}}"#);
        assert_eq!(Figure::parse(&lost.line()), Some(lost));
        let step = Figure::Step { node: 1, step: "store".into(), count: 9, ns: 10_000, wrong: 0 };
        assert_eq!(step.line(), r#"{"step":{"node":1,"step":"store","count":9,"ns":10000,"wrong":0}}"#);
        let watched = Figure::Watched { stores: 3, looks: 2, changes: 1 };
        assert_eq!(watched.line(), r#"{"watched":{"stores":3,"looks":2,"changes":1}}"#);
        let line = [
            r#"{"chaos":{"node":1,"mode":"counters","seconds":3.0,"stores":5,"looks":6,"changes":7,"again":0,"older":0,"#,
            r#""stale":0,"differ":[0,0],"pending":0,"sum":"0x1f"}}"#,
        ];
        let line = line.concat();
        let Some(Figure::Chaos(chaos)) = Figure::parse(&line) else { panic!("{line}") };
        assert_eq!((chaos.node, chaos.differ, chaos.sum.as_str()), (1, [0, 0], "0x1f"));
        assert_eq!(Figure::Chaos(chaos).line(), line);
    }

    #[test]
    fn other_lines_are_none() {
        for line in [
            "",
            "ROUND 1 of 8",
            "BENCH op=load ns=85000 low=80000 high=99000 rounds=40",
            r#"{"round":{"round":3}}"#,
            r#"{"lost":{"method":"flag","senders":4,"sent":768,"lost":-1}}"#,
            r#"{"lost":{"method":"flag","senders":4,"sent":768,"lost":1,"more":1}}"#,
        ] {
            assert_eq!(Figure::parse(line), None, "{line}");
        }
    }
}
