// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams to neighbours: TCP connections, over whatever network there is, which carry frames (postcard) in the records
//! of a [session](crate::session).
//!
//! A stream has a thread that reads and one that writes, frames in the order in which they came: that a process is lost
//! must not overtake what it has said. What waits to be written is on the account of the stream that it came by: while
//! that has more than [`ACCOUNT`] bytes there, nothing more is read from it, so that each has as much of the way as
//! others that want it. A stream that takes nothing, or says nothing, for [`PATIENCE`] is ended.

use crate::link::lock;
use crate::session::{Broken, FIRST, HELLO, Handshake, LENGTH, Opened, Opener, RECORD, Sealer, Side, record_length};
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use telegraphos_msg_core::Process;
use telegraphos_msg_core::far::{Frame, SILENCE};

/// How long a thread waits until a stream takes or says something, at most.
const PATIENCE: Duration = Duration::from_secs(SILENCE as u64);
/// The same, until both ends of a connection have identified themselves.
const HELLOS: Duration = Duration::from_secs(5);
/// The same, until a connection is there.
const CONNECT: Duration = Duration::from_secs(2);
/// How long the other end is waited for when this one has closed.
pub(crate) const LINGER: Duration = Duration::from_secs(2);
/// Bytes that came by a stream and wait to be written to others, until no more are read.
const ACCOUNT: u64 = 1 << 20;
/// Bytes of a frame.
const LONGEST: usize = 1 << 20;
/// Bytes of a slot that a frame has room for.
pub(crate) const LONGEST_BLOCK: u32 = 1 << 19;

/// Why a stream has ended, or has not begun.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Ended(pub(crate) String);

impl From<Broken> for Ended {
    fn from(broken: Broken) -> Ended {
        Ended(broken.to_string())
    }
}

type Result<T> = std::result::Result<T, Ended>;

fn failed(what: &str, why: impl std::fmt::Display) -> Ended {
    Ended(format!("{what}: {why}"))
}

