//! SUB: the head, every handshake from zero, a bounded backfill, then what was committed meanwhile, then live
//! (02 §8). Live frames of the group are held back by position until the replay ends (02 decision 4).

use super::{Pending, Shard};
use crate::effects::{Effects, StoreRequest};
use crate::event::ConnId;
use crate::group::{Loaded, Subscriber};
use crate::limits::{
    BACKFILL_COST, BACKFILL_FRAMES, BACKFILL_RESERVE, GROUPS_PER_CONNECTION, STALL_MS, SUB_PER_MINUTE,
};
use crate::message;
use crate::outbox::{COST_MAX, Room, cost};
use crate::session::{Phase, Replay, Waiting};
use bytes::Bytes;
use drover_storage::StoreError;
use drover_storage::log::{Record, StreamId, StreamKind};
use drover_wire::error::{Code, Refusal};
use drover_wire::frame::Frame;
use drover_wire::id::GroupId;
use drover_wire::recon::item_seq;
use std::collections::VecDeque;

/// Handshakes read at once.
const PAGE_RECORDS: usize = 256;
/// Bytes of handshakes read at once, so that a replay to a slow reader holds little.
const PAGE_BYTES: usize = 1 << 20;

/// What a batch of PUSHes may take of an outbox: frames and bytes (02 §8).
pub(super) fn batch_room(room: Room) -> (usize, usize) {
    let queued = COST_MAX - room.cost;
    let frames = room.messages.saturating_sub(1).min(BACKFILL_FRAMES);
    let bytes = COST_MAX
        .saturating_sub(queued)
        .saturating_sub(BACKFILL_RESERVE)
        .min(BACKFILL_COST);
    (frames, bytes)
}

/// How many of these records a batch takes: at least one whenever it takes anything.
pub(super) fn batch_len<'a>(records: impl Iterator<Item = &'a Record>, room: Room) -> usize {
    let (frames, bytes) = batch_room(room);
    if bytes == 0 {
        return 0;
    }
    let mut total = 0;
    records
        .take(frames)
        .enumerate()
        .take_while(|(i, record)| {
            total += cost(record.bytes.len());
            *i == 0 || total <= bytes
        })
        .count()
}

impl Shard {
    pub(super) fn sub<E: Effects>(
        &mut self,
        conn: ConnId,
        group: GroupId,
        from_seq: u64,
        no_backfill: bool,
        message: &Bytes,
        fx: &mut E,
    ) {
        if self.waits_its_turn(conn, message) {
            return;
        }
        if let Err(refusal) = self.begin_sub(conn, group, from_seq, no_backfill, message, fx) {
            self.refuse(conn, refusal, fx);
        }
    }

    pub(super) fn begin_sub<E: Effects>(
        &mut self,
        conn: ConnId,
        group: GroupId,
        from_seq: u64,
        no_backfill: bool,
        message: &Bytes,
        fx: &mut E,
    ) -> Result<(), Refusal> {
        let known = self.group_slots.get(&group).copied();
        if let Some(session) = self.session(conn)
            && session.subscribed.len() >= GROUPS_PER_CONNECTION
            && known.is_none_or(|slot| !session.subscribed.contains(&slot))
        {
            return Err(Refusal::number(Code::RateLimited, GROUPS_PER_CONNECTION as u64));
        }
        self.charge_frame(conn, |b| &mut b.sub, SUB_PER_MINUTE)?;
        let slot = self.authorize(conn, &group)?;
        if !self.has_index(conn, slot, StreamKind::Envelopes, message, fx)
            || !self.has_index(conn, slot, StreamKind::Handshakes, message, fx)
        {
            return Ok(());
        }
        let head = self.head(slot);
        let map = self.session(conn).is_some_and(|s| s.map);
        if !map {
            self.reply(conn, message::sub_ack(group, head.max(from_seq)), fx);
        }
        let Some(session) = self.session(conn) else {
            return Ok(());
        };
        let version = session.version;
        session.waiting = Waiting::Replay(Box::new(Replay {
            group: slot,
            next_handshake: 0,
            phase: if no_backfill {
                Phase::CatchUp { above: head }
            } else {
                Phase::Handshakes { from_seq, head }
            },
            read: VecDeque::new(),
            reading: None,
        }));
        if !session.subscribed.contains(&slot) {
            session.subscribed.push(slot);
        }
        let place = &mut self.groups[slot as usize];
        match place.subscriber(conn) {
            Some(subscriber) => {
                subscriber.replaying = true;
                subscriber.owed = false; // this SUB_ACK and what follows it settle any debt
            }
            None => place.subscribers.push(Subscriber {
                conn,
                replaying: true,
                owed: false,
                map,
                version,
            }),
        }
        self.advance_replay(conn, fx);
        Ok(())
    }

