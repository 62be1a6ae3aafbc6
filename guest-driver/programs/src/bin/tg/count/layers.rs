// SPDX-License-Identifier: MIT OR Apache-2.0
//! What it takes to hand over a message, and to send and receive one: by the layer of messages, and by the system's
//! sockets over `tg0`.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;
use telegraphos::Node;
use telegraphos_guest_tests::cli::{self, Failure, Outcome, refused};
use telegraphos_guest_tests::mark;
use telegraphos_msg::{Config, Endpoint, Memory, Messages, Options, Pattern, Progress, Thread};

/// Of `tg-net serve`.
const PORT: u16 = 7700;
const PATIENCE: Duration = Duration::from_secs(30);
const SHORT: usize = 8;
const LONGER: usize = 1024;
/// What goes to a slot, at most.
const SLOT: usize = 4096;
/// What boards fetch.
const LONG: usize = 64 << 10;
const LONGEST: usize = 1 << 20;
/// The region in which pages are touched that are watched.
const WATCH: u16 = 40;

/// A process that sends messages back (`tg-msg echo`), and one that sends bytes back (`tg-net serve`), or takes them.
pub(crate) struct Layers {
    messages: Messages,
    to: Endpoint,
    socket: TcpStream,
    /// What is sent to a slot, and room for what comes back, up to a whole page.
    slots: [(Vec<u8>, Vec<u8>); 2],
    /// What boards fetch and what comes back: it is registered for the first message.
    fetched: [(Memory, Memory); 2],
    pieces: [(TcpStream, Vec<u8>); 2],
}

impl Layers {
    pub(crate) fn of(node: u16, name: &str, address: Ipv4Addr) -> Outcome<Layers> {
        // No thread of this process looks for answers while something is counted.
        // What is counted goes to slots whatever is faster.
        let config = Config { eager_floor: u64::MAX, ..Config::default() };
        let options = Options { progress: Progress::Blocking, ..config.into() };
        let messages = Messages::open(Node::open()?, options).map_err(refused)?;
        let process = messages.find(node, name).map_err(refused)?;
        // All that comes after it is sent back.
        let socket = connect(address, b"e--------")?;
        let slots = [SHORT, SLOT].map(|length| (vec![0; length], vec![0; 2 * SLOT]));
        let fetched = [LONG, LONGEST].map(|length| (vec![0; length].into(), vec![0; length].into()));
        let pieces = |length: usize| -> Outcome<(TcpStream, Vec<u8>)> {
            let head = [&b"p"[..], &(length as u64).to_le_bytes()].concat();
            Ok((connect(address, &head)?, vec![7; length]))
        };
        let pieces = [pieces(LONG)?, pieces(LONGEST)?];
        Ok(Layers { messages, to: Endpoint { process, thread: 1 }, socket, slots, fetched, pieces })
    }

    pub(crate) fn all(&mut self) -> Outcome<()> {
        let thread = self.messages.thread(1).map_err(refused)?;
        message::<24>(&thread, self.to, SHORT)?;
        message::<25>(&thread, self.to, LONGER)?;
        bytes::<26>(&mut self.socket, SHORT)?;
        bytes::<27>(&mut self.socket, LONGER)?;
        let [short, slot] = &mut self.slots;
        by_slot::<28, 29>(&thread, self.to, short)?;
        by_slot::<30, 31>(&thread, self.to, slot)?;
        let [long, longest] = &mut self.fetched;
        by_boards::<32, 33, 38>(&thread, self.to, long)?;
        by_boards::<34, 35, 39>(&thread, self.to, longest)?;
        let [long, longest] = &mut self.pieces;
        piece::<36>(long)?;
        piece::<37>(longest)
    }
}

fn connect(address: Ipv4Addr, head: &[u8]) -> Outcome<TcpStream> {
    let connected = TcpStream::connect_timeout(&SocketAddr::from((address, PORT)), PATIENCE);
    let mut socket = connected.map_err(refused)?;
    let ready = socket.set_nodelay(true).and_then(|()| socket.set_read_timeout(Some(PATIENCE)));
    ready.and_then(|()| socket.write_all(head)).map_err(refused)?;
    Ok(socket)
}

