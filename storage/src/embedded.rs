//! Both stores on fjall in one folder: the default.
//!
//! | Module | Story |
//! | --- | --- |
//! | `format` | the folder: lock, version, creation |
//! | `audit` | what fjall does not notice of damage, or would repair by cutting |
//! | `contents` | numbers of entries that fjall believes before it looks at a checksum |
//! | `synced` | the last commit known to be durable, kept outside the database |
//! | `tables` | which key holds what |
//! | `committer` | the one thread that writes |
//! | `guard` | what fjall deletes while it opens comes back if the opening fails |
//! | `mend` | what it does after a write failed |
//! | `readers` | the two threads that read |

mod audit;
mod committer;
mod contents;
mod format;
mod guard;
mod mend;
mod readers;
mod synced;
mod tables;
#[cfg(test)]
mod tests;

use self::committer::{Committer, Request, State};
use self::guard::Guard;
use self::readers::Job;
use self::synced::Synced;
use self::tables::{GroupMark, Tables};
use crate::control::{ControlBatch, ControlStore, DirectoryEntry, DirectoryKey, DirectoryKind, Outcome};
use crate::handoff::{Handoff, Parked};
use crate::log::{AppendBatch, IndexEntry, LogStore, Record, StreamId};
use crate::{Done, RealmId, StoreError};
use bytes::Bytes;
use fjall::PersistMode;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// What every report of damage ends with.
const RESTORE: &str = "Restore the folder from a backup, or move it away to start empty; nothing acknowledged in it was changed";
/// A commit that takes this long is stuck: the disk does not answer, or fjall waits for background work that died.
const STUCK: Duration = Duration::from_secs(30);

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

struct Inner {
    shared: Arc<Shared>,
    committer: Option<JoinHandle<()>>,
    readers: Vec<JoinHandle<()>>,
}

/// What the threads see.
struct Shared {
    // Closed in this order: the lock is released last.
    database: Slot,
    requests: Handoff<Request, Parked>,
    requests_closed: AtomicBool,
    jobs: Handoff<Job, Parked>,
    jobs_closed: AtomicBool,
    health: Health,
    _lock: format::Lock,
}

/// The open database, which is closed and opened anew after a failed write. Empty while it could not be opened.
struct Slot(RwLock<Option<Tables>>);

impl Slot {
    /// Lends the database.
    fn with<R>(&self, f: impl FnOnce(Option<&Tables>) -> R) -> R {
        f(self.0.read().unwrap_or_else(PoisonError::into_inner).as_ref())
    }
}

/// Whether writes are taken, and whether one is stuck.
struct Health {
    /// A write failed; it is tried again and again whether one works.
    down: AtomicBool,
    /// For good: until the next start nothing is taken.
    failed: AtomicBool,
    /// A record that was asked for can't be read.
    damaged: AtomicBool,
    /// The store's folder, to ask how much room is left, and how much is never used.
    folder: File,
    reserve_bytes: u64,
    opened: Instant,
    /// When the commit under way began, in milliseconds since `opened` and one; 0 if there is none.
    began_ms: AtomicU64,
}

impl Health {
    fn new(folder: File, reserve_bytes: u64) -> Self {
        Self {
            down: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            damaged: AtomicBool::new(false),
            folder,
            reserve_bytes,
            opened: Instant::now(),
            began_ms: AtomicU64::new(0),
        }
    }

    fn now_ms(&self) -> u64 {
        self.opened.elapsed().as_millis() as u64 + 1
    }

    fn begin(&self) {
        self.began_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    fn end(&self) {
        self.began_ms.store(0, Ordering::Relaxed);
    }

    fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::Relaxed);
    }

    fn found_damage(&self) {
        self.damaged.store(true, Ordering::Relaxed);
    }

    fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Whether so much can surely be written. Asked afresh each time: a relay that is out of rotation for a full disk
    /// gets no writes by which it could notice that there is room again.
    fn has_room(&self, bytes: u64) -> bool {
        // Where the file system does not say, writing will tell.
        rustix::fs::fstatvfs(&self.folder).map_or(true, |stat| {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            free >= self.reserve_bytes.saturating_add(bytes)
        })
    }

    /// What is wrong, for an operator.
    fn ailment(&self) -> Option<&'static str> {
        let is = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        let began_ms = self.began_ms.load(Ordering::Relaxed);
        if is(&self.failed) {
            Some("a sync failed: it takes nothing until it is restarted")
        } else if is(&self.down) {
            Some("a write failed: it takes nothing until one works again")
        } else if began_ms != 0 && self.now_ms().saturating_sub(began_ms) > STUCK.as_millis() as u64 {
            Some("a commit is stuck")
        } else if !self.has_room(0) {
            Some("too little is free on its disk")
        } else if is(&self.damaged) {
            Some("a record is damaged")
        } else {
            None
        }
    }
}

/// Runs somebody else's code on a thread that must not die of it.
fn guarded(what: &str, run: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(run)).is_err() {
        tracing::error!("{what} panicked");
    }
}

