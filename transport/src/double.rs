//! A stand-in for the engine's shard in the unit tests: it does what the text of a message says, so that each effect
//! can be tried at will. Tests against the real engine are in `tests/`.

use bytes::Bytes;
use drover_engine::effects::{CloseHow, CloseReason, CodeCheck, Effects, StoreRequest};
use drover_engine::event::{StoreAnswer, Ticket};
use drover_engine::metrics::Metrics;
use drover_engine::outbox::{Outbound, cost};
use drover_engine::shard::Challenges;
use drover_engine::{Config, ConnId, Directory, Event, Flow, Inbound, Now};
use drover_storage::RealmId;
use drover_wire::ws::binary_head;
use std::collections::HashMap;
use std::sync::Arc;

/// One message, framed.
pub(crate) fn framed(payload: &[u8]) -> Outbound {
    let mut bytes = Vec::new();
    binary_head(payload.len(), &mut bytes);
    bytes.extend_from_slice(payload);
    Outbound {
        bytes: bytes.into(),
        messages: 1,
        cost: cost(payload.len()) as u32,
    }
}

#[derive(Default)]
struct Known {
    /// Messages of a flood that are still to be sent.
    flood: u32,
    activity: u32,
    /// Waits for room.
    pong: Option<Outbound>,
}

pub(crate) struct Shard {
    known: HashMap<ConnId, Known>,
    asked: HashMap<Ticket, ConnId>,
    tickets: u64,
    draining: bool,
}

impl Shard {
    pub(crate) fn new(
        _index: usize,
        _config: Arc<Config>,
        _directory: Arc<Directory>,
        _metrics: Arc<Metrics>,
        _challenges: Arc<Challenges>,
    ) -> Self {
        Self {
            known: HashMap::new(),
            asked: HashMap::new(),
            tickets: 0,
            draining: false,
        }
    }

    pub(crate) fn message<E: Effects>(
        &mut self,
        _now: Now,
        conn: ConnId,
        message: impl Into<Inbound>,
        fx: &mut E,
    ) -> Flow {
        let message: Bytes = message.into().into_payload();
        assert!(
            self.known.contains_key(&conn),
            "a message of a connection that is not open"
        );
        let text = String::from_utf8_lossy(&message[..message.len().min(64)]).into_owned();
        match text.split_once(' ').unwrap_or((&text, "")) {
            ("close", _) => {
                fx.send(conn, framed(b"bye"));
                fx.close(conn, CloseHow::Flush, CloseReason::Client);
            }
            ("restart", _) => fx.close(conn, CloseHow::Restart, CloseReason::Shutdown),
            ("evict", _) => fx.close(conn, CloseHow::Evict, CloseReason::Evicted),
            // Evicts everybody else.
            ("evictothers", _) => {
                let others: Vec<_> = self
                    .known
                    .keys()
                    .filter(|other| **other != conn)
                    .copied()
                    .collect();
                for other in others {
                    fx.close(other, CloseHow::Evict, CloseReason::Evicted);
                }
            }
            ("authenticated", _) => {
                fx.authenticated(conn);
                fx.send(conn, framed(b"done"));
            }
            ("ping", _) => fx.ping(conn),
            ("noop", _) => {}
            ("refuse", _) => return Flow::Refused,
            ("activity", _) => {
                let activity = self.known[&conn].activity;
                fx.send(conn, framed(&[activity as u8]));
            }
            // Answered, and the next message taken, once a store has been asked.
            ("pause", _) => {
                let ticket = self.ticket(conn);
                fx.store(ticket, StoreRequest::Usage(RealmId("ws:test".into())));
                return Flow::Pause;
            }
            ("hash", _) => {
                let ticket = self.ticket(conn);
                let check = CodeCheck {
                    code: [0; 12],
                    token: [0; 16],
                    code_hash: [0; 32],
                };
                if !fx.offload(ticket, check) {
                    fx.send(conn, framed(b"busy"));
                }
            }
            ("flood", count) => {
                if let Some(known) = self.known.get_mut(&conn) {
                    known.flood += count.parse::<u32>().unwrap();
                }
                self.flood(conn, fx);
            }
            _ => {
                // Lets the transport write first if the queue is short of room.
                fx.room(conn);
                fx.send(conn, framed(&message));
            }
        }
        Flow::Continue
    }

