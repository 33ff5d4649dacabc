//! Range reconciliation (03): the payload, the fingerprint, the split, and both roles.
//!
//! Items are kept as 40 bytes, `u64be(seq) ‖ id`, in ascending order: exactly what the fingerprint hashes, so that a
//! range is hashed with one call over contiguous memory.

mod answer;
mod sight;

pub use answer::{Answer, Answering, answer};
pub(crate) use sight::{RANGE_ITEMS, Sight, first_from_here};

use crate::cbor::{Reader, Writer};
use crate::error::Code;
use crate::id::Hash;
use blake3::Hasher;

/// `u64be(seq) ‖ id`; byte order is item order.
pub type Item = [u8; 40];

/// The upper bound of every last range.
pub const OPEN_END: u64 = u64::MAX;
/// At most this many items are listed by id instead of split.
pub const IDLIST_ITEMS: usize = 16;
/// Parts a differing range is split into.
pub const SPLIT_FACTOR: usize = 8;
/// Ranges in one message.
pub const RANGES_MAX: usize = 1024;
/// Ids in one range.
pub const IDS_MAX: usize = 4096;

/// Ids in the lists of more than [`IDLIST_ITEMS`] in one message. Such lists are the last resort of a split without
/// budget, and 1024 of them would not fit a frame; with this ceiling and 16 ids in every range there is, a message
/// stays below 1024 * 556 + 12 288 * 34 = 987 136 bytes. A span over it keeps its fingerprint and is listed in a
/// later round.
const LONG_LIST_IDS_MAX: usize = 3 * IDS_MAX;

/// The payload's own version (03 §1).
const PAYLOAD_VERSION: u64 = 1;
/// What a fingerprint's preimage begins with (03 §3).
const FINGERPRINT_LABEL: &[u8; 31] = b"weald negentropy fingerprint v1";

/// An item from its parts.
pub fn item(seq: u64, id: &Hash) -> Item {
    let mut out = [0; 40];
    out[..8].copy_from_slice(&seq.to_be_bytes());
    out[8..].copy_from_slice(&id.0);
    out
}

/// The item's seq.
pub fn item_seq(item: &Item) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *item;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// The item's id.
pub fn item_id(item: &Item) -> Hash {
    let [_, _, _, _, _, _, _, _, id @ ..] = *item;
    Hash(id)
}

/// What a range says about itself (03 §2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing to do here.
    Skip,
    /// The fingerprint of the sender's items.
    Fingerprint(Hash),
    /// The ids of the sender's items, strictly ascending by bytes.
    Ids(Vec<Hash>),
}

/// `[previous upper, upper)` and what the sender holds in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// Exclusive upper bound over seq values.
    pub upper: u64,
    /// What the sender says.
    pub mode: Mode,
}

/// Decodes a payload in the order of checks of 03 §2. Allocates no more than the payload can fill.
///
/// # Errors
/// `reject/noncanonical_cbor` or `reject/malformed_header`, row by row.
pub fn decode(payload: &[u8]) -> Result<Vec<Range>, Code> {
    let mut r = Reader::new(payload);
    r.array_of(2)?;
    if r.uint()? != PAYLOAD_VERSION {
        return Err(Code::MalformedHeader);
    }
    let count = r.array()?;
    if !(1..=RANGES_MAX).contains(&count) {
        return Err(Code::MalformedHeader);
    }
    let range_bytes_min = 4;
    let mut ranges: Vec<Range> = Vec::with_capacity(count.min(r.rest().len() / range_bytes_min));
    for _ in 0..count {
        let range = read_range(&mut r)?;
        if ranges
            .last()
            .is_some_and(|previous| range.upper <= previous.upper)
        {
            return Err(Code::MalformedHeader);
        }
        ranges.push(range);
    }
    if ranges.last().is_none_or(|last| last.upper != OPEN_END) {
        return Err(Code::MalformedHeader);
    }
    r.finish()?;
    Ok(ranges)
}

