//! One partition of ordered records per realm with atomic conditional commits, and the relay-wide directory.

use crate::{Done, RealmId};
use bytes::Bytes;

/// A condition a commit depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// The record must not exist.
    Absent(Vec<u8>),
    /// The record must hold exactly these bytes.
    Equals(Vec<u8>, Bytes),
}

/// One change. `None` deletes the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The record's key within its realm.
    pub key: Vec<u8>,
    /// Its new bytes.
    pub value: Option<Bytes>,
}

/// Checks and writes that happen together or not at all.
#[derive(Clone, Debug, Default)]
pub struct ControlBatch {
    /// All must hold.
    pub checks: Vec<Check>,
    /// All happen then.
    pub writes: Vec<Write>,
    /// Changes to directory entries the realm already owns or claims in the same step: (entry, new value; `None`
    /// removes it). An entry owned by another realm fails the whole commit as a failed check does.
    pub directory: Vec<(DirectoryKey, Option<Bytes>)>,
}

/// Whether a conditional commit happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All writes are durable.
    Applied,
    /// A check failed; nothing was written.
    Refused,
}

/// What is unique in the whole relay (architecture.md §2, Directory).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum DirectoryKind {
    /// A workspace by the BLAKE3 of its internal id; the value is what the realm wants found at start.
    Realm = 1,
    /// A group id.
    Group = 2,
    /// An invite token.
    Token = 3,
    /// A wrap tag.
    WrapTag = 4,
    /// A wake handle.
    WakeHandle = 5,
}

/// A directory entry's name: its kind and up to 32 bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DirectoryKey {
    /// What kind of name.
    pub kind: DirectoryKind,
    /// The name.
    pub name: Vec<u8>,
}

/// A directory entry: who owns the name, and a small value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// The name.
    pub key: DirectoryKey,
    /// The owner.
    pub realm: RealmId,
    /// Its value, often empty.
    pub value: Bytes,
}

/// As a directory that is a map holds it.
impl From<(&DirectoryKey, &(RealmId, Bytes))> for DirectoryEntry {
    fn from((key, (realm, value)): (&DirectoryKey, &(RealmId, Bytes))) -> Self {
        Self {
            key: key.clone(),
            realm: realm.clone(),
            value: value.clone(),
        }
    }
}

/// Ordered records per realm. Every implementation passes `storage/tests/contract.rs`.
pub trait ControlStore: Send + Sync {
    /// Every record of the realm, ascending by key.
    fn load(&self, realm: RealmId, done: Done<Vec<(Vec<u8>, Bytes)>>);

    /// One record.
    fn get(&self, realm: RealmId, key: Vec<u8>, done: Done<Option<Bytes>>);

    /// Commits atomically and durably if every check holds.
    ///
    /// # Errors
    /// As [`crate::log::LogStore::append`].
    fn commit(&self, realm: RealmId, batch: ControlBatch, done: Done<Outcome>);

    /// Claims names for `realm`, each by insert-if-absent, durably; answers each name's owner afterwards, in order.
    fn claim(&self, realm: RealmId, keys: Vec<DirectoryKey>, done: Done<Vec<RealmId>>);

    /// Every directory entry of a kind, for the cache that is filled at start.
    ///
    /// # Errors
    /// [`crate::StoreError::Damaged`] if one can't be read.
    fn directory(&self, kind: DirectoryKind) -> Result<Vec<DirectoryEntry>, crate::StoreError>;
}
