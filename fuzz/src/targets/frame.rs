//! Frames of the array form (01 §2, §3).

use drover_wire::error::Code;
use drover_wire::frame::Frame;

use crate::codec::Codec;
use crate::random::Rng;
use crate::reference::frames::{FRAME_BYTES_MAX, WAKE_BYTES_MAX, code, frame, is_wake, wake_code};
use crate::reference::{Fault, Read, Verdict, generate, read};

/// Decoding takes no heap.
pub fn run(input: &[u8]) {
    let shape = frame();
    let verdict = match read(input) {
        _ if input.len() > FRAME_BYTES_MAX => Verdict::Refused(Fault::Code(Code::EnvelopeTooLarge, true)),
        Read::Not => Verdict::NotCanonical,
        Read::Canonical(value, trailing) if is_wake(&value) => {
            let fault = match shape.judge(&value) {
                _ if input.len() > WAKE_BYTES_MAX => Some(Fault::Code(Code::EnvelopeTooLarge, false)),
                Err(fault) => Some(fault),
                Ok(()) => trailing.then_some(Fault::Trailing),
            };
            fault.map_or(Verdict::Accepted, |fault| {
                let (code, closes) = wake_code(fault);
                Verdict::Refused(Fault::Code(code, closes))
            })
        }
        Read::Canonical(value, trailing) => match shape.judge(&value) {
            Err(fault) => Verdict::Refused(fault),
            Ok(()) if trailing => Verdict::Refused(Fault::Trailing),
            Ok(()) => Verdict::Accepted,
        },
    };
    let codec = Codec {
        name: "frame",
        shape,
        code: |fault| Some(code(fault)),
        codes: &[
            Code::NoncanonicalCbor,
            Code::MalformedHeader,
            Code::ProtocolUnsupported,
            Code::PushHandleMalformed,
            Code::EnvelopeTooLarge,
        ],
        heap_factor: 0,
        decode: Frame::decode,
        encode: |frame: &Frame<'_>| {
            let mut out = Vec::new();
            frame.encode(&mut out);
            out
        },
    };
    codec.check_as(input, verdict);
    // A tag that is none is told from a broken frame, whatever follows (01 §2).
    if let [0x82, 0x18, tag @ 26..=255, ..] | [0x82, tag @ 0, _, ..] = input
        && input.len() <= FRAME_BYTES_MAX
    {
        let refused = Frame::decode(input).map_err(|error| error.refusal.code);
        assert_eq!(refused, Err(Code::MalformedHeader), "tag {tag}");
    }
}

/// A frame.
pub fn generate(rng: &mut Rng) -> Vec<u8> {
    generate::document(&frame(), rng)
}
