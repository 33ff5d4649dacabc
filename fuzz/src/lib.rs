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

pub mod allocation;
pub mod codec;
pub mod mutate;
pub mod random;
pub mod reference;
pub mod targets;
