// SPDX-License-Identifier: MIT OR Apache-2.0
//! Single rules: paths of the rendezvous, the paper's sizes, limits, and what another process may not say.

use crate::common::{World, process};
use proptest::prelude::*;
use telegraphos_msg_core::{
    Action, Answer, Bug, Config, Endpoint, Engine, Error, Failure, Header, Packet, Pattern, Place, Violation, Way,
};
use telegraphos_testkit::finds;

fn at(node: usize, thread: u32) -> Endpoint {
    Endpoint { process: process(node), thread }
}

/// Long messages are requests.
fn rendezvous(way: Way) -> Config {
    Config { block: 16, eager: 16, way, ..Config::default() }
}

/// Packets that each of two processes has sent in the end.
fn settled(world: &mut World) -> [usize; 2] {
    let mut sent = [0, 0];
    while !world.is_quiet() {
        for (from, to) in [(0, 1), (1, 0)] {
            sent[from] += usize::from(world.deliver(from, to).unwrap());
        }
        if world.moves() > 0 {
            world.finish(0, true).unwrap();
        }
    }
    sent
}

/// SPEC items 32 and 33: regardless of which side comes first, one packet to each side wakes it if the receiver
/// fetches, and one more goes to the receiver if the sender stores.
#[test]
fn i17_receive_first_and_send_first_take_as_many_packets() {
    for (way, packets) in [(Way::Get, [1, 1]), (Way::Put, [2, 1])] {
        for receive_first in [false, true] {
            let mut world = World::new(2, 1, &rendezvous(way));
            if receive_first {
                world.receive(at(1, 0), Pattern::default(), 100).unwrap();
                world.send(at(0, 0), at(1, 0), 5, 100).unwrap();
            } else {
                world.send(at(0, 0), at(1, 0), 5, 100).unwrap();
                world.deliver(0, 1).unwrap();
                world.receive(at(1, 0), Pattern::default(), 100).unwrap();
            }
            let early = usize::from(!receive_first);
            assert_eq!(
                settled(&mut world),
                [packets[0] - early, packets[1]],
                "{way:?}, receive first: {receive_first}"
            );
            assert_eq!((world.counts.fetches + world.counts.stores, world.counts.takes), (1, 0));
            world.check_idle().unwrap();
        }
    }
}

/// No engine stores to, or reads from, a process that no board reaches; such a process may ask only for what it has a
/// request for.
#[test]
fn i17_bytes_of_a_far_message_are_fetched_and_no_others() {
    let mut engine = Engine::new(rendezvous(Way::Put)).unwrap();
    let (far, other) = (process(1), process(2));
    engine.connect_far(far).unwrap();
    engine.connect(other).unwrap();
    engine.open(0).unwrap();
    engine.receive(0, Pattern::default(), 100, Some(Place(9))).unwrap();
    let header = Header { from: 0, to: 0, tag: 0, length: 100 };
    engine.packet(far, Packet::Request { slot: 0, header, at: Place(7) }).unwrap();
    assert!(matches!(engine.action(), Some(Action::Fetch { at: Place(7), length: 100, .. })));
    let send = engine.send(0, Endpoint { process: far, thread: 0 }, 0, 50, Some(Place(5))).unwrap();
    for (peer, at, bytes, found) in [
        (far, 5, 50, Some(send)),
        (far, 5, 0, Some(send)),
        (far, 5, 51, None),
        (far, 6, 1, None),
        (other, 5, 50, None),
        (process(3), 5, 50, None),
    ] {
        assert_eq!(engine.bytes_of(peer, Place(at), bytes), found);
    }
    engine.packet(far, Packet::Done { slot: 0, answer: Answer::Taken }).unwrap();
    assert_eq!(engine.bytes_of(far, Place(5), 50), None);
}

