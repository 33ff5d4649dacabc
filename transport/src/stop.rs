//! How the shards stop together: none may leave while another could still need its answer.

use crate::mailbox::{Letter, Mailbox};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Shared by all shards of a relay.
pub(crate) struct Stop {
    shards: usize,
    drained: AtomicUsize,
    /// `u64::MAX`: not stopping.
    deadline_ms: AtomicU64,
    failed: AtomicBool,
}

impl Stop {
    pub(crate) fn new(shards: usize) -> Arc<Self> {
        Arc::new(Self {
            shards,
            drained: AtomicUsize::new(0),
            deadline_ms: AtomicU64::new(u64::MAX),
            failed: AtomicBool::new(false),
        })
    }

    /// Sets the monotonic moment at which shards leave even if they are not done.
    pub(crate) fn set_deadline(&self, at_ms: u64) {
        self.deadline_ms.fetch_min(at_ms, Ordering::AcqRel);
    }

    pub(crate) fn deadline_ms(&self) -> Option<u64> {
        Some(self.deadline_ms.load(Ordering::Acquire)).filter(|at_ms| *at_ms != u64::MAX)
    }

    /// One shard has nothing left to do. The last one tells the others.
    pub(crate) fn one_drained(&self, doors: &[Arc<Mailbox>]) {
        if self.drained.fetch_add(1, Ordering::AcqRel) + 1 == self.shards {
            for door in doors {
                door.post(Letter::Look);
            }
        }
    }

    /// Whether shards leave now.
    pub(crate) fn is_over(&self, mono_ms: u64) -> bool {
        self.drained.load(Ordering::Acquire) >= self.shards
            || mono_ms >= self.deadline_ms.load(Ordering::Acquire)
    }

    /// A shard has ended although it should not have.
    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }
}
