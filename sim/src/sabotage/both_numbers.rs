//! Who sends again what is stored is told another number.

use super::{Saboteur, run_of};
use crate::dice::Dice;
use crate::world::{Line, messages};
use drover_engine::outbox::Outbound;
use drover_wire::frame::Frame;
use drover_wire::id::Hash;
use std::collections::BTreeSet;

/// Far from any number that is given.
const FURTHER: u64 = 100_000;

#[derive(Default)]
pub(super) struct BothNumbers {
    acknowledged: BTreeSet<Hash>,
}

impl Saboteur for BothNumbers {
    fn sends(&mut self, line: Line, run: Outbound, _: &mut Dice) -> Vec<(Line, Outbound)> {
        let mut changed = Vec::new();
        for message in messages(&run.bytes) {
            let mut out = message.to_vec();
            if let Ok(Frame::SendAck { hash, seq }) = Frame::decode(message)
                && !self.acknowledged.insert(hash)
            {
                out.clear();
                let seq = seq + FURTHER;
                Frame::SendAck { hash, seq }.encode(&mut out);
            }
            changed.push(out);
        }
        vec![(line, run_of(changed.iter().map(Vec::as_slice)))]
    }
}
