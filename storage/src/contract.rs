//! What every implementation of [`LogStore`] and [`ControlStore`] must do, as tests.
//!
//! ```ignore
//! struct Mine(/* where the store lives */);
//! impl drover_storage::contract::Subject for Mine { /* … */ }
//! drover_storage::contract!(Mine::new);
//! ```

use crate::control::{Check, ControlBatch, ControlStore, DirectoryKey, DirectoryKind, Outcome, Write};
use crate::log::{Append, AppendBatch, Delete, IndexEntry, LogStore, Record, StreamId, StreamKind};
use crate::{Done, RealmId, StoreError};
use bytes::Bytes;
use drover_wire::id::{GroupId, Hash};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

/// Where a store under test lives.
pub trait Subject {
    /// The implementation.
    type Store: LogStore + ControlStore + 'static;

    /// Opens it: empty at first, later with everything that was acknowledged. The one opened before was dropped.
    fn open(&self) -> Self::Store;
}

/// One `#[test]` for each rule, on a subject made by the given function.
#[macro_export]
macro_rules! contract {
    ($fresh:expr) => {
        $crate::contract!(
            $fresh;
            records_come_back_as_appended_and_in_order,
            streams_do_not_mix,
            a_batch_is_seen_whole_or_not_at_all,
            read_keeps_its_bounds,
            read_seqs_answers_in_the_order_asked,
            read_seqs_agrees_with_read,
            index_lists_number_address_and_length,
            usage_is_the_last_value_given,
            deleted_records_are_gone_and_nothing_else,
            a_deletion_is_seen_whole_or_not_at_all,
            a_deletion_shares_its_batch_with_the_usage,
            an_empty_batch_is_answered,
            a_commit_happens_only_if_every_check_holds,
            checks_see_the_commits_before_them,
            a_commit_writes_deletes_and_loads_in_order,
            realms_do_not_mix,
            the_first_claim_wins_for_good,
            a_commit_changes_only_directory_entries_of_its_realm,
            a_refused_commit_claims_nothing,
            a_reopened_store_has_everything_acknowledged,
            many_threads_append_without_loss,
            answers_of_one_caller_come_in_order,
            dropping_the_store_answers_everything,
        );
    };
    ($fresh:expr; $($rule:ident),* $(,)?) => {
        $(
            #[test]
            fn $rule() {
                $crate::contract::$rule(&$fresh());
            }
        )*
    };
}

/// Calls and waits for the answer.
///
/// # Errors
/// What the store answered.
///
/// # Panics
/// If no answer comes.
pub fn wait<T: Send + 'static>(call: impl FnOnce(Done<T>)) -> Result<T, StoreError> {
    let (sender, receiver) = mpsc::sync_channel(1);
    call(Box::new(move |result| {
        sender.send(result).expect("somebody waits")
    }));
    receiver
        .recv_timeout(Duration::from_secs(60))
        .expect("the store answers")
}

/// A stream for tests.
pub fn stream(kind: StreamKind, group: u8) -> StreamId {
    StreamId {
        kind,
        group: GroupId([group; 32]),
    }
}

fn envelopes(group: u8) -> StreamId {
    stream(StreamKind::Envelopes, group)
}

/// A realm for tests.
pub fn realm(name: &str) -> RealmId {
    RealmId(name.into())
}

/// What a record of this length counts: less than it, as of an envelope.
pub fn budget_bytes(length: usize) -> u32 {
    length.saturating_sub(7) as u32
}

/// A record whose address and bytes follow from its stream and number.
pub fn record(stream: StreamId, seq: u64, length: usize) -> Append {
    let seed = Hash::of(&[stream.group.as_bytes(), &[stream.kind as u8], &seq.to_be_bytes()]);
    let bytes: Vec<u8> = seed.as_bytes().iter().copied().cycle().take(length).collect();
    Append {
        stream,
        seq,
        id: seed,
        bytes: bytes.into(),
        budget_bytes: budget_bytes(length),
    }
}

