//! What a disk holds: streams, control records, the directory. Plain data, changed in whole steps.

use bytes::Bytes;
use drover_storage::RealmId;
use drover_storage::control::{Check, ControlBatch, DirectoryEntry, DirectoryKey, DirectoryKind, Outcome};
use drover_storage::embedded::Held;
use drover_storage::log::{Append, AppendBatch, IndexEntry, Record, StreamId};
use drover_wire::id::{GroupId, Hash};
use std::collections::BTreeMap;

/// One record of a stream.
#[derive(Clone, Debug)]
pub struct StoredRecord {
    /// Its content address.
    pub id: Hash,
    /// What was appended.
    pub bytes: Bytes,
    /// What it counts in the log budget.
    pub budget_bytes: u32,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Image {
    streams: BTreeMap<StreamId, BTreeMap<u64, StoredRecord>>,
    usage: BTreeMap<RealmId, u64>,
    control: BTreeMap<RealmId, BTreeMap<Vec<u8>, Bytes>>,
    directory: BTreeMap<DirectoryKey, (RealmId, Bytes)>,
}

impl Image {
    /// A stream's records, ascending.
    pub fn stream(&self, stream: StreamId) -> impl DoubleEndedIterator<Item = (u64, &StoredRecord)> {
        let records = self.streams.get(&stream).into_iter().flatten();
        records.map(|(seq, record)| (*seq, record))
    }

    /// The record of this number.
    pub fn record(&self, stream: StreamId, seq: u64) -> Option<&StoredRecord> {
        self.streams.get(&stream)?.get(&seq)
    }

    /// The numbers after `above` and below `upto` with their content addresses.
    pub fn records_between(
        &self,
        stream: StreamId,
        above: u64,
        upto: u64,
    ) -> impl Iterator<Item = (u64, Hash)> {
        let records = self.streams.get(&stream);
        let from = above.saturating_add(1);
        let records = records.filter(|_| from < upto).map(|r| r.range(from..upto));
        records
            .into_iter()
            .flatten()
            .map(|(seq, record)| (*seq, record.id))
    }

    /// The newest number; `None` if there is none.
    pub fn head(&self, stream: StreamId) -> Option<u64> {
        self.streams.get(&stream)?.last_key_value().map(|(seq, _)| *seq)
    }

    /// Every stream that holds something.
    pub fn streams(&self) -> Vec<StreamId> {
        let held = self.streams.iter().filter(|(_, records)| !records.is_empty());
        held.map(|(stream, _)| *stream).collect()
    }

    /// Whether the directory names this realm.
    pub fn is_minted(&self, realm: &RealmId) -> bool {
        let of_realm = |(key, (owner, _)): (&DirectoryKey, &(RealmId, Bytes))| {
            key.kind == DirectoryKind::Realm && owner == realm
        };
        self.directory.iter().any(of_realm)
    }

    /// Groups of a realm, by the directory.
    pub fn groups_of(&self, realm: &RealmId) -> Vec<GroupId> {
        let groups = self
            .directory
            .iter()
            .filter(|(key, (owner, _))| key.kind == DirectoryKind::Group && owner == realm);
        groups
            .filter_map(|(key, _)| GroupId::from_slice(&key.name))
            .collect()
    }

    /// All of it, to be copied.
    pub(super) fn held(&self) -> Held {
        let append = |stream: StreamId, seq: u64, record: &StoredRecord| Append {
            stream,
            seq,
            id: record.id,
            bytes: record.bytes.clone(),
            budget_bytes: record.budget_bytes,
        };
        let streams = self.streams.iter();
        let records = self.control.iter();
        Held {
            appends: streams
                .flat_map(|(stream, records)| records.iter().map(|(seq, r)| append(*stream, *seq, r)))
                .collect(),
            usage: self.usage.clone().into_iter().collect(),
            records: records
                .flat_map(|(realm, r)| r.iter().map(|(k, v)| (realm.clone(), k.clone(), v.clone())))
                .collect(),
            directory: self.directory.iter().map(DirectoryEntry::from).collect(),
        }
    }

    /// Takes a record out, as no honest store would.
    pub fn forget(&mut self, stream: StreamId, seq: u64) {
        if let Some(records) = self.streams.get_mut(&stream) {
            records.remove(&seq);
        }
    }

