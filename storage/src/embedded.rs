//! Both stores in one folder: the default. The log is our own ([`crate::segments`]), the control store lies on fjall.
//!
//! | Module | Story |
//! | --- | --- |
//! | `format` | the folder: lock, version, creation |
//! | `fjall_control` | the control store |
//! | `migrate` | from stores of the first format |
//! | `audit` | what fjall does not notice of damage, or would repair by cutting |
//! | `contents` | numbers of entries that fjall believes before it looks at a checksum |
//! | `synced` | the control store's last commit known to be durable, kept outside the database |
//! | `tables` | which key holds what |
//! | `committer` | the one thread that writes there |
//! | `guard` | what fjall deletes while it opens comes back if the opening fails |
//! | `mend` | what it does after a write failed |
//! | `readers` | the two threads that read there |
//! | `snapshot` | a copy of both, made while they are in use |
//! | `held` | such a copy of what another store has in memory |

mod audit;
mod committer;
mod contents;
mod fjall_control;
mod format;
mod guard;
mod held;
mod mend;
mod migrate;
mod readers;
mod snapshot;
mod synced;
mod tables;
#[cfg(test)]
mod tests;

use self::fjall_control::FjallControl;
pub use self::held::Held;
use crate::control::{ControlBatch, ControlStore, DirectoryEntry, DirectoryKey, DirectoryKind, Outcome};
use crate::log::{AppendBatch, IndexEntry, LogStore, Record, Snapshot, StreamId};
use crate::segments::disk::System;
use crate::segments::import::import;
use crate::segments::salvage::Salvage;
use crate::segments::verify::verify;
use crate::segments::{self, Options, SegmentLog};
use crate::{Done, RealmId, StoreError};
use bytes::Bytes;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// What every report of damage in the control store ends with.
const RESTORE: &str = "Restore the folder from a backup, or move it away to start empty; nothing acknowledged in it was changed";
/// A commit that takes this long is stuck: the disk does not answer, or fjall waits for background work that died.
pub(crate) const STUCK: Duration = Duration::from_secs(30);
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

/// Something that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Where.
    pub file: PathBuf,
    /// From which byte on.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
}

/// What looking at every byte of a store found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Segments of the log that were read.
    pub segments: u64,
    /// Records in them.
    pub records: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// What is wrong; nothing, one hopes. The store does not open, or not all of it can be read.
    pub damage: Vec<Damage>,
    /// What is not as it should be and was left by a crash: the next opening puts it right, and nothing is lost.
    pub mended: Vec<Damage>,
}

/// What was saved of a damaged store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// Records of the log.
    pub records: u64,
    /// Commits of the log that were damaged, wholly or in part.
    pub damaged_commits: u64,
    /// What is damaged or missing in the old store, so that something may be missing in the new one.
    pub damage: Vec<Damage>,
    /// The number of the first envelope that the new store takes, in every group: records that could not be saved may
    /// have had any number below.
    pub first_seq: u64,
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
            create_parts(folder, &store)?;
            format::finish(folder, &entered.format)?;
        }
        // A DROP is noted there and makes room in the log, so it may go on for longer.
        let control = Arc::new(FjallControl::open(&control_folder, &store, reserve_bytes / 2)?);
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

    /// Looks at every byte of the log of a store that is closed. The control store is looked at as far as opening it
    /// does.
    ///
    /// # Errors
    /// As [`Embedded::open`]; a store of an earlier format is refused.
    pub fn verify(folder: &Path) -> Result<Findings, OpenError> {
        let entered = format::enter_existing(folder)?;
        let store = entered.format.store;
        let control = FjallControl::open(&folder.join(CONTROL), &store, committer::RESERVE_BYTES)?;
        Ok(verify(Arc::new(System), &folder.join(LOG), &control, &store))
    }

    /// Makes a new store in `to` of what is intact in a closed one, which is left as it is. What realms hold is counted
    /// anew.
    ///
    /// # Errors
    /// As [`Embedded::open`], of either folder; `to` must be missing or empty, and the control store must be intact.
    pub fn repair(from: &Path, to: &Path) -> Result<Saved, OpenError> {
        let entered = format::enter_existing(from)?;
        let store = entered.format.store;
        let control = FjallControl::open(&from.join(CONTROL), &store, committer::RESERVE_BYTES)?;
        let disk = Arc::new(System);
        let findings = verify(disk.clone(), &from.join(LOG), &control, &store);
        let salvage = Salvage::find(disk.clone(), &from.join(LOG), &control, &store)?;
        let new = format::enter_new(to)?;
        let new_store = new.format.store;
        create_parts(to, &new_store)?;
        let (control_folder, log_folder) = (to.join(CONTROL), to.join(LOG));
        {
            let new = FjallControl::open(&control_folder, &new_store, committer::RESERVE_BYTES)?;
            let unsaid = |_| {};
            import(
                disk,
                &log_folder,
                new_store,
                &new,
                SEGMENT_BYTES,
                &salvage,
                unsaid,
            )?;
        }
        {
            let new = fjall_control::open_tables(&control_folder)?;
            let own = RealmId(segments::PARTITION.into());
            let copied = control.with_tables(|tables| match tables {
                Some(tables) => migrate::copy_records(tables, &tables.db.snapshot(), &new, Some(&own))
                    .map_err(std::io::Error::other),
                None => Err(std::io::Error::other("the control store is closed")),
            });
            copied.map_err(|e| format::io(&from.join(CONTROL), e))?;
        }
        format::finish(to, &new.format)?;
        Ok(Saved {
            records: salvage.records,
            damaged_commits: salvage.lost,
            damage: findings.damage,
            first_seq: salvage.first_seq,
        })
    }

    /// Whether a commit would be taken now (readiness): false while the disk is full, after a failed write until one
    /// works again, and once [`Self::has_failed`].
    pub fn healthy(&self) -> bool {
        self.ailment().is_none()
    }

    /// Why it is not [`Self::healthy`], in words for an operator that name no path and no content. Also says whether
    /// a record was asked for that is damaged: what else there is, is served.
    pub fn ailment(&self) -> Option<&'static str> {
        self.inner.log.ailment().or_else(|| self.inner.control.ailment())
    }

    /// Whether the store takes nothing more until it is opened again: a write, a sync or fjall's background work failed,
    /// and what was written of it is known only to the next start. A full disk is not of this kind.
    pub fn has_failed(&self) -> bool {
        self.inner.log.has_failed() || self.inner.control.has_failed()
    }
}

/// Makes both parts of a new store, empty.
fn create_parts(folder: &Path, store: &[u8; 16]) -> Result<(), OpenError> {
    let (control, log) = (folder.join(CONTROL), folder.join(LOG));
    for folder in [&control, &log] {
        fs::create_dir(folder).map_err(|e| format::io(folder, e))?;
    }
    FjallControl::create(&control, store)?;
    SegmentLog::create(&System, &log, store).map_err(|e| format::io(&log, e))
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

    fn first_seq(&self) -> u64 {
        self.inner.log.first_seq().max(1)
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        snapshot::take(self)
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
