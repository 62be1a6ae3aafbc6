// SPDX-License-Identifier: MIT OR Apache-2.0
//! QUIC and peers that are not welcome: wrong certificates, garbage, floods of handshakes; and what is said of wrong
//! options. Whatever arrives, the acceptor continues to serve others.

use std::io;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;

use crate::support::pki::Cluster;
use crate::support::{Clock, Peer, at, options, run};
use telegraphos_quic::{Options, QuicAcceptor, QuicOptions, QuicTransport};
use telegraphos_transport::{Acceptor, AcceptorStatistics, Transport};

fn connecting(port: u16, quic: QuicOptions) -> Peer {
    Peer::new(Box::new(QuicTransport::connect(&at(port), &options(quic)).unwrap()))
}

/// A listener `b` that accepts `good`, and shows in the end that it still does.
struct Listener {
    cluster: Cluster,
    acceptor: QuicAcceptor,
    /// What a flood met when it called.
    accepted: Vec<Box<dyn Transport>>,
    clock: Clock,
}

impl Listener {
    fn new() -> Listener {
        let cluster = Cluster::new();
        let acceptor = QuicAcceptor::bind(&at(0), &options(cluster.process("b", &["good"]))).unwrap();
        Listener { cluster, acceptor, accepted: Vec::new(), clock: Clock::new() }
    }

    fn port(&self) -> u16 {
        self.acceptor.local().port()
    }

    /// Handshakes under way.
    fn half_open(&self) -> usize {
        format!("{:?}", self.acceptor).matches("established: false").count()
    }

    /// Lets one connect that is not to succeed: how it failed, and what was counted.
    fn refuses(&mut self, quic: QuicOptions) -> (io::Error, AcceptorStatistics) {
        let mut peers = vec![connecting(self.port(), quic)];
        let acceptor = &mut self.acceptor;
        run(&self.clock, &mut peers, Some(acceptor), |peers| peers[0].over.is_some());
        // The listener gets to know of it too.
        let until = self.clock.now() + 50_000;
        run(&self.clock, &mut Vec::new(), Some(&mut self.acceptor), |_| self.clock.now() > until);
        assert_eq!(peers.len(), 1, "no connection is accepted");
        let Some(Err(error)) = peers.remove(0).over else { panic!("it did not fail") };
        (error, Acceptor::statistics(&self.acceptor))
    }

    /// Connects as it should.
    fn serves(&mut self) {
        let good = self.cluster.process("good", &["b"]);
        let mut peers = vec![connecting(self.port(), good)];
        run(&self.clock, &mut peers, Some(&mut self.acceptor), |peers| {
            assert!(peers[0].over.is_none(), "{:?}", peers[0].over);
            peers.len() == 2
        });
        peers[0].to_send = b"hello".to_vec();
        peers[0].send(self.clock.now()).unwrap();
        run(&self.clock, &mut peers, None, |peers| peers[1].received == b"hello");
    }
}

fn expect(error: &io::Error, parts: &[&str]) {
    let text = error.to_string();
    assert!(parts.iter().all(|part| text.contains(part)), "{text:?} lacks one of {parts:?}");
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{text}");
}

#[test]
fn a_peer_of_another_authority_is_refused() {
    let mut listener = Listener::new();
    let other = Cluster::new();
    // It refuses us first: for it, we are of another authority.
    let (error, counted) = listener.refuses(other.process("good", &["b"]));
    expect(&error, &["the peer is refused", "unknown CA"]);
    assert_eq!(counted.accepted, 0);
    // One that trusts us, but that we do not trust.
    let trusting = QuicOptions { peers_ca: Some(listener.cluster.path("ca.pem")), ..other.process("good", &["b"]) };
    let (error, counted) = listener.refuses(trusting);
    expect(&error, &["the peer refuses", "this process's certificate", "unknown CA"]);
    assert_eq!(counted.refused, 2);
    listener.serves();
}

#[test]
fn a_peer_of_another_name_is_refused() {
    let mut listener = Listener::new();
    // Of this cluster, but not the peer of the trunk.
    let (error, counted) = listener.refuses(listener.cluster.process("unexpected", &["b"]));
    expect(&error, &["the peer refuses", "names no peer that is expected"]);
    assert_eq!(counted.refused, 1);
    // And the other way round.
    let (error, _) = listener.refuses(listener.cluster.process("good", &["c"]));
    expect(&error, &["the peer is refused", "names no peer that is expected", "\"b\""]);
    listener.serves();
}

