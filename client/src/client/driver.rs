//! The client's task: connects, moves messages between socket and session, waits, connects again.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use drover_wire::frame::Frame;
use futures_util::{Sink, SinkExt, StreamExt};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_tungstenite::tungstenite::{self, Message};

use crate::backoff::Backoff;
use crate::client::{Command, Status};
use crate::connection::{Connection, Hello, Incoming, encode};
use crate::error::Error;
use crate::identity::Identity;
use crate::limits::{ANSWER_TIMEOUT, PING_AFTER, PONG_WITHIN};
use crate::session::{Done, Leave, Session};
use crate::store::Store;
use crate::transport::{self, Endpoint, WebSocket};

/// A connection that lived this long was a good one: the next wait is short.
const PROVEN_AFTER: Duration = Duration::from_secs(10);

/// Why the task left a connection, or gave up.
enum Exit {
    /// The owner closed the client, or dropped it.
    Closed(Option<oneshot::Sender<()>>),
    /// Connect again at once.
    Again,
    Error(Error),
}

pub(super) struct Driver {
    endpoint: Endpoint,
    identity: Identity,
    hello: Hello,
    session: Session,
    commands: mpsc::Receiver<Command>,
    status: watch::Sender<Status>,
    drained: Arc<Notify>,
    backoff: Backoff,
}

impl Driver {
    pub(super) fn new(
        endpoint: Endpoint,
        identity: Identity,
        hello: Hello,
        store: Arc<dyn Store>,
        commands: mpsc::Receiver<Command>,
        status: watch::Sender<Status>,
    ) -> Self {
        let drained = Arc::new(Notify::new());
        let session = Session::new(store, hello.groups.clone(), drained.clone());
        Self {
            endpoint,
            identity,
            hello,
            session,
            commands,
            status,
            drained,
            backoff: Backoff::default(),
        }
    }

    pub(super) async fn run(mut self) {
        let (why, closer) = loop {
            self.status.send_replace(Status::Connecting);
            let wait = match self.once().await {
                Exit::Closed(closer) => break (None, closer),
                Exit::Again => continue,
                Exit::Error(error) if error.is_transient() => {
                    let wait = self.backoff.next(error.retry_after_s());
                    self.status.send_replace(Status::Waiting(error));
                    wait
                }
                Exit::Error(error) => break (Some(error), None),
            };
            if let Err(closer) = self.idle(tokio::time::sleep(wait)).await {
                break (None, closer);
            }
        };
        self.status.send_replace(Status::Stopped(why.clone()));
        self.session.stop(&Error::Stopped(why.map(Arc::new)));
        // Commands still queued are dropped with their reply channels, which reads as stopped.
        self.commands.close();
        if let Some(closer) = closer {
            let _ = closer.send(());
        }
    }

    /// One connection from attempt to end.
    async fn once(&mut self) -> Exit {
        let hello = Hello {
            groups: self.session.connect_groups(),
            ..self.hello.clone()
        };
        let (endpoint, identity) = (self.endpoint.clone(), self.identity.clone());
        let attempt = async move { Connection::connect(&endpoint, &identity, &hello).await };
        let connection = match self.idle(attempt).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => return Exit::Error(error),
            Err(closer) => return Exit::Closed(closer),
        };
        let Some(info) = connection.info().cloned() else {
            return Exit::Error(Error::Protocol("no session"));
        };
        self.session.connected(info.version);
        self.status.send_replace(Status::Online(Arc::new(info)));
        let since = Instant::now();
        let exit = self.serve(connection.into_socket()).await;
        if since.elapsed() >= PROVEN_AFTER {
            self.backoff.reset();
        }
        match (self.session.disconnected(), exit) {
            // The relay said when to come back before it closed.
            (Some(seconds), Exit::Error(error)) if error.is_transient() => {
                self.status.send_replace(Status::Waiting(error));
                let wait = self.backoff.next(Some(seconds));
                match self.idle(tokio::time::sleep(wait)).await {
                    Ok(()) => Exit::Again,
                    Err(closer) => Exit::Closed(closer),
                }
            }
            (_, exit) => exit,
        }
    }

    /// Waits for something while commands are taken; `Err` when the client is closed meanwhile.
    async fn idle<T>(&mut self, until: impl Future<Output = T>) -> Result<T, Option<oneshot::Sender<()>>> {
        tokio::pin!(until);
        loop {
            tokio::select! {
                output = &mut until => return Ok(output),
                command = self.commands.recv() => self.command(command)?,
            }
        }
    }

    /// Takes one command; `Err` when it is the last.
    fn command(&mut self, command: Option<Command>) -> Result<(), Option<oneshot::Sender<()>>> {
        match command {
            Some(Command::Send(envelope, done, permits)) => {
                self.session.send(envelope, Done::Ack(done), permits)
            }
            Some(Command::Handshake(group, message, done, permits)) => {
                self.session
                    .handshake(group, message, Done::Number(done), permits);
            }
            Some(Command::Live(group, epoch, ct, done)) => {
                let _ = done.send(self.session.live(group, epoch, &ct, Instant::now()));
            }
            Some(Command::Subscribe(group, floor, done)) => {
                let _ = done.send(self.session.subscribe(group, floor));
            }
            Some(Command::Reconcile(group, done)) => self.session.reconcile(group, done),
            Some(Command::Request(frame, tag, done)) => self.session.request(frame, tag, done),
            Some(Command::Close(done)) => return Err(Some(done)),
            None => return Err(None),
        }
        Ok(())
    }

    /// Moves messages until the connection is to be left. Reading and writing go on side by side: a relay whose answer
    /// queue is full stops reading until we read (02, decision 1).
    async fn serve(&mut self, socket: WebSocket) -> Exit {
        let (mut sink, mut stream) = socket.split();
        let mut outgoing: Option<Message> = None;
        let mut dirty = false;
        let mut vigil = Vigil::new(Instant::now());
        loop {
            let now = Instant::now();
            if outgoing.is_none() {
                outgoing = self.session.poll_transmit(now).map(Message::Binary);
            }
            match vigil.judge(now, self.session.awaits_answer(), outgoing.is_none()) {
                Ok(true) => outgoing = Some(Message::Ping(Bytes::new())),
                Ok(false) => {}
                Err(error) => return Exit::Error(error),
            }
            let pause = self.session.pause_until(now);
            let wake = [
                self.session.deadline(),
                pause,
                Some(vigil.deadline(self.session.awaits_answer())),
            ];
            let wake = wake
                .into_iter()
                .flatten()
                .filter(|at| *at > now)
                .min()
                .unwrap_or(now + PING_AFTER);
            tokio::select! {
                result = push(&mut sink, &mut outgoing), if outgoing.is_some() || dirty => match result {
                    Ok(flushed) => dirty = !flushed,
                    Err(error) => return Exit::Error(error.into()),
                },
                message = stream.next(), if pause.is_none() => {
                    let now = Instant::now();
                    vigil.heard(now);
                    match transport::payload(message) {
                        Ok(None) => {}
                        Ok(Some(bytes)) => match self.session.receive(&Incoming(bytes), now) {
                            Ok(()) => {}
                            Err(Leave::NameGroups) => return Exit::Again,
                            Err(Leave::Error(error)) => return Exit::Error(error),
                        },
                        Err(error) => return Exit::Error(error),
                    }
                }
                command = self.commands.recv() => if let Err(closer) = self.command(command) {
                    let bye = async {
                        sink.send(Message::Binary(encode(&Frame::Bye { reason: b"" }))).await?;
                        sink.close().await
                    };
                    let _ = tokio::time::timeout(Duration::from_secs(2), bye).await;
                    return Exit::Closed(closer);
                },
                () = self.drained.notified() => {}
                () = tokio::time::sleep_until(wake.into()) => {}
            }
        }
    }
}

