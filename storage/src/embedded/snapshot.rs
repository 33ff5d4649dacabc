//! A copy of the whole store as it was at one moment, made while it is in use.
//!
//! Both parts are looked at while no commit of the log can become visible, so the copy holds exactly what a crash at that
//! moment would have left: nothing that was acknowledged before it is missing, and whatever of the control store depends
//! on the log, or the other way round, finds it. Blobs are not in it. The copy has the store's id.

use super::fjall_control::{FjallControl, open_tables};
use super::format::{self, Format};
use super::migrate::copy_records;
use super::{CONTROL, Embedded, Findings, Inner, LOG, OpenError, committer, create_parts};
use crate::StoreError;
use crate::log::Snapshot;
use crate::segments::disk::{Disk, System};
use crate::segments::snapshot::LogSnapshot;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Both parts at one moment.
struct Moment {
    log: LogSnapshot,
    control: fjall::Snapshot,
    /// Which opening of the control store it is of.
    opening: Arc<()>,
    /// Stays open meanwhile.
    store: Arc<Inner>,
}

/// [`crate::log::LogStore::snapshot`].
pub(super) fn take(store: &Embedded) -> Result<Box<dyn Snapshot>, StoreError> {
    store.inner.control.with_tables(|tables| {
        let tables = tables.ok_or(StoreError::NotCommitted)?;
        let (log, control) = store.inner.log.snapshot(|| tables.db.snapshot());
        Ok(Box::new(Moment {
            log,
            control,
            opening: tables.opening.clone(),
            store: store.inner.clone(),
        }) as Box<dyn Snapshot>)
    })
}

impl Snapshot for Moment {
    fn copy(&self, to: &Path) -> Result<Findings, OpenError> {
        let new = format::enter_new(to)?;
        if let Err(error) = self.write(to, &new.format) {
            for part in [CONTROL, LOG] {
                format::remove_folder(&to.join(part))?;
            }
            return Err(error);
        }
        drop(new.lock);
        Embedded::verify(to)
    }
}

impl Moment {
    fn write(&self, to: &Path, new: &Format) -> Result<(), OpenError> {
        let failed = |error: io::Error| format::io(to, error);
        let wanted = self.log.bytes() + committer::RESERVE_BYTES;
        if System.free_bytes(to).is_some_and(|free| free < wanted) {
            return Err(failed(io::ErrorKind::StorageFull.into()));
        }
        create_parts(to, self.log.store())?;
        self.store.control.with_tables(|tables| {
            // After a failed write the control store is opened anew, and keeps nothing for who looked before.
            let tables = tables
                .filter(|tables| Arc::ptr_eq(&tables.opening, &self.opening))
                .ok_or_else(|| {
                    failed(io::Error::other(
                        "the control store was closed meanwhile; try again",
                    ))
                })?;
            let copy = open_tables(&to.join(CONTROL))?;
            copy_records(tables, &self.control, &copy, None).map_err(|e| failed(io::Error::other(e)))
        })?;
        {
            let control = FjallControl::open(&to.join(CONTROL), self.log.store(), committer::RESERVE_BYTES)?;
            self.log.copy(Arc::new(System), &to.join(LOG), &control)?;
        }
        let format = Format {
            version: new.version,
            store: *self.log.store(),
        };
        format::finish(to, &format)
    }
}
