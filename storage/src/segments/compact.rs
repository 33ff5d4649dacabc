//! Getting room back: segments whose records are mostly deleted, and those that hold little, are rewritten as fewer ones,
//! live records clustered by group and in order.
//!
//! Nobody waits for this, and nobody is held up by it: it reads and writes files nobody else knows, in small steps with
//! pauses between them. The switch from the old segments to the new is one control commit; until then the old ones are
//! the truth, afterwards the new ones are. Readers that are at it keep the old files until they are done.

use super::find::{Finder, Route, Source, Stream};
use super::index::Row;
use super::keeper;
use super::list::{Change, State};
use super::ranges::Ranges;
use super::rewrite::{Finished, Rewriter};
use super::view::Sealed;
use super::{Core, Purpose};
use crate::StoreError;
use crate::log::{Append, StreamId, StreamKind};
use drover_wire::id::GroupId;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of records that are read and written in one step.
const STEP_BYTES: usize = 256 * 1024;
/// A pause is this many times as long as the step before it.
const PAUSE_FACTOR: u32 = 3;
/// But no longer than this: a step that took long was waiting itself.
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// Segments that hold less than this part of a full one are put together, so many at least.
const SMALL_PART: u64 = 4;
const SMALL_COUNT: usize = 4;
/// Segments rewritten together.
const INPUTS_MAX: usize = 16;

/// Where a stream lies in the segments that are rewritten.
type Places = Vec<(Arc<Sealed>, Row)>;

