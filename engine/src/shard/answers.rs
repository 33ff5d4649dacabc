//! What goes back to a connection: frames in their order, refusals, and the end of a session (01 §7, 02 §8).

use super::{Shard, flow_of};
use crate::effects::{CloseHow, CloseReason, Effects};
use crate::event::{ConnId, Flow, Now};
use crate::limits::STALL_MS;
use crate::message;
use crate::outbox::Outbound;
use crate::session::{Owed, State, Waiting};
use bytes::Bytes;
use drover_wire::error::{Code, Refusal};
use std::collections::VecDeque;

impl Shard {
    /// Queues an answer behind those that are owed before it.
    pub(super) fn reply<E: Effects>(&mut self, conn: ConnId, out: Outbound, fx: &mut E) {
        let Some(session) = self.session(conn) else { return };
        if session.owed.is_empty() && fx.send(conn, out.clone()) {
            return;
        }
        session.owed.push_back(Owed::Ready(out));
        self.flush_owed(conn, fx);
    }

    /// A ping, which `pong` answers. It leaves at once if there is room, ahead of what waits for a commit. Else it waits
    /// like any answer: a peer that doesn't read is read no more, and has ten seconds for each step it makes (02 §2).
    pub fn pinged<E: Effects>(&mut self, now: Now, conn: ConnId, pong: Bytes, fx: &mut E) -> Flow {
        self.now = now;
        let out = Outbound {
            bytes: pong,
            messages: 1,
            cost: 0,
        };
        let Some(session) = self
            .session(conn)
            .filter(|session| session.state != State::Closed)
        else {
            return Flow::Pause;
        };
        session.active_ms = now.mono_ms;
        session.probe_ms = None;
        let is_sent =
            fx.send(conn, out.clone()) || (fx.room(conn).messages > 0 && fx.send(conn, out.clone()));
        if !is_sent {
            self.reply(conn, out, fx);
        }
        self.flow(conn)
    }

    /// Whether the connection is read on, as the transport is told now.
    pub(super) fn flow(&mut self, conn: ConnId) -> Flow {
        let Some(session) = self.session(conn) else {
            return Flow::Pause;
        };
        let flow = flow_of(session);
        session.paused = flow == Flow::Pause;
        flow
    }

    pub(super) fn refuse<E: Effects>(&mut self, conn: ConnId, refusal: impl Into<Refusal>, fx: &mut E) {
        let refusal = self.jittered(refusal.into());
        self.count_error(refusal.code);
        let Some(session) = self.session(conn) else { return };
        session.refused = true;
        let map = session.map;
        self.reply(conn, message::refusal(&refusal, map), fx);
    }

    /// `retry/*` carries 1 to 5 seconds, spread so that clients don't all come back at once (04 decision 6).
    pub(super) fn jittered(&mut self, refusal: Refusal) -> Refusal {
        if refusal.code.class() != drover_wire::error::Class::Retry || refusal.retry_after_s != 0 {
            return refusal;
        }
        self.jitter = self.jitter.wrapping_add(1);
        let spread = self.jitter.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        refusal.after(1 + (spread % 5) as u32)
    }

    pub(super) fn count_error(&self, code: Code) {
        if let Some(counter) = self.metrics.errors_sent.get(code as usize) {
            counter.add(1);
        }
    }

    /// An ERROR, then the end of the socket once it has left (02 §14).
    pub(super) fn fail<E: Effects>(
        &mut self,
        conn: ConnId,
        refusal: Refusal,
        reason: CloseReason,
        fx: &mut E,
    ) {
        let closed = self.session(conn).is_none_or(|s| s.state == State::Closed);
        if closed {
            return;
        }
        self.detach(conn);
        self.refuse(conn, refusal, fx);
        self.close_when_flushed(conn, CloseHow::Flush, reason, fx);
    }

    /// What a connection was owed and never got: only key packages are kept for somebody else.
    pub(super) fn undelivered<E: Effects>(&mut self, owed: VecDeque<Owed>, fx: &mut E) {
        for owed in owed {
            if let Owed::Bundles { taken, .. } = owed {
                self.put_back(*taken, fx);
            }
        }
    }