/// Reads bytes until a moment, however slowly they come.
fn read_until(mut socket: &TcpStream, bytes: &mut [u8], end: Instant) -> io::Result<()> {
    let mut read = 0;
    while read < bytes.len() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(left))?;
        match socket.read(&mut bytes[read..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(more) => read += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Both directions of a connection whose ends know each other.
pub(crate) struct Session(Sealer, Opener);

/// Says hello to the other end of a connection, and has it show that it has the key, all in [`HELLOS`]. Until then it
/// is given a fixed amount of memory.
pub(crate) fn greet(mut socket: &TcpStream, side: Side, me: Process, key: &[u8]) -> Result<(Process, Session)> {
    greet_until(&mut socket, side, me, key, Instant::now() + HELLOS)
}

fn greet_until(
    socket: &mut &TcpStream,
    side: Side,
    me: Process,
    key: &[u8],
    end: Instant,
) -> Result<(Process, Session)> {
    let broken = |error: io::Error| failed("saying hello", error);
    // What is written here has room in an empty socket.
    socket.set_write_timeout(Some(HELLOS)).map_err(broken)?;
    socket.set_nodelay(true).map_err(broken)?;
    let mut handshake = Handshake::new(side, me, key)?;
    let mut hello = [0; HELLO];
    if side == Side::Connects {
        socket.write_all(&handshake.say()?).map_err(broken)?;
    }
    read_until(socket, &mut hello, end).map_err(|error| match (side, error.kind()) {
        // An end that accepts answers no hello that it does not understand.
        (Side::Connects, ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
            Ended("it has refused the hello: it has another key, or speaks another version of this protocol".into())
        }
        _ => broken(error),
    })?;
    let process = handshake.hear(&hello)?;
    if side == Side::Accepts {
        socket.write_all(&handshake.say()?).map_err(broken)?;
    }
    let (mut sealer, mut opener) = handshake.finish()?;
    match side {
        Side::Connects => socket.write_all(&sealer.first()?).map_err(broken)?,
        Side::Accepts => {
            let mut length = [0; LENGTH];
            let mut record = [0; FIRST];
            read_until(socket, &mut length, end).map_err(broken)?;
            if record_length(length)? != FIRST {
                return Err(Broken::Record.into());
            }
            read_until(socket, &mut record, end).map_err(broken)?;
            if opener.open(&record, LONGEST)? != Opened::First {
                return Err(Broken::Record.into());
            }
        }
    }
    socket.set_read_timeout(Some(PATIENCE)).map_err(broken)?;
    socket.set_write_timeout(Some(PATIENCE)).map_err(broken)?;
    Ok((process, Session(sealer, opener)))
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
pub(crate) struct Stream {
    socket: TcpStream,
    out: Mutex<Out>,
    more: Condvar,
    account: Arc<Account>,
    /// Its writer's.
    sealer: Mutex<Sealer>,
    /// Its reader's.
    opener: Mutex<Opener>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stream { socket, out, more: _, account, sealer: _, opener: _ } = self;
        let mut all = f.debug_struct("Stream");
        all.field("socket", socket).field("out", out).field("account", account).finish_non_exhaustive()
    }
}

impl Stream {
    pub(crate) fn new(socket: TcpStream, Session(sealer, opener): Session) -> Stream {
        let (sealer, opener) = (Mutex::new(sealer), Mutex::new(opener));
        Stream { socket, out: Mutex::default(), more: Condvar::new(), account: Arc::default(), sealer, opener }
    }

    /// Has a frame written, on the account of the stream that it came by.
    pub(crate) fn push(&self, frame: &Frame, of: Option<&Stream>) {
        // Into memory it does not fail.
        let Ok(bytes) = postcard::to_extend(frame, Vec::new()) else { return };
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
        if let Err(error) = self.write_all() {
            log::debug!("writing to a neighbour: {error}");
            self.end();
        }
    }

    fn write_all(&self) -> Result<()> {
        let broken = |error: io::Error| failed("writing", error);
        let mut sealer = lock(&self.sealer);
        loop {
            let mut out = lock(&self.out);
            let frame = loop {
                match (out.stage, out.frames.pop_front()) {
                    (Stage::Ended, _) => return Ok(()),
                    (Stage::Closing, None) => {
                        drop(out);
                        (&self.socket).write_all(&sealer.close()?).map_err(broken)?;
                        // What arrives at a socket that is closed has it drop what it has not sent yet.
                        self.socket.set_read_timeout(Some(LINGER)).map_err(broken)?;
                        return self.socket.shutdown(Shutdown::Write).map_err(broken);
                    }
                    (_, Some(frame)) => break frame,
                    (Stage::Open, None) => out = self.more.wait(out).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(out);
            (&self.socket).write_all(&sealer.frame(&frame.bytes)?).map_err(broken)?;
        }
    }

    /// The next frame, when there is room on its account; `None` if the other has closed the stream.
    pub(crate) fn read(&self) -> Result<Option<Frame>> {
        self.account.wait();
        let broken = |error: io::Error| match error.kind() {
            ErrorKind::UnexpectedEof => Ended("it was cut off: the other end has not closed it".into()),
            _ => failed("reading", error),
        };
        let mut opener = lock(&self.opener);
        let mut record = [0; RECORD];
        loop {
            let mut length = [0; LENGTH];
            (&self.socket).read_exact(&mut length).map_err(broken)?;
            let record = &mut record[..record_length(length)?];
            (&self.socket).read_exact(record).map_err(broken)?;
            match opener.open(record, LONGEST)? {
                Opened::More => {}
                Opened::First => return Err(Broken::Record.into()),
                Opened::Close => return Ok(None),
                Opened::Frame(bytes) => {
                    return postcard::from_bytes(&bytes)
                        .map(Some)
                        .map_err(|error| failed("a frame that is none", error));
                }
            }
        }
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
    use std::thread::{scope, sleep, spawn};
    use telegraphos_msg_core::far::{Body, Passage, Why, Word};

    const KEY: &[u8] = b"the key of both ends";

    fn process(node: u16) -> Process {
        Process { node, number: 7 }
    }

    /// Two ends of a connection.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let a = connect(&listener.local_addr().unwrap().to_string()).unwrap();
        (a, listener.accept().unwrap().0)
    }

    fn both(sockets: [&TcpStream; 2], keys: [&[u8]; 2], nodes: [u16; 2]) -> [Result<(Process, Session)>; 2] {
        let [a, b] = sockets;
        scope(|scope| {
            let accepts = scope.spawn(move || {
                greet(b, Side::Accepts, process(nodes[1]), keys[1]).inspect_err(|_| _ = b.shutdown(Shutdown::Both))
            });
            let connects =
                greet(a, Side::Connects, process(nodes[0]), keys[0]).inspect_err(|_| _ = a.shutdown(Shutdown::Both));
            [connects, accepts.join().unwrap()]
        })
    }

    /// Both ends of a stream.
    fn streams() -> (Stream, Stream) {
        let (a, b) = pair();
        let [x, y] = both([&a, &b], [KEY; 2], [0, 1]).map(|met| met.unwrap().1);
        (Stream::new(a, x), Stream::new(b, y))
    }

    fn said(met: Result<(Process, Session)>) -> String {
        met.map(|(process, _)| process).unwrap_err().to_string()
    }

    #[test]
    fn those_with_the_same_key_know_each_other() {
        let (a, b) = pair();
        let [a, b] = both([&a, &b], [KEY; 2], [0, 1]).map(|met| met.unwrap().0);
        assert_eq!((a, b), (process(1), process(0)));
    }

    #[test]
    fn another_key_and_this_process_itself_are_refused() {
        for (keys, nodes, wrong) in
            [([KEY, b"the key of the other"], [0, 1], "another key"), ([KEY; 2], [0, 0], "this process itself")]
        {
            let (a, b) = pair();
            let [a, b] = both([&a, &b], keys, nodes).map(said);
            assert!(b.contains(wrong), "{b}");
            assert!(a.contains("it has refused the hello"), "the reason is not sent: {a}");
        }
    }

    /// What an end that accepts makes of bytes, behind which nothing comes.
    fn accepts(bytes: &[u8], end: Duration) -> String {
        let (mut a, b) = pair();
        a.write_all(bytes).unwrap();
        said(greet_until(&mut &b, Side::Accepts, process(1), KEY, Instant::now() + end))
    }

    #[test]
    fn a_hello_that_never_comes_or_comes_byte_by_byte_has_a_limit() {
        let (limit, hello) = (Duration::from_millis(200), hello_of(0));
        for bytes in [&[][..], &hello[..1], &hello[..HELLO - 1], &hello] {
            let said = accepts(bytes, limit);
            assert!(said.starts_with("saying hello"), "{} bytes: {said}", bytes.len());
        }
        let (mut a, b) = pair();
        let slow = spawn(move || hello.iter().all(|byte| a.write_all(&[*byte]).map(|()| sleep(limit / 10)).is_ok()));
        let met = greet_until(&mut &b, Side::Accepts, process(1), KEY, Instant::now() + limit);
        assert!(said(met).starts_with("saying hello"));
        drop(b);
        assert!(!slow.join().unwrap(), "all of it was waited for");
    }

    fn hello_of(node: u16) -> [u8; HELLO] {
        Handshake::new(Side::Connects, process(node), KEY).unwrap().say().unwrap()
    }

    #[test]
    fn a_hello_that_is_said_twice_is_too_long_or_is_another_protocols_is_refused() {
        let (long, hello) = (Duration::from_secs(60), hello_of(0));
        for (bytes, wrong) in [
            ([&hello[..], &hello].concat(), "expected 17 to"),
            ([&hello[..], &[17, 0], &[0; 17]].concat(), "not the next one"),
            ([&hello[..], &[18, 0], &[0; 18]].concat(), "not the next one"),
            ([&hello[..], &[0, 0]].concat(), "expected 17 to"),
            (vec![b'x'; HELLO], "does not speak this protocol"),
            ([&b"tgmsg\0\0\x01"[..], &[0; HELLO]].concat(), "another version"),
            (hello_of(1).to_vec(), "this process itself"),
        ] {
            let said = accepts(&bytes, long);
            assert!(said.contains(wrong), "{said}");
        }
    }

    #[test]
    fn an_answer_that_repeats_the_hello_is_refused() {
        let (a, mut b) = pair();
        let echo = spawn(move || {
            let mut hello = [0; HELLO];
            b.read_exact(&mut hello).unwrap();
            b.write_all(&hello).unwrap();
        });
        assert!(said(greet(&a, Side::Connects, process(0), KEY)).contains("another key"));
        echo.join().unwrap();
    }

    fn frame(n: u64) -> Frame {
        let word = Word::Close(Why::Ended);
        Frame::Passage(Passage { path: vec![process(0), process(1)], at: 1, session: n, word })
    }

    fn long(marker: &[u8]) -> Frame {
        let body = Body::Bytes { number: 1, bytes: Some(marker.repeat(3000)) };
        Frame::Passage(Passage { path: vec![], at: 1, session: 1, word: Word::Body(0, body) })
    }

    /// What is done to a unit of a direction: the hello, or a record.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Wrong {
        Nothing,
        Flip,
        Drop,
        Repeat,
        Swap,
        Reflect,
        Cut,
    }

    /// The next unit.
    fn unit(mut from: &TcpStream, first: bool) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; if first { HELLO } else { LENGTH }];
        from.read_exact(&mut bytes)?;
        if !first {
            let length = usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
            bytes.resize(LENGTH + length, 0);
            from.read_exact(&mut bytes[LENGTH..])?;
        }
        Ok(bytes)
    }

    /// Passes one direction on, with one unit of it wrong; returns what has come.
    fn pass(mut from: &TcpStream, mut to: &TcpStream, wrong: Wrong, at: usize) -> Vec<u8> {
        let (mut all, mut held) = (Vec::new(), Vec::new());
        let mut run = || -> io::Result<()> {
            for n in 0.. {
                let mut bytes = unit(from, n == 0)?;
                all.extend(&bytes);
                match wrong {
                    _ if n != at => {}
                    Wrong::Flip => bytes.iter_mut().last().into_iter().for_each(|byte| *byte ^= 1),
                    Wrong::Drop => continue,
                    Wrong::Repeat => to.write_all(&bytes)?,
                    Wrong::Swap => {
                        held = bytes;
                        continue;
                    }
                    Wrong::Reflect => {
                        from.write_all(&bytes)?;
                        continue;
                    }
                    Wrong::Cut => return Ok(()),
                    Wrong::Nothing => {}
                }
                to.write_all(&bytes)?;
                to.write_all(&std::mem::take(&mut held))?;
            }
            Ok(())
        };
        // It ends with the connection.
        _ = run();
        _ = from.shutdown(Shutdown::Read);
        _ = to.shutdown(Shutdown::Write);
        all
    }

    /// The frames that an end has got, and whether the other has closed the stream behind them.
    fn use_stream(socket: TcpStream, met: Result<(Process, Session)>, frames: &[Frame]) -> (Vec<Frame>, bool) {
        let Ok((_, session)) = met else { return (Vec::new(), false) };
        let stream = Stream::new(socket, session);
        frames.iter().for_each(|frame| stream.push(frame, None));
        stream.close();
        let mut got = Vec::new();
        let closed = scope(|scope| {
            scope.spawn(|| stream.write());
            loop {
                match stream.read() {
                    Ok(Some(frame)) => got.push(frame),
                    end => break end.is_ok(),
                }
            }
        });
        stream.end();
        (got, closed)
    }

    /// Two ends with a party between them: what each has got, and the bytes of each direction.
    fn between(wrong: Wrong, direction: usize, at: usize, frames: &[Frame]) -> [(Vec<Frame>, bool, Vec<u8>); 2] {
        let ((a, x), (y, b)) = (pair(), pair());
        let of = |this: usize| if this == direction { wrong } else { Wrong::Nothing };
        scope(|scope| {
            let forth = scope.spawn(|| pass(&x, &y, of(0), at));
            let back = scope.spawn(|| pass(&y, &x, of(1), at));
            let [m, n] = both([&a, &b], [KEY; 2], [0, 1]);
            let other = scope.spawn(|| use_stream(b, n, frames));
            let (got_a, closed_a) = use_stream(a, m, frames);
            let (got_b, closed_b) = other.join().unwrap();
            [(got_b, closed_b, forth.join().unwrap()), (got_a, closed_a, back.join().unwrap())]
        })
    }

    #[test]
    fn a_party_in_between_reads_nothing_and_changes_nothing() {
        let marker = b"what no third party may read";
        let frames = [frame(1), long(marker), frame(2)];
        for (got, closed, bytes) in between(Wrong::Nothing, 0, 0, &frames) {
            assert!(got == frames && closed);
            assert!(bytes.len() > 3000 * marker.len());
            assert!(!bytes.windows(8).any(|window| window == &marker[5..13]), "the bytes of a message are readable");
        }
        for wrong in [Wrong::Flip, Wrong::Drop, Wrong::Repeat, Wrong::Swap, Wrong::Reflect, Wrong::Cut] {
            for direction in [0, 1] {
                // The hello, the first record, parts of a frame in between, and the close.
                let units = 1 + (1 - direction) + 2 + (3000 * marker.len()).div_ceil(16 << 10) + 1;
                for at in 1..units {
                    if (direction, at) == (0, 1) && [Wrong::Drop, Wrong::Swap, Wrong::Reflect].contains(&wrong) {
                        // Nothing comes in place of the first record, which has a limit of its own.
                        continue;
                    }
                    let ends = between(wrong, direction, at, &frames);
                    for (n, (got, closed, _)) in ends.iter().enumerate() {
                        assert!(frames.starts_with(got), "{wrong:?} of unit {at} has changed a message");
                        let whole = *closed && got.len() == frames.len();
                        // What is repeated behind a close is not read any more.
                        let unseen = wrong == Wrong::Repeat && at == units - 1;
                        assert!(
                            n != direction || unseen || !whole,
                            "{wrong:?} of unit {at}, direction {n}: not noticed"
                        );
                    }
                }
                if [Wrong::Flip, Wrong::Reflect, Wrong::Cut].contains(&wrong) {
                    let ends = between(wrong, direction, 0, &frames);
                    assert!(ends.iter().all(|(got, closed, _)| got.is_empty() && !closed), "{wrong:?} of a hello");
                }
            }
        }
    }

    #[test]
    fn a_connection_that_is_repeated_brings_nothing() {
        let [(_, _, recorded), _] = between(Wrong::Nothing, 0, 0, &[frame(1), frame(2)]);
        assert!(recorded.len() > HELLO + LENGTH + FIRST);
        let said = accepts(&recorded, Duration::from_secs(60));
        assert!(said.contains("not the next one"), "{said}");
    }

    #[test]
    fn frames_arrive_in_their_order_and_are_on_the_accounts_of_streams_that_they_came_by() {
        let ((to, from), (one, _one), (two, _two)) = (streams(), streams(), streams());
        let of = [Some(&one), Some(&two), None, Some(&one), None, Some(&two)];
        of.iter().zip(0..).for_each(|(of, n)| to.push(&frame(n), *of));
        let accounts = || [&one, &two].map(|stream| *lock(&stream.account.bytes));
        assert!(accounts()[0] > 0 && accounts()[0] == accounts()[1]);
        to.close();
        to.push(&Frame::Alive, None);
        to.write();
        let read: Vec<Frame> = std::iter::from_fn(|| from.read().unwrap()).collect();
        assert_eq!(read, [0, 1, 2, 3, 4, 5].map(frame));
        assert_eq!(accounts(), [0, 0]);
    }

    /// A socket that is closed drops what it has not sent yet as soon as something arrives.
    #[test]
    fn what_was_said_before_a_close_arrives() {
        let (to, from) = streams();
        let long = long(&[7; 20]);
        (0..20).for_each(|_| to.push(&long, None));
        to.close();
        from.push(&Frame::Alive, None);
        let ends = spawn(move || {
            to.write();
            // As its reader does.
            while to.read().is_ok_and(|frame| frame.is_some()) {}
            to.end();
        });
        sleep(Duration::from_millis(100));
        scope(|scope| {
            scope.spawn(|| from.write());
            sleep(Duration::from_millis(100));
            assert!((0..20).all(|_| from.read().is_ok_and(|frame| frame.as_ref() == Some(&long))));
            assert!(from.read().unwrap().is_none());
            from.end();
        });
        ends.join().unwrap();
    }

    #[test]
    fn what_waits_on_an_account_is_released_with_its_stream() {
        let ((to, _to), (of, _of)) = (streams(), streams());
        while *lock(&of.account.bytes) <= ACCOUNT {
            to.push(&frame(1), Some(&of));
        }
        scope(|scope| {
            let waits = scope.spawn(|| of.account.wait());
            to.end();
            waits.join().unwrap();
        });
        assert_eq!(*lock(&of.account.bytes), 0);
    }

    #[test]
    fn records_and_frames_that_are_none_are_refused() {
        let sealed = |stream: &Stream, bytes: &[u8]| lock(&stream.sealer).frame(bytes).unwrap();
        for (case, says) in [
            (0, "expected 17 to"),
            (1, "a frame that is none"),
            (2, "cut off"),
            (3, "cut off"),
            (4, "a frame of more than"),
            (5, "not the next one"),
        ] {
            let (a, from) = streams();
            let bytes = match case {
                0 => vec![0xff; 100],
                1 => sealed(&a, &[99]),
                2 => sealed(&a, &[0; 100])[..60].to_vec(),
                3 => vec![],
                4 => sealed(&a, &vec![0; LONGEST + 1]),
                _ => lock(&a.sealer).first().unwrap().repeat(2),
            };
            let writes = spawn(move || {
                // The other end may have seen enough.
                _ = (&a.socket).write_all(&bytes);
                a.end();
            });
            let said = from.read().unwrap_err().to_string();
            assert!(said.contains(says), "{said}");
            from.end();
            writes.join().unwrap();
        }
    }
}