fn append(store: &impl LogStore, appends: Vec<Append>) {
    wait(|done| {
        store.append(
            AppendBatch {
                appends,
                ..AppendBatch::default()
            },
            done,
        )
    })
    .expect("appends");
}

fn read(
    store: &impl LogStore,
    stream: StreamId,
    from: u64,
    records_max: usize,
    bytes_max: usize,
) -> Vec<Record> {
    wait(|done| store.read(stream, from, records_max, bytes_max, done)).expect("reads")
}

fn seqs(records: &[Record]) -> Vec<u64> {
    records.iter().map(|r| r.seq).collect()
}

fn put(key: &str, value: &str) -> Write {
    Write {
        key: key.into(),
        value: Some(Bytes::copy_from_slice(value.as_bytes())),
    }
}

fn absent(key: &str) -> Check {
    Check::Absent(key.into())
}

fn equals(key: &str, value: &str) -> Check {
    Check::Equals(key.into(), Bytes::copy_from_slice(value.as_bytes()))
}

fn commit(store: &impl ControlStore, name: &str, checks: Vec<Check>, writes: Vec<Write>) -> Outcome {
    let batch = ControlBatch {
        checks,
        writes,
        directory: Vec::new(),
    };
    wait(|done| store.commit(realm(name), batch, done)).expect("commits")
}

fn load(store: &impl ControlStore, name: &str) -> Vec<(String, String)> {
    let records = wait(|done| store.load(realm(name), done)).expect("loads");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    records
        .iter()
        .map(|(key, value)| (text(key), text(value)))
        .collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs
        .iter()
        .map(|(key, value)| (key.to_string(), value.to_string()))
        .collect()
}

fn token(name: &str) -> DirectoryKey {
    DirectoryKey {
        kind: DirectoryKind::Token,
        name: name.into(),
    }
}

fn claim(store: &impl ControlStore, name: &str, keys: &[&str]) -> Vec<RealmId> {
    let keys = keys.iter().map(|k| token(k)).collect();
    wait(|done| store.claim(realm(name), keys, done)).expect("claims")
}

fn tokens(store: &impl ControlStore) -> Vec<(String, RealmId, String)> {
    let entries = store.directory(DirectoryKind::Token).expect("lists");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    entries
        .into_iter()
        .map(|e| (text(&e.key.name), e.realm, text(&e.value)))
        .collect()
}

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

/// Nothing to do is done.
pub fn an_empty_batch_is_answered(subject: &impl Subject) {
    let store = subject.open();
    append(&store, Vec::new());
    assert_eq!(commit(&store, "ws:a", vec![], vec![]), Outcome::Applied);
    assert_eq!(claim(&store, "ws:a", &[]), []);
}

/// One false check, and nothing happens.
pub fn a_commit_happens_only_if_every_check_holds(subject: &impl Subject) {
    let store = subject.open();
    assert_eq!(
        commit(&store, "ws:a", vec![absent("x")], vec![put("x", "1")]),
        Outcome::Applied
    );
    assert_eq!(
        commit(&store, "ws:a", vec![absent("x")], vec![put("x", "2")]),
        Outcome::Refused
    );
    let checks = vec![equals("x", "1"), absent("y")];
    assert_eq!(
        commit(&store, "ws:a", checks.clone(), vec![put("y", "2")]),
        Outcome::Applied
    );
    assert_eq!(
        commit(&store, "ws:a", checks, vec![put("x", "3"), put("z", "3")]),
        Outcome::Refused
    );
    assert_eq!(
        commit(&store, "ws:a", vec![equals("x", "")], vec![put("x", "4")]),
        Outcome::Refused
    );
    assert_eq!(
        commit(&store, "ws:a", vec![equals("q", "")], vec![put("x", "5")]),
        Outcome::Refused
    );
    assert_eq!(load(&store, "ws:a"), pairs(&[("x", "1"), ("y", "2")]));
}

