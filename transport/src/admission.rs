//! How many connections there may be, in all and from one source before they have authenticated (02 §1).

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The source map is cut into this many, each with a lock of its own. Upgrades are rare enough.
const PARTS: usize = 16;

/// Why an upgrade got no seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Its source holds its share of unauthenticated connections.
    Share,
    /// All seats are taken.
    Ceiling,
}

/// How much each peer holds of something.
pub(crate) struct Shares {
    /// Peers are kept as a keyed hash only (13 §h).
    key: RandomState,
    held: [Mutex<HashMap<u64, u64>>; PARTS],
}

impl Shares {
    pub(crate) fn new() -> Self {
        Self {
            key: RandomState::new(),
            held: Default::default(),
        }
    }

    /// Takes one more for this peer, unless it holds `max` (at least 1) already. The answer is what to give back.
    pub(crate) fn take(&self, peer: impl Hash, max: u64) -> Option<u64> {
        let hash = self.key.hash_one(peer);
        let mut held = self.part(hash).lock().unwrap_or_else(PoisonError::into_inner);
        let count = held.entry(hash).or_default();
        if *count >= max {
            return None;
        }
        *count += 1;
        Some(hash)
    }

    /// Gives one back.
    pub(crate) fn give_back(&self, hash: u64) {
        let mut held = self.part(hash).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = held.get_mut(&hash) {
            *count -= 1;
            if *count == 0 {
                held.remove(&hash);
            }
        }
    }

    fn part(&self, hash: u64) -> &Mutex<HashMap<u64, u64>> {
        &self.held[hash as usize % PARTS]
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.held.iter().all(|part| part.lock().unwrap().is_empty())
    }
}

/// The process-wide count.
pub(crate) struct Admission {
    ceiling: Option<u64>,
    share: u64,
    taken: AtomicU64,
    sources: Shares,
}

impl Admission {
    /// With no ceiling nothing is ever refused, and sources aren't counted.
    pub(crate) fn new(ceiling: Option<u64>) -> Arc<Self> {
        Arc::new(Self {
            ceiling,
            share: ceiling.map_or(u64::MAX, |ceiling| (ceiling / 4).max(1)),
            taken: AtomicU64::new(0),
            sources: Shares::new(),
        })
    }

    /// Takes a seat: first the source's share is judged, then the ceiling.
    pub(crate) fn enter(self: &Arc<Self>, source: &str) -> Result<Seat, Refusal> {
        let mut seat = Seat {
            admission: self.clone(),
            source: None,
            seated: false,
        };
        if self.ceiling.is_some() {
            seat.source = Some(self.sources.take(source, self.share).ok_or(Refusal::Share)?);
        }
        let ceiling = self.ceiling.unwrap_or(u64::MAX);
        let take = |taken| (taken < ceiling).then_some(taken + 1);
        if self
            .taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_err()
        {
            return Err(Refusal::Ceiling);
        }
        seat.seated = true;
        Ok(seat)
    }

    /// Seats taken now.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }
}

/// One connection's place, given back when dropped.
pub(crate) struct Seat {
    admission: Arc<Admission>,
    source: Option<u64>,
    seated: bool,
}

impl Seat {
    /// The connection has authenticated: it no longer counts for its source.
    pub(crate) fn authenticated(&mut self) {
        if let Some(hash) = self.source.take() {
            self.admission.sources.give_back(hash);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.authenticated();
        if self.seated {
            self.admission.taken.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// W02.20, the arithmetic of it.
    #[test]
    fn the_share_is_judged_before_the_ceiling_and_comes_back() {
        let admission = Admission::new(Some(8));
        let mut first = admission.enter("a").ok().unwrap();
        let second = admission.enter("a").ok().unwrap();
        assert_eq!(admission.enter("a").err(), Some(Refusal::Share));
        first.authenticated();
        first.authenticated();
        let third = admission.enter("a").ok().unwrap();
        assert_eq!(admission.enter("a").err(), Some(Refusal::Share));
        drop(second);
        let others: Vec<_> = ["b", "c", "d", "e", "f", "g"]
            .map(|s| admission.enter(s).ok().unwrap())
            .into();
        assert_eq!(admission.taken(), 8);
        assert_eq!(admission.enter("h").err(), Some(Refusal::Ceiling));
        drop((first, third, others));
        assert_eq!(admission.taken(), 0);
        assert!(admission.sources.is_empty());
    }

    #[test]
    fn a_ceiling_of_one_leaves_a_share_of_one() {
        let admission = Admission::new(Some(1));
        let only = admission.enter("a");
        assert!(only.is_ok());
        assert_eq!(admission.enter("b").err(), Some(Refusal::Ceiling));
    }

    #[test]
    fn without_a_ceiling_nothing_is_refused() {
        let admission = Admission::new(None);
        let seats: Vec<_> = (0..1_000).map(|_| admission.enter("a").ok().unwrap()).collect();
        assert_eq!(admission.taken(), 1_000);
        drop(seats);
    }
}
