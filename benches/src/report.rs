//! The table, the figures that must be reached, multiples of the raw baselines, and everything measured as JSON.

use crate::args::{Attack, BenchArgs};
use crate::error::Error;
use crate::measure::Row;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::path::Path;

/// A figure a release must reach in the reference settings on two cores shared with this generator.
struct Target {
    row: &'static str,
    figure: &'static str,
    bound: Bound,
    what: &'static str,
}

#[derive(Clone, Copy)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bound {
    fn met(self, value: f64) -> bool {
        match self {
            Bound::AtMost(bound) => value <= bound,
            Bound::AtLeast(bound) => value >= bound,
        }
    }

    fn text(self) -> String {
        match self {
            Bound::AtMost(bound) => format!("<= {bound}"),
            Bound::AtLeast(bound) => format!(">= {bound}"),
        }
    }
}

const fn target(row: &'static str, figure: &'static str, bound: Bound, what: &'static str) -> Target {
    Target {
        row,
        figure,
        bound,
        what,
    }
}

const TARGETS: [Target; 19] = [
    target(
        "ingest",
        "cpu_ms_per_1000",
        Bound::AtMost(12.0),
        "CPU ms per 1000 durable SENDs",
    ),
    target(
        "ingest",
        "rate_per_s",
        Bound::AtLeast(60_000.0),
        "durable SENDs per second",
    ),
    target(
        "fanout",
        "rate_per_s",
        Bound::AtLeast(2_500_000.0),
        "PUSHes per second",
    ),
    target(
        "fanout",
        "cpu_ms_per_1000",
        Bound::AtMost(0.35),
        "CPU ms per 1000 PUSHes",
    ),
    target(
        "fanout-paced",
        "cpu_ms_per_1000",
        Bound::AtMost(5.0),
        "CPU ms per 1000 PUSHes, 100 SENDs/s",
    ),
    target(
        "fanout-paced",
        "p99_ms",
        Bound::AtMost(3.0),
        "p99 ms, 100 SENDs/s",
    ),
    target(
        "replay",
        "mb_per_s",
        Bound::AtLeast(400.0),
        "MB per second of replay",
    ),
    target(
        "replay",
        "cpu_ms_per_1000",
        Bound::AtMost(1.5),
        "CPU ms per 1000 envelopes replayed",
    ),
    target(
        "media",
        "cpu_ms_per_1000",
        Bound::AtMost(4.0),
        "CPU ms per 1000 MEDIA frames",
    ),
    target("media", "p99_ms", Bound::AtMost(2.0), "p99 ms of MEDIA"),
    target("recon", "rounds_max", Bound::AtMost(3.0), "rounds of RECON"),
    target(
        "recon",
        "cpu_ms_each",
        Bound::AtMost(3.0),
        "CPU ms per reconciliation",
    ),
    target(
        "access",
        "cpu_ms_each",
        Bound::AtMost(5.0),
        "CPU ms per publication of 4096 entries",
    ),
    target(
        "access",
        "open_at_answer_max",
        Bound::AtMost(0.0),
        "dropped connections open at the answer",
    ),
    // A race with none or several is an error.
    target(
        "join-race",
        "winners_each",
        Bound::AtMost(1.0),
        "winners of a race for one seat",
    ),
    target(
        "join-send",
        "p99_ratio",
        Bound::AtMost(3.0),
        "p99 of SEND beside 8 hashes / idle",
    ),
    target(
        "drop",
        "cpu_us_each",
        Bound::AtMost(2.0),
        "CPU us per envelope dropped",
    ),
    target(
        "idle",
        "kib_per_connection",
        Bound::AtMost(4.0),
        "KiB per idle connection, plain",
    ),
    target(
        "idle-tls",
        "kib_per_connection",
        Bound::AtMost(20.0),
        "KiB per idle connection, TLS",
    ),
];

/// The most an attack may slow down a client beside it (issue: 3× idle).
const HOSTILE: Bound = Bound::AtMost(3.0);

