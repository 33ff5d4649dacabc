//! Two threads that read, so that nobody who must not block ever does.
//!
//! Ranges are read from a snapshot: without one, fjall shows a batch item by item while it is being applied.

use super::fjall_control::{Health, Slot};
use super::tables::{self, Tables, read_failed};
use crate::answer::guarded;
use crate::control::{DirectoryEntry, DirectoryKey, DirectoryKind};
use crate::handoff::{Handoff, Parked};
use crate::{Done, RealmId, StoreError};
use bytes::Bytes;
use fjall::Readable;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Reader threads.
pub(super) const READERS: usize = 2;
/// Reads waiting; more are refused.
pub(super) const READS_MAX: usize = 4096;

/// A read, and where its answer goes. Without tables it answers that it was not taken. Damage is noted before whoever
/// asked is told.
pub(super) type Job = Box<dyn FnOnce(Option<&Tables>, &Health) + Send>;

/// Joins a read and its answer.
pub(super) fn job<T: 'static>(
    read: impl FnOnce(&Tables) -> Result<T, StoreError> + Send + 'static,
    done: Done<T>,
) -> Job {
    Box::new(move |tables, health| {
        let result = match tables {
            // fjall asserts some of what it reads.
            Some(tables) => {
                catch_unwind(AssertUnwindSafe(|| read(tables))).unwrap_or(Err(StoreError::Damaged))
            }
            None => Err(StoreError::NotCommitted),
        };
        if matches!(result, Err(StoreError::Damaged)) {
            health.found_damage();
        }
        done(result);
    })
}

/// One reader's life.
pub(super) fn run(
    jobs: &Handoff<Job, Parked>,
    reader: usize,
    database: &Slot,
    health: &Health,
    closed: impl Fn() -> bool,
) {
    jobs.waker(reader).register();
    while let Some(job) = jobs.pop_wait(reader, &closed) {
        database.with(|tables| guarded("an answer to a read", || job(tables, health)));
    }
}

impl Tables {
    /// [`crate::control::ControlStore::load`].
    pub(super) fn load(&self, realm: &RealmId) -> Result<Vec<(Vec<u8>, Bytes)>, StoreError> {
        let prefix = tables::realm_prefix(realm);
        let snapshot = self.db.snapshot();
        snapshot
            .prefix(&self.control, &prefix)
            .map(|item| {
                let (key, value) = item.into_inner().map_err(|e| read_failed(&e))?;
                Ok((key[prefix.len()..].to_vec(), value.into()))
            })
            .collect()
    }

    /// [`crate::control::ControlStore::directory`].
    pub(super) fn directory(&self, kind: DirectoryKind) -> Result<Vec<DirectoryEntry>, StoreError> {
        let prefix = tables::directory_prefix(kind);
        let snapshot = self.db.snapshot();
        snapshot
            .prefix(&self.control, prefix)
            .map(|item| {
                let (key, value) = item.into_inner().map_err(|e| read_failed(&e))?;
                let (realm, value) = tables::directory_entry(&value.into())?;
                let name = key[prefix.len()..].to_vec();
                Ok(DirectoryEntry {
                    key: DirectoryKey { kind, name },
                    realm,
                    value,
                })
            })
            .collect()
    }

    /// A control keyspace's value.
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        Ok(self
            .control
            .get(key)
            .map_err(|e| read_failed(&e))?
            .map(Bytes::from))
    }
}
