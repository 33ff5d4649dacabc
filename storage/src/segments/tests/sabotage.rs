//! Saboteurs: layers under the log, each of which takes one of its guarantees away. A check that does not find them is
//! worth nothing.

use super::STORE;
use super::sim::Sim;
use super::world::{Tally, lives};
use crate::control::ControlBatch;
use crate::log::{Append, AppendBatch};
use crate::segments::format::{Commit, Encoder, Kind, SEGMENT_HEAD, SegmentHead};
use crate::segments::index::{self, Held, Of};
use crate::segments::recover::{number_of, scan};
use bytes::Bytes;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// What is done to the log.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sabotage {
    /// What is intact of a torn commit is made one.
    TornTailServed,
    /// The list of segments says that a compaction's switch was made, and forgets it.
    LostSegmentSwitch,
    /// A segment gets an index that was made before the last commit in it, and says otherwise.
    IndexOlderThanSegment,
}

impl Sabotage {
    /// Whether a change of the list of segments is kept: those that put segments in place of others are not.
    pub(super) fn keeps(self, batch: &ControlBatch) -> bool {
        let removed = |value: &Bytes| value[..] == [0];
        let is_switch = batch
            .writes
            .iter()
            .any(|write| write.value.as_ref().is_some_and(removed));
        !(matches!(self, Self::LostSegmentSwitch) && is_switch)
    }

    /// A file is about to be opened.
    pub(super) fn before_open(self, sim: &Sim, path: &Path) {
        if !matches!(self, Self::TornTailServed) || path.extension().is_none_or(|e| e != "seg") {
            return;
        }
        let mut bytes = sim.read(path);
        let Some(head) = SegmentHead::decode(&bytes).filter(|head| head.kind == Kind::Written) else {
            return;
        };
        let end = scan(&bytes, head.salt).end;
        let Some((commit, _)) = Commit::parse_any(&bytes, end, head.salt) else {
            return;
        };
        let (mut batch, mut entries) = (AppendBatch::default(), commit.contents.entries.iter());
        for (stream, count) in &commit.contents.runs {
            batch
                .appends
                .extend(entries.by_ref().take(*count).map(|entry| Append {
                    stream: *stream,
                    seq: entry.seq,
                    id: entry.id,
                    bytes: Bytes::copy_from_slice(&bytes[entry.offset as usize..][..entry.bytes as usize]),
                    budget_bytes: entry.budget_bytes,
                }));
        }
        batch.usage = commit.contents.usage;
        let mut encoder = Encoder::default();
        let (deletes, lsn) = (commit.contents.deletes, commit.contents.lsn);
        let previous = commit.contents.previous;
        encoder.encode(&[&batch], deletes, head.salt, previous, lsn, end as u64);
        bytes.truncate(end);
        bytes.extend_from_slice(&encoder.bytes);
        sim.put(path, &bytes);
    }

    /// A file is about to get another name.
    pub(super) fn before_rename(self, sim: &Sim, from: &Path, to: &Path) {
        let Some(number) = number_of(to).filter(|_| to.extension().is_some_and(|e| e == "idx")) else {
            return;
        };
        let segment = sim.read(&to.with_extension("seg"));
        let Some(head) = SegmentHead::decode(&segment) else {
            return;
        };
        let whole = scan(&segment, head.salt);
        let Some((_, last)) = whole
            .commits
            .last()
            .filter(|_| matches!(self, Self::IndexOlderThanSegment))
        else {
            return;
        };
        let held: Held = scan(&segment[..(*last).max(SEGMENT_HEAD)], head.salt).held;
        let of = Of {
            store: STORE,
            number,
            salt: head.salt,
            length: whole.end as u64,
        };
        sim.put(from, &index::encode(&held, &of));
    }
}

#[test]
fn every_saboteur_is_found() {
    const SEEDS: u64 = 200;
    for sabotage in [
        Sabotage::TornTailServed,
        Sabotage::LostSegmentSwitch,
        Sabotage::IndexOlderThanSegment,
    ] {
        let found = (0..SEEDS).find_map(|seed| {
            let result = catch_unwind(AssertUnwindSafe(|| {
                lives(seed, Some(sabotage), &mut Tally::default());
            }));
            Some((seed, result.err()?))
        });
        let Some((seed, said)) = found else {
            panic!("{sabotage:?} was not found in {SEEDS} seeds");
        };
        let said = said.downcast::<String>().expect("what the check said");
        let said = said.lines().next().unwrap_or_default();
        println!("saboteur: {sabotage:?}: found with seed {seed}: {said}");
    }
}
