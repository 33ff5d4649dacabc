//! Calls (spec/weald/10-calls.md) as plain state: who is in which call, what a sender may send, what waits for a
//! recipient. No socket, no clock, no thread, no lock on the path of a MEDIA frame: bytes and times come in as values.
//!
//! A MEDIA frame is read in place ([`MediaFrame`]), charged to its sender ([`Sender`]), and handed to every other
//! participant ([`Calls::forward`]) as the very bytes that were received, queued by reference ([`Lane`]).
//!
//! | Module | Story |
//! | --- | --- |
//! | [`frame`] | the fixed layout of a MEDIA frame, read in place |
//! | [`budget`] | what one connection may send, and how often it is told that it may not |
//! | [`calls`] | one shard's calls and their participants |
//! | [`table`] | the calls of the whole process: which ids are taken, and how many |
//! | [`lane`] | MEDIA waiting for one recipient: short, fresh, oldest first to go |
//! | [`limits`] | every figure of 10-calls.md |

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))] // A test that can't go on should stop.

pub mod budget;
pub mod calls;
pub mod frame;
pub mod lane;
pub mod limits;
pub mod table;

pub use budget::Sender;
pub use calls::{Calls, JoinRefused, Participant};
pub use frame::MediaFrame;
pub use lane::Lane;
pub use table::CallTable;