#[test]
fn an_expired_certificate_is_refused() {
    let mut listener = Listener::new();
    let (error, counted) = listener.refuses(listener.cluster.expired("good", &["b"]));
    expect(&error, &["the peer refuses", "this process's certificate has expired"]);
    assert_eq!(counted.refused, 1);
    listener.serves();
    // Of the listener.
    let old = listener.cluster.expired("b", &["good"]);
    listener.acceptor = QuicAcceptor::bind(&at(0), &options(old)).unwrap();
    let (error, _) = listener.refuses(listener.cluster.process("good", &["b"]));
    expect(&error, &["the peer is refused", "its certificate has expired"]);
}

#[test]
fn a_self_signed_certificate_is_refused() {
    let mut listener = Listener::new();
    let (error, counted) = listener.refuses(listener.cluster.self_signed("good", &["b"]));
    expect(&error, &["the peer refuses", "unknown CA"]);
    assert_eq!(counted.refused, 1);
    listener.serves();
}

#[test]
fn another_fingerprint_is_refused() {
    let mut listener = Listener::new();
    let pin = format!("sha256:{}", "00".repeat(32));
    let (error, _) = listener.refuses(listener.cluster.process("good", &[&pin]));
    expect(&error, &["the peer is refused"]);
    listener.serves();
}

#[test]
fn garbage_is_thrown_away_and_counted() {
    let mut listener = Listener::new();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut rng = telegraphos_testkit::Rng::new(7);
    let mut sent = 0_u64;
    for round in 0..40 {
        for _ in 0..25 {
            let len = rng.below(1500_usize);
            let mut bytes: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
            // Some look like QUIC: long headers of version 1, of a kind each; or an old connection.
            match (round % 3, bytes.len()) {
                (1, 5..) => bytes[..5].copy_from_slice(&[0xC0 | rng.next() as u8 & 0x3F, 0, 0, 0, 1]),
                (2, 1..) => bytes[0] = 0x40 | bytes[0] & 0x3F,
                _ => {}
            }
            sent += u64::from(socket.send_to(&bytes, ("127.0.0.1", listener.port())).is_ok());
        }
        assert!(listener.acceptor.accept(listener.clock.now()).unwrap().is_none());
    }
    while listener.acceptor.accept(listener.clock.now()).unwrap().is_some() {}
    let counted = Acceptor::statistics(&listener.acceptor);
    assert!(counted.rejected > sent / 2 && counted.rejected <= sent, "{counted:?} of {sent}");
    listener.serves();
}

/// A client that begins a handshake, answers a Retry, and then holds its handshake open. The
/// listener sees it at `source`.
struct Holder {
    _client: Peer,
    /// The client's end of the relay, and that at `source`.
    _sockets: [UdpSocket; 2],
}

/// What a Retry begins with: a long header of type 3 (RFC 9000 §17.2.5).
const RETRY: u8 = 0xF0;