/// s2 §7: requests need not be served first come, first served.
#[test]
fn i17_the_receiver_serves_requests_in_any_order() {
    let mut world = World::new(2, 1, &rendezvous(Way::Get));
    let first = world.send(at(0, 0), at(1, 0), 1, 50).unwrap();
    let second = world.send(at(0, 0), at(1, 0), 2, 60).unwrap();
    world.settle().unwrap();
    world.receive(at(1, 0), Pattern { tag: Some(2), ..Pattern::default() }, 60).unwrap();
    world.settle().unwrap();
    assert_eq!((world.sends[first].outcome, world.sends[second].outcome), (None, Some(Ok(()))));
    world.receive(at(1, 0), Pattern { tag: Some(1), ..Pattern::default() }, 60).unwrap();
    world.settle().unwrap();
    world.check_idle().unwrap();
}

/// Messages of one length to one process, one by one: the engine tries both ways, and stays with the faster one, also
/// when another one is. That is known for each process by itself.
#[test]
fn what_is_short_follows_what_is_faster() {
    let config = Config { block: 64, eager: 64, eager_floor: 16, ..Config::default() };
    let mut world = World::new(3, 1, &config);
    world.follows = true;
    let requests = |world: &mut World, to, count| {
        let before = world.counts.requests;
        for _ in 0..count {
            world.receive(at(to, 0), Pattern::default(), 64).unwrap();
            world.send(at(0, 0), at(to, 0), 0, 50).unwrap();
            world.settle().unwrap();
        }
        world.counts.requests - before
    };
    assert_eq!(world.engines[0].eager(process(1)).unwrap().threshold, 64);
    world.times = [9, 3];
    requests(&mut world, 1, 128);
    let eager = world.engines[0].eager(process(1)).unwrap();
    assert_eq!((eager.threshold, eager.slots + eager.requests), (32, 128));
    assert_eq!(requests(&mut world, 1, 128), 126, "two go the other way");
    assert_eq!(world.engines[0].eager(process(2)).unwrap().threshold, 64, "nothing has been sent to it");
    world.times = [3, 9];
    requests(&mut world, 1, 128);
    assert_eq!(world.engines[0].eager(process(1)).unwrap().threshold, 64);
    assert_eq!(requests(&mut world, 2, 128), 6, "at first more do");
    world.check_idle().unwrap();
    assert_eq!(world.engines[0].eager(process(4)), None);
}

/// What waits with others is not measured, and what fails neither.
#[test]
fn only_messages_that_are_alone_and_arrive_are_measured() {
    let config = Config { block: 64, eager: 64, eager_floor: 16, ..Config::default() };
    let mut world = World::new(2, 1, &config);
    world.follows = true;
    for _ in 0..3 {
        world.send(at(0, 0), at(1, 0), 0, 50).unwrap();
    }
    world.settle().unwrap();
    for _ in 0..3 {
        world.receive(at(1, 0), Pattern::default(), 64).unwrap();
    }
    world.settle().unwrap();
    let eager = world.engines[0].eager(process(1)).unwrap();
    assert_eq!((eager.slots, eager.requests), (1, 0));
    world.check_idle().unwrap();
}

/// SPEC item 40 and E21.
#[test]
fn e21_the_papers_profile_takes_2095872_bytes_and_no_more() {
    let config = Config::paper();
    assert_eq!((config.block, config.longest), (65_496, 2_095_872));
    let mut world = World::new(2, 1, &config);
    world.receive(at(1, 0), Pattern::default(), 2_095_872).unwrap();
    world.send(at(0, 0), at(1, 0), 0, 2_095_872).unwrap();
    assert_eq!(settled(&mut world), [32, 32]);
    assert_eq!(world.counts.takes, 32);
    world.check_idle().unwrap();
    let refused = world.send(at(0, 0), at(1, 0), 0, 2_095_873).unwrap_err();
    assert_eq!(refused, "a message of 2095873 bytes: expected at most 2095872");
}

