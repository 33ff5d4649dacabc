//! Opening: first everything is looked at ([`super::look`]), then what is found is made whole. And what both, and
//! `drover verify`, need for reading segments.

use super::disk::DiskFile;
use super::format::{Commit, Contents, SEGMENT_HEAD};
use super::index::{self, Held, Of, Summary};
use super::look::{Looked, Unsure, look};
use super::synced::{Synced, WRITERS_MAX};
use super::view::{Files, Sealed, View};
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
    /// See [`super::SegmentLog::first_seq`].
    pub(super) first_seq: u64,
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

/// What is wrong, for a list that says itself what to do.
pub(super) fn without_advice(reason: &str) -> &str {
    reason
        .strip_suffix(ADVICE)
        .and_then(|reason| reason.strip_suffix(". "))
        .unwrap_or(reason)
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

/// The segments there are.
pub(super) fn segment_paths(files: &Files) -> io::Result<BTreeMap<u64, PathBuf>> {
    let paths = files.disk.list(&files.folder)?.into_iter();
    let segments = paths.filter(|path| path.extension().is_some_and(|e| e == "seg"));
    Ok(segments
        .filter_map(|path| Some((number_of(&path)?, path)))
        .collect())
}

/// The number in a file's name.
pub(super) fn number_of(path: &Path) -> Option<u64> {
    let stem = path.file_stem()?.to_str()?;
    (stem.len() == 16).then(|| u64::from_str_radix(stem, 16).ok())?
}

/// Reads what is there and makes it whole.
///
/// # Errors
/// As [`look`], and then nothing is changed; what writing met.
pub(super) fn recover(
    files: &Arc<Files>,
    control: &dyn ControlStore,
    store: [u8; 16],
) -> Result<Recovered, OpenError> {
    look(files, control, store)?.make_whole(control)
}

impl Looked {
    fn make_whole(mut self, control: &dyn ControlStore) -> Result<Recovered, OpenError> {
        let files = self.files.clone();
        let (disk, folder) = (&*files.disk, &*files.folder);
        let mut sealed = Vec::with_capacity(self.sealed.len());
        for (of, summary) in std::mem::take(&mut self.sealed) {
            let summary = summary.map_or_else(|| self.reindex(&of), Ok)?;
            sealed.push(Arc::new(Sealed::new(of, summary, files.clone())));
        }
        self.view.switch(&[], sealed);
        self.synced.begin()?;
        // From here on they are shown, so they are written once more and synced.
        for Unsure {
            path,
            file,
            bytes,
            at,
        } in self.unsure
        {
            let kept = file.write_at(&bytes, at).and_then(|()| file.sync());
            kept.map_err(|e| io_error(&path, e))?;
        }
        for (path, file, at) in self.cuts {
            tracing::warn!(
                segment = %path.display(),
                at,
                "cutting off a commit that was interrupted before it was acknowledged"
            );
            let cut = file.set_length(at).and_then(|()| file.sync());
            cut.map_err(|e| io_error(&path, e))?;
        }
        for number in &self.needless {
            files.remove(*number);
        }
        for path in &self.leftovers {
            disk.remove(path).map_err(|e| io_error(path, e))?;
        }
        disk.sync_folder(folder).map_err(|e| io_error(folder, e))?;
        self.change
            .commit(control)
            .map_err(|error| io_error(folder, io::Error::other(error)))?;
        Ok(Recovered {
            view: self.view,
            synced: self.synced,
            found: self.found,
            next_number: self.next_number,
            next_lsn: self.last_lsn + 1,
            first_seq: self.first_seq,
            open: self.open,
        })
    }

    fn reindex(&self, of: &Of) -> Result<Summary, OpenError> {
        let disk = &*self.files.disk;
        let (path, index_path) = (
            self.files.segment_path(of.number),
            self.files.index_path(of.number),
        );
        tracing::warn!(index = %index_path.display(), "making the index of a segment again");
        let bytes = disk
            .open(&path)
            .and_then(|file| read_all(&*file))
            .map_err(|e| io_error(&path, e))?;
        self.head(&path, &bytes, of.number)?
            .filter(|head| head.salt == of.salt)
            .ok_or_else(|| damaged(path.clone(), "this segment's header is damaged"))?;
        let scan = scan(&bytes, of.salt);
        if scan.end != bytes.len() {
            return Err(damaged(
                path,
                format_args!("this segment is damaged at byte {}", scan.end),
            ));
        }
        index::write(disk, &index_path, &index::encode(&scan.held, of))
            .map_err(|e| io_error(&index_path, e))?;
        let file = disk.open(&index_path).map_err(|e| io_error(&index_path, e))?;
        Summary::read(&*file, of)
            .map_err(|e| io_error(&index_path, e))?
            .ok_or_else(|| damaged(index_path, "this index was just written and can't be read"))
    }
}
