// SPDX-License-Identifier: MIT OR Apache-2.0
//! Verification of the peer's certificate.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use sha2::{Digest, Sha256};

use crate::Peer;

/// Checks the certificate of the other end, client or server: it must be one of the peers, by pin, or by CA and name.
#[derive(Debug)]
pub(crate) struct PeerVerifier {
    peers: Vec<Peer>,
    authorities: RootCertStore,
    algorithms: WebPkiSupportedAlgorithms,
    /// The library's verifier of client certificates; none without a CA.
    connecting: Option<Arc<dyn ClientCertVerifier>>,
}

impl PeerVerifier {
    /// A verifier that accepts `peers`; those with names need `authorities`.
    pub(crate) fn new(
        peers: Vec<Peer>,
        authorities: RootCertStore,
        provider: &Arc<CryptoProvider>,
    ) -> Result<PeerVerifier, String> {
        let roots = (!authorities.is_empty()).then(|| Arc::new(authorities.clone()));
        let connecting =
            roots.map(|roots| WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).build());
        let connecting = connecting.transpose().map_err(|e| e.to_string())?;
        Ok(PeerVerifier { peers, authorities, algorithms: provider.signature_verification_algorithms, connecting })
    }

    fn pinned(&self, certificate: &CertificateDer<'_>) -> Option<&Peer> {
        let pin: [u8; 32] = Sha256::digest(certificate).into();
        self.peers.iter().find(|peer| **peer == Peer::Pinned(pin))
    }

    fn named(&self, certificate: &ParsedCertificate<'_>) -> Result<&Peer, Error> {
        // Pinned peers are identified by `pinned` only.
        let mut refusal = Error::InvalidCertificate(CertificateError::UnknownIssuer);
        for peer in &self.peers {
            let Peer::Name(name) = peer else { continue };
            let Ok(server_name) = ServerName::try_from(name.as_str()) else { continue };
            match verify_server_name(certificate, &server_name) {
                Ok(()) => return Ok(peer),
                Err(e) => refusal = e,
            }
        }
        Err(refusal)
    }

    /// The peer that a verified certificate belongs to.
    pub(crate) fn identify(&self, certificate: &CertificateDer<'_>) -> Option<&Peer> {
        self.pinned(certificate).or_else(|| self.named(&ParsedCertificate::try_from(certificate).ok()?).ok())
    }
}

/// The methods on signatures, which the verifiers of both ends have alike.
macro_rules! tls13_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(Error::General("QUIC has TLS 1.3 only".to_owned()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(message, certificate, signature, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.algorithms.supported_schemes()
        }
    };
}

impl ServerCertVerifier for PeerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.pinned(end_entity).is_none() {
            let certificate = ParsedCertificate::try_from(end_entity)?;
            verify_server_cert_signed_by_trust_anchor(
                &certificate,
                &self.authorities,
                intermediates,
                now,
                self.algorithms.all,
            )?;
            self.named(&certificate)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    tls13_signatures!();
}

impl ClientCertVerifier for PeerVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // A client has one certificate and needs no hint.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if self.pinned(end_entity).is_none() {
            let Some(connecting) = &self.connecting else {
                return Err(Error::InvalidCertificate(CertificateError::UnknownIssuer));
            };
            connecting.verify_client_cert(end_entity, intermediates, now)?;
            self.named(&ParsedCertificate::try_from(end_entity)?)?;
        }
        Ok(ClientCertVerified::assertion())
    }

    tls13_signatures!();
}
