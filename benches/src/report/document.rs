//! What was measured, as it is written to a file and read back: the one model that the tables, the HTML page and the
//! comparison are made of. docs/benchmarking.md describes it for other programs.

use crate::error::Error;
use crate::machine::Machine;
use crate::measure::{Row, Run};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// Goes up when a field changes its meaning or goes away; new fields alone don't change it.
pub(crate) const SCHEMA: &str = "drover-bench/1";

/// Settings by name; what tells rows of one name apart.
pub(crate) type Settings = BTreeMap<String, Setting>;
/// Figures by name; a unit is the last part of the name.
pub(crate) type Figures = BTreeMap<String, f64>;

/// The order settings are shown in; others follow.
const SHOWN: [&str; 9] = [
    "driver",
    "transport",
    "calls",
    "participants",
    "frames_per_s",
    "size_bytes",
    "latency",
    "side",
    "until_p99_ms",
];
/// Quantiles of a latency curve.
const QUANTILES: [f64; 14] = [
    0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.9999, 0.99999, 1.0,
];

/// A number or a word.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Setting {
    /// A number.
    Number(f64),
    /// A word.
    Word(String),
}

impl fmt::Display for Setting {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setting::Number(number) => write!(out, "{number}"),
            Setting::Word(word) => out.write_str(word),
        }
    }
}

impl From<f64> for Setting {
    fn from(number: f64) -> Self {
        Setting::Number(number)
    }
}

impl From<usize> for Setting {
    fn from(number: usize) -> Self {
        Setting::Number(number as f64)
    }
}

impl From<&str> for Setting {
    fn from(word: &str) -> Self {
        Setting::Word(word.to_owned())
    }
}

/// A whole measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Document {
    pub(crate) schema: String,
    /// The command, without invites and codes.
    pub(crate) command: String,
    /// When it ended, ms since 1970.
    pub(crate) measured_at_ms: u64,
    /// Where the load came from; where the relay was as well, if it was spawned.
    pub(crate) machine: Machine,
    /// Length of one run.
    pub(crate) seconds: f64,
    pub(crate) rows: Vec<RowDocument>,
    /// What was asked for and could not be measured.
    #[serde(default)]
    pub(crate) skipped: Vec<Skipped>,
    #[serde(default)]
    pub(crate) multiples: Vec<Multiple>,
    #[serde(default)]
    pub(crate) must_reach: Vec<Judged>,
}

/// One row: medians, and every run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RowDocument {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) settings: Settings,
    /// What an operation is, for people.
    pub(crate) what: String,
    pub(crate) median: Figures,
    pub(crate) runs: Vec<Figures>,
    /// Quantile and ms over all runs, rising; round trips where the figures say so.
    #[serde(default)]
    pub(crate) latency_curve_ms: Vec<(f64, f64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) saturation: Option<Saturation>,
}

/// How the highest load was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Saturation {
    pub(crate) until_p99_ms: f64,
    /// Why more load did not count.
    pub(crate) stopped_by: String,
    /// In the order they were measured.
    pub(crate) steps: Vec<Step>,
}

/// One load of a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Step {
    pub(crate) calls: usize,
    /// Frames at recipients per second, as asked for and as they came.
    pub(crate) offered_per_s: f64,
    pub(crate) rate_per_s: f64,
    /// Half a round trip where that is measured.
    pub(crate) p99_ms: Option<f64>,
    pub(crate) lost: f64,
    /// `None`: it held.
    pub(crate) failed_by: Option<String>,
}

/// What could not be measured, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Skipped {
    pub(crate) what: String,
    pub(crate) why: String,
}

/// A row in multiples of a raw baseline of the same load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Multiple {
    /// Label of the row, name of the baseline.
    pub(crate) row: String,
    pub(crate) baseline: String,
    pub(crate) rate: Option<f64>,
    pub(crate) cpu: Option<f64>,
    pub(crate) p99: Option<f64>,
}

/// A figure that must be reached in the reference settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Judged {
    /// Label of the row.
    pub(crate) row: String,
    pub(crate) figure: String,
    pub(crate) what: String,
    pub(crate) value: f64,
    pub(crate) bound: String,
    pub(crate) met: bool,
}

impl Document {
    /// From a file.
    pub(crate) fn load(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::File {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text).map_err(|what| Error::Usage(format!("{}: {what}", path.display())))
    }

    /// From its text. A file of another schema is told from one that is none.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Head {
            schema: String,
        }
        let Head { schema } = serde_json::from_str(text)
            .map_err(|error| format!("not written by `drover bench --json`: {error}"))?;
        if schema != SCHEMA {
            return Err(format!(
                "written as {schema:?}, and this program reads {SCHEMA:?}"
            ));
        }
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// Its text.
    pub(crate) fn to_json(&self) -> String {
        let text = serde_json::to_string_pretty(self);
        text.expect("names are strings, and figures are finite") + "\n"
    }
}

