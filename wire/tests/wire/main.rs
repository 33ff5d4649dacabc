//! The rules of the wire formats, by chapter. Each test is named after the rule it proves; its comment says which
//! case of the specification that is.
#![allow(clippy::unwrap_used)] // A test that can't go on should stop.

mod access;
mod allocations;
mod blobs;
mod cbor;
mod drops;
mod envelopes;
mod frames;
mod invite_admin;
mod invites;
mod manifest;
mod map_recon;
mod map_refusals;
mod maps;
mod properties;
mod recon;
mod retention;
mod support;
mod wake;
mod wraps;
