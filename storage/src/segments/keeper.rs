//! The thread that does what nobody waits for: it makes the next segment before it is needed, gives full ones their
//! index, and has mostly dead ones rewritten.

use super::Core;
use super::committer::Open;
use super::index::{self, Summary};
use super::list::{Change, State};
use super::view::Sealed;
use crate::StoreError;
use crate::handoff::{Handoff, Parked};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Something to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chore {
    /// A segment is full: it gets its index.
    Seal(u64),
    /// A writer will soon need another segment.
    Spare(usize),
    /// Records were deleted: some segments may not be worth their room any more.
    Count,
}

/// What the keeper is asked for.
pub(super) struct Keeper {
    pub(super) chores: Handoff<Chore, Parked>,
    spares: Mutex<HashMap<usize, Open>>,
    /// By writer: a spare is asked for.
    spare_wanted: Vec<AtomicBool>,
    count_wanted: AtomicBool,
}

impl Keeper {
    pub(super) fn new(writers: usize) -> Self {
        Self {
            // Each writer asks for one spare and one sealing at a time or so; counting is asked for once.
            chores: Handoff::new(64 + 16 * writers, [Parked::default()]),
            spares: Mutex::default(),
            spare_wanted: (0..writers).map(|_| AtomicBool::new(false)).collect(),
            count_wanted: AtomicBool::new(false),
        }
    }

    /// Asks for something. What can't be taken now is asked for again sooner or later: by the next commit, or at the
    /// next start.
    pub(super) fn want(&self, chore: Chore) {
        let flag = match chore {
            Chore::Seal(_) => None,
            Chore::Spare(writer) => self.spare_wanted.get(writer),
            Chore::Count => Some(&self.count_wanted),
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
    while let Some(chore) = chores.pop_wait(0, || core.chores_closed()) {
        if core.chores_closed() {
            // The next start finds it undone, and does it.
            continue;
        }
        match chore {
            Chore::Seal(number) => {
                if let Err(error) = seal(core, number) {
                    tracing::error!(%error, "a segment could not be sealed; it is tried again at the next start");
                }
            }
            Chore::Spare(writer) => match core
                .check_room()
                .and_then(|()| core.create(writer, core.options.segment_bytes))
            {
                Ok(spare) => {
                    let mut spares = core.keeper.spares.lock().unwrap_or_else(PoisonError::into_inner);
                    spares.insert(writer, spare);
                }
                Err(error) => {
                    // Its writer tries itself, and says so, when it needs one.
                    tracing::warn!(%error, "the next segment could not be made yet");
                    core.keeper.spare_wanted[writer].store(false, Ordering::Relaxed);
                }
            },
            Chore::Count => core.keeper.count_wanted.store(false, Ordering::Relaxed),
        }
    }
    // Nobody was told of a spare.
    let spares = std::mem::take(&mut *core.keeper.spares.lock().unwrap_or_else(PoisonError::into_inner));
    for spare in spares.into_values() {
        core.files.remove(spare.of.number);
    }
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
    file.set_length(of.length)
        .and_then(|()| file.sync())
        .map_err(io)?;
    let path = core.files.index_path(number);
    index::write(&*core.files.disk, &path, &index::encode(&held, &of)).map_err(io)?;
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
    change.commit(&*core.control)?;

    let sealed = Arc::new(Sealed::new(of, summary, core.files.clone()));
    let mut view = core.view.write();
    view.switch(&[number], [sealed]);
    for (realm, (lsn, _)) in usage {
        if view.usage.get(&realm).is_some_and(|(newest, _)| *newest == lsn) {
            view.usage.remove(&realm);
        }
    }
    Ok(())
}
