// SPDX-License-Identifier: MIT OR Apache-2.0
//! The network between guests: what goes through it is whole, how long it takes, and what a hostile node can do to it.

use rustix::net::sockopt::{set_socket_recv_buffer_size_force, set_socket_send_buffer_size};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, socket_with};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use telegraphos::{Node, Remote, ReplicaMode, Replicated, Rights, Segment};
use telegraphos_guest_tests::cli::{self, Failure, Line, Outcome, failed};
use telegraphos_guest_tests::lab;
use telegraphos_guest_tests::patience::becomes;
use telegraphos_wire::net::{BELL, FRAME_UNITS, HELLO, HELLO_UNITS, WORDS};
use telegraphos_wire::{UNIT, names};

pub(crate) const USAGE: &str = "\
tg-net: sockets between guests, checked and measured

Usage: tg-net serve [--pause MS]     answers the others, on port 7700; reads nothing for so long after the first MiB
       tg-net bulk ADDRESS MIB       sends so much by TCP, of which each byte is checked there
       tg-net measure ADDRESS        round trips by TCP and UDP, and bulk by TCP
       tg-net hear COUNT             waits for numbered broadcasts, of which none may be lost or come twice
       tg-net call COUNT NODES       sends them to so many other nodes, from 8 to 400 bytes; as root
       tg-net counters [DEVICE]      what the driver counts (as `ethtool -S`)
       tg-net hostile NODE           connects to a node's tg0 as another tg0 would, and writes garbage there
       tg-net deaf NODE              connects so, and reads nothing; at a line of its input, stores that end the node's
                                     watches; at the next one, once the node sends no more, a head of which there is none

Exit codes: 0 done, 1 something was lost or changed, 2 usage, 3 the network or the board refused.
";

const PORT: u16 = 7700;
const PATIENCE: Duration = Duration::from_secs(60);
/// What a connection is for: its first byte.
const ECHO: u8 = b'e';
const BULK: u8 = b'b';
/// Pieces of so many bytes; a byte goes back for each.
const PIECES: u8 = b'p';
const MIB: u64 = 1 << 20;
/// Between two looks at what another node has stored.
const PAUSE: Duration = Duration::from_millis(5);

pub(crate) fn run(mut line: Line) -> Outcome<()> {
    let mut pause = 0;
    while let Some(option) = line.next_option()? {
        match option.as_str() {
            "pause" => pause = line.number("--pause")?,
            _ => return Err(cli::unknown(&option)),
        }
    }
    let words = line.words();
    match words[..] {
        ["serve"] => serve(Duration::from_millis(pause)),
        ["bulk", to, mib] => {
            let (bytes, seconds) = bulk(address(to)?, cli::number("MIB", mib)?)?;
            println!("{bytes} bytes arrived as they were sent, in {seconds:.3} s");
            Ok(())
        }
        ["measure", to] => measure(address(to)?),
        ["hear", count] => hear(cli::number("COUNT", count)?),
        ["call", count, nodes] => call(cli::number("COUNT", count)?, cli::number("NODES", nodes)?),
        ["counters"] => counters("tg0"),
        ["counters", device] => counters(device),
        ["hostile", node] => hostile(cli::number("NODE", node)?),
        ["deaf", node] => deaf(cli::number("NODE", node)?),
        _ => Err(Failure::Usage(format!(
            "arguments {words:?}: expected serve, bulk, measure, hear, call, counters, hostile or deaf"
        ))),
    }
}

fn address(text: &str) -> Outcome<SocketAddr> {
    let address = text.parse::<Ipv4Addr>();
    let address =
        address.map_err(|e| Failure::Usage(format!("ADDRESS is {text:?}: {e}; expected such as 10.84.0.1")))?;
    Ok(SocketAddr::from((address, PORT)))
}

/// Bytes that differ from place to place.
struct Pattern(u64);

impl Pattern {
    fn new() -> Pattern {
        Pattern(0x9e37_79b9_7f4a_7c15)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            chunk.copy_from_slice(&self.0.to_le_bytes()[..chunk.len()]);
        }
    }
}

