//! What every snapshot must be: the store at one moment, while everything goes on.

use super::*;
use crate::embedded::Embedded;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const WRITERS: u8 = 4;
const SNAPSHOTS: u64 = 4;
/// Rounds of each writer between two snapshots, and again before each of them is copied.
const ROUNDS: u64 = 40;

/// Every fourth round deletes what the second before it appended.
fn is_deleted(seq: u64, last: u64) -> bool {
    seq + 2 <= last && (seq + 2).is_multiple_of(4)
}

fn handshakes(writer: u8) -> StreamId {
    stream(StreamKind::Handshakes, writer)
}

fn realm_of(writer: u8) -> RealmId {
    realm(&format!("ws:{writer}"))
}

/// What a writer does in one round: the log first, then the control store, each waiting for the other.
fn write_round(store: &(impl LogStore + ControlStore), writer: u8, seq: u64) {
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
}

/// A copy holds of this writer's rounds a beginning, whole: at least those before, at most those after.
fn check(copy: &Embedded, writer: u8, before: u64, after: u64) {
    let all = |stream| seqs(&read(copy, stream, 0, usize::MAX, usize::MAX));
    let last = all(handshakes(writer)).len() as u64;
    assert!(
        last >= before,
        "writer {writer}: {before} was acknowledged before, {last} is there"
    );
    assert!(
        last <= after,
        "writer {writer}: {after} was not begun before the snapshot was there, {last} is in it"
    );
    assert!(all(handshakes(writer)).into_iter().eq(1..=last));
    let kept = (1..=last).filter(|seq| !is_deleted(*seq, last));
    assert_eq!(all(envelopes(writer)), kept.collect::<Vec<_>>());
    for found in read(copy, envelopes(writer), 0, usize::MAX, usize::MAX) {
        assert_eq!(found.bytes, record(envelopes(writer), found.seq, 700).bytes);
    }
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

/// A snapshot taken while records come and go is the store at one moment: what was acknowledged before, and nothing of
/// what was begun later, whatever is appended, deleted and compacted between its taking and the end of its copying.
/// That goes on all the while: the copying is begun only once every writer has come further, and each comes further still
/// while the snapshot is held.
pub fn a_snapshot_is_one_moment<S: Subject>(subject: &S) {
    /// Ends the writers, even if an assertion fails.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    let copies = tempfile::tempdir().expect("temporary folder");
    let store = subject.open();
    let ended = AtomicBool::new(false);
    let acknowledged: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        let _end = End(&ended);
        for writer in 0..WRITERS {
            let (store, ended, acknowledged) = (&store, &ended, &acknowledged);
            scope.spawn(move || {
                for seq in 1.. {
                    if ended.load(Ordering::Acquire) {
                        return;
                    }
                    write_round(store, writer, seq);
                    acknowledged[usize::from(writer)].store(seq, Ordering::Release);
                }
            });
        }
        let now = || -> Vec<u64> { acknowledged.iter().map(|n| n.load(Ordering::Acquire)).collect() };
        let go_on = |rounds| {
            let upto: Vec<u64> = now().iter().map(|seq| seq + rounds).collect();
            let begun = std::time::Instant::now();
            while now().iter().zip(&upto).any(|(now, upto)| now < upto) {
                assert!(
                    begun.elapsed() < Duration::from_secs(60),
                    "the writers stand still"
                );
                std::thread::yield_now();
            }
        };
        for n in 0..SNAPSHOTS {
            go_on(ROUNDS);
            let before = now();
            let snapshot = store.snapshot().expect("is open");
            // One round more of each may have been under way.
            let after: Vec<u64> = now().iter().map(|seq| seq + 1).collect();
            go_on(ROUNDS);
            let to = copies.path().join(n.to_string());
            let findings = snapshot.copy(&to).expect("copies");
            assert_eq!(findings.damage, []);
            assert!(findings.records > 0);
            assert!(snapshot.copy(&to).is_err(), "never over a store");
            go_on(1);
            let copy = Embedded::open(&to).expect("opens");
            for (writer, (before, after)) in (0..WRITERS).zip(before.into_iter().zip(after)) {
                check(&copy, writer, before, after);
            }
        }
    });
}