/// Commits handed over together are decided one after the other, and a refused one disturbs none.
pub fn checks_see_the_commits_before_them(subject: &impl Subject) {
    let store = subject.open();
    let (sender, receiver) = mpsc::channel();
    for n in 0..200_u32 {
        let checks = match n {
            0 => vec![absent("n")],
            // Every tenth is wrong.
            _ if n % 10 == 9 => vec![equals("n", "never")],
            _ => vec![equals("n", &(n - 1 - u32::from(n % 10 == 0)).to_string())],
        };
        let batch = ControlBatch {
            checks,
            writes: vec![put("n", &n.to_string())],
            directory: vec![],
        };
        let sender = sender.clone();
        store.commit(
            realm("ws:a"),
            batch,
            Box::new(move |r| sender.send((n, r)).expect("heard")),
        );
    }
    for expected in 0..200 {
        let (n, outcome) = receiver.recv_timeout(Duration::from_secs(60)).expect("answered");
        assert_eq!(n, expected);
        let wrong = n % 10 == 9;
        assert_eq!(
            outcome,
            Ok(if wrong { Outcome::Refused } else { Outcome::Applied }),
            "{n}"
        );
    }
    assert_eq!(load(&store, "ws:a"), pairs(&[("n", "198")]));
}

/// Keys are bytes and ascend as such; a later write of a commit wins.
pub fn a_commit_writes_deletes_and_loads_in_order(subject: &impl Subject) {
    let store = subject.open();
    let writes = ["b", "a", "", "ab", "c"].map(|key| put(key, key));
    assert_eq!(commit(&store, "ws:a", vec![], writes.to_vec()), Outcome::Applied);
    let writes = vec![
        Write {
            key: b"c".to_vec(),
            value: None,
        },
        Write {
            key: b"never".to_vec(),
            value: None,
        },
        put("a", "first"),
        put("a", "second"),
    ];
    assert_eq!(commit(&store, "ws:a", vec![], writes), Outcome::Applied);
    let all = pairs(&[("", ""), ("a", "second"), ("ab", "ab"), ("b", "b")]);
    assert_eq!(load(&store, "ws:a"), all);
    let get = |key: &str| wait(|done| store.get(realm("ws:a"), key.into(), done)).expect("reads");
    assert_eq!(get("a"), Some(Bytes::from_static(b"second")));
    assert_eq!(get(""), Some(Bytes::new()));
    assert_eq!(get("c"), None);
}

/// No realm sees another's records, not even one whose name is the beginning of its own.
pub fn realms_do_not_mix(subject: &impl Subject) {
    let store = subject.open();
    for name in ["ws:", "ws:a", "ws:ab"] {
        assert_eq!(
            commit(&store, name, vec![absent("b")], vec![put("b", name)]),
            Outcome::Applied
        );
    }
    assert_eq!(load(&store, "ws:"), pairs(&[("b", "ws:")]));
    assert_eq!(load(&store, "ws:a"), pairs(&[("b", "ws:a")]));
    assert_eq!(load(&store, "ws:ab"), pairs(&[("b", "ws:ab")]));
    assert_eq!(load(&store, "ws"), []);
}

/// Insert if absent, name by name.
pub fn the_first_claim_wins_for_good(subject: &impl Subject) {
    let (a, b) = (realm("ws:a"), realm("ws:b"));
    {
        let store = subject.open();
        assert_eq!(
            claim(&store, "ws:a", &["x", "y", "x"]),
            [a.clone(), a.clone(), a.clone()]
        );
        assert_eq!(claim(&store, "ws:b", &["y", "z"]), [a.clone(), b.clone()]);
    }
    let store = subject.open();
    assert_eq!(claim(&store, "ws:a", &["z", "x"]), [b.clone(), a.clone()]);
    let expected = [("x", &a), ("y", &a), ("z", &b)];
    let expected: Vec<_> = expected
        .iter()
        .map(|(name, realm)| (name.to_string(), (*realm).clone(), String::new()))
        .collect();
    assert_eq!(tokens(&store), expected);
    assert_eq!(store.directory(DirectoryKind::Group).expect("lists"), []);
}

