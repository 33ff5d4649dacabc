//! One io_uring with a pool of receive slots, as operations that are safe to use: with its pool the only module of this
//! crate that may hold unsafe code. What has to be true for it:
//!
//! - *Memory the kernel reads or writes during one call* (payloads to send and their headers, a descriptor's number) is
//!   borrowed for a call that returns only when the kernel has answered every entry that names it ([`Ring::send_each`],
//!   [`Ring::fix`]). Entries that were not submitted because the ring has failed are never submitted later: a failed
//!   ring is not entered again, and the end of a ring submits nothing. Nor can a panic leave such a call: it ends the
//!   process ([`NoWayOut`]).
//! - *Memory the kernel writes at any time* (the slots) belongs to the pool, is touched by nobody between its being
//!   provided and the completion that names it, and outlives the pool's registration.
//! - All other operations name no memory at all, or a static.

#![allow(unsafe_code)]

mod pool;

use crate::driver::UNSENT_BYTES;
use crate::locked;
use bytes::BytesMut;
use io_uring::types::{CancelBuilder, Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};
use pool::{Pool, SLOTS_MIN};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// The pool's number in its ring.
const POOL: u16 = 0;

/// Who an operation is done for: comes back with its completions.
pub(super) type Tag = u64;
/// Of operations whose completion is of no interest.
const NOBODY: Tag = u64::MAX;
/// Of operations that are waited for, with a number below this one's rest.
const AWAITED: Tag = 0xff << 56;

/// A file of the ring: no descriptor of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct File(u32);

/// Something was done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) tag: Tag,
    /// The system call's result.
    result: i32,
    flags: u32,
}

impl Done {
    /// What the system call would have returned.
    pub(super) fn result(&self) -> io::Result<u32> {
        u32::try_from(self.result).map_err(|_| io::Error::from_raw_os_error(-self.result))
    }

    /// Whether the operation goes on and more completions come.
    pub(super) fn goes_on(&self) -> bool {
        cqueue::more(self.flags)
    }
}

/// What is to be sent on one file: a range of the slices that go with it.
pub(super) struct Send {
    pub(super) file: File,
    pub(super) from: usize,
    pub(super) to: usize,
}

/// See the module.
pub(super) struct Ring {
    // Dropped before the pool.
    uring: IoUring,
    pool: Pool,
    done: VecDeque<Done>,
    /// Entering failed in a way that leaves unknown what is still queued.
    has_failed: bool,
    /// Valid within [`Ring::send_each`] only.
    headers: Vec<libc::msghdr>,
    enter_flags: u32,
    sizes: Sizes,
}

/// How much a ring holds at a time. Nothing is lost beyond that, but it takes more system calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Entries submitted at a time, a power of two.
    pub(super) submissions: u32,
    /// Completions the kernel can store before it has to keep them aside, a power of two.
    pub(super) completions: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            submissions: 1_024,
            completions: 8_192,
        }
    }
}

/// Held while the kernel may know of memory that is borrowed: leaving that by a panic ends the process.
struct NoWayOut;

impl Drop for NoWayOut {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl Ring {
    /// A ring for this thread with room for so many files.
    pub(super) fn new(files: u32, sizes: Sizes) -> io::Result<Self> {
        locked::make(|| Self::attempt(files, sizes))
    }

    fn attempt(files: u32, sizes: Sizes) -> io::Result<Self> {
        let uring: IoUring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_cqsize(sizes.completions)
            .build(sizes.submissions)?;
        let submitter = uring.submitter();
        submitter.register_files_sparse(files)?;
        let pool = Pool::new(files as usize)?;
        // SAFETY: the address is of that many entries, which live until the pool is unregistered: `Drop` does that
        // before it frees them.
        unsafe { submitter.register_buf_ring_with_flags(pool.address(), pool.len() as u16, POOL, 0) }?;
        let mut enter_flags = EnterFlags::EXT_ARG;
        if uring.params().is_feature_no_iowait() {
            // A ring that waits for its peers is idle, not busy with a disk.
            enter_flags |= EnterFlags::NO_IOWAIT;
        }
        let mut ring = Self {
            uring,
            pool,
            done: VecDeque::new(),
            has_failed: false,
            headers: Vec::new(),
            enter_flags: enter_flags.bits(),
            sizes,
        };
        ring.pool.grow(SLOTS_MIN);
        Ok(ring)
    }

