//! Wakes (12): the handle a device left with us, what it wants to be woken for, and whom an event wakes. Pure; the
//! frames are in `shard::wake`, and what becomes of a [`Wake`] is the transport's business.

use crate::event::Now;
use crate::records::WakeRow;
use drover_storage::RealmId;
use drover_wire::id::EntryHash;
use std::collections::BTreeMap;
use std::fmt;

/// What a device is woken by: opaque, minted by the ringer. Never rendered anywhere (12 §9).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WakeHandle(pub [u8; 16]);

impl fmt::Debug for WakeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// What a device is woken for (12 §1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Category {
    /// Somebody calls.
    Call,
    /// A handshake was accepted.
    Handshake,
    /// An envelope was newly stored.
    Message,
}

impl Category {
    /// Its bit in a registration's mask.
    pub const fn bit(self) -> u8 {
        match self {
            Self::Message => 1,
            Self::Call => 2,
            Self::Handshake => 4,
        }
    }

    /// Its name in a request to the ringer (12 §7).
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Message => "message",
            Self::Call => "call",
            Self::Handshake => "handshake",
        }
    }
}

/// One absent device to be woken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wake {
    /// Whose registration it is: where the handle is forgotten if the ringer no longer knows it.
    pub realm: RealmId,
    /// The device.
    pub handle: WakeHandle,
    /// Why.
    pub category: Category,
}

/// A registration in memory.
#[derive(Debug)]
struct Registration {
    row: WakeRow,
    /// Until then a wake for a message or a handshake certainly waits in the queue, and another would add nothing.
    /// Monotonic; 0: none does.
    queued_until_ms: u64,
}

/// A workspace's registrations.
///
/// A busy workspace with few absent devices would look through all of them after each commit, to find that a wake of
/// each already waits in the queue. So each one's wait is remembered, and for each category until when all candidates
/// wait: until then, or until somebody may have become a candidate ([`Registrations::stir`]), an event costs a
/// comparison. The queue coalesces in any case; only a wake that it shed at its bound is asked for again no sooner
/// than its window ends.
#[derive(Debug, Default)]
pub(crate) struct Registrations {
    by_entry: BTreeMap<EntryHash, Registration>,
    /// For handshakes and messages.
    quiet_until_ms: [u64; 2],
}

impl Registrations {
    /// A device's registration.
    pub(crate) fn get(&self, entry: &EntryHash) -> Option<&WakeRow> {
        self.by_entry.get(entry).map(|r| &r.row)
    }

    /// Whose handle that is.
    pub(crate) fn holder(&self, handle: &WakeHandle) -> Option<EntryHash> {
        self.by_entry
            .iter()
            .find(|(_, r)| r.row.handle == handle.0)
            .map(|(entry, _)| *entry)
    }

