//! Looking at a log before it is opened: what it holds, whether anything that was acknowledged is gone, and what has to be
//! done before it can be gone on with. Nothing is changed here.
//!
//! Sealed segments are not read: their indexes are enough. The few others are read from end to end. What does not parse
//! there is a torn tail exactly if no whole commit follows it and its writer's last commit before it is the last one that
//! was acknowledged ([`super::synced`]): a writer begins a commit only after the one before it was synced. It is to be cut
//! off. Everything else is damage, and the log does not open.

use super::disk::DiskFile;
use super::format::{Kind, SEGMENT_HEAD, SegmentHead};
use super::index::{Of, Summary};
use super::list::{self, Change, State};
use super::recover::{damaged, io_error, number_of, read_all, scan};
use super::synced::{Synced, WRITERS_MAX};
use super::view::{Files, Hot, View};
use crate::RealmId;
use crate::control::ControlStore;
use crate::embedded::OpenError;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a log holds and what has to be done before it can be gone on with. Nothing of that is done yet.
pub(super) struct Looked {
    pub(super) files: Arc<Files>,
    pub(super) store: [u8; 16],
    pub(super) synced: Synced,
    /// Unsealed segments and what realms hold.
    pub(super) view: View,
    /// With its summary, unless its index has to be made again.
    pub(super) sealed: Vec<(Of, Option<Summary>)>,
    pub(super) change: Change,
    pub(super) next_number: u64,
    pub(super) last_lsn: u64,
    pub(super) first_seq: u64,
    /// By writer: its last commit that was found.
    pub(super) found: [u64; WRITERS_MAX],
    /// By writer: its last segment with anything in it.
    pub(super) newest: [u64; WRITERS_MAX],
    /// By writer: the segment it was writing, if that has a clean end.
    pub(super) open: BTreeMap<usize, u64>,
    /// A segment without a whole header: one that was just being made, or all that is left of one.
    pub(super) headless: Option<PathBuf>,
    /// Segments that nothing needs any more.
    pub(super) needless: Vec<u64>,
    /// Indexes that were being written.
    pub(super) leftovers: Vec<PathBuf>,
    pub(super) unsure: Vec<Unsure>,
    /// Where commits are cut off that were interrupted.
    pub(super) cuts: Vec<(PathBuf, Arc<dyn DiskFile>, u64)>,
}

/// Commits that were not acknowledged. They may be on no disk although they can be read: their sync was never made, or
/// failed, which may leave their pages marked as written.
pub(super) struct Unsure {
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) bytes: Vec<u8>,
    pub(super) at: u64,
}

/// By writer: its last unsealed segment, and where that ends if it is torn there.
type Last = BTreeMap<usize, (u64, PathBuf, Option<usize>)>;

