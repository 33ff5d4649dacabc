//! A disk that fails: what is not durable is not acknowledged, and what was refused is not there.

use super::sim::{Random, Sim};
use super::world::{small, streams, usage};
use super::{FOLDER, STORE, open};
use crate::StoreError;
use crate::contract::{realm, record, wait};
use crate::log::{AppendBatch, Delete, IndexEntry, LogStore, StreamId};
use crate::segments::disk::Disk;
use crate::segments::{Options, SegmentLog};
use std::path::Path;
use std::sync::atomic::Ordering;

#[test]
fn nothing_is_acknowledged_after_a_failed_sync_until_the_next_start() {
    let sim = Sim::new(1);
    SegmentLog::create(&sim, Path::new(FOLDER), &STORE).expect("creates");
    let stream = streams()[0];
    let append = |log: &SegmentLog, seq| {
        let batch = AppendBatch {
            appends: vec![record(stream, seq, 100)],
            usage: vec![(realm("ws:a"), seq)],
            ..AppendBatch::default()
        };
        wait(|done| log.append(batch, done))
    };
    let log = open(&sim, small()).expect("opens");
    append(&log, 1).expect("appends");
    sim.state().sync_fails = true;
    assert_eq!(append(&log, 2), Err(StoreError::Unknown));
    sim.state().sync_fails = false;
    assert!(log.has_failed() && log.ailment().is_some());
    assert_eq!(append(&log, 3), Err(StoreError::NotCommitted));
    let read = wait(|done| log.read(stream, 0, usize::MAX, usize::MAX, done)).expect("reads");
    assert_eq!(read.len(), 1, "what may not be durable is not shown");
    drop(log);
    for crashed in [sim.killed(), sim.crashed(&mut Random(3))] {
        let log = open(&crashed, small()).expect("opens");
        let found = usage(&log);
        assert!(found == 1 || found == 2);
        append(&log, found + 1).expect("appends");
        assert_eq!(log.ailment(), None);
    }
}

#[test]
fn a_full_disk_takes_nothing_and_heals() {
    let sim = Sim::new(1);
    SegmentLog::create(&sim, Path::new(FOLDER), &STORE).expect("creates");
    let options = Options {
        reserve_bytes: 1_000,
        ..small()
    };
    let stream = streams()[0];
    let append = |log: &SegmentLog, seq| {
        let batch = AppendBatch {
            appends: vec![record(stream, seq, 100)],
            usage: vec![(realm("ws:a"), seq)],
            ..AppendBatch::default()
        };
        wait(|done| log.append(batch, done))
    };
    // There is room for some batches, but not for a segment.
    sim.state().capacity = Some(5_000);
    let log = open(&sim, options).expect("opens");
    assert_eq!(log.ailment(), None);
    let mut seq = 1;
    while append(&log, seq) == Ok(()) {
        seq += 1;
    }
    assert!(seq > 5, "{seq}");
    assert!(log.ailment().is_some() && !log.has_failed());
    // Readiness alone finds out that writes work again: nobody sends to a relay that is not ready.
    sim.state().capacity = Some(100_000);
    while log.ailment().is_some() {
        std::thread::yield_now();
    }
    for seq in seq..seq + 30 {
        append(&log, seq).expect("appends");
    }
    assert_eq!(usage(&log), seq + 29);
    // Less than what is kept free, at some moment: the keeper gives some back meanwhile.
    let mut next = seq + 30;
    loop {
        sim.state().capacity = Some(100_000);
        let used = 100_000 - sim.free_bytes(Path::new(FOLDER)).expect("limited");
        sim.state().capacity = Some(used + 999);
        if append(&log, next) == Err(StoreError::NotCommitted) {
            break;
        }
        next += 1;
    }
    assert!(!log.has_failed());
    sim.state().capacity = None;
    append(&log, next).expect("appends");
    assert_eq!(log.ailment(), None);
}

fn deleting(stream: StreamId, entries: &[IndexEntry]) -> AppendBatch {
    AppendBatch {
        deletes: vec![Delete {
            stream,
            entries: entries.to_vec(),
        }],
        usage: vec![(realm("ws:a"), 7)],
        ..AppendBatch::default()
    }
}

fn adding(stream: StreamId, seq: u64) -> AppendBatch {
    AppendBatch {
        appends: vec![record(stream, seq, 400)],
        usage: vec![(realm("ws:a"), seq)],
        ..AppendBatch::default()
    }
}

