//! One PUSH of a run is left out, now and then; where a RECON waits for its answer nothing is.

use super::{Saboteur, is_pushes, without};
use crate::dice::Dice;
use crate::world::{Line, tag_of};
use drover_engine::outbox::Outbound;
use std::collections::BTreeSet;

#[derive(Default)]
pub(super) struct DroppedPush {
    reconciled: BTreeSet<Line>,
}

impl Saboteur for DroppedPush {
    fn reads(&mut self, line: Line, message: &[u8]) {
        if tag_of(message) == 9 {
            self.reconciled.insert(line);
        }
    }

    fn sends(&mut self, line: Line, run: Outbound, dice: &mut Dice) -> Vec<(Line, Outbound)> {
        if self.reconciled.contains(&line) || !is_pushes(&run) || !dice.chance(0.02) {
            return vec![(line, run)];
        }
        let at = dice.below(run.messages as usize);
        without(&run, at).map(|rest| (line, rest)).into_iter().collect()
    }
}
