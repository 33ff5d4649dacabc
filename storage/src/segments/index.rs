//! The index of a sealed segment, in a file beside it: what each stream has there, sorted by group, kind and number, and
//! what was deleted. It can always be made again from the segment.
//!
//! Nothing of it stays in memory but eight bytes for every 63 rows: a lookup reads one page of rows, then the blocks of
//! entries it wants. Each page and block has a checksum of its own, since each is trusted without the others.

use super::disk::{self, Disk, DiskFile};
use super::format::{Contents, Entry, Rest, VERSION};
use super::ranges::Ranges;
use crate::StoreError;
use crate::log::{StreamId, StreamKind};
use drover_wire::id::{GroupId, Hash};
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::time::Instant;

const MAGIC: &[u8; 8] = b"DROVRIDX";
/// Length of the header.
const HEAD: usize = 128;
/// Entries in a full block.
const BLOCK_ENTRIES: usize = 64;
const ENTRY_BYTES: usize = 52;
/// Ranges in a full block.
const BLOCK_RANGES: usize = 128;
const RANGE_BYTES: usize = 16;
const CRC_BYTES: usize = 4;
/// An index is made durable in pieces of this size.
pub(super) const SYNC_BYTES: usize = 1 << 20;
/// After so many bytes that were made, others go first.
const STEP_BYTES: usize = 256 << 10;
const PAGE: usize = 4096;
const ROW_BYTES: usize = 64;
const PAGE_ROWS: usize = 63;

/// What a segment holds, in memory: of open segments all the time, of others while their index is made.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    /// Ascending by number within each stream.
    pub(super) streams: HashMap<StreamId, Vec<Entry>>,
    pub(super) deletes: HashMap<StreamId, Ranges>,
    /// Of all streams together.
    pub(super) entries: usize,
    /// Of all records together.
    pub(super) record_bytes: u64,
    /// Highest commit number.
    pub(super) last_lsn: u64,
}

impl Held {
    /// Takes a commit in.
    pub(super) fn add(&mut self, contents: &Contents) {
        let mut entries = &contents.entries[..];
        for (stream, count) in &contents.runs {
            let (run, rest) = entries.split_at(*count);
            entries = rest;
            self.streams.entry(*stream).or_default().extend_from_slice(run);
            self.record_bytes += run.iter().map(|e| u64::from(e.bytes)).sum::<u64>();
        }
        self.entries += contents.entries.len();
        for (stream, ranges) in &contents.deletes {
            self.deletes.entry(*stream).or_default().add_all(ranges);
        }
        self.last_lsn = self.last_lsn.max(contents.lsn);
    }

    /// Empty, with the room kept that its streams needed: the next segment most probably holds as much of the same ones.
    /// Without it, every segment would grow its lists again in memory that was never touched, all of them at once, and a
    /// commit would wait for that.
    pub(super) fn emptied(mut self) -> Self {
        self.streams.retain(|_, entries| {
            let is_in_use = !entries.is_empty();
            entries.clear();
            is_in_use
        });
        self.deletes.clear();
        Self {
            streams: self.streams,
            deletes: self.deletes,
            ..Self::default()
        }
    }
}

/// What an index belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Of {
    pub(super) store: [u8; 16],
    pub(super) number: u64,
    pub(super) salt: u64,
    /// Of the segment.
    pub(super) length: u64,
}

/// One stream's entries, or its deletions, in one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    stream: StreamId,
    is_deletion: bool,
    /// Entries or ranges.
    pub(super) count: u32,
    pub(super) first: u64,
    pub(super) last: u64,
    /// Of its first block in the file.
    offset: u64,
}

/// As rows are sorted.
type RowKey = (GroupId, StreamKind, bool);

