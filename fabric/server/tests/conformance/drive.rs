// SPDX-License-Identifier: MIT OR Apache-2.0
//! The poll loop that every test drives its ends with: exactly what the contract of `Transport` requires of a caller.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use telegraphos_transport::{Acceptor, Received, Transport};

/// A test that waits so long hangs; nothing is expected to take a noticeable part of it.
const HANG: Duration = Duration::from_secs(60);

/// Microseconds since the first call.
pub(crate) fn now() -> u64 {
    use std::sync::OnceLock;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_micros() as u64
}

/// One end, what it is to send, and what it got.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) to_send: Vec<u8>,
    pub(crate) sent: usize,
    pub(crate) got: Vec<u8>,
    pub(crate) ended: bool,
    /// Whether it takes bytes out.
    pub(crate) reads: bool,
    /// Most bytes of one `send` or `receive`, in turn.
    pub(crate) cuts: Vec<usize>,
    pub(crate) turn: usize,
    /// `flush` said that nothing is left.
    pub(crate) flushed: bool,
}

impl Peer {
    pub(crate) fn new(transport: Box<dyn Transport>) -> Peer {
        Peer {
            transport,
            to_send: Vec::new(),
            sent: 0,
            got: Vec::new(),
            ended: false,
            reads: true,
            cuts: vec![1 << 16],
            turn: 0,
            flushed: false,
        }
    }

    pub(crate) fn sending(transport: Box<dyn Transport>, bytes: Vec<u8>) -> Peer {
        Peer { to_send: bytes, ..Peer::new(transport) }
    }

    fn cut(&mut self) -> usize {
        self.turn += 1;
        self.cuts[self.turn % self.cuts.len()]
    }

    /// What the contract requires after any event. The first error ends it.
    pub(crate) fn proceed(&mut self) -> std::io::Result<()> {
        let now = now();
        while self.reads && !self.ended {
            let mut buffer = vec![0; self.cut()];
            match self.transport.receive(now, &mut buffer)? {
                Received::Bytes(n) => {
                    assert!(n > 0 && n <= buffer.len(), "{n} bytes into {}", buffer.len());
                    self.got.extend_from_slice(&buffer[..n]);
                }
                Received::Nothing => break,
                Received::End => self.ended = true,
            }
        }
        self.flushed = self.transport.flush(now)?;
        self.send()
    }

    fn send(&mut self) -> std::io::Result<()> {
        let now = now();
        while self.sent < self.to_send.len() {
            let cut = self.cut().min(self.to_send.len() - self.sent);
            let taken = self.transport.send(now, &self.to_send[self.sent..self.sent + cut])?;
            assert!(taken <= cut);
            self.sent += taken;
            if taken < cut {
                self.flushed = self.transport.flush(now)?;
                if !self.flushed {
                    return Ok(());
                }
            }
        }
        self.flushed = self.transport.flush(now)?;
        Ok(())
    }

    pub(crate) fn sent_all(&self) -> bool {
        self.sent == self.to_send.len() && self.flushed
    }
}

fn interest(transport: &dyn Transport, reads: bool) -> PollFlags {
    let mut flags = if reads { PollFlags::IN } else { PollFlags::empty() };
    if transport.wants_write() {
        flags |= PollFlags::OUT;
    }
    flags
}

/// Sleeps until one of `peers` has an event, at most `limit` microseconds; whether one had.
pub(crate) fn sleep(peers: &[&Peer], limit: u64) -> bool {
    let now = now();
    let deadlines = peers.iter().filter_map(|peer| peer.transport.deadline());
    let due = deadlines.map(|at| at.saturating_sub(now)).min();
    let wait = due.unwrap_or(limit).min(limit);
    let timeout = Timespec { tv_sec: (wait / 1_000_000) as i64, tv_nsec: (wait % 1_000_000 * 1000) as i64 };
    let mut fds: Vec<PollFd<'_>> = peers
        .iter()
        .map(|peer| {
            let reads = peer.reads && !peer.ended;
            PollFd::from_borrowed_fd(peer.transport.fd(), interest(&*peer.transport, reads))
        })
        .collect();
    poll(&mut fds, Some(&timeout)).unwrap() > 0 || due.is_some_and(|due| due <= limit)
}

/// Drives both until `done`; the number of times it slept.
pub(crate) fn drive(a: &mut Peer, b: &mut Peer, mut done: impl FnMut(&Peer, &Peer) -> bool) -> std::io::Result<u64> {
    let start = Instant::now();
    let mut sleeps = 0;
    a.proceed()?;
    b.proceed()?;
    while !done(a, b) {
        assert!(
            start.elapsed() < HANG,
            "hangs: {} of {} sent, {} got; the other {} of {}, {}; {a_:?} {b_:?}",
            a.sent,
            a.to_send.len(),
            a.got.len(),
            b.sent,
            b.to_send.len(),
            b.got.len(),
            a_ = a.transport,
            b_ = b.transport
        );
        sleep(&[a, b], 1_000_000);
        sleeps += 1;
        a.proceed()?;
        b.proceed()?;
    }
    Ok(sleeps)
}

/// Drives both until neither takes or gets a byte for a while. (Bytes that wait for a peer that does not read are an
/// event for ever.)
pub(crate) fn settle(a: &mut Peer, b: &mut Peer) -> std::io::Result<()> {
    let start = Instant::now();
    let progress = |a: &Peer, b: &Peer| (a.sent, b.sent, a.got.len(), b.got.len());
    let (mut before, mut since) = (progress(a, b), now());
    while now() - since < 50_000 {
        assert!(start.elapsed() < HANG, "never quiet");
        sleep(&[a, b], 5_000);
        a.proceed()?;
        b.proceed()?;
        if progress(a, b) != before {
            (before, since) = (progress(a, b), now());
        }
    }
    Ok(())
}

/// Waits for the next connection. Meanwhile `clients` have their turns, since some transports take a few words to
/// connect.
pub(crate) fn accept(acceptor: &mut dyn Acceptor, clients: &mut [&mut dyn Transport]) -> Box<dyn Transport> {
    let start = Instant::now();
    loop {
        for client in clients.iter_mut() {
            // It may have gone on purpose.
            let _ = client.flush(now());
        }
        if let Some(transport) = acceptor.accept(now()).unwrap() {
            return transport;
        }
        assert!(start.elapsed() < HANG, "no connection: {acceptor:?}");
        let deadlines = clients.iter().map(|client| client.deadline()).chain([acceptor.deadline()]);
        let wait = deadlines.flatten().map(|at| at.saturating_sub(now())).min().unwrap_or(100_000).min(100_000);
        let timeout = Timespec { tv_sec: 0, tv_nsec: (wait * 1000) as i64 };
        let fds = clients.iter().map(|client| client.fd()).chain([acceptor.fd()]);
        let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        poll(&mut fds, Some(&timeout)).unwrap();
    }
}

/// Bytes in which a lost, doubled or moved piece shows.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut dice = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| dice.u8(..)).collect()
}

/// Where two byte strings differ, instead of megabytes of them.
pub(crate) fn same(got: &[u8], expected: &[u8]) {
    let differs = got.iter().zip(expected).position(|(a, b)| a != b);
    assert_eq!((differs, got.len()), (None, expected.len()), "first difference, length");
}
