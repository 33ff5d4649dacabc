//! The bytes of a segment (docs/storage-format.md describes them): a header, then commits. Pure.
//!
//! A commit carries everything its requests asked for: a head, what there is to know about every record, the records'
//! bytes back to back, and the commit record. Every byte is covered by a checksum or must have one exact value, so that
//! no flipped bit passes.

use super::ranges::Ranges;
use crate::RealmId;
use crate::log::{AppendBatch, IndexEntry, StreamId, StreamKind};
use drover_wire::id::{GroupId, Hash};

/// Of segments and of their indexes.
pub(super) const VERSION: u32 = 1;
/// Length of a segment's header: its first commit begins here.
pub(super) const SEGMENT_HEAD: usize = 64;
const SEGMENT_MAGIC: &[u8; 8] = b"DROVRSEG";
const COMMIT_MAGIC: u32 = u32::from_le_bytes(*b"CMT1");
const END_MAGIC: u32 = u32::from_le_bytes(*b"END1");
/// Length of a commit's head.
const COMMIT_HEAD: usize = 48;
/// Length of the commit record.
const COMMIT_END: usize = 16;
/// Commits begin and end at multiples of this.
const ALIGN: usize = 8;
const RUN_HEAD: usize = 48;
const RECORD_HEAD: usize = 20;
const DELETE_HEAD: usize = 40;
/// In place of where an id lies in its record: it is not in there, so it stands beside it.
const ID_BESIDE: u32 = u32::MAX;
/// An id is looked for this far into a record.
const ID_WITHIN: usize = 128;

/// Who wrote a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Kind {
    /// A writer, commit by commit as they came.
    Written = 1,
    /// A migration or a compaction; it counts only once the list of segments names it.
    Rewritten = 2,
}

/// What a segment's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHead {
    pub(super) kind: Kind,
    /// The store's id.
    pub(super) store: [u8; 16],
    pub(super) number: u64,
    pub(super) writer: u32,
    /// Random; in every commit of the segment too, so that nothing a client sends can look like one.
    pub(super) salt: u64,
}

/// Where a record lies, and what is known of it without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) seq: u64,
    pub(super) id: Hash,
    /// From the beginning of its segment.
    pub(super) offset: u32,
    pub(super) bytes: u32,
    pub(super) budget_bytes: u32,
    /// CRC32C of the record's bytes.
    pub(super) crc: u32,
}

impl Entry {
    /// Where it ends in its segment.
    pub(super) fn end(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.bytes)
    }

    pub(super) fn index_entry(&self) -> IndexEntry {
        IndexEntry {
            seq: self.seq,
            id: self.id,
            bytes: self.bytes,
            budget_bytes: self.budget_bytes,
        }
    }
}

/// What a commit did, as far as finding needs to know.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) lsn: u64,
    /// The number of the commit its writer wrote before it, 0 if this is the first; `None` if it does not say.
    pub(super) previous: Option<u64>,
    pub(super) entries: Vec<Entry>,
    /// Streams, and how many of `entries` are theirs, in order.
    pub(super) runs: Vec<(StreamId, usize)>,
    pub(super) deletes: Vec<(StreamId, Ranges)>,
    pub(super) usage: Vec<(RealmId, u64)>,
}

/// A commit that was read.
#[derive(Debug)]
pub(super) struct Commit {
    /// Its length.
    pub(super) bytes: usize,
    pub(super) contents: Contents,
}

/// Beginnings and ends of the fields of `bytes`.
pub(super) struct Rest<'a>(pub(super) &'a [u8]);

impl<'a> Rest<'a> {
    pub(super) fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A kind and three bytes that are zero.
    pub(super) fn kind(&mut self) -> Option<StreamKind> {
        match self.u32()? {
            1 => Some(StreamKind::Envelopes),
            2 => Some(StreamKind::Handshakes),
            _ => None,
        }
    }

