//! RECON: the relay's side of one round (03). The items are in memory; only what is owed is read from the store.

use super::replay::{batch_len, batch_room};
use super::{Pending, Shard};
use crate::effects::{Effects, StoreRequest};
use crate::event::ConnId;
use crate::group::Loaded;
use crate::limits::RECON_PER_MINUTE;
use crate::message;
use crate::session::{Recon, Round, Waiting};
use bytes::Bytes;
use drover_storage::StoreError;
use drover_storage::log::{Record, StreamId, StreamKind};
use drover_wire::error::{Code, Refusal};
use drover_wire::id::GroupId;
use drover_wire::map::{self, MapFrame};
use drover_wire::recon::{self, item_seq};

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
        if let Err(refusal) = self.begin_recon(conn, group, payload, message, fx) {
            self.refuse(conn, refusal, fx);
        }
    }

    fn begin_recon<E: Effects>(
        &mut self,
        conn: ConnId,
        group: GroupId,
        payload: &[u8],
        message: &Bytes,
        fx: &mut E,
    ) -> Result<(), Refusal> {
        self.charge_frame(conn, |b| &mut b.recon, RECON_PER_MINUTE)?;
        let slot = self.authorize(conn, &group)?;
        let incoming = recon::decode(payload)?;
        if !self.has_index(conn, slot, StreamKind::Envelopes, message, fx) {
            return Ok(());
        }
        self.metrics.recon_rounds.add(1);
        let Loaded::Warm(index) = &self.groups[slot as usize].envelopes else {
            return Ok(());
        };
        let items = index.durable();
        let answer = recon::answer(items, &incoming);
        let owed = answer
            .owed
            .iter()
            .map(|&at| item_seq(&items[at as usize]))
            .collect();
        self.read_owed(conn, slot, owed, Round::Payload { incoming, answer }, fx);
        Ok(())
    }

    /// RECON with a list of fingerprints, which only the map form has (docs/map-form.md).
    pub(super) fn recon_list<E: Effects>(
        &mut self,
        conn: ConnId,
        group: GroupId,
        spans: &[map::Span],
        message: &Bytes,
        fx: &mut E,
    ) -> Result<(), Refusal> {
        self.charge_frame(conn, |b| &mut b.recon, RECON_PER_MINUTE)?;
        let slot = self.authorize(conn, &group)?;
        if !self.has_index(conn, slot, StreamKind::Envelopes, message, fx) {
            return Ok(());
        }
        self.metrics.recon_rounds.add(1);
        let Loaded::Warm(index) = &self.groups[slot as usize].envelopes else {
            return Ok(());
        };
        let items = index.durable();
        let answer = map::answer_list(items, spans);
        let owed = answer
            .owed
            .iter()
            .map(|&at| item_seq(&items[at as usize]))
            .collect();
        self.read_owed(conn, slot, owed, Round::List(answer), fx);
        Ok(())
    }

    /// Reads as much of what is owed as the queue takes, then answers.
    fn read_owed<E: Effects>(&mut self, conn: ConnId, slot: u32, owed: Vec<u64>, round: Round, fx: &mut E) {
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
        let group = &self.groups[slot as usize];
        let id = group.id;
        let out = match &mut round.round {
            Round::Payload { incoming, answer } => {
                let unsent = &round.owed[settled..];
                if !unsent.is_empty() {
                    let Loaded::Warm(index) = &group.envelopes else {
                        // The index went while the envelopes were read: a span with ids still owed can't be reopened.
                        return self.answered_refusal(conn, Code::Backpressure.into(), fx);
                    };
                    // A DROP may have moved them meanwhile, or taken them away.
                    let places = unsent.iter().filter_map(|&seq| index.position(seq));
                    let unsent: Vec<u32> = places.map(|at| at as u32).collect();
                    recon::reopen(answer, index.durable(), incoming, &unsent);
                }
                let mut payload = Vec::new();
                recon::encode(&answer.ranges, &mut payload);
                message::recon(id, &payload, map)
            }
            // What was left out lies in a range of the answer, so the client comes back for it.
            Round::List(answer) => {
                let spans = std::mem::take(&mut answer.spans);
                let bytes = spans.len() * 56;
                message::map_frame(&MapFrame::ReconList { group: id, spans }, bytes)
            }
        };
        self.answered(conn, out, fx);
    }
}
