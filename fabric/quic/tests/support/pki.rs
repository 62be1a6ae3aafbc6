// SPDX-License-Identifier: MIT OR Apache-2.0
//! Certificates of a cluster, in files.
#![allow(clippy::unwrap_used)] // only tests use it

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd,
};
use telegraphos_quic::{QuicOptions, peer};

/// The CA of a cluster, and a directory for its files.
pub(crate) struct Cluster {
    dir: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

fn write(path: &Path, text: &str) -> PathBuf {
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    path.to_owned()
}

fn leaf(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params
}

impl Cluster {
    pub(crate) fn new() -> Cluster {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // A distinct name, as every cluster's CA has.
        params.distinguished_name.push(DnType::CommonName, format!("CA {:02x?}", &key.public_key_raw()[1..9]));
        let issuer = CertifiedIssuer::self_signed(params, key).unwrap();
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("ca.pem"), &issuer.pem());
        Cluster { dir, issuer }
    }

    /// The file of this name.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn store(&self, name: &str, peers: &[&str], certificate: &rcgen::Certificate, key: &KeyPair) -> QuicOptions {
        QuicOptions {
            certificate: write(&self.path(&format!("{name}.pem")), &certificate.pem()),
            key: write(&self.path(&format!("{name}.key")), &key.serialize_pem()),
            peers_ca: Some(self.path("ca.pem")),
            peers: peers.iter().map(|text| peer(text).unwrap()).collect(),
            addresses: Vec::new(),
        }
    }

    fn signed(&self, params: CertificateParams, name: &str, peers: &[&str]) -> QuicOptions {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        self.store(name, peers, &certificate, &key)
    }

    /// A process of this cluster that expects `peers`.
    pub(crate) fn process(&self, name: &str, peers: &[&str]) -> QuicOptions {
        self.signed(leaf(name), name, peers)
    }

    /// The same, with a certificate of the past.
    pub(crate) fn expired(&self, name: &str, peers: &[&str]) -> QuicOptions {
        let mut params = leaf(name);
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
        self.signed(params, name, peers)
    }

    /// The same, self-signed.
    pub(crate) fn self_signed(&self, name: &str, peers: &[&str]) -> QuicOptions {
        let key = KeyPair::generate().unwrap();
        let certificate = leaf(name).self_signed(&key).unwrap();
        self.store(name, peers, &certificate, &key)
    }
}