/// What makes room again has room of its own; a batch that also brings records has not.
#[test]
fn half_of_what_is_kept_free_is_for_deletions() {
    let sim = Sim::new(1);
    SegmentLog::create(&sim, Path::new(FOLDER), &STORE).expect("creates");
    let reserve_bytes = 16_000;
    let options = Options {
        reserve_bytes,
        ..small()
    };
    let log = open(&sim, options).expect("opens");
    // Nothing changes by itself what is free.
    log.core.chores_closed.store(true, Ordering::Release);
    let (stream, commit) = (streams()[0], |batch| wait(|done| log.append(batch, done)));
    for seq in 1..=5 {
        commit(adding(stream, seq)).expect("appends");
    }
    let leave = |bytes: u64| {
        sim.state().capacity = Some(1 << 30);
        let used = (1 << 30) - sim.free_bytes(Path::new(FOLDER)).expect("limited");
        sim.state().capacity = Some(used + bytes);
    };
    let index = wait(|done| log.index(stream, done)).expect("an index");
    leave(reserve_bytes - 1);
    assert_eq!(commit(adding(stream, 6)), Err(StoreError::NotCommitted));
    let mixed = AppendBatch {
        deletes: deleting(stream, &index[..1]).deletes,
        ..adding(stream, 6)
    };
    assert_eq!(commit(mixed), Err(StoreError::NotCommitted));
    let unchanged = wait(|done| log.index(stream, done)).expect("an index");
    assert_eq!(unchanged, index);
    commit(deleting(stream, &index[..2])).expect("deletes");
    assert_eq!(usage(&log), 7);
    leave(reserve_bytes / 2 - 1);
    assert_eq!(
        commit(deleting(stream, &index[2..3])),
        Err(StoreError::NotCommitted)
    );
    leave(reserve_bytes);
    commit(adding(stream, 6)).expect("appends");
    let left = wait(|done| log.index(stream, done)).expect("an index");
    assert_eq!(left.iter().map(|e| e.seq).collect::<Vec<_>>(), [3, 4, 5, 6]);
}

#[test]
fn a_log_that_filled_its_disk_gets_room_by_deletions() {
    let sim = Sim::new(1);
    SegmentLog::create(&sim, Path::new(FOLDER), &STORE).expect("creates");
    let options = Options {
        // Much beside the indexes of six segments, as in a relay.
        reserve_bytes: 80_000,
        ..small()
    };
    sim.state().capacity = Some(140_000);
    let log = open(&sim, options).expect("opens");
    let (stream, commit) = (streams()[0], |batch| wait(|done| log.append(batch, done)));
    let mut seq = 1;
    while commit(adding(stream, seq)) == Ok(()) {
        seq += 1;
    }
    assert!(seq > 30, "{seq}");
    assert!(!log.has_failed());
    let index = wait(|done| log.index(stream, done)).expect("an index");
    let (newest, old) = index.split_last().expect("records");
    // The keeper may be at it.
    let patiently = |batch: &dyn Fn() -> AppendBatch| {
        while commit(batch()) == Err(StoreError::NotCommitted) {
            std::thread::yield_now();
        }
    };
    patiently(&|| deleting(stream, old));
    for seq in seq..seq + 10 {
        patiently(&|| adding(stream, seq));
    }
    let left = wait(|done| log.index(stream, done)).expect("an index");
    assert_eq!((left.len(), left[0].seq), (11, newest.seq));
}

/// What a failed write leaves is no commit, wherever the next one goes.
#[test]
fn a_failed_write_is_no_commit_and_no_damage() {
    let stream = streams()[0];
    for then in [10, 300, 8_000] {
        let sim = Sim::new(1);
        SegmentLog::create(&sim, Path::new(FOLDER), &STORE).expect("creates");
        let log = open(&sim, small()).expect("opens");
        let append = |seq, bytes| {
            let batch = AppendBatch {
                appends: vec![record(stream, seq, bytes)],
                ..AppendBatch::default()
            };
            wait(|done| log.append(batch, done))
        };
        // The keeper does nothing.
        log.core.chores_closed.store(true, Ordering::Release);
        append(1, 100).expect("appends");
        sim.state().write_fails = true;
        assert_eq!(append(2, 4_000), Err(StoreError::NotCommitted));
        // The last fits into no segment that is there.
        append(3, then).expect("appends");
        for after in [sim.killed(), sim.crashed(&mut Random(then as u64))] {
            let log = open(&after, small()).unwrap_or_else(|e| panic!("{then}: {e}"));
            let read = wait(|done| log.read(stream, 0, usize::MAX, usize::MAX, done)).expect("reads");
            assert_eq!(read.iter().map(|r| r.seq).collect::<Vec<_>>(), [1, 3], "{then}");
        }
    }
}
