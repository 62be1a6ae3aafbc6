// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rings between boards of one host, over a real fabric: what passes by them passes nothing else, and what is to be
//! seen does not pass by them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use crate::support::linked::{Node, Pair};
use crate::support::{MEMORY, RW, window};
use telegraphos_device::Settings;
use telegraphos_fabric::control::{ControlClient, Request, Response, Snapshot, Target};
use telegraphos_link::LinkClient;
use telegraphos_link::ring::{Ring, Taken};
use telegraphos_testkit::eventually;
use telegraphos_wire::link::Frame;
use telegraphos_wire::{Status, WindowLayout};

/// Bytes from one direction's indices in a ring's memory to those of the other (`telegraphos_link::ring`).
const WORDS: u64 = 256;

/// Two boards whose guests have imported the memory of each other, and the control socket of their fabric.
struct Exchange {
    pair: Pair,
    control: PathBuf,
}

impl Exchange {
    fn start(change: impl FnOnce(&mut telegraphos_fabric::Config)) -> Exchange {
        let mut pair = Pair::with(|config| {
            config.control = Some(config.listen.with_file_name("control"));
            change(config);
        });
        let control = pair.dir.path().join("control");
        for guest in [&mut pair.a, &mut pair.b] {
            guest.export("memory", 0, 1, MEMORY, RW);
        }
        for (guest, other) in [(&mut pair.a, 1), (&mut pair.b, 0)] {
            guest.reach(0, other, "memory", RW);
        }
        Exchange { pair, control }
    }

    fn dir(&self) -> &Path {
        self.pair.dir.path()
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
        for (guest, other) in [(&mut self.pair.a, 1), (&mut self.pair.b, 0)] {
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
    let mut pair = Exchange::start(|_| ());
    eventually("the ring", || (pair.exchange(1) == 0).then_some(()));
    assert_eq!(pair.snapshot().totals.rings, 1);
    for value in 2..100 {
        assert_eq!(pair.exchange(value), 0, "exchange {value}");
    }
}

#[test]
fn without_rings_everything_passes_the_fabric() {
    let mut pair = Exchange::start(|config| config.rings = 0);
    assert_eq!((pair.exchange(1), pair.snapshot().totals.rings), (8, 0));
}

#[test]
fn what_is_captured_passes_the_fabric_and_afterwards_the_ring_again() {
    let mut pair = Exchange::start(|_| ());
    eventually("the ring", || (pair.exchange(1) == 0).then_some(()));
    let file = pair.dir().join("capture.pcapng").display().to_string();
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
    let mut pair = Exchange::start(|_| ());
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
    let mut pair = Exchange::start(|_| ());
    let file = pair.dir().join("capture.pcapng");
    let start = Request::CaptureStart { file: file.display().to_string(), on: Target::All };
    assert!(matches!(pair.ask(&start), Response::Done(_)));
    eventually("the withdrawal", || (pair.snapshot().totals.rings == 0).then_some(()));
    assert_eq!(pair.exchange(1), 8);
    // A board that joins now gets no ring.
    let late = Node::start(pair.dir(), 2, Settings::default());
    let _guest = late.guest();
    assert_eq!(pair.snapshot().totals.rings, 0);
}

/// What the fabric says in its metrics.
fn metric(address: &str, name: &str) -> Option<u64> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// A node that is no board of ours joins, gets a ring, uses it as it should, and then writes an index that cannot be:
/// the board closes the ring, the fabric counts it and tells the node, and the other nodes notice nothing.
#[test]
fn an_index_that_cannot_be_ends_the_ring_and_is_counted() {
    const LOST: &str = "telegraphos_lost_rings_total";
    let metrics = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut pair = Exchange::start(|config| config.metrics = metrics.parse().ok());
    eventually("the ring", || (pair.exchange(1) == 0).then_some(()));

    let mut hostile = LinkClient::connect(pair.dir().join("fabric.sock")).unwrap();
    hostile.hello(2, WindowLayout::default(), [64; 4]).unwrap();
    let mut frames: Vec<Frame> = Vec::new();
    let mut next = |hostile: &mut LinkClient, what, fits: &dyn Fn(&Frame) -> bool| {
        eventually(what, || {
            hostile.flush().unwrap();
            // Nothing there is no error of the link.
            let _ = hostile.receive(&mut frames);
            let at = frames.iter().position(fits)?;
            Some(frames.remove(at))
        })
    };
    // To either node, whichever comes first: so do its descriptors.
    let offered = next(&mut hostile, "a ring", &|frame| matches!(frame, Frame::Ring { .. }));
    let Frame::Ring { node: victim, bytes, side, .. } = offered else { unreachable!() };
    let [socket, memory] = hostile.take_fds().unwrap();
    let wake = socket.try_clone().unwrap();
    let mut ring = Ring::open(socket, memory.as_fd(), bytes, side, 0).unwrap();
    let mut probe = Vec::new();
    Frame::Probe.encode(&mut probe);
    ring.send(&probe).unwrap();
    ring.flush().unwrap();
    let mut answer = [0; 64];
    let got = eventually("the answer to a probe", || match ring.receive(0, &mut answer).unwrap() {
        Taken::Bytes(n) => Some(n),
        Taken::Nothing => None,
        Taken::End => panic!("closed before anything was wrong"),
    });
    assert_eq!((metric(&metrics, LOST), got > 0), (Some(0), true));

    // The index of what this side has written, as far ahead as no ring is long.
    rustix::io::pwrite(&memory, &(1u32 << 31).to_ne_bytes(), u64::from(side) * WORDS).unwrap();
    rustix::io::write(&wake, &[0]).unwrap();
    next(
        &mut hostile,
        "that the ring is lost",
        &|frame| matches!(frame, Frame::RingLost { node, .. } if *node == victim),
    );
    assert_eq!(metric(&metrics, LOST), Some(1));
    eventually("the end", || matches!(ring.receive(0, &mut answer), Ok(Taken::End) | Err(_)).then_some(()));
    // The others continue, by their ring.
    assert_eq!(pair.exchange(2), 0);
    assert_eq!((pair.snapshot().totals.rings_lost, metric(&metrics, LOST)), (1, Some(1)));
}
