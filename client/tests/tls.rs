//! `wss`: which certificates are accepted.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use drover_client::{Connection, Endpoint, Error, Tls};
use rcgen::{CertificateParams, CertifiedIssuer, KeyPair};
use rustls::ServerConfig;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;

struct Server {
    url: drover_client::RelayUrl,
    certificate: CertificateDer<'static>,
    ca_pem: String,
}

/// A TLS 1.3 server for `localhost` that upgrades to WebSocket and then waits.
async fn server() -> Server {
    let ca = CertifiedIssuer::self_signed(
        CertificateParams::new(vec![]).map(as_ca).unwrap(),
        KeyPair::generate().unwrap(),
    );
    let ca = ca.unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".into()])
        .unwrap()
        .signed_by(&key, &ca)
        .unwrap();
    let chain = vec![certificate.der().clone()];
    let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(tls) = acceptor.accept(tcp).await else {
                    return;
                };
                if let Ok(socket) = tokio_tungstenite::accept_async(tls).await {
                    std::future::pending::<()>().await;
                    drop(socket);
                }
            });
        }
    });
    Server {
        url: format!("wss://localhost:{port}").parse().unwrap(),
        certificate: certificate.der().clone(),
        ca_pem: ca.as_ref().pem(),
    }
}

fn as_ca(mut params: CertificateParams) -> CertificateParams {
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params
}

async fn open(server: &Server, tls: Option<Tls>) -> Result<(), Error> {
    Connection::open(&Endpoint {
        url: server.url.clone(),
        tls,
    })
    .await
    .map(drop)
}

#[tokio::test]
async fn only_the_named_authority_is_trusted() {
    let (server, other) = (server().await, server_with_another_authority().await);
    open(&server, Some(Tls::ca_pem(server.ca_pem.as_bytes()).unwrap()))
        .await
        .unwrap();
    let refused = open(&server, Some(Tls::ca_pem(other.ca_pem.as_bytes()).unwrap()))
        .await
        .unwrap_err();
    assert!(
        matches!(refused, Error::Tls(_)) && !refused.is_transient(),
        "{refused}"
    );
}

async fn server_with_another_authority() -> Server {
    server().await
}

#[tokio::test]
async fn a_pinned_certificate_is_accepted_and_no_other() {
    let server = server().await;
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &server.certificate);
    let mut sha256: [u8; 32] = digest.as_ref().try_into().unwrap();
    open(&server, Some(Tls::dangerous_dev_fingerprint(sha256).unwrap()))
        .await
        .unwrap();
    sha256[0] ^= 1;
    let refused = open(&server, Some(Tls::dangerous_dev_fingerprint(sha256).unwrap()))
        .await
        .unwrap_err();
    assert!(matches!(refused, Error::Tls(_)), "{refused}");
}

#[tokio::test]
async fn a_plain_connection_to_a_tls_port_fails() {
    let server = server().await;
    let plain = server.url.to_string().replace("wss://", "ws://").parse().unwrap();
    assert!(
        Connection::open(&Endpoint {
            url: plain,
            tls: None
        })
        .await
        .is_err()
    );
}
