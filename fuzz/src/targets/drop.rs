//! DROP payloads (09 §2).

use drover_wire::drop::{Answer, Request};
use drover_wire::error::Code;

use super::access::malformed;
use crate::codec::Codec;
use crate::random::Rng;
use crate::reference::bodies::{drop_answer, drop_request};
use crate::reference::generate;

/// Heap: hashes take no more than their encodings; a reason is spelled out once for each verdict it may be.
pub fn run(input: &[u8]) {
    let request = Codec {
        name: "DROP request",
        shape: drop_request(),
        code: malformed,
        codes: &[Code::MalformedHeader],
        heap_factor: 1,
        decode: Request::decode,
        encode: Request::encode,
    };
    request.check(input);
    let answer = Codec {
        name: "DROP answer",
        shape: drop_answer(),
        code: malformed,
        codes: &[Code::MalformedHeader],
        heap_factor: 8,
        decode: Answer::decode,
        encode: Answer::encode,
    };
    answer.check(input);
}

/// A request, or an answer.
pub fn generate(rng: &mut Rng) -> Vec<u8> {
    let shape = if rng.once_in(2) { drop_answer() } else { drop_request() };
    generate::document(&shape, rng)
}