/// A message until the other thread has it, and its way back until this one has it. If it has a page, that to which it
/// comes back is watched.
fn by_slot<const SENT: u16, const RECEIVED: u16>(
    thread: &Thread<'_>,
    to: Endpoint,
    (bytes, room): &mut (Vec<u8>, Vec<u8>),
) -> Outcome<()> {
    let page = room.as_ptr().align_offset(SLOT);
    let back = &mut room[page..][..bytes.len()];
    fill_anew(bytes);
    mark::watch::<WATCH>(back);
    mark::begin::<SENT>();
    let sent = thread.send(to, 0, bytes);
    mark::end::<SENT>();
    sent.map_err(refused)?;
    mark::begin::<RECEIVED>();
    let received = thread.receive_timeout(Pattern::exactly(to, 0), back, PATIENCE);
    mark::end::<RECEIVED>();
    received.map_err(refused)?;
    came_back(bytes.len(), *bytes == back)
}

/// The same with memory that boards fetch, which is watched at both ends. The check that both have the same bytes has a
/// region of its own.
fn by_boards<const SENT: u16, const RECEIVED: u16, const CHECKED: u16>(
    thread: &Thread<'_>,
    to: Endpoint,
    (bytes, back): &mut (Memory, Memory),
) -> Outcome<()> {
    fill_anew(bytes);
    mark::watch::<WATCH>(bytes);
    mark::watch::<WATCH>(back);
    mark::begin::<SENT>();
    let sent = thread.send_dma(to, 0, std::mem::take(bytes), back.len()).and_then(|handle| {
        let ended = handle.wait();
        *bytes = ended.memory;
        ended.outcome
    });
    mark::end::<SENT>();
    sent.map_err(refused)?;
    mark::begin::<RECEIVED>();
    let received = thread.receive_dma(Pattern::exactly(to, 0), std::mem::take(back)).and_then(|handle| {
        let ended = handle.wait();
        *back = ended.memory;
        ended.outcome
    });
    mark::end::<RECEIVED>();
    received.map_err(refused)?;
    mark::begin::<CHECKED>();
    let same = **bytes == **back;
    mark::end::<CHECKED>();
    came_back(bytes.len(), same)
}

/// Other bytes than the last time's.
fn fill_anew(bytes: &mut [u8]) {
    let next = bytes[0].wrapping_add(1);
    bytes.fill(next);
}

fn came_back(length: usize, same: bool) -> Outcome<()> {
    cli::check(same, || format!("{length} other bytes than those that were sent have come back"))
}

/// Bytes to a socket, which the kernel has taken then.
fn piece<const REGION: u16>((socket, bytes): &mut (TcpStream, Vec<u8>)) -> Outcome<()> {
    mark::watch::<WATCH>(bytes);
    mark::begin::<REGION>();
    let sent = socket.write_all(bytes);
    mark::end::<REGION>();
    sent.and_then(|()| socket.read_exact(&mut [0])).map_err(refused)
}

fn message<const REGION: u16>(thread: &Thread<'_>, to: Endpoint, length: usize) -> Outcome<()> {
    let (bytes, mut back) = (vec![7; length], vec![0; length]);
    mark::begin::<REGION>();
    let sent = thread.send_copy(to, 0, &bytes);
    mark::end::<REGION>();
    sent.map_err(refused)?.wait().outcome.map_err(refused)?;
    thread.receive_timeout(Pattern::exactly(to, 0), &mut back, PATIENCE).map_err(refused)?;
    Ok(())
}

fn bytes<const REGION: u16>(socket: &mut TcpStream, length: usize) -> Outcome<()> {
    let (bytes, mut back) = (vec![7; length], vec![0; length]);
    mark::begin::<REGION>();
    let sent = socket.write(&bytes);
    mark::end::<REGION>();
    let sent = sent.map_err(refused)?;
    cli::must(sent == length, Failure::Refused, || format!("a socket took {sent} of {length} bytes at once"))?;
    socket.read_exact(&mut back).map_err(refused)
}
