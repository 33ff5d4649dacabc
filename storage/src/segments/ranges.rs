//! Sets of sequence numbers as ranges: what a DROP took is mostly one piece.

/// Ascending, disjoint, not touching; both ends included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    pub(super) fn as_slice(&self) -> &[(u64, u64)] {
        &self.0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn contains(&self, n: u64) -> bool {
        let after = self.0.partition_point(|(from, _)| *from <= n);
        after > 0 && n <= self.0[after - 1].1
    }

    /// Adds every number `from..=to`.
    pub(super) fn add(&mut self, mut from: u64, mut to: u64) {
        if from > to {
            return;
        }
        // The ones it touches become one with it.
        let begin = self
            .0
            .partition_point(|r| r.1.checked_add(1).is_some_and(|next| next < from));
        let end = self
            .0
            .partition_point(|r| to.checked_add(1).is_none_or(|next| r.0 <= next));
        if let (Some(first), Some(last)) = (self.0.get(begin), end.checked_sub(1).and_then(|e| self.0.get(e)))
            && begin < end
        {
            from = from.min(first.0);
            to = to.max(last.1);
        }
        self.0.splice(begin..end.max(begin), [(from, to)]);
    }

    pub(super) fn add_all(&mut self, other: &Self) {
        match self.0.is_empty() {
            true => self.0.clone_from(&other.0),
            false => other.0.iter().for_each(|(from, to)| self.add(*from, *to)),
        }
    }
}

impl FromIterator<u64> for Ranges {
    fn from_iter<I: IntoIterator<Item = u64>>(numbers: I) -> Self {
        let mut ranges = Self::default();
        for n in numbers {
            match ranges.0.last_mut() {
                // What ascends, as a DROP's numbers do, is not searched for.
                Some(last) if last.1.checked_add(1) == Some(n) => last.1 = n,
                _ => ranges.add(n, n),
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ranges_are_the_set_of_what_was_added() {
        let mut state = 7_u64;
        let mut next = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..500 {
            let (mut ranges, mut set) = (Ranges::default(), BTreeSet::new());
            for _ in 0..next(20) {
                let from = next(60);
                let to = from + next(8);
                ranges.add(from, to);
                set.extend(from..=to);
                assert!(ranges.0.is_sorted_by(|a, b| a.1 + 1 < b.0), "{ranges:?}");
            }
            for n in 0..80 {
                assert_eq!(ranges.contains(n), set.contains(&n), "{n} {ranges:?}");
            }
            assert_eq!(set.iter().copied().collect::<Ranges>(), ranges);
        }
        let mut ranges = Ranges::default();
        ranges.add(u64::MAX, u64::MAX);
        ranges.add(0, u64::MAX - 1);
        assert_eq!(ranges.as_slice(), [(0, u64::MAX)]);
    }
}
