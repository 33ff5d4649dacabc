//! Opening: which segments there are, what the unsealed ones hold, and whether anything that was acknowledged is gone.
//!
//! Sealed segments are not read: their indexes are enough. The few others are read from end to end. What does not parse
//! there is a torn tail exactly if no whole commit follows it and its writer's last commit before it is the last one that
//! was acknowledged ([`super::synced`]): a writer begins a commit only after the one before it was synced. It is cut off.
//! Everything else is damage: nothing is changed, and the store does not open.

use super::disk::{Disk, DiskFile};
use super::format::{Commit, Contents, Kind, SEGMENT_HEAD, SegmentHead};
use super::index::{self, Held, Of, Summary};
use super::list::{self, Change, State};
use super::synced::{Synced, WRITERS_MAX};
use super::view::{Files, Hot, Sealed, View};
use crate::RealmId;
use crate::control::ControlStore;
use crate::embedded::OpenError;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What every report of damage ends with.
const ADVICE: &str = "Nothing was changed. `drover verify` lists all damage; restore the folder from a backup, or save \
                      what is intact into a new store with `drover repair`";

/// A log that is ready to be gone on with.
pub(super) struct Recovered {
    pub(super) view: View,
    pub(super) synced: Synced,
    /// The number the next segment gets.
    pub(super) next_number: u64,
    /// The number the next commit gets.
    pub(super) next_lsn: u64,
    /// By writer: the number of its last commit.
    pub(super) found: [u64; WRITERS_MAX],
    /// By writer: the segment it was writing, if that has a clean end.
    pub(super) open: BTreeMap<usize, u64>,
}

pub(super) fn damaged(file: PathBuf, what: impl std::fmt::Display) -> OpenError {
    OpenError::Unusable {
        file,
        reason: format!("{what}. {ADVICE}"),
    }
}

/// An error of the operating system.
pub(super) fn io_error(file: &Path, error: io::Error) -> OpenError {
    OpenError::Io {
        file: file.into(),
        error,
    }
}

/// What reading a segment from end to end found.
pub(super) struct Scan {
    pub(super) held: Held,
    pub(super) usage: Vec<(u64, RealmId, u64)>,
    /// Number and place of each commit.
    pub(super) commits: Vec<(u64, usize)>,
    /// The commit that its writer wrote before the first one, if that says so.
    pub(super) previous: Option<u64>,
    /// Where whole commits end.
    pub(super) end: usize,
    /// Whether something else than zeros follows.
    pub(super) is_torn: bool,
    /// Whether a whole commit does.
    pub(super) is_broken: bool,
}

/// Reads a segment's commits.
pub(super) fn scan(bytes: &[u8], salt: u64) -> Scan {
    let mut scan = Scan {
        held: Held::default(),
        usage: Vec::new(),
        commits: Vec::new(),
        previous: None,
        end: SEGMENT_HEAD,
        is_torn: false,
        is_broken: false,
    };
    let follows = |scan: &Scan, contents: &Contents| match scan.commits.last() {
        None => true,
        Some((last, _)) => contents.lsn > *last && contents.previous.is_none_or(|previous| previous == *last),
    };
    while let Some(commit) =
        Commit::parse(bytes, scan.end, salt).filter(|commit| follows(&scan, &commit.contents))
    {
        if scan.commits.is_empty() {
            scan.previous = commit.contents.previous;
        }
        scan.held.add(&commit.contents);
        let lsn = commit.contents.lsn;
        scan.commits.push((lsn, scan.end));
        scan.usage.extend(
            commit
                .contents
                .usage
                .into_iter()
                .map(|(realm, bytes)| (lsn, realm, bytes)),
        );
        scan.end += commit.bytes;
    }
    let rest = bytes.get(scan.end..).unwrap_or_default();
    scan.is_torn = rest.iter().any(|b| *b != 0);
    scan.is_broken = scan.is_torn && Commit::any_from(bytes, scan.end + 1, salt);
    scan
}

