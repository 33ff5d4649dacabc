//! The layout of the control store: which key holds what, and how fjall is set up for it.
//!
//! | Key | Value |
//! | --- | --- |
//! | 0 ‖ `drover.group` | number of the last commit group (8, BE) ‖ store id (16) ‖ lowest seqno (8, BE) |
//! | 2 ‖ length of realm (2, BE) ‖ realm ‖ key | a control record |
//! | 3 ‖ kind ‖ name | length of realm (2, BE) ‖ realm ‖ value |

use crate::control::{DirectoryKey, DirectoryKind};
use crate::{RealmId, StoreError};
use bytes::Bytes;
use fjall::config::CompressionPolicy;
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions};
use rustix::process::{Resource, getrlimit};
use std::path::Path;
use std::sync::Arc;

/// How much waits in memory, and so how much of the journal must be replayed after a crash. Two of them may be in memory
/// at once, the full one being written out.
const MEMTABLE_BYTES: u64 = 8 << 20;
/// All journals together.
const JOURNAL_BYTES_MAX: u64 = 64 << 20;
/// Files of tables that are kept open. fjall would keep 900, which with its other files and the sockets is more than a
/// process may open by default (1024); the transport leaves 512 to the store, and the log takes as many. Where it
/// may open fewer: an eighth.
const CACHED_FILES: u64 = 128;
/// Blocks kept in memory.
const CACHE_BYTES: u64 = 32 << 20;

/// fjall refuses longer keys by a panic.
pub(super) const KEY_BYTES_MAX: usize = u16::MAX as usize;

/// The item every commit group begins with.
pub(super) const GROUP_KEY: &[u8] = b"\0drover.group";
pub(super) const RECORD: u8 = 2;
pub(super) const DIRECTORY: u8 = 3;

/// Keyspaces by the number fjall gives them: its own and `control`.
pub(super) const KEYSPACES: usize = 2;

/// The open database.
pub(super) struct Tables {
    // Dropped in this order: keyspaces hold on to the database.
    pub(super) control: Keyspace,
    pub(super) db: Database,
    /// The same as long as it stays open: what was looked at is there still.
    pub(super) opening: Arc<()>,
}

impl Tables {
    /// Opens or creates the database. fjall panics on some kinds of damage; the caller catches that.
    pub(super) fn open(folder: &Path) -> fjall::Result<Self> {
        let open_files = getrlimit(Resource::Nofile).current;
        let cached_files = open_files.map_or(CACHED_FILES, |limit| CACHED_FILES.min(limit / 8));
        let db = Database::builder(folder)
            .cache_size(CACHE_BYTES)
            .max_journaling_size(JOURNAL_BYTES_MAX)
            // Ciphertext does not compress; trying costs more than writing it.
            .journal_compression(CompressionType::None)
            .manual_journal_persist(true)
            .worker_threads(2)
            .max_cached_files(Some(cached_files as usize))
            .open()?;
        // fjall keeps these with the keyspace: for an existing store the values it was created with rule.
        let control = db.keyspace("control", || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(MEMTABLE_BYTES)
                .manual_journal_persist(true)
                .data_block_compression_policy(CompressionPolicy::disabled())
        })?;
        let opening = Arc::new(());
        Ok(Self { control, db, opening })
    }
}

/// What a caller learns of a failed read. No error of fjall carries content.
pub(super) fn read_failed(error: &fjall::Error) -> StoreError {
    tracing::error!(%error, "reading from the store failed");
    match error {
        fjall::Error::Io(e) if e.kind() != std::io::ErrorKind::UnexpectedEof => StoreError::Unknown,
        fjall::Error::Storage(fjall::LsmError::Io(e)) if e.kind() != std::io::ErrorKind::UnexpectedEof => {
            StoreError::Unknown
        }
        _ => StoreError::Damaged,
    }
}

/// The beginning all control records of a realm share. The length keeps one realm's name from being the beginning of
/// another's; a realm whose name does not fit a key has none of its records accepted, whatever is written here.
pub(super) fn realm_prefix(realm: &RealmId) -> Vec<u8> {
    let length = u16::try_from(realm.0.len()).unwrap_or(u16::MAX);
    [&[RECORD], &length.to_be_bytes()[..], realm.0.as_bytes()].concat()
}

/// A control record's key.
pub(super) fn record_key(realm: &RealmId, key: &[u8]) -> Vec<u8> {
    let mut full = realm_prefix(realm);
    full.extend_from_slice(key);
    full
}

/// A directory entry's key.
pub(super) fn directory_key(key: &DirectoryKey) -> Vec<u8> {
    [&[DIRECTORY, key.kind as u8], key.name.as_slice()].concat()
}

/// The beginning all directory entries of a kind share.
pub(super) fn directory_prefix(kind: DirectoryKind) -> [u8; 2] {
    [DIRECTORY, kind as u8]
}

/// A directory entry's value.
pub(super) fn directory_value(realm: &RealmId, value: &[u8]) -> Bytes {
    let length = u16::try_from(realm.0.len()).unwrap_or(u16::MAX);
    [&length.to_be_bytes()[..], realm.0.as_bytes(), value]
        .concat()
        .into()
}

/// Owner and value of a directory entry.
pub(super) fn directory_entry(stored: &Bytes) -> Result<(RealmId, Bytes), StoreError> {
    let entry = || {
        let (length, rest) = stored.split_first_chunk::<2>()?;
        let (realm, value) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
        Some((
            RealmId(std::str::from_utf8(realm).ok()?.into()),
            stored.slice_ref(value),
        ))
    };
    entry().ok_or(StoreError::Damaged)
}

/// The value of [`GROUP_KEY`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupMark {
    /// The group's number.
    pub(super) group: u64,
    /// Makes a journal of another store, and whatever a client may put into its ciphertext, recognisable.
    pub(super) store: [u8; 16],
    /// fjall's sequence number for the batch is at least this. The number itself lies outside of the batch's checksum,
    /// and a batch whose number became too low would be taken for one that is in a table already.
    pub(super) seqno_min: u64,
}

impl GroupMark {
    pub(super) fn encode(&self) -> Bytes {
        let numbers = [self.group.to_be_bytes(), self.seqno_min.to_be_bytes()];
        [&numbers[0], &self.store[..], &numbers[1]].concat().into()
    }

    /// What a value says, if it is this store's.
    pub(super) fn decode(value: &[u8], store: &[u8; 16]) -> Option<Self> {
        let (group, rest) = value.split_first_chunk::<8>()?;
        let (id, seqno_min) = rest.split_first_chunk::<16>()?;
        let seqno_min = u64::from_be_bytes(seqno_min.try_into().ok()?);
        (id == store).then(|| Self {
            group: u64::from_be_bytes(*group),
            store: *store,
            seqno_min,
        })
    }
}
