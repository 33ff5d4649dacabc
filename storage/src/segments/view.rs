//! What is visible: the segments that are read, and what is known of each without opening it. A change of it is seen
//! whole or not at all, and only what is durable is ever put in.

use super::disk::{Disk, DiskFile};
use super::format::Contents;
use super::index::{Held, Of, Summary};
use crate::log::StreamId;
use crate::{RealmId, StoreError};
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Files of sealed segments that are kept open. The transport leaves 512 to the store, fjall takes 128 of them.
const OPEN_FILES_MAX: usize = 128;

/// A segment whose index is in memory: one that is being written, or whose index file is not made yet.
pub(super) struct Hot {
    pub(super) of: Of,
    /// Who writes it.
    pub(super) writer: usize,
    pub(super) file: Arc<dyn DiskFile>,
    /// Shared while its index file is made; nothing is added then.
    pub(super) held: Arc<Held>,
}

/// A segment with an index file.
pub(super) struct Sealed {
    pub(super) of: Of,
    pub(super) summary: Summary,
    files: Arc<Files>,
    /// Bytes of records that were deleted since, as far as they were counted.
    pub(super) dead_bytes: AtomicU64,
    /// It could not be rewritten, and is not tried again.
    pub(super) is_unfit: AtomicBool,
    /// What it held lies elsewhere now: the files go with the last reader.
    removed: AtomicBool,
}

impl Sealed {
    pub(super) fn new(of: Of, summary: Summary, files: Arc<Files>) -> Self {
        Self {
            of,
            summary,
            files,
            dead_bytes: AtomicU64::new(0),
            is_unfit: AtomicBool::new(false),
            removed: AtomicBool::new(false),
        }
    }

    pub(super) fn segment(&self) -> Result<Arc<dyn DiskFile>, StoreError> {
        let path = self.files.segment_path(self.of.number);
        self.files.open(&path).map_err(super::index::read_failed)
    }

    pub(super) fn index(&self) -> Result<Arc<dyn DiskFile>, StoreError> {
        let path = self.files.index_path(self.of.number);
        self.files.open(&path).map_err(super::index::read_failed)
    }

    /// Has the files removed once nobody reads them any more.
    pub(super) fn remove(&self) {
        self.removed.store(true, Ordering::Release);
    }
}

impl Drop for Sealed {
    fn drop(&mut self) {
        if self.removed.load(Ordering::Acquire) {
            self.files.remove(self.of.number);
        }
    }
}

/// The files of the log: where they lie, and a few that are open.
pub(super) struct Files {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) folder: PathBuf,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    files: HashMap<PathBuf, (Arc<dyn DiskFile>, u64)>,
    /// Rises with each use.
    clock: u64,
}

impl Files {
    pub(super) fn new(disk: Arc<dyn Disk>, folder: &Path) -> Self {
        Self {
            disk,
            folder: folder.into(),
            open: Mutex::default(),
        }
    }

    pub(super) fn segment_path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number:016x}.seg"))
    }

    pub(super) fn index_path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number:016x}.idx"))
    }

    /// A file that may be open already.
    pub(super) fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.clock += 1;
        let clock = open.clock;
        if let Some((file, used)) = open.files.get_mut(path) {
            *used = clock;
            return Ok(file.clone());
        }
        let file = self.disk.open(path)?;
        if open.files.len() >= OPEN_FILES_MAX {
            // Half of them go at once, so that looking for the oldest is rare.
            let mut uses: Vec<u64> = open.files.values().map(|(_, used)| *used).collect();
            uses.sort_unstable();
            let keep_from = uses[uses.len() / 2];
            open.files.retain(|_, (_, used)| *used >= keep_from);
        }
        open.files.insert(path.into(), (file.clone(), clock));
        Ok(file)
    }

    pub(super) fn remove(&self, number: u64) {
        for path in [self.index_path(number), self.segment_path(number)] {
            self.open
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .files
                .remove(&path);
            if let Err(error) = self.disk.remove(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(%error, file = %path.display(), "a segment that is not needed any more could not be removed");
            }
        }
    }
}

/// All that is visible.
#[derive(Default)]
pub(super) struct View {
    /// A few.
    pub(super) hot: Vec<Hot>,
    /// By number, ascending.
    pub(super) sealed: Arc<Vec<Arc<Sealed>>>,
    /// Changes with `sealed`.
    pub(super) generation: u64,
    /// What realms hold, as far as the control store does not know it yet; with the number of the commit that said so.
    pub(super) usage: HashMap<RealmId, (u64, u64)>,
}

impl View {
    /// Takes in a commit that is durable.
    pub(super) fn add(&mut self, number: u64, length: u64, contents: &Contents) {
        if let Some(hot) = self.hot.iter_mut().find(|hot| hot.of.number == number) {
            Arc::make_mut(&mut hot.held).add(contents);
            hot.of.length = length;
        }
        for (realm, bytes) in &contents.usage {
            let known = self.usage.entry(realm.clone()).or_default();
            if known.0 <= contents.lsn {
                *known = (contents.lsn, *bytes);
            }
        }
    }

    /// Puts sealed segments in place of others, hot or sealed.
    pub(super) fn switch(&mut self, gone: &[u64], new: impl IntoIterator<Item = Arc<Sealed>>) {
        self.hot.retain(|hot| !gone.contains(&hot.of.number));
        let kept = self.sealed.iter().filter(|s| !gone.contains(&s.of.number));
        let mut sealed: Vec<_> = kept.cloned().chain(new).collect();
        sealed.sort_by_key(|s| s.of.number);
        self.sealed = Arc::new(sealed);
        self.generation += 1;
    }
}

/// The view, shared.
#[derive(Default)]
pub(super) struct Shared(RwLock<View>);

impl Shared {
    pub(super) fn new(view: View) -> Self {
        Self(RwLock::new(view))
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, View> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, View> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a stream has anything to do with a hot segment.
impl Hot {
    pub(super) fn concerns(&self, stream: StreamId) -> bool {
        self.held.streams.contains_key(&stream) || self.held.deletes.contains_key(&stream)
    }
}
