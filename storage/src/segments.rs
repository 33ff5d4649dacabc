//! The envelope log: append-only segments of our own, durable at the speed of the disk.
//!
//! docs/storage-format.md describes the files. Everything that is asked for becomes part of a commit in the segment that
//! is being written; a full segment gets an index file; the list of segments lies in the control store.
//!
//! | Module | Story |
//! | --- | --- |
//! | `format` | the bytes of a segment |
//! | `index` | the bytes of an index, and finding in it |
//! | `ranges` | sets of numbers |
//! | `disk` | the border to the file system |
//! | `synced` | the last commits known to be durable, kept outside the segments |
//! | `list` | the list of segments in the control store |
//! | `look` | what a closed log holds, and whether that is all |
//! | `recover` | opening |
//! | `view` | what is visible |
//! | `committer` | the threads that write |
//! | `find` | reading |
//! | `keeper` | sealing, and what else nobody waits for |
//! | `compact` | getting the room of deleted records back |
//! | `rewrite` | making segments of what others hold |
//! | `snapshot` | a copy of it, made while it is in use |
//! | `verify` | looking at every byte |
//! | `salvage` | saving what is intact |
//! | `import` | filling a log from another store |

mod committer;
mod compact;
pub(crate) mod disk;
mod find;
mod format;
pub(crate) mod import;
mod index;
mod keeper;
mod list;
mod look;
mod ranges;
mod recover;
mod rewrite;
pub(crate) mod salvage;
pub(crate) mod snapshot;
mod synced;
#[cfg(test)]
mod tests;
pub(crate) mod verify;
mod view;

use self::committer::{Committer, Open};
use self::disk::{Disk, DiskFile};
use self::find::Finder;
use self::format::{Encoder, Kind, SEGMENT_HEAD, SegmentHead, batch_bytes};
use self::index::Of;
use self::keeper::{Chore, Keeper};
pub(crate) use self::list::PARTITION;
use self::synced::Synced;
use self::view::Files;
use crate::answer::{Answer, guarded};
use crate::control::ControlStore;
use crate::embedded::OpenError;
use crate::handoff::{Handoff, Parked};
use crate::health::Health;
use crate::log::{AppendBatch, IndexEntry, Record, StreamId};
use crate::{Done, RealmId, StoreError};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

/// Requests waiting; more are refused as not committed. Each shard has a few under way.
pub(crate) const REQUESTS_MAX: usize = 4096;
/// Bytes waiting in all of them.
const WAITING_BYTES_MAX: usize = 256 << 20;
/// Reads waiting; more are refused. A realm asks for one page per subscriber that catches up.
const READS_MAX: usize = 4096;
/// A segment gets all its room at once where this many times as much is free, or else this part of what is free.
const STEP_PART: u64 = 4;
/// Reader threads.
const READERS: usize = 2;

/// How a log is set up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Room of a segment.
    pub(crate) segment_bytes: u64,
    /// What is kept free on the disk: with less, no records are taken. Deletions are, down to the half of it: they make
    /// room again.
    pub(crate) reserve_bytes: u64,
    /// Threads that write.
    pub(crate) writers: usize,
}

/// What room is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// A commit that holds records.
    Records,
    /// One that only deletes.
    Deletions,
}

/// An append that waits.
struct Request {
    batch: AppendBatch,
    done: Answer<()>,
    bytes: usize,
}

/// The requests to one writer.
struct Writer {
    requests: Handoff<Request, Parked>,
    waiting_bytes: AtomicUsize,
}