/// Which raw row does the same work as a row of the relay.
const BASELINES: [(&str, &str); 10] = [
    ("ingest", "raw-durable"),
    ("ingest", "raw-echo"),
    ("ingest", "raw-echo-single"),
    ("ingest", "raw-append-1024"),
    ("fanout", "raw-fanout"),
    ("fanout", "raw-fanout-single"),
    ("fanout-paced", "raw-fanout-paced"),
    ("replay", "raw-stream"),
    ("media", "raw-forward"),
    ("media", "raw-forward-turns"),
];

/// Rows in the order they were measured.
pub(crate) struct Report {
    rows: Vec<Row>,
    /// Whether the settings are those the targets are stated for.
    reference: bool,
}

impl Report {
    /// An empty one; `reference` says whether the settings are those the targets are stated for.
    pub(crate) fn new(reference: bool) -> Self {
        Self {
            rows: Vec::new(),
            reference,
        }
    }

    /// Adds rows.
    pub(crate) fn add(&mut self, rows: impl IntoIterator<Item = Row>) {
        self.rows.extend(rows);
    }

    /// Whether nothing was measured.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn median(&self, row: &str, figure: &str) -> Option<f64> {
        self.rows
            .iter()
            .find(|candidate| candidate.name == row)?
            .median(figure)
    }

    /// Everything as a table.
    pub(crate) fn table(&self) -> String {
        let mut out = self.rows_table();
        let multiples = self.multiples();
        if !multiples.is_empty() {
            let _ = writeln!(
                out,
                "\nmultiples of raw baselines{:>27} {:>9} {:>9}",
                "rate", "CPU", "p99"
            );
            for (row, raw, figures) in multiples {
                let _ = writeln!(
                    out,
                    "  {:<48} {:>9} {:>9} {:>9}",
                    format!("{row} / {raw}"),
                    cell(figures[0], 2),
                    cell(figures[1], 2),
                    cell(figures[2], 2)
                );
            }
        }
        let judged = self.judged();
        if self.reference && !judged.is_empty() {
            let _ = writeln!(out, "\nmust reach");
            for (target, value) in judged {
                let _ = writeln!(
                    out,
                    "  {} {:<44} {:>12} {:>14}",
                    if target.bound.met(value) { "pass" } else { "FAIL" },
                    target.what,
                    cell(Some(value), 3),
                    target.bound.text()
                );
            }
        }
        out
    }

    fn rows_table(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "{:<18} {:>11} {:>9} {:>9} {:>9} {:>9} {:>7} {:>7} {:>7} {:>6}  what",
            "", "rate/s", "p50 ms", "p99 ms", "p99.9 ms", "CPU ms/k", "server", "waited", "client", "load"
        );
        for row in &self.rows {
            let of = |figure, digits| cell(row.median(figure), digits);
            let _ = writeln!(
                out,
                "{:<18} {:>11} {:>9} {:>9} {:>9} {:>9} {:>7} {:>7} {:>7} {:>6}  {}{}",
                row.name,
                of("rate_per_s", 0),
                of("p50_ms", 3),
                of("p99_ms", 3),
                of("p999_ms", 3),
                of("cpu_ms_per_1000", 3),
                of("server_cores", 2),
                of("server_waited_cores", 2),
                of("generator_cores", 2),
                of("load_average", 1),
                row.what,
                extras(row)
            );
        }
        out
    }

    /// Rate, CPU and p99 of each row in multiples of its baselines.
    fn multiples(&self) -> Vec<(&'static str, &'static str, [Option<f64>; 3])> {
        let ratio = |row, raw, figure| {
            let (value, base) = (self.median(row, figure)?, self.median(raw, figure)?);
            (base > 0.0).then_some(value / base)
        };
        BASELINES
            .into_iter()
            .map(|(row, raw)| {
                let figures = ["rate_per_s", "cpu_ms_per_1000", "p99_ms"];
                (row, raw, figures.map(|figure| ratio(row, raw, figure)))
            })
            .filter(|(_, _, figures)| figures.iter().any(Option::is_some))
            .collect()
    }

    fn judged(&self) -> Vec<(Target, f64)> {
        let hostile = Attack::ALL.iter().map(|attack| {
            target(
                attack.row(),
                "times_idle",
                HOSTILE,
                "p99 of a SEND beside an attack, times idle",
            )
        });
        TARGETS
            .into_iter()
            .chain(hostile)
            .filter_map(|target| {
                let value = self.median(target.row, target.figure)?;
                Some((target, value))
            })
            .collect()
    }

    /// Writes everything measured.
    pub(crate) fn write(&self, path: &Path, args: &BenchArgs) -> Result<(), Error> {
        let text = format!("{:#}\n", self.to_json(args));
        std::fs::write(path, text).map_err(|source| Error::File {
            path: path.to_owned(),
            source,
        })
    }

    fn to_json(&self, args: &BenchArgs) -> Value {
        let row = |row: &Row| {
            let runs: Vec<Value> = row.runs.iter().map(|run| object(run.figures())).collect();
            json!({ "name": row.name, "what": row.what, "median": object(row.medians()), "runs": runs })
        };
        let multiple = |(row, raw, [rate, cpu, p99]): (&str, &str, [Option<f64>; 3])| json!({ "row": row, "baseline": raw, "rate": rate, "cpu": cpu, "p99": p99 });
        let judged = |(target, value): (Target, f64)| {
            json!({
                "row": target.row,
                "figure": target.figure,
                "value": value,
                "bound": target.bound.text(),
                "met": target.bound.met(value),
            })
        };
        let targets: Vec<Value> = self.judged().into_iter().map(judged).collect();
        json!({
            "command": std::env::args().collect::<Vec<_>>().join(" "),
            "cores": std::thread::available_parallelism().map_or(0, usize::from),
            "seconds": args.seconds,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "multiples": self.multiples().into_iter().map(multiple).collect::<Vec<_>>(),
            "must_reach": if self.reference { targets } else { Vec::new() },
        })
    }
}

