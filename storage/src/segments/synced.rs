//! The file `SYNCED` of the log: the number of each writer's last commit whose sync succeeded, so that what was
//! acknowledged is known from outside the segments.
//!
//! It is written after each sync and before the answers, without a sync of its own: it survives a killed process
//! exactly. After a power cut it may be behind, never ahead, and then only tells less. A clean close syncs it.

use super::disk::{Disk, DiskFile};
use crate::embedded::OpenError;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const NAME: &str = "SYNCED";
/// Writers there may be.
pub(super) const WRITERS_MAX: usize = 64;
const SLOT: usize = 16;
const BYTES: usize = WRITERS_MAX * SLOT;

/// The open file.
pub(super) struct Synced {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    store: [u8; 16],
    /// An operator put an empty file in its place.
    is_empty: bool,
}

fn encode(lsn: u64, writer: usize, store: &[u8; 16]) -> [u8; SLOT] {
    let mut bytes = [0; SLOT];
    bytes[..8].copy_from_slice(&lsn.to_le_bytes());
    bytes[8..12].copy_from_slice(&(writer as u32).to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(store), &bytes[..12]);
    bytes[12..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

impl Synced {
    pub(super) fn path(folder: &Path) -> PathBuf {
        folder.join(NAME)
    }

    /// Makes the file of a new log.
    pub(super) fn create(disk: &dyn Disk, folder: &Path, store: &[u8; 16]) -> io::Result<()> {
        let file = disk.create(&Self::path(folder))?;
        let slots: Vec<u8> = (0..WRITERS_MAX)
            .flat_map(|writer| encode(0, writer, store))
            .collect();
        file.write_at(&slots, 0)?;
        file.sync()
    }

    /// Opens it and reads the numbers; changes nothing.
    pub(super) fn open(
        disk: &dyn Disk,
        folder: &Path,
        store: &[u8; 16],
    ) -> Result<(Self, Vec<u64>), OpenError> {
        let path = Self::path(folder);
        let unusable = |what: &str| OpenError::Unusable {
            file: path.clone(),
            reason: format!(
                "{what}, so it can't be told whether the log lost anything. Restore the folder from a backup. If there \
                 is none: put an empty file in its place to start without this check"
            ),
        };
        let file = match disk.open(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(unusable("this file is missing")),
            opened => opened,
        };
        let io = |error| OpenError::Io {
            file: path.clone(),
            error,
        };
        let file = file.map_err(io)?;
        let length = file.length().map_err(io)?;
        let synced = Self {
            file,
            path: path.clone(),
            store: *store,
            is_empty: length == 0,
        };
        if synced.is_empty {
            return Ok((synced, vec![0; WRITERS_MAX]));
        }
        let mut bytes = [0; BYTES];
        if length != BYTES as u64 {
            return Err(unusable("this file is damaged"));
        }
        synced.file.read_at(&mut bytes, 0).map_err(io)?;
        let mut numbers = Vec::with_capacity(WRITERS_MAX);
        for (writer, slot) in bytes.chunks_exact(SLOT).enumerate() {
            let lsn = u64::from_le_bytes(slot[..8].try_into().unwrap_or_default());
            if slot != encode(lsn, writer, store) {
                return Err(unusable("this file is damaged"));
            }
            numbers.push(lsn);
        }
        Ok((synced, numbers))
    }

    /// Makes an empty file whole, before it is written to.
    pub(super) fn begin(&self) -> Result<(), OpenError> {
        if self.is_empty {
            tracing::warn!("the log's SYNCED is empty: this start does not check for lost commits");
            let begun = (0..WRITERS_MAX).try_for_each(|writer| self.advance(writer, 0));
            begun.map_err(|error| OpenError::Io {
                file: self.path.clone(),
                error,
            })?;
        }
        Ok(())
    }

    /// Records that a commit is durable.
    pub(super) fn advance(&self, writer: usize, lsn: u64) -> io::Result<()> {
        self.file
            .write_at(&encode(lsn, writer, &self.store), (writer * SLOT) as u64)
    }

    /// The last words of a clean close.
    pub(super) fn close(&self) {
        if let Err(error) = self.file.sync() {
            tracing::warn!(%error, "syncing SYNCED failed");
        }
    }
}
