//! What the embedded store does when processes die, disks fill up and folders are not what they should be.

use bytes::Bytes;
use drover_storage::Done;
use drover_storage::contract::{realm, record, stream, wait};
use drover_storage::control::{ControlBatch, ControlStore, DirectoryKey, DirectoryKind, Outcome, Write};
use drover_storage::embedded::{Embedded, OpenError};
use drover_storage::log::{AppendBatch, LogStore, StreamKind};
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

const FOLDER: &str = "DROVER_TEST_FOLDER";
const GROUPS: u64 = 4;

/// What a child runs: appends ascending numbers, several batches under way, and prints each as it is acknowledged.
#[test]
#[ignore = "run by the other tests in a process of its own"]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let store = Embedded::open(Path::new(&folder)).expect("opens");
    let from = acknowledged_before(&store);
    println!("open");
    let (sender, answers) = mpsc::channel();
    let submit = |n: u64| {
        let appends = (0..GROUPS)
            .map(|g| record(stream(StreamKind::Envelopes, g as u8), n, 2_000))
            .collect();
        let sender = sender.clone();
        // After the failure nobody listens any more.
        let done: Done<()> = Box::new(move |r| {
            let _ = sender.send((n, r));
        });
        store.append(
            AppendBatch {
                appends,
                usage: vec![(realm("ws:a"), n)],
                ..AppendBatch::default()
            },
            done,
        );
    };
    (from..from + 8).for_each(&submit);
    let mut out = std::io::stdout();
    for (n, result) in &answers {
        result.expect("appends");
        if n % 5 == 0 {
            let writes = vec![Write {
                key: n.to_be_bytes().to_vec(),
                value: Some(Bytes::new()),
            }];
            let batch = ControlBatch {
                checks: vec![],
                writes,
                directory: vec![],
            };
            let outcome = wait(|done| store.commit(realm("ws:a"), batch, done));
            if outcome.is_ok() {
                assert_eq!(outcome, Ok(Outcome::Applied));
                writeln!(out, "control {n}").expect("parent reads");
            }
        }
        writeln!(out, "ack {n}").expect("parent reads");
        submit(n + 8);
    }
}

/// The first number that is not in the store, having checked that every batch is there whole and none is missing.
fn acknowledged_before(store: &Embedded) -> u64 {
    let numbers = |group: u64| -> Vec<u64> {
        let stream = stream(StreamKind::Envelopes, group as u8);
        let records = wait(|done| store.read(stream, 0, usize::MAX, usize::MAX, done)).expect("reads");
        for found in &records {
            assert_eq!(found.bytes, record(stream, found.seq, 2_000).bytes);
        }
        records.iter().map(|r| r.seq).collect()
    };
    let first = numbers(0);
    assert_eq!(first, (0..first.len() as u64).collect::<Vec<_>>());
    for group in 1..GROUPS {
        assert_eq!(numbers(group), first, "half a batch");
    }
    let usage = wait(|done| store.usage(realm("ws:a"), done)).expect("reads");
    assert_eq!(usage, (first.len() as u64).saturating_sub(1));
    first.len() as u64
}

fn command(folder: &Path) -> Child {
    Command::new(std::env::current_exe().expect("this test"))
        .args(["child", "--exact", "--ignored", "--nocapture"])
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts")
}

#[test]
fn acknowledged_records_survive_kill_9() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let mut acknowledged = 0;
    for round in 0..10 {
        let mut child = command(folder.path());
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut controls = Vec::new();
        let mut seen = 0;
        for line in lines.map(|l| l.expect("text")) {
            if let Some(n) = line.strip_prefix("ack ") {
                acknowledged = acknowledged.max(n.parse::<u64>().expect("a number") + 1);
                seen += 1;
                // What is still in the pipe is read to its end.
                if seen == 10 + round * 37 {
                    child.kill().expect("kills");
                }
            } else if let Some(n) = line.strip_prefix("control ") {
                controls.push(n.parse::<u64>().expect("a number"));
            }
        }
        child.wait().expect("ended");
        assert!(seen > 0);
        let store = Embedded::open(folder.path()).expect("opens");
        assert!(acknowledged_before(&store) >= acknowledged);
        for n in controls {
            let key = n.to_be_bytes().to_vec();
            assert_eq!(
                wait(|done| store.get(realm("ws:a"), key, done)),
                Ok(Some(Bytes::new()))
            );
        }
    }
}

