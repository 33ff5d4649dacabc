//! One authenticated socket, driven by hand: for tests, tools, and everything [`crate::Client`] is built on.
//!
//! Answers come in request order and carry no correlation id (02 §14). [`Connection::exchange`] therefore allows one
//! outstanding request; a caller that pipelines uses [`Connection::send`] and [`Connection::recv`] and counts.

use std::collections::VecDeque;

use bytes::Bytes;
use drover_wire::cbor::Reader;
use drover_wire::error::Code;
use drover_wire::frame::{FRAME_BYTES_MAX, Frame, List32Buf, PROTOCOL_VERSION, Wake};
use drover_wire::id::{GroupId, Hash};
use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::tungstenite::Message;

use crate::clock::{ClockSkew, now_ms};
use crate::envelope::SealedEnvelope;
use crate::error::{Error, Refusal};
use crate::identity::Identity;
use crate::limits::{ANSWER_TIMEOUT, CONNECT_GROUPS_MAX, INBOX_BYTES_MAX, INBOX_FRAMES_MAX};
use crate::recon::{Next, Reconciled, Reconciler};
use crate::store::Store;
use crate::transport::{self, Endpoint, WebSocket};

/// What CONNECT says (02 §4).
#[derive(Clone, Debug)]
pub struct Hello {
    /// Groups to name, at most 256. They decide which workspace the session is bound to, and unknown ones are created
    /// when the device is in that workspace's access set (05 §6.2).
    pub groups: Vec<GroupId>,
    /// Newest protocol version offered, 1 to 4.
    pub version_max: u16,
    /// Oldest protocol version accepted; a relay that selects an older one is left.
    pub version_min: u16,
    /// Leave a relay that does not refuse plaintext envelopes.
    pub require_encryption: bool,
}

impl Default for Hello {
    fn default() -> Self {
        Self {
            groups: Vec::new(),
            version_max: PROTOCOL_VERSION,
            version_min: 1,
            require_encryption: false,
        }
    }
}

impl Hello {
    /// Names these groups, everything else by default.
    pub fn groups(groups: impl IntoIterator<Item = GroupId>) -> Self {
        Self {
            groups: groups.into_iter().collect(),
            ..Self::default()
        }
    }
}

/// What the relay said about the session in CONNECT_ACK and AUTH_ACK (01 §3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// Selected protocol version.
    pub version: u16,
    /// The local clock against the relay's.
    pub clock: ClockSkew,
    /// Whether plaintext envelopes are refused. When not, a user interface must say so.
    pub encryption_enforced: bool,
    /// Whether durable writes are refused for now (`denied/service_read_only`).
    pub read_only: bool,
    /// Whether the relay enforces access sets.
    pub access_set_enforced: bool,
    /// Unserved, unexpired key packages on this device's shelf.
    pub key_packages_remaining: u32,
    /// The relay's statement about its build.
    pub build_digest: String,
}

/// One received frame, owned. The frame itself borrows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming(pub Bytes);

impl Incoming {
    /// The frame.
    ///
    /// # Errors
    /// [`Error::Protocol`] when the relay sent bytes that are none.
    pub fn frame(&self) -> Result<Frame<'_>, Error> {
        Frame::decode(&self.0).map_err(|_| Error::Protocol("undecodable frame"))
    }

    /// The part of the message a field of [`Incoming::frame`] borrows, without copying.
    pub fn share(&self, part: &[u8]) -> Bytes {
        if part.is_empty() {
            Bytes::new()
        } else {
            self.0.slice_ref(part)
        }
    }
}

/// One acknowledged write (02 §6): the envelope's cursor, the first one it ever got when it was a duplicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendAck {
    /// Content address of the envelope.
    pub hash: Hash,
    /// Its cursor.
    pub seq: u64,
}

/// A request and its one answer: implemented by [`Connection`] and [`crate::Client`].
pub trait Exchange: Send {
    /// Sends an encoded frame and waits for the answer with this tag.
    ///
    /// # Errors
    /// [`Error::Refused`] when the relay answers with ERROR; connection failures.
    fn exchange(
        &mut self,
        frame: Bytes,
        answer_tag: u8,
    ) -> impl Future<Output = Result<Incoming, Error>> + Send;

    /// The local clock against the relay's, as of the last CONNECT_ACK; `None` before one.
    fn clock(&self) -> Option<ClockSkew>;
}

/// Encodes a frame.
pub fn encode(frame: &Frame<'_>) -> Bytes {
    let mut out = Vec::new();
    frame.encode(&mut out);
    out.into()
}

