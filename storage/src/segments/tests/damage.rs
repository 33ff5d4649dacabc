//! Damage: every byte of a segment, flipped, is noticed.

use super::sim::Sim;
use super::{FOLDER, STORE, open};
use crate::StoreError;
use crate::contract::{realm, record, stream, wait};
use crate::embedded::{Findings, OpenError};
use crate::log::{Append, AppendBatch, Delete, StreamId, StreamKind};
use crate::segments::import::Origin;
use crate::segments::salvage::Salvage;
use crate::segments::verify;
use crate::segments::{Options, SegmentLog};
use bytes::Bytes;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn streams() -> [StreamId; 2] {
    [
        stream(StreamKind::Envelopes, 1),
        stream(StreamKind::Handshakes, 2),
    ]
}

fn options() -> Options {
    Options {
        segment_bytes: 2_500,
        reserve_bytes: 0,
        writers: 1,
    }
}

fn fill(log: &SegmentLog, batches: std::ops::Range<u64>) {
    for n in batches {
        let [one, two] = streams();
        let index = wait(|done| log.index(one, done)).expect("reads");
        let deletes = match n % 4 {
            3 => vec![Delete {
                stream: one,
                entries: index[1..2].to_vec(),
            }],
            _ => Vec::new(),
        };
        let batch = AppendBatch {
            appends: vec![record(one, n + 1, 90), record(two, n, 50)],
            deletes,
            usage: vec![(realm("ws:a"), n)],
        };
        wait(|done| log.append(batch, done)).expect("appends");
    }
}

/// Everything in the log, or what reading it met.
fn everything(log: &SegmentLog) -> Result<String, StoreError> {
    let mut text = String::new();
    for stream in streams() {
        let index = wait(|done| log.index(stream, done))?;
        let records = wait(|done| log.read(stream, 0, usize::MAX, usize::MAX, done))?;
        text += &format!("{index:?} {records:?}");
    }
    Ok(text + &format!("{}", wait(|done| log.usage(realm("ws:a"), done))?))
}

/// A log with a sealed segment and one that is being written.
fn filled() -> (Sim, String) {
    let sim = Sim::new(1);
    SegmentLog::create(&sim, Path::new(FOLDER), &STORE).expect("creates");
    let log = open(&sim, options()).expect("opens");
    fill(&log, 0..12);
    while sim.paths("idx").is_empty() {
        std::thread::yield_now();
    }
    let expected = everything(&log).expect("reads");
    drop(log);
    // A spare that was made too late to be taken back.
    for path in sim.paths("seg") {
        if sim.read(&path)[64..].iter().all(|b| *b == 0) {
            sim.remove_now(&path);
        }
    }
    (sim, expected)
}

fn verify(sim: &Sim) -> Findings {
    verify::verify(Arc::new(sim.clone()), Path::new(FOLDER), sim, &STORE)
}

/// A log that can't be opened: verification knows it, too.
fn refused(sim: &Sim) -> (PathBuf, String) {
    let damage = verify(sim).damage;
    match open(sim, options()) {
        Err(OpenError::Unusable { file, .. }) if damage.iter().all(|d| d.file != file) => {
            panic!("{} is not in {damage:?}", file.display())
        }
        Err(OpenError::Unusable { file, reason }) => (file, reason),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("opens"),
    }
}

/// What the next opening puts right in a log that is not damaged.
fn mended(sim: &Sim) -> Vec<PathBuf> {
    let found = verify(sim);
    assert_eq!(found.damage, []);
    found.mended.into_iter().map(|mended| mended.file).collect()
}

#[test]
fn a_missing_or_shortened_segment_is_refused() {
    let (sim, expected) = filled();
    for path in sim.paths("seg") {
        let bytes = sim.read(&path);
        let case = sim.killed();
        case.remove_now(&path);
        refused(&case);
        for cut in [0, 10, 64, bytes.len() / 2, bytes.len() - 1] {
            let case = sim.killed();
            case.put(&path, &bytes[..cut]);
            let (file, reason) = refused(&case);
            assert_eq!(file, path, "{reason}");
            assert!(reason.contains("drover repair"), "{reason}");
        }
    }
    // An index that is missing is made again, and so is one of an older state of its segment.
    let path = &sim.paths("idx")[0];
    let case = sim.killed();
    case.remove_now(path);
    assert_eq!(mended(&case), std::slice::from_ref(path));
    assert_eq!(
        everything(&open(&case, options()).expect("opens")),
        Ok(expected.clone())
    );
    assert_eq!(case.read(path), sim.read(path));
    let case = sim.killed();
    let mut old = sim.read(path);
    old[48] -= 8; // the length of the segment
    let crc = crc32c::crc32c(&old[..124]).to_le_bytes();
    old[124..128].copy_from_slice(&crc);
    case.put(path, &old);
    assert_eq!(mended(&case), std::slice::from_ref(path));
    assert_eq!(everything(&open(&case, options()).expect("opens")), Ok(expected));
    assert_eq!(case.read(path), sim.read(path));
}

