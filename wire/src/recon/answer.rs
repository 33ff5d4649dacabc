//! The relay's answer to one message (03 §5), made a piece at a time: a message may name every item of a long log, and
//! others are not to wait for all of that.

use super::sight::{RANGE_ITEMS, Sight, first_from_here};
use super::{
    Item, Mode, OPEN_END, Range, Reply, begin_fingerprint, end_fingerprint, first_from, item_id, item_seq,
};
use crate::id::Hash;
use blake3::Hasher;

/// The relay's answer to one message: ranges to send back, and the items owed to the peer.
#[derive(Debug, Default)]
pub struct Answer {
    /// One range for each incoming one, or more where it was split.
    pub ranges: Vec<Range>,
    /// Items to push, in ascending id order: of all that are owed, as many as were asked for.
    pub owed: Vec<Item>,
    /// Spans that items are owed in, ascending.
    open: Vec<Open>,
}

/// A span that items are owed in.
#[derive(Debug)]
struct Open {
    upper: u64,
    /// The range of the answer that ends it.
    range: usize,
    /// The fingerprint of what the relay holds in that range.
    own: Hash,
    /// Not all that is owed in it is sent now.
    is_cut: bool,
}

impl Answer {
    /// Only the first `sent` of what is owed leave: the spans of all others are reopened (03 §7). Each gets the relay's
    /// fingerprint for its last range, so that the client comes back.
    pub fn reopen(&mut self, sent: usize) {
        for item in self.owed.get(sent..).unwrap_or_default() {
            cut(&mut self.open, item);
        }
        for span in self.open.iter().filter(|span| span.is_cut) {
            self.ranges[span.range].mode = Mode::Fingerprint(span.own);
        }
    }
}

fn cut(open: &mut [Open], item: &Item) {
    let place = open.partition_point(|span| span.upper <= item_seq(item));
    if let Some(span) = open.get_mut(place) {
        span.is_cut = true;
    }
}

/// Answers `incoming`, as [`decode`](super::decode) returned it, for a relay that holds `items`, of which it can send
/// `sends`. Hashes each item at most twice and never answers with more than [`RANGES_MAX`](super::RANGES_MAX) ranges.
pub fn answer(items: &[Item], incoming: Vec<Range>, sends: usize) -> Answer {
    let mut answering = Answering::new(items, incoming, sends);
    while !answering.step(items, usize::MAX) {}
    answering.finish()
}

/// An [`answer`] in the making.
#[derive(Debug)]
pub struct Answering {
    incoming: Vec<Range>,
    /// The incoming range under way.
    place: usize,
    stage: Stage,
    /// The first number that is still to be looked at in this stage.
    next: u64,
    /// What lies above it came later and takes no part.
    end: u64,
    hasher: Box<Hasher>,
    reply: Reply,
    owed: Owed,
    /// Something is owed in the range under way: the last of [`Owed::open`] is its span.
    owes: bool,
}

/// What is done with the items of a range, one after the other.
#[derive(Debug)]
enum Stage {
    /// Nothing yet.
    Begin,
    /// They are hashed, to be compared with the peer's fingerprint.
    Compare,
    /// They are looked for in the peer's list; which of that were found.
    Look(Vec<bool>),
    /// They are hashed in buckets: the upper bounds of those to come, the next one last.
    Split(Vec<u64>),
    /// They are hashed: what is said of them may have to be taken back.
    Reconsider,
}

impl Answering {
    /// Nothing is looked at yet. `items` are what the relay holds now; of those owed, `sends` are asked for.
    pub fn new(items: &[Item], incoming: Vec<Range>, sends: usize) -> Self {
        Self {
            incoming,
            place: 0,
            stage: Stage::Begin,
            next: 0,
            end: items.last().map_or(0, item_seq).saturating_add(1),
            hasher: Box::default(),
            reply: Reply::default(),
            owed: Owed {
                sends,
                ..Owed::default()
            },
            owes: false,
        }
    }

