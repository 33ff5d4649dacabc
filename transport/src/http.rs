//! What comes before the WebSocket: one HTTP/1.1 request, read as it arrives, judged, and answered. Every answer but
//! the upgrade ends the connection. Without I/O.

use crate::pages::{Page, PublicPages};
use bytes::Bytes;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use tungstenite::handshake::machine::TryParse;
use tungstenite::handshake::server::{Request, create_response, write_response};

/// Longest request head. Browsers stay far below; a proxy's forwarded chain fits.
pub const HEAD_BYTES_MAX: usize = 16_384;
/// Most header lines, tungstenite's own bound.
const HEADERS_MAX: usize = 124;

/// The page behind an invite link. The same for every token, existing or not: nothing is looked up, and the secret
/// after `#` never leaves the browser (13 §c.1).
const JOIN_PAGE: &str = include_str!("join.html");

/// What a request head asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    /// More bytes are needed.
    Partial,
    /// A WebSocket, and the request is well-formed.
    Upgrade {
        /// The answer that accepts it.
        accept: Bytes,
        /// The source the connection counts for.
        source: Box<str>,
        /// Length of the head: what follows is WebSocket.
        head_bytes: usize,
    },
    /// A WebSocket, but not in a way that can be accepted: this answer, then the end.
    Malformed(Bytes),
    /// Anything else: this answer, then the end.
    Answer(Bytes),
}

/// Judges what has come of a request, of which the first `seen` bytes were judged [`Asked::Partial`] before. `public`:
/// pages beside our own.
pub fn ask(
    bytes: &[u8],
    seen: usize,
    peer: SocketAddr,
    trusted_proxy_hops: usize,
    public: Option<&dyn PublicPages>,
) -> Asked {
    let plausible = bytes.first().is_none_or(u8::is_ascii_uppercase);
    if plausible && bytes.len() < HEAD_BYTES_MAX && !may_be_complete(bytes, seen) {
        return Asked::Partial;
    }
    judge(bytes, peer, trusted_proxy_hops, public)
}

/// Whether the head may have ended in the last part of `bytes`, of which all before `from` was looked at earlier.
/// Keeps a peer that sends byte by byte from having its head parsed anew each time.
fn may_be_complete(bytes: &[u8], from: usize) -> bool {
    let bytes = &bytes[from.saturating_sub(3)..];
    bytes.windows(2).any(|pair| pair == b"\n\n") || bytes.windows(3).any(|three| three == b"\n\r\n")
}

/// Judges a request head.
fn judge(
    bytes: &[u8],
    peer: SocketAddr,
    trusted_proxy_hops: usize,
    public: Option<&dyn PublicPages>,
) -> Asked {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let head_bytes = match request.parse(bytes) {
        Ok(httparse::Status::Complete(head_bytes)) if head_bytes <= HEAD_BYTES_MAX => head_bytes,
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_BYTES_MAX => return Asked::Partial,
        Ok(_) => {
            return Asked::Answer(answer("431 Request Header Fields Too Large", "", TEXT, ""));
        }
        Err(_) => return Asked::Answer(answer("400 Bad Request", "", TEXT, "")),
    };
    let method = request.method.unwrap_or_default();
    let path = request.path.unwrap_or_default();
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    match path {
        "/relay" => upgrade(&request, bytes, head_bytes, peer, trusted_proxy_hops),
        "/healthz" => Asked::Answer(page(method, "", TEXT, "ok\n")),
        _ if path.strip_prefix("/join/").is_some_and(|token| !token.is_empty()) => {
            let more = "X-Robots-Tag: noindex\r\nReferrer-Policy: no-referrer\r\n";
            Asked::Answer(page(method, more, "text/html; charset=utf-8", JOIN_PAGE))
        }
        _ => {
            let authorization = request
                .headers
                .iter()
                .find(|header| header.name.eq_ignore_ascii_case("authorization"));
            let further = public.and_then(|pages| pages.page(path, authorization.map(|header| header.value)));
            Asked::Answer(match further {
                Some(Page {
                    status,
                    content_type,
                    body,
                }) => page_with(status, method, "Cache-Control: no-store\r\n", content_type, &body),
                None => answer("404 Not Found", "", TEXT, ""),
            })
        }
    }
}

/// The tests before an upgrade, in the order of 02 §1, as far as they need only the request.
fn upgrade(
    request: &httparse::Request<'_, '_>,
    bytes: &[u8],
    head_bytes: usize,
    peer: SocketAddr,
    trusted_proxy_hops: usize,
) -> Asked {
    if request.method != Some("GET") {
        return Asked::Malformed(answer("405 Method Not Allowed", "Allow: GET\r\n", TEXT, ""));
    }
    let version = request
        .headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("sec-websocket-version"));
    if request.version != Some(1) || version.is_some_and(|version| version.value != b"13") {
        let more = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n";
        return Asked::Malformed(answer("426 Upgrade Required", more, TEXT, ""));
    }
    let mut accept = Vec::with_capacity(160);
    let accepted = Request::try_parse(&bytes[..head_bytes])
        .and_then(|parsed| parsed.map(|(_, request)| create_response(&request)).transpose())
        .and_then(|response| {
            response
                .map(|response| write_response(&mut accept, &response))
                .transpose()
        });
    if !matches!(accepted, Ok(Some(()))) {
        return Asked::Malformed(answer("400 Bad Request", "", TEXT, "not a WebSocket upgrade\n"));
    }
    match source(request.headers, peer, trusted_proxy_hops) {
        Some(source) => Asked::Upgrade {
            accept: accept.into(),
            source,
            head_bytes,
        },
        None => Asked::Malformed(answer(
            "400 Bad Request",
            "",
            TEXT,
            "forwarded chain is not trusted\n",
        )),
    }
}

