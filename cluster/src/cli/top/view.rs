// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `telegraphos top` shows of two snapshots: pure text, so that it can be compared with what it is meant to be.

use super::table::{Column, Table, cut};
use super::text::{bytes, duration, ranges, short};
use std::collections::BTreeMap;
use telegraphos_fabric::control::snapshot::{Flow, Flows, Pair, PortState, Snapshot, TrunkEnd};

/// How a line is to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    /// Titles of a table.
    Title,
    /// Something is down.
    Bad,
}

/// One line.
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

/// A part of the screen that can have more lines than fit.
struct Section {
    table: Table,
    bad: Vec<bool>,
    /// What to say of those that are left out, given how many are shown.
    rest: Box<dyn Fn(usize) -> String>,
}

impl Section {
    fn rows(&self) -> usize {
        self.bad.len()
    }

    /// Its lines, in so many; 0 if it has no row.
    fn lines(&self, width: usize, most: usize) -> Vec<Line> {
        if self.rows() == 0 || most < 2 {
            return Vec::new();
        }
        let mut all = self.table.lines(width).into_iter();
        let mut out: Vec<Line> = all.next().map(|title| line(Style::Title, title)).into_iter().collect();
        let shown = if self.rows() < most { self.rows() } else { most - 2 };
        out.extend(
            all.zip(&self.bad).take(shown).map(|(text, bad)| line(if *bad { Style::Bad } else { Style::Plain }, text)),
        );
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

    /// Packets and bytes per second of a way: received and sent.
    fn rates(&self, now: &Flows, before: Option<Flows>, of: fn(&Flow) -> u64) -> [f64; 2] {
        [
            self.rate(of(&now.received), before.map(|b| of(&b.received))),
            self.rate(of(&now.sent), before.map(|b| of(&b.sent))),
        ]
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
            "{span}; processor {busy:.0}%, {} wake-ups/s, {}; {} joins, {} refused, {} thrown out",
            short(wakeups),
            bytes(process.memory),
            totals.joined,
            totals.refused,
            totals.violations
        );
        let cut = |text: String| cut(&text, width).to_owned();
        vec![line(Style::Plain, cut(first)), line(Style::Plain, cut(second))]
    }

    fn ports(&self, all_fit: bool) -> Section {
        let mut before = BTreeMap::new();
        if let Some(b) = self.before {
            before.extend(b.ports.iter().map(|p| (p.node, p.classes.total())));
        }
        let mut ports: Vec<_> = self.now.ports.iter().collect();
        if !all_fit {
            // The busiest, since not all can be shown; of equals those that are down.
            let moved = |node: u16, total: &Flows| {
                let [a, b] = self.rates(total, before.get(&node).copied(), |f| f.bytes);
                (a + b) as u64
            };
            ports.sort_by_cached_key(|p| {
                (std::cmp::Reverse(moved(p.node, &p.classes.total())), p.state == PortState::Up, p.node)
            });
        }
        let mut table = Table::new(vec![
            Column::right("NODE"),
            Column::right("SWITCH").expendable(6),
            Column::left("STATE"),
            Column::right("FOR").expendable(3),
            Column::right("PKT/S FROM"),
            Column::right("TO"),
            Column::right("BYTES/S FROM").expendable(1),
            Column::right("TO").expendable(1),
            Column::right("WAITING").expendable(4),
            Column::right("MAX").expendable(7),
            Column::right("STALLS/S").expendable(2),
            Column::right("DROPPED").expendable(5),
            Column::left("FAULTS").expendable(8),
        ]);
        let mut bad = Vec::new();
        for p in &ports {
            let (total, before) = (p.classes.total(), before.get(&p.node).copied());
            let packets = self.rates(&total, before, |f| f.packets);
            let moved = self.rates(&total, before, |f| f.bytes);
            let [stalls_from, stalls_to] = self.rates(&total, before, |f| f.stalls);
            let state = match p.state {
                PortState::Up => "up",
                PortState::Down => "DOWN",
                PortState::Crashed => "CRASHED",
            };
            bad.push(p.state != PortState::Up);
            table.row(vec![
                p.node.to_string(),
                p.switch.to_string(),
                state.into(),
                duration(self.now.process.uptime_us.saturating_sub(p.since_us)),
                short(packets[0]),
                short(packets[1]),
                short(moved[0]),
                short(moved[1]),
                short((total.received.depth + total.sent.depth) as f64),
                short(total.received.depth_max.max(total.sent.depth_max) as f64),
                short(stalls_from + stalls_to),
                short((total.received.dropped + total.sent.dropped) as f64),
                if p.faults.is_none() { String::new() } else { p.faults.to_string() },
            ]);
        }
        let order: Vec<(u16, bool)> = ports.iter().map(|p| (p.node, p.state == PortState::Up)).collect();
        let rest = move |shown: usize| {
            let left = &order[shown..];
            let mut down: Vec<u16> = left.iter().filter(|(_, up)| !up).map(|(node, _)| *node).collect();
            down.sort_unstable();
            let down = if down.is_empty() { String::new() } else { format!("; down: {}", ranges(&down)) };
            format!("... and {} quieter nodes{down}", left.len())
        };
        Section { table, bad, rest: Box::new(rest) }
    }

