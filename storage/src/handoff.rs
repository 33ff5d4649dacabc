//! A bounded lock-free queue whose consumers sleep when it is empty, and are woken only if they do.
//!
//! Waking a thread on another core costs 20–30 µs (measurements.md §6.2), a push 30 ns; so a producer wakes only a
//! consumer that said it sleeps, and only once. The protocol, for each consumer `c`:
//!
//! | Producer | Consumer `c` |
//! | --- | --- |
//! | P1 push the item | C1 `asleep[c] := true` |
//! | P2 fence (SeqCst) | C2 fence (SeqCst) |
//! | P3 the first `c` whose `asleep` it changes from true to false: wake `c` | C3 queue not empty: `asleep[c] := false`, don't sleep |
//! | | C4 otherwise sleep until woken (spurious wake-ups are harmless) |
//! | | C5 `asleep[c] := false`, go on popping |
//!
//! The two fences make it impossible that P3 misses C1 *and* C3 misses P1, so no item waits for a sleeping consumer.
//! With several consumers an item may be taken by another one than was woken; that one then finds nothing and sleeps
//! again. An item pushed while the only sleeper has been woken but does not run yet needs no second wake: that
//! consumer pops until the queue is empty before it sleeps.
//!
//! How a consumer sleeps is up to [`Wake`]: [`Parked`] for a thread of its own, an eventfd for one that polls.
//! The protocol is checked under every interleaving of one producer and one consumer, and with more of them under
//! those with two or three interruptions: `RUSTFLAGS="--cfg loom" cargo test -p drover-storage --release --lib handoff`
//! (two minutes).

#![allow(unexpected_cfgs)] // cfg(loom)

#[cfg(loom)]
use self::model::ArrayQueue;
#[cfg(loom)]
use self::model::thread::{self, Thread};
#[cfg(not(loom))]
use crossbeam::queue::ArrayQueue;
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::OnceLock;
#[cfg(not(loom))]
use std::{
    sync::atomic::{AtomicBool, Ordering, fence},
    thread::{self, Thread},
};

/// Ends the sleep of one consumer.
pub trait Wake {
    /// Called by a producer, at most once for each time the consumer announced its sleep. Must not block. A wake that
    /// comes before the consumer actually sleeps must end that sleep at once.
    fn wake(&self);
}

/// A consumer that is a thread and sleeps by [`std::thread::park`].
#[derive(Debug, Default)]
pub struct Parked {
    thread: OnceLock<Thread>,
}

impl Parked {
    /// Names the calling thread as the consumer. To be called before its first [`Handoff::sleep_begin`].
    pub fn register(&self) {
        // A second call would come from the same thread, so the value is the same.
        let _ = self.thread.set(thread::current());
    }
}

impl Wake for Parked {
    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

struct Sleeper<W> {
    asleep: AtomicBool,
    wake: W,
}

/// The queue. Any number of producers; as many consumers as it was given [`Wake`]s.
pub struct Handoff<T, W> {
    queue: ArrayQueue<T>,
    sleepers: Box<[Sleeper<W>]>,
}

impl<T, W: Wake> Handoff<T, W> {
    /// A queue for `items_max` items and one consumer for each of `wakes`.
    pub fn new(items_max: usize, wakes: impl IntoIterator<Item = W>) -> Self {
        Self {
            queue: ArrayQueue::new(items_max),
            sleepers: wakes
                .into_iter()
                .map(|wake| Sleeper {
                    asleep: AtomicBool::new(false),
                    wake,
                })
                .collect(),
        }
    }

    /// Puts an item in and wakes a consumer if one sleeps. Never blocks.
    ///
    /// # Errors
    /// The item, if the queue is full.
    pub fn push(&self, item: T) -> Result<(), T> {
        self.queue.push(item)?;
        self.wake_one();
        Ok(())
    }

    /// Takes the oldest item.
    pub fn pop(&self) -> Option<T> {
        self.queue.pop()
    }

