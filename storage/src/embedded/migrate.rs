//! From the first format, in which everything lay in one fjall database, to the second.
//!
//! The old database is only read. Everything goes into the new folders beside it, a segment at a time, and each segment
//! that is complete is kept when the migration is interrupted: the next start goes on from there. Once all is there the
//! new version is written into `FORMAT`, which is the switch, and only then the old database goes.

use super::fjall_control::{FjallControl, open_guarded, open_tables};
use super::format::{self, Format, io};
use super::synced::Synced;
use super::tables::{self, Tables};
use super::{CONTROL, LOG, OpenError, RESTORE, SEGMENT_BYTES, committer, create_parts};
use crate::log::{Append, StreamId, StreamKind};
use crate::segments::disk::System;
use crate::segments::import::{Origin, Records, import};
use crate::{RealmId, StoreError};
use drover_wire::id::{GroupId, Hash};
use fjall::config::{BlockSizePolicy, CompressionPolicy, FilterPolicy};
use fjall::{CompressionType, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode, Readable};
use std::fs::{self, File};
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

/// There while the migration is under way: the new folders are this store's and whole.
const MIGRATING: &str = "MIGRATING";
/// Keyspaces of the old database by the number fjall gives them: its own, `log` and `control`.
const OLD_KEYSPACES: usize = 3;
/// In the old database: bytes accepted by realm.
const OLD_USAGE: u8 = 1;
/// Control records copied in one batch.
const BATCH_RECORDS: usize = 1024;

/// The old log's keys: kind (1) ‖ group (32) ‖ seq (8, BE) ‖ id (32) ‖ length (4, BE) ‖ budget bytes (4, BE).
const SEQ_AT: usize = 1 + GroupId::LEN;
const ID_AT: usize = SEQ_AT + 8;
const LENGTH_AT: usize = ID_AT + Hash::LEN;
const BUDGET_AT: usize = LENGTH_AT + 4;
const KEY_BYTES: usize = BUDGET_AT + 4;

/// The old database.
struct Old<'a> {
    folder: &'a Path,
    // Dropped in this order: keyspaces hold on to the database.
    log: Keyspace,
    tables: Tables,
}

impl<'a> Old<'a> {
    fn open(folder: &'a Path, store: &[u8; 16]) -> Result<Self, OpenError> {
        let (_, synced) = Synced::open(folder)?;
        let (tables, _) = open_guarded(folder, store, synced, OLD_KEYSPACES)?;
        let log = tables
            .db
            .keyspace("log", || {
                KeyspaceCreateOptions::default()
                    .max_memtable_size(32 << 20)
                    .manual_journal_persist(true)
                    .data_block_size_policy(BlockSizePolicy::all(16 * 1024))
                    .data_block_compression_policy(CompressionPolicy::disabled())
                    .filter_policy(FilterPolicy::disabled())
                    .with_kv_separation(Some(
                        KvSeparationOptions::default()
                            .separation_threshold(8 * 1024)
                            .compression(CompressionType::None),
                    ))
            })
            .map_err(|e| damaged(folder, &e))?;
        Ok(Self { folder, log, tables })
    }
}

fn damaged(folder: &Path, error: &dyn std::fmt::Display) -> OpenError {
    OpenError::Unusable {
        file: folder.join(format::DB),
        reason: format!("the store can't be brought to the next format: {error}. {RESTORE}"),
    }
}

fn decode(key: &[u8], value: fjall::Slice) -> Option<Append> {
    let key: &[u8; KEY_BYTES] = key.try_into().ok()?;
    let kind = match key[0] {
        1 => StreamKind::Envelopes,
        2 => StreamKind::Handshakes,
        _ => return None,
    };
    let length = u32::from_be_bytes(key[LENGTH_AT..BUDGET_AT].try_into().ok()?);
    (length as usize == value.len()).then_some(Append {
        stream: StreamId {
            kind,
            group: GroupId::from_slice(&key[1..SEQ_AT])?,
        },
        seq: u64::from_be_bytes(key[SEQ_AT..ID_AT].try_into().ok()?),
        id: Hash::from_slice(&key[ID_AT..LENGTH_AT])?,
        bytes: value.into(),
        budget_bytes: u32::from_be_bytes(key[BUDGET_AT..].try_into().ok()?),
    })
}

