// SPDX-License-Identifier: MIT OR Apache-2.0
//! QUIC as a pipe of bytes: order, back-pressure, many connections on one socket, wake-ups, and the same below faults.

use std::io;
use std::net::UdpSocket;

use crate::support::pki::Cluster;
use crate::support::{Clock, Peer, at, options, pattern, run};
use telegraphos_quic::{Options, QuicAcceptor, QuicOptions, QuicTransport};
use telegraphos_testkit::scale;
use telegraphos_transport::faults::LinkFaults;
use telegraphos_transport::{Acceptor, Received};

fn listen(options: &Options) -> (QuicAcceptor, u16) {
    let acceptor = QuicAcceptor::bind(&at(0), options).unwrap();
    let port = acceptor.local().port();
    (acceptor, port)
}

fn connect(port: u16, options: &Options) -> Peer {
    Peer::new(Box::new(QuicTransport::connect(&at(port), options).unwrap()))
}

fn seed() -> u64 {
    let seed = telegraphos_testkit::seed_or(20_011_121);
    println!("TELEGRAPHOS_SEED={seed}");
    seed
}

/// Two connected ends, by these options of each, and the acceptor of the second.
fn pair(a: &Options, b: &Options) -> (Clock, Vec<Peer>, QuicAcceptor) {
    let clock = Clock::new();
    let (mut acceptor, port) = listen(b);
    let mut peers = vec![connect(port, a)];
    run(&clock, &mut peers, Some(&mut acceptor), |peers| peers.len() == 2 && peers[0].transport.peer().is_some());
    (clock, peers, acceptor)
}

/// `sha256:` and the fingerprint of a process's certificate.
fn fingerprint(of: &QuicOptions) -> String {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    use sha2::Digest;
    let certificate = CertificateDer::from_pem_file(&of.certificate).unwrap();
    telegraphos_quic::Peer::Pinned(sha2::Sha256::digest(&certificate).into()).to_string()
}

/// The options of two ends in one cluster, whose files are there as long as it is.
fn two() -> (Cluster, Options, Options) {
    let cluster = Cluster::new();
    let (a, b) = (options(cluster.process("a", &["b"])), options(cluster.process("b", &["a"])));
    (cluster, a, b)
}

/// Sends `len` bytes both ways in pieces of these sizes and checks them.
fn exchange(clock: &Clock, peers: &mut Vec<Peer>, len: usize, pieces: [usize; 2], seed: u64) {
    for (at, piece) in pieces.into_iter().enumerate() {
        peers[at].piece = piece;
        peers[at].to_send = pattern(seed + at as u64, len);
        peers[at].sent = 0;
        peers[at].received.clear();
        peers[at].send(clock.now()).unwrap();
    }
    run(clock, peers, None, |peers| {
        peers.iter().all(|p| p.received.len() == len) || peers.iter().any(|p| p.over.is_some())
    });
    for (at, other) in [(0, 1), (1, 0)] {
        assert!(peers[at].over.is_none(), "{:?}", peers[at].over);
        assert!(peers[at].received == peers[other].to_send, "end {at} received other bytes than were sent");
    }
}

#[test]
fn bytes_arrive_in_order_each_once_both_ways() {
    let (_cluster, a, b) = two();
    let (clock, mut peers, _acceptor) = pair(&a, &b);
    assert_eq!(peers[0].transport.peer().unwrap(), "b");
    assert_eq!(peers[1].transport.peer().unwrap(), "a");
    let seed = seed();
    for pieces in [[1 << 16, 1 << 16], [1, 700], [100_000, 3]] {
        exchange(&clock, &mut peers, 20_000, pieces, seed);
    }
    exchange(&clock, &mut peers, scale(2 << 20, 64 << 20), [1 << 16, 1 << 16], seed);
    let statistics = peers[0].transport.statistics();
    assert_eq!(statistics.received_bytes, statistics.sent_bytes);
    assert!(statistics.sent_datagrams > 0 && statistics.received_datagrams > 0);
}