/// A commit may set and remove entries of its own realm, and claims free ones; another's refuse it.
pub fn a_commit_changes_only_directory_entries_of_its_realm(subject: &impl Subject) {
    let store = subject.open();
    claim(&store, "ws:a", &["mine", "gone"]);
    claim(&store, "ws:b", &["yours"]);
    let commit = |directory: Vec<(&str, Option<&'static str>)>, key: &str| {
        let directory = directory
            .into_iter()
            .map(|(k, v)| (token(k), v.map(Bytes::from)))
            .collect();
        let batch = ControlBatch {
            checks: vec![],
            writes: vec![put(key, "1")],
            directory,
        };
        wait(|done| store.commit(realm("ws:a"), batch, done)).expect("commits")
    };
    let changes = vec![
        ("mine", Some("value")),
        ("gone", None),
        ("free", Some("")),
        ("never", None),
    ];
    assert_eq!(commit(changes, "applied"), Outcome::Applied);
    assert_eq!(
        commit(vec![("mine", Some("lost")), ("yours", Some("lost"))], "refused"),
        Outcome::Refused
    );
    assert_eq!(commit(vec![("yours", None)], "refused"), Outcome::Refused);
    let entry = |name: &str, owner: &str, value: &str| (name.to_string(), realm(owner), value.to_string());
    let expected = [
        entry("free", "ws:a", ""),
        entry("mine", "ws:a", "value"),
        entry("yours", "ws:b", ""),
    ];
    assert_eq!(tokens(&store), expected);
    assert_eq!(load(&store, "ws:a"), pairs(&[("applied", "1")]));
    // What was given up is free again.
    assert_eq!(claim(&store, "ws:b", &["gone"]), [realm("ws:b")]);
}

/// The directory changes of a commit share its checks.
pub fn a_refused_commit_claims_nothing(subject: &impl Subject) {
    let store = subject.open();
    let batch = ControlBatch {
        checks: vec![equals("x", "1")],
        writes: vec![],
        directory: vec![(token("t"), Some(Bytes::new()))],
    };
    let outcome = wait(|done| store.commit(realm("ws:a"), batch, done));
    assert_eq!(outcome, Ok(Outcome::Refused));
    assert_eq!(tokens(&store), []);
    assert_eq!(claim(&store, "ws:b", &["t"]), [realm("ws:b")]);
}

/// Closing and opening changes nothing, and the store goes on from there.
pub fn a_reopened_store_has_everything_acknowledged(subject: &impl Subject) {
    for round in 0..4_u64 {
        let store = subject.open();
        let records = read(&store, envelopes(1), 0, usize::MAX, usize::MAX);
        let expected: Vec<_> = (0..round * 10)
            .map(|seq| Record {
                seq,
                bytes: record(envelopes(1), seq, 500 * seq as usize).bytes,
            })
            .collect();
        assert_eq!(records, expected);
        assert_eq!(wait(|done| store.usage(realm("ws:a"), done)), Ok(round));
        let written: Vec<_> = (0..round).map(|n| (n.to_string(), "v".to_string())).collect();
        assert_eq!(load(&store, "ws:a"), written);
        assert_eq!(tokens(&store).len() as u64, round);

        let appends = (0..10)
            .map(|n| round * 10 + n)
            .map(|n| record(envelopes(1), n, 500 * n as usize));
        let batch = AppendBatch {
            appends: appends.collect(),
            usage: vec![(realm("ws:a"), round + 1)],
            ..AppendBatch::default()
        };
        wait(|done| store.append(batch, done)).expect("appends");
        let key = round.to_string();
        assert_eq!(
            commit(&store, "ws:a", vec![absent(&key)], vec![put(&key, "v")]),
            Outcome::Applied
        );
        claim(&store, "ws:a", &[&key]);
    }
}

