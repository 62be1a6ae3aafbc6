// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rings between boards of one host, over a real fabric: what passes by them passes nothing else, and what is to be
//! seen does not pass by them.

// A test fails by panicking, its helpers too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::path::{Path, PathBuf};

use support::linked::{Node, Switch};
use support::{Guest, RAM, window};
use telegraphos_device::Settings;
use telegraphos_fabric::control::{ControlClient, Request, Response, Snapshot, Target};
use telegraphos_testkit::eventually;
use telegraphos_wire::{Rights, Status};

const RW: u16 = Rights::READ.0 | Rights::WRITE.0;
/// Guest address of the exported memory.
const MEMORY: u64 = RAM + 0x10_0000;

/// A fabric, two boards, and their guests, of which each has imported the memory of the other.
struct Pair {
    guests: [Guest; 2],
    _nodes: [Node; 2],
    control: PathBuf,
    _switch: Switch,
}

impl Pair {
    fn start(dir: &Path, change: impl FnOnce(&mut telegraphos_fabric::Config)) -> Pair {
        let control = dir.join("control");
        let mut config = telegraphos_fabric::Config::new(dir.join("fabric.sock"));
        config.control = Some(control.clone());
        change(&mut config);
        let switch = Switch::with(config);
        let nodes = [0, 1].map(|node| Node::start(dir, node, Settings::default()));
        let mut guests = [nodes[0].guest(), nodes[1].guest()];
        for guest in &mut guests {
            guest.export("memory", 0, 1, MEMORY, RW);
        }
        for (guest, other) in guests.iter_mut().zip([1, 0]) {
            let found = eventually("the segment", || {
                Some(guest.lookup(other, "memory", RW)).filter(|found| found.status == Status::Ok as u32)
            });
            guest.import(0, other, &found, RW);
        }
        Pair { guests, _nodes: nodes, control, _switch: switch }
    }

    fn ask(&self, request: &Request) -> Response {
        ControlClient::connect(&self.control).unwrap().request(request).unwrap()
    }

    fn snapshot(&self) -> Snapshot {
        match self.ask(&Request::Statistics {}) {
            Response::Statistics(snapshot) => snapshot,
            other => panic!("{other:?}"),
        }
    }

    /// A store and a load of each guest, and the packets that the switch has received meanwhile.
    fn exchange(&mut self, value: u64) -> u64 {
        let received = |snapshot: &Snapshot| -> u64 {
            let classes = snapshot.ports.iter().flat_map(|port| port.classes.iter());
            classes.map(|(_, class)| class.received.packets).sum()
        };
        let before = received(&self.snapshot());
        for (guest, other) in self.guests.iter_mut().zip([1u16, 0]) {
            let address = window(other, 0, 64);
            guest.client.store(4, address, &value.to_le_bytes());
            assert_eq!(guest.quiet(), Status::Ok);
            assert_eq!(guest.client.read(4, address, 8), value);
        }
        received(&self.snapshot()) - before
    }
}

#[test]
fn loads_and_stores_cause_no_packet_through_the_fabric() {
    let dir = tempfile::tempdir().unwrap();
    let mut pair = Pair::start(dir.path(), |_| ());
    eventually("the ring", || (pair.exchange(1) == 0).then_some(()));
    assert_eq!(pair.snapshot().totals.rings, 1);
    for value in 2..100 {
        assert_eq!(pair.exchange(value), 0, "exchange {value}");
    }
}

#[test]
fn without_rings_everything_passes_the_fabric() {
    let dir = tempfile::tempdir().unwrap();
    let mut pair = Pair::start(dir.path(), |config| config.rings = 0);
    assert_eq!((pair.exchange(1), pair.snapshot().totals.rings), (8, 0));
}

#[test]
fn what_is_captured_passes_the_fabric_and_afterwards_the_ring_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut pair = Pair::start(dir.path(), |_| ());
    eventually("the ring", || (pair.exchange(1) == 0).then_some(()));
    let file = dir.path().join("capture.pcapng").display().to_string();
    assert!(matches!(pair.ask(&Request::CaptureStart { file, on: Target::All }), Response::Done(_)));
    eventually("the withdrawal", || (pair.snapshot().totals.rings == 0).then_some(()));
    for value in 2..20 {
        assert_eq!(pair.exchange(value), 8, "exchange {value}");
    }
    assert!(matches!(pair.ask(&Request::CaptureStop {}), Response::Done(_)));
    eventually("the ring again", || (pair.exchange(20) == 0).then_some(()));
}

#[test]
fn faults_at_run_time_see_everything() {
    let dir = tempfile::tempdir().unwrap();
    let mut pair = Pair::start(dir.path(), |_| ());
    eventually("the ring", || (pair.exchange(1) == 0).then_some(()));
    let slow = Request::SetFaults { on: Target::Node(1), faults: "latency=1ms".parse().unwrap() };
    assert!(matches!(pair.ask(&slow), Response::Done(_)));
    eventually("the withdrawal", || (pair.snapshot().totals.rings == 0).then_some(()));
    for value in 2..20 {
        assert_eq!(pair.exchange(value), 8, "exchange {value}");
    }
}

#[test]
fn a_board_that_joins_while_something_is_captured_gets_no_ring() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("capture.pcapng");
    let mut pair = Pair::start(dir.path(), |_| ());
    let start = Request::CaptureStart { file: file.display().to_string(), on: Target::All };
    assert!(matches!(pair.ask(&start), Response::Done(_)));
    eventually("the withdrawal", || (pair.snapshot().totals.rings == 0).then_some(()));
    assert_eq!(pair.exchange(1), 8);
    // A board that joins now gets no ring.
    let late = Node::start(dir.path(), 2, Settings::default());
    let _guest = late.guest();
    assert_eq!(pair.snapshot().totals.rings, 0);
}
