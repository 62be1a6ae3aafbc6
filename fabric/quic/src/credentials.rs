// SPDX-License-Identifier: MIT OR Apache-2.0
//! The identity of this process and the peers that it accepts: the files that [`QuicOptions`] names.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use telegraphos_transport::{PIN, Peer, QuicOptions};

/// The longest file read as a certificate or key, in bytes.
const LONGEST: u64 = 1 << 20;

/// The peer of this text: a name as in a certificate, or [`PIN`] and 64 hexadecimal digits, colons between them
/// allowed.
pub fn peer(text: &str) -> Result<Peer, CredentialsError> {
    let wrong = || {
        let expected = "expected a name as in a certificate (host-b), or sha256: and 64 hexadecimal digits";
        CredentialsError(format!("{text:?} is no peer: {expected}"))
    };
    let Some(digits) = text.strip_prefix(PIN) else {
        return match ServerName::try_from(text) {
            Ok(ServerName::DnsName(_)) => Ok(Peer::Name(text.to_owned())),
            _ => Err(wrong()),
        };
    };
    let digits: Option<Vec<u8>> =
        digits.chars().filter(|c| *c != ':').map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    let digits: [u8; 64] = digits.and_then(|digits| digits.try_into().ok()).ok_or_else(wrong)?;
    Ok(Peer::Pinned(std::array::from_fn(|at| digits[2 * at] << 4 | digits[2 * at + 1])))
}

/// Why authentication cannot be set up: what is wrong, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CredentialsError(pub(crate) String);

impl CredentialsError {
    pub(crate) fn tls(error: impl fmt::Display) -> CredentialsError {
        CredentialsError(format!("TLS cannot be set up: {error}"))
    }

    /// A file has other contents than expected: `why` says what is wrong, and what to do.
    fn content(what: &str, path: &Path, why: impl fmt::Display) -> CredentialsError {
        CredentialsError(format!("the {what} {} {why}", path.display()))
    }
}

/// The contents of the files.
#[derive(Debug)]
pub(crate) struct Credentials {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
    pub(crate) authorities: RootCertStore,
}

const CERTIFICATE: &str = "certificate";
const KEY: &str = "private key";
const CA: &str = "CA certificate";

fn read(what: &str, path: &Path) -> Result<(Vec<u8>, std::fs::Metadata), CredentialsError> {
    let failed = |error: io::Error| {
        let path = path.display();
        CredentialsError(format!("cannot read the {what} {path}: {error}; name a file that this user can read"))
    };
    let file = std::fs::File::open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file")));
    }
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, LONGEST), &mut bytes).map_err(failed)?;
    Ok((bytes, meta))
}

fn certificates(what: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    let (bytes, _) = read(what, path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|e| CredentialsError::content(what, path, format_args!("is no PEM file: {e}")))?;
    if found.is_empty() {
        let why = "holds no certificate: expected -----BEGIN CERTIFICATE-----";
        return Err(CredentialsError::content(what, path, why));
    }
    Ok(found)
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, CredentialsError> {
    let (bytes, meta) = read(KEY, path)?;
    let mode = meta.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(CredentialsError(format!(
            "the private key {} may be read by others (mode {mode:04o}): anyone with it can pass for this process; \
             make a new one if others may have seen it, and chmod 600 it",
            path.display()
        )));
    }
    PrivateKeyDer::from_pem_slice(&bytes)
        .map_err(|e| CredentialsError::content(KEY, path, format_args!("holds no private key in PEM: {e}")))
}

/// Reads and checks the files. Fails for the first that is wrong.
pub(crate) fn load(options: &QuicOptions) -> Result<Credentials, CredentialsError> {
    if options.peers.is_empty() {
        let expected = "say the name in the certificate of the other end, or its sha256:FINGERPRINT";
        return Err(CredentialsError(format!("no peer was named: {expected}")));
    }
    let mut authorities = RootCertStore::empty();
    if let Some(path) = &options.peers_ca {
        for certificate in certificates(CA, path)? {
            authorities
                .add(certificate)
                .map_err(|e| CredentialsError::content(CA, path, format_args!("cannot be used: {e}")))?;
        }
    } else if let Some(name) = options.peers.iter().find(|peer| matches!(peer, Peer::Name(_))) {
        let missing = "but no CA to check it with: give the file of the CA's certificate";
        return Err(CredentialsError(format!("the peer {name} is given by name, {missing}")));
    }
    Ok(Credentials { chain: certificates(CERTIFICATE, &options.certificate)?, key: key(&options.key)?, authorities })
}

/// The error for what the TLS library refuses of certificate and key together.
pub(crate) fn mismatch(options: &QuicOptions, error: &rustls::Error) -> CredentialsError {
    match error {
        rustls::Error::InconsistentKeys(_) => {
            let certificate = options.certificate.display();
            let why = format!("is not the key of the certificate {certificate}: name the two that belong together");
            CredentialsError::content(KEY, &options.key, why)
        }
        other => CredentialsError::tls(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_written_as_they_are_read() {
        let pin = format!("{PIN}{}", "0aF9".repeat(16));
        for text in ["host-b", "process_1.cluster", &pin.to_lowercase()] {
            assert_eq!(peer(text).unwrap().to_string(), text);
        }
        let colons = format!("{PIN}{}", vec!["0A"; 32].join(":"));
        assert_eq!(peer(&colons).unwrap(), Peer::Pinned([10; 32]));
        for text in
            ["", "a b", "-", "10.0.0.1", "sha256:", "sha256:12", &format!("{PIN}{}", "zz".repeat(32)), "sha256:é"]
        {
            let error = peer(text).unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?} is no peer")), "{error}");
        }
    }
}
