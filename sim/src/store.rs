//! The simulated store: both traits in memory, with what is on disk kept apart from what is merely asked for. Nothing
//! happens by itself: requests wait until the world takes a step ([`SimStore::write`], [`SimStore::read`]), and a
//! crash ([`SimStore::crash`]) leaves what was on disk, with some of what was being written.
//!
//! Like the embedded store it shows readers only what is durable, keeps each caller's writes in order, and lets those
//! of different callers overtake each other.

mod image;

pub use image::{Image, StoredRecord};

use bytes::Bytes;
use drover_storage::control::{
    ControlBatch, ControlStore, DirectoryEntry, DirectoryKey, DirectoryKind, Outcome,
};
use drover_storage::log::{AppendBatch, IndexEntry, LogStore, Record, Snapshot, StreamId};
use drover_storage::{Done, RealmId, StoreError};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Done.
    Done,
    /// Nothing of it happens.
    NotCommitted,
    /// Answered "unknown", and it happened.
    UnknownKept,
    /// Answered "unknown", and nothing happened.
    UnknownLost,
}

enum Write {
    Append(AppendBatch, Done<()>),
    Commit(RealmId, ControlBatch, Done<Outcome>),
    Claim(RealmId, Vec<DirectoryKey>, Done<Vec<RealmId>>),
}

enum Read {
    Index(StreamId, Done<Vec<IndexEntry>>),
    Page(StreamId, u64, usize, usize, Done<Vec<Record>>),
    Seqs(StreamId, Vec<u64>, usize, Done<Vec<Record>>),
    Usage(RealmId, Done<u64>),
    Load(RealmId, Done<Vec<(Vec<u8>, Bytes)>>),
    Get(RealmId, Vec<u8>, Done<Option<Bytes>>),
}

#[derive(Default)]
struct Inner {
    disk: Image,
    /// By caller, oldest first.
    writes: BTreeMap<usize, VecDeque<Write>>,
    reads: BTreeMap<u64, Read>,
    next_read: u64,
    /// Reads the world has not been told of.
    fresh_reads: Vec<u64>,
    /// Broken rules of the traits, by the callers.
    complaints: Vec<String>,
}

/// See the module.
#[derive(Default)]
pub struct SimStore {
    inner: Mutex<Inner>,
}

impl SimStore {
    /// A handle whose writes keep their order: one for each shard.
    pub fn caller(self: &Arc<Self>, caller: usize) -> Caller {
        Caller {
            store: self.clone(),
            caller,
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at what is durable.
    pub fn on_disk<R>(&self, look: impl FnOnce(&Image) -> R) -> R {
        look(&self.inner().disk)
    }

    /// Changes what is durable, behind everybody's back.
    pub fn tamper<R>(&self, change: impl FnOnce(&mut Image) -> R) -> R {
        change(&mut self.inner().disk)
    }

    /// Rules of the traits that a caller broke since the last look.
    pub fn complaints(&self) -> Vec<String> {
        std::mem::take(&mut self.inner().complaints)
    }

    /// Writes of this caller that wait.
    pub fn waiting(&self, caller: usize) -> usize {
        self.inner().writes.get(&caller).map_or(0, VecDeque::len)
    }

    /// Reads asked for since the last call, for [`SimStore::read`].
    pub fn fresh_reads(&self) -> Vec<u64> {
        std::mem::take(&mut self.inner().fresh_reads)
    }

    /// Ends this caller's oldest write; `false` if none waits.
    pub fn write(&self, caller: usize, verdict: Verdict) -> bool {
        let mut inner = self.inner();
        let Some(write) = inner.writes.get_mut(&caller).and_then(VecDeque::pop_front) else {
            return false;
        };
        let answer = decide(&mut inner, write, verdict);
        drop(inner);
        answer();
        true
    }

    /// Ends this read: with what is on disk now, or with this failure.
    pub fn read(&self, read: u64, failure: Option<StoreError>) {
        let mut inner = self.inner();
        let Some(read) = inner.reads.remove(&read) else {
            return;
        };
        let disk = &inner.disk;
        fn answer<T: Send + 'static>(
            failure: Option<StoreError>,
            value: T,
            done: Done<T>,
        ) -> Box<dyn FnOnce()> {
            Box::new(move || done(failure.map_or(Ok(value), Err)))
        }
        let answer = match read {
            Read::Index(stream, done) => answer(failure, disk.index(stream), done),
            Read::Page(stream, from, records, bytes, done) => {
                answer(failure, disk.page(stream, from, records, bytes), done)
            }
            Read::Seqs(stream, seqs, bytes, done) => answer(failure, disk.seqs(stream, &seqs, bytes), done),
            Read::Usage(realm, done) => answer(failure, disk.usage(&realm), done),
            Read::Load(realm, done) => answer(failure, disk.load(&realm), done),
            Read::Get(realm, key, done) => answer(failure, disk.get(&realm, &key), done),
        };
        drop(inner);
        answer();
    }

    /// The process dies: of each caller's writes the first few (as many as `kept` says of how many) had reached the
    /// disk, the others never do. Nobody is answered.
    pub fn crash(&self, mut kept: impl FnMut(usize) -> usize) {
        let mut inner = self.inner();
        for (_, queue) in std::mem::take(&mut inner.writes) {
            let keep = kept(queue.len());
            for write in queue.into_iter().take(keep) {
                drop(decide(&mut inner, write, Verdict::Done));
            }
        }
        inner.reads.clear();
        inner.fresh_reads.clear();
    }
}

/// Does a write or doesn't; what is returned tells the caller.
fn decide(inner: &mut Inner, write: Write, verdict: Verdict) -> Box<dyn FnOnce()> {
    let happens = matches!(verdict, Verdict::Done | Verdict::UnknownKept);
    let failure = match verdict {
        Verdict::Done => None,
        Verdict::NotCommitted => Some(StoreError::NotCommitted),
        Verdict::UnknownKept | Verdict::UnknownLost => Some(StoreError::Unknown),
    };
    fn answer<T: Send + 'static>(
        failure: Option<StoreError>,
        value: Option<T>,
        done: Done<T>,
    ) -> Box<dyn FnOnce()> {
        let result = match (failure, value) {
            (None, Some(value)) => Ok(value),
            (failure, _) => Err(failure.unwrap_or(StoreError::Unknown)),
        };
        Box::new(move || done(result))
    }
    match write {
        Write::Append(batch, done) => {
            if happens && let Err(complaint) = inner.disk.append(batch) {
                inner.complaints.push(complaint);
            }
            answer(failure, Some(()), done)
        }
        Write::Commit(realm, batch, done) => {
            let outcome = happens.then(|| inner.disk.commit(&realm, batch));
            answer(failure, outcome, done)
        }
        Write::Claim(realm, keys, done) => {
            let owners = happens.then(|| inner.disk.claim(&realm, keys));
            answer(failure, owners, done)
        }
    }
}