fn serve(pause: Duration) -> Outcome<()> {
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT));
    let udp = UdpSocket::bind(any).map_err(failed("UDP"))?;
    let tcp = TcpListener::bind(any).map_err(failed("TCP"))?;
    std::thread::spawn(move || {
        let mut bytes = [0; 1 << 16];
        while let Ok((length, from)) = udp.recv_from(&mut bytes) {
            // The other end sees what does not come back.
            let _ = udp.send_to(&bytes[..length], from);
        }
    });
    println!("serving");
    loop {
        let (stream, from) = tcp.accept().map_err(failed("TCP"))?;
        std::thread::spawn(move || match answer(stream, pause) {
            Ok(()) => {}
            Err(e) => eprintln!("tg-net: {from}: {e}"),
        });
    }
}

fn answer(mut stream: TcpStream, pause: Duration) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut kind = [0; 9];
    stream.read_exact(&mut kind)?;
    if kind[0] == ECHO {
        let mut word = [0; 8];
        loop {
            match stream.read_exact(&mut word) {
                Ok(()) => stream.write_all(&word)?,
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(()),
                Err(e) => return Err(e),
            }
        }
    }
    let mut left = u64::from_le_bytes(kind[1..].try_into().unwrap_or_default());
    if kind[0] == PIECES {
        while std::io::copy(&mut (&mut stream).take(left), &mut std::io::sink())? == left {
            stream.write_all(&[PIECES])?;
        }
        return Ok(());
    }
    let (mut pattern, mut wrong, mut whole) = (Pattern::new(), 0_u64, 0_u64);
    let (mut bytes, mut expected) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    while left > 0 {
        let part = left.min(bytes.len() as u64) as usize;
        stream.read_exact(&mut bytes[..part])?;
        pattern.fill(&mut expected[..part]);
        wrong += bytes[..part].iter().zip(&expected[..part]).filter(|(found, wanted)| found != wanted).count() as u64;
        left -= part as u64;
        whole += part as u64;
        if whole == MIB && !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }
    stream.write_all(&wrong.to_le_bytes())
}

fn connect(to: SocketAddr, kind: u8, bytes: u64) -> Outcome<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE).map_err(failed("TCP"))?;
    stream.set_nodelay(true).map_err(failed("TCP"))?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed("TCP"))?;
    let mut head = vec![kind];
    head.extend(bytes.to_le_bytes());
    stream.write_all(&head).map_err(failed("TCP"))?;
    Ok(stream)
}

/// Sends so much, and learns whether it was the same there; bytes and seconds.
fn bulk(to: SocketAddr, mib: u64) -> Outcome<(u64, f64)> {
    let bytes = mib * MIB;
    let mut stream = connect(to, BULK, bytes)?;
    let (mut pattern, mut part) = (Pattern::new(), vec![0; 1 << 16]);
    let begun = Instant::now();
    for _ in 0..bytes >> 16 {
        pattern.fill(&mut part);
        stream.write_all(&part).map_err(failed("TCP"))?;
    }
    let mut wrong = [0; 8];
    stream.read_exact(&mut wrong).map_err(failed("TCP"))?;
    let (wrong, seconds) = (u64::from_le_bytes(wrong), begun.elapsed().as_secs_f64());
    cli::check(wrong == 0, || format!("{wrong} of {bytes} bytes arrived changed"))?;
    Ok((bytes, seconds))
}

const ROUND_TRIPS: usize = 300;

/// The median of round trips, in microseconds.
fn median(mut once: impl FnMut(u64) -> Outcome<()>) -> Outcome<f64> {
    let mut times = Vec::new();
    for n in 0..ROUND_TRIPS as u64 {
        let begun = Instant::now();
        once(n)?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[ROUND_TRIPS / 2])
}

fn measure(to: SocketAddr) -> Outcome<()> {
    let mut stream = connect(to, ECHO, 0)?;
    let tcp = median(|n| {
        let mut word = [0; 8];
        stream.write_all(&n.to_le_bytes()).map_err(failed("TCP"))?;
        stream.read_exact(&mut word).map_err(failed("TCP"))
    })?;
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(failed("UDP"))?;
    socket.connect(to).map_err(failed("UDP"))?;
    socket.set_read_timeout(Some(PATIENCE)).map_err(failed("UDP"))?;
    let datagrams = |size: usize| {
        let (mut sent, mut back) = (vec![0; size], vec![0; size]);
        median(|n| {
            sent[..8].copy_from_slice(&n.to_le_bytes());
            socket.send(&sent).map_err(failed("UDP"))?;
            let length = socket.recv(&mut back).map_err(failed("UDP"))?;
            let same = length == size && sent == back;
            cli::check(same, || format!("a datagram of {size} bytes came back as {length} others"))
        })
    };
    let (udp, udp_1k) = (datagrams(8)?, datagrams(1024)?);
    let (bytes, seconds) = bulk(to, 16)?;
    let rate = bytes as f64 / MIB as f64 / seconds;
    println!("tcp_roundtrip_us={tcp:.1} udp_roundtrip_us={udp:.1} udp_1k_roundtrip_us={udp_1k:.1} tcp_mib_s={rate:.1}");
    Ok(())
}

