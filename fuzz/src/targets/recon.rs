//! RECON payloads (03 §2), and both roles on whatever a peer says.

use drover_wire::error::Code;
use drover_wire::frame::FRAME_BYTES_MAX;
use drover_wire::map::{ListAnswering, Span, answer_list};
use drover_wire::recon::{
    self, Answering, IDLIST_ITEMS, Item, Mode, RANGES_MAX, Range, answer, client_step, decode, fingerprint, item,
    item_id,
};

use crate::allocation;
use crate::codec::Codec;
use crate::random::Rng;
use crate::reference::bodies::recon as payload;
use crate::reference::frames::code;
use crate::reference::generate;

/// Heap of the decoder: a range of 4 bytes becomes 48, and the ids of a list come on top, 32 bytes of 34. Of the answer:
/// see [`answered`].
pub fn run(input: &[u8]) {
    let codec = Codec {
        name: "RECON payload",
        shape: payload(),
        code: |fault| Some(code(fault)),
        codes: &[Code::NoncanonicalCbor, Code::MalformedHeader],
        heap_factor: 13,
        decode,
        encode: |ranges: &Vec<Range>| encoded(ranges),
    };
    if codec.check(input)
        && let Ok(incoming) = decode(input)
    {
        let items = items(&incoming);
        answered(&items, &incoming);
        list_answered(&items, &incoming);
    }
}

fn encoded(ranges: &[Range]) -> Vec<u8> {
    let mut out = Vec::new();
    recon::encode(ranges, &mut out);
    out
}

/// Items of which the peer names some, and a few it doesn't: some below each bound, and every seventh id of a list.
fn items(incoming: &[Range]) -> Vec<Item> {
    let mut items = Vec::new();
    for range in incoming {
        let below = range.upper.saturating_sub(1);
        let salt = &range.upper.to_be_bytes();
        let others = (0..20u64).map(|n| drover_wire::id::Hash::of(&[&n.to_be_bytes(), salt]));
        items.extend(others.map(|id| item(below.saturating_sub(u64::from(id.0[0] % 4)), &id)));
        if let Mode::Ids(ids) = &range.mode {
            items.extend(ids.iter().step_by(7).map(|id| item(below, id)));
        }
    }
    items.sort_unstable();
    items.dedup();
    items
}

/// The relay's and the client's step. Heap: indexes, flags and a copy of the ids, beside a message.
fn answered(items: &[Item], incoming: &[Range]) {
    let ids: usize = incoming
        .iter()
        .map(|range| match &range.mode {
            Mode::Ids(ids) => ids.len(),
            _ => 0,
        })
        .sum();
    let most = 64 * 1024 + 256 * (items.len() + ids + incoming.len());
    let asked = incoming.to_vec();
    let mut answer = allocation::within("an answer", most, || answer(items, asked, usize::MAX));
    check_message(&answer.ranges, incoming);
    assert!(answer.owed.iter().all(|owed| items.contains(owed)));
    assert!(answer.owed.is_sorted_by_key(item_id), "pushes ascend by id");

    // Whatever is cut off is asked for again: no span that owes something is skipped (03 §7).
    let sent = answer.owed.len() / 2;
    answer.reopen(sent);
    check_message(&answer.ranges, incoming);
    for item in &answer.owed[sent..] {
        let seq = recon::item_seq(item);
        let Some(span) = incoming.iter().find(|range| range.upper > seq) else {
            continue;
        };
        let place = incoming.iter().take_while(|range| range.upper < span.upper).last();
        let lower = place.map_or(0, |range| range.upper);
        let open = answer
            .ranges
            .iter()
            .filter(|range| range.upper > lower && range.upper <= span.upper)
            .any(|range| range.mode != Mode::Skip);
        assert!(open, "a span that owes items is skipped");
    }

    // A piece at a time, with no more than can be sent, it is the same answer.
    let mut pieces = Answering::new(items, incoming.to_vec(), sent);
    while !pieces.step(items, 1 + items.len() % 50) {}
    let mut pieces = pieces.finish();
    pieces.reopen(sent);
    assert_eq!(pieces.owed, answer.owed[..sent]);
    assert_eq!(pieces.ranges, answer.ranges);

    let step = allocation::within("a step", most, || client_step(items, incoming));
    assert!(step.want.is_sorted_by(|a, b| a < b) && step.send.is_sorted_by(|a, b| a < b));
    if let Some(ranges) = step.ranges {
        check_message(&ranges, incoming);
    }
}

/// It fits a frame, decodes, and keeps the peer's bounds.
fn check_message(ranges: &[Range], incoming: &[Range]) {
    let message = encoded(ranges);
    assert!(ranges.len() <= RANGES_MAX && message.len() + 64 <= FRAME_BYTES_MAX);
    assert_eq!(decode(&message).as_deref(), Ok(ranges));
    let kept = |range: &Range| ranges.iter().any(|answer| answer.upper == range.upper);
    assert!(incoming.iter().all(kept), "a bound is lost");
}

/// The list of the map form: every range that differs is answered, and no other.
fn list_answered(items: &[Item], incoming: &[Range]) {
    let mut lower = 0;
    let mut spans = Vec::new();
    for range in incoming {
        let fingerprint = match &range.mode {
            Mode::Fingerprint(hash) => *hash,
            _ => fingerprint(&[]),
        };
        if range.upper > lower {
            spans.push(Span {
                lower,
                upper: range.upper,
                fingerprint,
            });
        }
        lower = range.upper;
    }
    let answer = answer_list(items, spans.clone(), usize::MAX);
    assert!(answer.spans.len() <= RANGES_MAX);
    let ascend = |pair: &[Span]| pair[0].upper <= pair[1].lower;
    assert!(answer.spans.iter().all(|span| span.lower < span.upper) && answer.spans.windows(2).all(ascend));
    assert!(answer.owed.is_sorted_by(|a, b| a < b) && answer.owed.iter().all(|owed| items.contains(owed)));
    for span in &spans {
        let mine: Vec<Item> = items
            .iter()
            .filter(|item| (span.lower..span.upper).contains(&recon::item_seq(item)))
            .copied()
            .collect();
        let differs = fingerprint(&mine) != span.fingerprint;
        let within = |answered: &&Span| answered.lower >= span.lower && answered.upper <= span.upper;
        assert_eq!(answer.spans.iter().any(|answered| within(&answered)), differs);
        if differs && mine.len() <= IDLIST_ITEMS {
            let owed = |item: &Item| answer.owed.binary_search(item).is_ok();
            assert!(mine.iter().all(owed), "a short range is pushed whole");
        }
    }

    // A piece at a time, with no more than can be sent, it is the same answer.
    let sent = answer.owed.len() / 2;
    let mut pieces = ListAnswering::new(items, spans, sent);
    while !pieces.step(items, 1 + items.len() % 50) {}
    let pieces = pieces.finish();
    assert_eq!(pieces.owed, answer.owed[..sent]);
    assert_eq!(pieces.spans, answer.spans);
}

/// A payload.
pub fn generate(rng: &mut Rng) -> Vec<u8> {
    generate::document(&payload(), rng)
}
