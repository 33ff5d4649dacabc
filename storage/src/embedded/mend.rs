//! What the committer does after a group could not be written.
//!
//! Two kinds of failure look the same to the caller of fjall, and are not:
//!
//! - **A write failed**: the disk is full, a quota or the limit on file sizes is reached. What reached the journal is the
//!   beginning of a group, which was never acknowledged. The database is closed, the beginning cut off, the database
//!   opened anew, all as a restart would do it. Then it is known that the group did not happen, and those who wait are
//!   told so. From then on a group without content is tried until one is durable; meanwhile everything is refused.
//! - **A sync failed**: the whole group is in the journal as this machine sees it, and nobody can tell what of it the
//!   disk holds. The system may have marked the pages as clean, so that a second sync would succeed without writing
//!   them. Nothing is acknowledged any more; the next start writes the group again before it believes in it
//!   ([`super::audit`]).
//!
//! Which of the two it was, the journal tells: a sync begins only once the whole group was written.

use super::committer::{Committer, State, Written};
use super::fjall_control::open_checked;
use super::{OpenError, audit};
use crate::StoreError;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// The pause before the first attempt to write again, and the longest one. Each attempt that fails costs a reading of the
/// journals, and readers wait meanwhile.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(4));

impl Committer<'_> {
    /// What those are told who wait for the group; the state follows.
    pub(super) fn outcome(&mut self, written: Written) -> Result<(), StoreError> {
        match written {
            Written::Durable => Ok(()),
            Written::Refused => self.fail(Err(StoreError::NotCommitted)),
            Written::Unknown => self.fail(Err(StoreError::Unknown)),
            Written::Broken => {
                if audit::is_written(&self.folder, &self.store, self.group) {
                    tracing::error!("a sync failed; the store takes nothing more until restarted");
                    return self.fail(Err(StoreError::Unknown));
                }
                tracing::error!("a write failed: nothing is taken until one works again");
                self.down(PAUSE.0);
                self.reopen()
            }
        }
    }

    /// Tries whether writing works again.
    pub(super) fn mend(&mut self) {
        let is_open = self.database.with(|tables| tables.is_some());
        if !is_open {
            // Nobody waits for an answer.
            let _ = self.reopen();
        }
        let State::Down(_, pause) = self.state else {
            return;
        };
        if !self.database.with(|tables| tables.is_some()) || !self.health.has_room(0) {
            return self.down(pause);
        }
        let written = self.write(Vec::new(), &mut Vec::new());
        if matches!(written, Written::Durable) {
            tracing::info!("writes work again");
            self.state = State::Good;
            self.health.set_down(false);
        } else if self.outcome(written).is_err() && matches!(self.state, State::Down(..)) {
            self.down((pause * 2).min(PAUSE.1));
        }
    }

    fn down(&mut self, pause: Duration) {
        self.state = State::Down(Instant::now() + pause, pause);
        self.health.set_down(true);
    }

    fn fail(&mut self, outcome: Result<(), StoreError>) -> Result<(), StoreError> {
        self.state = State::Failed;
        self.health.fail();
        outcome
    }

    /// Closes the database and opens it as a start does; what became of the last group.
    fn reopen(&mut self) -> Result<(), StoreError> {
        let mut slot = self.database.0.write().unwrap_or_else(PoisonError::into_inner);
        // Closed before anything is cut off: it may still write what it could not before.
        drop(slot.take());
        match open_checked(&self.folder, &self.store, self.synced.group()) {
            Ok((tables, group)) => {
                *slot = Some(tables);
                match group >= self.group {
                    // Closing did write it, and opening synced it.
                    true => self.synced.advance(group),
                    false => Err(StoreError::NotCommitted),
                }
            }
            Err(OpenError::Unusable { file, reason }) => {
                tracing::error!(file = %file.display(), reason, "the store can't be opened again");
                drop(slot);
                self.fail(Err(StoreError::Unknown))
            }
            Err(error) => {
                tracing::warn!(%error, "the store can't be opened again yet");
                Err(StoreError::Unknown)
            }
        }
    }
}
