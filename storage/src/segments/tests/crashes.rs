//! Random crashes: of whatever runs, sealing and compaction included, nothing that was acknowledged is lost, and nothing
//! is there in part.

use super::sim::{Random, Sim};
use super::{FOLDER, STORE, open};
use crate::contract::{realm, record, stream, wait};
use crate::control::ControlStore;
use crate::log::{Append, AppendBatch, Delete, IndexEntry, LogStore, StreamId, StreamKind};
use crate::segments::compact::candidates;
use crate::segments::disk::Disk;
use crate::segments::import::{Origin, Records, import};
use crate::segments::{Options, SegmentLog};
use crate::{RealmId, StoreError};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

/// Commits under way at once.
const WINDOW: usize = 3;

fn streams() -> Vec<StreamId> {
    let envelopes = (0..4).map(|group| stream(StreamKind::Envelopes, group));
    envelopes.chain([stream(StreamKind::Handshakes, 0)]).collect()
}

fn small() -> Options {
    Options {
        segment_bytes: 6_000,
        reserve_bytes: 0,
        writers: 1,
    }
}

/// What the log should hold after the first so many batches.
#[derive(Clone, Default, PartialEq)]
struct Model {
    batches: u64,
    streams: BTreeMap<StreamId, BTreeMap<u64, usize>>,
    next: BTreeMap<StreamId, u64>,
}

impl Model {
    fn apply(&mut self, batch: &AppendBatch) {
        self.batches += 1;
        for append in &batch.appends {
            let records = self.streams.entry(append.stream).or_default();
            records.insert(append.seq, append.bytes.len());
        }
        for delete in &batch.deletes {
            let records = self.streams.entry(delete.stream).or_default();
            delete.entries.iter().for_each(|e| {
                records.remove(&e.seq);
            });
        }
    }

    /// The next batch, after `durable` of them: what is deleted must be durable already.
    fn next_batch(&mut self, durable: &Self, random: &mut Random) -> AppendBatch {
        let mut batch = AppendBatch {
            usage: vec![(realm("ws:a"), self.batches + 1)],
            ..AppendBatch::default()
        };
        for stream in streams() {
            if random.below(2) == 0 {
                continue;
            }
            let next = self.next.entry(stream).or_insert(1);
            for _ in 0..=random.below(3) {
                batch
                    .appends
                    .push(record(stream, *next, random.below(700) as usize));
                *next += 1 + random.below(5) / 4;
            }
        }
        if random.below(3) == 0 {
            let stream = streams()[random.below(5) as usize];
            let held = durable.streams.get(&stream).into_iter().flatten();
            let newest = held.clone().map(|(seq, _)| *seq).max();
            let entries: Vec<_> = held
                .filter(|(seq, _)| Some(**seq) != newest && random.below(8) != 0)
                .map(|(seq, length)| IndexEntry {
                    seq: *seq,
                    id: record(stream, *seq, 1).id,
                    bytes: *length as u32,
                    budget_bytes: 0,
                })
                .collect();
            if !entries.is_empty() {
                batch.deletes.push(Delete { stream, entries });
            }
        }
        batch
    }
}

/// Whether the log holds exactly this.
fn check(log: &SegmentLog, model: &Model, what: &str) {
    for stream in streams() {
        let expected: Vec<_> = model
            .streams
            .get(&stream)
            .into_iter()
            .flatten()
            .map(|(seq, length)| record(stream, *seq, *length))
            .collect();
        let records = wait(|done| log.read(stream, 0, usize::MAX, usize::MAX, done)).expect(what);
        let found: Vec<_> = records.iter().map(|r| r.seq).collect();
        assert_eq!(
            found,
            expected.iter().map(|a| a.seq).collect::<Vec<_>>(),
            "{what}: {stream:?}"
        );
        assert!(
            records.iter().zip(&expected).all(|(r, a)| r.bytes == a.bytes),
            "{what}"
        );
        let index = wait(|done| log.index(stream, done)).expect(what);
        let found: Vec<_> = index
            .iter()
            .map(|e| (e.seq, e.id, e.bytes, e.budget_bytes))
            .collect();
        let entry = |a: &Append| (a.seq, a.id, a.bytes.len() as u32, a.budget_bytes);
        assert_eq!(found, expected.iter().map(entry).collect::<Vec<_>>(), "{what}");
        let asked: Vec<u64> = expected.iter().map(|a| a.seq).rev().step_by(3).collect();
        let some = wait(|done| log.read_seqs(stream, asked.clone(), usize::MAX, done)).expect(what);
        assert_eq!(some.iter().map(|r| r.seq).collect::<Vec<_>>(), asked, "{what}");
    }
}

