//! The client applications use: one handle over a connection that comes back by itself.

mod driver;

use std::sync::Arc;

use bytes::Bytes;
use drover_wire::id::GroupId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use crate::clock::ClockSkew;
use crate::connection::{Exchange, Hello, Incoming, SendAck, SessionInfo};
use crate::envelope::SealedEnvelope;
use crate::error::Error;
use crate::events::{EventQueue, Subscription};
use crate::identity::Identity;
use crate::limits::{
    COMMANDS_MAX, CONNECT_GROUPS_MAX, HANDSHAKE_BYTES_MAX, LIVE_BYTES_MAX, OUTBOX_BYTES_MAX,
    OUTBOX_WRITES_MAX,
};
use crate::recon::Reconciled;
use crate::store::{MemoryStore, Store};
use crate::transport::Endpoint;

use driver::Driver;

/// Where a subscription begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cursor {
    /// Behind what the store holds, filling every gap below as well.
    #[default]
    Stored,
    /// At this cursor: nothing below it is asked for or offered, now or later.
    At(u64),
}

/// The state of a client's connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Status {
    /// An attempt is running.
    Connecting,
    /// Authenticated.
    Online(Arc<SessionInfo>),
    /// Between attempts; the error is why the last one ended.
    Waiting(Error),
    /// For good: closed by its owner (`None`), or for a reason that waiting does not mend.
    Stopped(Option<Error>),
}

/// A command to the client's task.
enum Command {
    Send(
        SealedEnvelope,
        oneshot::Sender<Result<SendAck, Error>>,
        Vec<OwnedSemaphorePermit>,
    ),
    Handshake(
        GroupId,
        Bytes,
        oneshot::Sender<Result<u64, Error>>,
        Vec<OwnedSemaphorePermit>,
    ),
    Live(GroupId, u64, Bytes, oneshot::Sender<Result<(), Error>>),
    Subscribe(GroupId, u64, oneshot::Sender<Result<Arc<EventQueue>, Error>>),
    Reconcile(GroupId, oneshot::Sender<Result<Reconciled, Error>>),
    Request(Bytes, u8, oneshot::Sender<Result<Incoming, Error>>),
    Close(oneshot::Sender<()>),
}

/// What a client is made of; [`ClientBuilder::start`] makes one.
#[derive(Clone)]
pub struct ClientBuilder {
    endpoint: Endpoint,
    identity: Identity,
    hello: Hello,
    store: Arc<dyn Store>,
}

impl ClientBuilder {
    /// Groups named in every CONNECT, the workspace's root first, at most 256: they bind the session to the workspace.
    /// Others need no naming; one the relay does not know is named, and so created, when it is first used.
    #[must_use]
    pub fn groups(mut self, groups: impl IntoIterator<Item = GroupId>) -> Self {
        self.hello.groups = groups.into_iter().collect();
        self
    }

    /// Where envelopes are kept; a [`MemoryStore`] by default.
    #[must_use]
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = store;
        self
    }

    /// The oldest protocol version accepted, 1 to 4; 1 by default. A relay that selects an older one is left for good.
    #[must_use]
    pub fn version_min(mut self, version: u16) -> Self {
        self.hello.version_min = version;
        self
    }

    /// Leave a relay that accepts plaintext envelopes.
    #[must_use]
    pub fn require_encryption(mut self) -> Self {
        self.hello.require_encryption = true;
        self
    }

    /// Starts the client's task on the current tokio runtime. Returns at once; the first connection may still fail, see
    /// [`Client::status`] and [`Client::online`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than 256 groups.
    pub fn start(self) -> Result<Client, Error> {
        if self.hello.groups.len() > CONNECT_GROUPS_MAX {
            return Err(Error::Invalid("more than 256 groups"));
        }
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        let (status, watch) = watch::channel(Status::Connecting);
        tokio::spawn(
            Driver::new(
                self.endpoint,
                self.identity,
                self.hello,
                self.store,
                inbox,
                status,
            )
            .run(),
        );
        Ok(Client {
            commands,
            status: watch,
            writes: Arc::new(Semaphore::new(OUTBOX_WRITES_MAX)),
            bytes: Arc::new(Semaphore::new(OUTBOX_BYTES_MAX)),
        })
    }
}

/// A relay client that reconnects by itself and loses nothing it acknowledged or was acknowledged. A cheap handle:
/// clones share one connection, and the last one dropped closes it.
#[derive(Clone)]
pub struct Client {
    commands: mpsc::Sender<Command>,
    status: watch::Receiver<Status>,
    writes: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

impl Client {
    /// A client of this relay for this device.
    pub fn builder(endpoint: impl Into<Endpoint>, identity: Identity) -> ClientBuilder {
        ClientBuilder {
            endpoint: endpoint.into(),
            identity,
            hello: Hello::default(),
            store: Arc::new(MemoryStore::new()),
        }
    }

    /// The connection's state now.
    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// Waits until the client is online.
    ///
    /// # Errors
    /// [`Error::Stopped`] when it never will be, with the reason.
    pub async fn online(&self) -> Result<Arc<SessionInfo>, Error> {
        let mut status = self.status.clone();
        loop {
            match &*status.borrow_and_update() {
                Status::Online(info) => return Ok(info.clone()),
                Status::Stopped(why) => return Err(Error::Stopped(why.clone().map(Arc::new))),
                Status::Connecting | Status::Waiting(_) => {}
            }
            status.changed().await.map_err(|_| Error::Stopped(None))?;
        }
    }

