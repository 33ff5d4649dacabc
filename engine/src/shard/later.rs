//! The one place for frames whose flow is not built yet: BLOB's forms about objects. The checks of 02 §3.2 that need no
//! database are in force; what passes them is told to come again, which every client does.

use super::Shard;
use crate::event::ConnId;
use drover_wire::blob::Request;
use drover_wire::error::{Code, Refusal};

impl Shard {
    /// The group is judged where one is named; the rest waits for an object store.
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
}
