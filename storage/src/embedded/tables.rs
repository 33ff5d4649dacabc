//! The layout: which key holds what, and how fjall is set up for it.
//!
//! | Keyspace | Key | Value |
//! | --- | --- | --- |
//! | `log` | kind (1) ‖ group (32) ‖ seq (8, BE) ‖ id (32) ‖ length (4, BE) ‖ budget bytes (4, BE) | the record |
//! | `control` | 0 ‖ `drover.group` | number of the last commit group (8, BE) ‖ store id (16) ‖ lowest seqno (8, BE) |
//! | | 1 ‖ realm | bytes accepted (8, BE) |
//! | | 2 ‖ length of realm (2, BE) ‖ realm ‖ key | a control record |
//! | | 3 ‖ kind ‖ name | length of realm (2, BE) ‖ realm ‖ value |
//!
//! A record is one item, not two: id and lengths stand in its key, so the index is a scan of keys and a deletion reads
//! nothing. Values of
//! [`SEPARATE_BYTES`] and more lie in blob files that such a scan never opens; smaller ones share their 16 KiB blocks.
//!
//! Why so, in ms of CPU per 1000 records of 256–400 B, syncs included (`cargo bench -p drover-storage --bench embedded`:
//! 2 and 4 callers, batches of 300). Two to six runs each, on two cores that other jobs were using too: read them as
//! ratios.
//!
//! | Variant | CPU |
//! | --- | --- |
//! | as it is | 5.2–6.9 |
//! | index as a second item (what measurements.md §5 did) | 11.2–13.0 |
//! | blob files from 128 B on | 5.2–6.7: no gain, and a page becomes one read of the disk a record |
//! | memtables of 16 MiB | 6.3–8.3, and more tables to merge on reads |
//! | memtables of 128 MiB | 5.0–5.7, but twice as much to replay after a crash |
//! | blocks of 4, 32 or 64 KiB | 5.0–6.8: no difference that stands out of the noise, for pages neither |

use crate::control::{DirectoryKey, DirectoryKind};
use crate::log::{IndexEntry, StreamId};
use crate::{RealmId, StoreError};
use bytes::Bytes;
use drover_wire::id::{GroupId, Hash};
use fjall::config::{BlockSizePolicy, CompressionPolicy, FilterPolicy};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions};
use rustix::process::{Resource, getrlimit};
use std::path::Path;

/// Length of a log key.
pub(super) const LOG_KEY_BYTES: usize = 1 + GroupId::LEN + 8 + Hash::LEN + 4 + 4;
const SEQ_AT: usize = 1 + GroupId::LEN;
const ID_AT: usize = SEQ_AT + 8;
const LENGTH_AT: usize = ID_AT + Hash::LEN;
const BUDGET_AT: usize = LENGTH_AT + 4;

/// Values this long and longer go to blob files.
const SEPARATE_BYTES: u32 = 8 * 1024;
/// Scans read whole pages; a larger block costs a point read little and saves a page of 255 records most of its reads.
const BLOCK_BYTES: u32 = 16 * 1024;
/// How much of a keyspace waits in memory, and so how much of the journal must be replayed after a crash: about
/// 5.5 µs a record. Two of them may be in memory at once, the full one being written out.
const MEMTABLE_BYTES: u64 = 32 << 20;
/// All journals together; reached only if one keyspace is written much less than the other.
const JOURNAL_BYTES_MAX: u64 = 192 << 20;
/// Files of tables that are kept open. fjall would keep 900, which with its other files and the sockets is more than a
/// process may open by default (1024); the transport leaves 512 to the store. Where it may open fewer: a quarter.
const CACHED_FILES: u64 = 256;
/// Blocks kept in memory. Pages of a replay are read once by each device that was away, often close together.
const CACHE_BYTES: u64 = 64 << 20;

/// fjall refuses longer keys by a panic.
pub(super) const KEY_BYTES_MAX: usize = u16::MAX as usize;

/// The item every commit group begins with.
pub(super) const GROUP_KEY: &[u8] = b"\0drover.group";
const USAGE: u8 = 1;
const RECORD: u8 = 2;
const DIRECTORY: u8 = 3;