/// A receiver without room delays, and loses nothing; other processes' messages do not wait for it.
#[test]
fn i18_without_slots_messages_wait_and_others_do_not() {
    let config = Config { slots: 2, block: 4, eager: 4, ..Config::default() };
    let mut world = World::new(3, 1, &config);
    for tag in 0..10 {
        world.send(at(0, 0), at(1, 0), tag, 4).unwrap();
    }
    world.settle().unwrap();
    let other = world.send(at(2, 0), at(1, 0), 99, 4).unwrap();
    world.settle().unwrap();
    world.receive(at(1, 0), Pattern { tag: Some(99), ..Pattern::default() }, 4).unwrap();
    world.settle().unwrap();
    assert_eq!(world.sends[other].outcome, Some(Ok(())));
    for tag in 0..10 {
        assert_eq!(world.sends[tag].outcome, None, "no thread has message {tag}");
        world.receive(at(1, 0), Pattern { tag: Some(tag as u32), ..Pattern::default() }, 4).unwrap();
        world.settle().unwrap();
        assert_eq!(world.sends[tag].outcome, Some(Ok(())));
    }
    world.check_idle().unwrap();
}

fn no_thread(bug: Option<Bug>) -> Result<(), String> {
    let config = Config { slots: 3, block: 4, fragments: 4, eager: 16, bug, ..Config::default() };
    let mut world = World::new(2, 1, &config);
    let lengths = [0, 4, 16, 100];
    let sends: Vec<_> = lengths.iter().map(|l| world.send(at(0, 0), at(1, 8), 0, *l)).collect::<Result<_, _>>()?;
    let after = world.send(at(0, 0), at(1, 0), 0, 16)?;
    world.receive(at(1, 0), Pattern::default(), 16)?;
    world.settle()?;
    world.check_idle()?;
    for send in sends {
        if world.sends[send].outcome != Some(Err(Failure::NoThread)) {
            return Err(format!("for no thread: {:?}", world.sends[send]));
        }
    }
    if world.sends[after].outcome != Some(Ok(())) {
        return Err("the next one does not arrive".into());
    }
    Ok(())
}

#[test]
fn a_message_for_no_thread_ends_and_the_next_arrives() {
    no_thread(None).unwrap();
}

#[test]
fn i18_slots_of_messages_for_no_thread_that_are_kept_are_found() {
    finds(Bug::KeepRefused, "freed", 0..1, |_| no_thread(Some(Bug::KeepRefused)));
}

#[test]
fn i18_a_thread_that_is_closed_amid_a_message_gives_its_slots_back() {
    let config = Config { slots: 2, block: 4, fragments: 4, eager: 16, ..Config::default() };
    let mut world = World::new(2, 2, &config);
    let whole = world.send(at(0, 0), at(1, 0), 0, 100).unwrap();
    let part = world.send(at(0, 0), at(1, 0), 0, 16).unwrap();
    let after = world.send(at(0, 0), at(1, 1), 0, 16).unwrap();
    let waits = world.receive(at(1, 0), Pattern { tag: Some(7), ..Pattern::default() }, 16).unwrap();
    world.settle().unwrap();
    world.close(at(1, 0)).unwrap();
    assert_eq!(world.receives[waits].outcome, Some(Err(Failure::Closed)));
    world.receive(at(1, 1), Pattern::default(), 16).unwrap();
    world.settle().unwrap();
    world.check_idle().unwrap();
    for send in [whole, part] {
        assert_eq!(world.sends[send].outcome, Some(Err(Failure::NoThread)));
    }
    assert_eq!(world.sends[after].outcome, Some(Ok(())));
}

#[test]
fn i17_a_transfer_that_fails_is_reported_to_both() {
    for way in [Way::Get, Way::Put] {
        let mut world = World::new(2, 1, &rendezvous(way));
        let receive = world.receive(at(1, 0), Pattern::default(), 100).unwrap();
        let send = world.send(at(0, 0), at(1, 0), 5, 100).unwrap();
        while world.moves() == 0 {
            world.deliver(0, 1).unwrap();
            world.deliver(1, 0).unwrap();
        }
        world.finish(0, false).unwrap();
        world.settle().unwrap();
        assert_eq!(world.sends[send].outcome, Some(Err(Failure::Failed)), "{way:?}");
        assert_eq!(world.receives[receive].outcome, Some(Err(Failure::Failed)), "{way:?}");
        world.check_idle().unwrap();
    }
}

