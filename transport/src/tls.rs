//! TLS 1.3 on the shard loop.
//!
//! | Module | Story |
//! | --- | --- |
//! | [`source`] | certificates: from files or made for development, and what is offered with them |
//! | [`session`] | one connection's records, without I/O |

mod session;
mod source;

pub(crate) use session::{Step, TlsSession};
pub(crate) use source::Certificates;