/// Runs until the disk dies. Answers the states the log may be in afterwards, by number of batches.
fn run(log: &SegmentLog, sim: &Sim, begin: Model, random: &mut Random) -> Vec<Model> {
    let (mut states, mut durable) = (vec![begin.clone()], 0);
    let (sender, answers) = mpsc::channel();
    let mut submitted = begin;
    let mut under_way = 0;
    while !sim.is_dead() {
        while under_way < WINDOW {
            let batch = submitted.next_batch(&states[durable], random);
            submitted.apply(&batch);
            states.push(submitted.clone());
            let sender = sender.clone();
            log.append(batch, Box::new(move |result| sender.send(result).expect("heard")));
            under_way += 1;
        }
        under_way -= 1;
        match answers.recv().expect("answered") {
            Ok(()) => durable += 1,
            Err(_) => break,
        }
    }
    // The rest are answered too.
    for _ in 0..under_way {
        if answers.recv().expect("answered").is_ok() {
            durable += 1;
        }
    }
    states.drain(..durable);
    states
}

fn usage(log: &SegmentLog) -> u64 {
    wait(|done| log.usage(realm("ws:a"), done)).expect("reads")
}

/// `CRASHES` of them, of one seed each, or of the one that `DROVER_SEED` names.
fn seeds(crashes: u64) -> std::ops::Range<u64> {
    match std::env::var("DROVER_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
    {
        Some(seed) => seed..seed + 1,
        None => 0..crashes,
    }
}

#[test]
fn a_thousand_crashes_lose_nothing_acknowledged() {
    const ROUNDS: u64 = 5;
    let mut compacted = 0;
    for seed in seeds(200) {
        let mut random = Random(seed);
        let mut sim = Sim::new(seed);
        SegmentLog::create(&sim, Path::new(FOLDER), &STORE).expect("creates");
        let mut model = Model::default();
        for round in 0..ROUNDS {
            let what = format!("seed {seed} round {round}");
            {
                let log = open(&sim, small()).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(usage(&log), model.batches, "{what}");
                sim.state().left = Some(random.below(400));
                let states = run(&log, &sim, model, &mut random);
                drop(log);
                // Either the machine died or the process did.
                sim = match random.below(3) {
                    0 => sim.killed(),
                    _ => sim.crashed(&mut random),
                };
                let log = open(&sim, small()).unwrap_or_else(|e| panic!("{what}: {e}"));
                let batches = usage(&log);
                let found = states.into_iter().find(|state| state.batches == batches);
                model = found.unwrap_or_else(|| panic!("{what}: {batches} batches"));
                check(&log, &model, &what);
            }
            // The keeper may have died at any point of what it does by itself.
            if random.below(2) == 0 {
                sim.state().left = Some(random.below(60));
                drop(open(&sim, small()));
                sim.state().left = Some(0);
                sim = sim.crashed(&mut random);
            }
        }
        let listed = crate::segments::list::load(&sim).expect("reads");
        compacted += listed
            .segments
            .iter()
            .filter(|(_, state)| state.is_rewritten())
            .count();
    }
    assert!(compacted > 0, "nothing was ever compacted");
}

/// Waits until there is nothing more to be done, or the disk died.
fn settle(log: &SegmentLog, sim: &Sim) {
    let is_done = || log.core.view.read().hot.len() <= 1 && candidates(&log.core).is_empty();
    while !sim.is_dead() && !is_done() {
        std::thread::yield_now();
    }
}

/// The states the log may be in, those that are as this one or newer.
fn found<'a>(log: &SegmentLog, states: &'a [Model], what: &str) -> &'a [Model] {
    let batches = usage(log);
    let at = states.iter().position(|state| state.batches == batches);
    let states = &states[at.unwrap_or_else(|| panic!("{what}: {batches} batches"))..];
    check(log, &states[0], what);
    states
}

/// Whatever a start does, and at whichever step of it the machine or the process dies: the next ones open with all that
/// was acknowledged, though nothing is written between them.
#[test]
fn a_start_may_die_at_any_step() {
    const LIVES: u64 = 5;
    let mut starts = 0;
    for seed in seeds(6) {
        let mut random = Random(seed);
        // A few lives that leave a short segment each, torn more often than not: enough for a compaction.
        let mut base = Sim::new(seed);
        SegmentLog::create(&base, Path::new(FOLDER), &STORE).expect("creates");
        let mut states = vec![Model::default()];
        for life in 0..LIVES {
            let log = open(&base, small()).expect("opens");
            log.core.chores_closed.store(true, Ordering::Release);
            let begin = found(&log, &states, &format!("seed {seed} life {life}"))[0].clone();
            base.state().left = Some(3 + random.below(8));
            states = run(&log, &base, begin, &mut random);
            drop(log);
            base = base.crashed(&mut random);
        }
        for step in 0.. {
            let mut sim = base.killed();
            sim.state().left = Some(step);
            if let Ok(log) = open(&sim, small()) {
                settle(&log, &sim);
            }
            let died = sim.is_dead();
            sim = match random.below(2) {
                0 => sim.killed(),
                _ => sim.crashed(&mut random),
            };
            let mut states = &states[..];
            for start in 0..3 {
                let what = format!("seed {seed}, died at step {step}, start {start} after that");
                let log = open(&sim, small()).unwrap_or_else(|e| panic!("{what}: {e}"));
                states = &found(&log, states, &what)[..1];
                settle(&log, &sim);
                check(&log, &states[0], &what);
                starts += 1;
                // Killed, not closed.
                let next = sim.killed();
                drop(log);
                sim = next;
            }
            if !died {
                break;
            }
        }
    }
    println!("{starts} starts after one that died");
    assert!(starts > 300, "{starts}: starts have few steps");
}

