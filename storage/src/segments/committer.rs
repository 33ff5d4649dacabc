//! The thread that writes, one for each writer: everything that arrived while the last sync ran becomes one commit, with
//! one write and one sync.
//!
//! What is asked for does not become visible before it is durable, and nothing of a commit is begun before the one
//! before it is durable: so at most the last commit of a segment can be torn.

use super::disk::DiskFile;
use super::format::{COMMIT_OVERHEAD, Encoder, SEGMENT_HEAD, batch_bytes};
use super::index::Of;
use super::keeper::Chore;
use super::view::Hot;
use super::{Core, Purpose, Request};
use crate::StoreError;
use crate::answer::{Answer, guarded};
use crate::log::AppendBatch;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A commit is closed once it holds this many bytes, so that a burst of large records does not hold up the first one for
/// its whole length.
const COMMIT_BYTES_MAX: usize = 8 << 20;
/// Larger batches are refused: everything in a segment lies below 4 GiB.
const BATCH_BYTES_MAX: usize = 1 << 30;
/// Records a segment holds at most, so that small ones don't fill the memory with their index.
const ENTRIES_MAX: usize = 1 << 19;
/// Where records find no room, a segment that has reached this part of its room ends with the next deletion: only complete
/// ones give room back.
const SHORT_PART: u64 = 16;
/// Segments that may wait for their index.
const HOT_MAX: usize = 6;
/// How long a commit waits for one to be sealed.
const KEEPER_PATIENCE: Duration = Duration::from_secs(2);

/// A segment that is being written.
pub(super) struct Open {
    pub(super) of: Of,
    pub(super) file: Arc<dyn DiskFile>,
    /// Bytes it may have.
    pub(super) room: u64,
    /// Bytes set aside for it so far.
    pub(super) reserved: u64,
    pub(super) entries: usize,
    /// A write failed, and what it left may follow the last commit.
    pub(super) is_torn: bool,
}

impl Open {
    /// After an error that is about the length of a file and not about the disk, a shorter segment does as well.
    fn ends_at_a_limit(&mut self, error: &io::Error) {
        if error.kind() == io::ErrorKind::FileTooLarge {
            self.room = self.of.length;
        }
    }
}

/// The committer's own.
pub(super) struct Committer {
    pub(super) core: Arc<Core>,
    pub(super) writer: usize,
    pub(super) open: Option<Open>,
    /// The number of its last commit.
    pub(super) last_lsn: u64,
    pub(super) encoder: Encoder,
}

impl Committer {
    /// The thread's life.
    pub(super) fn run(mut self) {
        let core = self.core.clone();
        let queue = &core.writers[self.writer];
        queue.requests.waker(0).register();
        while let Some(first) = queue.requests.pop_wait(0, || core.closed()) {
            let mut bytes = first.bytes;
            let mut taken = vec![first];
            while bytes < COMMIT_BYTES_MAX
                && let Some(next) = queue.requests.pop()
            {
                bytes += next.bytes;
                taken.push(next);
            }
            self.commit(taken);
            queue.release(bytes);
        }
        self.close();
    }

    fn commit(&mut self, requests: Vec<Request>) {
        let (mut batches, mut answers) = (
            Vec::with_capacity(requests.len()),
            Vec::with_capacity(requests.len()),
        );
        // Known without an attempt to write, and so is when it ends. Deletions have room of their own then.
        let is_full = !self.core.has_room(Purpose::Records);
        for Request { batch, done, bytes } in requests {
            let is_refused = is_full && !batch.appends.is_empty();
            if is_refused || self.core.health.has_failed() || bytes > BATCH_BYTES_MAX {
                guarded("an answer to a commit", || {
                    done.give(Err(StoreError::NotCommitted))
                });
                continue;
            }
            batches.push(batch);
            answers.push(done);
        }
        if answers.is_empty() {
            return;
        }
        let result = match batches.iter().all(is_empty) {
            true => Ok(()),
            false => {
                self.core.health.begin();
                let result = self.write(&batches, is_full);
                self.core.health.end();
                result
            }
        };
        drop(batches);
        for done in answers {
            guarded("an answer to a commit", || done.give(result));
        }
    }

