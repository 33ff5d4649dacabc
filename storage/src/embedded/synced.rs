//! The file `SYNCED`: the number of the last commit group whose sync succeeded, so that what was acknowledged is known
//! from outside the database.
//!
//! It is written after each sync and before the answers, without a sync of its own: it survives a killed process
//! exactly. After a power cut it may be behind, never ahead, and then only tells less. A clean close syncs it.

use super::OpenError;
use super::format::io;
use crate::StoreError;
use drover_wire::id::Hash;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Its name in the store's folder.
pub(super) const NAME: &str = "SYNCED";
const BYTES: usize = 16;

/// The open file.
pub(super) struct Synced {
    file: File,
    group: u64,
}

fn encode(group: u64) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..8].copy_from_slice(&group.to_be_bytes());
    let check = Hash::of(&[b"drover synced", &group.to_be_bytes()]);
    bytes[8..].copy_from_slice(&check.as_bytes()[..8]);
    bytes
}

impl Synced {
    /// Makes the file of a new store.
    pub(super) fn create(folder: &Path) -> Result<(), OpenError> {
        let path = folder.join(NAME);
        let file = File::create(&path).map_err(|e| io(&path, e))?;
        file.write_all_at(&encode(0), 0)
            .and_then(|()| file.sync_all())
            .map_err(|e| io(&path, e))
    }

    /// Opens it and reads the number.
    pub(super) fn open(folder: &Path) -> Result<(Self, u64), OpenError> {
        let path = folder.join(NAME);
        let unusable = |what: &str| OpenError::Unusable {
            file: path.clone(),
            reason: format!(
                "{what}, so it can't be told whether the store lost anything. Restore the folder from a backup. \
                 If there is none: write a new one with `printf '' > SYNCED` (an empty file) to start without this \
                 check"
            ),
        };
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(unusable("this file is missing"));
            }
            opened => opened.map_err(|e| io(&path, e))?,
        };
        let length = file.metadata().map_err(|e| io(&path, e))?.len();
        if length == 0 {
            tracing::warn!("SYNCED is empty: this start does not check for lost commits");
            return Ok((Self { file, group: 0 }, 0));
        }
        let mut bytes = [0; BYTES];
        if length != BYTES as u64 {
            return Err(unusable("this file is damaged"));
        }
        file.read_exact_at(&mut bytes, 0).map_err(|e| io(&path, e))?;
        let mut group = [0; 8];
        group.copy_from_slice(&bytes[..8]);
        let group = u64::from_be_bytes(group);
        if bytes != encode(group) {
            return Err(unusable("this file is damaged"));
        }
        Ok((Self { file, group }, group))
    }

    /// Records that a group is durable.
    pub(super) fn advance(&mut self, group: u64) -> Result<(), StoreError> {
        self.file.write_all_at(&encode(group), 0).map_err(|error| {
            tracing::error!(%error, "writing SYNCED failed; the store takes nothing more until restarted");
            StoreError::Unknown
        })?;
        self.group = group;
        Ok(())
    }

    /// The last group that was recorded.
    pub(super) fn group(&self) -> u64 {
        self.group
    }

    /// The last words of a clean close.
    pub(super) fn close(&self) {
        if let Err(error) = self.file.sync_all() {
            tracing::warn!(%error, "syncing SYNCED failed");
        }
    }
}