/// Destination of broadcasts, on a port of their own.
const EVERYBODY: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 84, 255, 255), 7701);

/// Bytes of broadcasts that may wait to be sent, with what the kernel has around each. fq_codel, which most kernels
/// have in front of a device, throws away what has waited for 5 ms, but nothing while all that waits is no longer than
/// the longest frame (9014 bytes for tg0): the frames are a third of this.
const WAITING: usize = 18_000;

/// A datagram: its number, and as many more bytes as that says.
fn numbered(n: u64) -> Vec<u8> {
    let mut datagram = n.to_le_bytes().to_vec();
    datagram.resize(8 + (n % 393) as usize, n as u8);
    datagram
}

/// Sends them, and says how many other frames to groups have left `tg0` meanwhile, which are the kernel's own, and how
/// many nodes the driver has brought frames to groups to: as soon as each frame has reached each node, or none has
/// reached any for four seconds.
fn call(count: u64, nodes: u64) -> Outcome<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(failed("UDP"))?;
    socket.set_broadcast(true).map_err(failed("UDP"))?;
    // The kernel doubles it.
    set_socket_send_buffer_size(&socket, WAITING / 2).map_err(failed("SO_SNDBUF"))?;
    let reached = || -> Outcome<u64> { Ok(statistics("tg0")?.remove("tx_fanout").unwrap_or(0)) };
    // From a moment in which no frame is on its way: one that is seen must be counted, too.
    let (before, mut others) = loop {
        let (before, mut others) = (reached()?, Groups::of("tg0")?);
        std::thread::sleep(Duration::from_millis(50));
        if others.count()? == 0 && reached()? == before {
            break (before, others);
        }
    };
    for n in 0..count {
        socket.send_to(&numbered(n), EVERYBODY).map_err(failed("UDP"))?;
        others.count()?;
    }
    let (mut last, mut since) = (0, Instant::now());
    loop {
        let (others, reached) = (others.count()?, reached()? - before);
        if reached == (count + others) * nodes || reached == last && since.elapsed() > Duration::from_secs(4) {
            println!("others={others} reached={reached}");
            return Ok(());
        }
        if reached != last {
            (last, since) = (reached, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Frames to groups that leave a device and are no broadcast of this program's, as packet(7) sockets see them.
struct Groups {
    socket: OwnedFd,
    own: [u8; 6],
    frames: u64,
}

impl Groups {
    fn of(device: &str) -> Outcome<Groups> {
        let path = format!("/sys/class/net/{device}/address");
        let text = std::fs::read_to_string(&path).map_err(failed(&path))?;
        let parts: Vec<u8> = text.trim().split(':').filter_map(|part| u8::from_str_radix(part, 16).ok()).collect();
        let own = parts.try_into().map_err(|_| Failure::Refused(format!("{path} has {text:?}: expected six bytes")))?;
        // Frames of every protocol (ETH_P_ALL), of all devices, with their headers.
        let every = std::num::NonZeroU32::new(u32::from(3_u16.to_be())).map(Protocol::from_raw);
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, every);
        let socket = socket.map_err(failed("a packet socket, which needs root"))?;
        Ok(Groups { socket, own, frames: 0 })
    }

    fn count(&mut self) -> Outcome<u64> {
        // The headers of Ethernet, of IPv4 without options, and of UDP up to the port.
        let mut header = [0; 14 + 20 + 4];
        loop {
            header.fill(0);
            match rustix::net::recv(&self.socket, &mut header, RecvFlags::empty()) {
                Ok(_) => {
                    let ours =
                        header[12..14] == [8, 0] && header[23] == 17 && header[36..] == EVERYBODY.1.to_be_bytes();
                    self.frames += u64::from(header[0] & 1 == 1 && header[6..12] == self.own && !ours);
                }
                Err(rustix::io::Errno::AGAIN) => return Ok(self.frames),
                Err(e) => return Err(failed("a packet socket")(e)),
            }
        }
    }
}

fn hear(count: u64) -> Outcome<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, EVERYBODY.1)).map_err(failed("UDP"))?;
    // Room for all of them, which only root may have.
    set_socket_recv_buffer_size_force(&socket, 16 << 20).map_err(failed("SO_RCVBUFFORCE"))?;
    println!("hearing");
    let (mut heard, mut twice) = (std::collections::BTreeSet::new(), 0_u64);
    let mut bytes = [0; 1 << 10];
    // What comes twice comes soon: the last wait, which ends without a datagram, is short.
    let mut patience = PATIENCE;
    loop {
        socket.set_read_timeout(Some(patience)).map_err(failed("UDP"))?;
        let length = match socket.recv(&mut bytes) {
            Ok(length) => length,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            Err(e) => return Err(failed("UDP")(e)),
        };
        let number = bytes.first_chunk().map_or(u64::MAX, |number| u64::from_le_bytes(*number));
        cli::check(number < count && bytes[..length] == numbered(number)[..], || {
            format!("{length} bytes that begin with number {number}: they were not sent")
        })?;
        twice += u64::from(!heard.insert(number));
        if heard.len() as u64 == count {
            patience = Duration::from_secs(1);
        }
    }
    let n = heard.len() as u64;
    cli::check(n == count && twice == 0, || format!("{n} of {count} came, and {twice} came twice"))
}

