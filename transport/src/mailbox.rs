//! How other threads reach a shard: a queue that never blocks and never loses, and an eventfd that is written only
//! if the shard sleeps, once per batch (measurements.md §6).
//!
//! The queue, the sleep flag and their protocol are [`drover_storage::handoff`]'s; what is added here is that a full
//! queue spills over. Who posts (a store's thread, another shard) must neither wait nor be refused, and what bounds
//! the number of letters is elsewhere: requests under way, connections, shards.
//!
//! Letters of one poster arrive in the order they were posted, also across a spill:
//!
//! - a poster spills as long as `spilling` > 0. It raises `spilling` before it puts its letter into the overflow and
//!   the reader lowers it after taking one out, so a poster whose earlier letter is still in the overflow spills;
//! - a poster raises `spilled` after its letter is in the overflow. The reader loads `spilled` = k first, then
//!   empties the queue, then takes k letters from the overflow. Each of those k was put there before one of the k
//!   counted ones, so whatever its poster had put into the queue earlier was seen by the emptying in between.

use crate::driver::Waker;
use crate::parcel::Parcel;
use crossbeam::queue::SegQueue;
use drover_engine::event::{StoreAnswer, Ticket};
use drover_engine::shard::ShardMessage;
use drover_storage::handoff::Handoff;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Letters before the queue spills over.
const LETTERS_MAX: usize = 1024;

/// What can be posted to a shard.
pub(crate) enum Letter {
    /// A store has answered.
    Stored(Ticket, StoreAnswer),
    /// A code was checked.
    Offloaded(Ticket, bool),
    /// Another shard or the operator's surface speaks.
    Posted(ShardMessage),
    /// A connection moves in.
    Parcel(Box<Parcel>),
    /// The relay is stopping.
    Drain,
    /// Look at the shared state of the stop again.
    Look,
}

/// One shard's mailbox, read by that shard only.
pub(crate) struct Mailbox {
    queue: Handoff<Letter, Waker>,
    overflow: SegQueue<Letter>,
    spilling: AtomicUsize,
    spilled: AtomicUsize,
}

impl Mailbox {
    pub(crate) fn new(waker: Waker) -> Self {
        Self {
            queue: Handoff::new(LETTERS_MAX, [waker]),
            overflow: SegQueue::new(),
            spilling: AtomicUsize::new(0),
            spilled: AtomicUsize::new(0),
        }
    }

    /// Puts a letter in, and wakes the shard if it sleeps.
    pub(crate) fn post(&self, letter: Letter) {
        let letter = if self.spilling.load(Ordering::Acquire) == 0 {
            match self.queue.push(letter) {
                Ok(()) => return,
                Err(letter) => letter,
            }
        } else {
            letter
        };
        self.spilling.fetch_add(1, Ordering::AcqRel);
        self.overflow.push(letter);
        self.spilled.fetch_add(1, Ordering::AcqRel);
        self.queue.wake_all();
    }

    /// Takes what is there now, at most about `max`, oldest first.
    pub(crate) fn take(&self, max: usize, into: &mut Vec<Letter>) {
        let spilled = self.spilled.load(Ordering::Acquire);
        while into.len() < max
            && let Some(letter) = self.queue.pop()
        {
            into.push(letter);
        }
        if into.len() < max {
            for letter in (0..spilled).map_while(|_| self.overflow.pop()) {
                self.spilled.fetch_sub(1, Ordering::AcqRel);
                self.spilling.fetch_sub(1, Ordering::AcqRel);
                into.push(letter);
            }
        }
    }

    /// Whether the shard may sleep now; if so [`Self::awake`] must follow.
    pub(crate) fn may_sleep(&self) -> bool {
        if !self.queue.sleep_begin(0) {
            return false;
        }
        if self.overflow.is_empty() {
            return true;
        }
        self.queue.sleep_end(0);
        false
    }

    /// The shard is awake again.
    pub(crate) fn awake(&self) {
        self.queue.sleep_end(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;

    fn mailbox() -> (mio::Poll, Arc<Mailbox>) {
        let poll = mio::Poll::new().unwrap();
        let waker = mio::Waker::new(poll.registry(), mio::Token(0)).unwrap();
        (poll, Arc::new(Mailbox::new(Waker::Poll(waker))))
    }

    fn number(letter: &Letter) -> u64 {
        match letter {
            Letter::Offloaded(ticket, _) => ticket.0,
            _ => panic!("another letter"),
        }
    }

    #[test]
    fn each_posters_order_survives_the_spill() {
        const EACH: u64 = 50_000;
        let (mut poll, mailbox) = mailbox();
        let posters: Vec<_> = (0..3_u64)
            .map(|poster| {
                let mailbox = mailbox.clone();
                std::thread::spawn(move || {
                    for n in 0..EACH {
                        mailbox.post(Letter::Offloaded(Ticket(poster << 32 | n), true));
                    }
                })
            })
            .collect();
        let (mut next, mut taken, mut letters) = ([0; 3], 0, Vec::new());
        let mut events = mio::Events::with_capacity(8);
        while taken < 3 * EACH {
            if mailbox.may_sleep() {
                poll.poll(&mut events, Some(Duration::from_secs(10))).unwrap();
                assert!(!events.is_empty(), "a wake-up was lost");
                mailbox.awake();
            }
            mailbox.take(4_096, &mut letters);
            for letter in letters.drain(..) {
                let number = number(&letter);
                let poster = (number >> 32) as usize;
                assert_eq!(number & 0xffff_ffff, next[poster]);
                next[poster] += 1;
                taken += 1;
            }
        }
        posters.into_iter().for_each(|poster| poster.join().unwrap());
    }
}
