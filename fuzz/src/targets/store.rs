//! Recovery: a store over files that are cut, flipped, swapped or gone. It opens or it refuses; it never panics, never
//! serves anything but what was written, never opens with something acknowledged missing, and when it refuses
//! has changed nothing but the end of a journal that was never acknowledged.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use bytes::Bytes;
use drover_storage::contract::{realm, record, stream, wait};
use drover_storage::control::{ControlBatch, ControlStore, DirectoryKey, DirectoryKind, Write};
use drover_storage::embedded::{Embedded, OpenError};
use drover_storage::log::{Append, AppendBatch, LogStore, StreamKind};

use crate::allocation;
use crate::random::{Rng, Script};

/// Heap on the thread that opens: what the files hold a few times over, and what the database takes in any case.
fn heap_bytes(folder_bytes: usize) -> usize {
    (16 << 20) + 8 * folder_bytes
}

/// Files by their path in the folder.
type Files = BTreeMap<PathBuf, Vec<u8>>;

const GROUPS: u8 = 3;
const RECORDS: u64 = 30;
/// No file grows beyond twice this.
const FILE_BYTES_MAX: usize = 1 << 20;

fn folder() -> tempfile::TempDir {
    // Memory if the system offers some: nothing here has to survive a power cut.
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("a folder")
}

/// What was written, as appends: small records and large ones.
fn appends(seq: u64) -> Vec<Append> {
    let length = if seq.is_multiple_of(7) { 5000 } else { 60 };
    (0..GROUPS)
        .map(|group| record(stream(StreamKind::Envelopes, group), seq, length))
        .collect()
}

fn control(n: u64) -> (Vec<u8>, Bytes) {
    (n.to_be_bytes().to_vec(), Bytes::from(vec![n as u8; 40]))
}

fn token(n: u64) -> DirectoryKey {
    DirectoryKey {
        kind: DirectoryKind::Token,
        name: n.to_be_bytes().to_vec(),
    }
}

/// The files of a store that holds all of that, closed.
fn template() -> &'static Files {
    static TEMPLATE: OnceLock<Files> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let folder = folder();
        let store = Embedded::open(folder.path()).expect("a new store opens");
        for seq in 0..RECORDS {
            let batch = AppendBatch {
                appends: appends(seq),
                usage: vec![(realm("ws:a"), seq)],
                ..AppendBatch::default()
            };
            wait(|done| store.append(batch, done)).expect("appends");
            let (key, value) = control(seq);
            let batch = ControlBatch {
                checks: Vec::new(),
                writes: vec![Write {
                    key,
                    value: Some(value),
                }],
                directory: vec![(token(seq), Some(Bytes::new()))],
            };
            wait(|done| store.commit(realm("ws:a"), batch, done)).expect("commits");
        }
        drop(store);
        // Opened once more, so that journals are cut from what is preallocated to what is used.
        drop(Embedded::open(folder.path()).expect("opens"));
        read_folder(folder.path())
    })
}

fn read_folder(folder: &Path) -> Files {
    fn walk(root: &Path, at: &Path, files: &mut Files) {
        for entry in fs::read_dir(at).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                walk(root, &path, files);
            } else {
                let bytes = fs::read(&path).expect("a file");
                let name = path.strip_prefix(root).expect("below").to_owned();
                files.insert(name, bytes);
            }
        }
    }
    let mut files = Files::new();
    walk(folder, folder, &mut files);
    files
}

