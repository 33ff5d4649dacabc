//! What comes into a shard.

use crate::shard::{Session, ShardMessage};
use bytes::{Buf, Bytes};
use drover_storage::RealmId;
use drover_storage::StoreError;
use drover_storage::control::Outcome;
use drover_storage::log::{IndexEntry, Record};
use drover_wire::ws;

/// A connection on one shard: a slot and how often the slot was used before. Made by the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId {
    /// Slot in the shard's table; small and reused.
    pub slot: u32,
    /// Told apart from earlier users of the slot by this.
    pub generation: u32,
}

/// The moment an event is handled: one reading of each clock per turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Monotonic milliseconds since the process began: timers.
    pub mono_ms: u64,
    /// Wall clock, Unix milliseconds: budgets, receipt times, expiries (02 §2).
    pub wall_ms: u64,
}

/// Who is at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The source address as text: the transport peer, or the element of the forwarded chain (02 §1). Never logged
    /// or stored.
    pub source: Box<str>,
}

/// One whole inbound message. A transport that can puts the head of an outbound WebSocket message in front of it, where
/// the inbound head and its mask were: what is forwarded as it came is then a reference to the bytes that were read.
#[derive(Clone, Debug)]
pub struct Inbound {
    /// Perhaps a head, then the message.
    bytes: Bytes,
    head_bytes: usize,
}

impl Inbound {
    /// `bytes` begins with the head of an unmasked, final binary message that holds the rest.
    pub fn framed(bytes: Bytes, head_bytes: usize) -> Self {
        debug_assert_eq!(head_bytes, ws::head_len(bytes.len() - head_bytes));
        Self { bytes, head_bytes }
    }

    /// The message.
    pub fn payload(&self) -> &[u8] {
        &self.bytes[self.head_bytes..]
    }

    /// The message, by reference.
    pub fn into_payload(mut self) -> Bytes {
        self.bytes.advance(self.head_bytes);
        self.bytes
    }

    /// The message behind its head, and how many bytes had to be copied for that.
    pub fn into_framed(self) -> (Bytes, usize) {
        if self.head_bytes > 0 {
            return (self.bytes, 0);
        }
        let mut framed = Vec::with_capacity(ws::head_len(self.bytes.len()) + self.bytes.len());
        ws::binary_head(self.bytes.len(), &mut framed);
        framed.extend_from_slice(&self.bytes);
        (framed.into(), self.bytes.len())
    }
}

impl PartialEq for Inbound {
    /// The same message, with or without a head in front of it.
    fn eq(&self, other: &Self) -> bool {
        self.payload() == other.payload()
    }
}

impl Eq for Inbound {}

impl From<Bytes> for Inbound {
    /// A message without a head in front of it.
    fn from(bytes: Bytes) -> Self {
        Self { bytes, head_bytes: 0 }
    }
}

/// Whether the connection's next message may be handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Yes.
    Continue,
    /// Yes; this one was answered with an ERROR, so it brought nothing forward.
    Refused,
    /// Not before [`crate::Effects::resume`]: the transport stops reading it (backpressure).
    Pause,
}

/// Tells a shard which of its requests an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u64);

/// The answer of a store, in the shape of the request ([`crate::effects::StoreRequest`]).
#[derive(Debug)]
#[allow(missing_docs)] // One for each request, by name.
pub enum StoreAnswer {
    Append(Result<(), StoreError>),
    Index(Result<Vec<IndexEntry>, StoreError>),
    Read(Result<Vec<Record>, StoreError>),
    Usage(Result<u64, StoreError>),
    Load(Result<Vec<(Vec<u8>, Bytes)>, StoreError>),
    Get(Result<Option<Bytes>, StoreError>),
    Commit(Result<Outcome, StoreError>),
    Claim(Result<Vec<RealmId>, StoreError>),
}

/// What a shard is told, inbound messages aside (those have [`crate::Shard::message`] of their own).
pub enum Event {
    /// A WebSocket upgrade (or its counterpart elsewhere) is done.
    Opened {
        /// The new connection.
        conn: ConnId,
        /// Who it is.
        peer: Peer,
    },
    /// A connection that another shard accepted and moved here, with its state.
    Arrived {
        /// Its id on this shard.
        conn: ConnId,
        /// What the other shard knew of it.
        session: Box<Session>,
    },
    /// A pong or close arrived: activity, nothing else (02 §1). A ping is told by [`crate::Shard::pinged`].
    Activity {
        /// Where.
        conn: ConnId,
    },
    /// A text message arrived: `reject/malformed_header`, close (02 §1).
    Text {
        /// Where.
        conn: ConnId,
    },
    /// The connection is gone; nothing can be sent on it any more.
    Closed {
        /// Which one.
        conn: ConnId,
    },
    /// The outbox has drained after [`crate::Effects::watch_room`].
    Room {
        /// Whose outbox.
        conn: ConnId,
    },
    /// A store has answered.
    Stored {
        /// Which request.
        ticket: Ticket,
        /// With what.
        answer: StoreAnswer,
    },
    /// An offloaded computation is done ([`crate::Effects::offload`]).
    Offloaded {
        /// Which one.
        ticket: Ticket,
        /// Whether the code matched.
        matches: bool,
    },
    /// Another shard or the operator's surface asks or answers.
    Posted(ShardMessage),
    /// Time has passed: [`crate::Shard::next_wake_ms`] is reached.
    Tick,
    /// There is time for a piece of an answer ([`crate::Shard::is_answering`]).
    Answer,
    /// Stop taking connections, finish what is under way, tell every client `retry/failover` (13 §f.2). The
    /// transport ends when [`crate::Shard::drained`] says so.
    Drain,
}