    /// Appends and deletes; an error names a number or a content address that was used before.
    pub(super) fn append(&mut self, batch: AppendBatch) -> Result<(), String> {
        let mut complaint = Ok(());
        for append in batch.appends {
            let records = self.streams.entry(append.stream).or_default();
            if records
                .last_key_value()
                .is_some_and(|(last, _)| *last >= append.seq)
            {
                complaint = Err(format!(
                    "{:?}: number {} appended after {:?}",
                    append.stream,
                    append.seq,
                    records.last_key_value().map(|(seq, _)| *seq)
                ));
            }
            if let Some((seq, _)) = records.iter().find(|(_, r)| r.id == append.id) {
                complaint = Err(format!(
                    "{:?}: {:?} appended twice, as {seq} and as {}",
                    append.stream, append.id, append.seq
                ));
            }
            let record = StoredRecord {
                id: append.id,
                bytes: append.bytes,
                budget_bytes: append.budget_bytes,
            };
            records.insert(append.seq, record);
        }
        for delete in batch.deletes {
            if let Some(records) = self.streams.get_mut(&delete.stream) {
                for entry in &delete.entries {
                    if records.get(&entry.seq).is_some_and(|r| r.id == entry.id) {
                        records.remove(&entry.seq);
                    }
                }
            }
        }
        self.usage.extend(batch.usage);
        complaint
    }

    pub(super) fn commit(&mut self, realm: &RealmId, batch: ControlBatch) -> Outcome {
        let empty = BTreeMap::new();
        let records = self.control.get(realm).unwrap_or(&empty);
        let holds = batch.checks.iter().all(|check| match check {
            Check::Absent(key) => !records.contains_key(key),
            Check::Equals(key, value) => records.get(key) == Some(value),
        });
        let ours = batch
            .directory
            .iter()
            .all(|(key, _)| self.directory.get(key).is_none_or(|(owner, _)| owner == realm));
        if !holds || !ours {
            return Outcome::Refused;
        }
        let records = self.control.entry(realm.clone()).or_default();
        for write in batch.writes {
            match write.value {
                Some(value) => records.insert(write.key, value),
                None => records.remove(&write.key),
            };
        }
        for (key, value) in batch.directory {
            match value {
                Some(value) => self.directory.insert(key, (realm.clone(), value)),
                None => self.directory.remove(&key),
            };
        }
        Outcome::Applied
    }

    pub(super) fn claim(&mut self, realm: &RealmId, keys: Vec<DirectoryKey>) -> Vec<RealmId> {
        keys.into_iter()
            .map(|key| {
                let entry = self.directory.entry(key);
                entry.or_insert((realm.clone(), Bytes::new())).0.clone()
            })
            .collect()
    }

    pub(super) fn index(&self, stream: StreamId) -> Vec<IndexEntry> {
        self.stream(stream)
            .map(|(seq, record)| IndexEntry {
                seq,
                id: record.id,
                bytes: record.bytes.len() as u32,
                budget_bytes: record.budget_bytes,
            })
            .collect()
    }

    pub(super) fn page(
        &self,
        stream: StreamId,
        from: u64,
        records_max: usize,
        bytes_max: usize,
    ) -> Vec<Record> {
        let records = self.streams.get(&stream);
        let from = records.into_iter().flat_map(|r| r.range(from..));
        cut(from.map(|(seq, r)| (*seq, r)).take(records_max), bytes_max)
    }

    pub(super) fn seqs(&self, stream: StreamId, seqs: &[u64], bytes_max: usize) -> Vec<Record> {
        let found = seqs
            .iter()
            .filter_map(|seq| Some((*seq, self.record(stream, *seq)?)));
        cut(found, bytes_max)
    }

    /// Bytes this realm holds, as it was last said.
    pub fn usage(&self, realm: &RealmId) -> u64 {
        self.usage.get(realm).copied().unwrap_or_default()
    }

    pub(super) fn load(&self, realm: &RealmId) -> Vec<(Vec<u8>, Bytes)> {
        let records = self.control.get(realm).into_iter().flatten();
        records.map(|(k, v)| (k.clone(), v.clone())).collect()
    }

    pub(super) fn get(&self, realm: &RealmId, key: &[u8]) -> Option<Bytes> {
        self.control.get(realm)?.get(key).cloned()
    }

    pub(super) fn directory(&self, kind: DirectoryKind) -> Vec<DirectoryEntry> {
        let entries = self.directory.iter().filter(|(key, _)| key.kind == kind);
        entries.map(DirectoryEntry::from).collect()
    }
}

/// At least one, and no further one once `bytes_max` is reached.
fn cut<'a>(records: impl Iterator<Item = (u64, &'a StoredRecord)>, bytes_max: usize) -> Vec<Record> {
    let mut total = 0;
    let mut out = Vec::new();
    for (seq, record) in records {
        if !out.is_empty() && total >= bytes_max {
            break;
        }
        total += record.bytes.len();
        out.push(Record {
            seq,
            bytes: record.bytes.clone(),
        });
    }
    out
}