/// The script: which file, what is done to it, where.
pub fn run(input: &[u8]) {
    let mut files = template().clone();
    let mut script = Script::new(input);
    while !script.is_over() {
        damage(&mut script, &mut files);
    }
    // A folder with nothing in it becomes a new store.
    if files.keys().all(|name| name == Path::new("LOCK")) {
        return;
    }
    // Empty, it is how an operator asks for no such check.
    for part in ["control", "log"] {
        if let Some(synced) = files.get_mut(&Path::new(part).join("SYNCED"))
            && synced.is_empty()
        {
            synced.push(0);
        }
    }
    let folder = folder();
    for (name, bytes) in &files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("in the folder")).expect("a folder");
        fs::write(path, bytes).expect("a file");
    }
    let most = heap_bytes(files.values().map(Vec::len).sum());
    match allocation::within("opening", most, || Embedded::open(folder.path())) {
        Ok(store) => served(&store),
        Err(OpenError::Unusable { file, reason }) => {
            assert!(file.starts_with(folder.path()) && !reason.is_empty());
            let mut after = read_folder(folder.path());
            after.remove(Path::new("LOCK"));
            files.remove(Path::new("LOCK"));
            assert_eq!(after.keys().collect::<Vec<_>>(), files.keys().collect::<Vec<_>>());
            // A commit that nobody was answered is cut off before the rest is looked at.
            let is_cut = |name: &Path, bytes: &[u8]| name.extension().is_some_and(|e| e == "jnl") && bytes.starts_with(&after[name]);
            let same = |name: &Path, bytes: &[u8]| after[name] == bytes || is_cut(name, bytes);
            let changed: Vec<_> = files.iter().filter(|(name, bytes)| !same(name, bytes)).collect();
            assert!(
                changed.is_empty(),
                "{} was changed, {} -> {} bytes: {reason}",
                changed[0].0.display(),
                changed[0].1.len(),
                after[changed[0].0].len()
            );
        }
        Err(error) => panic!("{error}"),
    }
}

/// Everything is there as it was written, or its reading fails.
fn served(store: &Embedded) {
    for group in 0..GROUPS {
        let stream = stream(StreamKind::Envelopes, group);
        if let Ok(records) = wait(|done| store.read(stream, 0, usize::MAX, usize::MAX, done)) {
            let seqs: Vec<u64> = records.iter().map(|record| record.seq).collect();
            assert_eq!(seqs, (0..RECORDS).collect::<Vec<_>>(), "acknowledged and missing");
            for found in &records {
                assert_eq!(found.bytes, appends(found.seq)[usize::from(group)].bytes, "another record");
            }
        }
        if let Ok(index) = wait(|done| store.index(stream, done)) {
            assert_eq!(index.len() as u64, RECORDS);
            for entry in &index {
                let written = &appends(entry.seq)[usize::from(group)];
                assert_eq!((entry.id, entry.bytes as usize), (written.id, written.bytes.len()));
            }
        }
    }
    if let Ok(records) = wait(|done| store.load(realm("ws:a"), done)) {
        assert_eq!(records, (0..RECORDS).map(control).collect::<Vec<_>>());
    }
    if let Ok(entries) = store.directory(DirectoryKind::Token) {
        let names: Vec<_> = entries.iter().map(|entry| entry.key.clone()).collect();
        assert_eq!(names, (0..RECORDS).map(token).collect::<Vec<_>>());
        assert!(entries.iter().all(|entry| entry.realm == realm("ws:a")));
    }
    if let Ok(usage) = wait(|done| store.usage(realm("ws:a"), done)) {
        assert_eq!(usage, RECORDS - 1);
    }
}

fn damage(script: &mut Script<'_>, files: &mut Files) {
    let names: Vec<PathBuf> = files.keys().cloned().collect();
    if names.is_empty() {
        *script = Script::new(&[]);
        return;
    }
    let name = names[script.below(names.len())].clone();
    let what = script.below(8);
    // Places of a large file are reached by a share of its length, and then a step.
    let (share, step) = (usize::from(script.u16()), usize::from(script.u8()));
    let Some(bytes) = files.get_mut(&name) else { return };
    let at = (bytes.len() * share / 0x1_0000 + step).min(bytes.len());
    match what {
        0 => bytes.truncate(at),
        1 | 2 if at < bytes.len() => bytes[at] ^= 1 << script.below(8),
        3 => {
            let end = (at + usize::from(script.u16())).min(bytes.len());
            bytes[at..end].fill(0);
        }
        4 => bytes.extend_from_slice(script.take(20)),
        5 => drop(files.remove(&name)),
        6 => {
            let other = names[script.below(names.len())].clone();
            let copy = bytes.clone();
            files.insert(other, copy);
        }
        // Twice as long each time: what it does to the store shows in the first ones.
        7 if bytes.len() < FILE_BYTES_MAX => {
            let tail = bytes[at..].to_vec();
            bytes.extend_from_slice(&tail);
        }
        _ => bytes.push(script.u8()),
    }
}

/// One to three damages.
pub fn generate(rng: &mut Rng) -> Vec<u8> {
    let mut script = Vec::new();
    for _ in 0..rng.within(1..4) {
        script.extend(rng.bytes(7));
    }
    script
}