    /// A field that is kept free.
    pub(super) fn zeros(&mut self, bytes: usize) -> Option<()> {
        self.take(bytes)?.iter().all(|b| *b == 0).then_some(())
    }
}

fn crc_of_head(head: &[u8]) -> [u8; 4] {
    crc32c::crc32c(head).to_le_bytes()
}

impl SegmentHead {
    pub(super) fn encode(&self) -> [u8; SEGMENT_HEAD] {
        let mut bytes = [0; SEGMENT_HEAD];
        bytes[..8].copy_from_slice(SEGMENT_MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(self.kind as u32).to_le_bytes());
        bytes[16..32].copy_from_slice(&self.store);
        bytes[32..40].copy_from_slice(&self.number.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.writer.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.salt.to_le_bytes());
        let crc = crc_of_head(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc);
        bytes
    }

    /// `None` if this is no whole header of a version we know.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..SEGMENT_HEAD)?;
        let mut rest = Rest(bytes);
        (&rest.array::<8>()? == SEGMENT_MAGIC && rest.u32()? == VERSION).then_some(())?;
        let kind = match rest.u32()? {
            1 => Kind::Written,
            2 => Kind::Rewritten,
            _ => return None,
        };
        let store = rest.array()?;
        let number = rest.u64()?;
        let writer = rest.u32()?;
        rest.zeros(4)?;
        let salt = rest.u64()?;
        rest.zeros(4)?;
        (rest.array()? == crc_of_head(&bytes[..60])).then_some(Self {
            kind,
            store,
            number,
            writer,
            salt,
        })
    }
}

/// Bytes a batch adds to a commit, at most.
pub(super) fn batch_bytes(batch: &AppendBatch) -> usize {
    let appends: usize = batch
        .appends
        .iter()
        .map(|a| RUN_HEAD + RECORD_HEAD + Hash::LEN + a.bytes.len())
        .sum();
    let deletes: usize = batch
        .deletes
        .iter()
        .map(|d| DELETE_HEAD + 16 * d.entries.len())
        .sum();
    let usage: usize = batch.usage.iter().map(|(realm, _)| 12 + realm.0.len()).sum();
    appends + deletes + usage
}

/// What a commit adds beside its batches, at most.
pub(super) const COMMIT_OVERHEAD: usize = COMMIT_HEAD + COMMIT_END + ALIGN;

/// Makes commits; keeps its memory from one to the next.
#[derive(Debug, Default)]
pub(super) struct Encoder {
    /// The commit as it goes to the disk.
    pub(super) bytes: Vec<u8>,
    /// Where the last record's id lay in it: that of the next one most probably lies there too.
    id_at: usize,
    /// Memory of an earlier commit's contents.
    spare: Contents,
}

