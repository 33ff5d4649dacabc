//! Damage, refusals and failures, as far as they need to look inside.

use super::*;
use crate::contract::{realm, record, stream, wait};
use crate::control::Write;
use crate::log::{Delete, IndexEntry, StreamKind};
use std::collections::BTreeMap;
use std::fs;

const GROUPS: u8 = 3;
const RECORDS: u64 = 40;

fn append(store: &Embedded, group: u8, seq: u64, length: usize) -> Result<(), StoreError> {
    let appends = vec![record(stream(StreamKind::Envelopes, group), seq, length)];
    wait(|done| {
        store.append(
            AppendBatch {
                appends,
                usage: vec![(realm("ws:a"), seq)],
                ..AppendBatch::default()
            },
            done,
        )
    })
}

fn put(store: &Embedded, key: &str) -> Result<Outcome, StoreError> {
    let writes = vec![Write {
        key: key.into(),
        value: Some(Bytes::from_static(b"value")),
    }];
    let batch = ControlBatch {
        checks: vec![],
        writes,
        directory: vec![],
    };
    wait(|done| store.commit(realm("ws:a"), batch, done))
}

fn fill(store: &Embedded) {
    for seq in 0..RECORDS {
        for group in 0..GROUPS {
            // Some in blob files.
            append(store, group, seq, if seq % 10 == 0 { 9_000 } else { 300 }).expect("appends");
        }
        put(store, &seq.to_string()).expect("commits");
    }
}

/// Everything in the store, or what reading it met.
fn everything(store: &Embedded) -> Result<String, StoreError> {
    let mut text = String::new();
    for group in 0..GROUPS {
        let stream = stream(StreamKind::Envelopes, group);
        let index = wait(|done| store.index(stream, done))?;
        let records = wait(|done| store.read(stream, 0, usize::MAX, usize::MAX, done))?;
        text += &format!("{index:?} {records:?}");
    }
    let usage = wait(|done| store.usage(realm("ws:a"), done))?;
    let control = wait(|done| store.load(realm("ws:a"), done))?;
    let one = wait(|done| store.get(realm("ws:a"), b"17".to_vec(), done))?;
    Ok(text
        + &format!(
            "{usage} {control:?} {one:?} {:?}",
            store.directory(DirectoryKind::Token)?
        ))
}

fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("readable") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            all.extend(files(&path));
        } else {
            let bytes = fs::read(&path).expect("readable");
            all.insert(path, bytes);
        }
    }
    all
}

fn put_back(folder: &Path, all: &BTreeMap<PathBuf, Vec<u8>>) {
    for path in files(folder).into_keys().filter(|path| !all.contains_key(path)) {
        fs::remove_file(path).expect("removable");
    }
    for (path, bytes) in all {
        fs::create_dir_all(path.parent().expect("in a folder")).expect("writable");
        if fs::read(path).ok().as_ref() != Some(bytes) {
            fs::write(path, bytes).expect("writable");
        }
    }
}

fn refused(folder: &Path) -> Option<(PathBuf, String)> {
    match Embedded::open(folder) {
        Ok(_) => None,
        Err(OpenError::Unusable { file, reason }) => Some((file, reason)),
        Err(other) => panic!("{other}"),
    }
}

/// A closed store with everything in its one journal; the journal and the length of what is used of it.
fn in_journal() -> (tempfile::TempDir, PathBuf, usize) {
    let folder = tempfile::tempdir().expect("temporary folder");
    fill(&Embedded::open(folder.path()).expect("opens"));
    // Opening cuts off what was preallocated: a test then copies kilobytes instead of 64 MiB.
    drop(Embedded::open(folder.path()).expect("opens"));
    let journal = folder.path().join("db/0.jnl");
    let length = fs::metadata(&journal).expect("there").len() as usize;
    assert!(length < 1 << 20);
    (folder, journal, length)
}

