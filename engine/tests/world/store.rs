//! A store, mostly the real embedded one, behind a wrapper that can fail requests, hide records and count calls.

use bytes::Bytes;
use drover_storage::control::{
    ControlBatch, ControlStore, DirectoryEntry, DirectoryKey, DirectoryKind, Outcome,
};
use drover_storage::embedded::Embedded;
use drover_storage::log::{AppendBatch, IndexEntry, LogStore, Record, Snapshot, StreamId};
use drover_storage::{Done, RealmId, StoreError};
use std::collections::{HashMap, HashSet, VecDeque};
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

/// The requests of both traits, told apart for faults, delays and counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Append,
    Index,
    Read,
    ReadSeqs,
    Usage,
    Load,
    Get,
    Commit,
    Claim,
    /// A one-time code being hashed: no store request, but delayed like one.
    Code,
}

/// How a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing of it happens.
    NotCommitted,
    /// The answer is "unknown" and nothing happened.
    UnknownLost,
    /// The answer is "unknown" and it happened.
    UnknownKept,
}

#[derive(Default)]
struct Plan {
    next: HashMap<Kind, VecDeque<Fault>>,
    down: HashMap<Kind, Fault>,
    calls: HashMap<Kind, usize>,
    hidden: HashSet<u64>,
    /// What the write after this many more does.
    nth_write: Option<(usize, Fault)>,
    /// After the write that failed nothing is done any more: the process is as good as dead.
    dies: bool,
    dead: bool,
    /// Realms of the commits and claims, and streams of the indexes read: what a test may ask about.
    appended_records: usize,
}

/// Both stores in one.
pub trait Both: LogStore + ControlStore {}

impl<T: LogStore + ControlStore> Both for T {}

/// See the module.
pub struct Store {
    inner: Box<dyn Both>,
    plan: Mutex<Plan>,
}

impl Store {
    pub fn open(folder: &Path) -> Self {
        Self::over(Embedded::open(folder).expect("a new store opens"))
    }

    pub fn over(inner: impl Both + 'static) -> Self {
        Self {
            inner: Box::new(inner),
            plan: Mutex::default(),
        }
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().expect("no test panics while it plans")
    }

    /// The next request of this kind fails like this; several queue up.
    pub fn fail_next(&self, kind: Kind, fault: Fault) {
        self.plan().next.entry(kind).or_default().push_back(fault);
    }

    /// Every request of these kinds fails until [`Store::up`].
    pub fn down(&self, kinds: &[Kind], fault: Fault) {
        let mut plan = self.plan();
        for &kind in kinds {
            plan.down.insert(kind, fault);
        }
    }

    pub fn up(&self) {
        let mut plan = self.plan();
        plan.down.clear();
        (plan.nth_write, plan.dies, plan.dead) = (None, false, false);
    }

    /// The write after `skip` others fails like this; with `dies`, so does every request after it, as if the process
    /// ended there. [`Store::up`] takes it back.
    pub fn fail_write(&self, skip: usize, fault: Fault, dies: bool) {
        let mut plan = self.plan();
        (plan.nth_write, plan.dies) = (Some((skip, fault)), dies);
    }

    /// Whether the write of [`Store::fail_write`] has come.
    pub fn has_failed(&self) -> bool {
        self.plan().nth_write.is_none()
    }

    /// Records with these numbers are left out of what is read by number: compacted away since.
    pub fn hide(&self, seqs: impl IntoIterator<Item = u64>) {
        self.plan().hidden.extend(seqs);
    }

    pub fn calls(&self, kind: Kind) -> usize {
        self.plan().calls.get(&kind).copied().unwrap_or_default()
    }

    /// Records in all successful appends.
    pub fn appended_records(&self) -> usize {
        self.plan().appended_records
    }

    fn fault(&self, kind: Kind) -> Option<Fault> {
        let mut plan = self.plan();
        *plan.calls.entry(kind).or_default() += 1;
        if plan.dead {
            return Some(Fault::UnknownLost);
        }
        if matches!(kind, Kind::Commit | Kind::Claim | Kind::Append) {
            match plan.nth_write {
                Some((0, fault)) => {
                    (plan.nth_write, plan.dead) = (None, plan.dies);
                    return Some(fault);
                }
                Some((skip, fault)) => plan.nth_write = Some((skip - 1, fault)),
                None => {}
            }
        }
        let next = plan.next.get_mut(&kind).and_then(VecDeque::pop_front);
        next.or_else(|| plan.down.get(&kind).copied())
    }

    fn guarded<T: Send + 'static>(&self, kind: Kind, done: Done<T>, run: impl FnOnce(Done<T>)) {
        match self.fault(kind) {
            None => run(done),
            Some(Fault::NotCommitted) => done(Err(StoreError::NotCommitted)),
            Some(Fault::UnknownLost) => done(Err(StoreError::Unknown)),
            Some(Fault::UnknownKept) => run(Box::new(move |_| done(Err(StoreError::Unknown)))),
        }
    }
}

impl LogStore for Store {
    fn append(&self, batch: AppendBatch, done: Done<()>) {
        let records = batch.appends.len();
        self.guarded(Kind::Append, done, |done| {
            self.plan().appended_records += records;
            self.inner.append(batch, done);
        });
    }

    fn index(&self, stream: StreamId, done: Done<Vec<IndexEntry>>) {
        self.guarded(Kind::Index, done, |done| self.inner.index(stream, done));
    }

    fn read(
        &self,
        stream: StreamId,
        from: u64,
        records_max: usize,
        bytes_max: usize,
        done: Done<Vec<Record>>,
    ) {
        self.guarded(Kind::Read, done, |done| {
            self.inner.read(stream, from, records_max, bytes_max, done);
        });
    }

    fn read_seqs(&self, stream: StreamId, seqs: Vec<u64>, bytes_max: usize, done: Done<Vec<Record>>) {
        let seqs = {
            let plan = self.plan();
            seqs.into_iter()
                .filter(|seq| !plan.hidden.contains(seq))
                .collect()
        };
        self.guarded(Kind::ReadSeqs, done, |done| {
            self.inner.read_seqs(stream, seqs, bytes_max, done);
        });
    }

    fn usage(&self, realm: RealmId, done: Done<u64>) {
        self.guarded(Kind::Usage, done, |done| self.inner.usage(realm, done));
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        self.inner.snapshot()
    }
}

impl ControlStore for Store {
    fn load(&self, realm: RealmId, done: Done<Vec<(Vec<u8>, Bytes)>>) {
        self.guarded(Kind::Load, done, |done| self.inner.load(realm, done));
    }

    fn get(&self, realm: RealmId, key: Vec<u8>, done: Done<Option<Bytes>>) {
        self.guarded(Kind::Get, done, |done| self.inner.get(realm, key, done));
    }

    fn commit(&self, realm: RealmId, batch: ControlBatch, done: Done<Outcome>) {
        self.guarded(Kind::Commit, done, |done| self.inner.commit(realm, batch, done));
    }

    fn claim(&self, realm: RealmId, keys: Vec<DirectoryKey>, done: Done<Vec<RealmId>>) {
        self.guarded(Kind::Claim, done, |done| self.inner.claim(realm, keys, done));
    }

    fn directory(&self, kind: DirectoryKind) -> Result<Vec<DirectoryEntry>, StoreError> {
        self.inner.directory(kind)
    }
}