    /// `is_full`: there is no room for records, and none are in it.
    fn write(&mut self, batches: &[AppendBatch], is_full: bool) -> Result<(), StoreError> {
        let core = self.core.clone();
        let bytes = COMMIT_OVERHEAD + batches.iter().map(batch_bytes).sum::<usize>();
        let purpose = match batches.iter().all(|batch| batch.appends.is_empty()) {
            true => Purpose::Deletions,
            false => Purpose::Records,
        };
        if is_full && !core.has_room(purpose) {
            return Err(StoreError::NotCommitted);
        }
        if let Err(error) = self.make_room(bytes as u64, purpose, is_full) {
            core.note_refusal(&error);
            return Err(StoreError::NotCommitted);
        }
        let Some(open) = &mut self.open else {
            return Err(StoreError::NotCommitted);
        };
        let (at, number) = (open.of.length, open.of.number);
        // A number is used once, even by a commit that fails.
        let lsn = core.next_lsn();
        let batches: Vec<&AppendBatch> = batches.iter().collect();
        let (previous, salt) = (Some(self.last_lsn), open.of.salt);
        let mut contents = self.encoder.encode(&batches, Vec::new(), salt, previous, lsn, at);
        let length = at + self.encoder.bytes.len() as u64;
        if let Err(error) = open.file.write_at(&self.encoder.bytes, at) {
            // Its end was never written, so what came of it is no commit, to whoever looks; the next one is written over it.
            open.is_torn = true;
            open.ends_at_a_limit(&error);
            core.note_refusal(&error);
            return Err(StoreError::NotCommitted);
        }
        if let Err(error) = open.file.sync() {
            tracing::error!(%error, "a sync failed: the log takes nothing more until restarted");
            core.health.fail();
            return Err(StoreError::Unknown);
        }
        core.note_success();
        self.last_lsn = lsn;
        open.of.length = length;
        open.entries += contents.entries.len();
        core.view.write().add(number, length, &contents);
        if let Err(error) = core.synced.advance(self.writer, lsn) {
            tracing::error!(%error, "writing SYNCED failed; the log takes nothing more until restarted");
            core.health.fail();
            return Err(StoreError::Unknown);
        }
        if !contents.deletes.is_empty() {
            core.keeper.was_deleted(std::mem::take(&mut contents.deletes));
        }
        match self.encoder.bytes.capacity() > 2 * COMMIT_BYTES_MAX {
            true => self.encoder = Encoder::default(),
            false => self.encoder.recycle(contents),
        }
        Ok(())
    }

    /// Sees to it that there is a segment with room for so many bytes.
    fn make_room(&mut self, bytes: u64, purpose: Purpose, is_full: bool) -> io::Result<()> {
        let core = self.core.clone();
        let fits = |open: &Open| {
            let is_worth_it = open.entries > 0 && open.of.length >= core.options.segment_bytes / SHORT_PART;
            let ends_early = is_full && is_worth_it;
            open.of.length + bytes <= open.room && open.entries < ENTRIES_MAX && !ends_early
        };
        if !self.open.as_ref().is_some_and(fits) {
            self.wait_for_keeper()?;
            // Only a writer's last segment may have a torn end when it starts again.
            if let Some(open) = self.open.as_mut().filter(|open| open.is_torn) {
                open.file.set_length(open.of.length)?;
                if let Err(error) = open.file.sync() {
                    core.health.fail();
                    return Err(error);
                }
                (open.reserved, open.is_torn) = (open.of.length, false);
            }
            let needed = SEGMENT_HEAD as u64 + bytes;
            let last = self.open.as_ref().map_or(0, |open| open.of.number);
            let new = match core.keeper.take_spare(self.writer) {
                // Numbers tell in which order segments were written.
                Some(spare) if needed <= spare.room && last < spare.of.number => spare,
                unfit => {
                    let room = needed.max(core.options.segment_bytes);
                    let new = core.create(self.writer, needed, room, purpose)?;
                    unfit.iter().for_each(|spare| core.files.remove(spare.of.number));
                    new
                }
            };
            core.view.write().hot.push(Hot {
                of: new.of,
                writer: self.writer,
                file: new.file.clone(),
                held: Arc::new(core.keeper.take_held()),
            });
            if let Some(old) = self.open.replace(new) {
                core.keeper.want(Chore::Seal(old.of.number));
            }
        }
        if let Some(open) = &mut self.open {
            let end = open.of.length + bytes;
            if end > open.reserved {
                let reserved = core.set_aside(&*open.file, open.reserved, end, open.room, purpose);
                open.reserved = reserved.inspect_err(|error| open.ends_at_a_limit(error))?;
            }
            if end > open.room / 2 {
                core.keeper.want(Chore::Spare(self.writer));
            }
        }
        Ok(())
    }

    /// Holds up everybody while too many segments wait for their index: the queues fill, and senders are told.
    fn wait_for_keeper(&self) -> io::Result<()> {
        let core = &self.core;
        let begun = Instant::now();
        core.keeper.seal_failed.store(false, Ordering::Relaxed);
        loop {
            let own = self.open.as_ref().map(|open| open.of.number);
            let full: Vec<u64> = {
                let view = core.view.read();
                let numbers = view.hot.iter().map(|hot| hot.of.number);
                numbers.filter(|number| Some(*number) != own).collect()
            };
            if full.len() < HOT_MAX {
                return Ok(());
            }
            if core.keeper.seal_failed.load(Ordering::Relaxed) || begun.elapsed() > KEEPER_PATIENCE {
                return Err(io::Error::other("segments can't be sealed"));
            }
            // Some that failed before may work now.
            full.iter()
                .for_each(|number| core.keeper.want(Chore::Seal(*number)));
            core.keeper.wait_for_sealing();
        }
    }

    /// A clean end: what was set aside is given back.
    fn close(&mut self) {
        if let Some(open) = self.open.take()
            && !self.core.health.has_failed()
            && let Err(error) = open
                .file
                .set_length(open.of.length)
                .and_then(|()| open.file.sync())
        {
            tracing::warn!(%error, "a segment could not be cut to what it holds");
        }
        self.core.synced.close();
    }
}

fn is_empty(batch: &AppendBatch) -> bool {
    batch.appends.is_empty() && batch.deletes.is_empty() && batch.usage.is_empty()
}

/// Nothing of an append that was not taken.
pub(super) fn refuse(done: Answer<()>) {
    done.give(Err(StoreError::NotCommitted));
}
