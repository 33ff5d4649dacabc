//! The simulator repeats itself, meets what it is there for, finds every saboteur, and passes the seeds that once
//! failed.
#![allow(clippy::unwrap_used)]

use drover_sim::plan::{Fault, Plan, Seed};
use drover_sim::report::{self, run, run_all};
use drover_sim::sabotage;

/// Seeds within which a saboteur is found.
const SEEDS_MAX: u64 = 200;

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[test]
fn same_seed_same_trace() {
    for number in 0..12 {
        let seed = Seed::new(number);
        let (first, second) = (run(&seed, None, false), run(&seed, None, true));
        assert_eq!(first.violation, None);
        assert_eq!(
            (first.hash, &first.coverage),
            (second.hash, &second.coverage),
            "{seed}"
        );
    }
    assert_ne!(
        run(&Seed::new(1), None, false).hash,
        run(&Seed::new(2), None, false).hash
    );
}

#[test]
fn every_saboteur_is_found() {
    for (name, hire) in sabotage::ALL {
        let totals = run_all(0..SEEDS_MAX, threads(), &Seed::default(), Some(*hire));
        let (seed, violation) = totals
            .failed
            .unwrap_or_else(|| panic!("{name} was not found in {SEEDS_MAX} seeds"));
        println!(
            "saboteur: {name}: found after {} seeds, by {seed}: {}",
            totals.seeds, violation.rule
        );
    }
}

/// A smaller world breaks the same rule, and says so on its seed line.
#[test]
fn a_failure_shrinks() {
    let hire = sabotage::by_name("forgotten-record").unwrap();
    let totals = run_all(0..SEEDS_MAX, threads(), &Seed::default(), Some(hire));
    let (number, violation) = totals.failed.unwrap();
    let seed = Seed::new(number);
    let smallest = report::shrink(&seed, violation.rule, Some(hire));
    let again = run(&smallest, Some(hire), true);
    assert_eq!(again.violation.unwrap().rule, violation.rule, "{smallest}");
    let (before, after) = (Plan::draw(&seed), Plan::draw(&smallest));
    let faults = |plan: &Plan| Fault::ALL.iter().filter(|f| plan.probability(**f) > 0.0).count();
    assert!(
        after.members <= before.members && after.actions <= before.actions,
        "{smallest}"
    );
    assert!(faults(&after) < faults(&before), "{smallest}");
    assert!(smallest.to_string().contains("--without"));
    assert!(!again.lines.is_empty(), "it can be read");
}

/// A hundred seeds keep every rule of the model, and meet what they are there for: nothing is dropped silently, whatever
/// crashes or reads slowly (W13.17), and no line of the log identifies anybody (W13.21).
#[test]
fn what_it_is_there_for_comes_to_pass() {
    let totals = run_all(0..100, threads(), &Seed::default(), None);
    assert_eq!(totals.failed, None);
    for what in [
        "CALL joins",
        "CALL leaves",
        "CALLs heard",
        "CALLs without a seat",
        "MEDIA heard",
        "MEDIA over budget",
        "MEDIA shed",
        "RECON lists",
        "acknowledgements",
        "calls dropped for silence",
        "calls left without a word",
        "calls open in the end",
        "closed for silence",
        "closed with their workspace",
        "crashes",
        "downgrades",
        "duplicates",
        "evicted",
        "failed commits",
        "failovers",
        "key packages handed out",
        "moves between shards",
        "notices",
        "readers that stop",
        "replays cut short",
        "roll calls",
        "sessions in the map form",
        "sleeps",
        "sockets cut",
        "wakes",
        "writes failed",
        "writes unknown",
    ] {
        assert!(totals.coverage.of(what) > 0, "no {what}: {}", totals.coverage);
    }
}

/// Seeds that once failed: the line, and what was wrong.
const STORIES: &[(u64, &str)] = &[
    (
        946,
        "a registration that ran out stays gone when the clock is put back",
    ),
    (1204, "a connection given up that does not read is not connected"),
    (
        5834,
        "what is stored after its workspace was given up wakes when that is read again",
    ),
    (
        12095,
        "the bye to a call whose last participant can't be seen to have gone is taken",
    ),
    (
        24940,
        "which of two registrations under way is done last nobody can say",
    ),
    (
        28879,
        "a head that was asked for before a publication may be told after it, behind earlier answers",
    ),
    (
        32197,
        "a call whose participants can't be seen to have gone may find no place when it is opened again",
    ),
    (
        56713,
        "a workspace is uncertain, and read again, after a write beside it too",
    ),
];

#[test]
fn seeds_that_once_failed() {
    for (number, story) in STORIES {
        assert_eq!(run(&Seed::new(*number), None, false).violation, None, "{story}");
    }
}