    /// Queues an entry, which names no memory of ours unless [`Ring::call`] waits for it.
    fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: entries come from this module only, from the operations below.
        while unsafe { self.uring.submission().push(&entry) }.is_err() {
            if self.enter(0, None).is_err() {
                return;
            }
        }
    }

    /// Submits what is queued and waits for `want` completions beyond those that were taken off the ring; takes off
    /// what there is then.
    fn enter(&mut self, want: usize, timeout: Option<Duration>) -> io::Result<()> {
        if self.has_failed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let queued = self.uring.submission().len();
        let timespec = timeout.map(Timespec::from);
        let mut args = SubmitArgs::new();
        if let Some(timespec) = &timespec {
            args = args.timespec(timespec);
        }
        let flags = self.enter_flags | EnterFlags::GETEVENTS.bits();
        let submitter = self.uring.submitter();
        // SAFETY: the flags say that the argument is such a `SubmitArgs`, and it lives through the call. What the
        // entries name does, see the module.
        let entered = unsafe { submitter.enter(queued as u32, want as u32, flags, Some(&args)) };
        self.done.extend(self.uring.completion().map(|entry| Done {
            tag: entry.user_data(),
            result: entry.result(),
            flags: entry.flags(),
        }));
        match entered {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // The time is over; a signal; the kernel wants its completions taken, or is short of memory.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => {
                    self.has_failed = true;
                    Err(error)
                }
            },
        }
    }

    /// Submits what is queued; gathers completions for the time of `gather`, then waits for one until `timeout` is
    /// over. If there is one already it only gathers.
    pub(super) fn wait(&mut self, gather: Duration, timeout: Option<Duration>) -> io::Result<()> {
        self.pool.provide_again();
        if !gather.is_zero() {
            // Not by the kernel's own `min_wait`: on Linux 6.18 a wait with it slept on now and then, with completions in
            // the ring.
            self.enter(self.sizes.completions as usize / 2, Some(gather))?;
        }
        let is_idle = self.done.is_empty() && self.uring.completion().is_empty();
        match is_idle && timeout != Some(Duration::ZERO) {
            true => self.enter(1, timeout),
            false if gather.is_zero() => self.enter(0, None),
            false => Ok(()),
        }
    }

    /// What was done, one thing at a time.
    pub(super) fn next(&mut self) -> Option<Done> {
        loop {
            let done = self.done.pop_front()?;
            if done.tag != NOBODY {
                return Some(done);
            }
        }
    }

    /// Does something that the kernel does at once, and waits for its result.
    ///
    /// # Safety
    /// What the entry names must be valid until this returns.
    unsafe fn call(&mut self, entry: squeue::Entry) -> io::Result<u32> {
        let no_way_out = NoWayOut;
        let seen = self.done.len();
        self.push(entry.user_data(AWAITED));
        let last = self.await_last(AWAITED, seen);
        mem::forget(no_way_out);
        last?.result()
    }

    /// Waits for the last completion with this tag, which is not among the first `seen` that are there. Others are kept,
    /// in order.
    fn await_last(&mut self, tag: Tag, mut seen: usize) -> io::Result<Done> {
        self.enter(0, None)?;
        loop {
            while let Some(done) = self.done.get(seen).copied() {
                if done.tag == tag && !done.goes_on() {
                    self.done.remove(seen);
                    return Ok(done);
                }
                seen += 1;
            }
            self.enter(1, None)?;
        }
    }

    /// Accepts connections into files of the ring, one completion each.
    pub(super) fn accept(&mut self, listener: &TcpListener, tag: Tag) {
        let accept = opcode::AcceptMulti::new(Fd(listener.as_raw_fd())).allocate_file_index(true);
        self.push(accept.build().user_data(tag));
    }

    /// The file of an accept's completion.
    pub(super) fn accepted(done: &Done) -> io::Result<File> {
        done.result().map(File)
    }

    /// Tells when the descriptor can be read: at once if it can, and whenever more comes.
    pub(super) fn watch(&mut self, descriptor: &OwnedFd, tag: Tag) {
        let poll = opcode::PollAdd::new(Fd(descriptor.as_raw_fd()), libc::POLLIN as u32).multi(true);
        self.push(poll.build().user_data(tag));
    }

    /// Receives into slots of the pool, one completion each ([`Ring::received`]).
    pub(super) fn receive(&mut self, file: File, tag: Tag) {
        self.push(opcode::RecvMulti::new(Fixed(file.0), POOL).build().user_data(tag));
    }

    /// Receives once into a slot of the pool.
    pub(super) fn receive_once(&mut self, file: File, tag: Tag) {
        // No length: as much as the slot takes.
        let receive = opcode::Recv::new(Fixed(file.0), std::ptr::null_mut(), 0).buf_group(POOL);
        self.push(receive.build().flags(squeue::Flags::BUFFER_SELECT).user_data(tag));
    }

    /// The bytes of a receive's completion.
    pub(super) fn received(&mut self, done: &Done) -> Option<BytesMut> {
        let slot = cqueue::buffer_select(done.flags)?;
        Some(self.pool.take(slot, done.result.max(0) as usize))
    }

    /// Slots there are, and how often one got new memory.
    pub(super) fn slots(&self) -> (usize, u64) {
        self.pool.counts()
    }

    /// Makes the pool larger, up to `most` slots.
    pub(super) fn grow_pool(&mut self, most: usize) {
        let (slots, _) = self.pool.counts();
        self.pool.grow((slots * 2).min(most.max(slots)));
    }

    /// Tells once when the file can be written to.
    pub(super) fn await_writable(&mut self, file: File, tag: Tag) {
        let poll = opcode::PollAdd::new(Fixed(file.0), libc::POLLOUT as u32);
        self.push(poll.build().user_data(tag));
    }

    /// Ends the operation with this tag, which still has its last completion.
    pub(super) fn cancel(&mut self, tag: Tag) {
        self.push(quietly(opcode::AsyncCancel::new(tag).build()));
    }

    /// Ends the operation with this tag and waits until it has. Its completions are kept, in order, but for the last
    /// if that says no more than that it was ended.
    pub(super) fn cancel_now(&mut self, tag: Tag) -> io::Result<()> {
        self.cancel(tag);
        // The last completion may be there already.
        let is_last = |done: &Done| done.tag == tag && !done.goes_on();
        if self.done.iter().any(is_last) {
            return Ok(());
        }
        let last = self.await_last(tag, self.done.len())?;
        if last.result != -libc::ECANCELED {
            self.done.push_back(last);
        }
        Ok(())
    }

    /// Takes all completions with this tag out of those that were not looked at.
    pub(super) fn take_all(&mut self, tag: Tag, mut each: impl FnMut(&mut Self, Done)) {
        for _ in 0..self.done.len() {
            let Some(done) = self.done.pop_front() else { return };
            if done.tag == tag {
                each(self, done);
            } else {
                self.done.push_back(done);
            }
        }
    }

    /// Keeps what the system holds unsent of this socket short.
    pub(super) fn keep_unsent_short(&mut self, file: File) {
        static VALUE: u32 = UNSENT_BYTES;
        let option = (libc::IPPROTO_TCP as u32, libc::TCP_NOTSENT_LOWAT as u32);
        let value = (&raw const VALUE).cast();
        let set = opcode::SetSockOpt::new(
            Fixed(file.0),
            option.0,
            option.1,
            value,
            size_of_val(&VALUE) as u32,
        );
        // Where the system can't, media waits longer behind a replay; nothing else changes.
        self.push(quietly(set.build()));
    }

    /// Ends the direction of a socket that we write. With a plain call: the ring's own shutdown is put off to another
    /// thread, which looks the file up when it gets to it and may find that of another connection.
    pub(super) fn end_write(&mut self, file: File) -> io::Result<()> {
        TcpStream::from(self.install(file)?).shutdown(Shutdown::Write)
    }

    /// Closes. An operation under way on the file keeps it open until it has ended.
    pub(super) fn close(&mut self, file: File) {
        self.push(quietly(opcode::Close::new(Fixed(file.0)).build()));
    }

    /// Puts a descriptor into the table of files.
    pub(super) fn fix(&mut self, descriptor: OwnedFd) -> io::Result<File> {
        let mut number: RawFd = descriptor.as_raw_fd();
        let anywhere = -1; // IORING_FILE_INDEX_ALLOC
        let entry = opcode::FilesUpdate::new(&raw mut number, 1).offset(anywhere);
        // SAFETY: `number` lives through the call; the kernel writes the file's place into it.
        unsafe { self.call(entry.build()) }?;
        Ok(File(number as u32))
    }

    /// A descriptor for a file, which stays in the table too.
    pub(super) fn install(&mut self, file: File) -> io::Result<OwnedFd> {
        let cloexec = 0;
        // SAFETY: the entry names no memory.
        let number = unsafe { self.call(opcode::FixedFdInstall::new(Fixed(file.0), cloexec).build()) }?;
        // SAFETY: the kernel has just made this descriptor for us, and nobody else knows its number.
        Ok(unsafe { OwnedFd::from_raw_fd(number as RawFd) })
    }

    /// Sends on several files with as few system calls as possible what their sockets take at once. `sent` gets the
    /// results in order.
    pub(super) fn send_each(
        &mut self,
        sends: &[Send],
        slices: &[IoSlice<'_>],
        sent: &mut Vec<io::Result<usize>>,
    ) {
        for batch in sends.chunks(self.sizes.submissions as usize / 2) {
            let first = sent.len();
            sent.extend(batch.iter().map(|_| Err(io::ErrorKind::BrokenPipe.into())));
            // Room for all of the batch, so that each entry can be queued.
            while !self.has_failed && self.room() < batch.len() {
                let _ = self.enter(0, None);
            }
            if !self.has_failed {
                self.send_batch(batch, slices, &mut sent[first..]);
            }
        }
    }

    /// Entries that can be queued.
    fn room(&mut self) -> usize {
        let submission = self.uring.submission();
        submission.capacity() - submission.len()
    }

    fn send_batch(&mut self, batch: &[Send], slices: &[IoSlice<'_>], sent: &mut [io::Result<usize>]) {
        const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let no_way_out = NoWayOut;
        self.headers.clear();
        // No header moves any more once an entry names it.
        self.headers.reserve(batch.len());
        let mut left = 0;
        for (number, send) in batch.iter().enumerate() {
            let file = Fixed(send.file.0);
            let entry = match &slices[send.from..send.to] {
                [one] => opcode::Send::new(file, one.as_ptr(), one.len() as u32)
                    .flags(FLAGS)
                    .build(),
                many => {
                    // SAFETY: all-zero is a valid header: it names nothing.
                    let mut header: libc::msghdr = unsafe { mem::zeroed() };
                    // An `IoSlice` has the layout of an `iovec`, by its documentation.
                    header.msg_iov = many.as_ptr().cast_mut().cast();
                    header.msg_iovlen = many.len();
                    self.headers.push(header);
                    let header = self.headers.last().map_or(std::ptr::null(), std::ptr::from_ref);
                    opcode::SendMsg::new(file, header).flags(FLAGS as u32).build()
                }
            };
            let entry = entry.user_data(AWAITED | number as Tag);
            // SAFETY: the payloads and slices are borrowed until this returns and the headers are not touched until then,
            // and below it is waited for all completions; if the ring fails instead, what was not submitted never is,
            // and what was submitted is done: `MSG_DONTWAIT` forbids the kernel to put it off.
            let queued = unsafe { self.uring.submission().push(&entry) };
            left += usize::from(queued.is_ok());
        }
        let mut seen = self.done.len();
        let mut want = 0;
        while left > 0 && self.enter(want, None).is_ok() {
            // In one pass: what is not ours keeps its order.
            let mut kept = seen;
            for at in seen..self.done.len() {
                let done = self.done[at];
                if done.tag & AWAITED == AWAITED && done.tag != NOBODY {
                    sent[(done.tag & !AWAITED) as usize] = done.result().map(|bytes| bytes as usize);
                    left -= 1;
                } else {
                    self.done[kept] = done;
                    kept += 1;
                }
            }
            self.done.truncate(kept);
            seen = kept;
            want = 1;
        }
        mem::forget(no_way_out);
    }
}

/// Without a completion, unless it fails; and then nobody looks at it.
fn quietly(entry: squeue::Entry) -> squeue::Entry {
    entry.flags(squeue::Flags::SKIP_SUCCESS).user_data(NOBODY)
}

impl Drop for Ring {
    /// After this nothing is under way, so that the files are closed when it returns and not some time later.
    fn drop(&mut self) {
        let submitter = self.uring.submitter();
        let _ = submitter.register_sync_cancel(None, CancelBuilder::any());
        // Runs what the cancelled operations have left to do, such as letting go of their files. Submits nothing.
        let args = SubmitArgs::new();
        let flags = self.enter_flags | EnterFlags::GETEVENTS.bits();
        // SAFETY: as in `enter`.
        let _ = unsafe { submitter.enter(0, 0, flags, Some(&args)) };
        let _ = submitter.unregister_files();
        if submitter.unregister_buf_ring(POOL).is_err() {
            // Never seen. The kernel may still write into it, so it is never freed.
            mem::forget(mem::replace(&mut self.pool, Pool::none()));
        }
    }
}