/// Why a compaction ended early. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stopped {
    #[error("the log is being closed")]
    Closed,
    #[error("{0}")]
    Store(#[from] StoreError),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Segments that are worth rewriting, if there are any.
pub(super) fn candidates(core: &Core) -> Vec<Arc<Sealed>> {
    let sealed = core.view.read().sealed.clone();
    let full = core.options.segment_bytes;
    // Half of what lies above the room of deletions, for indexes are made as well; what holds nothing that lives takes no
    // room. Where the file system does not say, writing will tell.
    let free = core.files.disk.free_bytes(&core.files.folder);
    let usable = free.map_or(u64::MAX, |free| {
        free.saturating_sub(core.kept_free(Purpose::Deletions))
    });
    let mut room = (usable / 2).min(2 * full);
    let live = |segment: &Sealed| {
        let dead = segment.dead_bytes.load(Ordering::Relaxed);
        segment.summary.record_bytes.saturating_sub(dead)
    };
    let is_dead = |segment: &Sealed| {
        let live = live(segment);
        live < segment.summary.record_bytes && live * 2 <= segment.summary.record_bytes
    };
    let is_small = |segment: &Sealed| live(segment) * SMALL_PART < full;
    let (mut dead, small): (Vec<_>, Vec<_>) = sealed
        .iter()
        .filter(|segment| !segment.is_unfit.load(Ordering::Relaxed))
        .filter(|segment| is_dead(segment) || is_small(segment))
        .cloned()
        .partition(|segment| is_dead(segment));
    // What is deleted meanwhile must not change the order under way.
    dead.sort_by_cached_key(|segment| live(segment));
    let mut chosen = Vec::new();
    // Small ones come along where they save a file; alone only if there are several.
    let with_small = dead.len() + small.len() >= SMALL_COUNT;
    for segment in dead.into_iter().chain(small.into_iter().filter(|_| with_small)) {
        if chosen.len() < INPUTS_MAX && live(&segment) <= room {
            room -= live(&segment);
            chosen.push(segment);
        }
    }
    chosen
}

/// Counts what a deletion has made worthless in the segments that are sealed.
pub(super) fn count(finder: &Finder, stream: StreamId, ranges: &Ranges) -> Result<(), StoreError> {
    let route = finder.current_route(stream)?;
    for (sealed, row) in &route.rows {
        let overlaps = |(from, to): &(u64, u64)| *from <= row.last && row.first <= *to;
        if !ranges.as_slice().iter().any(overlaps) {
            continue;
        }
        let index = sealed.index()?;
        let entries = row.entries(&*index, 0, row.blocks())?;
        let dead = entries.iter().filter(|e| ranges.contains(e.seq));
        let bytes: u64 = dead.map(|e| u64::from(e.bytes)).sum();
        sealed.dead_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
    Ok(())
}

/// Counts all there is to count, after a start.
pub(super) fn count_all(core: &Arc<Core>) -> Result<(), Stopped> {
    let sealed = core.view.read().sealed.clone();
    for segment in sealed.iter().filter(|segment| segment.summary.deletions > 0) {
        let index = segment.index()?;
        for page in segment.summary.rows(&*index) {
            let began = Instant::now();
            for row in page?.iter().filter(|row| row.is_deletion()) {
                count(&core.finder, row.stream(), &row.ranges(&*index)?)?;
            }
            pause(core, began)?;
        }
    }
    Ok(())
}

/// Rewrites segments.
pub(super) fn compact(core: &Arc<Core>, inputs: &[Arc<Sealed>]) -> Result<(), Stopped> {
    let numbers: Vec<u64> = inputs.iter().map(|segment| segment.of.number).collect();
    let mut streams: BTreeMap<(GroupId, StreamKind), Places> = BTreeMap::new();
    for segment in inputs {
        let index = segment.index()?;
        for page in segment.summary.rows(&*index) {
            for row in page? {
                let stream = row.stream();
                let rows = streams.entry((stream.group, stream.kind)).or_default();
                rows.push((segment.clone(), row));
            }
        }
    }
    let (next_number, next_lsn) = (
        || core.next_number.fetch_add(1, Ordering::Relaxed),
        || core.next_lsn(),
    );
    let rest_after = |began| rest(core, began);
    let mut rewriter = Rewriter::new(
        &core.files,
        core.store,
        core.options.segment_bytes,
        &next_number,
        &next_lsn,
        Some(&rest_after),
    );
    let mut outputs = Vec::new();
    let mut run = || -> Result<(), Stopped> {
        for ((group, kind), rows) in &streams {
            let stream = StreamId {
                kind: *kind,
                group: *group,
            };
            let (deletions, entries): (Vec<_>, Vec<_>) = rows.iter().partition(|(_, row)| row.is_deletion());
            let route = core.finder.current_route(stream)?;
            copy(core, stream, &route, &entries, &mut rewriter, &mut outputs)?;
            keep_deletions(core, stream, &route, &deletions, &numbers, &mut rewriter)?;
        }
        outputs.extend(rewriter.finish()?);
        core.files.disk.sync_folder(&core.files.folder)?;
        Ok(())
    };
    if let Err(stopped) = run() {
        rewriter.abandon();
        for output in outputs {
            core.files.remove(output.sealed.of.number);
        }
        return Err(stopped);
    }
    let mut change = Change::default();
    numbers
        .iter()
        .for_each(|number| change.set(*number, State::Removed));
    for output in &outputs {
        change.set(output.sealed.of.number, output.state);
    }
    // Whether this happened is not known if it fails; then the next start knows, and both old and new files are there.
    change.commit(&*core.control)?;
    let outputs = outputs.into_iter().map(|output| Arc::new(output.sealed));
    core.view.write().switch(&numbers, outputs);
    core.finder.forget();
    inputs.iter().for_each(|segment| segment.remove());
    Ok(())
}

/// Copies what of a stream is not deleted.
fn copy(
    core: &Arc<Core>,
    stream: StreamId,
    route: &Route,
    rows: &[&(Arc<Sealed>, Row)],
    rewriter: &mut Rewriter<'_>,
    outputs: &mut Vec<Finished>,
) -> Result<(), Stopped> {
    let mut sources = Vec::with_capacity(rows.len());
    for (sealed, row) in rows {
        sources.push(Source::cold(sealed, *row)?);
    }
    let mut records = Stream {
        sources,
        deleted: core.finder.deleted(stream, route),
    };
    loop {
        let began = Instant::now();
        let (mut found, mut bytes) = (Vec::new(), 0);
        while bytes < STEP_BYTES
            && let Some(place) = records.next()?
        {
            bytes += place.1.bytes as usize;
            found.push(place);
        }
        if found.is_empty() {
            return Ok(());
        }
        for (record, (_, entry)) in records.fetch(&found)?.into_iter().zip(&found) {
            let append = Append {
                stream,
                seq: record.seq,
                id: entry.id,
                bytes: record.bytes,
                budget_bytes: entry.budget_bytes,
            };
            outputs.extend(rewriter.add(append)?);
        }
        if bytes >= STEP_BYTES {
            pause(core, began)?;
        }
    }
}

/// Keeps the deletions that other segments still need.
fn keep_deletions(
    core: &Core,
    stream: StreamId,
    route: &Route,
    rows: &[&(Arc<Sealed>, Row)],
    inputs: &[u64],
    rewriter: &mut Rewriter<'_>,
) -> Result<(), Stopped> {
    let mut needed = Ranges::default();
    for (sealed, row) in rows {
        for (from, to) in row.ranges(&*sealed.index()?)?.as_slice() {
            if core.finder.has_elsewhere(stream, route, (*from, *to), inputs)? {
                needed.add(*from, *to);
            }
        }
    }
    if !needed.is_empty() {
        rewriter.delete(stream, needed);
    }
    Ok(())
}

/// Lets others go first, and does what they are waiting for.
fn pause(core: &Arc<Core>, began: Instant) -> Result<(), Stopped> {
    rest(core, began);
    match core.chores_closed() {
        true => Err(Stopped::Closed),
        false => Ok(()),
    }
}

fn rest(core: &Arc<Core>, began: Instant) {
    let pause = (began.elapsed() * PAUSE_FACTOR).min(PAUSE_MAX);
    keeper::urgent(core);
    if !core.chores_closed() {
        thread::sleep(pause);
    }
}
