// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every figure that a run must show, in order: what was measured, and the ratios that have targets. One that is
//! missing in the samples is in the list regardless, without values and with a mark.

use super::result::{Measure, spread};
use std::collections::BTreeMap;
use std::fmt;
use telegraphos_cluster::Processes;

/// A bound for a ratio, or for the median of a figure without one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Target {
    AtMost(f64),
    AtLeast(f64),
}

impl Target {
    /// How many times as bad as it may be; at most 1 if it is met.
    pub(crate) fn times(self, value: f64) -> f64 {
        match self {
            Target::AtMost(most) => value / most,
            Target::AtLeast(least) => least / value,
        }
    }

    pub(crate) fn met(self, value: f64) -> bool {
        match self {
            Target::AtMost(most) => value <= most,
            Target::AtLeast(least) => value >= least,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::AtMost(most) => write!(f, "<= {most}"),
            Target::AtLeast(least) => write!(f, ">= {least}"),
        }
    }
}

/// What the host process or the HIBs do while there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Waiting {
    Blocked,
    /// They poll for a while (`spin-us`).
    Spinning,
}

impl Waiting {
    /// The name of a figure of ours that was taken while they wait so.
    pub(crate) fn figure(self, name: &str) -> String {
        format!("{name}{}", self.suffix())
    }

    /// Ends the names of our figures: blocked is how people run it.
    fn suffix(self) -> &'static str {
        match self {
            Waiting::Blocked => "",
            Waiting::Spinning => "_spin",
        }
    }
}

/// The values of one boot, in nanoseconds, and what the programs said about them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Samples {
    pub(crate) rounds: BTreeMap<u32, BTreeMap<String, f64>>,
    pub(crate) marks: BTreeMap<String, Vec<String>>,
    /// Rounds that were wanted.
    pub(crate) wanted: u32,
}

/// Peers: they are measured beside our operations, and do not depend on how those wait.
const PEERS: [&str; 33] = [
    "testdev_store",
    "testdev_load",
    "bare_blocked_store_isolated",
    "bare_blocked_store_drained",
    "bare_blocked_load",
    "bare_blocked_oneway",
    "bare_spinning_store_isolated",
    "bare_spinning_store_drained",
    "bare_spinning_load",
    "bare_spinning_oneway",
    "crate_store_isolated",
    "crate_store_drained",
    "crate_load",
    "ivshmem_store",
    "ivshmem_load",
    "ivshmem_roundtrip",
    "doorbell_roundtrip_looking",
    "doorbell_roundtrip_asleep",
    "udp_roundtrip",
    "tcp_roundtrip",
    "tcp_8m",
    "tcp_8m_both",
    "guest_memcpy_4k",
    "guest_memcpy_1m",
    "guest_memcpy_16m",
    "host_memcpy_4k",
    "host_memcpy_1m",
    "host_memcpy_16m",
    "host_writev_4k",
    "host_writev_1m",
    "host_writev_16m",
    "host_unix_roundtrip_blocked",
    "host_unix_roundtrip_spinning",
];

/// Our operations, and what they are shown as a multiple of (empty: nothing).
const OURS: [(&str, &str); 37] = [
    ("store_isolated", "testdev_store"),
    ("store_byte", "testdev_store"),
    ("store_issue", "store_isolated"),
    ("store_drained", "testdev_store"),
    ("store_batch_100", "store_isolated"),
    ("store_local", "testdev_store"),
    ("load_local", "testdev_load"),
    ("load_remote", "testdev_load"),
    ("load_byte", "testdev_load"),
    ("quiet", "load_local"),
    ("fetch_add", "fetch_add_plain"),
    ("fetch_add_load", "fetch_add_plain"),
    ("fetch_add_special", "fetch_add_plain"),
    ("fetch_add_plain", ""),
    ("oneway", "bare_spinning_oneway"),
    ("roundtrip_poll", "ivshmem_roundtrip"),
    ("roundtrip_sleep", "doorbell_roundtrip_asleep"),
    ("enqueue", "store_isolated"),
    ("queue_add", "enqueue"),
    ("queue_add_known", "enqueue"),
    ("queue_lock", "enqueue"),
    ("queue_empty_look", ""),
    ("put_4k", "host_memcpy_4k"),
    ("put_1m", "host_memcpy_1m"),
    ("put_16m", "host_memcpy_16m"),
    ("put_4k_registered", "put_4k"),
    ("put_1m_registered", "put_1m"),
    ("put_16m_registered", "put_16m"),
    ("put_4k_huge", "put_4k"),
    ("put_1m_huge", "put_1m"),
    ("put_16m_huge", "put_16m"),
    ("get_1m", "host_memcpy_1m"),
    ("get_16m", "host_memcpy_16m"),
    ("net_udp_roundtrip", "udp_roundtrip"),
    ("net_tcp_roundtrip", "tcp_roundtrip"),
    ("net_tcp_8m", "tcp_8m"),
    ("net_tcp_8m_both", "tcp_8m_both"),
];