/// The whole of a file.
pub(super) fn read_all(file: &dyn DiskFile) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; file.length()? as usize];
    file.read_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// The number in a file's name.
pub(super) fn number_of(path: &Path) -> Option<u64> {
    let stem = path.file_stem()?.to_str()?;
    (stem.len() == 16).then(|| u64::from_str_radix(stem, 16).ok())?
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|e| e == extension)
}

struct Recovery<'a> {
    files: &'a Arc<Files>,
    disk: &'a dyn Disk,
    store: [u8; 16],
    view: View,
    change: Change,
    next_number: u64,
    last_lsn: u64,
    /// By writer: its last commit that was found.
    found: [u64; WRITERS_MAX],
    /// By writer: its last segment with anything in it.
    newest: [u64; WRITERS_MAX],
    /// A segment without a whole header: one that was just being made, or all that is left of one.
    headless: Option<PathBuf>,
    /// Segments to be removed once it is known that nothing is missing.
    needless: Vec<u64>,
}

/// By writer: its last unsealed segment, and where that ends if it is torn there.
type Last = BTreeMap<usize, (u64, PathBuf, Option<usize>)>;

/// Reads what is there and makes it whole.
pub(super) fn recover(
    files: &Arc<Files>,
    control: &dyn ControlStore,
    store: [u8; 16],
) -> Result<Recovered, OpenError> {
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
    let mut recovery = Recovery {
        files,
        disk,
        store,
        view: View::default(),
        change: Change::default(),
        next_number: 1,
        last_lsn: acknowledged.iter().copied().max().unwrap_or_default(),
        found: [0; WRITERS_MAX],
        newest: [0; WRITERS_MAX],
        headless: None,
        needless: Vec::new(),
    };
    let mut unlisted: BTreeMap<u64, PathBuf> = BTreeMap::new();
    for path in paths.iter().filter(|path| has_extension(path, "seg")) {
        let number = number_of(path).ok_or_else(|| damaged(path.clone(), "this is no name of a segment"))?;
        unlisted.insert(number, path.clone());
    }
    for (writer, (number, last_lsn)) in &listed.writers {
        let writer = *writer as usize;
        if writer < WRITERS_MAX {
            (recovery.newest[writer], recovery.found[writer]) = (*number, *last_lsn);
        }
    }
    let mut sealed = Vec::new();
    for (number, state) in listed.segments {
        recovery.next_number = recovery.next_number.max(number + 1);
        let path = unlisted.remove(&number);
        match state {
            State::Removed => {
                recovery.needless.push(number);
                recovery.change.forget(number);
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
                if path.is_none() {
                    return Err(damaged(files.segment_path(number), "this segment is missing"));
                }
                sealed.push(Arc::new(recovery.sealed(of)?));
                recovery.last_lsn = recovery.last_lsn.max(last_lsn);
            }
        }
    }
    let open = recovery.unsealed(unlisted, &acknowledged)?;
    recovery.view.switch(&[], sealed);
    // What was saved of a later commit outlives what an older one said.
    let newer = |realm: &RealmId, lsn: u64| listed.usage.get(realm).is_none_or(|(saved, _)| *saved < lsn);
    recovery.view.usage.retain(|realm, (lsn, _)| newer(realm, *lsn));
    let saved = listed.usage.values().map(|(lsn, _)| *lsn).max();
    for number in &recovery.needless {
        files.remove(*number);
    }
    // Leftovers of an index that was being written.
    for path in paths.iter().filter(|path| has_extension(path, "new")) {
        disk.remove(path).map_err(|e| io_error(path, e))?;
    }
    disk.sync_folder(folder).map_err(|e| io_error(folder, e))?;
    recovery
        .change
        .commit(control)
        .map_err(|error| io_error(folder, io::Error::other(error)))?;
    Ok(Recovered {
        view: recovery.view,
        synced,
        found: recovery.found,
        next_number: recovery.next_number,
        next_lsn: recovery.last_lsn.max(saved.unwrap_or_default()) + 1,
        open,
    })
}

