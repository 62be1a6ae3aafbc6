// SPDX-License-Identifier: MIT OR Apache-2.0
//! Certificates and keys for trunks between hosts: a CA for a cluster, and a certificate for each of its processes.
//!
//! ```text
//!   DIR/ca.pem    the CA's certificate: on every host (--peers-ca)
//!   DIR/ca.key    its private key: on one host, to make more
//!   DIR/NAME.pem  a process's certificate
//!   DIR/NAME.key  its private key: on its host only
//! ```

use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use telegraphos_quic::{Peer, peer};
use time::{Duration, OffsetDateTime};

/// Days for which a CA is valid.
const CA_DAYS: i64 = 10 * 365;
/// Default days for which a process's certificate is valid.
pub const PROCESS_DAYS: u32 = 2 * 365;
/// Clocks of hosts differ: a certificate is valid from so much before it was made.
const EARLIER: Duration = Duration::days(1);

const CA: &str = "ca";

/// Why there are no keys: names the file or the name, and says what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct KeysError(String);

impl From<rcgen::Error> for KeysError {
    fn from(error: rcgen::Error) -> KeysError {
        KeysError(format!("cannot make a certificate: {error}"))
    }
}

fn file<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> KeysError + 'a {
    let path = path.display();
    move |error| match error.kind() {
        io::ErrorKind::AlreadyExists => KeysError(format!(
            "{path} exists and is not overwritten: processes that use it would be locked out; choose another name, or \
             move it away"
        )),
        _ => KeysError(format!("cannot {action} {path}: {error}")),
    }
}

/// Creates a file that was not there.
fn create(path: &Path, mode: u32, text: &str) -> Result<(), KeysError> {
    let mut out =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(file("create", path))?;
    out.write_all(text.as_bytes()).and_then(|()| out.sync_all()).map_err(file("write", path))
}

/// Creates key and certificate; if the second fails, the first is taken away again.
fn create_pair(dir: &Path, name: &str, certificate: &str, key: &KeyPair) -> Result<(), KeysError> {
    let (pem, secret) = (dir.join(format!("{name}.pem")), dir.join(format!("{name}.key")));
    create(&secret, 0o600, &key.serialize_pem())?;
    create(&pem, 0o644, certificate).inspect_err(|_| {
        // It was made a moment ago, by us.
        let _ = std::fs::remove_file(&secret);
    })
}

fn valid_for(params: &mut CertificateParams, days: i64) {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let now = i64::try_from(seconds).ok().and_then(|s| OffsetDateTime::from_unix_timestamp(s).ok());
    let now = now.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    params.not_before = now.saturating_sub(EARLIER);
    params.not_after = now.saturating_add(Duration::days(days));
}

/// What the CA of `key` is. Its name comes from its key, so that it need not be read from its certificate, and no two
/// clusters have the same.
fn authority(key: &KeyPair) -> CertificateParams {
    // The start of a point's encoding says how it is encoded.
    let id: String = key.public_key_raw().iter().skip(1).take(8).map(|byte| format!("{byte:02x}")).collect();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("Telegraphos cluster {id}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid_for(&mut params, CA_DAYS);
    params
}

/// Makes the CA of a new cluster in `dir`, which is created if it is missing.
pub fn new_cluster(dir: &Path) -> Result<(), KeysError> {
    if !dir.is_dir() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(file("create", dir))?;
    }
    let key = KeyPair::generate()?;
    let certificate = authority(&key).self_signed(&key)?;
    create_pair(dir, CA, &certificate.pem(), &key)
}

fn good_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    name != CA
        && name.len() <= 64
        && name.chars().all(plain)
        && matches!(peer(name), Ok(Peer::Name(parsed)) if parsed == name)
}

/// Makes a certificate and a key for the process `name` of the cluster in `dir`, valid for `days` days.
pub fn new_process(dir: &Path, name: &str, days: u32) -> Result<(), KeysError> {
    if !good_name(name) {
        return Err(KeysError(format!(
            "{name:?} is no name for a process: expected letters, digits, hyphens and dots (host-b), at most 64, and \
             not \"ca\""
        )));
    }
    let (ca_pem, ca_key) = (dir.join("ca.pem"), dir.join("ca.key"));
    let read = |path: &Path| match std::fs::read_to_string(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(KeysError(format!(
            "{0} holds no cluster: make one with `telegraphos-fabric keys new-cluster {0}`",
            dir.display()
        ))),
        other => other.map_err(file("read", path)),
    };
    let mode = std::fs::metadata(&ca_key).map_or(0, |meta| meta.mode() & 0o7777);
    if mode & 0o077 != 0 {
        return Err(KeysError(format!(
            "{} may be read by others (mode {mode:04o}): anyone with it can be any process; chmod 600 it, or make a \
             new cluster",
            ca_key.display()
        )));
    }
    let key = KeyPair::from_pem(&read(&ca_key)?)?;
    let parsed = pem::parse(read(&ca_pem)?).ok();
    let public = key.public_key_raw();
    if !parsed.is_some_and(|pem| pem.contents().windows(public.len()).any(|part| part == public)) {
        return Err(KeysError(format!(
            "{} is not the certificate of the key {}: put back the pair that was made together",
            ca_pem.display(),
            ca_key.display()
        )));
    }
    let issuer = Issuer::new(authority(&key), key);
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    valid_for(&mut params, i64::from(days));
    let own = KeyPair::generate()?;
    let certificate = params.signed_by(&own, &issuer)?;
    create_pair(dir, name, &certificate.pem(), &own)
}

