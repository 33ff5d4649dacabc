//! What every log must do: streams, their indexes, deletions, usage.

use super::*;

/// What was appended is read, ascending, whatever its size.
pub fn records_come_back_as_appended_and_in_order(subject: &impl Subject) {
    let store = subject.open();
    let lengths = [0, 1, 300, 4_095, 4_096, 8_191, 8_192, 70_000, 1 << 20];
    let appends: Vec<_> = lengths
        .iter()
        .zip([1_u64, 2, 255, 256, 257, 65_536, 1 << 32, 1 << 40, u64::MAX])
        .collect();
    let appends: Vec<_> = appends
        .into_iter()
        .map(|(&length, seq)| record(envelopes(1), seq, length))
        .collect();
    for half in appends.chunks(5) {
        append(&store, half.to_vec());
    }
    let records = read(&store, envelopes(1), 0, usize::MAX, usize::MAX);
    let expected: Vec<_> = appends
        .into_iter()
        .map(|a| Record {
            seq: a.seq,
            bytes: a.bytes,
        })
        .collect();
    assert_eq!(records, expected);
}

/// Kind and group keep streams apart.
pub fn streams_do_not_mix(subject: &impl Subject) {
    let store = subject.open();
    let streams = [
        envelopes(0),
        envelopes(1),
        envelopes(0xff),
        stream(StreamKind::Handshakes, 0),
        stream(StreamKind::Handshakes, 1),
        stream(StreamKind::Handshakes, 0xff),
    ];
    append(
        &store,
        streams
            .iter()
            .flat_map(|&s| (0..3).map(move |seq| record(s, seq, 10)))
            .collect(),
    );
    for stream in streams {
        let records = read(&store, stream, 0, usize::MAX, usize::MAX);
        let expected: Vec<_> = (0..3)
            .map(|seq| Record {
                seq,
                bytes: record(stream, seq, 10).bytes,
            })
            .collect();
        assert_eq!(records, expected);
        assert_eq!(wait(|done| store.index(stream, done)).expect("reads").len(), 3);
    }
    assert_eq!(read(&store, envelopes(2), 0, usize::MAX, usize::MAX), []);
}

/// A reader never sees a part of a batch.
pub fn a_batch_is_seen_whole_or_not_at_all(subject: &impl Subject) {
    let store = subject.open();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for batch in 0..50_u64 {
                append(
                    &store,
                    (0..20)
                        .map(|n| record(envelopes(1), batch * 20 + n, 100))
                        .collect(),
                );
            }
        });
        while !writer.is_finished() {
            let records = read(&store, envelopes(1), 0, usize::MAX, usize::MAX);
            assert_eq!(records.len() % 20, 0, "a part of a batch");
        }
    });
    assert_eq!(read(&store, envelopes(1), 0, usize::MAX, usize::MAX).len(), 1000);
}

/// From, most records, most bytes.
pub fn read_keeps_its_bounds(subject: &impl Subject) {
    let store = subject.open();
    let stream = envelopes(1);
    append(
        &store,
        [10, 20, 30, 40]
            .iter()
            .map(|&seq| record(stream, seq, 100))
            .collect(),
    );
    let seqs_of = |from, records, bytes| seqs(&read(&store, stream, from, records, bytes));
    assert_eq!(seqs_of(0, 10, usize::MAX), [10, 20, 30, 40]);
    assert_eq!(seqs_of(20, 10, usize::MAX), [20, 30, 40]);
    assert_eq!(seqs_of(21, 10, usize::MAX), [30, 40]);
    assert_eq!(seqs_of(41, 10, usize::MAX), [0; 0]);
    assert_eq!(seqs_of(0, 2, usize::MAX), [10, 20]);
    assert_eq!(seqs_of(0, 0, usize::MAX), [0; 0]);
    assert_eq!(seqs_of(0, 10, 0), [10], "the first is always returned");
    assert_eq!(
        seqs_of(0, 10, 100),
        [10],
        "no further one once the bytes are reached"
    );
    assert_eq!(seqs_of(0, 10, 101), [10, 20]);
    assert_eq!(seqs_of(0, 10, 200), [10, 20]);
}