/// Numbers and a buffer of the ioctl SIOCETHTOOL.
mod ethtool {
    pub(super) const IOCTL: libc::c_ulong = 0x8946;
    pub(super) const STRINGS: u32 = 0x1b;
    pub(super) const STATISTICS: u32 = 0x1d;
    pub(super) const NAME: usize = 32;
    /// More than any driver here has.
    pub(super) const MOST: usize = 256;

    #[repr(C)]
    pub(super) struct Request {
        pub(super) name: [u8; 16],
        pub(super) data: *mut u32,
        pub(super) rest: [u64; 2],
    }
}

/// One call: `buffer` begins with the command.
fn ask(socket: &UdpSocket, device: &str, buffer: &mut [u32]) -> Outcome<()> {
    use std::os::fd::AsRawFd;
    let mut request = ethtool::Request { name: [0; 16], data: buffer.as_mut_ptr(), rest: [0; 2] };
    let length = device.len().min(15);
    request.name[..length].copy_from_slice(&device.as_bytes()[..length]);
    // SAFETY: the request is a struct ifreq, and its buffer has room for MOST strings or numbers.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), ethtool::IOCTL as _, &mut request) };
    match result {
        0 => Ok(()),
        _ => Err(failed(device)(std::io::Error::last_os_error())),
    }
}

fn counters(device: &str) -> Outcome<()> {
    statistics(device)?.iter().for_each(|(name, value)| println!("{name}={value}"));
    Ok(())
}

/// What a driver counts, by name.
fn statistics(device: &str) -> Outcome<BTreeMap<String, u64>> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(failed("UDP"))?;
    let mut strings = vec![0_u32; 3 + ethtool::MOST * ethtool::NAME / 4];
    // The set of statistics.
    strings[..2].copy_from_slice(&[ethtool::STRINGS, 1]);
    ask(&socket, device, &mut strings)?;
    let mut numbers = vec![0_u32; 2 + 2 * ethtool::MOST];
    numbers[0] = ethtool::STATISTICS;
    ask(&socket, device, &mut numbers)?;
    let names: Vec<u8> = strings[3..].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let one = |n: usize| {
        let name = &names[n * ethtool::NAME..][..ethtool::NAME];
        let name = String::from_utf8_lossy(name.split(|byte| *byte == 0).next().unwrap_or_default());
        (name.into_owned(), u64::from(numbers[2 + 2 * n]) | u64::from(numbers[3 + 2 * n]) << 32)
    };
    Ok((0..(numbers[1] as usize).min(ethtool::MOST)).map(one).collect())
}

// What follows knows the layout of `guest-driver/module/net_base.h`.

const FRAMES: u64 = FRAME_UNITS * UNIT;

/// The segment where nodes find each other, or one whose name continues so.
fn hello_name(more: &str) -> String {
    format!("{}{HELLO}{more}", names::KERNEL)
}

