// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client's connection: messages and descriptors in, replies out, without blocking. `shell` owns it and passes its
//! messages to a [`Session`](super::Session).
//!
//! One receive takes up to 64 KiB, which may be a thousand posted stores. Replies are collected and leave with one
//! send. Input is bounded by its buffer, output by [`OUT_LIMIT`]: above it, the caller reads no further message, so a
//! client that does not read its replies only stops itself.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{
    self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use telegraphos_link::send_queue::SendQueue;
use telegraphos_service::wait::Readiness;

use super::message::{self, Desync, HEADER_LEN, Header, MAX_FDS, MAX_MESSAGE, flag};

/// Free bytes in the input buffer for one receive, at least.
const BATCH: usize = 64 << 10;
/// Bytes of unsent replies above which no further message is served.
pub const OUT_LIMIT: usize = 256 << 10;

/// Result of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// The socket is empty.
    Empty,
    /// The client has closed the stream.
    Closed,
    /// Bytes were received.
    Bytes {
        /// The socket is empty now.
        drained: bool,
        /// Descriptors were lost: more than [`MAX_FDS`] came at once, or this process has too many open files.
        lost_fds: bool,
    },
}

/// Received bytes, and the descriptors that came with them.
#[derive(Debug)]
pub struct Input {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    /// Stream position of `start`, in bytes.
    position: u64,
    /// Descriptors, each with the stream position of the last byte received with it.
    fds: VecDeque<(u64, OwnedFd)>,
}

/// One complete message.
#[derive(Debug)]
pub struct Message<'a> {
    pub header: Header,
    /// The bytes that follow the header.
    pub body: &'a [u8],
    /// Its descriptors. Dropping the message closes those that are not taken.
    pub fds: Vec<OwnedFd>,
}

impl Input {
    fn new() -> Input {
        // The rest of an incomplete message is shorter than MAX_MESSAGE, so a batch always fits behind it.
        let bytes = vec![0; MAX_MESSAGE + BATCH].into_boxed_slice();
        Input { bytes, start: 0, end: 0, position: 0, fds: VecDeque::new() }
    }

    /// Receives once into the buffer.
    fn fill(&mut self, socket: BorrowedFd<'_>) -> Result<Filled, Errno> {
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let room = self.bytes.len() - self.end;
        if room == 0 {
            // The caller has left complete messages in the buffer.
            return Ok(Filled::Bytes { drained: false, lost_fds: false });
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let iov = &mut [IoSliceMut::new(&mut self.bytes[self.end..])];
            match net::recvmsg(socket, iov, &mut control, RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC) {
                Ok(received) => break received,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Filled::Empty),
                Err(e) => return Err(e),
            }
        };
        if received.bytes == 0 {
            return Ok(Filled::Closed);
        }
        self.end += received.bytes;
        // The kernel ends a receive after data that carried descriptors, so they belong to the message that contains
        // the last byte received.
        let last = self.position + self.end as u64 - 1;
        let mut any = false;
        let mut lost_fds = received.flags.contains(ReturnFlags::CTRUNC);
        for item in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = item {
                for fd in fds {
                    any = true;
                    if self.fds.len() < MAX_FDS {
                        self.fds.push_back((last, fd));
                    } else {
                        lost_fds = true;
                    }
                }
            }
        }
        Ok(Filled::Bytes { drained: received.bytes < room && !any, lost_fds })
    }

    /// Takes the next message from the buffer; `None` if it is not complete.
    pub fn message(&mut self) -> Result<Option<Message<'_>>, Desync> {
        let Some((header, size)) = message::frame(&self.bytes[self.start..self.end])? else { return Ok(None) };
        if self.end - self.start < size {
            return Ok(None);
        }
        let body = self.start + HEADER_LEN..self.start + size;
        self.start += size;
        self.position += size as u64;
        let mut fds = Vec::new();
        while self.fds.front().is_some_and(|(at, _)| *at < self.position) {
            fds.extend(self.fds.pop_front().map(|(_, fd)| fd));
        }
        Ok(Some(Message { header, body: &self.bytes[body], fds }))
    }
}

/// Replies that have not been sent.
#[derive(Debug, Default)]
pub struct Output {
    /// What goes before `last`.
    carriers: VecDeque<Carrier>,
    last: SendQueue,
}

/// A message that takes a descriptor along: a send of its own, since the client expects it with the first byte.
#[derive(Debug)]
struct Carrier {
    /// Messages that go before it.
    before: SendQueue,
    message: Vec<u8>,
    sent: usize,
    file: Arc<OwnedFd>,
}

