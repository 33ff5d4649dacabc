//! A connection on its way from one shard to another: the socket and everything that is not yet understood or not
//! yet written.

use crate::admission::Seat;
use crate::tls::TlsSession;
use crate::ws::Codec;
use drover_engine::outbox::Outbox;
use drover_engine::shard::Session;
use std::net::TcpStream;

/// See the module.
pub(crate) struct Parcel {
    pub(crate) stream: TcpStream,
    pub(crate) tls: Option<Box<TlsSession>>,
    pub(crate) codec: Codec,
    pub(crate) outbox: Outbox,
    pub(crate) seat: Option<Seat>,
    pub(crate) session: Box<Session>,
    /// It stays paused until the engine resumes it, as the session remembers.
    pub(crate) paused: bool,
}
