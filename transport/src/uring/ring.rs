//! One io_uring with a pool of receive slots, as operations that are safe to use: the only module of this crate that
//! may hold unsafe code. What has to be true for it:
//!
//! - *Memory the kernel reads* (payloads to send, their headers) is borrowed for a call that returns only when the
//!   kernel has answered every entry that names it ([`Ring::send_each`], [`Ring::call`]). Entries that were not
//!   submitted because the ring has failed are never submitted later: a failed ring is not entered again.
//! - *Memory the kernel writes* (the slots) belongs to the pool, is touched by nobody between its being provided and
//!   the completion that names it, and outlives the pool's registration.
//! - All other operations name no memory at all.

#![allow(unsafe_code)]

use crate::driver::UNSENT_BYTES;
use bytes::BytesMut;
use io_uring::types::{BufRingEntry, CancelBuilder, Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};
use std::alloc::{self, Layout};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// Entries submitted at a time.
const SUBMISSIONS: u32 = 1_024;
/// Completions the kernel can store before it has to keep them aside.
const COMPLETIONS: u32 = 8_192;
/// What a slot of new memory takes.
const SLOT_BYTES: usize = 16_384;
/// A slot is given to the kernel again and again, each time without what was received, down to this rest.
const REST_BYTES_MIN: usize = 4_096;
/// Slots of a pool that has not been short yet.
const SLOTS_MIN: usize = 64;
/// The most the kernel takes.
const SLOTS_MAX: usize = 32_768;
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
    headers: Vec<libc::msghdr>,
    enter_flags: u32,
}

// SAFETY: `headers` holds pointers only within `send_each`, and the pool's are to memory of its own; neither is tied to a
// thread. (The kernel takes entries from one thread only; another one's calls fail.)
unsafe impl std::marker::Send for Ring {}

