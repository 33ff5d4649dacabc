//! Whether a store takes what it is given.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A commit that takes this long is stuck: the disk does not answer, or fjall waits for background work that died.
const STUCK: Duration = Duration::from_secs(30);

/// Whether the last commit succeeded, and whether one is stuck.
pub(crate) struct Health {
    good: AtomicBool,
    /// For good: until the next start nothing is taken.
    failed: AtomicBool,
    opened: Instant,
    /// When the commit under way began, in milliseconds since `opened` and one; 0 if there is none.
    began_ms: AtomicU64,
}

impl Health {
    pub(crate) fn new() -> Self {
        Self {
            good: AtomicBool::new(true),
            failed: AtomicBool::new(false),
            opened: Instant::now(),
            began_ms: AtomicU64::new(0),
        }
    }

    fn now_ms(&self) -> u64 {
        self.opened.elapsed().as_millis() as u64 + 1
    }

    /// A commit is begun.
    pub(crate) fn begin(&self) {
        self.began_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    /// One ended, or was refused.
    pub(crate) fn set(&self, good: bool) {
        self.good.store(good, Ordering::Relaxed);
        self.began_ms.store(0, Ordering::Relaxed);
    }

    /// Nothing is taken any more.
    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Whether [`Self::fail`] was called.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Whether the last commit was good and none is stuck.
    pub(crate) fn get(&self) -> bool {
        let began_ms = self.began_ms.load(Ordering::Relaxed);
        let is_stuck = began_ms != 0 && self.now_ms().saturating_sub(began_ms) > STUCK.as_millis() as u64;
        self.good.load(Ordering::Relaxed) && !is_stuck
    }
}
