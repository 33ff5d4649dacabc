//! Crashes: of whatever runs, sealing, compaction, migration and starting included, nothing that was acknowledged is lost,
//! and nothing is there in part.

use super::sim::{Random, Sim, Work};
use super::world::{
    Model, Tally, check, found, lives, open_intact, run, seeds, settle, small, streams, usage,
};
use super::{FOLDER, STORE, open};
use crate::RealmId;
use crate::contract::{realm, record};
use crate::log::Append;
use crate::segments::import::{Origin, Records, import};
use crate::segments::{Options, SegmentLog};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[test]
fn a_thousand_crashes_while_sealing_and_compacting_lose_nothing() {
    let mut tally = Tally::default();
    for seed in seeds(400) {
        lives(seed, None, &mut tally);
    }
    println!(
        "crashes of a log in use, by what was under way: {:?}",
        tally.deaths
    );
    assert!(tally.rewritten > 0, "nothing was ever compacted");
    let of = |work| tally.deaths.get(&work).copied().unwrap_or_default();
    let of_keeper = of(Work::Sealing) + of(Work::Rewriting) + of(Work::Listing);
    assert!(
        std::env::var("DROVER_SEED").is_ok() || of_keeper >= 1_000,
        "{of_keeper}"
    );
}

/// Whatever a start does, and at whichever step of it the machine or the process dies: the next ones open with all that
/// was acknowledged, though nothing is written between them.
#[test]
fn a_start_may_die_at_any_step() {
    const LIVES: u64 = 5;
    let mut starts = 0;
    for seed in seeds(10) {
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
                let log = open_intact(&sim, &what);
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
    println!("crashes of starts: {starts} starts after one that died");
    assert!(
        std::env::var("DROVER_SEED").is_ok() || starts > 300,
        "{starts}: starts have few steps"
    );
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
    let mut all = 0;
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
            all += 1;
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
    println!("crashes of migrations: {all}");
    assert!(std::env::var("DROVER_SEED").is_ok() || all > 200, "{all}");
}
