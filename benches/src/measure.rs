//! What one run measured, and medians over runs.

use crate::error::Error;
use crate::inflight::Latencies;
use crate::process::{self, CpuMark, CpuTime, Process};
use crate::report::{Saturation, Settings};
use std::time::{Duration, Instant};

/// An open measured window.
pub(crate) struct Window<'a> {
    server: Option<(&'a Process, CpuMark, u64)>,
    generator: CpuTime,
    started: Instant,
}

impl<'a> Window<'a> {
    /// Opens one; the CPU time of `server` is charged from now on.
    pub(crate) fn open(server: Option<&'a Process>) -> Result<Self, Error> {
        let server = match server {
            Some(process) => Some((process, process.mark()?, process.context_switches()?)),
            None => None,
        };
        Ok(Self {
            server,
            generator: process::this_thread()?,
            started: Instant::now(),
        })
    }

    /// How long it has been open.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Closes it: `ops` operations were finished in it.
    pub(crate) fn close(self, ops: u64, latencies: Latencies) -> Result<Run, Error> {
        let elapsed_ns = self.elapsed().as_nanos() as u64;
        let generator = process::this_thread()?;
        let mut run = Run {
            ops,
            elapsed_ns,
            server: None,
            switches: None,
            generator_ran_ns: generator.ran_ns.saturating_sub(self.generator.ran_ns),
            generator_waited_ns: generator.waited_ns.saturating_sub(self.generator.waited_ns),
            load_average: process::load_average(),
            latencies,
            is_round_trip: false,
            extra: Vec::new(),
        };
        if let Some((process, mark, switches)) = self.server {
            run.server = Some(process.since(&mark)?);
            run.switches = Some(process.context_switches()?.saturating_sub(switches));
        }
        Ok(run)
    }
}

/// Quantiles that have a figure, and its name: of a latency, of a round trip, of half a round trip.
const QUANTILES: [f64; 3] = [0.5, 0.99, 0.999];
const ONE_WAY_FIGURES: [&str; 3] = ["p50_ms", "p99_ms", "p999_ms"];
const ROUND_TRIP_FIGURES: [&str; 3] = ["round_trip_p50_ms", "round_trip_p99_ms", "round_trip_p999_ms"];
const HALF_FIGURES: [&str; 3] = [
    "half_round_trip_p50_ms",
    "half_round_trip_p99_ms",
    "half_round_trip_p999_ms",
];

/// One measured run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) ops: u64,
    pub(crate) elapsed_ns: u64,
    /// `None` when no process is charged.
    pub(crate) server: Option<CpuTime>,
    /// Context switches of the server.
    pub(crate) switches: Option<u64>,
    pub(crate) generator_ran_ns: u64,
    pub(crate) generator_waited_ns: u64,
    pub(crate) load_average: Option<f64>,
    pub(crate) latencies: Latencies,
    /// Whether the latencies are there and back.
    pub(crate) is_round_trip: bool,
    /// Figures only this scenario has.
    pub(crate) extra: Vec<(&'static str, f64)>,
}

impl Run {
    /// Several windows as one: sums of all, the latest load average.
    pub(crate) fn merged(windows: impl IntoIterator<Item = Run>) -> Option<Run> {
        windows.into_iter().reduce(|mut sum, window| {
            sum.ops += window.ops;
            sum.elapsed_ns += window.elapsed_ns;
            if let (Some(sum), Some(server)) = (&mut sum.server, window.server) {
                *sum += server;
            }
            sum.switches = sum.switches.zip(window.switches).map(|(a, b)| a + b);
            sum.generator_ran_ns += window.generator_ran_ns;
            sum.generator_waited_ns += window.generator_waited_ns;
            sum.load_average = window.load_average;
            sum.latencies
                .add(&window.latencies)
                .expect("all histograms have the same bounds");
            sum
        })
    }

    fn seconds(&self) -> f64 {
        self.elapsed_ns as f64 / 1e9
    }

    /// Operations per second.
    pub(crate) fn rate(&self) -> f64 {
        self.ops as f64 / self.seconds().max(1e-9)
    }

    /// CPU time of the server per 1000 operations, ms.
    pub(crate) fn cpu_ms(&self) -> Option<f64> {
        let server = self.server.filter(|_| self.ops > 0)?;
        Some(server.ran_ns as f64 / self.ops as f64 / 1e3)
    }

    /// A latency by its quantile, ms; `None` when none was taken.
    pub(crate) fn latency_ms(&self, quantile: f64) -> Option<f64> {
        (!self.latencies.is_empty()).then(|| self.latencies.value_at_quantile(quantile) as f64 / 1e6)
    }

