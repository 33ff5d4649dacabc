//! Reconciliation: 03.

use std::collections::BTreeSet;

use drover_wire::error::Code;
use drover_wire::frame::FRAME_BYTES_MAX;
use drover_wire::id::Hash;
use drover_wire::recon::{
    self, Answer, Answering, Item, Mode, OPEN_END, RANGES_MAX, Range, client_step, decode, encode,
    fingerprint, item, item_id, item_seq, opening,
};
use proptest::prelude::*;
use serde_json::Value;

use crate::support::{G, Row, S, array, bytes, mixed, ours, rows, shared_rows};

/// The id the vectors give the item of this seq.
fn plain_id(seq: u64) -> Hash {
    item_id(&item(0, &Hash(array(&format!("{seq:016x} 00*24")))))
}

fn plain_items(seqs: impl IntoIterator<Item = u64>) -> Vec<Item> {
    seqs.into_iter().map(|seq| item(seq, &plain_id(seq))).collect()
}

fn payload(ranges: &[Range]) -> Vec<u8> {
    let mut out = Vec::new();
    encode(ranges, &mut out);
    out
}

/// Sends a message: what the peer reads of it, after the bounds of a frame.
fn sent(ranges: &[Range]) -> Vec<Range> {
    let wire = payload(ranges);
    assert!(ranges.len() <= RANGES_MAX, "{} ranges", ranges.len());
    assert!(wire.len() + 64 <= FRAME_BYTES_MAX, "{} bytes", wire.len());
    let read = decode(&wire).expect("own message");
    assert_eq!(read, ranges);
    read
}

fn fingerprint_range(upper: u64) -> Range {
    Range {
        upper,
        mode: Mode::Fingerprint(Hash([0; 32])),
    }
}

/// The whole answer of a relay that can send all it owes.
fn answer(items: &[Item], incoming: &[Range]) -> Answer {
    recon::answer(items, incoming.to_vec(), ALL)
}

struct Exchange {
    rounds: usize,
    pushed: Vec<Item>,
    sent: Vec<Item>,
}

/// Runs a whole exchange as in 03 §6, with at most `queue` pushes in a round, until the client is done.
fn exchange(
    client: &mut BTreeSet<Item>,
    relay: &mut BTreeSet<Item>,
    first: Vec<Range>,
    queue: usize,
) -> Exchange {
    let mut log = Exchange {
        rounds: 0,
        pushed: Vec::new(),
        sent: Vec::new(),
    };
    let mut message = first;
    loop {
        log.rounds += 1;
        assert!(log.rounds <= 4 + 64 + relay.len() / queue, "no end in sight");
        let incoming = sent(&message);
        let items: Vec<Item> = relay.iter().copied().collect();
        let mut reply = recon::answer(&items, incoming, queue);
        assert!(reply.owed.is_sorted_by_key(item_id));
        reply.reopen(queue);
        for &push in &reply.owed {
            assert!(client.insert(push), "pushed twice");
            log.pushed.push(push);
        }
        let held: Vec<Item> = client.iter().copied().collect();
        let step = client_step(&held, &sent(&reply.ranges));
        for id in &step.send {
            let missing = held.iter().filter(|held| item_id(held) == *id);
            for &item in missing {
                assert!(relay.insert(item), "sent twice");
                log.sent.push(item);
            }
        }
        match step.ranges {
            Some(ranges) => message = ranges,
            None => return log,
        }
    }
}

/// Runs an exchange from its opening and checks what 03 promises of it.
fn converges(client: &[Item], relay: &[Item], queue: usize) -> Exchange {
    let set = |items: &[Item]| items.iter().copied().collect::<BTreeSet<_>>();
    let (mut ours, mut theirs) = (set(client), set(relay));
    let first = opening(&ours.iter().copied().collect::<Vec<_>>());
    let log = exchange(&mut ours, &mut theirs, first, queue);
    assert_eq!(ours, theirs);
    assert_eq!(set(&log.pushed), &set(relay) - &set(client));
    assert_eq!(set(&log.sent), &set(client) - &set(relay));
    log
}

const ALL: usize = usize::MAX;

fn seqs(spelt: &Value) -> Vec<u64> {
    let bounds = spelt
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| (pair[0].as_u64().unwrap(), pair[1].as_u64().unwrap()));
    bounds.flat_map(|(first, last)| first..=last).collect()
}

