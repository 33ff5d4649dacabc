//! Finding and reading records, on the reader threads.
//!
//! A stream's records lie in any number of segments. Each read merges what those have, by number, and leaves out what
//! was deleted. What is found is then read in pieces as large as its neighbours allow; a record is a slice of its piece.

use super::disk::DiskFile;
use super::format::Entry;
use super::index::{Row, read_failed};
use super::ranges::Ranges;
use super::view::{Sealed, Shared, View};
use crate::StoreError;
use crate::log::{IndexEntry, Record, StreamId};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Records this far apart are read together: what lies between costs less than another read.
const GAP_BYTES: u64 = 16 * 1024;
/// Pieces grow no larger than this, so that one record that somebody holds on to keeps little else in memory.
const PIECE_BYTES: u64 = 256 * 1024;
/// Blocks read at once when a scan goes on.
const BLOCKS_AHEAD: usize = 4;
/// Rows that are remembered, of all streams together.
const ROUTE_ROWS_MAX: usize = 256 * 1024;

/// Where a stream lies in the sealed segments.
pub(super) struct Route {
    pub(super) rows: Vec<(Arc<Sealed>, Row)>,
    deleted: Ranges,
}

/// Routes of streams that were read lately. All are of one generation.
#[derive(Default)]
struct Routes {
    generation: u64,
    rows: usize,
    routes: HashMap<StreamId, Arc<Route>>,
}

/// What reads go through.
#[derive(Default)]
pub(super) struct Finder {
    view: Arc<Shared>,
    routes: Mutex<Routes>,
}

/// One place where a stream has records.
pub(super) enum Source {
    Hot {
        file: Arc<dyn DiskFile>,
        entries: Vec<Entry>,
        at: usize,
    },
    Cold {
        sealed: Arc<Sealed>,
        index: Arc<dyn DiskFile>,
        row: Row,
        /// What was read of it last.
        entries: Vec<Entry>,
        at: usize,
        /// The block after it.
        next_block: usize,
    },
}

impl Source {
    /// What a sealed segment has.
    pub(super) fn cold(sealed: &Arc<Sealed>, row: Row) -> Result<Self, StoreError> {
        Ok(Self::Cold {
            sealed: sealed.clone(),
            index: sealed.index()?,
            row,
            entries: Vec::new(),
            at: 0,
            next_block: 0,
        })
    }

    /// The next number, known without reading.
    fn next_seq(&self) -> Option<u64> {
        match self {
            Self::Hot { entries, at, .. } => entries.get(*at).map(|e| e.seq),
            Self::Cold {
                entries,
                at,
                next_block,
                row,
                ..
            } => match entries.get(*at) {
                Some(entry) => Some(entry.seq),
                None if *next_block == 0 => Some(row.first),
                // Not known, but something comes: it is read to be sure.
                None if *next_block < row.blocks() => entries.last().map(|e| e.seq.saturating_add(1)),
                None => None,
            },
        }
    }

    /// Moves on to the first record from `seq` on.
    fn seek(&mut self, seq: u64) -> Result<(), StoreError> {
        match self {
            Self::Hot { entries, at, .. } => {
                *at += entries[*at..].partition_point(|e: &Entry| e.seq < seq);
                Ok(())
            }
            Self::Cold {
                index,
                row,
                entries,
                at,
                next_block,
                ..
            } => {
                *at += entries[*at..].partition_point(|e| e.seq < seq);
                if *at < entries.len()
                    || *next_block >= row.blocks()
                    || (*next_block == 0 && seq <= row.first)
                {
                    return Ok(());
                }
                if seq > row.last {
                    (*at, *next_block) = (0, row.blocks());
                    entries.clear();
                    return Ok(());
                }
                // The last block that begins at or below `seq`.
                let (mut low, mut high) = (*next_block, row.blocks());
                while high - low > 1 {
                    let middle = low + (high - low) / 2;
                    let block = row.entries(&**index, middle, middle + 1)?;
                    match block.first() {
                        Some(first) if first.seq <= seq => low = middle,
                        _ => high = middle,
                    }
                }
                let to = (low + BLOCKS_AHEAD).min(row.blocks());
                *entries = row.entries(&**index, low, to)?;
                (*at, *next_block) = (entries.partition_point(|e| e.seq < seq), to);
                if *at == entries.len() {
                    // It lies between two blocks.
                    return self.fill();
                }
                Ok(())
            }
        }
    }

