//! What every implementation of [`LogStore`] and [`ControlStore`] must do, as tests.
//!
//! ```ignore
//! struct Mine(/* where the store lives */);
//! impl drover_storage::contract::Subject for Mine { /* … */ }
//! drover_storage::contract!(Mine::new);
//! ```

mod control;
mod log;

pub use self::control::*;
pub use self::log::*;

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
            what_changed_nothing_may_be_the_last_that_happened,
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

/// Nothing to do is done.
pub fn an_empty_batch_is_answered(subject: &impl Subject) {
    let store = subject.open();
    append(&store, Vec::new());
    assert_eq!(commit(&store, "ws:a", vec![], vec![]), Outcome::Applied);
    assert_eq!(claim(&store, "ws:a", &[]), []);
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
