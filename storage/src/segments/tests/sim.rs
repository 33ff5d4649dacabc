//! A disk in memory that fails, fills up, and at a crash loses what was not synced: whole writes, or any of their
//! sectors. And a control store beside it that dies with it.

use super::sabotage::Sabotage;
use crate::control::{ControlBatch, ControlStore, DirectoryEntry, DirectoryKey, DirectoryKind, Outcome};
use crate::segments::disk::{Disk, DiskFile};
use crate::segments::format::{Kind, SegmentHead};
use crate::{Done, RealmId, StoreError};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

const SECTOR: usize = 512;

/// Reproducible randomness.
#[derive(Clone)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

#[derive(Clone)]
enum Change {
    Write(u64, Vec<u8>),
    Length(u64),
}

#[derive(Clone, Default)]
struct File {
    durable: Vec<u8>,
    current: Vec<u8>,
    unsynced: Vec<Change>,
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Write(at, new) => {
                let end = *at as usize + new.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[*at as usize..end].copy_from_slice(new);
            }
            Self::Length(length) => bytes.resize(*length as usize, 0),
        }
    }
}

#[derive(Clone)]
enum NameChange {
    Add(PathBuf, u64),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf),
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<PathBuf, u64>) {
        match self {
            Self::Add(path, file) => {
                names.insert(path.clone(), *file);
            }
            Self::Remove(path) => {
                names.remove(path);
            }
            Self::Rename(from, to) => {
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }
        }
    }
}

#[derive(Clone, Default)]
pub(super) struct State {
    files: HashMap<u64, File>,
    names: BTreeMap<PathBuf, u64>,
    durable_names: BTreeMap<PathBuf, u64>,
    unsynced_names: Vec<NameChange>,
    next: u64,
    /// Changes until the crash.
    pub(super) left: Option<u64>,
    /// Syncs of files fail.
    pub(super) sync_fails: bool,
    /// The next write stops halfway.
    pub(super) write_fails: bool,
    /// Bytes that all files together may have.
    pub(super) capacity: Option<u64>,
    /// What realms hold in the control store.
    control: BTreeMap<(RealmId, Vec<u8>), Bytes>,
    random: u64,
    pub(super) sabotage: Option<Sabotage>,
    /// What the last change belonged to.
    pub(super) work: Work,
}

/// What is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Work {
    /// A segment is made, a start, nothing.
    #[default]
    Other,
    /// A commit is written, synced, or noted as such.
    Committing,
    /// A segment is cut to its length, or its index made.
    Sealing,
    /// Segments are rewritten, or those they replace removed.
    Rewriting,
    /// The list of segments is changed: one was sealed, or the switch of a compaction.
    Listing,
}

impl State {
    fn free(&self) -> Option<u64> {
        let used = self
            .names
            .values()
            .map(|number| self.files[number].current.len() as u64);
        Some(self.capacity?.saturating_sub(used.sum()))
    }

    /// Whether a file may get as long as this.
    fn take(&self, number: u64, bytes: u64) -> io::Result<()> {
        let more = bytes.saturating_sub(self.files[&number].current.len() as u64);
        match self.free().is_some_and(|free| free < more) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }
}

/// The disk, and the control store.
#[derive(Clone, Default)]
pub(super) struct Sim(Arc<Mutex<State>>);

impl Sim {
    pub(super) fn new(seed: u64) -> Self {
        let sim = Self::default();
        sim.state().random = seed;
        sim
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no test panics while it holds this")
    }

    pub(super) fn is_dead(&self) -> bool {
        self.state().left == Some(0)
    }

