//! From bytes that came in to the engine: decrypt, unframe, hand over.

use crate::conn::Phase;
use crate::driver::Driver;
use crate::http::{self, Asked};
use crate::line::{Line, Opening};
use crate::tls::Step;
use crate::turn::Turn;
use crate::ws::{Failure, Item, MESSAGE_BYTES_MAX, control_frame};
use bytes::BytesMut;
use drover_engine::{ConnId, Event, Flow, Inbound, Peer};
use std::time::{Duration, Instant};

/// Times one connection is received from in one turn; what is left then waits for the next, so that nobody starves.
const RECEIVES_MAX: u32 = 4;
/// Frames of one connection in its share of a turn. Small ones cost some hundred nanoseconds, and a receive brings ten
/// thousand of them: everybody else would wait for all of those.
const FRAMES_MAX: usize = 64;
/// Bytes of messages in such a share: it ends with the one that goes beyond.
const BYTES_MAX: usize = 64 << 10;
/// A share that takes longer is slow: this much, and what long messages are worth, which are hashed and copied.
const SLOW: Duration = Duration::from_micros(100);
/// The worth of a byte of a message.
const SLOW_BYTE: Duration = Duration::from_nanos(1);
/// After so many slow shares in a row, until one is not, the connection waits in line with others like it. One alone may
/// be the system's doing: the thread lost its core meanwhile.
pub(crate) const SLOW_SHARES: u8 = 3;
/// The time of a turn for all of those together, and for the answers they wait for: others wait for one expensive
/// message, not for one of each of its kind.
pub(crate) const SLOW_TURN: Duration = Duration::from_micros(500);
/// Three quarters of the shard are left to those who are quick: the threads that commit and read for them need a core too.
pub(crate) const SLOW_REST: u32 = 3;
/// Bytes of a message that has begun, from which on its connection waits in line with others like it for what follows: a
/// share that only collects is quick and never slow, but sixty of them are not.
const LONG_BYTES: usize = 128 << 10;
/// The time of a turn for all of those together: it collects half a megabyte.
pub(crate) const LONG_TURN: Duration = Duration::from_micros(250);
/// The time of a turn for all who are not upgraded yet: TLS handshakes cost hundreds of microseconds, heads some ten, and
/// everybody may come back at once.
pub(crate) const FRESH_TURN: Duration = Duration::from_micros(500);
/// Frames in a share that bring nothing forward: pings, pongs, texts, fragments of less than [`FRAGMENT_BYTES`], messages
/// that are refused. No client in earnest has so many at once; who does waits, until a share has fewer, in a line that
/// gets little of the shard, and then the peer's own writes wait too.
const IDLE_FRAMES: usize = 32;
/// A shorter fragment costs more than it brings. Clients that fragment do so by the KiB.
const FRAGMENT_BYTES: usize = 64;
/// The time of a turn for all of those together.
pub(crate) const IDLE_TURN: Duration = Duration::from_micros(250);
/// A twentieth of the shard is theirs: sixty connections still have some hundred thousand pings answered a second.
pub(crate) const IDLE_REST: u32 = 19;
/// What is read and dropped of a connection that is being ended, so that its peer reads why: before the upgrade, and
/// after. Who sends more isn't reading: before the upgrade that is a head twice as long as one may be, and each KiB that is
/// read of those is the others' time.
const DROPPED_BYTES_MAX: (usize, usize) = (16 << 10, 2 << 20);

/// What one connection has had of this turn.
#[derive(Clone, Copy, Default)]
pub(crate) struct Share {
    frames: usize,
    bytes: usize,
    idle_frames: usize,
}

impl Share {
    fn is_up(&self) -> bool {
        self.frames >= FRAMES_MAX || self.bytes >= BYTES_MAX
    }
}

impl<D: Driver> Turn<D> {
    /// Bytes of one connection.
    pub(crate) fn received(&mut self, slot: u32, mut data: BytesMut) {
        let Some(id) = self.world.conns.id_at(slot) else {
            return;
        };
        let turn = self.world.metrics.turns.get();
        self.world.metrics.bytes_in.add(data.len() as u64);
        let Some(conn) = self.world.conns.get_mut(id) else {
            return;
        };
        if conn.is_deaf() {
            conn.dropped_bytes += data.len();
            let most = match conn.seat.is_some() {
                true => DROPPED_BYTES_MAX.1,
                false => DROPPED_BYTES_MAX.0,
            };
            if conn.dropped_bytes > most {
                self.world.end(id);
            }
            return;
        }
        conn.received = match conn.received {
            (last, receives) if last == turn => (turn, receives + 1),
            _ => (turn, 1),
        };
        let is_fresh = matches!(conn.phase, Phase::Request(_));
        let has_share = conn.received.1 <= RECEIVES_MAX && conn.slow < SLOW_SHARES && !conn.idle && !is_fresh;
        if has_share && !conn.behind && conn.is_listening() {
            let has_tls = conn.tls.is_some();
            let began = self.begin_share(id);
            match has_tls {
                true => self.records(id, data),
                false => self.messages(id, data, false),
            }
            self.end_share(id, began);
        } else {
            match &mut conn.tls {
                Some(tls) => tls.keep(&mut data),
                None => conn.codec.keep(&mut data),
            }
            if !conn.behind && conn.is_listening() {
                match is_fresh {
                    true => self.joins_fresh(id),
                    false => self.falls_behind(id),
                }
            }
        }
        self.wait_if_long(id);
        self.world.weigh(id);
    }

