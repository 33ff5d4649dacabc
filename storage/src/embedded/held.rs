//! What a store in memory holds, as a snapshot that can be copied like any other.

use super::{Embedded, Findings, OpenError, format};
use crate::control::{ControlBatch, ControlStore, DirectoryEntry, Write};
use crate::log::{Append, AppendBatch, LogStore, Snapshot};
use crate::{Done, RealmId, StoreError};
use bytes::Bytes;
use std::io;
use std::path::Path;
use std::sync::mpsc;

/// Everything in a store at one moment.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// The log's records, ascending in each stream.
    pub appends: Vec<Append>,
    /// Bytes each realm holds in it.
    pub usage: Vec<(RealmId, u64)>,
    /// Control records by realm.
    pub records: Vec<(RealmId, Vec<u8>, Bytes)>,
    /// The directory.
    pub directory: Vec<DirectoryEntry>,
}

impl Snapshot for Held {
    fn copy(&self, to: &Path) -> Result<Findings, OpenError> {
        let failed = |error: StoreError| format::io(to, io::Error::other(error));
        drop(format::enter_new(to)?);
        let store = Embedded::open(to)?;
        let batch = AppendBatch {
            appends: self.appends.clone(),
            usage: self.usage.clone(),
            ..AppendBatch::default()
        };
        wait(|done| store.append(batch, done)).map_err(failed)?;
        for (realm, key, value) in &self.records {
            let write = Write {
                key: key.clone(),
                value: Some(value.clone()),
            };
            let batch = ControlBatch {
                writes: vec![write],
                ..ControlBatch::default()
            };
            wait(|done| store.commit(realm.clone(), batch, done)).map_err(failed)?;
        }
        for entry in &self.directory {
            let batch = ControlBatch {
                directory: vec![(entry.key.clone(), Some(entry.value.clone()))],
                ..ControlBatch::default()
            };
            wait(|done| store.commit(entry.realm.clone(), batch, done)).map_err(failed)?;
        }
        drop(store);
        Embedded::verify(to)
    }
}

fn wait<T: Send + 'static>(ask: impl FnOnce(Done<T>)) -> Result<T, StoreError> {
    let (tell, told) = mpsc::sync_channel(1);
    ask(Box::new(move |result| drop(tell.send(result))));
    told.recv().unwrap_or(Err(StoreError::Unknown))
}
