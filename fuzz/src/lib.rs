//! Fuzz targets for every decoder and state machine. `cargo test -p drover-fuzz` runs them bounded, with a fixed seed;
//! `fuzz/run TARGET` runs one unbounded under libFuzzer. README.md says how.
//!
//! | Module | Story |
//! | --- | --- |
//! | [`targets`] | what is fuzzed, and what must hold |
//! | [`mod@reference`] | an independent decoder of every document, and documents made from its tables |
//! | [`codec`] | what must hold of every decoder |
//! | [`allocation`] | an allocator that counts |
//! | [`random`], [`mutate`] | where inputs come from |
//! | [`memory`], `world` | a store that answers at once, and the engine's test world on it |

pub mod allocation;
pub mod codec;
pub mod memory;
pub mod mutate;
pub mod random;
pub mod reference;
pub mod targets;

// The engine's tests and this crate share one world.
#[path = "../../engine/tests/world/mod.rs"]
#[allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)]
mod world;
