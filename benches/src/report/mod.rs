//! What was measured, shown: a table, Markdown, JSON, a page with plots.
//!
//! | Module | Story |
//! | --- | --- |
//! | [`document`] | the model that all of them show, and its file |
//! | [`bounds`] | figures that must be reached, and multiples of the raw baselines |
//! | [`text`] | tables on standard output, plain or in Markdown |
//! | [`html`] | the page |
//! | [`chart`] | its plots |
//! | [`xml`] | elements and text, escaped |

mod bounds;
mod chart;
pub(crate) mod document;
mod html;
mod text;
mod xml;

use crate::args::BenchArgs;
use crate::error::{Doing as _, Error};
use crate::machine::Machine;
use crate::measure::Row;
pub(crate) use document::{Document, RowDocument, Saturation, Setting, Settings, Skipped, Step};
use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Options whose values are nobody else's business.
const SECRET_OPTIONS: [&str; 2] = ["--invite", "--code"];

/// Rows in the order they were measured.
pub(crate) struct Report {
    rows: Vec<RowDocument>,
    skipped: Vec<Skipped>,
    /// Whether the settings are those the targets are stated for.
    reference: bool,
}

impl Report {
    /// An empty one; `reference` says whether the settings are those the targets are stated for.
    pub(crate) fn new(reference: bool) -> Self {
        Self {
            rows: Vec::new(),
            skipped: Vec::new(),
            reference,
        }
    }

    /// Adds rows.
    pub(crate) fn add(&mut self, rows: impl IntoIterator<Item = Row>) {
        self.rows
            .extend(rows.into_iter().map(|row| RowDocument::new(&row)));
    }

    /// Says at once, and in the report, what is not measured.
    pub(crate) fn skip(&mut self, what: String, why: String) {
        crate::tell!("skipped: {what}: {why}");
        self.skipped.push(Skipped { what, why });
    }

    /// Whether nothing was measured.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Prints the tables to `out` and writes the files that are asked for, also where there is nobody to read the tables.
    pub(crate) fn show(self, args: &BenchArgs, out: &mut dyn Write) -> Result<(), Error> {
        let document = self.into_document(args);
        let tables = match args.markdown {
            _ if document.rows.is_empty() => String::new(),
            true => text::markdown(&document),
            false => text::plain(&document),
        };
        let printed = out.write_all(tables.as_bytes()).and_then(|()| out.flush());
        if let Some(path) = &args.json {
            write(path, &document.to_json())?;
        }
        if let Some(path) = &args.html {
            write(path, &html::page(&document))?;
        }
        printed.doing("print the tables")
    }

    fn into_document(self, args: &BenchArgs) -> Document {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Document {
            schema: document::SCHEMA.to_owned(),
            command: without_secrets(std::env::args()),
            measured_at_ms: since_1970.as_millis() as u64,
            machine: Machine::this(),
            seconds: args.seconds,
            multiples: bounds::multiples(&self.rows),
            must_reach: match self.reference {
                true => bounds::judged(&self.rows),
                false => Vec::new(),
            },
            rows: self.rows,
            skipped: self.skipped,
        }
    }
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    std::fs::write(path, text).map_err(|source| Error::File {
        path: path.to_owned(),
        source,
    })
}

/// The command line as it may be shown to others.
fn without_secrets(words: impl Iterator<Item = String>) -> String {
    let mut shown = Vec::new();
    let mut is_secret = false;
    for word in words {
        let option = word.split_once('=').map_or(&*word, |(option, _)| option);
        let hides = SECRET_OPTIONS.contains(&option);
        shown.push(match (is_secret, hides && word != option) {
            (true, _) => "…".to_owned(),
            (false, true) => format!("{option}=…"),
            (false, false) => word.clone(),
        });
        is_secret = hides && word == option;
    }
    shown.join(" ")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::inflight::{latencies, record};
    use crate::measure::Run;
    use crate::process::CpuTime;

    /// A run of a second.
    pub(crate) fn run(ops: u64, cpu_ms: u64, p99_ms: f64) -> Run {
        let mut latencies = latencies();
        record(&mut latencies, (p99_ms * 1e6) as u64, 1000);
        Run {
            ops,
            elapsed_ns: 1_000_000_000,
            server: Some(CpuTime {
                ran_ns: cpu_ms * 1_000_000,
                waited_ns: 0,
            }),
            switches: None,
            generator_ran_ns: 0,
            generator_waited_ns: 0,
            load_average: None,
            latencies,
            is_round_trip: false,
            extra: vec![("lost", 0.0)],
        }
    }

    /// A row of media with these CPU times per 1000, one a run.
    pub(crate) fn media(driver: &str, transport: &str, calls: usize, cpu_ms: &[f64]) -> Row {
        let runs = cpu_ms
            .iter()
            .map(|ms| run(80_000, (ms * 80.0) as u64, 0.9))
            .collect();
        let mut row = Row::new("media", "MEDIA of <calls> & \"others\"".into(), runs);
        row.settings.insert("driver".into(), driver.into());
        row.settings.insert("transport".into(), transport.into());
        row.settings.insert("calls".into(), calls.into());
        row
    }

    /// One with everything in it.
    pub(crate) fn document() -> Document {
        let mut found = media("epoll", "ws", 80, &[3.0]);
        found.name = "media-saturated";
        let step = |calls, failed_by: Option<&str>| Step {
            calls,
            offered_per_s: calls as f64 * 1000.0,
            rate_per_s: calls as f64 * 999.0,
            p99_ms: Some(calls as f64 / 10.0),
            lost: 0.0,
            failed_by: failed_by.map(str::to_owned),
        };
        found.saturation = Some(Saturation {
            until_p99_ms: 10.0,
            stopped_by: "p99".into(),
            steps: vec![step(80, None), step(120, Some("p99")), step(100, None)],
        });
        let mut baseline = Row::new("raw-forward", "raw".into(), vec![run(80_000, 160, 0.4)]);
        baseline.settings.insert("calls".into(), 80usize.into());
        let mut report = Report::new(true);
        report.add([
            media("epoll", "ws", 80, &[3.0, 3.25, 3.5]),
            media("uring", "wss", 20, &[4.0]),
            found,
            baseline,
            Row::new("ingest", "SEND".into(), vec![run(70_000, 700, 8.0)]),
        ]);
        report.skipped.push(Skipped {
            what: "driver tokio-uring".into(),
            why: "Operation not permitted <os error 1>".into(),
        });
        report.into_document(&crate::args::tests::parse("media --spawn").expect("arguments"))
    }

    #[test]
    fn invites_and_codes_stay_here() {
        let words = "drover bench media --url ws://h --invite https://h/join/00 --code=AB-CD --calls 3";
        let shown = without_secrets(words.split(' ').map(str::to_owned));
        assert_eq!(
            shown,
            "drover bench media --url ws://h --invite … --code=… --calls 3"
        );
    }
}
