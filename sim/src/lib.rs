//! The real engine in a simulated world: one process, one thread, one seed (architecture.md §4). Network, clock, store
//! and clients are simulated at the borders that production uses; nothing inside is replaced.
//!
//! | Module | Story |
//! | --- | --- |
//! | [`plan`] | what a seed decides before anything happens, and the faults there are |
//! | [`world`] | the relay between net and store, and what happens in which order |
//! | [`store`] | both store traits in memory, with what is on disk kept apart |
//! | [`client`] | clients and what they do; a kind is a file |
//! | [`model`] | what may be expected: every invariant is judged there |
//! | [`sabotage`] | what the simulator must be able to find; a saboteur is a file |
//! | [`report`] | many seeds at once, and shrinking |
//! | [`coverage`] | what came to pass, counted |
//! | `log` | what the engine logs, as it is written |
//! | [`trace`] | what happened, as a number and as text |
//! | [`dice`], [`codes`] | chance, and one-time codes |

#![forbid(unsafe_code)]

pub mod client;
pub mod codes;
pub mod coverage;
pub mod dice;
mod log;
pub mod model;
pub mod plan;
pub mod report;
pub mod sabotage;
pub mod store;
pub mod trace;
pub mod world;

pub use plan::{Plan, Seed};
pub use report::run;
