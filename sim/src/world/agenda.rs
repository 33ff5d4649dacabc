//! What will happen, and when. Things of one moment happen in the order they were put down.

use super::net::Line;
use drover_engine::event::Ticket;
use drover_storage::StoreError;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::BinaryHeap;

/// Something that will happen. What belongs to a process is void once that process is dead.
#[derive(Debug)]
pub enum Happening {
    /// A shard has its turn.
    Turn {
        /// Which one.
        shard: usize,
        /// Of which process.
        process: u64,
    },
    /// The store ends this caller's oldest writes.
    Writes {
        /// The shard that asked.
        caller: usize,
        /// Of which process.
        process: u64,
    },
    /// The store ends a read.
    ReadEnds {
        /// Which one.
        read: u64,
        /// How, if not well.
        failure: Option<StoreError>,
        /// Of which process.
        process: u64,
    },
    /// A code has been hashed.
    Hashed {
        /// For which shard.
        shard: usize,
        /// What it was for.
        ticket: Ticket,
        /// Whether it matched.
        matches: bool,
        /// Of which process.
        process: u64,
    },
    /// A client's message reaches the relay.
    Arrives(Line),
    /// A client reads its socket.
    Reads(Line),
    /// A client learns that its socket is dead.
    Hears(Line),
    /// The relay learns it.
    Notices(Line),
    /// A client that stopped reading goes on.
    ReadsAgain(Line),
    /// A client does something.
    Acts(usize),
    /// The operator wants a workspace to exist.
    Mint(usize),
    /// The process starts again.
    Starts,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Agenda {
    now_us: u64,
    next: u64,
    heap: BinaryHeap<Reverse<(u64, u64)>>,
    /// Found by number, so that ordering never looks at what it is.
    items: BTreeMap<u64, Happening>,
}

impl Agenda {
    /// The world's time.
    pub(crate) fn now_us(&self) -> u64 {
        self.now_us
    }

    /// Puts something down.
    pub(crate) fn add(&mut self, at_us: u64, what: Happening) {
        self.heap.push(Reverse((at_us.max(self.now_us), self.next)));
        self.items.insert(self.next, what);
        self.next += 1;
    }

    /// Time goes on to whatever comes next.
    pub(crate) fn next(&mut self) -> Option<Happening> {
        let Reverse((at_us, number)) = self.heap.pop()?;
        self.now_us = at_us;
        self.items.remove(&number)
    }
}
