// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules of SPEC item 35 one by one: acknowledgements, NACKs, the pause, keep-alive, restart, the end. Each test of
//! a rule also shows that a deliberate bug breaks it.

use std::cell::RefCell;
use std::rc::Rc;

use crate::world::pair::{DELAY, Pair, pair};
use crate::world::{self, Side, small};
use telegraphos_rdp_core::{Bug, Config, Connection, Datagram, End, Identity, Kind, Listener, Sequence, State};

/// The kinds of the datagrams sent from now on, with their direction.
fn record(pair: &mut Pair) -> Rc<RefCell<Vec<(Side, Kind)>>> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let log = Rc::clone(&seen);
    pair.lose = Box::new(move |to, datagram| {
        log.borrow_mut().push((to, datagram.kind));
        false
    });
    seen
}

fn config(bug: Option<Bug>) -> Config {
    Config { timeout_max: 400_000, ..small(bug) }
}

#[test]
fn an_acknowledgement_rides_on_data_the_other_way() {
    let mut pair = pair(config(None));
    let seen = record(&mut pair);
    for _ in 0..50 {
        pair.client.send(b"ping");
        pair.run(DELAY);
        assert_eq!(pair.read(), b"ping");
        pair.server().send(b"pong");
        pair.run(DELAY);
        let mut buffer = [0; 8];
        assert_eq!(pair.client.receive(&mut buffer), 4);
    }
    assert!(seen.borrow().iter().all(|(_, kind)| *kind == Kind::Data), "{:?}", seen.borrow());
    assert_eq!(seen.borrow().len(), 100);
}

#[test]
fn one_way_traffic_is_acknowledged_explicitly_and_late() {
    let mut pair = pair(Config { receive_buffer: 4000, ..config(None) });
    let seen = record(&mut pair);
    pair.client.send(b"one");
    pair.run(DELAY + config(None).ack_delay - 1);
    assert_eq!(*seen.borrow(), [(Side::Server, Kind::Data)]);
    pair.run(1);
    assert_eq!(*seen.borrow(), [(Side::Server, Kind::Data), (Side::Client, Kind::Acknowledge)]);
    // Many: one acknowledgement for a window that is full, without delay.
    seen.borrow_mut().clear();
    pair.client.send(&[1; 120 * 16]);
    pair.run(3 * DELAY);
    assert_eq!(pair.client.outstanding(), 0);
    let acknowledged = seen.borrow().iter().filter(|(_, kind)| *kind == Kind::Acknowledge).count();
    assert!(acknowledged <= 2, "{:?}", seen.borrow());
}

/// Loses the third of ten segments once; when everything had arrived, and the NACKs and timeouts.
fn one_loss(bug: Option<Bug>) -> (u64, u64, u64) {
    let mut pair = pair(config(bug));
    let mut lost = false;
    let third = Sequence(u32::MAX - 1).plus(2);
    pair.lose = Box::new(move |_, datagram| {
        let hit = !lost && datagram.kind == Kind::Data && datagram.sequence == third;
        lost |= hit;
        hit
    });
    let (start, data) = (pair.now, [7; 1200]);
    assert_eq!(pair.client.send(&data), 1200);
    while pair.server().available() < 1200 {
        pair.run(10);
    }
    let s = *pair.client.statistics();
    // Eight segments were behind the two that arrived, and all of them are sent again, none before.
    assert!(bug.is_some() || s.retransmissions == 8, "{s:?}");
    (pair.now - start, s.sequence_nacks_received, s.timeouts)
}

#[test]
fn a_sequence_nack_brings_back_what_is_missing_at_once() {
    let (time, nacks, timeouts) = one_loss(None);
    assert_eq!((nacks, timeouts), (1, 0));
    assert!(time <= 4 * DELAY, "{time} us: there, back, there again");
    let (time, nacks, timeouts) = one_loss(Some(Bug::IgnoreNack));
    assert!(nacks == 0 && timeouts > 0 && time > 10 * DELAY, "{time} us");
}

#[test]
fn a_lost_nack_is_said_again_and_an_old_one_does_nothing() {
    let mut pair = pair(config(None));
    let (mut lost, mut nacks) = (false, 0);
    pair.lose = Box::new(move |_, datagram| {
        let first = datagram.kind == Kind::Data && !std::mem::replace(&mut lost, true);
        nacks += u32::from(datagram.kind == Kind::NackSequence);
        first || datagram.kind == Kind::NackSequence && nacks == 1
    });
    pair.client.send(&[7; 1200]);
    pair.run(6 * DELAY);
    assert_eq!(pair.read().len(), 1200);
    let (received, sent) = (*pair.client.statistics(), *pair.server().statistics());
    assert_eq!((received.timeouts, received.sequence_nacks_received), (0, 1));
    assert!(sent.sequence_nacks_sent >= 3, "{sent:?}");
}

