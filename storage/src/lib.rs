//! What Drover keeps on disk, behind small completion-based traits (architecture.md §6).
//!
//! | Module | Story |
//! | --- | --- |
//! | [`log`] | append-only sequenced streams: envelopes and handshakes |
//! | [`control`] | one partition of ordered records per realm, and the relay-wide directory |
//! | [`embedded`] | both in one folder: the default |
//! | `segments` | its log: segments of our own |
//! | [`handoff`] | a bounded lock-free queue whose consumer sleeps when it is empty |
//! | `contract` | what every implementation must do, as a test suite (feature `contract`) |

#![forbid(unsafe_code)]

mod answer;
#[cfg(feature = "contract")]
pub mod contract;
pub mod control;
pub mod embedded;
pub mod handoff;
mod health;
pub mod log;
mod segments;

use std::fmt;
use std::sync::Arc;

/// The name of a realm: a workspace's internal id, `ws:` and a host or a chosen name (05 §2). Never on the wire.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RealmId(pub Arc<str>);

impl fmt::Debug for RealmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How a store failed a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Nothing of the request happened; the caller may take its effects back.
    #[error("the store did not take the request")]
    NotCommitted,
    /// It may or may not have happened; the caller must load its state again.
    #[error("the outcome of the request is unknown")]
    Unknown,
    /// A stored record could not be understood.
    #[error("the store holds a damaged record")]
    Damaged,
}

/// Where the answer to a request goes. Called once, on any thread, and must not block.
pub type Done<T> = Box<dyn FnOnce(Result<T, StoreError>) + Send>;
