//! An evicted connection stays, and is pushed what others are.

use super::{Saboteur, is_pushes};
use crate::dice::Dice;
use crate::world::Line;
use drover_engine::effects::CloseHow;
use drover_engine::outbox::Outbound;

#[derive(Default)]
pub(super) struct DeafToEviction {
    evicted: Vec<Line>,
}

impl Saboteur for DeafToEviction {
    fn closes(&mut self, line: Line, how: CloseHow) -> bool {
        if how == CloseHow::Evict {
            self.evicted.push(line);
        }
        how != CloseHow::Evict
    }

    fn sends(&mut self, line: Line, run: Outbound, _: &mut Dice) -> Vec<(Line, Outbound)> {
        let mut runs = Vec::new();
        if is_pushes(&run) {
            runs.extend(self.evicted.iter().map(|to| (*to, run.clone())));
        }
        runs.push((line, run));
        runs
    }
}
