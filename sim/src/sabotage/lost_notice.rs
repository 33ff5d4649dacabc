//! Nobody is told that something was left out: SUB_ACK with head 0 stays behind.

use super::Saboteur;
use crate::dice::Dice;
use crate::world::{Line, messages};
use drover_engine::outbox::Outbound;
use drover_wire::frame::Frame;
use std::collections::BTreeSet;

#[derive(Default)]
pub(super) struct LostNotice {
    /// Connections whose SUB is not answered yet: theirs may be the honest head of an empty group.
    asked: BTreeSet<Line>,
}

impl Saboteur for LostNotice {
    fn reads(&mut self, line: Line, message: &[u8]) {
        if let Ok(Frame::Sub { .. }) = Frame::decode(message) {
            self.asked.insert(line);
        }
    }

    fn sends(&mut self, line: Line, run: Outbound, _: &mut Dice) -> Vec<(Line, Outbound)> {
        let first = messages(&run.bytes).next();
        let Some(Ok(Frame::SubAck { head_seq, .. })) = first.map(Frame::decode) else {
            return vec![(line, run)];
        };
        if self.asked.remove(&line) || head_seq > 0 {
            return vec![(line, run)];
        }
        Vec::new()
    }
}