#[test]
fn i16_the_same_under_loss_corruption_doubling_and_reordering_below() {
    let (_cluster, mut a, mut b) = two();
    let seed = seed();
    let plan = "loss=5% corrupt=1% duplicate=2% reorder=2% latency=200us jitter=100us";
    let link = LinkFaults::new("a-b", seed).with(plan.parse().unwrap());
    (a.common.faults, b.common.faults) = (Some(link.clone()), Some(link.clone()));
    let (clock, mut peers, _acceptor) = pair(&a, &b);
    exchange(&clock, &mut peers, scale(300_000, 5_000_000), [1 << 16, 5000], seed);
    let statistics = peers[0].transport.statistics();
    assert!(statistics.faults > 0 && statistics.retransmitted > 0, "{statistics:?}");
}

#[test]
fn who_reads_too_slowly_holds_up_the_sender() {
    let (_cluster, mut a, mut b) = two();
    a.common.buffer = 64 << 10;
    b.common.buffer = 64 << 10;
    let (clock, mut peers, mut acceptor) = pair(&a, &b);
    let bytes = pattern(seed(), 1 << 20);
    peers[0].to_send = bytes.clone();
    let mut receiver = peers.pop().unwrap();
    peers[0].send(clock.now()).unwrap();
    // The receiving end is driven by its acceptor, but does not read.
    let mut before = 0;
    for _ in 0..20 {
        let until = clock.now() + 10_000;
        run(&clock, &mut peers, Some(&mut acceptor), |_| clock.now() > until);
        before = peers[0].sent;
    }
    assert!(before <= 128 << 10, "{before} bytes wait for a peer that does not read");
    assert!(!peers[0].transport.flush(clock.now()).unwrap(), "there is no room for more");
    receiver.piece = 1000;
    peers.push(receiver);
    run(&clock, &mut peers, None, |peers| peers[1].received.len() == bytes.len());
    assert!(peers[1].received == bytes);
}

#[test]
fn what_was_sent_before_the_end_arrives_before_the_end() {
    let (_cluster, a, b) = two();
    for dropped in [0, 1] {
        let (clock, mut peers, acceptor) = pair(&a, &b);
        let mut gone = peers.remove(dropped);
        gone.to_send = pattern(seed(), 10_000);
        gone.send(clock.now()).unwrap();
        let sent = gone.to_send.clone();
        // Without an acceptor, which would continue to serve it, too.
        drop(acceptor);
        // The receiver does not read yet, but what is acknowledged will be read.
        while !(gone.sent == 10_000 && gone.transport.flush(clock.now()).unwrap()) {
            let due = [gone.transport.deadline(), peers[0].transport.deadline()];
            clock.sleep(&[gone.transport.fd()], &due);
            gone.turn(clock.now());
            peers[0].transport.flush(clock.now()).unwrap();
        }
        let start = clock.now();
        drop(gone);
        run(&clock, &mut peers, None, |peers| peers[0].over.is_some());
        assert!(matches!(peers[0].over, Some(Ok(()))), "{:?}", peers[0].over);
        assert!(clock.now() - start < b.common.silence / 2, "it was noticed by silence only");
        assert!(peers[0].received == sent, "{} of 10000 bytes", peers[0].received.len());
        // It stays so, and what is sent now goes nowhere.
        let now = clock.now();
        assert_eq!(peers[0].transport.receive(now, &mut [0; 9]).unwrap(), Received::End);
        assert_eq!(peers[0].transport.send(now, b"more").unwrap(), 4);
        peers[0].transport.flush(now).unwrap();
    }
}

#[test]
fn a_peer_that_is_dropped_in_the_middle_still_says_goodbye() {
    let (_cluster, a, b) = two();
    for dropped in [0, 1] {
        let (clock, mut peers, acceptor) = pair(&a, &b);
        let mut gone = peers.remove(dropped);
        drop(acceptor);
        // Far more than may be under way at once.
        gone.to_send = pattern(seed(), 200_000);
        let start = clock.now();
        gone.send(clock.now()).unwrap();
        let sent = std::mem::take(&mut gone.to_send);
        drop(gone);
        run(&clock, &mut peers, None, |peers| peers[0].over.is_some());
        assert!(matches!(peers[0].over, Some(Ok(()))), "{:?}", peers[0].over);
        assert!(clock.now() - start < b.common.silence / 2, "it was noticed by silence only");
        assert!(sent.starts_with(&peers[0].received));
    }
}