impl Writer {
    fn release(&self, bytes: usize) {
        self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A read, and where its answer goes. Without a finder it answers that it was not taken.
type Job = Box<dyn FnOnce(Option<&Finder>) + Send>;

/// What the threads share.
struct Core {
    options: Options,
    store: [u8; 16],
    files: Arc<Files>,
    control: Arc<dyn ControlStore>,
    view: Arc<view::Shared>,
    synced: Synced,
    writers: Vec<Writer>,
    keeper: Keeper,
    jobs: Handoff<Job, Parked>,
    finder: Finder,
    health: Health,
    /// A write failed, and none has worked since.
    is_down: AtomicBool,
    /// A record that was asked for can't be read.
    is_damaged: AtomicBool,
    next_number: AtomicU64,
    next_lsn: AtomicU64,
    /// See [`SegmentLog::first_seq`].
    first_seq: u64,
    closed: AtomicBool,
    chores_closed: AtomicBool,
    jobs_closed: AtomicBool,
}

impl Core {
    fn closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn chores_closed(&self) -> bool {
        self.chores_closed.load(Ordering::Acquire)
    }

    fn next_lsn(&self) -> u64 {
        self.next_lsn.fetch_add(1, Ordering::Relaxed)
    }

    fn has_room(&self, purpose: Purpose) -> bool {
        let free = self.files.disk.free_bytes(&self.files.folder);
        // Where the file system does not say, writing will tell.
        free.is_none_or(|free| free >= self.kept_free(purpose))
    }

    fn kept_free(&self, purpose: Purpose) -> u64 {
        match purpose {
            Purpose::Records => self.options.reserve_bytes,
            Purpose::Deletions => self.options.reserve_bytes / 2,
        }
    }

    /// Sets room aside in a file that has `reserved` bytes: up to `wanted` in all, `needed` at least. Answers how many
    /// it has then. Where little is free it takes small steps, so that what is kept free stays so and nothing is
    /// withheld from others that is not needed yet.
    fn set_aside(
        &self,
        file: &dyn DiskFile,
        reserved: u64,
        needed: u64,
        wanted: u64,
        purpose: Purpose,
    ) -> io::Result<u64> {
        let needed = needed.saturating_sub(reserved);
        let mut step = wanted.saturating_sub(reserved).max(needed);
        // Where the file system does not say, writing will tell.
        if let Some(free) = self.files.disk.free_bytes(&self.files.folder) {
            let usable = free.saturating_sub(self.kept_free(purpose));
            if usable < needed {
                let what = "less is free than what is kept free";
                return Err(io::Error::new(io::ErrorKind::StorageFull, what));
            }
            step = step.min((usable / STEP_PART).max(needed));
        }
        match file.reserve(reserved + step) {
            Ok(()) => Ok(reserved + step),
            // A quota or a limit, of which nothing is known here.
            Err(_) if needed < step => file.reserve(reserved + needed).map(|()| reserved + needed),
            Err(error) => Err(error),
        }
    }

    /// Nothing was written, because of this.
    fn note_refusal(&self, error: &io::Error) {
        if !self.is_down.swap(true, Ordering::Relaxed) {
            let reserve_bytes = self.options.reserve_bytes;
            self.keeper.retry_spares();
            tracing::error!(%error, reserve_bytes, "a write failed: the log takes nothing until one works again");
        }
    }

    /// Something was written.
    fn note_success(&self) {
        if self.is_down.load(Ordering::Relaxed) && self.is_down.swap(false, Ordering::Relaxed) {
            tracing::info!("writes to the log work again");
        }
    }

    /// Makes a new segment for `room` bytes, of which `needed` are set aside at least.
    fn create(&self, writer: usize, needed: u64, room: u64, purpose: Purpose) -> io::Result<Open> {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let mut salt = [0; 8];
        getrandom::fill(&mut salt).map_err(io::Error::other)?;
        let head = SegmentHead {
            kind: Kind::Written,
            store: self.store,
            number,
            writer: writer as u32,
            salt: u64::from_le_bytes(salt),
        };
        let path = self.files.segment_path(number);
        let made = self.files.disk.create(&path).and_then(|file| {
            let reserved = self.set_aside(&*file, 0, needed, room, purpose)?;
            file.write_at(&head.encode(), 0)?;
            file.sync()?;
            self.files.disk.sync_folder(&self.files.folder)?;
            Ok((file, reserved))
        });
        let (file, reserved) = made.inspect_err(|_| {
            // Half of a file is found and removed at the next start otherwise.
            let _ = self.files.disk.remove(&path);
        })?;
        Ok(Open {
            of: Of {
                store: self.store,
                number,
                salt: head.salt,
                length: SEGMENT_HEAD as u64,
            },
            file,
            room,
            reserved,
            entries: 0,
            is_torn: false,
        })
    }
}

/// The log. Closed when it is dropped: what was handed over is finished and answered, then the threads end. To be closed
/// outside of an answer: there, the threads can't be waited for.
pub(crate) struct SegmentLog {
    core: Arc<Core>,
    committers: Vec<JoinHandle<()>>,
    keeper: Option<JoinHandle<()>>,
    readers: Vec<JoinHandle<()>>,
}

impl SegmentLog {
    /// Makes the files of an empty log in an empty folder.
    pub(crate) fn create(disk: &dyn Disk, folder: &Path, store: &[u8; 16]) -> io::Result<()> {
        Synced::create(disk, folder, store)?;
        disk.sync_folder(folder)
    }

    /// Opens a log. `control` has its list of segments.
    ///
    /// # Errors
    /// See [`OpenError`]. Nothing that could not be read is ever deleted or rewritten.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        folder: &Path,
        store: [u8; 16],
        control: Arc<dyn ControlStore>,
        options: Options,
    ) -> Result<Self, OpenError> {
        let files = Arc::new(Files::new(disk, folder));
        let recovered = recover::recover(&files, &*control, store)?;
        let view = Arc::new(view::Shared::new(recovered.view));
        let core = Arc::new(Core {
            options,
            store,
            files,
            control,
            finder: Finder::new(view.clone()),
            view,
            synced: recovered.synced,
            writers: (0..options.writers)
                .map(|_| Writer {
                    requests: Handoff::new(REQUESTS_MAX, [Parked::default()]),
                    waiting_bytes: AtomicUsize::new(0),
                })
                .collect(),
            keeper: Keeper::new(options.writers),
            jobs: Handoff::new(READS_MAX, (0..READERS).map(|_| Parked::default())),
            health: Health::new(),
            is_down: AtomicBool::new(false),
            is_damaged: AtomicBool::new(false),
            next_number: AtomicU64::new(recovered.next_number),
            next_lsn: AtomicU64::new(recovered.next_lsn),
            first_seq: recovered.first_seq,
            closed: AtomicBool::new(false),
            chores_closed: AtomicBool::new(false),
            jobs_closed: AtomicBool::new(false),
        });
        // What is gone on with keeps its place; everything else that is not sealed gets its index now.
        let mut open = recovered.open;
        let mut opened = Vec::with_capacity(options.writers);
        for writer in 0..options.writers {
            opened.push(open.remove(&writer).and_then(|number| reopen(&core, number)));
        }
        let kept: Vec<u64> = opened.iter().flatten().map(|open| open.of.number).collect();
        for hot in &core.view.read().hot {
            if !kept.contains(&hot.of.number) {
                core.keeper.want(Chore::Seal(hot.of.number));
            }
        }
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            thread::Builder::new()
                .name(name.into())
                .spawn(run)
                .map_err(|e| recover::io_error(folder, e))
        };
        // From here on, dropping `log` ends the threads that were started.
        let mut log = Self {
            core: core.clone(),
            committers: Vec::new(),
            keeper: None,
            readers: Vec::new(),
        };
        for reader in 0..READERS {
            let core = core.clone();
            log.readers
                .push(spawn("drover-read", Box::new(move || read(&core, reader)))?);
        }
        let keeper = core.clone();
        log.keeper = Some(spawn("drover-keeper", Box::new(move || keeper::run(&keeper)))?);
        for (writer, open) in opened.into_iter().enumerate() {
            let committer = Committer {
                core: core.clone(),
                writer,
                open,
                last_lsn: recovered.found[writer],
                encoder: Encoder::default(),
            };
            log.committers
                .push(spawn("drover-log", Box::new(move || committer.run()))?);
        }
        Ok(log)
    }