#[test]
fn a_second_process_is_refused() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let mut child = command(folder.path());
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert!(lines.any(|l| l.expect("text").ends_with("open")));
    assert!(matches!(Embedded::open(folder.path()), Err(OpenError::Locked(_))));
    child.kill().expect("kills");
    child.wait().expect("ended");
    let store = Embedded::open(folder.path()).expect("opens");
    // Nor a second time in one process.
    assert!(matches!(Embedded::open(folder.path()), Err(OpenError::Locked(_))));
    let other = store.clone();
    drop(store);
    assert!(matches!(Embedded::open(folder.path()), Err(OpenError::Locked(_))));
    drop(other);
    Embedded::open(folder.path()).expect("opens");
}

fn unusable(folder: &Path) -> (String, String) {
    match Embedded::open(folder) {
        Err(OpenError::Unusable { file, reason }) => (
            file.file_name().expect("a name").to_string_lossy().into_owned(),
            reason,
        ),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("opens"),
    }
}

#[test]
fn a_folder_that_is_no_store_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().expect("temporary folder");
    fs::write(folder.path().join("letter.txt"), "dear").expect("writable");
    let (_, reason) = unusable(folder.path());
    assert!(reason.contains("letter.txt"), "{reason}");
    let names: Vec<_> = fs::read_dir(folder.path()).expect("readable").collect();
    assert_eq!(names.len(), 1, "something was put into it");
    let file = folder.path().join("letter.txt");
    assert!(matches!(
        Embedded::open(&file),
        Err(OpenError::Io { .. } | OpenError::Unusable { .. })
    ));
}

#[test]
fn a_missing_folder_is_made_with_its_parents() {
    let folder = tempfile::tempdir().expect("temporary folder");
    Embedded::open(&folder.path().join("a/b")).expect("opens");
    Embedded::open(&folder.path().join("a/b")).expect("opens again");
}

#[test]
fn newer_and_damaged_formats_are_refused_with_advice() {
    let folder = tempfile::tempdir().expect("temporary folder");
    drop(Embedded::open(folder.path()).expect("opens"));
    let path = folder.path().join("FORMAT");
    let format = fs::read_to_string(&path).expect("readable");

    fs::write(&path, format.replace("version 2", "version 7\nsomething else")).expect("writable");
    let (file, reason) = unusable(folder.path());
    assert!(
        file == "FORMAT" && reason.contains("newer Drover") && reason.contains("format 7"),
        "{reason}"
    );

    for at in 0..format.len() {
        let mut bytes = format.clone().into_bytes();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).expect("writable");
        assert_eq!(unusable(folder.path()).0, "FORMAT", "byte {at}");
        assert_eq!(fs::read(&path).expect("readable"), bytes, "rewritten");
        fs::write(&path, &bytes[..at]).expect("writable");
        assert_eq!(unusable(folder.path()).0, "FORMAT", "cut at {at}");
    }
    // Without it, this is a folder of somebody else's.
    fs::remove_file(&path).expect("removable");
    unusable(folder.path());
    fs::write(&path, &format).expect("writable");
    Embedded::open(folder.path()).expect("opens");
}

#[test]
fn a_missing_or_damaged_synced_is_refused_and_an_empty_one_is_not() {
    let folder = tempfile::tempdir().expect("temporary folder");
    drop(Embedded::open(folder.path()).expect("opens"));
    for part in ["control", "log"] {
        let path = folder.path().join(part).join("SYNCED");
        let length = fs::metadata(&path).expect("there").len();
        for damaged in [16, length] {
            fs::write(&path, vec![7; damaged as usize]).expect("writable");
            assert_eq!(unusable(folder.path()).0, "SYNCED");
        }
        fs::remove_file(&path).expect("removable");
        assert_eq!(unusable(folder.path()).0, "SYNCED");
        fs::write(&path, "").expect("writable");
        drop(Embedded::open(folder.path()).expect("opens"));
    }
}

#[test]
fn the_database_of_another_store_is_refused() {
    let [one, two] = [(); 2].map(|()| tempfile::tempdir().expect("temporary folder"));
    for folder in [&one, &two] {
        drop(Embedded::open(folder.path()).expect("opens"));
    }
    let db = |folder: &Path| folder.join("control/db");
    fs::rename(db(one.path()), one.path().join("moved")).expect("renames");
    assert_eq!(unusable(one.path()).0, "db");
    fs::rename(db(two.path()), db(one.path())).expect("renames");
    let (_, reason) = unusable(one.path());
    assert!(reason.contains("another store"), "{reason}");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("writable");
    for entry in fs::read_dir(from).expect("readable") {
        let path = entry.expect("readable").path();
        let to = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy(&path, &to);
        } else {
            fs::copy(&path, &to).expect("copies");
        }
    }
}