/// One WebSocket to a relay.
pub struct Connection {
    socket: WebSocket,
    info: Option<SessionInfo>,
    /// Frames that came while an answer was awaited.
    inbox: VecDeque<Incoming>,
    inbox_bytes: usize,
}

impl Connection {
    /// Connects and upgrades, without authenticating. Only JOIN, CONNECT and BYE are legal now (02 §3.1), and the relay
    /// allows 10 s until AUTH_ACK.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the upgrade is refused; network and TLS failures.
    pub async fn open(endpoint: &Endpoint) -> Result<Self, Error> {
        let socket = transport::open(endpoint).await?;
        Ok(Self {
            socket,
            info: None,
            inbox: VecDeque::new(),
            inbox_bytes: 0,
        })
    }

    /// [`Connection::open`] and [`Connection::authenticate`].
    ///
    /// # Errors
    /// Those of both.
    pub async fn connect(endpoint: &Endpoint, identity: &Identity, hello: &Hello) -> Result<Self, Error> {
        let mut connection = Self::open(endpoint).await?;
        connection.authenticate(identity, hello).await?;
        Ok(connection)
    }

    /// CONNECT and AUTH (02 §4, §5).
    ///
    /// # Errors
    /// [`Error::Refused`], after which the relay has closed the socket: `denied/writer_not_in_access_set` (not
    /// admitted), `denied/group_unknown` (no named group is known), `retry/backpressure`. [`Error::BelowClientFloor`]
    /// and [`Error::PlaintextAllowed`] when the relay is not acceptable.
    pub async fn authenticate(&mut self, identity: &Identity, hello: &Hello) -> Result<&SessionInfo, Error> {
        if hello.groups.len() > CONNECT_GROUPS_MAX {
            return Err(Error::Invalid("more than 256 groups in CONNECT"));
        }
        let groups: List32Buf = hello.groups.iter().map(|group| group.0).collect();
        let sent_at_ms = now_ms();
        self.send(&Frame::Connect {
            version: hello.version_max,
            groups: groups.as_list(),
            sent_at_ms,
        })
        .await?;
        let answer = self.answer().await?;
        // An impossible version does not even decode, so it is read before the frame is.
        if let Some(selected) = selected_version(&answer.0)
            && !(hello.version_min.into()..=hello.version_max.into()).contains(&selected)
        {
            let selected = selected.try_into().unwrap_or(u16::MAX);
            return Err(Error::BelowClientFloor {
                selected,
                floor: hello.version_min,
            });
        }
        let Frame::ConnectAck {
            version,
            server_time_ms,
            ..
        } = answer.frame()?
        else {
            return Err(Error::Protocol("CONNECT not acknowledged"));
        };
        let clock = ClockSkew::between(now_ms(), server_time_ms);

        let challenge = self.answer().await?;
        let Frame::AuthChallenge { challenge } = challenge.frame()? else {
            return Err(Error::Protocol("no challenge"));
        };
        let signature = identity.sign(challenge);
        self.send(&Frame::Auth {
            device_key: identity.public(),
            signature,
        })
        .await?;

        let ack = self.answer().await?;
        let Frame::AuthAck {
            key_packages_remaining,
            write_mode,
            build_digest,
            access_set,
            min_enc,
        } = ack.frame()?
        else {
            return Err(Error::Protocol("AUTH not acknowledged"));
        };
        if hello.require_encryption && min_enc == 0 {
            return Err(Error::PlaintextAllowed);
        }
        Ok(self.info.insert(SessionInfo {
            version,
            clock,
            encryption_enforced: min_enc != 0,
            read_only: write_mode != 0,
            access_set_enforced: access_set != 0,
            key_packages_remaining,
            build_digest: String::from_utf8_lossy(build_digest).into_owned(),
        }))
    }

    /// What the relay said about this session; `None` before [`Connection::authenticate`].
    pub fn info(&self) -> Option<&SessionInfo> {
        self.info.as_ref()
    }

    /// Sends one frame.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a frame over 1 052 672 bytes; connection failures.
    pub async fn send(&mut self, frame: &Frame<'_>) -> Result<(), Error> {
        self.send_bytes(encode(frame)).await
    }

    /// Sends one message of any bytes, legal or not.
    ///
    /// # Errors
    /// Connection failures.
    pub async fn send_bytes(&mut self, message: Bytes) -> Result<(), Error> {
        if message.len() > FRAME_BYTES_MAX {
            return Err(Error::Invalid("frame over 1 052 672 bytes"));
        }
        Ok(self.socket.send(Message::Binary(message)).await?)
    }

