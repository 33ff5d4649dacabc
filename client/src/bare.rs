//! A client's protocol without a connection: what [`Client`](crate::Client) does between two reads of its socket, for
//! whoever wants to say what the relay sends.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use drover_wire::id::GroupId;
use tokio::sync::{Notify, oneshot};

use crate::connection::{Incoming, SendAck};
use crate::envelope::SealedEnvelope;
use crate::error::Error;
use crate::events::Subscription;
use crate::recon::Reconciled;
use crate::session::{Done, Leave, Session};
use crate::store::Store;

/// Where an answer comes.
pub type Answer<T> = oneshot::Receiver<Result<T, Error>>;

/// See the module. Nothing is sent or received before [`connected`](Self::connected).
pub struct Bare(Session);

impl Bare {
    /// A client that names `groups` in every CONNECT.
    pub fn new(store: Arc<dyn Store>, groups: Vec<GroupId>) -> Self {
        Self(Session::new(store, groups, Arc::new(Notify::new())))
    }

    /// The handshake is done, and this version was selected; returns what CONNECT named.
    pub fn connected(&mut self, version: u16) -> Vec<GroupId> {
        let groups = self.0.connect_groups();
        self.0.connected(version);
        groups
    }

    /// The connection ended.
    pub fn disconnected(&mut self) {
        self.0.disconnected();
    }

    /// As [`Client::subscribe`](crate::Client::subscribe).
    ///
    /// # Errors
    /// [`Error::AlreadySubscribed`].
    pub fn subscribe(&mut self, group: GroupId, floor: u64) -> Result<Subscription, Error> {
        let queue = self.0.subscribe(group, floor)?;
        Ok(Subscription { group, queue })
    }

    /// As [`Client::send`](crate::Client::send).
    pub fn send(&mut self, envelope: SealedEnvelope) -> Answer<SendAck> {
        let (done, answer) = oneshot::channel();
        self.0.send(envelope, Done::Ack(done), Vec::new());
        answer
    }

    /// As [`Client::publish_handshake`](crate::Client::publish_handshake).
    pub fn publish_handshake(&mut self, group: GroupId, message: Bytes) -> Answer<u64> {
        let (done, answer) = oneshot::channel();
        self.0.handshake(group, message, Done::Number(done), Vec::new());
        answer
    }

    /// As [`Client::live`](crate::Client::live).
    ///
    /// # Errors
    /// When it can't be sent now.
    pub fn live(&mut self, group: GroupId, epoch: u64, ct: &[u8], now: Instant) -> Result<(), Error> {
        self.0.live(group, epoch, ct, now)
    }

    /// As [`Client::reconcile`](crate::Client::reconcile).
    pub fn reconcile(&mut self, group: GroupId) -> Answer<Reconciled> {
        let (done, answer) = oneshot::channel();
        self.0.reconcile(group, done);
        answer
    }

    /// A frame that is answered by one with this tag.
    pub fn request(&mut self, frame: Bytes, tag: u8) -> Answer<Incoming> {
        let (done, answer) = oneshot::channel();
        self.0.request(frame, tag, done);
        answer
    }

    /// The next message it wants to send.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Bytes> {
        self.0.poll_transmit(now)
    }

    /// Takes a message; `false` means that the connection is to be left, for whatever reason.
    pub fn receive(&mut self, message: Bytes, now: Instant) -> bool {
        match self.0.receive(&Incoming(message), now) {
            Ok(()) => true,
            Err(Leave::NameGroups | Leave::Error(_)) => false,
        }
    }

    /// Until when the connection should not be read.
    pub fn pause_until(&mut self, now: Instant) -> Option<Instant> {
        self.0.pause_until(now)
    }

    /// The client ends.
    pub fn stop(&mut self, why: &Error) {
        self.0.stop(why);
    }
}
