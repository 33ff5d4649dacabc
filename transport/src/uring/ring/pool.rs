//! The slots that bytes are received into, shared with the kernel. Each is the free end of a buffer: what was received is
//! split off and handed on as it lies, the rest goes to the kernel again. When the rest is small, the slot gets its memory
//! back if nobody holds a piece of it any more, and new memory otherwise: so it never runs short for what others hold.
//!
//! A slot is always in one place: provided (the kernel may write to its free space and we don't look at it), in the hand
//! of [`Pool::take`], or spent. The kernel takes slots from the front of the entries (its head, which we never see) and
//! gives each back with the completion that names it.

use bytes::BytesMut;
use io_uring::types::BufRingEntry;
use std::alloc::{self, Layout};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

/// What a slot of new memory takes.
const SLOT_BYTES: usize = 16_384;
/// A slot is given to the kernel again and again, each time without what was received, down to this rest.
const REST_BYTES_MIN: usize = 4_096;
/// Slots of a pool that has not been short yet.
pub(super) const SLOTS_MIN: usize = 64;
/// The most the kernel takes.
const SLOTS_MAX: usize = 32_768;

/// See the module.
pub(super) struct Pool {
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
    pub(super) fn new(files: usize) -> io::Result<Self> {
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

    /// A pool of nothing, to put in a real one's place.
    pub(super) fn none() -> Self {
        Self {
            entries: NonNull::dangling(),
            layout: Layout::new::<()>(),
            tail: 0,
            slots: Vec::new(),
            spent: Vec::new(),
            renewed: 0,
        }
    }

    /// Where the entries lie, for the registration.
    pub(super) fn address(&self) -> u64 {
        self.entries.as_ptr() as u64
    }

    /// Slots there are, and how often one got new memory.
    pub(super) fn counts(&self) -> (usize, u64) {
        (self.slots.len(), self.renewed)
    }

    /// Entries of the ring.
    pub(super) fn len(&self) -> usize {
        self.layout.size() / size_of::<BufRingEntry>()
    }

    /// Gives it `slots` slots in all, as far as there are entries for them.
    pub(super) fn grow(&mut self, slots: usize) {
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
    pub(super) fn take(&mut self, number: u16, bytes: usize) -> BytesMut {
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
    pub(super) fn provide_again(&mut self) {
        if self.spent.is_empty() {
            return;
        }
        while let Some(number) = self.spent.pop() {
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