impl Encoder {
    /// Encodes the batches as one commit that will lie at `at` of its segment. Every record is shorter than 4 GiB, and so
    /// is the segment.
    /// `deletes` are those of records that are known by their numbers alone. `previous` is the number of the commit that
    /// its writer wrote before it.
    pub(super) fn encode(
        &mut self,
        batches: &[&AppendBatch],
        deletes: Vec<(StreamId, Ranges)>,
        salt: u64,
        previous: Option<u64>,
        lsn: u64,
        at: u64,
    ) -> Contents {
        let back = previous.map_or(0, |previous| u32::try_from(lsn - previous).unwrap_or(0));
        let mut contents = std::mem::take(&mut self.spare);
        contents.lsn = lsn;
        contents.previous = previous.filter(|_| back > 0);
        contents.deletes = deletes;
        let out = &mut self.bytes;
        out.clear();
        out.resize(COMMIT_HEAD, 0);
        let mut payload = 0;
        for batch in batches {
            let mut appends = &batch.appends[..];
            while let Some(first) = appends.first() {
                let count = appends
                    .iter()
                    .take_while(|a| {
                        a.stream == first.stream
                            && a.seq
                                .checked_sub(first.seq)
                                .is_some_and(|d| d <= u64::from(u32::MAX))
                    })
                    .count();
                let (run, rest) = appends.split_at(count);
                appends = rest;
                stream(out, first.stream, count);
                out.extend_from_slice(&first.seq.to_le_bytes());
                let mut beside = Vec::new();
                for append in run {
                    let crc = crc32c::crc32c(&append.bytes);
                    let id_at = match find_id(&append.bytes, &append.id, self.id_at) {
                        Some(at) => {
                            self.id_at = at;
                            at as u32
                        }
                        None => {
                            beside.extend_from_slice(append.id.as_bytes());
                            ID_BESIDE
                        }
                    };
                    let length = append.bytes.len() as u32;
                    let delta = (append.seq - first.seq) as u32;
                    for field in [delta, length, append.budget_bytes, crc, id_at] {
                        out.extend_from_slice(&field.to_le_bytes());
                    }
                    contents.entries.push(Entry {
                        seq: append.seq,
                        id: append.id,
                        offset: payload,
                        bytes: length,
                        budget_bytes: append.budget_bytes,
                        crc,
                    });
                    payload += length;
                }
                out.extend_from_slice(&beside);
                contents.runs.push((first.stream, count));
            }
        }
        for delete in batches.iter().flat_map(|b| &b.deletes) {
            let ranges: Ranges = delete.entries.iter().map(|e| e.seq).collect();
            contents.deletes.push((delete.stream, ranges));
        }
        for (stream_id, ranges) in &contents.deletes {
            stream(out, *stream_id, ranges.as_slice().len());
            for (from, to) in ranges.as_slice() {
                out.extend_from_slice(&from.to_le_bytes());
                out.extend_from_slice(&to.to_le_bytes());
            }
        }
        for (realm, bytes) in batches.iter().flat_map(|b| &b.usage) {
            out.extend_from_slice(&(realm.0.len() as u32).to_le_bytes());
            out.extend_from_slice(&bytes.to_le_bytes());
            out.extend_from_slice(realm.0.as_bytes());
            contents.usage.push((realm.clone(), *bytes));
        }
        let metadata_end = out.len();
        for append in batches.iter().flat_map(|b| &b.appends) {
            out.extend_from_slice(&append.bytes);
        }
        out.resize(out.len().next_multiple_of(ALIGN), 0);
        let total = out.len() + COMMIT_END;
        let runs = contents.runs.len() as u32;
        let numbers = [
            COMMIT_MAGIC,
            0,
            total as u32,
            (metadata_end - COMMIT_HEAD) as u32,
            runs,
            contents.deletes.len() as u32,
            contents.usage.len() as u32,
            back,
        ];
        for (place, number) in out.chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        out[32..40].copy_from_slice(&lsn.to_le_bytes());
        out[40..48].copy_from_slice(&salt.to_le_bytes());
        let crc = crc32c::crc32c(&out[8..metadata_end]).to_le_bytes();
        out[4..8].copy_from_slice(&crc);
        out.extend_from_slice(&END_MAGIC.to_le_bytes());
        out.extend_from_slice(&crc);
        out.extend_from_slice(&lsn.to_le_bytes());
        let base = (at + metadata_end as u64) as u32;
        for entry in &mut contents.entries {
            entry.offset += base;
        }
        contents
    }

    /// Takes contents back that are not needed any more, for their memory.
    pub(super) fn recycle(&mut self, mut contents: Contents) {
        contents.entries.clear();
        contents.runs.clear();
        contents.usage.clear();
        contents.deletes = Vec::new();
        self.spare = contents;
    }
}

fn stream(out: &mut Vec<u8>, stream: StreamId, count: usize) {
    out.extend_from_slice(&(stream.kind as u32).to_le_bytes());
    out.extend_from_slice(&(count as u32).to_le_bytes());
    out.extend_from_slice(stream.group.as_bytes());
}

