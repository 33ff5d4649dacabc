//! One target under libFuzzer: `fuzz/run TARGET`. The name comes by the environment, because libFuzzer takes all words
//! of the command line for its own.
#![no_main]

use std::sync::LazyLock;

use drover_fuzz::mutate::mutate;
use drover_fuzz::random::Rng;
use drover_fuzz::targets::{self, Target};
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("DROVER_FUZZ_TARGET").unwrap_or_default();
    targets::named(&name).unwrap_or_else(|| {
        let names: Vec<_> = targets::TARGETS.iter().map(|target| target.name).collect();
        panic!("DROVER_FUZZ_TARGET must be one of {}", names.join(", "))
    })
});

fuzz_target!(
    // libFuzzer's own hook ends the process at every panic, also at those a store catches; one that leaves the target
    // ends it in any case.
    init: drop(std::panic::take_hook()),
    |input: &[u8]| { (TARGET.run)(input); }
);

// Bytes alone seldom make a document: now and then a new one is made, or one damaged where it hurts.
fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let mut rng = Rng::new(seed.into());
    let input = match rng.below(8) {
        0 => (TARGET.generate)(&mut rng),
        1 | 2 => {
            let mut input = data[..size].to_vec();
            let other = (TARGET.generate)(&mut rng);
            mutate(&mut rng, &mut input, &other);
            input
        }
        _ => return fuzzer_mutate(data, size, max_size),
    };
    let len = input.len().min(max_size);
    data[..len].copy_from_slice(&input[..len]);
    len
});