    /// The wake action of a consumer, to prepare it on the consumer's thread.
    ///
    /// # Panics
    /// If there is no such consumer.
    pub fn waker(&self, consumer: usize) -> &W {
        &self.sleepers[consumer].wake
    }

    /// Announces that `consumer` is going to sleep. True: it must now sleep until woken and then call
    /// [`Self::sleep_end`]. False: there is something to pop, it must not sleep.
    pub fn sleep_begin(&self, consumer: usize) -> bool {
        let asleep = &self.sleepers[consumer].asleep;
        // Release, and the producer's exchange acquires: whoever sees the flag sees what the wake action needs.
        asleep.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.queue.is_empty() {
            true
        } else {
            asleep.store(false, Ordering::Relaxed);
            false
        }
    }

    /// The consumer is awake, for whatever reason.
    pub fn sleep_end(&self, consumer: usize) {
        self.sleepers[consumer].asleep.store(false, Ordering::Relaxed);
    }

    /// Wakes every sleeping consumer, for something other than an item (a flag they look at before they sleep and
    /// that was set before this call).
    pub fn wake_all(&self) {
        fence(Ordering::SeqCst);
        self.sleepers.iter().for_each(|sleeper| {
            sleeper.end_sleep();
        });
    }

    fn wake_one(&self) {
        fence(Ordering::SeqCst);
        // `any` stops at the first that slept.
        self.sleepers.iter().any(Sleeper::end_sleep);
    }
}

impl<W: Wake> Sleeper<W> {
    /// Wakes the consumer if it sleeps and nobody else did.
    fn end_sleep(&self) -> bool {
        // The load keeps the flag's cache line shared while the consumer is busy, which is the common case. Not a
        // swap: one that finds false would write it, and loom does not know that nothing can come in between.
        let slept = self.asleep.load(Ordering::Relaxed)
            && self
                .asleep
                .compare_exchange(true, false, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        if slept {
            self.wake.wake();
        }
        slept
    }
}

impl<T> Handoff<T, Parked> {
    /// Takes the oldest item, sleeping until there is one. `None` once `closed` says so and the queue is empty;
    /// whoever makes `closed` true calls [`Self::wake_all`] afterwards.
    pub fn pop_wait(&self, consumer: usize, closed: impl Fn() -> bool) -> Option<T> {
        loop {
            let closed_before = closed();
            if let Some(item) = self.pop() {
                return Some(item);
            }
            if closed_before {
                return None;
            }
            if self.sleep_begin(consumer) {
                // Between C1 and C4: a `closed` that became true before C1 would otherwise be slept through.
                if !closed() {
                    thread::park();
                }
                self.sleep_end(consumer);
            }
        }
    }
}

/// crossbeam's queue is not built on loom's atomics. This stand-in orders no more than crossbeam's does: the item is
/// published by a release and found by an acquire, and looking whether there is one synchronises with nothing else.
#[cfg(loom)]
mod model {
    use loom::sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    };
    use std::collections::VecDeque;

    /// loom's own `unpark` also ends a wait for a mutex or for another thread's end, and loses its token on the way.
    pub(super) mod thread {
        use loom::sync::{Arc, Condvar, Mutex};

        #[derive(Clone, Debug)]
        pub(in super::super) struct Thread(Arc<(Mutex<bool>, Condvar)>);

        loom::thread_local! {
            static TOKEN: Thread = Thread(Arc::new((Mutex::new(false), Condvar::new())));
        }

        pub(in super::super) fn current() -> Thread {
            TOKEN.with(Clone::clone)
        }

        pub(in super::super) fn park() {
            let Thread(token) = current();
            let mut given = token.0.lock().expect("no test panics while it holds this");
            while !*given {
                given = token.1.wait(given).expect("no test panics while it holds this");
            }
            *given = false;
        }

        impl Thread {
            pub(in super::super) fn unpark(&self) {
                *self.0.0.lock().expect("no test panics while it holds this") = true;
                self.0.1.notify_one();
            }
        }
    }

