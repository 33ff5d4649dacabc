//! Damage, refusals and failures, as far as they need to look inside.

use super::*;
use crate::contract::{Subject, a_snapshot_is_one_moment, realm, record, stream, wait};
use crate::control::Write;
use crate::log::{Delete, StreamKind};
use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

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
    put_bytes(store, key, 5)
}

fn put_bytes(store: &Embedded, key: &str, bytes: usize) -> Result<Outcome, StoreError> {
    let writes = vec![Write {
        key: key.into(),
        value: Some(record(stream(StreamKind::Envelopes, 9), 1, bytes).bytes),
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
            append(store, group, seq, if seq % 10 == 0 { 9_000 } else { 300 }).expect("appends");
        }
        put_bytes(store, &seq.to_string(), 700).expect("commits");
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

/// A closed store; the control store's one journal and the length of what is used of it.
fn in_journal() -> (tempfile::TempDir, PathBuf, usize) {
    let folder = tempfile::tempdir().expect("temporary folder");
    fill(&Embedded::open(folder.path()).expect("opens"));
    // Opening cuts off what was preallocated: a test then copies kilobytes instead of 64 MiB.
    drop(Embedded::open(folder.path()).expect("opens"));
    let journal = folder.path().join("control/db/0.jnl");
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
        put_bytes(&store, "more", 5_000).expect("commits");
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
        put(&store, "other").expect("commits");
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
        store.inner.control.with_tables(|tables| {
            let control = &tables.expect("open").control;
            control.rotate_memtable_and_wait().expect("flushes");
        });
        everything(&store).expect("reads")
    };
    drop(Embedded::open(folder.path()).expect("opens"));
    // The journal still holds all of it, but fjall skips what it finds flushed.
    let before = files(folder.path());
    let inside: Vec<_> = before
        .keys()
        .filter(|p| p.starts_with(folder.path().join("control/db/keyspaces")))
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
        let store = Embedded::open_with(folder.path(), u64::MAX, SEGMENT_BYTES).expect("opens");
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
    for _ in 0..crate::segments::REQUESTS_MAX + 10 {
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

/// docs/storage-format.md is true: a reader that was written from the page alone finds what was written.
#[test]
fn a_reader_of_the_page_finds_what_was_written() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let streams = [
        stream(StreamKind::Envelopes, 1),
        stream(StreamKind::Handshakes, 2),
    ];
    let expected = {
        let store = Embedded::open_with(folder.path(), 0, 20_000).expect("opens");
        for seq in 1..60 {
            let mut appends: Vec<_> = streams
                .iter()
                .map(|s| record(*s, seq, 13 * seq as usize))
                .collect();
            // An id that lies within its record, as an envelope's does.
            appends[0].bytes = [b"head", appends[0].id.as_ref(), &[seq as u8; 200]]
                .concat()
                .into();
            let index = wait(|done| store.index(streams[0], done)).expect("reads");
            let entries: Vec<_> = index
                .into_iter()
                .filter(|e| e.seq + 5 == seq && seq % 3 == 0)
                .collect();
            let deletes = match entries.is_empty() {
                true => vec![],
                false => vec![Delete {
                    stream: streams[0],
                    entries,
                }],
            };
            let batch = AppendBatch {
                appends,
                deletes,
                usage: vec![(realm("ws:ä"), seq)],
            };
            wait(|done| store.append(batch, done)).expect("appends");
        }
        let has_index = || {
            let mut names = fs::read_dir(folder.path().join(LOG)).expect("readable");
            names.any(|name| {
                name.expect("readable")
                    .path()
                    .extension()
                    .is_some_and(|e| e == "idx")
            })
        };
        while !has_index() {
            thread::yield_now();
        }
        let mut lines = Vec::new();
        for stream in streams {
            let index = wait(|done| store.index(stream, done)).expect("reads");
            let records = wait(|done| store.read(stream, 0, usize::MAX, usize::MAX, done)).expect("reads");
            for (entry, record) in index.iter().zip(records) {
                let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
                lines.push(format!(
                    "{} {} {} {} {} {} {:08x}",
                    stream.kind as u8,
                    hex(stream.group.as_bytes()),
                    entry.seq,
                    hex(entry.id.as_bytes()),
                    entry.budget_bytes,
                    record.bytes.len(),
                    crc32c::crc32c(&record.bytes)
                ));
            }
        }
        lines
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/storage/segments.py");
    let output = match std::process::Command::new("python3")
        .arg(script)
        .arg(folder.path().join("log"))
        .output()
    {
        Ok(output) => output,
        Err(error) => {
            println!(
                "NOT RUN: python3 is not here ({error}), so nothing was compared with docs/storage-format.md"
            );
            return;
        }
    };
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let found = String::from_utf8(output.stdout).expect("text");
    assert_eq!(found.lines().collect::<Vec<_>>(), expected);
}

/// The contract's rule, while segments are sealed and compacted all the time.
#[test]
fn a_snapshot_is_one_moment_of_many_segments() {
    struct Small(tempfile::TempDir);
    impl Subject for Small {
        type Store = Embedded;
        fn open(&self) -> Embedded {
            Embedded::open_with(self.0.path(), 0, 40_000).expect("opens")
        }
    }
    a_snapshot_is_one_moment(&Small(tempfile::tempdir().expect("temporary folder")));
}

/// Numbers that fjall believes before it looks at a checksum: each declares gigabytes, and the store refuses instead of
/// asking for them, naming the file. Found by the fuzzer.
#[test]
fn numbers_of_entries_are_not_believed() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let store = Embedded::open(folder.path()).expect("opens");
    fill(&store);
    store.inner.control.flush();
    drop(store);
    let mut damaged = 0;
    for keyspace in 0..tables::KEYSPACES {
        let keyspace = folder
            .path()
            .join(CONTROL)
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