/// Order asked, missing ones left out, stops at the bytes.
pub fn read_seqs_answers_in_the_order_asked(subject: &impl Subject) {
    let store = subject.open();
    let stream = envelopes(1);
    append(
        &store,
        [10, 20, 30, 40]
            .iter()
            .map(|&seq| record(stream, seq, 100))
            .collect(),
    );
    append(&store, vec![record(envelopes(2), 50, 100)]);
    let seqs_of = |asked: &[u64], bytes| {
        let records = wait(|done| store.read_seqs(stream, asked.to_vec(), bytes, done)).expect("reads");
        for found in &records {
            assert_eq!(found.bytes, record(stream, found.seq, 100).bytes);
        }
        seqs(&records)
    };
    assert_eq!(seqs_of(&[10, 20, 30, 40], usize::MAX), [10, 20, 30, 40]);
    assert_eq!(seqs_of(&[40, 10, 30], usize::MAX), [40, 10, 30]);
    assert_eq!(seqs_of(&[5, 10, 15, 40, 50, 20], usize::MAX), [10, 40, 20]);
    assert_eq!(seqs_of(&[50, 60, 10], usize::MAX), [10]);
    assert_eq!(seqs_of(&[], usize::MAX), [0; 0]);
    assert_eq!(seqs_of(&[10, 20, 30], 0), [10]);
    assert_eq!(seqs_of(&[10, 15, 20, 30], 101), [10, 20]);
}

/// Any choice of numbers, near and far.
pub fn read_seqs_agrees_with_read(subject: &impl Subject) {
    let store = subject.open();
    let stream = envelopes(1);
    // Gaps of all sizes.
    let present: Vec<u64> = (1..400_u64).filter(|n| n % 7 != 0 && (n / 50) % 3 != 1).collect();
    append(
        &store,
        present.iter().map(|&seq| record(stream, seq, 20)).collect(),
    );
    for step in 1..40 {
        for asked in [
            (0..450).step_by(step).collect::<Vec<u64>>(),
            (0..450).rev().step_by(step).collect(),
            (0..450).map(|n| n * step as u64 % 449).collect(),
        ] {
            let expected: Vec<_> = asked
                .iter()
                .copied()
                .filter(|n| present.binary_search(n).is_ok())
                .collect();
            let records =
                wait(|done| store.read_seqs(stream, asked.clone(), usize::MAX, done)).expect("reads");
            assert_eq!(seqs(&records), expected);
        }
    }
}

/// The index, for records of every size.
pub fn index_lists_number_address_and_length(subject: &impl Subject) {
    let store = subject.open();
    let appends: Vec<_> = [(3, 0), (4, 300), (9, 9_000), (10, 1 << 20)]
        .iter()
        .map(|&(seq, length)| record(envelopes(1), seq, length))
        .collect();
    append(&store, appends.clone());
    let index = wait(|done| store.index(envelopes(1), done)).expect("reads");
    assert_eq!(index.len(), appends.len());
    for (entry, append) in index.iter().zip(&appends) {
        let length = append.bytes.len();
        let expected = (append.seq, append.id, length as u32, budget_bytes(length));
        assert_eq!((entry.seq, entry.id, entry.bytes, entry.budget_bytes), expected);
    }
}

/// Usage is not added up by the store.
pub fn usage_is_the_last_value_given(subject: &impl Subject) {
    let store = subject.open();
    let usage = |name: &str| wait(|done| store.usage(realm(name), done)).expect("reads");
    assert_eq!(usage("ws:a"), 0);
    for (a, b) in [(10, 5), (20, 6)] {
        let usage = vec![(realm("ws:a"), a), (realm("ws:ab"), b)];
        let batch = AppendBatch {
            appends: vec![record(envelopes(1), a, 10)],
            usage,
            ..AppendBatch::default()
        };
        wait(|done| store.append(batch, done)).expect("appends");
    }
    assert_eq!((usage("ws:a"), usage("ws:ab"), usage("ws:b")), (20, 6, 0));
}

fn index(store: &impl LogStore, stream: StreamId) -> Vec<IndexEntry> {
    wait(|done| store.index(stream, done)).expect("reads")
}

fn delete(store: &impl LogStore, stream: StreamId, entries: Vec<IndexEntry>) {
    let batch = AppendBatch {
        deletes: vec![Delete { stream, entries }],
        ..AppendBatch::default()
    };
    wait(|done| store.append(batch, done)).expect("deletes");
}