/// W03.1
#[test]
fn vectors_agree() {
    let check = |row: &Value, held: Vec<u64>, ids: &dyn Fn(&Value) -> Vec<Hash>| {
        let held = plain_items(held);
        assert_eq!(fingerprint(&held), Hash(array(row.text("fingerprint"))), "{row}");
        assert_eq!(payload(&opening(&held)), row.spelt("opening"), "{row}");
        if row["incoming"].is_null() {
            return;
        }
        let incoming = decode(&row.spelt("incoming")).unwrap();
        let step = client_step(&held, &incoming);
        let reply = row["reply"].as_str().map(bytes);
        assert_eq!(step.ranges.as_deref().map(payload), reply, "{row}");
        assert_eq!(step.want, ids(&row["want"]), "{row}");
        assert_eq!(step.send, ids(&row["send"]), "{row}");
        // A relay answers fingerprints as a client does, only it never falls silent.
        if incoming
            .iter()
            .all(|range| matches!(range.mode, Mode::Fingerprint(_)))
        {
            let answered = answer(&held, &incoming);
            assert!(answered.owed.is_empty());
            match reply {
                Some(reply) => assert_eq!(payload(&answered.ranges), reply, "{row}"),
                None => assert!(
                    answered.ranges.iter().all(|range| range.mode == Mode::Skip),
                    "{row}"
                ),
            }
        }
    };
    let mine = rows(ours("recon"));
    assert_eq!(mine.len(), 10);
    for row in &mine {
        check(row, seqs(&row["held"]), &|seqs| {
            seqs.as_array()
                .unwrap()
                .iter()
                .map(|seq| plain_id(seq.as_u64().unwrap()))
                .collect()
        });
    }
    for row in shared_rows("recon.json", "cases") {
        let held = row["held"]
            .as_array()
            .unwrap()
            .iter()
            .map(|seq| seq.as_u64().unwrap())
            .collect();
        check(&row, held, &|ids| {
            ids.as_array()
                .unwrap()
                .iter()
                .map(|id| Hash(array(id.as_str().unwrap())))
                .collect()
        });
    }
}

#[test]
fn the_fingerprint_covers_seq_and_count() {
    let empty = "b3444713179271aacfc01e888d9c83382d7455d138a6408a7f3145a6acf9d3e2";
    assert_eq!(fingerprint(&[]), Hash(array(empty)));
    let one = "8840c41810503376d66f3d3e0d90393826608ca964c1cb88871b8d880a77c7ba";
    assert_eq!(fingerprint(&plain_items([1])), Hash(array(one)));
}

/// The trace of 03 §9.4, round by round.
#[test]
fn the_larger_trace_takes_two_rounds() {
    let (client, relay) = (plain_items(1..=20), plain_items(1..=40));
    let first = opening(&client);
    assert_eq!((first.len(), payload(&first).len()), (7, 270));
    let reply = answer(&relay, &first);
    assert_eq!((reply.ranges.len(), reply.owed.len()), (14, 0));
    let second = client_step(&client, &reply.ranges).ranges.unwrap();
    assert_eq!(payload(&second).len(), 141);
    let reply = answer(&relay, &second);
    assert_eq!(reply.owed, relay[20..40]);
    assert_eq!(payload(&reply.ranges).len(), 73);
    assert_eq!(converges(&client, &relay, ALL).rounds, 2);
}

/// The steps of 03 §9.3.
#[test]
fn a_disjoint_tail_takes_two_rounds() {
    let (client, relay) = (plain_items(1..=4), plain_items(3..=6));
    let reply = answer(&relay, &opening(&client));
    assert_eq!(reply.owed, relay[2..4]);
    assert_eq!(
        reply.ranges,
        [Range {
            upper: OPEN_END,
            mode: Mode::Ids((3..=6).map(plain_id).collect())
        }]
    );
    let applied = plain_items(1..=6);
    let step = client_step(&applied, &reply.ranges);
    assert_eq!((step.want, step.send), (vec![], vec![plain_id(1), plain_id(2)]));
    assert_eq!(payload(&step.ranges.unwrap()).len(), 219);
    assert_eq!(converges(&client, &relay, ALL).rounds, 2);
}