    pub(crate) fn pinged<E: Effects>(&mut self, now: Now, conn: ConnId, pong: Bytes, fx: &mut E) -> Flow {
        self.handle(now, Event::Activity { conn }, fx);
        let out = Outbound {
            bytes: pong,
            messages: 1,
            cost: 0,
        };
        if fx.send(conn, out.clone()) {
            return Flow::Continue;
        }
        if let Some(known) = self.known.get_mut(&conn) {
            known.pong = Some(out);
            fx.watch_room(conn);
        }
        Flow::Pause
    }

    fn ticket(&mut self, conn: ConnId) -> Ticket {
        self.tickets += 1;
        self.asked.insert(Ticket(self.tickets), conn);
        Ticket(self.tickets)
    }

    /// Messages of 10 000 bytes, as many as there is room for.
    fn flood<E: Effects>(&mut self, conn: ConnId, fx: &mut E) {
        let out = framed(&[7; 10_000]);
        let Some(known) = self.known.get_mut(&conn) else {
            return;
        };
        while known.flood > 0 {
            let room = fx.room(conn);
            if room.messages == 0 || room.cost < out.cost as usize {
                fx.watch_room(conn);
                return;
            }
            assert!(fx.send(conn, out.clone()), "there was room");
            known.flood -= 1;
        }
    }

    pub(crate) fn handle<E: Effects>(&mut self, _now: Now, event: Event, fx: &mut E) {
        match event {
            Event::Opened { conn, peer } => {
                assert!(!peer.source.is_empty());
                assert!(
                    self.known.insert(conn, Known::default()).is_none(),
                    "opened twice"
                );
            }
            Event::Arrived { .. } => unreachable!("the double makes no sessions"),
            Event::Activity { conn } => {
                if let Some(known) = self.known.get_mut(&conn) {
                    known.activity += 1;
                }
            }
            Event::Text { conn } => {
                fx.send(conn, framed(b"text"));
                fx.close(conn, CloseHow::Flush, CloseReason::Protocol);
            }
            Event::Closed { conn } => {
                assert!(self.known.remove(&conn).is_some(), "closed twice or never opened");
            }
            Event::Room { conn } => {
                if let Some(pong) = self.known.get_mut(&conn).and_then(|known| known.pong.take()) {
                    assert!(fx.send(conn, pong), "there was room");
                    fx.resume(conn);
                }
                self.flood(conn, fx);
            }
            Event::Stored { ticket, answer } => {
                assert!(matches!(answer, StoreAnswer::Usage(Ok(0))));
                if let Some(conn) = self.asked.remove(&ticket) {
                    fx.send(conn, framed(b"stored"));
                    fx.resume(conn);
                }
            }
            Event::Offloaded { ticket, matches } => {
                if let Some(conn) = self.asked.remove(&ticket) {
                    fx.send(conn, framed(if matches { b"match" } else { b"other" }));
                }
            }
            Event::Posted(_) | Event::Tick | Event::Answer => {}
            Event::Drain => {
                self.draining = true;
                for conn in self.known.keys() {
                    fx.send(*conn, framed(b"failover"));
                    fx.close(*conn, CloseHow::Restart, CloseReason::Shutdown);
                }
            }
        }
    }

    pub(crate) fn end_of_turn<E: Effects>(&mut self, _now: Now, _fx: &mut E) {}

    pub(crate) fn next_wake_ms(&self) -> Option<u64> {
        None
    }

    pub(crate) fn is_answering(&self) -> bool {
        false
    }

    pub(crate) fn drained(&self) -> bool {
        self.draining && self.known.is_empty()
    }
}