/// Eight threads, each with several batches under way.
pub fn many_threads_append_without_loss(subject: &impl Subject) {
    const THREADS: u8 = 8;
    const BATCHES: u64 = 100;
    {
        let store = subject.open();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let store = &store;
                scope.spawn(move || {
                    let (sender, receiver) = mpsc::channel();
                    for batch in 0..BATCHES {
                        let sender = sender.clone();
                        let appends = (0..10)
                            .map(|n| record(envelopes(thread), batch * 10 + n, 64))
                            .collect();
                        let done: Done<()> = Box::new(move |r| sender.send(r).expect("heard"));
                        store.append(
                            AppendBatch {
                                appends,
                                ..AppendBatch::default()
                            },
                            done,
                        );
                    }
                    for _ in 0..BATCHES {
                        receiver
                            .recv_timeout(Duration::from_secs(60))
                            .expect("answered")
                            .expect("appended");
                    }
                });
            }
        });
    }
    let store = subject.open();
    for thread in 0..THREADS {
        let records = read(&store, envelopes(thread), 0, usize::MAX, usize::MAX);
        assert_eq!(seqs(&records), (0..BATCHES * 10).collect::<Vec<_>>());
    }
}

/// One caller's answers come in the order of its calls, those of the log and those of the control store each.
pub fn answers_of_one_caller_come_in_order(subject: &impl Subject) {
    let store = subject.open();
    type Order = Arc<Mutex<Vec<u64>>>;
    fn note<T>(order: &Order, n: u64) -> Done<T> {
        let order = order.clone();
        Box::new(move |r| {
            assert!(r.is_ok());
            order.lock().expect("not poisoned").push(n);
        })
    }
    let (log, control) = (Order::default(), Order::default());
    for n in 0..300 {
        let batch = AppendBatch {
            appends: vec![record(envelopes(1), n, 10)],
            ..AppendBatch::default()
        };
        store.append(batch, note(&log, n));
        match n % 2 {
            0 => {
                let batch = ControlBatch {
                    writes: vec![put("k", &n.to_string())],
                    ..ControlBatch::default()
                };
                store.commit(realm("ws:a"), batch, note(&control, n));
            }
            _ => store.claim(realm("ws:a"), vec![token(&n.to_string())], note(&control, n)),
        }
    }
    append(&store, vec![]);
    commit(&store, "ws:a", vec![], vec![]);
    for order in [log, control] {
        assert_eq!(*order.lock().expect("not poisoned"), (0..300).collect::<Vec<_>>());
    }
}

/// Whatever was handed over before the last handle went is answered before the drop returns, and a success is kept.
pub fn dropping_the_store_answers_everything(subject: &impl Subject) {
    let answers: Arc<Mutex<HashMap<u64, Result<(), StoreError>>>> = Arc::default();
    let store = subject.open();
    for n in 0..500 {
        let answers = answers.clone();
        let appends = vec![record(envelopes(1), n, 1000)];
        let done: Done<()> = Box::new(move |r| {
            answers.lock().expect("not poisoned").insert(n, r);
        });
        store.append(
            AppendBatch {
                appends,
                ..AppendBatch::default()
            },
            done,
        );
    }
    drop(store);
    let answers = std::mem::take(&mut *answers.lock().expect("not poisoned"));
    assert_eq!(answers.len(), 500);
    let store = subject.open();
    let mut expected: Vec<_> = answers
        .iter()
        .filter(|(_, r)| r.is_ok())
        .map(|(&n, _)| n)
        .collect();
    expected.sort();
    assert_eq!(
        seqs(&read(&store, envelopes(1), 0, usize::MAX, usize::MAX)),
        expected
    );
}

