//! Looks at the database before fjall opens it, because fjall repairs by cutting.
//!
//! What fjall 3.1.13 does by itself:
//!
//! - a journal that does not parse ends there for fjall: it **truncates the file at the last whole batch and goes on
//!   silently**, be it a torn tail or one flipped bit in the middle with thousands of good batches behind it;
//! - a batch that parses but fails its checksum makes opening fail, even if it is the torn, never acknowledged last one;
//! - a keyspace folder without its `current` file is deleted, and so are all keyspaces if the folder of the names is
//!   gone; a missing journal, or one cut at a batch's end, is not noticed;
//! - a batch's sequence number is not covered by its checksum; one that became too low makes the batch look flushed;
//! - tables, blob files and manifests: a missing or unreadable one fails the opening, a damaged block or blob fails the
//!   read that meets it (every block and blob has a checksum); numbers of entries are believed, see [`contents`].
//!
//! So this reads all journals first, strictly, and tells a torn tail from damage. A batch is a commit group, begun only
//! after the one before it was synced, and its first item is its number. Hence what does not parse in the last journal
//! is a torn tail exactly if no whole group follows it and the number of the last group before it is not below
//! [`super::synced`]'s; then it was never acknowledged, and is cut off here (fjall can't always). Everything else is
//! damage: nothing is changed and the store does not open. A whole group that was not acknowledged is written again in
//! its place and synced: it may be there only because its sync failed, and then it is on no disk. Afterwards, the number
//! of the last group in the open database must not be below `SYNCED` either, which finds missing and shortened journals.
//!
//! One case stays undecided and is refused: a first batch of a fresh journal of which not even the beginning reached
//! the disk but a later part did.

use super::contents;
use super::format::{DB, io};
use super::tables::{GROUP_KEY, GroupMark};
use super::{OpenError, RESTORE};
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

const TAG_START: u8 = 1;
const TAG_ITEM: u8 = 2;
const TAG_END: u8 = 3;
const TAG_CLEAR: u8 = 4;
const TRAILER: &[u8] = b"FJL\x03";

pub(super) fn damaged(file: PathBuf, what: impl std::fmt::Display) -> OpenError {
    OpenError::Unusable {
        file,
        reason: format!("{what}. {RESTORE}"),
    }
}

/// Checks the database in the folder, which has so many keyspaces; cuts off a torn tail that was never acknowledged.
pub(super) fn before_open(
    folder: &Path,
    store: &[u8; 16],
    synced: u64,
    keyspaces: usize,
) -> Result<(), OpenError> {
    let db = folder.join(DB);
    let mut needed = vec![db.clone(), db.join("version"), db.join("lock")];
    needed.extend((0..keyspaces).map(|n| db.join("keyspaces").join(n.to_string()).join("current")));
    for path in needed {
        if !path.try_exists().map_err(|e| io(&path, e))? {
            return Err(damaged(path, "this is missing"));
        }
    }
    contents::check(&db, keyspaces)?;
    let journals = journals(&db)?;
    let mut seqno = None;
    let last = journals.len().saturating_sub(1);
    for (n, (_, path)) in journals.iter().enumerate() {
        let bytes = read(path).map_err(|e| io(path, e))?;
        let scan = scan(&bytes, store, synced, &mut seqno);
        if let Some(at) = scan.broken_at {
            if n != last || !scan.is_torn(&bytes[at..], store, synced) {
                return Err(damaged(
                    path.clone(),
                    format_args!("this journal is damaged at byte {at}"),
                ));
            }
            tracing::warn!(
                journal = %path.display(),
                bytes = bytes.len() - at,
                "cutting off a commit that was interrupted before it was acknowledged"
            );
            File::options()
                .write(true)
                .open(path)
                .and_then(|f| f.set_len(at as u64).and_then(|()| f.sync_all()))
                .map_err(|e| io(path, e))?;
        }
        if let Some(at) = scan.unacknowledged_at {
            File::options()
                .write(true)
                .open(path)
                .and_then(|f| {
                    f.write_all_at(&bytes[at..scan.whole], at as u64)
                        .and_then(|()| f.sync_all())
                })
                .map_err(|e| io(path, e))?;
        }
    }
    Ok(())
}

