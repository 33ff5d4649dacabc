//! A copy of the whole store as it was at one moment, made while it is in use.
//!
//! Both parts are looked at while no commit of the log can become visible, so the copy holds exactly what a crash at that
//! moment would have left: nothing that was acknowledged before it is missing, and whatever of the control store depends
//! on the log, or the other way round, finds it.

use super::fjall_control::{FjallControl, open_tables};
use super::format::{self, Format};
use super::migrate::copy_records;
use super::{CONTROL, Embedded, Findings, LOG, OpenError, committer, create_parts};
use crate::segments::disk::{Disk, System};
use std::io;
use std::path::Path;
use std::sync::Arc;

impl Embedded {
    /// Writes a copy of the store into `to`, which must be missing or empty, and reads all of it once more. Takes as long
    /// as it takes: on the calling thread, in small steps, so that nobody who uses the store waits for it. The copy is
    /// a store of its own that can be opened; it has the same id. Blobs are not in it.
    ///
    /// # Errors
    /// As [`Embedded::open`] of an empty folder; what reading and writing met; [`io::ErrorKind::StorageFull`] if less
    /// would stay free than [`Embedded::RESERVE_BYTES`]. What was written by then is removed.
    pub fn snapshot(&self, to: &Path) -> Result<Findings, OpenError> {
        let new = format::enter(to)?;
        if !new.is_new {
            return Err(OpenError::Unusable {
                file: to.into(),
                reason: "there is a store in this folder already; name one that is missing or empty".into(),
            });
        }
        if let Err(error) = self.write_snapshot(to, &new.format) {
            for part in [CONTROL, LOG] {
                format::remove_folder(&to.join(part))?;
            }
            return Err(error);
        }
        drop(new.lock);
        Self::verify(to)
    }

    fn write_snapshot(&self, to: &Path, new: &Format) -> Result<(), OpenError> {
        let failed = |error: io::Error| format::io(to, error);
        let log = self.inner.control.with_tables(|tables| {
            let tables = tables.ok_or_else(|| failed(io::Error::other("the control store is closed")))?;
            let (log, control) = self.inner.log.snapshot(|| tables.db.snapshot());
            let wanted = log.bytes() + committer::RESERVE_BYTES;
            if System.free_bytes(to).is_some_and(|free| free < wanted) {
                return Err(failed(io::ErrorKind::StorageFull.into()));
            }
            create_parts(to, log.store())?;
            let copy = open_tables(&to.join(CONTROL))?;
            copy_records(tables, &control, &copy, None).map_err(|e| failed(io::Error::other(e)))?;
            Ok(log)
        })?;
        {
            let control = FjallControl::open(&to.join(CONTROL), log.store(), committer::RESERVE_BYTES)?;
            log.copy(Arc::new(System), &to.join(LOG), &control)?;
        }
        let format = Format {
            version: new.version,
            store: *log.store(),
        };
        format::finish(to, &format)
    }
}
