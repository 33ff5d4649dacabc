//! The request before the WebSocket: however its bytes are cut it gets the same answer, and an upgrade is accepted as
//! tungstenite accepts it, and only then.

use std::io::{self, Read, Write};
use std::net::SocketAddr;

use drover_transport::http::{Asked, HEAD_BYTES_MAX, ask};
use drover_transport::{Page, PublicPages};

use crate::allocation;
use crate::random::{Rng, Script};

/// Heap of one answer: the join page, and a few times the head for tungstenite's copy of its fields.
fn heap_bytes(head_bytes: usize) -> usize {
    32 * 1024 + 8 * head_bytes
}

struct OnePage;

impl PublicPages for OnePage {
    fn page(&self, path: &str, authorization: Option<&[u8]>) -> Option<Page> {
        let status = match authorization {
            Some(b"Bearer right") => "200 OK",
            _ => "401 Unauthorized",
        };
        (path == "/one").then(|| Page {
            status,
            content_type: "text/plain",
            body: "one".to_owned(),
        })
    }
}

/// The script: proxies to trust, the size of pieces, the bytes.
pub fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let hops = script.below(4);
    let piece = usize::from(script.u8()) + 1;
    let bytes = script.rest();
    let peer = SocketAddr::from(([192, 0, 2, 7], 1234));
    let judge = |bytes: &[u8], seen: usize| {
        allocation::within("an answer", heap_bytes(bytes.len()), || {
            ask(bytes, seen, peer, hops, Some(&OnePage))
        })
    };

    let mut seen = 0;
    let mut asked = Asked::Partial;
    while asked == Asked::Partial && seen < bytes.len() {
        let end = (seen + piece).min(bytes.len());
        asked = judge(&bytes[..end], seen);
        if asked != Asked::Partial {
            // The same as if it had come at once.
            assert_eq!(asked, judge(&bytes[..end], 0));
        }
        seen = end;
    }
    if asked == Asked::Partial {
        assert!(seen < HEAD_BYTES_MAX, "an endless head is cut off");
    }
    let head = match &asked {
        Asked::Upgrade { head_bytes, .. } => &bytes[..*head_bytes],
        _ => &bytes[..seen],
    };
    let accepted = oracle(head);
    match &asked {
        Asked::Partial => assert_eq!(accepted, None, "tungstenite needs no more"),
        Asked::Upgrade {
            accept,
            head_bytes,
            source,
        } => {
            assert_eq!(accepted.as_deref(), Some(&accept[..]));
            assert!(bytes[..*head_bytes].ends_with(b"\n"));
            assert!(hops > 0 || **source == *"192.0.2.7");
        }
        Asked::Malformed(answer) | Asked::Answer(answer) => {
            assert!(answer.starts_with(b"HTTP/1.1 ") && !answer.starts_with(b"HTTP/1.1 1"));
            let head = String::from_utf8_lossy(answer);
            let (head, body) = head.split_once("\r\n\r\n").expect("a head has an end");
            assert!(head.contains("\r\nConnection: close"));
            assert!(bytes.starts_with(b"HEAD") || head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())));
            // What tungstenite would accept is refused for its path, its version, or its forwarded chain.
            if accepted.is_some() {
                let text = String::from_utf8_lossy(bytes);
                let path = text.split([' ', '?']).nth(1);
                let versions = text.to_ascii_lowercase().matches("sec-websocket-version").count();
                assert!(path != Some("/relay") || hops > 0 || versions > 1, "{text}");
            }
        }
    }
}

/// What tungstenite answers an upgrade with; `None` if it does not accept it.
fn oracle(bytes: &[u8]) -> Option<Vec<u8>> {
    struct Peer<'a>(&'a [u8], Vec<u8>);
    impl Read for Peer<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.0.read(into)
        }
    }
    impl Write for Peer<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut socket = tungstenite::accept(Peer(bytes, Vec::new())).ok()?;
    Some(std::mem::take(&mut socket.get_mut().1))
}

/// A request, mostly an upgrade.
pub fn generate(rng: &mut Rng) -> Vec<u8> {
    let mut script = vec![*rng.pick(&[0, 0, 1, 2]), *rng.pick(&[0, 1, 2, 40, 255])];
    let methods = ["GET", "GET", "GET", "HEAD", "POST", "get", ""];
    let paths = ["/relay", "/relay?x=1", "/relay", "/healthz", "/join/t", "/join/", "/one", "/", "*", ""];
    let versions = ["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", ""];
    let lines = [
        "Host: relay",
        "Connection: keep-alive, Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ];
    let more = [
        "X-Forwarded-For: 203.0.113.1, ,  203.0.113.2",
        "x-forwarded-for:203.0.113.3 ,",
        "Authorization: Bearer right",
        "Sec-WebSocket-Extensions: permessage-deflate",
        "Sec-WebSocket-Version: 8",
        "Content-Length: 5",
        "Transfer-Encoding: chunked",
        " folded",
        "no colon",
        "\u{e9}: \u{1f980}",
        "Cookie: a=b",
    ];
    let mut text = format!("{} {} {}\r\n", rng.pick(&methods), rng.pick(&paths), rng.pick(&versions));
    for line in lines {
        if !rng.once_in(20) {
            text += line;
            text += if rng.once_in(30) { "\n" } else { "\r\n" };
        }
        if rng.once_in(4) {
            text += *rng.pick(&more);
            text += "\r\n";
        }
    }
    if rng.once_in(30) {
        text += &format!("A: {}\r\n", "b".repeat(rng.below(HEAD_BYTES_MAX + 100)));
    }
    if !rng.once_in(8) {
        text += "\r\n";
    }
    script.extend(text.into_bytes());
    if rng.once_in(4) {
        script.extend([0x82, 0x80, 1, 2, 3, 4]);
    }
    script
}