/// A journal up to the last byte that was ever written: what fjall preallocates behind it is a hole, and would be 64 MiB
/// of zeros in memory.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    use rustix::fs::{SeekFrom, seek};
    let mut file = File::open(path)?;
    let mut end = 0;
    // ENXIO: no data beyond. A file system that knows no holes calls all of it data.
    while let Ok(data) = seek(&file, SeekFrom::Data(end)) {
        end = seek(&file, SeekFrom::Hole(data))?;
    }
    file.rewind()?;
    let mut bytes = Vec::with_capacity(end as usize);
    file.take(end).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The journals by their numbers.
fn journals(db: &Path) -> Result<Vec<(u64, PathBuf)>, OpenError> {
    let mut journals = Vec::new();
    for entry in fs::read_dir(db).map_err(|e| io(db, e))? {
        let path = entry.map_err(|e| io(db, e))?.path();
        if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("jnl")) {
            let number = path
                .file_stem()
                .and_then(|s| s.to_str())
                .and_then(|s| s.parse::<u64>().ok());
            match number {
                Some(number) => journals.push((number, path)),
                None => return Err(damaged(path, "this is no name of a journal")),
            }
        }
    }
    if journals.is_empty() {
        // fjall would begin a new one.
        return Err(damaged(db.to_owned(), "its journals (*.jnl) are missing"));
    }
    journals.sort();
    Ok(journals)
}

/// Whether this group lies whole in the newest journal. Where it can't be read it counts as whole, which is the worse of
/// the two.
pub(super) fn is_written(folder: &Path, store: &[u8; 16], group: u64) -> bool {
    let newest = || {
        let journals = journals(&folder.join(DB)).ok()?;
        read(&journals.last()?.1).ok()
    };
    newest().is_none_or(|bytes| scan(&bytes, store, group, &mut None).last_group >= Some(group))
}

/// What a journal holds.
#[derive(Debug, PartialEq, Eq)]
struct Scan {
    /// The last whole commit group.
    last_group: Option<u64>,
    /// Where whole batches end and something else than the zeros of a preallocated file begins.
    broken_at: Option<usize>,
    /// Where the first whole group begins that was not acknowledged.
    unacknowledged_at: Option<usize>,
    /// Where whole batches end.
    whole: usize,
}

impl Scan {
    /// Whether what does not parse (`tail`) was never acknowledged.
    fn is_torn(&self, tail: &[u8], store: &[u8; 16], synced: u64) -> bool {
        let begun = match self.last_group {
            Some(last) => Some(last + 1),
            // The first batch of this journal: those before it may all be in tables by now. What it says of itself is
            // not covered by its checksum, but holds the store's id.
            None => Batch::begun_group(tail, store),
        };
        begun.is_some_and(|begun| begun > synced) && !holds_group(&tail[1..], store)
    }
}

/// `seqno` is that of the last batch before this journal, and afterwards of its own last one.
fn scan(bytes: &[u8], store: &[u8; 16], synced: u64, seqno: &mut Option<u64>) -> Scan {
    let mut scan = Scan {
        last_group: None,
        broken_at: None,
        unacknowledged_at: None,
        whole: 0,
    };
    let mut at = 0;
    while at < bytes.len() {
        // Sequence numbers rise, or one of them is damaged: no checksum covers them.
        match Batch::parse(&bytes[at..], store).filter(|batch| seqno.is_none_or(|last| last < batch.seqno)) {
            Some(batch) => {
                if batch.group.is_some_and(|group| group > synced) {
                    scan.unacknowledged_at.get_or_insert(at);
                }
                at += batch.bytes;
                scan.whole = at;
                *seqno = Some(batch.seqno);
                scan.last_group = batch.group.or(scan.last_group);
            }
            None => {
                let is_unused = bytes[at..].iter().all(|&b| b == 0);
                scan.broken_at = (!is_unused).then_some(at);
                break;
            }
        }
    }
    scan
}

