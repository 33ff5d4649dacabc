//! Shards, realms and sessions: every decision Drover takes, as plain state machines. No socket, no clock, no thread:
//! time and completions come in as values, and what is to be done goes out through [`Effects`] (architecture.md §4).
//!
//! | Module | Story |
//! | --- | --- |
//! | [`shard`] | one core's worth of realms and connections: events in, effects out |
//! | [`event`] | what comes in |
//! | [`effects`] | what goes out |
//! | [`outbox`] | one connection's bounded outbound queue |
//! | [`config`] | what an operator can choose |
//! | [`directory`] | which realm owns a name, for all shards |
//! | [`metrics`] | what a shard counts |

pub mod config;
pub mod directory;
pub mod effects;
pub mod event;
pub mod metrics;
pub mod outbox;
pub mod shard;

pub use config::Config;
pub use directory::Directory;
pub use effects::Effects;
pub use event::{ConnId, Event, Flow, Now, Peer};
pub use shard::Shard;
