//! CALL and MEDIA (10): who is in a call, who is told of it, and the path of its audio. Both are forwarded as they came
//! and forgotten; nothing of a call is ever stored.

use super::Shard;
use super::live::send_sheddable;
use crate::effects::Effects;
use crate::event::{ConnId, Inbound};
use crate::limits::CALL_PER_MINUTE;
use crate::message;
use crate::wake::Category;
use bytes::Bytes;
use drover_media::limits::{BODY_BYTES_MAX, CT_BYTES_MAX};
use drover_media::{MediaFrame, Participant};
use drover_wire::error::{Code, Refusal};
use drover_wire::id::{CallId, GroupId};

/// The first protocol version that is sent CALL and MEDIA (10 §2).
const CALL_VERSION: u16 = 3;

const OFFER: u8 = 1;
const ANSWER: u8 = 2;
const DECLINE: u8 = 3;
const BYE: u8 = 4;

/// A CALL, as far as the relay looks at it.
pub(super) struct Call {
    pub(super) call_id: CallId,
    pub(super) group: GroupId,
    pub(super) kind: u8,
    pub(super) body_bytes: usize,
}

impl Shard {
    pub(super) fn call<E: Effects>(&mut self, conn: ConnId, call: &Call, message: &Bytes, fx: &mut E) {
        if let Err(refusal) = self.forward_call(conn, call, message, fx) {
            self.refuse(conn, refusal, fx);
        }
    }

    /// 10 §4, in its order.
    fn forward_call<E: Effects>(
        &mut self,
        conn: ConnId,
        call: &Call,
        message: &Bytes,
        fx: &mut E,
    ) -> Result<(), Refusal> {
        let Some(calls_max) = self.config.max_concurrent_calls else {
            return Err(Code::ProtocolUnsupported.into());
        };
        if !(OFFER..=BYE).contains(&call.kind) {
            return Err(Code::MalformedHeader.into());
        }
        if call.body_bytes > BODY_BYTES_MAX {
            return Err(Refusal::number(Code::EnvelopeTooLarge, BODY_BYTES_MAX as u64));
        }
        self.charge_frame(conn, |b| &mut b.call, CALL_PER_MINUTE)?;
        let group = self.authorize(conn, &call.group)?;
        let mono_ms = self.now.mono_ms;
        if matches!(call.kind, DECLINE | BYE) {
            let left = self.calls.leave(mono_ms, call.call_id, call.group, conn);
            left.map_err(|refused| refused.refusal(calls_max))?;
        } else {
            debug_assert!(matches!(call.kind, OFFER | ANSWER));
            let Some(session) = self.session(conn) else {
                return Ok(());
            };
            session.media.get_or_insert_default();
            let who = Participant {
                id: conn,
                hears: session.version >= CALL_VERSION,
            };
            let joined = self.calls.join(mono_ms, call.call_id, call.group, who, calls_max);
            joined.map_err(|refused| {
                let is_share = refused == drover_media::JoinRefused::ShareTaken;
                self.metrics.calls_share_refused.add(u64::from(is_share));
                refused.refusal(calls_max)
            })?;
        }
        self.ring(conn, group, call, message, fx);
        if call.kind == OFFER {
            let realm = self.groups[group as usize].realm;
            self.wake_absent(realm, Category::Call);
        }
        Ok(())
    }

    /// The frame goes to everybody else who listens to the group, in a call or not.
    fn ring<E: Effects>(&mut self, conn: ConnId, group: u32, call: &Call, message: &Bytes, fx: &mut E) {
        let place = &mut self.groups[group as usize];
        let mut out = None;
        let mut shed = 0;
        for subscriber in &mut place.subscribers {
            // Those that are replaying too: a device that was just woken is to hear the call it was woken for.
            if subscriber.conn == conn || subscriber.version < CALL_VERSION {
                continue;
            }
            let out = out.get_or_insert_with(|| message::forwarded(message, call.body_bytes));
            shed += u64::from(!send_sheddable(subscriber, call.group, out, fx));
        }
        self.metrics.live_shed.add(shed);
    }

    /// 10 §5, in its order. `message` is what was received, forwarded by reference.
    pub(super) fn media<E: Effects>(
        &mut self,
        conn: ConnId,
        frame: &MediaFrame,
        message: Inbound,
        fx: &mut E,
    ) {
        if self.config.max_concurrent_calls.is_none() {
            return self.refuse(conn, Code::ProtocolUnsupported, fx);
        }
        if frame.ct_bytes > CT_BYTES_MAX {
            return self.refuse(
                conn,
                Refusal::number(Code::EnvelopeTooLarge, CT_BYTES_MAX as u64),
                fx,
            );
        }
        let now = self.now;
        let Some(session) = self.session(conn) else { return };
        let sender = session.media.get_or_insert_default();
        let refusal = match sender.charge(now.wall_ms, frame) {
            Err(refusal) => refusal,
            Ok(()) => {
                let (message, copied) = message.into_framed();
                let deliver = |to| fx.media(to, &message);
                if let Some(count) = self.calls.forward(now.mono_ms, frame.call_id, conn, deliver) {
                    let metrics = &self.metrics;
                    metrics.media_forwarded.add(count as u64);
                    metrics.media_forwarded_bytes.add((count * message.len()) as u64);
                    metrics.media_copied_bytes.add(copied as u64);
                    return;
                }
                self.metrics.media_denied.add(1);
                Code::WriterNotInAccessSet.into()
            }
        };
        // One complaint timer over all of them (decisions.md 33).
        let complain = |s: &mut crate::session::Session| {
            s.media
                .as_mut()
                .is_some_and(|sender| sender.may_complain(now.wall_ms))
        };
        if self.session(conn).is_some_and(complain) {
            self.refuse(conn, refusal, fx);
        }
    }

    /// The connection is gone: it is in no call any more (10 §3).
    pub(super) fn leave_calls(&mut self, conn: ConnId) {
        if self.session(conn).is_some_and(|s| s.media.take().is_some()) {
            self.calls.gone(conn);
        }
    }
}
