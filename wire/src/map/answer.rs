//! The relay's answer to a list of fingerprints, made a piece at a time as that to a payload is (`recon/answer.rs`).

use super::Span;
use crate::recon::{
    IDLIST_ITEMS, Item, OPEN_END, RANGE_ITEMS, RANGES_MAX, SPLIT_FACTOR, Sight, begin_fingerprint, buckets,
    end_fingerprint, first_from, first_from_here, item_seq,
};
use blake3::Hasher;

/// The relay's answer to one list: a list to send back, and the items owed to the peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListAnswer {
    /// Ranges that differ, with the relay's fingerprints. Empty when all agree.
    pub spans: Vec<Span>,
    /// Items to push, ascending: of all that are owed, as many as were asked for. The others' ranges are in `spans`, so
    /// that the client comes back for them.
    pub owed: Vec<Item>,
}

/// Answers `incoming`, as [`MapFrame::decode`](super::MapFrame::decode) returned it, for a relay that holds `items`, of
/// which it can send `sends`. Hashes each item at most twice.
///
/// A range that differs comes back cut into up to [`SPLIT_FACTOR`] parts. If it holds at most [`IDLIST_ITEMS`] items,
/// all of them are owed too, since the list has no way to ask for ids; so are more that share one seq, which no cut
/// tells apart. Order by seq, not by id, completes ranges one by one when not everything owed can be pushed.
pub fn answer_list(items: &[Item], incoming: Vec<Span>, sends: usize) -> ListAnswer {
    let mut answering = ListAnswering::new(items, incoming, sends);
    while !answering.step(items, usize::MAX) {}
    answering.finish()
}

/// An [`answer_list`] in the making.
#[derive(Debug)]
pub struct ListAnswering {
    incoming: Vec<Span>,
    /// The incoming range under way.
    place: usize,
    stage: Stage,
    /// The first number that is still to be looked at in this stage.
    next: u64,
    /// What lies above it came later and takes no part.
    end: u64,
    hasher: Box<Hasher>,
    sends: usize,
    answer: ListAnswer,
}

/// What is done with the items of a range, one after the other.
#[derive(Debug)]
enum Stage {
    /// Nothing yet.
    Begin,
    /// They are hashed, to be compared with the peer's fingerprint.
    Compare,
    /// They are hashed in parts: where this one begins, and the upper bounds of those to come, the next one last.
    Cut(u64, Vec<u64>),
}

impl ListAnswering {
    /// Nothing is looked at yet. `items` are what the relay holds now; of those owed, `sends` are asked for.
    pub fn new(items: &[Item], incoming: Vec<Span>, sends: usize) -> Self {
        Self {
            incoming,
            place: 0,
            stage: Stage::Begin,
            next: 0,
            end: items.last().map_or(0, item_seq).saturating_add(1),
            hasher: Box::default(),
            sends,
            answer: ListAnswer::default(),
        }
    }

    /// As [`Answering::step`](crate::recon::Answering::step).
    pub fn step(&mut self, items: &[Item], items_max: usize) -> bool {
        let items = &items[..first_from(items, self.end)];
        let under_way = self.incoming.get(self.place);
        let mut sight = Sight {
            start: first_from(items, under_way.map_or(0, |span| span.lower)),
            at: first_from(items, self.next),
            left: items_max,
        };
        while self.place < self.incoming.len() {
            if sight.left == 0 {
                self.next = items.get(sight.at).map_or(OPEN_END, item_seq);
                return false;
            }
            self.advance(items, &mut sight);
        }
        true
    }

    /// Goes on with the range under way, as far as this step may.
    fn advance(&mut self, items: &[Item], sight: &mut Sight) {
        let span = self.incoming[self.place];
        match &mut self.stage {
            Stage::Begin => {
                sight.left = sight.left.saturating_sub(RANGE_ITEMS);
                sight.at += first_from_here(&items[sight.at..], span.lower);
                sight.start = sight.at;
                let count = first_from_here(&items[sight.at..], span.upper);
                begin_fingerprint(&mut self.hasher, count);
                self.stage = Stage::Compare;
            }
            Stage::Compare => {
                let end = sight.at + first_from_here(&items[sight.at..], span.upper);
                self.hasher.update(sight.take(items, end).as_flattened());
                if sight.at < end {
                    return;
                }
                match end_fingerprint(&self.hasher) == span.fingerprint {
                    true => self.said(),
                    false => {
                        let mine = &items[sight.start..end];
                        self.tell(span, mine);
                        sight.at = sight.start;
                    }
                }
            }
            Stage::Cut(lower, bounds) => {
                let Some(&upper) = bounds.last() else {
                    return self.said();
                };
                let end = sight.at + first_from_here(&items[sight.at..], upper);
                self.hasher.update(sight.take(items, end).as_flattened());
                if sight.at < end {
                    return;
                }
                self.answer.spans.push(Span {
                    lower: *lower,
                    upper,
                    fingerprint: end_fingerprint(&self.hasher),
                });
                *lower = upper;
                bounds.pop();
                match bounds.last() {
                    Some(&next) => {
                        let count = first_from_here(&items[end..], next);
                        begin_fingerprint(&mut self.hasher, count);
                    }
                    None => self.said(),
                }
            }
        }
    }

    /// A range differs: what is owed of it, and where it is cut. Without items it stays whole.
    fn tell(&mut self, span: Span, mine: &[Item]) {
        let to_come = self.incoming.len() - self.place - 1;
        let budget = RANGES_MAX.saturating_sub(self.answer.spans.len() + to_come);
        let firsts = buckets(mine, budget.clamp(1, SPLIT_FACTOR)).map(|bucket| item_seq(&bucket[0]));
        let mut bounds: Vec<u64> = firsts.skip(1).chain([span.upper]).collect();
        bounds.reverse();
        let first = bounds.last().copied().unwrap_or(span.upper);
        begin_fingerprint(&mut self.hasher, first_from_here(mine, first));
        self.stage = Stage::Cut(span.lower, bounds);
        if mine.len() <= IDLIST_ITEMS || share_a_seq(mine) {
            let room = self.sends - self.answer.owed.len();
            self.answer.owed.extend(mine.iter().take(room));
        }
    }

    /// All was said of this range.
    fn said(&mut self) {
        self.place += 1;
        self.stage = Stage::Begin;
    }

    /// The answer, once a [`step`](Self::step) was the last.
    pub fn finish(self) -> ListAnswer {
        self.answer
    }
}

fn share_a_seq(items: &[Item]) -> bool {
    items
        .first()
        .zip(items.last())
        .is_some_and(|(first, last)| item_seq(first) == item_seq(last))
}