#[test]
fn limits_are_said_with_their_number() {
    let config =
        Config { peers: 2, threads: 1, sends: 1, receives: 1, slots: 1, eager: 8, block: 8, ..Config::default() };
    let mut engine = Engine::new(config).unwrap();
    engine.connect(process(1)).unwrap();
    assert_eq!(engine.connect(process(1)), Err(Error::Connected(process(1))));
    engine.connect(process(2)).unwrap();
    assert_eq!(engine.connect(process(3)), Err(Error::Peers(2)));
    engine.open(4).unwrap();
    assert_eq!(engine.open(5), Err(Error::Threads(1)));
    assert_eq!(engine.receive(5, Pattern::default(), 1, None), Err(Error::NoThread(5)));
    engine.receive(4, Pattern::default(), 1, None).unwrap();
    assert_eq!(engine.receive(4, Pattern::default(), 1, None), Err(Error::Receives(1)));
    assert_eq!(engine.send(4, at(9, 0), 0, 1, None), Err(Error::NoProcess(process(9))));
    assert_eq!(engine.send(4, at(1, 0), 0, 9, None), Err(Error::NoPlace { length: 9, most: 8 }));
    engine.send(4, at(1, 0), 0, 8, None).unwrap();
    assert_eq!(engine.send(4, at(1, 0), 0, 8, None), Err(Error::Sends(1)));
    let text = engine.open(4).map_err(|e| e.to_string());
    assert_eq!(text, Err("1 threads are open, which is the limit".into()));
    for (bad, said) in [
        (Config { slots: 0, ..Config::default() }, "slots is 0: expected at least 1"),
        (
            Config { eager: 4097, ..Config::default() },
            "eager is 4097: expected at most 4096, what 1 slots have room for",
        ),
        (Config { peers: u32::MAX, ..Config::default() }, "peers is 4294967295: expected fewer with 64 slots each"),
    ] {
        assert_eq!(Engine::new(bad).unwrap_err().to_string(), said);
    }
}

fn header(length: u64) -> Header {
    Header { from: 0, to: 0, tag: 0, length }
}

/// What an engine says of packets of a process that is connected.
fn said(packets: &[Packet]) -> Result<(), Violation> {
    let config = Config { slots: 2, block: 4, fragments: 3, eager: 12, ..Config::default() };
    let mut engine = Engine::new(config).unwrap();
    engine.connect(process(1)).unwrap();
    engine.open(0).unwrap();
    packets.iter().try_for_each(|packet| engine.packet(process(1), *packet))
}

#[test]
fn what_is_against_the_rules_is_named() {
    let eager = |slot, length, fragment| Packet::Eager { slot, header: header(length), fragment };
    let done = |slot| Packet::Done { slot, answer: Answer::Taken };
    let long = Packet::Request { slot: 1, header: header(100), at: Place(0) };
    for (packets, violation) in [
        (vec![eager(2, 4, 0)], Violation::NoSlot { slot: 2, slots: 2 }),
        (vec![eager(0, 4, 0), eager(0, 4, 0)], Violation::SlotInUse(0)),
        (vec![eager(0, 13, 0)], Violation::Length { length: 13, most: 12 }),
        (vec![eager(0, 12, 1)], Violation::Fragment { fragment: 1, expected: 0 }),
        (vec![eager(0, 12, 0), eager(1, 12, 2)], Violation::Fragment { fragment: 2, expected: 1 }),
        (vec![eager(0, 12, 0), eager(1, 11, 1)], Violation::Fragment { fragment: 1, expected: 1 }),
        (vec![eager(0, 12, 0), eager(1, 4, 0)], Violation::Fragment { fragment: 0, expected: 1 }),
        (vec![eager(0, 12, 0), long], Violation::Fragment { fragment: 0, expected: 1 }),
        (vec![done(0)], Violation::SlotWithoutMessage(0)),
        (vec![done(7)], Violation::NoSlot { slot: 7, slots: 2 }),
        (vec![Packet::Clear { slot: 0, at: Place(0), length: 1 }], Violation::SlotWithoutMessage(0)),
        (vec![long, Packet::Stored { slot: 1, whole: true }], Violation::SlotWithoutMessage(1)),
        (vec![eager(0, 4, 0), Packet::Withdraw { slot: 0 }], Violation::SlotWithoutMessage(0)),
    ] {
        assert_eq!(said(&packets), Err(violation), "{packets:?}");
    }
}

