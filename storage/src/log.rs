//! Append-only sequenced streams. Appends and reads complete through a callback; nothing here blocks its caller.

use crate::embedded::{Findings, OpenError};
use crate::{Done, RealmId, StoreError};
use bytes::Bytes;
use drover_wire::id::{GroupId, Hash};
use std::path::Path;

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
    /// What it counts in the log budget (09 §7): of an envelope its ciphertext, of a handshake all of it. Kept beside
    /// the record, because a deletion gives it back and must not read what it deletes.
    pub budget_bytes: u32,
}

/// Records to take out of a stream (09 §4).
#[derive(Clone, Debug)]
pub struct Delete {
    /// Where from.
    pub stream: StreamId,
    /// Which ones, as [`LogStore::index`] lists them. One that is not there any more is no error. Never the newest of
    /// the stream: numbering goes on from that one, and no number is used twice.
    pub entries: Vec<IndexEntry>,
}

/// What becomes durable together or not at all.
#[derive(Clone, Debug, Default)]
pub struct AppendBatch {
    /// Records, in order within each stream.
    pub appends: Vec<Append>,
    /// What goes in the same step: records that were durable before this batch was handed over. A caller with many
    /// spreads them over batches of a few thousand, so that no other caller's batch waits long.
    pub deletes: Vec<Delete>,
    /// Bytes each realm in the batch holds after it: what it appends added, what it deletes taken away (the log
    /// budget, 04 §3.3).
    pub usage: Vec<(RealmId, u64)>,
}

/// A record's number, content address and lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Number in the stream.
    pub seq: u64,
    /// Content address.
    pub id: Hash,
    /// Stored bytes.
    pub bytes: u32,
    /// What it counts in the log budget.
    pub budget_bytes: u32,
}

/// A stored record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Number in the stream.
    pub seq: u64,
    /// What was appended.
    pub bytes: Bytes,
}

/// A log as it was at one moment, whatever is appended, deleted and compacted since. See [`LogStore::snapshot`].
pub trait Snapshot: Send {
    /// Writes it into `to`, which must be missing or empty, as an [`crate::embedded::Embedded`] store that can be opened,
    /// and reads every byte of that once more. Takes as long as it takes, on the calling thread and never on a shard's;
    /// nobody who uses the log waits for it.
    ///
    /// # Errors
    /// As [`crate::embedded::Embedded::open`] of an empty folder; what reading and writing met;
    /// [`std::io::ErrorKind::StorageFull`] if less than [`crate::embedded::Embedded::RESERVE_BYTES`] would stay free. What
    /// was written by then is removed.
    fn copy(&self, to: &Path) -> Result<Findings, OpenError>;
}

/// Sequenced streams. Every implementation passes `storage/tests/contract.rs`.
pub trait LogStore: Send + Sync {
    /// Makes the batch durable, appends and deletions, all of it or nothing, then calls `done`. Batches of one caller
    /// become durable in the order they were handed over; those of several callers may share one sync.
    ///
    /// Nothing here says on which thread the work is done: `done` is called on any, later, and from within `append` only
    /// if the batch was refused.
    ///
    /// # Errors
    /// [`crate::StoreError::NotCommitted`] if nothing of it was written, [`crate::StoreError::Unknown`] otherwise.
    fn append(&self, batch: AppendBatch, done: Done<()>);

    /// The stream's records as (seq, id, lengths), ascending. Reads no payload.
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

    /// Bytes this realm holds, as the last batch that concerned it said.
    fn usage(&self, realm: RealmId, done: Done<u64>);

    /// The number that a group's next envelope gets at least: 1, or more after a repair, which can't know the numbers of
    /// what it could not save; none is given twice (02 §6). Handshakes stay dense (07 C).
    fn first_seq(&self) -> u64 {
        1
    }

    /// The log as it is now: every batch that was answered before this call, of the others each whole or not at all. Of a
    /// store that is a [`crate::control::ControlStore`] too, also what that holds at the same moment. Quick, for it copies
    /// nothing; what it needs stays on the disk until it is dropped.
    ///
    /// # Errors
    /// [`StoreError::NotCommitted`] if the store is not open at the moment.
    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError>;
}