/// What the program that wrote `tests/format-1` put into it: a store of the first format, made by the last version that
/// wrote it.
fn check_migrated(store: &Embedded) {
    for group in 0..4 {
        let mine = stream(StreamKind::Envelopes, group);
        let length = |seq: u64| {
            if (seq - 1) % 7 == 3 {
                9_000
            } else {
                199 + seq as usize
            }
        };
        let is_there = |seq: &u64| group != 2 || !seq.is_multiple_of(3) || *seq >= 15;
        let expected: Vec<_> = (1..=20)
            .filter(is_there)
            .map(|seq| record(mine, seq, length(seq)))
            .collect();
        let records = wait(|done| store.read(mine, 0, usize::MAX, usize::MAX, done)).expect("reads");
        let found: Vec<_> = records.into_iter().map(|r| (r.seq, r.bytes)).collect();
        assert_eq!(
            found,
            expected
                .iter()
                .map(|a| (a.seq, a.bytes.clone()))
                .collect::<Vec<_>>()
        );
        let index = wait(|done| store.index(mine, done)).expect("reads");
        let found: Vec<_> = index.iter().map(|e| (e.seq, e.id, e.budget_bytes)).collect();
        assert_eq!(
            found,
            expected
                .iter()
                .map(|a| (a.seq, a.id, a.budget_bytes))
                .collect::<Vec<_>>()
        );
    }
    let handshakes = wait(|done| store.index(stream(StreamKind::Handshakes, 1), done)).expect("reads");
    assert_eq!(handshakes.len(), 20);
    assert_eq!(wait(|done| store.usage(realm("ws:a"), done)), Ok(119));
    assert_eq!(wait(|done| store.usage(realm("ws:b"), done)), Ok(219));
    let records = wait(|done| store.load(realm("ws:a"), done)).expect("reads");
    let expected = (0..20_u64).map(|n| (n.to_be_bytes().to_vec(), Bytes::from(vec![n as u8; 30])));
    assert_eq!(records, expected.collect::<Vec<_>>());
    let entries = store.directory(DirectoryKind::Token).expect("lists");
    assert_eq!(entries.len(), 20);
    assert!(
        entries
            .iter()
            .all(|e| e.realm == realm("ws:a") && e.value == [1, 2, 3][..])
    );
}

#[test]
fn a_store_of_the_first_format_is_brought_to_the_second() {
    let folder = tempfile::tempdir().expect("temporary folder");
    copy(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/format-1"),
        folder.path(),
    );
    {
        let store = Embedded::open(folder.path()).expect("migrates");
        check_migrated(&store);
        let batch = AppendBatch {
            appends: vec![record(stream(StreamKind::Envelopes, 0), 21, 100)],
            usage: vec![(realm("ws:a"), 120)],
            ..AppendBatch::default()
        };
        wait(|done| store.append(batch, done)).expect("appends");
    }
    assert!(!folder.path().join("db").exists(), "the old database is gone");
    let store = Embedded::open(folder.path()).expect("opens");
    let index = wait(|done| store.index(stream(StreamKind::Envelopes, 0), done)).expect("reads");
    assert_eq!(index.last().map(|e| e.seq), Some(21));
    assert_eq!(wait(|done| store.usage(realm("ws:a"), done)), Ok(120));
}

#[test]
fn a_damaged_store_of_the_first_format_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().expect("temporary folder");
    copy(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/format-1"),
        folder.path(),
    );
    let journal = folder.path().join("db/0.jnl");
    let good = fs::read(&journal).expect("readable");
    let mut bytes = good.clone();
    bytes[good.len() / 2] ^= 1;
    fs::write(&journal, &bytes).expect("writable");
    assert_eq!(unusable(folder.path()).0, "0.jnl");
    assert_eq!(fs::read(&journal).expect("readable"), bytes);
    fs::write(&journal, &good).expect("writable");
    check_migrated(&Embedded::open(folder.path()).expect("migrates"));
}