/// Reads what is there, and changes nothing.
///
/// # Errors
/// [`OpenError::Unusable`] if anything is damaged or missing that can't be made again.
pub(super) fn look(
    files: &Arc<Files>,
    control: &dyn ControlStore,
    store: [u8; 16],
) -> Result<Looked, OpenError> {
    let (disk, folder) = (&*files.disk, &*files.folder);
    let (synced, acknowledged) = Synced::open(disk, folder, &store)?;
    let listed = list::load(control).map_err(|error| {
        damaged(
            folder.into(),
            format_args!("the list of segments can't be read ({error})"),
        )
    })?;
    let mut paths = disk.list(folder).map_err(|e| io_error(folder, e))?;
    paths.sort();
    let mut looked = Looked {
        files: files.clone(),
        store,
        synced,
        view: View::default(),
        sealed: Vec::new(),
        change: Change::default(),
        next_number: 1,
        last_lsn: acknowledged.iter().copied().max().unwrap_or_default(),
        first_seq: listed.first_seq,
        found: [0; WRITERS_MAX],
        newest: [0; WRITERS_MAX],
        open: BTreeMap::new(),
        headless: None,
        needless: Vec::new(),
        leftovers: Vec::new(),
        unsure: Vec::new(),
        cuts: Vec::new(),
    };
    let mut unlisted: BTreeMap<u64, PathBuf> = BTreeMap::new();
    for path in paths.iter().filter(|path| has_extension(path, "seg")) {
        let number = number_of(path).ok_or_else(|| damaged(path.clone(), "this is no name of a segment"))?;
        unlisted.insert(number, path.clone());
    }
    for (writer, (number, last_lsn)) in &listed.writers {
        let writer = *writer as usize;
        if writer < WRITERS_MAX {
            (looked.newest[writer], looked.found[writer]) = (*number, *last_lsn);
        }
    }
    for (number, state) in listed.segments {
        looked.next_number = looked.next_number.max(number + 1);
        let path = unlisted.remove(&number);
        match state {
            State::Removed => {
                looked.needless.push(number);
                looked.change.forget(number);
            }
            State::Sealed {
                salt,
                length,
                last_lsn,
                ..
            } => {
                let of = Of {
                    store,
                    number,
                    salt,
                    length,
                };
                let path =
                    path.ok_or_else(|| damaged(files.segment_path(number), "this segment is missing"))?;
                let summary = looked.summary(&of, &path)?;
                looked.sealed.push((of, summary));
                looked.last_lsn = looked.last_lsn.max(last_lsn);
            }
        }
    }
    looked.unsealed(unlisted, &acknowledged)?;
    // What was saved of a later commit outlives what an older one said.
    let newer = |realm: &RealmId, lsn: u64| listed.usage.get(realm).is_none_or(|(saved, _)| *saved < lsn);
    looked.view.usage.retain(|realm, (lsn, _)| newer(realm, *lsn));
    let saved = listed.usage.values().map(|(lsn, _)| *lsn).max();
    looked.last_lsn = looked.last_lsn.max(saved.unwrap_or_default());
    looked.leftovers = paths
        .into_iter()
        .filter(|path| has_extension(path, "new"))
        .collect();
    Ok(looked)
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|e| e == extension)
}

impl Looked {
    /// Segments whose index will be made again.
    pub(super) fn unindexed(&self) -> impl Iterator<Item = u64> {
        let missing = self.sealed.iter().filter(|(_, summary)| summary.is_none());
        missing.map(|(of, _)| of.number)
    }

    /// What the index of a sealed segment says; `None` if it is missing or of no use.
    fn summary(&self, of: &Of, path: &Path) -> Result<Option<Summary>, OpenError> {
        let disk = &*self.files.disk;
        let file = disk.open(path).map_err(|e| io_error(path, e))?;
        let length = file.length().map_err(|e| io_error(path, e))?;
        if length != of.length {
            return Err(damaged(
                path.into(),
                format_args!("this segment has {length} bytes and should have {}", of.length),
            ));
        }
        let index_path = self.files.index_path(of.number);
        match disk
            .open(&index_path)
            .and_then(|index| Summary::read(&*index, of))
        {
            Ok(summary) => Ok(summary),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(io_error(&index_path, e)),
        }
    }

    /// A segment's header; `None` if it is not whole.
    pub(super) fn head(
        &self,
        path: &Path,
        bytes: &[u8],
        number: u64,
    ) -> Result<Option<SegmentHead>, OpenError> {
        let Some(head) = SegmentHead::decode(bytes) else {
            return Ok(None);
        };
        if head.store != self.store || head.number != number {
            return Err(damaged(
                path.into(),
                "this is a segment of another store or another number",
            ));
        }
        Ok(Some(head))
    }

