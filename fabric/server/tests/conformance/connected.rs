// SPDX-License-Identifier: MIT OR Apache-2.0
//! What two connected ends owe each other.

use super::drive::{Peer, drive, now, pattern, same, settle, sleep};
use super::subjects::{BUFFER, Subject};
use telegraphos_testkit::{scale, seed_or};

/// Bytes arrive in order, each once, under random cuts, in both directions at once.
pub(crate) fn bytes_arrive_in_order_each_once(subject: Subject) {
    let seed = seed_or(1);
    println!("TELEGRAPHOS_SEED={seed}");
    for round in 0..scale(4, 40) as u64 {
        let mut dice = fastrand::Rng::with_seed(seed ^ round << 32);
        let mut cut = || {
            let most = 1 << dice.u32(0..18);
            dice.usize(1..=most)
        };
        let mut cuts = || (0..101).map(|_| cut()).collect();
        let (a_cuts, b_cuts): (Vec<usize>, Vec<usize>) = (cuts(), cuts());
        let len = scale(1 << 20, 8 << 20);
        let (to_b, to_a) = (pattern(seed + 1, len), pattern(seed + 2, len / 2));
        let pair = subject.pair();
        let mut a = Peer { cuts: a_cuts, ..Peer::sending(pair.a, to_b.clone()) };
        let mut b = Peer { cuts: b_cuts, ..Peer::sending(pair.b, to_a.clone()) };
        drive(&mut a, &mut b, |a, b| a.got.len() >= to_a.len() && b.got.len() >= to_b.len()).unwrap();
        settle(&mut a, &mut b).unwrap();
        same(&b.got, &to_b);
        same(&a.got, &to_a);
        let counted = (a.transport.statistics(), b.transport.statistics());
        assert_eq!(counted.0.sent_bytes, to_b.len() as u64);
        assert_eq!(counted.1.received_bytes, to_b.len() as u64);
    }
}

/// With a peer that does not read, `send` takes a bounded amount; when it reads again, nothing is lost. Both directions
/// full at once.
pub(crate) fn back_pressure_is_bounded_and_loses_nothing(subject: Subject) {
    let len = 64 << 20;
    // Before there is a connection, which would end: on a busy machine this takes longer than the limit of silence.
    let (to_b, to_a) = (pattern(3, len), pattern(4, len));
    let pair = subject.pair();
    let mut a = Peer { reads: false, ..Peer::sending(pair.a, to_b) };
    let mut b = Peer { reads: false, ..Peer::sending(pair.b, to_a) };
    // Each gets what its transport says for itself first: a ring its greeting.
    a.transport.receive(now(), &mut [0]).unwrap();
    b.transport.receive(now(), &mut [0]).unwrap();
    settle(&mut a, &mut b).unwrap();
    let bounded = |peer: &Peer| {
        // Our buffer at both ends, and what the kernel has between them.
        let bound = 4 * BUFFER + (8 << 20);
        assert!(peer.sent > 0 && peer.sent < bound, "{} bytes taken for a peer that does not read", peer.sent);
        assert!(!peer.flushed, "flush says that there is room");
    };
    // However often it tries.
    for _ in 0..100 {
        bounded(&a);
        bounded(&b);
        a.proceed().unwrap();
        b.proceed().unwrap();
    }
    // No more than was taken, and a little, so that the test is quick.
    for peer in [&mut a, &mut b] {
        peer.to_send.truncate(peer.sent + BUFFER);
        peer.reads = true;
    }
    let (to_b, to_a) = (a.to_send.clone(), b.to_send.clone());
    drive(&mut a, &mut b, |a, b| a.got.len() >= to_a.len() && b.got.len() >= to_b.len()).unwrap();
    same(&b.got, &to_b);
    same(&a.got, &to_a);
}

