// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the fabric's `tests/conformance.rs` does not require of every transport: restarts, silence, many peers of one
//! socket, unknown peers.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::faults::{FaultPlan, LinkFaults};
use crate::{Acceptor, Options, Received, Transport, TransportStatistics, UnixAcceptor};

/// A clock that runs when a test says so, in steps of what it waits.
struct Clock(u64);

impl Clock {
    /// Waits until one of these is readable or a time has come; the time passes by leaps.
    fn wait(&mut self, fds: &[BorrowedFd<'_>], deadlines: &[Option<u64>]) {
        let mut polled: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut polled, Some(&none)).unwrap() == 0 {
            // Not longer than a second, so that no wait is for an event that does not come.
            let next = deadlines.iter().flatten().min().copied().unwrap_or(self.0 + 1_000_000);
            self.0 = next.clamp(self.0, self.0 + 1_000_000) + 1;
        }
    }
}

/// One end and what it has to send and has got.
#[derive(Debug)]
struct End {
    transport: Box<dyn Transport>,
    out: Vec<u8>,
    got: Vec<u8>,
    ended: bool,
    failed: Option<io::Error>,
    drained: bool,
}

impl End {
    fn new(transport: Box<dyn Transport>, out: &[u8]) -> End {
        End { transport, out: out.to_vec(), got: Vec::new(), ended: false, failed: None, drained: false }
    }

    /// What the contract requires of the caller after an event.
    fn turn(&mut self, now: u64) {
        let mut buffer = [0; 5000];
        while !self.ended && self.failed.is_none() {
            match self.transport.receive(now, &mut buffer) {
                Ok(Received::Bytes(count)) => self.got.extend_from_slice(&buffer[..count]),
                Ok(Received::Nothing) => break,
                Ok(Received::End) => self.ended = true,
                Err(e) => self.failed = Some(e),
            }
        }
        let taken = self.transport.send(now, &self.out).unwrap();
        self.out.drain(..taken);
        self.drained = self.transport.flush(now).unwrap() && self.out.is_empty();
    }
}

fn udp(at: &str) -> DatagramAddress {
    DatagramAddress::Udp(at.parse().unwrap())
}

struct World {
    clock: Clock,
    acceptor: Box<dyn Acceptor>,
    address: DatagramAddress,
    options: Options,
    clients: Vec<End>,
    servers: Vec<End>,
    say: Vec<u8>,
    _dir: tempfile::TempDir,
}

impl World {
    fn new(kind: &str, options: Options) -> World {
        let dir = tempfile::tempdir().unwrap();
        let address = match kind {
            "udp" => udp("127.0.0.1:0"),
            _ => DatagramAddress::Unix(dir.path().join("s")),
        };
        let acceptor = DatagramAcceptor::bind(&address, &options).unwrap();
        let address = acceptor.address().clone();
        let (clients, servers, say) = (Vec::new(), Vec::new(), Vec::new());
        World { clock: Clock(5), acceptor: Box::new(acceptor), address, options, clients, servers, say, _dir: dir }
    }

    fn open(&mut self, name: u64, out: &[u8]) -> usize {
        let options = Options { name, ..self.options.clone() };
        self.clients.push(End::new(Box::new(DatagramTransport::connect(&self.address, &options).unwrap()), out));
        self.clients.len() - 1
    }

    fn step(&mut self) {
        let ends = || self.clients.iter().chain(&self.servers);
        let mut fds: Vec<_> = ends().map(|end| end.transport.fd()).collect();
        let mut deadlines: Vec<_> = ends().map(|end| end.transport.deadline()).collect();
        fds.push(self.acceptor.fd());
        deadlines.push(self.acceptor.deadline());
        self.clock.wait(&fds, &deadlines);
        let now = self.clock.0;
        while let Some(transport) = self.acceptor.accept(now).unwrap() {
            self.servers.push(End::new(transport, &self.say));
        }
        self.clients.iter_mut().chain(&mut self.servers).for_each(|end| end.turn(now));
    }