    /// Waits until the status differs from the one last seen by this call on this handle, and returns it.
    pub async fn status_changed(&mut self) -> Status {
        // A stopped task leaves its last status behind.
        let _ = self.status.changed().await;
        self.status.borrow_and_update().clone()
    }

    /// SEND, reliably: the same bytes again after a lost connection, `retry/*` or a rate limit, until the relay
    /// acknowledges or refuses them (02 §6, §14). Waits while 1024 writes or 32 MiB are unsettled. Run several at once to
    /// use the connection well. Cancel-safe: once it has waited for room the envelope is sent even if the call is dropped,
    /// and sending it again is harmless.
    ///
    /// # Errors
    /// [`Error::Refused`] with a code only the caller can act on, such as `denied/group_frozen`,
    /// `denied/service_read_only`, `quota/log_budget_exhausted`, `denied/plaintext_refused`; [`Error::Stopped`].
    pub async fn send(&self, envelope: SealedEnvelope) -> Result<SendAck, Error> {
        let permits = self.room(envelope.ct().len()).await?;
        self.ask(|done| Command::Send(envelope, done, permits)).await
    }

    /// HANDSHAKE, as reliably as [`Client::send`]: the message's number in the group (07 C2). If the group is subscribed,
    /// the message also comes as the event with that number, in order.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty message or one over 524 288 bytes; [`Error::Refused`]; [`Error::Stopped`].
    pub async fn publish_handshake(&self, group: GroupId, message: impl Into<Bytes>) -> Result<u64, Error> {
        let message = message.into();
        if message.is_empty() || message.len() > HANDSHAKE_BYTES_MAX {
            return Err(Error::Invalid(
                "handshake message of 0 or more than 524 288 bytes",
            ));
        }
        let permits = self.room(message.len()).await?;
        self.ask(|done| Command::Handshake(group, message, done, permits))
            .await
    }

    /// LIVE: to whoever is subscribed now, unstored, unacknowledged (11). `Ok` means it was handed to the connection.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty beat or one over 4096 bytes; [`Error::Lost`] while offline; [`Error::Refused`]
    /// with the refusal of an earlier beat while it holds: over the rate, or the path is off. The next beat will do.
    pub async fn live(&self, group: GroupId, epoch: u64, ct: impl Into<Bytes>) -> Result<(), Error> {
        let ct = ct.into();
        if ct.is_empty() || ct.len() > LIVE_BYTES_MAX {
            return Err(Error::Invalid("live beat of 0 or more than 4096 bytes"));
        }
        self.ask(|done| Command::Live(group, epoch, ct, done)).await
    }

    /// Subscribes to a group: the handshakes not taken yet, the envelopes not held, then both as they come. Repeated by
    /// the client after every reconnect; completed by reconciliation whenever the relay left something out.
    ///
    /// # Errors
    /// [`Error::AlreadySubscribed`], [`Error::Stopped`]. The relay's refusal comes from [`Subscription::next`].
    pub async fn subscribe(&self, group: GroupId, cursor: Cursor) -> Result<Subscription, Error> {
        let floor = match cursor {
            Cursor::Stored => 0,
            Cursor::At(seq) => seq,
        };
        let queue = self.ask(|done| Command::Subscribe(group, floor, done)).await?;
        Ok(Subscription { group, queue })
    }

    /// Reconciles a group with the client's store now (03), subscribed or not: afterwards each side holds what the other
    /// held. At most 64 rounds, then the log is read through from the start. Survives reconnects.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Stopped`].
    pub async fn reconcile(&self, group: GroupId) -> Result<Reconciled, Error> {
        self.ask(|done| Command::Reconcile(group, done)).await
    }

    /// Says BYE and stops. Unsettled writes fail with [`Error::Stopped`]; whether they were stored is unknown.
    pub async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.commands.send(Command::Close(done)).await.is_ok() {
            let _ = closed.await;
        }
    }

    async fn room(&self, bytes: usize) -> Result<Vec<OwnedSemaphorePermit>, Error> {
        let count = u32::try_from(bytes)
            .unwrap_or(u32::MAX)
            .min(OUTBOX_BYTES_MAX as u32);
        let closed = |_| Error::Stopped(None);
        let write = self.writes.clone().acquire_owned().await.map_err(closed)?;
        let bytes = self
            .bytes
            .clone()
            .acquire_many_owned(count)
            .await
            .map_err(closed)?;
        Ok(vec![write, bytes])
    }

    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Command,
    ) -> Result<T, Error> {
        let (done, answer) = oneshot::channel();
        self.commands
            .send(command(done))
            .await
            .map_err(|_| self.stopped())?;
        answer.await.unwrap_or_else(|_| Err(self.stopped()))
    }

    fn stopped(&self) -> Error {
        match self.status() {
            Status::Stopped(why) => Error::Stopped(why.map(Arc::new)),
            _ => Error::Stopped(None),
        }
    }
}

impl Exchange for Client {
    /// Sent once: a connection lost before the answer is [`Error::Lost`]. Queued while offline.
    async fn exchange(&mut self, frame: Bytes, answer_tag: u8) -> Result<Incoming, Error> {
        self.ask(|done| Command::Request(frame, answer_tag, done)).await
    }

    fn clock(&self) -> Option<ClockSkew> {
        match &*self.status.borrow() {
            Status::Online(info) => Some(info.clock),
            _ => None,
        }
    }
}
