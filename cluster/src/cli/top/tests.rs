// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of a fixed fabric, as it should be.

use super::*;
use telegraphos_fabric::control::FaultSpec;
use telegraphos_fabric::control::snapshot::{
    Flow, Flows, Pair, PerClass, Port, PortState, Process, Totals, Traffic, TrunkEnd,
};

/// After so many seconds, in each of which the same happened.
fn fabric(seconds: u64, nodes: u16) -> Snapshot {
    let flow = |packets: u64| Flow {
        packets: seconds * packets,
        bytes: seconds * packets * 72,
        depth: packets / 100,
        depth_max: packets / 10,
        stalls: seconds * packets / 8,
        credit_stalls: seconds * packets / 16,
        dropped: packets / 1000,
    };
    let classes = |from: u64, to: u64| PerClass {
        request: Flows { received: flow(from), sent: Flow::default() },
        reply: Flows { received: Flow::default(), sent: flow(to) },
        ..PerClass::default()
    };
    let port = |node: u16| Port {
        node,
        switch: node / 2,
        state: if node % 5 == 3 { PortState::Down } else { PortState::Up },
        since_us: 3_000_000,
        incarnation: 4096,
        joins: 1,
        faults: FaultSpec::default(),
        classes: if node % 5 == 3 { PerClass::default() } else { classes(1000 * u64::from(node), 800) },
    };
    let trunk = |n: u16, up| TrunkEnd {
        name: format!("{n}-{}", n + 1),
        switch: n,
        peer: n + 1,
        transport: "udp".into(),
        up,
        session: 1,
        since_us: 1_000_000,
        resets: u64::from(!up),
        rtt_us: Some(430),
        retransmissions: 3 * seconds,
        faulted: 0,
        faults: if up { FaultSpec::default() } else { "loss=2%".parse().unwrap() },
        classes: classes(500, 400),
    };
    let pair = |source, destination, packets| Pair {
        source,
        destination,
        classes: PerClass {
            request: Traffic { packets: packets * seconds, bytes: packets * seconds * 72 },
            ..PerClass::default()
        },
    };
    Snapshot {
        process: Process {
            pid: 4242,
            version: "0.1.0".into(),
            listen: "/run/fabric".into(),
            uptime_us: seconds * 1_000_000,
            memory: 6 << 20,
            cpu_us: seconds * 125_000,
            wakeups: seconds * 2500,
        },
        nodes: 64,
        totals: Totals { joined: nodes.into(), refused: 1, ..Totals::default() },
        ports: (0..nodes).map(port).collect(),
        trunks: vec![trunk(0, true), trunk(1, false)],
        pairs: vec![pair(2, 0, 1500), pair(1, 0, 900), pair(0, 1, 3)],
        other_pairs: PerClass::default(),
    }
}

fn text(width: usize, height: usize, nodes: u16) -> String {
    let (before, now) = (fabric(100, nodes), fabric(102, nodes));
    let lines = View::new(Some(&before), &now).lines(width, height);
    lines.iter().map(|l| format!("{}\n", l.text)).collect()
}

/// Compares with a file; `TELEGRAPHOS_BLESS=1` writes it.
fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cli/top/golden").join(name);
    if std::env::var_os("TELEGRAPHOS_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, expected, "{name} differs; TELEGRAPHOS_BLESS=1 writes it anew");
}

#[test]
fn the_table_is_as_it_was_at_several_widths() {
    golden("wide.txt", &text(200, usize::MAX, 5));
    golden("usual.txt", &text(80, 24, 5));
    golden("narrow.txt", &text(46, 24, 5));
    golden("crowded.txt", &text(100, 24, 40));
}

#[test]
fn no_table_is_larger_than_its_terminal() {
    for nodes in [0, 1, 5, 40, 64] {
        for width in [0, 1, 20, 46, 79, 80, 100, 132, 250] {
            for height in [0, 1, 2, 3, 4, 5, 8, 13, 24, 25, 50, 100] {
                let text = text(width, height, nodes);
                let size = (text.lines().map(|l| l.chars().count()).max().unwrap_or(0), text.lines().count());
                assert!(size.0 <= width && size.1 <= height, "{nodes} nodes in {width}x{height}: {size:?}\n{text}");
            }
        }
    }
}

#[test]
fn rates_are_those_of_the_interval_and_a_restart_begins_anew() {
    let (before, now) = (fabric(100, 3), fabric(102, 3));
    let shown = |before: Option<&Snapshot>| {
        let lines = View::new(before, &now).lines(200, 100);
        lines.iter().map(|l| format!("{}\n", l.text)).collect::<String>()
    };
    let steady = shown(Some(&before));
    assert!(steady.contains("rates over 2.0s") && steady.contains(" 2.00k "), "{steady}");
    // The same rates in each second give the same table since the start, but for its words.
    assert_eq!(shown(None), steady.replace("rates over 2.0s", "rates since the start"));
    let mut other = before.clone();
    other.process.pid = 1;
    assert_eq!(shown(Some(&other)), shown(None));
    other = fabric(500, 3);
    assert_eq!(shown(Some(&other)), shown(None));
}

#[test]
fn a_pair_that_was_not_known_before_has_no_rate_yet() {
    let (mut before, now) = (fabric(100, 3), fabric(102, 3));
    before.pairs.remove(0);
    let lines = View::new(Some(&before), &now).lines(200, 100);
    let pair = lines.iter().find(|l| l.text.starts_with("2 -> 0")).unwrap();
    assert_eq!(pair.text.split_whitespace().collect::<Vec<_>>(), ["2", "->", "0", "-", "-", "153k"]);
}

#[test]
fn what_is_down_is_marked_and_trouble_is_shown() {
    let now = fabric(10, 5);
    let lines = page(None, Some(&now), Some("cannot connect"), (80, 24));
    assert_eq!((lines[0].style, lines[0].text.as_str()), (Style::Bad, "cannot connect; trying again"));
    let bad: Vec<&str> = lines[1..].iter().filter(|l| l.style == Style::Bad).map(|l| l.text.as_str()).collect();
    assert_eq!(bad.len(), 2, "{bad:?}");
    assert!(bad.iter().all(|l| l.contains("DOWN")), "{bad:?}");
    assert!(lines.len() <= 24);
    assert_eq!(page(None, None, None, (80, 24)), []);
}

#[test]
fn an_interval_is_bounded() {
    assert_eq!(interval("1s"), Ok(Duration::from_secs(1)));
    assert_eq!(interval("0s"), Ok(Duration::ZERO));
    for text in ["1", "1ms", "2000h", "3601s"] {
        assert!(interval(text).unwrap_err().contains("expected"), "{text}");
    }
}
