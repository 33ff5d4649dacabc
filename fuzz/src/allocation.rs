//! What a piece of code takes from the heap at most at one time: an allocator that counts, per thread, so that tests
//! beside each other do not disturb the figures.
#![allow(unsafe_code)] // GlobalAlloc is an unsafe trait; see the reason at the block.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Bytes this thread asked for and has not given back; below zero when it frees what others made.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    /// See [`tightest`].
    static TIGHTEST: Cell<(usize, usize)> = const { Cell::new((0, 1)) };
}

struct Counting;

fn add(bytes: isize) {
    let live = LIVE.get().wrapping_add(bytes);
    LIVE.set(live);
    PEAK.set(PEAK.get().max(live));
}

// SAFETY: every call is passed to the system's allocator unchanged. Counting touches thread-locals without a
// destructor, which neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as isize);
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // Both may be there for a moment.
        add(bytes as isize);
        add(-(layout.size() as isize));
        unsafe { System.realloc(ptr, layout, bytes) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        add(-(layout.size() as isize));
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The most heap this thread held at one time during `run`, beyond what it held before, in bytes; and the result.
pub fn peak<R>(run: impl FnOnce() -> R) -> (usize, R) {
    let before = LIVE.get();
    let outer = PEAK.replace(before);
    let result = run();
    let peak = PEAK.get();
    PEAK.set(outer.max(peak));
    ((peak - before).max(0) as usize, result)
}

/// Runs `run` and holds it to `most` bytes of heap at one time.
///
/// # Panics
/// If it took more.
#[track_caller]
pub fn within<R>(what: &str, most: usize, run: impl FnOnce() -> R) -> R {
    let (bytes, result) = peak(run);
    let (used, bound) = TIGHTEST.get();
    if bytes as u128 * bound as u128 > used as u128 * most as u128 {
        TIGHTEST.set((bytes, most));
    }
    assert!(
        bytes <= most,
        "{what} took {bytes} bytes of heap, its bound is {most}"
    );
    result
}

/// Of all that [`within`] ran on this thread, what came nearest to its bound: the bytes it took, and the bound.
pub fn tightest() -> (usize, usize) {
    TIGHTEST.get()
}
