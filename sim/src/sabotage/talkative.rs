//! Writes the token of an invite into the log, when somebody takes a seat of it.

use super::Saboteur;
use crate::log::hex;
use crate::world::Line;
use drover_wire::frame::Frame;
use drover_wire::join::Request;

#[derive(Default)]
pub(super) struct Talkative;

impl Saboteur for Talkative {
    fn reads(&mut self, _: Line, message: &[u8]) {
        if let Ok(Frame::Join { body }) = Frame::decode(message)
            && let Some(Request::Reserve { token, .. }) = Request::decode(body)
        {
            tracing::info!(token = %hex(token, token.len()), "a seat is asked for");
        }
    }
}
