//! RECON by lists of fingerprints, the map form's own: docs/map-form.md, "RECON".

use std::collections::BTreeSet;

use drover_wire::id::Hash;
use drover_wire::map::{ListAnswer, ListAnswering, Span};
use drover_wire::recon::{
    IDLIST_ITEMS, Item, OPEN_END, RANGES_MAX, SPLIT_FACTOR, fingerprint, item, item_seq,
};

use crate::support::{ZERO, mixed};

fn items(seqs: impl IntoIterator<Item = u64>) -> Vec<Item> {
    let mut items: Vec<Item> = seqs.into_iter().map(|seq| item(seq, &mixed(seq))).collect();
    items.sort_unstable();
    items
}

/// The answer at once, with all that is owed.
fn answer_list(relay: &[Item], asked: &[Span]) -> ListAnswer {
    drover_wire::map::answer_list(relay, asked.to_vec(), usize::MAX)
}

/// The items of a client in a range.
fn within(held: &BTreeSet<Item>, span: &Span) -> Vec<Item> {
    held.range(item(span.lower, &ZERO)..item(span.upper, &ZERO))
        .copied()
        .collect()
}

fn whole(fingerprint: Hash) -> Vec<Span> {
    vec![Span {
        lower: 0,
        upper: OPEN_END,
        fingerprint,
    }]
}

/// What the client of docs/map-form.md does until nothing differs but what only it holds: how many rounds that takes
/// if each pushes at most `cut` items.
fn rounds(relay: &[Item], client: &mut BTreeSet<Item>, cut: usize) -> usize {
    let mut asked = whole(fingerprint(&client.iter().copied().collect::<Vec<_>>()));
    for round in 1..=10_000 {
        let answer = answer_list(relay, &asked);
        assert!(answer.spans.len() <= RANGES_MAX);
        assert!(answer.owed.is_sorted());
        client.extend(answer.owed.iter().take(cut));
        asked = answer
            .spans
            .into_iter()
            .map(|span| Span {
                fingerprint: fingerprint(&within(client, &span)),
                ..span
            })
            .filter(|span| {
                let below = |bound| relay.partition_point(|item| item_seq(item) < bound);
                let theirs = &relay[below(span.lower)..below(span.upper)];
                !theirs.iter().all(|item| client.contains(item))
            })
            .collect();
        if asked.is_empty() {
            return round;
        }
    }
    panic!("no end");
}

/// 01 decision 3: what agrees is left out, what differs comes back, and small ranges are owed whole.
#[test]
fn a_list_is_answered_with_what_differs() {
    let relay = items([1, 2, 3]);
    let agreed = answer_list(&relay, &whole(fingerprint(&relay)));
    assert!(agreed.spans.is_empty() && agreed.owed.is_empty());

    let answer = answer_list(&relay, &whole(ZERO));
    assert_eq!(answer.owed, relay);
    let one = |lower, upper, seq| Span {
        lower,
        upper,
        fingerprint: fingerprint(&items([seq])),
    };
    assert_eq!(answer.spans, [one(0, 2, 1), one(2, 3, 2), one(3, OPEN_END, 3)]);

    let parts = [one(0, 2, 1), one(2, 3, 1)];
    let answer = answer_list(&relay, &parts);
    assert_eq!(
        (&answer.spans[..], &answer.owed[..]),
        (&[one(2, 3, 2)][..], &relay[1..2])
    );

    let empty = answer_list(&[], &whole(fingerprint(&relay)));
    assert_eq!(empty.spans, whole(fingerprint(&[])));
    assert!(empty.owed.is_empty());
    assert_eq!(answer_list(&relay, &[]), Default::default(), "nothing was asked");

    let many = items(0..1000);
    let answer = answer_list(&many, &whole(ZERO));
    assert_eq!((answer.spans.len(), answer.owed.len()), (SPLIT_FACTOR, 0));
    assert_eq!((answer.spans[0].lower, answer.spans[7].upper), (0, OPEN_END));
    assert!(answer.spans.windows(2).all(|pair| pair[0].upper == pair[1].lower));

    let listed = items(0..IDLIST_ITEMS as u64);
    assert_eq!(answer_list(&listed, &whole(ZERO)).owed.len(), IDLIST_ITEMS);
    let one_more = items(0..=IDLIST_ITEMS as u64);
    assert!(answer_list(&one_more, &whole(ZERO)).owed.is_empty());
}

/// Items that share a seq can't be told apart by bounds, so they are owed together.
#[test]
fn items_of_one_seq_are_owed_whatever_their_number() {
    let mut relay: Vec<Item> = (0..100).map(|n| item(7, &mixed(n))).collect();
    relay.sort_unstable();
    let answer = answer_list(&relay, &whole(ZERO));
    assert_eq!((answer.spans.len(), answer.owed.len()), (1, 100));
}

