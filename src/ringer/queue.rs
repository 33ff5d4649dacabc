//! Wakes that wait for the ringer: one per handle, bounded, calls first to stay (12 §6). Plain data with the time as a
//! value; monotonic milliseconds.

use drover_engine::wake::{Category, Wake, WakeHandle};
use std::collections::{BTreeMap, HashMap};

/// The queue.
#[derive(Debug)]
pub(super) struct Queue {
    /// Most wakes that wait.
    bound: usize,
    /// How long what is no call waits for more of its kind.
    window_ms: u64,
    /// Waiting calls by their place in line; all of them are due.
    calls: BTreeMap<u64, Wake>,
    /// Everything else by place, with the moment it is due: no place is due before an earlier one.
    others: BTreeMap<u64, (Wake, u64)>,
    places: HashMap<WakeHandle, u64>,
    next_place: u64,
    /// Discarded at the bound.
    shed: u64,
}

impl Queue {
    pub(super) fn new(bound: usize, window_ms: u64) -> Self {
        Self {
            bound,
            window_ms,
            calls: BTreeMap::new(),
            others: BTreeMap::new(),
            places: HashMap::new(),
            next_place: 0,
            shed: 0,
        }
    }

    /// Adds a wake, or lets the one that waits for the same handle speak for it.
    pub(super) fn push(&mut self, wake: Wake, now_ms: u64) {
        let is_call = wake.category == Category::Call;
        if let Some(place) = self.places.get(&wake.handle) {
            if is_call && self.others.remove(place).is_some() {
                self.calls.insert(*place, wake);
            }
            return;
        }
        if self.places.len() >= self.bound && !self.make_room(is_call) {
            return;
        }
        let place = self.next_place;
        self.next_place += 1;
        self.places.insert(wake.handle, place);
        if is_call {
            self.calls.insert(place, wake);
        } else {
            self.others
                .insert(place, (wake, now_ms.saturating_add(self.window_ms)));
        }
    }

    /// Discards the oldest that is no call; among calls alone the oldest, for another call only. Returns whether there
    /// is room now.
    fn make_room(&mut self, for_call: bool) -> bool {
        self.shed += 1;
        let oldest = match self.others.pop_first() {
            Some((_, (wake, _))) => Some(wake),
            None if for_call => self.calls.pop_first().map(|(_, wake)| wake),
            None => None,
        };
        oldest.is_some_and(|wake| self.places.remove(&wake.handle).is_some())
    }

    /// Takes up to `most` wakes that are due, in the order of their places.
    pub(super) fn take_due(&mut self, now_ms: u64, most: usize) -> Vec<Wake> {
        let mut due = Vec::new();
        while due.len() < most {
            let call = self.calls.first_key_value().map(|(place, _)| *place);
            let other = self
                .others
                .first_key_value()
                .filter(|(_, (_, due_ms))| *due_ms <= now_ms)
                .map(|(place, _)| *place);
            let call_is_next = match (call, other) {
                (Some(call), Some(other)) => call < other,
                (call, other) if call.is_none() && other.is_none() => break,
                (call, _) => call.is_some(),
            };
            let wake = match call_is_next {
                true => self.calls.pop_first().map(|(_, wake)| wake),
                false => self.others.pop_first().map(|(_, (wake, _))| wake),
            };
            let Some(wake) = wake else { break };
            self.places.remove(&wake.handle);
            due.push(wake);
        }
        due
    }

    /// When the next one is due: 0 for at once, `None` if none waits.
    pub(super) fn next_due_ms(&self) -> Option<u64> {
        if !self.calls.is_empty() {
            return Some(0);
        }
        self.others.first_key_value().map(|(_, (_, due_ms))| *due_ms)
    }

