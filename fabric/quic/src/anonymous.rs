// SPDX-License-Identifier: MIT OR Apache-2.0
//! Test: a peer that shows no certificate, and one that speaks another protocol.

use std::sync::{Arc, Mutex};

use quinn_proto::ClientConfig;
use quinn_proto::crypto::rustls::QuicClientConfig;
use telegraphos_transport::{Acceptor, HostPort, SharedSocket, Transport, Waker};

use crate::config::{ALPN, Engine};
use crate::credentials::load;
use crate::driver::Driver;
use crate::udp::Udp;
use crate::{Options, QuicAcceptor, QuicTransport};

#[allow(dead_code)] // other tests need more of it
#[path = "../tests/support/pki.rs"]
mod pki;

/// How the connection of a client ends that shows a certificate or not and speaks this protocol.
fn refusal(shows: bool, protocol: &[u8]) -> (String, telegraphos_transport::AcceptorStatistics) {
    let cluster = pki::Cluster::new();
    let quic = cluster.process("x", &["x"]);
    let options = Options::new(telegraphos_transport::Options::default(), Some(quic.clone()));
    let mut acceptor = QuicAcceptor::bind(&HostPort { host: "127.0.0.1".to_owned(), port: 0 }, &options).unwrap();
    let engine = Engine::new(&options, acceptor.local()).unwrap();
    let credentials = load(&quic).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(engine.verifier.clone());
    let mut tls = match shows {
        true => tls.with_client_auth_cert(credentials.chain, credentials.key).unwrap(),
        false => tls.with_no_client_auth(),
    };
    tls.alpn_protocols = vec![protocol.to_vec()];
    let client = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    let udp = Arc::new(Udp::bind("127.0.0.1:0".parse().unwrap()).unwrap());
    let waker = Arc::new(Waker::new(udp.fd()).unwrap());
    let (driver, key) = Driver::connecting(&engine, client, udp, &options, acceptor.local(), waker.clone());
    let mut transport = QuicTransport::accepted(Arc::new(Mutex::new(driver)), key, waker);
    let start = std::time::Instant::now();
    loop {
        let now = start.elapsed().as_micros() as u64;
        let received = transport.receive(now, &mut [0; 10]);
        transport.flush(now).unwrap();
        assert!(acceptor.accept(now).unwrap().is_none());
        if let Err(error) = received {
            acceptor.accept(now).unwrap();
            return (error.to_string(), acceptor.statistics());
        }
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
}

#[test]
fn a_client_without_a_certificate_is_refused() {
    let (error, counted) = refusal(false, ALPN);
    assert!(error.contains("this process's certificate is missing"), "{error}");
    assert_eq!((counted.refused, counted.accepted), (1, 0));
}

#[test]
fn a_client_of_another_protocol_is_refused() {
    let (error, counted) = refusal(true, b"telegraphos/99");
    assert!(error.contains("another protocol"), "{error}");
    assert_eq!((counted.refused, counted.accepted), (1, 0));
}
