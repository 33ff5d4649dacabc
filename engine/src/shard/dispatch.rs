//! From a message to the flow that handles it: decoded, judged by the state × frame table (02 §3.1), passed on. A frame
//! that has to wait is parked whole and handled again.

use super::{Shard, calls};
use crate::effects::{CloseHow, CloseReason, Effects};
use crate::event::ConnId;
use crate::message;
use crate::session::{Allowed, Waiting, allowed};
use bytes::Bytes;
use drover_media::MediaFrame;
use drover_wire::error::Code;
use drover_wire::frame::{DecodeError, Frame};

impl Shard {
    /// Handles frames again that waited for something.
    pub(super) fn settle<E: Effects>(&mut self, fx: &mut E) {
        while let Some(conn) = self.retry.pop() {
            let Some(session) = self.session(conn) else {
                continue;
            };
            if let Waiting::Parked(_) = session.waiting
                && let Waiting::Parked(message) = std::mem::take(&mut session.waiting)
            {
                self.dispatch(conn, message, fx);
            }
            self.update_flow(conn, fx);
        }
    }

    /// Leaves a frame for later: it is handled again, whole, once what it waits for has come.
    pub(super) fn park(&mut self, conn: ConnId, message: &Bytes) {
        if let Some(session) = self.session(conn) {
            session.waiting = Waiting::Parked(message.clone());
        }
    }

    /// No frame, in either form.
    pub(super) fn undecodable<E: Effects>(&mut self, conn: ConnId, error: DecodeError, fx: &mut E) {
        self.metrics.frames_in[0].add(1);
        if error.closes {
            self.fail(conn, error.refusal, CloseReason::Protocol, fx);
        } else {
            self.refuse(conn, error.refusal, fx);
        }
    }

    pub(super) fn dispatch<E: Effects>(&mut self, conn: ConnId, message: Bytes, fx: &mut E) {
        if drover_wire::map::is_map(&message) {
            return self.dispatch_map(conn, message, fx);
        }
        let frame = match Frame::decode(&message) {
            Ok(frame) => frame,
            Err(error) => return self.undecodable(conn, error, fx),
        };
        let Some(session) = self.session(conn) else { return };
        let (state, first_time) = (session.state, !session.charged);
        if first_time {
            self.metrics.frames_in[usize::from(frame.tag())].add(1);
        }
        if allowed(state, &frame) == Allowed::No {
            return self.fail(conn, Code::MalformedHeader.into(), CloseReason::Protocol, fx);
        }
        match frame {
            Frame::Send { envelope } => self.send(conn, envelope, &message, fx),
            Frame::Connect { version, groups, .. } => self.connect(conn, version, groups, false, fx),
            Frame::Auth {
                device_key,
                signature,
            } => self.auth(conn, device_key, &signature, fx),
            Frame::Sub { group, from_seq } => self.sub(conn, group, from_seq, false, &message, fx),
            Frame::Recon { group, payload } => self.recon(conn, group, payload, &message, fx),
            Frame::Handshake {
                group, message: body, ..
            } => self.handshake(conn, group, body, &message, fx),
            Frame::Live { group, ct, .. } => self.live(conn, group, ct, &message, fx),
            Frame::Access { body } => self.access(conn, body, &message, fx),
            Frame::Join { body } => self.join(conn, body, &message, fx),
            Frame::Invite { body } => self.invite(conn, body, &message, fx),
            Frame::Wrap { body } => self.wrap(conn, body, &message, fx),
            Frame::Blob { payload } => self.blob(conn, payload, &message, fx),
            Frame::Drop { payload } => self.drop_below(conn, payload, &message, fx),
            Frame::Keys(keys) => self.keys(conn, &keys, &message, fx),
            Frame::Bye { .. } => {
                self.reply(conn, message::frame(&Frame::Bye { reason: &[] }), fx);
                self.detach(conn);
                self.close_when_flushed(conn, CloseHow::Flush, CloseReason::Client, fx);
            }
            Frame::Wake(wake) => self.wake(conn, &wake, &message, fx),
            Frame::Call {
                call_id,
                group,
                kind,
                body,
                ..
            } => {
                let body_bytes = body.len();
                let call = calls::Call {
                    call_id,
                    group,
                    kind,
                    body_bytes,
                };
                self.call(conn, &call, &message, fx);
            }
            // Too long for the fast path, so too long.
            Frame::Media {
                call_id, stream, ct, ..
            } => {
                let ct_bytes = ct.len();
                let frame = MediaFrame {
                    call_id,
                    stream,
                    ct_bytes,
                };
                self.media(conn, &frame, message.into(), fx);
            }
            // Only the relay sends these: the table above has refused them.
            Frame::ConnectAck { .. }
            | Frame::AuthChallenge { .. }
            | Frame::AuthAck { .. }
            | Frame::SubAck { .. }
            | Frame::Push { .. }
            | Frame::SendAck { .. }
            | Frame::Error { .. } => {}
        }
    }

    /// A frame that must see everything its connection sent before waits for the answers owed so far. Returns
    /// whether it has to.
    pub(super) fn waits_its_turn(&mut self, conn: ConnId, message: &Bytes) -> bool {
        let waits = self.session(conn).is_some_and(|s| !s.owed.is_empty());
        if waits {
            self.park(conn, message);
        }
        waits
    }
}