    /// The number a stream's next record gets at least, whatever the stream holds: a repair may have lost records, and
    /// their numbers are not given again. 0 if there was none.
    pub(crate) fn first_seq(&self) -> u64 {
        self.core.first_seq
    }

    /// What is wrong, for an operator.
    pub(crate) fn ailment(&self) -> Option<&'static str> {
        let core = &self.core;
        let is = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        if core.health.has_failed() {
            return Some("a sync failed: it takes nothing until it is restarted");
        }
        if core.health.is_stuck() {
            return Some("a commit is stuck");
        }
        if !core.has_room(Purpose::Records) {
            // Nobody sends to a relay that is not ready: what can be got back is looked for now.
            core.keeper.want(Chore::Tidy);
            return Some("too little is free on its disk");
        }
        if is(&core.is_down) {
            // Nobody sends to a relay that is not ready, so no commit would ever find out that one works again.
            core.keeper.want(Chore::Spare(0));
            return Some("a write failed: it takes nothing until one works again");
        }
        is(&core.is_damaged).then_some("a record is damaged")
    }

    /// Whether nothing is taken until the next start: a write or a sync failed, and what was written of it is known only
    /// then. A full disk is not of this kind.
    pub(crate) fn has_failed(&self) -> bool {
        self.core.health.has_failed()
    }

    fn ask<T: 'static>(
        &self,
        read: impl FnOnce(&Finder) -> Result<T, StoreError> + Send + 'static,
        done: Done<T>,
    ) {
        let core = self.core.clone();
        let job: Job = Box::new(move |finder| {
            let result = match finder {
                Some(finder) => {
                    catch_unwind(AssertUnwindSafe(|| read(finder))).unwrap_or(Err(StoreError::Damaged))
                }
                None => Err(StoreError::NotCommitted),
            };
            if matches!(result, Err(StoreError::Damaged)) {
                core.is_damaged.store(true, Ordering::Relaxed);
            }
            drop(core);
            done(result);
        });
        if let Err(job) = self.core.jobs.push(job) {
            job(None);
        }
    }
}

