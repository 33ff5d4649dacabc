//! The map form of a session's frames (01 §8, docs/map-form.md): decoded by its own codec, decided by the same flows.

use super::{Pending, Shard};
use crate::effects::{CloseReason, Effects, StoreRequest};
use crate::event::ConnId;
use crate::message;
use crate::session::{Allowed, Owed, Waiting, allowed};
use bytes::Bytes;
use drover_storage::StoreError;
use drover_storage::log::{Record, StreamId, StreamKind};
use drover_wire::envelope::Envelope;
use drover_wire::error::{Code, Refusal};
use drover_wire::frame::{Frame, List32Buf};
use drover_wire::id::GroupId;
use drover_wire::map::MapFrame;
use std::collections::VecDeque;

impl Shard {
    pub(super) fn dispatch_map<E: Effects>(&mut self, conn: ConnId, message: Bytes, fx: &mut E) {
        if !self.config.map_dialect {
            self.metrics.frames_in[0].add(1);
            return self.refuse(conn, Code::NoncanonicalCbor, fx);
        }
        let frame = match MapFrame::decode(&message) {
            Ok(frame) => frame,
            Err(error) => return self.undecodable(conn, error, fx),
        };
        // What a client may send when is decided by the frame's counterpart in the array form.
        let counterpart = match &frame {
            MapFrame::Sub { groups, .. } => {
                let group = groups.iter().next().map_or(GroupId([0; 32]), |g| GroupId(*g));
                Some(Frame::Sub { group, from_seq: 0 })
            }
            MapFrame::Send(_) => Some(Frame::Send { envelope: &[] }),
            MapFrame::ReconList { group, .. } => Some(Frame::Recon {
                group: *group,
                payload: &[],
            }),
            other => other.to_frame(),
        };
        let Some(session) = self.session(conn) else { return };
        let (state, first_time) = (session.state, !session.charged);
        let Some(counterpart) = counterpart.filter(|f| allowed(state, f) == Allowed::Yes) else {
            return self.fail(conn, Code::MalformedHeader.into(), CloseReason::Protocol, fx);
        };
        if first_time {
            self.metrics.frames_in[usize::from(counterpart.tag())].add(1);
        }
        match frame {
            MapFrame::Connect { version, groups } => self.connect(conn, version, groups, true, fx),
            MapFrame::Proof {
                device_key,
                signature,
            } => self.auth(conn, device_key, &signature, fx),
            MapFrame::Sub {
                groups,
                from_seq,
                no_backfill,
            } => {
                if self.waits_its_turn(conn, &message) {
                    return;
                }
                let (from, none) = (from_seq.unwrap_or(0), no_backfill.unwrap_or(false));
                if let Some(session) = self.session(conn) {
                    session.subs = groups.iter().map(|g| (GroupId(*g), from, none)).collect();
                }
                self.next_sub(conn, &message, fx);
            }
            MapFrame::Recon { group, payload } => {
                self.recon(conn, group, payload, &message, fx);
            }
            MapFrame::ReconList { group, spans } => {
                self.recon_list(conn, group, spans, &message, fx);
            }
            MapFrame::Send(envelope) => {
                if let Err(refusal) = self.send_map(conn, &envelope, &message, fx) {
                    self.refuse(conn, refusal, fx);
                }
            }
            MapFrame::Auth { .. } | MapFrame::Push(_) | MapFrame::Error { .. } => {}
        }
    }

    fn send_map<E: Effects>(
        &mut self,
        conn: ConnId,
        envelope: &Envelope<'_>,
        message: &Bytes,
        fx: &mut E,
    ) -> Result<(), Refusal> {
        match self.charge_send(conn, fx)? {
            Some(seen_before) => self.accept_envelope(conn, envelope, seen_before, message, fx),
            None => Ok(()),
        }
    }

    /// Begins the next of a map SUB's groups; a refused one does not hold up the others.
    pub(super) fn next_sub<E: Effects>(&mut self, conn: ConnId, message: &Bytes, fx: &mut E) {
        while let Some(session) = self.session(conn)
            && matches!(session.waiting, Waiting::No)
            && let Some(next) = session.subs.pop_front()
        {
            let (group, from_seq, no_backfill) = next;
            match self.begin_sub(conn, group, from_seq, no_backfill, message, fx) {
                // Parked until the group's index is in memory: the whole frame comes again, what is done is done.
                Ok(()) if self.is_parked(conn) => {
                    let mut rest = self
                        .session(conn)
                        .map(|s| std::mem::take(&mut s.subs))
                        .unwrap_or_default();
                    rest.push_front(next);
                    return self.park(conn, &Bytes::from(sub_again(&rest)));
                }
                Ok(()) => {}
                Err(refusal) => self.refuse(conn, refusal, fx),
            }
        }
    }

    fn is_parked(&mut self, conn: ConnId) -> bool {
        self.session(conn)
            .is_some_and(|s| matches!(s.waiting, Waiting::Parked(_)))
    }

    /// A duplicate in a map session: its acknowledgement is the envelope as it was first accepted.
    pub(super) fn acknowledge_again<E: Effects>(
        &mut self,
        conn: ConnId,
        slot: u32,
        seq: u64,
        batch: u64,
        message: &Bytes,
        fx: &mut E,
    ) -> Result<(), Refusal> {
        if let Some(envelope) = self.uncommitted(slot, seq)
            && let Some(out) = message::map_push(&envelope)
        {
            self.owe(conn, Owed::After { out, batch }, fx);
            return Ok(());
        }
        if self.waits_its_turn(conn, message) {
            return Ok(());
        }
        if let Some(session) = self.session(conn) {
            session.waiting = Waiting::Working;
        }
        let stream = StreamId {
            kind: StreamKind::Envelopes,
            group: self.groups[slot as usize].id,
        };
        let ticket = self.ticket(Pending::Again { conn });
        fx.store(
            ticket,
            StoreRequest::ReadSeqs {
                stream,
                seqs: vec![seq],
                bytes_max: 1,
            },
        );
        Ok(())
    }

    pub(super) fn again_read<E: Effects>(
        &mut self,
        conn: ConnId,
        result: Result<Vec<Record>, StoreError>,
        fx: &mut E,
    ) {
        let read = result.ok().and_then(|mut records| records.pop());
        match read.and_then(|record| message::map_push(&record.bytes)) {
            Some(out) => self.answered(conn, out, fx),
            None => self.answered_refusal(conn, Code::Backpressure.into(), fx),
        }
    }
}

/// The SUB that asks for the groups that are left.
fn sub_again(rest: &VecDeque<(GroupId, u64, bool)>) -> Vec<u8> {
    let groups: List32Buf = rest.iter().map(|(group, _, _)| group.0).collect();
    let (from, none) = rest.front().map_or((0, false), |(_, from, none)| (*from, *none));
    let mut out = Vec::new();
    MapFrame::Sub {
        groups: groups.as_list(),
        from_seq: Some(from),
        no_backfill: Some(none),
    }
    .encode(&mut out);
    out
}
