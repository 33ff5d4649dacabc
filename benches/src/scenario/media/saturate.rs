//! The most calls whose p99 stays within a bound: more and more of them, half as many again each time, until one load
//! does not hold; then halves of what lies between. A load that fails is tried once more before it counts, and the one
//! that is reported is measured as often as any other row.

use super::room::Room;
use crate::args::BenchArgs;
use crate::error::Error;
use crate::measure::Run;
use crate::report::{Saturation, Step};
use crate::workspace::DEVICES_MAX;

/// Of the load that is due, a generator that sends less is what gave up first.
const SENT_SHARE_MIN: f64 = 0.95;

/// The search alone: which load is next.
#[derive(Debug)]
struct Search {
    first: usize,
    most: usize,
    good: Option<usize>,
    bad: Option<usize>,
}

impl Search {
    fn new(first: usize, most: usize) -> Self {
        Self {
            first: first.clamp(1, most.max(1)),
            most: most.max(1),
            good: None,
            bad: None,
        }
    }

    /// `None` when a twentieth more is known not to hold, or nothing more can be tried.
    fn next(&self) -> Option<usize> {
        match (self.good, self.bad) {
            (None, None) => Some(self.first),
            (Some(good), None) => (good < self.most).then(|| (good + good.div_ceil(2)).min(self.most)),
            (None, Some(bad)) => (bad > 1).then_some(bad / 2),
            (Some(good), Some(bad)) => (bad - good > (good / 20).max(1)).then_some((good + bad) / 2),
        }
    }

    fn record(&mut self, calls: usize, held: bool) {
        if held {
            self.good = self.good.max(Some(calls));
        } else {
            self.bad = Some(self.bad.map_or(calls, |bad| bad.min(calls)));
        }
    }
}

/// The highest load that held, measured `--runs` times, and the way to it.
pub(super) fn saturate(
    args: &BenchArgs,
    bound_ms: f64,
    room: &mut Room<'_>,
) -> Result<(usize, Vec<Run>, Saturation), Error> {
    let plan = room.load.plan;
    let mut search = Search::new(plan.calls, DEVICES_MAX / plan.participants);
    let mut steps: Vec<Step> = Vec::new();
    while let Some(calls) = search.next() {
        if let Err(error) = room.grow(calls) {
            steps.push(refused(calls, error)?);
            search.record(calls, false);
            continue;
        }
        let mut step = measure(args, bound_ms, calls, room)?;
        if step.failed_by.is_some() {
            steps.push(step);
            step = measure(args, bound_ms, calls, room)?;
        }
        search.record(calls, step.failed_by.is_none());
        steps.push(step);
    }
    let stopped_by = match steps.iter().rev().find_map(|step| step.failed_by.clone()) {
        Some(failed_by) => failed_by,
        None => format!("the most that this bench asks for, {} calls", search.most),
    };
    let saturation = Saturation {
        until_p99_ms: bound_ms,
        stopped_by,
        steps,
    };
    let held = |step: &&Step| step.failed_by.is_none();
    let mut held: Vec<usize> = saturation
        .steps
        .iter()
        .filter(held)
        .map(|step| step.calls)
        .collect();
    held.sort_unstable_by(|a, b| b.cmp(a));
    for calls in held {
        let runs = (0..args.runs.max(1))
            .map(|_| room.measure(args, calls))
            .collect::<Result<Vec<Run>, Error>>()?;
        let holding = runs.iter().filter(|run| failed_by(run, bound_ms).is_none());
        if holding.count() * 2 > runs.len() {
            return Ok((calls, runs, saturation));
        }
        crate::tell!("{calls:>6} calls: did not hold when it was measured again");
    }
    Err(Error::Unexpected(format!(
        "p99 above {bound_ms} ms, or frames lost, at every load"
    )))
}

/// A load that a ceiling of the relay is below, on calls or on connections.
fn refused(calls: usize, error: Error) -> Result<Step, Error> {
    if !matches!(error, Error::Refused { .. } | Error::Unexpected(_)) {
        return Err(error);
    }
    let failed_by = format!("the relay, which takes no more: {error}");
    crate::tell!("{calls:>6} calls: stopped by {failed_by}");
    Ok(Step {
        calls,
        offered_per_s: 0.0,
        rate_per_s: 0.0,
        p99_ms: None,
        lost: 0.0,
        failed_by: Some(failed_by),
    })
}

