//! AUTH_ACK counts one key package too few.

use super::{Saboteur, run_of};
use crate::dice::Dice;
use crate::world::{Line, messages};
use drover_engine::outbox::Outbound;
use drover_wire::frame::Frame;

#[derive(Default)]
pub(super) struct Miscounted;

impl Saboteur for Miscounted {
    fn sends(&mut self, line: Line, run: Outbound, _: &mut Dice) -> Vec<(Line, Outbound)> {
        let payloads = messages(&run.bytes).map(|message| {
            let mut told = message.to_vec();
            if let Ok(mut frame) = Frame::decode(message)
                && let Frame::AuthAck {
                    key_packages_remaining: count,
                    ..
                } = &mut frame
                && *count > 0
            {
                *count -= 1;
                told.clear();
                frame.encode(&mut told);
            }
            told
        });
        let payloads: Vec<_> = payloads.collect();
        vec![(line, run_of(payloads.iter().map(Vec::as_slice)))]
    }
}