impl RowDocument {
    /// Of a row; figures that are no numbers are left out.
    pub(crate) fn new(row: &Row) -> Self {
        let figures = |figures: Vec<(&'static str, f64)>| -> Figures {
            figures
                .into_iter()
                .filter(|(_, value)| value.is_finite())
                .map(|(name, value)| (name.to_owned(), value))
                .collect()
        };
        Self {
            name: row.name.to_owned(),
            settings: row.settings.clone(),
            what: row.what.clone(),
            median: figures(row.medians()),
            runs: row.runs.iter().map(|run| figures(run.figures())).collect(),
            latency_curve_ms: curve(&row.runs),
            saturation: row.saturation.clone(),
        }
    }

    /// The median of a figure.
    pub(crate) fn median(&self, figure: &str) -> Option<f64> {
        self.median.get(figure).copied()
    }

    /// The least and the most of a figure over the runs.
    pub(crate) fn spread(&self, figure: &str) -> Option<(f64, f64)> {
        let values = self.runs.iter().filter_map(|run| run.get(figure).copied());
        values.fold(None, |spread, value| {
            let (least, most) = spread.unwrap_or((value, value));
            Some((value.min(least), value.max(most)))
        })
    }

    /// A setting as text.
    pub(crate) fn setting(&self, name: &str) -> Option<String> {
        self.settings.get(name).map(Setting::to_string)
    }

    /// Settings in the order they are shown.
    pub(crate) fn shown_settings(&self) -> impl Iterator<Item = (&str, &Setting)> {
        let rest = self
            .settings
            .keys()
            .map(String::as_str)
            .filter(|name| !SHOWN.contains(name));
        let names = SHOWN.into_iter().chain(rest);
        names.filter_map(|name| {
            Some((
                self.settings.get_key_value(name)?.0.as_str(),
                &self.settings[name],
            ))
        })
    }

    /// The name and what tells it from others of that name, in one line.
    pub(crate) fn label(&self) -> String {
        let mut label = self.name.clone();
        for (name, setting) in self.shown_settings() {
            let text = match name {
                "calls" => format!("{setting} calls"),
                "participants" => format!("of {setting}"),
                "frames_per_s" => format!("{setting}/s"),
                "size_bytes" => format!("{setting} B"),
                "until_p99_ms" => format!("p99 <= {setting} ms"),
                "latency" if *setting == Setting::from("one-way") => continue,
                "side" => format!("{setting} side"),
                _ => setting.to_string(),
            };
            label.push(' ');
            label.push_str(&text);
        }
        label
    }
}

/// Quantiles of the latencies of all runs.
fn curve(runs: &[Run]) -> Vec<(f64, f64)> {
    let mut all = crate::inflight::latencies();
    for run in runs {
        all.add(&run.latencies)
            .expect("all histograms have the same bounds");
    }
    if all.is_empty() {
        return Vec::new();
    }
    let told_apart = 1.0 - 1.0 / all.len() as f64;
    QUANTILES
        .into_iter()
        .filter(|&quantile| quantile <= told_apart || quantile == 1.0)
        .map(|quantile| (quantile, all.value_at_quantile(quantile) as f64 / 1e6))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::document;

    #[test]
    fn what_is_written_is_read_back() {
        let document = document();
        let text = document.to_json();
        assert_eq!(Document::parse(&text).expect("its own text"), document);
        // What a program of another language relies on.
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["schema"], SCHEMA);
        let row = &value["rows"][0];
        assert_eq!(row["name"], "media");
        assert_eq!(row["settings"]["transport"], "ws");
        assert_eq!(row["settings"]["calls"], 80.0);
        assert!(row["median"]["cpu_ms_per_1000"].is_f64() && row["runs"][0]["p99_ms"].is_f64());
        assert!(row["latency_curve_ms"][1][0].is_f64());
    }

    #[test]
    fn other_files_are_told_apart() {
        let mut other = document();
        other.schema = "drover-bench/2".into();
        let said = Document::parse(&other.to_json()).expect_err("another schema");
        assert!(said.contains("drover-bench/2"), "{said}");
        assert!(Document::parse("{}").is_err() && Document::parse("nonsense").is_err());
        // A newer program may add fields.
        let mut value: serde_json::Value = serde_json::from_str(&document().to_json()).expect("JSON");
        value["more"] = 1.into();
        assert!(Document::parse(&value.to_string()).is_ok());
    }

    #[test]
    fn figures_that_are_no_numbers_are_left_out() {
        let mut row = Row::new("x", String::new(), vec![crate::report::tests::run(10, 10, 1.0)]);
        row.runs[0].extra.push(("times_idle", f64::NAN));
        let row = RowDocument::new(&row);
        assert!(row.median("ops").is_some() && row.median("times_idle").is_none());
    }
}
