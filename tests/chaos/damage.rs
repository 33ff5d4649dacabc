//! A damaged byte in every file of the store in turn. Each start either refuses (78, the file and what to do about it on
//! one line), or serves everything that was acknowledged, or finds the damage when it reads the record: then it says
//! `retry/backpressure` and readiness 503. Never another record, never a crash, never a changed file.

use crate::faults::Faults;
use crate::ledger::{Fate, Ledger, OPEN_BUDGETS};
use crate::relay::Relay;
use drover_client::MemoryStore;
use drover_client::wire::error::Code;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files(&path));
        } else {
            all.insert(path.clone(), fs::read(path).unwrap());
        }
    }
    all
}

/// What is different is written; what came is removed.
fn put_back(folder: &Path, all: &BTreeMap<PathBuf, Vec<u8>>) {
    for (path, bytes) in files(folder) {
        match all.get(&path) {
            None => fs::remove_file(path).unwrap(),
            Some(before) if *before != bytes => fs::write(path, before).unwrap(),
            Some(_) => {}
        }
    }
    for (path, bytes) in all.iter().filter(|(path, _)| !path.exists()) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_byte_in_any_file_is_refused_or_harmless() {
    let faults = Faults::new();
    let mut relay = faults.start(&OPEN_BUDGETS);
    let mut ledger = Ledger::open(&relay).await;
    for n in 0..60 {
        let bytes = if n % 10 == 0 { 900_000 } else { 2_000 };
        assert_eq!(ledger.send(&relay, bytes).await, Fate::Acknowledged);
    }
    // A segment with a torn end is not gone on with: the next start seals it.
    faults.begin("write ENOSPC half in .seg");
    while ledger.send(&relay, 20_000).await == Fate::Acknowledged {}
    relay.kill();
    faults.end();
    relay.restart();
    let store = relay.data.path().join("store");
    let is_sealed = || {
        files(&store)
            .keys()
            .any(|path| path.extension() == Some("idx".as_ref()))
    };
    crate::faults::until("a segment is sealed", is_sealed).await;
    relay.restart_cleanly();
    for _ in 0..5 {
        ledger.send_until_acknowledged(&relay).await;
    }
    relay.kill();
    let before = files(&store);
    let kinds = ["FORMAT", "SYNCED", ".jnl", ".seg", ".idx"];
    let is_there = |kind| before.keys().any(|path| path.to_str().unwrap().ends_with(kind));
    assert!(kinds.into_iter().all(is_there), "{:?}", before.keys());
    let (mut refused, mut harmless, mut found) = (0, 0, 0);
    for (path, bytes) in &before {
        let name = path.strip_prefix(&store).unwrap().display().to_string();
        let length = bytes.len();
        let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1);
        let mut places = vec![0, used / 3, used.saturating_sub(1)];
        places.retain(|&at| at < length);
        places.dedup();
        for at in places {
            put_back(&store, &before);
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x40;
            fs::write(path, &damaged).unwrap();
            let verified = relay.prepare(&["verify"]).output().unwrap();
            match relay.try_restart() {
                Err((code, said)) => {
                    refused += 1;
                    assert_eq!(code, Some(78), "{name} byte {at}: {said}");
                    assert_eq!(verified.status.code(), Some(78), "{name} byte {at}: {verified:?}");
                    assert!(
                        said.contains("store")
                            && (said.contains("estore the folder") || said.contains("newer")),
                        "{name} byte {at}: {said}"
                    );
                    assert_eq!(said.trim().lines().count(), 1, "{said}");
                    assert_eq!(
                        fs::read(path).unwrap(),
                        damaged,
                        "{name} byte {at}: a refused file was changed"
                    );
                }
                Ok(()) => match fetch(&relay, &ledger).await {
                    Ok(held) => {
                        ledger.check_held(&held);
                        harmless += 1;
                    }
                    Err(code) => {
                        assert_eq!(code, Code::Backpressure, "{name} byte {at}");
                        assert!(
                            relay.private("/readyz").starts_with("HTTP/1.1 503"),
                            "{name} byte {at}: unfit and ready"
                        );
                        found += 1;
                    }
                },
            }
            relay.kill();
        }
    }
    put_back(&store, &before);
    relay.restart();
    ledger.check(&relay).await;
    println!(
        "{} files: refused {refused}, found when read {found}, harmless {harmless}",
        before.len()
    );
    assert!(refused > 10 && found > 0);
}

/// The segment with the last acknowledged records is gone. A start refuses, `verify` says why, `repair` saves the rest,
/// and no number that an envelope had is given to another one (02 §6).
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_segment_is_told_and_no_number_is_given_twice() {
    let mut relay = Relay::start(&OPEN_BUDGETS);
    let mut ledger = Ledger::open(&relay).await;
    for _ in 0..50 {
        assert_eq!(ledger.send(&relay, 2_000).await, Fate::Acknowledged);
    }
    relay.kill();
    let store = relay.data.path().join("store");
    let segments = files(&store).into_keys();
    let last = segments
        .filter(|path| path.extension() == Some("seg".as_ref()))
        .max();
    fs::remove_file(last.unwrap()).unwrap();
    let verified = relay.prepare(&["verify"]).output().unwrap();
    let said = String::from_utf8_lossy(&verified.stdout);
    assert_eq!(verified.status.code(), Some(78), "{verified:?}");
    assert!(said.contains("commits are missing"), "{said}");
    let (code, said) = relay.try_restart().unwrap_err();
    assert_eq!(code, Some(78), "{said}");
    let repaired = tempfile::tempdir().unwrap();
    let repaired = repaired.path().join("store");
    let said = relay.command(&["repair", repaired.to_str().unwrap()]);
    assert!(said.contains("commits are missing"), "{said}");
    fs::remove_dir_all(&store).unwrap();
    copy(&repaired, &store);
    relay.restart();
    // The ledger has all numbers there were, and takes none twice.
    for _ in 0..60 {
        ledger.send_until_acknowledged(&relay).await;
    }
    assert_eq!(
        relay.prepare(&["verify"]).output().unwrap().status.code(),
        Some(69)
    );
    relay.kill();
    assert_eq!(
        relay.prepare(&["verify"]).output().unwrap().status.code(),
        Some(0)
    );
}

fn copy(from: &Path, to: &Path) {
    for (path, bytes) in files(from) {
        let new = to.join(path.strip_prefix(from).unwrap());
        fs::create_dir_all(new.parent().unwrap()).unwrap();
        fs::write(new, bytes).unwrap();
    }
}

/// The whole log, or the refusal.
async fn fetch(relay: &Relay, ledger: &Ledger) -> Result<MemoryStore, Code> {
    let held = MemoryStore::new();
    let fetched = async {
        let mut reader = ledger.connect(relay).await?;
        reader.reconcile(ledger.root, &held).await
    };
    match fetched.await {
        Ok(_) => Ok(held),
        Err(error) => Err(error.refusal().unwrap_or_else(|| panic!("cut off: {error}")).code),
    }
}