/// Hands one message to the socket, or flushes when there is none; `true` after a flush.
async fn push<S>(sink: &mut S, outgoing: &mut Option<Message>) -> Result<bool, tungstenite::Error>
where
    S: Sink<Message, Error = tungstenite::Error> + Unpin,
{
    poll_fn(|cx| {
        if outgoing.is_none() {
            ready!(sink.poll_flush_unpin(cx))?;
            return Poll::Ready(Ok(true));
        }
        ready!(sink.poll_ready_unpin(cx))?;
        if let Some(message) = outgoing.take() {
            sink.start_send_unpin(message)?;
        }
        Poll::Ready(Ok(false))
    })
    .await
}

/// Notices a connection that is dead although nothing says so.
struct Vigil {
    heard: Instant,
    pinged: Option<Instant>,
    /// Since when an answer is due without a break.
    due: Option<Instant>,
}

impl Vigil {
    fn new(now: Instant) -> Self {
        Self {
            heard: now,
            pinged: None,
            due: None,
        }
    }

    fn heard(&mut self, now: Instant) {
        self.heard = now;
        self.pinged = None;
    }

    /// Whether to ping now; `idle` when nothing else is being sent.
    fn judge(&mut self, now: Instant, answer_due: bool, idle: bool) -> Result<bool, Error> {
        self.due = if answer_due { self.due.or(Some(now)) } else { None };
        if now >= self.deadline(answer_due) {
            let stuck = now >= self.heard + PING_AFTER + PONG_WITHIN;
            if self.pinged.is_some() || stuck || self.answer_deadline().is_some_and(|at| at <= now) {
                return Err(Error::Timeout);
            }
            if idle {
                self.pinged = Some(now);
            }
            return Ok(idle);
        }
        Ok(false)
    }

    fn answer_deadline(&self) -> Option<Instant> {
        self.due.map(|due| due.max(self.heard) + ANSWER_TIMEOUT)
    }

    fn deadline(&self, answer_due: bool) -> Instant {
        let silence = match self.pinged {
            Some(pinged) => pinged + PONG_WITHIN,
            None => self.heard + PING_AFTER,
        };
        self.answer_deadline()
            .filter(|_| answer_due)
            .map_or(silence, |at| at.min(silence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_pinged_and_then_given_up() {
        let start = Instant::now();
        let mut vigil = Vigil::new(start);
        assert_eq!(vigil.judge(start, false, true).ok(), Some(false));
        assert_eq!(vigil.judge(start + PING_AFTER, false, true).ok(), Some(true));
        assert_eq!(vigil.judge(start + PING_AFTER, false, true).ok(), Some(false));
        assert!(
            vigil
                .judge(start + PING_AFTER + PONG_WITHIN, false, true)
                .is_err()
        );
        vigil.heard(start + PING_AFTER + PONG_WITHIN);
        assert_eq!(
            vigil.judge(start + PING_AFTER + PONG_WITHIN, false, true).ok(),
            Some(false)
        );
    }

    #[test]
    fn a_due_answer_has_its_own_deadline() {
        let start = Instant::now();
        let mut vigil = Vigil::new(start);
        assert_eq!(vigil.judge(start, true, true).ok(), Some(false));
        assert!(vigil.judge(start + ANSWER_TIMEOUT, true, true).is_err());
    }
}