    /// Makes sure the next record, if there is one, is in memory.
    fn fill(&mut self) -> Result<(), StoreError> {
        if let Self::Cold {
            index,
            row,
            entries,
            at,
            next_block,
            ..
        } = self
            && *at >= entries.len()
            && *next_block < row.blocks()
        {
            let to = (*next_block + BLOCKS_AHEAD).min(row.blocks());
            *entries = row.entries(&**index, *next_block, to)?;
            (*at, *next_block) = (0, to);
        }
        Ok(())
    }

    fn peek(&self) -> Option<Entry> {
        match self {
            Self::Hot { entries, at, .. } | Self::Cold { entries, at, .. } => entries.get(*at).copied(),
        }
    }

    fn advance(&mut self) {
        match self {
            Self::Hot { at, .. } | Self::Cold { at, .. } => *at += 1,
        }
    }

    fn file(&self) -> Result<Arc<dyn DiskFile>, StoreError> {
        match self {
            Self::Hot { file, .. } => Ok(file.clone()),
            Self::Cold { sealed, .. } => sealed.segment(),
        }
    }
}

/// What of a stream is asked for.
#[derive(Clone, Copy)]
enum Wanted<'a> {
    /// So many records from this number on.
    From(u64, usize),
    /// These, ascending.
    Exactly(&'a [u64]),
}

/// A stream as it was at one moment.
pub(super) struct Stream {
    pub(super) sources: Vec<Source>,
    pub(super) deleted: Ranges,
}

impl Stream {
    fn seek(&mut self, seq: u64) -> Result<(), StoreError> {
        self.sources.iter_mut().try_for_each(|source| source.seek(seq))
    }

    /// The next record that was not deleted, and which source has it.
    pub(super) fn next(&mut self) -> Result<Option<(usize, Entry)>, StoreError> {
        loop {
            let nearest = self
                .sources
                .iter()
                .enumerate()
                .filter_map(|(n, source)| Some((source.next_seq()?, n)))
                .min();
            let Some((_, n)) = nearest else { return Ok(None) };
            let source = &mut self.sources[n];
            let known = source.peek();
            if known.is_none() {
                source.fill()?;
                continue;
            }
            source.advance();
            if let Some(entry) = known
                && !self.deleted.contains(entry.seq)
            {
                return Ok(Some((n, entry)));
            }
        }
    }

    /// Reads what was found, in the order given.
    pub(super) fn fetch(&self, found: &[(usize, Entry)]) -> Result<Vec<Record>, StoreError> {
        let mut order: Vec<usize> = (0..found.len()).collect();
        let is_sorted = found
            .windows(2)
            .all(|w| w[0].0 == w[1].0 && w[0].1.offset <= w[1].1.offset);
        if !is_sorted {
            order.sort_by_key(|at| (found[*at].0, found[*at].1.offset));
        }
        let mut records: Vec<Option<Record>> = vec![None; found.len()];
        let mut rest = &order[..];
        while let Some(first) = rest.first() {
            let (source, begin) = (found[*first].0, u64::from(found[*first].1.offset));
            let mut end = found[*first].1.end();
            let mut count = 1;
            for at in &rest[1..] {
                let (next_source, next) = &found[*at];
                if *next_source != source
                    || u64::from(next.offset) > end + GAP_BYTES
                    || next.end().max(end) - begin > PIECE_BYTES
                {
                    break;
                }
                end = end.max(next.end());
                count += 1;
            }
            let mut piece = vec![0; (end - begin) as usize];
            self.sources[source]
                .file()?
                .read_at(&mut piece, begin)
                .map_err(read_failed)?;
            let piece = Bytes::from(piece);
            let (part, later) = rest.split_at(count);
            rest = later;
            for at in part {
                let entry = &found[*at].1;
                let from = (u64::from(entry.offset) - begin) as usize;
                let bytes = piece.slice(from..from + entry.bytes as usize);
                if crc32c::crc32c(&bytes) != entry.crc {
                    return Err(StoreError::Damaged);
                }
                records[*at] = Some(Record {
                    seq: entry.seq,
                    bytes,
                });
            }
        }
        Ok(records.into_iter().flatten().collect())
    }
}

