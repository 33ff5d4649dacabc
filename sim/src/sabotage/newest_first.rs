//! Key packages leave in the wrong order.

use super::{Saboteur, run_of};
use crate::dice::Dice;
use crate::world::{Line, messages};
use drover_engine::outbox::Outbound;
use drover_wire::frame::{BytesListBuf, Frame, Keys};

#[derive(Default)]
pub(super) struct NewestFirst;

impl Saboteur for NewestFirst {
    fn sends(&mut self, line: Line, run: Outbound, _: &mut Dice) -> Vec<(Line, Outbound)> {
        let first = messages(&run.bytes).next().map(Frame::decode);
        let Some(Ok(Frame::Keys(Keys::Bundles { packages }))) = first else {
            return vec![(line, run)];
        };
        let mut reversed: Vec<&[u8]> = packages.iter().collect();
        reversed.reverse();
        let list: BytesListBuf = reversed.iter().collect();
        let mut message = Vec::new();
        let packages = list.as_list();
        Frame::Keys(Keys::Bundles { packages }).encode(&mut message);
        vec![(line, run_of([message.as_slice()].into_iter()))]
    }
}
