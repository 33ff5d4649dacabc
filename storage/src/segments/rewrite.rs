//! Writing segments that hold what others hold already: a migration, a compaction. They count once the list of segments
//! names them, so until then nothing of them needs to be durable, and what a crash leaves of them is removed.

use super::disk::{DiskFile, write_paced};
use super::format::{Encoder, Kind, SEGMENT_HEAD, SegmentHead};
use super::index::{self, Held, Of, Summary};
use super::list::{REWRITTEN, State};
use super::ranges::Ranges;
use super::view::{Files, Sealed};
use crate::log::{Append, AppendBatch, StreamId};
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// Commits are as large as this: their size means nothing but how much is in memory.
const COMMIT_BYTES: usize = 2 << 20;

/// What is made durable at once where others must not wait long: they wait for the disk to be done with it.
const PIECE_BYTES: usize = 64 << 10;

/// Takes records in the order they shall lie in, and makes segments of them.
pub(super) struct Rewriter<'a> {
    files: &'a Arc<Files>,
    store: [u8; 16],
    segment_bytes: u64,
    /// Numbers for segments and commits.
    next_number: &'a dyn Fn() -> u64,
    next_lsn: &'a dyn Fn() -> u64,
    open: Option<Part>,
    pending: AppendBatch,
    pending_deletes: Vec<(StreamId, Ranges)>,
    pending_bytes: usize,
    encoder: Encoder,
    /// Called with the beginning of each piece that was made durable, to let others go first. Without it nothing is made
    /// durable before a segment is complete.
    rest: Option<&'a dyn Fn(Instant)>,
}

/// A segment in the making.
struct Part {
    of: Of,
    file: Arc<dyn DiskFile>,
    held: Held,
}

/// One that is complete and durable, with its index.
pub(super) struct Finished {
    pub(super) sealed: Sealed,
    pub(super) state: State,
}

impl<'a> Rewriter<'a> {
    pub(super) fn new(
        files: &'a Arc<Files>,
        store: [u8; 16],
        segment_bytes: u64,
        next_number: &'a dyn Fn() -> u64,
        next_lsn: &'a dyn Fn() -> u64,
        rest: Option<&'a dyn Fn(Instant)>,
    ) -> Self {
        Self {
            files,
            store,
            segment_bytes,
            next_number,
            next_lsn,
            open: None,
            pending: AppendBatch::default(),
            pending_deletes: Vec::new(),
            pending_bytes: 0,
            encoder: Encoder::default(),
            rest,
        }
    }

    /// Adds a record. A segment that became full is handed back.
    pub(super) fn add(&mut self, append: Append) -> io::Result<Option<Finished>> {
        self.pending_bytes += append.bytes.len() + 64;
        self.pending.appends.push(append);
        if self.pending_bytes < COMMIT_BYTES {
            return Ok(None);
        }
        self.flush()?;
        match &self.open {
            Some(part) if part.of.length >= self.segment_bytes => self.finish(),
            _ => Ok(None),
        }
    }

    /// Adds deletions of records that lie elsewhere.
    pub(super) fn delete(&mut self, stream: StreamId, ranges: Ranges) {
        self.pending_deletes.push((stream, ranges));
    }

    /// Ends the segment, if anything was added since the last one ended.
    pub(super) fn finish(&mut self) -> io::Result<Option<Finished>> {
        self.flush()?;
        let Some(part) = self.open.take() else {
            return Ok(None);
        };
        part.file.set_length(part.of.length)?;
        part.file.sync()?;
        let path = self.files.index_path(part.of.number);
        let bytes = index::encode(&part.held, &part.of);
        match self.rest {
            Some(rest) => index::write_paced(&*self.files.disk, &path, &bytes, PIECE_BYTES, rest)?,
            None => index::write(&*self.files.disk, &path, &bytes)?,
        }
        let index = self.files.disk.open(&path)?;
        let summary = Summary::read(&*index, &part.of)?.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "an index was just written and can't be read",
            )
        })?;
        let state = State::Sealed {
            writer: REWRITTEN,
            salt: part.of.salt,
            length: part.of.length,
            last_lsn: summary.last_lsn,
        };
        Ok(Some(Finished {
            sealed: Sealed::new(part.of, summary, self.files.clone()),
            state,
        }))
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.pending.appends.is_empty() && self.pending_deletes.is_empty() {
            return Ok(());
        }
        let batch = std::mem::take(&mut self.pending);
        let deletes = std::mem::take(&mut self.pending_deletes);
        self.pending_bytes = 0;
        let part = match &mut self.open {
            Some(part) => part,
            None => {
                let part = create(self.files, self.store, (self.next_number)())?;
                self.open.insert(part)
            }
        };
        let at = part.of.length;
        let contents = self
            .encoder
            .encode(&[&batch], deletes, part.of.salt, None, (self.next_lsn)(), at);
        match self.rest {
            Some(rest) => write_paced(&*part.file, &self.encoder.bytes, at, PIECE_BYTES, rest)?,
            None => part.file.write_at(&self.encoder.bytes, at)?,
        }
        part.of.length += self.encoder.bytes.len() as u64;
        part.held.add(&contents);
        self.encoder.recycle(contents);
        Ok(())
    }

    /// Removes what is not complete.
    pub(super) fn abandon(mut self) {
        if let Some(part) = self.open.take() {
            self.files.remove(part.of.number);
        }
    }
}

/// Nothing is set aside for it: where little is free, what it makes room for may need just that.
fn create(files: &Files, store: [u8; 16], number: u64) -> io::Result<Part> {
    let mut salt = [0; 8];
    getrandom::fill(&mut salt).map_err(io::Error::other)?;
    let head = SegmentHead {
        kind: Kind::Rewritten,
        store,
        number,
        writer: REWRITTEN as u32,
        salt: u64::from_le_bytes(salt),
    };
    let file = files.disk.create(&files.segment_path(number))?;
    // As with any segment, the header is durable before anything else is written: what a crash leaves can be told.
    file.write_at(&head.encode(), 0)?;
    file.sync()?;
    files.disk.sync_folder(&files.folder)?;
    Ok(Part {
        of: Of {
            store,
            number,
            salt: head.salt,
            length: SEGMENT_HEAD as u64,
        },
        file,
        held: Held::default(),
    })
}