    /// Wakes that wait.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Wakes discarded at the bound so far.
    pub(super) fn shed(&self) -> u64 {
        self.shed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Category::{Call, Handshake, Message};
    use drover_storage::RealmId;
    use proptest::prelude::*;

    const WINDOW_MS: u64 = 2_000;

    fn queue(bound: usize) -> Queue {
        Queue::new(bound, WINDOW_MS)
    }

    fn wake(n: u8, category: Category) -> Wake {
        Wake {
            realm: RealmId("ws:one".into()),
            handle: WakeHandle([n; 16]),
            category,
        }
    }

    fn due(queue: &mut Queue, now_ms: u64) -> Vec<(u8, Category)> {
        let due = queue.take_due(now_ms, usize::MAX);
        due.iter().map(|w| (w.handle.0[0], w.category)).collect()
    }

    /// W12.7: a burst inside the window is one wake, with the first one's category and moment.
    #[test]
    fn a_burst_is_one_wake() {
        let mut q = queue(9);
        q.push(wake(1, Handshake), 100);
        q.push(wake(1, Message), 1_000);
        q.push(wake(1, Handshake), 2_099);
        assert_eq!((q.len(), q.next_due_ms()), (1, Some(2_100)));
        assert_eq!(due(&mut q, 2_099), []);
        assert_eq!(due(&mut q, 2_100), [(1, Handshake)]);
        q.push(wake(1, Message), 2_101);
        assert_eq!(q.next_due_ms(), Some(4_101), "what comes later is another");
    }

    /// W12.8: a call is due at once, takes a waiting message's place, and a message behind it adds nothing.
    #[test]
    fn a_call_supersedes_and_is_due_at_once() {
        let mut q = queue(9);
        q.push(wake(1, Message), 0);
        q.push(wake(2, Call), 5);
        q.push(wake(1, Call), 10);
        q.push(wake(1, Call), 11);
        q.push(wake(1, Message), 12);
        assert_eq!((q.len(), q.next_due_ms()), (2, Some(0)));
        assert_eq!(
            due(&mut q, 12),
            [(1, Call), (2, Call)],
            "it keeps its place in line"
        );
        assert_eq!((q.len(), q.next_due_ms(), q.shed()), (0, None, 0));
    }

    /// W12.9: the oldest that is no call gives way; a flood of messages takes no call's place; every loss is counted.
    #[test]
    fn rings_survive_a_flood() {
        let mut q = queue(3);
        q.push(wake(1, Message), 0);
        q.push(wake(2, Call), 0);
        q.push(wake(3, Message), 0);
        q.push(wake(4, Handshake), 0);
        assert_eq!((q.len(), q.shed()), (3, 1), "1 gave way to 4");
        q.push(wake(5, Call), 0);
        q.push(wake(6, Call), 0);
        assert_eq!(q.shed(), 3, "3 and 4 gave way to rings");
        for n in 100..200 {
            q.push(wake(n, Message), 0);
        }
        assert_eq!(
            (q.len(), q.shed()),
            (3, 103),
            "among calls alone a message is turned away"
        );
        q.push(wake(7, Call), 0);
        assert_eq!(q.shed(), 104, "the oldest call gives way to another");
        q.push(wake(7, Message), 0);
        assert_eq!(q.shed(), 104, "what a waiting wake speaks for is no loss");
        assert_eq!(due(&mut q, 0), [(5, Call), (6, Call), (7, Call)]);
    }

    /// W12.9: without a window each distinct event is sent.
    #[test]
    fn a_zero_window_holds_nothing_back() {
        let mut q = Queue::new(9, 0);
        for now_ms in [0, 1] {
            q.push(wake(1, Message), now_ms);
            assert_eq!(due(&mut q, now_ms), [(1, Message)]);
        }
    }

    #[test]
    fn no_more_are_taken_than_asked_for() {
        let mut q = queue(9);
        for n in 0..5 {
            q.push(wake(n, Message), u64::from(n));
        }
        assert_eq!(q.take_due(2_003, 3).len(), 3);
        assert_eq!(due(&mut q, 2_003), [(3, Message)]);
        assert_eq!(q.next_due_ms(), Some(2_004));
    }

    /// The table of 12 §6, literally: a list searched from its front.
    #[derive(Default)]
    struct Model {
        entries: Vec<(u8, Category, u64)>,
        shed: u64,
    }

    impl Model {
        fn push(&mut self, n: u8, category: Category, now_ms: u64, bound: usize) {
            let due_ms = if category == Call {
                now_ms
            } else {
                now_ms + WINDOW_MS
            };
            if let Some(entry) = self.entries.iter_mut().find(|e| e.0 == n) {
                if category == Call && entry.1 != Call {
                    *entry = (n, Call, now_ms);
                }
                return;
            }
            if self.entries.len() >= bound {
                self.shed += 1;
                match self.entries.iter().position(|e| e.1 != Call) {
                    Some(at) => drop(self.entries.remove(at)),
                    None if category == Call => drop(self.entries.remove(0)),
                    None => return,
                }
            }
            self.entries.push((n, category, due_ms));
        }

        fn due(&mut self, now_ms: u64) -> Vec<(u8, Category)> {
            let (due, rest) = self.entries.iter().partition(|e| e.2 <= now_ms);
            self.entries = rest;
            let due: Vec<(u8, Category, u64)> = due;
            due.into_iter().map(|(n, category, _)| (n, category)).collect()
        }
    }

    proptest! {
        #[test]
        fn behaves_as_the_table_says(
            bound in 1_usize..6,
            events in prop::collection::vec((0_u8..8, 0_u8..3, 0_u64..900, any::<bool>()), 0..200),
        ) {
            let (mut q, mut model, mut now_ms) = (Queue::new(bound, WINDOW_MS), Model::default(), 0);
            for (n, kind, passed_ms, look) in events {
                now_ms += passed_ms;
                let category = [Call, Handshake, Message][usize::from(kind)];
                q.push(wake(n, category), now_ms);
                model.push(n, category, now_ms, bound);
                if look {
                    prop_assert_eq!(due(&mut q, now_ms), model.due(now_ms));
                }
                prop_assert_eq!((q.len(), q.shed()), (model.entries.len(), model.shed));
            }
        }
    }
}