    /// Those that can't be woken any more.
    pub(crate) fn expired(&self, wall_ms: u64) -> impl Iterator<Item = (EntryHash, WakeHandle)> + '_ {
        self.by_entry
            .iter()
            .filter(move |(_, r)| !r.row.is_live(wall_ms))
            .map(|(entry, r)| (*entry, WakeHandle(r.row.handle)))
    }

    pub(crate) fn insert(&mut self, entry: EntryHash, row: WakeRow) {
        let registration = Registration {
            row,
            queued_until_ms: 0,
        };
        self.by_entry.insert(entry, registration);
        self.stir();
    }

    pub(crate) fn remove(&mut self, entry: &EntryHash) {
        self.by_entry.remove(entry);
    }

    /// A device may have become a candidate: one has left, or the set has changed.
    pub(crate) fn stir(&mut self) {
        self.quiet_until_ms = [0; 2];
    }

    /// Something happened: the devices it wakes, in order of their entries (12 §5). `is_absent` says whether a device
    /// is in the newest set and not connected; `window_ms` is how long the queue keeps what is no call.
    pub(crate) fn wake(
        &mut self,
        category: Category,
        now: Now,
        window_ms: u64,
        is_absent: impl Fn(&EntryHash) -> bool,
        mut wake: impl FnMut(WakeHandle),
    ) {
        let quiet_until_ms = match category {
            Category::Call => None,
            Category::Handshake => Some(self.quiet_until_ms[0]),
            Category::Message => Some(self.quiet_until_ms[1]),
        };
        if quiet_until_ms.is_some_and(|until_ms| now.mono_ms < until_ms) {
            return;
        }
        let mut all_queued_until_ms = u64::MAX;
        for (entry, registration) in &mut self.by_entry {
            let row = &registration.row;
            if row.categories & category.bit() == 0 || !row.is_live(now.wall_ms) || !is_absent(entry) {
                continue;
            }
            if quiet_until_ms.is_none() {
                registration.queued_until_ms = 0; // it leaves at once, with whatever waited
                wake(WakeHandle(row.handle));
                continue;
            }
            if now.mono_ms >= registration.queued_until_ms {
                registration.queued_until_ms = now.mono_ms.saturating_add(window_ms);
                wake(WakeHandle(row.handle));
            }
            all_queued_until_ms = all_queued_until_ms.min(registration.queued_until_ms);
        }
        match category {
            Category::Call => self.stir(),
            Category::Handshake => self.quiet_until_ms[0] = all_queued_until_ms,
            Category::Message => self.quiet_until_ms[1] = all_queued_until_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW_MS: u64 = 2_000;

    fn now(mono_ms: u64) -> Now {
        Now { mono_ms, wall_ms: 1 }
    }

    fn entry(n: u8) -> EntryHash {
        EntryHash([n; 32])
    }

    fn registrations(masks: &[u8]) -> Registrations {
        let mut all = Registrations::default();
        for (n, &categories) in (0..).zip(masks) {
            let row = WakeRow {
                handle: [n; 16],
                categories,
                expires_ms: 100,
                updated_ms: 0,
            };
            all.insert(entry(n), row);
        }
        all
    }

    fn woken(all: &mut Registrations, category: Category, mono_ms: u64) -> Vec<u8> {
        let mut handles = Vec::new();
        all.wake(
            category,
            now(mono_ms),
            WINDOW_MS,
            |_| true,
            |h| handles.push(h.0[0]),
        );
        handles
    }

    #[test]
    fn what_waits_in_the_queue_is_not_queued_again_before_it_leaves() {
        let mut all = registrations(&[1, 7, 4]);
        assert_eq!(woken(&mut all, Category::Message, 0), [0, 1]);
        assert!(woken(&mut all, Category::Message, 1_999).is_empty());
        // Device 1 waits for a message already; device 2 does not.
        assert_eq!(woken(&mut all, Category::Handshake, 500), [2]);
        assert!(woken(&mut all, Category::Handshake, 1_999).is_empty());
        assert_eq!(
            woken(&mut all, Category::Handshake, 2_000),
            [1],
            "its message has left"
        );
        assert_eq!(woken(&mut all, Category::Handshake, 2_500), [2]);
        assert_eq!(woken(&mut all, Category::Message, 2_500), [0]);
    }

    #[test]
    fn a_call_takes_what_waits_with_it() {
        let mut all = registrations(&[3, 1]);
        assert_eq!(woken(&mut all, Category::Message, 0), [0, 1]);
        assert_eq!(woken(&mut all, Category::Call, 100), [0]);
        assert_eq!(
            woken(&mut all, Category::Call, 101),
            [0],
            "calls are never held back"
        );
        assert_eq!(woken(&mut all, Category::Message, 200), [0]);
    }

    #[test]
    fn who_becomes_a_candidate_is_found() {
        let mut all = registrations(&[1, 1]);
        let mut handles = Vec::new();
        let mut message = |all: &mut Registrations, present: u8, mono_ms| {
            handles.clear();
            let absent = |e: &EntryHash| *e != entry(present);
            all.wake(Category::Message, now(mono_ms), WINDOW_MS, absent, |h| {
                handles.push(h.0[0])
            });
            handles.clone()
        };
        assert_eq!(message(&mut all, 0, 0), [1]);
        assert!(
            message(&mut all, 9, 1).is_empty(),
            "nobody said that somebody left"
        );
        all.stir();
        assert_eq!(message(&mut all, 9, 2), [0]);
        assert_eq!(message(&mut all, 9, 2_000), [1], "each waits its own time");
        assert_eq!(message(&mut all, 9, 2_002), [0]);
    }

    #[test]
    fn without_a_window_every_event_counts() {
        let mut all = registrations(&[1]);
        for mono_ms in [5, 5, 6] {
            let mut count = 0;
            all.wake(Category::Message, now(mono_ms), 0, |_| true, |_| count += 1);
            assert_eq!(count, 1);
        }
    }
}
