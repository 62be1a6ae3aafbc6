// SPDX-License-Identifier: MIT OR Apache-2.0
//! A request of 64 bytes and its reply over QUIC, between two threads that poll, against the same over plain UDP
//! sockets: prints both medians and their ratio.
//!
//! `cargo run --release -p telegraphos-quic --example quic_ping [ROUNDS]`

#![allow(clippy::unwrap_used)] // it measures, and may end anyhow when something is wrong

#[path = "../tests/support/mod.rs"]
mod support;

use std::net::UdpSocket;
use std::sync::mpsc;
use std::time::Instant;

use support::pki::Cluster;
use support::{Clock, at, options};
use telegraphos_quic::{QuicAcceptor, QuicTransport};
use telegraphos_transport::{Acceptor, Received, Transport};

const LEN: usize = 64;

/// Gives out one message; polls until it is here. False at the end.
fn message(clock: &Clock, transport: &mut dyn Transport, buffer: &mut [u8; LEN]) -> bool {
    let mut got = 0;
    loop {
        match transport.receive(clock.now(), &mut buffer[got..]).unwrap() {
            Received::Bytes(len) => got += len,
            Received::End => return false,
            Received::Nothing => {
                transport.flush(clock.now()).unwrap();
                clock.sleep(&[transport.fd()], &[transport.deadline()]);
            }
        }
        if got == LEN {
            return true;
        }
    }
}

fn say(clock: &Clock, transport: &mut dyn Transport, bytes: &[u8; LEN]) {
    assert_eq!(transport.send(clock.now(), bytes).unwrap(), LEN);
    transport.flush(clock.now()).unwrap();
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn quic(rounds: usize) -> f64 {
    let cluster = Cluster::new();
    let (a, b) = (options(cluster.process("a", &["b"])), options(cluster.process("b", &["a"])));
    let mut acceptor = QuicAcceptor::bind(&at(0), &b).unwrap();
    let port = acceptor.local().port();
    let (ready, is_ready) = mpsc::channel();
    let echo = std::thread::spawn(move || {
        let clock = Clock::new();
        let mut transport = loop {
            if let Some(transport) = acceptor.accept(clock.now()).unwrap() {
                break transport;
            }
            clock.sleep(&[acceptor.fd()], &[acceptor.deadline()]);
        };
        drop(acceptor);
        ready.send(()).unwrap();
        let mut buffer = [0; LEN];
        while message(&clock, &mut *transport, &mut buffer) {
            say(&clock, &mut *transport, &buffer);
        }
    });
    let clock = Clock::new();
    let mut transport = QuicTransport::connect(&at(port), &a).unwrap();
    while is_ready.try_recv().is_err() {
        assert_eq!(transport.receive(clock.now(), &mut [0]).unwrap(), Received::Nothing);
        transport.flush(clock.now()).unwrap();
        clock.sleep(&[transport.fd()], &[transport.deadline()]);
    }
    let mut buffer = [7; LEN];
    let mut times = Vec::new();
    for _ in 0..rounds {
        let start = Instant::now();
        say(&clock, &mut transport, &buffer);
        assert!(message(&clock, &mut transport, &mut buffer));
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    drop(transport);
    echo.join().unwrap();
    median(times)
}

fn udp(rounds: usize) -> f64 {
    let (a, b) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    a.connect(b.local_addr().unwrap()).unwrap();
    b.connect(a.local_addr().unwrap()).unwrap();
    let echo = std::thread::spawn(move || {
        let mut buffer = [0; LEN];
        for _ in 0..rounds {
            b.recv(&mut buffer).unwrap();
            b.send(&buffer).unwrap();
        }
    });
    let mut buffer = [7; LEN];
    let mut times = Vec::new();
    for _ in 0..rounds {
        let start = Instant::now();
        a.send(&buffer).unwrap();
        a.recv(&mut buffer).unwrap();
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    echo.join().unwrap();
    median(times)
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(5000);
    let (mut raw, mut measured) = (Vec::new(), Vec::new());
    // By turns, so that both run under the same load.
    for _ in 0..5 {
        raw.push(udp(rounds / 5));
        measured.push(quic(rounds / 5));
    }
    let (raw, measured) = (median(raw), median(measured));
    println!("udp: {raw:.1} us   quic: {measured:.1} us   ratio: {:.2}", measured / raw);
}
