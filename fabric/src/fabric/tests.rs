// SPDX-License-Identifier: MIT OR Apache-2.0
//! What ends one connection ends no other.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use telegraphos_transport::{Options, TransportStatistics, UnixTransport};

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

fn open(fabric: &Fabric) -> usize {
    fabric.connections.iter().flatten().count()
}

#[test]
fn a_connection_that_cannot_be_watched_ends_alone() {
    let (_dir, mut fabric) = fabric();
    let (near, _far) = UnixStream::pair().unwrap();
    let kept = fabric.connect(Box::new(Stuck(near)), 0, Role::Stranger).unwrap();
    // epoll takes no files.
    let file = File::open("/dev/null").and_then(|_| tempfile::tempfile()).unwrap();
    assert_eq!(fabric.connect(Box::new(Stuck(file)), 0, Role::Stranger).unwrap_err(), Errno::PERM);
    assert_eq!(open(&fabric), 1);

    // Nor can it be watched for writable when the set does not know it any more.
    let (near, _far) = UnixStream::pair().unwrap();
    let lost = fabric.connect(Box::new(Stuck(near)), 0, Role::Stranger).unwrap();
    assert_eq!(open(&fabric), 2);
    let connection = fabric.connections[lost as usize].as_ref().unwrap();
    fabric.watch.remove(connection.transport.fd()).unwrap();
    fabric.flush();
    assert!(fabric.connection(lost).is_none() && fabric.connection(kept).is_some());
}

/// Where the places of connections without a name are used up, the process that has most of them makes place, and a process with a node
/// does so last.
#[test]
fn the_process_with_the_most_connections_makes_place() {
    let (_dir, mut fabric) = fabric();
    let mut ends = Vec::new();
    let mut connect = |fabric: &mut Fabric, process: u32| {
        let (near, far) = UnixStream::pair().unwrap();
        ends.push(far);
        let transport = UnixTransport::from_stream(near, &Options::default());
        let port = fabric.connect(Box::new(transport), 0, Role::Stranger).unwrap();
        assert!(fabric.doorway.charge(process));
        let connection = fabric.connection(port).unwrap();
        (connection.process, connection.unidentified) = (Some(process), true);
        port
    };
    let node = connect(&mut fabric, 7);
    fabric.identified(node, Role::Link);
    let of_node: Vec<PortId> = (0..5).map(|_| connect(&mut fabric, 7)).collect();
    let one = connect(&mut fabric, 8);
    let many: Vec<PortId> = (0..3).map(|_| connect(&mut fabric, 9)).collect();
    let mut ended = Vec::new();
    while fabric.end_unidentified(None) {
        let gone = of_node
            .iter()
            .chain([&one])
            .chain(&many)
            .find(|port| fabric.connections[**port as usize].is_none() && !ended.contains(*port));
        ended.push(*gone.unwrap());
    }
    let expected: Vec<PortId> = [many[0], many[1], one, many[2]].into_iter().chain(of_node).collect();
    assert_eq!(ended, expected);
    assert!(fabric.connection(node).is_some(), "a node's own connection stays");
    assert_eq!(fabric.doorway.ended, 9);
}