/// What is written into a node's memory with so many bytes of frames: where, and what.
fn garbage(frames: u64) -> Vec<Vec<(u64, u64)>> {
    let tail = |value: u64| (0, value);
    let record = |at: u64, length: u64| (FRAMES + at, length);
    vec![
        // Tails outside, not aligned, and far away.
        vec![tail(frames)],
        vec![tail(24)],
        vec![tail(u64::MAX)],
        vec![tail(1 << 32 | 64)],
        // Lengths: none, short, longer than what is there, the longest, and nothing but skips.
        vec![record(0, 0), tail(64)],
        vec![record(64, 13), tail(128)],
        vec![record(128, 4096), tail(192)],
        vec![record(192, 0xffff_fff0), tail(256)],
        vec![record(256, 0xffff_ffff), tail(320)],
        // A frame whose header asks for a checksum and segments outside of it.
        vec![record(320, 64 | 0x0501 << 32), (FRAMES + 328, u64::MAX), tail(448)],
        // Short records: longer than what is there, with bits that mean nothing, with a checksum outside of the frame.
        vec![record(448, 0x8000_0000 | 500), tail(512)],
        vec![record(512, 0x9000_0000 | 20), tail(576)],
        vec![record(576, 0x8400_0000 | 20 | 511 << 10 | 127 << 19 | 0x0008 << 32), tail(640)],
        // Heads of which there are none: it writes on where it was.
        vec![(UNIT, u64::MAX)],
        vec![(UNIT, frames + 16)],
        vec![(UNIT, 7)],
        // A copy of its frames to all that no node has, and heads of that.
        vec![(FRAMES + frames + 8, u64::MAX), (FRAMES + frames, 7)],
        vec![(FRAMES + frames + 8, UNIT), (FRAMES + frames, 8)],
    ]
}

/// Has a node make a copy of this node's frames to all, and returns them.
fn be_copied(own: &Node, node: u16, sink: &Segment) -> Outcome<Replicated> {
    let name = hello_name(&format!(".all.{}", own.id()));
    let all = Replicated::create(own, &name, 2 * UNIT).replica_mode(ReplicaMode::Owner).create()?;
    let late = |_: &_| Failure::Check(format!("node {node} has not made a copy of the frames to all"));
    let join = becomes(PATIENCE, PAUSE, || Ok(sink.load::<u64>(sink.size() - WORDS)?), |join| *join != 0, late)?;
    // It begins at 0.
    all.store(UNIT + UNIT / 2 + 8 * u64::from(node), join << 16)?;
    Ok(all)
}

/// Where this node announces itself to another one.
struct Door {
    to: Remote,
    me: u64,
    /// Of what has been said.
    count: u64,
}

impl Door {
    fn open(own: &Node, node: u16) -> Outcome<Door> {
        let to = own.import(node, &hello_name("")).rights(Rights::WRITE).open()?;
        Ok(Door { to, me: u64::from(own.id()), count: 0 })
    }

    /// Says hello, or goodbye with a `cookie` of 0, and rings.
    fn say(&mut self, cookie: u32, echo: u64) -> Outcome<()> {
        self.count += 1;
        self.to.put64(self.me * 8, u64::from(cookie) << 32 | echo)?;
        self.to.put64(BELL, u64::from(std::process::id()) << 32 | self.count)?;
        Ok(self.to.quiet()?)
    }
}

/// Says hello as another node's driver would, and returns what it gives to write to, and its cookie.
fn befriend(own: &Node, node: u16, door: &mut Door, hello: &Segment) -> Outcome<(Remote, u64)> {
    let cookie = std::process::id() | 1;
    door.say(cookie, 0)?;
    let look = || Ok(hello.load::<u64>(u64::from(node) * 8)?);
    let late = |word: &u64| Failure::Check(format!("node {node} has not said hello: it says {word:#x}"));
    let echo = becomes(PATIENCE, PAUSE, look, |word| *word as u32 == cookie, late)? >> 32;
    door.say(cookie, echo)?;
    let rights = Rights(Rights::WRITE.0 | Rights::DMA.0);
    Ok((own.import(node, &hello_name(&format!(".of.{}", own.id()))).rights(rights).open()?, echo))
}

/// A connection with another node, as its driver has one.
struct Friend {
    own: Node,
    _hello: Segment,
    /// What it writes to. No frame there is read.
    sink: Segment,
    door: Door,
    ring: Remote,
    echo: u64,
}