    /// What comes before the upgrade is looked at in a line of its own.
    fn joins_fresh(&mut self, id: ConnId) {
        if let Some(conn) = self.world.conns.get_mut(id) {
            (conn.behind, conn.queued) = (true, true);
            self.world.driver.pause(conn.socket);
            self.fresh.join(id);
        }
    }

    /// In the midst of a long message its connection waits in line for what follows.
    fn wait_if_long(&mut self, id: ConnId) {
        if let Some(conn) = self.world.conns.get_mut(id)
            && conn.is_open()
            && conn.is_listening()
            && !conn.behind
            && conn.codec.kept_bytes() >= LONG_BYTES
            && !std::mem::replace(&mut conn.queued, true)
        {
            self.world.driver.pause(conn.socket);
            self.world.metrics.deferred_long.add(1);
            self.long.join(id);
        }
    }

    /// The peer sends nothing more.
    pub(crate) fn ended(&mut self, slot: u32) {
        if let Some(id) = self.world.conns.id_at(slot) {
            self.peer_ended(id);
        }
    }

    /// The socket is gone.
    pub(crate) fn lost(&mut self, slot: u32) {
        let Some(id) = self.world.conns.id_at(slot) else {
            return;
        };
        let Some(conn) = self.world.conns.get_mut(id) else {
            return;
        };
        if conn.behind {
            // What it sent before is still good.
            conn.ended = true;
            return;
        }
        self.world.metrics.peer_lost.add(u64::from(!conn.is_deaf()));
        self.world.end(id);
    }

    fn peer_ended(&mut self, id: ConnId) {
        let Some(conn) = self.world.conns.get_mut(id) else {
            return;
        };
        conn.ended = true;
        let has_more = conn.behind || !(conn.is_listening() || conn.is_deaf());
        if has_more || matches!(conn.phase, Phase::Leaving) {
            // What it sent before waits; or it may still be reading what is queued for it.
            return;
        }
        if conn.is_open() {
            self.world.metrics.peer_lost.add(1);
        }
        self.world.end(id);
    }

    /// Gives a connection its share of this turn, or a place in line.
    pub(crate) fn serve(&mut self, id: ConnId) {
        let Some(conn) = self.world.conns.get_mut(id) else {
            return;
        };
        let metrics = &self.world.metrics;
        let (line, deferred) = if conn.idle {
            (&mut self.idle, &metrics.deferred_idle)
        } else if conn.slow >= SLOW_SHARES {
            (&mut self.slow, &metrics.deferred_slow)
        } else {
            return self.share(id);
        };
        if !std::mem::replace(&mut conn.queued, true) {
            line.join(id);
            deferred.add(1);
        }
    }

    /// Serves those who are slow, for a while: the answers they wait for come first.
    pub(crate) fn serve_slow(&mut self) {
        let Some(mut opening) = self.slow.open(self.shard.is_answering()) else {
            return;
        };
        while self.shard.is_answering() && self.slow.has_time(&mut opening) {
            self.shard.handle(self.world.now, Event::Answer, &mut self.world);
            self.settle();
        }
        self.serve_next(|turn| &mut turn.slow, opening);
    }

    /// Serves those in a line, for a while.
    pub(crate) fn serve_line(&mut self, line: fn(&mut Self) -> &mut Line) {
        if let Some(opening) = line(self).open(false) {
            self.serve_next(line, opening);
        }
    }

    /// Serves those who are not upgraded yet, for a while.
    pub(crate) fn serve_fresh(&mut self) {
        self.serve_line(|turn| &mut turn.fresh);
        self.world.metrics.deferred_fresh.add(self.fresh.len() as u64);
    }

    fn serve_next(&mut self, line: fn(&mut Self) -> &mut Line, mut opening: Opening) {
        while let Some(id) = line(self).next(&mut opening) {
            if let Some(conn) = self.world.conns.get_mut(id) {
                conn.queued = false;
                self.share(id);
                self.settle();
            }
        }
    }

