//! JOIN bodies (06 §4), one-time codes, and links.

use drover_wire::invite::{CODE_SYMBOLS, canonical_code};
use drover_wire::join::{Request, Response};

use crate::codec::Codec;
use crate::random::Rng;
use crate::reference::bodies::{join_request, join_response};
use crate::reference::generate;

/// Heap: a bundle of at least 37 bytes becomes 56.
pub fn run(input: &[u8]) {
    let request = Codec {
        name: "JOIN request",
        shape: join_request(),
        code: |_| None,
        codes: &[],
        heap_factor: 0,
        decode: |body| Request::decode(body).ok_or(()),
        encode: Request::encode,
    };
    if request.check(input)
        && let Some(Request::Reserve { code, .. }) = Request::decode(input)
        && let Some(symbols) = canonical_code(code)
    {
        // A canonical code is its own canonical spelling.
        let text = String::from_utf8_lossy(&symbols);
        assert_eq!(text.len(), CODE_SYMBOLS);
        assert_eq!(canonical_code(&text), Some(symbols));
        assert_eq!(canonical_code(&text.to_ascii_lowercase()), Some(symbols));
    }
    for step in 0..5 {
        let response = Codec {
            name: "JOIN response",
            shape: join_response(step),
            code: |_| None,
            codes: &[],
            heap_factor: 2,
            decode: |body| Response::decode(step, body).ok_or(()),
            encode: Response::encode,
        };
        response.check(input);
    }
}

/// A request, or a response.
pub fn generate(rng: &mut Rng) -> Vec<u8> {
    let shape = match rng.below(3) {
        0 => join_response(rng.below(5) as u8),
        _ => join_request(),
    };
    generate::document(&shape, rng)
}