/// A receiver that does not read for three seconds, which is more than a silence: how many segments were sent in the
/// last two, and how long after it has read the next segment came.
fn no_reader(bug: Option<Bug>) -> (u64, u64) {
    let mut pair = pair(config(bug));
    assert_eq!(pair.client.send(&[7; 3000]), 3000);
    pair.run(1_000_000);
    let kept = pair.server().available();
    assert!(bug.is_some() || (1500 - 120..=1500).contains(&kept), "{kept}");
    let before = *pair.client.statistics();
    pair.run(2_000_000);
    assert_eq!(pair.client.state(), State::Established, "a side without room is not silent");
    let sent = pair.client.statistics().retransmissions - before.retransmissions;
    // Just after it was offered a segment without effect, so that the next offer is far.
    let offered = pair.client.statistics().retransmissions;
    while pair.client.statistics().retransmissions == offered {
        pair.run(DELAY);
    }
    pair.run(4 * DELAY);
    assert!(bug.is_some() || pair.read().len() == kept);
    if bug.is_some() {
        pair.read();
    }
    let start = pair.now;
    while pair.server().available() == 0 && pair.now < start + 1_000_000 {
        pair.run(10);
    }
    let waited = pair.now - start;
    // And then everything comes.
    pair.run(1_000_000);
    pair.read();
    pair.run(1_000_000);
    assert_eq!(pair.client.outstanding(), 0);
    (sent, waited)
}

#[test]
fn a_capacity_nack_pauses_the_sender_until_room_is_announced() {
    let (sent, waited) = no_reader(None);
    assert!(sent <= 8, "{sent} segments were offered to a receiver without room");
    assert!(waited <= 3 * DELAY, "{waited} us after it was announced");
    let (sent, _) = no_reader(Some(Bug::NoPause));
    assert!(sent > 8, "{sent}");
    let (_, waited) = no_reader(Some(Bug::ForgetRoom));
    assert!(waited > 100 * DELAY, "{waited} us");
}

#[test]
fn a_lost_announcement_of_room_only_costs_time() {
    let mut pair = pair(config(None));
    pair.lose = Box::new(|_, datagram| datagram.kind == Kind::Room);
    pair.client.send(&[7; 3000]);
    pair.run(100_000);
    let mut read = pair.read().len();
    for _ in 0..20 {
        pair.run(100_000);
        read += pair.read().len();
    }
    assert_eq!((read, pair.client.outstanding()), (3000, 0));
}

#[test]
fn an_idle_connection_lives_as_long_as_both_ends_do() {
    let states = |bug: Option<Bug>| {
        let mut pair = pair(config(bug));
        pair.run(60_000_000);
        (pair.client.state(), pair.client.statistics().probes + pair.server().statistics().probes)
    };
    let (state, probes) = states(None);
    assert_eq!(state, State::Established);
    // Each side probes once in a third of a silence.
    assert!((80..=180).contains(&probes), "{probes} probes in 30 silences");
    assert_eq!(states(Some(Bug::NoKeepAlive)).0, State::Ended(End::Silent));
}

#[test]
fn silence_ends_a_connection_idle_or_not() {
    let states = |bug: Option<Bug>, bytes: usize| {
        let mut pair = pair(config(bug));
        pair.lose = Box::new(|_, _| true);
        pair.client.send(&vec![1; bytes]);
        pair.run(config(None).silence - 10 * DELAY);
        assert_eq!(pair.client.state(), State::Established);
        pair.run(10 * DELAY);
        (pair.client.state(), pair.server().state(), pair.client.deadline())
    };
    let silent = State::Ended(End::Silent);
    assert_eq!(states(None, 0), (silent, silent, None));
    assert_eq!(states(None, 5000), (silent, silent, None));
    assert_eq!(states(Some(Bug::EndlessPatience), 0).0, State::Established);
}

#[test]
fn an_open_is_not_answered() {
    let mut pair = pair(config(None));
    pair.lose = Box::new(|_, _| true);
    pair.restart_client();
    let seen = record(&mut pair);
    let log = Rc::clone(&seen);
    pair.lose = Box::new(move |to, datagram| {
        log.borrow_mut().push((to, datagram.kind));
        true
    });
    pair.client.send(b"waits");
    pair.run(config(None).silence);
    assert_eq!(pair.client.state(), State::Ended(End::Silent));
    let opens = seen.borrow().iter().filter(|(_, kind)| *kind == Kind::Open).count();
    assert!((5..20).contains(&opens), "{opens}: backed off");
}

