//! The folder around the database: who may use it, which format it has, and how a new one comes to be.
//!
//! | Name | What |
//! | --- | --- |
//! | `LOCK` | held (flock) by the one process that has the store open; empty |
//! | `FORMAT` | version of everything in the folder, and the store's random id; written last, so it marks a whole store |
//! | `CREATING` | there while a new store is being made; without `FORMAT` beside it, nothing was ever acknowledged |
//! | `control/` | the control store: `db/`, a fjall database, and `SYNCED` ([`super::synced`]) |
//! | `control/opening/`, `control/opened/` | second names of its files while it opens ([`super::guard`]) |
//! | `log/` | the log ([`crate::segments`]) |

use super::{CONTROL, LOG, OpenError, migrate};
use drover_wire::id::Hash;
use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

/// What this version writes.
pub(super) const VERSION: u32 = 2;
/// The database's folder in the control store's.
pub(super) const DB: &str = "db";
const LOCK: &str = "LOCK";
const FORMAT: &str = "FORMAT";
const CREATING: &str = "CREATING";
const FIRST_LINE: &str = "drover store";

/// One step of the migration chain: what it is, and the work that takes a folder of the version before it to its own.
/// It must be repeatable: if it is interrupted, it is run again.
pub(super) type Step = fn(&Path, &Format) -> Result<(), OpenError>;

/// `STEPS[v - 1]` makes a store of version `v` one of version `v + 1`. Version 1 was the first that existed.
const STEPS: [Step; VERSION as usize - 1] = [migrate::to_2];

/// What `FORMAT` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Format {
    pub(super) version: u32,
    /// Random; in every commit group too.
    pub(super) store: [u8; 16],
}

/// The lock on a folder, until it is dropped.
///
/// Closing the file would not do: a process being started holds a copy of it from its fork to its exec, and the lock
/// lives as long as any copy does.
pub(super) struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::warn!(%error, "the lock on the data folder could not be released");
        }
    }
}

/// A folder that is ours: locked, with its format known.
pub(super) struct Folder {
    pub(super) format: Format,
    /// True: there is no database yet, and [`finish`] has to be called once there is.
    pub(super) is_new: bool,
    /// Held until the store is closed.
    pub(super) lock: Lock,
}

/// An error of the operating system.
pub(super) fn io(file: &Path, error: std::io::Error) -> OpenError {
    OpenError::Io {
        file: file.into(),
        error,
    }
}

fn unusable(file: impl Into<PathBuf>, reason: impl Into<String>) -> OpenError {
    OpenError::Unusable {
        file: file.into(),
        reason: reason.into(),
    }
}

fn exists(path: &Path) -> Result<bool, OpenError> {
    path.try_exists().map_err(|e| io(path, e))
}

/// Makes durable which files a folder holds.
pub(super) fn sync_folder(folder: &Path) -> Result<(), OpenError> {
    File::open(folder)
        .and_then(|f| f.sync_all())
        .map_err(|e| io(folder, e))
}

/// Locks a folder that is a store of this version, and changes nothing.
pub(super) fn enter_existing(folder: &Path) -> Result<Folder, OpenError> {
    let path = folder.join(FORMAT);
    if !exists(&path)? {
        return Err(unusable(folder, "there is no store in this folder"));
    }
    let lock = lock(folder)?;
    let format = read(&path)?;
    if format.version < VERSION {
        return Err(unusable(
            path,
            format!(
                "this store has format {}; start drover once to bring it to format {VERSION}",
                format.version
            ),
        ));
    }
    Ok(Folder {
        format,
        is_new: false,
        lock,
    })
}

fn lock(folder: &Path) -> Result<Lock, OpenError> {
    let path = folder.join(LOCK);
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|e| io(&path, e))?;
    match file.try_lock() {
        Ok(()) => Ok(Lock(file)),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked(folder.into())),
        Err(TryLockError::Error(e)) => Err(io(&path, e)),
    }
}

/// As [`enter`], for a new store only.
pub(super) fn enter_new(folder: &Path) -> Result<Folder, OpenError> {
    let entered = enter(folder)?;
    match entered.is_new {
        true => Ok(entered),
        false => Err(OpenError::Unusable {
            file: folder.into(),
            reason: "there is a store in this folder already; name one that is missing or empty".into(),
        }),
    }
}

