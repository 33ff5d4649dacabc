//! RECON: the relay's side of one round (03). The items are in memory; only what is owed is read from the store. A
//! message may concern all items of a long log, several times: the answer is made in pieces, so that nobody else waits
//! long for it.

use super::replay::{batch_len, batch_room};
use super::{Pending, Shard};
use crate::effects::{Effects, StoreRequest};
use crate::event::ConnId;
use crate::group::Loaded;
use crate::limits::RECON_PER_MINUTE;
use crate::message;
use crate::session::{Answer, Making, Recon, Round, Waiting};
use bytes::Bytes;
use drover_storage::StoreError;
use drover_storage::log::{Record, StreamId, StreamKind};
use drover_wire::error::{Code, Refusal};
use drover_wire::id::GroupId;
use drover_wire::map::{ListAnswering, MapFrame, Span};
use drover_wire::recon::{self, Answering, Item};

impl Shard {
    pub(super) fn recon<E: Effects>(
        &mut self,
        conn: ConnId,
        group: GroupId,
        payload: &[u8],
        message: &Bytes,
        fx: &mut E,
    ) {
        if self.waits_its_turn(conn, message) {
            return;
        }
        let admitted = self.admit_recon(conn, &group);
        match admitted.and_then(|slot| Ok((slot, recon::decode(payload)?))) {
            Ok((slot, incoming)) => self.begin_recon(conn, slot, message, fx, |items, sends| {
                Making::Payload(Answering::new(items, incoming, sends))
            }),
            Err(refusal) => self.refuse(conn, refusal, fx),
        }
    }

    /// RECON with a list of fingerprints, which only the map form has (docs/map-form.md).
    pub(super) fn recon_list<E: Effects>(
        &mut self,
        conn: ConnId,
        group: GroupId,
        spans: Vec<Span>,
        message: &Bytes,
        fx: &mut E,
    ) {
        if self.waits_its_turn(conn, message) {
            return;
        }
        match self.admit_recon(conn, &group) {
            Ok(slot) => self.begin_recon(conn, slot, message, fx, |items, sends| {
                Making::List(ListAnswering::new(items, spans, sends))
            }),
            Err(refusal) => self.refuse(conn, refusal, fx),
        }
    }

    fn admit_recon(&mut self, conn: ConnId, group: &GroupId) -> Result<u32, Refusal> {
        self.charge_frame(conn, |b| &mut b.recon, RECON_PER_MINUTE)?;
        self.authorize(conn, group)
    }

    /// `begin` is given what the relay holds, and how many envelopes the connection has room for.
    fn begin_recon<E: Effects>(
        &mut self,
        conn: ConnId,
        slot: u32,
        message: &Bytes,
        fx: &mut E,
        begin: impl FnOnce(&[Item], usize) -> Making,
    ) {
        if !self.has_index(conn, slot, StreamKind::Envelopes, message, fx) {
            return;
        }
        self.metrics.recon_rounds.add(1);
        let (sends, _) = batch_room(fx.room(conn));
        let Loaded::Warm(index) = &self.groups[slot as usize].envelopes else {
            return;
        };
        let mut making = begin(index.durable(), sends);
        // Whoever came before is answered first; else most are answered at once.
        let is_made =
            self.answering.is_empty() && making.step(index.durable(), self.config.recon_piece_items);
        match is_made {
            true => self.read_owed(conn, slot, making.finish(), fx),
            false => self.wait_for_answer(conn, slot, making),
        }
    }

    fn wait_for_answer(&mut self, conn: ConnId, group: u32, making: Making) {
        if let Some(session) = self.session(conn) {
            session.waiting = Waiting::Answer(Box::new(Answer { group, making }));
            self.answering.push_back(conn);
        }
    }

