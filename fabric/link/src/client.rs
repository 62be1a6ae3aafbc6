// SPDX-License-Identifier: MIT OR Apache-2.0
//! The HIB's end of the link: frames over a non-blocking Unix stream, without threads or clocks.
//!
//! The caller polls [`LinkClient::fd`] (readable always; writable while [`LinkClient::wants_write`]) and calls
//! [`LinkClient::receive`] and [`LinkClient::flush`] when poll says so.
//!
//! Both directions are bounded. Output: at most [`OUT_LIMIT`] bytes wait here; [`LinkClient::send`] refuses the frame
//! that would exceed it. A HIB that keeps to its credits cannot get there with credits of [`DEFAULT_CREDITS`]: packets
//! are bounded by the credits it holds, replies by the credits it gave. Input: one call of `receive` reads at most
//! [`BATCH`] bytes, and the fabric sends only what it holds credits for.
//!
//! [`BATCH`]: crate::BATCH
//! [`DEFAULT_CREDITS`]: telegraphos_wire::link::DEFAULT_CREDITS

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use telegraphos_wire::link::{Frame, MAX_LEN};
use telegraphos_wire::{NodeId, PROTOCOL_VERSION, WindowLayout};

use crate::input::Input;
use crate::send_queue::SendQueue;

/// Bytes of encoded frames that may wait for the socket: what the credits of both sides allow, if all carry whole
/// blocks.
pub const OUT_LIMIT: usize = 16 << 20;

/// The output buffer is full: the fabric does not read, or more was sent than credits allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{OUT_LIMIT} bytes already wait for the fabric, which does not read: reconnect, or send within credits")]
pub struct OutputFull;

/// What one [`LinkClient::receive`] brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Received {
    pub frames: usize,
    /// The fabric closed the stream; the frames appended are the last.
    pub closed: bool,
}

/// The opening frame: a HIB's node, window, and the packets per class that it can take.
pub fn hello(node: NodeId, window: WindowLayout, credits: [u32; 4]) -> Frame {
    Frame::Hello { version: PROTOCOL_VERSION, node, window, credits }
}

/// A HIB's connection to its switch port.
#[derive(Debug)]
pub struct LinkClient {
    stream: OwnedFd,
    input: Input,
    output: SendQueue,
    /// Pairs of descriptors that came with frames not yet taken; `None` where they were lost.
    fds: VecDeque<Option<[OwnedFd; 2]>>,
}

impl LinkClient {
    /// Connects to the fabric that listens at `path`. Never blocks; a fabric with a full backlog is an error of kind
    /// `WouldBlock`, to be tried again.
    pub fn connect(path: impl AsRef<Path>) -> io::Result<LinkClient> {
        let path = path.as_ref();
        let named = |e: Errno| {
            let hint = match e {
                Errno::NOENT | Errno::CONNREFUSED => "start telegraphos-fabric with --listen at that path",
                Errno::ACCESS => "run as the user who runs the fabric: its socket has mode 0600",
                Errno::AGAIN => "the fabric is busy: try again",
                Errno::NAMETOOLONG => "a Unix socket path has at most 107 bytes: choose a shorter one",
                _ => "is a fabric listening there?",
            };
            let text = format!("cannot connect to the fabric at {}: {e}; {hint}", path.display());
            io::Error::new(io::Error::from(e).kind(), text)
        };
        let address = SocketAddrUnix::new(path).map_err(named)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let stream = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(named)?;
        net::connect(&stream, &address).map_err(named)?;
        Ok(LinkClient::from_stream(stream))
    }

