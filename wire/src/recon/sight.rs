//! How far one step over a relay's items looks, while an answer is made a piece at a time.

use super::{Item, first_from, item_seq};

/// What a range costs beside its items, in items: most of it is a hash of little, or a search for where it ends.
pub(crate) const RANGE_ITEMS: usize = 8;

/// Where things lie in the items while a step looks at them.
pub(crate) struct Sight {
    /// The range under way begins here.
    pub(crate) start: usize,
    /// The next item to look at.
    pub(crate) at: usize,
    /// How many may still be looked at.
    pub(crate) left: usize,
}

impl Sight {
    /// The next items, up to `end`, that may be looked at in this step. Those that share a number stay together, as the
    /// next step begins with a number.
    pub(crate) fn take<'a>(&mut self, items: &'a [Item], end: usize) -> &'a [Item] {
        let mut to = end.min(self.at.saturating_add(self.left));
        while to > self.at && to < end && item_seq(&items[to]) == item_seq(&items[to - 1]) {
            to += 1;
        }
        let taken = &items[self.at..to];
        self.at = to;
        self.left = self.left.saturating_sub(taken.len());
        taken
    }
}

/// [`first_from`] where it is probably near.
pub(crate) fn first_from_here(items: &[Item], seq: u64) -> usize {
    let mut near = 16;
    while items.get(near).is_some_and(|item| item_seq(item) < seq) {
        near *= 2;
    }
    first_from(&items[..near.min(items.len())], seq)
}
