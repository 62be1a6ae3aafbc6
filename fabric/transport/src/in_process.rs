// SPDX-License-Identifier: MIT OR Apache-2.0
//! Both ends in one process, for trunks between switches that share it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use telegraphos_link::bell::Bell;

use crate::{Options, Received, Transport, TransportStatistics, lock};

/// The state of one end, which both ends change.
#[derive(Debug)]
struct End {
    /// Readable while there is something to do.
    event: Arc<Bell>,
    /// `event` is readable.
    signalled: bool,
    /// Bytes for this end.
    arriving: VecDeque<u8>,
    /// It found too little room and must be woken when there is more.
    wants_room: bool,
    dropped: bool,
}

impl End {
    fn signal(&mut self) {
        if !self.signalled {
            self.signalled = true;
            self.event.raise();
        }
    }
}

/// One end of a pair.
#[derive(Debug)]
pub struct InProcess {
    ends: Arc<Mutex<[End; 2]>>,
    me: usize,
    /// That of `ends[me]`, which cannot be lent out of the lock.
    event: Arc<Bell>,
    /// Bytes that may wait for the peer.
    limit: usize,
    /// Sent since the last flush.
    dirty: bool,
    counted: TransportStatistics,
}

impl InProcess {
    /// Two ends that are connected.
    pub fn pair(options: &Options) -> io::Result<(InProcess, InProcess)> {
        let end = || -> io::Result<End> {
            let event = Arc::new(Bell::new()?);
            Ok(End { event, signalled: false, arriving: VecDeque::new(), wants_room: false, dropped: false })
        };
        let pair = [end()?, end()?];
        let [first, second] = pair.each_ref().map(|end| Arc::clone(&end.event));
        let ends = Arc::new(Mutex::new(pair));
        let end = |me, event| InProcess {
            ends: Arc::clone(&ends),
            me,
            event,
            limit: options.buffer.max(1),
            dirty: false,
            counted: TransportStatistics::default(),
        };
        Ok((end(0, first), end(1, second)))
    }
}

impl Transport for InProcess {
    fn fd(&self) -> BorrowedFd<'_> {
        self.event.fd()
    }

    fn receive(&mut self, _now: u64, buffer: &mut [u8]) -> io::Result<Received> {
        let (mut ends, me, peer) = (lock(&self.ends), self.me, 1 - self.me);
        let n = io::Read::read(&mut ends[me].arriving, buffer)?;
        if n > 0 {
            self.counted.received_bytes += n as u64;
            if ends[peer].wants_room && ends[me].arriving.len() <= self.limit / 2 {
                ends[peer].wants_room = false;
                ends[peer].signal();
                self.counted.wakes += 1;
            }
            return Ok(Received::Bytes(n));
        }
        if ends[peer].dropped {
            return Ok(Received::End);
        }
        if ends[me].signalled {
            ends[me].signalled = false;
            self.event.clear();
        }
        Ok(Received::Nothing)
    }

    fn send(&mut self, _now: u64, bytes: &[u8]) -> io::Result<usize> {
        let (mut ends, me, peer) = (lock(&self.ends), self.me, 1 - self.me);
        if ends[peer].dropped {
            return Ok(bytes.len());
        }
        let taken = bytes.len().min(self.limit.saturating_sub(ends[peer].arriving.len()));
        ends[peer].arriving.extend(&bytes[..taken]);
        ends[me].wants_room = taken < bytes.len();
        self.dirty |= taken > 0;
        self.counted.sent_bytes += taken as u64;
        Ok(taken)
    }

    fn flush(&mut self, _now: u64) -> io::Result<bool> {
        let (mut ends, me, peer) = (lock(&self.ends), self.me, 1 - self.me);
        if self.dirty && !ends[peer].arriving.is_empty() && !ends[peer].signalled {
            ends[peer].signal();
            self.counted.wakes += 1;
        }
        self.dirty = false;
        Ok(!ends[me].wants_room || ends[peer].arriving.len() < self.limit)
    }

    fn statistics(&self) -> TransportStatistics {
        self.counted
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        let (mut ends, me, peer) = (lock(&self.ends), self.me, 1 - self.me);
        ends[me].dropped = true;
        ends[me].arriving = VecDeque::new();
        ends[peer].signal();
    }
}
