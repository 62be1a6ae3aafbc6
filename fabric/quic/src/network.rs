// SPDX-License-Identifier: MIT OR Apache-2.0
//! What carries datagrams between an endpoint and its peers: the socket, and between it and each peer room for faults.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use telegraphos_transport::faults::{FaultyDatagrams, LinkFaults};
use telegraphos_transport::{Datagrams, TransportStatistics};

use crate::config::LONGEST;
use crate::udp::Udp;

/// Datagrams taken from the socket at once.
const BATCH: usize = 64;
/// Datagrams of one peer that wait for their way through the faults.
const WAITING: usize = 256;
/// Peers whose datagrams pass faults.
const PATHS: usize = 256;

/// The way to one peer, as a socket connected to it would be.
#[derive(Debug)]
struct Slot {
    udp: Arc<Udp>,
    peer: SocketAddr,
    /// What came from the peer and has been read from the socket.
    arrived: Arc<Mutex<VecDeque<Vec<u8>>>>,
    /// The last datagram found no room.
    blocked: bool,
    counted: TransportStatistics,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that holds it panics; and a queue is whole after each call.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Datagrams for Slot {
    fn fd(&self) -> BorrowedFd<'_> {
        self.udp.fd()
    }

    fn wants_write(&self) -> bool {
        self.blocked
    }

    fn deadline(&self) -> Option<u64> {
        None
    }

    fn max_len(&self) -> usize {
        usize::from(LONGEST)
    }

    fn send(&mut self, _now: u64, bytes: &[u8]) -> io::Result<bool> {
        let sent = self.udp.send(self.peer, bytes);
        self.blocked = !sent;
        self.counted.sent_datagrams += u64::from(sent);
        Ok(sent)
    }

    fn receive(&mut self, _now: u64, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        Ok(lock(&self.arrived).pop_front().map(|bytes| {
            self.counted.received_datagrams += 1;
            let len = bytes.len().min(buffer.len());
            buffer[..len].copy_from_slice(&bytes[..len]);
            len
        }))
    }

    fn flush(&mut self, _now: u64) -> io::Result<()> {
        Ok(())
    }

    fn statistics(&self) -> TransportStatistics {
        self.counted
    }
}

#[derive(Debug)]
struct Path {
    datagrams: FaultyDatagrams<Slot>,
    arrived: Arc<Mutex<VecDeque<Vec<u8>>>>,
}

/// A socket, and faults on the way to each peer if there is a place for them.
#[derive(Debug)]
pub(crate) struct Network {
    udp: Arc<Udp>,
    faults: Option<LinkFaults>,
    paths: BTreeMap<SocketAddr, Path>,
    /// The socket had no room for a datagram.
    blocked: bool,
}

impl Network {
    pub(crate) fn new(udp: Arc<Udp>, faults: Option<LinkFaults>) -> Network {
        Network { udp, faults, paths: BTreeMap::new(), blocked: false }
    }

    pub(crate) fn udp(&self) -> &Arc<Udp> {
        &self.udp
    }

    /// Whether something waits for room in the socket.
    pub(crate) fn blocked(&self) -> bool {
        self.blocked || self.paths.values().any(|path| path.datagrams.wants_write())
    }

    /// When something is due that faults hold back.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.paths.values().filter_map(|path| path.datagrams.deadline()).min()
    }

    fn path(&mut self, peer: SocketAddr) -> Option<&mut Path> {
        let faults = self.faults.as_ref()?;
        if !self.paths.contains_key(&peer) && self.paths.len() >= PATHS {
            return None;
        }
        Some(self.paths.entry(peer).or_insert_with(|| {
            let arrived = Arc::default();
            let slot = Slot {
                udp: self.udp.clone(),
                peer,
                arrived: Arc::clone(&arrived),
                blocked: false,
                counted: TransportStatistics::default(),
            };
            Path { datagrams: FaultyDatagrams::new(slot, faults.clone()), arrived }
        }))
    }

    /// False: no room now.
    pub(crate) fn send(&mut self, now: u64, to: SocketAddr, bytes: &[u8]) -> io::Result<bool> {
        if let Some(path) = self.path(to) {
            return path.datagrams.send(now, bytes);
        }
        let sent = self.udp.send(to, bytes);
        self.blocked = !sent;
        Ok(sent)
    }

    /// The next datagram and who sent it, or so it says.
    pub(crate) fn receive(&mut self, now: u64, buffer: &mut [u8]) -> io::Result<Option<(usize, SocketAddr)>> {
        if self.faults.is_none() {
            return self.udp.receive(buffer);
        }
        for _ in 0..BATCH {
            let Some((len, from)) = self.udp.receive(buffer)? else { break };
            let Some(path) = self.path(from) else { return Ok(Some((len, from))) };
            let mut arrived = lock(&path.arrived);
            if arrived.len() < WAITING {
                arrived.push_back(buffer[..len].to_vec());
            }
        }
        for (peer, path) in &mut self.paths {
            if let Some(len) = path.datagrams.receive(now, buffer)? {
                return Ok(Some((len, *peer)));
            }
        }
        Ok(None)
    }

    /// Sends what was held back and is due.
    pub(crate) fn flush(&mut self, now: u64) -> io::Result<()> {
        self.paths.values_mut().try_for_each(|path| path.datagrams.flush(now))
    }

    /// Keeps what belongs to these peers only, if it has become much.
    pub(crate) fn tidy(&mut self, in_use: impl Fn(&SocketAddr) -> bool) {
        if self.paths.len() >= PATHS / 2 {
            self.paths.retain(|peer, _| in_use(peer));
        }
    }

    /// Other faults on the way to `peer`; false if there is no place for any.
    pub(crate) fn set_faults(&mut self, peer: SocketAddr, link: &LinkFaults) -> bool {
        self.path(peer).is_some_and(|path| path.datagrams.set_faults(link))
    }

    /// Faults injected on the way to `peer`.
    pub(crate) fn faults(&self, peer: &SocketAddr) -> u64 {
        self.paths.get(peer).map_or(0, |path| path.datagrams.statistics().faults)
    }
}
