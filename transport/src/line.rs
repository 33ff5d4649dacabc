//! Where connections wait whose shares of a turn cost the others too much: they are served in the order they came, for
//! a bounded time of a turn together, and after that nobody in the line is served until the shard has rested from them.

use drover_engine::ConnId;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// One such line; see the module.
pub(crate) struct Line {
    waiting: VecDeque<ConnId>,
    /// Nobody is served before this moment.
    from: Instant,
    /// The time of a turn that those in line get together. At least one of them gets its share.
    turn: Duration,
    /// How often as long as they had, the shard is left to everybody else.
    rest: u32,
}

impl Line {
    pub(crate) fn new(turn: Duration, rest: u32) -> Self {
        Self {
            waiting: VecDeque::new(),
            from: Instant::now(),
            turn,
            rest,
        }
    }

    pub(crate) fn join(&mut self, id: ConnId) {
        self.waiting.push_back(id);
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// What [`Self::next`] is told of one turn, or `None` while nobody is to be served. `works`: there is other work to
    /// be done in the time of this line.
    pub(crate) fn open(&self, works: bool) -> Option<Opening> {
        if self.waiting.is_empty() && !works {
            return None;
        }
        let began = Instant::now();
        // Whoever joins meanwhile waits for the next turn.
        let left = self.waiting.len();
        (began >= self.from).then_some(Opening {
            began,
            left,
            served: false,
        })
    }

    /// Whether other work may go on. [`Self::next`] is to be asked behind it.
    pub(crate) fn has_time(&self, opening: &mut Opening) -> bool {
        !std::mem::replace(&mut opening.served, true) || opening.began.elapsed() < self.turn
    }

    /// Whose share is next, until the time of this turn is over.
    pub(crate) fn next(&mut self, opening: &mut Opening) -> Option<ConnId> {
        let ended = Instant::now();
        let had = ended - opening.began;
        if opening.left > 0 && (had < self.turn || !opening.served) {
            opening.left -= 1;
            opening.served = true;
            return self.waiting.pop_front();
        }
        self.from = ended + had * self.rest;
        None
    }

    /// How long nobody is to be served yet, or `None` if nobody waits. `works`: see [`Self::open`].
    pub(crate) fn opens_in(&self, works: bool) -> Option<Duration> {
        (works || !self.waiting.is_empty()).then(|| self.from.saturating_duration_since(Instant::now()))
    }
}

/// The part of a turn in which a [`Line`] is served.
pub(crate) struct Opening {
    began: Instant,
    left: usize,
    /// Somebody got a share in it, or other work was done.
    served: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conn(slot: u32) -> ConnId {
        ConnId { slot, generation: 0 }
    }

    /// Everybody gets a share in the order they came, and who comes back waits for the next turn.
    #[test]
    fn in_the_order_they_came() {
        let mut line = Line::new(Duration::from_secs(3600), 0);
        assert!(line.open(false).is_none());
        assert_eq!(line.opens_in(false), None);
        for slot in 0..3 {
            line.join(conn(slot));
        }
        let mut opening = line.open(false).expect("three wait");
        for slot in 0..3 {
            assert_eq!(line.next(&mut opening), Some(conn(slot)));
            line.join(conn(slot));
        }
        assert_eq!(line.next(&mut opening), None);
        assert!(line.open(false).is_some(), "the three came back");
    }

    /// One of those in line gets its share however short the time is; then the shard rests from all of them.
    #[test]
    fn a_rest_follows() {
        let mut line = Line::new(Duration::from_nanos(1), u32::MAX);
        line.join(conn(0));
        line.join(conn(1));
        let mut opening = line.open(false).expect("two wait");
        assert_eq!(line.next(&mut opening), Some(conn(0)));
        assert_eq!(line.next(&mut opening), None);
        assert!(line.open(false).is_none(), "the rest has begun");
        assert!(line.opens_in(false) > Some(Duration::ZERO));
    }

    /// Other work takes its time of the turn, at least once, and is rested from like any share.
    #[test]
    fn other_work_counts() {
        let mut line = Line::new(Duration::from_nanos(1), u32::MAX);
        line.join(conn(0));
        let mut opening = line.open(true).expect("there is work");
        assert!(line.has_time(&mut opening));
        while opening.began.elapsed() < line.turn {}
        assert!(!line.has_time(&mut opening));
        assert_eq!(line.next(&mut opening), None);
        assert!(line.open(true).is_none(), "the rest has begun");
        assert!(line.opens_in(true) > Some(Duration::ZERO));
    }
}
