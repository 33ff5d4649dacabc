//! The targets: each takes any bytes, and panics if a property does not hold.

use crate::random::Rng;

/// One target.
pub struct Target {
    /// Its name, and that of its folder in the corpus.
    pub name: &'static str,
    /// Checks every property on one input.
    pub run: fn(&[u8]),
    /// An input that is mostly right.
    pub generate: fn(&mut Rng) -> Vec<u8>,
    /// Rounds in the ordinary test command.
    pub rounds: usize,
}

macro_rules! targets {
    ($($(#[$doc:meta])* $name:ident $rounds:literal,)+) => {
        $($(#[$doc])* pub mod $name;)+

        /// Every target.
        pub const TARGETS: &[Target] = &[$(Target {
            name: stringify!($name),
            run: $name::run,
            generate: $name::generate,
            rounds: $rounds,
        }),+];
    };
}

targets! {
    frame 20_000,
    map_frame 20_000,
    envelope 5_000,
    access 4_000,
    recon 8_000,
    exchange 300,
    join 8_000,
    invite 8_000,
    blob 8_000,
    drop 8_000,
    payload 8_000,
    chain 4_000,
    text 8_000,
    websocket 4_000,
    http 4_000,
    session 1_500,
    client 2_000,
    store 400,
    config 3_000,
}

/// The target of this name.
pub fn named(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
