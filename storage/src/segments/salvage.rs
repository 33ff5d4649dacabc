//! Saving what is intact of a damaged log. It only reads.

use super::disk::Disk;
use super::format::{Commit, Entry, Kind, SEGMENT_HEAD, SegmentHead};
use super::import::{Origin, Records};
use super::list::{self, State};
use super::ranges::Ranges;
use super::recover::{io_error, read_all, segment_paths};
use super::view::Files;
use crate::RealmId;
use crate::control::{ControlStore, DirectoryKind};
use crate::embedded::OpenError;
use crate::log::{Append, StreamId, StreamKind};
use bytes::Bytes;
use drover_wire::id::GroupId;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

/// Numbers that are left out after the highest one found: more records than a lost log can have held.
const SKIPPED_SEQS: u64 = 1 << 32;

/// What is intact of a log, whatever its list of segments says.
pub(crate) struct Salvage {
    files: Arc<Files>,
    /// Segment and place of each record.
    streams: BTreeMap<(GroupId, StreamKind), BTreeMap<u64, (u64, Entry)>>,
    /// What realms hold of that.
    usage: Vec<(RealmId, u64)>,
    /// Commits, or parts of them, that were not intact.
    pub(crate) lost: u64,
    pub(crate) records: u64,
    /// The number streams go on from in the new store: none that was ever given can be as high.
    pub(crate) first_seq: u64,
}

impl Salvage {
    /// Looks through all segments there are.
    ///
    /// # Errors
    /// Only what keeps everything from being read.
    pub(crate) fn find(
        disk: Arc<dyn Disk>,
        folder: &Path,
        control: &dyn ControlStore,
        store: &[u8; 16],
    ) -> Result<Self, OpenError> {
        let files = Arc::new(Files::new(disk, folder));
        let list = list::load(control).unwrap_or_default();
        let listed: BTreeMap<u64, State> = list.segments.into_iter().collect();
        let mut salvage = Self {
            files: files.clone(),
            streams: BTreeMap::new(),
            usage: Vec::new(),
            lost: 0,
            records: 0,
            first_seq: list.first_seq,
        };
        let mut deleted: HashMap<StreamId, Ranges> = HashMap::new();
        for (number, path) in segment_paths(&files).map_err(|e| io_error(folder, e))? {
            let bytes = match files.disk.open(&path).and_then(|file| read_all(&*file)) {
                Ok(bytes) => bytes,
                Err(error) => {
                    tracing::error!(%error, file = %path.display(), "this segment can't be read");
                    salvage.lost += 1;
                    continue;
                }
            };
            let listed = listed.get(&number);
            let salt = match (SegmentHead::decode(&bytes), listed) {
                (Some(head), Some(State::Sealed { .. })) if head.store == *store => head.salt,
                // Written by a writer and not sealed, or made by a compaction that did not come to its end.
                (Some(head), None) if head.store == *store && head.kind == Kind::Written => head.salt,
                // The list knows it, whatever its header says.
                (_, Some(State::Sealed { salt, .. })) => *salt,
                _ => continue,
            };
            salvage.look_through(number, &bytes, salt, &mut deleted);
        }
        let envelopes = salvage
            .streams
            .iter()
            .filter(|((_, kind), _)| *kind == StreamKind::Envelopes);
        let highest = envelopes
            .filter_map(|(_, records)| records.last_key_value())
            .map(|(seq, _)| *seq)
            .max();
        salvage.first_seq = salvage
            .first_seq
            .max(highest.unwrap_or_default())
            .saturating_add(SKIPPED_SEQS);
        for ((group, kind), records) in &mut salvage.streams {
            let stream = StreamId {
                kind: *kind,
                group: *group,
            };
            if let Some(ranges) = deleted.get(&stream) {
                records.retain(|seq, _| !ranges.contains(*seq));
            }
            salvage.records += records.len() as u64;
        }
        salvage.count(control);
        Ok(salvage)
    }

    fn look_through(
        &mut self,
        number: u64,
        bytes: &[u8],
        salt: u64,
        deleted: &mut HashMap<StreamId, Ranges>,
    ) {
        let (mut at, mut is_lost) = (SEGMENT_HEAD, false);
        while at < bytes.len() {
            let Some((commit, is_whole)) = Commit::parse_any(bytes, at, salt) else {
                // Room that was never used is no loss.
                is_lost |= bytes[at..bytes.len().min(at + 8)].iter().any(|b| *b != 0);
                at += 8;
                continue;
            };
            self.lost += u64::from(std::mem::take(&mut is_lost)) + u64::from(!is_whole);
            let mut entries = commit.contents.entries.iter();
            for (stream, count) in &commit.contents.runs {
                let records = self.streams.entry((stream.group, stream.kind)).or_default();
                let run = entries.by_ref().take(*count);
                records.extend(run.map(|entry| (entry.seq, (number, *entry))));
            }
            for (stream, ranges) in &commit.contents.deletes {
                deleted.entry(*stream).or_default().add_all(ranges);
            }
            at += commit.bytes.max(8);
        }
        self.lost += u64::from(is_lost);
    }

    /// What realms hold is counted anew: what was said of it counts what is lost, too.
    fn count(&mut self, control: &dyn ControlStore) {
        let groups = control.directory(DirectoryKind::Group).unwrap_or_default();
        let mut usage: HashMap<RealmId, u64> = HashMap::new();
        let mut counted = BTreeSet::new();
        for entry in groups {
            let Some(group) = GroupId::from_slice(&entry.key.name) else {
                continue;
            };
            let used = usage.entry(entry.realm).or_default();
            for kind in [StreamKind::Envelopes, StreamKind::Handshakes] {
                let records = self.streams.get(&(group, kind)).into_iter().flatten();
                *used += records.map(|(_, (_, e))| u64::from(e.budget_bytes)).sum::<u64>();
                counted.insert((group, kind));
            }
        }
        let strangers = self
            .streams
            .keys()
            .filter(|stream| !counted.contains(stream))
            .count();
        if strangers > 0 {
            tracing::warn!(strangers, "there are records of groups that no workspace has");
        }
        self.usage = usage.into_iter().collect();
    }
}

impl Origin for Salvage {
    fn records(&self, cursor: Option<&[u8]>) -> Records<'_> {
        let streams = self.streams.iter();
        let all = streams.flat_map(|((group, kind), records)| {
            records.values().map(move |place| {
                let stream = StreamId {
                    kind: *kind,
                    group: *group,
                };
                (stream, place)
            })
        });
        // Written into an empty store, in one go: where it began makes no difference.
        let skipped = if cursor.is_some() { usize::MAX } else { 0 };
        Box::new(all.skip(skipped).map(|(stream, (number, entry))| {
            let path = self.files.segment_path(*number);
            let mut bytes = vec![0; entry.bytes as usize];
            let file = self.files.open(&path).map_err(|e| io_error(&path, e))?;
            file.read_at(&mut bytes, entry.offset.into())
                .map_err(|e| io_error(&path, e))?;
            let append = Append {
                stream,
                seq: entry.seq,
                id: entry.id,
                bytes: Bytes::from(bytes),
                budget_bytes: entry.budget_bytes,
            };
            Ok((append, Vec::new()))
        }))
    }

    fn usage(&self) -> Result<Vec<(RealmId, u64)>, OpenError> {
        Ok(self.usage.clone())
    }

    fn first_seq(&self) -> u64 {
        self.first_seq
    }
}
