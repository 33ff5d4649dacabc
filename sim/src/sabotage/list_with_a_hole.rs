//! A RECON list lacks one of the ranges that differ, now and then: the client takes it for agreed.

use super::{Saboteur, run_of};
use crate::dice::Dice;
use crate::world::{Line, messages};
use drover_engine::outbox::Outbound;
use drover_wire::map::MapFrame;

#[derive(Default)]
pub(super) struct ListWithAHole;

impl Saboteur for ListWithAHole {
    fn sends(&mut self, line: Line, run: Outbound, dice: &mut Dice) -> Vec<(Line, Outbound)> {
        let first = messages(&run.bytes).next().map(MapFrame::decode);
        let Some(Ok(MapFrame::ReconList { group, mut spans })) = first else {
            return vec![(line, run)];
        };
        if spans.is_empty() || dice.chance(0.7) {
            return vec![(line, run)];
        }
        spans.remove(dice.below(spans.len()));
        let mut message = Vec::new();
        MapFrame::ReconList { group, spans }.encode(&mut message);
        vec![(line, run_of([message.as_slice()].into_iter()))]
    }
}
