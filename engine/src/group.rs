//! One group in memory: what its streams hold, who listens, and what a commit is about to add (architecture.md §3).

use crate::event::{ConnId, Ticket};
use crate::limits::BACKLOG_ENTRIES_MAX;
use crate::outbox::Outbound;
use bytes::Bytes;
use drover_storage::log::IndexEntry;
use drover_wire::id::{GroupId, Hash};
use drover_wire::recon::{Item, item, item_seq};
use hashbrown::{HashMap, HashTable};
use std::collections::VecDeque;

/// The (seq, id) pairs of one stream: duplicates, heads and reconciliation never read the store.
#[derive(Debug)]
pub(crate) struct Index {
    /// Ascending; the first `durable` of them are committed.
    items: Vec<Item>,
    by_id: HashTable<u32>,
    /// With so many items `by_id` gets more room.
    grow_at: usize,
    durable: usize,
    first_seq: u64,
    /// Keeps clients from choosing which ids share a bucket.
    secret: u64,
}

impl Index {
    /// From what the store holds; new numbers are `first_seq` at least.
    pub(crate) fn new(entries: &[IndexEntry], first_seq: u64, secret: u64) -> Self {
        let mut index = Self {
            items: Vec::with_capacity(entries.len()),
            by_id: HashTable::with_capacity(entries.len()),
            grow_at: 0,
            durable: 0,
            first_seq,
            secret,
        };
        index.grow_at = index.by_id.capacity();
        for entry in entries {
            index.push(entry.seq, &entry.id);
        }
        index.durable = index.items.len();
        index
    }

    fn hash(secret: u64, id: &[u8]) -> u64 {
        let word = u64::from_le_bytes(id[..8].try_into().unwrap_or_default());
        let wide = u128::from(word ^ secret) * 0x9E37_79B9_7F4A_7C15_u128;
        (wide >> 64) as u64 ^ wide as u64
    }

    /// The number of the record with this id, and whether it is durable.
    pub(crate) fn find(&self, id: &Hash) -> Option<(u64, bool)> {
        let at = *self.by_id.find(Self::hash(self.secret, &id.0), |&at| {
            self.items[at as usize][8..] == id.0
        })?;
        Some((item_seq(&self.items[at as usize]), (at as usize) < self.durable))
    }

    /// The number the next record gets.
    pub(crate) fn next_seq(&self) -> u64 {
        self.items
            .last()
            .map_or(self.first_seq, |last| self.first_seq.max(item_seq(last) + 1))
    }

    /// Adds a record that is about to be committed.
    pub(crate) fn push(&mut self, seq: u64, id: &Hash) {
        debug_assert!(
            self.items.last().is_none_or(|last| item_seq(last) < seq),
            "numbers rise"
        );
        self.make_room(id.0[31]);
        let at = self.items.len() as u32;
        self.items.push(item(seq, id));
        let (items, secret) = (&self.items, self.secret);
        self.by_id.insert_unique(Self::hash(secret, &id.0), at, |&at| {
            Self::hash(secret, &items[at as usize][8..])
        });
    }

    /// Sees to it that one more fits. Groups of a shard may grow side by side; if each got more room when it has none, at
    /// the same size as all others, all of them would in one moment, and everybody would wait for that. `dice` decides
    /// when, and how much.
    fn make_room(&mut self, dice: u8) {
        let length = self.items.len();
        if length == self.items.capacity() {
            let more = length / 2 + length * usize::from(dice) / 512;
            self.items.reserve_exact(more.max(4));
        }
        if length >= self.grow_at {
            let (items, secret) = (&self.items, self.secret);
            let beyond = (self.by_id.capacity() + 1).saturating_sub(length);
            self.by_id
                .reserve(beyond, |&at| Self::hash(secret, &items[at as usize][8..]));
            let room = self.by_id.capacity();
            self.grow_at = room - room * usize::from(dice) / 768;
        }
    }

    /// The next `count` records are durable.
    pub(crate) fn committed(&mut self, count: usize) {
        self.durable += count;
        debug_assert!(self.durable <= self.items.len());
    }

    /// Takes out records that were deleted; `entries` ascend. The newest record is never one of them, so no number is
    /// given twice, by this index or by one that is read from the store later.
    pub(crate) fn remove(&mut self, entries: &[IndexEntry]) {
        let newest = self.next_seq();
        let (mut gone, mut durable) = (entries.iter().map(|e| e.seq).peekable(), self.durable);
        self.items.retain(|item| {
            let seq = item_seq(item);
            while gone.next_if(|&at| at < seq).is_some() {}
            let goes = gone.next_if_eq(&seq).is_some();
            durable -= usize::from(goes);
            !goes
        });
        debug_assert_eq!(self.next_seq(), newest, "the newest record stays");
        self.durable = durable;
        self.items.shrink_to_fit();
        let (items, secret) = (&self.items, self.secret);
        let hash = |&at: &u32| Self::hash(secret, &items[at as usize][8..]);
        self.by_id = HashTable::with_capacity(items.len());
        self.grow_at = self.by_id.capacity();
        for at in 0..items.len() as u32 {
            self.by_id.insert_unique(hash(&at), at, hash);
        }
    }