    /// What a machine finds that starts after power was lost.
    pub(super) fn crashed(&self, random: &mut Random) -> Self {
        let state = self.state();
        let mut new = State {
            control: state.control.clone(),
            next: state.next,
            names: state.durable_names.clone(),
            random: random.below(u64::MAX / 4),
            sabotage: state.sabotage,
            ..State::default()
        };
        // Names come in order, but not all of them.
        let kept = random.below(state.unsynced_names.len() as u64 + 1) as usize;
        state.unsynced_names[..kept]
            .iter()
            .for_each(|change| change.apply(&mut new.names));
        new.durable_names = new.names.clone();
        for number in new.names.values() {
            let file = &state.files[number];
            let mut bytes = file.durable.clone();
            for change in &file.unsynced {
                match change {
                    _ if random.below(3) == 0 => {}
                    Change::Write(at, written) if random.below(2) == 0 => {
                        // Any sectors, or the first ones.
                        let sectors = written.len().div_ceil(SECTOR).max(1) as u64;
                        let first = random.below(2 * sectors);
                        for (n, sector) in written.chunks(SECTOR).enumerate() {
                            let is_there = match first < sectors {
                                true => n as u64 <= first,
                                false => random.below(2) == 0,
                            };
                            if is_there {
                                Change::Write(at + (n * SECTOR) as u64, sector.to_vec()).apply(&mut bytes);
                            }
                        }
                    }
                    change => change.apply(&mut bytes),
                }
            }
            let file = File {
                durable: bytes.clone(),
                current: bytes,
                unsynced: Vec::new(),
            };
            new.files.insert(*number, file);
        }
        Self(Arc::new(Mutex::new(new)))
    }

    /// The same disk, as a killed process leaves it.
    pub(super) fn killed(&self) -> Self {
        let mut state = self.state().clone();
        (state.left, state.sync_fails, state.write_fails, state.capacity) = (None, false, false, None);
        state.work = Work::Other;
        Self(Arc::new(Mutex::new(state)))
    }

    pub(super) fn read(&self, path: &Path) -> Vec<u8> {
        let state = self.state();
        state.files[&state.names[path]].current.clone()
    }

    /// Puts something else into a file, durably.
    pub(super) fn put(&self, path: &Path, bytes: &[u8]) {
        let mut state = self.state();
        let number = state.names[path];
        let file = File {
            durable: bytes.to_vec(),
            current: bytes.to_vec(),
            unsynced: Vec::new(),
        };
        state.files.insert(number, file);
    }

    pub(super) fn remove_now(&self, path: &Path) {
        let mut state = self.state();
        state.names.remove(path);
        state.durable_names.remove(path);
    }

    pub(super) fn paths(&self, extension: &str) -> Vec<PathBuf> {
        let state = self.state();
        let paths = state.names.keys();
        paths
            .filter(|path| path.extension().is_some_and(|e| e == extension))
            .cloned()
            .collect()
    }

    /// Everything, to see that nothing was changed.
    pub(super) fn contents(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let state = self.state();
        let names = state.names.iter();
        names
            .map(|(path, number)| (path.clone(), state.files[number].current.clone()))
            .collect()
    }

    /// A change is about to happen.
    fn change(&self, work: Work) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        match &mut state.left {
            Some(0) => return Err(io::Error::other("crashed")),
            Some(left) => *left -= 1,
            None => {}
        }
        state.work = work;
        Ok(state)
    }

    /// What a change of this file belongs to, if it is not known to be `otherwise`.
    fn work(&self, path: &Path, otherwise: Work) -> Work {
        let state = self.state();
        let is = |extension: &str| path.extension().is_some_and(|e| e == extension);
        let segment = state.names.get(&path.with_extension("").with_extension("seg"));
        let head = segment.and_then(|number| SegmentHead::decode(&state.files[number].current));
        match head {
            Some(head) if head.kind == Kind::Rewritten => Work::Rewriting,
            Some(_) if is("new") || is("idx") => Work::Sealing,
            _ => otherwise,
        }
    }
}

struct Handle {
    sim: Sim,
    number: u64,
    path: PathBuf,
}

