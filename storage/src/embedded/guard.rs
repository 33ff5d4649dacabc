//! A second name for every file of the database while it opens.
//!
//! fjall deletes what it finds no reference to: tables no manifest names, keyspaces that are not in its list of names.
//! That is right after a crash, and destroys everything if the list or a manifest is the damaged part. So each file gets
//! a hard link in `opening/` first. If the opening fails, what was deleted or replaced gets its place back, and what was
//! made goes; if it succeeds the links go, before anything is written. A start that finds the links of an opening that was
//! cut off puts them back and leaves the rest: whatever should not be there, fjall deletes again.
//!
//! Links don't undo what is written into a file. Only journals are written in place, and [`super::audit`] has read them
//! whole.

use super::OpenError;
use super::format::{DB, io, sync_folder};
use std::fs;
use std::io::ErrorKind::{NotFound, PermissionDenied, QuotaExceeded, StorageFull, Unsupported};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The links of an opening that has not ended.
const OPENING: &str = "opening";
/// The links of one that has, on their way out.
const OPENED: &str = "opened";
/// The links, until the opening has ended.
pub(super) struct Guard {
    folder: PathBuf,
}

impl Guard {
    /// Links every file of the database in `folder`, after putting back what an opening that was cut off left.
    pub(super) fn new(folder: &Path) -> Result<Self, OpenError> {
        let guard = Self {
            folder: folder.to_owned(),
        };
        guard.restore(false)?;
        let db = folder.join(DB);
        match link_all(&db, &folder.join(OPENING)) {
            Ok(()) => Ok(guard),
            // A file system without hard links, or without room, opens as fjall does by itself.
            Err(error)
                if matches!(
                    error.kind(),
                    Unsupported | PermissionDenied | StorageFull | QuotaExceeded
                ) =>
            {
                tracing::warn!(%error, "the database opens without second names for its files");
                guard.end()?;
                Ok(guard)
            }
            Err(error) => Err(io(&db, error)),
        }
    }

    /// The database is open and whole.
    pub(super) fn end(&self) -> Result<(), OpenError> {
        let (opening, opened) = (self.folder.join(OPENING), self.folder.join(OPENED));
        remove(&opened)?;
        match fs::rename(&opening, &opened) {
            Err(error) if error.kind() == NotFound => return Ok(()),
            Err(error) => return Err(io(&opening, error)),
            Ok(()) => {}
        }
        // On disk before anything is written: put back later, the links would undo it.
        sync_folder(&self.folder)?;
        remove(&opened)
    }

    /// The database did not open: everything is as it was.
    pub(super) fn put_back(&self) -> Result<(), OpenError> {
        self.restore(true)
    }

    fn restore(&self, exactly: bool) -> Result<(), OpenError> {
        let opening = self.folder.join(OPENING);
        if opening.is_dir() {
            restore(&opening, &self.folder.join(DB), exactly).map_err(|e| io(&opening, e))?;
        }
        self.end()
    }
}

fn remove(folder: &Path) -> Result<(), OpenError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != NotFound => Err(io(folder, error)),
        _ => Ok(()),
    }
}

/// The entries of a folder, none if there is no such folder.
fn entries(folder: &Path) -> std::io::Result<Vec<fs::DirEntry>> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == NotFound => Ok(Vec::new()),
        found => found?.collect(),
    }
}

fn link_all(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in entries(from)? {
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            link_all(&entry.path(), &to)?;
        } else {
            fs::hard_link(entry.path(), &to)?;
        }
    }
    Ok(())
}

/// Links what is in `from` into `to` where it is missing there, or another file is in its place; `exactly`: removes what
/// is only in `to`.
fn restore(from: &Path, to: &Path, exactly: bool) -> std::io::Result<()> {
    if exactly {
        for entry in entries(to)? {
            if from.join(entry.file_name()).exists() {
                continue;
            }
            if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            } else {
                fs::remove_file(entry.path())?;
            }
        }
    }
    for entry in entries(from)? {
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            fs::create_dir_all(&to)?;
            restore(&entry.path(), &to, exactly)?;
            continue;
        }
        match fs::metadata(&to) {
            Ok(there) if there.ino() == entry.metadata()?.ino() => continue,
            Ok(_) => fs::remove_file(&to)?,
            Err(error) if error.kind() == NotFound => {}
            Err(error) => return Err(error),
        }
        fs::hard_link(entry.path(), &to)?;
    }
    Ok(())
}
