// SPDX-License-Identifier: MIT OR Apache-2.0
//! Time limits: a neighbour that hangs is disconnected; one that is idle or was stopped for a moment is not.

use telegraphos_fabric_core::{Attached, Bug, Diagnostic, Violation};
use telegraphos_wire::Class;

use super::schedule::topology;
use super::world::{Network, Settings};
use crate::common::{Failure, fail};

const SILENCE: u64 = 3_000_000;
const STALL: u64 = 1_000_000;
const STEP: u64 = 250_000;

fn network(shape: &str, nodes: u32, bug: Option<Bug>) -> Result<Network, Failure> {
    let settings = Settings { silence: Some(SILENCE), stall: Some(STALL), ..Settings::new(4, 4, bug) };
    Network::whole(topology(shape, nodes), settings)
}

/// So many microseconds pass; everything moves.
fn pass(network: &mut Network, now: &mut u64, time: u64) -> Result<(), Failure> {
    let end = *now + time;
    while *now < end {
        *now += STEP;
        network.tick(*now)?;
        network.settle()?;
    }
    Ok(())
}

fn disconnected(network: &Network) -> Vec<(Attached, Violation)> {
    let of = |notice: &Diagnostic| match notice {
        Diagnostic::Violation { who, what, .. } => Some((*who, *what)),
        _ => None,
    };
    network.violations.iter().filter_map(of).collect()
}

/// No traffic for a minute; all answer probes.
#[test]
fn idle_neighbours_are_asked_and_stay() {
    let mut network = network("mesh:3x1", 6, None).unwrap();
    pass(&mut network, &mut 0, 20 * SILENCE).unwrap();
    network.rest().unwrap();
    network.heal().unwrap();
}

/// The clock of the shell began long before the switch.
fn late_clock(bug: Option<Bug>) -> Result<(), Failure> {
    let mut network = network("mesh:2x1", 2, bug)?;
    let mut now = 1000 * SILENCE;
    pass(&mut network, &mut now, 4 * SILENCE)
}

/// Switch 1 of three hangs. Its neighbours disconnect it, and requests to it or beyond end. When it continues, it
/// disconnects no neighbour for the time in which it received nothing.
fn hung_switch(hangs: u64, bug: Option<Bug>) -> Result<(), Failure> {
    let mut network = network("mesh:3x1", 3, bug)?;
    let mut now = 0;
    pass(&mut network, &mut now, SILENCE)?;
    network.send(0, 2, Class::Request).unwrap();
    network.send(0, 1, Class::Enqueue).unwrap();
    network.send(1, 2, Class::Request).unwrap();
    network.stopped.insert(1);
    network.honest = false;
    network.honest_nodes = true;
    pass(&mut network, &mut now, hangs)?;
    let noticed = disconnected(&network);
    if hangs > 2 * SILENCE && (network.nodes[0].open.len() + noticed.len() != 2 || network.nodes[2].notified.len() != 1)
    {
        return fail("silence_is_noticed", format!("{noticed:?}; {:?}", network.nodes[0].open));
    }
    network.violations.clear();
    network.stopped.clear();
    // It has been stopped; the others have not.
    network.tick(now + STEP)?;
    if !network.violations.is_empty() {
        return fail("the_stopped_do_not_judge", format!("{:?}", disconnected(&network)));
    }
    network.honest = true;
    pass(&mut network, &mut now, 3 * SILENCE)?;
    network.raise()?;
    pass(&mut network, &mut now, SILENCE)?;
    network.rest()?;
    network.heal()
}

/// A node that reads and answers probes, but gives no credit back of one class while packets wait: disconnected by its
/// own switch, unless it is the class of elements. What others wait for meanwhile behind its packets comes then.
fn keeps_credits(class: Class, bug: Option<Bug>) -> Result<Vec<(Attached, Violation)>, Failure> {
    let mut network = network("mesh:2x1", 4, bug)?;
    let mut now = 0;
    pass(&mut network, &mut now, STALL)?;
    network.nodes[2].stopped[class as usize] = true;
    for _ in 0..4 {
        while network.send(0, 2, class).is_some() {}
        network.settle()?;
    }
    network.honest = false;
    network.honest_nodes = true;
    network.send(1, 3, class).unwrap();
    pass(&mut network, &mut now, 4 * STALL)?;
    let disconnected = disconnected(&network);
    if disconnected.is_empty() && class != Class::Enqueue {
        return fail("stall_is_noticed", format!("node 1 waits for {:?}", network.nodes[1].open));
    }
    network.nodes[2].stopped = [false; 4];
    network.honest = true;
    network.raise()?;
    network.rest()?;
    network.heal()?;
    Ok(disconnected)
}

/// The handshake of a trunk whose other end never sends anything.
#[test]
fn a_trunk_that_is_never_greeted_is_disconnected() {
    let mut network = network("mesh:2x1", 2, None).unwrap();
    network.break_trunk(0, [0, 0]);
    network.settle().unwrap();
    network.stopped.insert(1);
    network.dial(0, false, false).unwrap();
    let mut now = 0;
    pass(&mut network, &mut now, 2 * SILENCE).unwrap();
    network.stopped.clear();
    network.rest().unwrap();
    assert!(!network.trunk_up(0));
    network.heal().unwrap();
}

#[test]
fn a_switch_that_hangs_is_cut_off_and_comes_back() {
    hung_switch(3 * SILENCE, None).unwrap();
}

#[test]
fn a_switch_that_stood_still_for_less_is_not_noticed() {
    hung_switch(SILENCE / 2, None).unwrap();
}

#[test]
fn a_late_clock_disconnects_no_peer() {
    late_clock(None).unwrap();
}

#[test]
fn a_node_that_keeps_credits_is_disconnected_unless_they_are_of_elements() {
    for class in [Class::Request, Class::Reflected] {
        let disconnected = keeps_credits(class, None).unwrap();
        assert_eq!(disconnected, [(Attached::Node(2), Violation::Stalled { class, limit: STALL })]);
    }
    assert_eq!(keeps_credits(Class::Enqueue, None).unwrap(), []);
}

#[test]
fn time_finds_its_bugs() {
    let check = |result: Result<(), Failure>| result.err().map(|failure| failure.check);
    assert_eq!(check(hung_switch(3 * SILENCE, Some(Bug::Patient))), Some("silence_is_noticed"));
    assert_eq!(check(keeps_credits(Class::Request, Some(Bug::Patient)).map(|_| ())), Some("stall_is_noticed"));
    assert_eq!(check(hung_switch(3 * SILENCE, Some(Bug::Unforgiving))), Some("the_stopped_do_not_judge"));
    let blamed = keeps_credits(Class::Request, Some(Bug::BlameTrunk)).unwrap();
    assert!(blamed.iter().any(|(neighbour, _)| matches!(neighbour, Attached::Trunk(..))), "{blamed:?}");
    assert_eq!(check(late_clock(Some(Bug::Unforgiving))), Some("honest_stay"));
}