/// Where an answer goes; gives [`StoreError::Unknown`] if nothing else was given, so that every request is answered
/// once, whatever happens.
struct Answer<T>(Option<Done<T>>);

impl<T> Answer<T> {
    fn new(done: Done<T>) -> Self {
        Self(Some(done))
    }

    fn give(mut self, result: Result<T, StoreError>) {
        if let Some(done) = self.0.take() {
            done(result);
        }
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            guarded("an answer", || done(Err(StoreError::Unknown)));
        }
    }
}

impl Embedded {
    /// What it keeps free on its disk: a batch that would leave less is refused.
    pub const RESERVE_BYTES: u64 = committer::RESERVE_BYTES;

    /// Opens or creates the store in `folder`.
    ///
    /// # Errors
    /// See [`OpenError`]. Nothing that could not be read is ever deleted or rewritten.
    pub fn open(folder: &Path) -> Result<Self, OpenError> {
        Self::open_with(folder, committer::RESERVE_BYTES)
    }

    fn open_with(folder: &Path, reserve_bytes: u64) -> Result<Self, OpenError> {
        let entered = format::enter(folder)?;
        let store = entered.format.store;
        if entered.is_new {
            Synced::create(folder)?;
            let tables = open_tables(folder)?;
            let mut batch = tables.db.batch().durability(Some(PersistMode::SyncAll));
            let mark = GroupMark {
                group: 0,
                store,
                seqno_min: 0,
            };
            batch.insert(&tables.control, tables::GROUP_KEY, mark.encode());
            batch.commit().map_err(|e| open_failed(folder, &e))?;
            drop(tables);
            format::finish(folder, &entered.format)?;
        }
        let (synced, synced_group) = Synced::open(folder)?;
        let (tables, group) = open_checked(folder, &store, synced_group)?;
        let folder_file = File::open(folder).map_err(|e| format::io(folder, e))?;

        let shared = Arc::new(Shared {
            database: Slot(RwLock::new(Some(tables))),
            requests: Handoff::new(committer::REQUESTS_MAX, [Parked::default()]),
            requests_closed: AtomicBool::new(false),
            jobs: Handoff::new(
                readers::READS_MAX,
                std::iter::repeat_n((), readers::READERS).map(|()| Parked::default()),
            ),
            jobs_closed: AtomicBool::new(false),
            health: Health::new(folder_file, reserve_bytes),
            _lock: entered.lock,
        });
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            thread::Builder::new()
                .name(name.into())
                .spawn(run)
                .map_err(|e| format::io(folder, e))
        };
        // From here on, dropping `inner` ends the threads that were started.
        let mut inner = Inner {
            shared: shared.clone(),
            committer: None,
            readers: Vec::new(),
        };
        for reader in 0..readers::READERS {
            let shared = shared.clone();
            inner.readers.push(spawn(
                "drover-read",
                Box::new(move || {
                    readers::run(&shared.jobs, reader, &shared.database, &shared.health, || {
                        shared.jobs_closed.load(Ordering::Acquire)
                    });
                }),
            )?);
        }
        let path = folder.to_owned();
        inner.committer = Some(spawn(
            "drover-commit",
            Box::new(move || {
                let committer = Committer {
                    database: &shared.database,
                    health: &shared.health,
                    group,
                    store,
                    synced,
                    folder: path,
                    arena: committer::Arena::default(),
                    state: State::Good,
                    full: false,
                };
                committer.run(&shared.requests, || {
                    shared.requests_closed.load(Ordering::Acquire)
                });
            }),
        )?);
        Ok(Self {
            inner: Arc::new(inner),
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
        self.inner.shared.health.ailment()
    }

    /// Whether the store takes nothing more until the next start: a sync or fjall's background work failed, or damage
    /// was found. A full disk and any other write that failed is not of this kind.
    pub fn has_failed(&self) -> bool {
        self.inner.shared.health.failed.load(Ordering::Relaxed)
    }

    fn submit(&self, request: Request) {
        if let Err(request) = self.inner.shared.requests.push(request) {
            request.refuse();
        }
    }

    fn ask<T: 'static>(
        &self,
        read: impl FnOnce(&Tables) -> Result<T, StoreError> + Send + 'static,
        done: Done<T>,
    ) {
        let shared = &self.inner.shared;
        if let Err(job) = shared.jobs.push(readers::job(read, done)) {
            job(None, &shared.health);
        }
    }
}

/// Looks at the database, opens it, and looks whether everything acknowledged is in it: up to `synced`. Also the number
/// of its last commit group.
fn open_checked(folder: &Path, store: &[u8; 16], synced: u64) -> Result<(Tables, u64), OpenError> {
    audit::before_open(folder, store, synced)?;
    let guard = Guard::new(folder)?;
    let opened = open_tables(folder).and_then(|tables| {
        let group = last_group(folder, &tables, store, synced)?;
        Ok((tables, group))
    });
    match &opened {
        Ok(_) => guard.end()?,
        Err(_) => guard.put_back()?,
    }
    opened
}