impl Friend {
    fn of(node: u16) -> Outcome<Friend> {
        let own = lab::open_as_the_kernel()?;
        let none = Rights(0);
        let export = |name: &str, size: u64, rights: u16| {
            own.export(name, size).owner(Rights(rights)).others(none).create().map_err(Failure::from)
        };
        let hello = export(&hello_name(""), HELLO_UNITS * UNIT, Rights::WRITE.0)?;
        let sink = export(&hello_name(&format!(".of.{node}")), FRAMES + 8 * UNIT, Rights::WRITE.0 | Rights::DMA.0)?;
        let mut door = Door::open(&own, node)?;
        let (ring, echo) = befriend(&own, node, &mut door, &hello)?;
        Ok(Friend { own, _hello: hello, sink, door, ring, echo })
    }
}

/// Checks that what fills the last words of frames is zero: it would be of earlier frames, to any node.
fn check_padding(sink: &Segment, tail: u64) -> Outcome<()> {
    let (mut at, mut records) = (0, 0);
    while at < tail {
        let length: u32 = sink.load(FRAMES + at)?;
        let length = u64::from(length);
        // A short one, behind half of a record, is a store's.
        let (head, length) = if length & 1 << 31 != 0 { (8, length & 0x3ff) } else { (16, length) };
        let end = head + length;
        for byte in at + end..at + end.next_multiple_of(8) {
            let found: u8 = sink.load(FRAMES + byte)?;
            cli::check(found == 0, || {
                format!("behind record {records}, of {length} bytes, there is {found:#x} of an earlier one")
            })?;
        }
        (at, records) = (at + end.next_multiple_of(16), records + 1);
    }
    Ok(())
}

fn deaf(node: u16) -> Outcome<()> {
    let Friend { own, sink, door, ring, .. } = &mut Friend::of(node)?;
    // So that the node has nothing to try again.
    let _all = be_copied(own, node, sink)?;
    println!("connected");
    let mut lines = std::io::stdin().lines();
    lines.next();
    // Beside the bell, and beside the tail.
    door.to.put64(BELL + 8, 1)?;
    door.to.quiet()?;
    ring.put64(8, 1)?;
    ring.quiet()?;
    println!("rung");
    lines.next();
    let (mut tail, mut since) = (0, Instant::now());
    let look = || {
        let now: u64 = sink.load(0)?;
        if now != tail {
            (tail, since) = (now, Instant::now());
        }
        Ok((tail, since))
    };
    let over = |(tail, since): &(u64, Instant)| *tail != 0 && since.elapsed() >= Duration::from_secs(1);
    let (tail, _) = becomes(PATIENCE, 4 * PAUSE, look, over, |(tail, _)| {
        Failure::Check(format!("node {node} still sends, or nothing: it continues at {tail}"))
    })?;
    check_padding(sink, tail)?;
    ring.put64(UNIT, 7)?;
    ring.quiet()?;
    println!("full");
    lines.next();
    Ok(())
}

fn hostile(node: u16) -> Outcome<()> {
    // A copy of that would be most of what the node has; it does not make one.
    let whole = lab::open_as_the_kernel()?;
    let name = hello_name(&format!(".all.{}", whole.id()));
    let huge = Replicated::create(&whole, &name, 64 * UNIT).replica_mode(ReplicaMode::Owner).create()?;
    let Friend { own, sink, door, ring, echo, .. } = &mut Friend::of(node)?;
    let attacks = garbage(ring.size() - FRAMES - WORDS);
    let count = attacks.len();
    for stores in attacks {
        for (at, value) in stores {
            ring.put64(at, value)?;
        }
        ring.quiet()?;
        // So that it is seen before the next.
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(huge);
    let all = be_copied(own, node, sink)?;
    for stores in garbage(UNIT / 2) {
        for (at, value) in stores {
            match at {
                0 => all.store(0, value)?,
                FRAMES.. if at < FRAMES + UNIT / 2 => all.store(at - UNIT, value)?,
                _ => {}
            }
        }
        all.quiet()?;
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("{count} attacks");
    // Whatever the state of its memory is by now.
    for n in 0..2000_u64 {
        let random = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ring.put64(FRAMES + random % (ring.size() - FRAMES) / 8 * 8, random.rotate_left(17))?;
        if n % 16 == 0 {
            ring.put64(0, (random >> 20) % (ring.size() - FRAMES - WORDS) / 16 * 16)?;
        }
    }
    ring.quiet()?;
    // A goodbye that reads like the answer to a hello: there is nothing that the node could read any more.
    ring.put64(0, 64)?;
    ring.quiet()?;
    for _ in 0..4 {
        door.say(0, *echo)?;
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
