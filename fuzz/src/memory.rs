//! Both stores in memory, answering at once: a session target opens thousands of stores a second, each as it was when
//! the workspace in it had just been founded.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use drover_storage::control::{
    Check, ControlBatch, ControlStore, DirectoryEntry, DirectoryKey, DirectoryKind, Outcome,
};
use drover_storage::embedded::Held;
use drover_storage::log::{Append, AppendBatch, IndexEntry, LogStore, Record, Snapshot, StreamId};
use drover_storage::{Done, RealmId, StoreError};

/// What is stored.
#[derive(Clone, Debug, Default)]
pub struct State {
    records: BTreeMap<(StreamId, u64), (IndexEntry, Bytes)>,
    usage: BTreeMap<RealmId, u64>,
    control: BTreeMap<(RealmId, Vec<u8>), Bytes>,
    directory: BTreeMap<DirectoryKey, (RealmId, Bytes)>,
}

/// See the module. Clones are the same store.
#[derive(Clone, Debug, Default)]
pub struct Memory(Arc<Mutex<State>>);

impl Memory {
    /// A store that holds this.
    pub fn holding(state: State) -> Self {
        Self(Arc::new(Mutex::new(state)))
    }

    /// A copy of what it holds.
    pub fn state(&self) -> State {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn stream(&self, stream: StreamId, from: u64) -> impl Iterator<Item = &(IndexEntry, Bytes)> {
        let range = self.records.range((stream, from)..=(stream, u64::MAX));
        range.map(|(_, stored)| stored)
    }

    fn held(&self) -> Held {
        let records = self.records.iter();
        let control = self.control.iter();
        Held {
            appends: records
                .map(|((stream, seq), (entry, bytes))| Append {
                    stream: *stream,
                    seq: *seq,
                    id: entry.id,
                    bytes: bytes.clone(),
                    budget_bytes: entry.budget_bytes,
                })
                .collect(),
            usage: self.usage.clone().into_iter().collect(),
            records: control
                .map(|((realm, key), value)| (realm.clone(), key.clone(), value.clone()))
                .collect(),
            directory: self.directory.iter().map(DirectoryEntry::from).collect(),
        }
    }

    fn append(&mut self, batch: AppendBatch) {
        for append in batch.appends {
            let entry = IndexEntry {
                seq: append.seq,
                id: append.id,
                bytes: append.bytes.len() as u32,
                budget_bytes: append.budget_bytes,
            };
            self.records
                .insert((append.stream, append.seq), (entry, append.bytes));
        }
        for delete in batch.deletes {
            for entry in delete.entries {
                self.records.remove(&(delete.stream, entry.seq));
            }
        }
        self.usage.extend(batch.usage);
    }

    fn commit(&mut self, realm: &RealmId, batch: ControlBatch) -> Outcome {
        let key = |key: Vec<u8>| (realm.clone(), key);
        let holds = batch.checks.into_iter().all(|check| match check {
            Check::Absent(name) => !self.control.contains_key(&key(name)),
            Check::Equals(name, value) => self.control.get(&key(name)) == Some(&value),
        });
        let owned = batch.directory.iter().all(|(name, _)| {
            let owner = self.directory.get(name).map(|(owner, _)| owner);
            owner.is_none_or(|owner| owner == realm)
        });
        if !holds || !owned {
            return Outcome::Refused;
        }
        for write in batch.writes {
            match write.value {
                Some(value) => drop(self.control.insert(key(write.key), value)),
                None => drop(self.control.remove(&key(write.key))),
            }
        }
        for (name, value) in batch.directory {
            match value {
                Some(value) => drop(self.directory.insert(name, (realm.clone(), value))),
                None => drop(self.directory.remove(&name)),
            }
        }
        Outcome::Applied
    }
}

/// Records as long as neither bound is met; the first always.
fn page<'a>(
    records: impl Iterator<Item = &'a (IndexEntry, Bytes)>,
    records_max: usize,
    bytes_max: usize,
) -> Vec<Record> {
    let mut bytes = 0;
    let mut page = Vec::new();
    for (entry, stored) in records.take(records_max) {
        if bytes >= bytes_max && !page.is_empty() {
            break;
        }
        bytes += stored.len();
        page.push(Record {
            seq: entry.seq,
            bytes: stored.clone(),
        });
    }
    page
}

impl LogStore for Memory {
    fn append(&self, batch: AppendBatch, done: Done<()>) {
        self.lock().append(batch);
        done(Ok(()));
    }

    fn index(&self, stream: StreamId, done: Done<Vec<IndexEntry>>) {
        let index = self.lock().stream(stream, 0).map(|(entry, _)| *entry).collect();
        done(Ok(index));
    }

    fn read(
        &self,
        stream: StreamId,
        from: u64,
        records_max: usize,
        bytes_max: usize,
        done: Done<Vec<Record>>,
    ) {
        let records = page(self.lock().stream(stream, from), records_max, bytes_max);
        done(Ok(records));
    }

    fn read_seqs(&self, stream: StreamId, seqs: Vec<u64>, bytes_max: usize, done: Done<Vec<Record>>) {
        let state = self.lock();
        let found = seqs.iter().filter_map(|seq| state.records.get(&(stream, *seq)));
        let records = page(found, usize::MAX, bytes_max);
        drop(state);
        done(Ok(records));
    }

    fn usage(&self, realm: RealmId, done: Done<u64>) {
        let usage = self.lock().usage.get(&realm).copied().unwrap_or_default();
        done(Ok(usage));
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        Ok(Box::new(self.lock().held()))
    }
}

impl ControlStore for Memory {
    fn load(&self, realm: RealmId, done: Done<Vec<(Vec<u8>, Bytes)>>) {
        let state = self.lock();
        let records = state.control.range((realm.clone(), Vec::new())..);
        let records = records
            .take_while(|((owner, _), _)| *owner == realm)
            .map(|((_, key), value)| (key.clone(), value.clone()))
            .collect();
        drop(state);
        done(Ok(records));
    }

    fn get(&self, realm: RealmId, key: Vec<u8>, done: Done<Option<Bytes>>) {
        let value = self.lock().control.get(&(realm, key)).cloned();
        done(Ok(value));
    }

    fn commit(&self, realm: RealmId, batch: ControlBatch, done: Done<Outcome>) {
        let outcome = self.lock().commit(&realm, batch);
        done(Ok(outcome));
    }

    fn claim(&self, realm: RealmId, keys: Vec<DirectoryKey>, done: Done<Vec<RealmId>>) {
        let mut state = self.lock();
        let owners = keys.into_iter().map(|key| {
            let entry = state
                .directory
                .entry(key)
                .or_insert_with(|| (realm.clone(), Bytes::new()));
            entry.0.clone()
        });
        let owners = owners.collect();
        drop(state);
        done(Ok(owners));
    }

    fn directory(&self, kind: DirectoryKind) -> Result<Vec<DirectoryEntry>, StoreError> {
        let state = self.lock();
        let entries = state.directory.iter().filter(|(key, _)| key.kind == kind);
        Ok(entries.map(DirectoryEntry::from).collect())
    }
}
