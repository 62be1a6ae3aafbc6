// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chosen cuts: what was sent before them, and is still on its way when everybody is there again.

use telegraphos_fabric_core::Bug;
use telegraphos_wire::Class;

use super::ledger::State;
use super::schedule::topology;
use super::world::{Network, Settings};
use crate::common::{Failure, fail};

/// While a request of node 0 to the last node is on its way to its switch, something happens that cuts it off for a
/// moment.
fn request_before_cut(
    shape: &str,
    nodes: u32,
    bug: Option<Bug>,
    cut: impl Fn(&mut Network) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut network = Network::new(topology(shape, nodes), Settings::new(4, 4, bug));
    (0..nodes as u16).try_for_each(|node| network.join(node))?;
    cut_and_check(&mut network, nodes as u16 - 1, cut)
}

fn cut_and_check(
    network: &mut Network,
    last: u16,
    cut: impl Fn(&mut Network) -> Result<(), Failure>,
) -> Result<(), Failure> {
    network.raise()?;
    network.rest()?;
    let slow = network.pipe_of(0);
    network.stuck.insert(slow);
    let (tag, to) = network.send(0, last, Class::Request).unwrap();
    cut(network)?;
    network.settle()?;
    assert!(network.nodes[0].notified.contains_key(&last), "node {last} can be reached again");
    network.stuck.clear();
    network.rest()?;
    match network.ledger.entry(tag, to).state {
        State::Down => network.heal(),
        other => fail("told_down", format!("node 0 was notified {other:?} of a request from before the cut")),
    }
}

fn trunk_breaks(bug: Option<Bug>) -> Result<(), Failure> {
    request_before_cut("mesh:3x1", 3, bug, |network| {
        network.break_trunk(1, [0, 0]);
        network.settle()?;
        network.dial(1, false, false)
    })
}

/// Two switches between them are started again. What they knew of the trunk between them is lost at both ends.
fn both_ends_restart(joined_before: usize, bug: Option<Bug>) -> Result<(), Failure> {
    let mut network = Network::new(topology("mesh:4x1", 4), Settings::new(4, 4, bug));
    network.raise()?;
    network.rest()?;
    for _ in 1..joined_before {
        network.break_trunk(1, [0, 0]);
        network.settle()?;
        network.raise()?;
        network.rest()?;
    }
    cut_and_check(&mut network, 3, |network| {
        network.restart(1, 0);
        network.restart(2, 0);
        network.settle()?;
        network.raise()
    })
}

/// Both ends of a trunk call each other. The second connection is joined when the first has been for some time.
fn both_ends_call(bug: Option<Bug>) -> Result<(), Failure> {
    let mut network = Network::new(topology("mesh:2x1", 2), Settings::new(4, 4, bug));
    network.join(0)?;
    network.join(1)?;
    network.dial(0, false, false)?;
    let first = network.pipes_of(0);
    network.deliver(first[1])?;
    network.dial(0, true, true)?;
    let second = network.pipes_of(0);
    network.deliver(second[1])?;
    assert_ne!(first, second);
    network.stuck.extend(second);
    network.settle()?;
    let slow = network.pipe_of(0);
    network.stuck.insert(slow);
    network.send(0, 1, Class::Request).unwrap();
    second.iter().for_each(|pipe| _ = network.stuck.remove(pipe));
    network.settle()?;
    network.stuck.clear();
    network.rest()?;
    network.heal()
}

/// What waits before a trunk that breaks gives its credits back.
fn full_trunk_breaks(bug: Option<Bug>) -> Result<(), Failure> {
    let mut network = Network::whole(topology("mesh:3x1", 3), Settings::new(2, 2, bug))?;
    network.nodes[2].stopped[Class::Enqueue as usize] = true;
    for _ in 0..5 {
        while network.send(0, 2, Class::Enqueue).is_some() {}
        network.settle()?;
    }
    assert_eq!(network.nodes[0].open.len(), 8, "two at each place on the way");
    network.break_trunk(1, [0, 0]);
    network.settle()?;
    if network.nodes[0].held != [2; 4] {
        return fail("credits_conserved", format!("of 2 each, node 0 holds {:?}", network.nodes[0].held));
    }
    network.nodes[2].stopped = [false; 4];
    network.rest()?;
    network.heal()
}

#[test]
fn a_broken_trunk_holds_no_credits() {
    full_trunk_breaks(None).unwrap();
}

#[test]
fn what_waited_for_a_cut_trunk_is_reported_lost() {
    trunk_breaks(None).unwrap();
}

#[test]
fn a_trunk_whose_ends_are_both_restarted_is_another() {
    // By as many joins before as the sum of all epochs would come out the same.
    (1..6).for_each(|joins| both_ends_restart(joins, None).unwrap_or_else(|e| panic!("{joins} joins: {e}")));
}

#[test]
fn a_second_connection_is_another_trunk_or_none() {
    both_ends_call(None).unwrap();
}

#[test]
fn cuts_find_their_bugs() {
    let check = |result: Result<(), Failure>| result.err().map(|failure| failure.check);
    assert_eq!(check(trunk_breaks(Some(Bug::ForgetSession))), Some("incarnation_is_new"));
    let restarted: Vec<_> =
        (1..6).filter_map(|joins| check(both_ends_restart(joins, Some(Bug::ForgetEpochs)))).collect();
    assert!(
        restarted.contains(&"incarnation_is_new"),
        "by some number of joins the sum comes out the same: {restarted:?}"
    );
    assert_eq!(check(full_trunk_breaks(Some(Bug::LeakTrunkCredit))), Some("credits_conserved"));
    assert_eq!(check(both_ends_call(Some(Bug::JoinStale))), Some("incarnation_is_new"));
}