    fn share(&mut self, id: ConnId) {
        let Some(conn) = self.world.conns.get_mut(id) else {
            return;
        };
        if std::mem::take(&mut conn.behind) {
            let began = self.begin_share(id);
            self.resume(id);
            self.end_share(id, began);
        } else if conn.is_listening() {
            // It waited in the midst of a long message.
            self.world.driver.resume(conn.socket);
        }
    }

    /// What it had of this turn already counts.
    fn begin_share(&mut self, id: ConnId) -> (Instant, usize) {
        let turn = self.world.metrics.turns.get();
        let had = self.world.conns.get_mut(id).map(|conn| conn.used);
        self.used = match had {
            Some((last, used)) if last == turn => used,
            _ => Share::default(),
        };
        (Instant::now(), self.used.frames)
    }

    fn end_share(&mut self, id: ConnId, (began, frames): (Instant, usize)) {
        let turn = self.world.metrics.turns.get();
        let Some(conn) = self.world.conns.get_mut(id) else {
            return;
        };
        conn.used = (turn, self.used);
        // A piece of a long frame says nothing of what the frame will cost.
        if self.used.frames > frames {
            conn.idle = self.used.idle_frames >= IDLE_FRAMES;
            let bytes = self.used.bytes.min(MESSAGE_BYTES_MAX) as u32;
            conn.slow = match began.elapsed() > SLOW + SLOW_BYTE * bytes {
                true => conn.slow.saturating_add(1),
                false => 0,
            };
        }
    }

    /// Hands one message to the engine; whether it was refused.
    fn message(&mut self, id: ConnId, message: Inbound) -> bool {
        let now = self.world.now;
        self.world.turn_messages += 1;
        self.world.metrics.messages_in.add(1);
        let flow = self.shard.message(now, id, message, &mut self.world);
        self.obey(id, flow);
        flow == Flow::Refused
    }

    /// Reads the connection no more until the engine wants that.
    fn obey(&mut self, id: ConnId, flow: Flow) {
        if flow == Flow::Pause
            && let Some(conn) = self.world.conns.get_mut(id)
            && conn.is_open()
        {
            conn.paused = true;
            self.world.driver.pause(conn.socket);
        }
    }

    /// Its share of this turn is used up.
    fn falls_behind(&mut self, id: ConnId) {
        if let Some(conn) = self.world.conns.get_mut(id) {
            conn.behind = true;
            self.world.driver.pause(conn.socket);
            self.unread.push(id);
        }
    }

    /// Takes up again what was put aside while the connection was paused, on its way or behind.
    pub(crate) fn resume(&mut self, id: ConnId) {
        let Some(conn) = self.world.conns.get_mut(id) else {
            return;
        };
        let data = conn.codec.take_kept();
        self.messages(id, data, true);
        let Some(conn) = self.world.conns.get_mut(id) else {
            return;
        };
        if let Some(tls) = &mut conn.tls
            && !conn.paused
            && !conn.behind
        {
            let cipher = tls.take_kept();
            self.records(id, cipher);
        }
        self.world.weigh(id);
        let Some(conn) = self.world.conns.get_mut(id) else {
            return;
        };
        if conn.is_listening() && !conn.behind {
            match conn.ended {
                true => self.peer_ended(id),
                false => self.world.driver.resume(conn.socket),
            }
        }
    }

    /// Ciphertext, record by record.
    fn records(&mut self, id: ConnId, mut cipher: BytesMut) {
        loop {
            let Some(conn) = self.world.conns.get_mut(id) else {
                return;
            };
            let (deaf, listening) = (conn.is_deaf(), conn.is_listening() && !conn.behind);
            let Some(tls) = &mut conn.tls else { return };
            if !listening {
                if !deaf {
                    tls.keep(&mut cipher);
                }
                return;
            }
            let was_established = tls.is_established();
            let opened = tls.open(&mut cipher, &mut self.plain);
            if tls.is_established() && !was_established {
                self.world.metrics.tls_handshakes.add(1);
            }
            match opened {
                Ok(Step::Plain(plain)) => self.messages(id, plain, false),
                Ok(Step::Blocked) => {
                    if tls.has_unsent() {
                        self.world.mark_dirty(id);
                    }
                    return;
                }
                Ok(Step::Ended) => {
                    self.peer_ended(id);
                    return;
                }
                Err(_) => {
                    self.world.metrics.tls_failures.add(1);
                    // The alert, if the socket takes it.
                    self.world.flush(id);
                    self.world.end(id);
                    return;
                }
            }
        }
    }