impl Carrier {
    /// True when everything is sent.
    fn flush(&mut self, socket: BorrowedFd<'_>) -> Result<bool, Errno> {
        if !self.before.flush(socket)? {
            return Ok(false);
        }
        while self.sent < self.message.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let files = [self.file.as_fd()];
            if self.sent == 0 && !control.push(SendAncillaryMessage::ScmRights(&files)) {
                return Err(Errno::NOBUFS);
            }
            let rest = [IoSlice::new(&self.message[self.sent..])];
            match net::sendmsg(socket, &rest, &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(n) => self.sent += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }
}

impl Output {
    /// Bytes not sent.
    pub fn len(&self) -> usize {
        let carried = self.carriers.iter().map(|c| c.before.len() + c.message.len() - c.sent).sum::<usize>();
        carried + self.last.len()
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.carriers.is_empty() && self.last.is_empty()
    }

    /// Sends what the socket takes.
    fn flush(&mut self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        while let Some(carrier) = self.carriers.front_mut() {
            if !carrier.flush(socket)? {
                return Ok(());
            }
            self.carriers.pop_front();
        }
        self.last.flush(socket).map(drop)
    }

    /// Queues a successful reply to `request` that takes a descriptor along.
    pub fn reply_with_file(&mut self, request: &Header, body: &[u8], file: Arc<OwnedFd>) {
        let before = std::mem::take(&mut self.last);
        self.reply(request, &[body]);
        let message = std::mem::take(self.last.bytes());
        self.carriers.push_back(Carrier { before, message, sent: 0, file });
    }

    /// Whether the limit is exceeded, so that no further message may be served.
    pub fn is_full(&self) -> bool {
        self.len() > OUT_LIMIT
    }

    /// Queues a successful reply to `request`; `body` is given in parts.
    pub fn reply(&mut self, request: &Header, body: &[&[u8]]) {
        let size = HEADER_LEN + body.iter().map(|part| part.len()).sum::<usize>();
        let header = Header { size: size as u32, flags: flag::REPLY, error: 0, ..*request };
        let bytes = self.last.bytes();
        bytes.extend_from_slice(bytemuck::bytes_of(&header));
        for part in body {
            bytes.extend_from_slice(part);
        }
    }

    /// Queues an error reply to `request`.
    pub fn error(&mut self, request: &Header, errno: Errno) {
        let header = Header {
            size: HEADER_LEN as u32,
            flags: flag::REPLY | flag::ERROR,
            error: errno.raw_os_error() as u32,
            ..*request
        };
        self.last.bytes().extend_from_slice(bytemuck::bytes_of(&header));
    }