/// A client gets what it lacks, however little is pushed at a time and whatever else it holds.
#[test]
fn lists_converge() {
    for size in [0, 1, 16, 17, 200, 5000] {
        let relay = items((0..size).map(|n| n * 3));
        for held in [0, 2, 7] {
            let start: BTreeSet<Item> = relay
                .iter()
                .copied()
                .filter(|item| held > 0 && item_seq(item).is_multiple_of(held))
                .chain(items([1, 100, 9_000_000]))
                .collect();
            let mut client = start.clone();
            let most = rounds(&relay, &mut client, usize::MAX);
            assert!(most <= 7, "{size} items, {most} rounds");
            assert!(relay.iter().all(|item| client.contains(item)));
            assert!(start.is_subset(&client));
            if size <= 200 {
                let mut client = start;
                rounds(&relay, &mut client, 1);
                assert!(relay.iter().all(|item| client.contains(item)));
            }
        }
    }
}

/// An answer never has more ranges than a message may, nor fewer than differ.
#[test]
fn an_answer_has_no_more_ranges_than_a_message() {
    let relay = items(0..40_000);
    let asked: Vec<Span> = (0..RANGES_MAX as u64)
        .map(|n| Span {
            lower: n * 39,
            upper: (n + 1) * 39,
            fingerprint: ZERO,
        })
        .collect();
    let answer = answer_list(&relay, &asked);
    assert_eq!(answer.spans.len(), RANGES_MAX);
    let few = answer_list(&relay, &asked[..200]);
    assert_eq!(few.spans.len(), RANGES_MAX.min(200 * SPLIT_FACTOR));
    assert_eq!(few.spans.last().map(|span| span.upper), Some(200 * 39));
}

/// Pieces of any size make the answer that one makes, and what cannot be sent is not collected.
#[test]
fn a_list_in_pieces_has_the_same_answer() {
    // Some share a number, some ranges are empty, some agree; between some lies what nobody asks for.
    let mut relay = items((1..3_000).filter(|seq| !(700..800).contains(seq)));
    relay.extend((0..60).map(|n| item(900, &mixed(10_000 + n))));
    relay.extend((0..60).map(|n| item(5_000, &mixed(20_000 + n))));
    relay.sort_unstable();
    let own = |lower, upper| {
        let seqs = |item: &&Item| (lower..upper).contains(&item_seq(item));
        fingerprint(&relay.iter().filter(seqs).copied().collect::<Vec<_>>())
    };
    let span = |lower, upper, fingerprint| Span {
        lower,
        upper,
        fingerprint,
    };
    let asked = [
        span(3, 100, ZERO),
        span(100, 500, own(100, 500)),
        span(600, 610, ZERO),
        span(610, 620, own(610, 620)),
        span(710, 720, ZERO),
        span(850, 1_000, ZERO),
        span(1_010, 1_011, ZERO),
        span(2_000, 4_000, ZERO),
        span(4_500, OPEN_END, ZERO),
    ];
    let whole = answer_list(&relay, &asked);
    assert_eq!(
        (whole.spans.len(), whole.owed.len()),
        (8 + 5 + 1 + 6 + 1 + 8 + 1, 10 + 1 + 60)
    );
    for sends in [0, 1, 11, 20, whole.owed.len(), usize::MAX] {
        for size in [1, 9, 100, 1_999, usize::MAX] {
            let mut pieces = ListAnswering::new(&relay, asked.to_vec(), sends);
            while !pieces.step(&relay, size) {}
            let pieces = pieces.finish();
            assert_eq!(pieces.spans, whole.spans, "{sends} in {size}");
            assert_eq!(
                pieces.owed,
                whole.owed[..sends.min(whole.owed.len())],
                "{sends} in {size}"
            );
        }
    }
}

/// Items come and go between the pieces: what is answered covers each range that was asked for, and later items take no
/// part.
#[test]
fn items_may_come_and_go_between_pieces_of_a_list() {
    let all = items(1..=500);
    let span = |lower, upper| Span {
        lower,
        upper,
        fingerprint: ZERO,
    };
    let asked = [span(0, 10), span(20, 200), span(210, 230), span(300, OPEN_END)];
    let mut held = all[..400].to_vec();
    let mut pieces = ListAnswering::new(&held, asked.to_vec(), usize::MAX);
    let mut steps = 0;
    while !pieces.step(&held, 10) {
        steps += 1;
        held.retain(|item| item_seq(item) % 31 != steps % 31);
        held.extend(all.get(399 + steps as usize));
    }
    assert!(steps > 20);
    let answer = pieces.finish();
    assert!(answer.owed.iter().all(|item| all[..400].contains(item)));
    for asked in &asked {
        let within = |span: &&Span| asked.lower <= span.lower && span.upper <= asked.upper;
        let parts: Vec<&Span> = answer.spans.iter().filter(within).collect();
        let (first, last) = (parts.first().unwrap(), parts.last().unwrap());
        assert_eq!((first.lower, last.upper), (asked.lower, asked.upper));
        assert!(parts.windows(2).all(|pair| pair[0].upper == pair[1].lower));
        assert!(
            parts
                .iter()
                .all(|span| span.upper <= 400 || span.upper == OPEN_END)
        );
    }
}
