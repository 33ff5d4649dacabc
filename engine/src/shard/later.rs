//! The one place for frames whose flow is not built yet: the checks of 02 §3.2 that need no database are in force;
//! what passes them is told to come again, which every client does.

use super::Shard;
use crate::effects::Effects;
use crate::event::ConnId;
use crate::limits::{CALL_PER_MINUTE, LIVE_BYTES_MAX, MEDIA_BYTES_MAX};
use drover_wire::blob::Request;
use drover_wire::error::{Code, Refusal};
use drover_wire::frame::Frame;

impl Shard {
    pub(super) fn later<E: Effects>(&mut self, conn: ConnId, frame: &Frame<'_>, fx: &mut E) {
        let refusal = match self.check(conn, frame) {
            Err(refusal) => refusal,
            Ok(()) => Code::Backpressure.into(),
        };
        self.refuse(conn, refusal, fx);
    }

    /// BLOB's forms about objects: the group is judged where one is named; the rest waits for an object store.
    pub(super) fn object_later(&mut self, conn: ConnId, request: &Request<'_>) -> Result<(), Refusal> {
        match request {
            Request::Put { group, .. }
            | Request::Get { group, .. }
            | Request::List { group, .. }
            | Request::Quota { group } => {
                self.authorize(conn, group)?;
            }
            _ if self.session(conn).is_none_or(|s| s.realm.is_none()) => {
                return Err(Code::WriterNotInAccessSet.into());
            }
            Request::MultipartAbort { .. } => self.charge_chain(conn)?,
            _ => {}
        }
        Err(Code::Backpressure.into())
    }

    fn check(&mut self, conn: ConnId, frame: &Frame<'_>) -> Result<(), Refusal> {
        let too_large = |limit: usize| Err(Refusal::number(Code::EnvelopeTooLarge, limit as u64));
        let unbound = self.session(conn).is_none_or(|s| s.realm.is_none());
        match frame {
            Frame::Call { kind, body, .. } => {
                if !(1..=4).contains(kind) {
                    return Err(Code::MalformedHeader.into());
                }
                if body.len() > LIVE_BYTES_MAX {
                    return too_large(LIVE_BYTES_MAX);
                }
                self.charge_frame(conn, |b| &mut b.call, CALL_PER_MINUTE)?;
            }
            Frame::Media { ct, .. } if ct.len() > MEDIA_BYTES_MAX => return too_large(MEDIA_BYTES_MAX),
            _ => {}
        }
        // A session without a workspace is refused whatever comes later (05 D12).
        if unbound {
            return Err(Code::WriterNotInAccessSet.into());
        }
        Ok(())
    }
}