/// An end that waits for room and reads nothing is woken for it.
pub(crate) fn room_is_an_event(subject: Subject) {
    let to_b = pattern(5, 16 << 20);
    let pair = subject.pair();
    let mut a = Peer::sending(pair.a, to_b.clone());
    let mut b = Peer { reads: false, ..Peer::new(pair.b) };
    settle(&mut a, &mut b).unwrap();
    assert!(a.sent < to_b.len());
    b.reads = true;
    let sleeps = drive(&mut a, &mut b, |_, b| b.got.len() == to_b.len()).unwrap();
    same(&b.got, &to_b);
    // Delayed datagrams arrive one by one, and some of them without effect.
    let bytes = if matches!(subject, Subject::Faulty(..)) { 128 } else { 1024 };
    assert!(sleeps as usize <= to_b.len() / bytes, "{sleeps} sleeps for {} bytes", to_b.len());
}

/// The end comes behind all bytes that were flushed, however slowly they are taken, and stays.
pub(crate) fn the_end_comes_after_all_bytes(subject: Subject) {
    let pair = subject.pair();
    let to_b = pattern(6, BUFFER / 2);
    let mut a = Peer::sending(pair.a, to_b.clone());
    let mut b = Peer { reads: false, cuts: vec![777], ..Peer::new(pair.b) };
    drive(&mut a, &mut b, |a, _| a.sent_all()).unwrap();
    drop(a);
    b.reads = true;
    while !b.ended {
        assert!(sleep(&[&b], 30_000_000), "no end");
        b.proceed().unwrap();
    }
    same(&b.got, &to_b);
    let again = b.transport.receive(now(), &mut [0; 8]).unwrap();
    assert_eq!(again, telegraphos_transport::Received::End);
    // Sending to a closed peer is harmless.
    b.transport.send(now(), b"anything").unwrap();
    b.transport.flush(now()).unwrap();
}

/// A peer that leaves without reading what it was sent is an end, too, not an error.
pub(crate) fn leaving_with_unread_bytes_is_an_end(subject: Subject) {
    let pair = subject.pair();
    let mut a = Peer::sending(pair.a, pattern(7, BUFFER / 2));
    let mut b = Peer { reads: false, ..Peer::sending(pair.b, b"last words".to_vec()) };
    drive(&mut a, &mut b, |a, b| a.sent_all() && b.sent_all()).unwrap();
    drop(b);
    while !a.ended {
        assert!(sleep(&[&a], 30_000_000), "no end");
        a.proceed().unwrap();
    }
    same(&a.got, b"last words");
}

/// With nothing to do, the ends sleep: no event, no deadline that comes again and again.
pub(crate) fn idle_ends_sleep(subject: Subject) {
    let pair = subject.pair();
    let mut a = Peer::sending(pair.a, b"x".to_vec());
    let mut b = Peer::sending(pair.b, b"y".to_vec());
    drive(&mut a, &mut b, |a, b| !a.got.is_empty() && !b.got.is_empty()).unwrap();
    settle(&mut a, &mut b).unwrap();
    let start = now();
    let mut wakes = 0;
    while now() - start < 300_000 {
        wakes += u32::from(sleep(&[&a, &b], 300_000));
        a.proceed().unwrap();
        b.proceed().unwrap();
        assert!(wakes < 20, "keeps waking up: {:?} {:?}", a.transport, b.transport);
    }
}

/// Small messages to and fro, as requests and replies are.
pub(crate) fn ping_pong(subject: Subject) {
    let pair = subject.pair();
    let (mut a, mut b) = (Peer::new(pair.a), Peer::new(pair.b));
    for round in 0..scale(500, 20_000) {
        let message = pattern(round as u64, 64);
        (a.to_send, a.sent) = (message.clone(), 0);
        a.got.clear();
        b.got.clear();
        drive(&mut a, &mut b, |_, b| b.got.len() == 64).unwrap();
        (b.to_send, b.sent) = (b.got.clone(), 0);
        drive(&mut a, &mut b, |a, _| a.got.len() == 64).unwrap();
        same(&a.got, &message);
    }
}
