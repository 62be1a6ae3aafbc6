// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `telegraphos top` shows of two snapshots: pure text, so that it can be compared with what it is meant to be.

use super::table::Side::{Left, Right};
use super::table::{Column, Table, cut};
use super::text::{bytes, duration, ranges, short};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use telegraphos_fabric::control::FaultSpec;
use telegraphos_fabric::control::snapshot::{Flow, Flows, Pair, Port, PortState, Snapshot, TrunkEnd};

/// How a line is to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    /// Titles of a table.
    Title,
    /// Something is down.
    Bad,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) style: Style,
    pub(crate) text: String,
}

fn line(style: Style, text: impl Into<String>) -> Line {
    Line { style, text: text.into() }
}

/// What happened between two snapshots, or since the start if there is one only.
pub(crate) struct View<'a> {
    before: Option<&'a Snapshot>,
    now: &'a Snapshot,
    seconds: f64,
}

/// Counters that only rise; those of another life of the process are not compared.
fn since(now: u64, before: u64) -> f64 {
    now.saturating_sub(before) as f64
}

/// A link or an end of a trunk, and what happened there.
struct Row<'a, T> {
    of: &'a T,
    /// How long its state has been what it is.
    age: String,
    total: Flows,
    /// Per second: received and sent.
    packets: [f64; 2],
    bytes: [f64; 2],
    /// Per second, both ways.
    stalls: f64,
}

impl<T> Row<'_, T> {
    fn waiting(&self) -> String {
        short((self.total.received.depth + self.total.sent.depth) as f64)
    }
}

/// A pair, and the packets and bytes that it sends in a second, as far as known.
type Rated<'a> = (&'a Pair, Option<[f64; 2]>);

fn faults(faults: &FaultSpec) -> String {
    if faults.is_none() { String::new() } else { faults.to_string() }
}

/// A part of the screen that can have more lines than fit.
struct Section<'a> {
    table: Table,
    bad: Vec<bool>,
    /// What to say of those that are left out, given how many are shown.
    rest: Box<dyn Fn(usize) -> String + 'a>,
}

impl Section<'_> {
    fn rows(&self) -> usize {
        self.bad.len()
    }

    /// Its lines, in so many; 0 if it has no row.
    fn lines(&self, width: usize, most: usize) -> Vec<Line> {
        if self.rows() == 0 || most < 2 {
            return Vec::new();
        }
        let shown = if self.rows() < most { self.rows() } else { most - 2 };
        let rows = self.bad.iter().take(shown).map(|bad| if *bad { Style::Bad } else { Style::Plain });
        let styles = std::iter::once(Style::Title).chain(rows);
        let mut out: Vec<Line> = styles.zip(self.table.lines(width)).map(|(style, text)| line(style, text)).collect();
        if shown < self.rows() {
            out.push(line(Style::Plain, cut(&(self.rest)(shown), width)));
        }
        out
    }
}

