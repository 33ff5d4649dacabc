//! Frames of the map form (01 §8).

use drover_wire::error::Code;
use drover_wire::map::MapFrame;

use crate::codec::Codec;
use crate::random::Rng;
use crate::reference::frames::FRAME_BYTES_MAX;
use crate::reference::map::{code, frame, has_unknown_tag};
use crate::reference::{Fault, Read, Verdict, generate, read};

/// Heap: the ranges of RECON, of at least 41 bytes each, become 48.
pub fn run(input: &[u8]) {
    let shape = frame();
    let verdict = match read(input) {
        _ if input.len() > FRAME_BYTES_MAX => Verdict::Refused(Fault::Code(Code::EnvelopeTooLarge, true)),
        Read::Not => Verdict::NotCanonical,
        // A fault of the encoding wins over all others but a tag that is none.
        Read::Canonical(value, true) if !has_unknown_tag(&value) => Verdict::Refused(Fault::Trailing),
        Read::Canonical(value, _) => match shape.judge(&value) {
            Err(fault) => Verdict::Refused(fault),
            Ok(()) => Verdict::Accepted,
        },
    };
    let codec = Codec {
        name: "map frame",
        shape,
        code: |fault| Some(code(fault)),
        codes: &[
            Code::NoncanonicalCbor,
            Code::MalformedHeader,
            Code::UnknownRequiredField,
            Code::ProtocolUnsupported,
        ],
        heap_factor: 2,
        decode: MapFrame::decode,
        encode: |frame: &MapFrame<'_>| {
            let mut out = Vec::new();
            frame.encode(&mut out);
            out
        },
    };
    codec.check_as(input, verdict);
}

/// A frame.
pub fn generate(rng: &mut Rng) -> Vec<u8> {
    generate::document(&frame(), rng)
}