    fn head(&self, slot: u32) -> u64 {
        match &self.groups[slot as usize].envelopes {
            Loaded::Warm(index) => index.head().unwrap_or(0),
            _ => 0,
        }
    }

    fn handshake_count(&self, slot: u32) -> u64 {
        match &self.groups[slot as usize].handshakes {
            Loaded::Warm(index) => index.head().map_or(0, |last| last + 1),
            _ => 0,
        }
    }

    /// The first committed number at or above `from`.
    fn first_at(&self, slot: u32, from: u64) -> Option<u64> {
        let Loaded::Warm(index) = &self.groups[slot as usize].envelopes else {
            return None;
        };
        let items = index.durable();
        let at = items.partition_point(|i| item_seq(i) < from);
        items.get(at).map(item_seq)
    }

    /// Sends what fits and asks for what comes next. Called when the replay begins, a page was read, or room came.
    pub(super) fn advance_replay<E: Effects>(&mut self, conn: ConnId, fx: &mut E) {
        loop {
            let now_ms = self.now.mono_ms;
            let Some(session) = self.session(conn) else { return };
            if !session.owed.is_empty() {
                return; // the SUB_ACK itself waits for room; flushing it comes back here
            }
            let Waiting::Replay(replay) = &mut session.waiting else {
                return;
            };
            if replay.reading.is_some() {
                return;
            }
            let (slot, phase, next_handshake) = (replay.group, replay.phase, replay.next_handshake);
            if let Some(record) = replay.read.front().cloned() {
                let (group, seq) = (self.groups[slot as usize].id, record.seq);
                let out = message::frame(&Frame::Handshake {
                    group,
                    seq,
                    message: &record.bytes,
                });
                let room = fx.room(conn);
                let fits = room.messages > 0 && room.cost >= out.cost as usize && fx.send(conn, out);
                let Some(session) = self.session(conn) else { return };
                if !fits {
                    fx.watch_room(conn);
                    // Each frame has its own ten seconds (02 §2).
                    if session.stalled_ms.is_none() {
                        session.stalled_ms = Some(now_ms);
                        self.arm(conn, now_ms + STALL_MS);
                    }
                    return;
                }
                session.stalled_ms = None;
                let Waiting::Replay(replay) = &mut session.waiting else {
                    return;
                };
                replay.read.pop_front();
                replay.next_handshake = seq + 1;
                continue;
            }
            let stream = |kind| StreamId {
                kind,
                group: self.groups[slot as usize].id,
            };
            if next_handshake < self.handshake_count(slot) {
                let request = StoreRequest::Read {
                    stream: stream(StreamKind::Handshakes),
                    from: next_handshake,
                    records_max: PAGE_RECORDS,
                    bytes_max: PAGE_BYTES,
                };
                return self.read_for_replay(conn, StreamKind::Handshakes, request, fx);
            }
            let above = match phase {
                Phase::Handshakes { from_seq, head } => {
                    match self.first_at(slot, from_seq).filter(|&first| first <= head) {
                        Some(_) => {
                            self.set_phase(conn, Phase::Backfill { from_seq, head });
                            if self.read_envelopes(conn, slot, from_seq, fx) {
                                return;
                            }
                            self.set_phase(conn, Phase::CatchUp { above: head });
                        }
                        // The cursor bounds the backfill alone: what is committed from now on is live.
                        None => self.set_phase(conn, Phase::CatchUp { above: head }),
                    }
                    continue;
                }
                Phase::Backfill { .. } => return, // its page is on the way
                Phase::CatchUp { above } => above,
            };
            if above == u64::MAX || self.first_at(slot, above + 1).is_none() {
                return self.end_replay(conn, slot, false, fx);
            }
            if !self.read_envelopes(conn, slot, above + 1, fx) {
                return self.end_replay(conn, slot, true, fx); // no room for what came meanwhile: a downgrade is owed
            }
            return;
        }
    }

    fn set_phase(&mut self, conn: ConnId, phase: Phase) {
        if let Some(session) = self.session(conn)
            && let Waiting::Replay(replay) = &mut session.waiting
        {
            replay.phase = phase;
        }
    }