#[test]
fn a_dropped_connection_lingers_until_lost_datagrams_are_sent_again() {
    let (_cluster, mut a, mut b) = two();
    let link = LinkFaults::new("a-b", seed());
    (a.common.faults, b.common.faults) = (Some(link.clone()), Some(link.clone()));
    let (clock, mut peers, mut acceptor) = pair(&a, &b);
    let mut gone = peers.pop().unwrap();
    gone.to_send = pattern(3, 5000);
    link.set("loss=100%".parse().unwrap());
    gone.send(clock.now()).unwrap();
    let sent = gone.to_send.clone();
    drop(gone);
    link.set("".parse().unwrap_or_default());
    run(&clock, &mut peers, Some(&mut acceptor), |peers| peers[0].over.is_some());
    assert!(peers[0].received == sent, "{} of 5000 bytes", peers[0].received.len());
}

#[test]
fn one_socket_serves_many_and_no_wake_up_is_lost() {
    let cluster = Cluster::new();
    let names: Vec<String> = (0..12).map(|n| format!("a{n}")).collect();
    let b = options(cluster.process("b", &names.iter().map(String::as_str).collect::<Vec<_>>()));
    let clock = Clock::new();
    let (mut acceptor, port) = listen(&b);
    let clients: Vec<Options> = names.iter().map(|name| options(cluster.process(name, &["b"]))).collect();
    let mut peers: Vec<Peer> = clients.iter().map(|options| connect(port, options)).collect();
    let count = peers.len();
    run(&clock, &mut peers, Some(&mut acceptor), |peers| peers.len() == 2 * count);
    assert_eq!(Acceptor::statistics(&acceptor).accepted, count as u64);
    drop(acceptor);
    // Each accepted one echoes.
    let mut echoing = peers.split_off(count);
    for (n, peer) in peers.iter_mut().enumerate() {
        peer.to_send = pattern(seed() + n as u64, 30_000);
    }
    let done = |peers: &Vec<Peer>| peers[..count].iter().all(|p| p.received.len() == p.to_send.len());
    peers.append(&mut echoing);
    for peer in &mut peers[..count] {
        peer.send(clock.now()).unwrap();
    }
    run(&clock, &mut peers, None, |peers| {
        for peer in &mut peers[count..] {
            let arrived = std::mem::take(&mut peer.received);
            if !arrived.is_empty() {
                peer.to_send.extend(arrived);
                peer.send(clock.now()).unwrap();
            }
        }
        done(peers)
    });
    for peer in &peers[..count] {
        assert!(peer.received == peer.to_send);
    }
}

#[test]
fn who_reads_for_all_wakes_the_others() {
    let cluster = Cluster::new();
    let b = options(cluster.process("b", &["a1", "a2"]));
    let clock = Clock::new();
    let (mut acceptor, port) = listen(&b);
    let mut peers = vec![connect(port, &options(cluster.process("a1", &["b"])))];
    run(&clock, &mut peers, Some(&mut acceptor), |peers| peers.len() == 2);
    peers.push(connect(port, &options(cluster.process("a2", &["b"]))));
    run(&clock, &mut peers, Some(&mut acceptor), |peers| peers.len() == 4);
    // Everything that is under way settles.
    let quiet = clock.now() + 200_000;
    run(&clock, &mut peers, Some(&mut acceptor), |_| clock.now() > quiet);
    peers[0].to_send = b"for the first".to_vec();
    let now = clock.now();
    peers[0].send(now).unwrap();
    // Only the second accepted one, and the acceptor, are called; both find nothing.
    for _ in 0..3 {
        assert!(clock.sleep(&[peers[3].transport.fd()], &[Some(now + 1_000_000)])[0] || !peers[3].received.is_empty());
        peers[3].turn(clock.now());
        if clock.sleep(&[peers[1].transport.fd()], &[Some(0)])[0] {
            break;
        }
    }
    assert!(peers[3].received.is_empty());
    assert!(acceptor.accept(clock.now()).unwrap().is_none());
    // The first has been woken, stays woken until it has looked, and is quiet then.
    for _ in 0..3 {
        assert!(clock.sleep(&[peers[1].transport.fd()], &[Some(0)])[0]);
    }
    peers[1].turn(clock.now());
    assert_eq!(peers[1].received, b"for the first");
    let idle = peers.iter().map(|p| p.transport.fd()).skip(1).collect::<Vec<_>>();
    assert!(!clock.sleep(&idle, &[Some(0)])[0], "nothing stays readable");
}