/// The source a request counts for: the transport peer, or with `hops` trusted proxies in front the element they
/// vouch for (13 §h). `None` if the forwarded chain is too short.
fn source(headers: &[httparse::Header<'_>], peer: SocketAddr, hops: usize) -> Option<Box<str>> {
    let forwarded = headers
        .iter()
        .filter(|header| header.name.eq_ignore_ascii_case("x-forwarded-for"));
    if hops == 0 {
        if forwarded.count() > 0 {
            warn_of_untrusted_chain();
        }
        return Some(peer.ip().to_canonical().to_string().into());
    }
    let elements: Vec<&[u8]> = forwarded
        .flat_map(|header| header.value.split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|element| !element.is_empty())
        .collect();
    let at = elements.len().checked_sub(hops)?;
    Some(String::from_utf8_lossy(elements[at]).into())
}

/// Says once that a proxy seems to be in front which the configuration doesn't know of (13 §h).
fn warn_of_untrusted_chain() {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "a request came with X-Forwarded-For, but WEALD_RELAY_TRUSTED_PROXY_HOPS is 0: all clients behind that \
             proxy count as one source"
        );
    }
}

/// The answer to an upgrade there is no room for.
pub(crate) fn refusal() -> Bytes {
    answer(
        "503 Service Unavailable",
        "Retry-After: 5\r\n",
        TEXT,
        "at capacity\n",
    )
}

/// The answer to an upgrade while the relay is stopping.
pub(crate) fn stopping() -> Bytes {
    answer(
        "503 Service Unavailable",
        "Retry-After: 5\r\n",
        TEXT,
        "stopping\n",
    )
}

const TEXT: &str = "text/plain; charset=utf-8";

fn page(method: &str, more: &str, kind: &str, body: &str) -> Bytes {
    page_with("200 OK", method, more, kind, body)
}

fn page_with(status: &str, method: &str, more: &str, kind: &str, body: &str) -> Bytes {
    match method {
        "GET" => answer(status, more, kind, body),
        "HEAD" => {
            let whole = answer(status, more, kind, body);
            whole.slice(..whole.len() - body.len())
        }
        _ => answer("405 Method Not Allowed", "Allow: GET, HEAD\r\n", TEXT, ""),
    }
}

