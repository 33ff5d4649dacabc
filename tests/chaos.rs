//! Chaos: the program with real processes and files, and what goes wrong below it. Whatever does, nothing acknowledged is
//! lost, nothing is acknowledged that could be, and the program says what it lacks. One binary, a module for each story.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "chaos/damage.rs"]
mod damage;
#[path = "chaos/descriptors.rs"]
mod descriptors;
#[path = "chaos/faults.rs"]
mod faults;
#[path = "chaos/freeze.rs"]
mod freeze;
#[path = "chaos/full.rs"]
mod full;
#[path = "chaos/kill.rs"]
mod kill;
#[path = "chaos/ledger.rs"]
mod ledger;
#[path = "e2e/relay.rs"]
mod relay;
#[path = "chaos/sync.rs"]
mod sync;
