//! TLS for `wss`: 1.3 only, aws-lc-rs, roots from the system or from a file, or one pinned certificate for development.

use std::fmt;
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::error::Error;

/// How a relay's certificate is judged.
#[derive(Clone)]
pub struct Tls(Arc<ClientConfig>);

impl Tls {
    /// By the system's trusted roots (`SSL_CERT_FILE` and `SSL_CERT_DIR` override them). Loaded once per process.
    ///
    /// # Errors
    /// [`Error::Tls`] when the system has no usable root.
    pub fn system() -> Result<Self, Error> {
        static SYSTEM: OnceLock<Tls> = OnceLock::new();
        if let Some(tls) = SYSTEM.get() {
            return Ok(tls.clone());
        }
        let tls = Self::roots(rustls_native_certs::load_native_certs().certs)?;
        Ok(SYSTEM.get_or_init(|| tls).clone())
    }

    /// By these certificate authorities only: one or more PEM certificates.
    ///
    /// # Errors
    /// [`Error::Tls`] when the text holds no usable certificate.
    pub fn ca_pem(pem: &[u8]) -> Result<Self, Error> {
        let certs = CertificateDer::pem_slice_iter(pem)
            .collect::<Result<Vec<_>, _>>()
            .map_err(text)?;
        Self::roots(certs)
    }

    /// By nothing but the SHA-256 of the relay's own certificate in DER form. Name and expiry are not looked at.
    /// For `WEALD_RELAY_TLS=dev` on a developer's machine: a renewed certificate is refused, a stolen one accepted.
    pub fn dangerous_dev_fingerprint(sha256: [u8; 32]) -> Result<Self, Error> {
        let provider = provider();
        let verifier = Arc::new(Pinned {
            sha256,
            provider: provider.clone(),
        });
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(text)?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }

    fn roots(certs: Vec<CertificateDer<'static>>) -> Result<Self, Error> {
        let mut roots = RootCertStore::empty();
        let (usable, _) = roots.add_parsable_certificates(certs);
        if usable == 0 {
            return Err(Error::Tls("no usable root certificate".into()));
        }
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(text)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }

    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        self.0.clone()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn text(error: impl fmt::Display) -> Error {
    Error::Tls(error.to_string())
}

/// Accepts one certificate, whatever it says; the handshake signature is still verified against its key.
#[derive(Debug)]
struct Pinned {
    sha256: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let digest = ::aws_lc_rs::digest::digest(&::aws_lc_rs::digest::SHA256, end_entity);
        if digest.as_ref() == self.sha256 {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(rustls::Error::InvalidCertificate(
                rustls::CertificateError::ApplicationVerificationFailure,
            ))
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_without_a_certificate_is_refused() {
        assert!(matches!(Tls::ca_pem(b"nothing here"), Err(Error::Tls(_))));
        assert!(Tls::dangerous_dev_fingerprint([0; 32]).is_ok());
    }
}
