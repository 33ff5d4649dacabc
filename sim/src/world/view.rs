//! What one shard sees of the world: the effects, each with what the saboteur makes of it and what the model is told.

use super::mail::Letter;
use super::net::{Phase, messages};
use super::outside::Outside;
use super::words::{describe, tag_of};
use super::{Happening, Line};
use crate::codes;
use crate::sabotage::Way;
use bytes::Bytes;
use drover_engine::ConnId;
use drover_engine::effects::{CloseHow, CloseReason, CodeCheck, Effects, StoreRequest};
use drover_engine::event::Ticket;
use drover_engine::outbox::{Outbound, Room};
use drover_engine::shard::{Session, ShardMessage};
use drover_engine::wake::Wake;
use drover_wire::frame::Frame;

/// How long what is queued for a closed connection may take to leave (transport: 5 s).
const FLUSH_US: u64 = 5_000_000;

/// See the module.
pub(super) struct View<'a> {
    me: usize,
    out: &'a mut Outside,
}

impl<'a> View<'a> {
    pub(super) fn new(me: usize, out: &'a mut Outside) -> Self {
        Self { me, out }
    }

    fn open(&self, id: ConnId) -> Option<Line> {
        self.out.net.find(self.me, id)
    }
}

impl Outside {
    /// Queues messages for a connection, as the engine or a saboteur wants it.
    fn queue(&mut self, line: Line, run: Outbound) -> bool {
        let conn = &mut self.net.conns[line];
        if !conn.is_open() {
            return false;
        }
        let (client, bytes) = (conn.client, run.bytes.clone());
        if !conn.outbox.push(run) {
            return false;
        }
        self.model.queued(&conn.outbox);
        self.net.mark_dirty(line);
        for message in messages(&bytes) {
            let tag = tag_of(message);
            let (workspace, device) = self.who[client];
            self.model.leaves(workspace, &device, tag);
            match tag {
                5 => {
                    if let Ok(Frame::AuthAck {
                        key_packages_remaining,
                        ..
                    }) = Frame::decode(message)
                    {
                        let judged = self
                            .model
                            .shelves
                            .counted((workspace, device), key_packages_remaining);
                        self.model.judge(judged);
                    }
                }
                6 => self.access_leaves(workspace, line, message),
                8 => {
                    if let Ok(Frame::SubAck { group, .. }) = Frame::decode(message) {
                        self.model.calls.subscribed(line, group);
                    }
                }
                16 | 22 | 25 => self.service_answers(line, message),
                23 => self.model.calls.reaches(line, message),
                24 => {
                    // Nobody honest queues it here.
                    let mono_ms = self.now().mono_ms;
                    self.model.calls.reaches(line, message);
                    self.model.calls.queues(line, mono_ms, &bytes, None);
                }
                _ => {}
            }
            self.note_line(b'q', line, |text| {
                text.push_str("is queued ");
                text.push_str(&describe(message));
            });
        }
        true
    }

    /// Queues MEDIA for a connection, as the engine or a saboteur wants it.
    fn speak(&mut self, line: Line, message: &Bytes) {
        let (mono_ms, client) = (self.now().mono_ms, self.net.conns[line].client);
        let (workspace, device) = self.who[client];
        if let Some(payload) = messages(message).next() {
            self.model.calls.reaches(line, payload);
        }
        self.model.leaves(workspace, &device, 24);
        let conn = &mut self.net.conns[line];
        if !conn.is_open() {
            return; // of which the engine has yet to hear
        }
        let lane_ms = match &mut self.saboteur {
            Some(saboteur) => saboteur.ages(mono_ms),
            None => mono_ms,
        };
        let shed = conn.outbox.push_media(lane_ms, message.clone());
        self.model.calls.queues(line, mono_ms, message, Some(shed));
        self.net.mark_dirty(line);
        self.note_line(b'~', line, |text| {
            let what = messages(message).next().map(describe);
            text.push_str("is queued ");
            text.push_str(&what.unwrap_or_default());
            if shed > 0 {
                text.push_str(&format!(", {shed} others are shed"));
            }
        });
    }
}