    pub(super) fn close_when_flushed<E: Effects>(
        &mut self,
        conn: ConnId,
        how: CloseHow,
        reason: CloseReason,
        fx: &mut E,
    ) {
        if let Some(session) = self.session(conn) {
            if session.owed.is_empty() {
                session.closing = None;
                fx.close(conn, how, reason);
            } else {
                session.closing = Some((how, reason));
            }
        }
    }

    /// Lets every answer leave whose turn it is and that has room.
    pub(super) fn flush_owed<E: Effects>(&mut self, conn: ConnId, fx: &mut E) {
        let done = self.ingest.done();
        let (now, stall_at) = (self.now.mono_ms, self.now.mono_ms + STALL_MS);
        let Some(session) = self.session(conn) else { return };
        let (mut full, mut progress) = (false, false);
        let mut delivered = Vec::new();
        while let Some(front) = session.owed.front() {
            match front {
                Owed::Ack { batch, .. } if *batch <= done => {
                    let room = fx.room(conn);
                    let room = room.messages.min(room.cost / crate::outbox::MESSAGE_COST);
                    full = room == 0 || !fx.send(conn, message::acks(&mut session.owed, done, room));
                }
                Owed::After { batch, .. } | Owed::Ack { batch, .. } if *batch > done => break,
                Owed::Ready(out) | Owed::After { out, .. } | Owed::Bundles { out, .. } => {
                    full = !fx.send(conn, out.clone());
                    if !full && let Some(Owed::Bundles { taken, .. }) = session.owed.pop_front() {
                        delivered.push(*taken);
                    }
                }
                Owed::Ack { .. } => break,
            }
            if full {
                break;
            }
            progress = true;
        }
        if full {
            // The peer has ten seconds for each step it makes (02 §2, decision 1).
            if progress || session.stalled_ms.is_none() {
                session.stalled_ms = Some(now);
                self.arm(conn, stall_at);
            }
            fx.watch_room(conn);
        }
        for taken in delivered {
            self.forget_packages(&taken, fx);
        }
        if full {
            return;
        }
        let Some(session) = self.session(conn) else { return };
        // A replay that waits for room goes on waiting.
        if progress || !matches!(session.waiting, Waiting::Replay(_)) {
            session.stalled_ms = None;
        }
        if session.owed.is_empty() {
            if session.owed.capacity() > 64 {
                session.owed = VecDeque::new();
            }
            if let Some((how, reason)) = session.closing.take() {
                fx.close(conn, how, reason);
                return;
            }
            if matches!(session.waiting, Waiting::Parked(_)) {
                self.retry.push(conn);
                return;
            }
        }
        self.update_flow(conn, fx);
    }

    /// Tells the transport to read on if nothing holds the connection back any more.
    pub(super) fn update_flow<E: Effects>(&mut self, conn: ConnId, fx: &mut E) {
        if let Some(session) = self.session(conn)
            && session.paused
            && flow_of(session) == Flow::Continue
        {
            session.paused = false;
            fx.resume(conn);
        }
    }

    /// A frame's own work is done: its answer leaves, the connection goes on.
    pub(super) fn answered<E: Effects>(&mut self, conn: ConnId, out: Outbound, fx: &mut E) {
        if let Some(session) = self.session(conn) {
            session.waiting = Waiting::No;
            self.reply(conn, out, fx);
            if self.draining {
                return self.fail_over(conn, fx);
            }
            self.update_flow(conn, fx);
        }
    }

    pub(super) fn answered_refusal<E: Effects>(&mut self, conn: ConnId, refusal: Refusal, fx: &mut E) {
        let refusal = self.jittered(refusal);
        self.count_error(refusal.code);
        let map = self.session(conn).is_some_and(|s| s.map);
        self.answered(conn, message::refusal(&refusal, map), fx);
    }

    /// The outbox has room again.
    pub(super) fn room<E: Effects>(&mut self, conn: ConnId, fx: &mut E) {
        self.flush_owed(conn, fx);
        let replaying = self
            .session(conn)
            .is_some_and(|s| matches!(s.waiting, Waiting::Replay(_)));
        if replaying {
            self.advance_replay(conn, fx);
        }
    }
}
