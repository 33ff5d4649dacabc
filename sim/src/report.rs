//! Many seeds at once, and what is said of one that failed: the smallest world that fails alike, and its trace.

use crate::coverage::Coverage;
use crate::plan::{Fault, Feature, Seed};
use crate::sabotage::Saboteur;
use crate::world::{Summary, World};
use crate::{Plan, model::Violation};
use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Makes the saboteur of a run.
pub type Hire = fn() -> Box<dyn Saboteur>;

/// Tries at a smaller world with other seeds, before it counts as one that does not fail.
const TRIES: u64 = 12;

/// Runs one seed; a panic of what is under test is a broken rule like any other.
pub fn run(seed: &Seed, hire: Option<Hire>, with_text: bool) -> Summary {
    let world = World::new(Plan::draw(seed), hire.map(|hire| hire()), with_text);
    let ran = catch_unwind(AssertUnwindSafe(|| crate::log::caught(|| world.run())));
    ran.unwrap_or_else(|panic| Summary {
        happened: 0,
        coverage: Coverage::default(),
        hash: 0,
        violation: Some(Violation {
            rule: "nothing panics",
            what: panic_text(&*panic),
        }),
        lines: Vec::new(),
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without words".to_owned())
}

/// What many seeds came to.
#[derive(Debug, Default)]
pub struct Totals {
    /// Seeds that ran.
    pub seeds: u64,
    /// What came to pass in them.
    pub coverage: Coverage,
    /// The lowest seed that failed, with what it broke.
    pub failed: Option<(u64, Violation)>,
}

/// Runs these seeds on so many threads, up to the first that fails. `like` gives what is held down in all of them.
pub fn run_all(seeds: Range<u64>, threads: usize, like: &Seed, hire: Option<Hire>) -> Totals {
    let next = AtomicU64::new(seeds.start);
    let over = AtomicBool::new(false);
    let totals = Mutex::new(Totals::default());
    let work = || {
        while !over.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= seeds.end {
                break;
            }
            let seed = Seed {
                seed: number,
                ..like.clone()
            };
            let summary = run(&seed, hire, false);
            let mut totals = totals.lock().unwrap_or_else(PoisonError::into_inner);
            totals.seeds += 1;
            totals.coverage.merge(&summary.coverage);
            if let Some(violation) = summary.violation {
                over.store(true, Ordering::Relaxed);
                if totals.failed.as_ref().is_none_or(|(lowest, _)| number < *lowest) {
                    totals.failed = Some((number, violation));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    totals.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The smallest world found that breaks the same rule: fewer clients, fewer actions, fewer faults. What is drawn
/// changes with every step, so each is tried with a few seeds.
pub fn shrink(seed: &Seed, rule: &str, hire: Option<Hire>) -> Seed {
    let fails = |candidate: &Seed| {
        let tries = (0..TRIES).map(|n| Seed {
            seed: if n == 0 { candidate.seed } else { n },
            ..candidate.clone()
        });
        tries
            .into_iter()
            .find(|seed| run(seed, hire, false).violation.is_some_and(|v| v.rule == rule))
    };
    let mut smallest = seed.clone();
    loop {
        let before = smallest.clone();
        let plan = Plan::draw(&smallest);
        for fault in Fault::ALL {
            if plan.probability(fault) > 0.0 || !smallest.without.contains(&fault) {
                let mut candidate = smallest.clone();
                candidate.without.insert(fault);
                if let Some(found) = fails(&candidate) {
                    smallest = found;
                }
            }
        }
        for feature in Feature::ALL {
            if Plan::draw(&smallest).has(feature) {
                let mut candidate = smallest.clone();
                candidate.lacks.insert(feature);
                if let Some(found) = fails(&candidate) {
                    smallest = found;
                }
            }
        }
        let plan = Plan::draw(&smallest);
        let halves: [fn(&mut Seed, &Plan); 4] = [
            |seed, _| seed.workspaces = Some(1),
            |seed, _| seed.shards = Some(1),
            |seed, plan| seed.members = Some((plan.members / 2).max(1)),
            |seed, plan| seed.actions = Some((plan.actions / 2).max(1)),
        ];
        for halve in halves {
            let mut candidate = smallest.clone();
            halve(&mut candidate, &plan);
            if candidate != smallest
                && let Some(found) = fails(&candidate)
            {
                smallest = found;
            }
        }
        if smallest == before {
            return smallest;
        }
    }
}
