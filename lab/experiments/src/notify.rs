// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos bench --notify`: notification queues against flags and queues in software (SPEC items 1 and 3).
//!
//! `tg-notify` measures in the guests; this side makes tables and pictures of what it prints.

use crate::plot::{self, Chart, Line};
use crate::replicas::{Quartiles, short};
use std::collections::BTreeMap;
use std::path::PathBuf;
use telegraphos_agent::Figure;
use telegraphos_cluster::cli::{Context, measure, print};
use telegraphos_cluster::{Error, ProgressMode, Result, User};

/// Nodes: one that receives, and three on which senders are.
const NODES: usize = 4;

const REQ: &str = "req";
/// Methods that differ from others at the receiver only.
const ONLY_TAKEN: [&str; 2] = ["req-batch", "req-kernel"];

/// Everything `tg-notify` has printed.
#[derive(Clone, Debug, Default, PartialEq)]
struct Figures {
    /// In the order they came.
    methods: Vec<String>,
    /// By quantity, method and senders.
    values: BTreeMap<(String, String), BTreeMap<u32, Quartiles>>,
    /// By method and senders: sent and lost.
    lost: BTreeMap<String, BTreeMap<u32, [u64; 2]>>,
}

/// Takes in one line of `tg-notify`; whether it was a result.
fn read(line: &str, figures: &mut Figures) -> bool {
    let (method, senders, quantity, spread) = match Figure::parse(line) {
        Some(Figure::Notify { method, senders, part, ns, .. }) => (method, senders, part, ns),
        Some(Figure::Rate { method, senders, per_second, .. }) => (method, senders, "rate".into(), per_second),
        Some(Figure::Lost { method, senders, sent, lost }) => {
            figures.lost.entry(method).or_default().insert(senders, [sent, lost]);
            return true;
        }
        _ => return false,
    };
    if !figures.methods.contains(&method) {
        figures.methods.push(method.clone());
    }
    figures.values.entry((quantity, method)).or_default().insert(senders, spread.values());
    true
}

pub(super) fn notify(mut context: Context, rounds: u32, picture: Option<PathBuf>) -> Result<u8> {
    if context.settings.nodes.is_some_and(|nodes| nodes < 2) {
        return Err(Error::Usage("nodes is 1: a sender needs another node to send to; expected at least 2".into()));
    }
    context.settings.nodes.get_or_insert(NODES);
    let cluster = context.boot(|node| node.lab = true)?;
    let quiet = context.progress == ProgressMode::Silent;
    if !quiet {
        eprintln!("Measuring, {rounds} rounds of every method with every number of senders, in turn ...");
    }
    let mut figures = Figures::default();
    let take = |text: &str| read(text, &mut figures);
    let code = measure(cluster.guests(), User::Tg, "tg-notify", rounds, &[], quiet, take)?;
    let mut out = tables(&figures);
    if let Some(path) = picture.filter(|_| !figures.methods.is_empty()) {
        out += &plot::write(&path, &charts(&figures))?;
        out += "\n";
    }
    out += &cluster.manifest().to_string();
    print(&out)?;
    Ok(code)
}

/// What is shown of a quantity: its name, its title, and what it is divided by.
const TABLES: [(&str, &str, f64); 7] = [
    ("send", "sender: us for one notification, behind its message; the receiver is asleep", 1e3),
    ("send-busy", "the same while the receiver polls", 1e3),
    ("message", "for comparison: us for the message itself, eight stores", 1e3),
    ("take", "receiver: us for a look that finds a message, per message, while senders send", 1e3),
    ("drain", "receiver: us for a message when many are there", 1e3),
    ("empty", "receiver: us for a look that finds nothing", 1e3),
    ("rate", "messages per second", 1.0),
];

impl Figures {
    fn of(&self, quantity: &str, method: &str) -> Option<&BTreeMap<u32, Quartiles>> {
        self.values.get(&(quantity.to_owned(), method.to_owned()))
    }

    /// Those that differ in this quantity.
    fn shown(&self, quantity: &str) -> impl Iterator<Item = &String> {
        let same = matches!(quantity, "send" | "send-busy" | "message");
        self.methods.iter().filter(move |method| !(same && ONLY_TAKEN.contains(&method.as_str())))
    }
}

