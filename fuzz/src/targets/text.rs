//! Text that people and peers write: one-time codes, addresses of a ringer, relay URLs, invite links.

use drover_client::{InviteLink, RelayUrl};
use drover_wire::frame::{REGISTER_URL_BYTES_MAX, is_register_url};
use drover_wire::invite::{CODE_SYMBOLS, canonical_code};
use tungstenite::http::Uri;

use crate::allocation;
use crate::random::Rng;

/// Heap: a few copies of the text.
const HEAP_FACTOR: usize = 16;

/// The input is the text.
pub fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    allocation::within("texts", 1024 + HEAP_FACTOR * text.len(), || {
        code(&text);
        url(&text);
        link(&text);
    });
    register_url(&text);
}

/// The twelve symbols, whatever is between them, whatever their case (06 §3).
fn code(text: &str) {
    let symbols: String = text.chars().filter(|c| !matches!(c, '-' | ' ')).collect();
    let symbols = symbols.to_ascii_uppercase().replace(['I', 'L'], "1").replace('O', "0");
    let is_code = symbols.len() == CODE_SYMBOLS
        && symbols.bytes().all(|b| b.is_ascii_digit() || (b.is_ascii_uppercase() && b != b'U'));
    let canonical = canonical_code(text);
    assert_eq!(canonical.is_some(), is_code, "{text:?}");
    if let Some(canonical) = canonical {
        assert_eq!(canonical, symbols.as_bytes());
    }
}

/// At most 512 bytes; empty, https, or http to this machine (12 §2), by an independent reading of the address.
fn register_url(text: &str) {
    if !is_register_url(text) || text.is_empty() {
        return;
    }
    assert!(text.len() <= REGISTER_URL_BYTES_MAX);
    let lower = text.to_ascii_lowercase();
    assert!(lower.starts_with("https://") || lower.starts_with("http://"), "{text:?}");
    if let Ok(uri) = text.parse::<Uri>()
        && lower.starts_with("http://")
    {
        let host = uri.host().unwrap_or_default().to_ascii_lowercase();
        assert!(["127.0.0.1", "localhost", "[::1]"].contains(&host.as_str()), "{text:?}");
    }
}

/// Shown and read again it is the same.
fn url(text: &str) {
    if let Ok(url) = text.parse::<RelayUrl>() {
        let shown = url.to_string();
        assert!(shown.parse::<RelayUrl>().is_ok_and(|again| again == url), "{text:?} is shown as {shown:?}");
        assert!(!url.host().is_empty());
    }
}

fn link(text: &str) {
    if let Ok(link) = text.parse::<InviteLink>() {
        let hex: String = link.token.0.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(text.to_ascii_lowercase().contains(&hex));
        assert!(link.fragment.is_none_or(|fragment| !fragment.is_empty()));
    }
}

/// Pieces of such texts.
pub fn generate(rng: &mut Rng) -> Vec<u8> {
    let pieces = [
        "https://",
        "http://",
        "HTTP://",
        "wss://",
        "ws://",
        "weald://join/",
        "/join/",
        "00112233445566778899aabbccddeeff",
        "28T5-CY4T-QKFF",
        "28t5 cy4t",
        "localhost",
        "127.0.0.1",
        "[::1]",
        "evil.example",
        "@",
        ":",
        ":8443",
        "/",
        "?",
        "#",
        "#secret",
        "\\",
        " ",
        "\u{e9}",
        "/relay",
        "U",
        "oO",
    ];
    (0..rng.below(7)).map(|_| *rng.pick(&pieces)).collect::<String>().into_bytes()
}
