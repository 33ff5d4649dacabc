//! The other end of the private listener, for `healthcheck`, `status` and `workspace`: one request, one answer,
//! HTTP/1.1 over a plain socket on this machine.

use crate::config::HostPort;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::time::Duration;

/// How long each step may take: an answer needs no more than a store's commit.
pub(crate) const STEP: Duration = Duration::from_secs(10);
/// The longest answer, bytes: a transparency log of some hundred thousand entries.
const ANSWER_BYTES_MAX: u64 = 32 << 20;

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    /// HTTP status.
    pub(crate) status: u16,
    /// Body.
    pub(crate) body: String,
}

/// Asks the private listener, and waits so long for its answer.
///
/// # Errors
/// When nobody listens there, or what came back is not HTTP.
pub(crate) fn ask(
    listener: &HostPort,
    method: &str,
    path: &str,
    bearer: Option<&str>,
    body: &str,
    patience: Duration,
) -> io::Result<Answer> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (listener.host.trim_matches(['[', ']']), listener.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&reachable(address), STEP) {
            Ok(stream) => {
                stream.set_read_timeout(Some(patience))?;
                return exchange(stream, method, path, bearer, body);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A listener on all addresses is reached on this machine's own.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

fn exchange(
    mut stream: TcpStream,
    method: &str,
    path: &str,
    bearer: Option<&str>,
    body: &str,
) -> io::Result<Answer> {
    stream.set_write_timeout(Some(STEP))?;
    let authorization = bearer
        .map(|token| format!("Authorization: Bearer {token}\r\n"))
        .unwrap_or_default();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{authorization}\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    parse(&answer)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "what answers there is not this relay"))
}

/// Our listener gives every body its length and ends the connection after it.
fn parse(answer: &str) -> Option<Answer> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some(Answer {
        status,
        body: body.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_status_and_a_body() {
        let answer = parse("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\nno").unwrap();
        assert_eq!((answer.status, answer.body.as_str()), (503, "no"));
        for wrong in [
            "",
            "SSH-2.0-x\r\n\r\n",
            "HTTP/1.1 x\r\n\r\n",
            "HTTP/1.1 200 OK\r\n",
        ] {
            assert!(parse(wrong).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn a_listener_on_all_addresses_is_asked_at_home() {
        for (bound, asked) in [
            ("0.0.0.0:1", "127.0.0.1:1"),
            ("[::]:1", "[::1]:1"),
            ("192.0.2.1:1", "192.0.2.1:1"),
        ] {
            assert_eq!(reachable(bound.parse().unwrap()), asked.parse().unwrap());
        }
    }
}