#[test]
fn an_idle_connection_is_kept_and_does_not_spin() {
    // Long enough for a machine that has other things to do.
    let silence = 2_000_000;
    let (_cluster, mut a, mut b) = two();
    (a.common.silence, b.common.silence) = (silence, silence);
    let (clock, mut peers, mut acceptor) = pair(&a, &b);
    let until = clock.now() + 5 * silence / 2;
    let mut turns = 0;
    run(&clock, &mut peers, Some(&mut acceptor), |_| {
        turns += 1;
        clock.now() > until
    });
    assert!(peers.iter().all(|p| p.over.is_none()), "{:?} {:?}", peers[0].over, peers[1].over);
    // Keep-alives every third of the silence from both ends, their acknowledgements, and some path discovery.
    assert!(turns < 400, "{turns} turns of an idle loop");
}

#[test]
fn a_peer_that_is_cut_off_ends_after_the_silence() {
    let (_cluster, mut a, mut b) = two();
    let link = LinkFaults::new("a-b", seed());
    for options in [&mut a, &mut b] {
        options.common.silence = 200_000;
        options.common.faults = Some(link.clone());
    }
    let (clock, mut peers, mut acceptor) = pair(&a, &b);
    exchange(&clock, &mut peers, 1000, [100, 100], 1);
    link.set("down".parse().unwrap());
    run(&clock, &mut peers, Some(&mut acceptor), |peers| peers.iter().all(|p| p.over.is_some()));
    assert!(peers.iter().all(|p| p.transport.end_reason() == Some("the peer fell silent")));
    assert!(peers.iter().all(|p| matches!(p.over, Some(Ok(())))), "{:?} {:?}", peers[0].over, peers[1].over);
}

#[test]
fn a_restarted_listener_tells_old_peers_at_once_and_serves_new_ones() {
    let (_cluster, a, b) = two();
    let clock = Clock::new();
    // A process cannot die inside a test. So it falls silent, and the new one, with the same key, is behind the same
    // relay.
    let (mut before, old_port) = listen(&b);
    let (mut reborn, new_port) = listen(&b);
    let mut relay = Relay::new(old_port, new_port);
    let mut peers = vec![connect(relay.port(), &a)];
    relay.run(&clock, &mut peers, &mut before, |peers| peers.len() == 2);
    let dead = peers.split_off(1);
    relay.switch();
    let killed = clock.now();
    peers[0].to_send = pattern(1, 5000);
    peers[0].send(killed).unwrap();
    relay.run(&clock, &mut peers, &mut reborn, |peers| peers[0].over.is_some());
    assert!(matches!(peers[0].over, Some(Ok(()))), "{:?}", peers[0].over);
    assert_eq!(peers[0].transport.end_reason(), Some("the peer was restarted"));
    assert!(clock.now() - killed < b.common.silence / 2, "found out before the silence was over");
    let mut peers = vec![connect(new_port, &a)];
    run(&clock, &mut peers, Some(&mut reborn), |peers| peers.len() == 2);
    drop((dead, before));
}

#[test]
fn a_restarted_connecting_end_is_a_new_connection_beside_the_old() {
    let (_cluster, a, b) = two();
    let (clock, mut peers, mut acceptor) = pair(&a, &b);
    // Killed: it never says so.
    let silent = peers.remove(0);
    peers.push(connect(acceptor.local().port(), &a));
    run(&clock, &mut peers, Some(&mut acceptor), |peers| peers.len() == 3);
    assert_eq!(peers[2].transport.peer().unwrap(), "a");
    assert!(peers[0].over.is_none(), "only silence ends the old one");
    let mut new = peers.split_off(1);
    exchange(&clock, &mut new, 5000, [500, 500], 4);
    drop(silent);
}