#[test]
fn damage_is_found_by_verification_and_the_rest_is_saved() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let mine = stream(StreamKind::Envelopes, 0);
    {
        let store = Embedded::open(folder.path()).expect("opens");
        for seq in 1..=20 {
            let batch = AppendBatch {
                appends: vec![record(mine, seq, 500)],
                usage: vec![(realm("ws:a"), seq * 493)],
                ..AppendBatch::default()
            };
            wait(|done| store.append(batch, done)).expect("appends");
        }
        let group = DirectoryKey {
            kind: DirectoryKind::Group,
            name: mine.group.as_bytes().to_vec(),
        };
        wait(|done| store.claim(realm("ws:a"), vec![group], done)).expect("claims");
        assert!(matches!(
            Embedded::verify(folder.path()),
            Err(OpenError::Locked(_))
        ));
    }
    let findings = Embedded::verify(folder.path()).expect("verifies");
    assert_eq!((findings.records, findings.damage.len()), (20, 0));

    let segment = folder.path().join("log").join(format!("{:016x}.seg", 1));
    let mut bytes = fs::read(&segment).expect("readable");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&segment, &bytes).expect("writable");
    let findings = Embedded::verify(folder.path()).expect("verifies");
    assert_eq!(findings.damage.len(), 1);
    let damage = &findings.damage[0];
    assert!(damage.file == segment && damage.offset <= middle as u64 && damage.offset + 1000 > middle as u64);
    let (file, reason) = unusable(folder.path());
    assert!(
        file.ends_with(".seg") && reason.contains("drover repair"),
        "{reason}"
    );

    let new = tempfile::tempdir().expect("temporary folder");
    let saved = Embedded::repair(folder.path(), new.path()).expect("repairs");
    assert_eq!((saved.records, saved.damaged_commits), (19, 1));
    assert_eq!(saved.damage, findings.damage);
    assert_eq!(
        fs::read(&segment).expect("readable"),
        bytes,
        "the old store is left as it is"
    );
    let store = Embedded::open(new.path()).expect("opens");
    let records = wait(|done| store.read(mine, 0, usize::MAX, usize::MAX, done)).expect("reads");
    assert_eq!(records.len(), 19);
    assert_eq!(wait(|done| store.usage(realm("ws:a"), done)), Ok(19 * 493));
    assert_eq!(store.directory(DirectoryKind::Group).expect("lists").len(), 1);
}

/// Whatever is gone, a start refuses and verification says so; a repair tells it and gives no number twice (02 §6).
#[test]
fn what_is_missing_is_told_and_its_numbers_are_not_given_again() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let mine = stream(StreamKind::Envelopes, 0);
    let append = |store: &Embedded, seq| {
        let batch = AppendBatch {
            appends: vec![record(mine, seq, 500)],
            ..AppendBatch::default()
        };
        wait(|done| store.append(batch, done)).expect("appends");
    };
    {
        let store = Embedded::open(folder.path()).expect("opens");
        (1..=20).for_each(|seq| append(&store, seq));
        assert_eq!(store.first_seq(), 1);
    }
    let log = folder.path().join("log");
    let segment = log.join(format!("{:016x}.seg", 1));
    let (synced, stray) = (log.join("SYNCED"), log.join("zz.seg"));
    let good = fs::read(&segment).expect("readable");
    let damages: [(&Path, &dyn Fn()); 4] = [
        (&log, &|| fs::remove_file(&segment).expect("removes")),
        (&synced, &|| fs::write(&synced, [7; 1024]).expect("writes")),
        (&synced, &|| fs::write(&synced, [7; 10]).expect("writes")),
        (&stray, &|| fs::write(&stray, []).expect("writes")),
    ];
    let good_synced = fs::read(&synced).expect("readable");
    for (n, (file, damage)) in damages.iter().enumerate() {
        damage();
        let findings = Embedded::verify(folder.path()).expect("verifies");
        assert_eq!(findings.damage.len(), 1, "{findings:?}");
        assert_eq!(findings.damage[0].file, *file);
        unusable(folder.path());
        let new = tempfile::tempdir().expect("temporary folder");
        let saved = Embedded::repair(folder.path(), new.path()).expect("repairs");
        assert_eq!(saved.records, if n == 0 { 0 } else { 20 });
        assert_eq!(saved.damage, findings.damage);
        let first = {
            let store = Embedded::open(new.path()).expect("opens");
            let first = store.first_seq();
            assert!(first > 20 && first == saved.first_seq);
            append(&store, first);
            first
        };
        assert_eq!(Embedded::verify(new.path()).expect("verifies").damage, []);
        // So does a copy of it, and a repair of the repaired one begins higher still.
        let copy = tempfile::tempdir().expect("temporary folder");
        {
            let store = Embedded::open(new.path()).expect("opens");
            assert_eq!(store.first_seq(), first);
            let snapshot = store.snapshot().expect("open");
            snapshot.copy(copy.path()).expect("copies");
        }
        assert_eq!(Embedded::open(copy.path()).expect("opens").first_seq(), first);
        let again = tempfile::tempdir().expect("temporary folder");
        let saved = Embedded::repair(new.path(), again.path()).expect("repairs");
        assert!(saved.first_seq > first);
        fs::write(&segment, &good).expect("writes");
        fs::write(&synced, &good_synced).expect("writes");
        let _ = fs::remove_file(&stray);
    }
    assert_eq!(Embedded::verify(folder.path()).expect("verifies").damage, []);
    assert_eq!(Embedded::open(folder.path()).expect("opens").first_seq(), 1);
}