/// Opens the database, whatever fjall makes of it.
fn open_tables(folder: &Path) -> Result<Tables, OpenError> {
    let db = folder.join(format::DB);
    match catch_unwind(|| Tables::open(&db)) {
        Ok(Ok(tables)) => Ok(tables),
        Ok(Err(error)) => Err(open_failed(folder, &error)),
        Err(_) => Err(OpenError::Unusable {
            file: db,
            reason: format!("the database can't be read: its contents contradict each other. {RESTORE}"),
        }),
    }
}

fn open_failed(folder: &Path, error: &fjall::Error) -> OpenError {
    use std::io::ErrorKind::{InvalidData, InvalidInput, NotFound, UnexpectedEof};
    let file = folder.join(format::DB);
    let io = match error {
        fjall::Error::Locked => return OpenError::Locked(file),
        fjall::Error::Io(e) | fjall::Error::Storage(fjall::LsmError::Io(e)) => Some(e),
        _ => None,
    };
    match io {
        // What fjall could not find or finish reading is missing from its own files, and a place that no file can have
        // is written in one of them.
        Some(e) if !matches!(e.kind(), NotFound | UnexpectedEof | InvalidData | InvalidInput) => {
            let error = std::io::Error::new(e.kind(), e.to_string());
            OpenError::Io { file, error }
        }
        _ => OpenError::Unusable {
            file,
            reason: format!("the database can't be read ({error}). {RESTORE}"),
        },
    }
}

/// The number of the last commit group in the database, which must hold everything that was acknowledged.
fn last_group(folder: &Path, tables: &Tables, store: &[u8; 16], synced: u64) -> Result<u64, OpenError> {
    let damaged = |what: String| OpenError::Unusable {
        file: folder.join(format::DB),
        reason: format!("{what}. {RESTORE}"),
    };
    let value = catch_unwind(AssertUnwindSafe(|| tables.get(tables::GROUP_KEY)))
        .unwrap_or(Err(StoreError::Damaged))
        .map_err(|e| damaged(format!("the number of the last commit can't be read ({e})")))?
        .ok_or_else(|| {
            damaged("the number of the last commit is missing; a journal (*.jnl) is gone".into())
        })?;
    let group = GroupMark::decode(&value, store)
        .ok_or_else(|| damaged("this is the database of another store than FORMAT says".into()))?
        .group;
    if group < synced {
        return Err(damaged(format!(
            "commits are missing: {synced} were acknowledged, the last one found is {group}; a journal \
             (*.jnl) is gone or cut short"
        )));
    }
    Ok(group)
}

impl Drop for Inner {
    fn drop(&mut self) {
        let join = |handle: JoinHandle<()>| {
            // A thread that drops the last clone itself, in an answer, ends on its own.
            if handle.thread().id() != thread::current().id() && handle.join().is_err() {
                tracing::error!("a thread of the store panicked");
            }
        };
        self.shared.requests_closed.store(true, Ordering::Release);
        self.shared.requests.wake_all();
        self.committer.take().into_iter().for_each(join);
        self.shared.jobs_closed.store(true, Ordering::Release);
        self.shared.jobs.wake_all();
        self.readers.drain(..).for_each(join);
    }
}

impl LogStore for Embedded {
    fn append(&self, batch: AppendBatch, done: Done<()>) {
        self.submit(Request::Append(batch, Answer::new(done)));
    }

    fn index(&self, stream: StreamId, done: Done<Vec<IndexEntry>>) {
        self.ask(move |tables| tables.index(stream), done);
    }

    fn read(
        &self,
        stream: StreamId,
        from: u64,
        records_max: usize,
        bytes_max: usize,
        done: Done<Vec<Record>>,
    ) {
        self.ask(
            move |tables| tables.read(stream, from, records_max, bytes_max),
            done,
        );
    }

    fn read_seqs(&self, stream: StreamId, seqs: Vec<u64>, bytes_max: usize, done: Done<Vec<Record>>) {
        self.ask(move |tables| tables.read_seqs(stream, &seqs, bytes_max), done);
    }

    fn usage(&self, realm: RealmId, done: Done<u64>) {
        self.ask(move |tables| tables.usage(&realm), done);
    }
}

impl ControlStore for Embedded {
    fn load(&self, realm: RealmId, done: Done<Vec<(Vec<u8>, Bytes)>>) {
        self.ask(move |tables| tables.load(&realm), done);
    }

    fn get(&self, realm: RealmId, key: Vec<u8>, done: Done<Option<Bytes>>) {
        self.ask(move |tables| tables.get(&tables::record_key(&realm, &key)), done);
    }

    fn commit(&self, realm: RealmId, batch: ControlBatch, done: Done<Outcome>) {
        self.submit(Request::Commit(realm, batch, Answer::new(done)));
    }

    fn claim(&self, realm: RealmId, keys: Vec<DirectoryKey>, done: Done<Vec<RealmId>>) {
        self.submit(Request::Claim(realm, keys, Answer::new(done)));
    }

    fn directory(&self, kind: DirectoryKind) -> Result<Vec<DirectoryEntry>, StoreError> {
        let read = |tables: Option<&Tables>| tables.ok_or(StoreError::NotCommitted)?.directory(kind);
        self.inner.shared.database.with(read)
    }
}
