// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams to neighbours: TCP connections, over whatever network there is.
//!
//! ```text
//!   both say hello: MAGIC, their process, a random nonce
//!   both prove that they have the key: HMAC-SHA256 of who connected, and of both hellos
//!   frames: a length of four bytes, and as many bytes (postcard)
//! ```
//!
//! A stream has a thread that reads and one that writes, frames in the order in which they came: that a process is lost
//! must not overtake what it has said. What waits to be written is on the account of the stream that it came by: while
//! that has more than [`ACCOUNT`] bytes there, nothing more is read from it, so that each has as much of the way as
//! others that want it. A stream that takes nothing, or says nothing, for [`PATIENCE`] is ended.

use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use telegraphos_msg_core::Process;
use telegraphos_msg_core::far::{Frame, SILENCE};

/// Nobody waits for longer that a stream takes or says something.
const PATIENCE: Duration = Duration::from_secs(SILENCE as u64);
/// Nor for an answer to a hello.
const HELLO: Duration = Duration::from_secs(5);
/// Nor for a connection.
const CONNECT: Duration = Duration::from_secs(2);
/// How long the other end is waited for when this one has closed.
pub(crate) const LINGER: Duration = Duration::from_secs(2);
/// Bytes that came by a stream and wait to be written to others, until no more are read.
const ACCOUNT: u64 = 1 << 20;
/// Bytes of a frame.
const LONGEST: usize = 1 << 20;
/// Bytes of a slot that a frame has room for.
pub(crate) const LONGEST_BLOCK: u32 = 1 << 19;
const MAGIC: [u8; 8] = *b"tgmsg\0\0\x01";
const NONCE: usize = 32;
/// Of a hello: magic, node, number, nonce.
const GREETING: usize = MAGIC.len() + 2 + 4 + NONCE;

type Code = Hmac<Sha256>;

/// Why a stream has ended, or has not begun.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Ended(pub(crate) String);

type Result<T> = std::result::Result<T, Ended>;

/// Which end of a connection this one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Connects,
    Accepts,
}

fn failed(what: &str, why: impl std::fmt::Display) -> Ended {
    Ended(format!("{what}: {why}"))
}

fn greeting(me: Process) -> Result<[u8; GREETING]> {
    let mut bytes = [0; GREETING];
    let (head, nonce) = bytes.split_at_mut(GREETING - NONCE);
    head[..8].copy_from_slice(&MAGIC);
    head[8..10].copy_from_slice(&me.node.to_le_bytes());
    head[10..].copy_from_slice(&me.number.to_le_bytes());
    rustix::rand::getrandom(nonce, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| failed("asking for random numbers", errno))?;
    Ok(bytes)
}

/// Who says such a hello.
fn greeted(bytes: &[u8; GREETING]) -> Option<Process> {
    let number = [bytes[10], bytes[11], bytes[12], bytes[13]];
    let process = Process { node: u16::from_le_bytes([bytes[8], bytes[9]]), number: u32::from_le_bytes(number) };
    (bytes[..8] == MAGIC).then_some(process)
}

/// What the end of that side proves that it has the key by.
fn code(key: &[u8], side: Side, its: &[u8; GREETING], others: &[u8; GREETING]) -> Code {
    // A key may have any length.
    let mut code = Code::new_from_slice(key).unwrap_or_else(|_| unreachable!("HMAC takes all keys"));
    code.update(&[side as u8]);
    code.update(its);
    code.update(others);
    code
}

/// Says hello to the other end of a connection, and has it prove that it has the key.
pub(crate) fn greet(socket: &mut TcpStream, side: Side, me: Process, key: &[u8]) -> Result<Process> {
    let other = match side {
        Side::Connects => Side::Accepts,
        Side::Accepts => Side::Connects,
    };
    let mut exchange = || -> std::io::Result<Result<Process>> {
        socket.set_read_timeout(Some(HELLO))?;
        socket.set_write_timeout(Some(HELLO))?;
        socket.set_nodelay(true)?;
        let mine = match greeting(me) {
            Ok(mine) => mine,
            Err(error) => return Ok(Err(error)),
        };
        socket.write_all(&mine)?;
        let mut theirs = [0; GREETING];
        socket.read_exact(&mut theirs)?;
        let Some(process) = greeted(&theirs) else {
            return Ok(Err(Ended("what is there does not speak this protocol, or another version".into())));
        };
        socket.write_all(&code(key, side, &mine, &theirs).finalize().into_bytes())?;
        let mut proof = [0; 32];
        socket.read_exact(&mut proof)?;
        if code(key, other, &theirs, &mine).verify_slice(&proof).is_err() {
            return Ok(Err(Ended("it has another key".into())));
        }
        if process == me {
            return Ok(Err(Ended("that is this process itself".into())));
        }
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Ok(process))
    };
    exchange().map_err(|error| failed("saying hello", error))?
}

