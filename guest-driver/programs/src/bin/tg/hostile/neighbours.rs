// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a process of the same node notices of a hostile user: its rounds beside it, and beside one that only computes,
//! in turns. Both take a share of the processor; the rest is the driver's.

use super::watch::step;
use super::{attacks, maps};
use std::time::{Duration, Instant};
use telegraphos::{Node, Segment};
use telegraphos_guest_tests::child::{Child, say};
use telegraphos_guest_tests::cli::{Failure, Outcome};
use telegraphos_guest_tests::interface::rows::World;

/// How long each turn is.
const TURN: Duration = Duration::from_millis(500);

/// Rounds of a turn at least, where a kernel checks itself.
const LEAST: f64 = 8.0;

/// Attacks that a process makes without others.
const ALONE: [fn(&World) -> Outcome<u64>; 6] =
    [attacks::sizes, attacks::flags, attacks::pointers, attacks::fields, attacks::handles, maps::every];

/// The other process, until it is killed.
pub(crate) fn child(kind: &str) -> Outcome<()> {
    say("begins");
    loop {
        if kind == "computes" {
            std::hint::black_box(std::hint::black_box(0x9e37_79b9_u64).wrapping_mul(0x94d0_49bb));
            continue;
        }
        for attack in ALONE {
            attack(&World::new()?)?;
        }
    }
}

/// A round of the data path, and one of the control path.
fn data(node: &Node, segment: &Segment) -> Outcome<()> {
    let remote = node.import(node.id(), segment.name()).open()?;
    for number in 0..64 {
        for word in 0..16 {
            remote.put64(word * 8, number)?;
        }
        remote.quiet()?;
        remote.fetch_add::<u64>(0, 1)?;
    }
    Ok(remote.close()?)
}

fn control(node: &Node, _: &Segment) -> Outcome<()> {
    for _ in 0..16 {
        let segment = node.export("neighbour", 4096).create()?;
        node.import(node.id(), "neighbour").open()?.close()?;
        segment.close()?;
    }
    Ok(())
}

type Round = fn(&Node, &Segment) -> Outcome<()>;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Rounds a second for a turn.
fn rate(node: &Node, segment: &Segment, round: Round) -> Outcome<f64> {
    let (begun, mut rounds) = (Instant::now(), 0.0);
    while begun.elapsed() < TURN || rounds < LEAST {
        round(node, segment)?;
        rounds += 1.0;
    }
    Ok(rounds / begun.elapsed().as_secs_f64())
}

pub(crate) fn run(turns: usize) -> Outcome<()> {
    let node = Node::open()?;
    let segment = node.export("neighbour-data", 4096).create()?;
    let patience = Duration::from_secs(60);
    for (name, round) in [("data", data as Round), ("control", control)] {
        let mut rates = [Vec::new(), Vec::new()];
        for _ in 0..turns {
            for (kind, rates) in ["computes", "attacks"].into_iter().zip(&mut rates) {
                step(format_args!("{name} beside one that {kind}"));
                let mut other = Child::start(&["beside", kind], None, patience).map_err(Failure::Refused)?;
                other.expect("begins")?;
                rates.push(rate(&node, &segment, round)?);
                let ended = other.ended()?;
                if let Some(end) = ended {
                    return Err(Failure::Check(format!("the process that {kind} has ended: {end}")));
                }
            }
        }
        let [computes, attacks] = rates.map(median);
        println!(
            "{name}: {computes:.1} rounds a second beside a process that computes, {attacks:.1} beside one that attacks: \
             {:.2} times as slow",
            computes / attacks
        );
    }
    Ok(())
}
