// SPDX-License-Identifier: MIT OR Apache-2.0
//! What ends one connection ends no other.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use telegraphos_transport::faults::FaultPlan;
use telegraphos_transport::{Options, Received, Transport, TransportStatistics, UnixTransport};

use super::names::link_name;
use super::*;

fn fabric() -> (tempfile::TempDir, Fabric) {
    let dir = tempfile::tempdir().unwrap();
    let fabric = Fabric::bind(Config::new(dir.path().join("fabric"))).unwrap();
    (dir, fabric)
}

/// A transport with any descriptor, which always waits for room.
#[derive(Debug)]
struct Stuck<F>(F);

impl<F: AsFd + Send + std::fmt::Debug> Transport for Stuck<F> {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn wants_write(&self) -> bool {
        true
    }

    fn deadline(&self) -> Option<u64> {
        None
    }

    fn receive(&mut self, _now: u64, _buffer: &mut [u8]) -> io::Result<Received> {
        Ok(Received::Nothing)
    }

    fn send(&mut self, _now: u64, _bytes: &[u8]) -> io::Result<usize> {
        Ok(0)
    }

    fn flush(&mut self, _now: u64) -> io::Result<bool> {
        Ok(false)
    }

    fn statistics(&self) -> TransportStatistics {
        TransportStatistics::default()
    }
}

/// A receive that takes more than a turn pays for delays the others by the difference: the debt is too late for them.
#[test]
fn a_receive_takes_no_more_than_a_turn_pays_for() {
    let (_dir, mut fabric) = fabric();
    let (near, mut far) = UnixStream::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    let mut waiting = 0;
    while let Ok(sent) = far.write(&[0; 4096]) {
        waiting += sent;
    }
    assert!(waiting > 4 * turns::QUANTUM as usize * turns::BYTES, "{waiting} bytes wait: not those of several turns");
    let transport = UnixTransport::from_stream(near, &Options::default());
    let port = fabric.ports.connect(Box::new(transport), 0, Role::Unidentified).unwrap();
    let connection = fabric.ports.get_mut(port).unwrap();
    connection.identified(Role::Link);
    let Received::Bytes(taken) = connection.fill(0).unwrap() else { panic!("nothing was received") };
    let mut flow = turns::Flow::default();
    assert!(flow.begin());
    flow.spend(turns::CALL + taken.div_ceil(turns::BYTES) as i64);
    // All of the turn, and no debt: it begins the next as it began this one.
    assert!(!flow.may_continue() && flow.begin(), "{taken} bytes");
}

fn open(fabric: &Fabric) -> usize {
    fabric.ports.iter().count()
}

#[test]
fn a_connection_that_cannot_be_watched_ends_alone() {
    let (_dir, mut fabric) = fabric();
    let (near, _far) = UnixStream::pair().unwrap();
    let kept = fabric.ports.connect(Box::new(Stuck(near)), 0, Role::Unidentified).unwrap();
    // epoll takes no files.
    let file = File::open("/dev/null").and_then(|_| tempfile::tempfile()).unwrap();
    assert_eq!(fabric.ports.connect(Box::new(Stuck(file)), 0, Role::Unidentified).unwrap_err(), Errno::PERM);
    assert_eq!(open(&fabric), 1);

    // Nor can it be watched for writable when the set does not hold it any more.
    let (near, _far) = UnixStream::pair().unwrap();
    let lost = fabric.ports.connect(Box::new(Stuck(near)), 0, Role::Unidentified).unwrap();
    assert_eq!(open(&fabric), 2);
    let connection = fabric.ports.get(lost).unwrap();
    fabric.ports.watch.remove(connection.transport.fd()).unwrap();
    fabric.flush();
    assert!(fabric.ports.get(lost).is_none() && fabric.ports.get(kept).is_some());
}

/// A link that cannot have the faults it is to have leaves nothing behind: no turn, no timer, no charge.
#[test]
fn a_link_without_a_place_for_its_faults_is_ended_whole() {
    let (_dir, mut fabric) = fabric();
    let plan = FaultPlan { latency: 1000, ..FaultPlan::default() };
    fabric.faults.links.link(&link_name(1));
    fabric.set_faults(&link_name(1), plan).unwrap();
    let (near, _far) = UnixStream::pair().unwrap();
    let port = fabric.ports.connect(Box::new(Stuck(near)), 0, Role::Unidentified).unwrap();
    assert!(fabric.doorway.charge(7).is_ok());
    let connection = fabric.ports.get_mut(port).unwrap();
    (connection.process, connection.unidentified) = (Some(7), true);
    // What epoll does not watch has no place for faults.
    connection.transport = Box::new(Stuck(tempfile::tempfile().unwrap()));
    fabric.ports.ready(port, false);
    fabric.ports.timed.insert(port, 1000);
    fabric.place_faults_of(port, 1);
    assert!(fabric.ports.get(port).is_none() && fabric.ports.turns.is_empty() && fabric.ports.timed.is_empty());
    assert_eq!(fabric.doorway.held(7), 0);
}