/// A copy that is made under load is the store at one moment. A rule for stores that can be copied while they are in use:
/// `copy` makes a copy and opens it.
pub fn a_snapshot_is_one_moment<S: Subject>(subject: &S, copy: impl Fn(&S::Store) -> S::Store) {
    const WRITERS: u8 = 4;
    const SNAPSHOTS: usize = 4;
    /// Rounds of each writer between two snapshots.
    const ROUNDS: u64 = 40;
    /// Ends the writers, even if an assertion fails.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    let handshakes = |writer| stream(StreamKind::Handshakes, writer);
    let realm_of = |writer: u8| realm(&format!("ws:{writer}"));
    // Every fourth round deletes what the second before it appended.
    let is_deleted = |seq: u64, last: u64| seq + 2 <= last && (seq + 2).is_multiple_of(4);
    let store = subject.open();
    let ended = AtomicBool::new(false);
    let acknowledged: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        let _end = End(&ended);
        for writer in 0..WRITERS {
            let (store, ended, acknowledged) = (&store, &ended, &acknowledged);
            scope.spawn(move || {
                // The log first, then the control store, each waiting for the other.
                for seq in 1.. {
                    if ended.load(Ordering::Acquire) {
                        return;
                    }
                    let appends = [(envelopes(writer), 700), (handshakes(writer), 60)];
                    let mut batch = AppendBatch {
                        appends: appends.map(|(stream, length)| record(stream, seq, length)).into(),
                        usage: vec![(realm_of(writer), seq)],
                        ..AppendBatch::default()
                    };
                    if is_deleted(seq.saturating_sub(2), seq) {
                        let old = record(envelopes(writer), seq - 2, 700);
                        batch.deletes.push(Delete {
                            stream: old.stream,
                            entries: vec![IndexEntry {
                                seq: old.seq,
                                id: old.id,
                                bytes: old.bytes.len() as u32,
                                budget_bytes: old.budget_bytes,
                            }],
                        });
                    }
                    wait(|done| store.append(batch, done)).expect("appends");
                    let batch = ControlBatch {
                        writes: vec![Write {
                            key: b"round".to_vec(),
                            value: Some(Bytes::copy_from_slice(&seq.to_be_bytes())),
                        }],
                        ..ControlBatch::default()
                    };
                    wait(|done| store.commit(realm_of(writer), batch, done)).expect("commits");
                    acknowledged[usize::from(writer)].store(seq, Ordering::Release);
                }
            });
        }
        for snapshot in 1..=SNAPSHOTS as u64 {
            let now = |writer: usize| acknowledged[writer].load(Ordering::Acquire);
            while (0..acknowledged.len()).any(|writer| now(writer) < snapshot * ROUNDS) {
                std::thread::yield_now();
            }
            let before: Vec<u64> = (0..acknowledged.len()).map(now).collect();
            let copy = copy(&store);
            for (writer, before) in (0..WRITERS).zip(before) {
                let all = |stream| seqs(&read(&copy, stream, 0, usize::MAX, usize::MAX));
                let last = all(handshakes(writer)).len() as u64;
                assert!(
                    last >= before,
                    "writer {writer}: {before} was acknowledged, {last} is there"
                );
                assert!(all(handshakes(writer)).into_iter().eq(1..=last));
                let kept = (1..=last).filter(|seq| !is_deleted(*seq, last));
                assert_eq!(all(envelopes(writer)), kept.collect::<Vec<_>>());
                let usage = wait(|done| copy.usage(realm_of(writer), done)).expect("reads");
                assert_eq!(usage, last, "writer {writer}");
                let round = wait(|done| copy.get(realm_of(writer), b"round".to_vec(), done)).expect("reads");
                let round = round.map_or(0, |round| {
                    u64::from_be_bytes(round[..].try_into().expect("a number"))
                });
                assert!(
                    round == last || round + 1 == last,
                    "writer {writer}: the log is at {last}, the control store at {round}"
                );
            }
        }
    });
}