fn tables(figures: &Figures) -> String {
    let mut out = String::new();
    for (quantity, title, unit) in TABLES {
        let mut columns: Vec<u32> =
            figures.shown(quantity).filter_map(|m| figures.of(quantity, m)).flat_map(|by| by.keys().copied()).collect();
        columns.sort_unstable();
        columns.dedup();
        if columns.is_empty() {
            continue;
        }
        let row = |name: &str, cell: &dyn Fn(u32) -> String| {
            let cells: String = columns.iter().map(|senders| format!("{:>18}", cell(*senders))).collect();
            format!("{name:<11}{}\n", cells.trim_end())
        };
        out += &format!("{title}: median, ratio to {REQ}\n");
        out += &row("senders", &|senders| senders.to_string());
        let baseline = figures.of(quantity, REQ);
        let rows = |cell: &dyn Fn(Option<&Quartiles>, u32) -> String| -> String {
            let methods = figures.shown(quantity).filter_map(|m| Some((m, figures.of(quantity, m)?)));
            methods.map(|(method, by)| row(method, &|senders| cell(by.get(&senders), senders))).collect()
        };
        out += &rows(&|found, senders| match (found, baseline.and_then(|by| by.get(&senders))) {
            (Some([median, ..]), Some([base, ..])) => {
                format!("{} {:>7}x", short(median / unit), short(median / base))
            }
            (Some([median, ..]), None) => short(median / unit),
            (None, _) => "-".into(),
        });
        out += "  a quarter below, a quarter above\n";
        out += &rows(&|found, _| {
            found.map_or("-".into(), |[_, low, high]| format!("{}-{}", short(low / unit), short(high / unit)))
        });
        out += "\n";
    }
    out += "lost, of all sent (flag and flag-look: of those sent while the receiver polls)\n";
    for (method, by) in figures.methods.iter().filter_map(|method| figures.lost.get_key_value(method)) {
        let cells: Vec<String> =
            by.iter().map(|(senders, [sent, lost])| format!("{senders}: {lost} of {sent}")).collect();
        out += &format!("{method:<11} {}\n", cells.join(", "));
    }
    out + "\n"
}

fn charts(figures: &Figures) -> [Chart<'static>; 3] {
    let lines = |quantity: &str| -> Vec<Line> {
        let line = |method: &String| {
            let shown = figures.shown(quantity).any(|shown| shown == method);
            let by_senders = figures.of(quantity, method).filter(|_| shown).into_iter().flatten();
            Line::of_spreads(method, by_senders.map(|(senders, ns)| (f64::from(*senders), ns.map(|ns| ns / 1e3))))
        };
        figures.methods.iter().map(line).collect()
    };
    [
        ("send", "Sender: one notification, behind its message"),
        ("take", "Receiver: a look that finds a message, per message"),
        ("empty", "Receiver: a look that finds nothing"),
    ]
    .map(|(quantity, title)| Chart::new(title, "senders", "us", lines(quantity)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: [&str; 7] = [
        r#"{"notify":{"method":"req","senders":1,"part":"send","ns":{"median":3000.0,"low":2900.0,"high":3100.0},"samples":64}}"#,
        r#"{"notify":{"method":"req-batch","senders":1,"part":"send","ns":{"median":3000.0,"low":2900.0,"high":3100.0},"samples":64}}"#,
        r#"{"notify":{"method":"flags","senders":1,"part":"send","ns":{"median":1500.0,"low":1400.0,"high":3200.0},"samples":64}}"#,
        r#"{"notify":{"method":"flags","senders":2,"part":"send","ns":{"median":123456.0,"low":123.0,"high":1234567.0},"samples":64}}"#,
        r#"{"notify":{"method":"flags","senders":1024,"part":"empty","ns":{"median":28062.0,"low":28062.0,"high":31156.9},"samples":3}}"#,
        r#"{"rate":{"method":"req","senders":1,"per_second":{"median":15649.0,"low":13375.0,"high":15649.0},"rounds":2}}"#,
        r#"{"lost":{"method":"flags","senders":2,"sent":768,"lost":697}}"#,
    ];

    #[test]
    fn figures_are_read_and_shown() {
        let mut figures = Figures::default();
        for line in PRINTED {
            assert!(read(line, &mut figures), "{line}");
        }
        for bad in [
            "tg-notify: something else",
            "ROUND 1 of 8",
            r#"{"notify":{"method":"req","senders":"many","part":"send","ns":{"median":1.0,"low":1.0,"high":1.0},"samples":1}}"#,
            r#"{"notify":{"method":"req","senders":1,"ns":{"median":1.0,"low":1.0,"high":1.0},"samples":1}}"#,
            r#"{"rate":{"method":"req","senders":1,"per_second":{"median":1.0,"low":1.0},"rounds":1}}"#,
            r#"{"lost":{"method":"req","senders":1,"sent":1}}"#,
        ] {
            assert!(!read(bad, &mut figures), "{bad}");
        }
        assert_eq!(figures.methods, ["req", "req-batch", "flags"]);
        let out = tables(&figures);
        let row = |start: &str, nth: usize| out.lines().filter(|l| l.starts_with(start)).nth(nth).unwrap().to_owned();
        let words = |line: String| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(row("req ", 0)), ["req", "3.00", "1.00x", "-"]);
        assert_eq!(words(row("flags ", 0)), ["flags", "1.50", "0.50x", "123"]);
        assert_eq!(words(row("flags ", 1)), ["flags", "1.40-3.20", "0.12-1235"]);
        assert!(out.contains("2: 697 of 768") && !out.contains("req-batch"));
        let [send, _, empty] = charts(&figures);
        assert_eq!(send.lines[2].points, [(1.0, 1.5), (2.0, 123.456)]);
        assert!(send.lines[1].points.is_empty() && empty.lines[2].points.len() == 1);
        assert!(tables(&Figures::default()).starts_with("lost"));
    }
}
