//! Filling an empty log from another store, in parts that are kept when it is interrupted.

use super::disk::Disk;
use super::list::{self, Change, State};
use super::recover::{damaged, io_error, number_of};
use super::rewrite::{Finished, Rewriter};
use super::view::Files;
use crate::RealmId;
use crate::control::ControlStore;
use crate::embedded::OpenError;
use crate::log::Append;
use bytes::Bytes;
use std::cell::Cell;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Records, each with the cursor that follows it.
pub(crate) type Records<'a> = Box<dyn Iterator<Item = Result<(Append, Vec<u8>), OpenError>> + 'a>;

/// Whence the records come.
pub(crate) trait Origin {
    /// Every record after `cursor`, stream by stream and ascending.
    fn records(&self, cursor: Option<&[u8]>) -> Records<'_>;

    /// What each realm holds.
    fn usage(&self) -> Result<Vec<(RealmId, u64)>, OpenError>;

    /// See [`super::SegmentLog::first_seq`].
    fn first_seq(&self) -> u64 {
        0
    }
}

/// Comes after every key.
const END: &[u8] = &[0xff; 128];

/// Copies everything into a log that was made by [`super::SegmentLog::create`], going on where an earlier call was
/// interrupted. `progress` is told the bytes of records copied by this call after each segment.
///
/// # Errors
/// What reading or writing met. What was copied stays, and the next call goes on from there.
pub(crate) fn import(
    disk: Arc<dyn Disk>,
    folder: &Path,
    store: [u8; 16],
    control: &dyn ControlStore,
    segment_bytes: u64,
    origin: &dyn Origin,
    mut progress: impl FnMut(u64),
) -> Result<(), OpenError> {
    let files = Arc::new(Files::new(disk, folder));
    let failed = |error: io::Error| io_error(folder, error);
    let listed = list::load(control).map_err(|error| {
        damaged(
            folder.into(),
            format_args!("the list of segments can't be read ({error})"),
        )
    })?;
    let is_listed = |number| listed.segments.iter().any(|(listed, _)| *listed == number);
    for path in files.disk.list(folder).map_err(failed)? {
        if number_of(&path).is_some_and(|number| !is_listed(number)) {
            files.disk.remove(&path).map_err(|e| io_error(&path, e))?;
        }
    }
    let (mut number, mut lsn) = (0, 0);
    for (listed, state) in &listed.segments {
        number = number.max(*listed);
        if let State::Sealed { last_lsn, .. } = state {
            lsn = lsn.max(*last_lsn);
        }
    }
    let (number, lsn) = (Cell::new(number), Cell::new(lsn));
    let next = |cell: &Cell<u64>| {
        cell.set(cell.get() + 1);
        cell.get()
    };
    let (next_number, next_lsn) = (|| next(&number), || next(&lsn));
    let mut rewriter = Rewriter::new(&files, store, segment_bytes, &next_number, &next_lsn, None);
    let keep = |finished: Option<Finished>, cursor: &[u8], mut change: Change| {
        if let Some(finished) = finished {
            change.set(finished.sealed.of.number, finished.state);
        }
        change.migrated(Bytes::copy_from_slice(cursor));
        files.disk.sync_folder(folder).map_err(failed)?;
        change.commit(control).map_err(|e| failed(io::Error::other(e)))
    };
    let mut copied = 0;
    for record in origin.records(listed.migrated.as_deref()) {
        let (append, cursor) = record?;
        copied += append.bytes.len() as u64;
        if let Some(finished) = rewriter.add(append).map_err(failed)? {
            keep(Some(finished), &cursor, Change::default())?;
            progress(copied);
        }
    }
    let mut change = Change::default();
    for (realm, bytes) in origin.usage()? {
        change.usage(&realm, next_lsn(), bytes);
    }
    if origin.first_seq() > 0 {
        change.first_seq(origin.first_seq());
    }
    let last = rewriter.finish().map_err(failed)?;
    keep(last, END, change)?;
    progress(copied);
    Ok(())
}
