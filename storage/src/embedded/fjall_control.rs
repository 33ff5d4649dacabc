//! The control store on fjall, in one folder: the database, and `SYNCED` beside it.

use super::committer::{self, Committer, Request};
use super::readers::{self, Job};
use super::synced::Synced;
use super::tables::{self, GroupMark, Tables};
use super::{OpenError, RESTORE, audit, format};
use crate::answer::Answer;
use crate::control::{ControlBatch, ControlStore, DirectoryEntry, DirectoryKey, DirectoryKind, Outcome};
use crate::handoff::{Handoff, Parked};
use crate::health::Health;
use crate::{Done, RealmId, StoreError};
use bytes::Bytes;
use fjall::PersistMode;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// The store. Closed when it is dropped: what was handed over is finished and answered, then the threads end.
pub(super) struct FjallControl {
    shared: Arc<Shared>,
    committer: Option<JoinHandle<()>>,
    readers: Vec<JoinHandle<()>>,
}

/// What the threads see.
struct Shared {
    tables: Tables,
    requests: Handoff<Request, Parked>,
    requests_closed: AtomicBool,
    jobs: Handoff<Job, Parked>,
    jobs_closed: AtomicBool,
    health: Health,
}

impl FjallControl {
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
        audit::before_open(folder, store, synced_group, tables::KEYSPACES)?;
        let tables = open_tables(folder)?;
        let group = last_group(folder, &tables, store, synced_group)?;
        let folder_file = File::open(folder).map_err(|e| format::io(folder, e))?;

        let shared = Arc::new(Shared {
            tables,
            requests: Handoff::new(committer::REQUESTS_MAX, [Parked::default()]),
            requests_closed: AtomicBool::new(false),
            jobs: Handoff::new(
                readers::READS_MAX,
                std::iter::repeat_n((), readers::READERS).map(|()| Parked::default()),
            ),
            jobs_closed: AtomicBool::new(false),
            health: Health::new(),
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
                    readers::run(&shared.jobs, reader, &shared.tables, || {
                        shared.jobs_closed.load(Ordering::Acquire)
                    });
                }),
            )?);
        }
        let store = *store;
        control.committer = Some(spawn(
            "drover-commit",
            Box::new(move || {
                let committer = Committer {
                    tables: &shared.tables,
                    health: &shared.health,
                    group,
                    store,
                    synced,
                    folder: folder_file,
                    reserve_bytes,
                    poisoned: false,
                };
                committer.run(&shared.requests, || {
                    shared.requests_closed.load(Ordering::Acquire)
                });
            }),
        )?);
        Ok(control)
    }

    pub(super) fn healthy(&self) -> bool {
        self.shared.health.get()
    }

    pub(super) fn has_failed(&self) -> bool {
        self.shared.health.has_failed()
    }

    /// The database itself.
    pub(super) fn tables(&self) -> &Tables {
        &self.shared.tables
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
        if let Err(job) = self.shared.jobs.push(readers::job(read, done)) {
            job(None);
        }
    }
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
    use std::io::ErrorKind::{InvalidData, NotFound, UnexpectedEof};
    let file = folder.join(format::DB);
    let io = match error {
        fjall::Error::Locked => return OpenError::Locked(file),
        fjall::Error::Io(e) | fjall::Error::Storage(fjall::LsmError::Io(e)) => Some(e),
        _ => None,
    };
    match io {
        // What fjall could not find or finish reading is missing from its own files.
        Some(e) if !matches!(e.kind(), NotFound | UnexpectedEof | InvalidData) => {
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
pub(super) fn last_group(
    folder: &Path,
    tables: &Tables,
    store: &[u8; 16],
    synced: u64,
) -> Result<u64, OpenError> {
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
        self.shared.tables.directory(kind)
    }
}
