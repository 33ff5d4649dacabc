//! RECON as a list of fingerprints (01 §8, decision 3): each range states its own bounds, and nothing can be listed by
//! id. Ranges that agree are left out of an answer; what lies in no range is not spoken of.

use crate::cbor::{Reader, Writer};
use crate::error::Code;
use crate::id::Hash;
use crate::recon::RANGES_MAX;

use super::fields::{Fields, Refused};

/// Bytes of the smallest encoded span.
const SPAN_BYTES_MIN: usize = 1 + 2 + 2 + 1 + 34;

/// What the sender holds in `[lower, upper)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Inclusive lower bound over seq values.
    pub lower: u64,
    /// Exclusive upper bound, above the lower; [`OPEN_END`](crate::recon::OPEN_END) for no bound.
    pub upper: u64,
    /// As in the array form (03 §3).
    pub fingerprint: Hash,
}

/// Whether the next item is a list and not a payload.
pub(super) fn are_next(r: &Reader<'_>) -> bool {
    r.rest().first().is_some_and(|first| first >> 5 == 4)
}

/// At most [`RANGES_MAX`] spans, ascending and disjoint.
pub(super) fn read(r: &mut Reader<'_>) -> Result<Vec<Span>, Refused> {
    let count = r.array()?;
    if count > RANGES_MAX {
        return Err(Code::MalformedHeader.into());
    }
    let mut spans: Vec<Span> = Vec::with_capacity(count.min(r.rest().len() / SPAN_BYTES_MIN));
    for _ in 0..count {
        let mut fields = Fields::<4>::read(r, Code::MalformedHeader)?;
        fields.require(&[1, 2, 3], &[])?;
        let span = Span {
            lower: fields.value(1)?.uint()?,
            upper: fields.value(2)?.uint()?,
            fingerprint: Hash(*fields.value(3)?.fixed()?),
        };
        let least = spans.last().map_or(0, |previous| previous.upper);
        if span.lower < least || span.lower >= span.upper {
            return Err(Code::MalformedHeader.into());
        }
        spans.push(span);
    }
    Ok(spans)
}

pub(super) fn write(w: &mut Writer<&mut Vec<u8>>, spans: &[Span]) {
    w.array(spans.len());
    for span in spans {
        w.map(3).uint(1u8).uint(span.lower);
        w.uint(2u8).uint(span.upper);
        w.uint(3u8).bytes(span.fingerprint);
    }
}