impl<'a> View<'a> {
    pub(crate) fn new(before: Option<&'a Snapshot>, now: &'a Snapshot) -> View<'a> {
        // A fabric that was restarted in between counts anew.
        let same = |b: &&Snapshot| b.process.pid == now.process.pid && b.process.uptime_us < now.process.uptime_us;
        let before = before.filter(same);
        let interval = now.process.uptime_us - before.map_or(0, |b| b.process.uptime_us);
        View { before, now, seconds: (interval.max(1)) as f64 / 1e6 }
    }

    /// The rate at which a counter rises.
    fn rate(&self, now: u64, before: Option<u64>) -> f64 {
        since(now, before.unwrap_or(0)) / self.seconds
    }

    fn row<T>(&self, of: &'a T, since_us: u64, total: Flows, before: Option<Flows>) -> Row<'a, T> {
        let rates = |counter: fn(&Flow) -> u64| {
            [
                self.rate(counter(&total.received), before.map(|b| counter(&b.received))),
                self.rate(counter(&total.sent), before.map(|b| counter(&b.sent))),
            ]
        };
        let age = duration(self.now.process.uptime_us.saturating_sub(since_us));
        let stalls = rates(|f| f.stalls).iter().sum();
        Row { of, age, total, packets: rates(|f| f.packets), bytes: rates(|f| f.bytes), stalls }
    }

    fn head(&self, width: usize) -> Vec<Line> {
        let Snapshot { process, nodes, totals, ports, trunks, .. } = self.now;
        let up = ports.iter().filter(|p| p.state == PortState::Up).count();
        // Of a trunk within the process there are two ends.
        let mut whole: BTreeMap<&str, bool> = BTreeMap::new();
        trunks.iter().for_each(|t| *whole.entry(&t.name).or_insert(true) &= t.up);
        let trunks_up = whole.values().filter(|up| **up).count();
        let wakeups = self.rate(process.wakeups, self.before.map(|b| b.process.wakeups));
        let busy = self.rate(process.cpu_us, self.before.map(|b| b.process.cpu_us)) / 1e4;
        let mut first =
            format!("fabric {} up {}: {up} of {nodes} nodes up", process.version, duration(process.uptime_us));
        if !trunks.is_empty() {
            first += &format!(", {trunks_up} of {} trunks up", whole.len());
        }
        let span = match self.before {
            Some(_) => format!("rates over {}", duration((self.seconds * 1e6) as u64)),
            None => "rates since the start".to_owned(),
        };
        let second = format!(
            "{span}; processor {busy:.0}%, {} wake-ups/s, {}; {} joins, {} refused, {} disconnected",
            short(wakeups),
            bytes(process.memory),
            totals.joined,
            totals.refused,
            totals.violations
        );
        let cut = |text: String| cut(&text, width).to_owned();
        vec![line(Style::Plain, cut(first)), line(Style::Plain, cut(second))]
    }

    fn ports(&self, all_fit: bool) -> Section<'a> {
        let before = self.before.iter().flat_map(|b| &b.ports).map(|p| (p.node, p.classes.total()));
        let before: BTreeMap<u16, Flows> = before.collect();
        let row = |p: &'a Port| self.row(p, p.since_us, p.classes.total(), before.get(&p.node).copied());
        let mut rows: Vec<Row<'a, Port>> = self.now.ports.iter().map(row).collect();
        if !all_fit {
            // The busiest, since not all can be shown; of equals those that are down.
            let moved = |[received, sent]: [f64; 2]| (received + sent) as u64;
            rows.sort_by_cached_key(|r| (Reverse(moved(r.bytes)), r.of.state == PortState::Up, r.of.node));
        }
        let columns: [Column<Row<'_, Port>>; 13] = [
            ("NODE", Right, 0, |r| r.of.node.to_string()),
            ("SWITCH", Right, 6, |r| r.of.switch.to_string()),
            ("STATE", Left, 0, |r| match r.of.state {
                PortState::Up => "up".into(),
                PortState::Down => "DOWN".into(),
                PortState::Crashed => "CRASHED".into(),
            }),
            ("FOR", Right, 3, |r| r.age.clone()),
            ("PKT/S FROM", Right, 0, |r| short(r.packets[0])),
            ("TO", Right, 0, |r| short(r.packets[1])),
            ("BYTES/S FROM", Right, 1, |r| short(r.bytes[0])),
            ("TO", Right, 1, |r| short(r.bytes[1])),
            ("WAITING", Right, 4, Row::waiting),
            ("MAX", Right, 7, |r| short(r.total.received.depth_max.max(r.total.sent.depth_max) as f64)),
            ("STALLS/S", Right, 2, |r| short(r.stalls)),
            ("DROPPED", Right, 5, |r| short((r.total.received.dropped + r.total.sent.dropped) as f64)),
            ("FAULTS", Left, 8, |r| faults(&r.of.faults)),
        ];
        let (table, bad) = (Table::new(&rows, &columns), rows.iter().map(|r| r.of.state != PortState::Up).collect());
        let rest = move |shown: usize| {
            let left = &rows[shown..];
            let down = left.iter().filter(|r| r.of.state != PortState::Up);
            let mut down: Vec<u16> = down.map(|r| r.of.node).collect();
            down.sort_unstable();
            let down = if down.is_empty() { String::new() } else { format!("; down: {}", ranges(&down)) };
            format!("... and {} quieter nodes{down}", left.len())
        };
        Section { table, bad, rest: Box::new(rest) }
    }

    fn trunks(&self) -> Section<'a> {
        let key = |t: &'a TrunkEnd| (t.name.as_str(), t.switch);
        let before: BTreeMap<_, _> = self.before.iter().flat_map(|b| &b.trunks).map(|t| (key(t), t)).collect();
        // Each with the packets that it resends in a second.
        let row = |t: &'a TrunkEnd| {
            let before = before.get(&key(t));
            let resent = self.rate(t.retransmissions, before.map(|b| b.retransmissions));
            (self.row(t, t.since_us, t.classes.total(), before.map(|b| b.classes.total())), resent)
        };
        let mut rows: Vec<(Row<'a, TrunkEnd>, f64)> = self.now.trunks.iter().map(row).collect();
        // Those that are down first: they must not be among those left out.
        rows.sort_by_key(|(r, _)| r.of.up);
        let columns: [Column<(Row<'_, TrunkEnd>, f64)>; 15] = [
            ("TRUNK", Left, 0, |(r, _)| r.of.name.clone()),
            ("AT", Right, 6, |(r, _)| r.of.switch.to_string()),
            ("VIA", Left, 5, |(r, _)| r.of.transport.clone()),
            ("STATE", Left, 0, |(r, _)| if r.of.up { "up" } else { "DOWN" }.into()),
            ("FOR", Right, 3, |(r, _)| r.age.clone()),
            ("PKT/S IN", Right, 0, |(r, _)| short(r.packets[0])),
            ("OUT", Right, 0, |(r, _)| short(r.packets[1])),
            ("BYTES/S IN", Right, 1, |(r, _)| short(r.bytes[0])),
            ("OUT", Right, 1, |(r, _)| short(r.bytes[1])),
            ("WAITING", Right, 4, |(r, _)| r.waiting()),
            ("STALLS/S", Right, 2, |(r, _)| short(r.stalls)),
            ("RTT", Right, 4, |(r, _)| r.of.rtt_us.map_or("-".into(), duration)),
            ("RESENT/S", Right, 3, |(_, resent)| short(*resent)),
            ("RESETS", Right, 7, |(r, _)| r.of.resets.to_string()),
            ("FAULTS", Left, 8, |(r, _)| faults(&r.of.faults)),
        ];
        let (table, bad) = (Table::new(&rows, &columns), rows.iter().map(|(r, _)| !r.of.up).collect());
        Section {
            table,
            bad,
            rest: Box::new(move |shown| format!("... and {} more ends of trunks", rows.len() - shown)),
        }
    }

    fn pairs(&self) -> Section<'a> {
        let key = |p: &Pair| (p.source, p.destination);
        let before = self.before.iter().flat_map(|b| &b.pairs).map(|p| (key(p), p.classes.total()));
        let before: BTreeMap<_, _> = before.collect();
        let row = |p: &'a Pair| {
            let (now, then) = (p.classes.total(), before.get(&key(p)));
            let rates = [self.rate(now.packets, then.map(|t| t.packets)), self.rate(now.bytes, then.map(|t| t.bytes))];
            // A pair that was not among the hottest before has no rate yet: what it had then is not known.
            (p, Some(rates).filter(|_| self.before.is_none() || then.is_some()))
        };
        let mut rows: Vec<Rated<'a>> = self.now.pairs.iter().map(row).collect();
        rows.sort_by(|(a, x), (b, y)| {
            let bytes = |rates: &Option<[f64; 2]>| rates.map_or(0.0, |[_, bytes]| bytes);
            bytes(y).total_cmp(&bytes(x)).then(key(a).cmp(&key(b)))
        });
        let columns: [Column<Rated<'_>>; 4] = [
            ("HOTTEST PAIRS", Left, 0, |(p, _)| format!("{} -> {}", p.source, p.destination)),
            ("PKT/S", Right, 0, |(_, rates)| rates.map_or("-".into(), |[packets, _]| short(packets))),
            ("BYTES/S", Right, 0, |(_, rates)| rates.map_or("-".into(), |[_, bytes]| short(bytes))),
            ("PACKETS", Right, 1, |(p, _)| short(p.classes.total().packets as f64)),
        ];
        let (table, count) = (Table::new(&rows, &columns), rows.len());
        let rest = Box::new(move |shown| format!("... and {} cooler pairs", count - shown));
        Section { table, bad: vec![false; count], rest }
    }

    /// The whole table, in at most so many columns and lines.
    pub(crate) fn lines(&self, width: usize, height: usize) -> Vec<Line> {
        let mut out = self.head(width);
        out.truncate(height);
        let room = height.saturating_sub(out.len());
        let (trunks, pairs) = (self.trunks(), self.pairs());
        // A blank line, the titles and the rows. Trunks and pairs may have a quarter each, and what the nodes leave.
        let wanted = |rows: usize| if rows == 0 { 0 } else { rows + 2 };
        let nodes = wanted(self.now.ports.len());
        let quarter = room / 4;
        let (want_trunks, want_pairs) = (wanted(trunks.rows()), wanted(pairs.rows().min(10)));
        let for_nodes = nodes.min(room - want_trunks.min(quarter) - want_pairs.min(quarter));
        let left = room - for_nodes;
        let for_trunks = want_trunks.min(left - want_pairs.min(quarter).min(left));
        let for_pairs = want_pairs.min(left - for_trunks);
        let sections = [(self.ports(nodes <= for_nodes), for_nodes), (trunks, for_trunks), (pairs, for_pairs)];
        for (section, most) in sections {
            let lines = section.lines(width, most.saturating_sub(1));
            if !lines.is_empty() {
                out.push(line(Style::Plain, ""));
                out.extend(lines);
            }
        }
        if self.now.ports.is_empty() && out.len() + 2 <= height {
            out.push(line(Style::Plain, ""));
            out.push(line(Style::Plain, cut("no node has joined yet", width)));
        }
        out
    }
}
