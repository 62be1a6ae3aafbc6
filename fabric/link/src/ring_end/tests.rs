// SPDX-License-Identifier: MIT OR Apache-2.0

use std::os::fd::AsFd;

use super::*;
use crate::client::OUT_LIMIT;
use telegraphos_wire::{Block, Body, Class, ImportEpoch, NodeId, Packet, RemoteAddr};

/// The two ends of a ring of each kind.
fn rings() -> [[Box<dyn RingEnd>; 2]; 2] {
    let ([low, high], memory) = Shared::for_others(4096).unwrap();
    let shared = |socket, side| Shared::open(socket, memory.as_fd(), 4096, side).unwrap();
    let (low, high) = (shared(low, 0), shared(high, 1));
    let [a, b] = Within::pair();
    [[Box::new(low), Box::new(high)], [Box::new(a), Box::new(b)]]
}

fn received(end: &mut dyn RingEnd) -> Vec<Frame> {
    let mut frames = VecDeque::new();
    end.receive(0, &mut frames).unwrap();
    frames.into_iter().map(|passing| passing.frame).collect()
}

#[test]
fn frames_arrive_in_order_each_once_also_when_there_is_no_room() {
    for [mut a, mut b] in rings() {
        let sent: Vec<Frame> = (0..1000).map(|node| Frame::NodeDown { node }).collect();
        sent.iter().for_each(|frame| a.send(frame.clone(), None));
        assert!(received(&mut *b).is_empty(), "nothing was flushed");
        a.flush().unwrap();
        let mut got = Vec::new();
        while got.len() < sent.len() {
            got.extend(received(&mut *b));
            assert!(received(&mut *a).is_empty());
            a.flush().unwrap();
        }
        assert_eq!(got, sent);
        b.send(Frame::Alive, None);
        b.flush().unwrap();
        assert_eq!(received(&mut *a), [Frame::Alive]);
    }
}

#[test]
fn what_was_sent_before_the_end_arrives_and_what_is_sent_after_it_is_dropped() {
    for [mut a, mut b] in rings() {
        a.send(Frame::Alive, None);
        a.flush().unwrap();
        drop(a);
        let mut got = received(&mut *b);
        got.extend(received(&mut *b));
        assert_eq!(got, [Frame::Alive]);
        assert!(b.has_ended());
        b.send(Frame::Alive, None);
        b.flush().unwrap();
        assert!(!b.is_short_of_room() && received(&mut *b).is_empty());
    }
}

#[test]
fn a_peer_that_does_not_read_costs_a_bounded_memory() {
    for [mut a, _b] in rings() {
        let frame = Frame::NodeDown { node: 1 };
        for sent in 0.. {
            assert!(sent < 2 * OUT_LIMIT, "never full");
            a.send(frame.clone(), None);
            if sent % 100_000 == 0 && a.flush().is_err() {
                break;
            }
        }
    }
}

#[test]
fn what_is_beside_a_frame_arrives_with_it_and_its_bytes_count_as_passed() {
    let [mut a, mut b] = Within::pair();
    let passed = a.passed();
    let (at, epoch) = (RemoteAddr { page: 0, offset: 0, generation: 1 }, ImportEpoch::default());
    let mut send = |data: Block, beside| {
        let body = Body::WriteBlock { at, context: 0, epoch, data };
        a.send(Frame::Packet(Packet { src: 0, dst: 1, tag: 0, incarnation: 1, target: 1, body }), beside);
        a.flush().unwrap();
        passed.take(1)[Class::Request as usize]
    };
    let whole = send(vec![7; 5000].into(), None);
    let what: Arc<dyn Any + Send + Sync> = Arc::new("memory");
    assert_eq!(send(Block::default(), Some(Beside { what: Arc::clone(&what), length: 5000 })), whole);
    let mut frames = VecDeque::new();
    b.receive(0, &mut frames).unwrap();
    assert!(frames[0].beside.is_none());
    assert!(frames[1].beside.as_ref().is_some_and(|beside| Arc::ptr_eq(&beside.what, &what)));
}

#[test]
fn what_is_beside_a_frame_is_dropped_with_it() {
    let [mut a, mut b] = Within::pair();
    let what: Arc<dyn Any + Send + Sync> = Arc::new("memory");
    let beside = || Some(Beside { what: Arc::clone(&what), length: 0 });
    a.send(Frame::Alive, beside());
    a.flush().unwrap();
    b.send(Frame::Alive, beside());
    assert_eq!(Arc::strong_count(&what), 3);
    drop(b);
    assert_eq!(Arc::strong_count(&what), 1, "it will not be received");
    a.send(Frame::Alive, beside());
    a.flush().unwrap();
    assert_eq!(Arc::strong_count(&what), 1);
}

fn called(calls: &Calls) -> Vec<NodeId> {
    let mut nodes = Vec::new();
    calls.take(&mut nodes);
    nodes
}

#[test]
fn an_end_is_called_once_for_what_it_has_not_taken() {
    let (calls, [mut a, mut b]) = (Arc::new(Calls::new()), Within::pair());
    a.send(Frame::Alive, None);
    a.flush().unwrap();
    b.call_at(&calls, 7);
    assert_eq!((calls.any(), called(&calls)), (true, vec![7]), "for what has arrived before");
    a.send(Frame::Alive, None);
    a.flush().unwrap();
    assert!(!calls.any() && received(&mut b).len() == 2);
    a.flush().unwrap();
    assert!(!calls.any(), "nothing was sent");
    a.send(Frame::Alive, None);
    a.flush().unwrap();
    assert_eq!((called(&calls), received(&mut b).len()), (vec![7], 1));
    drop(a);
    assert_eq!(called(&calls), [7]);
}

#[test]
fn a_sender_in_another_thread_loses_no_call() {
    const FRAMES: u16 = 50_000;
    let (calls, [mut a, mut b]) = (Arc::new(Calls::with_bell().unwrap()), Within::pair());
    let sender = std::thread::spawn(move || {
        for node in 0..FRAMES {
            a.send(Frame::NodeDown { node }, None);
            a.flush().unwrap();
        }
    });
    b.call_at(&calls, 7);
    let mut next = 0;
    while !b.has_ended() {
        let bell = calls.fd().unwrap();
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(bell, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, None).unwrap();
        assert_eq!(called(&calls), [7]);
        for frame in received(&mut b) {
            assert_eq!(frame, Frame::NodeDown { node: next });
            next += 1;
        }
    }
    assert_eq!(next, FRAMES);
    sender.join().unwrap();
}
