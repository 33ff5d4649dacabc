//! One participant hears nothing more of its calls.

use super::{Saboteur, Way};
use crate::world::Line;
use bytes::Bytes;

#[derive(Default)]
pub(super) struct DeafEar {
    forgotten: Option<Line>,
}

impl Saboteur for DeafEar {
    fn speaks(&mut self, line: Line, _: &Bytes) -> Vec<(Line, Way)> {
        match *self.forgotten.get_or_insert(line) == line {
            true => Vec::new(),
            false => vec![(line, Way::Lane)],
        }
    }
}
