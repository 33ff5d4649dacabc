//! What was committed reaches the subscribers: one slice of bytes for all of them, a downgrade for those whose queue
//! is full (02 §7, §9).

use super::Shard;
use super::ingest::NewHandshake;
use crate::effects::{CloseHow, CloseReason, Effects};
use crate::event::ConnId;
use crate::group::{SealedRun, Subscriber};
use crate::message;
use crate::outbox::Outbound;
use drover_wire::id::GroupId;

/// Tells a downgraded subscriber to reconcile, if it can be told now. Returns whether nothing is owed any more.
pub(super) fn settle_debt<E: Effects>(subscriber: &mut Subscriber, group: GroupId, fx: &mut E) -> bool {
    if subscriber.owed && fx.send(subscriber.conn, message::sub_ack(group, 0)) {
        subscriber.owed = false;
    }
    !subscriber.owed
}

impl Shard {
    /// PUSHes one commit's envelopes of one group to everybody who listens, their writers excepted.
    pub(super) fn deliver<E: Effects>(&mut self, run: &SealedRun, fx: &mut E) {
        let group = &mut self.groups[run.group as usize];
        let track = self.config.group_backlog_bytes.is_some();
        let (mut frames, mut downgrades) = (0, 0);
        // Which prefix of the run some subscriber other than the writers was sent, for the backlog budget.
        let mut reached = 0;
        for subscriber in group.subscribers.iter_mut().filter(|s| !s.replaying) {
            let wrote = run.writers.contains(&subscriber.conn);
            let mut at = 0;
            while at < run.items.len() {
                // The next stretch of messages that are not the subscriber's own.
                let end = if wrote {
                    let own = |i: usize| run.items[i].writer == subscriber.conn;
                    if own(at) {
                        at += 1;
                        continue;
                    }
                    (at..run.items.len()).find(|&i| own(i)).unwrap_or(run.items.len())
                } else {
                    run.items.len()
                };
                let sent = push_stretch(subscriber, group.id, run, at, end, fx);
                frames += sent;
                if !wrote {
                    reached = reached.max(at + sent);
                } else if track && sent > 0 {
                    let (first, last) = (&run.items[at], &run.items[at + sent - 1]);
                    group.backlog.sent(first.seq, last.seq, None);
                }
                if sent < end - at {
                    if !subscriber.owed {
                        subscriber.owed = true;
                        downgrades += 1;
                    }
                    break;
                }
                at = end;
            }
        }
        if track && reached > 0 {
            group
                .backlog
                .sent(run.items[0].seq, run.items[reached - 1].seq, None);
        }
        self.metrics.fanout_frames.add(frames as u64);
        self.metrics.subscriber_downgrades.add(downgrades);
    }

    /// HANDSHAKE to everybody who listens, its publisher excepted. A subscriber that can't take it has to replay
    /// from zero, so its connection ends (02 decision 3).
    pub(super) fn deliver_handshake<E: Effects>(&mut self, handshake: &NewHandshake, fx: &mut E) {
        let group = &mut self.groups[handshake.group as usize];
        let id = group.id;
        let mut full: Vec<ConnId> = Vec::new();
        let mut frames = 0;
        for subscriber in &mut group.subscribers {
            if subscriber.replaying || subscriber.conn == handshake.publisher {
                continue;
            }
            if settle_debt(subscriber, id, fx) && offer(subscriber.conn, &handshake.out, fx) {
                frames += 1;
            } else {
                full.push(subscriber.conn);
            }
        }
        self.metrics.fanout_frames.add(frames);
        for conn in full {
            self.detach(conn);
            fx.close(conn, CloseHow::Flush, CloseReason::SlowReader);
        }
    }
}

/// Sends after the transport had a chance to make room.
fn offer<E: Effects>(conn: ConnId, out: &Outbound, fx: &mut E) -> bool {
    let room = fx.room(conn);
    room.messages >= out.messages as usize && room.cost >= out.cost as usize && fx.send(conn, out.clone())
}

/// Queues the messages `from..to` as far as they fit; returns how many.
fn push_stretch<E: Effects>(
    subscriber: &mut Subscriber,
    group: GroupId,
    run: &SealedRun,
    from: usize,
    to: usize,
    fx: &mut E,
) -> usize {
    if !settle_debt(subscriber, group, fx) {
        return 0;
    }
    if subscriber.map {
        let envelope = |i: &crate::group::RunItem| &run.bytes[i.envelope as usize..i.end as usize];
        let outs = run.items[from..to]
            .iter()
            .filter_map(|i| message::map_push(envelope(i)));
        return outs.take_while(|out| offer(subscriber.conn, out, fx)).count();
    }
    let mut at = from;
    while at < to {
        let out = run.slice(at, to);
        if fx.send(subscriber.conn, out) {
            return to - from;
        }
        // Not all of it fits: as much as does, after the transport has written out what the socket takes.
        let room = fx.room(subscriber.conn);
        let mut cost = 0;
        let fits = run.items[at..to]
            .iter()
            .take(room.messages)
            .take_while(|i| {
                cost += i.cost as usize;
                cost <= room.cost
            })
            .count();
        if fits == 0 || !fx.send(subscriber.conn, run.slice(at, at + fits)) {
            break;
        }
        at += fits;
    }
    at - from
}
