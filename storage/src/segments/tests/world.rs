//! Lives of a log on the simulated disk, and what it should hold after each.

use super::sabotage::Sabotage;
use super::sim::{Random, Sim, Work};
use super::{FOLDER, STORE, open};
use crate::contract::{realm, record, stream, wait};
use crate::log::{Append, AppendBatch, Delete, IndexEntry, StreamId, StreamKind};
use crate::segments::compact::candidates;
use crate::segments::verify::verify;
use crate::segments::{Options, SegmentLog, list};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long anything that has to come may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Commits under way at once.
const WINDOW: usize = 3;

pub(super) fn streams() -> Vec<StreamId> {
    let envelopes = (0..4).map(|group| stream(StreamKind::Envelopes, group));
    envelopes.chain([stream(StreamKind::Handshakes, 0)]).collect()
}

pub(super) fn small() -> Options {
    Options {
        segment_bytes: 6_000,
        reserve_bytes: 0,
        writers: 1,
    }
}

/// What the log should hold after the first so many batches.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Model {
    pub(super) batches: u64,
    pub(super) streams: BTreeMap<StreamId, BTreeMap<u64, usize>>,
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
pub(super) fn check(log: &SegmentLog, model: &Model, what: &str) {
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
pub(super) fn run(log: &SegmentLog, sim: &Sim, begin: Model, random: &mut Random) -> Vec<Model> {
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

pub(super) fn usage(log: &SegmentLog) -> u64 {
    wait(|done| log.usage(realm("ws:a"), done)).expect("reads")
}

/// `CRASHES` of them, of one seed each, or of the one that `DROVER_SEED` names.
pub(super) fn seeds(crashes: u64) -> std::ops::Range<u64> {
    match std::env::var("DROVER_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
    {
        Some(seed) => seed..seed + 1,
        None => 0..crashes,
    }
}

/// Waits until there is nothing more to be done, or the disk died.
pub(super) fn settle(log: &SegmentLog, sim: &Sim) {
    let is_done = || log.core.view.read().hot.len() <= 1 && candidates(&log.core).is_empty();
    let begun = Instant::now();
    while !sim.is_dead() && !is_done() {
        assert!(
            begun.elapsed() < PATIENCE,
            "what is to be sealed or rewritten is not"
        );
        std::thread::yield_now();
    }
}

/// The states the log may be in, those that are as this one or newer.
pub(super) fn found<'a>(log: &SegmentLog, states: &'a [Model], what: &str) -> &'a [Model] {
    let batches = usage(log);
    let at = states.iter().position(|state| state.batches == batches);
    let states = &states[at.unwrap_or_else(|| panic!("{what}: {batches} batches"))..];
    check(log, &states[0], what);
    states
}

/// What became of a few lives.
#[derive(Default)]
pub(super) struct Tally {
    /// What was under way when the machine or the process died, and how often.
    pub(super) deaths: BTreeMap<Work, u64>,
    /// Segments there are in the end that a compaction made.
    pub(super) rewritten: usize,
}

/// Opens what a crash left. Verification, which looks before, finds nothing to complain of and changes nothing.
pub(super) fn open_intact(sim: &Sim, what: &str) -> SegmentLog {
    if sim.state().sabotage.is_none() {
        let before = sim.contents();
        let found = verify(Arc::new(sim.clone()), Path::new(FOLDER), sim, &STORE);
        assert_eq!(found.damage, [], "{what}");
        assert!(sim.contents() == before, "{what}: verification changed something");
    }
    open(sim, small()).unwrap_or_else(|e| panic!("{what}: {e}"))
}

/// A log that dies again and again: under load, and while it does what nobody waits for. Panics where anything that was
/// acknowledged is lost, or anything is there in part.
pub(super) fn lives(seed: u64, sabotage: Option<Sabotage>, tally: &mut Tally) {
    const LIVES: u64 = 5;
    let mut random = Random(seed);
    let mut sim = Sim::new(seed);
    sim.state().sabotage = sabotage;
    SegmentLog::create(&sim, Path::new(FOLDER), &STORE).expect("creates");
    let mut model = Model::default();
    for life in 0..LIVES {
        let what = format!("seed {seed} life {life}");
        let mut die = |sim: &Sim, random: &mut Random| {
            let work = sim.state().work;
            // One that had nothing left to do is no death.
            if sim.state().left.replace(0) == Some(0) {
                *tally.deaths.entry(work).or_default() += 1;
            }
            // Either the machine or the process.
            match random.below(3) {
                0 => sim.killed(),
                _ => sim.crashed(random),
            }
        };
        let log = open_intact(&sim, &what);
        assert_eq!(usage(&log), model.batches, "{what}");
        sim.state().left = Some(random.below(400));
        let states = run(&log, &sim, model, &mut random);
        drop(log);
        sim = die(&sim, &mut random);
        {
            let log = open_intact(&sim, &what);
            model = found(&log, &states, &what)[0].clone();
        }
        sim.state().left = Some(random.below(60));
        if let Ok(log) = open(&sim, small()) {
            settle(&log, &sim);
        }
        sim = die(&sim, &mut random);
    }
    let log = open_intact(&sim, &format!("seed {seed}"));
    check(&log, &model, &format!("seed {seed} in the end"));
    let listed = list::load(&sim).expect("reads");
    tally.rewritten += listed
        .segments
        .iter()
        .filter(|(_, state)| state.is_rewritten())
        .count();
}