fn read_range(r: &mut Reader<'_>) -> Result<Range, Code> {
    r.array_of(3)?;
    let upper = r.uint()?;
    let mode = match r.uint()? {
        0 => {
            r.null()?;
            Mode::Skip
        }
        1 => Mode::Fingerprint(Hash(*r.fixed()?)),
        2 => {
            let count = r.array()?;
            if count > IDS_MAX {
                return Err(Code::MalformedHeader);
            }
            let ids: Vec<Hash> = r.ids(count)?;
            if !ids.is_sorted_by(|a, b| a < b) {
                return Err(Code::MalformedHeader);
            }
            Mode::Ids(ids)
        }
        _ => return Err(Code::MalformedHeader),
    };
    Ok(Range { upper, mode })
}

/// Appends a payload of these ranges to `out`.
pub fn encode(ranges: &[Range], out: &mut Vec<u8>) {
    let bytes = |range: &Range| match &range.mode {
        Mode::Ids(ids) => 16 + ids.len() * 34,
        Mode::Skip | Mode::Fingerprint(_) => 46,
    };
    out.reserve(8 + ranges.iter().map(bytes).sum::<usize>());
    let mut w = Writer::new(out);
    w.array(2).uint(PAYLOAD_VERSION).array(ranges.len());
    for range in ranges {
        w.array(3).uint(range.upper);
        match &range.mode {
            Mode::Skip => w.uint(0u8).null(),
            Mode::Fingerprint(hash) => w.uint(1u8).bytes(hash),
            Mode::Ids(ids) => w.uint(2u8).bytes_array(ids),
        };
    }
}

/// The fingerprint of these items (03 §3).
pub fn fingerprint(items: &[Item]) -> Hash {
    let mut hasher = Hasher::new();
    begin_fingerprint(&mut hasher, items.len());
    hasher.update(items.as_flattened());
    end_fingerprint(&hasher)
}

/// What a fingerprint of so many items begins with; the items follow in their order.
pub(crate) fn begin_fingerprint(hasher: &mut Hasher, count: usize) {
    hasher.reset();
    hasher.update(FINGERPRINT_LABEL);
    hasher.update(&(count as u64).to_be_bytes());
}

pub(crate) fn end_fingerprint(hasher: &Hasher) -> Hash {
    Hash(*hasher.finalize().as_bytes())
}

/// The client's first message for the items it holds (03 §4).
///
/// An item of seq 2^64 - 1 lies outside every range and takes no part, here as everywhere.
pub fn opening(items: &[Item]) -> Vec<Range> {
    let items = &items[..first_from(items, OPEN_END)];
    let mut reply = Reply::default();
    reply.tell(items, OPEN_END, 0, false);
    reply.ranges
}

/// The client's step (03 §5).
#[derive(Debug, Default)]
pub struct Step {
    /// Ids the client lacks, ascending.
    pub want: Vec<Hash>,
    /// Ids the relay lacks, ascending.
    pub send: Vec<Hash>,
    /// What to send next; `None` when every range was settled.
    pub ranges: Option<Vec<Range>>,
}

/// One client step over the relay's answer, as [`decode`] returned it.
pub fn client_step(items: &[Item], incoming: &[Range]) -> Step {
    let mut reply = Reply::default();
    let (mut want, mut send) = (Vec::new(), Vec::new());
    for span in spans(items, incoming) {
        let mine = span.mine;
        let settled = match &span.range.mode {
            Mode::Skip => true,
            Mode::Fingerprint(theirs) => fingerprint(mine) == *theirs,
            Mode::Ids(theirs) => {
                let ids = sorted_ids(mine);
                want.extend(theirs.iter().filter(|id| ids.binary_search(id).is_err()));
                send.extend(ids.iter().filter(|id| theirs.binary_search(id).is_err()));
                ids == *theirs
            }
        };
        reply.tell(mine, span.range.upper, span.to_come, settled);
    }
    for ids in [&mut want, &mut send] {
        ids.sort_unstable();
        ids.dedup();
    }
    let open = reply.ranges.iter().any(|range| range.mode != Mode::Skip);
    Step {
        want,
        send,
        ranges: open.then_some(reply.ranges),
    }
}