    /// Looks at about `items_max` items; whether that was all. `items` may have become more or less since the last step:
    /// the answer is then one of what there was meanwhile.
    pub fn step(&mut self, items: &[Item], items_max: usize) -> bool {
        let items = &items[..first_from(items, self.end)];
        let previous = self
            .place
            .checked_sub(1)
            .and_then(|place| self.incoming.get(place));
        let mut sight = Sight {
            start: first_from(items, previous.map_or(0, |range| range.upper)),
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
        let Range { upper, mode } = &self.incoming[self.place];
        let upper = *upper;
        let end = sight.at + first_from_here(&items[sight.at..], upper);
        match &mut self.stage {
            Stage::Begin => {
                sight.left = sight.left.saturating_sub(RANGE_ITEMS);
                match mode {
                    Mode::Skip => {
                        sight.at = end;
                        self.reply.push(upper, Mode::Skip);
                        self.said(None, sight, end);
                    }
                    Mode::Fingerprint(_) => {
                        begin_fingerprint(&mut self.hasher, end - sight.start);
                        self.stage = Stage::Compare;
                    }
                    Mode::Ids(theirs) => self.stage = Stage::Look(vec![false; theirs.len()]),
                }
            }
            Stage::Compare => {
                self.hasher.update(sight.take(items, end).as_flattened());
                if sight.at == end {
                    let own = end_fingerprint(&self.hasher);
                    let is_settled = *mode == Mode::Fingerprint(own);
                    self.tell(items, sight, end, is_settled, Some(own));
                }
            }
            Stage::Look(held) => {
                let Mode::Ids(theirs) = mode else { return };
                for item in sight.take(items, end) {
                    match theirs.binary_search(&item_id(item)) {
                        Ok(place) => held[place] = true,
                        Err(_) => {
                            if !std::mem::replace(&mut self.owes, true) {
                                self.owed.open(upper);
                            }
                            self.owed.add(item);
                        }
                    }
                }
                if sight.at == end {
                    let is_settled = held.iter().all(|held| *held);
                    self.tell(items, sight, end, is_settled, None);
                }
            }
            Stage::Split(bounds) => {
                let Some(&bound) = bounds.last() else { return };
                let bucket_end = sight.at + first_from_here(&items[sight.at..], bound);
                self.hasher.update(sight.take(items, bucket_end).as_flattened());
                if sight.at == bucket_end {
                    bounds.pop();
                    let own = end_fingerprint(&self.hasher);
                    self.reply.push(bound, Mode::Fingerprint(own));
                    match bounds.last() {
                        Some(&next) => {
                            let count = first_from_here(&items[sight.at..], next);
                            begin_fingerprint(&mut self.hasher, count);
                        }
                        None => self.said(Some(own), sight, end),
                    }
                }
            }
            Stage::Reconsider => {
                self.hasher.update(sight.take(items, end).as_flattened());
                if sight.at == end {
                    let own = end_fingerprint(&self.hasher);
                    self.said(Some(own), sight, end);
                }
            }
        }
    }

    /// A range's items were looked at: skips it if that settles it, else says what is held in it. `own`: their
    /// fingerprint, where it is known.
    fn tell(&mut self, items: &[Item], sight: &mut Sight, end: usize, is_settled: bool, own: Option<Hash>) {
        let upper = self.incoming[self.place].upper;
        let mine = &items[sight.start..end];
        let to_come = self.incoming.len() - self.place - 1;
        let mut bounds = self.reply.say(mine, upper, to_come, is_settled, own);
        bounds.reverse();
        if let Some(&first) = bounds.last() {
            begin_fingerprint(&mut self.hasher, first_from_here(mine, first));
            sight.at = sight.start;
            self.stage = Stage::Split(bounds);
            return;
        }
        if self.owes && own.is_none() {
            begin_fingerprint(&mut self.hasher, mine.len());
            sight.at = sight.start;
            self.stage = Stage::Reconsider;
        } else {
            self.said(own, sight, end);
        }
    }

    /// All was said of this range. `own`: the fingerprint of the last range that says it, known where something is owed.
    fn said(&mut self, own: Option<Hash>, sight: &mut Sight, end: usize) {
        if std::mem::take(&mut self.owes)
            && let Some(span) = self.owed.open.last_mut()
            && let Some(own) = own
        {
            (span.range, span.own) = (self.reply.ranges.len() - 1, own);
        }
        sight.start = end;
        self.place += 1;
        self.stage = Stage::Begin;
    }

    /// The answer, once a [`step`](Self::step) was the last.
    pub fn finish(self) -> Answer {
        let mut owed = self.owed;
        owed.trim();
        owed.items.sort_unstable_by_key(item_id);
        Answer {
            ranges: self.reply.ranges,
            owed: owed.items,
            open: owed.open,
        }
    }
}

/// What is owed: of all items added, those that come first in id order.
#[derive(Debug, Default)]
struct Owed {
    /// Items asked for.
    sends: usize,
    /// At most twice as many, in no order.
    items: Vec<Item>,
    /// What comes after this one is not among the first.
    last: Option<Hash>,
    open: Vec<Open>,
}

impl Owed {
    /// What is added from now on lies in this span.
    fn open(&mut self, upper: u64) {
        self.open.push(Open {
            upper,
            range: 0,
            own: Hash([0; 32]),
            is_cut: false,
        });
    }

    fn add(&mut self, item: &Item) {
        if self.sends == 0 || self.last.is_some_and(|last| last < item_id(item)) {
            return cut(&mut self.open, item);
        }
        self.items.push(*item);
        if self.items.len() / 2 >= self.sends {
            self.trim();
        }
    }

    fn trim(&mut self) {
        let Some(last) = self.sends.checked_sub(1) else {
            return;
        };
        if self.items.len() > self.sends {
            let (_, item, _) = self.items.select_nth_unstable_by_key(last, item_id);
            self.last = Some(item_id(item));
            for item in self.items.drain(self.sends..) {
                cut(&mut self.open, &item);
            }
        }
    }
}
