//! A call (10): a connection of its own that joins, sends sealed audio and hears the others'. Who is called hears of it as
//! [`crate::Event::Call`] on whatever connection it is subscribed with. Needs protocol version 3; joining asks for 4.

use bytes::Bytes;
use drover_wire::frame::Frame;
use drover_wire::id::{CallId, GroupId};

use crate::connection::{Connection, refusal};
use crate::error::{Error, Refusal};
use crate::limits::{CALL_BODY_BYTES_MAX, MEDIA_BYTES_MAX};

/// Joins the call, and wakes absent devices.
pub const OFFER: u8 = 1;
/// Joins the call.
pub const ANSWER: u8 = 2;
/// Says that one does not join.
pub const DECLINE: u8 = 3;
/// Leaves the call.
pub const BYE: u8 = 4;

/// What comes while one is in a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallEvent {
    /// Somebody's audio.
    Media {
        /// Which of the sender's streams.
        stream: [u8; 4],
        /// The sender's counter.
        seq: u64,
        /// Sealed audio.
        ct: Bytes,
    },
    /// Some frames were refused: over a budget, or one is not in the call any more. Told at most once a second.
    Refused(Refusal),
}

/// A place in a call. Dropping it ends the connection and so the place; [`Call::leave`] also tells the others.
pub struct Call {
    connection: Connection,
    call_id: CallId,
    group: GroupId,
    epoch: u64,
}

impl Call {
    /// Joins a call with [`OFFER`] or [`ANSWER`], over an authenticated connection; opens it if there is none.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another kind or a body over 4096 bytes; [`Error::Refused`] with `quota/rate_limited` (the
    /// call has its five, the relay its calls), `denied/*`, or `version/protocol_unsupported` where calls are off;
    /// connection failures.
    pub async fn join(
        mut connection: Connection,
        call_id: CallId,
        group: GroupId,
        epoch: u64,
        kind: u8,
        body: &[u8],
    ) -> Result<Self, Error> {
        if !matches!(kind, OFFER | ANSWER) {
            return Err(Error::Invalid("a call is joined by an offer or an answer"));
        }
        say(&mut connection, call_id, group, epoch, kind, body).await?;
        // A join is not acknowledged: what is asked after it is answered after it.
        connection.sync().await?;
        Ok(Self {
            connection,
            call_id,
            group,
            epoch,
        })
    }

    /// Sends one frame. A key and a stream must never see a counter twice: it is the nonce (10 §1).
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than 1500 bytes; connection failures. Refusals come as [`CallEvent::Refused`].
    pub async fn send(&mut self, stream: [u8; 4], seq: u64, ct: &[u8]) -> Result<(), Error> {
        if ct.len() > MEDIA_BYTES_MAX {
            return Err(Error::Invalid("audio frame over 1500 bytes"));
        }
        let call_id = self.call_id;
        let frame = Frame::Media {
            call_id,
            stream,
            seq,
            ct,
        };
        self.connection.send(&frame).await
    }

    /// Waits for what comes next. Cancel-safe. Frames that are no part of the call are passed over: subscriptions belong
    /// on another connection.
    ///
    /// # Errors
    /// Connection failures, after which the place is lost: join again.
    pub async fn next(&mut self) -> Result<CallEvent, Error> {
        loop {
            let incoming = self.connection.recv().await?;
            if let Some(refusal) = refusal(&incoming) {
                return Ok(CallEvent::Refused(refusal));
            }
            match incoming.frame()? {
                Frame::Media {
                    call_id,
                    stream,
                    seq,
                    ct,
                } if call_id == self.call_id => {
                    let ct = incoming.share(ct);
                    return Ok(CallEvent::Media { stream, seq, ct });
                }
                Frame::Bye { .. } => return Err(Error::Closed { code: None }),
                _ => {}
            }
        }
    }

    /// Leaves with a bye; gives the connection back.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a body over 4096 bytes; connection failures.
    pub async fn leave(self, body: &[u8]) -> Result<Connection, Error> {
        let Self {
            mut connection,
            call_id,
            group,
            epoch,
        } = self;
        say(&mut connection, call_id, group, epoch, BYE, body).await?;
        Ok(connection)
    }
}

/// Sends one CALL, in a call or not: a [`DECLINE`] needs no place.
///
/// # Errors
/// [`Error::Invalid`] for a body over 4096 bytes; connection failures. Success is never acknowledged.
pub async fn say(
    connection: &mut Connection,
    call_id: CallId,
    group: GroupId,
    epoch: u64,
    kind: u8,
    body: &[u8],
) -> Result<(), Error> {
    if body.len() > CALL_BODY_BYTES_MAX {
        return Err(Error::Invalid("call body over 4096 bytes"));
    }
    let frame = Frame::Call {
        call_id,
        group,
        epoch,
        kind,
        body,
    };
    connection.send(&frame).await
}
