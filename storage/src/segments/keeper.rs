//! The thread that does what nobody waits for: it makes the next segment before it is needed, gives full ones their
//! index, and has mostly dead ones rewritten.

use super::committer::Open;
use super::compact;
use super::index::{self, Held, Summary};
use super::list::{Change, State};
use super::ranges::Ranges;
use super::view::{Hot, Sealed};
use super::{Core, Purpose};
use crate::StoreError;
use crate::handoff::{Handoff, Parked};
use crate::log::StreamId;
use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// As of `nice`: at ten, a busy thread of the usual priority gets nine times as much.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// What a disk says that takes no more.
const NO_ROOM: [ErrorKind; 3] = [
    ErrorKind::StorageFull,
    ErrorKind::QuotaExceeded,
    ErrorKind::FileTooLarge,
];
/// A spare has this much set aside at least, so that its making tells whether a commit would find room.
const PROBE_BYTES: u64 = 1 << 20;
/// Of the memory indexes are made in, what is kept.
const INDEX_BYTES_KEPT: usize = 32 << 20;
/// With more segments that wait for their index, no pauses are made.
const HOT_IN_PACE: usize = 2;
/// The longest pause. What took longer was waiting itself.
const REST_MAX: Duration = Duration::from_millis(5);

/// Something to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chore {
    /// A segment is full: it gets its index.
    Seal(u64),
    /// A writer will soon need another segment.
    Spare(usize),
    /// Records were deleted: some segments may not be worth their room any more.
    Tidy,
}

/// What the keeper is asked for.
pub(super) struct Keeper {
    pub(super) chores: Handoff<Chore, Parked>,
    spares: Mutex<HashMap<usize, Open>>,
    /// By writer: a spare is asked for.
    spare_wanted: Vec<AtomicBool>,
    tidy_wanted: AtomicBool,
    /// One that was tried since this was last set to false failed.
    pub(super) seal_failed: AtomicBool,
    /// Told of each sealing that was tried.
    sealed: (Mutex<()>, Condvar),
    /// What was deleted and not counted yet.
    deleted: Mutex<Vec<(StreamId, Ranges)>>,
    /// Lists of sealed segments, emptied, for the segments to come.
    held: Mutex<Vec<Held>>,
    /// In which indexes are made.
    index: Mutex<Vec<u8>>,
}

impl Keeper {
    pub(super) fn new(writers: usize) -> Self {
        Self {
            // Each writer asks for one spare and one sealing at a time or so; tidying is asked for once.
            chores: Handoff::new(64 + 16 * writers, [Parked::default()]),
            spares: Mutex::default(),
            spare_wanted: (0..writers).map(|_| AtomicBool::new(false)).collect(),
            tidy_wanted: AtomicBool::new(false),
            seal_failed: AtomicBool::new(false),
            sealed: Default::default(),
            deleted: Mutex::default(),
            held: Mutex::default(),
            index: Mutex::default(),
        }
    }

    /// Asks for something. What can't be taken now is asked for again sooner or later: by the next commit, or at the
    /// next start.
    pub(super) fn want(&self, chore: Chore) {
        let flag = match chore {
            Chore::Seal(_) => None,
            Chore::Spare(writer) => self.spare_wanted.get(writer),
            Chore::Tidy => Some(&self.tidy_wanted),
        };
        if flag.is_some_and(|flag| flag.load(Ordering::Relaxed) || flag.swap(true, Ordering::Relaxed)) {
            return;
        }
        if self.chores.push(chore).is_err()
            && let Some(flag) = flag
        {
            flag.store(false, Ordering::Relaxed);
        }
    }

    /// Waits a little, or until the next sealing was tried.
    pub(super) fn wait_for_sealing(&self) {
        let guard = self.sealed.0.lock().unwrap_or_else(PoisonError::into_inner);
        // One that ended just before is found by looking again.
        drop(self.sealed.1.wait_timeout(guard, Duration::from_millis(20)));
    }

    /// Deletions that were committed.
    pub(super) fn was_deleted(&self, deletes: Vec<(StreamId, Ranges)>) {
        let mut deleted = self.deleted.lock().unwrap_or_else(PoisonError::into_inner);
        deleted.extend(deletes);
        drop(deleted);
        self.want(Chore::Tidy);
    }

    /// A write failed: a spare may be asked for again, to find out whether one works.
    pub(super) fn retry_spares(&self) {
        let flags = self.spare_wanted.iter();
        flags.for_each(|flag| flag.store(false, Ordering::Relaxed));
    }

    /// An empty list for a new segment.
    pub(super) fn take_held(&self) -> Held {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.pop().unwrap_or_default()
    }

