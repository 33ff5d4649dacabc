//! Hostile clients against the program, each with a bound on the memory it may cost the server: `hostile: …` lines under
//! `cargo test --test hostile -- --nocapture`, and in `.ci/run`. What an attack does to others' waiting times is for
//! `drover bench hostile`. One binary, a module for each part.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "hostile/attacks.rs"]
mod attacks;
#[path = "hostile/bounds.rs"]
mod bounds;
#[path = "chaos/faults.rs"]
#[allow(dead_code, reason = "only its waiting is used here")]
mod faults;
#[path = "hostile/raw.rs"]
mod raw;
#[path = "e2e/relay.rs"]
mod relay;