    fn trunks(&self) -> Section {
        let key = |t: &TrunkEnd| (t.name.clone(), t.switch);
        let mut before = BTreeMap::new();
        if let Some(b) = self.before {
            before.extend(b.trunks.iter().map(|t| (key(t), t)));
        }
        let mut table = Table::new(vec![
            Column::left("TRUNK"),
            Column::right("AT").expendable(6),
            Column::left("VIA").expendable(5),
            Column::left("STATE"),
            Column::right("FOR").expendable(3),
            Column::right("PKT/S IN"),
            Column::right("OUT"),
            Column::right("BYTES/S IN").expendable(1),
            Column::right("OUT").expendable(1),
            Column::right("WAITING").expendable(4),
            Column::right("STALLS/S").expendable(2),
            Column::right("RTT").expendable(4),
            Column::right("RESENT/S").expendable(3),
            Column::right("RESETS").expendable(7),
            Column::left("FAULTS").expendable(8),
        ]);
        // Those that are down first: they must not be among those left out.
        let mut trunks: Vec<_> = self.now.trunks.iter().collect();
        trunks.sort_by_key(|t| t.up);
        let mut bad = Vec::new();
        for t in &trunks {
            let earlier = before.get(&key(t));
            let (total, before) = (t.classes.total(), earlier.map(|b| b.classes.total()));
            let packets = self.rates(&total, before, |f| f.packets);
            let moved = self.rates(&total, before, |f| f.bytes);
            let [stalls_in, stalls_out] = self.rates(&total, before, |f| f.stalls);
            bad.push(!t.up);
            table.row(vec![
                t.name.clone(),
                t.switch.to_string(),
                t.transport.clone(),
                if t.up { "up" } else { "DOWN" }.into(),
                duration(self.now.process.uptime_us.saturating_sub(t.since_us)),
                short(packets[0]),
                short(packets[1]),
                short(moved[0]),
                short(moved[1]),
                short((total.received.depth + total.sent.depth) as f64),
                short(stalls_in + stalls_out),
                t.rtt_us.map_or("-".into(), duration),
                short(self.rate(t.retransmissions, earlier.map(|b| b.retransmissions))),
                t.resets.to_string(),
                if t.faults.is_none() { String::new() } else { t.faults.to_string() },
            ]);
        }
        let count = trunks.len();
        Section { table, bad, rest: Box::new(move |shown| format!("... and {} more ends of trunks", count - shown)) }
    }

    fn pairs(&self) -> Section {
        let key = |p: &Pair| (p.source, p.destination);
        let mut before = BTreeMap::new();
        if let Some(b) = self.before {
            before.extend(b.pairs.iter().map(|p| (key(p), p.classes.total())));
        }
        // A pair that was not among the hottest before has no rate yet: what it had then is not known.
        let known = |p: &Pair| self.before.is_none() || before.contains_key(&key(p));
        let mut pairs: Vec<(&Pair, Option<[f64; 2]>)> = Vec::new();
        for p in &self.now.pairs {
            let (now, then) = (p.classes.total(), before.get(&key(p)));
            let rate = [self.rate(now.packets, then.map(|t| t.packets)), self.rate(now.bytes, then.map(|t| t.bytes))];
            pairs.push((p, known(p).then_some(rate)));
        }
        pairs.sort_by(|(a, x), (b, y)| {
            let bytes = |r: &Option<[f64; 2]>| r.map_or(0.0, |r| r[1]);
            bytes(y).total_cmp(&bytes(x)).then(key(a).cmp(&key(b)))
        });
        let mut table = Table::new(vec![
            Column::left("HOTTEST PAIRS"),
            Column::right("PKT/S"),
            Column::right("BYTES/S"),
            Column::right("PACKETS").expendable(1),
        ]);
        for (p, rate) in &pairs {
            let shown = |n: Option<f64>| n.map_or("-".into(), short);
            let packets = p.classes.total().packets;
            table.row(vec![
                format!("{} -> {}", p.source, p.destination),
                shown(rate.map(|r| r[0])),
                shown(rate.map(|r| r[1])),
                short(packets as f64),
            ]);
        }
        let count = pairs.len();
        Section {
            table,
            bad: vec![false; count],
            rest: Box::new(move |shown| format!("... and {} cooler pairs", count - shown)),
        }
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
