//! The log as it was at one moment, copied while everything goes on.
//!
//! Sealed segments never change, and of the others nothing below their length does: so a snapshot is the sealed segments
//! and a prefix of each open one. To take one is a look at the view. The copying holds up nobody: it is done in small
//! steps with pauses, and files a compaction replaces meanwhile stay until the snapshot is gone.

use super::SegmentLog;
use super::disk::{Disk, DiskFile};
use super::format::SEGMENT_HEAD;
use super::index::Of;
use super::list::{self, Change, REWRITTEN, State};
use super::recover::io_error;
use super::synced::Synced;
use super::view::{Files, Sealed};
use crate::RealmId;
use crate::control::ControlStore;
use crate::embedded::OpenError;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Bytes copied in one step.
const STEP_BYTES: usize = 256 << 10;
/// Steps between two syncs, so that none of them keeps the disk from everybody else for long.
const STEPS_A_SYNC: usize = 8;
/// A pause is this many times as long as the step before it.
const PAUSE_FACTOR: u32 = 2;
/// But no longer than this: a step that took long was waiting itself.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// A log at one moment.
pub(crate) struct LogSnapshot {
    store: [u8; 16],
    /// Where it lies.
    files: Arc<Files>,
    sealed: Arc<Vec<Arc<Sealed>>>,
    prefixes: Vec<Prefix>,
    /// What realms held, as far as the control store did not know it; with the number of the commit that said so.
    usage: HashMap<RealmId, (u64, u64)>,
}

/// The beginning of a segment that is not sealed.
struct Prefix {
    of: Of,
    writer: usize,
    last_lsn: u64,
    file: Arc<dyn DiskFile>,
}

impl SegmentLog {
    /// The log as it is now, and what `beside` sees at the same moment: no commit of the log becomes visible while it
    /// looks, so it must be quick.
    pub(crate) fn snapshot<T>(&self, beside: impl FnOnce() -> T) -> (LogSnapshot, T) {
        let view = self.core.view.read();
        let prefixes = view.hot.iter().filter(|hot| hot.of.length > SEGMENT_HEAD as u64);
        let snapshot = LogSnapshot {
            store: self.core.store,
            files: self.core.files.clone(),
            sealed: view.sealed.clone(),
            prefixes: prefixes
                .map(|hot| Prefix {
                    of: hot.of,
                    writer: hot.writer,
                    last_lsn: hot.held.last_lsn,
                    file: hot.file.clone(),
                })
                .collect(),
            usage: view.usage.clone(),
        };
        (snapshot, beside())
    }
}

impl LogSnapshot {
    /// The store it is of.
    pub(crate) fn store(&self) -> &[u8; 16] {
        &self.store
    }

    /// Bytes of its segments.
    pub(crate) fn bytes(&self) -> u64 {
        let sealed = self.sealed.iter().map(|segment| segment.of.length);
        let prefixes = self.prefixes.iter().map(|prefix| prefix.of.length);
        sealed.chain(prefixes).sum()
    }

    /// Writes it into an empty log, made by [`SegmentLog::create`]. `control` gets its list of segments; what that says
    /// of realms must be of the same moment.
    ///
    /// # Errors
    /// What reading or writing met.
    pub(crate) fn copy(
        &self,
        disk: Arc<dyn Disk>,
        folder: &Path,
        control: &dyn ControlStore,
    ) -> Result<(), OpenError> {
        let failed = |error: io::Error| io_error(folder, error);
        let unlisted = |error| failed(io::Error::other(error));
        let files = Files::new(disk, folder);
        let copy_index = |number, index: Arc<dyn DiskFile>| {
            let length = index.length().map_err(failed)?;
            copy(&*files.disk, &*index, length, &files.index_path(number))
        };
        let mut change = Change::default();
        // A list that is being changed may be ahead of what was visible.
        let listed: HashMap<u64, State> = list::load(control)
            .map_err(unlisted)?
            .segments
            .into_iter()
            .collect();
        let is_sealed = |number| matches!(listed.get(&number), Some(State::Sealed { .. }));
        for number in listed.keys() {
            let is = |of: &Of| of.number == *number;
            let mut prefixes = self.prefixes.iter().map(|prefix| &prefix.of);
            let is_copied =
                self.sealed.iter().any(|segment| is(&segment.of)) || (is_sealed(*number) && prefixes.any(is));
            if !is_copied {
                change.forget(*number);
            }
        }
        for segment in &*self.sealed {
            let number = segment.of.number;
            let file = segment.segment().map_err(unlisted)?;
            copy(
                &*files.disk,
                &*file,
                segment.of.length,
                &files.segment_path(number),
            )?;
            copy_index(number, segment.index().map_err(unlisted)?)?;
            if !is_sealed(number) {
                // Nobody goes on with it, so it makes no difference who wrote it.
                let state = State::Sealed {
                    writer: REWRITTEN,
                    salt: segment.of.salt,
                    length: segment.of.length,
                    last_lsn: segment.summary.last_lsn,
                };
                change.set(number, state);
            }
        }
        let (synced, _) = Synced::open(&*files.disk, folder, &self.store)?;
        let mut acknowledged: HashMap<usize, u64> = HashMap::new();
        for prefix in &self.prefixes {
            let path = files.segment_path(prefix.of.number);
            copy(&*files.disk, &*prefix.file, prefix.of.length, &path)?;
            if is_sealed(prefix.of.number) {
                let index = self.files.index_path(prefix.of.number);
                copy_index(prefix.of.number, self.files.open(&index).map_err(failed)?)?;
            }
            let last = acknowledged.entry(prefix.writer).or_default();
            *last = prefix.last_lsn.max(*last);
        }
        for (writer, lsn) in acknowledged {
            synced.advance(writer, lsn).map_err(failed)?;
        }
        synced.close();
        files.disk.sync_folder(folder).map_err(failed)?;
        for (realm, (lsn, bytes)) in &self.usage {
            change.usage(realm, *lsn, *bytes);
        }
        change.commit(control).map_err(unlisted)
    }
}

/// Copies the first bytes of a file into a new one, and makes that durable.
fn copy(disk: &dyn Disk, from: &dyn DiskFile, bytes: u64, to: &Path) -> Result<(), OpenError> {
    let failed = |error: io::Error| io_error(to, error);
    let file = disk.create(to).map_err(failed)?;
    let mut buffer = vec![0; STEP_BYTES];
    let (mut at, mut steps) = (0, 0);
    while at < bytes {
        let began = Instant::now();
        let step = (bytes - at).min(STEP_BYTES as u64);
        let piece = &mut buffer[..step as usize];
        from.read_at(piece, at).map_err(failed)?;
        file.write_at(piece, at).map_err(failed)?;
        at += step;
        steps += 1;
        if steps % STEPS_A_SYNC == 0 {
            file.sync().map_err(failed)?;
        }
        thread::sleep((began.elapsed() * PAUSE_FACTOR).min(PAUSE_MAX));
    }
    file.sync().map_err(failed)
}
