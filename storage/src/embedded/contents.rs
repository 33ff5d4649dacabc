//! Numbers in fjall's files that say how much follows.
//!
//! fjall 3.1.13 makes room for as many entries as such a number declares, and only then reads them or looks at a
//! checksum. One flipped bit there asks for gigabytes, and a process that is not given them ends without a word. So what
//! it reads that way while it opens is looked at before:
//!
//! - the manifest of a keyspace, `vN`, which declares its sections, blob files and their statistics: `current` holds a
//!   checksum of all of it, which fjall writes and does not compare;
//! - the table of contents at the end of each table and blob file: as many sections as it declares have to fit into it.
//!   Its own checksum need not be right here, since fjall compares that one.
//!
//! All other lengths stand in blocks whose checksum comes first.

use super::OpenError;
use super::audit::damaged;
use super::format::io;
use std::fs::{self, File};
use std::io::ErrorKind::NotFound;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_128;

/// `current`: the manifest's number, its XXH3-128, and 0 for that kind of checksum; numbers are little-endian.
const CURRENT_BYTES: usize = 8 + 16 + 1;
/// The last bytes of a table: magic, version, kind of checksum, checksum, place and length of the table of contents.
const TRAILER_BYTES: usize = 4 + 1 + 1 + 16 + 8 + 8;
/// Place and length of a section, and the length of its name.
const SECTION_BYTES_MIN: u64 = 8 + 8 + 2;

/// Checks the database in `db`, which has so many keyspaces, each with its `current`.
pub(super) fn check(db: &Path, keyspaces: usize) -> Result<(), OpenError> {
    for keyspace in 0..keyspaces {
        let keyspace = db.join("keyspaces").join(keyspace.to_string());
        check_manifest(&keyspace)?;
        for path in files(&keyspace.join("tables"))?
            .into_iter()
            .chain(files(&keyspace.join("blobs"))?)
        {
            if !sections_fit(&path).map_err(|e| io(&path, e))? {
                return Err(damaged(path, "the table of contents of this file is damaged"));
            }
        }
    }
    Ok(())
}

fn check_manifest(keyspace: &Path) -> Result<(), OpenError> {
    let current = keyspace.join("current");
    let bytes = fs::read(&current).map_err(|e| io(&current, e))?;
    let Ok(bytes) = <[u8; CURRENT_BYTES]>::try_from(bytes) else {
        return Err(damaged(current, "this file is damaged"));
    };
    let manifest = keyspace.join(format!("v{}", number(&bytes[..8])));
    match fs::read(&manifest) {
        Ok(content) if xxh3_128(&content).to_le_bytes() == bytes[8..24] => Ok(()),
        Ok(_) => Err(damaged(
            manifest,
            "this file is not what `current` beside it says",
        )),
        Err(error) if error.kind() == NotFound => Err(damaged(manifest, "this is missing")),
        Err(error) => Err(io(&manifest, error)),
    }
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, OpenError> {
    let entries = match fs::read_dir(folder) {
        // fjall says so itself if it needs it.
        Err(error) if error.kind() == NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|e| io(folder, e))?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| io(folder, e))?;
        if entry.file_type().map_err(|e| io(folder, e))?.is_file() {
            files.push(entry.path());
        }
    }
    Ok(files)
}

/// Whether the table of contents has room for its sections. What has none at all counts as well: fjall refuses it before
/// it makes room for anything, if it needs it.
fn sections_fit(path: &Path) -> std::io::Result<bool> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let Some(at) = length.checked_sub(TRAILER_BYTES as u64) else {
        return Ok(true);
    };
    let mut trailer = [0; TRAILER_BYTES];
    file.read_exact_at(&mut trailer, at)?;
    let begins = number(&trailer[22..30]);
    if !trailer.starts_with(b"SFA!") || begins.checked_add(8).is_none_or(|end| end > at) {
        return Ok(true);
    }
    let mut head = [0; 8];
    file.read_exact_at(&mut head, begins)?;
    let room = at - begins - 8;
    Ok(!head.starts_with(b"TOC!") || number(&head[4..]) * SECTION_BYTES_MIN <= room)
}

/// Little-endian, at most 8 bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}