    /// Takes the list of a sealed segment back, unless somebody still reads it.
    fn give_held(&self, held: Arc<Held>) {
        let Ok(held) = Arc::try_unwrap(held) else { return };
        let emptied = held.emptied();
        let mut kept = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        // One for each writer: more are never open.
        if kept.len() < self.spare_wanted.len() {
            kept.push(emptied);
        }
    }

    /// The segment that was made for a writer.
    pub(super) fn take_spare(&self, writer: usize) -> Option<Open> {
        let mut spares = self.spares.lock().unwrap_or_else(PoisonError::into_inner);
        let spare = spares.remove(&writer);
        if let Some(flag) = self.spare_wanted.get(writer) {
            flag.store(false, Ordering::Relaxed);
        }
        spare
    }
}

/// The thread's life.
pub(super) fn run(core: &Arc<Core>) {
    let chores = &core.keeper.chores;
    chores.waker(0).register();
    step_back();
    if let Err(stopped) = compact::count_all(core) {
        report(&stopped, "what was deleted could not be counted");
    }
    tidy(core);
    while let Some(chore) = chores.pop_wait(0, || core.chores_closed()) {
        // What is not done, the next start finds undone, and does it.
        if !core.chores_closed() && perform(core, chore) {
            tidy(core);
        }
    }
    // Nobody was told of a spare.
    let spares = std::mem::take(&mut *core.keeper.spares.lock().unwrap_or_else(PoisonError::into_inner));
    for spare in spares.into_values() {
        core.files.remove(spare.of.number);
    }
}

/// Lets everybody else go first: what happens here takes a good part of a core while records come fast, and a shard that
/// has to share its core with it answers late. A system that does not allow it is none the worse.
fn step_back() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICENESS);
}

/// What writers wait for, in the middle of something that takes long.
pub(super) fn urgent(core: &Arc<Core>) {
    let mut is_untidy = false;
    while !core.chores_closed()
        && let Some(chore) = core.keeper.chores.pop()
    {
        is_untidy |= perform(core, chore);
    }
    if is_untidy {
        core.keeper.want(Chore::Tidy);
    }
}

/// Does one thing. Answers whether there may be something to be compacted now.
fn perform(core: &Arc<Core>, chore: Chore) -> bool {
    match chore {
        Chore::Seal(number) => {
            let sealed = seal_up_to(core, number);
            if sealed.is_err() {
                core.keeper.seal_failed.store(true, Ordering::Relaxed);
            }
            core.keeper.sealed.1.notify_all();
            if let Err(error) = sealed {
                tracing::error!(%error, "a segment could not be sealed; it is tried again at the next start");
            }
            sealed.is_ok()
        }
        Chore::Spare(writer) => {
            // One that is there is made anew: whether a write works shall be known.
            let old = core
                .keeper
                .spares
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&writer);
            if let Some(old) = old {
                core.files.remove(old.of.number);
            }
            let room = core.options.segment_bytes;
            match core.create(writer, PROBE_BYTES.min(room), room, Purpose::Records) {
                Ok(spare) => {
                    core.note_success();
                    let mut spares = core.keeper.spares.lock().unwrap_or_else(PoisonError::into_inner);
                    spares.insert(writer, spare);
                }
                Err(error) => {
                    // Its writer tries itself, and says so, when it needs one.
                    tracing::warn!(%error, "the next segment could not be made yet");
                    core.keeper.spare_wanted[writer].store(false, Ordering::Relaxed);
                }
            }
            false
        }
        Chore::Tidy => {
            core.keeper.tidy_wanted.store(false, Ordering::Relaxed);
            true
        }
    }
}

/// Counts what was deleted lately, and rewrites what is not worth its room any more.
fn tidy(core: &Arc<Core>) {
    let deleted = std::mem::take(&mut *core.keeper.deleted.lock().unwrap_or_else(PoisonError::into_inner));
    for (stream, ranges) in deleted {
        if let Err(error) = compact::count(&core.finder, stream, &ranges) {
            tracing::error!(%error, "what was deleted could not be counted");
        }
    }
    loop {
        let inputs = compact::candidates(core);
        if inputs.is_empty() || core.chores_closed() {
            return;
        }
        match compact::compact(core, &inputs) {
            Ok(()) => tracing::debug!(segments = inputs.len(), "rewrote segments"),
            Err(stopped) => {
                report(&stopped, "segments could not be rewritten");
                // Without room it works another time.
                let is_full = matches!(&stopped, compact::Stopped::Io(e) if NO_ROOM.contains(&e.kind()));
                for input in inputs.iter().filter(|_| !is_full) {
                    input.is_unfit.store(true, Ordering::Relaxed);
                }
                return;
            }
        }
    }
}