/// What only this row has.
fn extras(row: &Row) -> String {
    let names = row.runs.first().map(|run| run.extra.clone()).unwrap_or_default();
    names
        .into_iter()
        .map(|(name, _)| format!(", {name} {}", cell(row.median(name), 2)))
        .collect()
}

fn cell(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

fn object(figures: Vec<(&'static str, f64)>) -> Value {
    let map: Map<String, Value> = figures
        .into_iter()
        .map(|(name, value)| (name.to_owned(), json!(value)))
        .collect();
    Value::Object(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inflight::latencies;
    use crate::measure::Run;
    use crate::process::CpuTime;

    fn row(name: &'static str, ops: u64, ran_ns: u64) -> Row {
        let run = Run {
            ops,
            elapsed_ns: 1_000_000_000,
            server: Some(CpuTime { ran_ns, waited_ns: 0 }),
            switches: None,
            generator_ran_ns: 0,
            generator_waited_ns: 0,
            load_average: None,
            latencies: latencies(),
            extra: Vec::new(),
        };
        Row {
            name,
            what: String::new(),
            runs: vec![run],
        }
    }

    #[test]
    fn bounds_are_inclusive() {
        assert!(Bound::AtMost(3.0).met(3.0) && !Bound::AtMost(3.0).met(3.1));
        assert!(Bound::AtLeast(3.0).met(3.0) && !Bound::AtLeast(3.0).met(2.9));
    }

    #[test]
    fn targets_and_multiples_of_what_was_measured_only() {
        let mut report = Report::new(true);
        report.add([
            row("ingest", 100_000, 400_000_000),
            row("raw-durable", 200_000, 200_000_000),
        ]);
        let judged = report.judged();
        assert_eq!(judged.len(), 2);
        assert!(judged.iter().all(|(target, value)| target.bound.met(*value)));
        let multiples = report.multiples();
        assert_eq!(multiples.len(), 1);
        assert_eq!(multiples[0].2, [Some(0.5), Some(4.0), None]);
    }
}