/// A ratio with a target.
struct Ratio {
    name: &'static str,
    /// `{}` stands for how the servers wait.
    of: &'static str,
    /// The smallest of these counts.
    to: &'static [&'static str],
    one: Option<Target>,
    /// With separate processes.
    each: Option<Target>,
}

const fn ratio(
    name: &'static str,
    of: &'static str,
    to: &'static [&'static str],
    one: Target,
    each: Option<Target>,
) -> Ratio {
    Ratio { name, of, to, one: Some(one), each }
}

use Target::{AtLeast, AtMost};

/// The targets: those of throughputs (memcpy, crate) are inverse, so that more is better.
const RATIOS: [Ratio; 21] = [
    ratio("store_drained_over_bare_spin", "store_drained", &["bare_spinning_store_drained"], AtMost(1.1), None),
    ratio("store_isolated_over_bare_spin", "store_isolated", &["bare_spinning_store_isolated"], AtMost(1.1), None),
    ratio("store_drained_over_crate", "crate_store_drained", &["store_drained"], AtLeast(4.0), None),
    ratio("load_local_over_bare", "load_local", &["bare_{}_load"], AtMost(1.05), None),
    ratio("load_remote_over_local", "load_remote", &["load_local"], AtMost(1.1), Some(AtMost(1.8))),
    ratio("fetch_add_over_load_local", "fetch_add", &["load_local"], AtMost(0.4), None),
    ratio("put_16m_over_memcpy", "host_memcpy_16m", &["put_16m"], AtLeast(0.85), None),
    ratio("put_1m_over_memcpy", "host_memcpy_1m", &["put_1m"], AtLeast(0.25), None),
    ratio("put_16m_registered_over_segment", "put_16m_registered", &["put_16m"], AtMost(1.2), None),
    ratio("direct_load", "direct_load", &["ivshmem_load"], AtMost(1.05), None),
    ratio("direct_store", "direct_store", &["ivshmem_store"], AtMost(1.05), None),
    ratio("oneway_poll", "oneway", &["bare_spinning_oneway"], AtMost(1.5), None),
    ratio(
        "roundtrip_poll_over_doorbell",
        "roundtrip_poll",
        &["doorbell_roundtrip_looking"],
        AtMost(0.35),
        Some(AtMost(1.0)),
    ),
    ratio("roundtrip_poll_over_udp", "roundtrip_poll", &["udp_roundtrip"], AtMost(0.08), Some(AtMost(0.25))),
    ratio("roundtrip_sleep_over_doorbell", "roundtrip_sleep", &["doorbell_roundtrip_asleep"], AtMost(1.0), None),
    ratio("roundtrip_sleep_over_udp", "roundtrip_sleep", &["udp_roundtrip"], AtMost(0.4), None),
    ratio(
        "enqueue_over_best_software_queue",
        "enqueue",
        &["queue_add", "queue_add_known", "queue_lock"],
        AtMost(0.25),
        None,
    ),
    ratio("net_udp_roundtrip_over_virtio", "net_udp_roundtrip", &["udp_roundtrip"], AtMost(0.7), None),
    ratio("net_tcp_roundtrip_over_virtio", "net_tcp_roundtrip", &["tcp_roundtrip"], AtMost(0.7), None),
    ratio("net_tcp_over_virtio", "tcp_8m", &["net_tcp_8m"], AtLeast(1.0), None),
    ratio("net_tcp_both_over_virtio", "tcp_8m_both", &["net_tcp_8m_both"], AtLeast(1.0), None),
];

/// The targets of figures that are no ratios, in their units.
const TIMES: [(&str, Target); 1] = [("queue_empty_look", AtMost(0.3))];

impl Samples {
    /// The values of an operation, by round.
    fn values(&self, op: &str) -> BTreeMap<u32, f64> {
        let rounds = self.rounds.iter();
        rounds.filter_map(|(round, ops)| Some((*round, *ops.get(op).filter(|v| v.is_finite())?))).collect()
    }