#[test]
fn an_open_under_a_false_address_brings_few_datagrams_there() {
    let mut pair = pair(config(None));
    pair.lose = Box::new(|_, _| true);
    pair.run(2 * config(None).silence);
    let silent = State::Ended(End::Silent);
    assert_eq!(pair.server().state(), silent);
    let seen = Rc::new(RefCell::new(0));
    let log = Rc::clone(&seen);
    pair.lose = Box::new(move |to, _| {
        *log.borrow_mut() += u32::from(to == Side::Client);
        to == Side::Client
    });
    pair.restart_client();
    pair.run(DELAY);
    // It only wanted to send this one.
    pair.client.abandon();
    pair.run(2 * config(None).silence);
    assert!((1..=4).contains(&*seen.borrow()), "{} datagrams", seen.borrow());
    assert!(pair.listener.keys().all(|key| pair.listener.connection(key).is_some_and(|c| c.state() == silent)));
}

#[test]
fn i16_a_restarted_server_is_detected_by_data_at_once_and_by_an_idle_client_soon() {
    let mut pair = pair(config(None));
    pair.restart_server();
    pair.client.send(b"for the old one");
    pair.run(2 * DELAY);
    assert_eq!(pair.client.state(), State::Ended(End::Restarted));
    assert_eq!(pair.client.statistics().restarts, 1);
    assert_eq!(pair.listener.keys().count(), 0);

    let mut pair = world::pair::pair(config(None));
    pair.restart_server();
    pair.run(config(None).silence / 3 + 2 * DELAY);
    assert_eq!(pair.client.state(), State::Ended(End::Restarted));
}

#[test]
fn i16_a_restarted_client_ends_its_old_connection_when_the_new_one_stands() {
    let mut pair = pair(config(None));
    pair.client.send(b"old");
    pair.run(10 * DELAY);
    let old = pair.server;
    pair.restart_client();
    pair.client.send(b"new");
    pair.run(2 * DELAY);
    assert_eq!(pair.listener.connection(old).map(|c| c.state()), Some(State::Established), "not confirmed");
    pair.run(2 * DELAY);
    assert_eq!(pair.listener.connection(old).map(|c| c.state()), Some(State::Ended(End::Restarted)));
    assert_eq!(pair.listener.statistics().restarts, 1);
    assert_ne!(pair.server, old);
    assert_eq!(pair.read(), b"new");
    // What was received before can still be read.
    pair.server = old;
    assert_eq!(pair.read(), b"old");
}

#[test]
fn the_end_comes_after_all_data_and_both_sides_close() {
    let mut pair = pair(config(None));
    pair.client.send(&[7; 1000]);
    pair.client.close();
    assert_eq!(pair.client.send(b"more"), 0);
    pair.run(10 * DELAY);
    assert!(!pair.server().at_end(), "not before it is read");
    assert_eq!(pair.read().len(), 1000);
    assert!(pair.server().at_end());
    // The other direction is still open.
    pair.server().send(b"answer");
    pair.server().close();
    pair.run(10 * DELAY);
    assert_eq!((pair.client.available(), pair.client.at_end()), (6, false));
    assert_eq!(pair.client.state(), State::Ended(End::Closed));
    assert_eq!(pair.server().state(), State::Ended(End::Closed));
    assert_eq!(pair.client.receive(&mut [0; 9]), 6);
    assert!(pair.client.at_end());
}

#[test]
fn a_lost_last_acknowledgement_is_given_again() {
    let mut pair = pair(config(None));
    pair.client.close();
    pair.run(10 * DELAY);
    let mut lost = 0;
    pair.lose = Box::new(move |to, _| {
        lost += 1;
        to == Side::Server && lost < 4
    });
    pair.server().close();
    pair.run(1_000_000);
    assert_eq!(pair.client.state(), State::Ended(End::Closed));
    assert_eq!(pair.server().state(), State::Ended(End::Closed));
}

#[test]
fn an_end_that_abandons_notifies_the_other() {
    let mut pair = pair(config(None));
    pair.client.send(&[7; 1000]);
    pair.run(10 * DELAY);
    pair.client.send(b"never arrives");
    pair.client.abandon();
    assert_eq!(pair.client.state(), State::Ended(End::Aborted));
    pair.run(10 * DELAY);
    assert_eq!(pair.server().state(), State::Ended(End::Abandoned));
    assert_eq!(pair.read().len(), 1000);
    assert!(!pair.server().at_end());
}