    #[track_caller]
    fn until(&mut self, what: &str, done: impl Fn(&World) -> bool) {
        for _ in 0..200_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!("never: {what}; clients {:?}, servers {:?}", shape(&self.clients), shape(&self.servers));
    }
}

fn shape(ends: &[End]) -> Vec<(usize, usize, bool, &Option<io::Error>, TransportStatistics)> {
    ends.iter().map(|e| (e.out.len(), e.got.len(), e.ended, &e.failed, e.transport.statistics())).collect()
}

fn text(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|n| (n as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3] ^ seed).collect()
}

const KINDS: [&str; 2] = ["udp", "unix"];

fn faults(plan: &str) -> Options {
    let plan: FaultPlan = plan.parse().unwrap();
    Options { faults: Some(LinkFaults::new("test", 7).with(plan)), ..Options::default() }
}

fn reason(end: &End) -> &'static str {
    end.transport.end_reason().unwrap_or("no reason")
}

#[test]
fn i16_streams_cross_faults_and_end_behind_their_last_byte() {
    for kind in KINDS {
        for plan in ["", "loss=5% corrupt=1%", "loss=10% corrupt=5% duplicate=5% reorder=5% latency=1ms jitter=300us"] {
            let mut world = World::new(kind, faults(plan));
            let (up, down) = (text(1, 300_000), text(2, 200_000));
            world.say.clone_from(&down);
            world.open(0, &up);
            world.until("all of it", |w| {
                w.servers.iter().any(|s| s.got.len() == 300_000 && s.drained) && w.clients[0].got.len() == 200_000
            });
            assert!(world.servers[0].got == up && world.clients[0].got == down, "{kind} {plan}");
            let statistics = world.clients[0].transport.statistics();
            assert_eq!((statistics.sent_bytes, statistics.received_bytes), (300_000, 200_000));
            assert_eq!(plan.is_empty(), statistics.faults == 0, "{statistics:?}");
            assert!(plan.is_empty() || statistics.retransmitted > 0 && statistics.rejected > 0, "{statistics:?}");
            world.until("everything acknowledged", |w| w.clients[0].drained);
            if plan.is_empty() {
                world.clients.clear();
                world.until("the end", |w| w.servers[0].ended);
            }
        }
    }
}

#[test]
fn what_was_flushed_is_delivered_before_the_end_either_way() {
    for kind in KINDS {
        let mut world = World::new(kind, Options::default());
        world.open(0, &text(3, 9000));
        world.until("set up", |w| !w.servers.is_empty() && w.servers[0].got.len() == 9000);
        world.servers[0].out = text(4, 20_000);
        let now = world.clock.0;
        world.servers[0].turn(now);
        // The transport is gone, the socket is not: what it had sent is still sent again if need be.
        world.servers.clear();
        world.until("the end", |w| w.clients[0].ended);
        assert_eq!(world.clients[0].got, text(4, 20_000), "{kind}");
    }
}

#[test]
fn i16_a_restarted_client_ends_its_old_connection_and_the_acceptor_gives_a_new_one() {
    for kind in KINDS {
        let link = LinkFaults::new("test", 7);
        let mut world = World::new(kind, Options { faults: Some(link.clone()), ..Options::default() });
        world.open(42, b"old");
        world.until("set up", |w| w.servers.iter().any(|s| s.got == b"old"));
        // The first life ends silently: nothing passes while it does.
        link.set("down".parse().unwrap());
        world.clients.clear();
        link.set(FaultPlan::default());
        world.open(42, b"new");
        world.until("notified", |w| w.servers.len() == 2 && w.servers[1].got == b"new" && w.servers[0].ended);
        assert!(reason(&world.servers[0]).contains("was restarted"), "{kind}");
        assert!(world.clock.0 < 1_000_000, "{kind}: at once, not by silence");
        // Another peer's connection replaces none.
        world.open(43, b"other");
        world.until("a third", |w| w.servers.len() == 3 && w.servers[2].got == b"other");
        assert!(!world.servers[1].ended && world.servers[1].transport.end_reason().is_none());
    }
}

