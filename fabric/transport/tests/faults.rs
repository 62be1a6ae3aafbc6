// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults over real sockets: each kind does what it says, is counted and reported, and is seen by a check that would
//! not see it without.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex};

use telegraphos_transport::faults::{FaultEvent, FaultKind, FaultyDatagrams, FaultyTransport, LinkFaults};
use telegraphos_transport::{Datagrams, InProcess, Options, Received, Transport};

/// A datagram socket without anything.
#[derive(Debug)]
struct Plain(UnixDatagram);

impl Datagrams for Plain {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn wants_write(&self) -> bool {
        false
    }

    fn deadline(&self) -> Option<u64> {
        None
    }

    fn max_len(&self) -> usize {
        1400
    }

    fn send(&mut self, _now: u64, bytes: &[u8]) -> io::Result<bool> {
        match self.0.send(bytes) {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn receive(&mut self, _now: u64, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match self.0.recv(buffer) {
            Ok(n) => Ok(Some(n)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn flush(&mut self, _now: u64) -> io::Result<()> {
        Ok(())
    }
}

fn datagrams() -> (Plain, Plain) {
    let (a, b) = UnixDatagram::pair().unwrap();
    a.set_nonblocking(true).unwrap();
    b.set_nonblocking(true).unwrap();
    (Plain(a), Plain(b))
}

/// The check of order and completeness that the conformance suite makes of a transport, here of bare datagrams: what is
/// wrong.
fn check(plan: &str) -> (Result<(), String>, LinkFaults) {
    let link = LinkFaults::new("a-b", 1).with(plan.parse().unwrap());
    let (a, mut b) = datagrams();
    let mut a = FaultyDatagrams::new(a, link.clone());
    let mut got: Vec<Vec<u8>> = Vec::new();
    let mut buffer = [0; 1400];
    let message = |n: u32| [n.to_le_bytes().as_slice(), &[0x55; 60]].concat();
    for n in 0..500 {
        assert!(a.send(u64::from(n), &message(n)).unwrap());
        while let Some(len) = b.receive(0, &mut buffer).unwrap() {
            got.push(buffer[..len].to_vec());
        }
    }
    while let Some(at) = a.deadline() {
        a.flush(at).unwrap();
        while let Some(len) = b.receive(0, &mut buffer).unwrap() {
            got.push(buffer[..len].to_vec());
        }
    }
    let expected: Vec<Vec<u8>> = (0..500).map(message).collect();
    let result = match got.iter().zip(&expected).position(|(got, expected)| got != expected) {
        Some(at) => Err(format!("datagram {at} differs")),
        None if got.len() != expected.len() => Err(format!("{} datagrams", got.len())),
        None => Ok(()),
    };
    (result, link)
}

#[test]
fn without_rdp_each_fault_of_datagrams_is_seen() {
    assert_eq!(check("").0, Ok(()));
    // These two change the time only.
    assert_eq!(check("latency=3ms").0, Ok(()));
    assert_eq!(check("rate=1MB/s").0, Ok(()));
    for (plan, kind) in [
        ("loss=5%", FaultKind::Loss),
        ("corrupt=5%", FaultKind::Corrupt),
        ("duplicate=5%", FaultKind::Duplicate),
        ("reorder=5%", FaultKind::Reorder),
        ("jitter=3ms", FaultKind::Delay),
        ("down", FaultKind::Down),
    ] {
        let (result, link) = check(plan);
        assert!(result.is_err(), "{plan} was not seen");
        assert!(link.counts().of(kind) > 0, "{plan} was not counted");
    }
}

#[test]
fn faults_stack_and_concern_both_directions() {
    let first = LinkFaults::new("first", 1).with("loss=100% only=send".parse().unwrap());
    let second = LinkFaults::new("second", 1).with("corrupt=100% only=receive".parse().unwrap());
    let (a, mut b) = datagrams();
    let mut a = FaultyDatagrams::new(FaultyDatagrams::new(a, first.clone()), second.clone());
    let mut buffer = [0; 10];
    a.send(0, b"lost").unwrap();
    assert_eq!(b.receive(0, &mut buffer).unwrap(), None);
    b.send(0, &[0; 4]).unwrap();
    assert_eq!(a.receive(0, &mut buffer).unwrap(), Some(4));
    assert_eq!(buffer.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
    assert_eq!(a.faults(), 2);
    first.set("".parse().unwrap());
    a.send(0, b"here").unwrap();
    assert_eq!(b.receive(0, &mut buffer).unwrap(), Some(4));
}

#[test]
fn each_fault_is_reported_with_what_it_happened_to() {
    let link = LinkFaults::new("a-b", 1).with("loss=50%".parse().unwrap());
    let heard = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&heard);
    link.report_to(Some(Arc::new(move |event: &FaultEvent<'_>| {
        sink.lock().unwrap().push((event.link.to_owned(), event.kind, event.number, event.bytes.to_vec()));
    })));
    let (a, _b) = datagrams();
    let mut a = FaultyDatagrams::new(a, link.clone());
    for n in 0..100_u8 {
        a.send(0, &[n]).unwrap();
        let mut rest = [0; 1];
        while _b.0.recv(&mut rest).is_ok() {}
    }
    let heard = heard.lock().unwrap();
    assert_eq!(heard.len() as u64, link.counts().total());
    assert!(
        heard.len() > 20
            && heard.iter().all(|(link, kind, number, bytes)| {
                link == "a-b" && *kind == FaultKind::Loss && bytes[..] == [*number as u8]
            })
    );
}

fn stream(plan: &str) -> (FaultyTransport, InProcess, LinkFaults) {
    let link = LinkFaults::new("a-b", 1).with(plan.parse().unwrap());
    let (a, b) = InProcess::pair(&Options::default()).unwrap();
    (FaultyTransport::new(Box::new(a), link.clone()).unwrap(), b, link)
}

#[test]
fn what_a_stream_cannot_have_resets_it() {
    for plan in ["loss=50%", "corrupt=50%", "duplicate=50%", "reorder=50%", "down"] {
        let (mut a, mut b, link) = stream(plan);
        let error = (0..100).find_map(|now| a.send(now, &[0; 1024]).and_then(|_| a.flush(now)).err());
        let error = error.unwrap_or_else(|| panic!("{plan} did not reset"));
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        assert!(error.to_string().contains("link a-b"), "{error}");
        assert_eq!(a.receive(200, &mut [0; 8]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        // The other end sees the end of the connection.
        let mut buffer = [0; 4096];
        while matches!(b.receive(0, &mut buffer).unwrap(), Received::Bytes(_)) {}
        assert_eq!(b.receive(0, &mut buffer).unwrap(), Received::End);
        assert_eq!(link.counts().of(FaultKind::Reset), 1);
    }
    let (mut a, mut b, _) = stream("");
    a.send(0, b"fine").unwrap();
    a.flush(0).unwrap();
    assert_eq!(b.receive(0, &mut [0; 8]).unwrap(), Received::Bytes(4));
}

#[test]
fn a_sleeper_hears_that_its_link_went_down() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let (mut a, _b, link) = stream("");
    assert_eq!(a.receive(0, &mut [0; 8]).unwrap(), Received::Nothing);
    let readable = |a: &FaultyTransport| {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(a.fd(), PollFlags::IN)], Some(&now)).unwrap() > 0
    };
    assert!(!readable(&a));
    link.set("latency=1ms".parse().unwrap());
    assert!(readable(&a));
    assert_eq!(a.receive(0, &mut [0; 8]).unwrap(), Received::Nothing);
    assert!(!readable(&a), "hushed");
    let other = LinkFaults::new("other", 1);
    assert!(a.set_faults(&other));
    a.receive(0, &mut [0; 8]).unwrap();
    other.set("down".parse().unwrap());
    assert!(readable(&a));
    assert!(a.receive(0, &mut [0; 8]).is_err());
}