#[test]
fn a_missing_segment_between_others_is_refused() {
    let sim = Sim::new(1);
    SegmentLog::create(&sim, Path::new(FOLDER), &STORE).expect("creates");
    let log = open(&sim, options()).expect("opens");
    // Nothing is sealed, and what is written is only in its segment.
    log.core
        .chores_closed
        .store(true, std::sync::atomic::Ordering::Release);
    fill(&log, 0..30);
    let written = sim.killed();
    drop(log);
    let segments = written.paths("seg");
    assert!(segments.len() > 3 && written.paths("idx").is_empty());
    for path in &segments {
        let case = written.killed();
        case.remove_now(path);
        let (_, reason) = refused(&case);
        assert!(reason.contains("commits are missing"), "{reason}");
        let found = verify(&case).damage;
        assert_eq!(found.len(), 1, "{found:?}");
    }
    open(&written, options()).expect("opens");
}

#[test]
fn what_is_intact_of_a_damaged_log_is_saved() {
    let (sim, _) = filled();
    let whole = Salvage::find(Arc::new(sim.clone()), Path::new(FOLDER), &sim, &STORE).expect("finds");
    assert_eq!(whole.lost, 0);
    for path in sim.paths("seg") {
        let bytes = sim.read(&path);
        for at in (0..bytes.len()).step_by(5) {
            let case = sim.killed();
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            case.put(&path, &damaged);
            let found =
                Salvage::find(Arc::new(case.clone()), Path::new(FOLDER), &case, &STORE).expect("finds");
            // An unsealed segment without its header can't be understood. A lost deletion brings its record back.
            assert!(found.records <= whole.records + 3, "byte {at}");
            assert!(at < 64 || found.lost == 1, "byte {at}: {}", found.lost);
            for record in found.records(None) {
                let (append, _) = record.expect("reads");
                let length = append.bytes.len();
                assert_eq!(append.bytes, record_of(&append, length));
            }
        }
    }
}

fn record_of(append: &Append, length: usize) -> Bytes {
    record(append.stream, append.seq, length).bytes
}

#[test]
fn every_flipped_byte_of_every_file_is_noticed() {
    let (sim, expected) = filled();
    let mut files = sim.paths("seg");
    assert!(files.len() >= 2 && sim.paths("idx").len() < files.len());
    files.extend(sim.paths("idx"));
    files.push(Path::new(FOLDER).join("SYNCED"));
    let (mut at_open, mut at_read, mut made_again) = (0, 0, 0);
    for path in files {
        let bytes = sim.read(&path);
        for at in 0..bytes.len() {
            let case = sim.killed();
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            case.put(&path, &damaged);
            let before = case.contents();
            match open(&case, options()) {
                Err(OpenError::Unusable { file, reason }) => {
                    at_open += 1;
                    let found = verify(&case).damage;
                    assert!(
                        found.iter().any(|d| d.file == path),
                        "{path:?} byte {at}: {found:?}"
                    );
                    assert_eq!(file, path, "{reason}");
                    assert!(
                        case.contents() == before,
                        "{path:?} byte {at}: something was changed"
                    );
                }
                Err(other) => panic!("{path:?} byte {at}: {other}"),
                Ok(log) => match everything(&log) {
                    Err(error) => {
                        assert_eq!(error, StoreError::Damaged, "{path:?} byte {at}");
                        at_read += 1;
                    }
                    // An index is made again from its segment.
                    Ok(found) => {
                        assert!(
                            found == expected,
                            "{path:?} byte {at} of {}: silently wrong",
                            bytes.len()
                        );
                        let found = verify(&case);
                        let is_index = path.extension().is_some_and(|e| e == "idx");
                        assert!(
                            is_index || !found.damage.is_empty(),
                            "{path:?} byte {at}: not noticed"
                        );
                        made_again += 1;
                    }
                },
            }
        }
    }
    println!(
        "noticed at opening {at_open}, at reading {at_read}, by verification or made again {made_again}"
    );
    assert!(at_open > 0 && at_read > 0);
}