/// Items by (seq, number of the id). Seqs from a small span, so that several items share one.
fn world() -> impl Strategy<Value = (Vec<Item>, Vec<Item>)> {
    (1..400u64, prop::collection::vec((any::<u64>(), 0..4u8), 0..700)).prop_map(|(span, draws)| {
        let (mut client, mut relay) = (BTreeSet::new(), BTreeSet::new());
        for (n, (seq, holder)) in (0..).zip(draws) {
            let item = item(seq % span, &mixed(n));
            if holder != 1 {
                client.insert(item);
            }
            if holder != 2 {
                relay.insert(item);
            }
        }
        (client.into_iter().collect(), relay.into_iter().collect())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// W03.2
    #[test]
    fn random_pairs_converge_and_move_the_symmetric_difference((client, relay) in world()) {
        let log = converges(&client, &relay, ALL);
        prop_assert!(log.rounds <= 6, "{} rounds", log.rounds);
    }

    #[test]
    fn cut_batches_come_back((client, relay) in world(), queue in 1usize..40) {
        converges(&client, &relay, queue);
    }
}

/// W03.3
#[test]
fn sizes_around_the_thresholds_converge() {
    let numbers: [fn(u64) -> u64; 4] = [
        |n| n + 1,                        // dense
        |n| (n + 1) * 1_000_003,          // sparse
        |n| n / 5,                        // five items on a seq
        |n| if n < 4000 { 7 } else { n }, // most on one seq, as many as one list holds
    ];
    for number in numbers {
        let items = |range: std::ops::Range<u64>| -> Vec<Item> {
            range.map(|n| item(number(n), &mixed(n))).collect()
        };
        for size in [0, 1, 16, 17, 4096, 4097] {
            let all = items(0..size);
            converges(&[], &all, ALL);
            converges(&all, &[], ALL);
            converges(&all, &all, ALL);
            if size > 0 {
                let half = items(0..size / 2);
                let other = items(size / 3..size);
                converges(&half, &all, ALL);
                converges(&all, &other, ALL);
                converges(&half, &other, 100);
            }
        }
    }
}

#[test]
fn items_that_all_share_one_seq_are_listed() {
    let on_one = |count| -> Vec<Item> {
        let mut items: Vec<Item> = (0..count).map(|n| item(5, &mixed(n))).collect();
        items.sort_unstable();
        items
    };
    for count in [17, 4096] {
        let first = opening(&on_one(count));
        assert!(
            matches!(&first[..], [Range { upper: OPEN_END, mode: Mode::Ids(ids) }] if ids.len() == count as usize)
        );
    }
    let first = opening(&on_one(4097));
    assert!(matches!(
        first[..],
        [Range {
            upper: OPEN_END,
            mode: Mode::Fingerprint(_)
        }]
    ));
}

/// W03.4: 1024 spans with nothing to spare.
#[test]
fn a_message_of_1024_differing_ranges_gets_an_answer_in_bounds() {
    // Twenty items a span are listed at once; with three hundred, not all lists fit one frame.
    for items_per_span in [20, 300] {
        let total = 1024 * items_per_span;
        let mut relay: BTreeSet<Item> = (0..total).map(|n| item(n, &mixed(n))).collect();
        let mut client: BTreeSet<Item> = relay
            .iter()
            .copied()
            .filter(|item| !item_seq(item).is_multiple_of(7))
            .collect();
        let differing: BTreeSet<Item> = &relay - &client;
        let first: Vec<Range> = (1..1024)
            .map(|n| fingerprint_range(n * items_per_span))
            .chain([fingerprint_range(OPEN_END)])
            .collect();
        let reply = answer(&relay.iter().copied().collect::<Vec<_>>(), &sent(&first));
        assert_eq!(reply.ranges.len(), 1024);
        sent(&reply.ranges);
        let log = exchange(&mut client, &mut relay, first, ALL);
        assert_eq!(client, relay);
        assert_eq!(log.pushed.into_iter().collect::<BTreeSet<_>>(), differing);
    }
}

/// The table of 03 §5, both roles, at the threshold between listing and splitting.
#[test]
fn each_incoming_range_is_answered_as_its_role_demands() {
    let ids = |seqs: std::ops::RangeInclusive<u64>| -> Vec<Hash> { seqs.map(plain_id).collect() };
    for count in [16, 17] {
        let mine = plain_items(1..=count);
        let own_list = [Range {
            upper: OPEN_END,
            mode: Mode::Ids(ids(1..=count)),
        }];
        let told = if count == 16 {
            own_list.to_vec()
        } else {
            opening(&mine)
        };
        assert_eq!(told.len(), if count == 16 { 1 } else { 6 });
        let skip = [Range {
            upper: OPEN_END,
            mode: Mode::Skip,
        }];
        let incoming = |mode: Mode| {
            [Range {
                upper: OPEN_END,
                mode,
            }]
        };
        let relay = |mode: Mode| answer(&mine, &incoming(mode));
        let client = |mode: Mode| client_step(&mine, &incoming(mode));

        assert_eq!(relay(Mode::Skip).ranges, skip);
        assert_eq!(client(Mode::Skip).ranges, None);
        assert_eq!(relay(Mode::Fingerprint(fingerprint(&mine))).ranges, skip);
        assert_eq!(client(Mode::Fingerprint(fingerprint(&mine))).ranges, None);
        assert_eq!(relay(Mode::Fingerprint(Hash([0; 32]))).ranges, told);
        assert_eq!(
            client(Mode::Fingerprint(Hash([0; 32]))).ranges,
            Some(told.clone())
        );

        // The list is all of mine, less than mine, or more than mine.
        let same = client(Mode::Ids(ids(1..=count)));
        assert_eq!((same.ranges, same.want, same.send), (None, vec![], vec![]));
        let same = relay(Mode::Ids(ids(1..=count)));
        assert_eq!((&same.ranges[..], &same.owed[..]), (&skip[..], &[][..]));

        let less = client(Mode::Ids(ids(2..=count)));
        assert_eq!(
            (less.ranges, less.want, less.send),
            (Some(told.clone()), vec![], ids(1..=1))
        );
        let less = relay(Mode::Ids(ids(2..=count)));
        assert_eq!((&less.ranges[..], &less.owed[..]), (&skip[..], &mine[..1]));

        let more = client(Mode::Ids(ids(1..=count + 1)));
        assert_eq!(
            (more.ranges, more.want, more.send),
            (Some(told.clone()), ids(count + 1..=count + 1), vec![])
        );
        let more = relay(Mode::Ids(ids(1..=count + 1)));
        assert_eq!((&more.ranges[..], &more.owed[..]), (&told[..], &[][..]));
    }
}

#[test]
fn a_split_leaves_a_range_for_every_span_to_come() {
    let items = plain_items(1..=1000);
    // 1020 spans before the one that holds everything leave it four, and the three behind it one each.
    let mut incoming: Vec<Range> = (2000..=3017).map(fingerprint_range).collect();
    incoming.insert(0, fingerprint_range(1500));
    incoming.push(fingerprint_range(OPEN_END));
    let reply = answer(&items, &incoming);
    assert_eq!(incoming.len(), 1020);
    assert_eq!(reply.ranges.len(), 1024);
    assert_eq!(reply.ranges[4].upper, 1500);
}

/// W03.5, codec side: each row of 03 §2.
#[test]
fn each_decode_row_has_its_code() {
    const END: &str = "1b ff*8";
    let many = |count: usize| -> String { (0..count).map(|n| format!("5820 {:064x}", n)).collect() };
    let ids_4097 = format!("820181 83 {END} 02 991001 {}", many(4097));
    let ids_4096 = format!("820181 83 {END} 02 991000 {}", many(4096));
    let ranges = |count: usize| -> String {
        let before: String = (0..count - 1)
            .map(|n| format!("83 19{:04x} 00 f6", 1000 + n))
            .collect();
        format!("8201 99{count:04x} {before} 83 {END} 00 f6")
    };
    let (ranges_1024, ranges_1025) = (ranges(1024), ranges(1025));
    let rows: &[(&str, Option<Code>, &str)] = &[
        ("", Some(G), "1: nothing"),
        ("81 01", Some(G), "1: array of one"),
        ("83 01 80 80", Some(G), "1: array of three"),
        ("82 40 80", Some(G), "1: version is no integer"),
        ("82 1801 80", Some(G), "1: version not shortest"),
        ("82 00 80", Some(S), "2: version 0"),
        ("82 02 ff", Some(S), "2 before 3: version 2"),
        ("82 01 80", Some(S), "3: no range"),
        (
            "82 01 990401 00",
            Some(G),
            "3: a count beyond the input is truncated first",
        ),
        (&ranges_1025, Some(S), "3: 1025 ranges"),
        (&ranges_1024, None, "3: 1024 ranges"),
        ("82 01 81 82 00 00 00", Some(G), "4: range of two"),
        ("82 01 81 84 00 00 f6 00", Some(G), "4: range of four"),
        ("82 01 81 83 40 00 f6", Some(G), "4: upper is no integer"),
        ("82 01 81 83 00 40 f6", Some(G), "4: mode is no integer"),
        ("82 01 81 83 1b ff*8 00 40", Some(G), "5: skip with a byte string"),
        ("82 01 81 83 1b ff*8 00 f4", Some(G), "5: skip with false"),
        ("82 01 81 83 1b ff*8 01 581f 00*31", Some(G), "6: 31 bytes"),
        ("82 01 81 83 1b ff*8 01 5821 00*33", Some(G), "6: 33 bytes"),
        ("82 01 81 83 1b ff*8 01 5820 00*32", None, "6: 32 bytes"),
        (&ids_4097, Some(S), "7: 4097 ids"),
        (&ids_4096, None, "7: 4096 ids"),
        (
            "82 01 81 83 1b ff*8 02 81 581f 00*31",
            Some(G),
            "8: id of 31 bytes",
        ),
        (
            "82 01 81 83 1b ff*8 02 83 5820 02*32 5820 01*32 41 00",
            Some(G),
            "8 before 9",
        ),
        (
            "82 01 81 83 1b ff*8 02 82 5820 02*32 5820 01*32",
            Some(S),
            "9: descending",
        ),
        (
            "82 01 81 83 1b ff*8 02 82 5820 02*32 5820 02*32",
            Some(S),
            "9: twice the same",
        ),
        (
            "82 01 81 83 1b ff*8 02 82 5820 01*32 5820 02*32",
            None,
            "9: ascending",
        ),
        ("82 01 81 83 1b ff*8 03 f6", Some(S), "10: mode 3"),
        ("82 01 81 83 1b ff*8 1b ff*8 f6", Some(S), "10: mode 2^64 - 1"),
        (
            "82 01 83 83 05 00 f6 83 05 00 f6 83 1b ff*8 00 f6",
            Some(S),
            "11: the same upper again",
        ),
        (
            "82 01 83 83 05 00 f6 83 04 00 f6 83 1b ff*8 00 f6",
            Some(S),
            "11: a lower upper",
        ),
        (
            "82 01 83 83 05 00 f6 83 06 00 f6 83 1b ff*8 00 f6",
            None,
            "11: ascending uppers",
        ),
        (
            "82 01 82 83 05 00 f6 83 04 00 40",
            Some(G),
            "11 only after the range is read",
        ),
        ("82 01 81 83 05 00 f6", Some(S), "12: cover ends early"),
        ("82 01 81 83 05 00 f6 00", Some(S), "12 before 13"),
        ("82 01 81 83 1b ff*8 00 f6 00", Some(G), "13: a byte left over"),
    ];
    for (spelt, code, row) in rows {
        assert_eq!(decode(&bytes(spelt)).err(), *code, "{row}");
    }
}

/// W03.6, codec side
#[test]
fn covers_at_their_edges() {
    let decoded = |spelt: &str| decode(&bytes(spelt));
    let first_empty = decoded("820182 83 00 00 f6 83 1b ff*8 02 80").expect("a first upper of 0 is legal");
    let reply = answer(&plain_items(0..3), &first_empty);
    assert_eq!(
        (reply.ranges.len(), reply.ranges[0].clone()),
        (
            2,
            Range {
                upper: 0,
                mode: Mode::Skip
            }
        )
    );
    assert_eq!(reply.owed, plain_items(0..3));

    let skip = decoded("820181 83 1b ff*8 00 f6").expect("a single skip");
    assert_eq!(answer(&plain_items(1..100), &skip).ranges, skip);
    assert!(client_step(&plain_items(1..100), &skip).ranges.is_none());

    assert_eq!(
        decoded("820181 83 1b ff*7 fe 00 f6"),
        Err(S),
        "2^64 - 2 is not the open end"
    );
}

/// W03.13
#[test]
fn a_renumbered_item_is_noticed_by_whoever_holds_the_old_pair() {
    let mut client = plain_items(1..=20);
    let relay = client.clone();
    client[9] = item(1000, &plain_id(10));
    client.sort_unstable();
    let reply = answer(&relay, &opening(&client));
    assert!(reply.ranges.iter().any(|range| range.mode != Mode::Skip));
    let step = client_step(&client, &reply.ranges);
    assert!(step.ranges.is_some());
}

#[test]
fn an_item_at_the_open_end_takes_no_part() {
    let relay = plain_items([1, u64::MAX]);
    assert_eq!(payload(&opening(&relay)), payload(&opening(&plain_items([1]))));
    let everything = [Range {
        upper: OPEN_END,
        mode: Mode::Ids(vec![]),
    }];
    assert_eq!(answer(&relay, &everything).owed, relay[..1]);
}

#[test]
fn a_span_with_unsent_items_is_never_skipped() {
    let relay = plain_items(1..=30);
    let incoming = [
        Range {
            upper: 11,
            mode: Mode::Ids(vec![]),
        },
        Range {
            upper: 21,
            mode: Mode::Skip,
        },
        Range {
            upper: OPEN_END,
            mode: Mode::Ids(vec![]),
        },
    ];
    let settled = answer(&relay, &incoming);
    assert_eq!(settled.owed.len(), 20);
    // Their ids ascend as their numbers do: what is left lies in the last span.
    let mut reopened = answer(&relay, &incoming);
    reopened.reopen(15);
    assert_eq!(
        reopened.ranges[..2],
        settled.ranges[..2],
        "spans that were sent whole stay settled"
    );
    let open = Mode::Fingerprint(fingerprint(&relay[20..]));
    assert_eq!(
        reopened.ranges[2],
        Range {
            upper: OPEN_END,
            mode: open
        }
    );
}

/// Pieces of any size make the answer that one makes, and what cannot be sent is not collected.
#[test]
fn an_answer_in_pieces_is_the_same_answer() {
    let relay: Vec<Item> = (1..=3_000)
        .map(|seq| item(seq, &Hash::of(&[&seq.to_be_bytes()[..]])))
        .collect();
    let ids = |seqs: &mut dyn Iterator<Item = usize>| {
        let mut ids: Vec<Hash> = seqs.map(|at| item_id(&relay[at])).collect();
        ids.sort_unstable();
        Mode::Ids(ids)
    };
    let range = |upper, mode| Range { upper, mode };
    let mut foreign = relay.iter().step_by(9).map(item_id).collect::<Vec<_>>();
    foreign.push(Hash([255; 32]));
    foreign.sort_unstable();
    let incoming = [
        range(100, Mode::Skip),
        range(500, ids(&mut (99..499).step_by(3))),
        range(1_000, Mode::Fingerprint(fingerprint(&relay[499..999]))),
        range(1_010, Mode::Fingerprint(Hash([1; 32]))),
        range(1_020, ids(&mut std::iter::empty())),
        range(1_020 + 1, Mode::Ids(vec![Hash([3; 32])])),
        range(2_000, Mode::Ids(foreign)),
        range(OPEN_END, Mode::Fingerprint(Hash([2; 32]))),
    ];
    let whole = answer(&relay, &incoming);
    assert_eq!(whole.ranges.len(), 5 + 8 + 8 + 1);
    for sends in [0, 1, 7, 255, whole.owed.len(), ALL] {
        let mut cut = answer(&relay, &incoming);
        cut.reopen(sends);
        for size in [1, 9, 100, 1_999, ALL] {
            let mut pieces = Answering::new(&relay, incoming.to_vec(), sends);
            while !pieces.step(&relay, size) {}
            let mut pieces = pieces.finish();
            assert_eq!(
                pieces.owed,
                whole.owed[..sends.min(whole.owed.len())],
                "{sends} in {size}"
            );
            pieces.reopen(sends);
            assert_eq!(pieces.ranges, cut.ranges, "{sends} in {size}");
        }
    }
}

/// Items come and go between the pieces: the answer still names every bound, and later items take no part.
#[test]
fn items_may_come_and_go_between_pieces() {
    let all: Vec<Item> = plain_items(1..=500);
    let incoming = [
        fingerprint_range(200),
        fingerprint_range(300),
        fingerprint_range(OPEN_END),
    ];
    let mut items = all[..400].to_vec();
    let mut pieces = Answering::new(&items, incoming.to_vec(), ALL);
    let mut steps = 0;
    while !pieces.step(&items, 20) {
        steps += 1;
        items.retain(|item| item_seq(item) % 31 != steps % 31);
        items.extend(all.get(399 + steps as usize));
    }
    let answer = pieces.finish();
    sent(&answer.ranges);
    for range in &incoming {
        assert!(answer.ranges.iter().any(|answer| answer.upper == range.upper));
    }
    assert!(
        answer
            .ranges
            .iter()
            .all(|range| range.upper <= 400 || range.upper == OPEN_END)
    );
}