impl Holder {
    fn new(listener: &mut Listener, quic: &QuicOptions, source: [u8; 4]) -> Holder {
        let bind = |at: [u8; 4]| {
            let socket = UdpSocket::bind((std::net::Ipv4Addr::from(at), 0)).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        let (front, back) = (bind([127, 0, 0, 1]), bind(source));
        let mut client = connecting(front.local_addr().unwrap().port(), quic.clone());
        let mut buffer = vec![0; 65_536];
        for _ in 0..2 {
            client.turn(listener.clock.now());
            while let Ok((len, _)) = front.recv_from(&mut buffer) {
                back.send_to(&buffer[..len], ("127.0.0.1", listener.port())).unwrap();
            }
            listener.accepted.extend(listener.acceptor.accept(listener.clock.now()).unwrap());
            while let Ok((len, _)) = back.recv_from(&mut buffer) {
                if buffer[0] & RETRY == RETRY {
                    front.send_to(&buffer[..len], ("127.0.0.1", client_port(&client))).unwrap();
                }
            }
        }
        Holder { _client: client, _sockets: [front, back] }
    }
}

fn client_port(client: &Peer) -> u16 {
    // The transport does not say; its text does.
    let shown = format!("{:?}", client.transport);
    let at = shown.split("local: 0.0.0.0:").nth(1).unwrap();
    at.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

/// How often `flood` was called until an honest peer, which begins after `before` calls, had its connection. Between
/// two calls there are so many microseconds at least.
fn comes_up(
    listener: &mut Listener,
    before: usize,
    between: u64,
    mut flood: impl FnMut(&mut Listener) -> Holder,
) -> usize {
    let mut held: Vec<Holder> = (0..before).map(|_| flood(listener)).collect();
    let good = listener.cluster.process("good", &["b"]);
    let mut honest = connecting(listener.port(), good);
    let (mut calls, mut attempts, mut next) = (0, 0, 0);
    while listener.accepted.is_empty() || honest.transport.peer().is_none() {
        if listener.clock.now() >= next {
            next = listener.clock.now() + between;
            held.push(flood(listener));
            // Its files are not what is tested.
            held.remove(0);
            calls += 1;
        }
        // Between the datagrams of the flood each end is served as its loop would: a round trip takes a few of these.
        honest.turn(listener.clock.now());
        listener.accepted.extend(listener.acceptor.accept(listener.clock.now()).unwrap());
        honest.turn(listener.clock.now());
        if honest.over.is_some() {
            // As a fabric does.
            attempts += 1;
            assert!(attempts < 12, "after {calls} of the flood: {:?}", honest.over);
            let good = listener.cluster.process("good", &["b"]);
            honest = connecting(listener.port(), good);
        }
    }
    assert_eq!(honest.transport.peer().as_deref(), Some("b"));
    calls
}

/// A listener and the peer that it expects; the peer's address may be configured.
fn listener(named: bool) -> (Listener, QuicOptions) {
    let mut listener = Listener::new();
    let quic = listener.cluster.process("good", &["b"]);
    if named {
        let addresses = vec!["127.0.0.1".parse().unwrap()];
        let b = QuicOptions { addresses, ..listener.cluster.process("b", &["good"]) };
        listener.acceptor = QuicAcceptor::bind(&at(0), &options(b)).unwrap();
    }
    (listener, quic)
}

#[test]
fn a_flood_of_handshakes_from_other_addresses_does_not_keep_a_trunk_down() {
    for named in [false, true] {
        let (mut listener, quic) = listener(named);
        let mut host = 0;
        let calls = comes_up(&mut listener, 200, 0, |listener| {
            host = host % 200 + 1;
            Holder::new(listener, &quic, [127, 0, 1, host])
        });
        let counted = Acceptor::statistics(&listener.acceptor);
        println!("named {named}: up after {calls} more of the flood, {counted:?}");
        assert_eq!(counted.accepted, 1);
        assert!(counted.validated > 0 && counted.crowded + counted.displaced > 0, "{counted:?}");
        let half_open = listener.half_open();
        assert!(half_open <= 128, "{half_open} half-open handshakes");
    }
}

/// Clients of one address cannot be distinguished: they share that part of the handshakes (16 at a time,
/// half a second each) that he has of its calls. The flood is three times that.
#[test]
fn a_flood_of_handshakes_from_its_own_address_does_not_keep_a_trunk_down() {
    for named in [false, true] {
        let (mut listener, quic) = listener(named);
        let calls = comes_up(&mut listener, 100, 10_000, |listener| Holder::new(listener, &quic, [127, 0, 0, 1]));
        let counted = Acceptor::statistics(&listener.acceptor);
        println!("named {named}: up after {calls} more of the flood, {counted:?}");
        assert_eq!(counted.accepted, 1);
        assert!(counted.crowded + counted.displaced > 0, "{counted:?}");
        let half_open = listener.half_open();
        assert!(half_open <= 64, "{half_open} half-open handshakes");
    }
}

#[test]
fn a_forged_address_costs_no_state() {
    let mut listener = Listener::new();
    let hello = listener.cluster.process("good", &["b"]);
    // Each says hello and reads no answer.
    let mut silent = Vec::new();
    for _ in 0..150 {
        let mut peer = connecting(listener.port(), hello.clone());
        peer.turn(listener.clock.now());
        assert!(listener.acceptor.accept(listener.clock.now()).unwrap().is_none());
        silent.push(peer);
    }
    assert!(!format!("{:?}", listener.acceptor).contains("established"));
    assert_eq!(Acceptor::statistics(&listener.acceptor).validated, 150);
    listener.serves();
}

#[test]
fn a_peer_that_is_authenticated_has_its_part_of_the_connections() {
    let mut listener = Listener::new();
    let b = listener.cluster.process("b", &["good", "other"]);
    listener.acceptor = QuicAcceptor::bind(&at(0), &options(b)).unwrap();
    let good = listener.cluster.process("good", &["b"]);
    // The accounts of two peers have 512 each: with fewer of one the other is served, and what ends is given back.
    for round in 0..3 {
        let mut peers: Vec<Peer> = (0..20).map(|_| connecting(listener.port(), good.clone())).collect();
        run(&listener.clock, &mut peers, Some(&mut listener.acceptor), |peers| peers.len() == 40);
        let shown = format!("{:?}", listener.acceptor);
        assert!(shown.contains("{Name(\"good\"): Held { units: 20,"), "round {round}: {shown}");
        drop(peers);
        let until = listener.clock.now() + 30_000_000;
        let (clock, acceptor) = (&listener.clock, &mut listener.acceptor);
        while format!("{acceptor:?}").contains("Name(\"good\"):") {
            assert!(clock.now() < until, "what has ended is given back");
            run(clock, &mut Vec::new(), Some(&mut *acceptor), |_| true);
            acceptor.accept(clock.now()).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
    listener.serves();
}

#[test]
fn wrong_options_are_named() {
    let cluster = Cluster::new();
    let good = cluster.process("a", &["b"]);
    let fails = |quic: Option<QuicOptions>| {
        let options = Options::new(telegraphos_transport::Options::default(), quic);
        let error = QuicAcceptor::bind(&at(0), &options).unwrap_err().to_string();
        assert!(error.starts_with("cannot listen at quic:127.0.0.1:0: "), "{error}");
        let same = QuicTransport::connect(&at(9), &options).unwrap_err().to_string();
        assert!(same.starts_with("cannot connect to quic:127.0.0.1:9: "), "{same}");
        error
    };
    let has =
        |error: String, parts: &[&str]| assert!(parts.iter().all(|p| error.contains(p)), "{error} lacks {parts:?}");
    has(fails(None), &["no certificate was given", "telegraphos-fabric keys"]);
    has(fails(Some(QuicOptions { peers: vec![], ..good.clone() })), &["no peer was named"]);
    has(fails(Some(QuicOptions { peers_ca: None, ..good.clone() })), &["peer b is given by name", "no CA"]);
    let path = |name: &str| cluster.path(name);
    has(
        fails(Some(QuicOptions { key: path("none"), ..good.clone() })),
        &["cannot read the private key", "none", "No such file"],
    );
    has(
        fails(Some(QuicOptions { certificate: path("."), ..good.clone() })),
        &["cannot read the certificate", "not a file"],
    );
    has(
        fails(Some(QuicOptions { peers_ca: Some(path("a.key")), ..good.clone() })),
        &["CA certificate", "holds no certificate"],
    );
    has(
        fails(Some(QuicOptions { certificate: path("a.key"), ..good.clone() })),
        &["certificate", "holds no certificate"],
    );
    has(fails(Some(QuicOptions { key: path("a.pem"), ..good.clone() })), &["private key", "holds no private key"]);
    std::fs::write(path("noise"), b"\xFF\x00 not PEM").unwrap();
    std::fs::set_permissions(path("noise"), std::fs::Permissions::from_mode(0o600)).unwrap();
    has(fails(Some(QuicOptions { key: path("noise"), ..good.clone() })), &["noise", "holds no private key"]);
    let other = cluster.process("other", &["b"]);
    has(
        fails(Some(QuicOptions { key: other.key, ..good.clone() })),
        &["private key", "is not the key of the certificate", "a.pem"],
    );
    // Others can read it: whether or not they have.
    for mode in [0o640, 0o604, 0o660] {
        std::fs::set_permissions(&good.key, std::fs::Permissions::from_mode(mode)).unwrap();
        has(fails(Some(good.clone())), &["a.key", "may be read by others", &format!("{mode:04o}"), "chmod 600"]);
    }
}

#[test]
fn a_port_in_use_and_an_address_of_others_are_named() {
    let cluster = Cluster::new();
    let options = options(cluster.process("a", &["b"]));
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = QuicAcceptor::bind(&at(port), &options).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains("another process uses this port"), "{error}");
    // Reserved for documentation: unreachable (RFC 5737).
    let error = QuicAcceptor::bind(&"192.0.2.1:0".parse().unwrap(), &options).unwrap_err().to_string();
    assert!(error.contains("does not have that address"), "{error}");
}