impl Disk for Sim {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.change(self.work(path, Work::Other))?;
        state.next += 1;
        let number = state.next;
        state.files.insert(number, File::default());
        let change = NameChange::Add(path.into(), number);
        change.apply(&mut state.names);
        state.unsynced_names.push(change);
        drop(state);
        let sim = self.clone();
        let path = path.into();
        Ok(Arc::new(Handle { sim, number, path }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let sabotage = self.state().sabotage;
        let number = self.state().names.get(path).copied();
        if let Some(sabotage) = sabotage.filter(|_| number.is_some()) {
            sabotage.before_open(self, path);
        }
        let number = number.ok_or(io::ErrorKind::NotFound)?;
        let sim = self.clone();
        let path = path.into();
        Ok(Arc::new(Handle { sim, number, path }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let sabotage = self.state().sabotage;
        if let Some(sabotage) = sabotage {
            sabotage.before_rename(self, from, to);
        }
        let mut state = self.change(self.work(to, Work::Other))?;
        let change = NameChange::Rename(from.into(), to.into());
        change.apply(&mut state.names);
        state.unsynced_names.push(change);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.change(Work::Rewriting)?;
        if !state.names.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let change = NameChange::Remove(path.into());
        change.apply(&mut state.names);
        state.unsynced_names.push(change);
        Ok(())
    }

    fn list(&self, _folder: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(self.state().names.keys().cloned().collect())
    }

    fn sync_folder(&self, _folder: &Path) -> io::Result<()> {
        // For what was done in the folder.
        let work = self.state().work;
        let mut state = self.change(work)?;
        state.unsynced_names.clear();
        state.durable_names = state.names.clone();
        Ok(())
    }

    fn free_bytes(&self, _folder: &Path) -> Option<u64> {
        self.state().free()
    }
}

impl DiskFile for Handle {
    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        let state = self.sim.state();
        let file = &state.files[&self.number];
        let found = file.current.get(at as usize..at as usize + bytes.len());
        bytes.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let mut state = self.sim.change(self.sim.work(&self.path, Work::Committing))?;
        let fails = std::mem::take(&mut state.write_fails);
        let written = if fails { &bytes[..bytes.len() / 2] } else { bytes };
        state.take(self.number, at + written.len() as u64)?;
        let change = Change::Write(at, written.to_vec());
        if let Some(file) = state.files.get_mut(&self.number) {
            change.apply(&mut file.current);
            file.unsynced.push(change);
        }
        match fails {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.sim.change(self.sim.work(&self.path, Work::Committing))?;
        if state.sync_fails {
            return Err(io::Error::other("the disk failed"));
        }
        if let Some(file) = state.files.get_mut(&self.number) {
            file.unsynced.clear();
            file.durable = file.current.clone();
        }
        Ok(())
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.sim.state().files[&self.number].current.len() as u64)
    }

    fn set_length(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.sim.change(self.sim.work(&self.path, Work::Sealing))?;
        if let Some(file) = state.files.get_mut(&self.number) {
            let change = Change::Length(bytes);
            change.apply(&mut file.current);
            file.unsynced.push(change);
        }
        Ok(())
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.sim.state().take(self.number, bytes)?;
        match bytes > self.length()? {
            true => self.set_length(bytes),
            false => Ok(()),
        }
    }
}

impl ControlStore for Sim {
    fn load(&self, realm: RealmId, done: Done<Vec<(Vec<u8>, Bytes)>>) {
        let records = {
            let state = self.state();
            let records = state.control.iter().filter(|((of, _), _)| *of == realm);
            records
                .map(|((_, key), value)| (key.clone(), value.clone()))
                .collect()
        };
        done(Ok(records));
    }

    fn get(&self, realm: RealmId, key: Vec<u8>, done: Done<Option<Bytes>>) {
        let value = self.state().control.get(&(realm, key)).cloned();
        done(Ok(value));
    }

    fn commit(&self, realm: RealmId, batch: ControlBatch, done: Done<Outcome>) {
        let died = self.change(Work::Listing).is_err();
        let mut state = self.state();
        let is_kept = state.sabotage.is_none_or(|sabotage| sabotage.keeps(&batch));
        let mut random = Random(state.random);
        // It may have come through although nobody heard of it.
        let happens = !died || random.below(2) == 0;
        state.random = random.0;
        if happens && is_kept && !(died && state.left != Some(0)) {
            for write in batch.writes {
                let key = (realm.clone(), write.key);
                match write.value {
                    Some(value) => state.control.insert(key, value),
                    None => state.control.remove(&key),
                };
            }
        }
        drop(state);
        done(match died {
            true => Err(StoreError::Unknown),
            false => Ok(Outcome::Applied),
        });
    }

    fn claim(&self, _realm: RealmId, _keys: Vec<DirectoryKey>, done: Done<Vec<RealmId>>) {
        done(Err(StoreError::NotCommitted));
    }

    fn directory(&self, _kind: DirectoryKind) -> Result<Vec<DirectoryEntry>, StoreError> {
        Ok(Vec::new())
    }
}
