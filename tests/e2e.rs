//! End-to-end tests: the program itself, real sockets, real files, real signals. One binary, a module for each story.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "e2e/bench.rs"]
mod bench;
#[path = "e2e/clients.rs"]
mod clients;
#[path = "e2e/conform.rs"]
mod conform;
#[path = "e2e/crash.rs"]
mod crash;
#[path = "e2e/limits.rs"]
mod limits;
#[path = "e2e/output.rs"]
mod output;
#[path = "e2e/relay.rs"]
mod relay;
#[path = "e2e/sabotage.rs"]
mod sabotage;
#[path = "e2e/services.rs"]
mod services;
#[path = "e2e/shards.rs"]
mod shards;
#[path = "e2e/story.rs"]
mod story;
