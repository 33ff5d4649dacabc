//! Both stores in one folder: the default. The log is our own ([`crate::segments`]), the control store lies on fjall.
//!
//! | Module | Story |
//! | --- | --- |
//! | `format` | the folder: lock, version, creation |
//! | `fjall_control` | the control store |
//! | `migrate` | from stores of the first format |
//! | `audit` | what fjall does not notice of damage, or would repair by cutting |
//! | `synced` | the control store's last commit known to be durable, kept outside the database |
//! | `tables` | which key holds what |
//! | `committer` | the one thread that writes there |
//! | `readers` | the two threads that read there |

mod audit;
mod committer;
mod fjall_control;
mod format;
mod migrate;
mod readers;
mod synced;
mod tables;
#[cfg(test)]
mod tests;

use self::fjall_control::FjallControl;
use crate::control::{ControlBatch, ControlStore, DirectoryEntry, DirectoryKey, DirectoryKind, Outcome};
use crate::log::{AppendBatch, IndexEntry, LogStore, Record, StreamId};
use crate::segments::disk::System;
use crate::segments::{Options, SegmentLog};
use crate::{Done, RealmId, StoreError};
use bytes::Bytes;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What every report of damage in the control store ends with.
const RESTORE: &str =
    "Restore the folder from a backup, or move it away to start empty; nothing in it was changed";
/// The control store's folder in the store's.
const CONTROL: &str = "control";
/// The log's.
const LOG: &str = "log";
/// Room set aside for a segment of the log.
const SEGMENT_BYTES: u64 = 64 << 20;

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process holds the store (exit code 69).
    #[error("{0}: another process has this store open")]
    Locked(PathBuf),
    /// Written by a newer Drover, damaged, or not a store (exit code 78): names the file and what to do.
    #[error("{file}: {reason}")]
    Unusable {
        /// The file or folder concerned.
        file: PathBuf,
        /// What is wrong and what to do about it.
        reason: String,
    },
    /// The operating system refused (exit code 69).
    #[error("{file}: {error}")]
    Io {
        /// The file or folder concerned.
        file: PathBuf,
        /// What it said.
        error: std::io::Error,
    },
}

/// The embedded store. Cheap to clone; the last clone closes it: what was handed over is finished and answered, then
/// the threads end. To be closed outside of an answer: there, the threads can't be waited for.
#[derive(Clone)]
pub struct Embedded {
    inner: Arc<Inner>,
}

/// Closed in this order: the log's list of segments lies in the control store, and the lock is released last.
struct Inner {
    log: SegmentLog,
    control: Arc<FjallControl>,
    _lock: format::Lock,
}

impl Embedded {
    /// What it keeps free on its disk: a batch that would leave less is refused.
    pub const RESERVE_BYTES: u64 = committer::RESERVE_BYTES;

    /// Opens or creates the store in `folder`.
    ///
    /// # Errors
    /// See [`OpenError`]. Nothing that could not be read is ever deleted or rewritten.
    pub fn open(folder: &Path) -> Result<Self, OpenError> {
        Self::open_with(folder, committer::RESERVE_BYTES, SEGMENT_BYTES)
    }

    fn open_with(folder: &Path, reserve_bytes: u64, segment_bytes: u64) -> Result<Self, OpenError> {
        let entered = format::enter(folder)?;
        let store = entered.format.store;
        let (control_folder, log_folder) = (folder.join(CONTROL), folder.join(LOG));
        if entered.is_new {
            for folder in [&control_folder, &log_folder] {
                fs::create_dir(folder).map_err(|e| format::io(folder, e))?;
            }
            FjallControl::create(&control_folder, &store)?;
            SegmentLog::create(&System, &log_folder, &store).map_err(|e| format::io(&log_folder, e))?;
            format::finish(folder, &entered.format)?;
        }
        let control = Arc::new(FjallControl::open(&control_folder, &store, reserve_bytes)?);
        let options = Options {
            segment_bytes,
            reserve_bytes,
            writers: 1,
        };
        let log = SegmentLog::open(Arc::new(System), &log_folder, store, control.clone(), options)?;
        Ok(Self {
            inner: Arc::new(Inner {
                log,
                control,
                _lock: entered.lock,
            }),
        })
    }

    /// Whether the last commit succeeded and the next one can (readiness).
    pub fn healthy(&self) -> bool {
        self.inner.log.healthy() && self.inner.control.healthy()
    }

    /// Whether the store takes nothing more until it is opened again: a write, a sync or fjall's background work failed,
    /// and what was written of it is known only to the next start. A full disk is not of this kind.
    pub fn has_failed(&self) -> bool {
        self.inner.log.has_failed() || self.inner.control.has_failed()
    }
}

impl LogStore for Embedded {
    fn append(&self, batch: AppendBatch, done: Done<()>) {
        self.inner.log.append(batch, done);
    }

    fn index(&self, stream: StreamId, done: Done<Vec<IndexEntry>>) {
        self.inner.log.index(stream, done);
    }

    fn read(
        &self,
        stream: StreamId,
        from: u64,
        records_max: usize,
        bytes_max: usize,
        done: Done<Vec<Record>>,
    ) {
        self.inner.log.read(stream, from, records_max, bytes_max, done);
    }

    fn read_seqs(&self, stream: StreamId, seqs: Vec<u64>, bytes_max: usize, done: Done<Vec<Record>>) {
        self.inner.log.read_seqs(stream, seqs, bytes_max, done);
    }

    fn usage(&self, realm: RealmId, done: Done<u64>) {
        self.inner.log.usage(realm, done);
    }
}

impl ControlStore for Embedded {
    fn load(&self, realm: RealmId, done: Done<Vec<(Vec<u8>, Bytes)>>) {
        self.inner.control.load(realm, done);
    }

    fn get(&self, realm: RealmId, key: Vec<u8>, done: Done<Option<Bytes>>) {
        self.inner.control.get(realm, key, done);
    }

    fn commit(&self, realm: RealmId, batch: ControlBatch, done: Done<Outcome>) {
        self.inner.control.commit(realm, batch, done);
    }

    fn claim(&self, realm: RealmId, keys: Vec<DirectoryKey>, done: Done<Vec<RealmId>>) {
        self.inner.control.claim(realm, keys, done);
    }

    fn directory(&self, kind: DirectoryKind) -> Result<Vec<DirectoryEntry>, StoreError> {
        self.inner.control.directory(kind)
    }
}