impl Row {
    fn key(&self) -> RowKey {
        (self.stream.group, self.stream.kind, self.is_deletion)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let kind = self.stream.kind as u32 | u32::from(self.is_deletion) << 8;
        out.extend_from_slice(self.stream.group.as_bytes());
        out.extend_from_slice(&kind.to_le_bytes());
        out.extend_from_slice(&self.count.to_le_bytes());
        for number in [self.first, self.last, self.offset] {
            out.extend_from_slice(&number.to_le_bytes());
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = Rest(bytes);
        let group = GroupId(rest.array()?);
        let kind = rest.u32()?;
        let is_deletion = match kind >> 8 {
            0 => false,
            1 => true,
            _ => return None,
        };
        let kind = match kind & 0xff {
            1 => StreamKind::Envelopes,
            2 => StreamKind::Handshakes,
            _ => return None,
        };
        Some(Self {
            stream: StreamId { kind, group },
            is_deletion,
            count: rest.u32()?,
            first: rest.u64()?,
            last: rest.u64()?,
            offset: rest.u64()?,
        })
    }

    /// Blocks of entries.
    pub(super) fn blocks(&self) -> usize {
        (self.count as usize).div_ceil(BLOCK_ENTRIES)
    }
}

fn fence(group: &GroupId) -> u64 {
    u64::from_be_bytes(group.as_bytes()[..8].try_into().unwrap_or_default())
}

/// In the order of the file, so that a segment has one index and no other.
fn sorted<T>(streams: &HashMap<StreamId, T>) -> Vec<(&StreamId, &T)> {
    let mut sorted: Vec<_> = streams.iter().collect();
    sorted.sort_unstable_by_key(|(stream, _)| (stream.group, stream.kind));
    sorted
}

/// The whole file for what a segment holds.
pub(super) fn encode(held: &Held, of: &Of) -> Vec<u8> {
    let mut out = Vec::new();
    encode_into(&mut out, held, of, &|_| {});
    out
}

/// The same in memory that is there already; `rest_a_while` is called every now and then, to let others
/// go first.
pub(super) fn encode_into(out: &mut Vec<u8>, held: &Held, of: &Of, rest_a_while: &dyn Fn(Instant)) {
    out.clear();
    out.reserve(
        held.entries * (ENTRY_BYTES + 1) + held.streams.len() * (ROW_BYTES + CRC_BYTES) + HEAD + PAGE,
    );
    out.resize(HEAD, 0);
    let (mut rested_at, mut began) = (0, Instant::now());
    let mut rows = Vec::with_capacity(held.streams.len() + held.deletes.len());
    for (stream, entries) in sorted(&held.streams) {
        if out.len() - rested_at >= STEP_BYTES {
            rested_at = out.len();
            rest_a_while(began);
            began = Instant::now();
        }
        // What is too far apart for four bytes gets rows of its own.
        let mut rest = &entries[..];
        while let Some(first) = rest.first() {
            let near = rest.partition_point(|e| e.seq - first.seq <= u64::from(u32::MAX));
            let (part, later) = rest.split_at(near);
            rest = later;
            rows.push(Row {
                stream: *stream,
                is_deletion: false,
                count: part.len() as u32,
                first: first.seq,
                last: part.last().map_or(first.seq, |e| e.seq),
                offset: out.len() as u64,
            });
            for block in part.chunks(BLOCK_ENTRIES) {
                let begin = out.len();
                for entry in block {
                    out.extend_from_slice(entry.id.as_bytes());
                    let delta = (entry.seq - first.seq) as u32;
                    for field in [delta, entry.offset, entry.bytes, entry.budget_bytes, entry.crc] {
                        out.extend_from_slice(&field.to_le_bytes());
                    }
                }
                let crc = crc32c::crc32c(&out[begin..]);
                out.extend_from_slice(&crc.to_le_bytes());
            }
        }
    }
    for (stream, ranges) in sorted(&held.deletes) {
        let ranges = ranges.as_slice();
        let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else {
            continue;
        };
        rows.push(Row {
            stream: *stream,
            is_deletion: true,
            count: ranges.len() as u32,
            first: first.0,
            last: last.1,
            offset: out.len() as u64,
        });
        for block in ranges.chunks(BLOCK_RANGES) {
            let begin = out.len();
            for (from, to) in block {
                out.extend_from_slice(&from.to_le_bytes());
                out.extend_from_slice(&to.to_le_bytes());
            }
            let crc = crc32c::crc32c(&out[begin..]);
            out.extend_from_slice(&crc.to_le_bytes());
        }
    }
    rows.sort_unstable_by_key(|row| (row.key(), row.first));
    let rows_at = out.len() as u64;
    let mut fences = Vec::with_capacity(rows.len().div_ceil(PAGE_ROWS) * 8);
    for page in rows.chunks(PAGE_ROWS) {
        fences.extend_from_slice(&fence(&page[0].stream.group).to_le_bytes());
        let begin = out.len();
        page.iter().for_each(|row| row.encode(out));
        out.resize(begin + PAGE - 8, 0);
        out.extend_from_slice(&(page.len() as u32).to_le_bytes());
        let crc = crc32c::crc32c(&out[begin..]);
        out.extend_from_slice(&crc.to_le_bytes());
    }
    let deletions = rows.iter().filter(|row| row.is_deletion).count() as u32;
    let mut head = Vec::with_capacity(HEAD);
    head.extend_from_slice(MAGIC);
    head.extend_from_slice(&VERSION.to_le_bytes());
    head.extend_from_slice(&(rows.len() as u32).to_le_bytes());
    head.extend_from_slice(&of.store);
    let numbers = [
        of.number,
        of.salt,
        of.length,
        held.last_lsn,
        held.entries as u64,
        held.record_bytes,
        rows_at,
        (out.len() + fences.len()) as u64,
    ];
    numbers
        .iter()
        .for_each(|n| head.extend_from_slice(&n.to_le_bytes()));
    head.extend_from_slice(&deletions.to_le_bytes());
    head.extend_from_slice(&crc32c::crc32c(&fences).to_le_bytes());
    head.resize(HEAD - CRC_BYTES, 0);
    let crc = crc32c::crc32c(&head);
    head.extend_from_slice(&crc.to_le_bytes());
    out[..HEAD].copy_from_slice(&head);
    out.extend_from_slice(&fences);
}

/// What is kept of an index in memory.
#[derive(Debug)]
pub(super) struct Summary {
    pub(super) last_lsn: u64,
    /// Of all records together.
    pub(super) record_bytes: u64,
    /// Rows of deletions.
    pub(super) deletions: u32,
    rows_at: u64,
    rows: u32,
    /// The beginning of each page's first group.
    fences: Box<[u64]>,
}

impl Summary {
    /// Reads header and fences. `None` if the file is damaged, or of another segment or an older state of it.
    pub(super) fn read(file: &dyn DiskFile, of: &Of) -> io::Result<Option<Self>> {
        let length = file.length()?;
        let mut head = [0; HEAD];
        if length < HEAD as u64 {
            return Ok(None);
        }
        file.read_at(&mut head, 0)?;
        let Some((mut summary, fences_crc)) = Self::decode(&head, of, length) else {
            return Ok(None);
        };
        let mut fences = vec![0; (summary.rows as usize).div_ceil(PAGE_ROWS) * 8];
        let fences_at = length - fences.len() as u64;
        file.read_at(&mut fences, fences_at)?;
        if crc32c::crc32c(&fences) != fences_crc {
            return Ok(None);
        }
        summary.fences = fences
            .chunks_exact(8)
            .map(|f| u64::from_le_bytes(f.try_into().unwrap_or_default()))
            .collect();
        Ok(Some(summary))
    }