    /// The next frame: one set aside earlier, or the next from the socket. Waits without limit. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::Closed`] when the relay ends the socket; connection failures.
    pub async fn recv(&mut self) -> Result<Incoming, Error> {
        if let Some(incoming) = self.inbox.pop_front() {
            self.inbox_bytes -= incoming.0.len();
            return Ok(incoming);
        }
        self.next().await
    }

    async fn next(&mut self) -> Result<Incoming, Error> {
        loop {
            if let Some(bytes) = transport::payload(self.socket.next().await)? {
                return Ok(Incoming(bytes));
            }
        }
    }

    /// The next frame from the socket in time; a refusal is an error.
    async fn answer(&mut self) -> Result<Incoming, Error> {
        let incoming = tokio::time::timeout(ANSWER_TIMEOUT, self.next())
            .await
            .map_err(|_| Error::Timeout)??;
        match refusal(&incoming) {
            Some(refusal) => Err(Error::Refused(refusal)),
            None => Ok(incoming),
        }
    }

    /// Sets a frame aside for [`Connection::recv`].
    fn keep(&mut self, incoming: Incoming) -> Result<(), Error> {
        self.inbox_bytes += incoming.0.len();
        self.inbox.push_back(incoming);
        if self.inbox.len() > INBOX_FRAMES_MAX || self.inbox_bytes > INBOX_BYTES_MAX {
            return Err(Error::Protocol("too many frames before an answer"));
        }
        Ok(())
    }

    /// Waits for a frame `wanted` accepts; the others are set aside, an ERROR ends the wait.
    async fn await_frame(&mut self, wanted: impl Fn(&Frame<'_>) -> bool) -> Result<Incoming, Error> {
        loop {
            let incoming = self.answer().await?;
            // The check decides on a copy of the borrow, so that the message can be kept.
            let hit = wanted(&incoming.frame()?);
            if hit {
                return Ok(incoming);
            }
            self.keep(incoming)?;
        }
    }

    /// SEND and its acknowledgement (02 §6).
    ///
    /// # Errors
    /// [`Error::Refused`] with the code of 02 §6; connection failures.
    pub async fn send_envelope(&mut self, envelope: &SealedEnvelope) -> Result<SendAck, Error> {
        self.send_bytes(envelope.send_frame()).await?;
        let expected = envelope.hash();
        let ack = self
            .await_frame(|frame| matches!(frame, Frame::SendAck { hash, .. } if *hash == expected))
            .await?;
        match ack.frame()? {
            Frame::SendAck { hash, seq } => Ok(SendAck { hash, seq }),
            _ => Err(Error::Protocol("SEND not acknowledged")),
        }
    }

    /// HANDSHAKE and its acknowledgement: the message's number in the group (07 C2).
    ///
    /// # Errors
    /// [`Error::Refused`]; connection failures.
    pub async fn publish_handshake(&mut self, group: GroupId, message: &[u8]) -> Result<u64, Error> {
        self.send(&Frame::Handshake {
            group,
            seq: 0,
            message,
        })
        .await?;
        let ack = self
            .await_frame(|frame| matches!(frame, Frame::Handshake { group: g, message: m, .. } if *g == group && *m == message))
            .await?;
        match ack.frame()? {
            Frame::Handshake { seq, .. } => Ok(seq),
            _ => Err(Error::Protocol("HANDSHAKE not acknowledged")),
        }
    }

    /// SUB (02 §8): the head the relay names. Replay and live frames follow through [`Connection::recv`].
    ///
    /// # Errors
    /// [`Error::Refused`]; connection failures.
    pub async fn subscribe(&mut self, group: GroupId, from_seq: u64) -> Result<u64, Error> {
        self.send(&Frame::Sub { group, from_seq }).await?;
        let ack = self
            .await_frame(|frame| matches!(frame, Frame::SubAck { group: g, .. } if *g == group))
            .await?;
        match ack.frame()? {
            Frame::SubAck { head_seq, .. } => Ok(head_seq),
            _ => Err(Error::Protocol("SUB not acknowledged")),
        }
    }

    /// Returns once the relay has processed everything sent so far, the end of a replay included: a WAKE query, which
    /// is answered in order and in any configuration. Needs protocol version 4.
    ///
    /// # Errors
    /// [`Error::Refused`] with a refusal of something sent earlier; connection failures.
    pub async fn sync(&mut self) -> Result<(), Error> {
        self.send(&Frame::Wake(Wake::Query)).await?;
        self.await_frame(|frame| matches!(frame, Frame::Wake(Wake::Capability { .. })))
            .await
            .map(drop)
    }

    /// Reconciles one group with `store`: afterwards each side holds what the other held (03). Pushed envelopes are
    /// stored; envelopes the relay lacks are sent when the store still has their bytes.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Store`], connection failures. [`Error::Protocol`] after 64 rounds without an end.
    pub async fn reconcile(&mut self, group: GroupId, store: &dyn Store) -> Result<Reconciled, Error> {
        let mut reconciler = Reconciler::new(0);
        let mut payload = reconciler.open(&store.items(group));
        loop {
            self.send(&Frame::Recon {
                group,
                payload: &payload,
            })
            .await?;
            let answer = loop {
                let incoming = self.answer().await?;
                match incoming.frame()? {
                    Frame::Push { envelope } => {
                        let envelope = SealedEnvelope::from_push(&incoming.share(envelope))?;
                        if envelope.group() == group {
                            reconciler.received += u64::from(!store.contains(group, &envelope.hash()));
                            store.put(envelope).map_err(Error::Store)?;
                        }
                    }
                    Frame::Recon { group: g, payload } if g == group => break incoming.share(payload),
                    _ => self.keep(incoming)?,
                }
            };
            let ranges =
                drover_wire::recon::decode(&answer).map_err(|_| Error::Protocol("undecodable RECON"))?;
            let mut next = reconciler.answered(&store.items(group), ranges);
            if let Next::Offer(hashes) = next {
                for hash in hashes {
                    if let Some(envelope) = store.envelope(group, &hash) {
                        let ack = self.send_envelope(&envelope).await?;
                        reconciler.sent += 1;
                        store.put(envelope.with_seq(ack.seq)).map_err(Error::Store)?;
                    }
                }
                next = reconciler.offered(&store.items(group));
            }
            match next {
                Next::Round(next) => payload = next,
                Next::Done => return Ok(reconciler.summary()),
                Next::Offer(_) | Next::GiveUp => return Err(Error::Protocol("reconciliation does not end")),
            }
        }
    }

    /// Says BYE and closes. Errors don't matter any more, so there are none.
    pub async fn close(mut self) {
        let bye = async {
            self.send(&Frame::Bye { reason: b"" }).await?;
            self.socket.close(None).await.map_err(Error::from)
        };
        let _ = tokio::time::timeout(std::time::Duration::from_secs(2), bye).await;
    }

    pub(crate) fn into_socket(self) -> WebSocket {
        self.socket
    }
}

impl Exchange for Connection {
    async fn exchange(&mut self, frame: Bytes, answer_tag: u8) -> Result<Incoming, Error> {
        self.send_bytes(frame).await?;
        self.await_frame(|frame| frame.tag() == answer_tag).await
    }

