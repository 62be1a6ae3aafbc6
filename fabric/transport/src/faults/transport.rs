// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults of reliable transports.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use telegraphos_service::wait::{Readiness, WaitSet};

use super::delay::Delay;
use super::link::{ChangeSignal, Seen};
use super::{Direction, FaultEvent, FaultKind, LinkFaults};
use crate::{Acceptor, Received, Transport, TransportStatistics};

/// Bytes taken from below at once.
const BATCH: usize = 64 << 10;
/// The places of the signal that the faults have changed, and of the transport below.
const CHANGE: u64 = 0;
const INNER: u64 = 1;

/// A reliable transport with faults. Latency, jitter and rate delay its bytes. It cannot lose, corrupt, duplicate or
/// reorder any, nor stay connected while it is down: instead of these faults the connection is reset, and the bytes
/// ahead of the fault are lost with it.
#[derive(Debug)]
pub struct FaultyTransport {
    /// None once reset.
    inner: Option<Box<dyn Transport>>,
    /// Readable for: `inner`, as far as it is wanted at present, and `change`.
    set: WaitSet,
    /// What `inner` is watched for.
    watched: Readiness,
    change: ChangeSignal,
    seen: Seen,
    out: Delay,
    into: Delay,
    /// `inner` has returned the end.
    ended: bool,
    /// `inner` had no room for bytes that have arrived: they wait for an event, not for a time.
    blocked: bool,
    buffer: Box<[u8]>,
    counted: TransportStatistics,
}

impl FaultyTransport {
    /// `inner` with the faults of `link`.
    pub fn new(inner: Box<dyn Transport>, link: LinkFaults) -> io::Result<FaultyTransport> {
        let set = WaitSet::new()?;
        let change = link.change_signal()?;
        set.add(change.fd(), CHANGE, Readiness::READ)?;
        let mut made = FaultyTransport {
            set,
            watched: Readiness::NONE,
            change,
            out: Delay::new(Direction::Send, &link),
            into: Delay::new(Direction::Receive, &link),
            seen: Seen::new(link),
            ended: false,
            blocked: false,
            buffer: vec![0; BATCH].into_boxed_slice(),
            counted: TransportStatistics::default(),
            inner: Some(inner),
        };
        made.watch()?;
        Ok(made)
    }

    /// Watches the events of `inner` that can be used now.
    fn watch(&mut self) -> io::Result<()> {
        let Some(inner) = &self.inner else { return Ok(()) };
        let read = !self.ended && self.into.room() > 0;
        let wanted = Readiness { read, write: inner.wants_write(), ..Readiness::NONE };
        if wanted != self.watched {
            // Not for nothing: its hang-up would be reported regardless, for ever.
            if !wanted.any() {
                self.set.remove(inner.fd())?;
            } else if !self.watched.any() {
                self.set.add(inner.fd(), INNER, wanted)?;
            } else {
                self.set.change(inner.fd(), INNER, wanted)?;
            }
            self.watched = wanted;
        }
        Ok(())
    }

    /// The present plan; resets the connection if the link is down.
    fn plan(&mut self, now: u64) -> io::Result<super::FaultPlan> {
        let (plan, changed) = self.seen.update();
        if self.inner.is_none() {
            return Err(self.reset_error());
        }
        if changed {
            self.change.clear();
            // Otherwise a change between the update and the clear would be missed.
            return self.plan(now);
        }
        if plan.down {
            self.report(now, FaultKind::Down);
            return Err(self.reset(now));
        }
        Ok(plan)
    }

    fn report(&self, now: u64, kind: FaultKind) {
        let direction = Direction::Send;
        self.seen.link().fault(FaultEvent { link: "", now, direction, kind, number: 0, delay: 0, bytes: &[] });
    }

    fn reset(&mut self, now: u64) -> io::Error {
        if let Some(inner) = self.inner.take() {
            self.report(now, FaultKind::Reset);
            self.counted = inner.statistics();
            if self.watched.any() {
                // Its descriptor is closed at once anyway.
                let _ = self.set.remove(inner.fd());
            }
            // Wakes the user of this end; never cleared.
            self.change.raise();
        }
        self.reset_error()
    }

    fn reset_error(&self) -> io::Error {
        let text = format!("the link {} was reset by an injected fault", self.seen.link().name());
        io::Error::new(io::ErrorKind::ConnectionReset, text)
    }
}

