//! `wss`: which certificates are accepted.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use drover_client::{Connection, Endpoint, Error, Tls};
use rcgen::{Certificate, CertificateParams, CertifiedIssuer, DnType, KeyPair, date_time_ymd};
use rustls::ServerConfig;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;

struct Server {
    url: drover_client::RelayUrl,
    certificate: CertificateDer<'static>,
    own_pem: String,
    ca_pem: String,
}

/// A server whose certificate an authority of its own signed.
async fn server(authority: &str) -> Server {
    let ca = CertifiedIssuer::self_signed(as_ca(named(authority)), KeyPair::generate().unwrap());
    let ca = ca.unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = named("localhost").signed_by(&key, &ca).unwrap();
    serve(&certificate, &key, ca.as_ref().pem()).await
}

/// A TLS 1.3 server for `localhost` that upgrades to WebSocket and then waits. It signs with `key`, whether that is the
/// certificate's or not.
async fn serve(certificate: &Certificate, key: &KeyPair, ca_pem: String) -> Server {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let signing = provider.key_provider.load_private_key(private).unwrap();
    let certified = CertifiedKey::new(vec![certificate.der().clone()], signing);
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
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
        own_pem: certificate.pem(),
        ca_pem,
    }
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(vec![name.into()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params
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

#[track_caller]
fn assert_refused(opened: Result<(), Error>, why: &str) {
    let refused = opened.unwrap_err();
    assert!(
        matches!(refused, Error::Tls(_)) && !refused.is_transient() && refused.to_string().contains(why),
        "{refused}"
    );
}

async fn open_trusting(server: &Server, pem: &str) -> Result<(), Error> {
    open(server, Some(Tls::ca_pem(pem.as_bytes()).unwrap())).await
}

#[tokio::test]
async fn only_the_named_authority_is_trusted() {
    let (server, other) = (server("one").await, server("another").await);
    open_trusting(&server, &server.ca_pem).await.unwrap();
    assert_refused(open_trusting(&server, &other.ca_pem).await, "UnknownIssuer");
}

/// A certificate that is named is accepted when the relay shows it, though it calls itself an authority's, as
/// `openssl req -x509` makes them, or nobody knows who signed it.
#[tokio::test]
async fn a_named_certificate_may_be_the_relays_own() {
    let key = KeyPair::generate().unwrap();
    for params in [named("localhost"), as_ca(named("localhost"))] {
        let own = params.self_signed(&key).unwrap();
        let server = serve(&own, &key, own.pem()).await;
        open_trusting(&server, &server.ca_pem).await.unwrap();
        // Beside others it is one of them.
        let other = named("other").self_signed(&KeyPair::generate().unwrap()).unwrap();
        open_trusting(&server, &(other.pem() + &server.ca_pem))
            .await
            .unwrap();
        // Nobody trusts it who did not name it.
        assert!(open_trusting(&server, &other.pem()).await.is_err());
    }
    let server = server("authority").await;
    open_trusting(&server, &server.own_pem).await.unwrap();
}

/// Everything else about it still has to be right.
#[tokio::test]
async fn a_named_certificate_is_still_verified() {
    let key = KeyPair::generate().unwrap();
    let own = as_ca(named("localhost")).self_signed(&key).unwrap();

    // Somebody who has the certificate and not its key.
    let thief = serve(&own, &KeyPair::generate().unwrap(), own.pem()).await;
    assert_refused(open_trusting(&thief, &thief.ca_pem).await, "BadSignature");
    // The same subject and another key: not the same certificate.
    let twin = as_ca(named("localhost"))
        .self_signed(&KeyPair::generate().unwrap())
        .unwrap();
    let server = serve(&own, &key, twin.pem()).await;
    assert_refused(open_trusting(&server, &server.ca_pem).await, "CaUsedAsEndEntity");
    // The same key in another certificate.
    let second = as_ca(named("localhost")).self_signed(&key).unwrap();
    assert_ne!(second.der(), own.der());
    let server = serve(&own, &key, second.pem()).await;
    assert_refused(open_trusting(&server, &server.ca_pem).await, "CaUsedAsEndEntity");

    let elsewhere = as_ca(named("elsewhere")).self_signed(&key).unwrap();
    let server = serve(&elsewhere, &key, elsewhere.pem()).await;
    assert_refused(open_trusting(&server, &server.ca_pem).await, "not valid for name");

    for (from, until, why) in [(2001, 2002, "expired"), (2901, 2902, "not valid yet")] {
        let mut params = as_ca(named("localhost"));
        (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(until, 1, 1));
        let untimely = params.self_signed(&key).unwrap();
        let server = serve(&untimely, &key, untimely.pem()).await;
        assert_refused(open_trusting(&server, &server.ca_pem).await, why);
    }
}

#[tokio::test]
async fn a_pinned_certificate_is_accepted_and_no_other() {
    let server = server("authority").await;
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
    let server = server("authority").await;
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
