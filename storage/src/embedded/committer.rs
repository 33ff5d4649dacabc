//! The one thread that writes: everything that arrived while the last sync ran becomes one commit group.
//!
//! A group is one fjall batch, so one checksum, one lock, one sync; that all of it happens or nothing is more than
//! each request asks for. Its first item numbers it (see [`super::audit`] for what that is good for). fjall syncs the
//! journal before the batch becomes visible, so readers never see what is not durable.
//!
//! What several requests of a group write to one key of the control keyspace is folded into one item: items of a batch
//! share a sequence number. The same overlay lets the checks of a request see the writes of those before it.

use super::synced::Synced;
use super::tables::{self, GroupMark, KEY_BYTES_MAX, Tables};
use crate::answer::{Answer, guarded};
use crate::control::{Check, ControlBatch, DirectoryKey, Outcome};
use crate::handoff::{Handoff, Parked};
use crate::health::Health;
use crate::{RealmId, StoreError};
use bytes::Bytes;
use fjall::{OwnedWriteBatch, PersistMode};
use std::collections::HashMap;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Requests waiting; more are refused as not committed. Each shard has a few under way.
pub(super) const REQUESTS_MAX: usize = 4096;
/// A group is closed once it holds this many bytes, so that a burst of large records does not hold up the first one
/// for its whole length.
const GROUP_BYTES_MAX: usize = 8 << 20;
/// fjall needs room of its own for flushes and compactions, and does not recover from not having it. Below this much
/// free space nothing is taken.
pub(super) const RESERVE_BYTES: u64 = 256 << 20;

/// What the committer is asked for.
pub(super) enum Request {
    /// [`crate::control::ControlStore::commit`].
    Commit(RealmId, ControlBatch, Answer<Outcome>),
    /// [`crate::control::ControlStore::claim`].
    Claim(RealmId, Vec<DirectoryKey>, Answer<Vec<RealmId>>),
}

impl Request {
    /// Answers that it was not taken.
    pub(super) fn refuse(self) {
        match self {
            Self::Commit(_, _, done) => done.give(Err(StoreError::NotCommitted)),
            Self::Claim(_, _, done) => done.give(Err(StoreError::NotCommitted)),
        }
    }

    /// About what it adds to the journal.
    fn bytes(&self) -> usize {
        const ITEM: usize = 96;
        match self {
            Self::Commit(_, batch, _) => {
                let values = batch
                    .writes
                    .iter()
                    .map(|w| w.value.as_ref().map_or(0, Bytes::len));
                values.map(|bytes| ITEM + bytes).sum::<usize>() + ITEM * batch.directory.len()
            }
            Self::Claim(_, keys, _) => keys.len() * ITEM,
        }
    }
}

/// A request decided, waiting for the sync.
struct Decided {
    /// Whether the group's fate is its fate too.
    wrote: bool,
    /// Answers `Ok` for `None`.
    answer: Box<dyn FnOnce(Option<StoreError>) + Send>,
}

impl Decided {
    fn new<T: Send + 'static>(wrote: bool, result: Result<T, StoreError>, done: Answer<T>) -> Self {
        let answer = Box::new(move |failed: Option<StoreError>| match failed {
            Some(error) => done.give(Err(error)),
            None => done.give(result),
        });
        Self { wrote, answer }
    }
}

/// The committer's own.
pub(super) struct Committer<'a> {
    pub(super) tables: &'a Tables,
    pub(super) health: &'a Health,
    /// The number of the last group that was written, or tried.
    pub(super) group: u64,
    pub(super) store: [u8; 16],
    pub(super) synced: Synced,
    /// The store's folder, to ask how much room is left.
    pub(super) folder: File,
    pub(super) reserve_bytes: u64,
    /// A write or a sync failed: what is in the journal is not known, and stays so until the next start.
    pub(super) poisoned: bool,
}

impl Committer<'_> {
    /// The thread's life.
    pub(super) fn run(mut self, requests: &Handoff<Request, Parked>, closed: impl Fn() -> bool) {
        requests.waker(0).register();
        while let Some(first) = requests.pop_wait(0, &closed) {
            let mut bytes = first.bytes();
            let mut taken = vec![first];
            while bytes < GROUP_BYTES_MAX
                && let Some(next) = requests.pop()
            {
                bytes += next.bytes();
                taken.push(next);
            }
            self.commit(taken, bytes as u64);
        }
        self.synced.close();
    }

    fn commit(&mut self, requests: Vec<Request>, bytes: u64) {
        if self.poisoned || !self.has_room(bytes) {
            self.health.set(false);
            for request in requests {
                guarded("an answer to a commit", || request.refuse());
            }
            return;
        }
        // A number is used once, even by a group that fails: what it left in the journal must not be taken for the
        // next one.
        self.group += 1;
        self.health.begin();
        let mut group = Group::new(self.tables, self.group, &self.store, requests.len());
        let decided: Vec<_> = requests
            .into_iter()
            .map(|request| group.decide(request))
            .collect();
        let outcome = match group.finish() {
            None => Ok(()),
            Some(batch) => match catch_unwind(AssertUnwindSafe(|| batch.commit())) {
                Ok(Ok(())) => self.synced.advance(self.group),
                Ok(Err(fjall::Error::Poisoned)) => {
                    tracing::error!(
                        "the store's background work failed; it takes nothing more until restarted"
                    );
                    Err(StoreError::NotCommitted)
                }
                Ok(Err(error)) => {
                    tracing::error!(%error, "a commit failed; the store takes nothing more until restarted");
                    Err(StoreError::Unknown)
                }
                Err(_) => Err(StoreError::Unknown),
            },
        };
        self.poisoned = outcome.is_err();
        if self.poisoned {
            self.health.fail();
        }
        self.health.set(outcome.is_ok());
        for Decided { wrote, answer } in decided {
            let failed = outcome
                .err()
                .map(|error| if wrote { error } else { StoreError::NotCommitted });
            guarded("an answer to a commit", || answer(failed));
        }
    }

    /// Whether so much can surely be written.
    fn has_room(&self, bytes: u64) -> bool {
        // Where the file system does not say, writing will tell.
        let Ok(stat) = rustix::fs::fstatvfs(&self.folder) else {
            return true;
        };
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        let has_room = free >= self.reserve_bytes.saturating_add(bytes);
        if !has_room && self.health.get() {
            tracing::error!(
                free_bytes = free,
                reserve_bytes = self.reserve_bytes,
                "too little free space: nothing is taken until there is more"
            );
        }
        has_room
    }
}

