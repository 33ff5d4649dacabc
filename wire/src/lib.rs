//! Bytes to types and back for the protocols Drover speaks. Pure: no I/O, no clock, no allocation it can avoid.
//!
//! | Module | Story |
//! | --- | --- |
//! | [`cbor`] | the deterministic CBOR subset of spec/weald/01-wire.md §1 |
//! | [`id`] | the fixed-width names everything else is built from |
//! | [`error`] | the closed registry of refusals (spec/weald/04-errors-and-limits.md) |
//! | [`frame`] | the 25 frames (01 §3) |
//! | [`map`] | the same frames as maps (01 §8) |
//! | [`envelope`] | the durable unit and its content address (01 §4) |
//! | [`access`] | access sets, their signing input and digest (05 §3, §4) |
//! | [`recon`] | range reconciliation: payload and both roles (03) |
//! | [`join`] | JOIN bodies (06 §4) |
//! | [`invite`] | invite records, how they are judged, and one-time codes (06 §2, §3) |
//! | [`invite_admin`] | INVITE bodies (06 §11) |
//! | [`wrap`] | the WRAP body (07 B1) |
//! | [`blob`] | BLOB payloads (08 §1 to §3) |
//! | [`retention`] | the records of the retention chain, what is signed, and who has to sign (08 §11, §12) |
//! | [`mod@drop`] | DROP payloads (09 §2) |
//! | [`ws`] | WebSocket heads of whole data messages (RFC 6455) |

#![forbid(unsafe_code)]

pub mod access;
pub mod blob;
pub mod cbor;
pub mod drop;
pub mod envelope;
pub mod error;
pub mod frame;
pub mod id;
pub mod invite;
pub mod invite_admin;
pub mod join;
pub mod map;
pub mod recon;
pub mod retention;
pub mod wrap;
pub mod ws;
