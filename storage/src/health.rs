//! Whether the log takes what it is given.

use crate::embedded::STUCK;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Whether a commit failed for good, and whether one is stuck.
pub(crate) struct Health {
    /// Until the next start nothing is taken.
    failed: AtomicBool,
    opened: Instant,
    /// When the commit under way began, in milliseconds since `opened` and one; 0 if there is none.
    began_ms: AtomicU64,
}

impl Health {
    pub(crate) fn new() -> Self {
        Self {
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

    /// It ended.
    pub(crate) fn end(&self) {
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

    /// Whether a commit takes too long.
    pub(crate) fn is_stuck(&self) -> bool {
        let began_ms = self.began_ms.load(Ordering::Relaxed);
        began_ms != 0 && self.now_ms().saturating_sub(began_ms) > STUCK.as_millis() as u64
    }
}