impl Origin for Old<'_> {
    fn records(&self, cursor: Option<&[u8]>) -> Records<'_> {
        let from = cursor.map_or(Bound::Unbounded, |cursor| Bound::Excluded(cursor.to_vec()));
        let items = self.log.range((from, Bound::Unbounded));
        Box::new(items.map(|item| {
            let (key, value) = item.into_inner().map_err(|e| damaged(self.folder, &e))?;
            let append = decode(&key, value).ok_or_else(|| damaged(self.folder, &StoreError::Damaged))?;
            Ok((append, key.to_vec()))
        }))
    }

    fn usage(&self) -> Result<Vec<(RealmId, u64)>, OpenError> {
        let items = self.tables.control.prefix([OLD_USAGE]);
        items
            .map(|item| {
                let (key, value) = item.into_inner().map_err(|e| damaged(self.folder, &e))?;
                let decoded = || {
                    let realm = std::str::from_utf8(&key[1..]).ok()?;
                    Some((
                        RealmId(realm.into()),
                        u64::from_be_bytes(value[..].try_into().ok()?),
                    ))
                };
                decoded().ok_or_else(|| damaged(self.folder, &StoreError::Damaged))
            })
            .collect()
    }
}

/// The step of the migration chain. Repeatable.
pub(super) fn to_2(folder: &Path, format: &Format) -> Result<(), OpenError> {
    let store = format.store;
    let old = Old::open(folder, &store)?;
    let (control_folder, log_folder, mark) = (folder.join(CONTROL), folder.join(LOG), folder.join(MIGRATING));
    if !mark.try_exists().map_err(|e| io(&mark, e))? {
        for part in [&control_folder, &log_folder] {
            format::remove_folder(part)?;
        }
        create_parts(folder, &store)?;
        File::create(&mark)
            .and_then(|f| f.sync_all())
            .map_err(|e| io(&mark, e))?;
        format::sync_folder(folder)?;
    }
    let total = old.log.disk_space();
    tracing::info!(
        mib = total >> 20,
        "bringing the store to format 2: its log is copied; an interrupted start goes on from where it was"
    );
    {
        let control = FjallControl::open(&control_folder, &store, committer::RESERVE_BYTES)?;
        import(
            Arc::new(System),
            &log_folder,
            store,
            &control,
            SEGMENT_BYTES,
            &old,
            |copied| tracing::info!("copied {} of about {} MiB", copied >> 20, total >> 20),
        )?;
    }
    copy_control(&old, &control_folder)
}

/// What the old database holds beside the log. Copied whole each time: nothing changes it meanwhile.
fn copy_control(old: &Old<'_>, folder: &Path) -> Result<(), OpenError> {
    let new = open_tables(folder)?;
    let snapshot = old.tables.db.snapshot();
    copy_records(&old.tables, &snapshot, &new, None).map_err(|error| damaged(old.folder, &error))
}

/// Copies control records and the directory as a snapshot has them, but for the records of one realm.
pub(super) fn copy_records(
    from: &Tables,
    snapshot: &fjall::Snapshot,
    to: &Tables,
    but: Option<&RealmId>,
) -> Result<(), fjall::Error> {
    let but = but.map(tables::realm_prefix);
    let kept = [tables::RECORD, tables::DIRECTORY];
    let mut items = kept
        .iter()
        .flat_map(|kind| snapshot.prefix(&from.control, [*kind]));
    loop {
        let mut batch = to.db.batch().durability(Some(PersistMode::SyncAll));
        let mut is_end = true;
        for item in items.by_ref().take(BATCH_RECORDS) {
            is_end = false;
            let (key, value) = item.into_inner()?;
            if but.as_ref().is_none_or(|but| !key.starts_with(but)) {
                batch.insert(&to.control, key, value);
            }
        }
        if is_end {
            return Ok(());
        }
        batch.commit()?;
    }
}

/// Removes what the step left beside the new folders, once the version is written.
pub(super) fn clean(folder: &Path) -> Result<(), OpenError> {
    let mut is_changed = false;
    let (db, synced) = (folder.join(format::DB), folder.join(super::synced::NAME));
    if db.try_exists().map_err(|e| io(&db, e))? {
        format::remove_folder(&db)?;
        is_changed = true;
    }
    for path in [synced, folder.join(MIGRATING)] {
        match fs::remove_file(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            removed => {
                removed.map_err(|e| io(&path, e))?;
                is_changed = true;
            }
        }
    }
    match is_changed {
        true => format::sync_folder(folder),
        false => Ok(()),
    }
}
