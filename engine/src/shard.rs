//! One core's worth of realms and connections.

use crate::config::Config;
use crate::directory::Directory;
use crate::effects::Effects;
use crate::event::{ConnId, Event, Flow, Now};
use crate::metrics::Metrics;
use bytes::Bytes;
use std::sync::Arc;

/// What the engine knows of a connection; opaque to the transport, which only carries it from shard to shard.
pub struct Session {
    _private: (),
}

/// What shards and the operator's surface say to each other; opaque to the transport.
pub struct ShardMessage {
    _private: (),
}

/// One shard.
pub struct Shard {
    _private: (),
}

impl Shard {
    /// Shard number `index` of `config.shards`. `process_secret` and `nonces` are shared by all shards (02 §4).
    pub fn new(_index: usize, _config: Arc<Config>, _directory: Arc<Directory>, _metrics: Arc<Metrics>) -> Self {
        todo!()
    }

    /// One whole inbound message of a connection.
    pub fn message<E: Effects>(&mut self, _now: Now, _conn: ConnId, _message: Bytes, _fx: &mut E) -> Flow {
        todo!()
    }

    /// Anything else.
    pub fn handle<E: Effects>(&mut self, _now: Now, _event: Event, _fx: &mut E) {
        todo!()
    }

    /// The turn is over: the open batch goes to the store. Called once per turn, before outboxes are written.
    pub fn end_of_turn<E: Effects>(&mut self, _now: Now, _fx: &mut E) {
        todo!()
    }

    /// The monotonic moment of the next timer, if any: [`Event::Tick`] is due then.
    pub fn next_wake_ms(&self) -> Option<u64> {
        todo!()
    }

    /// After [`Event::Drain`]: whether nothing is left to wait for.
    pub fn drained(&self) -> bool {
        todo!()
    }
}
