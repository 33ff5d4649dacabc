//! Two PUSHes of one run change places, now and then.

use super::{Saboteur, is_pushes, run_of};
use crate::dice::Dice;
use crate::world::{Line, messages};
use drover_engine::outbox::Outbound;

#[derive(Default)]
pub(super) struct Overtaking;

impl Saboteur for Overtaking {
    fn sends(&mut self, line: Line, run: Outbound, dice: &mut Dice) -> Vec<(Line, Outbound)> {
        if run.messages < 2 || !is_pushes(&run) || !dice.chance(0.05) {
            return vec![(line, run)];
        }
        let mut order: Vec<&[u8]> = messages(&run.bytes).collect();
        let at = dice.below(order.len() - 1);
        order.swap(at, at + 1);
        vec![(line, run_of(order.into_iter()))]
    }
}
