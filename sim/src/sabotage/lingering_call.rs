//! A call goes on when its last participant leaves: the bye is passed on, and changes nothing.

use super::{Saboteur, run_of};
use crate::dice::Dice;
use crate::world::{Line, messages};
use bytes::Bytes;
use drover_engine::outbox::Outbound;
use drover_wire::frame::Frame;
use drover_wire::id::CallId;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(super) struct LingeringCall {
    /// Who asked to be in a call, and did not leave.
    joined: BTreeMap<CallId, BTreeSet<Line>>,
    /// What the engine was handed last in the place of a bye, and the bye.
    bye: Option<(Bytes, Bytes)>,
}

impl Saboteur for LingeringCall {
    fn hands(&mut self, line: Line, message: Bytes) -> Bytes {
        let Ok(Frame::Call {
            call_id,
            group,
            epoch,
            kind,
            body,
        }) = Frame::decode(&message)
        else {
            return message;
        };
        let lines = self.joined.entry(call_id).or_default();
        if kind <= 2 {
            lines.insert(line);
        }
        if !matches!(kind, 3 | 4) || !lines.remove(&line) || !lines.is_empty() {
            return message;
        }
        // An answer of one who is in changes nothing.
        let mut answer = Vec::new();
        Frame::Call {
            call_id,
            group,
            epoch,
            kind: 2,
            body,
        }
        .encode(&mut answer);
        let answer = Bytes::from(answer);
        self.bye = Some((answer.clone(), message));
        answer
    }

    fn sends(&mut self, line: Line, run: Outbound, _: &mut Dice) -> Vec<(Line, Outbound)> {
        let Some((answer, bye)) = &self.bye else {
            return vec![(line, run)];
        };
        let payloads = messages(&run.bytes).map(|message| if message == answer { bye } else { message });
        vec![(line, run_of(payloads))]
    }
}