/// Deleted is deleted for every way to read and for good, whatever the record's size; its neighbours, other streams
/// and later records stay; what is not there is no error.
pub fn deleted_records_are_gone_and_nothing_else(subject: &impl Subject) {
    let (mine, other) = (envelopes(1), stream(StreamKind::Handshakes, 1));
    let lengths = [1, 300, 9_000, 1 << 20];
    let kept = [2, 5, 6, 9, 12];
    {
        let store = subject.open();
        for stream in [mine, other] {
            let appends = (1..=12).map(|seq| record(stream, seq, lengths[seq as usize % 4]));
            append(&store, appends.collect());
        }
        let gone: Vec<_> = index(&store, mine)
            .into_iter()
            .filter(|e| !kept.contains(&e.seq))
            .collect();
        delete(&store, mine, gone.clone());
        delete(&store, mine, gone);
        delete(&store, envelopes(2), index(&store, other));
        append(&store, vec![record(mine, 13, 50)]);
    }
    let store = subject.open();
    let expected = [&kept[..], &[13]].concat();
    let of_index = |stream| index(&store, stream).iter().map(|e| e.seq).collect::<Vec<_>>();
    assert_eq!(of_index(mine), expected);
    assert_eq!(seqs(&read(&store, mine, 0, usize::MAX, usize::MAX)), expected);
    assert_eq!(seqs(&read(&store, mine, 3, 2, usize::MAX)), [5, 6]);
    let asked = wait(|done| store.read_seqs(mine, (1..=13).rev().collect(), usize::MAX, done));
    let backwards: Vec<_> = expected.iter().rev().copied().collect();
    assert_eq!(seqs(&asked.expect("reads")), backwards);
    assert_eq!(of_index(other), (1..=12).collect::<Vec<_>>());
}

/// A reader never sees a part of a deletion, nor it without the records appended beside it.
pub fn a_deletion_is_seen_whole_or_not_at_all(subject: &impl Subject) {
    let store = subject.open();
    let mine = envelopes(1);
    let twenty = |batch: u64| (0..20).map(move |n| record(mine, batch * 20 + n, 100));
    append(&store, twenty(0).collect());
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for batch in 1..50 {
                let batch = AppendBatch {
                    appends: twenty(batch).collect(),
                    deletes: vec![Delete {
                        stream: mine,
                        entries: index(&store, mine),
                    }],
                    usage: Vec::new(),
                };
                wait(|done| store.append(batch, done)).expect("appends");
            }
        });
        while !writer.is_finished() {
            let found = seqs(&read(&store, mine, 0, usize::MAX, usize::MAX));
            assert_eq!((found.len(), found[0] % 20), (20, 0), "{found:?}");
        }
    });
    assert_eq!(index(&store, mine)[0].seq, 49 * 20);
}

/// What is deleted and what that leaves in the budget are one step, wherever a deletion in parts is interrupted.
pub fn a_deletion_shares_its_batch_with_the_usage(subject: &impl Subject) {
    let mine = envelopes(1);
    let mut left: u64 = (0..40).map(|seq| u64::from(budget_bytes(10 * seq))).sum();
    {
        let store = subject.open();
        let appends = (0..40).map(|seq| record(mine, seq, 10 * seq as usize));
        let batch = AppendBatch {
            appends: appends.collect(),
            usage: vec![(realm("ws:a"), left)],
            ..AppendBatch::default()
        };
        wait(|done| store.append(batch, done)).expect("appends");
    }
    for part in 0..4 {
        let store = subject.open();
        let found = index(&store, mine);
        assert_eq!(found.len(), 40 - part * 10);
        assert_eq!(found.iter().map(|e| u64::from(e.budget_bytes)).sum::<u64>(), left);
        assert_eq!(wait(|done| store.usage(realm("ws:a"), done)), Ok(left));
        let entries = found[..10].to_vec();
        left -= entries.iter().map(|e| u64::from(e.budget_bytes)).sum::<u64>();
        let batch = AppendBatch {
            deletes: vec![Delete {
                stream: mine,
                entries,
            }],
            usage: vec![(realm("ws:a"), left)],
            ..AppendBatch::default()
        };
        wait(|done| store.append(batch, done)).expect("deletes");
    }
    let store = subject.open();
    assert_eq!(index(&store, mine), []);
    assert_eq!(wait(|done| store.usage(realm("ws:a"), done)), Ok(0));
}
