//! From readable socket to engine: read, decrypt, unframe, hand over.

use crate::conn::Phase;
use crate::driver::Driver;
use crate::http::{self, Asked};
use crate::tls::Step;
use crate::turn::Turn;
use crate::ws::{Failure, Item};
use bytes::BytesMut;
use drover_engine::{ConnId, Event, Flow, Peer};
use std::io;

/// Reads from one connection in one turn; what is left then waits for the next, so that nobody starves.
const READS_MAX: usize = 4;

impl<D: Driver> Turn<D> {
    /// Reads one connection's share of this turn.
    pub(crate) fn read(&mut self, id: ConnId) {
        for _ in 0..READS_MAX {
            let Some(conn) = self.world.conns.get_mut(id) else {
                return;
            };
            let deaf = conn.is_deaf();
            if !conn.readable || !(deaf || conn.is_listening()) {
                return;
            }
            let space = self.chunk.space();
            let room = space.len();
            match self.world.driver.read(&mut conn.socket, space) {
                Ok(0) => {
                    self.peer_ended(id);
                    return;
                }
                Ok(bytes) => {
                    if bytes < room && !conn.ended {
                        conn.readable = false;
                    }
                    self.world.metrics.bytes_in.add(bytes as u64);
                    if !deaf {
                        let data = self.chunk.take(bytes);
                        self.feed(id, data);
                        self.world.weigh(id);
                    }
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => {
                        conn.readable = false;
                        return;
                    }
                    _ => {
                        self.world.metrics.peer_lost.add(u64::from(!deaf));
                        self.world.end(id);
                        return;
                    }
                },
            }
        }
        if self.world.conns.get_mut(id).is_some_and(|conn| conn.readable) {
            self.unread.push(id);
        }
    }

    /// The peer sends nothing more.
    fn peer_ended(&mut self, id: ConnId) {
        let Some(conn) = self.world.conns.get_mut(id) else {
            return;
        };
        conn.readable = false;
        conn.ended = true;
        if matches!(conn.phase, Phase::Leaving) {
            // It may still be reading what is queued for it.
            return;
        }
        if conn.is_open() {
            self.world.metrics.peer_lost.add(1);
        }
        self.world.end(id);
    }

    /// Takes up again what was put aside while the connection was paused or on its way.
    pub(crate) fn resume(&mut self, id: ConnId) {
        let Some(conn) = self.world.conns.get_mut(id) else {
            return;
        };
        let data = conn.codec.take_kept();
        self.messages(id, data);
        let Some(conn) = self.world.conns.get_mut(id) else {
            return;
        };
        if let Some(tls) = &mut conn.tls
            && !conn.paused
        {
            let cipher = tls.take_kept();
            self.records(id, cipher);
        }
        self.read(id);
    }

    fn feed(&mut self, id: ConnId, data: BytesMut) {
        match self.world.conns.get_mut(id) {
            Some(conn) if conn.tls.is_some() => self.records(id, data),
            Some(_) => self.messages(id, data),
            None => {}
        }
    }

    /// Ciphertext, record by record.
    fn records(&mut self, id: ConnId, mut cipher: BytesMut) {
        loop {
            let Some(conn) = self.world.conns.get_mut(id) else {
                return;
            };
            let (deaf, listening) = (conn.is_deaf(), conn.is_listening());
            let Some(tls) = &mut conn.tls else { return };
            if !listening {
                if !deaf {
                    tls.keep(&mut cipher);
                }
                return;
            }
            let was_established = tls.is_established();
            match tls.open(&mut cipher, &mut self.plain) {
                Ok(Step::Plain(plain)) => self.messages(id, plain),
                Ok(Step::Blocked) => {
                    if tls.is_established() && !was_established {
                        self.world.metrics.tls_handshakes.add(1);
                    }
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

    /// Plaintext: the request first, then message by message.
    fn messages(&mut self, id: ConnId, mut data: BytesMut) {
        let now = self.world.now;
        loop {
            let Some(conn) = self.world.conns.get_mut(id) else {
                return;
            };
            match conn.phase {
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
            match item {
                Item::Message(message) => {
                    self.world.turn_messages += 1;
                    self.world.metrics.messages_in.add(1);
                    if self.shard.message(now, id, message, &mut self.world) == Flow::Pause
                        && let Some(conn) = self.world.conns.get_mut(id)
                        && conn.is_open()
                    {
                        conn.paused = true;
                    }
                }
                Item::Text => self.shard.handle(now, Event::Text { conn: id }, &mut self.world),
                Item::Ping(payload) => {
                    self.world.pong(id, &payload);
                    self.shard
                        .handle(now, Event::Activity { conn: id }, &mut self.world);
                }
                Item::Pong => self
                    .shard
                    .handle(now, Event::Activity { conn: id }, &mut self.world),
                Item::Close(echo) => {
                    self.shard
                        .handle(now, Event::Activity { conn: id }, &mut self.world);
                    self.world.leave(id, crate::ws::control_frame(0x8, &echo));
                    return;
                }
            }
        }
    }

    /// The HTTP request, which may come in pieces. What follows an accepted upgrade is given back.
    fn request(&mut self, id: ConnId, mut data: BytesMut) -> Option<BytesMut> {
        let conn = self.world.conns.get_mut(id)?;
        let Phase::Request(request) = &conn.phase else {
            return None;
        };
        let peer = request.peer;
        // Until the upgrade the codec only keeps bytes.
        let seen = conn.codec.kept_bytes();
        conn.codec.keep(&mut data);
        let mut head = conn.codec.take_kept();
        let asked = http::ask(&head, seen, peer, self.trusted_proxy_hops, self.public.as_deref());
        let metrics = &self.world.metrics;
        let answer = match asked {
            Asked::Partial => {
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