#[test]
fn a_flipped_bit_anywhere_in_the_journal_is_refused_and_nothing_is_changed() {
    let (folder, journal, length) = in_journal();
    let before = files(folder.path());
    // Head and first item byte by byte, then samples.
    for at in (0..200)
        .chain((200..length).step_by(1_499))
        .chain(length - 40..length)
    {
        let mut bytes = before[&journal].clone();
        bytes[at] ^= 1 << (at % 8);
        fs::write(&journal, &bytes).expect("writable");
        let damaged = files(folder.path());
        match refused(folder.path()) {
            Some((file, _)) => assert_eq!(file, journal),
            None => panic!("byte {at} of {length} went unnoticed"),
        }
        assert!(
            files(folder.path()) == damaged,
            "byte {at}: something was changed"
        );
        put_back(folder.path(), &before);
    }
    assert_eq!(refused(folder.path()), None);
}

#[test]
fn a_journal_that_is_cut_short_or_gone_is_refused() {
    let (folder, journal, length) = in_journal();
    let before = files(folder.path());
    for cut in [0, 1, 100, length / 2, length - 1] {
        fs::write(&journal, &before[&journal][..cut]).expect("writable");
        assert!(refused(folder.path()).is_some(), "cut to {cut}");
        put_back(folder.path(), &before);
    }
    fs::remove_file(&journal).expect("removable");
    let (_, reason) = refused(folder.path()).expect("refused");
    assert!(reason.contains("missing"), "{reason}");
    put_back(folder.path(), &before);
    // Zeros in the middle, as a lost page would be.
    let mut bytes = before[&journal].clone();
    bytes[length / 2..length / 2 + 512].fill(0);
    fs::write(&journal, &bytes).expect("writable");
    assert_eq!(refused(folder.path()).expect("refused").0, journal);
}

#[test]
fn a_torn_commit_that_was_never_acknowledged_is_cut_off() {
    let (folder, journal, length) = in_journal();
    let before = files(folder.path());
    let expected = everything(&Embedded::open(folder.path()).expect("opens"));
    {
        let store = Embedded::open(folder.path()).expect("opens");
        append(&store, 0, RECORDS, 5_000).expect("appends");
    }
    let whole = fs::read(&journal).expect("readable");
    // As if the crash had come before SYNCED was written; the commit arrived in part.
    for case in 0..4 {
        put_back(folder.path(), &before);
        let mut bytes = whole.clone();
        match case {
            0 => bytes.truncate(length + 2_000),
            1 => bytes.truncate(length + 5),
            // Its pages were not written in order: fjall alone would refuse this one.
            2 => bytes[length + 1_000..length + 2_000].fill(0),
            _ => {
                bytes[length..length + 1_000].fill(0);
                bytes.extend([0; 10_000]);
            }
        }
        fs::write(&journal, &bytes).expect("writable");
        let store = Embedded::open(folder.path()).expect("opens");
        assert_eq!(everything(&store), expected, "case {case}");
        append(&store, 0, RECORDS, 100).expect("appends");
    }
    // Whole but not acknowledged: kept.
    put_back(folder.path(), &before);
    fs::write(&journal, &whole).expect("writable");
    let store = Embedded::open(folder.path()).expect("opens");
    assert_ne!(everything(&store), expected);
}

#[test]
fn damage_in_tables_is_noticed_at_opening_or_reading() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let expected = {
        let store = Embedded::open(folder.path()).expect("opens");
        fill(&store);
        store.inner.shared.database.with(|tables| {
            let tables = tables.expect("open");
            tables.log.rotate_memtable_and_wait().expect("flushes");
            tables.control.rotate_memtable_and_wait().expect("flushes");
        });
        everything(&store).expect("reads")
    };
    drop(Embedded::open(folder.path()).expect("opens"));
    // The journal still holds all of it, but fjall skips what it finds flushed.
    let before = files(folder.path());
    let inside: Vec<_> = before
        .keys()
        .filter(|p| p.starts_with(folder.path().join("db/keyspaces")))
        .collect();
    let (mut at_open, mut at_read, mut harmless) = (0, 0, Vec::new());
    for path in &inside {
        let length = before[*path].len();
        for at in (0..length)
            .step_by((length / 25).max(1))
            .chain(length.saturating_sub(8)..length)
        {
            let mut bytes = before[*path].clone();
            bytes[at] ^= 1 << (at % 8);
            fs::write(path, &bytes).expect("writable");
            match Embedded::open(folder.path()) {
                Err(OpenError::Unusable { .. }) => at_open += 1,
                Err(other) => panic!("{path:?} byte {at}: {other}"),
                Ok(store) => match everything(&store) {
                    Ok(found) => {
                        assert!(
                            found == expected,
                            "{path:?} byte {at} of {length}: silently wrong"
                        );
                        harmless.push(format!("{} {at}/{length}", path.display()));
                    }
                    Err(error) => {
                        assert_eq!(error, StoreError::Damaged, "{path:?} byte {at}");
                        at_read += 1;
                    }
                },
            }
            put_back(folder.path(), &before);
        }
    }
    println!("noticed at open {at_open}, at read {at_read}; harmless {harmless:#?}");
    for path in inside {
        fs::remove_file(path).expect("removable");
        match Embedded::open(folder.path()) {
            Err(OpenError::Unusable { .. }) => {}
            Err(other) => panic!("{path:?} removed: {other}"),
            Ok(store) => match everything(&store) {
                Ok(found) => assert!(found == expected, "{path:?} removed: silently wrong"),
                Err(error) => assert_eq!(error, StoreError::Damaged),
            },
        }
        put_back(folder.path(), &before);
    }
}