#[test]
fn i16_a_restarted_server_is_reported_to_its_clients() {
    for kind in KINDS {
        let link = LinkFaults::new("test", 7);
        let mut world = World::new(kind, Options { faults: Some(link.clone()), ..Options::default() });
        world.open(0, b"old");
        world.until("set up", |w| w.servers.iter().any(|s| s.got == b"old"));
        link.set("down".parse().unwrap());
        world.servers.clear();
        // The old socket first: its port and its file are free then.
        world.acceptor = Box::new(DatagramAcceptor::bind(&udp("127.0.0.1:0"), &world.options).unwrap());
        world.acceptor = Box::new(DatagramAcceptor::bind(&world.address, &world.options).unwrap());
        link.set(FaultPlan::default());
        world.clients[0].out = b"for the dead".to_vec();
        world.until("notified", |w| w.clients[0].ended);
        // A caller that continues to send after the end does not wait for room.
        let dead = &mut world.clients[0].transport;
        assert_eq!(dead.send(world.clock.0, &[0; 1_000_000]).unwrap(), 1_000_000);
        assert!(dead.flush(world.clock.0).unwrap());
        assert!(reason(&world.clients[0]).contains("was restarted"), "{kind}");
        assert!(world.servers.is_empty());
        world.open(0, b"new");
        world.until("a new one", |w| w.servers.iter().any(|s| s.got == b"new"));
    }
}

#[test]
fn silence_says_so() {
    for kind in KINDS {
        let link = LinkFaults::new("test", 7);
        let mut world = World::new(kind, Options { faults: Some(link.clone()), ..Options::default() });
        link.set("down".parse().unwrap());
        world.open(0, b"hello?");
        let begun = world.clock.0;
        world.until("declared down", |w| w.clients[0].failed.is_some());
        let failed = world.clients[0].failed.take().unwrap();
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
        assert!(failed.to_string().contains(&format!("nothing answers at {}", world.address)), "{failed}");
        assert!((10_000_000..11_000_000).contains(&(world.clock.0 - begun)));
        link.set(FaultPlan::default());
        world.clients.clear();
        world.open(0, b"hello");
        world.until("set up", |w| w.servers.iter().any(|s| s.got == b"hello"));
        link.set("down".parse().unwrap());
        world.until("declared down", |w| w.clients[0].ended && w.servers[0].ended);
        for end in [&world.clients[0], &world.servers[0]] {
            assert!(reason(end).contains("nothing came"), "{kind}");
        }
    }
}

#[test]
fn an_idle_connection_stays() {
    let mut world = World::new("udp", Options::default());
    world.open(0, b"hello");
    world.until("an hour", |w| w.clock.0 > 3_600_000_000);
    world.servers[0].out = b"still here".to_vec();
    world.until("bytes", |w| w.clients[0].got == b"still here");
}

#[test]
fn one_socket_serves_many_peers() {
    for kind in KINDS {
        let mut world = World::new(kind, faults("loss=2%"));
        world.say = text(9, 10_000);
        for n in 0..30 {
            world.open(u64::from(n), &text(n, 10_000));
        }
        world.until("all", |w| {
            let whole = |end: &End| end.got.len() == 10_000;
            w.servers.len() == 30 && w.servers.iter().all(whole) && w.clients.iter().all(whole)
        });
        let mut seen: Vec<_> = world.servers.iter().map(|s| s.got.clone()).collect();
        seen.sort();
        let mut sent: Vec<_> = (0..30).map(|n| text(n, 10_000)).collect();
        sent.sort();
        assert!(seen == sent && world.clients.iter().all(|c| c.got == text(9, 10_000)), "{kind}");
    }
}