    pub(super) struct ArrayQueue<T> {
        items: Mutex<VecDeque<T>>,
        len: AtomicUsize,
    }

    impl<T> ArrayQueue<T> {
        pub(super) fn new(_items_max: usize) -> Self {
            Self {
                items: Mutex::new(VecDeque::new()),
                len: AtomicUsize::new(0),
            }
        }

        pub(super) fn push(&self, item: T) -> Result<(), T> {
            self.items
                .lock()
                .expect("no test panics while it holds this")
                .push_back(item);
            self.len.fetch_add(1, Ordering::Release);
            Ok(())
        }

        pub(super) fn pop(&self) -> Option<T> {
            if self.is_empty() {
                return None;
            }
            // Under the lock, so that what another consumer has just taken does not look like being there still.
            let mut items = self.items.lock().expect("no test panics while it holds this");
            if self.is_empty() {
                return None;
            }
            self.len.fetch_sub(1, Ordering::Relaxed);
            items.pop_front()
        }

        pub(super) fn is_empty(&self) -> bool {
            self.len.load(Ordering::Acquire) == 0
        }
    }
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread::spawn;

    // A lost wake-up shows as a deadlock, which loom reports. More than one producer or consumer makes too many
    // interleavings, so there the number of times a thread is interrupted is bounded.
    fn bounded(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(preemptions);
        model.max_branches = 10_000;
        model.check(test);
    }

    fn with_producers<const N: usize>(items: [&'static [i32]; N]) {
        let queue = Arc::new(Handoff::new(4, [Parked::default()]));
        let producers = items.map(|items| {
            let queue = queue.clone();
            spawn(move || items.iter().for_each(|&n| queue.push(n).expect("room")))
        });
        queue.waker(0).register();
        for _ in items.iter().flat_map(|items| *items) {
            assert!(queue.pop_wait(0, || false).is_some());
        }
        producers.into_iter().for_each(|p| p.join().expect("no panic"));
    }

    #[test]
    fn every_item_reaches_a_consumer_that_may_be_falling_asleep() {
        loom::model(|| with_producers([&[1, 2]]));
    }

    #[test]
    fn every_producer_reaches_it() {
        bounded(3, || with_producers([&[1, 2], &[3]]));
    }

    #[test]
    fn two_consumers_and_a_close_leave_nothing_behind() {
        bounded(2, || {
            let queue = Arc::new(Handoff::new(4, [Parked::default(), Parked::default()]));
            let closed = Arc::new(AtomicBool::new(false));
            let consumers = [0, 1].map(|n| {
                let (queue, closed) = (queue.clone(), closed.clone());
                spawn(move || {
                    queue.waker(n).register();
                    let mut taken = 0;
                    while queue.pop_wait(n, || closed.load(Ordering::Acquire)).is_some() {
                        taken += 1;
                    }
                    taken
                })
            });
            queue.push(1).expect("room");
            queue.push(2).expect("room");
            closed.store(true, Ordering::Release);
            queue.wake_all();
            let taken: i32 = consumers.into_iter().map(|c| c.join().expect("no panic")).sum();
            assert_eq!(taken, 2);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_full_queue_gives_the_item_back() {
        let queue = Handoff::new(1, [Parked::default()]);
        assert_eq!(queue.push(1), Ok(()));
        assert_eq!(queue.push(2), Err(2));
        assert_eq!(queue.pop(), Some(1));
    }

    #[test]
    fn many_producers_lose_nothing() {
        let queue = Arc::new(Handoff::new(64, [Parked::default()]));
        let producers: Vec<_> = (0..4)
            .map(|_| {
                let queue = queue.clone();
                thread::spawn(move || {
                    for n in 0..10_000_u64 {
                        while queue.push(n).is_err() {
                            thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        queue.waker(0).register();
        let sum: u64 = (0..40_000).filter_map(|_| queue.pop_wait(0, || false)).sum();
        assert_eq!(sum, 4 * (0..10_000).sum::<u64>());
        producers.into_iter().for_each(|p| p.join().expect("no panic"));
    }
}