    /// Every figure by name.
    pub(crate) fn figures(&self) -> Vec<(&'static str, f64)> {
        let mut figures = vec![
            ("rate_per_s", self.rate()),
            ("ops", self.ops as f64),
            ("seconds", self.seconds()),
        ];
        let mut put = |name, value: Option<f64>| figures.extend(value.map(|value| (name, value)));
        put("cpu_ms_per_1000", self.cpu_ms());
        for (place, quantile) in QUANTILES.into_iter().enumerate() {
            let Some(ms) = self.latency_ms(quantile) else {
                continue;
            };
            if self.is_round_trip {
                figures.push((ROUND_TRIP_FIGURES[place], ms));
                figures.push((HALF_FIGURES[place], ms / 2.0));
            } else {
                figures.push((ONE_WAY_FIGURES[place], ms));
            }
        }
        let mut put = |name, value: Option<f64>| figures.extend(value.map(|value| (name, value)));
        if let Some(server) = self.server {
            put(
                "server_cores",
                Some(server.ran_ns as f64 / self.elapsed_ns as f64),
            );
            put(
                "server_waited_cores",
                Some(server.waited_ns as f64 / self.elapsed_ns as f64),
            );
        }
        let per_1000 = |count: u64| count as f64 / self.ops as f64 * 1e3;
        put(
            "switches_per_1000",
            self.switches.filter(|_| self.ops > 0).map(per_1000),
        );
        put(
            "generator_cores",
            Some(self.generator_ran_ns as f64 / self.elapsed_ns as f64),
        );
        put(
            "generator_waited_cores",
            Some(self.generator_waited_ns as f64 / self.elapsed_ns as f64),
        );
        put("load_average", self.load_average);
        figures.extend(self.extra.iter().copied());
        figures
    }
}

/// All runs of one row of the table.
#[derive(Debug)]
pub(crate) struct Row {
    /// Stable name, by which targets and baselines refer to it.
    pub(crate) name: &'static str,
    /// What tells it from other rows of that name, and what it shares with its baseline.
    pub(crate) settings: Settings,
    /// What an operation is, and the settings.
    pub(crate) what: String,
    pub(crate) runs: Vec<Run>,
    /// How the load was found, where it was searched for.
    pub(crate) saturation: Option<Saturation>,
}

impl Row {
    /// One without settings.
    pub(crate) fn new(name: &'static str, what: String, runs: Vec<Run>) -> Self {
        Self {
            name,
            settings: Settings::new(),
            what,
            runs,
            saturation: None,
        }
    }

    /// Whether it was measured without a relay.
    pub(crate) fn is_baseline(&self) -> bool {
        self.name.starts_with("raw-")
    }

    /// The median over the runs of a figure, by the name [`Run::figures`] gives it.
    pub(crate) fn median(&self, figure: &str) -> Option<f64> {
        median(self.runs.iter().filter_map(|run| {
            let figures = run.figures();
            figures
                .iter()
                .find(|(name, _)| *name == figure)
                .map(|(_, value)| *value)
        }))
    }

    /// Medians of every figure, in the order of the first run.
    pub(crate) fn medians(&self) -> Vec<(&'static str, f64)> {
        let names = self.runs.first().map(Run::figures).unwrap_or_default();
        names
            .into_iter()
            .filter_map(|(name, _)| Some((name, self.median(name)?)))
            .collect()
    }
}

/// The middle value; of an even number, the mean of the two in the middle.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some((lower + upper) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(ops: u64, ran_ns: u64) -> Run {
        Run {
            ops,
            elapsed_ns: 2_000_000_000,
            server: Some(CpuTime { ran_ns, waited_ns: 0 }),
            switches: Some(4),
            generator_ran_ns: 1,
            generator_waited_ns: 0,
            load_average: None,
            latencies: crate::inflight::latencies(),
            is_round_trip: false,
            extra: vec![("rounds", ops as f64)],
        }
    }

    #[test]
    fn medians() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0]), Some(2.5));
    }

    #[test]
    fn figures_of_a_run() {
        let run = run(1000, 5_000_000);
        assert_eq!(run.rate(), 500.0);
        assert_eq!(run.cpu_ms(), Some(5.0));
        assert_eq!(run.latency_ms(0.5), None);
        assert!(
            self::run(0, 5).cpu_ms().is_none(),
            "nothing done, nothing to divide by"
        );
    }

    #[test]
    fn a_row_is_the_median_of_its_runs() {
        let runs = vec![run(1000, 1_000_000), run(1000, 9_000_000), run(2000, 4_000_000)];
        let row = Row::new("x", String::new(), runs);
        assert_eq!(row.median("cpu_ms_per_1000"), Some(2.0));
        assert_eq!(row.median("rounds"), Some(1000.0));
        assert_eq!(row.median("p99_ms"), None);
        assert!(row.medians().iter().any(|(name, _)| *name == "rate_per_s"));
    }

    #[test]
    fn half_a_round_trip_is_never_called_a_latency() {
        let mut run = run(1, 1);
        crate::inflight::record(&mut run.latencies, 3_000_000, 1);
        run.is_round_trip = true;
        let names: Vec<&str> = run.figures().iter().map(|(name, _)| *name).collect();
        assert!(
            ONE_WAY_FIGURES.iter().all(|name| !names.contains(name)),
            "{names:?}"
        );
        let row = Row::new("x", String::new(), vec![run]);
        let (whole, half) = (
            row.median("round_trip_p99_ms"),
            row.median("half_round_trip_p99_ms"),
        );
        assert!(
            whole > Some(2.9) && half == whole.map(|ms| ms / 2.0),
            "{whole:?}, {half:?}"
        );
    }

    #[test]
    fn windows_add_up() {
        let sum = Run::merged([run(1, 10), run(2, 30)]).expect("two");
        assert_eq!(
            (sum.ops, sum.elapsed_ns, sum.switches),
            (3, 4_000_000_000, Some(8))
        );
        assert_eq!(sum.server.map(|time| time.ran_ns), Some(40));
        assert!(Run::merged([]).is_none());
    }
}