#[test]
fn a_peer_that_does_not_read_stops_its_sender_and_no_one_else() {
    for kind in KINDS {
        let options = Options { buffer: 20_000, ..Options::default() };
        let mut world = World::new(kind, options);
        world.open(1, b"first");
        world.until("set up", |w| w.servers.len() == 1);
        let mut stuck = world.servers.pop().unwrap();
        world.clients[0].out = text(5, 1_000_000);
        world.open(2, &text(6, 100_000));
        world.until("the other", |w| w.servers.iter().any(|s| s.got.len() == 100_000));
        for _ in 0..100 {
            world.step();
        }
        let waiting = world.clients[0].out.len();
        assert!(waiting > 1_000_000 - 20_000 * 2 - 64 * 8192, "{kind}: {waiting} bytes wait at the sender");
        // It reads again, and gets all of it.
        stuck.turn(world.clock.0);
        world.servers.push(stuck);
        world.until("the rest", |w| w.servers.iter().any(|s| s.got.len() == 1_000_005));
    }
}

#[test]
fn bytes_that_are_left_keep_the_descriptor_readable() {
    for kind in KINDS {
        let mut world = World::new(kind, Options::default());
        world.say = text(7, 100);
        world.open(0, &text(8, 100));
        let readable = |fd: BorrowedFd<'_>| {
            let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
        };
        world.until("set up", |w| w.servers.iter().any(|s| s.drained) && w.clients[0].drained);
        let now = world.clock.0;
        for end in [&mut world.clients[0].transport, &mut world.servers[0].transport] {
            assert_eq!(end.send(now, &[1; 50]).unwrap(), 50);
            end.flush(now).unwrap();
        }
        // The server takes all datagrams out of its socket on behalf of another connection.
        assert!(world.acceptor.accept(now).unwrap().is_none());
        for end in [&mut world.clients[0].transport, &mut world.servers[0].transport] {
            let mut byte = [0];
            for n in 0..50 {
                assert!(readable(end.fd()), "{kind}: {n} bytes read of 50");
                assert_eq!(end.receive(now, &mut byte).unwrap(), Received::Bytes(1));
            }
            assert_eq!(end.receive(now, &mut byte).unwrap(), Received::Nothing);
            end.flush(now).unwrap();
        }
    }
}

#[test]
fn unknown_peers_are_counted_and_harm_no_connection() {
    let mut world = World::new("udp", Options::default());
    world.open(0, b"hello");
    world.until("set up", |w| w.servers.len() == 1);
    let DatagramAddress::Udp(at) = world.address.clone() else { panic!("not UDP") };
    let unknown = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for n in 0..300usize {
        unknown.send_to(&text(n as u8, n * 7), (at.host.as_str(), at.port)).unwrap();
        if n % 50 == 0 {
            world.step();
        }
    }
    world.clients[0].out = b"more".to_vec();
    world.until("bytes", |w| w.servers[0].got == b"hellomore");
    assert_eq!(world.servers.len(), 1);
}

#[test]
fn addresses_that_cannot_be_used_say_why() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::default();
    let connect = DatagramTransport::connect;
    let listen = DatagramAcceptor::bind;
    let error = |result: Result<(), crate::OpenError>| result.unwrap_err().to_string();
    let missing = DatagramAddress::Unix(dir.path().join("none"));
    let text = error(connect(&missing, &options).map(drop));
    assert!(text.contains("is the process that listens there running?") && text.contains("none"), "{text}");
    let world = World::new("udp", Options::default());
    let text = error(listen(&world.address, &options).map(drop));
    assert!(text.contains("another process has this port"), "{text}");
    let text = error(listen(&udp("192.0.2.1:7000"), &options).map(drop));
    assert!(text.contains("this host does not have this address"), "{text}");
    // A file with mode 0600, which goes with the acceptor; a live one is refused.
    let path = dir.path().join("s");
    let acceptor = listen(&DatagramAddress::Unix(path.clone()), &options).unwrap();
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let text = error(listen(&DatagramAddress::Unix(path.clone()), &options).map(drop));
    assert!(text.contains("another process is listening"), "{text}");
    let text = error(UnixAcceptor::bind(&path, &options).map(drop));
    assert!(text.contains("another process is listening"), "{text}");
    drop(acceptor);
    assert!(!path.exists());
}