    fn decode(head: &[u8; HEAD], of: &Of, length: u64) -> Option<(Self, u32)> {
        let crc = crc32c::crc32c(&head[..HEAD - CRC_BYTES]).to_le_bytes();
        (head[HEAD - CRC_BYTES..] == crc).then_some(())?;
        let mut rest = Rest(head);
        (&rest.array::<8>()? == MAGIC && rest.u32()? == VERSION).then_some(())?;
        let rows = rest.u32()?;
        let found = Of {
            store: rest.array()?,
            number: rest.u64()?,
            salt: rest.u64()?,
            length: rest.u64()?,
        };
        let (last_lsn, _entries, record_bytes) = (rest.u64()?, rest.u64()?, rest.u64()?);
        let (rows_at, file_length) = (rest.u64()?, rest.u64()?);
        let (deletions, fences_crc) = (rest.u32()?, rest.u32()?);
        let pages = u64::from(rows).div_ceil(PAGE_ROWS as u64);
        (found == *of && file_length == length && rows_at + pages * (PAGE as u64 + 8) == length).then_some((
            Self {
                last_lsn,
                record_bytes,
                deletions,
                rows_at,
                rows,
                fences: Box::default(),
            },
            fences_crc,
        ))
    }

    fn page(&self, file: &dyn DiskFile, page: usize) -> Result<Vec<Row>, StoreError> {
        let mut bytes = [0; PAGE];
        file.read_at(&mut bytes, self.rows_at + (page * PAGE) as u64)
            .map_err(read_failed)?;
        let (checked, crc) = bytes.split_at(PAGE - CRC_BYTES);
        let count = u32::from_le_bytes(checked[PAGE - 8..].try_into().unwrap_or_default()) as usize;
        if crc32c::crc32c(checked).to_le_bytes() != crc || count > PAGE_ROWS {
            return Err(StoreError::Damaged);
        }
        let rows = checked.chunks_exact(ROW_BYTES).take(count);
        rows.map(|row| Row::decode(row).ok_or(StoreError::Damaged))
            .collect()
    }

