//! What a client reads: every frame is checked against what was due, and told to the model.

use super::held::Reconciling;
use super::{Due, LISTS_MAX, Notice, Session, State};
use crate::model::{Subscription, envelopes, handshakes};
use crate::world::Outside;
use bytes::Bytes;
use drover_client::recon::Next;
use drover_wire::envelope::Envelope;
use drover_wire::error::{Class, Code};
use drover_wire::frame::{Frame, Wake};
use drover_wire::id::{GroupId, Hash};
use drover_wire::map::{self, MapFrame, Span};
use drover_wire::recon;

impl Session {
    /// One message.
    pub fn receive(&mut self, message: &Bytes, out: &mut Outside) {
        self.waits_since_us = out.now_us();
        if map::is_map(message) {
            return self.receive_map(message, out);
        }
        let frame = match Frame::decode(message) {
            Ok(frame) => frame,
            Err(error) => {
                return out
                    .model
                    .fail("what is sent decodes", || format!("{}: {error:?}", self.name));
            }
        };
        match (frame, self.due.front()) {
            (Frame::ConnectAck { .. }, Some(Due::Connect)) => {}
            (Frame::AuthChallenge { challenge }, Some(Due::Connect)) => {
                self.due.pop_front();
                self.state = State::Proving;
                let auth = Frame::Auth {
                    device_key: self.identity.public(),
                    signature: self.identity.sign(challenge),
                };
                self.say(&auth, Some(Due::Auth), out);
            }
            (Frame::AuthAck { .. }, Some(Due::Auth)) => {
                self.due.pop_front();
                self.state = State::Ready;
                self.refused = None;
                self.notices.push(Notice::Admitted);
            }
            (Frame::SendAck { hash, seq }, Some(Due::Send(group, id))) if hash == *id => {
                let group = *group;
                self.due.pop_front();
                self.unacked.remove(&hash);
                self.proved.insert(group);
                out.model.acknowledged(envelopes(group), seq, hash);
                if let Some(held) = self.held.get_mut(&group) {
                    held.insert(seq, hash);
                }
            }
            (Frame::Push { envelope }, _) => match Envelope::decode(envelope) {
                Ok(envelope) => self.pushed(&envelope, out),
                Err(_) => out.model.fail("what is sent decodes", || self.name.clone()),
            },
            (Frame::Handshake { group, seq, message }, _) => self.shaken(group, seq, message, out),
            (Frame::SubAck { group, head_seq }, _) => self.sub_acked(group, head_seq, out),
            (Frame::Wake(Wake::Capability { .. }), Some(Due::Replayed(group))) => {
                let group = *group;
                self.due.pop_front();
                if let Some(subscription) = self.held.get_mut(&group).and_then(|h| h.subscription.as_mut()) {
                    subscription.replayed(&out.model);
                }
            }
            (Frame::Recon { group, payload }, Some(Due::Recon(asked))) if group == *asked => {
                self.due.pop_front();
                self.reconciling(group, payload, out);
            }
            (Frame::Wake(Wake::Capability { .. }), Some(Due::Said)) => {
                self.due.pop_front();
            }
            (Frame::Call { group, .. }, _) => {
                let asked = |due: &Due| matches!(due, Due::Sub { group: g, .. } if *g == group);
                let listens = self.held.get(&group).is_some_and(|h| h.subscription.is_some());
                if self.version < 3 || !listens && !self.due.iter().any(asked) {
                    out.model.fail("only what was asked for is delivered", || {
                        format!("{}: CALL in {group:?}", self.name)
                    });
                }
            }
            (Frame::Media { .. }, _) => {
                if let Some(line) = self.line {
                    out.model.calls.hears(line, self.version, &frame);
                }
            }
            (Frame::Live { group, ct, .. }, _) => {
                if !out.model.beats.contains(&(group, ct.to_vec())) {
                    out.model.fail("LIVE carries what was sent", || {
                        format!("{}: {group:?}", self.name)
                    });
                }
            }
            (Frame::Error { code, detail, .. }, _) => {
                if code == Code::WrapNotNewer
                    && let Some(line) = self.line
                {
                    let judged = out.model.wraps.refused(line, detail);
                    out.model.judge(judged);
                }
                self.refused_with(code, out);
            }
            (frame, Some(Due::Ask(_))) => {
                if let Some(Due::Ask(ask)) = self.due.pop_front() {
                    let mut bytes = Vec::new();
                    frame.encode(&mut bytes);
                    self.notices.push(Notice::Answered(ask, bytes.into()));
                }
            }
            (Frame::Bye { .. }, _) => {}
            (frame, due) => {
                let due = format!("{due:?}");
                out.model.fail("answers come in the order of the frames", || {
                    format!("{}: {} while {due} was due", self.name, frame.name())
                });
            }
        }
    }