    /// Round by round, of the rounds that have both.
    fn ratios(&self, of: &str, to: &[String]) -> Vec<f64> {
        let each: Vec<_> = to.iter().map(|op| self.values(op)).collect();
        let smallest = |round: &u32| each.iter().filter_map(|by| by.get(round).copied()).reduce(f64::min);
        let pairs = self.values(of).into_iter().filter_map(|(round, value)| Some((value, smallest(&round)?)));
        pairs.filter(|(_, base)| *base > 0.0).map(|(value, base)| value / base).collect()
    }

    /// What is wrong with the values of these operations.
    fn marks(&self, ops: &[String], values: &[f64]) -> Vec<String> {
        let said = |op: &String| self.marks.get(op).into_iter().flatten().cloned();
        let mut marks: Vec<String> = ops.iter().flat_map(said).collect();
        marks.extend(self.marks.get("").into_iter().flatten().cloned());
        marks.dedup();
        let n = values.len();
        if n == 0 && marks.is_empty() {
            marks.push("not measured".into());
        } else if n > 0 && n < self.wanted as usize {
            marks.push(format!("unfinished: {n} of {} rounds", self.wanted));
        }
        marks.extend(warming(values));
        marks
    }
}

/// A mark for values that were still falling or rising: the medians of the first and the second half differ by more
/// than half.
fn warming(values: &[f64]) -> Option<String> {
    let (first, second) = values.split_at(values.len() / 2);
    let ([first, ..], [second, ..]) = (spread(first)?, spread(second)?);
    let change = second / first;
    let steady = values.len() < 4 || (1.0 / 1.5..=1.5).contains(&change);
    (!steady).then(|| format!("unsteady: {change:.2} times in the second half of the rounds"))
}

/// Whether a figure is one of a peer, not of a board.
pub(crate) fn is_of_peer(measure: &str) -> bool {
    PEERS.contains(&measure)
}