    /// The rows of a stream: its entries, ascending, and its deletions.
    pub(super) fn lookup(&self, file: &dyn DiskFile, stream: StreamId) -> Result<Vec<Row>, StoreError> {
        let mark = fence(&stream.group);
        // Its first row may lie in the last page that begins before it.
        let mut page = self.fences.partition_point(|f| *f < mark).saturating_sub(1);
        let mut found = Vec::new();
        let wanted = (stream.group, stream.kind);
        while page < self.fences.len() && self.fences[page] <= mark {
            let rows = self.page(file, page)?;
            let begin = rows.partition_point(|r| (r.stream.group, r.stream.kind) < wanted);
            let of_stream = rows[begin..].iter().take_while(|r| r.stream == stream);
            let before = found.len();
            found.extend(of_stream.copied());
            if begin + (found.len() - before) < rows.len() {
                break;
            }
            page += 1;
        }
        Ok(found)
    }

    /// Every row, page by page.
    pub(super) fn rows<'a>(
        &'a self,
        file: &'a dyn DiskFile,
    ) -> impl Iterator<Item = Result<Vec<Row>, StoreError>> + 'a {
        (0..self.fences.len()).map(move |page| self.page(file, page))
    }
}

impl Row {
    pub(super) fn stream(&self) -> StreamId {
        self.stream
    }

    pub(super) fn is_deletion(&self) -> bool {
        self.is_deletion
    }

    /// Blocks `from..to` of its entries.
    pub(super) fn entries(
        &self,
        file: &dyn DiskFile,
        from: usize,
        to: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        const FULL: usize = BLOCK_ENTRIES * ENTRY_BYTES + CRC_BYTES;
        let to = to.min(self.blocks());
        let count = (self.count as usize).min(to * BLOCK_ENTRIES) - from * BLOCK_ENTRIES;
        let mut bytes = vec![0; count * ENTRY_BYTES + (to - from) * CRC_BYTES];
        file.read_at(&mut bytes, self.offset + (from * FULL) as u64)
            .map_err(read_failed)?;
        let mut entries = Vec::with_capacity(count);
        for block in bytes.chunks(FULL) {
            for entry in checked(block)?.chunks_exact(ENTRY_BYTES) {
                entries.push(self.entry(entry).ok_or(StoreError::Damaged)?);
            }
        }
        Ok(entries)
    }

    fn entry(&self, bytes: &[u8]) -> Option<Entry> {
        let mut rest = Rest(bytes);
        let id = Hash(rest.array()?);
        let seq = self.first.checked_add(rest.u32()?.into())?;
        Some(Entry {
            seq,
            id,
            offset: rest.u32()?,
            bytes: rest.u32()?,
            budget_bytes: rest.u32()?,
            crc: rest.u32()?,
        })
    }

    /// What it deletes.
    pub(super) fn ranges(&self, file: &dyn DiskFile) -> Result<Ranges, StoreError> {
        let count = self.count as usize;
        let mut bytes = vec![0; count * RANGE_BYTES + count.div_ceil(BLOCK_RANGES) * CRC_BYTES];
        file.read_at(&mut bytes, self.offset).map_err(read_failed)?;
        let mut ranges = Ranges::default();
        for block in bytes.chunks(BLOCK_RANGES * RANGE_BYTES + CRC_BYTES) {
            for range in checked(block)?.chunks_exact(RANGE_BYTES) {
                let mut rest = Rest(range);
                if let (Some(from), Some(to)) = (rest.u64(), rest.u64()) {
                    ranges.add(from, to);
                }
            }
        }
        Ok(ranges)
    }
}

/// A block without its checksum, if that is right.
fn checked(block: &[u8]) -> Result<&[u8], StoreError> {
    match block.split_last_chunk::<CRC_BYTES>() {
        Some((block, crc)) if crc32c::crc32c(block).to_le_bytes() == *crc => Ok(block),
        _ => Err(StoreError::Damaged),
    }
}

/// What a caller learns of a failed read.
pub(super) fn read_failed(error: io::Error) -> StoreError {
    tracing::error!(%error, "reading from the log failed");
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::NotFound => StoreError::Damaged,
        _ => StoreError::Unknown,
    }
}

/// Puts an index file in place: after a crash there is the whole of it or none.
pub(super) fn write(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_paced(disk, path, bytes, SYNC_BYTES, &|_| {})
}

/// The same, made durable in pieces; `rest` is called with the beginning of each, to let others go first.
pub(super) fn write_paced(
    disk: &dyn Disk,
    path: &Path,
    bytes: &[u8],
    piece_bytes: usize,
    rest: &dyn Fn(Instant),
) -> io::Result<()> {
    let new = path.with_extension("idx.new");
    let file = disk.create(&new)?;
    disk::write_paced(&*file, bytes, 0, piece_bytes, rest)?;
    disk.rename(&new, path)?;
    match path.parent() {
        Some(folder) => disk.sync_folder(folder),
        None => Ok(()),
    }
}
