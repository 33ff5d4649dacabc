//! Append-only sequenced streams. Appends and reads complete through a callback; nothing here blocks its caller.

use crate::{Done, RealmId};
use bytes::Bytes;
use drover_wire::id::{GroupId, Hash};

/// What a stream of a group holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum StreamKind {
    /// Encoded envelopes, numbered from 1 with gaps allowed (02 §6).
    Envelopes = 1,
    /// Handshake messages, dense from 0 (07 C).
    Handshakes = 2,
}

/// One stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    /// What it holds.
    pub kind: StreamKind,
    /// Whose it is.
    pub group: GroupId,
}

/// One record to append.
#[derive(Clone, Debug)]
pub struct Append {
    /// Where to.
    pub stream: StreamId,
    /// Its number; higher than every earlier one of the stream.
    pub seq: u64,
    /// Its content address, unique in the stream.
    pub id: Hash,
    /// What is stored. For envelopes: the encoding with seq and receipt time filled in.
    pub bytes: Bytes,
}

/// What becomes durable together or not at all.
#[derive(Clone, Debug, Default)]
pub struct AppendBatch {
    /// Records, in order within each stream.
    pub appends: Vec<Append>,
    /// Bytes accepted so far by each realm in the batch, this batch included (the log budget, 04 §3.3).
    pub usage: Vec<(RealmId, u64)>,
}

/// A record's number, content address and stored length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Number in the stream.
    pub seq: u64,
    /// Content address.
    pub id: Hash,
    /// Stored bytes.
    pub bytes: u32,
}

/// A stored record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Number in the stream.
    pub seq: u64,
    /// What was appended.
    pub bytes: Bytes,
}

/// Sequenced streams. Every implementation passes `storage/tests/contract.rs`.
pub trait LogStore: Send + Sync {
    /// Makes the batch durable, all of it or nothing, then calls `done`. Batches of one caller become durable in the
    /// order they were handed over; those of several callers may share one sync.
    ///
    /// # Errors
    /// [`crate::StoreError::NotCommitted`] if nothing of it was written, [`crate::StoreError::Unknown`] otherwise.
    fn append(&self, batch: AppendBatch, done: Done<()>);

    /// The stream's records as (seq, id, length), ascending. Reads no payload.
    fn index(&self, stream: StreamId, done: Done<Vec<IndexEntry>>);

    /// Records with `from <= seq`, ascending: at most `records_max`, and no further one once `bytes_max` is reached
    /// (the first is always returned).
    fn read(
        &self,
        stream: StreamId,
        from: u64,
        records_max: usize,
        bytes_max: usize,
        done: Done<Vec<Record>>,
    );

    /// The records with exactly these numbers, in the order asked; missing ones are left out. Stops like
    /// [`LogStore::read`] at `bytes_max`.
    fn read_seqs(&self, stream: StreamId, seqs: Vec<u64>, bytes_max: usize, done: Done<Vec<Record>>);

    /// Bytes accepted by this realm so far.
    fn usage(&self, realm: RealmId, done: Done<u64>);
}