/// Locks the folder and reads its format; a missing or empty one is prepared for a new store. One that is neither is
/// refused and left as it is.
pub(super) fn enter(folder: &Path) -> Result<Folder, OpenError> {
    if !exists(folder)? {
        fs::create_dir_all(folder).map_err(|e| io(folder, e))?;
        if let Some(parent) = folder.parent().filter(|p| !p.as_os_str().is_empty()) {
            sync_folder(parent)?;
        }
    }
    if !is_store(folder)? {
        refuse_strangers(folder)?;
    }
    let lock = lock(folder)?;
    // Only now is it certain that nobody else is making a store here.
    let format_path = folder.join(FORMAT);
    if exists(&format_path)? {
        let format = read(&format_path)?;
        let format = migrate(folder, format, &STEPS)?;
        migrate::clean(folder)?;
        remove_creating(folder)?;
        return Ok(Folder {
            format,
            is_new: false,
            lock,
        });
    }
    if exists(&folder.join(CREATING))? {
        // Whoever began this never finished, so nobody was ever told anything was kept here.
        tracing::warn!("an earlier start did not finish making this store; beginning again");
        for part in [CONTROL, LOG] {
            remove_folder(&folder.join(part))?;
        }
    } else {
        refuse_strangers(folder)?;
        let path = folder.join(CREATING);
        File::create(&path)
            .and_then(|f| f.sync_all())
            .map_err(|e| io(&path, e))?;
        sync_folder(folder)?;
    }
    let mut store = [0; 16];
    getrandom::fill(&mut store).map_err(|e| io(folder, std::io::Error::other(e)))?;
    Ok(Folder {
        format: Format {
            version: VERSION,
            store,
        },
        is_new: true,
        lock,
    })
}

/// Makes a new store one, after its database was made and synced.
pub(super) fn finish(folder: &Path, format: &Format) -> Result<(), OpenError> {
    write(folder, format)?;
    remove_creating(folder)
}

fn remove_creating(folder: &Path) -> Result<(), OpenError> {
    let path = folder.join(CREATING);
    match fs::remove_file(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(io(&path, e)),
        Ok(()) => sync_folder(folder),
    }
}

/// Removes a folder with all that is in it, if it is there.
pub(super) fn remove_folder(folder: &Path) -> Result<(), OpenError> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(|e| io(folder, e)),
    }
}

fn is_store(folder: &Path) -> Result<bool, OpenError> {
    Ok(exists(&folder.join(FORMAT))? || exists(&folder.join(CREATING))?)
}

fn refuse_strangers(folder: &Path) -> Result<(), OpenError> {
    for entry in fs::read_dir(folder).map_err(|e| io(folder, e))? {
        let name = entry.map_err(|e| io(folder, e))?.file_name();
        // A fresh file system of its own has lost+found; LOCK is left by a start that lost the race for the lock.
        if name != LOCK && name != "lost+found" {
            return Err(unusable(
                folder,
                format!(
                    "this folder holds {name:?} but no {FORMAT}, so it is no Drover store. Name another folder, \
                     or, if a store was here, restore it from a backup"
                ),
            ));
        }
    }
    Ok(())
}

fn encode(format: &Format) -> String {
    let id: String = format.store.iter().map(|b| format!("{b:02x}")).collect();
    let lines = format!("{FIRST_LINE}\nversion {}\nid {id}\n", format.version);
    format!("{lines}check {:?}\n", Hash::of(&[lines.as_bytes()]))
}

fn write(folder: &Path, format: &Format) -> Result<(), OpenError> {
    let path = folder.join(FORMAT);
    let new = folder.join("FORMAT.new");
    File::create(&new)
        .and_then(|mut f| f.write_all(encode(format).as_bytes()).and_then(|()| f.sync_all()))
        .map_err(|e| io(&new, e))?;
    fs::rename(&new, &path).map_err(|e| io(&path, e))?;
    sync_folder(folder)
}

