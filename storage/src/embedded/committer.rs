//! The one thread that writes: everything that arrived while the last sync ran becomes one commit group.
//!
//! A group is one fjall batch, so one checksum, one lock, one sync; that all of it happens or nothing is more than
//! each request asks for. Its first item numbers it (see [`super::audit`] for what that is good for). fjall syncs the
//! journal before the batch becomes visible, so readers never see what is not durable.
//!
//! What several requests of a group write to one key of the control keyspace is folded into one item: items of a batch
//! share a sequence number. The same overlay lets the checks of a request see the writes of those before it.

use super::fjall_control::{Health, Slot};
use super::synced::Synced;
use super::tables::{self, GroupMark, KEY_BYTES_MAX, Tables};
use crate::answer::{Answer, guarded};
use crate::control::{Check, ControlBatch, DirectoryKey, Outcome};
use crate::handoff::{Handoff, Parked};
use crate::{RealmId, StoreError};
use bytes::Bytes;
use fjall::{OwnedWriteBatch, PersistMode};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

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
pub(super) struct Decided {
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

/// Whether groups are written.
#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    /// They are.
    Good,
    /// A write failed: at this moment it is tried again, and if that fails after this pause once more.
    Down(Instant, Duration),
    /// A sync failed: what the disk holds only the next start can tell.
    Failed,
}

/// How often those who ask are refused while writes fail, and the end of the store is looked for.
const REFUSE_EVERY: Duration = Duration::from_millis(20);

/// The committer's own.
pub(super) struct Committer<'a> {
    pub(super) database: &'a Slot,
    pub(super) health: &'a Health,
    /// The number of the last group that was written, or tried.
    pub(super) group: u64,
    pub(super) store: [u8; 16],
    pub(super) synced: Synced,
    pub(super) folder: PathBuf,
    pub(super) state: State,
    /// It was reported that the disk is full.
    pub(super) full: bool,
}

/// How the writing of a group ended.
pub(super) enum Written {
    /// It is durable.
    Durable,
    /// Nothing of it was written, and nothing can be any more.
    Refused,
    /// The database failed while it was written or synced.
    Broken,
    /// Nobody can tell: fjall panicked, or it is durable and the record of that could not be written.
    Unknown,
}

impl Committer<'_> {
    /// The thread's life.
    pub(super) fn run(mut self, requests: &Handoff<Request, Parked>, closed: impl Fn() -> bool) {
        requests.waker(0).register();
        loop {
            if let State::Down(at, _) = self.state {
                let is_over = closed();
                while let Some(request) = requests.pop() {
                    guarded("an answer to a commit", || request.refuse());
                }
                if is_over {
                    break;
                }
                match Instant::now() < at {
                    true => thread::park_timeout(REFUSE_EVERY),
                    false => self.mend(),
                }
                continue;
            }
            let Some(first) = requests.pop_wait(0, &closed) else {
                break;
            };
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
        if matches!(self.state, State::Failed) || !self.has_room(bytes) {
            for request in requests {
                guarded("an answer to a commit", || request.refuse());
            }
            return;
        }
        self.health.begin();
        let mut decided = Vec::with_capacity(requests.len());
        let written = self.write(requests, &mut decided);
        let outcome = self.outcome(written);
        self.health.end();
        for Decided { wrote, answer } in decided {
            let failed = outcome
                .err()
                .map(|error| if wrote { error } else { StoreError::NotCommitted });
            guarded("an answer to a commit", || answer(failed));
        }
    }

    fn has_room(&mut self, bytes: u64) -> bool {
        let has_room = self.health.has_room(bytes);
        if has_room == self.full {
            self.full = !has_room;
            match has_room {
                true => tracing::info!("there is free space again"),
                false => tracing::error!(
                    reserve_bytes = self.health.reserve_bytes,
                    "too little free space: nothing is taken until there is more"
                ),
            }
        }
        has_room
    }

    /// Writes one group; `decided` is what becomes of each request if it is durable.
    pub(super) fn write(&mut self, requests: Vec<Request>, decided: &mut Vec<Decided>) -> Written {
        // A number is used once, even by a group that fails: what it left in the journal must not be taken for the
        // next one.
        self.group += 1;
        let (number, store, is_probe) = (self.group, self.store, requests.is_empty());
        let written = self.database.with(|tables| {
            let tables = tables?;
            let mut group = Group::new(tables, number, &store, requests.len());
            decided.extend(requests.into_iter().map(|request| group.decide(request)));
            let Some(batch) = group.finish(is_probe) else {
                return Some(Ok(false));
            };
            let committed = catch_unwind(AssertUnwindSafe(|| batch.commit())).ok()?;
            Some(committed.map(|()| true))
        });
        match written {
            // All of it was refused. Its number is nowhere in the database, so it must not be looked for at the next start.
            Some(Ok(false)) => Written::Durable,
            Some(Ok(true)) => match self.synced.advance(number) {
                Ok(()) => Written::Durable,
                Err(_) => Written::Unknown,
            },
            Some(Err(fjall::Error::Poisoned)) => {
                tracing::error!("the store's background work failed; it takes nothing more until restarted");
                Written::Refused
            }
            Some(Err(error)) => {
                tracing::error!(%error, "a commit failed");
                Written::Broken
            }
            // A panic, told of by its hook.
            None => Written::Unknown,
        }
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

    /// The batch, if there is anything to write beside its number, or that alone is wanted.
    fn finish(mut self, even_empty: bool) -> Option<OwnedWriteBatch> {
        for (key, value) in self.overlay {
            match value {
                Some(value) => self.batch.insert(&self.tables.control, key, value),
                None => self.batch.remove(&self.tables.control, key),
            }
        }
        (even_empty || self.batch.len() > 1).then_some(self.batch)
    }
}
