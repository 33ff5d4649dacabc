//! One connection as a shard sees it. Small: ten thousands of them do nothing most of the time, so what is rare is
//! boxed and what is empty owns no buffer.

use crate::admission::Seat;
use crate::input::Share;
use crate::lobby::Place;
use crate::tls::TlsSession;
use crate::ws::Codec;
use bytes::Bytes;
use drover_engine::outbox::{Outbound, Outbox};
use drover_engine::shard::Session;
use std::net::SocketAddr;

/// Where in its life a connection is.
pub(crate) enum Phase {
    /// Its HTTP request is not complete.
    Request(Box<Request>),
    /// A WebSocket the engine knows.
    Open,
    /// On its way to another shard; the engine here has forgotten it.
    Moving(Box<Moving>),
    /// What is queued is still written, what comes in is dropped. The engine has been told that it is closed.
    Leaving,
    /// All is written; what comes in is dropped for a moment, so that the peer reads the end and not a reset.
    Lingering,
}

/// What is known before the upgrade.
pub(crate) struct Request {
    pub(crate) peer: SocketAddr,
    /// Bytes of the head that were looked at.
    pub(crate) seen: usize,
}

/// Where a connection goes.
pub(crate) struct Moving {
    pub(crate) shard: usize,
    pub(crate) session: Box<Session>,
}

/// See the module.
pub(crate) struct Conn<S> {
    pub(crate) socket: S,
    pub(crate) outbox: Outbox,
    pub(crate) codec: Codec,
    pub(crate) tls: Option<Box<TlsSession>>,
    /// Held until it upgrades or is closed.
    pub(crate) place: Option<Place>,
    pub(crate) seat: Option<Seat>,
    pub(crate) phase: Phase,
    /// The peer has ended its direction, which is acted on once all it sent was looked at.
    pub(crate) ended: bool,
    /// The socket took less than it was offered.
    pub(crate) blocked: bool,
    /// In the list of those to be written this turn.
    pub(crate) dirty: bool,
    /// The engine wants no further message for now.
    pub(crate) paused: bool,
    /// What it has sent already goes beyond its share of the turn: the rest is handled in a later one, and nothing more
    /// is received until then.
    pub(crate) behind: bool,
    /// The turn in which it was received from last, and how often then.
    pub(crate) received: (u64, u32),
    /// What it had of which turn.
    pub(crate) used: (u64, Share),
    /// How many of its last shares took long, one after the other. From
    /// [`SLOW_SHARES`](crate::input::SLOW_SHARES) on it waits in line with others like it.
    pub(crate) slow: u8,
    /// Its last share was spent on frames that bring nothing forward.
    pub(crate) idle: bool,
    /// It stands in one of the lines.
    pub(crate) queued: bool,
    /// Bytes read and dropped since its end began.
    pub(crate) dropped_bytes: usize,
    /// The engine waits for room.
    pub(crate) watched: bool,
    /// The engine has authenticated it.
    pub(crate) known: bool,
    /// What [`World::weigh`](crate::world::World::weigh) counts of it.
    pub(crate) hoard_bytes: usize,
}

impl<S> Conn<S> {
    /// A connection that was just accepted.
    pub(crate) fn accepted(socket: S, peer: SocketAddr, place: Place, tls: Option<Box<TlsSession>>) -> Self {
        Self {
            socket,
            outbox: Outbox::default(),
            codec: Codec::default(),
            tls,
            place: Some(place),
            seat: None,
            phase: Phase::Request(Box::new(Request { peer, seen: 0 })),
            ended: false,
            blocked: false,
            dirty: false,
            paused: false,
            behind: false,
            received: (0, 0),
            used: (0, Share::default()),
            slow: 0,
            idle: false,
            queued: false,
            dropped_bytes: 0,
            watched: false,
            known: false,
            hoard_bytes: 0,
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// Whether bytes that come in are of no interest any more.
    pub(crate) fn is_deaf(&self) -> bool {
        matches!(self.phase, Phase::Leaving | Phase::Lingering)
    }

    /// Whether its messages are to be handed to the engine now.
    pub(crate) fn is_listening(&self) -> bool {
        match self.phase {
            Phase::Open => !self.paused,
            Phase::Request(_) => true,
            _ => false,
        }
    }

    /// Whether anything waits to be written.
    pub(crate) fn has_output(&self) -> bool {
        !self.outbox.is_empty() || self.tls.as_ref().is_some_and(|tls| tls.has_unsent())
    }

    /// Whether what waits may be written, as far as TLS is concerned.
    pub(crate) fn can_write(&self) -> bool {
        match &self.tls {
            Some(tls) => tls.has_unsent() || (tls.is_established() && !self.outbox.is_empty()),
            None => !self.outbox.is_empty(),
        }
    }

    /// Queues bytes that are no message of the engine, past the bounds.
    pub(crate) fn force(&mut self, bytes: Bytes, messages: u32) {
        self.outbox.force(Outbound {
            bytes,
            messages,
            cost: 0,
        });
    }
}
