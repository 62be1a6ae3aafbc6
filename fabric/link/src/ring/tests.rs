// SPDX-License-Identifier: MIT OR Apache-2.0
//! Peers that do not keep to the rules, and what a message costs.

use std::os::unix::net::UnixStream;

use super::*;

const CAPACITY: u32 = 4096;

/// One end, and what a client has in hand: its socket and the memory.
fn against_a_raw_peer() -> (Ring, UnixStream, Rings) {
    let (near, far) = UnixStream::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    let (end, fd) = Ring::create(OwnedFd::from(near), CAPACITY, 0).unwrap();
    let memory = Memory::open(fd.as_fd(), length(CAPACITY)).unwrap();
    (end, far, Rings::new(memory, CAPACITY, 1))
}

fn pair(spin: u64) -> (Ring, Ring) {
    let ([low, high], memory) = Ring::for_others(CAPACITY).unwrap();
    let a = Ring::open(low, memory.as_fd(), CAPACITY, 0, spin).unwrap();
    let mut b = Ring::open(high, memory.as_fd(), CAPACITY, 1, spin).unwrap();
    assert_eq!(b.receive(0, &mut [0; 8]).unwrap(), Taken::Nothing);
    (a, b)
}

fn readable(end: &Ring) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::from_borrowed_fd(end.fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

#[test]
fn impossible_indices_end_the_connection() {
    use std::sync::atomic::Ordering::Release;
    for (tail, head) in [(4097, 0), (1 << 31, 0), (0, 1), (0, 1 << 31)] {
        let (mut end, _socket, peer) = against_a_raw_peer();
        words(&peer.memory, 1).tail.store(tail, Release);
        words(&peer.memory, 0).head.store(head, Release);
        let received = end.receive(0, &mut [0; 64]);
        let sent = end.send(b"x");
        let error = received.err().or(sent.err()).expect("accepted").to_string();
        assert!(error.contains("index that cannot be"), "{error}");
    }
}

#[test]
fn unexpected_wake_ups_end_the_connection() {
    use std::io::Write;
    let (mut end, mut socket, _peer) = against_a_raw_peer();
    assert_eq!(end.receive(0, &mut [0; 64]).unwrap(), Taken::Nothing);
    socket.write_all(&[0]).unwrap();
    let error = end.receive(0, &mut [0; 64]).unwrap_err().to_string();
    assert!(error.contains("without being asked"), "{error}");
}

#[test]
fn one_call_is_bounded_whatever_the_peer_writes_meanwhile() {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    let (mut end, socket, peer) = against_a_raw_peer();
    let stop = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            use std::io::Write;
            // Bytes that come and go again, flags set and cleared at random, and as many wake-ups as the socket takes.
            let (mut rng, mut tail) = (telegraphos_testkit::Rng::new(1), 0_u32);
            while !stop.load(SeqCst) {
                tail = tail.wrapping_add(rng.below(64_u32));
                let into = words(&peer.memory, 1);
                into.tail.store(tail.wrapping_sub(rng.below(64_u32)), SeqCst);
                into.asleep.store(rng.below(2_u32), SeqCst);
                words(&peer.memory, 0).wanting.store(rng.below(2_u32), SeqCst);
                let _ = (&socket).write(&[0]);
            }
        });
        // Up to an error or a number of calls, each of which returns at most what was requested.
        for _ in 0..20_000 {
            match end.receive(0, &mut [0; 16]) {
                Ok(Taken::Bytes(n)) => assert!(n <= 16),
                Ok(_) => {}
                Err(_) => break,
            }
            if end.send(b"some bytes").is_err() || end.flush().is_err() {
                break;
            }
        }
        stop.store(true, SeqCst);
    });
}

#[test]
fn after_the_end_of_the_socket_no_more_than_what_was_there_is_read() {
    let (mut end, socket, mut peer) = against_a_raw_peer();
    assert_eq!(peer.put(b"last").unwrap(), 4);
    drop(socket);
    let mut buffer = [0; 2];
    assert_eq!(end.receive(0, &mut buffer).unwrap(), Taken::Bytes(2));
    assert_eq!(end.receive(0, &mut buffer).unwrap(), Taken::Bytes(2));
    assert_eq!(end.receive(0, &mut buffer).unwrap(), Taken::End);
    assert_eq!(peer.put(b"more").unwrap(), 4);
    assert_eq!(end.receive(0, &mut buffer).unwrap(), Taken::End);
}

