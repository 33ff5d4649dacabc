//! RECON as a list of fingerprints (01 §8, decision 3): each range states its own bounds, and nothing can be listed by
//! id. Ranges that agree are left out of an answer; what lies in no range is not spoken of.

use crate::cbor::{Reader, Writer};
use crate::error::Code;
use crate::id::Hash;
use crate::recon::{
    IDLIST_ITEMS, Item, RANGES_MAX, SPLIT_FACTOR, buckets, fingerprint, first_from, item_seq,
};

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

/// The relay's answer to one list: a list to send back, and the items owed to the peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListAnswer {
    /// Ranges that differ, with the relay's fingerprints. Empty when all agree.
    pub spans: Vec<Span>,
    /// Items (by index into the relay's list) to push, in ascending order of seq. Some may be left out: their range is
    /// in `spans`, so that the client comes back for it.
    pub owed: Vec<u32>,
}

/// Answers `incoming`, as [`MapFrame::decode`](super::MapFrame::decode) returned it, for a relay that holds `items`.
///
/// A range that differs comes back cut into up to [`SPLIT_FACTOR`] parts. If it holds at most [`IDLIST_ITEMS`] items,
/// all of them are owed too, since the list has no way to ask for ids; so are more that share one seq, which no cut
/// tells apart. Order by seq, not by id, completes ranges one by one when not everything owed can be pushed.
pub fn answer_list(items: &[Item], incoming: &[Span]) -> ListAnswer {
    let mut answer = ListAnswer::default();
    for (place, span) in incoming.iter().enumerate() {
        let (start, end) = (first_from(items, span.lower), first_from(items, span.upper));
        let mine = &items[start..end.max(start)];
        if fingerprint(mine) == span.fingerprint {
            continue;
        }
        let to_come = incoming.len() - place - 1;
        let budget = RANGES_MAX.saturating_sub(answer.spans.len() + to_come);
        answer.cut(span, mine, budget.clamp(1, SPLIT_FACTOR));
        if mine.len() <= IDLIST_ITEMS || share_a_seq(mine) {
            answer.owed.extend((start..end).map(|index| index as u32));
        }
    }
    answer
}

impl ListAnswer {
    /// Adds a range in at most `parts` parts; without items it stays whole.
    fn cut(&mut self, span: &Span, mine: &[Item], parts: usize) {
        let mut lower = span.lower;
        let mut rest = buckets(mine, parts).peekable();
        loop {
            let taken = rest.next().unwrap_or_default();
            let upper = rest.peek().map_or(span.upper, |next| item_seq(&next[0]));
            self.spans.push(Span {
                lower,
                upper,
                fingerprint: fingerprint(taken),
            });
            if upper == span.upper {
                return;
            }
            lower = upper;
        }
    }
}

fn share_a_seq(items: &[Item]) -> bool {
    items
        .first()
        .zip(items.last())
        .is_some_and(|(first, last)| item_seq(first) == item_seq(last))
}
