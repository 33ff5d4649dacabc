//! Conformance: what every implementation of Weald has to agree on, as data in `weald/`, and the runner that checks any
//! relay by its URL. README.md beside this crate is the reference of the data.
//!
//! | Module | Story |
//! | --- | --- |
//! | [`runner`] | [`conform`]: all scripts against one relay |
//! | [`report`] | what came out, as a table, JSON or JUnit |
//! | [`script`] | scripts as the data files hold them |
//! | [`frames`] | frames by name and field, from `weald/schema.json` |
//! | [`values`] | the notation of values, byte expressions and patterns |
//! | [`cbor`], [`hex`] | the bytes below, sharing no code with `wire` |
//! | [`run`](mod@run) | keys, groups and ids made from names; the founded workspaces |
//! | `interpret`, `link` | one script on its connections |
//! | `founding` | the workspace all scripts share |

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod cbor;
mod founding;
pub mod frames;
pub mod hex;
mod interpret;
mod link;
pub mod report;
pub mod run;
pub mod runner;
pub mod script;
pub mod values;

pub use founding::Invite;
pub use frames::Form;
pub use link::{Stop, Target};
pub use report::{Counts, Report, Verdict};
pub use runner::{Error, Options, PATIENCE, conform};
