//! A RECON answer lacks one of its PUSHes, now and then, and says nothing of it. Only where no SUB was made: there every
//! PUSH is of a RECON.

use super::{Saboteur, is_pushes, without};
use crate::dice::Dice;
use crate::world::{Line, tag_of};
use drover_engine::outbox::Outbound;
use std::collections::BTreeSet;

#[derive(Default)]
pub(super) struct SkippedItem {
    subscribed: BTreeSet<Line>,
}

impl Saboteur for SkippedItem {
    fn reads(&mut self, line: Line, message: &[u8]) {
        if tag_of(message) == 7 {
            self.subscribed.insert(line);
        }
    }

    fn sends(&mut self, line: Line, run: Outbound, dice: &mut Dice) -> Vec<(Line, Outbound)> {
        if self.subscribed.contains(&line) || !is_pushes(&run) || !dice.chance(0.05) {
            return vec![(line, run)];
        }
        let at = dice.below(run.messages as usize);
        without(&run, at).map(|rest| (line, rest)).into_iter().collect()
    }
}
