//! Whoever was in a call and is gone without a word stays in it: the engine is not told that the connection ended.

use super::Saboteur;
use crate::world::{Line, tag_of};
use std::collections::BTreeSet;

#[derive(Default)]
pub(super) struct SeatKept {
    callers: BTreeSet<Line>,
}

impl Saboteur for SeatKept {
    fn reads(&mut self, line: Line, message: &[u8]) {
        if tag_of(message) == 23 {
            self.callers.insert(line);
        }
    }

    fn tells_of_end(&mut self, line: Line) -> bool {
        !self.callers.contains(&line)
    }
}