    /// Takes back everything that is not durable (decisions.md 47).
    pub(crate) fn roll_back(&mut self) {
        for at in self.durable..self.items.len() {
            let hash = Self::hash(self.secret, &self.items[at][8..]);
            if let Ok(entry) = self.by_id.find_entry(hash, |&other| other as usize == at) {
                entry.remove();
            }
        }
        self.items.truncate(self.durable);
    }

    /// What is committed, ascending.
    pub(crate) fn durable(&self) -> &[Item] {
        &self.items[..self.durable]
    }

    /// The highest committed number; `None` if there is none.
    pub(crate) fn head(&self) -> Option<u64> {
        self.durable().last().map(item_seq)
    }

    /// Whether something is waiting for its commit.
    pub(crate) fn is_settled(&self) -> bool {
        self.durable == self.items.len()
    }

    /// Memory, about.
    pub(crate) fn bytes(&self) -> usize {
        self.items.capacity() * 40 + self.by_id.capacity() * 5
    }
}

/// A stream's index, as far as it is in memory.
#[derive(Debug, Default)]
pub(crate) enum Loaded {
    /// In the store only.
    #[default]
    Cold,
    /// Asked for with this ticket; these connections wait for it with a parked frame.
    Loading { ticket: Ticket, waiters: Vec<ConnId> },
    /// In memory.
    Warm(Index),
}

/// One connection that listens to a group.
#[derive(Debug)]
pub(crate) struct Subscriber {
    pub(crate) conn: ConnId,
    /// Its replay is still running: live frames are held back by position (02 decision 4).
    pub(crate) replaying: bool,
    /// A PUSH did not fit: SUB_ACK with head 0 is owed before anything else of this group.
    pub(crate) owed: bool,
    /// It is sent PUSH in the map form.
    pub(crate) map: bool,
    /// LIVE needs 2, CALL needs 3.
    pub(crate) version: u16,
}

/// One envelope of a run.
#[derive(Debug)]
pub(crate) struct RunItem {
    pub(crate) seq: u64,
    pub(crate) id: Hash,
    /// Where its framed message begins in the run.
    pub(crate) start: u32,
    /// Where the envelope itself begins: what is stored.
    pub(crate) envelope: u32,
    /// Where both end.
    pub(crate) end: u32,
    /// What it counts in the log budget.
    pub(crate) ct_bytes: u32,
    pub(crate) cost: u32,
    /// The writer's connection, which is not sent its own.
    pub(crate) writer: ConnId,
}

/// The framed PUSHes that one commit adds to one group, back to back: one slice serves the store and every subscriber.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) buffer: Vec<u8>,
    pub(crate) items: Vec<RunItem>,
    /// Distinct writers, so that the common case (a subscriber that wrote nothing) is one slice.
    pub(crate) writers: Vec<ConnId>,
}

/// A run whose bytes are fixed: on its way to the store, then to the subscribers.
#[derive(Debug)]
pub(crate) struct SealedRun {
    pub(crate) group: u32,
    pub(crate) bytes: Bytes,
    pub(crate) items: Vec<RunItem>,
    pub(crate) writers: Vec<ConnId>,
    pub(crate) cost: u32,
}

impl SealedRun {
    /// The messages `from..to` as one outbound run.
    pub(crate) fn slice(&self, from: usize, to: usize) -> Outbound {
        if from == 0 && to == self.items.len() {
            return Outbound {
                bytes: self.bytes.clone(),
                messages: to as u32,
                cost: self.cost,
            };
        }
        let part = &self.items[from..to];
        let (start, end) = match (part.first(), part.last()) {
            (Some(first), Some(last)) => (first.start as usize, last.end as usize),
            _ => (0, 0),
        };
        Outbound {
            bytes: self.bytes.slice(start..end),
            messages: part.len() as u32,
            cost: part.iter().map(|i| i.cost).sum(),
        }
    }
}

/// Bytes of a device that no other subscriber of the group has been sent (decisions.md 31).
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    /// (seq, bytes, device), ascending by seq.
    entries: VecDeque<(u64, u32, u32)>,
    by_device: HashMap<u32, u64>,
}

impl Backlog {
    pub(crate) fn of(&self, device: u32) -> u64 {
        self.by_device.get(&device).copied().unwrap_or_default()
    }

    pub(crate) fn add(&mut self, seq: u64, bytes: u32, device: u32) {
        self.entries.push_back((seq, bytes, device));
        *self.by_device.entry(device).or_default() += u64::from(bytes);
        while self.entries.len() > BACKLOG_ENTRIES_MAX {
            if let Some((_, bytes, device)) = self.entries.pop_front() {
                self.forgive(bytes, device);
            }
        }
    }