/// Where an id lies in its record. An envelope holds its own (01 §4); storing it twice would be a tenth of a small one.
fn find_id(bytes: &[u8], id: &Hash, guess: usize) -> Option<usize> {
    let id = id.as_bytes();
    if bytes.get(guess..guess + Hash::LEN) == Some(id) {
        return Some(guess);
    }
    let near = &bytes[..bytes.len().min(ID_WITHIN + Hash::LEN)];
    near.windows(Hash::LEN).position(|window| window == id)
}

impl Commit {
    /// The commit at `at` of a segment that begins with `segment`, if a whole one is there.
    pub(super) fn parse(segment: &[u8], at: usize, salt: u64) -> Option<Self> {
        let (commit, is_whole) = Self::parse_any(segment, at, salt)?;
        is_whole.then_some(commit)
    }

    /// What is intact of the commit at `at`, and whether that is all of it. `None` if not even its head is.
    pub(super) fn parse_any(segment: &[u8], at: usize, salt: u64) -> Option<(Self, bool)> {
        let bytes = segment.get(at..)?;
        let mut rest = Rest(bytes);
        (rest.u32()? == COMMIT_MAGIC).then_some(())?;
        let crc = rest.u32()?;
        let (total, metadata) = (rest.u32()? as usize, rest.u32()? as usize);
        let (runs, deletes, usages) = (rest.u32()?, rest.u32()?, rest.u32()?);
        let back = u64::from(rest.u32()?);
        let lsn = rest.u64()?;
        (rest.u64()? == salt && total.is_multiple_of(ALIGN)).then_some(())?;
        // What is cut short is not whole, but has a beginning.
        let bytes = &bytes[..total.min(bytes.len())];
        let mut is_whole = bytes.len() == total;
        let mut meta = Rest(rest.take(metadata)?);
        (crc32c::crc32c(bytes.get(8..COMMIT_HEAD + metadata)?) == crc).then_some(())?;
        let mut contents = Contents {
            lsn,
            previous: lsn.checked_sub(back).filter(|_| back > 0),
            ..Contents::default()
        };
        let mut payload = COMMIT_HEAD + metadata;
        for _ in 0..runs {
            let (kind, count) = (meta.kind()?, meta.u32()? as usize);
            let (group, first) = (GroupId(meta.array()?), meta.u64()?);
            let stream = StreamId { kind, group };
            let heads = meta.take(count.checked_mul(RECORD_HEAD)?)?;
            let mut intact = 0;
            for head in heads.chunks_exact(RECORD_HEAD) {
                let mut head = Rest(head);
                let (delta, length, budget_bytes) = (head.u32()?, head.u32()?, head.u32()?);
                let (crc, id_at) = (head.u32()?, head.u32()?);
                let begin = payload;
                payload = begin.checked_add(length as usize)?;
                let beside = match id_at {
                    ID_BESIDE => Some(meta.take(Hash::LEN)?),
                    _ => None,
                };
                let record = bytes
                    .get(begin..payload)
                    .filter(|record| crc32c::crc32c(record) == crc);
                let Some(record) = record else {
                    is_whole = false;
                    continue;
                };
                let within = || record.get(id_at as usize..(id_at as usize).checked_add(Hash::LEN)?);
                intact += 1;
                contents.entries.push(Entry {
                    seq: first.checked_add(delta.into())?,
                    id: Hash::from_slice(beside.or_else(within)?)?,
                    offset: u32::try_from(at + begin).ok()?,
                    bytes: length,
                    budget_bytes,
                    crc,
                });
            }
            contents.runs.push((stream, intact));
        }
        for _ in 0..deletes {
            let (kind, count) = (meta.kind()?, meta.u32()?);
            let group = GroupId(meta.array()?);
            let mut ranges = Ranges::default();
            for _ in 0..count {
                ranges.add(meta.u64()?, meta.u64()?);
            }
            contents.deletes.push((StreamId { kind, group }, ranges));
        }
        for _ in 0..usages {
            let length = meta.u32()? as usize;
            let used = meta.u64()?;
            let realm = std::str::from_utf8(meta.take(length)?).ok()?;
            contents.usage.push((RealmId(realm.into()), used));
        }
        meta.0.is_empty().then_some(())?;
        let ends = || {
            let mut end = Rest(bytes.get(payload..)?);
            end.zeros(payload.next_multiple_of(ALIGN) - payload)?;
            Some(end.u32()? == END_MAGIC && end.u32()? == crc && end.u64()? == lsn && end.0.is_empty())
        };
        is_whole &= ends() == Some(true);
        Some((
            Self {
                bytes: total,
                contents,
            },
            is_whole,
        ))
    }

