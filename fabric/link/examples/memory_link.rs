// SPDX-License-Identifier: MIT OR Apache-2.0
//! The queue of a link in memory beside queues without locks, in the two uses that there are: one thread serves both
//! ends in turn, and each end has a thread of its own, on a processor of its own where there are two.
//!
//! `cargo run --release -p telegraphos-link --example memory_link [ROUNDS]`. Nanoseconds of each frame in interleaved
//! rounds: of the best 5 %, which nothing else has interrupted, and medians. The queues without locks do less: they do
//! not account for the bytes that wait, and do not call the other end.
// An example fails by panicking, its helpers too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::VecDeque;
use std::iter::from_fn;
use std::sync::Arc;
use std::time::Instant;

use crossbeam_queue::{ArrayQueue, SegQueue};
use telegraphos_link::MemoryLink;
use telegraphos_wire::link::Frame;
use telegraphos_wire::{Body, Packet, RemoteAddr};

/// Frames that one end sends before the other looks, in one thread: those of a turn.
const BURST: usize = 32;
/// Frames of one round: about a millisecond, so that some rounds are not interrupted on a machine that does other work.
const FRAMES: usize = 1 << 13;
/// Frames that a bounded queue holds.
const BOUND: usize = 4096;

/// One end sends: false if there is no room.
type Send<'a> = Box<dyn FnMut(Frame) -> bool + std::marker::Send + 'a>;
/// The other takes what there is, behind what the deque holds.
type Receive<'a> = Box<dyn FnMut(&mut VecDeque<Frame>) + 'a>;

/// The ends of each queue, by its name.
fn ends(name: &str) -> (Send<'static>, Receive<'static>) {
    match name {
        LOCK => {
            let (a, b) = MemoryLink::pair().unwrap();
            let receive = move |frames: &mut VecDeque<Frame>| {
                if b.needs_attention() {
                    b.receive(frames);
                }
            };
            (Box::new(move |frame| a.room(BOUND) > 0 && a.send(frame).is_ok()), Box::new(receive))
        }
        ARRAY => {
            let queue = Arc::new(ArrayQueue::new(BOUND));
            let other = Arc::clone(&queue);
            (
                Box::new(move |frame| queue.push(frame).is_ok()),
                Box::new(move |frames| frames.extend(from_fn(|| other.pop()))),
            )
        }
        SEGMENTS => {
            let queue = Arc::new(SegQueue::new());
            let other = Arc::clone(&queue);
            let send = move |frame| {
                let room = queue.len() < BOUND;
                if room {
                    queue.push(frame);
                }
                room
            };
            (Box::new(send), Box::new(move |frames| frames.extend(from_fn(|| other.pop()))))
        }
        SINGLE => {
            let (mut sender, mut receiver) = rtrb::RingBuffer::new(BOUND);
            let receive = move |frames: &mut VecDeque<Frame>| {
                let there = receiver.slots();
                if let Ok(chunk) = receiver.read_chunk(there) {
                    frames.extend(chunk);
                }
            };
            (Box::new(move |frame| sender.push(frame).is_ok()), Box::new(receive))
        }
        other => panic!("there is no queue {other}"),
    }
}

const LOCK: &str = "deque under a lock";
const ARRAY: &str = "crossbeam's ArrayQueue";
const SEGMENTS: &str = "crossbeam's SegQueue";
const SINGLE: &str = "rtrb's RingBuffer";

fn frame(n: usize) -> Frame {
    let at = RemoteAddr { page: 1, offset: 0, generation: 7 };
    let body = Body::Read { at, context: 0, size: 8 };
    Frame::Packet(Packet { src: 0, dst: 1, tag: n as u32, incarnation: 1, target: 1, body })
}

/// Empties `frames`, whose tags continue at `next`.
fn check(frames: &mut VecDeque<Frame>, next: &mut usize) {
    for frame in frames.drain(..) {
        let Frame::Packet(packet) = frame else { panic!("{frame:?}") };
        assert_eq!(packet.tag, *next as u32);
        *next += 1;
    }
}

fn in_one_thread((mut send, mut receive): (Send<'_>, Receive<'_>)) -> f64 {
    let (mut frames, mut next) = (VecDeque::new(), 0);
    let begun = Instant::now();
    for first in (0..FRAMES).step_by(BURST) {
        (first..first + BURST).for_each(|n| assert!(send(frame(n))));
        receive(&mut frames);
        check(&mut frames, &mut next);
    }
    assert_eq!(next, FRAMES);
    begun.elapsed().as_secs_f64() * 1e9 / FRAMES as f64
}

fn between_two((mut send, mut receive): (Send<'_>, Receive<'_>)) -> f64 {
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for n in 0..FRAMES {
                while !send(frame(n)) {
                    std::thread::yield_now();
                }
            }
        });
        let (mut frames, mut next) = (VecDeque::new(), 0);
        while next < FRAMES {
            receive(&mut frames);
            if frames.is_empty() {
                std::thread::yield_now();
            }
            check(&mut frames, &mut next);
        }
    });
    begun.elapsed().as_secs_f64() * 1e9 / FRAMES as f64
}

fn main() {
    let rounds: usize = std::env::args().nth(1).map_or(1000, |text| text.parse().expect("a number of rounds"));
    println!("{} bytes a frame, {rounds} rounds of {FRAMES}", size_of::<Frame>());
    type Run = fn((Send<'_>, Receive<'_>)) -> f64;
    for (what, run) in [("one thread", in_one_thread as Run), ("two threads", between_two)] {
        let names = [LOCK, ARRAY, SEGMENTS, SINGLE];
        let mut samples: [Vec<f64>; 4] = Default::default();
        for _ in 0..rounds.max(1) {
            for (samples, name) in samples.iter_mut().zip(names) {
                samples.push(run(ends(name)));
            }
        }
        for (samples, name) in samples.iter_mut().zip(names) {
            samples.sort_by(f64::total_cmp);
            let at = |percent: usize| samples[percent * (samples.len() - 1) / 100];
            println!("{what:<12} {name:<23} {:>6.0} ns at 5 %, {:>6.0} at 50 %", at(5), at(50));
        }
    }
}