#[test]
fn a_disk_that_is_nearly_full_takes_nothing_and_says_so() {
    let folder = tempfile::tempdir().expect("temporary folder");
    {
        let store = Embedded::open_with(folder.path(), u64::MAX).expect("opens");
        assert!(!store.healthy(), "it need not be refused a write to know");
        assert_eq!(append(&store, 0, 1, 10), Err(StoreError::NotCommitted));
        assert_eq!(put(&store, "x"), Err(StoreError::NotCommitted));
        assert!(!store.healthy());
        let read = wait(|done| store.read(stream(StreamKind::Envelopes, 0), 0, 1, 1, done));
        assert_eq!(read, Ok(vec![]), "reading goes on");
    }
    let store = Embedded::open(folder.path()).expect("opens");
    append(&store, 0, 1, 10).expect("appends");
    assert!(store.healthy());
}

#[test]
fn a_full_queue_refuses() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let store = Embedded::open(folder.path()).expect("opens");
    // The committer is held up in an answer, so nothing leaves the queue.
    let (block, blocked) = std::sync::mpsc::channel::<()>();
    let (begin, begun) = std::sync::mpsc::channel();
    store.append(
        AppendBatch::default(),
        Box::new(move |_| {
            begin.send(()).expect("heard");
            blocked.recv().expect("let go");
        }),
    );
    begun.recv().expect("begins");
    let (sender, answers) = std::sync::mpsc::channel();
    for _ in 0..committer::REQUESTS_MAX + 10 {
        let sender = sender.clone();
        store.append(
            AppendBatch::default(),
            Box::new(move |r| sender.send(r).expect("heard")),
        );
    }
    block.send(()).expect("waits");
    drop(store);
    drop(sender);
    let refused = answers
        .iter()
        .filter(|r| *r == Err(StoreError::NotCommitted))
        .count();
    assert_eq!(refused, 10);
}

#[test]
fn an_answer_that_panics_or_closes_the_store_does_no_harm() {
    let folder = tempfile::tempdir().expect("temporary folder");
    {
        let store = Embedded::open(folder.path()).expect("opens");
        store.append(AppendBatch::default(), Box::new(|_| panic!("on purpose")));
        append(&store, 0, 1, 10).expect("appends");
        let (done, closed) = std::sync::mpsc::channel();
        let last = store.clone();
        drop(store);
        let handle = last.clone();
        last.usage(
            realm("ws:a"),
            Box::new(move |_| {
                drop(handle);
                done.send(()).expect("heard");
            }),
        );
        drop(last);
        closed.recv().expect("closes");
    }
    // The reader may still be on its way out.
    for _ in 0..500 {
        match Embedded::open(folder.path()) {
            Ok(_) => return,
            Err(OpenError::Locked(_)) => thread::sleep(Duration::from_millis(10)),
            Err(other) => panic!("{other}"),
        }
    }
    panic!("stays locked");
}

