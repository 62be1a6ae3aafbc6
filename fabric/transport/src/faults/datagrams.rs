// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults below RDP and QUIC.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use super::lane::Lane;
use super::link::Seen;
use super::{Direction, LinkFaults};
use crate::Datagrams;
use crate::branch::copy;

/// Datagrams read from the socket in one call of `receive`, which bounds its time under a flood.
const BATCH: usize = 256;

/// A datagram socket with faults, in both directions unless the plan says otherwise.
#[derive(Debug)]
pub struct FaultyDatagrams<D> {
    inner: D,
    seen: Seen,
    out: Lane,
    into: Lane,
    /// Past the faults, waiting for room in the socket.
    ready: VecDeque<Vec<u8>>,
    buffer: Box<[u8]>,
}

impl<D: Datagrams> FaultyDatagrams<D> {
    /// `inner` with the faults of `link`.
    pub fn new(inner: D, link: LinkFaults) -> FaultyDatagrams<D> {
        FaultyDatagrams {
            out: Lane::new(Direction::Send, &link),
            into: Lane::new(Direction::Receive, &link),
            ready: VecDeque::new(),
            buffer: vec![0; inner.max_len()].into_boxed_slice(),
            seen: Seen::new(link),
            inner,
        }
    }

    /// The present plan. When the link has gone down, everything in flight is lost.
    fn plan(&mut self, now: u64) -> super::FaultPlan {
        let (plan, changed) = self.seen.update();
        if changed && plan.down {
            for (lane, direction) in [(&mut self.out, Direction::Send), (&mut self.into, Direction::Receive)] {
                if plan.concerns(direction) {
                    lane.clear(now, self.seen.link());
                }
            }
        }
        plan
    }

    /// Sends what has passed the faults.
    fn drain(&mut self, now: u64) -> io::Result<()> {
        while let Some(bytes) = self.out.take(now) {
            self.ready.push_back(bytes);
        }
        while let Some(bytes) = self.ready.front() {
            if !self.inner.send(now, bytes)? {
                break;
            }
            self.ready.pop_front();
        }
        Ok(())
    }
}

impl<D: Datagrams> Datagrams for FaultyDatagrams<D> {
    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }

    fn wants_write(&self) -> bool {
        !self.ready.is_empty() || self.inner.wants_write()
    }

    fn deadline(&self) -> Option<u64> {
        [self.inner.deadline(), self.out.deadline(), self.into.deadline()].into_iter().flatten().min()
    }

    fn max_len(&self) -> usize {
        self.inner.max_len()
    }

    fn send(&mut self, now: u64, bytes: &[u8]) -> io::Result<bool> {
        let plan = self.plan(now);
        if !self.ready.is_empty() {
            self.drain(now)?;
            if !self.ready.is_empty() {
                return Ok(false);
            }
        }
        if !plan.concerns(Direction::Send) && self.out.is_empty() {
            let sent = self.inner.send(now, bytes)?;
            if sent {
                self.out.pass();
            }
            return Ok(sent);
        }
        self.out.offer(now, &plan, self.seen.link(), bytes);
        self.drain(now)?;
        Ok(true)
    }

    fn receive(&mut self, now: u64, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let plan = self.plan(now);
        if !plan.concerns(Direction::Receive) && self.into.is_empty() {
            let got = self.inner.receive(now, buffer)?;
            if got.is_some() {
                self.into.pass();
            }
            return Ok(got);
        }
        for _ in 0..BATCH {
            let Some(len) = self.inner.receive(now, &mut self.buffer)? else { break };
            self.into.offer(now, &plan, self.seen.link(), &self.buffer[..len]);
        }
        Ok(self.into.take(now).map(|bytes| copy(&bytes, buffer)))
    }

    fn flush(&mut self, now: u64) -> io::Result<()> {
        self.plan(now);
        self.drain(now)?;
        self.inner.flush(now)
    }

    fn set_faults(&mut self, link: &LinkFaults) -> bool {
        self.seen = Seen::new(link.clone());
        self.out = Lane::new(Direction::Send, link);
        self.into = Lane::new(Direction::Receive, link);
        true
    }

    fn faults(&self) -> u64 {
        self.inner.faults() + self.seen.link().counts().total()
    }
}
