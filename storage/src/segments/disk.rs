//! The border to the file system: everything the segment log does to its disk goes through here, so that tests can put
//! one behind it that fails, fills up, and loses what was not synced.
//!
//! Plain `write` and `fdatasync`, through the C library: a batch is one write and one sync.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// A file system.
pub(crate) trait Disk: Send + Sync {
    /// Makes an empty file, in place of one that has this name. It is there for good after [`DiskFile::sync`] and
    /// [`Disk::sync_folder`].
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens one for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Gives a file another name, replacing one that has it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes one.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Everything in a folder.
    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>>;
    /// Makes durable which files are in a folder, and under which names.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;
    /// Free bytes where the folder lies, if the system says.
    fn free_bytes(&self, folder: &Path) -> Option<u64>;
}

/// An open file.
pub(crate) trait DiskFile: Send + Sync {
    /// Fills the buffer.
    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()>;
    /// Writes all of it.
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;
    /// Makes what was written durable, its length too.
    fn sync(&self) -> io::Result<()>;
    /// Its length.
    fn length(&self) -> io::Result<u64>;
    /// Cuts it.
    fn set_length(&self, bytes: u64) -> io::Result<()>;
    /// Lengthens it to so many bytes by zeros, and sets room aside for them.
    fn reserve(&self, bytes: u64) -> io::Result<()>;
}

/// The operating system's.
pub(crate) struct System;

impl Disk for System {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)?;
        Ok(Arc::new(file))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(OpenOptions::new().read(true).write(true).open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }

    fn free_bytes(&self, folder: &Path) -> Option<u64> {
        let stat = rustix::fs::statvfs(folder).ok()?;
        Some(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

impl DiskFile for File {
    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.read_exact_at(bytes, at)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn set_length(&self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        match rustix::fs::fallocate(self, rustix::fs::FallocateFlags::empty(), 0, bytes.max(1)) {
            // A file system that can't set room aside is written to as it comes.
            Err(e) if e == rustix::io::Errno::OPNOTSUPP => {}
            done => done?,
        }
        match bytes > self.metadata()?.len() {
            true => self.set_len(bytes),
            false => Ok(()),
        }
    }
}

/// Writes piece by piece, each of them made durable: the sync of a commit waits for what the disk is busy with. `rest` is
/// called with the beginning of each.
pub(super) fn write_paced(
    file: &dyn DiskFile,
    bytes: &[u8],
    at: u64,
    piece_bytes: usize,
    rest: &dyn Fn(Instant),
) -> io::Result<()> {
    for (n, piece) in bytes.chunks(piece_bytes).enumerate() {
        let began = Instant::now();
        file.write_at(piece, at + (n * piece_bytes) as u64)?;
        file.sync()?;
        rest(began);
    }
    Ok(())
}
