//! BLOB payloads (08 §1 to §3), the records of a retention chain alone (08 §11, §12), and WRAP (07 B).

use drover_wire::blob::{Request, Response};
use drover_wire::error::Code;
use drover_wire::retention::{Control, Destruction, Manifest, Policy, Resolution};
use drover_wire::wrap::Wrap;

use super::access::malformed;
use crate::codec::{Codec, IntoRefused};
use crate::random::Rng;
use crate::reference::{Shape, generate};
use crate::reference::{bodies, frames};

const MALFORMED: &[Code] = &[Code::MalformedHeader];

/// Heap: a part or an entry of at least 3 bytes becomes 24; keys, hashes and signatures take no more than their
/// encodings.
pub fn run(input: &[u8]) {
    let request = Codec {
        name: "BLOB request",
        shape: bodies::blob_request(),
        code: malformed,
        codes: MALFORMED,
        heap_factor: 8,
        decode: Request::decode,
        encode: Request::encode,
    };
    request.check(input);
    let response = Codec {
        name: "BLOB response",
        shape: bodies::blob_response(),
        code: malformed,
        codes: MALFORMED,
        heap_factor: 8,
        decode: Response::decode,
        encode: Response::encode,
    };
    response.check(input);
    record("control", bodies::control(), input, Control::decode, Control::encode);
    record("manifest", bodies::manifest(), input, Manifest::decode, Manifest::encode);
    record("policy", bodies::policy(), input, Policy::decode, Policy::encode);
    record("destruction", bodies::destruction(), input, Destruction::decode, Destruction::encode);
    record("resolution", bodies::resolution(), input, Resolution::decode, Resolution::encode);
    let wrap = Codec {
        name: "WRAP",
        shape: bodies::wrap(),
        code: |fault| match frames::code(fault) {
            (Code::EnvelopeTooLarge, closes) => Some((Code::EnvelopeTooLarge, closes)),
            _ => malformed(fault),
        },
        codes: MALFORMED,
        heap_factor: 0,
        decode: Wrap::decode,
        encode: Wrap::encode,
    };
    wrap.check(input);
}

fn record<'a, T: PartialEq + std::fmt::Debug, E: IntoRefused>(
    name: &'static str,
    shape: Shape,
    input: &'a [u8],
    decode: fn(&'a [u8]) -> Result<T, E>,
    encode: fn(&T) -> Vec<u8>,
) {
    let codec = Codec {
        name,
        shape,
        code: malformed,
        codes: MALFORMED,
        heap_factor: 1,
        decode,
        encode,
    };
    codec.check(input);
}

/// Any of them.
pub fn generate(rng: &mut Rng) -> Vec<u8> {
    let shapes: [fn() -> Shape; 8] = [
        bodies::blob_request,
        bodies::blob_response,
        bodies::control,
        bodies::manifest,
        bodies::policy,
        bodies::destruction,
        bodies::resolution,
        bodies::wrap,
    ];
    let at = if rng.once_in(2) { 0 } else { rng.below(shapes.len()) };
    generate::document(&shapes[at](), rng)
}
