//! The simulated store keeps the contract of all stores. What the world does step by step, a thread does here, in an
//! order of its own: writes of one caller in theirs, reads at any time.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use drover_sim::dice::Dice;
use drover_sim::store::{Caller, SimStore, Verdict};
use drover_storage::contract::Subject;
use drover_storage::control::{
    ControlBatch, ControlStore, DirectoryEntry, DirectoryKey, DirectoryKind, Outcome,
};
use drover_storage::log::{AppendBatch, IndexEntry, LogStore, Record, Snapshot, StreamId};
use drover_storage::{Done, RealmId, StoreError};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// What outlives an opened store: the disk.
#[derive(Default)]
struct Disk(Arc<SimStore>);

impl Subject for Disk {
    type Store = Pumped;

    fn open(&self) -> Pumped {
        let (wake, woken) = channel();
        let store = self.0.clone();
        let pump = std::thread::spawn(move || {
            let mut dice = Dice::new(1, "pump");
            let mut reads = Vec::new();
            while woken.recv().is_ok() {
                // Whoever wakes has put something down; more may have come since.
                reads.extend(store.fresh_reads());
                while store.waiting(0) > 0 || !reads.is_empty() {
                    if store.waiting(0) > 0 && (reads.is_empty() || dice.chance(0.5)) {
                        store.write(0, Verdict::Done);
                    } else {
                        let at = dice.below(reads.len());
                        store.read(reads.swap_remove(at), None);
                    }
                    reads.extend(store.fresh_reads());
                }
            }
        });
        Pumped {
            caller: self.0.caller(0),
            wake: Some(Mutex::new(wake)),
            pump: Some(pump),
        }
    }
}

struct Pumped {
    caller: Caller,
    wake: Option<Mutex<Sender<()>>>,
    pump: Option<JoinHandle<()>>,
}

impl Pumped {
    fn wake(&self) {
        if let Some(wake) = &self.wake {
            wake.lock().unwrap().send(()).unwrap();
        }
    }
}

impl Drop for Pumped {
    fn drop(&mut self) {
        drop(self.wake.take());
        let _ = self.pump.take().map(JoinHandle::join);
    }
}

impl LogStore for Pumped {
    fn append(&self, batch: AppendBatch, done: Done<()>) {
        self.caller.append(batch, done);
        self.wake();
    }

    fn index(&self, stream: StreamId, done: Done<Vec<IndexEntry>>) {
        self.caller.index(stream, done);
        self.wake();
    }

    fn read(
        &self,
        stream: StreamId,
        from: u64,
        records_max: usize,
        bytes_max: usize,
        done: Done<Vec<Record>>,
    ) {
        self.caller.read(stream, from, records_max, bytes_max, done);
        self.wake();
    }

    fn read_seqs(&self, stream: StreamId, seqs: Vec<u64>, bytes_max: usize, done: Done<Vec<Record>>) {
        self.caller.read_seqs(stream, seqs, bytes_max, done);
        self.wake();
    }

    fn usage(&self, realm: RealmId, done: Done<u64>) {
        self.caller.usage(realm, done);
        self.wake();
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        self.caller.snapshot()
    }
}

impl ControlStore for Pumped {
    fn load(&self, realm: RealmId, done: Done<Vec<(Vec<u8>, Bytes)>>) {
        self.caller.load(realm, done);
        self.wake();
    }

    fn get(&self, realm: RealmId, key: Vec<u8>, done: Done<Option<Bytes>>) {
        self.caller.get(realm, key, done);
        self.wake();
    }

    fn commit(&self, realm: RealmId, batch: ControlBatch, done: Done<Outcome>) {
        self.caller.commit(realm, batch, done);
        self.wake();
    }

    fn claim(&self, realm: RealmId, keys: Vec<DirectoryKey>, done: Done<Vec<RealmId>>) {
        self.caller.claim(realm, keys, done);
        self.wake();
    }

    fn directory(&self, kind: DirectoryKind) -> Result<Vec<DirectoryEntry>, StoreError> {
        self.caller.directory(kind)
    }
}

drover_storage::contract!(Disk::default);
