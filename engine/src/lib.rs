//! Shards, realms and sessions: every decision Drover takes, as plain state machines. No socket, no clock, no thread:
//! time and completions come in as values, and what is to be done goes out through [`Effects`] (architecture.md §4).
//!
//! | Module | Story |
//! | --- | --- |
//! | [`shard`] | one core's worth of realms and connections: events in, effects out |
//! | [`event`] | what comes in |
//! | [`effects`] | what goes out |
//! | [`outbox`] | one connection's bounded outbound queue |
//! | [`code`] | one-time codes |
//! | [`collector`] | what the collector reports |
//! | [`config`] | what an operator can choose |
//! | [`bootstrap`] | minting a workspace: its genesis key and first invite |
//! | [`inspect`] | what an operator may see of a workspace |
//! | [`directory`] | which realm owns a name, for all shards |
//! | [`metrics`] | what a shard counts |
//! | [`wake`] | handles, and whom an event wakes |

pub mod bootstrap;
mod budget;
mod chain;
pub mod code;
pub mod collector;
pub mod config;
pub mod directory;
pub mod effects;
pub mod event;
mod group;
pub mod inspect;
mod limits;
mod message;
pub mod metrics;
pub mod outbox;
mod realm;
mod records;
mod retention;
mod session;
pub mod shard;
pub mod wake;

pub use config::Config;
pub use directory::Directory;
pub use effects::Effects;
pub use event::{ConnId, Event, Flow, Inbound, Now, Peer};
pub use shard::Shard;
