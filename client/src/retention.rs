//! The retention chain (08 §11, §12) and compaction (09): whose key says what a group still needs, what it says, under
//! which policy the rest may go, and the instruction to delete what lies behind a checkpoint. The records, how they are
//! signed and judged, are in [`crate::wire::retention`] and [`mod@crate::wire::drop`].

use drover_wire::blob::{Position, Request, Response};
use drover_wire::drop::{self, Answer};
use drover_wire::frame::{FRAME_BYTES_MAX, Frame};
use drover_wire::id::{GroupId, Hash};
use drover_wire::retention::{Control, Destruction, Manifest, Policy, Resolution};

use crate::connection::{Exchange, Incoming, encode};
use crate::error::Error;

const BLOB: u8 = 13;
const DROP: u8 = 19;

/// Where a group's chain stands: what the next manifest has to continue.
///
/// # Errors
/// [`Error::Refused`]; connection failures.
pub async fn position(exchange: &mut impl Exchange, group: GroupId) -> Result<Position, Error> {
    let answer = ask(exchange, &Request::Position { group }).await?;
    match response(&answer)? {
        Response::Position(position) => Ok(position),
        _ => Err(Error::Protocol("BLOB position not answered")),
    }
}

/// Publishes whose key speaks for the group from now on. Repeating it is harmless.
///
/// # Errors
/// [`Error::Refused`] with `reject/malformed_header` for one that does not continue the chain; a different control for an
/// epoch that has one freezes the group until [`resolve`]. Connection failures.
pub async fn publish_control(exchange: &mut impl Exchange, control: &Control) -> Result<(), Error> {
    let digest = control.digest();
    acknowledged(exchange, &Request::Control(control.clone()), digest).await
}

/// Publishes everything the group still needs. What it does not name may go.
///
/// # Errors
/// [`Error::Refused`] with `reject/malformed_header` for one that is not the next; connection failures.
pub async fn publish_manifest(exchange: &mut impl Exchange, manifest: &Manifest) -> Result<(), Error> {
    let digest = manifest.digest();
    acknowledged(exchange, &Request::Manifest(manifest.clone()), digest).await
}

/// Publishes a policy with its authorizers' signatures.
///
/// # Errors
/// [`Error::Refused`] with `denied/writer_not_in_access_set` when too few authorizers signed it, or the only one signed it
/// for too near a time; connection failures.
pub async fn publish_policy(exchange: &mut impl Exchange, policy: &Policy) -> Result<(), Error> {
    let digest = policy.digest();
    acknowledged(exchange, &Request::Policy(policy.clone()), digest).await
}

/// Publishes that one thing has to go, with its authorizers' signatures.
///
/// # Errors
/// As [`publish_policy`].
pub async fn publish_destruction(
    exchange: &mut impl Exchange,
    destruction: &Destruction,
) -> Result<(), Error> {
    let digest = destruction.digest();
    acknowledged(exchange, &Request::Destruction(destruction.clone()), digest).await
}

/// Ends a freeze by naming the genuine one of two controls that collided.
///
/// # Errors
/// [`Error::Refused`]; connection failures.
pub async fn resolve(exchange: &mut impl Exchange, resolution: &Resolution) -> Result<(), Error> {
    let answer = ask(exchange, &Request::Resolution(*resolution)).await?;
    match response(&answer)? {
        Response::Resolved => Ok(()),
        _ => Err(Error::Protocol("BLOB resolution not answered")),
    }
}

/// Has a group's envelopes below a checkpoint deleted, or learns why not (09 §2, §3). A verdict against is an answer and
/// no error: nothing changed then. Repeating the instruction deletes nothing further.
///
/// # Errors
/// [`Error::Refused`] for a group that is not the session's; connection failures.
pub async fn drop_before(exchange: &mut impl Exchange, instruction: &drop::Request) -> Result<Answer, Error> {
    let payload = instruction.encode();
    let answer = exchange
        .exchange(encode(&Frame::Drop { payload: &payload }), DROP)
        .await?;
    match answer.frame()? {
        Frame::Drop { payload } => {
            Answer::decode(payload).map_err(|_| Error::Protocol("undecodable DROP answer"))
        }
        _ => Err(Error::Protocol("DROP not answered")),
    }
}

/// The relay acknowledges a record with the digest it computed itself.
async fn acknowledged(
    exchange: &mut impl Exchange,
    request: &Request<'_>,
    digest: Hash,
) -> Result<(), Error> {
    let answer = ask(exchange, request).await?;
    match response(&answer)? {
        Response::Ack(acknowledged) if acknowledged == digest => Ok(()),
        _ => Err(Error::Protocol("retention record not acknowledged")),
    }
}

async fn ask(exchange: &mut impl Exchange, request: &Request<'_>) -> Result<Incoming, Error> {
    let payload = request.encode();
    let frame = encode(&Frame::Blob { payload: &payload });
    if frame.len() > FRAME_BYTES_MAX {
        return Err(Error::Invalid("record that doesn't fit into one frame"));
    }
    exchange.exchange(frame, BLOB).await
}

fn response(answer: &Incoming) -> Result<Response<'_>, Error> {
    match answer.frame()? {
        Frame::Blob { payload } => {
            Response::decode(payload).map_err(|_| Error::Protocol("undecodable BLOB answer"))
        }
        _ => Err(Error::Protocol("BLOB not answered")),
    }
}
