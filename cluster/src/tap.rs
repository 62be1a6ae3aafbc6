// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts every packet on the link between a board and the fabric, exactly, without either knowing: it stands between
//! their sockets and passes on what it has read.

use crate::{Error, Result, interrupt};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use telegraphos_wire::Body;
use telegraphos_wire::link::Frame;

/// The kinds of packets that are counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PacketKind {
    Write,
    /// A store to a copy, for its home.
    Update,
    /// A store, from the home to its copies.
    Reflected,
    CopyAck,
    /// A store or update is done, or several stores.
    WriteAck,
    Other,
}

impl PacketKind {
    /// All of them.
    pub const ALL: [PacketKind; 6] = [
        PacketKind::Write,
        PacketKind::Update,
        PacketKind::Reflected,
        PacketKind::CopyAck,
        PacketKind::WriteAck,
        PacketKind::Other,
    ];

    fn of(body: &Body) -> PacketKind {
        match body {
            Body::Write { .. } | Body::WriteBurst { .. } => PacketKind::Write,
            Body::Update { .. } => PacketKind::Update,
            Body::Reflected { .. } => PacketKind::Reflected,
            Body::CopyAck { .. } => PacketKind::CopyAck,
            Body::WriteAck { .. } | Body::WriteAcks { .. } | Body::BurstRefused { .. } => PacketKind::WriteAck,
            _ => PacketKind::Other,
        }
    }
}

const KINDS: usize = PacketKind::ALL.len();

/// Packets that have crossed one board's link. Credits and other frames of the link itself are no packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCount {
    /// From the board, by kind.
    sent: [u64; KINDS],
    /// To the board, by kind.
    received: [u64; KINDS],
}

impl LinkCount {
    /// Packets of this kind that the board has sent.
    pub fn sent(&self, kind: PacketKind) -> u64 {
        self.sent[kind as usize]
    }

    /// Packets of this kind that it was sent.
    pub fn received(&self, kind: PacketKind) -> u64 {
        self.received[kind as usize]
    }

    /// What has crossed since an earlier count.
    #[must_use]
    pub fn since(&self, before: &LinkCount) -> LinkCount {
        let less = |now: [u64; KINDS], then: [u64; KINDS]| std::array::from_fn(|n| now[n].saturating_sub(then[n]));
        LinkCount { sent: less(self.sent, before.sent), received: less(self.received, before.received) }
    }
}

type Counters = [AtomicU64; KINDS];

/// One link that is counted. Its threads end with the link.
#[derive(Debug)]
pub(crate) struct Tap {
    listener: UnixListener,
    sent: Arc<Counters>,
    received: Arc<Counters>,
}

impl Tap {
    /// Will stand for the fabric at this path.
    pub(crate) fn bind(path: &Path) -> Result<Tap> {
        let listen = || {
            let listener = UnixListener::bind(path)?;
            listener.set_nonblocking(true)?;
            io::Result::Ok(listener)
        };
        let listener = listen().map_err(Error::io("cannot listen at", path))?;
        Ok(Tap { listener, sent: Arc::default(), received: Arc::default() })
    }

    /// Takes the board's connection and passes it on to the fabric at this path.
    pub(crate) fn join(&self, fabric: &Path, limit: Duration) -> Result<()> {
        let begun = Instant::now();
        let board = loop {
            interrupt::check()?;
            match self.listener.accept() {
                Ok((board, _)) => break board,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && begun.elapsed() < limit => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(e) => return Err(Error::io("no board connects to the link that is counted, for", fabric)(e)),
            }
        };
        let connect = || {
            board.set_nonblocking(false)?;
            let fabric = UnixStream::connect(fabric)?;
            for (from, to, counters) in [(&board, &fabric, &self.sent), (&fabric, &board, &self.received)] {
                let (from, to, counters) = (from.try_clone()?, to.try_clone()?, Arc::clone(counters));
                std::thread::Builder::new().name("tap".into()).spawn(move || relay(from, to, &counters))?;
            }
            io::Result::Ok(())
        };
        connect().map_err(Error::io("cannot count a link to the fabric at", fabric))
    }

