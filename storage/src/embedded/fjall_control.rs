//! The control store on fjall, in one folder: the database, and `SYNCED` beside it.

use super::committer::{self, Committer, Request, State};
use super::guard::Guard;
use super::readers::{self, Job};
use super::synced::Synced;
use super::tables::{self, GroupMark, Tables};
use super::{OpenError, RESTORE, STUCK, audit, format};
use crate::answer::Answer;
use crate::control::{ControlBatch, ControlStore, DirectoryEntry, DirectoryKey, DirectoryKind, Outcome};
use crate::handoff::{Handoff, Parked};
use crate::{Done, RealmId, StoreError};
use bytes::Bytes;
use fjall::PersistMode;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// The store. Closed when it is dropped: what was handed over is finished and answered, then the threads end.
pub(super) struct FjallControl {
    shared: Arc<Shared>,
    committer: Option<JoinHandle<()>>,
    readers: Vec<JoinHandle<()>>,
}

/// What the threads see.
struct Shared {
    database: Slot,
    requests: Handoff<Request, Parked>,
    requests_closed: AtomicBool,
    jobs: Handoff<Job, Parked>,
    jobs_closed: AtomicBool,
    health: Health,
}

/// The open database, which is closed and opened anew after a failed write. Empty while it could not be opened.
pub(super) struct Slot(pub(super) RwLock<Option<Tables>>);

impl Slot {
    /// Lends the database.
    pub(super) fn with<R>(&self, f: impl FnOnce(Option<&Tables>) -> R) -> R {
        f(self.0.read().unwrap_or_else(PoisonError::into_inner).as_ref())
    }
}

/// Whether writes are taken, and whether one is stuck.
pub(super) struct Health {
    /// A write failed; it is tried again and again whether one works.
    down: AtomicBool,
    /// For good: until the next start nothing is taken.
    failed: AtomicBool,
    /// A record that was asked for can't be read.
    damaged: AtomicBool,
    /// The store's folder, to ask how much room is left, and how much is never used.
    folder: File,
    pub(super) reserve_bytes: u64,
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

    pub(super) fn begin(&self) {
        self.began_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.began_ms.store(0, Ordering::Relaxed);
    }

    pub(super) fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::Relaxed);
    }

    pub(super) fn found_damage(&self) {
        self.damaged.store(true, Ordering::Relaxed);
    }

    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Whether so much can surely be written. Asked afresh each time: a relay that is out of rotation for a full disk
    /// gets no writes by which it could notice that there is room again.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        // Where the file system does not say, writing will tell.
        rustix::fs::fstatvfs(&self.folder).map_or(true, |stat| {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            free >= self.reserve_bytes.saturating_add(bytes)
        })
    }

    /// What is wrong, for an operator.
    pub(super) fn ailment(&self) -> Option<&'static str> {
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

impl FjallControl {
    /// Moves what is in memory into fjall's files.
    #[cfg(test)]
    pub(super) fn flush(&self) {
        self.shared.database.with(|tables| {
            let tables = tables.expect("open");
            tables.control.rotate_memtable_and_wait().expect("flushes");
        });
    }

    /// Makes an empty one in a folder that has none.
    pub(super) fn create(folder: &Path, store: &[u8; 16]) -> Result<(), OpenError> {
        Synced::create(folder)?;
        let tables = open_tables(folder)?;
        let mut batch = tables.db.batch().durability(Some(PersistMode::SyncAll));
        let mark = GroupMark {
            group: 0,
            store: *store,
            seqno_min: 0,
        };
        batch.insert(&tables.control, tables::GROUP_KEY, mark.encode());
        batch.commit().map_err(|e| open_failed(folder, &e))
    }

    /// Opens it.
    pub(super) fn open(folder: &Path, store: &[u8; 16], reserve_bytes: u64) -> Result<Self, OpenError> {
        let (synced, synced_group) = Synced::open(folder)?;
        let (tables, group) = open_checked(folder, store, synced_group)?;
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
        });
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            thread::Builder::new()
                .name(name.into())
                .spawn(run)
                .map_err(|e| format::io(folder, e))
        };
        // From here on, dropping `control` ends the threads that were started.
        let mut control = Self {
            shared: shared.clone(),
            committer: None,
            readers: Vec::new(),
        };
        for reader in 0..readers::READERS {
            let shared = shared.clone();
            control.readers.push(spawn(
                "drover-read",
                Box::new(move || {
                    readers::run(&shared.jobs, reader, &shared.database, &shared.health, || {
                        shared.jobs_closed.load(Ordering::Acquire)
                    });
                }),
            )?);
        }
        let (store, path) = (*store, folder.to_owned());
        control.committer = Some(spawn(
            "drover-commit",
            Box::new(move || {
                let committer = Committer {
                    database: &shared.database,
                    health: &shared.health,
                    group,
                    store,
                    synced,
                    folder: path,
                    state: State::Good,
                    full: false,
                };
                committer.run(&shared.requests, || {
                    shared.requests_closed.load(Ordering::Acquire)
                });
            }),
        )?);
        Ok(control)
    }

    /// What is wrong, for an operator.
    pub(super) fn ailment(&self) -> Option<&'static str> {
        self.shared.health.ailment()
    }

    pub(super) fn has_failed(&self) -> bool {
        self.shared.health.failed.load(Ordering::Relaxed)
    }

    /// Lends the database itself.
    pub(super) fn with_tables<R>(&self, f: impl FnOnce(Option<&Tables>) -> R) -> R {
        self.shared.database.with(f)
    }

    fn submit(&self, request: Request) {
        if let Err(request) = self.shared.requests.push(request) {
            request.refuse();
        }
    }

    fn ask<T: 'static>(
        &self,
        read: impl FnOnce(&Tables) -> Result<T, StoreError> + Send + 'static,
        done: Done<T>,
    ) {
        let shared = &self.shared;
        if let Err(job) = shared.jobs.push(readers::job(read, done)) {
            job(None, &shared.health);
        }
    }
}

/// Looks at the database, opens it, and looks whether everything acknowledged is in it: up to `synced`. Also the number
/// of its last commit group.
pub(super) fn open_checked(folder: &Path, store: &[u8; 16], synced: u64) -> Result<(Tables, u64), OpenError> {
    open_guarded(folder, store, synced, tables::KEYSPACES)
}

/// The same with a database of so many keyspaces.
pub(super) fn open_guarded(
    folder: &Path,
    store: &[u8; 16],
    synced: u64,
    keyspaces: usize,
) -> Result<(Tables, u64), OpenError> {
    audit::before_open(folder, store, synced, keyspaces)?;
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
pub(super) fn open_tables(folder: &Path) -> Result<Tables, OpenError> {
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

impl Drop for FjallControl {
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

impl ControlStore for FjallControl {
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
        self.shared.database.with(read)
    }
}