    /// A piece of the answer that waits longest.
    pub(super) fn go_on_answering<E: Effects>(&mut self, fx: &mut E) {
        while let Some(conn) = self.answering.pop_front() {
            let Some(session) = self.session(conn) else {
                continue;
            };
            let Answer { group, mut making } = match std::mem::take(&mut session.waiting) {
                Waiting::Answer(answer) => *answer,
                other => {
                    session.waiting = other;
                    continue;
                }
            };
            let Loaded::Warm(index) = &self.groups[group as usize].envelopes else {
                self.answered_refusal(conn, Code::Backpressure.into(), fx);
                continue;
            };
            match making.step(index.durable(), self.config.recon_piece_items) {
                true => self.read_owed(conn, group, making.finish(), fx),
                false => self.wait_for_answer(conn, group, making),
            }
            return;
        }
    }

    /// Reads as much of what is owed as the queue takes, then answers.
    fn read_owed<E: Effects>(&mut self, conn: ConnId, slot: u32, answer: (Round, Vec<u64>), fx: &mut E) {
        let (round, owed) = answer;
        let (frames, bytes) = batch_room(fx.room(conn));
        let round = Recon {
            group: slot,
            round,
            asked: owed.len().min(frames),
            owed,
            bytes_max: bytes,
        };
        if round.asked == 0 || bytes == 0 {
            return self.finish_recon(conn, round, &[], fx);
        }
        let stream = StreamId {
            kind: StreamKind::Envelopes,
            group: self.groups[slot as usize].id,
        };
        let request = StoreRequest::ReadSeqs {
            stream,
            seqs: round.owed[..round.asked].to_vec(),
            bytes_max: bytes,
        };
        if let Some(session) = self.session(conn) {
            session.waiting = Waiting::Recon(Box::new(round));
        }
        let ticket = self.ticket(Pending::Recon { conn });
        fx.store(ticket, request);
    }

    pub(super) fn recon_read<E: Effects>(
        &mut self,
        conn: ConnId,
        result: Result<Vec<Record>, StoreError>,
        fx: &mut E,
    ) {
        let Some(session) = self.session(conn) else { return };
        let round = match std::mem::take(&mut session.waiting) {
            Waiting::Recon(round) => round,
            other => {
                session.waiting = other;
                return;
            }
        };
        match result {
            Ok(records) => self.finish_recon(conn, *round, &records, fx),
            Err(_) => self.answered_refusal(conn, Code::Backpressure.into(), fx),
        }
    }

    /// Pushes what fits now (room may have gone since the envelopes were asked for), then answers; spans with ids
    /// still owed are reopened (03 §7).
    fn finish_recon<E: Effects>(&mut self, conn: ConnId, mut round: Recon, records: &[Record], fx: &mut E) {
        let slot = round.group;
        let fits = batch_len(records.iter(), fx.room(conn));
        let sent = &records[..fits];
        let map = self.session(conn).is_some_and(|s| s.map);
        let pushes = |sent: &[Record]| message::pushes(sent.iter().map(|r| r.bytes.as_ref()), map);
        if !sent.is_empty() && fx.send(conn, pushes(sent)) {
            for record in sent {
                self.was_sent(conn, slot, record.seq, record.seq);
            }
        }
        // Up to the last one sent everything is settled: what the store lacked of it is gone for good. If the store
        // was not cut short, so is what it lacked behind that.
        let read: usize = records.iter().map(|r| r.bytes.len()).sum();
        let settled = if fits == records.len() && read < round.bytes_max {
            round.asked
        } else {
            sent.last()
                .and_then(|last| round.owed.iter().position(|&seq| seq == last.seq))
                .map_or(0, |at| at + 1)
        };
        let id = self.groups[slot as usize].id;
        let out = match &mut round.round {
            Round::Payload(answer) => {
                answer.reopen(settled);
                let mut payload = Vec::new();
                recon::encode(&answer.ranges, &mut payload);
                message::recon(id, &payload, map)
            }
            // What was left out lies in a range of the answer, so the client comes back for it.
            Round::List(spans) => {
                let spans = std::mem::take(spans);
                let bytes = spans.len() * 56;
                message::map_frame(&MapFrame::ReconList { group: id, spans }, bytes)
            }
        };
        self.answered(conn, out, fx);
    }
}