/// Makes a recovered segment ready to be gone on with, unless it is nearly full.
fn reopen(core: &Core, number: u64) -> Option<Open> {
    let view = core.view.read();
    let hot = view.hot.iter().find(|hot| hot.of.number == number)?;
    let room = core.options.segment_bytes;
    if hot.of.length * 4 > room * 3 {
        return None;
    }
    let length = hot.file.length();
    let reserved = length.inspect_err(|error| tracing::warn!(%error, "a segment can't be gone on with"));
    Some(Open {
        of: hot.of,
        file: hot.file.clone(),
        room,
        reserved: reserved.ok()?,
        entries: hot.held.entries,
        is_torn: false,
    })
}

/// One reader's life.
fn read(core: &Core, reader: usize) {
    core.jobs.waker(reader).register();
    while let Some(job) = core
        .jobs
        .pop_wait(reader, || core.jobs_closed.load(Ordering::Acquire))
    {
        guarded("an answer to a read", || job(Some(&core.finder)));
    }
}

impl Drop for SegmentLog {
    fn drop(&mut self) {
        let join = |handle: JoinHandle<()>| {
            // A thread that drops the last clone itself, in an answer, ends on its own.
            if handle.thread().id() != thread::current().id() && handle.join().is_err() {
                tracing::error!("a thread of the log panicked");
            }
        };
        let core = &self.core;
        core.closed.store(true, Ordering::Release);
        core.writers.iter().for_each(|writer| writer.requests.wake_all());
        self.committers.drain(..).for_each(join);
        core.chores_closed.store(true, Ordering::Release);
        core.keeper.chores.wake_all();
        self.keeper.take().into_iter().for_each(join);
        core.jobs_closed.store(true, Ordering::Release);
        core.jobs.wake_all();
        self.readers.drain(..).for_each(join);
    }
}

/// As in [`crate::log::LogStore`].
impl SegmentLog {
    pub(crate) fn append(&self, batch: AppendBatch, done: Done<()>) {
        let done = Answer::new(done);
        let bytes = batch_bytes(&batch);
        // One writer for now: it commits what all shards hand over with one sync.
        let writer = &self.core.writers[0];
        if writer.waiting_bytes.fetch_add(bytes, Ordering::Relaxed) > WAITING_BYTES_MAX {
            writer.release(bytes);
            return committer::refuse(done);
        }
        if let Err(request) = writer.requests.push(Request { batch, done, bytes }) {
            writer.release(bytes);
            committer::refuse(request.done);
        }
    }

    pub(crate) fn index(&self, stream: StreamId, done: Done<Vec<IndexEntry>>) {
        self.ask(move |finder| finder.index(stream), done);
    }

    pub(crate) fn read(
        &self,
        stream: StreamId,
        from: u64,
        records_max: usize,
        bytes_max: usize,
        done: Done<Vec<Record>>,
    ) {
        self.ask(
            move |finder| finder.read(stream, from, records_max, bytes_max),
            done,
        );
    }

    pub(crate) fn read_seqs(
        &self,
        stream: StreamId,
        seqs: Vec<u64>,
        bytes_max: usize,
        done: Done<Vec<Record>>,
    ) {
        self.ask(move |finder| finder.read_seqs(stream, &seqs, bytes_max), done);
    }

    pub(crate) fn usage(&self, realm: RealmId, done: Done<u64>) {
        let known = self.core.view.read().usage.get(&realm).map(|(_, bytes)| *bytes);
        match known {
            Some(bytes) => self.ask(move |_| Ok(bytes), done),
            None => list::usage(&*self.core.control, &realm, done),
        }
    }
}