/// `telegraphos-fabric keys ...`
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Keys {
    /// Make the certificate authority of a new cluster
    NewCluster {
        /// Where to put ca.pem and ca.key
        dir: PathBuf,
    },
    /// Make the certificate and key of one process
    NewProcess {
        /// Where the cluster's ca.pem and ca.key are
        dir: PathBuf,
        /// The name by which its peers expect it
        name: String,
        /// Days for which it is valid
        #[arg(long, default_value_t = PROCESS_DAYS, value_parser = clap::value_parser!(u32).range(1..))]
        days: u32,
    },
}

impl Keys {
    /// Does it, and says what was made.
    pub fn run(&self) -> Result<(), KeysError> {
        match self {
            Keys::NewCluster { dir } => {
                new_cluster(dir)?;
                println!(
                    "{0}/ca.pem  the CA's certificate: give it to every process (--peers-ca)\n\
                     {0}/ca.key  its private key: keep it where keys are made",
                    dir.display()
                );
            }
            Keys::NewProcess { dir, name, days } => {
                new_process(dir, name, *days)?;
                println!(
                    "{0}/{name}.pem  certificate of {name}, for {days} days\n{0}/{name}.key  its private key: for its host only",
                    dir.display()
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transports::{Options, connect, listen};
    use std::os::unix::fs::PermissionsExt;
    use telegraphos_quic::QuicOptions;
    use telegraphos_transport::Received;

    fn process(dir: &Path, name: &str, peer: &str) -> Options {
        let quic = QuicOptions {
            certificate: dir.join(format!("{name}.pem")),
            key: dir.join(format!("{name}.key")),
            peers_ca: Some(dir.join("ca.pem")),
            peers: vec![super::peer(peer).unwrap()],
            addresses: Vec::new(),
        };
        Options { quic: Some(quic), ..Options::default() }
    }

    #[test]
    fn processes_of_one_cluster_accept_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("new/keys");
        new_cluster(&dir).unwrap();
        new_process(&dir, "host-a", 30).unwrap();
        new_process(&dir, "host-b.cluster", PROCESS_DAYS).unwrap();
        for (name, mode) in [("ca.key", 0o600), ("host-a.key", 0o600), ("host-b.cluster.key", 0o600), ("", 0o700)] {
            assert_eq!(std::fs::metadata(dir.join(name)).unwrap().permissions().mode() & 0o777, mode, "{name}");
        }
        // A free port for the listener.
        let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("quic:127.0.0.1:{port}").parse().unwrap();
        let mut acceptor = listen(&address, &process(&dir, "host-b.cluster", "host-a")).unwrap();
        let mut a = connect(&address, &process(&dir, "host-a", "host-b.cluster")).unwrap();
        let start = std::time::Instant::now();
        let now = || u64::try_from(start.elapsed().as_micros()).unwrap();
        let b = loop {
            assert_eq!(a.receive(now(), &mut [0; 8]).unwrap(), Received::Nothing);
            a.flush(now()).unwrap();
            if let Some(b) = acceptor.accept(now()).unwrap() {
                break b;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        };
        assert_eq!((a.peer().as_deref(), b.peer().as_deref()), (Some("host-b.cluster"), Some("host-a")));
    }

    #[test]
    fn nothing_is_overwritten_and_what_is_wrong_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let error = new_process(dir, "a", 1).unwrap_err().to_string();
        assert!(error.contains("holds no cluster") && error.contains("new-cluster"), "{error}");
        new_cluster(dir).unwrap();
        let before = std::fs::read(dir.join("ca.key")).unwrap();
        let exists = |path: &Path| format!("{} exists and is not overwritten: ", path.display());
        let error = new_cluster(dir).unwrap_err().to_string();
        assert!(error.starts_with(&exists(&dir.join("ca.key"))), "{error}");
        assert_eq!(std::fs::read(dir.join("ca.key")).unwrap(), before);
        // Half of a pair is not left behind.
        std::fs::write(dir.join("a.pem"), "precious").unwrap();
        let error = new_process(dir, "a", 1).unwrap_err().to_string();
        assert!(error.starts_with(&exists(&dir.join("a.pem"))), "{error}");
        assert!(!dir.join("a.key").exists());
        for name in ["", "ca", "a b", "../x", "a/b", "10.0.0.1", "sha256:00", "-", &"x".repeat(65)] {
            let error = new_process(dir, name, 1).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{name:?} is no name for a process: ")), "{error}");
        }
        std::fs::set_permissions(dir.join("ca.key"), std::fs::Permissions::from_mode(0o640)).unwrap();
        let error = new_process(dir, "b", 1).unwrap_err().to_string();
        assert!(error.contains("may be read by others (mode 0640)"), "{error}");
        // The certificate of another cluster.
        let other = tempfile::tempdir().unwrap();
        new_cluster(other.path()).unwrap();
        std::fs::set_permissions(dir.join("ca.key"), std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::copy(other.path().join("ca.pem"), dir.join("ca.pem")).unwrap();
        let error = new_process(dir, "b", 1).unwrap_err().to_string();
        assert!(error.contains("ca.pem is not the certificate of the key "), "{error}");
    }
}