    /// Segments that are not in the list.
    fn unsealed(&mut self, unlisted: BTreeMap<u64, PathBuf>, acknowledged: &[u64]) -> Result<(), OpenError> {
        let mut last = Last::new();
        let mut torn = Vec::new();
        for (number, path) in unlisted {
            self.next_number = self.next_number.max(number + 1);
            let file = self.files.disk.open(&path).map_err(|e| io_error(&path, e))?;
            let bytes = read_all(&*file).map_err(|e| io_error(&path, e))?;
            let Some(head) = self.head(&path, &bytes, number)? else {
                // The header is durable before anything else is written.
                if bytes
                    .get(SEGMENT_HEAD..)
                    .is_some_and(|rest| rest.iter().any(|b| *b != 0))
                {
                    return Err(damaged(path, "this segment's header, from byte 0 on, is damaged"));
                }
                self.needless.push(number);
                self.headless = Some(path);
                continue;
            };
            let writer = head.writer as usize;
            if head.kind == Kind::Rewritten {
                // What an interrupted compaction had written.
                self.needless.push(number);
                continue;
            }
            if writer >= WRITERS_MAX {
                return Err(damaged(path, "this segment names a writer that can't be"));
            }
            let scan = scan(&bytes, head.salt);
            let at = scan.end;
            if scan.is_broken {
                return Err(damaged(
                    path,
                    format_args!("this segment is damaged at byte {at}"),
                ));
            }
            if scan.is_torn {
                torn.push((writer, number, path.clone(), at));
            }
            if scan.held.last_lsn == 0 {
                // Nothing was ever acknowledged from here, if all its writer did acknowledge lies elsewhere.
                last.entry(writer).or_insert((number, path, None));
                self.needless.push(number);
                continue;
            }
            let before = self.found[writer];
            // Where an earlier one is torn, that is to be told.
            let is_whole = torn
                .iter()
                .all(|(of, other, ..)| *of != writer || *other == number);
            if let Some(previous) = scan.previous.filter(|previous| is_whole && *previous != before) {
                return Err(damaged(
                    path,
                    format_args!(
                        "commits are missing: {previous} comes before those of this segment, and the last one of earlier \
                         segments is {before}"
                    ),
                ));
            }
            if let Some((_, from)) = scan.commits.iter().find(|(lsn, _)| *lsn > acknowledged[writer]) {
                self.unsure.push(Unsure {
                    path: path.clone(),
                    file: file.clone(),
                    bytes: bytes[*from..at].to_vec(),
                    at: *from as u64,
                });
            }
            self.newest[writer] = self.newest[writer].max(number);
            self.found[writer] = self.found[writer].max(scan.held.last_lsn);
            self.last_lsn = self.last_lsn.max(scan.held.last_lsn);
            last.insert(writer, (number, path, scan.is_torn.then_some(at)));
            for (lsn, realm, bytes) in scan.usage {
                let known = self.view.usage.entry(realm).or_default();
                if known.0 <= lsn {
                    *known = (lsn, bytes);
                }
            }
            let of = Of {
                store: self.store,
                number,
                salt: head.salt,
                length: at as u64,
            };
            self.view.hot.push(Hot {
                of,
                writer,
                file,
                held: Arc::new(scan.held),
            });
        }
        // Only a writer's last commit can be torn, so nothing of it may follow a torn one, be that sealed by now or not.
        for (writer, number, path, at) in torn {
            if self.newest[writer] > number {
                return Err(damaged(
                    path,
                    format_args!("this segment is damaged at byte {at}"),
                ));
            }
        }
        self.check_acknowledged(&last, acknowledged)?;
        for (writer, (number, path, torn_at)) in last {
            let Some(hot) = self.view.hot.iter().find(|hot| hot.of.number == number) else {
                continue;
            };
            match torn_at {
                None => drop(self.open.insert(writer, number)),
                Some(at) => self.cuts.push((path, hot.file.clone(), at as u64)),
            }
        }
        Ok(())
    }

    /// Everything that was acknowledged must be there.
    fn check_acknowledged(&self, last: &Last, acknowledged: &[u64]) -> Result<(), OpenError> {
        for (writer, (acknowledged, found)) in acknowledged.iter().zip(self.found).enumerate() {
            if found >= *acknowledged {
                continue;
            }
            let (path, at) = match last.get(&writer) {
                Some((_, path, at)) => (path.clone(), at.unwrap_or(SEGMENT_HEAD)),
                None => (
                    self.headless.clone().unwrap_or_else(|| self.files.folder.clone()),
                    0,
                ),
            };
            return Err(damaged(
                path,
                format_args!(
                    "commits are missing: {acknowledged} was acknowledged, the last one found is {found}. This segment \
                     is damaged or cut short at byte {at}, or a later one is gone"
                ),
            ));
        }
        Ok(())
    }
}