impl Effects for View<'_> {
    fn room(&mut self, id: ConnId) -> Room {
        let Some(line) = self.open(id) else {
            return Room::NONE;
        };
        let room = self.out.net.conns[line].outbox.room();
        if room.is_half() {
            return room;
        }
        self.out.flush(line);
        self.out.net.conns[line].outbox.room()
    }

    fn send(&mut self, id: ConnId, run: Outbound) -> bool {
        let Some(line) = self.open(id) else {
            return false;
        };
        let Some(mut saboteur) = self.out.saboteur.take() else {
            return self.out.queue(line, run);
        };
        let runs = saboteur.sends(line, run, &mut self.out.sabotage);
        self.out.saboteur = Some(saboteur);
        let mut taken = true;
        for (to, run) in runs {
            let queued = self.out.queue(to, run);
            taken &= queued || to != line;
        }
        taken
    }

    fn media(&mut self, id: ConnId, message: &Bytes) {
        let Some(line) = self.out.net.known(self.me, id) else {
            return;
        };
        let Some(mut saboteur) = self.out.saboteur.take() else {
            return self.out.speak(line, message);
        };
        let ways = saboteur.speaks(line, message);
        self.out.saboteur = Some(saboteur);
        for (to, way) in ways {
            match way {
                Way::Lane => self.out.speak(to, message),
                Way::Behind(run) => {
                    self.out.queue(to, run);
                }
            }
        }
    }

    fn watch_room(&mut self, id: ConnId) {
        if let Some(line) = self.open(id) {
            self.out.net.conns[line].watched = true;
            self.out.net.mark_dirty(line);
        }
    }

    fn close(&mut self, id: ConnId, how: CloseHow, reason: CloseReason) {
        let Some(line) = self.open(id) else { return };
        let sessions = self.out.sessions();
        self.out.ended(line);
        self.out.model.calls.counts(sessions);
        if let Some(saboteur) = &mut self.out.saboteur
            && !saboteur.closes(line, how)
        {
            return;
        }
        self.out.note_line(b'c', line, |text| {
            text.push_str(&format!("is closed: {how:?}, {reason:?}"))
        });
        self.out.coverage.add(closed_for(reason), 1);
        let conn = &mut self.out.net.conns[line];
        if how == CloseHow::Evict {
            conn.outbox.clear(true);
            self.out.model.calls.clears(line);
        }
        let conn = &mut self.out.net.conns[line];
        conn.phase = Phase::Leaving;
        conn.watched = false;
        conn.inbox.clear();
        // A close frame.
        conn.outbox.force(Outbound {
            bytes: Bytes::from_static(&[0x88, 0]),
            messages: 1,
            cost: 0,
        });
        self.out.net.closed.push_back(line);
        self.out.net.mark_dirty(line);
        let at = self.out.now_us() + FLUSH_US;
        self.out.agenda.add(at, Happening::Notices(line));
        self.out.agenda.add(at + 1, Happening::Hears(line));
        if how == CloseHow::Evict {
            self.out.flush(line);
        }
    }

    fn ping(&mut self, id: ConnId) {
        if let Some(line) = self.open(id)
            && self.out.net.conns[line].outbox.room().messages > 0
        {
            self.out.net.conns[line].outbox.force(Outbound {
                bytes: Bytes::from_static(&[0x89, 0]),
                messages: 1,
                cost: 0,
            });
            self.out.net.mark_dirty(line);
        }
    }

    fn resume(&mut self, id: ConnId) {
        if let Some(line) = self.open(id)
            && std::mem::take(&mut self.out.net.conns[line].paused)
        {
            self.out.net.resumed.push_back(line);
        }
    }

    fn authenticated(&mut self, id: ConnId) {
        if let Some(line) = self.out.net.known(self.me, id) {
            let sessions = self.out.sessions();
            self.out.model.calls.admitted(line, sessions);
            let (workspace, device) = self.out.who[self.out.net.conns[line].client];
            let now_us = self.out.now_us();
            let wakes = &mut self.out.model.wakes;
            wakes.wakes_up(self.me, workspace, &device, line, now_us);
        }
    }

    fn migrate(&mut self, id: ConnId, shard: usize, session: Box<Session>) {
        if let Some(line) = self.open(id) {
            self.out.net.conns[line].phase = Phase::Moving(shard, session);
            self.out.net.moving.push_back(line);
        }
    }

    fn post(&mut self, shard: usize, message: ShardMessage) {
        self.out.post(shard, Letter::Posted(message));
    }

    fn store(&mut self, ticket: Ticket, request: StoreRequest) {
        self.out.ask_store(self.me, ticket, request);
    }

    fn wake(&mut self, wakes: Vec<Wake>) {
        let wakes = match &mut self.out.saboteur {
            Some(saboteur) => saboteur.wakes(wakes),
            None => wakes,
        };
        let (now_us, now) = (self.out.now_us(), self.out.now());
        let sessions = self.out.sessions();
        self.out.model.calls.counts(sessions);
        let is_sure = self.out.model.calls.is_sure();
        for wake in wakes {
            let of = (0..self.out.plan.workspaces).find(|n| codes::realm(*n) == wake.realm);
            let (handle, category) = (wake.handle.0, wake.category);
            let workspace = of.unwrap_or(usize::MAX);
            let woken =
                self.out
                    .model
                    .wakes
                    .woken(self.me, workspace, &handle, category, (now_us, now), is_sure);
            self.out.coverage.add("wakes", 1);
            self.out.note(b"z", |line| {
                line.push_str(&format!("a device of {workspace} is woken: {category:?}"));
            });
            match woken {
                Ok(device) => {
                    let client = self.out.who.iter().position(|who| *who == (workspace, device));
                    self.out.woken.extend(client);
                }
                Err(violation) => self.out.model.judge(Err(violation)),
            }
            if self.out.misfortune.chance(0.03) {
                // The ringer does not know it.
                self.out.model.wakes.forgets(&handle);
                let shards = self.out.plan.shards;
                let (shard, message) = ShardMessage::forget_handle(wake.realm, wake.handle, shards);
                self.out.post(shard, Letter::Posted(message));
            }
        }
    }

    fn offload(&mut self, ticket: Ticket, check: CodeCheck) -> bool {
        if self.out.misfortune.chance(0.05) {
            return false; // too many are under way
        }
        let (shard, process) = (self.me, self.out.process);
        let matches = codes::matches(&check);
        let at = self.out.now_us() + self.out.dice.skewed(10_000, 500_000);
        self.out.agenda.add(
            at,
            Happening::Hashed {
                shard,
                ticket,
                matches,
                process,
            },
        );
        true
    }
}

const fn closed_for(reason: CloseReason) -> &'static str {
    match reason {
        CloseReason::Client => "closed by BYE",
        CloseReason::HandshakeDeadline => "closed for the handshake's deadline",
        CloseReason::IdleDeadline => "closed for silence",
        CloseReason::Evicted => "evicted",
        CloseReason::Protocol => "closed by a refusal",
        CloseReason::SlowReader => "closed for slow reading",
        CloseReason::Shutdown => "closed with their workspace",
    }
}