    /// Plaintext: the request first, then message by message. `own`: the buffer is the connection's.
    fn messages(&mut self, id: ConnId, mut data: BytesMut, own: bool) {
        let now = self.world.now;
        loop {
            let Some(conn) = self.world.conns.get_mut(id) else {
                return;
            };
            match conn.phase {
                Phase::Open if !conn.paused && self.used.is_up() && !data.is_empty() => {
                    match own {
                        true => conn.codec.put_back(data),
                        false => conn.codec.keep(&mut data),
                    }
                    return self.falls_behind(id);
                }
                Phase::Open if !conn.paused => {}
                Phase::Open | Phase::Moving(_) => {
                    conn.codec.keep(&mut data);
                    return;
                }
                Phase::Request(_) => match self.request(id, data) {
                    Some(rest) => {
                        data = rest;
                        continue;
                    }
                    None => return,
                },
                Phase::Leaving | Phase::Lingering => return,
            }
            let item = match conn.codec.next(&mut data) {
                Ok(Some(item)) => item,
                Ok(None) => return,
                Err(failure) => {
                    let metrics = &self.world.metrics;
                    match failure {
                        Failure::Oversize => metrics.oversize.add(1),
                        Failure::Protocol => metrics.transport_failures.add(1),
                    }
                    self.world.end(id);
                    return;
                }
            };
            self.used.frames += 1;
            match item {
                Item::Message(message) => {
                    self.used.bytes += message.payload().len();
                    if self.message(id, message) {
                        self.used.idle_frames += 1;
                    }
                }
                Item::Part(bytes) => {
                    self.used.bytes += bytes;
                    self.used.idle_frames += usize::from(bytes < FRAGMENT_BYTES);
                }
                Item::Text => {
                    self.used.idle_frames += 1;
                    self.shard.handle(now, Event::Text { conn: id }, &mut self.world);
                }
                Item::Ping(payload) => {
                    self.used.idle_frames += 1;
                    let pong = control_frame(0xa, &payload);
                    let flow = self.shard.pinged(now, id, pong, &mut self.world);
                    self.obey(id, flow);
                }
                Item::Pong => {
                    self.used.idle_frames += 1;
                    self.shard
                        .handle(now, Event::Activity { conn: id }, &mut self.world);
                }
                Item::Close(echo) => {
                    self.shard
                        .handle(now, Event::Activity { conn: id }, &mut self.world);
                    self.world.leave(id, control_frame(0x8, &echo));
                    return;
                }
            }
        }
    }

    /// The HTTP request, which may come in pieces. What follows an accepted upgrade is given back.
    fn request(&mut self, id: ConnId, mut data: BytesMut) -> Option<BytesMut> {
        let conn = self.world.conns.get_mut(id)?;
        let Phase::Request(request) = &mut conn.phase else {
            return None;
        };
        let (peer, seen) = (request.peer, request.seen);
        // Until the upgrade the codec only keeps bytes.
        if conn.codec.kept_bytes() > 0 {
            conn.codec.keep(&mut data);
            data = conn.codec.take_kept();
        }
        let mut head = data;
        let asked = http::ask(&head, seen, peer, self.trusted_proxy_hops, self.public.as_deref());
        let metrics = &self.world.metrics;
        let answer = match asked {
            Asked::Partial => {
                request.seen = head.len();
                conn.codec.keep(&mut head);
                return None;
            }
            Asked::Answer(answer) => {
                metrics.http_answers.add(1);
                answer
            }
            Asked::Malformed(answer) => {
                metrics.refused_malformed.add(1);
                answer
            }
            Asked::Upgrade { .. } if self.draining => {
                metrics.refused_stopping.add(1);
                http::stopping()
            }
            Asked::Upgrade {
                accept,
                source,
                head_bytes,
            } => match self.world.shared.admission.enter(&source) {
                Ok(seat) => {
                    metrics.upgraded.add(1);
                    conn.seat = Some(seat);
                    // After the seat: what is counted twice for a moment admits nobody too many.
                    conn.place = None;
                    conn.phase = Phase::Open;
                    conn.force(accept, 0);
                    self.world.mark_dirty(id);
                    let opened = Event::Opened {
                        conn: id,
                        peer: Peer { source },
                    };
                    self.shard.handle(self.world.now, opened, &mut self.world);
                    return Some(head.split_off(head_bytes));
                }
                Err(refusal) => {
                    match refusal {
                        crate::admission::Refusal::Share => metrics.refused_share.add(1),
                        crate::admission::Refusal::Ceiling => metrics.refused_ceiling.add(1),
                    }
                    http::refusal()
                }
            },
        };
        self.world.leave(id, answer);
        None
    }
}