    /// Everything so far that has come out on the other side, or will before anything later does.
    pub(crate) fn count(&self) -> LinkCount {
        let read = |counters: &Counters| std::array::from_fn(|n| counters[n].load(Ordering::Acquire));
        LinkCount { sent: read(&self.sent), received: read(&self.received) }
    }
}

/// Passes bytes on, counted first, until one side ends.
fn relay(mut from: UnixStream, mut to: UnixStream, counters: &Counters) {
    let mut buffer = vec![0; 64 << 10];
    let mut unread = Vec::new();
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        unread.extend_from_slice(&buffer[..n]);
        let mut used = 0;
        let sound = loop {
            match Frame::decode(&unread[used..]) {
                Ok(Some((frame, length))) => {
                    if let Frame::Packet(packet) = frame {
                        counters[PacketKind::of(&packet.body) as usize].fetch_add(1, Ordering::Release);
                    }
                    used += length;
                }
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        unread.drain(..used);
        // What cannot be counted ends the link, which everybody notices, rather than giving a wrong count.
        if !sound || to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    // Both threads of a link end together; a side that is gone already needs no end.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;
    use telegraphos_wire::{Packet, Status};

    /// A board's end, the tap, and the fabric's end of a link; the sockets lie in the directory.
    fn link(dir: &Path) -> (UnixStream, Tap, UnixStream) {
        let (near, far) = (dir.join("near"), dir.join("far"));
        let fabric = UnixListener::bind(&far).unwrap();
        let tap = Tap::bind(&near).unwrap();
        let board = UnixStream::connect(&near).unwrap();
        tap.join(&far, Duration::from_secs(30)).unwrap();
        (board, tap, fabric.accept().unwrap().0)
    }

    #[test]
    fn packets_are_counted_in_whatever_pieces_they_come_and_arrive_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let (mut board, tap, mut fabric) = link(dir.path());
        let mut bytes = Vec::new();
        let packet = |body| Packet { src: 1, dst: 0, tag: 7, incarnation: 1, target: 2, body };
        for _ in 0..100 {
            Frame::Packet(packet(Body::CopyAck { status: Status::Ok })).encode(&mut bytes);
            Frame::NodeDown { node: 3 }.encode(&mut bytes);
            Frame::Packet(packet(Body::WriteAck { status: Status::Ok })).encode(&mut bytes);
        }
        for piece in bytes.chunks(37) {
            board.write_all(piece).unwrap();
        }
        fabric.write_all(&bytes[..bytes.len() / 2]).unwrap();
        let mut arrived = vec![0; bytes.len()];
        fabric.read_exact(&mut arrived).unwrap();
        assert_eq!(arrived, bytes);
        let count = tap.count();
        assert_eq!((count.sent(PacketKind::CopyAck), count.sent(PacketKind::WriteAck)), (100, 100));
        assert_eq!(count.sent(PacketKind::Other), 0);
        let mut arrived = vec![0; bytes.len() / 2];
        board.read_exact(&mut arrived).unwrap();
        assert_eq!(tap.count().received(PacketKind::CopyAck), 50);
        assert_eq!(tap.count().since(&count).sent(PacketKind::CopyAck), 0);
        // One side goes: so does the other.
        drop(fabric);
        assert_eq!(board.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn what_cannot_be_counted_ends_the_link() {
        let dir = tempfile::tempdir().unwrap();
        let (mut board, _tap, mut fabric) = link(dir.path());
        board.write_all(&[0xff; 64]).unwrap();
        assert_eq!(fabric.read(&mut [0]).unwrap(), 0);
        let far = dir.path().join("far");
        let unused = Tap::bind(&dir.path().join("unused")).unwrap();
        let text = unused.join(&far, Duration::ZERO).unwrap_err().to_string();
        assert!(text.contains("far"), "{text}");
    }
}
