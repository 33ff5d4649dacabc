//! An envelope as a map of eight keys, inline in its frame (01 §8.1).

use crate::cbor::{Reader, Writer};
use crate::envelope::Envelope;
use crate::error::Code;
use crate::id::{GroupId, Hash};

use super::fields::{Fields, Refused};
use super::tag;

/// Keys 1 to 8, all of them required.
const KEYS: [usize; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

/// The last value of a frame.
pub(super) fn read_last(mut r: Reader<'_>) -> Result<Envelope<'_>, Refused> {
    let mut fields = Fields::<9>::read(&mut r, Code::UnknownRequiredField)?;
    r.finish()?;
    fields.require(&KEYS, &[])?;
    let envelope = Envelope {
        v: fields.value(1)?.u8()?,
        enc: fields.value(2)?.u8()?,
        group: GroupId(*fields.value(3)?.fixed()?),
        epoch: fields.value(4)?.uint()?,
        seq: fields.value(5)?.uint()?,
        ts_ms: fields.value(6)?.uint()?,
        hash: Hash(*fields.value(7)?.fixed()?),
        ct: fields.value(8)?.bytes()?,
    };
    if envelope.enc > 1 {
        return Err(Code::MalformedHeader.into());
    }
    Ok(envelope)
}

pub(super) fn write(w: &mut Writer<&mut Vec<u8>>, envelope: &Envelope<'_>) {
    write_head(w, envelope);
    w.raw(envelope.ct);
}

/// Appends a PUSH frame up to and including the head of `ct`; `ct` itself follows unchanged.
pub fn push_head(envelope: &Envelope<'_>, out: &mut Vec<u8>) {
    write_head(
        Writer::new(out).map(2).uint(0u8).uint(tag::PUSH).uint(1u8),
        envelope,
    );
}

fn write_head(w: &mut Writer<&mut Vec<u8>>, envelope: &Envelope<'_>) {
    w.map(KEYS.len()).uint(1u8).uint(envelope.v);
    w.uint(2u8).uint(envelope.enc);
    w.uint(3u8).bytes(envelope.group);
    w.uint(4u8).uint(envelope.epoch);
    w.uint(5u8).uint(envelope.seq);
    w.uint(6u8).uint(envelope.ts_ms);
    w.uint(7u8).bytes(envelope.hash);
    w.uint(8u8).bytes_head(envelope.ct.len());
}
