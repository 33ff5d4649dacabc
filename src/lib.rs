//! The `drover` program as a library, which `main.rs` runs and the fuzz targets look into: command line, configuration,
//! wiring. No protocol logic (architecture.md §2).
//!
//! | Module | Story |
//! | --- | --- |
//! | [`cli`] | the words after `drover`, and exit codes |
//! | [`output`] | what commands print, and what becomes of them when they can't |
//! | [`config`] | what the operator chose |
//! | [`limits`] | what the system allows the process |
//! | [`logging`] | log lines and what they never say |
//! | [`serve`] | starting and stopping |
//! | [`running`] | the relay while it runs, as the operator's surface sees it |
//! | [`ringer`] | wakes on their way to the ringer |
//! | [`private`] | the private listener: readiness, metrics, operator routes |
//! | [`private_client`] | its other end, for the commands that ask a running relay |
//! | [`operator_key`] | the file that lets them |
//! | [`inspect`] | what an operator may see of workspaces |
//! | [`store_check`] | looking at every byte of a store, and saving what is intact |
//! | [`workspace`] | minting workspaces, and the banner |
//! | [`handoff`] | the first invite sealed for the operator instead of printed |
//! | [`demo`] | a relay and two devices, to be looked at |
//! | [`conform`] | checking any relay by its URL |
//! | [`digest`] | what this build calls itself |

#![cfg_attr(test, allow(clippy::unwrap_used))] // A test that can't go on should stop.

mod cli;
mod config;
mod conform;
mod demo;
mod digest;
mod handoff;
mod inspect;
mod limits;
mod logging;
mod operator_key;
mod output;
mod private;
mod private_client;
mod ringer;
mod running;
mod serve;
mod store_check;
mod workspace;

pub use cli::main;
pub use config::{Environment, check_settings};