/// A commit group in the making.
struct Group<'a> {
    tables: &'a Tables,
    batch: OwnedWriteBatch,
    /// The control keyspace as it will be: keys written so far.
    overlay: HashMap<Vec<u8>, Option<Bytes>>,
}

impl<'a> Group<'a> {
    fn new(tables: &'a Tables, number: u64, store: &[u8; 16], requests: usize) -> Self {
        let mut batch = OwnedWriteBatch::with_capacity(tables.db.clone(), requests + 1)
            .durability(Some(PersistMode::SyncData));
        let mark = GroupMark {
            group: number,
            store: *store,
            seqno_min: tables.db.seqno(),
        };
        batch.insert(&tables.control, tables::GROUP_KEY, mark.encode());
        Self {
            tables,
            batch,
            overlay: HashMap::new(),
        }
    }

    fn decide(&mut self, request: Request) -> Decided {
        match request {
            Request::Commit(realm, batch, done) => {
                let result = self.control(&realm, batch);
                Decided::new(result == Ok(Outcome::Applied), result, done)
            }
            Request::Claim(realm, keys, done) => {
                let (wrote, result) = self.claim(&realm, &keys);
                Decided::new(wrote, result, done)
            }
        }
    }

    fn control(&mut self, realm: &RealmId, batch: ControlBatch) -> Result<Outcome, StoreError> {
        for check in &batch.checks {
            let holds = match check {
                Check::Absent(key) => self.get(&tables::record_key(realm, key))?.is_none(),
                Check::Equals(key, value) => {
                    self.get(&tables::record_key(realm, key))?.as_ref() == Some(value)
                }
            };
            if !holds {
                return Ok(Outcome::Refused);
            }
        }
        // Nothing is put into the overlay before all of it is known to be right.
        let mut changes = Vec::with_capacity(batch.writes.len() + batch.directory.len());
        for (key, value) in batch.directory {
            let key = tables::directory_key(&key);
            if let Some(stored) = self.get(&key)?
                && tables::directory_entry(&stored)?.0 != *realm
            {
                return Ok(Outcome::Refused);
            }
            changes.push((key, value.map(|value| tables::directory_value(realm, &value))));
        }
        let writes = batch.writes.into_iter();
        changes.extend(writes.map(|write| (tables::record_key(realm, &write.key), write.value)));
        if changes.iter().any(|(key, _)| key.len() > KEY_BYTES_MAX) {
            return Err(StoreError::NotCommitted);
        }
        self.overlay.extend(changes);
        Ok(Outcome::Applied)
    }

    fn claim(&mut self, realm: &RealmId, keys: &[DirectoryKey]) -> (bool, Result<Vec<RealmId>, StoreError>) {
        let mut owners = Vec::with_capacity(keys.len());
        let mut claimed = HashMap::new();
        for key in keys {
            let key = tables::directory_key(key);
            if key.len() > KEY_BYTES_MAX || realm.0.len() > usize::from(u16::MAX) {
                return (false, Err(StoreError::NotCommitted));
            }
            let stored = match claimed.contains_key(&key) {
                true => None,
                false => match self.get(&key) {
                    Ok(stored) => stored,
                    Err(error) => return (false, Err(error)),
                },
            };
            match stored.as_ref().map(tables::directory_entry) {
                Some(Ok((owner, _))) => owners.push(owner),
                Some(Err(error)) => return (false, Err(error)),
                None => {
                    claimed.insert(key, Some(tables::directory_value(realm, &[])));
                    owners.push(realm.clone());
                }
            }
        }
        let wrote = !claimed.is_empty();
        self.overlay.extend(claimed);
        (wrote, Ok(owners))
    }

    /// A key of the control keyspace, as the requests so far leave it.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        match self.overlay.get(key) {
            Some(value) => Ok(value.clone()),
            // fjall asserts some of what it reads.
            None => {
                catch_unwind(AssertUnwindSafe(|| self.tables.get(key))).unwrap_or(Err(StoreError::Damaged))
            }
        }
    }

    /// The batch, if there is anything to write.
    fn finish(mut self) -> Option<OwnedWriteBatch> {
        for (key, value) in self.overlay {
            match value {
                Some(value) => self.batch.insert(&self.tables.control, key, value),
                None => self.batch.remove(&self.tables.control, key),
            }
        }
        (self.batch.len() > 1).then_some(self.batch)
    }
}
