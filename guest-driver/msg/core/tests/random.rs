// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several processes in random order, against a plain list of messages and receives.

use crate::common::{Counts, World, process};
use telegraphos_msg_core::{Bug, Config, Endpoint, Pattern, Way};
use telegraphos_testkit::{Rng, bugs_are_found, over_seeds_on_all_processors};

const PROCESSES: usize = 3;
const THREADS: u32 = 2;

fn config(seed: u64, bug: Option<Bug>) -> Config {
    let mut random = Rng::new(seed ^ 0x5eed);
    let fragments = 1 + random.below(4_u16);
    let block = 4 + random.below(12_u32);
    let room = u64::from(block) * u64::from(fragments);
    let eager = if random.percent(50) { room } else { random.below(room + 1) };
    Config {
        slots: 1 + random.below(4_u16),
        block,
        fragments,
        eager,
        eager_floor: if random.percent(30) { eager } else { random.below(eager + 1) },
        way: if random.percent(50) { Way::Get } else { Way::Put },
        chains: 1 + random.below(4_u16),
        bug,
        ..Config::default()
    }
}

fn endpoint(random: &mut Rng) -> Endpoint {
    Endpoint { process: process(random.below(PROCESSES)), thread: random.below(THREADS) }
}

fn pattern(random: &mut Rng) -> Pattern {
    let from = endpoint(random);
    Pattern {
        process: random.percent(70).then_some(from.process),
        thread: random.percent(70).then_some(from.thread),
        tag: random.percent(70).then(|| random.below(2)),
    }
}

fn step(world: &mut World, random: &mut Rng, kills: bool) -> Result<(), String> {
    let (a, b) = (endpoint(random), endpoint(random));
    match random.below(100_u32) {
        _ if world.is_gone(a.process.node.into()) => {}
        0..20 if !world.is_gone(b.process.node.into()) => {
            let most = if random.percent(80) { 30 } else { 80_usize };
            let length = random.below(most);
            world.send(a, b, random.below(2), length)?;
        }
        20..40 => {
            let (pattern, capacity) = (pattern(random), if random.percent(80) { 80 } else { random.below(30_usize) });
            world.receive(a, pattern, capacity)?;
        }
        40..43 if !world.sends.is_empty() => {
            let send = random.below(world.sends.len());
            if world.sends[send].outcome.is_none() && !world.is_gone(world.sends[send].from.process.node.into()) {
                world.withdraw_send(send)?;
            }
        }
        43..46 if !world.receives.is_empty() => {
            let receive = random.below(world.receives.len());
            if world.receives[receive].outcome.is_none()
                && !world.is_gone(world.receives[receive].at.process.node.into())
            {
                world.withdraw_receive(receive)?;
            }
        }
        46..47 if kills && world.gone.is_empty() && random.percent(20) => world.kill(a.process.node.into())?,
        47..48 if !world.closed.contains(&a) && random.percent(30) => world.close(a)?,
        48..85 => {
            let channels: Vec<_> = world.channels.keys().copied().collect();
            if !channels.is_empty() {
                let (from, to) = channels[random.below(channels.len())];
                world.deliver(from, to)?;
            }
        }
        _ if world.moves() > 0 => {
            let at = random.below(world.moves());
            let whole = random.percent(95);
            world.finish(at, whole)?;
        }
        _ => {}
    }
    Ok(())
}

fn run(seed: u64, bug: Option<Bug>, kills: bool) -> Result<Counts, String> {
    let mut random = Rng::new(seed);
    let mut world = World::new(PROCESSES, THREADS, &config(seed, bug));
    world.pieces = random.below(4);
    for _ in 0..random.below(300_u32) {
        step(&mut world, &mut random, kills)?;
    }
    world.drain()?;
    Ok(world.counts)
}

#[test]
fn i17_i18_in_any_order_each_message_is_received_once_whole_and_in_order() {
    let (seeds, counts) = over_seeds_on_all_processors(2000, 400_000, Counts::add, |seed| run(seed, None, false));
    println!("{seeds} seeds: {counts:?}");
    assert!(seeds == 1 || counts.least() > 100, "{counts:?}");
}

#[test]
fn a_process_that_goes_leaves_nothing_and_delays_no_other() {
    let (seeds, counts) = over_seeds_on_all_processors(1000, 200_000, Counts::add, |seed| run(seed, None, true));
    println!("{seeds} seeds: {counts:?}");
}

bugs_are_found! {
    0..4000, |seed, bug| run(seed, bug, false);
    fn i17_a_request_that_is_transferred_twice_is_found() => Bug::TransferTwice, "once";
    fn i17_a_matched_request_that_is_withdrawn_is_found() => Bug::WithdrawMatched, "once";
    fn i18_a_piece_that_is_stored_twice_is_found() => Bug::RepeatPiece, "once";
    fn i18_fragments_in_the_wrong_place_are_found() => Bug::ForgetOffset, "once";
    fn i18_a_slot_that_is_returned_early_is_found() => Bug::ReturnEarly, "end";
    fn a_receive_for_anything_that_gets_the_newest_is_found() => Bug::NewestFirst, "order";
    fn a_receive_for_one_sender_before_an_older_one_is_found() => Bug::ExactFirst, "order";
    fn a_slot_that_is_written_to_while_in_use_is_found() => Bug::IgnoreSlots, "rules";
}

bugs_are_found! {
    0..4000, |seed, bug| run(seed, bug, true);
    fn sends_to_a_process_that_has_gone_are_found() => Bug::ForgetSends, "freed";
}
