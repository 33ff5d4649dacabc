//! Answers that are given once, whatever happens, and code of others that must not end a thread.

use crate::{Done, StoreError};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs somebody else's code on a thread that must not die of it.
pub(crate) fn guarded(what: &str, run: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(run)).is_err() {
        tracing::error!("{what} panicked");
    }
}

/// Where an answer goes; gives [`StoreError::Unknown`] if nothing else was given, so that every request is answered
/// once, whatever happens.
pub(crate) struct Answer<T>(Option<Done<T>>);

impl<T> Answer<T> {
    pub(crate) fn new(done: Done<T>) -> Self {
        Self(Some(done))
    }

    pub(crate) fn give(mut self, result: Result<T, StoreError>) {
        if let Some(done) = self.0.take() {
            done(result);
        }
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            guarded("an answer", || done(Err(StoreError::Unknown)));
        }
    }
}
