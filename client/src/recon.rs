//! The client's side of one reconciliation (03), without sockets: what to say next, what to send, when to stop.

use std::collections::HashSet;

use drover_wire::id::Hash;
use drover_wire::recon::{self, Item, Mode, OPEN_END, Range};

use crate::limits::RECON_ROUNDS_MAX;

/// What a finished reconciliation did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// RECON frames sent.
    pub rounds: u32,
    /// Envelopes received that were not held before.
    pub received: u64,
    /// Envelopes sent because the relay lacked them.
    pub sent: u64,
    /// Whether the rounds ran out and the log was read through with SUB instead.
    pub fell_back: bool,
}

/// What the client does next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// SEND these, wait for the acknowledgements, store the new cursors, then call [`Reconciler::offered`].
    Offer(Vec<Hash>),
    /// Send RECON with this payload.
    Round(Vec<u8>),
    /// Both sides agree, or nothing further can be learnt.
    Done,
    /// 64 rounds without an end: read the log with SUB from the start instead (03, decision 5).
    GiveUp,
}

/// One reconciliation of one group.
#[derive(Debug, Default)]
pub struct Reconciler {
    /// Cursors below it are none of this client's business and are skipped.
    floor: u64,
    rounds: u32,
    /// Counted by the caller.
    pub received: u64,
    /// Counted by the caller.
    pub sent: u64,
    /// Everything offered once; never offered again in this reconciliation, acknowledged or not (03 §8).
    offered: HashSet<Hash>,
    /// The last answer, and what was said after it.
    previous: Option<(Vec<Range>, Vec<Range>)>,
    pending: Vec<Range>,
}

impl Reconciler {
    /// A reconciliation of everything from cursor `floor` on; 0 means everything.
    pub fn new(floor: u64) -> Self {
        Self {
            floor,
            ..Self::default()
        }
    }

    /// The first payload for the items held, ascending.
    pub fn open(&mut self, items: &[Item]) -> Vec<u8> {
        self.rounds = 1;
        let mut ranges = Vec::new();
        if self.floor > 0 {
            ranges.push(Range {
                upper: self.floor,
                mode: Mode::Skip,
            });
        }
        // Above the last cursor there is nothing to tell: the range that is skipped is the last.
        if self.floor < OPEN_END {
            ranges.extend(recon::opening(self.above_floor(items)));
        }
        encode(&ranges)
    }

    /// The relay's answer, after the pushes of the same round were stored.
    pub fn answered(&mut self, items: &[Item], ranges: Vec<Range>) -> Next {
        let step = recon::client_step(self.above_floor(items), &ranges);
        let offers: Vec<Hash> = step
            .send
            .iter()
            .filter(|hash| self.offered.insert(**hash))
            .copied()
            .collect();
        self.pending = ranges;
        if offers.is_empty() {
            self.conclude(step)
        } else {
            Next::Offer(offers)
        }
    }

    /// Everything of [`Next::Offer`] is acknowledged, refused or gone; `items` has the new cursors.
    pub fn offered(&mut self, items: &[Item]) -> Next {
        let step = recon::client_step(self.above_floor(items), &self.pending);
        self.conclude(step)
    }

    fn conclude(&mut self, step: recon::Step) -> Next {
        let answer = std::mem::take(&mut self.pending);
        let Some(ranges) = step.ranges else {
            return Next::Done;
        };
        // Nothing wanted, nothing left to send, and both sides repeat themselves: a deployed relay does that for items
        // below its window (03 §8). A fingerprint that still differs is no such case: something is owed there.
        let settled = answer
            .iter()
            .all(|range| !matches!(range.mode, Mode::Fingerprint(_)));
        if settled
            && step.want.is_empty()
            && self
                .previous
                .as_ref()
                .is_some_and(|(heard, said)| *heard == answer && *said == ranges)
        {
            return Next::Done;
        }
        if self.rounds >= RECON_ROUNDS_MAX {
            return Next::GiveUp;
        }
        self.rounds += 1;
        let payload = encode(&ranges);
        self.previous = Some((answer, ranges));
        Next::Round(payload)
    }

    fn above_floor<'a>(&self, items: &'a [Item]) -> &'a [Item] {
        &items[items.partition_point(|item| recon::item_seq(item) < self.floor)..]
    }

    /// What it did so far.
    pub fn summary(&self) -> Reconciled {
        Reconciled {
            rounds: self.rounds,
            received: self.received,
            sent: self.sent,
            fell_back: false,
        }
    }
}