/// One load, said as it is known.
fn measure(args: &BenchArgs, bound_ms: f64, calls: usize, room: &mut Room<'_>) -> Result<Step, Error> {
    let run = room.measure(args, calls)?;
    let step = Step {
        calls,
        offered_per_s: room.load.plan.offered_per_s(),
        rate_per_s: run.rate(),
        p99_ms: p99_ms(&run),
        lost: extra(&run, "lost"),
        failed_by: failed_by(&run, bound_ms).map(str::to_owned),
    };
    crate::tell!(
        "{calls:>6} calls: {:>9.0} frames/s offered, {:>9.0} forwarded, p99 {:>8.3} ms, {} lost: {}",
        step.offered_per_s,
        step.rate_per_s,
        step.p99_ms.unwrap_or(f64::NAN),
        step.lost,
        step.failed_by
            .as_deref()
            .map_or("held".into(), |by| format!("stopped by {by}"))
    );
    Ok(step)
}

/// What kept a load from holding.
fn failed_by(run: &Run, bound_ms: f64) -> Option<&'static str> {
    if extra(run, "sent_share") < SENT_SHARE_MIN || extra(run, "refused") > 0.0 {
        Some("the generator, which could not send as evenly or as much")
    } else if extra(run, "lost") + extra(run, "unanswered") > 0.0 {
        Some("frames lost")
    } else if p99_ms(run).is_none_or(|p99_ms| p99_ms > bound_ms) {
        Some("the p99")
    } else {
        None
    }
}

fn extra(run: &Run, name: &str) -> f64 {
    let found = run.extra.iter().find(|(extra, _)| *extra == name);
    found.map_or(0.0, |(_, value)| *value)
}

/// Half of it, for round trips.
fn p99_ms(run: &Run) -> Option<f64> {
    let ms = run.latency_ms(0.99)?;
    Some(if run.is_round_trip { ms / 2.0 } else { ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the search finds, and how many loads it tried, when loads up to `limit` hold.
    fn found(first: usize, most: usize, limit: usize) -> (Option<usize>, usize) {
        let mut search = Search::new(first, most);
        let mut tried = 0;
        while let Some(calls) = search.next() {
            assert!((1..=most).contains(&calls), "{calls}");
            search.record(calls, calls <= limit);
            tried += 1;
            assert!(tried < 100, "{search:?}");
        }
        (search.good, tried)
    }

    #[test]
    fn the_search_ends_within_a_twentieth_of_the_limit() {
        for first in [1, 20, 80, 800] {
            for limit in [1, 2, 3, 17, 80, 279, 280, 799] {
                let (good, tried) = found(first, 800, limit);
                let good = good.expect("something holds");
                assert!(
                    good <= limit && limit < good + (good / 20).max(1) + 1,
                    "{first}, {limit}: {good}"
                );
                assert!(tried <= 25, "{tried}");
            }
        }
    }

    #[test]
    fn a_load_fails_by_what_went_wrong_first() {
        let run = |sent_share, lost, p99_ms| {
            let mut run = crate::report::tests::run(1000, 1, p99_ms);
            run.extra = vec![("sent_share", sent_share), ("lost", lost)];
            failed_by(&run, 2.0)
        };
        assert_eq!(run(1.0, 0.0, 1.9), None);
        assert_eq!(run(1.0, 0.0, 2.1), Some("the p99"));
        assert_eq!(run(1.0, 1.0, 1.0), Some("frames lost"));
        assert!(run(0.9, 1.0, 9.0).is_some_and(|by| by.contains("generator")));
    }

    #[test]
    fn half_of_a_round_trip_is_what_the_bound_is_for() {
        let mut run = crate::report::tests::run(1000, 1, 3.0);
        run.extra = vec![("sent_share", 1.0)];
        assert_eq!(failed_by(&run, 2.0), Some("the p99"));
        run.is_round_trip = true;
        assert_eq!(failed_by(&run, 2.0), None);
    }

    #[test]
    fn nothing_and_everything_holds() {
        assert_eq!(found(20, 800, 0).0, None);
        assert_eq!(found(20, 800, 5000).0, Some(800));
        assert_eq!(found(20, 7, 5000).0, Some(7));
    }
}