/// Another store's records: what the model holds.
struct Others {
    records: Vec<Append>,
}

impl Origin for Others {
    fn records(&self, cursor: Option<&[u8]>) -> Records<'_> {
        let from = match cursor {
            None => 0,
            Some(cursor) if cursor.len() == 8 => {
                u64::from_be_bytes(cursor.try_into().expect("eight")) as usize + 1
            }
            Some(_) => self.records.len(),
        };
        let records = self.records.iter().enumerate().skip(from);
        Box::new(records.map(|(n, append)| Ok((append.clone(), (n as u64).to_be_bytes().to_vec()))))
    }

    fn usage(&self) -> Result<Vec<(RealmId, u64)>, crate::embedded::OpenError> {
        Ok(vec![(realm("ws:a"), self.records.len() as u64)])
    }
}

#[test]
fn a_migration_may_be_interrupted_anywhere() {
    for seed in seeds(60) {
        let mut random = Random(seed);
        let mut records = Vec::new();
        let mut model = Model::default();
        for stream in streams() {
            // Long enough for several commits.
            for seq in 1..=120 {
                let append = record(stream, seq, random.below(40_000) as usize);
                model
                    .streams
                    .entry(stream)
                    .or_default()
                    .insert(seq, append.bytes.len());
                records.push(append);
            }
        }
        let origin = Others { records };
        let mut sim = Sim::new(seed);
        SegmentLog::create(&sim, Path::new(FOLDER), &STORE).expect("creates");
        let options = Options {
            segment_bytes: 1_000_000,
            ..small()
        };
        let mut crashes = 0;
        loop {
            // Each attempt gets further than the last, at least on average.
            sim.state().left = Some(5 + random.below(20 + 10 * crashes));
            let disk = Arc::new(sim.clone());
            let folder = Path::new(FOLDER);
            let done = import(disk, folder, STORE, &sim, options.segment_bytes, &origin, |_| {});
            sim.state().left = Some(0);
            sim = sim.crashed(&mut random);
            if done.is_ok() {
                break;
            }
            crashes += 1;
        }
        // What is complete is not begun again.
        let disk = Arc::new(sim.clone());
        import(
            disk,
            Path::new(FOLDER),
            STORE,
            &sim,
            options.segment_bytes,
            &origin,
            |_| {},
        )
        .expect("is complete");
        let log = open(&sim, options).expect("opens");
        check(&log, &model, &format!("seed {seed} after {crashes} crashes"));
        assert_eq!(usage(&log), origin.records.len() as u64);
    }
}

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
    // Less than what is kept free.
    let used = 100_000 - sim.free_bytes(Path::new(FOLDER)).expect("limited");
    sim.state().capacity = Some(used + 999);
    assert_eq!(append(&log, seq + 30), Err(StoreError::NotCommitted));
    assert!(log.ailment().is_some() && !log.has_failed());
    sim.state().capacity = None;
    append(&log, seq + 30).expect("appends");
    assert_eq!(log.ailment(), None);
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
        append(1, 100).expect("appends");
        sim.state().write_fails = true;
        assert_eq!(append(2, 4_000), Err(StoreError::NotCommitted));
        // The last fits into no segment that is there. The keeper does nothing more.
        log.core.chores_closed.store(true, Ordering::Release);
        append(3, then).expect("appends");
        for after in [sim.killed(), sim.crashed(&mut Random(then as u64))] {
            let log = open(&after, small()).unwrap_or_else(|e| panic!("{then}: {e}"));
            let read = wait(|done| log.read(stream, 0, usize::MAX, usize::MAX, done)).expect("reads");
            assert_eq!(read.iter().map(|r| r.seq).collect::<Vec<_>>(), [1, 3], "{then}");
        }
    }
}

/// The control store of the simulation is one.
const _: fn(&Sim) -> &dyn ControlStore = |sim| sim;