    /// Whether a whole commit begins anywhere from `from` on.
    pub(super) fn any_from(segment: &[u8], from: usize, salt: u64) -> bool {
        let from = from.next_multiple_of(ALIGN);
        (from..segment.len()).step_by(ALIGN).any(|at| {
            segment[at..].starts_with(&COMMIT_MAGIC.to_le_bytes()) && Self::parse(segment, at, salt).is_some()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{realm, record, stream};
    use crate::log::Delete;

    fn batch() -> AppendBatch {
        let (one, two) = (
            stream(StreamKind::Envelopes, 1),
            stream(StreamKind::Handshakes, 2),
        );
        let mut appends: Vec<_> = (1..5).map(|n| record(one, n, 40 * n as usize)).collect();
        appends.extend([record(two, 0, 0), record(two, 1 << 40, 33)]);
        let entries = (7..12).chain([20]).map(|seq| IndexEntry {
            seq,
            id: Hash([0; 32]),
            bytes: 1,
            budget_bytes: 1,
        });
        AppendBatch {
            appends,
            deletes: vec![Delete {
                stream: one,
                entries: entries.collect(),
            }],
            usage: vec![(realm("ws:a"), 77)],
        }
    }

    #[test]
    fn a_commit_says_what_was_put_into_it_and_no_flipped_bit_passes() {
        let batch = batch();
        let mut encoder = Encoder::default();
        let contents = encoder.encode(&[&batch, &batch], Vec::new(), 9, Some(3), 5, 16);
        let mut segment = vec![0; 16];
        segment.extend_from_slice(&encoder.bytes);
        let commit = Commit::parse(&segment, 16, 9).expect("whole");
        assert_eq!(commit.contents, contents);
        assert_eq!(contents.previous, Some(3));
        assert_eq!(commit.bytes, segment.len() - 16);
        assert!(commit.bytes <= 2 * batch_bytes(&batch) + COMMIT_OVERHEAD);
        for (entry, append) in contents.entries.iter().zip(batch.appends.iter().cycle()) {
            assert_eq!(segment[entry.offset as usize..entry.end() as usize], append.bytes);
            assert_eq!((entry.seq, entry.id), (append.seq, append.id));
        }
        assert_eq!(contents.deletes[0].1.as_slice(), [(7, 11), (20, 20)]);
        assert!(Commit::parse(&segment, 16, 8).is_none(), "of another segment");
        for at in 16..segment.len() {
            for bit in 0..8 {
                segment[at] ^= 1 << bit;
                assert!(Commit::parse(&segment, 16, 9).is_none(), "byte {at} bit {bit}");
                segment[at] ^= 1 << bit;
            }
            assert!(Commit::parse(&segment[..at], 16, 9).is_none(), "cut at {at}");
        }
    }

    #[test]
    fn a_header_says_what_was_put_into_it_and_no_flipped_bit_passes() {
        let head = SegmentHead {
            kind: Kind::Rewritten,
            store: [7; 16],
            number: 99,
            writer: 1,
            salt: 12345,
        };
        let mut bytes = head.encode();
        assert_eq!(SegmentHead::decode(&bytes), Some(head));
        for bit in 0..SEGMENT_HEAD * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHead::decode(&bytes), None);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
