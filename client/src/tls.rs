//! TLS for `wss`: 1.3 only, aws-lc-rs, roots from the system, certificates from a file, or one pinned certificate for
//! development.

use std::fmt;
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
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
        let roots = roots(rustls_native_certs::load_native_certs().certs)?;
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(text)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(SYSTEM.get_or_init(|| Self(Arc::new(config))).clone())
    }

    /// By these certificates only, one or more in PEM: what they sign as authorities, and each of them when the relay
    /// shows it as its own. Name and dates have to be right in either case.
    ///
    /// # Errors
    /// [`Error::Tls`] when the text holds no usable certificate.
    pub fn ca_pem(pem: &[u8]) -> Result<Self, Error> {
        let certs = CertificateDer::pem_slice_iter(pem)
            .collect::<Result<Vec<_>, _>>()
            .map_err(text)?;
        let roots = Arc::new(roots(certs.clone())?);
        let chains = WebPkiServerVerifier::builder_with_provider(roots, provider());
        Self::verified_by(Named {
            chains: chains.build().map_err(text)?,
            certs,
        })
    }

    /// By nothing but the SHA-256 of the relay's own certificate in DER form. Name and expiry are not looked at.
    /// For `WEALD_RELAY_TLS=dev` on a developer's machine: a renewed certificate is refused, a stolen one accepted.
    pub fn dangerous_dev_fingerprint(sha256: [u8; 32]) -> Result<Self, Error> {
        Self::verified_by(Pinned {
            sha256,
            provider: provider(),
        })
    }

    fn verified_by(verifier: impl ServerCertVerifier + 'static) -> Result<Self, Error> {
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(text)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
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

fn roots(certs: Vec<CertificateDer<'static>>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    let (usable, _) = roots.add_parsable_certificates(certs);
    match usable {
        0 => Err(Error::Tls("no usable root certificate".into())),
        _ => Ok(roots),
    }
}

fn text(error: impl fmt::Display) -> Error {
    Error::Tls(error.to_string())
}

/// Accepts what the named certificates sign, and the named certificates themselves.
#[derive(Debug)]
struct Named {
    chains: Arc<WebPkiServerVerifier>,
    certs: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Named {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified =
            self.chains
                .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            Err(error) if concerns_the_issuer(&error) && self.certs.contains(end_entity) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}

/// Whether a certificate was refused for who signed it or for being an authority's, as `openssl req -x509` makes them: it
/// needs no issuer if it is trusted itself. Its dates were right: they are looked at before, and the name after.
fn concerns_the_issuer(error: &rustls::Error) -> bool {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => true,
        rustls::Error::InvalidCertificate(CertificateError::Other(other)) => {
            other.0.downcast_ref() == Some(&webpki::Error::CaUsedAsEndEntity)
        }
        _ => false,
    }
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