    fn clock(&self) -> Option<ClockSkew> {
        self.info.as_ref().map(|info| info.clock)
    }
}

/// The refusal in an ERROR frame; `None` for any other frame.
pub(crate) fn refusal(incoming: &Incoming) -> Option<Refusal> {
    match Frame::decode(&incoming.0) {
        Ok(Frame::Error {
            code,
            retry_after_s,
            detail,
        }) => Some(Refusal {
            code,
            retry_after_s,
            detail: incoming.share(detail),
        }),
        _ => None,
    }
}

/// The version in a CONNECT_ACK, whatever its value; `None` for any other frame.
fn selected_version(message: &[u8]) -> Option<u64> {
    let mut reader = Reader::new(message);
    reader.array_of(2).ok()?;
    (reader.uint().ok()? == 2).then_some(())?;
    reader.array_of(3).ok()?;
    reader.uint().ok()
}

/// Whether the registry entry can be the answer to an unanswered frame (LIVE, CALL): 02 §3.2 and §5.2.
pub(crate) fn may_answer_live(code: Code) -> bool {
    matches!(
        code,
        Code::ProtocolUnsupported
            | Code::RateLimited
            | Code::EnvelopeTooLarge
            | Code::GroupUnknown
            | Code::WriterNotInAccessSet
            | Code::Backpressure
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selected_version_is_read_even_when_it_is_impossible() {
        assert_eq!(selected_version(&[0x82, 0x02, 0x83, 0x04, 0x00, 0x01]), Some(4));
        assert_eq!(selected_version(&[0x82, 0x02, 0x83, 0x00, 0x00, 0x01]), Some(0));
        assert_eq!(selected_version(&[0x82, 0x03, 0x81, 0x40]), None);
    }
}
