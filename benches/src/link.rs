//! A plain or TLS byte stream; blocking during set-up, non-blocking in the loop.

use crate::error::{Doing, Error};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// A request may take this long during set-up.
const SETUP_TIMEOUT: Duration = Duration::from_secs(30);

/// Where a relay listens.
#[derive(Clone)]
pub(crate) struct Target {
    /// `HOST:PORT`.
    authority: String,
    /// `/relay` as a rule.
    path: String,
    tls: Option<Arc<ClientConfig>>,
    /// What a proxy in front would say of the client.
    forwarded_for: Option<String>,
}

impl Target {
    /// From `ws://HOST[:PORT][/PATH]` or `wss://…`; the path defaults to `/relay`.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        let (tls, rest) = match url.split_once("://") {
            Some(("ws" | "http", rest)) => (false, rest),
            Some(("wss" | "https", rest)) => (true, rest),
            _ => return Err(Error::Usage(format!("--url {url}: ws:// or wss:// expected"))),
        };
        let (authority, path) = match rest.find('/') {
            Some(at) if rest.len() > at + 1 => rest.split_at(at),
            _ => (rest.trim_end_matches('/'), "/relay"),
        };
        let has_port = authority
            .rsplit_once(':')
            .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let authority = match (has_port, tls) {
            (true, _) => authority.to_owned(),
            (false, false) => format!("{authority}:80"),
            (false, true) => format!("{authority}:443"),
        };
        Ok(Self {
            authority,
            path: path.to_owned(),
            tls: tls.then(unchecked_tls),
            forwarded_for: None,
        })
    }

    /// The same, as a client at this address would reach it through a proxy.
    pub(crate) fn forwarded_for(&self, source: String) -> Self {
        Self {
            forwarded_for: Some(source),
            ..self.clone()
        }
    }

    /// The header line a proxy would add, or nothing.
    pub(crate) fn forwarded_line(&self) -> String {
        let line = |source| format!("X-Forwarded-For: {source}\r\n");
        self.forwarded_for.as_ref().map_or_else(String::new, line)
    }

    /// The value of the Host header.
    pub(crate) fn authority(&self) -> &str {
        &self.authority
    }

    /// Its address.
    pub(crate) fn address(&self) -> io::Result<std::net::SocketAddr> {
        let mut addresses = self.authority.to_socket_addrs()?;
        addresses
            .next()
            .ok_or_else(|| io::Error::other("the relay has no address"))
    }

    /// The path of the upgrade request.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Connects, and waits for it; the link is blocking.
    pub(crate) fn connect(&self) -> Result<Link, Error> {
        let mut addresses = self
            .authority
            .to_socket_addrs()
            .doing("resolve the relay's address")?;
        let address = addresses
            .next()
            .ok_or_else(|| Error::Usage(format!("{} has no address", self.authority)))?;
        let stream = TcpStream::connect(address).doing("connect")?;
        stream.set_nodelay(true).doing("set TCP_NODELAY")?;
        stream
            .set_read_timeout(Some(SETUP_TIMEOUT))
            .doing("set a timeout")?;
        let Some(config) = &self.tls else {
            return Ok(Link::Plain(stream));
        };
        let host = self
            .authority
            .rsplit_once(':')
            .map_or(&*self.authority, |(host, _)| host);
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())
            .map_err(|_| Error::Usage(format!("{host} is no server name")))?;
        let session = ClientConnection::new(Arc::clone(config), name)
            .map_err(|error| Error::Unexpected(format!("TLS: {error}")))?;
        Ok(Link::Tls(Box::new(StreamOwned::new(session, stream))))
    }
}

/// One connection's bytes.
pub(crate) enum Link {
    /// TCP.
    Plain(TcpStream),
    /// TLS over TCP.
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Link {
    fn tcp(&self) -> &TcpStream {
        match self {
            Link::Plain(stream) => stream,
            Link::Tls(stream) => &stream.sock,
        }
    }

    /// Whether a short read means that nothing is left to read.
    pub(crate) fn short_read_is_last(&self) -> bool {
        matches!(self, Link::Plain(_))
    }

    /// For the loop.
    pub(crate) fn set_nonblocking(&self) -> Result<(), Error> {
        self.tcp()
            .set_nonblocking(true)
            .doing("make a socket non-blocking")
    }
}

impl AsRawFd for Link {
    fn as_raw_fd(&self) -> RawFd {
        self.tcp().as_raw_fd()
    }
}

impl Read for Link {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Link::Plain(stream) => stream.read(into),
            Link::Tls(stream) => stream.read(into),
        }
    }
}

impl Write for Link {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Link::Plain(stream) => stream.write(bytes),
            Link::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Link::Plain(_) => Ok(()),
            Link::Tls(stream) => stream.flush(),
        }
    }
}

/// Any certificate will do: this is a load generator, pointed at test relays with made-up names.
fn unchecked_tls() -> Arc<ClientConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("the provider covers the default versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Unchecked(provider)))
        .with_no_client_auth();
    Arc::new(config)
}

#[derive(Debug)]
struct Unchecked(Arc<CryptoProvider>);

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let of = |url: &str| {
            let target = Target::parse(url).expect("a URL");
            (target.authority, target.path, target.tls.is_some())
        };
        assert_eq!(of("ws://h:1/x"), ("h:1".into(), "/x".into(), false));
        assert_eq!(of("ws://h/"), ("h:80".into(), "/relay".into(), false));
        assert_eq!(of("wss://[::1]:7"), ("[::1]:7".into(), "/relay".into(), true));
        assert_eq!(of("https://h"), ("h:443".into(), "/relay".into(), true));
        assert!(Target::parse("h:1").is_err());
    }
}
