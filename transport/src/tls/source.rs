//! Certificates and keys: read from files and read again when those change, or made once for development.

use crate::config::{TlsError, TlsSource};
use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// How often the files are looked at, at most.
const CHECK_MS: u64 = 3_000;

/// What tells one version of a file from another.
type Stamp = Option<(SystemTime, u64)>;

/// The certificate in use.
pub(crate) struct Certificates {
    current: ArcSwap<ServerConfig>,
    /// Looked at again when changed.
    files: Option<(PathBuf, PathBuf)>,
    stamps: ArcSwap<(Stamp, Stamp)>,
    next_check_ms: AtomicU64,
    failures: AtomicU64,
}

impl Certificates {
    /// Loads or makes what the source names; `None` if TLS is off.
    pub(crate) fn open(source: &TlsSource, hostname: &str) -> Result<Option<Arc<Self>>, TlsError> {
        let (cert, key, watch) = match source {
            TlsSource::Off => return Ok(None),
            TlsSource::File { cert, key } => (cert.clone(), key.clone(), true),
            TlsSource::Dev { dir } => {
                let (cert, key) = make_dev(dir, hostname)?;
                (cert, key, false)
            }
        };
        let stamps = (stamp(&cert), stamp(&key));
        let current = load(&cert, &key)?;
        Ok(Some(Arc::new(Self {
            current: ArcSwap::from_pointee(current),
            files: watch.then_some((cert, key)),
            stamps: ArcSwap::from_pointee(stamps),
            next_check_ms: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        })))
    }

    /// What new connections are served with.
    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        self.current.load_full()
    }

    /// Whether it is time for somebody to call [`Self::check`]: true for one caller every few seconds.
    pub(crate) fn check_due(&self, mono_ms: u64) -> bool {
        let due = self.next_check_ms.load(Ordering::Relaxed);
        self.files.is_some()
            && mono_ms >= due
            && self
                .next_check_ms
                .compare_exchange(due, mono_ms + CHECK_MS, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Reads the files again if they have changed. What can't be used is counted and leaves the old ones in use.
    pub(crate) fn check(&self) {
        let Some((cert, key)) = &self.files else { return };
        let stamps = (stamp(cert), stamp(key));
        if **self.stamps.load() == stamps {
            return;
        }
        match load(cert, key) {
            Ok(config) => {
                self.current.store(Arc::new(config));
                tracing::info!("the TLS certificate has changed and is in use");
            }
            Err(error) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%error, "the changed TLS certificate can't be used; the old one stays");
            }
        }
        // Also after a failure: the same broken files are not tried again every few seconds.
        self.stamps.store(Arc::new(stamps));
    }

    /// Changed files that could not be used.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

fn stamp(path: &Path) -> Stamp {
    let meta = fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

/// aws-lc-rs with TLS 1.3 suites only, AES-128-GCM first: the cheapest with AES hardware, and as strong as the key
/// exchange. The hybrid X25519MLKEM768 comes first among the groups.
fn provider() -> CryptoProvider {
    use aws_lc_rs::{cipher_suite as suite, kx_group as group};
    CryptoProvider {
        cipher_suites: vec![
            suite::TLS13_AES_128_GCM_SHA256,
            suite::TLS13_AES_256_GCM_SHA384,
            suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        kx_groups: vec![
            group::X25519MLKEM768,
            group::X25519,
            group::SECP256R1,
            group::SECP384R1,
        ],
        ..aws_lc_rs::default_provider()
    }
}

fn load(cert: &Path, key: &Path) -> Result<ServerConfig, TlsError> {
    let chain = CertificateDer::pem_slice_iter(&read(cert)?)
        .collect::<Result<Vec<_>, _>>()
        .ok()
        .filter(|chain| !chain.is_empty())
        .ok_or_else(|| TlsError::Missing {
            path: cert.into(),
            what: "certificate",
        })?;
    let key = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|_| TlsError::Missing {
        path: key.into(),
        what: "private key",
    })?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.ignore_client_order = true;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // One stateless ticket: it keeps nothing here for any connection, and being something to say after the client's
    // last handshake message it carries the ACK that a client with Nagle's algorithm on would else wait 40 ms for.
    config.send_tls13_tickets = 1;
    config.ticketer = aws_lc_rs::Ticketer::new()?;
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    Ok(config)
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError::File {
        path: path.into(),
        source,
    })
}

