//! The table, and everything measured as JSON.

use crate::args::BenchArgs;
use crate::error::Error;
use crate::measure::Row;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Rows in the order they were measured.
#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

impl Report {
    /// Adds a row.
    pub(crate) fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// The table on standard output.
    pub(crate) fn print(&self) {
        println!(
            "{:<14} {:>11} {:>9} {:>9} {:>9} {:>10} {:>7} {:>7} {:>7}  what",
            "", "rate/s", "p50 ms", "p99 ms", "p99.9 ms", "CPU ms/1k", "server", "waited", "client"
        );
        for row in &self.rows {
            let cell = |figure: &str, digits: usize| {
                row.median(figure)
                    .map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
            };
            println!(
                "{:<14} {:>11} {:>9} {:>9} {:>9} {:>10} {:>7} {:>7} {:>7}  {}",
                row.name,
                cell("rate_per_s", 0),
                cell("p50_ms", 3),
                cell("p99_ms", 3),
                cell("p999_ms", 3),
                cell("cpu_ms_per_1000", 3),
                cell("server_cores", 2),
                cell("server_waited_cores", 2),
                cell("generator_cores", 2),
                row.what
            );
        }
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
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                let runs: Vec<Value> = row.runs.iter().map(|run| object(run.figures())).collect();
                json!({ "name": row.name, "what": row.what, "median": object(row.medians()), "runs": runs })
            })
            .collect();
        json!({
            "command": std::env::args().collect::<Vec<_>>().join(" "),
            "seconds": args.seconds,
            "rows": rows,
        })
    }
}

fn object(figures: Vec<(&'static str, f64)>) -> Value {
    let map: Map<String, Value> = figures
        .into_iter()
        .map(|(name, value)| (name.to_owned(), json!(value)))
        .collect();
    Value::Object(map)
}