    /// A link over a stream that is already connected.
    pub fn from_stream(stream: impl Into<OwnedFd>) -> LinkClient {
        LinkClient { stream: stream.into(), input: Input::new(), output: SendQueue::default(), fds: VecDeque::new() }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Queues the opening frame ([`hello`]).
    pub fn hello(&mut self, node: NodeId, window: WindowLayout, credits: [u32; 4]) -> Result<(), OutputFull> {
        self.send(&hello(node, window, credits))
    }

    /// Queues a frame; [`LinkClient::flush`] sends it. Refused, and nothing queued, when [`OUT_LIMIT`] would be
    /// exceeded.
    pub fn send(&mut self, frame: &Frame) -> Result<(), OutputFull> {
        if self.output.len() + MAX_LEN > OUT_LIMIT {
            return Err(OutputFull);
        }
        frame.encode(self.output.bytes());
        Ok(())
    }

    /// The descriptors of the next [`Frame::Ring`]; `None` if they were lost, since this process has too many open. To
    /// be called once for each such frame, in order.
    pub fn take_fds(&mut self) -> Option<[OwnedFd; 2]> {
        self.fds.pop_front().flatten()
    }

    /// Bytes that wait for the socket.
    pub fn pending(&self) -> usize {
        self.output.len()
    }

    /// Whether to poll for writable.
    pub fn wants_write(&self) -> bool {
        self.pending() > 0
    }

    /// Sends what is queued as far as the socket takes it; true when nothing is left.
    ///
    /// Only [`LinkClient::receive`] reports that the fabric has closed the stream, behind its last frames, which say
    /// why: here a closed stream discards what is queued.
    pub fn flush(&mut self) -> io::Result<bool> {
        match self.output.flush(self.stream.as_fd()) {
            Err(Errno::PIPE | Errno::CONNRESET) => {
                self.output = SendQueue::default();
                Ok(true)
            }
            result => Ok(result?),
        }
    }

    /// One receive of at most [`BATCH`](crate::BATCH) bytes; the whole frames in it are appended to `frames`. Bytes
    /// that are no frame are an error of kind `InvalidData`, after which the link must be dropped.
    pub fn receive(&mut self, frames: &mut impl Extend<Frame>) -> io::Result<Received> {
        let mut received = 0;
        let closed = match self.input.fill(self.stream.as_fd(), &mut self.fds) {
            Ok(None) => return Ok(Received::default()),
            Ok(Some(n)) => n == 0,
            // The fabric closed without reading everything.
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => true,
            Err(e) => return Err(e),
        };
        while let Some(frame) = self.input.frame().map_err(|e| {
            io::Error::new(io::ErrorKind::InvalidData, format!("the fabric sent what is no frame: {e}; reconnect"))
        })? {
            frames.extend([frame]);
            received += 1;
        }
        Ok(Received { frames: received, closed })
    }
}

impl AsFd for LinkClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use telegraphos_wire::STREAM_BLOCK;

    fn pair() -> (LinkClient, UnixStream) {
        let (a, b) = UnixStream::pair().unwrap();
        a.set_nonblocking(true).unwrap();
        (LinkClient::from_stream(a), b)
    }

    #[test]
    fn frames_survive_any_cut_of_the_stream() {
        use std::io::Write;
        let (mut link, mut peer) = pair();
        let sent: Vec<Frame> = (0..50)
            .map(|n| Frame::NodeUp { node: n, incarnation: u64::from(n) << 12, block: STREAM_BLOCK as u32 })
            .collect();
        let mut bytes = Vec::new();
        for frame in &sent {
            frame.encode(&mut bytes);
        }
        let mut got = Vec::new();
        for piece in bytes.chunks(7) {
            peer.write_all(piece).unwrap();
            assert!(!link.receive(&mut got).unwrap().closed);
        }
        assert_eq!(got, sent);
        assert_eq!(link.receive(&mut got).unwrap(), Received::default());
        drop(peer);
        assert_eq!(link.receive(&mut got).unwrap(), Received { frames: 0, closed: true });
    }

    #[test]
    fn output_is_bounded_when_the_fabric_does_not_read() {
        let (mut link, _peer) = pair();
        let frame = Frame::NodeDown { node: 1 };
        let mut sent = 0u32;
        while link.send(&frame).is_ok() {
            sent += 1;
            assert!(link.pending() <= OUT_LIMIT);
            assert!(sent < 10 << 20, "never full");
            if sent % 1000 == 0 {
                let _ = link.flush().unwrap();
            }
        }
        assert!(link.wants_write() && !link.flush().unwrap());
    }

    #[test]
    fn descriptors_arrive_with_their_frames() {
        use rustix::fs::fstat;
        let (mut link, peer) = pair();
        let mut output = SendQueue::default();
        let (mut sent, mut inodes) = (Vec::new(), Vec::new());
        let (mut got, mut arrived) = (Vec::new(), Vec::new());
        for n in 0..20u16 {
            for node in 0..n % 4 {
                sent.push(Frame::NodeDown { node });
                sent[sent.len() - 1].encode(output.bytes());
            }
            let (socket, memory) =
                rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
            inodes.push((fstat(&socket).unwrap().st_ino, fstat(&memory).unwrap().st_ino));
            output.attach([socket, memory]);
            sent.push(Frame::Ring { node: n, incarnation: 1, own: 2, bytes: 4096, credits: 1, side: 0 });
            sent[sent.len() - 1].encode(output.bytes());
            if n % 3 == 2 {
                assert!(output.flush(peer.as_fd()).unwrap());
            }
        }
        output.flush(peer.as_fd()).unwrap();
        while link.receive(&mut got).unwrap().frames > 0 {}
        assert_eq!(got, sent);
        for frame in &got {
            if let Frame::Ring { .. } = frame {
                let fds = link.take_fds().unwrap();
                arrived.push((fstat(&fds[0]).unwrap().st_ino, fstat(&fds[1]).unwrap().st_ino));
            }
        }
        assert_eq!(arrived, inodes);
        assert!(link.take_fds().is_none());
    }

    #[test]
    fn garbage_from_the_fabric_is_an_error() {
        use std::io::Write;
        let (mut link, mut peer) = pair();
        peer.write_all(&[0xff; 64]).unwrap();
        assert_eq!(link.receive(&mut Vec::new()).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_missing_fabric_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fabric.sock");
        let error = LinkClient::connect(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
}