/// Makes a key and a self-signed certificate in `dir`, unless they are there. A key without a certificate gets a
/// new certificate; a new hostname too.
fn make_dev(dir: &Path, hostname: &str) -> Result<(PathBuf, PathBuf), TlsError> {
    let (cert_path, key_path) = (dir.join("dev-cert.pem"), dir.join("dev-key.pem"));
    let key = if key_path.exists() {
        let pem = String::from_utf8(read(&key_path)?).map_err(|_| TlsError::Missing {
            path: key_path.clone(),
            what: "private key",
        })?;
        rcgen::KeyPair::from_pem(&pem)?
    } else {
        let key = rcgen::KeyPair::generate()?;
        write_private(&key_path, key.serialize_pem().as_bytes())?;
        key
    };
    let mut names = vec![hostname.to_owned()];
    for name in ["localhost", "127.0.0.1", "::1"] {
        if name != hostname {
            names.push(name.to_owned());
        }
    }
    // The names are kept beside the certificate, so that one made for another hostname is recognised.
    let names_path = dir.join("dev-cert.names");
    let made_for = names.join("\n");
    if !cert_path.exists() || fs::read(&names_path).ok().as_deref() != Some(made_for.as_bytes()) {
        let cert = rcgen::CertificateParams::new(names)?.self_signed(&key)?;
        write(&cert_path, cert.pem().as_bytes())?;
        write(&names_path, made_for.as_bytes())?;
    }
    Ok((cert_path, key_path))
}

fn write(path: &Path, content: &[u8]) -> Result<(), TlsError> {
    fs::write(path, content).map_err(|source| TlsError::File {
        path: path.into(),
        source,
    })
}

fn write_private(path: &Path, content: &[u8]) -> Result<(), TlsError> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
        .open(path)
        .and_then(|mut file| file.write_all(content).and_then(|()| file.sync_all()))
        .map_err(|source| TlsError::File {
            path: path.into(),
            source,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dev(dir: &Path) -> Arc<Certificates> {
        let source = TlsSource::Dev { dir: dir.into() };
        Certificates::open(&source, "relay.example").unwrap().unwrap()
    }

    #[test]
    fn the_development_key_survives_a_restart_and_is_private() {
        let dir = tempfile::tempdir().unwrap();
        dev(dir.path());
        let (key, cert) = (dir.path().join("dev-key.pem"), dir.path().join("dev-cert.pem"));
        let (first_key, first_cert) = (fs::read(&key).unwrap(), fs::read(&cert).unwrap());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
        }
        dev(dir.path());
        assert_eq!(
            (fs::read(&key).unwrap(), fs::read(&cert).unwrap()),
            (first_key.clone(), first_cert.clone())
        );
        let source = TlsSource::Dev {
            dir: dir.path().into(),
        };
        Certificates::open(&source, "other.example").unwrap().unwrap();
        assert_eq!(fs::read(&key).unwrap(), first_key);
        assert_ne!(fs::read(&cert).unwrap(), first_cert);
    }

    #[test]
    fn changed_files_are_used_and_broken_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        dev(dir.path());
        let (cert, key) = (dir.path().join("dev-cert.pem"), dir.path().join("dev-key.pem"));
        let source = TlsSource::File {
            cert: cert.clone(),
            key: key.clone(),
        };
        let certificates = Certificates::open(&source, "relay.example").unwrap().unwrap();
        assert!(
            certificates.check_due(1) && !certificates.check_due(2) && certificates.check_due(1 + CHECK_MS)
        );

        let first = certificates.current();
        certificates.check();
        assert!(Arc::ptr_eq(&first, &certificates.current()));

        let good = fs::read(&cert).unwrap();
        fs::write(&cert, "broken").unwrap();
        certificates.check();
        certificates.check();
        assert!(Arc::ptr_eq(&first, &certificates.current()));
        assert_eq!(certificates.failures(), 1);

        fs::write(&cert, good).unwrap();
        certificates.check();
        assert!(!Arc::ptr_eq(&first, &certificates.current()));
    }

    #[test]
    fn missing_files_are_an_error() {
        let source = TlsSource::File {
            cert: "/nonexistent/c".into(),
            key: "/nonexistent/k".into(),
        };
        assert!(matches!(
            Certificates::open(&source, "h"),
            Err(TlsError::File { .. })
        ));
    }
}
