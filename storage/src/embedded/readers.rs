//! Two threads that read, so that nobody who must not block ever does.
//!
//! Ranges are read from a snapshot: without one, fjall shows a batch item by item while it is being applied.

use super::tables::{self, Tables, read_failed};
use super::{Health, Slot};
use crate::control::{DirectoryEntry, DirectoryKey, DirectoryKind};
use crate::handoff::{Handoff, Parked};
use crate::log::{IndexEntry, Record, StreamId};
use crate::{Done, RealmId, StoreError};
use bytes::Bytes;
use fjall::Readable;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Reader threads.
pub(super) const READERS: usize = 2;
/// Reads waiting; more are refused. A realm asks for one page per subscriber that catches up.
pub(super) const READS_MAX: usize = 4096;
/// [`Tables::read_seqs`] walks on to a number this far ahead and seeks one further away: a seek costs about as much as
/// twenty steps.
const WALK_MAX: usize = 20;

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
        database.with(|tables| super::guarded("an answer to a read", || job(tables, health)));
    }
}

/// A page that is being filled.
struct Page {
    records: Vec<Record>,
    bytes: usize,
}

impl Page {
    /// Adds a record. False: the page is full.
    fn add(&mut self, entry: &IndexEntry, value: fjall::Slice, bytes_max: usize) -> Result<bool, StoreError> {
        if value.len() != entry.bytes as usize {
            return Err(StoreError::Damaged);
        }
        self.bytes += value.len();
        self.records.push(Record {
            seq: entry.seq,
            bytes: value.into(),
        });
        Ok(self.bytes < bytes_max)
    }
}

impl Tables {
    /// [`crate::log::LogStore::index`].
    pub(super) fn index(&self, stream: StreamId) -> Result<Vec<IndexEntry>, StoreError> {
        let snapshot = self.db.snapshot();
        snapshot
            .prefix(&self.log, tables::stream_prefix(stream))
            .map(|item| tables::index_entry(&item.key().map_err(|e| read_failed(&e))?))
            .collect()
    }

    /// [`crate::log::LogStore::read`].
    pub(super) fn read(
        &self,
        stream: StreamId,
        from: u64,
        records_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<Record>, StoreError> {
        let mut page = Page {
            records: Vec::new(),
            bytes: 0,
        };
        let start = tables::seq_prefix(stream, from);
        let end = tables::stream_end(stream);
        for item in self
            .db
            .snapshot()
            .range(&self.log, &start[..]..=&end[..])
            .take(records_max)
        {
            let (key, value) = item.into_inner().map_err(|e| read_failed(&e))?;
            if !page.add(&tables::index_entry(&key)?, value, bytes_max)? {
                break;
            }
        }
        Ok(page.records)
    }

    /// [`crate::log::LogStore::read_seqs`].
    pub(super) fn read_seqs(
        &self,
        stream: StreamId,
        seqs: &[u64],
        bytes_max: usize,
    ) -> Result<Vec<Record>, StoreError> {
        let mut page = Page {
            records: Vec::new(),
            bytes: 0,
        };
        let end = tables::stream_end(stream);
        let snapshot = self.db.snapshot();
        let mut wanted = seqs.iter().copied().peekable();
        // Each turn seeks one number and walks on from there as long as the next ones asked for lie close ahead.
        'seek: while let Some(&first) = wanted.peek() {
            let start = tables::seq_prefix(stream, first);
            let mut passed = 0;
            // This walk has met every record from `first` up to here.
            let mut met_below = first;
            for item in snapshot.range(&self.log, &start[..]..=&end[..]) {
                let next = wanted.peek().copied();
                let is_wanted =
                    |key: &fjall::UserKey| tables::index_entry(key).is_ok_and(|e| Some(e.seq) == next);
                let (key, value) = item.into_inner_if(is_wanted).map_err(|e| read_failed(&e))?;
                let entry = tables::index_entry(&key)?;
                match value {
                    Some(value) => {
                        wanted.next();
                        passed = 0;
                        if !page.add(&entry, value, bytes_max)? {
                            return Ok(page.records);
                        }
                    }
                    None => {
                        // What lies between the last one met and this one is not there.
                        while wanted
                            .next_if(|&seq| met_below <= seq && seq < entry.seq)
                            .is_some()
                        {}
                        passed += 1;
                    }
                }
                met_below = entry.seq.saturating_add(1);
                match wanted.peek() {
                    None => return Ok(page.records),
                    Some(&next)
                        if next <= entry.seq || next - entry.seq > WALK_MAX as u64 || passed >= WALK_MAX =>
                    {
                        continue 'seek;
                    }
                    Some(_) => {}
                }
            }
            // The stream ended: nothing beyond exists.
            while wanted.next_if(|&seq| met_below <= seq).is_some() {}
        }
        Ok(page.records)
    }

    /// [`crate::log::LogStore::usage`].
    pub(super) fn usage(&self, realm: &RealmId) -> Result<u64, StoreError> {
        match self
            .control
            .get(tables::usage_key(realm))
            .map_err(|e| read_failed(&e))?
        {
            None => Ok(0),
            Some(value) => value[..]
                .try_into()
                .map(u64::from_be_bytes)
                .map_err(|_| StoreError::Damaged),
        }
    }

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