    fn receive_map(&mut self, message: &Bytes, out: &mut Outside) {
        let frame = match MapFrame::decode(message) {
            Ok(frame) if self.map => frame,
            other => {
                let other = format!("{other:?}");
                return out
                    .model
                    .fail("what is sent decodes", || format!("{}: {other}", self.name));
            }
        };
        match (frame, self.due.front()) {
            (MapFrame::Connect { .. }, Some(Due::Connect)) => {}
            (MapFrame::Auth { key, .. }, Some(Due::Connect)) => {
                self.due.pop_front();
                self.state = State::Proving;
                let auth = Frame::Auth {
                    device_key: self.identity.public(),
                    signature: self.identity.sign(key),
                };
                self.say(&auth, Some(Due::Auth), out);
            }
            (MapFrame::Auth { .. }, Some(Due::Auth)) => {
                self.due.pop_front();
                self.state = State::Ready;
                self.refused = None;
                out.coverage.add("sessions in the map form", 1);
                self.notices.push(Notice::Admitted);
            }
            (MapFrame::Push(envelope), Some(Due::Send(group, id))) if envelope.hash == *id => {
                let (group, id) = (*group, *id);
                self.due.pop_front();
                let earlier = self.unacked.remove(&id).is_some_and(|write| write.earlier);
                self.proved.insert(group);
                out.model.same(&envelope);
                out.model.acknowledged(envelopes(group), envelope.seq, id);
                let Some(held) = self.held.get_mut(&group) else {
                    return;
                };
                held.insert(envelope.seq, id);
                if earlier && held.subscription.is_some() {
                    // It may have been pushed, the acknowledgement still to come: nothing tells them apart.
                    self.hang_up(out);
                }
            }
            (MapFrame::Push(envelope), _) => self.pushed(&envelope, out),
            (MapFrame::Recon { group, payload }, Some(Due::Recon(asked))) if group == *asked => {
                self.due.pop_front();
                self.reconciling(group, payload, out);
            }
            (MapFrame::ReconList { group, spans }, Some(Due::Recon(asked))) if group == *asked => {
                self.due.pop_front();
                self.listed(group, &spans, out);
            }
            (MapFrame::Error { code, .. }, _) => self.refused_with(code, out),
            (frame, due) => {
                let what = format!("{frame:?} while {due:?} was due");
                out.model.fail("answers come in the order of the frames", || {
                    format!("{}: {what}", self.name)
                });
            }
        }
    }

    fn pushed(&mut self, envelope: &Envelope<'_>, out: &mut Outside) {
        out.model.same(envelope);
        let (group, seq, id) = (envelope.group, envelope.seq, envelope.content_hash());
        if id != envelope.hash {
            out.model.fail("what is pushed verifies", || {
                format!("{}: {group:?} {seq}", self.name)
            });
        }
        out.model.number(envelopes(group), seq, id);
        let reconciling = self
            .due
            .iter()
            .any(|due| matches!(due, Due::Recon(g) if *g == group));
        let Some(held) = self.held.get_mut(&group) else {
            return out
                .model
                .fail("only what was asked for is pushed", || self.name.clone());
        };
        match &mut held.subscription {
            // Its own, in the map form: an acknowledgement that came late.
            Some(subscription) if reconciling || self.map && self.sent_here.contains(&id) => {
                subscription.pushed_meanwhile(seq);
            }
            Some(subscription) => subscription.pushed(seq, &self.sent_here, &mut out.model),
            None if reconciling => {}
            None => out
                .model
                .fail("only what was asked for is pushed", || self.name.clone()),
        }
        held.insert(seq, id);
    }

    fn shaken(&mut self, group: GroupId, seq: u64, message: &[u8], out: &mut Outside) {
        let id = Hash::of(&[&group.0, message]);
        out.model.number(handshakes(group), seq, id);
        if matches!(self.due.front(), Some(Due::Handshake(g, due)) if *g == group && *due == id) {
            self.due.pop_front();
            self.unacked.remove(&id);
            return out.model.acknowledged(handshakes(group), seq, id);
        }
        match self.held.get_mut(&group).and_then(|h| h.subscription.as_mut()) {
            Some(subscription) => subscription.handshake(seq, id, &self.sent_here, &mut out.model),
            None => out
                .model
                .fail("only what was asked for is delivered", || self.name.clone()),
        }
    }

    fn sub_acked(&mut self, group: GroupId, head: u64, out: &mut Outside) {
        let Some(held) = self.held.get_mut(&group) else {
            return;
        };
        match (self.due.front(), &mut held.subscription) {
            (_, Some(subscription)) if head == 0 => {
                out.coverage.add("notices", 1);
                subscription.notice();
            }
            (Some(Due::Sub { group: g, from }), subscription) if *g == group => {
                // What a subscription owed is owed no more, but what it left out stays out.
                held.behind |= subscription.as_ref().is_some_and(|s| s.behind);
                *subscription = Some(Subscription::new(group, *from, head, &mut out.model));
                self.due.pop_front();
                self.proved.insert(group);
            }
            (due, _) => {
                let due = format!("{due:?}");
                out.model.fail("answers come in the order of the frames", || {
                    format!("{}: SUB_ACK {head} while {due} was due", self.name)
                });
            }
        }
    }