impl Transport for FaultyTransport {
    fn fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    fn deadline(&self) -> Option<u64> {
        let inner = self.inner.as_ref()?;
        let out = if self.blocked { None } else { self.out.deadline() };
        [inner.deadline(), out, self.into.deadline()].into_iter().flatten().min()
    }

    fn receive(&mut self, now: u64, buffer: &mut [u8]) -> io::Result<Received> {
        let plan = self.plan(now)?;
        let Some(inner) = &mut self.inner else { return Err(self.reset_error()) };
        if !plan.concerns(Direction::Receive) && self.into.is_empty() && !self.ended {
            let got = inner.receive(now, buffer)?;
            match got {
                Received::Bytes(n) => self.into.pass(n),
                Received::Nothing => {}
                Received::End => self.ended = true,
            }
            self.watch()?;
            return Ok(got);
        }
        let room = self.into.room().min(BATCH);
        if !self.ended && room > 0 {
            match inner.receive(now, &mut self.buffer[..room])? {
                Received::Bytes(n) => {
                    if self.into.offer(now, &plan, self.seen.link(), &self.buffer[..n]).is_err() {
                        return Err(self.reset(now));
                    }
                }
                Received::Nothing => {}
                Received::End => self.ended = true,
            }
        }
        let arrived = self.into.arrived(now);
        let len = arrived.len().min(buffer.len());
        buffer[..len].copy_from_slice(&arrived[..len]);
        self.into.used(len);
        self.watch()?;
        Ok(match len {
            0 if self.ended && self.into.is_empty() => Received::End,
            0 => Received::Nothing,
            n => Received::Bytes(n),
        })
    }

    fn send(&mut self, now: u64, bytes: &[u8]) -> io::Result<usize> {
        let plan = self.plan(now)?;
        let Some(inner) = &mut self.inner else { return Err(self.reset_error()) };
        if !plan.concerns(Direction::Send) && self.out.is_empty() {
            let taken = inner.send(now, bytes)?;
            self.out.pass(taken);
            return Ok(taken);
        }
        let taken = bytes.len().min(self.out.room());
        if self.out.offer(now, &plan, self.seen.link(), &bytes[..taken]).is_err() {
            return Err(self.reset(now));
        }
        Ok(taken)
    }

    fn flush(&mut self, now: u64) -> io::Result<bool> {
        self.plan(now)?;
        let Some(inner) = &mut self.inner else { return Err(self.reset_error()) };
        let mut done = true;
        loop {
            let arrived = self.out.arrived(now);
            if arrived.is_empty() {
                break;
            }
            let taken = inner.send(now, arrived)?;
            self.out.used(taken);
            if taken == 0 {
                done = inner.flush(now)?;
                if !done {
                    break;
                }
            }
        }
        self.blocked = !done;
        if done {
            done = inner.flush(now)?;
        }
        self.watch()?;
        Ok(done && self.out.is_empty())
    }

    fn set_faults(&mut self, link: &LinkFaults) -> bool {
        link.add(&self.change);
        self.out.set_link(link);
        self.into.set_link(link);
        self.seen = Seen::new(link.clone());
        true
    }

    fn statistics(&self) -> TransportStatistics {
        let faults = self.seen.link().counts().total();
        let inner = self.inner.as_ref().map_or(self.counted, |inner| inner.statistics());
        inner.plus(TransportStatistics { faults, ..TransportStatistics::default() })
    }
}

/// Gives every connection the faults of one link, until [`Transport::set_faults`].
#[derive(Debug)]
pub struct FaultyAcceptor<A> {
    inner: A,
    link: LinkFaults,
}

impl<A: Acceptor> FaultyAcceptor<A> {
    /// The connections that `inner` accepts have the faults of `link`, until [`Transport::set_faults`].
    pub fn new(inner: A, link: LinkFaults) -> FaultyAcceptor<A> {
        FaultyAcceptor { inner, link }
    }
}

impl<A: Acceptor> Acceptor for FaultyAcceptor<A> {
    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }

    fn deadline(&self) -> Option<u64> {
        self.inner.deadline()
    }

    fn accept(&mut self, now: u64) -> io::Result<Option<Box<dyn Transport>>> {
        let Some(inner) = self.inner.accept(now)? else { return Ok(None) };
        Ok(Some(Box::new(FaultyTransport::new(inner, self.link.clone())?)))
    }
}
