// SPDX-License-Identifier: MIT OR Apache-2.0
//! A node that does not read, as one that was stopped. A separate test program, since it measures the memory of the
//! process.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod common;

use common::{Node, all_to_all, serve, wait};
use telegraphos_wire::Class;
use telegraphos_wire::link::Frame;

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Node 1 does not read, whatever it promised to take. What others can send it is bounded, they continue with each
/// other, and when it reads at last it gets everything that was taken for it, in order.
#[test]
fn a_reader_that_does_not_read_stops_no_other_and_costs_no_memory() {
    const OFFERED: u32 = 10_000_000;
    let served = serve(|_| {});
    let mut flooder = Node::join(&served, 0);
    let mut deaf = Node::join_offering(&served, 1, OFFERED);
    let mut a = Node::join(&served, 2);
    let b = Node::join(&served, 3);
    // Not more than a tenth of its credits, as boards do (their bound on unanswered requests per destination).
    for tag in 0..25 {
        assert!(a.store(1, tag));
    }
    let before = resident_kib();
    let mut sent = 0;
    loop {
        while flooder.store(1, sent) {
            sent += 1;
        }
        flooder.exchange();
        while let Some(frame) = flooder.frames.pop_front() {
            if let Frame::Credit { class, count } = frame {
                flooder.credits[class as usize] += count;
            }
        }
        // Long enough to be quite sure that no credit will come; if it should be wrong, the flood is merely smaller.
        if flooder.credits[Class::Request as usize] == 0 && !wait(&flooder.link, Some(500)) {
            break;
        }
    }
    // What it is taken to hold, and the credits of the sender.
    assert!((256..=2048 + 256).contains(&sent), "{sent} packets were taken for a reader that does not read");

    // The others, one of them with packets stuck on the way to the deaf one, are not held up.
    let _both = all_to_all([a, b], 50_000, 64);
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 32 << 10, "memory grew by {grown} KiB");

    let (mut from_flooder, mut from_a) = (0, 0);
    while from_flooder < sent || from_a < 25 {
        let Frame::Packet(packet) = deaf.expect("packets", |f| matches!(f, Frame::Packet(_))) else { continue };
        let next = if packet.src == 0 { &mut from_flooder } else { &mut from_a };
        assert_eq!(packet.tag, *next);
        *next += 1;
        // What it offered beyond what the switch accepts was never used.
        deaf.link.send(&Frame::Credit { class: Class::Request, count: 1 }).unwrap();
    }
}