fn packet() -> impl Strategy<Value = Packet> {
    let header = (0..3_u32, 0..3_u32, 0..2_u32, prop_oneof![0..20_u64, any::<u64>()])
        .prop_map(|(from, to, tag, length)| Header { from, to, tag, length });
    let answer =
        prop_oneof![Just(Answer::Taken), Just(Answer::NoThread), Just(Answer::Withdrawn), Just(Answer::Failed)];
    let (slot, place) = (0..4_u16, any::<u64>().prop_map(Place));
    prop_oneof![
        3 => (slot.clone(), header.clone(), 0..4_u16)
            .prop_map(|(slot, header, fragment)| Packet::Eager { slot, header, fragment }),
        3 => (slot.clone(), header, place.clone()).prop_map(|(slot, header, at)| Packet::Request { slot, header, at }),
        1 => (slot.clone(), place, any::<u64>()).prop_map(|(slot, at, length)| Packet::Clear { slot, at, length }),
        1 => (slot.clone(), any::<bool>()).prop_map(|(slot, whole)| Packet::Stored { slot, whole }),
        1 => slot.clone().prop_map(|slot| Packet::Withdraw { slot }),
        2 => (slot, answer).prop_map(|(slot, answer)| Packet::Done { slot, answer }),
    ]
}

proptest! {
    /// A process that says anything at all: its engine's other process has its messages, in order, and at the end
    /// nothing of it is left.
    #[test]
    fn whatever_a_process_says_others_notice_nothing(
        packets in prop::collection::vec(packet(), 0..60), put in any::<bool>(),
    ) {
        let way = if put { Way::Put } else { Way::Get };
        let config = Config { slots: 3, block: 4, fragments: 3, eager: 12, way, ..Config::default() };
        let mut engine = Engine::new(config).unwrap();
        let (liar, honest) = (process(1), process(2));
        for peer in [liar, honest] {
            engine.connect(peer).unwrap();
        }
        engine.open(0).unwrap();
        let mut transfers = Vec::new();
        let mut received = Vec::new();
        for (n, packet) in packets.into_iter().enumerate() {
            if n % 5 == 0 {
                // After a lie, the liar is not connected any more.
                let _ = engine.send(0, Endpoint { process: liar, thread: 0 }, 0, n as u64, Some(Place(0)));
                let _ = engine.receive(0, Pattern { process: Some(liar), ..Pattern::default() }, 9, Some(Place(1)));
            }
            let _ = engine.packet(liar, packet);
            let slot = (n % 3) as u16;
            let header = Header { from: 0, to: 0, tag: n as u32, length: 4 };
            engine.packet(honest, Packet::Eager { slot, header, fragment: 0 }).unwrap();
            let receive = engine.receive(0, Pattern { process: Some(honest), ..Pattern::default() }, 4, None).unwrap();
            while let Some(action) = engine.action() {
                match action {
                    Action::Received { receive: ended, outcome } if ended == receive => {
                        received.push(outcome.unwrap().tag);
                    }
                    Action::Fetch { transfer, .. } | Action::Store { transfer, .. } => transfers.push(transfer),
                    _ => {}
                }
            }
            prop_assert_eq!(received.len(), n + 1);
            prop_assert_eq!(received[n], n as u32);
        }
        engine.gone(liar);
        transfers.into_iter().for_each(|transfer| engine.transferred(transfer, true));
        while engine.action().is_some() {}
        prop_assert!(engine.is_idle());
    }
}
