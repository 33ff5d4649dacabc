//! Key packages that somebody was given are given to the next one as well.

use super::Saboteur;
use crate::dice::Dice;
use crate::world::{Line, messages};
use drover_engine::outbox::Outbound;
use drover_wire::frame::{Frame, Keys};

#[derive(Default)]
pub(super) struct SecondHand {
    given: Option<Outbound>,
}

impl Saboteur for SecondHand {
    fn sends(&mut self, line: Line, run: Outbound, _: &mut Dice) -> Vec<(Line, Outbound)> {
        let first = messages(&run.bytes).next().map(Frame::decode);
        match first {
            Some(Ok(Frame::Keys(Keys::Bundles { .. }))) => {
                let given = self.given.replace(run.clone());
                vec![(line, given.unwrap_or(run))]
            }
            _ => vec![(line, run)],
        }
    }
}
