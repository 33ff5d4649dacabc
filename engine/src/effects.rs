//! What goes out of a shard. The transport implements this over real sockets and stores, the simulator over its own.

use crate::event::{ConnId, StoreAnswer, Ticket};
use crate::outbox::{Outbound, Room};
use crate::shard::{Session, ShardMessage};
use crate::wake::Wake;
use bytes::Bytes;
use drover_storage::RealmId;
use drover_storage::control::{ControlBatch, ControlStore, DirectoryKey};
use drover_storage::log::{AppendBatch, LogStore, StreamId};
use std::sync::Arc;

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseHow {
    /// What is queued leaves first (at most 5 s), then a close frame without status.
    Flush,
    /// The same with status 1012 (shutdown).
    Restart,
    /// Eviction: what is queued is dropped, the socket closes without an ERROR, at once (05 §9).
    Evict,
}

/// Why the engine ended a connection, for the counters of 13 §c.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum CloseReason {
    Client,
    HandshakeDeadline,
    IdleDeadline,
    Evicted,
    Protocol,
    SlowReader,
    Shutdown,
}

/// What a shard asks of a store. Answered by [`crate::Event::Stored`] with the same ticket, never within the call.
#[derive(Debug)]
#[allow(missing_docs)] // The fields are those of the traits in `drover_storage`.
pub enum StoreRequest {
    Append(AppendBatch),
    Index(StreamId),
    Read {
        stream: StreamId,
        from: u64,
        records_max: usize,
        bytes_max: usize,
    },
    ReadSeqs {
        stream: StreamId,
        seqs: Vec<u64>,
        bytes_max: usize,
    },
    Usage(RealmId),
    Load(RealmId),
    Get(RealmId, Vec<u8>),
    Commit(RealmId, ControlBatch),
    Claim(RealmId, Vec<DirectoryKey>),
}

/// The stores a relay runs on.
#[derive(Clone)]
pub struct Stores {
    /// Envelopes and handshakes.
    pub log: Arc<dyn LogStore>,
    /// Everything else.
    pub control: Arc<dyn ControlStore>,
}

impl Stores {
    /// Hands a request to the store it belongs to; `done` is called once, on any thread.
    pub fn submit(&self, request: StoreRequest, done: impl FnOnce(StoreAnswer) + Send + 'static) {
        match request {
            StoreRequest::Append(batch) => self.log.append(batch, Box::new(|r| done(StoreAnswer::Append(r)))),
            StoreRequest::Index(stream) => self.log.index(stream, Box::new(|r| done(StoreAnswer::Index(r)))),
            StoreRequest::Read {
                stream,
                from,
                records_max,
                bytes_max,
            } => {
                self.log.read(
                    stream,
                    from,
                    records_max,
                    bytes_max,
                    Box::new(|r| done(StoreAnswer::Read(r))),
                );
            }
            StoreRequest::ReadSeqs {
                stream,
                seqs,
                bytes_max,
            } => {
                self.log
                    .read_seqs(stream, seqs, bytes_max, Box::new(|r| done(StoreAnswer::Read(r))));
            }
            StoreRequest::Usage(realm) => self.log.usage(realm, Box::new(|r| done(StoreAnswer::Usage(r)))),
            StoreRequest::Load(realm) => self.control.load(realm, Box::new(|r| done(StoreAnswer::Load(r)))),
            StoreRequest::Get(realm, key) => {
                self.control
                    .get(realm, key, Box::new(|r| done(StoreAnswer::Get(r))));
            }
            StoreRequest::Commit(realm, batch) => {
                self.control
                    .commit(realm, batch, Box::new(|r| done(StoreAnswer::Commit(r))));
            }
            StoreRequest::Claim(realm, keys) => {
                self.control
                    .claim(realm, keys, Box::new(|r| done(StoreAnswer::Claim(r))));
            }
        }
    }
}

/// A computation too heavy for a shard: does this one-time code hash to that value (06 §3)?
#[derive(Clone, Debug)]
pub struct CodeCheck {
    /// The twelve canonical symbols.
    pub code: [u8; 12],
    /// The salt.
    pub token: [u8; 16],
    /// What it must hash to.
    pub code_hash: [u8; 32],
}

/// The world around a shard.
pub trait Effects {
    /// Free room in the connection's outbox. A transport that is short of room first writes out what the socket
    /// takes, so that a full outbox means a peer that does not read. Zero room for a connection that is gone.
    fn room(&mut self, conn: ConnId) -> Room;

    /// Queues messages in the durable lane. `false`, and nothing queued, if they don't fit.
    fn send(&mut self, conn: ConnId, out: Outbound) -> bool;

    /// Queues one framed MEDIA message in the connection's media lane ([`crate::outbox::Outbox::push_media`]): it leaves
    /// before what waits in the durable lane, or is shed. Nothing happens for a connection that is gone.
    fn media(&mut self, conn: ConnId, message: &Bytes);

    /// Asks for one [`crate::Event::Room`] once at least a quarter of the outbox is free.
    fn watch_room(&mut self, conn: ConnId);

    /// Ends the connection; no further message of it is handed over. [`crate::Event::Closed`] follows.
    fn close(&mut self, conn: ConnId, how: CloseHow, reason: CloseReason);

    /// Sends a WebSocket ping with an empty payload, past the queue.
    fn ping(&mut self, conn: ConnId);

    /// After [`crate::Flow::Pause`]: the connection's next message may be handed over.
    fn resume(&mut self, conn: ConnId);

    /// The connection is authenticated: its source's share is given back (02 §1).
    fn authenticated(&mut self, conn: ConnId);

    /// Moves the connection to another shard with its socket, TLS and framing state. Its id on this shard is dead.
    fn migrate(&mut self, conn: ConnId, shard: usize, session: Box<Session>);

    /// Posts a message to another shard (or to this one, to be handled in a later turn).
    fn post(&mut self, shard: usize, message: ShardMessage);

    /// Hands a request to a store.
    fn store(&mut self, ticket: Ticket, request: StoreRequest);

    /// Has absent devices woken, off this thread; never waited for. Only called with push on.
    fn wake(&mut self, wakes: Vec<Wake>);

    /// Runs a computation elsewhere; answered by [`crate::Event::Offloaded`]. `false` if too many are under way.
    fn offload(&mut self, ticket: Ticket, check: CodeCheck) -> bool;
}