fn answer(status: &str, more: &str, kind: &str, body: &str) -> Bytes {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{more}Connection: close\r\n\r\n{body}",
        body.len()
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: &str = "192.0.2.7:1234";
    const GOOD: &str = "Host: relay\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

    fn asked(head: &str, hops: usize) -> Asked {
        ask(head.as_bytes(), 0, PEER.parse().unwrap(), hops, None)
    }

    fn status(head: &str, hops: usize) -> String {
        match asked(head, hops) {
            Asked::Answer(bytes) | Asked::Malformed(bytes) => {
                String::from_utf8(bytes[9..12].to_vec()).unwrap()
            }
            Asked::Upgrade { source, .. } => format!("101 {source}"),
            Asked::Partial => "partial".into(),
        }
    }

    #[test]
    fn an_upgrade_is_accepted_and_what_it_offers_is_ignored() {
        let head = format!(
            "GET /relay?x=1 HTTP/1.1\r\n{GOOD}Sec-WebSocket-Protocol: chat\r\n\
             Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
        );
        let Asked::Upgrade {
            accept,
            source,
            head_bytes,
        } = asked(&format!("{head}rest"), 0)
        else {
            panic!("not accepted")
        };
        let accept = String::from_utf8(accept.to_vec()).unwrap().to_ascii_lowercase();
        assert!(accept.starts_with("http/1.1 101 "));
        assert!(accept.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="));
        assert!(!accept.contains("protocol:") && !accept.contains("extensions"));
        assert_eq!((&*source, head_bytes), ("192.0.2.7", head.len()));
    }

    #[test]
    fn malformed_upgrades_are_told_why() {
        assert_eq!(status(&format!("POST /relay HTTP/1.1\r\n{GOOD}\r\n"), 0), "405");
        assert_eq!(status(&format!("GET /relay HTTP/1.0\r\n{GOOD}\r\n"), 0), "426");
        assert_eq!(
            status(
                &format!("GET /relay HTTP/1.1\r\n{}\r\n", GOOD.replace("13", "8")),
                0
            ),
            "426"
        );
        assert_eq!(status("GET /relay HTTP/1.1\r\nHost: relay\r\n\r\n", 0), "400");
        assert_eq!(
            status(
                &format!("GET /relay HTTP/1.1\r\n{}\r\n", GOOD.replace("dGhl", "")),
                0
            ),
            "400"
        );
        assert_eq!(status("nonsense\r\n\r\n", 0), "400");
        assert_eq!(status("GET /relay HTTP/1.1\r\n", 0), "partial");
    }

    #[test]
    fn the_forwarded_chain_is_counted_from_its_end() {
        let with = |chain: &str, hops| status(&format!("GET /relay HTTP/1.1\r\n{GOOD}{chain}\r\n"), hops);
        let two = "X-Forwarded-For: 203.0.113.1, ,  203.0.113.2\r\nx-forwarded-for:203.0.113.3 ,\r\n";
        assert_eq!(with(two, 0), "101 192.0.2.7");
        assert_eq!(with(two, 1), "101 203.0.113.3");
        assert_eq!(with(two, 2), "101 203.0.113.2");
        assert_eq!(with(two, 3), "101 203.0.113.1");
        assert_eq!(with(two, 4), "400");
        assert_eq!(with("", 1), "400");
        assert_eq!(with("X-Forwarded-For: unknown\r\n", 1), "101 unknown");
        // Malformed comes first, and no other route is affected.
        assert_eq!(status("POST /relay HTTP/1.1\r\n\r\n", 1), "405");
        assert_eq!(status("GET /healthz HTTP/1.1\r\n\r\n", 1), "200");
    }

    /// W06.24: the join page is the same for every token.
    #[test]
    fn pages() {
        let body = |head: &str| match asked(head, 0) {
            Asked::Answer(bytes) => String::from_utf8(bytes.to_vec())
                .unwrap()
                .split_once("\r\n\r\n")
                .unwrap()
                .1
                .to_owned(),
            other => panic!("{other:?}"),
        };
        assert_eq!(body("GET /healthz HTTP/1.1\r\n\r\n"), "ok\n");
        assert_eq!(body("HEAD /healthz HTTP/1.1\r\n\r\n"), "");
        assert_eq!(status("POST /healthz HTTP/1.1\r\n\r\n", 0), "405");
        assert_eq!(status("GET /download HTTP/1.1\r\n\r\n", 0), "404");
        assert_eq!(status("GET /readyz HTTP/1.1\r\n\r\n", 0), "404");
        assert_eq!(status("GET /join HTTP/1.1\r\n\r\n", 0), "404");
        assert_eq!(
            asked("GET /join/aa HTTP/1.1\r\n\r\n", 0),
            asked("GET /join/bb/c?d HTTP/1.1\r\n\r\n", 0)
        );
        assert!(body("GET /join/aa HTTP/1.1\r\n\r\n").contains("weald://join/"));
    }

    /// One page, for one bearer.
    struct OnePage;

    impl PublicPages for OnePage {
        fn page(&self, path: &str, authorization: Option<&[u8]>) -> Option<Page> {
            let (status, body) = match authorization {
                Some(b"Bearer right") => ("200 OK", "the page"),
                _ => ("401 Unauthorized", "who are you\n"),
            };
            (path == "/one").then(|| Page {
                status,
                content_type: TEXT,
                body: body.to_owned(),
            })
        }
    }

    #[test]
    fn further_pages_are_asked_for_what_is_not_ours() {
        let asked = |line: &str, bearer: &str| {
            let head = format!("{line} HTTP/1.1\r\nauthorization: Bearer {bearer}\r\n\r\n");
            match ask(head.as_bytes(), 0, PEER.parse().unwrap(), 0, Some(&OnePage)) {
                Asked::Answer(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
                other => panic!("{other:?}"),
            }
        };
        assert!(asked("GET /one?x=y", "right").ends_with("\r\n\r\nthe page"));
        let head = asked("HEAD /one", "right");
        assert!(head.contains("Content-Length: 8\r\n") && head.ends_with("\r\n\r\n"));
        assert!(asked("GET /one", "wrong").starts_with("HTTP/1.1 401 "));
        assert!(asked("POST /one", "right").starts_with("HTTP/1.1 405 "));
        assert!(asked("GET /two", "right").starts_with("HTTP/1.1 404 "));
        assert!(asked("GET /healthz", "wrong").ends_with("ok\n"));
    }

    #[test]
    fn a_head_is_parsed_only_when_it_may_be_whole() {
        let head = b"GET / HTTP/1.1\r\nA: b\r\n\r\n";
        let at = (1..=head.len()).find(|end| may_be_complete(&head[..*end], end - 1));
        assert_eq!(at, Some(head.len()));
    }

    #[test]
    fn an_endless_head_is_cut_off() {
        let head = format!("GET /relay HTTP/1.1\r\nA: {}", "b".repeat(HEAD_BYTES_MAX));
        assert_eq!(status(&head, 0), "431");
    }
}