impl Ring {
    /// A ring for this thread with room for so many files.
    pub(super) fn new(files: u32) -> io::Result<Self> {
        let uring: IoUring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_cqsize(COMPLETIONS)
            .build(SUBMISSIONS)?;
        let submitter = uring.submitter();
        submitter.register_files_sparse(files)?;
        let pool = Pool::new(files as usize)?;
        // SAFETY: the address is of that many entries, which live until the pool is unregistered: `Drop` does that
        // before it frees them.
        unsafe {
            submitter.register_buf_ring_with_flags(pool.entries.as_ptr() as u64, pool.len() as u16, POOL, 0)
        }?;
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
        };
        ring.pool.grow(SLOTS_MIN);
        Ok(ring)
    }

    /// Queues an entry that names no memory of ours.
    fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: such entries come from this module only, from the operations below.
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
            self.enter(COMPLETIONS as usize / 2, Some(gather))?;
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
        let seen = self.done.len();
        self.push(entry.user_data(AWAITED));
        self.await_last(AWAITED, seen)?.result()
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
        (self.pool.slots.len(), self.pool.renewed)
    }

    /// Makes the pool larger, up to `most` slots.
    pub(super) fn grow_pool(&mut self, most: usize) {
        let slots = self.pool.slots.len();
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
        let bytes = UNSENT_BYTES;
        let option = (libc::IPPROTO_TCP as u32, libc::TCP_NOTSENT_LOWAT as u32);
        let value = (&raw const bytes).cast();
        let set = opcode::SetSockOpt::new(
            Fixed(file.0),
            option.0,
            option.1,
            value,
            size_of_val(&bytes) as u32,
        );
        // Where the system can't, media waits longer behind a replay; nothing else changes.
        // SAFETY: `bytes` lives through the call.
        let _ = unsafe { self.call(set.build()) };
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
        const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        for batch in sends.chunks(SUBMISSIONS as usize / 2) {
            let first = sent.len();
            sent.extend(batch.iter().map(|_| Err(io::ErrorKind::BrokenPipe.into())));
            // Room for all of the batch, so that each entry can be queued and no header moves any more.
            while self.uring.submission().len() + batch.len() > SUBMISSIONS as usize {
                if self.enter(0, None).is_err() {
                    return;
                }
            }
            self.headers.clear();
            self.headers.reserve(batch.len());
            for (number, send) in batch.iter().enumerate() {
                let file = Fixed(send.file.0);
                let entry = match &slices[send.from..send.to] {
                    [one] => opcode::Send::new(file, one.as_ptr(), one.len() as u32)
                        .flags(FLAGS)
                        .build(),
                    many => {
                        // SAFETY: all-zero is a valid header: it names nothing.
                        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
                        // An `IoSlice` has the layout of an `iovec`, by its documentation.
                        header.msg_iov = many.as_ptr().cast_mut().cast();
                        header.msg_iovlen = many.len();
                        self.headers.push(header);
                        let header = self.headers.last().map_or(std::ptr::null(), std::ptr::from_ref);
                        opcode::SendMsg::new(file, header).flags(FLAGS as u32).build()
                    }
                };
                // SAFETY: the payloads and slices are borrowed until this returns and the headers are not touched until
                // then, and below it is waited for all completions of the batch; if the ring fails instead, what was
                // not submitted never is, and what was submitted is done: `MSG_DONTWAIT` forbids it to be put off.
                let queued = unsafe {
                    self.uring
                        .submission()
                        .push(&entry.user_data(AWAITED | number as Tag))
                };
                debug_assert!(queued.is_ok(), "room was made");
            }
            let (mut seen, mut left) = (self.done.len(), batch.len());
            let mut want = 0;
            while left > 0 && self.enter(want, None).is_ok() {
                // In one pass: what is not ours keeps its order.
                let mut kept = seen;
                for at in seen..self.done.len() {
                    let done = self.done[at];
                    if done.tag & AWAITED == AWAITED && done.tag != NOBODY {
                        let place = first + (done.tag & !AWAITED) as usize;
                        sent[place] = done.result().map(|bytes| bytes as usize);
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
        }
    }
}

/// Without a completion, unless it fails; and then nobody looks at it.
fn quietly(entry: squeue::Entry) -> squeue::Entry {
    entry.flags(squeue::Flags::SKIP_SUCCESS).user_data(NOBODY)
}

impl Drop for Ring {
    /// After this nothing is under way, so that the files are closed when it returns and not some time later.
    fn drop(&mut self) {
        let _ = self
            .uring
            .submitter()
            .register_sync_cancel(None, CancelBuilder::any());
        // Runs what the cancelled operations have left to do, such as letting go of their files.
        let _ = self.enter(0, None);
        let _ = self.uring.submitter().unregister_files();
        if self.uring.submitter().unregister_buf_ring(POOL).is_err() {
            // Never seen. The kernel may still write into it, so it is never freed.
            std::mem::forget(std::mem::replace(&mut self.pool, Pool::none()));
        }
    }
}

/// The slots that bytes are received into. Each is the free end of a buffer: what was received is split off and handed
/// on as it lies, the rest goes to the kernel again. When the rest is small, the slot gets its memory back if nobody
/// holds a piece of it any more, and new memory otherwise: so it never runs short for what others hold.
struct Pool {
    entries: NonNull<BufRingEntry>,
    layout: Layout,
    /// How many entries were ever written; also shared with the kernel.
    tail: u16,
    slots: Vec<BytesMut>,
    /// Slots whose rest is too small.
    spent: Vec<u16>,
    renewed: u64,
}

impl Pool {
    /// A pool for a ring of so many files, without slots yet. There is room for a slot for every eighth of them: that many
    /// would have to send within one turn to use them up.
    fn new(files: usize) -> io::Result<Self> {
        let entries = (files / 8).clamp(SLOTS_MIN, SLOTS_MAX).next_power_of_two();
        let layout = Layout::array::<BufRingEntry>(entries).and_then(|layout| layout.align_to(4_096));
        let layout = layout.map_err(io::Error::other)?;
        // SAFETY: the layout is not empty.
        let memory = unsafe { alloc::alloc_zeroed(layout) };
        let entries = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            entries,
            layout,
            tail: 0,
            slots: Vec::new(),
            spent: Vec::new(),
            renewed: 0,
        })
    }

    fn none() -> Self {
        Self {
            entries: NonNull::dangling(),
            layout: Layout::new::<()>(),
            tail: 0,
            slots: Vec::new(),
            spent: Vec::new(),
            renewed: 0,
        }
    }

    /// Entries of the ring.
    fn len(&self) -> usize {
        self.layout.size() / size_of::<BufRingEntry>()
    }

    /// Gives it `slots` slots in all, as far as there are entries for them.
    fn grow(&mut self, slots: usize) {
        while self.slots.len() < slots.min(self.len()) {
            self.slots.push(BytesMut::with_capacity(SLOT_BYTES));
            self.provide(self.slots.len() as u16 - 1);
        }
        self.publish();
    }

    /// Writes the entry for a slot: from now on the kernel's.
    fn provide(&mut self, slot: u16) {
        let place = self.tail as usize & (self.len() - 1);
        let free = self.slots[slot as usize].spare_capacity_mut();
        // SAFETY: the place is within the entries. There are at most as many slots as entries and each is provided once,
        // so the kernel has used the entry that is overwritten. Only its three fields are written; the tail shares
        // memory with a fourth one of the first entry.
        let entry = unsafe { &mut *self.entries.as_ptr().add(place) };
        entry.set_addr(free.as_mut_ptr() as u64);
        entry.set_len(free.len() as u32);
        entry.set_bid(slot);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Lets the kernel see the entries that were written.
    fn publish(&self) {
        // SAFETY: this is the first of the ring's entries, which are initialised; its tail is aligned and shared with the
        // kernel only, which reads it.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(self.entries.as_ptr()).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }

    /// The first `bytes` of a slot that the kernel has filled.
    fn take(&mut self, number: u16, bytes: usize) -> BytesMut {
        let Some(slot) = self.slots.get_mut(number as usize) else {
            return BytesMut::new();
        };
        debug_assert!(slot.is_empty() && bytes <= slot.capacity());
        let bytes = bytes.min(slot.capacity());
        // SAFETY: the kernel has written so many bytes to the free space that it was provided with, which is the slot's
        // from its start, and has said so; it will not touch them again.
        unsafe { slot.set_len(bytes) };
        let data = slot.split();
        if slot.capacity() < REST_BYTES_MIN {
            self.spent.push(number);
        } else {
            self.provide(number);
            self.publish();
        }
        data
    }

    /// Provides the slots that were spent.
    fn provide_again(&mut self) {
        if self.spent.is_empty() {
            return;
        }
        for number in std::mem::take(&mut self.spent) {
            let slot = &mut self.slots[number as usize];
            if !slot.try_reclaim(SLOT_BYTES) {
                *slot = BytesMut::with_capacity(SLOT_BYTES);
                self.renewed += 1;
            }
            self.provide(number);
        }
        self.publish();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.layout.size() > 0 {
            // SAFETY: allocated by `new` with this layout, and not registered any more.
            unsafe { alloc::dealloc(self.entries.as_ptr().cast(), self.layout) };
        }
    }
}