fn report(stopped: &compact::Stopped, what: &str) {
    if !matches!(stopped, compact::Stopped::Closed) {
        tracing::error!(error = %stopped, "{what}");
    }
}

/// Seals a segment, and before it those its writer wrote earlier: what the list says of a writer holds for all of them.
fn seal_up_to(core: &Arc<Core>, number: u64) -> Result<(), StoreError> {
    let mut numbers: Vec<u64> = {
        let view = core.view.read();
        let Some(last) = view.hot.iter().find(|hot| hot.of.number == number) else {
            return Ok(());
        };
        let earlier = |hot: &&Hot| hot.writer == last.writer && hot.of.number <= number;
        view.hot.iter().filter(earlier).map(|hot| hot.of.number).collect()
    };
    numbers.sort_unstable();
    numbers.into_iter().try_for_each(|number| seal(core, number))
}

/// Gives a segment that is full its index, and puts it into the list of segments.
fn seal(core: &Arc<Core>, number: u64) -> Result<(), StoreError> {
    let io = |error: std::io::Error| {
        tracing::error!(%error, number, "sealing a segment failed");
        StoreError::Unknown
    };
    let found = {
        let view = core.view.read();
        let hot = view.hot.iter().find(|hot| hot.of.number == number);
        hot.map(|hot| (hot.of, hot.writer, hot.file.clone(), hot.held.clone()))
    };
    let Some((of, writer, file, held)) = found else {
        return Ok(());
    };
    if core.health.has_failed() {
        return Err(StoreError::NotCommitted);
    }
    file.set_length(of.length).map_err(io)?;
    // A second one could succeed and mean nothing.
    file.sync().inspect_err(|_| core.health.fail()).map_err(io)?;
    let path = core.files.index_path(number);
    {
        let rest = |began| rest(core, began);
        let mut bytes = core.keeper.index.lock().unwrap_or_else(PoisonError::into_inner);
        index::encode_into(&mut bytes, &held, &of, &rest);
        index::write_paced(&*core.files.disk, &path, &bytes, index::SYNC_BYTES, &rest).map_err(io)?;
        if bytes.capacity() > INDEX_BYTES_KEPT {
            *bytes = Vec::new();
        }
    }
    let index = core.files.disk.open(&path).map_err(io)?;
    let summary = Summary::read(&*index, &of)
        .map_err(io)?
        .ok_or(StoreError::Damaged)?;

    let mut change = Change::default();
    let usage: Vec<_> = {
        let view = core.view.read();
        view.usage
            .iter()
            .map(|(realm, usage)| (realm.clone(), *usage))
            .collect()
    };
    for (realm, (lsn, bytes)) in &usage {
        change.usage(realm, *lsn, *bytes);
    }
    let state = State::Sealed {
        writer: writer as u64,
        salt: of.salt,
        length: of.length,
        last_lsn: summary.last_lsn,
    };
    change.set(number, state);
    if summary.last_lsn > 0 {
        change.wrote(writer as u32, number, summary.last_lsn);
    }
    change.commit(&*core.control)?;

    let sealed = Arc::new(Sealed::new(of, summary, core.files.clone()));
    sealed
        .dead_bytes
        .store(dead_bytes(core, &held), Ordering::Relaxed);
    let mut view = core.view.write();
    view.switch(&[number], [sealed]);
    for (realm, (lsn, _)) in usage {
        if view.usage.get(&realm).is_some_and(|(newest, _)| *newest == lsn) {
            view.usage.remove(&realm);
        }
    }
    drop(view);
    core.keeper.give_held(held);
    Ok(())
}

/// A pause as long as what `began` then took, unless segments come faster than they are sealed: where all cores are busy, a
/// thread that gives none keeps its core for some milliseconds, and whoever else needs it waits.
fn rest(core: &Core, began: Instant) {
    let is_behind = core.view.read().hot.len() > HOT_IN_PACE + core.writers.len();
    if !is_behind && !core.closed() {
        thread::sleep(began.elapsed().min(REST_MAX));
    }
}

/// Bytes of its records that were deleted while it was hot.
fn dead_bytes(core: &Core, held: &Held) -> u64 {
    let view = core.view.read();
    let deletes = view.hot.iter().flat_map(|hot| &hot.held.deletes);
    let dead = deletes.map(|(stream, ranges)| {
        let entries = held.streams.get(stream).into_iter().flatten();
        let dead = entries.filter(|e| ranges.contains(e.seq));
        dead.map(|e| u64::from(e.bytes)).sum::<u64>()
    });
    dead.sum()
}