/// Connects to an address, HOST:PORT.
pub(crate) fn connect(address: &str) -> Result<TcpStream> {
    let found: Vec<SocketAddr> = address.to_socket_addrs().map_err(|error| failed("finding it", error))?.collect();
    let mut last = Ended("it has no address".into());
    for address in found {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = failed("connecting to it", error),
        }
    }
    Err(last)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes that came by a stream and wait to be written.
#[derive(Debug, Default)]
struct Account {
    bytes: Mutex<u64>,
    less: Condvar,
}

impl Account {
    fn add(&self, bytes: usize) {
        *lock(&self.bytes) += bytes as u64;
    }

    fn take(&self, bytes: usize) {
        *lock(&self.bytes) -= bytes as u64;
        self.less.notify_all();
    }

    /// Waits until there is room. What it waits for is written, or its streams end.
    fn wait(&self) {
        let mut bytes = lock(&self.bytes);
        while *bytes > ACCOUNT {
            bytes = self.less.wait(bytes).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A frame that waits to be written.
#[derive(Debug)]
struct Written {
    bytes: Vec<u8>,
    account: Option<Arc<Account>>,
}

impl Drop for Written {
    fn drop(&mut self) {
        if let Some(account) = &self.account {
            account.take(self.bytes.len());
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Open,
    /// What waits is written, and nothing else.
    Closing,
    Ended,
}

#[derive(Debug, Default)]
struct Out {
    frames: VecDeque<Written>,
    stage: Stage,
}

/// A stream to a neighbour.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: TcpStream,
    out: Mutex<Out>,
    more: Condvar,
    account: Arc<Account>,
}

impl Stream {
    pub(crate) fn new(socket: TcpStream) -> Stream {
        Stream { socket, out: Mutex::default(), more: Condvar::new(), account: Arc::default() }
    }

    /// Has a frame written, on the account of the stream that it came by.
    pub(crate) fn push(&self, frame: &Frame, of: Option<&Stream>) {
        let mut bytes = vec![0; 4];
        // Into memory it does not fail.
        bytes = postcard::to_extend(frame, bytes).unwrap_or_default();
        let Ok(length) = u32::try_from(bytes.len().saturating_sub(4)) else { return };
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        let account = of.map(|stream| stream.account.clone());
        let mut out = lock(&self.out);
        if out.stage != Stage::Open {
            return;
        }
        if let Some(account) = &account {
            account.add(bytes.len());
        }
        out.frames.push_back(Written { bytes, account });
        self.more.notify_all();
    }

    /// Writes frames until the stream ends.
    pub(crate) fn write(&self) {
        loop {
            let mut out = lock(&self.out);
            let frame = loop {
                match (out.stage, out.frames.pop_front()) {
                    (Stage::Ended, _) => return,
                    (Stage::Closing, None) => {
                        // What arrives at a socket that is closed has it drop what it has not sent yet.
                        _ = self.socket.set_read_timeout(Some(LINGER));
                        _ = self.socket.shutdown(Shutdown::Write);
                        return;
                    }
                    (_, Some(frame)) => break frame,
                    (Stage::Open, None) => out = self.more.wait(out).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(out);
            if (&self.socket).write_all(&frame.bytes).is_err() {
                self.end();
                return;
            }
        }
    }

    /// The next frame, when there is room on its account.
    pub(crate) fn read(&self) -> Result<Frame> {
        self.account.wait();
        let mut length = [0; 4];
        (&self.socket).read_exact(&mut length).map_err(|error| failed("reading", error))?;
        let length = u32::from_le_bytes(length) as usize;
        if length > LONGEST {
            return Err(Ended(format!("a frame of {length} bytes: expected at most {LONGEST}")));
        }
        let mut bytes = Vec::new();
        let read = (&self.socket).take(length as u64).read_to_end(&mut bytes);
        if read.map_err(|error| failed("reading", error))? < length {
            return Err(Ended("it ended in the middle of a frame".into()));
        }
        postcard::from_bytes(&bytes).map_err(|error| failed("a frame that is none", error))
    }

    /// Nothing more is written after what waits. It ends when the other does, which is a matter of [`LINGER`].
    pub(crate) fn close(&self) {
        let mut out = lock(&self.out);
        if out.stage == Stage::Open {
            out.stage = Stage::Closing;
        }
        self.more.notify_all();
    }

    /// Ends at once.
    pub(crate) fn end(&self) {
        let waiting = {
            let mut out = lock(&self.out);
            out.stage = Stage::Ended;
            std::mem::take(&mut out.frames)
        };
        self.more.notify_all();
        // Their accounts have room again.
        drop(waiting);
        // It may have been ended by the other.
        _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// Waits for a while, in small steps; false as soon as it is over.
pub(crate) fn pause(time: Duration, over: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < time {
        if over() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    !over()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use telegraphos_msg_core::far::{Body, Passage, Why, Word};

    fn process(node: u16) -> Process {
        Process { node, number: 7 }
    }

    /// Two ends of a connection.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let a = connect(&listener.local_addr().unwrap().to_string()).unwrap();
        (a, listener.accept().unwrap().0)
    }

    fn both(keys: [&[u8]; 2], processes: [Process; 2]) -> [Result<Process>; 2] {
        let (mut a, mut b) = pair();
        std::thread::scope(|scope| {
            let accepts = scope.spawn(move || greet(&mut b, Side::Accepts, processes[1], keys[1]));
            [greet(&mut a, Side::Connects, processes[0], keys[0]), accepts.join().unwrap()]
        })
    }

    #[test]
    fn those_with_the_same_key_know_each_other() {
        let [a, b] = both([b"the key of both ends"; 2], [process(0), process(1)]);
        assert_eq!((a.unwrap(), b.unwrap()), (process(1), process(0)));
    }

    #[test]
    fn another_key_and_this_process_itself_are_refused() {
        let [a, b] = both([b"the key of one end..", b"the key of the other"], [process(0), process(1)]);
        for refused in [a, b] {
            assert!(refused.unwrap_err().to_string().contains("another key"));
        }
        let [a, b] = both([b"the key of both ends"; 2], [process(0), process(0)]);
        for refused in [a, b] {
            assert!(refused.unwrap_err().to_string().contains("this process itself"));
        }
    }

    #[test]
    fn what_repeats_a_hello_or_says_another_is_refused() {
        for echoes in [true, false] {
            let (mut a, mut b) = pair();
            let echo = std::thread::spawn(move || {
                let mut hello = [0; GREETING];
                b.read_exact(&mut hello).unwrap();
                b.write_all(&if echoes { hello } else { [b'x'; GREETING] }).unwrap();
                let mut proof = [0; 32];
                // It ends at once if that was no hello.
                if b.read_exact(&mut proof).is_ok() {
                    b.write_all(&proof).unwrap();
                }
            });
            let said = greet(&mut a, Side::Connects, process(0), b"the key of both ends").unwrap_err().to_string();
            assert!(said.contains(if echoes { "another key" } else { "does not speak this protocol" }), "{said}");
            drop(a);
            echo.join().unwrap();
        }
    }

    fn frame(n: u64) -> Frame {
        let word = Word::Close(Why::Ended);
        Frame::Passage(Passage { path: vec![process(0), process(1)], at: 1, session: n, word })
    }

    #[test]
    fn frames_arrive_in_their_order_and_are_on_the_accounts_of_streams_that_they_came_by() {
        let (a, b) = pair();
        let [to, one, two] = [a, pair().0, pair().0].map(Stream::new);
        let of = [Some(&one), Some(&two), None, Some(&one), None, Some(&two)];
        of.iter().zip(0..).for_each(|(of, n)| to.push(&frame(n), *of));
        let accounts = || [&one, &two].map(|stream| *lock(&stream.account.bytes));
        assert!(accounts()[0] > 0 && accounts()[0] == accounts()[1]);
        to.close();
        to.push(&Frame::Alive, None);
        to.write();
        let from = Stream::new(b);
        let read: Vec<Frame> = std::iter::from_fn(|| from.read().ok()).collect();
        assert_eq!(read, [0, 1, 2, 3, 4, 5].map(frame));
        assert_eq!(accounts(), [0, 0]);
    }

    /// A socket that is closed drops what it has not sent yet as soon as something arrives.
    #[test]
    fn what_was_said_before_a_close_arrives() {
        let (a, mut b) = pair();
        let to = Stream::new(a);
        let body = Body::Bytes { number: 1, bytes: Some(vec![7; 1 << 16]) };
        let long = Frame::Passage(Passage { path: vec![], at: 1, session: 1, word: Word::Body(0, body) });
        (0..20).for_each(|_| to.push(&long, None));
        to.close();
        let ends = std::thread::spawn(move || {
            to.write();
            // As its reader does.
            while to.read().is_ok() {}
            to.end();
        });
        std::thread::sleep(Duration::from_millis(100));
        b.write_all(&[1, 0, 0, 0, 2]).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let from = Stream::new(b);
        assert!((0..20).all(|_| from.read().is_ok_and(|frame| frame == long)));
        assert!(from.read().is_err());
        drop(from);
        ends.join().unwrap();
    }

    #[test]
    fn what_waits_on_an_account_is_given_up_with_its_stream() {
        let [to, of] = [pair().0, pair().0].map(Stream::new);
        while *lock(&of.account.bytes) <= ACCOUNT {
            to.push(&frame(1), Some(&of));
        }
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| of.account.wait());
            to.end();
            waits.join().unwrap();
        });
        assert_eq!(*lock(&of.account.bytes), 0);
    }

    #[test]
    fn frames_that_are_none_are_refused() {
        let long = (LONGEST as u32 + 1).to_le_bytes();
        for (bytes, says) in [
            (&long[..], "expected at most"),
            (&[1, 0, 0, 0, 99], "a frame that is none"),
            (&[9, 0, 0, 0, 1], "in the middle of a frame"),
            (&[1, 0], "reading"),
        ] {
            let (mut a, b) = pair();
            a.write_all(bytes).unwrap();
            drop(a);
            let said = Stream::new(b).read().unwrap_err().to_string();
            assert!(said.contains(says), "{said}");
        }
    }
}
