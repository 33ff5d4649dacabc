//! Every target, bounded: its corpus, then so many rounds of inputs made and damaged with a fixed seed. A failure
//! prints the input, to be put into `fuzz/corpus/TARGET/`.
#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use drover_fuzz::allocation;
use drover_fuzz::mutate::mutate;
use drover_fuzz::random::Rng;
use drover_fuzz::targets::{self, Target};

/// Rounds are multiplied by this, for longer runs without a fuzzer.
const FACTOR: &str = "DROVER_FUZZ_ROUNDS";
/// Replaces the seed.
const SEED: &str = "DROVER_FUZZ_SEED";

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn corpus(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target.name);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort_unstable();
    let inputs = paths
        .into_iter()
        .map(|path| (path.clone(), std::fs::read(path).unwrap()));
    inputs.collect()
}

/// Runs one input and says which it was, should it fail.
fn run(target: &Target, what: &str, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(input))) {
        let hex = input.iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        eprintln!("{}: {what} fails: {hex}", target.name);
        resume_unwind(panic);
    }
}

fn bounded(name: &str) {
    let target = targets::named(name).unwrap();
    let corpus = corpus(target);
    assert!(!corpus.is_empty(), "{name} has a corpus");
    for (path, input) in &corpus {
        run(target, &path.display().to_string(), input);
    }
    let rounds = target.rounds * number(FACTOR).unwrap_or(1) as usize;
    let mut rng = Rng::new(number(SEED).unwrap_or(0x5eed));
    let mut last = Vec::new();
    for round in 0..rounds {
        let mut input = match rng.below(8) {
            0 => rng.pick(&corpus).1.clone(),
            1 => {
                let len = rng.below(300);
                rng.bytes(len)
            }
            _ => (target.generate)(&mut rng),
        };
        if rng.below(3) > 0 {
            mutate(&mut rng, &mut input, &last);
        }
        run(target, &format!("round {round}"), &input);
        last = input;
    }
    let (bytes, bound) = allocation::tightest();
    println!("heap: {name}: {rounds} rounds, nearest to its bound {bytes} of {bound} bytes");
}

macro_rules! tests {
    ($($name:ident)+) => {
        $(#[test] fn $name() { bounded(stringify!($name)); })+

        #[test]
        fn every_target_is_run() {
            let names: Vec<&str> = targets::TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),+]);
        }
    };
}

tests! { frame map_frame envelope access recon exchange join invite blob drop payload chain text websocket http session client store config }