/// Where the places of connections without a name are used up, the process that has most of them makes place, and a
/// process with a node does so last.
#[test]
fn the_process_with_the_most_connections_makes_place() {
    let (_dir, mut fabric) = fabric();
    let mut ends = Vec::new();
    let mut connect = |fabric: &mut Fabric, process: u32| {
        let (near, far) = UnixStream::pair().unwrap();
        ends.push(far);
        let transport = UnixTransport::from_stream(near, &Options::default());
        let port = fabric.ports.connect(Box::new(transport), 0, Role::Unidentified).unwrap();
        assert!(fabric.doorway.charge(process).is_ok());
        let connection = fabric.ports.get_mut(port).unwrap();
        (connection.process, connection.unidentified) = (Some(process), true);
        port
    };
    let node = connect(&mut fabric, 7);
    fabric.identified(node);
    let of_node: Vec<PortId> = (0..5).map(|_| connect(&mut fabric, 7)).collect();
    let one = connect(&mut fabric, 8);
    let many: Vec<PortId> = (0..3).map(|_| connect(&mut fabric, 9)).collect();
    let mut ended = Vec::new();
    while fabric.end_unidentified(None) {
        let gone = of_node
            .iter()
            .chain([&one])
            .chain(&many)
            .find(|port| fabric.ports.get(**port).is_none() && !ended.contains(*port));
        ended.push(*gone.unwrap());
    }
    let expected: Vec<PortId> = [many[0], many[1], one, many[2]].into_iter().chain(of_node).collect();
    assert_eq!(ended, expected);
    assert!(fabric.ports.get(node).is_some(), "a node's own connection stays");
    assert_eq!(fabric.doorway.ended, 9);
}

/// What costs its sender nothing but a processor is answered at a rate, and what others send meanwhile is not held up.
#[test]
fn a_node_that_sends_what_no_credit_pays_for_rests() {
    let (_dir, mut fabric) = fabric();
    let join = |fabric: &mut Fabric, node: u16| {
        let (near, mut far) = UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        let transport = UnixTransport::from_stream(near, &Options::default());
        let port = fabric.ports.connect(Box::new(transport), 0, Role::Unidentified).unwrap();
        let mut bytes = Vec::new();
        let window = WindowLayout::default();
        Frame::Hello { version: telegraphos_wire::PROTOCOL_VERSION, node, window, credits: [256; 4] }
            .encode(&mut bytes);
        far.write_all(&bytes).unwrap();
        (port, far)
    };
    // Answers to probes that come.
    let answers = |fabric: &mut Fabric, (port, far): &mut (PortId, UnixStream), probes: usize| {
        let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
        (0..probes).for_each(|_| _ = Frame::Probe.encode(&mut bytes));
        let (length, mut sent, mut read) = (Frame::Alive.encode(&mut Vec::new()), 0, 0);
        for _ in 0..3000 {
            sent += far.write(&bytes[sent..]).unwrap_or(0);
            fabric.ports.ready(*port, false);
            fabric.timers();
            fabric.take_turns();
            fabric.flush();
            while let Ok(more @ 1..) = far.read(&mut buffer) {
                read += more;
            }
        }
        read / length
    };
    let (mut greedy, mut other) = (join(&mut fabric, 1), join(&mut fabric, 2));
    fabric.ports.ready(greedy.0, false);
    fabric.ports.ready(other.0, false);
    let welcome = answers(&mut fabric, &mut greedy, 0) + answers(&mut fabric, &mut other, 0);
    assert!(welcome > 0, "both are welcome");
    assert_eq!(answers(&mut fabric, &mut greedy, 20_000), 17_408);
    assert_eq!((fabric.unpaid.rests, fabric.deadline().is_some()), (1, true));
    assert_eq!(answers(&mut fabric, &mut other, 100), 100);
    // It does not come back with a new bucket.
    fabric.end(greedy.0);
    let mut again = join(&mut fabric, 1);
    answers(&mut fabric, &mut again, 0);
    assert_eq!(answers(&mut fabric, &mut again, 100), 0);
    fabric.ports.now += 10_000;
    assert_eq!(answers(&mut fabric, &mut again, 0), 81, "as many as the rate gives in 10 ms");
}
