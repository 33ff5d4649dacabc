//! Audio waits its turn behind what is durable.

use super::{Saboteur, Way};
use crate::world::Line;
use bytes::Bytes;
use drover_engine::outbox::{Outbound, cost};

#[derive(Default)]
pub(super) struct AudioInLine;

impl Saboteur for AudioInLine {
    fn speaks(&mut self, line: Line, message: &Bytes) -> Vec<(Line, Way)> {
        let run = Outbound {
            bytes: message.clone(),
            messages: 1,
            cost: cost(message.len()) as u32,
        };
        vec![(line, Way::Behind(run))]
    }
}
