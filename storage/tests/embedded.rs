//! What the embedded store does when processes die, disks fill up and folders are not what they should be.

use bytes::Bytes;
use drover_storage::Done;
use drover_storage::contract::{realm, record, stream, wait};
use drover_storage::control::{ControlBatch, ControlStore, Outcome, Write};
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
/// Ends when a request fails, printing how.
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
        if let Err(error) = result {
            let (healthy, failed) = (store.healthy(), store.has_failed());
            writeln!(out, "failed {error:?} {healthy} {failed}").expect("parent reads");
            let (_, next) = answers.recv().expect("answered");
            writeln!(out, "then {next:?}").expect("parent reads");
            return;
        }
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

fn command(folder: &Path, shell: Option<&str>) -> Child {
    let program = std::env::current_exe().expect("this test");
    let mut command = match shell {
        None => Command::new(program),
        Some(limits) => {
            let mut command = Command::new("sh");
            command
                .arg("-c")
                .arg(format!("{limits}; exec \"$0\" \"$@\""))
                .arg(program);
            command
        }
    };
    command
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
        let mut child = command(folder.path(), None);
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
fn a_write_that_failed_did_not_happen_and_nothing_acknowledged_is_lost() {
    let folder = tempfile::tempdir().expect("temporary folder");
    // Opened twice: the second time cuts the journal from its preallocated 64 MiB to what is used.
    drop(Embedded::open(folder.path()).expect("opens"));
    drop(Embedded::open(folder.path()).expect("opens"));
    // No file may grow beyond 2 MiB (4096 blocks of 512 B); without the trap that would be a signal.
    let mut child = command(folder.path(), Some("trap '' XFSZ; ulimit -f 4096"));
    let mut acknowledged = 0;
    let mut failure = Vec::new();
    for line in BufReader::new(child.stdout.take().expect("piped"))
        .lines()
        .map(|l| l.expect("text"))
    {
        if let Some(n) = line.strip_prefix("ack ") {
            acknowledged = acknowledged.max(n.parse::<u64>().expect("a number") + 1);
        } else if line.starts_with("failed ") || line.starts_with("then ") {
            failure.push(line);
        }
    }
    child.wait().expect("ended");
    assert!(acknowledged > 50);
    // Not healthy, and not failed for good.
    let expected = ["failed NotCommitted false false", "then Err(NotCommitted)"];
    assert_eq!(failure, expected);
    let store = Embedded::open(folder.path()).expect("opens");
    assert_eq!(acknowledged_before(&store), acknowledged);
    let batch = AppendBatch::default();
    assert_eq!(wait(|done| store.append(batch, done)), Ok(()));
}

#[test]
fn a_second_process_is_refused() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let mut child = command(folder.path(), None);
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

    fs::write(&path, format.replace("version 1", "version 7\nsomething else")).expect("writable");
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
    let path = folder.path().join("SYNCED");
    fs::write(&path, [7; 16]).expect("writable");
    assert_eq!(unusable(folder.path()).0, "SYNCED");
    fs::remove_file(&path).expect("removable");
    assert_eq!(unusable(folder.path()).0, "SYNCED");
    fs::write(&path, "").expect("writable");
    drop(Embedded::open(folder.path()).expect("opens"));
}

#[test]
fn the_database_of_another_store_is_refused() {
    let [one, two] = [(); 2].map(|()| tempfile::tempdir().expect("temporary folder"));
    for folder in [&one, &two] {
        drop(Embedded::open(folder.path()).expect("opens"));
    }
    fs::rename(one.path().join("db"), one.path().join("moved")).expect("renames");
    assert_eq!(unusable(one.path()).0, "db");
    fs::rename(two.path().join("db"), one.path().join("db")).expect("renames");
    let (_, reason) = unusable(one.path());
    assert!(reason.contains("another store"), "{reason}");
}