#[test]
fn no_system_call_for_a_message_while_the_other_side_is_awake() {
    let (mut a, mut b) = pair(0);
    let mut buffer = [0; 64];
    let mut message = |b: &mut Ring| {
        assert_eq!(a.send(&[7; 64]).unwrap(), 64);
        assert!(a.flush().unwrap());
        assert!(readable(b));
        assert_eq!(b.receive(0, &mut buffer).unwrap(), Taken::Bytes(64));
        a.wakes()
    };
    // The first wakes; until `receive` has returned `Nothing`, no other does.
    for _ in 0..1000 {
        assert_eq!(message(&mut b), 1);
    }
    assert_eq!(b.receive(0, &mut [0; 64]).unwrap(), Taken::Nothing);
    assert!(!readable(&b));
    assert_eq!(message(&mut b), 2);
    assert_eq!(b.wakes(), 0);
}

#[test]
fn one_who_spins_is_not_asleep() {
    let (mut a, mut b) = pair(100);
    let mut buffer = [0; 64];
    for now in 0..1000 {
        a.send(b"x").unwrap();
        a.flush().unwrap();
        assert_eq!(b.receive(now, &mut buffer).unwrap(), Taken::Bytes(1));
        assert_eq!(b.receive(now, &mut buffer).unwrap(), Taken::Nothing);
        assert!(readable(&b), "it has to be called again");
    }
    assert_eq!(a.wakes(), 1);
    assert_eq!(b.receive(2000, &mut buffer).unwrap(), Taken::Nothing);
    assert!(!readable(&b));
}

#[test]
fn part_of_what_is_there_leaves_it_readable() {
    let (mut a, mut b) = pair(0);
    a.send(&[1; 100]).unwrap();
    a.flush().unwrap();
    let mut buffer = [0; 10];
    for _ in 0..10 {
        assert!(readable(&b));
        assert_eq!(b.receive(0, &mut buffer).unwrap(), Taken::Bytes(10));
    }
    assert_eq!(b.receive(0, &mut buffer).unwrap(), Taken::Nothing);
    assert!(!readable(&b));
}

#[test]
fn room_wakes_once_and_is_not_forgotten() {
    let (mut a, mut b) = pair(0);
    assert_eq!(a.send(&[1; 5000]).unwrap(), 4096);
    assert!(!a.flush().unwrap() && a.send(b"x").unwrap() == 0);
    assert_eq!(a.receive(0, &mut [0; 8]).unwrap(), Taken::Nothing);
    assert!(!readable(&a));
    let mut buffer = [0; 256];
    let mut wakes = Vec::new();
    while b.receive(0, &mut buffer).unwrap() != Taken::Nothing {
        wakes.push(b.wakes());
    }
    assert_eq!((wakes.first(), wakes.last()), (Some(&0), Some(&1)));
    assert!(readable(&a));
    // A caller that only reads does not lose the wake-up for room.
    assert_eq!(a.receive(0, &mut buffer).unwrap(), Taken::Nothing);
    assert!(readable(&a));
    assert!(a.flush().unwrap());
    assert_eq!(a.send(b"x").unwrap(), 1);
    assert_eq!(a.receive(0, &mut buffer).unwrap(), Taken::Nothing);
    assert!(!readable(&a));
}

#[test]
fn a_ring_of_another_size_is_refused() {
    for capacity in [0, 4095, 5000, 1 << 31] {
        assert!(Ring::for_others(capacity).is_err(), "{capacity}");
    }
    let ([low, _high], memory) = Ring::for_others(CAPACITY).unwrap();
    let error = Ring::open(low, memory.as_fd(), 2 * CAPACITY, 0, 0).unwrap_err().to_string();
    assert!(error.contains("another length"), "{error}");
}

/// The peer writes, and wakes, between this side's last look for bytes and its look at the socket.
#[test]
fn a_wake_up_for_bytes_behind_the_last_look_stays_in_the_socket() {
    use std::io::Write;
    let (mut end, mut socket, mut peer) = against_a_raw_peer();
    let mut write = |byte: &[u8]| {
        assert_eq!(peer.put(byte).unwrap(), 1);
        assert!(peer.producer.wake_consumer(&peer.outgoing()));
        socket.write_all(&[0]).unwrap();
    };
    // One that is expected, since the bytes were found before it was read.
    write(b"a");
    assert_eq!(end.receive(0, &mut [0; 8]).unwrap(), Taken::Bytes(1));
    // The steps of the next receive, up to the socket.
    assert_eq!(end.rings.consumer.available(&end.rings.incoming()).unwrap(), 0);
    end.due += end.rings.woken();
    let words = words(&end.rings.memory, 1 - end.rings.out);
    assert_eq!((end.due, end.rings.consumer.sleep(&words).unwrap()), (1, 0));
    write(b"b");
    assert!(matches!(end.listen().unwrap(), Socket::Quiet));
    assert!(readable(&end), "this side would not look for the second byte");
    assert_eq!(end.receive(0, &mut [0; 8]).unwrap(), Taken::Bytes(1));
    assert_eq!(end.receive(0, &mut [0; 8]).unwrap(), Taken::Nothing);
    assert!(!readable(&end));
}