    fn reconciling(&mut self, group: GroupId, payload: &[u8], out: &mut Outside) {
        let Some(held) = self.held.get_mut(&group) else {
            return;
        };
        let Some((Reconciling::Payload(mut reconciler), owed)) = held.recon.take() else {
            return;
        };
        let Ok(ranges) = recon::decode(payload) else {
            return out.model.fail("what is sent decodes", || self.name.clone());
        };
        let mut next = reconciler.answered(&held.items, ranges);
        if let Next::Offer(ids) = &next {
            // Whatever a client holds was acknowledged, so the relay lacks only what it was told to drop. What came
            // since the question was asked it would be told again, and say so.
            let lacking: Vec<Hash> = ids
                .iter()
                .filter(|id| !held.fresh.contains(*id))
                .copied()
                .collect();
            out.model.missing(group, &lacking);
            held.let_go(&lacking);
            next = reconciler.offered(&held.items);
        }
        match next {
            Next::Round(payload) => {
                held.recon = Some((Reconciling::Payload(reconciler), owed));
                held.fresh.clear();
                let frame = Frame::Recon {
                    group,
                    payload: &payload,
                };
                self.say(&frame, Some(Due::Recon(group)), out);
            }
            Next::Done => held.is_whole(group, &owed, out),
            Next::Offer(_) | Next::GiveUp => out
                .model
                .fail("reconciliation ends", || format!("{}: {group:?}", self.name)),
        }
    }

    /// An answer to a list: the ranges that differ for the relay (docs/map-form.md).
    fn listed(&mut self, group: GroupId, theirs: &[Span], out: &mut Outside) {
        let Some(held) = self.held.get_mut(&group) else {
            return;
        };
        let Some((Reconciling::Lists(round), owed)) = held.recon.take() else {
            return;
        };
        out.coverage.add("RECON lists", 1);
        let mut mine = held.spans(theirs.iter().map(|span| (span.lower, span.upper)));
        mine.retain(|span| !theirs.contains(span));
        if mine.is_empty() {
            held.is_whole(group, &owed, out);
        } else if round < LISTS_MAX {
            held.recon = Some((Reconciling::Lists(round + 1), owed));
            self.ask_by_list(group, mine, out);
        } else {
            // It may hold what the relay was told to drop, and a list does not say which.
            self.ask_by_payload(group, owed, out);
        }
    }

    fn refused_with(&mut self, code: Code, out: &mut Outside) {
        if code == Code::Failover {
            out.coverage.add("failovers", 1);
            return; // the connection ends
        }
        if let Some(Due::Said) = self.due.front() {
            return; // the model knows what it is for
        }
        // A replay that could not be read: its subscription lives on (02 §8).
        if let Some(Due::Replayed(group)) = self.due.front() {
            if self.map {
                // Or there never was a subscription: it begins anew.
                return self.hang_up(out);
            }
            if let Some(subscription) = self.held.get_mut(group).and_then(|h| h.subscription.as_mut()) {
                out.coverage.add("replays cut short", 1);
                subscription.notice();
                subscription.handshakes_cut = true;
            }
            return;
        }
        let pause = match code.class() {
            Class::Quota | Class::Limit => 20_000_000,
            _ => out.dice.skewed(10_000, 2_000_000),
        };
        let not_before_us = out.now_us() + pause;
        match self.due.pop_front() {
            Some(Due::Send(_, id) | Due::Handshake(_, id)) => {
                // This connection's own write came to nothing, so its next one may be somebody else's.
                if let Some(write) = self.unacked.get_mut(&id) {
                    write.under_way = write.under_way.saturating_sub(1);
                    write.not_before_us = not_before_us;
                }
                if !matches!(code.class(), Class::Retry | Class::Quota) {
                    out.model.fail("a SEND that may be is taken", || {
                        format!("{}: {code:?}", self.name)
                    });
                }
            }
            Some(Due::Connect | Due::Auth) => self.refused = Some(code),
            Some(Due::Sub { group, .. }) => {
                // Nothing was begun: what follows it is answered all the same.
                if let Some(held) = self.held.get_mut(&group) {
                    held.behind = true;
                }
            }
            Some(Due::Recon(group)) => {
                if let Some(held) = self.held.get_mut(&group) {
                    held.recon = None;
                    held.behind = true;
                }
            }
            Some(Due::Ask(ask)) => self.notices.push(Notice::Refused(ask, code)),
            Some(Due::Replayed(_) | Due::Said) | None => {} // the deadlines' last word, or a beat's
        }
    }
}
