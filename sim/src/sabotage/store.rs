//! Stores that lie: about what is durable, about all of a batch, about what they still have.

use super::Saboteur;
use crate::dice::Dice;
use crate::store::Image;
use bytes::Bytes;
use drover_engine::effects::Stores;
use drover_storage::control::{
    ControlBatch, ControlStore, DirectoryEntry, DirectoryKey, DirectoryKind, Outcome,
};
use drover_storage::log::{AppendBatch, IndexEntry, LogStore, Record, Snapshot, StreamId};
use drover_storage::{Done, RealmId, StoreError};
use std::sync::Arc;

/// Acknowledges appends before they are durable.
#[derive(Default)]
pub(super) struct EarlyAppend;

impl Saboteur for EarlyAppend {
    fn wraps(&mut self, stores: Stores) -> Stores {
        wrapped(stores, Lie::EarlyAppend)
    }
}

/// Acknowledges control commits before they are durable.
#[derive(Default)]
pub(super) struct EarlyCommit;

impl Saboteur for EarlyCommit {
    fn wraps(&mut self, stores: Stores) -> Stores {
        wrapped(stores, Lie::EarlyCommit)
    }
}

/// Does half of a batch and says it did it all.
#[derive(Default)]
pub(super) struct HalfBatch;

impl Saboteur for HalfBatch {
    fn wraps(&mut self, stores: Stores) -> Stores {
        wrapped(stores, Lie::HalfBatch)
    }
}

/// Lacks a record after a restart.
#[derive(Default)]
pub(super) struct Forgotten;

impl Saboteur for Forgotten {
    fn restarts(&mut self, disk: &mut Image, dice: &mut Dice) {
        if let Some(stream) = dice.pick(&disk.streams()).copied() {
            let seqs: Vec<u64> = disk.stream(stream).map(|(seq, _)| seq).collect();
            if let Some(seq) = dice.pick(&seqs) {
                disk.forget(stream, *seq);
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Lie {
    EarlyAppend,
    EarlyCommit,
    HalfBatch,
}

fn wrapped(stores: Stores, lie: Lie) -> Stores {
    let liar = Arc::new(Liar { inner: stores, lie });
    Stores {
        log: liar.clone(),
        control: liar,
    }
}

struct Liar {
    inner: Stores,
    lie: Lie,
}

impl LogStore for Liar {
    fn append(&self, mut batch: AppendBatch, done: Done<()>) {
        match self.lie {
            Lie::EarlyAppend => {
                self.inner.log.append(batch, Box::new(|_| {}));
                done(Ok(()));
            }
            Lie::HalfBatch => {
                batch.appends.truncate(batch.appends.len().div_ceil(2));
                self.inner.log.append(batch, done);
            }
            Lie::EarlyCommit => self.inner.log.append(batch, done),
        }
    }

    fn index(&self, stream: StreamId, done: Done<Vec<IndexEntry>>) {
        self.inner.log.index(stream, done);
    }

    fn read(
        &self,
        stream: StreamId,
        from: u64,
        records_max: usize,
        bytes_max: usize,
        done: Done<Vec<Record>>,
    ) {
        self.inner.log.read(stream, from, records_max, bytes_max, done);
    }

    fn read_seqs(&self, stream: StreamId, seqs: Vec<u64>, bytes_max: usize, done: Done<Vec<Record>>) {
        self.inner.log.read_seqs(stream, seqs, bytes_max, done);
    }

    fn usage(&self, realm: RealmId, done: Done<u64>) {
        self.inner.log.usage(realm, done);
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        self.inner.log.snapshot()
    }
}

impl ControlStore for Liar {
    fn load(&self, realm: RealmId, done: Done<Vec<(Vec<u8>, Bytes)>>) {
        self.inner.control.load(realm, done);
    }

    fn get(&self, realm: RealmId, key: Vec<u8>, done: Done<Option<Bytes>>) {
        self.inner.control.get(realm, key, done);
    }

    fn commit(&self, realm: RealmId, batch: ControlBatch, done: Done<Outcome>) {
        if self.lie == Lie::EarlyCommit {
            self.inner.control.commit(realm, batch, Box::new(|_| {}));
            done(Ok(Outcome::Applied));
        } else {
            self.inner.control.commit(realm, batch, done);
        }
    }

    fn claim(&self, realm: RealmId, keys: Vec<DirectoryKey>, done: Done<Vec<RealmId>>) {
        self.inner.control.claim(realm, keys, done);
    }

    fn directory(&self, kind: DirectoryKind) -> Result<Vec<DirectoryEntry>, StoreError> {
        self.inner.control.directory(kind)
    }
}