#[test]
fn a_deletion_in_parts_cut_off_anywhere_leaves_records_and_usage_in_step() {
    let mine = stream(StreamKind::Envelopes, 0);
    let index = |store: &Embedded| wait(|done| store.index(mine, done)).expect("reads");
    let held = |entries: &[IndexEntry]| entries.iter().map(|e| u64::from(e.budget_bytes)).sum::<u64>();
    let change = |store: &Embedded, appends: Vec<_>, entries: Vec<_>, usage| {
        let deletes = vec![Delete {
            stream: mine,
            entries,
        }];
        let batch = AppendBatch {
            appends,
            deletes,
            usage: vec![(realm("ws:a"), usage)],
        };
        wait(|done| store.append(batch, done)).expect("commits");
    };
    let (folder, journal, length) = in_journal();
    {
        let store = Embedded::open(folder.path()).expect("opens");
        change(&store, Vec::new(), Vec::new(), held(&index(&store)));
    }
    drop(Embedded::open(folder.path()).expect("opens"));
    let before = files(folder.path());
    let mut ends = Vec::new();
    {
        let store = Embedded::open(folder.path()).expect("opens");
        for part in 0..4 {
            let gone = index(&store)[..10].to_vec();
            let more = record(mine, RECORDS + part, 300);
            let usage = held(&index(&store)) - held(&gone) + u64::from(more.budget_bytes);
            change(&store, vec![more], gone, usage);
            ends.push(index(&store));
        }
    }
    let whole = fs::read(&journal).expect("readable");
    let begin = before[&journal].len();
    assert!(begin >= length);
    let mut seen = Vec::new();
    for cut in (begin..=whole.len()).step_by(97).chain([whole.len()]) {
        put_back(folder.path(), &before);
        fs::write(&journal, &whole[..cut]).expect("writable");
        let store = Embedded::open(folder.path()).expect("opens");
        let found = index(&store);
        let usage = wait(|done| store.usage(realm("ws:a"), done));
        assert_eq!(usage, Ok(held(&found)), "cut at {cut}");
        seen.push(found);
    }
    seen.dedup();
    assert_eq!(seen[1..], ends, "each part whole, one after the other");
}

/// Numbers that fjall believes before it looks at a checksum: each declares gigabytes, and the store refuses instead of
/// asking for them, naming the file. Found by the fuzzer.
#[test]
fn numbers_of_entries_are_not_believed() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let store = Embedded::open(folder.path()).expect("opens");
    fill(&store);
    store.inner.shared.database.with(|tables| {
        let tables = tables.expect("open");
        tables.log.rotate_memtable_and_wait().expect("flushes");
        tables.control.rotate_memtable_and_wait().expect("flushes");
    });
    drop(store);
    let mut damaged = 0;
    for keyspace in 0..tables::KEYSPACES {
        let keyspace = folder
            .path()
            .join(format::DB)
            .join("keyspaces")
            .join(keyspace.to_string());
        let current = fs::read(keyspace.join("current")).expect("there");
        let number = current[..8].try_into().expect("its number");
        let manifest = keyspace.join(format!("v{}", u64::from_le_bytes(number)));
        for kind in ["", "tables", "blobs"] {
            let Ok(entries) = fs::read_dir(keyspace.join(kind)) else {
                continue;
            };
            for path in entries.map(|entry| entry.expect("an entry").path()) {
                // Older manifests may be left; they are deleted.
                if kind.is_empty() && path != manifest {
                    continue;
                }
                let Ok(whole) = fs::read(&path) else { continue };
                let Some(contents) = whole.windows(4).rposition(|bytes| bytes == b"TOC!") else {
                    continue;
                };
                // A table of contents declares 2^31 sections; a manifest's sections begin with such numbers too.
                let last = if kind.is_empty() { contents } else { 0 };
                for at in std::iter::once(contents + 7).chain(0..last) {
                    let mut bytes = whole.clone();
                    bytes[at] ^= 0x80;
                    fs::write(&path, &bytes).expect("writes");
                    let Err(OpenError::Unusable { file, .. }) = Embedded::open(folder.path()).map(drop)
                    else {
                        panic!("{} must be refused", path.display())
                    };
                    assert_eq!(file, path);
                    damaged += 1;
                }
                fs::write(&path, &whole).expect("writes");
            }
        }
    }
    assert!(damaged > 3 * tables::KEYSPACES, "{damaged}");
    let store = Embedded::open(folder.path()).expect("opens once it is whole again");
    everything(&store).expect("reads");
}