    /// The envelopes `from..=to` were sent to a subscriber other than their writer's connection.
    pub(crate) fn sent(&mut self, from: u64, to: u64, not_device: Option<u32>) {
        let start = self.entries.partition_point(|e| e.0 < from);
        let end = self.entries.partition_point(|e| e.0 <= to);
        if start == end {
            return;
        }
        let (mut kept, by_device) = (Vec::new(), &mut self.by_device);
        for entry in self.entries.drain(start..end) {
            if Some(entry.2) == not_device {
                kept.push(entry);
            } else if let Some(sum) = by_device.get_mut(&entry.2) {
                *sum = sum.saturating_sub(u64::from(entry.1));
            }
        }
        for (i, entry) in kept.into_iter().enumerate() {
            self.entries.insert(start + i, entry);
        }
        self.by_device.retain(|_, sum| *sum > 0);
    }

    /// The last envelope of this number was not accepted after all.
    pub(crate) fn roll_back(&mut self, seq: u64) {
        if let Some(at) = self.entries.iter().rposition(|e| e.0 == seq)
            && let Some((_, bytes, device)) = self.entries.remove(at)
        {
            self.forgive(bytes, device);
        }
    }

    fn forgive(&mut self, bytes: u32, device: u32) {
        if let Some(sum) = self.by_device.get_mut(&device) {
            *sum = sum.saturating_sub(u64::from(bytes));
            if *sum == 0 {
                self.by_device.remove(&device);
            }
        }
    }
}

/// One group of a realm on this shard.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) id: GroupId,
    /// Slot of the realm that owns it.
    pub(crate) realm: u32,
    pub(crate) envelopes: Loaded,
    pub(crate) handshakes: Loaded,
    pub(crate) subscribers: Vec<Subscriber>,
    /// What the open batch adds.
    pub(crate) run: Run,
    pub(crate) backlog: Backlog,
    /// SEND bytes by device in the running minute.
    pub(crate) ingress: HashMap<u32, crate::budget::Minute>,
    /// When it was last asked for anything, for eviction.
    pub(crate) used_ms: u64,
}

impl Group {
    pub(crate) fn new(id: GroupId, realm: u32, now_ms: u64) -> Self {
        Self {
            id,
            realm,
            envelopes: Loaded::Cold,
            handshakes: Loaded::Cold,
            subscribers: Vec::new(),
            run: Run::default(),
            backlog: Backlog::default(),
            ingress: HashMap::new(),
            used_ms: now_ms,
        }
    }

    /// The subscriber with this connection.
    pub(crate) fn subscriber(&mut self, conn: ConnId) -> Option<&mut Subscriber> {
        self.subscribers.iter_mut().find(|s| s.conn == conn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> Hash {
        Hash::of(&[&[n]])
    }

    #[test]
    fn index_finds_durable_and_pending_and_takes_pending_back() {
        let mut index = Index::new(
            &[IndexEntry {
                seq: 1,
                id: id(1),
                bytes: 1,
                budget_bytes: 1,
            }],
            1,
            7,
        );
        index.push(2, &id(2));
        assert_eq!(index.find(&id(1)), Some((1, true)));
        assert_eq!(index.find(&id(2)), Some((2, false)));
        assert_eq!((index.head(), index.next_seq()), (Some(1), 3));
        index.roll_back();
        assert_eq!(index.find(&id(2)), None);
        assert_eq!(index.next_seq(), 2, "a number nobody saw is given again");
        index.push(2, &id(3));
        index.committed(1);
        assert_eq!(index.find(&id(3)), Some((2, true)));
        // After a repair, a number that somebody may have seen is not given again.
        let held = [IndexEntry {
            seq: 9,
            id: id(1),
            bytes: 1,
            budget_bytes: 1,
        }];
        assert_eq!(Index::new(&held, 100, 7).next_seq(), 100);
        assert_eq!(Index::new(&held, 9, 7).next_seq(), 10);
    }

    #[test]
    fn index_forgets_what_was_deleted_and_keeps_counting() {
        let entry = |seq: u64| IndexEntry {
            seq,
            id: id(seq as u8),
            bytes: 1,
            budget_bytes: 1,
        };
        let all: Vec<IndexEntry> = [1, 2, 4, 7, 9].map(entry).to_vec();
        let mut index = Index::new(&all, 1, 7);
        index.push(10, &id(10));
        index.remove(&[entry(2), entry(3), entry(7)]);
        let seqs: Vec<u64> = index.durable().iter().map(item_seq).collect();
        assert_eq!(seqs, [1, 4, 9]);
        for (seq, found) in [(1, true), (2, false), (4, true), (7, false), (9, true)] {
            assert_eq!(index.find(&id(seq)), found.then_some((u64::from(seq), true)));
        }
        assert_eq!(index.find(&id(10)), Some((10, false)));
        assert_eq!(index.next_seq(), 11);
        index.roll_back();
        assert_eq!((index.find(&id(10)), index.find(&id(9))), (None, Some((9, true))));
    }

    #[test]
    fn backlog_counts_what_no_other_subscriber_was_sent() {
        let mut backlog = Backlog::default();
        backlog.add(1, 10, 5);
        backlog.add(2, 20, 6);
        backlog.add(3, 30, 5);
        backlog.sent(1, 2, Some(6));
        assert_eq!((backlog.of(5), backlog.of(6)), (30, 20));
        backlog.sent(0, 9, None);
        assert_eq!((backlog.of(5), backlog.of(6)), (0, 0));
    }
}
