//! One connection's bounded outbound queue (02 §9, architecture.md §5). Plain data: the transport drains it, the
//! simulator too.
//!
//! What is queued are *runs*: one or more whole WebSocket binary messages back to back in one refcounted buffer, so
//! that the same bytes serve every recipient and a turn's worth of PUSHes is one slice in one write.

use bytes::Bytes;
use std::collections::VecDeque;
use std::io::IoSlice;

/// Messages one outbox holds.
pub const MESSAGES_MAX: usize = 256;
/// Cost units one outbox holds.
pub const COST_MAX: usize = 8_388_608;
/// What a message costs beyond its payload.
pub const MESSAGE_COST: usize = 256;

/// The cost of one message with this many bytes in its one variable field, capped so that a single oversized frame
/// can always enter an empty queue.
pub const fn cost(payload_bytes: usize) -> usize {
    let cost = MESSAGE_COST + payload_bytes;
    if cost > COST_MAX { COST_MAX } else { cost }
}

/// One or more whole messages, framed as unmasked WebSocket binary messages (a transport with other framing walks
/// the heads and writes its own).
#[derive(Clone, Debug)]
pub struct Outbound {
    /// Heads and payloads, back to back.
    pub bytes: Bytes,
    /// How many messages.
    pub messages: u32,
    /// Sum of [`cost`].
    pub cost: u32,
}

/// What still fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Messages.
    pub messages: usize,
    /// Cost units.
    pub cost: usize,
}

impl Room {
    /// No room at all.
    pub const NONE: Room = Room { messages: 0, cost: 0 };
    /// The room of an empty outbox.
    pub const ALL: Room = Room {
        messages: MESSAGES_MAX,
        cost: COST_MAX,
    };
}

/// The queue.
#[derive(Debug, Default)]
pub struct Outbox {
    runs: VecDeque<Outbound>,
    /// Bytes of the first run that are already written.
    written: usize,
    /// Messages of the first run, and their cost, that count no more because as much of it is written.
    released: (usize, usize),
    messages: usize,
    cost: usize,
}

impl Outbox {
    /// What still fits. A run counts less as it is written, by whole messages: a slow peer makes room all the while,
    /// not only once some megabytes have left.
    pub fn room(&self) -> Room {
        Room {
            messages: MESSAGES_MAX.saturating_sub(self.messages),
            cost: COST_MAX.saturating_sub(self.cost),
        }
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Queues a run if all of it fits.
    pub fn push(&mut self, out: Outbound) -> bool {
        let room = self.room();
        if out.messages as usize > room.messages || out.cost as usize > room.cost {
            return false;
        }
        self.force(out);
        true
    }

    /// Queues past the bounds: the last ERROR before a close, a pong.
    pub fn force(&mut self, out: Outbound) {
        self.messages += out.messages as usize;
        self.cost += out.cost as usize;
        self.runs.push_back(out);
    }

    /// Fills `slices` with what to write next; returns how many are used.
    pub fn gather<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut used = 0;
        for (slice, run) in slices.iter_mut().zip(&self.runs) {
            let from = if used == 0 { self.written } else { 0 };
            *slice = IoSlice::new(&run.bytes[from..]);
            used += 1;
        }
        used
    }

    /// Takes `bytes` written bytes off the front.
    pub fn advance(&mut self, mut bytes: usize) {
        while let Some(run) = self.runs.front() {
            let left = run.bytes.len() - self.written;
            let (messages, cost) = (run.messages as usize, run.cost as usize);
            if bytes < left {
                self.written += bytes;
                let gone = (messages as u64 * self.written as u64 / run.bytes.len() as u64) as usize;
                self.release(gone, cost / messages.max(1) * gone);
                return;
            }
            bytes -= left;
            self.release(messages, cost);
            (self.written, self.released) = (0, (0, 0));
            self.runs.pop_front();
        }
        debug_assert_eq!(bytes, 0, "more was written than was queued");
        if self.runs.capacity() > 32 {
            // An idle connection keeps no buffer (issue: memory per idle connection).
            self.runs = VecDeque::new();
        }
    }

    /// So much of the first run counts no more.
    fn release(&mut self, messages: usize, cost: usize) {
        self.messages -= messages - self.released.0;
        self.cost -= cost - self.released.1;
        self.released = (messages, cost);
    }

    /// Drops what waits, except the rest of a run that is partly written when `keep_partial` (a peer must not see
    /// half a message and then another one).
    pub fn clear(&mut self, keep_partial: bool) {
        let first = if keep_partial && self.written > 0 {
            self.runs.pop_front()
        } else {
            None
        };
        self.runs.clear();
        self.messages = 0;
        self.cost = 0;
        match first {
            Some(run) => {
                self.messages = run.messages as usize - self.released.0;
                self.cost = run.cost as usize - self.released.1;
                self.runs.push_back(run);
            }
            None => (self.written, self.released) = (0, (0, 0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(messages: u32, bytes: usize, cost: u32) -> Outbound {
        Outbound {
            bytes: Bytes::from(vec![0; bytes]),
            messages,
            cost,
        }
    }

    #[test]
    fn room_grows_by_whole_messages_as_a_run_is_written() {
        let mut outbox = Outbox::default();
        assert!(outbox.push(run(10, 1_000, 5_000)) && outbox.push(run(1, 100, 300)));
        outbox.advance(99);
        assert_eq!(outbox.room().messages, MESSAGES_MAX - 11);
        outbox.advance(1);
        assert_eq!(
            (outbox.room().messages, outbox.room().cost),
            (MESSAGES_MAX - 10, COST_MAX - 4_800)
        );
        outbox.advance(850);
        assert_eq!(outbox.room().messages, MESSAGES_MAX - 2);
        outbox.advance(100); // into the second run, a single message
        assert_eq!(
            (outbox.room().messages, outbox.room().cost),
            (MESSAGES_MAX - 1, COST_MAX - 300)
        );
        outbox.advance(50);
        assert_eq!(outbox.room(), Room::ALL);
    }

    #[test]
    fn cleared_outbox_keeps_at_most_the_rest_of_a_run() {
        let mut outbox = Outbox::default();
        outbox.push(run(10, 1_000, 5_000));
        outbox.push(run(1, 100, 300));
        outbox.advance(500);
        outbox.clear(true);
        assert_eq!(outbox.room().messages, MESSAGES_MAX - 5);
        outbox.advance(500);
        assert_eq!(outbox.room(), Room::ALL);
        outbox.push(run(4, 40, 400));
        outbox.advance(20);
        outbox.clear(false);
        assert!(outbox.is_empty() && outbox.room() == Room::ALL);
    }
}