/// One caller's handle.
pub struct Caller {
    store: Arc<SimStore>,
    caller: usize,
}

impl Caller {
    fn submit(&self, write: Write) {
        self.store
            .inner()
            .writes
            .entry(self.caller)
            .or_default()
            .push_back(write);
    }

    fn ask(&self, read: Read) {
        let mut inner = self.store.inner();
        let id = inner.next_read;
        inner.next_read += 1;
        inner.reads.insert(id, read);
        inner.fresh_reads.push(id);
    }
}

impl LogStore for Caller {
    fn append(&self, batch: AppendBatch, done: Done<()>) {
        self.submit(Write::Append(batch, done));
    }

    fn index(&self, stream: StreamId, done: Done<Vec<IndexEntry>>) {
        self.ask(Read::Index(stream, done));
    }

    fn read(
        &self,
        stream: StreamId,
        from: u64,
        records_max: usize,
        bytes_max: usize,
        done: Done<Vec<Record>>,
    ) {
        self.ask(Read::Page(stream, from, records_max, bytes_max, done));
    }

    fn read_seqs(&self, stream: StreamId, seqs: Vec<u64>, bytes_max: usize, done: Done<Vec<Record>>) {
        self.ask(Read::Seqs(stream, seqs, bytes_max, done));
    }

    fn usage(&self, realm: RealmId, done: Done<u64>) {
        self.ask(Read::Usage(realm, done));
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        Ok(Box::new(self.store.on_disk(Image::held)))
    }
}

impl ControlStore for Caller {
    fn load(&self, realm: RealmId, done: Done<Vec<(Vec<u8>, Bytes)>>) {
        self.ask(Read::Load(realm, done));
    }

    fn get(&self, realm: RealmId, key: Vec<u8>, done: Done<Option<Bytes>>) {
        self.ask(Read::Get(realm, key, done));
    }

    fn commit(&self, realm: RealmId, batch: ControlBatch, done: Done<Outcome>) {
        self.submit(Write::Commit(realm, batch, done));
    }

    fn claim(&self, realm: RealmId, keys: Vec<DirectoryKey>, done: Done<Vec<RealmId>>) {
        self.submit(Write::Claim(realm, keys, done));
    }

    fn directory(&self, kind: DirectoryKind) -> Result<Vec<DirectoryEntry>, StoreError> {
        Ok(self.store.inner().disk.directory(kind))
    }
}