/// Passes datagrams between one connecting end and a listener, and can be switched to another listener or another own
/// address.
struct Relay {
    front: UdpSocket,
    back: UdpSocket,
    client: Option<std::net::SocketAddr>,
    ports: [u16; 2],
}

impl Relay {
    fn new(first: u16, second: u16) -> Relay {
        let bind = || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        Relay { front: bind(), back: bind(), client: None, ports: [first, second] }
    }

    fn port(&self) -> u16 {
        self.front.local_addr().unwrap().port()
    }

    fn switch(&mut self) {
        self.ports.reverse();
    }

    /// From now on the listener sees another address.
    fn move_address(&mut self) {
        self.back = Relay::new(0, 0).back;
    }

    fn pass(&mut self) {
        let mut buffer = vec![0; 65_536];
        while let Ok((len, from)) = self.front.recv_from(&mut buffer) {
            self.client = Some(from);
            let _ = self.back.send_to(&buffer[..len], ("127.0.0.1", self.ports[0]));
        }
        while let Ok((len, _)) = self.back.recv_from(&mut buffer) {
            if let Some(client) = self.client {
                let _ = self.front.send_to(&buffer[..len], client);
            }
        }
    }

    fn run(
        &mut self,
        clock: &Clock,
        peers: &mut Vec<Peer>,
        acceptor: &mut QuicAcceptor,
        mut done: impl FnMut(&mut Vec<Peer>) -> bool,
    ) {
        while !done(peers) {
            self.pass();
            let slice = clock.now() + 1000;
            run(clock, peers, Some(&mut *acceptor), |peers| {
                self.pass();
                clock.now() > slice || peers.iter().any(|p| p.over.is_some())
            });
        }
    }
}

#[test]
fn a_changed_address_is_not_followed() {
    // Long enough for a machine that has other things to do.
    let silence = 2_000_000;
    let (_cluster, mut a, mut b) = two();
    (a.common.silence, b.common.silence) = (silence, silence);
    let clock = Clock::new();
    let (mut acceptor, port) = listen(&b);
    let mut relay = Relay::new(port, port);
    let mut peers = vec![connect(relay.port(), &a)];
    relay.run(&clock, &mut peers, &mut acceptor, |peers| peers.len() == 2);
    relay.move_address();
    peers[0].to_send = b"from elsewhere".to_vec();
    peers[0].send(clock.now()).unwrap();
    relay.run(&clock, &mut peers, &mut acceptor, |peers| peers.iter().any(|p| p.over.is_some()));
    assert!(peers[1].received.is_empty());
    // It connects anew.
    let mut peers = vec![connect(relay.port(), &a)];
    relay.run(&clock, &mut peers, &mut acceptor, |peers| peers.len() == 2);
}

#[test]
fn pinned_peers_need_no_authority() {
    let cluster = Cluster::new();
    let a = cluster.self_signed("a", &[]);
    let b = cluster.expired("b", &[]);
    let (pin_a, pin_b) = (fingerprint(&a), fingerprint(&b));
    let only = |quic: QuicOptions, pin: &str| {
        options(QuicOptions { peers_ca: None, peers: vec![telegraphos_quic::peer(pin).unwrap()], ..quic })
    };
    let (clock, mut peers, _acceptor) = pair(&only(a, &pin_b), &only(b, &pin_a));
    assert_eq!(peers[0].transport.peer().unwrap(), pin_b);
    assert_eq!(peers[1].transport.peer().unwrap(), pin_a);
    exchange(&clock, &mut peers, 1000, [100, 100], 1);
}

#[test]
fn an_absent_peer_is_an_error_in_the_end() {
    let (_cluster, mut a, _) = two();
    a.common.silence = 200_000;
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let clock = Clock::new();
    let mut peers = vec![connect(taken.local_addr().unwrap().port(), &a)];
    run(&clock, &mut peers, None, |peers| peers[0].over.is_some());
    assert!(peers[0].failed_with(&["nothing answers at quic:", "let UDP through"]), "{:?}", peers[0].over);
    assert!(matches!(&peers[0].over, Some(Err(e)) if e.kind() == io::ErrorKind::TimedOut));
}
