// SPDX-License-Identifier: MIT OR Apache-2.0
//! Configuration of the QUIC engine and of TLS.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{
    AckFrequencyConfig, ClientConfig, EndpointConfig, HashedConnectionIdGenerator, IdleTimeout, MtuDiscoveryConfig,
    ServerConfig, TransportConfig, VarInt,
};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::PrivateKeyDer;
use sha2::{Digest, Sha256};

use crate::QuicOptions;
use crate::credentials::{Credentials, CredentialsError, load, mismatch};
use crate::options::Options;
use crate::verify::PeerVerifier;

/// The protocol that both ends must announce.
pub(crate) const ALPN: &[u8] = b"telegraphos/1";
/// Bytes of the longest datagram; UDP allows no longer one over IPv6.
pub(crate) const LONGEST: u16 = 65_527;
/// Bytes of the longest datagram tried between hosts: what Ethernet's 1500 bytes leave.
const BETWEEN_HOSTS: u16 = 1452;
/// The same within one host; the loopback interface carries 64 KiB.
const WITHIN_HOST: u16 = 16 << 10;
/// Round trip assumed before the first measurement: after three of them the first datagram is sent again.
const FIRST_ROUND_TRIP: Duration = Duration::from_millis(50);
/// How long the peer may hold back an acknowledgement; a lost last datagram is sent again that much later.
const ACK_DELAY: Duration = Duration::from_millis(5);
/// Handshakes that wait to be accepted or refused; here each is decided at once.
const INCOMING: usize = 16;

/// The error without [`Options::quic`].
const MISSING: &str = "no certificate was given: name this process's certificate, its key and the CA of its peers \
                       (telegraphos-fabric keys makes them)";

/// The configuration of either end, made from [`Options`].
pub(crate) struct Engine {
    pub(crate) endpoint: Arc<EndpointConfig>,
    pub(crate) verifier: Arc<PeerVerifier>,
    /// Bytes that a connection may have in flight.
    pub(crate) window: u64,
    /// How many peers are accepted.
    pub(crate) peers: usize,
    /// The addresses from which they connect, as far as the configuration names them.
    pub(crate) addresses: Vec<IpAddr>,
    tls: Tls,
    transport: Arc<TransportConfig>,
}

struct Tls {
    provider: Arc<CryptoProvider>,
    options: QuicOptions,
    credentials: Credentials,
}

fn transport(options: &Options, near: bool) -> TransportConfig {
    let mut config = TransportConfig::default();
    // Each end opens one stream for what it sends, so neither has to wait for the other's first byte.
    let window = VarInt::from_u64(options.common.buffer as u64).unwrap_or(VarInt::MAX);
    let silence = Duration::from_micros(options.common.silence.max(1000));
    let mut mtu = MtuDiscoveryConfig::default();
    mtu.upper_bound(if near { WITHIN_HOST } else { BETWEEN_HOSTS });
    let mut acks = AckFrequencyConfig::default();
    acks.max_ack_delay(Some(ACK_DELAY));
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(1))
        .max_idle_timeout(Some(IdleTimeout::try_from(silence).unwrap_or(VarInt::MAX.into())))
        .keep_alive_interval(Some(silence / 3))
        .stream_receive_window(window)
        .receive_window(window)
        .send_window(options.common.buffer as u64)
        .initial_rtt(FIRST_ROUND_TRIP)
        .mtu_discovery_config(Some(mtu))
        .ack_frequency_config(Some(acks))
        .datagram_receive_buffer_size(None)
        .datagram_send_buffer_size(0)
        .allow_spin(false)
        .enable_segmentation_offload(false);
    config
}

/// A restarted process has none of its old connections. The key by which it says so to their peers (stateless reset,
/// RFC 9000 §10.3) is derived from its private key, the only secret that survives a restart.
fn endpoint(key: &PrivateKeyDer<'static>) -> EndpointConfig {
    let secret = |purpose: &[u8]| -> [u8; 32] {
        Sha256::new().chain_update(purpose).chain_update(key.secret_der()).finalize().into()
    };
    let reset = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &secret(b"telegraphos stateless reset"));
    let mut config = EndpointConfig::new(Arc::new(reset));
    let [a, b, c, d, e, f, g, h, ..] = secret(b"telegraphos connection ids");
    let ids = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(ids)));
    config
}

impl Engine {
    /// Reads the files that `options` name. `at`: the address that this end listens at or connects to.
    pub(crate) fn new(options: &Options, at: SocketAddr) -> Result<Engine, CredentialsError> {
        let quic = options.quic.as_ref().ok_or_else(|| CredentialsError(MISSING.to_owned()))?;
        let credentials = load(quic)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = PeerVerifier::new(quic.peers.clone(), credentials.authorities.clone(), &provider)
            .map_err(CredentialsError::tls)?;
        let mut endpoint = endpoint(&credentials.key);
        endpoint.max_udp_payload_size(LONGEST).map_err(CredentialsError::tls)?;
        Ok(Engine {
            endpoint: Arc::new(endpoint),
            verifier: Arc::new(verifier),
            window: options.common.buffer as u64,
            peers: quic.peers.len(),
            addresses: quic.addresses.clone(),
            transport: Arc::new(transport(options, at.ip().is_loopback())),
            tls: Tls { provider, options: quic.clone(), credentials },
        })
    }

    /// The configuration of a connecting end.
    pub(crate) fn connecting(&self) -> Result<ClientConfig, CredentialsError> {
        let Tls { provider, options, credentials } = &self.tls;
        let mut tls = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(CredentialsError::tls)?
            .dangerous() // only because the verifier is not the library's
            .with_custom_certificate_verifier(self.verifier.clone())
            .with_client_auth_cert(credentials.chain.clone(), credentials.key.clone_key())
            .map_err(|e| mismatch(options, &e))?;
        tls.alpn_protocols = vec![ALPN.to_vec()];
        // SNI would show the name to everyone on the path, and is not needed.
        tls.enable_sni = false;
        tls.resumption = rustls::client::Resumption::disabled();
        let tls = QuicClientConfig::try_from(tls).map_err(CredentialsError::tls)?;
        let mut config = ClientConfig::new(Arc::new(tls));
        config.transport_config(self.transport.clone());
        Ok(config)
    }

    /// The configuration of a listening end.
    pub(crate) fn listening(&self) -> Result<ServerConfig, CredentialsError> {
        let Tls { provider, options, credentials } = &self.tls;
        let mut tls = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(CredentialsError::tls)?
            .with_client_cert_verifier(self.verifier.clone())
            .with_single_cert(credentials.chain.clone(), credentials.key.clone_key())
            .map_err(|e| mismatch(options, &e))?;
        tls.alpn_protocols = vec![ALPN.to_vec()];
        // No resumption: each connection is authenticated anew.
        tls.send_tls13_tickets = 0;
        let tls = QuicServerConfig::try_from(tls).map_err(CredentialsError::tls)?;
        let mut config = ServerConfig::with_crypto(Arc::new(tls));
        config
            .transport_config(self.transport.clone())
            // A peer that changes its address connects anew.
            .migration(false)
            .max_incoming(INCOMING);
        Ok(config)
    }
}