fn encode(ranges: &[Range]) -> Vec<u8> {
    let mut out = Vec::new();
    recon::encode(ranges, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn id(n: u64) -> Hash {
        Hash::of(&[&n.to_be_bytes()])
    }

    fn set(seqs: impl IntoIterator<Item = u64>) -> BTreeSet<Item> {
        seqs.into_iter().map(|seq| recon::item(seq, &id(seq))).collect()
    }

    fn list(set: &BTreeSet<Item>) -> Vec<Item> {
        set.iter().copied().collect()
    }

    /// A floor above every cursor leaves one range, which is skipped: two with one bound would be refused.
    #[test]
    fn nothing_is_told_above_the_last_cursor() {
        let payload = Reconciler::new(OPEN_END).open(&list(&set([1, 2])));
        let skipped = Range {
            upper: OPEN_END,
            mode: Mode::Skip,
        };
        assert_eq!(recon::decode(&payload), Ok(vec![skipped]));
    }

    /// A relay that pushes at most `batch` envelopes a round; returns the rounds and how many were sent.
    fn run(
        client: &mut BTreeSet<Item>,
        relay: &mut BTreeSet<Item>,
        floor: u64,
        batch: usize,
    ) -> (Next, Reconciled) {
        let mut reconciler = Reconciler::new(floor);
        let mut payload = reconciler.open(&list(client));
        loop {
            let incoming = recon::decode(&payload).expect("own payload");
            let held = list(relay);
            let mut answer = recon::answer(&held, incoming, batch);
            client.extend(answer.owed.iter().copied());
            reconciler.received += answer.owed.len() as u64;
            answer.reopen(batch);
            let mut bytes = Vec::new();
            recon::encode(&answer.ranges, &mut bytes);
            let ranges = recon::decode(&bytes).expect("relay's payload");
            let mut next = reconciler.answered(&list(client), ranges);
            if let Next::Offer(hashes) = &next {
                for hash in hashes {
                    let item = *client
                        .iter()
                        .find(|item| recon::item_id(item) == *hash)
                        .expect("offered is held");
                    relay.insert(item);
                    reconciler.sent += 1;
                }
                next = reconciler.offered(&list(client));
            }
            match next {
                Next::Round(next) => payload = next,
                end => return (end, reconciler.summary()),
            }
        }
    }

    #[test]
    fn sets_meet_and_exactly_the_difference_moves() {
        for (mine, theirs) in [
            (set([]), set([])),
            (set([]), set(1..=1000)),
            (set(1..=1000), set([])),
            (set(1..=20), set(1..=40)),
            (
                set((1..=4097).filter(|n| n % 7 != 0)),
                set((1..=4097).filter(|n| n % 11 != 0)),
            ),
            (set([400, 5001, 90001]), set([400, 90004, 90007, u64::MAX - 1])),
        ] {
            let (mut client, mut relay) = (mine.clone(), theirs.clone());
            let (end, done) = run(&mut client, &mut relay, 0, 255);
            assert_eq!(end, Next::Done);
            assert_eq!(client, relay);
            assert_eq!(done.received, theirs.difference(&mine).count() as u64);
            assert_eq!(done.sent, mine.difference(&theirs).count() as u64);
        }
    }

    #[test]
    fn agreement_costs_one_round() {
        let (mut client, mut relay) = (set(1..=500), set(1..=500));
        assert_eq!(run(&mut client, &mut relay, 0, 255).1.rounds, 1);
    }

    #[test]
    fn nothing_below_the_floor_is_asked_for_or_offered() {
        let (mut client, mut relay) = (set([3, 150, 200]), set(100..=300));
        let (end, done) = run(&mut client, &mut relay, 150, 255);
        assert_eq!(end, Next::Done);
        assert_eq!(done.sent, 0);
        assert_eq!(client, set([3].into_iter().chain(150..=300)));
    }

    #[test]
    fn a_relay_that_never_pushes_ends_in_giving_up() {
        let (mut client, mut relay) = (set([]), set(1..=1000));
        let (end, done) = run(&mut client, &mut relay, 0, 0);
        assert_eq!((end, done.rounds), (Next::GiveUp, RECON_ROUNDS_MAX));
    }

    #[test]
    fn a_relay_that_forgets_old_items_does_not_keep_the_client_busy() {
        let mut reconciler = Reconciler::new(0);
        let mine = list(&set([1, 2]));
        reconciler.open(&mine);
        let nothing = || {
            vec![Range {
                upper: recon::OPEN_END,
                mode: Mode::Ids(vec![]),
            }]
        };
        let Next::Offer(hashes) = reconciler.answered(&mine, nothing()) else {
            panic!("offers first")
        };
        assert_eq!(hashes.len(), 2);
        assert!(matches!(reconciler.offered(&mine), Next::Round(_)));
        assert_eq!(reconciler.answered(&mine, nothing()), Next::Done);
    }
}