/// All figures of one run, and their targets.
pub(crate) fn figures(
    samples: &BTreeMap<Waiting, Samples>,
    processes: Processes,
) -> (Vec<Measure>, BTreeMap<String, Target>) {
    let (mut list, mut targets) = (Vec::new(), BTreeMap::new());
    let us = |values: BTreeMap<u32, f64>| values.into_values().map(|ns| ns / 1e3).collect::<Vec<_>>();
    for (waiting, samples) in samples {
        for target in &RATIOS {
            let fill = |op: &str| op.replace("{}", if *waiting == Waiting::Blocked { "blocked" } else { "spinning" });
            let to: Vec<String> = target.to.iter().map(|op| fill(op)).collect();
            let values = samples.ratios(target.of, &to);
            let name = waiting.figure(target.name);
            let marks = samples.marks(&[&[target.of.to_owned()], &to[..]].concat(), &values);
            let inverse = matches!(target.one, Some(Target::AtLeast(_)));
            let baseline = if inverse { target.of.to_owned() } else { to.join(", ") };
            let measure = Measure::of(&name, "x", &values);
            let median = measure.median;
            list.push(measure.against(&baseline, median).marked(marks));
            let bound = if processes == Processes::One { target.one } else { target.each.or(target.one) };
            bound.map(|bound| targets.insert(name, bound));
        }
    }
    for (waiting, samples) in samples {
        for (op, base) in OURS {
            let values = us(samples.values(op));
            let marks = samples.marks(&[op.to_owned()], &values);
            let mut measure = Measure::of(&waiting.figure(op), "us", &values).marked(marks);
            if !base.is_empty() {
                let ratio = spread(&samples.ratios(op, &[base.to_owned()])).map(|[median, ..]| median);
                let ours = OURS.iter().any(|(name, _)| *name == base);
                let base = if ours { waiting.figure(base) } else { base.to_owned() };
                measure = measure.against(&base, ratio);
            }
            if let Some((_, bound)) = TIMES.iter().find(|(name, _)| *name == op) {
                targets.insert(measure.measure.clone(), *bound);
            }
            list.push(measure);
        }
    }
    // Of the first boot, like what they are shown beside.
    for (_, samples) in samples.iter().take(1) {
        for op in PEERS {
            let values = us(samples.values(op));
            let marks = samples.marks(&[op.to_owned()], &values);
            list.push(Measure::of(op, "us", &values).marked(marks));
        }
    }
    (list, targets)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(ops: &[(&str, [f64; 4])]) -> Samples {
        let round = |at: usize| ops.iter().map(|(op, values)| ((*op).to_owned(), values[at])).collect();
        let rounds = (0..4).map(|at| (at as u32, round(at))).collect();
        Samples { rounds, wanted: 4, ..Samples::default() }
    }

    fn find<'a>(list: &'a [Measure], name: &str) -> &'a Measure {
        list.iter().find(|m| m.measure == name).unwrap_or_else(|| panic!("no {name}"))
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let ops = [
            ("load_local", [10e3, 20e3, 30e3, 40e3]),
            ("load_remote", [20e3, 40e3, 60e3, 80e3]),
            ("bare_blocked_load", [10e3, 20e3, 30e3, 40e3]),
            ("bare_spinning_load", [5e3, 10e3, 15e3, 20e3]),
            ("put_16m", [4e6; 4]),
            ("host_memcpy_16m", [1e6; 4]),
            ("enqueue", [1e3; 4]),
            ("queue_add", [8e3; 4]),
            ("queue_lock", [4e3, 5e3, 4e3, 4e3]),
        ];
        let both = [(Waiting::Blocked, samples(&ops)), (Waiting::Spinning, samples(&ops))].into();
        let (list, targets) = figures(&both, Processes::One);
        let ratio = |name: &str| find(&list, name).ratio;
        assert_eq!(ratio("load_remote_over_local"), Some(2.0));
        assert_eq!((ratio("load_local_over_bare"), ratio("load_local_over_bare_spin")), (Some(1.0), Some(2.0)));
        assert_eq!((ratio("put_16m_over_memcpy"), ratio("put_16m")), (Some(0.25), Some(4.0)));
        assert_eq!(ratio("enqueue_over_best_software_queue"), Some(0.25));
        assert_eq!(find(&list, "load_local").median, Some(25.0));
        assert_eq!(targets["load_remote_over_local_spin"], AtMost(1.1));
        assert_eq!(figures(&both, Processes::Each).1["load_remote_over_local"], AtMost(1.8));
        assert_eq!(targets["queue_empty_look_spin"], AtMost(0.3));
        assert!(AtMost(1.1).met(1.1) && !AtMost(1.1).met(1.2) && AtLeast(4.0).met(5.0) && !AtLeast(4.0).met(3.9));
    }

    #[test]
    fn what_is_missing_is_in_the_list_with_a_mark() {
        let mut one = samples(&[("load_local", [1e3; 4]), ("quiet", [1e3, 1e3, 9e3, 9e3])]);
        one.rounds.remove(&3);
        one.marks.insert("udp_roundtrip".into(), vec!["no virtio_net".into()]);
        let mut unpinned = one.clone();
        unpinned.marks.insert(String::new(), vec!["not pinned".into()]);
        let (list, _) = figures(&[(Waiting::Blocked, unpinned)].into(), Processes::One);
        assert!(list.iter().all(|measure| measure.marks.contains(&"not pinned".to_owned())), "a mark without a name");
        let (list, _) = figures(&[(Waiting::Blocked, one)].into(), Processes::One);
        assert_eq!(list.len(), RATIOS.len() + OURS.len() + PEERS.len());
        let marks = |name: &str| find(&list, name).marks.join("; ");
        assert_eq!(marks("direct_load"), "not measured");
        assert_eq!(marks("udp_roundtrip"), "no virtio_net");
        assert_eq!(marks("roundtrip_poll_over_udp"), "no virtio_net");
        assert_eq!(marks("load_local"), "unfinished: 3 of 4 rounds");
        assert!(find(&list, "direct_load").median.is_none());
        assert_eq!(warming(&[1.0, 1.0, 9.0, 9.0]).unwrap(), "unsteady: 9.00 times in the second half of the rounds");
        assert_eq!((warming(&[1.0, 1.0, 1.1, 1.1]), warming(&[1.0, 9.0]), warming(&[])), (None, None, None));
    }

    #[test]
    fn every_operand_is_measured() {
        let known = |op: &str| PEERS.contains(&op) || OURS.iter().any(|(name, _)| *name == op);
        for target in &RATIOS {
            for op in target.to.iter().chain([&target.of]) {
                let op = op.replace("{}", "blocked");
                assert!(known(&op) || op.starts_with("direct_"), "{op}");
            }
        }
        assert!(OURS.iter().all(|(_, base)| base.is_empty() || known(base)));
    }
}