impl Finder {
    pub(super) fn new(view: Arc<Shared>) -> Self {
        Self {
            view,
            routes: Mutex::default(),
        }
    }

    /// [`crate::log::LogStore::index`].
    pub(super) fn index(&self, stream: StreamId) -> Result<Vec<IndexEntry>, StoreError> {
        let found = self.open(stream, Wanted::From(0, usize::MAX))?;
        let mut all = Vec::new();
        for source in &found.sources {
            match source {
                Source::Hot { entries, .. } => all.extend_from_slice(entries),
                Source::Cold { index, row, .. } => all.extend(row.entries(&**index, 0, row.blocks())?),
            }
        }
        if !found.deleted.is_empty() {
            all.retain(|e| !found.deleted.contains(e.seq));
        }
        if !all.is_sorted_by_key(|e| e.seq) {
            all.sort_unstable_by_key(|e| e.seq);
        }
        Ok(all.iter().map(Entry::index_entry).collect())
    }

    /// [`crate::log::LogStore::read`].
    pub(super) fn read(
        &self,
        stream: StreamId,
        from: u64,
        records_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<Record>, StoreError> {
        let mut stream = self.open(stream, Wanted::From(from, records_max))?;
        stream.seek(from)?;
        let (mut found, mut bytes) = (Vec::new(), 0);
        while found.len() < records_max
            && let Some((source, entry)) = stream.next()?
        {
            bytes += entry.bytes as usize;
            found.push((source, entry));
            if bytes >= bytes_max {
                break;
            }
        }
        stream.fetch(&found)
    }

    /// [`crate::log::LogStore::read_seqs`].
    pub(super) fn read_seqs(
        &self,
        stream: StreamId,
        seqs: &[u64],
        bytes_max: usize,
    ) -> Result<Vec<Record>, StoreError> {
        let mut ascending = seqs.to_vec();
        ascending.sort_unstable();
        ascending.dedup();
        if ascending.is_empty() {
            return Ok(Vec::new());
        }
        let mut stream = self.open(stream, Wanted::Exactly(&ascending))?;
        let mut at: HashMap<u64, (usize, Entry)> = HashMap::with_capacity(ascending.len());
        let mut ahead = None;
        for seq in ascending {
            // What the last search met may be further on.
            if ahead.is_some_and(|(_, entry): (usize, Entry)| entry.seq > seq) {
                continue;
            }
            if ahead.is_none_or(|(_, entry)| entry.seq < seq) {
                stream.seek(seq)?;
                ahead = stream.next()?;
            }
            match ahead {
                Some(found) if found.1.seq == seq => {
                    at.insert(seq, found);
                }
                Some(_) => {}
                None => break,
            }
        }
        let (mut found, mut bytes) = (Vec::new(), 0);
        for place in seqs.iter().filter_map(|seq| at.get(seq)) {
            bytes += place.1.bytes as usize;
            found.push(*place);
            if bytes >= bytes_max {
                break;
            }
        }
        stream.fetch(&found)
    }

    /// The stream as it is now; at least what is wanted of it.
    fn open(&self, stream: StreamId, wanted: Wanted<'_>) -> Result<Stream, StoreError> {
        let from = match wanted {
            Wanted::From(from, _) => from,
            Wanted::Exactly(seqs) => seqs.first().copied().unwrap_or_default(),
        };
        loop {
            let (generation, sealed) = {
                let view = self.view.read();
                (view.generation, view.sealed.clone())
            };
            let route = self.route(stream, generation, &sealed)?;
            let mut sources = Vec::with_capacity(route.rows.len() + 2);
            for (sealed, row) in &route.rows {
                if row.last >= from {
                    sources.push(Source::cold(sealed, *row)?);
                }
            }
            let view = self.view.read();
            // A segment was sealed or rewritten meanwhile: what was hot may be neither here nor there.
            if view.generation != generation {
                continue;
            }
            let deleted = add_hot(&view, stream, wanted, &route.deleted, &mut sources);
            return Ok(Stream { sources, deleted });
        }
    }

    fn route(
        &self,
        stream: StreamId,
        generation: u64,
        sealed: &[Arc<Sealed>],
    ) -> Result<Arc<Route>, StoreError> {
        {
            let routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
            if routes.generation == generation
                && let Some(route) = routes.routes.get(&stream)
            {
                return Ok(route.clone());
            }
        }
        let mut route = Route {
            rows: Vec::new(),
            deleted: Ranges::default(),
        };
        for segment in sealed {
            let index = segment.index()?;
            for row in segment.summary.lookup(&*index, stream)? {
                match row.is_deletion() {
                    true => route.deleted.add_all(&row.ranges(&*index)?),
                    false => route.rows.push((segment.clone(), row)),
                }
            }
        }
        let route = Arc::new(route);
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        if routes.generation < generation || routes.rows > ROUTE_ROWS_MAX {
            *routes = Routes {
                generation,
                ..Routes::default()
            };
        }
        if routes.generation == generation {
            routes.rows += route.rows.len() + route.deleted.as_slice().len() + 1;
            routes.routes.insert(stream, route.clone());
        }
        Ok(route)
    }

    /// Where a stream lies in the sealed segments now.
    pub(super) fn current_route(&self, stream: StreamId) -> Result<Arc<Route>, StoreError> {
        let (generation, sealed) = {
            let view = self.view.read();
            (view.generation, view.sealed.clone())
        };
        self.route(stream, generation, &sealed)
    }

    /// All that was deleted of a stream.
    pub(super) fn deleted(&self, stream: StreamId, route: &Route) -> Ranges {
        let mut deleted = route.deleted.clone();
        for hot in &self.view.read().hot {
            if let Some(ranges) = hot.held.deletes.get(&stream) {
                deleted.add_all(ranges);
            }
        }
        deleted
    }

    /// Whether a segment other than these has records with numbers in this range, deleted or not.
    pub(super) fn has_elsewhere(
        &self,
        stream: StreamId,
        route: &Route,
        (from, to): (u64, u64),
        except: &[u64],
    ) -> Result<bool, StoreError> {
        for hot in &self.view.read().hot {
            if let Some(entries) = hot.held.streams.get(&stream) {
                let at = entries.partition_point(|e| e.seq < from);
                if entries.get(at).is_some_and(|e| e.seq <= to) {
                    return Ok(true);
                }
            }
        }
        for (sealed, row) in &route.rows {
            if !except.contains(&sealed.of.number) && row.first <= to && from <= row.last {
                let mut source = Source::cold(sealed, *row)?;
                source.seek(from)?;
                source.fill()?;
                if source.peek().is_some_and(|e| e.seq <= to) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Lets go of what is remembered of segments that are gone.
    pub(super) fn forget(&self) {
        *self.routes.lock().unwrap_or_else(PoisonError::into_inner) = Routes::default();
    }
}

/// Adds what is in memory, and answers all that was deleted.
fn add_hot(
    view: &View,
    stream: StreamId,
    wanted: Wanted<'_>,
    deleted: &Ranges,
    sources: &mut Vec<Source>,
) -> Ranges {
    let mut deleted = deleted.clone();
    let hot = || view.hot.iter().filter(|hot| hot.concerns(stream));
    for ranges in hot().filter_map(|hot| hot.held.deletes.get(&stream)) {
        deleted.add_all(ranges);
    }
    for hot in hot() {
        if let Some(entries) = hot.held.streams.get(&stream) {
            let entries = match wanted {
                Wanted::From(from, count) => {
                    let begin = entries.partition_point(|e| e.seq < from);
                    let kept = entries[begin..].iter().filter(|e| !deleted.contains(e.seq));
                    kept.take(count).copied().collect()
                }
                Wanted::Exactly(seqs) => {
                    let find = |seq| entries.binary_search_by_key(seq, |e: &Entry| e.seq);
                    seqs.iter()
                        .filter_map(|seq| Some(entries[find(seq).ok()?]))
                        .collect()
                }
            };
            sources.push(Source::Hot {
                file: hot.file.clone(),
                entries,
                at: 0,
            });
        }
    }
    deleted
}