#[test]
fn a_flood_of_opens_leaves_a_bounded_number_of_connections() {
    let mut pair = pair(Config { connections: 10, ..config(None) });
    let established = pair.server;
    pair.lose = Box::new(|to, _| to == Side::Client);
    for _ in 0..100 {
        pair.restart_client();
        pair.run(2 * DELAY);
    }
    // Half of them are for those that are being set up.
    assert_eq!(pair.listener.keys().count(), 5 + 1);
    assert!(pair.listener.keys().any(|key| key == established), "what stands is not pushed out");
    // They are forgotten.
    pair.run(3 * config(None).silence);
    assert!(pair.listener.keys().count() <= 2);
}

/// What an Open is that begins connection `id`.
fn hello(id: u64) -> Vec<u8> {
    let (mut client, mut out) =
        (Connection::open(config(None), Identity { id, sequence: 1 }, 0, 0).unwrap(), Vec::new());
    assert!(client.poll_transmit(0, &mut out));
    out
}

#[test]
fn a_flood_of_opens_from_one_host_takes_no_place_of_another() {
    // Peers are (host, port).
    let mut listener: Listener<(u64, u32)> =
        Listener::with_origins(Config { connections: 20, ..config(None) }, |peer: &(u64, u32)| peer.0).unwrap();
    let open = |listener: &mut Listener<(u64, u32)>, now: u64, peer: (u64, u32), id: u64| {
        listener.datagram(now, &peer, &hello(id), Identity { id: 1_000_000 + id, sequence: 7 })
    };
    let honest = open(&mut listener, 0, (1, 0), 1).unwrap();
    for n in 0..5000 {
        open(&mut listener, 10 * n, (2 + n % 2, n as u32), 100 + n);
    }
    assert!(listener.connection(honest).is_some(), "the flood displaced the connection of another host");
    assert_eq!(listener.keys().count(), 10);
    let counted = *listener.statistics();
    assert!(counted.displaced > 100 && counted.crowded > 1000, "{counted:?}");
    // 50 ms at 1000 per second, and what is allowed at once.
    assert!(counted.displaced <= 2 * (256 + 50), "{counted:?}");
    assert!(open(&mut listener, 50_000, (1, 1), 2).is_some(), "another host can still connect");
}

#[test]
fn resets_have_a_rate_for_each_host() {
    let mut listener: Listener<(u64, u32)> = Listener::with_origins(config(None), |peer: &(u64, u32)| peer.0).unwrap();
    let sequence = Sequence(1);
    let of_no_connection = Datagram {
        kind: Kind::Acknowledge,
        to: 9,
        from: 8,
        sequence,
        acknowledge: sequence,
        stamp: 1,
        echo: 0,
        round: 0,
        ask: false,
        deliberate: false,
        payload: &[],
    };
    let mut bytes = Vec::new();
    of_no_connection.encode(&mut bytes);
    let foreign = |listener: &mut Listener<(u64, u32)>, peer| {
        listener.datagram(1, &peer, &bytes, Identity { id: 4, sequence: 4 });
    };
    (0..1000).for_each(|port| foreign(&mut listener, (2, port)));
    foreign(&mut listener, (1, 0));
    let (mut to, mut out) = (Vec::new(), Vec::new());
    while let Some((peer, _)) = listener.poll_transmit(1, &mut out) {
        to.push(peer.0);
    }
    assert_eq!(to.len(), 16 + 1);
    assert_eq!(to.last(), Some(&1), "the flood took the Reset of another host");
    assert_eq!(listener.statistics().resets_left_out, 984);
}

#[test]
fn one_host_has_at_most_three_quarters_of_the_connections() {
    let mut listener: Listener<(u64, u32)> =
        Listener::with_origins(Config { connections: 16, ..config(None) }, |peer: &(u64, u32)| peer.0).unwrap();
    let mut connect = |peer: (u64, u32), id: u64| {
        let mut client = Connection::open(config(None), Identity { id, sequence: 1 }, 0, 0).unwrap();
        let mut out = Vec::new();
        for now in (0..10).map(|step| step * 1000) {
            client.send(b"x");
            while client.poll_transmit(now, &mut out) {
                listener.datagram(now, &peer, &out, Identity { id: 1_000_000 + id, sequence: 7 });
            }
            while let Some((to, _)) = listener.poll_transmit(now, &mut out) {
                if to == peer {
                    client.datagram(now, &out);
                }
            }
        }
        (client.state(), listener.accepted().count())
    };
    let all: Vec<_> = (0..8).map(|n| connect((2, n), 100 + u64::from(n))).collect();
    assert_eq!(all[..6], [(State::Established, 1); 6]);
    assert_eq!(all[6..], [(State::Ended(End::Restarted), 0); 2], "a Reset says that it was not accepted");
    assert_eq!(connect((1, 0), 1), (State::Established, 1));
    assert_eq!(listener.statistics().crowded, 2);
}