/// One incoming range and the own items inside it.
struct Span<'a> {
    range: &'a Range,
    mine: &'a [Item],
    /// Spans that still follow; each of them needs at least one range of the answer.
    to_come: usize,
}

fn spans<'a>(items: &'a [Item], incoming: &'a [Range]) -> impl Iterator<Item = Span<'a>> {
    let mut rest = items;
    incoming.iter().enumerate().map(move |(place, range)| {
        let (mine, behind) = rest.split_at(first_from(rest, range.upper));
        rest = behind;
        Span {
            range,
            mine,
            to_come: incoming.len() - place - 1,
        }
    })
}

/// These items in at most `parts` consecutive buckets of about one size, none of them empty. A bound lies between two
/// seqs, so items that share one stay together.
pub(crate) fn buckets(items: &[Item], parts: usize) -> impl Iterator<Item = &[Item]> {
    let bucket = items.len().div_ceil(parts.max(1));
    let mut rest = items;
    std::iter::from_fn(move || {
        let last_seq = item_seq(rest.get(bucket.min(rest.len()).checked_sub(1)?)?);
        let (taken, left) = rest.split_at(rest.partition_point(|item| item_seq(item) <= last_seq));
        rest = left;
        Some(taken)
    })
}

/// Index of the first item of this seq or above.
pub(crate) fn first_from(items: &[Item], seq: u64) -> usize {
    items.partition_point(|item| item_seq(item) < seq)
}

/// The ids of these items as a list states them: ascending by bytes, each once.
fn sorted_ids(items: &[Item]) -> Vec<Hash> {
    let mut ids: Vec<Hash> = items.iter().map(item_id).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// A message in the making.
#[derive(Debug, Default)]
struct Reply {
    ranges: Vec<Range>,
    long_list_ids: usize,
}

impl Reply {
    fn push(&mut self, upper: u64, mode: Mode) {
        self.ranges.push(Range { upper, mode });
    }

    /// Skips a settled range; of any other one says what is held in it (03 §4). `to_come`: ranges that still follow; each
    /// of them needs at least one of the message.
    fn tell(&mut self, mine: &[Item], upper: u64, to_come: usize, is_settled: bool) {
        let mut rest = mine;
        for bound in self.say(mine, upper, to_come, is_settled, None) {
            let (bucket, behind) = rest.split_at(first_from(rest, bound));
            self.push(bound, Mode::Fingerprint(fingerprint(bucket)));
            rest = behind;
        }
    }

    /// [`Self::tell`] as far as nothing has to be hashed for it: the bounds of the buckets whose fingerprints are still to
    /// be said, the last of them `upper`; none if all is said. `own`: the fingerprint of all, where it is known.
    fn say(
        &mut self,
        mine: &[Item],
        upper: u64,
        to_come: usize,
        is_settled: bool,
        own: Option<Hash>,
    ) -> Vec<u64> {
        let said = if is_settled {
            Some(Mode::Skip)
        } else if mine.len() <= IDLIST_ITEMS {
            Some(Mode::Ids(sorted_ids(mine)))
        } else {
            let budget = RANGES_MAX.saturating_sub(self.ranges.len() + to_come);
            let firsts = buckets(mine, budget.clamp(1, SPLIT_FACTOR)).map(|bucket| item_seq(&bucket[0]));
            let bounds: Vec<u64> = firsts.skip(1).chain([upper]).collect();
            if bounds.len() > 1 {
                return bounds;
            }
            // It can't be cut.
            self.long_list(mine).or(own.map(Mode::Fingerprint))
        };
        match said {
            Some(mode) => {
                self.push(upper, mode);
                Vec::new()
            }
            None => vec![upper],
        }
    }

    /// The ids of a span that can't be cut, if they fit.
    fn long_list(&mut self, items: &[Item]) -> Option<Mode> {
        let fits = items.len() <= IDS_MAX && self.long_list_ids + items.len() <= LONG_LIST_IDS_MAX;
        fits.then(|| {
            self.long_list_ids += items.len();
            Mode::Ids(sorted_ids(items))
        })
    }
}