/// Whether a whole commit group of this store begins anywhere in `bytes`.
fn holds_group(bytes: &[u8], store: &[u8; 16]) -> bool {
    let candidates = bytes
        .windows(2 + ITEM_HEAD)
        .enumerate()
        .filter(|(_, w)| w[0] == TAG_START);
    candidates.into_iter().any(|(at, _)| {
        Batch::begun_group(&bytes[at..], store).is_some() && Batch::parse(&bytes[at..], store).is_some()
    })
}

/// A whole batch.
struct Batch {
    bytes: usize,
    seqno: u64,
    /// Its number, if it is a commit group of this store.
    group: Option<u64>,
}

/// Bytes of an item between its tag and its key.
const ITEM_HEAD: usize = 1 + 1 + 8 + 2 + 4 + 4;

impl Batch {
    /// The batch at the beginning of `bytes`, if it is whole and its checksum is right.
    fn parse(bytes: &[u8], store: &[u8; 16]) -> Option<Self> {
        let mut rest = Rest(bytes);
        let (count, seqno) = rest.start()?;
        let mut hasher = Xxh3::new();
        let mut group = None;
        for n in 0..count {
            let before = rest.0;
            let item = rest.item()?;
            hasher.update(&before[..before.len() - rest.0.len()]);
            if n == 0 {
                group = item.mark(store);
            }
        }
        (rest.byte()? == TAG_END).then_some(())?;
        let checksum = u64::from_le_bytes(rest.array()?);
        (rest.take(TRAILER.len())? == TRAILER && checksum == hasher.digest()).then_some(())?;
        group.is_none_or(|mark| mark.seqno_min <= seqno).then_some(())?;
        Some(Self {
            bytes: bytes.len() - rest.0.len(),
            seqno,
            group: group.map(|mark| mark.group),
        })
    }

    /// The number a batch gives itself in its first item, whole or not.
    fn begun_group(bytes: &[u8], store: &[u8; 16]) -> Option<u64> {
        let mut rest = Rest(bytes);
        rest.start()?;
        rest.item()?.mark(store).map(|mark| mark.group)
    }
}

/// An item's key and value; both empty for a clearing.
struct Item<'a> {
    key: &'a [u8],
    value: &'a [u8],
}

impl Item<'_> {
    fn mark(&self, store: &[u8; 16]) -> Option<GroupMark> {
        (self.key == GROUP_KEY)
            .then(|| GroupMark::decode(self.value, store))
            .flatten()
    }
}

/// What is left to parse.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    /// Number of items, and fjall's sequence number.
    fn start(&mut self) -> Option<(u32, u64)> {
        (self.byte()? == TAG_START).then_some(())?;
        let count = u32::from_le_bytes(self.array()?);
        Some((count, u64::from_le_bytes(self.array()?)))
    }

    fn item(&mut self) -> Option<Item<'a>> {
        match self.byte()? {
            TAG_ITEM => {
                let [value_type, compression] = self.array()?;
                // Values, tombstones, weak ones; never compressed.
                (value_type <= 2 && compression == 0).then_some(())?;
                let _keyspace: [u8; 8] = self.array()?;
                let key = u16::from_le_bytes(self.array()?).into();
                let value = u32::from_le_bytes(self.array()?);
                (value == u32::from_le_bytes(self.array()?)).then_some(())?;
                Some(Item {
                    key: self.take(key)?,
                    value: self.take(value as usize)?,
                })
            }
            TAG_CLEAR => {
                let _keyspace: [u8; 8] = self.array()?;
                Some(Item { key: &[], value: &[] })
            }
            _ => None,
        }
    }
}