/// Keyspaces by the number fjall gives them: its own, `log` and `control`, created in this order.
pub(super) const KEYSPACES: usize = 3;

/// The open database.
pub(super) struct Tables {
    // Dropped in this order: keyspaces hold on to the database.
    pub(super) log: Keyspace,
    pub(super) control: Keyspace,
    pub(super) db: Database,
}

impl Tables {
    /// Opens or creates the database. fjall panics on some kinds of damage; the caller catches that.
    pub(super) fn open(folder: &Path) -> fjall::Result<Self> {
        let open_files = getrlimit(Resource::Nofile).current;
        let cached_files = open_files.map_or(CACHED_FILES, |limit| CACHED_FILES.min(limit / 4));
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
        let log = db.keyspace("log", || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(MEMTABLE_BYTES)
                .manual_journal_persist(true)
                .data_block_size_policy(BlockSizePolicy::all(BLOCK_BYTES))
                .data_block_compression_policy(CompressionPolicy::disabled())
                // The log is only ever scanned by range, and a filter answers only for whole keys.
                .filter_policy(FilterPolicy::disabled())
                .with_kv_separation(Some(
                    KvSeparationOptions::default()
                        .separation_threshold(SEPARATE_BYTES)
                        .compression(CompressionType::None),
                ))
        })?;
        let control = db.keyspace("control", || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(MEMTABLE_BYTES / 4)
                .manual_journal_persist(true)
                .data_block_compression_policy(CompressionPolicy::disabled())
        })?;
        Ok(Self { log, control, db })
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

/// The beginning all keys of a stream share.
pub(super) fn stream_prefix(stream: StreamId) -> [u8; SEQ_AT] {
    let mut key = [stream.kind as u8; SEQ_AT];
    key[1..].copy_from_slice(stream.group.as_bytes());
    key
}

/// Smaller than every key of the record `seq` and greater than every key before it.
pub(super) fn seq_prefix(stream: StreamId, seq: u64) -> [u8; ID_AT] {
    let mut key = [0; ID_AT];
    key[..SEQ_AT].copy_from_slice(&stream_prefix(stream));
    key[SEQ_AT..].copy_from_slice(&seq.to_be_bytes());
    key
}

/// A record's key.
pub(super) fn log_key(stream: StreamId, entry: &IndexEntry) -> [u8; LOG_KEY_BYTES] {
    let mut key = [0; LOG_KEY_BYTES];
    key[..ID_AT].copy_from_slice(&seq_prefix(stream, entry.seq));
    key[ID_AT..LENGTH_AT].copy_from_slice(entry.id.as_bytes());
    key[LENGTH_AT..BUDGET_AT].copy_from_slice(&entry.bytes.to_be_bytes());
    key[BUDGET_AT..].copy_from_slice(&entry.budget_bytes.to_be_bytes());
    key
}

/// What a record's key says.
pub(super) fn index_entry(key: &[u8]) -> Result<IndexEntry, StoreError> {
    let entry = || {
        let key: &[u8; LOG_KEY_BYTES] = key.try_into().ok()?;
        Some(IndexEntry {
            seq: u64::from_be_bytes(key[SEQ_AT..ID_AT].try_into().ok()?),
            id: Hash::from_slice(&key[ID_AT..LENGTH_AT])?,
            bytes: u32::from_be_bytes(key[LENGTH_AT..BUDGET_AT].try_into().ok()?),
            budget_bytes: u32::from_be_bytes(key[BUDGET_AT..].try_into().ok()?),
        })
    };
    entry().ok_or(StoreError::Damaged)
}

/// The greatest key that begins as a key of this stream does.
pub(super) fn stream_end(stream: StreamId) -> [u8; LOG_KEY_BYTES] {
    let last = IndexEntry {
        seq: u64::MAX,
        id: Hash([0xff; Hash::LEN]),
        bytes: u32::MAX,
        budget_bytes: u32::MAX,
    };
    log_key(stream, &last)
}

/// Where a realm's accepted bytes are counted.
pub(super) fn usage_key(realm: &RealmId) -> Vec<u8> {
    [&[USAGE], realm.0.as_bytes()].concat()
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
