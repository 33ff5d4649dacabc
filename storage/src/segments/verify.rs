//! Looking at all of a log, byte by byte, and saving what is intact of one that is damaged. Both only read.

use super::disk::Disk;
use super::format::{Commit, Entry, Kind, SEGMENT_HEAD, SegmentHead};
use super::import::{Origin, Records};
use super::index::{self, Of};
use super::list::{self, State};
use super::ranges::Ranges;
use super::recover::{io_error, number_of, read_all, scan};
use super::view::Files;
use crate::RealmId;
use crate::control::{ControlStore, DirectoryKind};
use crate::embedded::{Damage, Findings, OpenError};
use crate::log::{Append, StreamId, StreamKind};
use bytes::Bytes;
use drover_wire::id::GroupId;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Reads every segment and every index and tells what is wrong with them. The log must be closed.
pub(crate) fn verify(
    disk: &dyn Disk,
    folder: &Path,
    control: &dyn ControlStore,
    store: &[u8; 16],
) -> Findings {
    let mut findings = Findings::default();
    let note = |findings: &mut Findings, file: &Path, offset: usize, what: &str| {
        findings.damage.push(Damage {
            file: file.into(),
            offset: offset as u64,
            what: what.into(),
        });
    };
    let paths = match segment_paths(disk, folder) {
        Ok(paths) => paths,
        Err(error) => {
            note(&mut findings, folder, 0, &error.to_string());
            return findings;
        }
    };
    // By writer: its last commit in the segments before.
    let mut last: HashMap<u32, u64> = HashMap::new();
    let listed: BTreeMap<u64, State> = match list::load(control) {
        Ok(list) => {
            last.extend(list.writers.iter().map(|(writer, (_, lsn))| (*writer, *lsn)));
            list.segments.into_iter().collect()
        }
        Err(error) => {
            note(
                &mut findings,
                folder,
                0,
                &format!("the list of segments can't be read ({error})"),
            );
            return findings;
        }
    };
    for (number, state) in &listed {
        if matches!(state, State::Sealed { .. }) && !paths.contains_key(number) {
            note(
                &mut findings,
                &folder.join(format!("{number:016x}.seg")),
                0,
                "this segment is missing",
            );
        }
    }
    for (number, path) in &paths {
        let state = listed.get(number);
        if state == Some(&State::Removed) {
            continue;
        }
        let bytes = match disk.open(path).and_then(|file| read_all(&*file)) {
            Ok(bytes) => bytes,
            Err(error) => {
                note(&mut findings, path, 0, &format!("can't be read: {error}"));
                continue;
            }
        };
        findings.segments += 1;
        let head = SegmentHead::decode(&bytes).filter(|head| head.store == *store && head.number == *number);
        let Some(head) = head else {
            note(&mut findings, path, 0, "the header is damaged");
            continue;
        };
        if head.kind == Kind::Rewritten && state.is_none() {
            continue; // what an interrupted compaction left
        }
        let scan = scan(&bytes, head.salt);
        findings.records += scan.held.entries as u64;
        findings.bytes += scan.end as u64;
        if state.is_none() && !scan.commits.is_empty() {
            let before = last.insert(head.writer, scan.held.last_lsn).unwrap_or_default();
            if scan.previous.is_some_and(|previous| previous != before) {
                note(
                    &mut findings,
                    path,
                    SEGMENT_HEAD,
                    "the commits before this one are missing",
                );
            }
        }
        match state {
            Some(State::Sealed { salt, length, .. }) => {
                if scan.end as u64 != *length || bytes.len() as u64 != *length || head.salt != *salt {
                    note(
                        &mut findings,
                        path,
                        scan.end,
                        "what follows is damaged or cut off",
                    );
                    continue;
                }
                let of = Of {
                    store: *store,
                    number: *number,
                    salt: *salt,
                    length: *length,
                };
                let path = path.with_extension("idx");
                let expected = index::encode(&scan.held, &of);
                let found = disk
                    .open(&path)
                    .and_then(|file| read_all(&*file))
                    .unwrap_or_default();
                if found != expected {
                    let at = found.iter().zip(&expected).take_while(|(a, b)| a == b).count();
                    let what =
                        "this index is damaged or missing; remove it, and it is made again at the next start";
                    note(&mut findings, &path, at, what);
                }
            }
            _ if scan.is_torn => {
                let what = match scan.is_broken {
                    true => "what follows is damaged",
                    false => {
                        "what follows is damaged, or a commit that was interrupted before it was acknowledged"
                    }
                };
                note(&mut findings, path, scan.end, what);
            }
            _ => {}
        }
    }
    findings
}

fn segment_paths(disk: &dyn Disk, folder: &Path) -> std::io::Result<BTreeMap<u64, PathBuf>> {
    let paths = disk.list(folder)?.into_iter();
    let segments = paths.filter(|path| path.extension().is_some_and(|e| e == "seg"));
    Ok(segments
        .filter_map(|path| Some((number_of(&path)?, path)))
        .collect())
}

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
        let listed: BTreeMap<u64, State> = list::load(control)
            .unwrap_or_default()
            .segments
            .into_iter()
            .collect();
        let mut salvage = Self {
            files: files.clone(),
            streams: BTreeMap::new(),
            usage: Vec::new(),
            lost: 0,
            records: 0,
        };
        let mut deleted: HashMap<StreamId, Ranges> = HashMap::new();
        for (number, path) in segment_paths(&*files.disk, folder).map_err(|e| io_error(folder, e))? {
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
}