impl Recovery<'_> {
    /// A sealed segment; its index is made again if that is missing or of no use.
    fn sealed(&self, of: Of) -> Result<Sealed, OpenError> {
        let path = self.files.segment_path(of.number);
        let file = self.disk.open(&path).map_err(|e| io_error(&path, e))?;
        let length = file.length().map_err(|e| io_error(&path, e))?;
        if length != of.length {
            return Err(damaged(
                path,
                format_args!("this segment has {length} bytes and should have {}", of.length),
            ));
        }
        let index_path = self.files.index_path(of.number);
        let read = |file: Arc<dyn DiskFile>| Summary::read(&*file, &of);
        let summary = match self.disk.open(&index_path).and_then(read) {
            Ok(summary) => summary,
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(io_error(&index_path, e)),
        };
        let summary = match summary {
            Some(summary) => summary,
            None => {
                tracing::warn!(index = %index_path.display(), "making the index of a segment again");
                self.reindex(&of, &*file, &path)?
            }
        };
        Ok(Sealed::new(of, summary, self.files.clone()))
    }

    fn reindex(&self, of: &Of, file: &dyn DiskFile, path: &Path) -> Result<Summary, OpenError> {
        let bytes = read_all(file).map_err(|e| io_error(path, e))?;
        self.head(path, &bytes, of.number)?
            .filter(|head| head.salt == of.salt)
            .ok_or_else(|| damaged(path.into(), "this segment's header is damaged"))?;
        let scan = scan(&bytes, of.salt);
        if scan.end != bytes.len() {
            return Err(damaged(
                path.into(),
                format_args!("this segment is damaged at byte {}", scan.end),
            ));
        }
        let index_path = self.files.index_path(of.number);
        index::write(self.disk, &index_path, &index::encode(&scan.held, of))
            .map_err(|e| io_error(&index_path, e))?;
        let file = self
            .disk
            .open(&index_path)
            .map_err(|e| io_error(&index_path, e))?;
        Summary::read(&*file, of)
            .map_err(|e| io_error(&index_path, e))?
            .ok_or_else(|| damaged(index_path, "this index was just written and can't be read"))
    }

    /// A segment's header; `None` if it is not whole.
    fn head(&self, path: &Path, bytes: &[u8], number: u64) -> Result<Option<SegmentHead>, OpenError> {
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
    fn unsealed(
        &mut self,
        unlisted: BTreeMap<u64, PathBuf>,
        acknowledged: &[u64],
    ) -> Result<BTreeMap<usize, u64>, OpenError> {
        let mut last = Last::new();
        let mut torn = Vec::new();
        let mut unsure = Vec::new();
        for (number, path) in unlisted {
            self.next_number = self.next_number.max(number + 1);
            let file = self.disk.open(&path).map_err(|e| io_error(&path, e))?;
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
                tracing::info!(segment = %path.display(), "removing what an interrupted compaction had written");
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
                unsure.push((
                    path.clone(),
                    file.clone(),
                    bytes[*from..at].to_vec(),
                    *from as u64,
                ));
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
        // What was not acknowledged may be on no disk although it can be read: its sync was never made, or failed, which
        // may leave its pages marked as written. From here on it is shown, so it is written once more and synced.
        for (path, file, bytes, at) in unsure {
            let kept = file.write_at(&bytes, at).and_then(|()| file.sync());
            kept.map_err(|e| io_error(&path, e))?;
        }
        let mut open = BTreeMap::new();
        for (writer, (number, path, torn_at)) in last {
            let Some(hot) = self.view.hot.iter().find(|hot| hot.of.number == number) else {
                continue;
            };
            match torn_at {
                None => {
                    open.insert(writer, number);
                }
                Some(at) => {
                    tracing::warn!(
                        segment = %path.display(),
                        at,
                        "cutting off a commit that was interrupted before it was acknowledged"
                    );
                    let cut = hot.file.set_length(at as u64).and_then(|()| hot.file.sync());
                    cut.map_err(|e| io_error(&path, e))?;
                }
            }
        }
        Ok(open)
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