    /// Asks for one batch of envelopes; `false` if there is no room for any.
    fn read_envelopes<E: Effects>(&mut self, conn: ConnId, slot: u32, from: u64, fx: &mut E) -> bool {
        let (frames, bytes) = batch_room(fx.room(conn));
        if frames == 0 || bytes == 0 {
            return false;
        }
        let stream = StreamId {
            kind: StreamKind::Envelopes,
            group: self.groups[slot as usize].id,
        };
        let request = StoreRequest::Read {
            stream,
            from,
            records_max: frames,
            bytes_max: bytes,
        };
        self.read_for_replay(conn, StreamKind::Envelopes, request, fx);
        true
    }

    fn read_for_replay<E: Effects>(
        &mut self,
        conn: ConnId,
        kind: StreamKind,
        request: StoreRequest,
        fx: &mut E,
    ) {
        if let Some(session) = self.session(conn)
            && let Waiting::Replay(replay) = &mut session.waiting
        {
            replay.reading = Some(kind);
            let ticket = self.ticket(Pending::Replay { conn });
            fx.store(ticket, request);
        }
    }

    pub(super) fn replay_read<E: Effects>(
        &mut self,
        conn: ConnId,
        result: Result<Vec<Record>, StoreError>,
        fx: &mut E,
    ) {
        let Some(session) = self.session(conn) else { return };
        let Waiting::Replay(replay) = &mut session.waiting else {
            return;
        };
        let kind = replay.reading.take();
        let (slot, phase) = (replay.group, replay.phase);
        let Ok(records) = result else {
            // The subscription stays live; the client reconciles or asks again (02 §8).
            self.refuse(conn, Code::Backpressure, fx);
            return self.end_replay(conn, slot, false, fx);
        };
        let above = match phase {
            _ if kind == Some(StreamKind::Handshakes) => {
                if records.is_empty() {
                    // The store holds fewer than it acknowledged: never pretend otherwise.
                    self.refuse(conn, Code::Backpressure, fx);
                    return self.end_replay(conn, slot, false, fx);
                }
                if let Some(session) = self.session(conn)
                    && let Waiting::Replay(replay) = &mut session.waiting
                {
                    replay.read.extend(records);
                }
                return self.advance_replay(conn, fx);
            }
            Phase::Backfill { head, .. } => head,
            Phase::CatchUp { above } => above,
            Phase::Handshakes { .. } => return,
        };
        let fits = batch_len(records.iter(), fx.room(conn));
        let sent = &records[..fits];
        if let (Some(first), Some(last)) = (sent.first(), sent.last()) {
            let map = self.session(conn).is_some_and(|s| s.map);
            let out = message::pushes(sent.iter().map(|r| r.bytes.as_ref()), map);
            if fx.send(conn, out) {
                self.was_sent(conn, slot, first.seq, last.seq);
            }
        }
        let last = sent.last().map(|r| r.seq);
        match phase {
            // What a backfill leaves out, the client sees from the head it was told; what came after the head is
            // never left out silently.
            Phase::Backfill { .. } => self.set_phase(
                conn,
                Phase::CatchUp {
                    above: above.max(last.unwrap_or(0)),
                },
            ),
            Phase::CatchUp { .. } => match last {
                Some(last) => self.set_phase(conn, Phase::CatchUp { above: last }),
                None => return self.end_replay(conn, slot, true, fx),
            },
            Phase::Handshakes { .. } => {}
        }
        self.advance_replay(conn, fx);
    }

    /// Envelopes reached a subscriber: they are no backlog of their writers any more (decisions.md 31).
    pub(super) fn was_sent(&mut self, conn: ConnId, slot: u32, from: u64, to: u64) {
        if self.config.group_backlog_bytes.is_some() {
            let reader = self.session(conn).map(|s| s.device_slot);
            self.groups[slot as usize].backlog.sent(from, to, reader);
        }
    }

    /// From here on the group's frames come live.
    fn end_replay<E: Effects>(&mut self, conn: ConnId, slot: u32, owed: bool, fx: &mut E) {
        if let Some(subscriber) = self.groups[slot as usize].subscriber(conn) {
            subscriber.replaying = false;
            if owed && !subscriber.owed {
                subscriber.owed = true;
                self.metrics.subscriber_downgrades.add(1);
            }
        }
        if let Some(session) = self.session(conn) {
            session.waiting = Waiting::No;
            session.stalled_ms = None;
        }
        self.next_sub(conn, &Bytes::new(), fx);
        self.update_flow(conn, fx);
    }
}