    /// Queues a reply whose body is `head` and `count` bytes that `fill` writes. If `fill` returns `None`, nothing is
    /// queued.
    pub fn reply_with<T>(
        &mut self,
        request: &Header,
        head: &[u8],
        count: usize,
        fill: impl FnOnce(&mut [u8]) -> Option<T>,
    ) -> Option<T> {
        let before = self.last.bytes().len();
        self.reply(request, &[head]);
        let size = (HEADER_LEN + head.len() + count) as u32;
        let bytes = self.last.bytes();
        bytes[before + 4..before + 8].copy_from_slice(&size.to_le_bytes());
        let at = bytes.len();
        bytes.resize(at + count, 0);
        let filled = fill(&mut bytes[at..]);
        if filled.is_none() {
            bytes.truncate(before);
        }
        filled
    }
}

/// Closes a connection so that its peer sees the end of the stream and not a reset. Shuts the socket down for both
/// directions and reads what has arrived, since the kernel resets a connection that is closed with unread data (and
/// QEMU 11.1 aborts on a reset).
pub fn hang_up(socket: BorrowedFd<'_>) {
    if net::shutdown(socket, net::Shutdown::Both).is_err() {
        return;
    }
    let mut bytes = vec![0; BATCH];
    // This loop ends: after the shutdown the peer cannot add data.
    loop {
        match net::recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return,
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// A client's connection. Dropping it hangs up without a reset.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    pub input: Input,
    /// Replies to send.
    pub output: Output,
}

impl Connection {
    /// A connection over an accepted stream socket.
    pub fn new(socket: OwnedFd) -> Connection {
        Connection { socket, input: Input::new(), output: Output::default() }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// What to watch it for: room for output that waits, and, if messages are taken (`takes`) and their replies have
    /// room, input.
    pub fn interest(&self, takes: bool) -> Readiness {
        Readiness { read: takes && !self.output.is_full(), write: !self.output.is_empty(), ..Readiness::NONE }
    }

    pub fn fill(&mut self) -> Result<Filled, Errno> {
        self.input.fill(self.socket.as_fd())
    }

    /// Sends as much of the output as the socket takes.
    pub fn flush(&mut self) -> Result<(), Errno> {
        self.output.flush(self.socket.as_fd())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        hang_up(self.fd());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    use std::io::IoSlice;
    use std::os::unix::net::UnixStream;

    fn pair() -> (Connection, UnixStream) {
        let (a, b) = UnixStream::pair().unwrap();
        (Connection::new(a.into()), b)
    }

    fn message(id: u16, body: usize) -> Vec<u8> {
        let header = Header { id, command: 9, size: (HEADER_LEN + body) as u32, ..Header::default() };
        let mut bytes = bytemuck::bytes_of(&header).to_vec();
        bytes.resize(HEADER_LEN + body, id as u8);
        bytes
    }

    fn send_with_fds(stream: &UnixStream, bytes: &[u8], count: usize) {
        let files: Vec<_> = (0..count).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        let fds: Vec<_> = files.iter().map(|f| f.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if count > 0 {
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        }
        net::sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
    }

    fn open_fds() -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }

    #[test]
    fn messages_survive_any_cut_and_keep_their_descriptors() {
        let (mut c, peer) = pair();
        // Messages without descriptors before and after; two messages with descriptors in a row.
        send_with_fds(&peer, &message(0, 40), 0);
        send_with_fds(&peer, &message(1, 3), 2);
        send_with_fds(&peer, &message(2, 0), 1);
        send_with_fds(&peer, &message(3, 9)[..7], 0);
        send_with_fds(&peer, &message(3, 9)[7..], 0);
        let mut seen = Vec::new();
        while c.fill().unwrap() != Filled::Empty {
            while let Some(m) = c.input.message().unwrap() {
                assert!(m.body.iter().all(|b| *b == m.header.id as u8));
                seen.push((m.header.id, m.body.len(), m.fds.len()));
            }
        }
        assert_eq!(seen, [(0, 40, 0), (1, 3, 2), (2, 0, 1), (3, 9, 0)]);
        drop(peer);
        assert_eq!(c.fill(), Ok(Filled::Closed));
    }

    #[test]
    fn a_flood_of_descriptors_within_one_message_is_closed() {
        let (mut c, peer) = pair();
        let bytes = message(1, 100);
        let before = open_fds();
        for byte in &bytes[..100] {
            send_with_fds(&peer, &[*byte], 16);
            let _ = c.fill().unwrap();
            assert!(c.input.message().unwrap().is_none());
        }
        // Other tests of this process may have a few descriptors open meanwhile.
        assert!(open_fds() <= before + 300, "{} after {before}", open_fds());
        send_with_fds(&peer, &bytes[100..], 0);
        let _ = c.fill().unwrap();
        assert_eq!(c.input.message().unwrap().unwrap().fds.len(), MAX_FDS);
    }

    #[test]
    fn more_descriptors_than_announced_are_reported_lost() {
        let (mut c, peer) = pair();
        send_with_fds(&peer, &message(1, 0), MAX_FDS + 5);
        assert_eq!(c.fill(), Ok(Filled::Bytes { drained: false, lost_fds: true }));
        assert_eq!(c.input.message().unwrap().unwrap().fds.len(), MAX_FDS);
    }

    #[test]
    fn hanging_up_resets_no_peer() {
        use std::io::Read;
        let (c, mut peer) = pair();
        send_with_fds(&peer, &message(1, 900), 3);
        send_with_fds(&peer, &message(2, 900), 0);
        drop(c);
        assert_eq!(peer.read(&mut [0; 8]).unwrap(), 0, "the end of the stream");
        let (a, mut peer) = UnixStream::pair().unwrap();
        send_with_fds(&peer, &message(1, 900), 0);
        drop(a);
        let reset = peer.read(&mut [0; 8]).unwrap_err();
        assert_eq!(reset.kind(), std::io::ErrorKind::ConnectionReset, "what it is there to prevent");
    }

    #[test]
    fn an_impossible_length_is_the_end() {
        let (mut c, peer) = pair();
        send_with_fds(&peer, &[0xff; 16], 0);
        c.fill().unwrap();
        assert_eq!(c.input.message().unwrap_err(), Desync(u32::MAX));
    }
}
