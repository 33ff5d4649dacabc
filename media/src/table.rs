//! The calls of the whole process (10 §3): which ids are taken by which group, and how many there are. Joins and leaves
//! look at it under a lock; a MEDIA frame only says through [`Life`] that its call is alive.

use crate::limits::IDLE_MS;
use drover_wire::id::{CallId, GroupId};
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A call that was dropped for being idle.
const DROPPED: u64 = u64::MAX;

/// When something last happened in a call, monotonic ms: written by the shard that has the call, read by whoever wants
/// to open another. Dropping is decided here too, so that no frame is accepted in a call that another shard has dropped.
#[derive(Debug)]
pub(crate) struct Life(AtomicU64);

impl Life {
    /// Something happened. `false`: the call has been dropped.
    #[inline]
    pub(crate) fn refresh(&self, mono_ms: u64) -> bool {
        let seen = self.0.load(Ordering::Relaxed);
        if seen == mono_ms {
            return true;
        }
        // Only a drop can come between.
        seen != DROPPED
            && (self.0)
                .compare_exchange(seen, mono_ms, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    pub(crate) fn is_dropped(&self) -> bool {
        self.0.load(Ordering::Relaxed) == DROPPED
    }

    /// Drops the call if nothing has happened in it for [`IDLE_MS`].
    fn drop_if_idle(&self, mono_ms: u64) -> bool {
        let seen = self.0.load(Ordering::Relaxed);
        mono_ms.saturating_sub(seen) >= IDLE_MS
            && (self.0)
                .compare_exchange(seen, DROPPED, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

/// A call's place in the table.
#[derive(Debug)]
struct Place {
    group: GroupId,
    life: Arc<Life>,
}

/// What the table says to a joiner.
#[derive(Debug)]
pub(crate) enum Standing {
    /// The id belongs to another group's call.
    OtherGroup,
    /// The call is there.
    Open,
    /// There was none; the id is taken now.
    Opened(Arc<Life>),
}

/// See the module.
#[derive(Debug, Default)]
pub struct CallTable {
    calls: Mutex<HashMap<CallId, Place>>,
}

impl CallTable {
    fn calls(&self) -> MutexGuard<'_, HashMap<CallId, Place>> {
        // Every change is a single insertion or removal, so nothing is ever half done.
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls that are open.
    pub fn open(&self) -> usize {
        self.calls().len()
    }

    /// The first steps of a join, in one critical section: idle calls go, and the id is looked up; if it is free and
    /// `may_open(calls open)` allows it, it is taken.
    pub(crate) fn join<R>(
        &self,
        mono_ms: u64,
        call_id: CallId,
        group: GroupId,
        may_open: impl FnOnce(usize) -> Result<(), R>,
    ) -> Result<Standing, R> {
        let mut calls = self.calls();
        calls.retain(|_, place| !place.life.drop_if_idle(mono_ms));
        let open = calls.len();
        match calls.entry(call_id) {
            Entry::Occupied(place) if place.get().group == group => Ok(Standing::Open),
            Entry::Occupied(_) => Ok(Standing::OtherGroup),
            Entry::Vacant(vacant) => {
                may_open(open)?;
                let life = Arc::new(Life(AtomicU64::new(mono_ms)));
                vacant.insert(Place {
                    group,
                    life: life.clone(),
                });
                Ok(Standing::Opened(life))
            }
        }
    }

    /// Whether the id is taken by another group's call.
    pub(crate) fn is_elsewhere(&self, call_id: CallId, group: GroupId) -> bool {
        self.calls()
            .get(&call_id)
            .is_some_and(|place| place.group != group)
    }

    /// The call with this life is over. An id that was taken again meanwhile stays.
    pub(crate) fn close(&self, call_id: CallId, life: &Arc<Life>) {
        if let Entry::Occupied(place) = self.calls().entry(call_id)
            && Arc::ptr_eq(&place.get().life, life)
        {
            place.remove();
        }
    }
}
