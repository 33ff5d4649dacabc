//! INVITE bodies (06 §11) and invite records (06 §2).

use drover_wire::error::Code;
use drover_wire::invite::Record;
use drover_wire::invite_admin::{Request, Response};

use crate::codec::Codec;
use crate::random::Rng;
use crate::reference::bodies::{invite_record, invite_request, invite_response};
use crate::reference::frames::code;
use crate::reference::generate;

const CODES: &[Code] = &[Code::NoncanonicalCbor, Code::MalformedHeader];

/// Heap: a summary of at least 28 bytes becomes 40; of a record a capability of one byte becomes 24 and a bundle of 37
/// becomes 64, with at most 64 and 256 of them, and their vectors grow by doubling.
pub fn run(input: &[u8]) {
    let request = Codec {
        name: "INVITE request",
        shape: invite_request(),
        code: |fault| Some(code(fault)),
        codes: CODES,
        heap_factor: 0,
        decode: Request::decode,
        encode: Request::encode,
    };
    request.check(input);
    let response = Codec {
        name: "INVITE response",
        shape: invite_response(),
        code: |fault| Some(code(fault)),
        codes: CODES,
        heap_factor: 2,
        decode: Response::decode,
        encode: Response::encode,
    };
    response.check(input);
    let record = Codec {
        name: "invite record",
        shape: invite_record(),
        code: |fault| Some(code(fault)),
        codes: CODES,
        heap_factor: 16,
        decode: Record::decode,
        encode: Record::encode,
    };
    record.check(input);
}

/// One of the three.
pub fn generate(rng: &mut Rng) -> Vec<u8> {
    let shape = match rng.below(3) {
        0 => invite_request(),
        1 => invite_response(),
        _ => invite_record(),
    };
    generate::document(&shape, rng)
}