fn read(path: &Path) -> Result<Format, OpenError> {
    const DAMAGED: &str = "this file is damaged. Restore the folder from a backup, or move it away to start empty; \
                           nothing in it was changed";
    let text = fs::read(path).map_err(|e| io(path, e))?;
    let text = std::str::from_utf8(&text).map_err(|_| unusable(path, DAMAGED))?;
    let parse = |text: &str| {
        let mut lines = text.lines();
        (lines.next()? == FIRST_LINE).then_some(())?;
        let version: u32 = lines.next()?.strip_prefix("version ")?.parse().ok()?;
        let id = lines.next()?.strip_prefix("id ").unwrap_or_default();
        let id = u128::from_str_radix(id, 16).unwrap_or_default();
        Some(Format {
            version,
            store: id.to_be_bytes(),
        })
    };
    let format = parse(text).ok_or_else(|| unusable(path, DAMAGED))?;
    // A later version may have more lines; its first two are read by every version.
    if format.version > VERSION {
        return Err(unusable(
            path,
            format!(
                "this store has format {}, written by a newer Drover; this one knows formats up to {VERSION}. \
                 Start the newer version, or restore a backup made before the upgrade",
                format.version
            ),
        ));
    }
    if text != encode(&format) {
        return Err(unusable(path, DAMAGED));
    }
    Ok(format)
}

/// Takes a store step by step to the version of this program; each step is recorded before the next begins.
fn migrate(folder: &Path, mut format: Format, steps: &[Step]) -> Result<Format, OpenError> {
    let current = steps.len() as u32 + 1;
    while format.version != current {
        let step = format.version.checked_sub(1).and_then(|from| steps.get(from as usize)).ok_or_else(|| {
            unusable(
                folder.join(FORMAT),
                format!(
                    "this store has format {}, which this version can't bring up to {current}. Restore the \
                     folder from a backup, or move it away to start empty",
                    format.version
                ),
            )
        })?;
        tracing::info!(from = format.version, "bringing the store to the next format");
        step(folder, &format)?;
        format.version += 1;
        write(folder, &format)?;
    }
    Ok(format)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(folder: &Path, format: &Format) {
        write(folder, format).expect("writable");
    }

    #[test]
    fn migration_runs_each_step_once_and_records_it() {
        fn first(folder: &Path, _: &Format) -> Result<(), OpenError> {
            fs::write(folder.join("step"), "1").map_err(|e| io(folder, e))
        }
        fn second(folder: &Path, _: &Format) -> Result<(), OpenError> {
            let text = fs::read_to_string(folder.join("step")).map_err(|e| io(folder, e))?;
            fs::write(folder.join("step"), text + "2").map_err(|e| io(folder, e))
        }
        fn fails(folder: &Path, _: &Format) -> Result<(), OpenError> {
            Err(unusable(folder, "no"))
        }
        let folder = tempfile::tempdir().expect("temporary folder");
        let old = Format {
            version: 1,
            store: [7; 16],
        };
        put(folder.path(), &old);
        // The second step fails: the first one stays done.
        migrate(folder.path(), old, &[first, fails]).expect_err("fails");
        let text = fs::read_to_string(folder.path().join(FORMAT)).expect("there");
        assert_eq!(
            text,
            encode(&Format {
                version: 2,
                store: [7; 16]
            })
        );
        let reached = migrate(
            folder.path(),
            Format {
                version: 2,
                store: [7; 16],
            },
            &[first, second],
        );
        assert_eq!(reached.expect("migrates").version, 3);
        assert_eq!(
            fs::read_to_string(folder.path().join("step")).expect("there"),
            "12"
        );
    }

    #[test]
    fn format_zero_never_existed_and_is_refused() {
        let folder = tempfile::tempdir().expect("temporary folder");
        put(
            folder.path(),
            &Format {
                version: 0,
                store: [7; 16],
            },
        );
        let Err(OpenError::Unusable { file, reason }) = enter(folder.path()).map(|_| ()) else {
            panic!("must be refused")
        };
        assert!(file.ends_with(FORMAT));
        assert!(reason.contains("format 0"), "{reason}");
    }

    #[test]
    fn an_unfinished_creation_is_begun_again() {
        let folder = tempfile::tempdir().expect("temporary folder");
        fs::write(folder.path().join(CREATING), "").expect("writable");
        fs::create_dir(folder.path().join(CONTROL)).expect("writable");
        fs::write(folder.path().join(CONTROL).join("half"), "half").expect("writable");
        assert!(enter(folder.path()).expect("enters").is_new);
        assert!(!folder.path().join(CONTROL).exists());
    }
}
