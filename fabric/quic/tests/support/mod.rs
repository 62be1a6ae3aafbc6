// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tests of QUIC have in common: certificates, and a loop as a fabric has one.
#![allow(dead_code)] // the example needs a part of it
#![allow(clippy::unwrap_used)] // only tests use it

pub(crate) mod pki;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use telegraphos_quic::{Options, QuicOptions};
use telegraphos_transport::{Acceptor, HostPort, Received, Transport};

/// After this a test checks whether it is done. Nothing is called for that, so a lost wake-up stays lost.
const MOMENT: Duration = Duration::from_millis(20);

/// A clock in microseconds, not starting at 0.
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock(Instant::now())
    }

    pub(crate) fn now(&self) -> u64 {
        77 + u64::try_from(self.0.elapsed().as_micros()).unwrap()
    }

    /// Sleeps until one of the descriptors is readable or one of the deadlines has passed, for a moment at the most:
    /// which are readable.
    pub(crate) fn sleep(&self, fds: &[BorrowedFd<'_>], deadlines: &[Option<u64>]) -> Vec<bool> {
        let until = deadlines.iter().flatten().min();
        let wait = until.map_or(MOMENT, |at| Duration::from_micros(at.saturating_sub(self.now())).min(MOMENT));
        let timeout = Timespec::try_from(wait).unwrap();
        let mut polled: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        poll(&mut polled, Some(&timeout)).unwrap();
        polled.iter().map(|fd| fd.revents().contains(PollFlags::IN)).collect()
    }
}

/// One end of a connection with what it has to send and what it has received.
pub(crate) struct Peer {
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) to_send: Vec<u8>,
    pub(crate) sent: usize,
    pub(crate) received: Vec<u8>,
    /// The end, or why it failed.
    pub(crate) over: Option<io::Result<()>>,
    /// Bytes offered and read at once.
    pub(crate) piece: usize,
}

impl Peer {
    pub(crate) fn new(transport: Box<dyn Transport>) -> Peer {
        Peer { transport, to_send: Vec::new(), sent: 0, received: Vec::new(), over: None, piece: 1 << 16 }
    }

    /// What a loop does after an event, in the order that the contract names.
    pub(crate) fn turn(&mut self, now: u64) {
        if self.over.is_some() {
            return;
        }
        if let Err(e) = self.try_turn(now) {
            self.over = Some(Err(e));
        }
    }

    fn try_turn(&mut self, now: u64) -> io::Result<()> {
        let mut buffer = vec![0; self.piece];
        loop {
            match self.transport.receive(now, &mut buffer)? {
                Received::Bytes(len) => self.received.extend_from_slice(&buffer[..len]),
                Received::Nothing => break,
                Received::End => {
                    self.over = Some(Ok(()));
                    return Ok(());
                }
            }
        }
        self.transport.flush(now)?;
        self.send(now)
    }

    /// Offers what is left.
    pub(crate) fn send(&mut self, now: u64) -> io::Result<()> {
        while self.sent < self.to_send.len() {
            let end = self.to_send.len().min(self.sent + self.piece);
            let taken = self.transport.send(now, &self.to_send[self.sent..end])?;
            self.sent += taken;
            self.transport.flush(now)?;
            if taken == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Whether it failed with an error that contains all of these.
    pub(crate) fn failed_with(&self, parts: &[&str]) -> bool {
        matches!(&self.over, Some(Err(e)) if parts.iter().all(|part| e.to_string().contains(part)))
    }
}

/// The loop: calls every peer that has an event, until `done`. Accepted connections join the peers.
pub(crate) fn run(
    clock: &Clock,
    peers: &mut Vec<Peer>,
    mut acceptor: Option<&mut dyn Acceptor>,
    mut done: impl FnMut(&mut Vec<Peer>) -> bool,
) {
    let mut first = true;
    loop {
        if done(peers) {
            return;
        }
        let live: Vec<usize> = (0..peers.len()).filter(|at| peers[*at].over.is_none()).collect();
        let mut fds: Vec<BorrowedFd<'_>> = live.iter().map(|at| peers[*at].transport.fd()).collect();
        let mut deadlines: Vec<Option<u64>> = live.iter().map(|at| peers[*at].transport.deadline()).collect();
        if let Some(acceptor) = acceptor.as_deref() {
            fds.push(acceptor.fd());
            deadlines.push(acceptor.deadline());
        }
        assert!(!fds.is_empty(), "nothing is left to wait for");
        let readable = clock.sleep(&fds, if first { &[Some(0)] } else { &deadlines });
        let now = clock.now();
        let called = |at: usize| first || readable[at] || deadlines[at].is_some_and(|due| due <= now);
        let mut accept = false;
        if acceptor.is_some() {
            accept = called(live.len());
        }
        let called: Vec<usize> = live.iter().enumerate().filter(|(at, _)| called(*at)).map(|(_, peer)| *peer).collect();
        for at in called {
            peers[at].turn(now);
        }
        if accept {
            if let Some(acceptor) = acceptor.as_deref_mut() {
                while let Some(transport) = acceptor.accept(now).unwrap() {
                    peers.push(Peer::new(transport));
                }
            }
        }
        first = false;
    }
}

/// Pseudo-random bytes, so that a missing or doubled one shows.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = telegraphos_testkit::Rng::new(seed);
    (0..len).map(|_| rng.next() as u8).collect()
}

pub(crate) fn at(port: u16) -> HostPort {
    HostPort { host: "127.0.0.1".to_owned(), port }
}

pub(crate) fn options(quic: QuicOptions) -> Options {
    Options::new(telegraphos_transport::Options::default(), Some(quic))
}
