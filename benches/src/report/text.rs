//! Tables as text: on a terminal, and in Markdown.

use super::document::{Document, RowDocument};
use std::fmt::Write as _;

/// A figure that has a column of its own in Markdown and on the page.
pub(super) struct Column {
    pub(super) figure: &'static str,
    pub(super) title: &'static str,
    digits: usize,
}

const fn column(figure: &'static str, title: &'static str, digits: usize) -> Column {
    Column {
        figure,
        title,
        digits,
    }
}

const COLUMNS: [Column; 23] = [
    column("rate_per_s", "per s", 0),
    column("cpu_ms_per_1000", "CPU ms per 1000", 2),
    column("p50_ms", "p50 ms", 3),
    column("p99_ms", "p99 ms", 3),
    column("p999_ms", "p99.9 ms", 3),
    column("round_trip_p99_ms", "round trip p99 ms", 3),
    column("half_round_trip_p50_ms", "half of it: p50 ms", 3),
    column("half_round_trip_p99_ms", "p99 ms", 3),
    column("half_round_trip_p999_ms", "p99.9 ms", 3),
    column("lost", "lost", 0),
    column("refused", "refusals", 0),
    column("unanswered", "unanswered", 0),
    column("shed", "shed", 0),
    column("calls", "calls", 0),
    column("mb_per_s", "MB per s", 0),
    column("rounds_max", "rounds", 0),
    column("cpu_ms_each", "CPU ms each", 2),
    column("cpu_us_each", "CPU us each", 2),
    column("kib_per_connection", "KiB per connection", 2),
    column("p99_ratio", "p99 / idle", 2),
    column("times_idle", "p99 / idle", 2),
    column("sink_times_idle", "beside a raw sink", 2),
    column("times_sink", "p99 / that", 2),
];

/// The columns of these rows: those any of them has a figure for.
pub(super) fn columns(rows: &[RowDocument]) -> impl Iterator<Item = &'static Column> {
    COLUMNS
        .iter()
        .filter(|column| rows.iter().any(|row| row.median.contains_key(column.figure)))
}

impl Column {
    /// The median of a row, or nothing.
    pub(super) fn cell(&self, row: &RowDocument) -> String {
        let median = row.median(self.figure);
        median.map_or_else(String::new, |value| number(value, self.digits))
    }
}

/// With so many digits; a space before each three.
pub(super) fn number(value: f64, digits: usize) -> String {
    let text = format!("{:.digits$}", value.abs());
    let (whole, rest) = match text.split_once('.') {
        Some((whole, rest)) => (whole, Some(rest)),
        None => (&*text, None),
    };
    let mut out = if value < 0.0 {
        "-".to_owned()
    } else {
        String::new()
    };
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    if let Some(rest) = rest {
        let _ = write!(out, ".{rest}");
    }
    out
}

/// For a terminal.
pub(super) fn plain(document: &Document) -> String {
    let mut out = format!(
        "{:<18} {:>11} {:>9} {:>9} {:>9} {:>9} {:>7} {:>7} {:>7} {:>6}  what\n",
        "", "rate/s", "p50 ms", "p99 ms", "p99.9 ms", "CPU ms/k", "server", "waited", "client", "load"
    );
    for row in &document.rows {
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
    if !document.multiples.is_empty() {
        let _ = writeln!(
            out,
            "\nmultiples of baselines    {:>51} {:>9} {:>9}",
            "rate", "CPU", "p99"
        );
        for multiple in &document.multiples {
            let _ = writeln!(
                out,
                "  {:<72} {:>9} {:>9} {:>9}",
                format!("{} / {}", multiple.row, multiple.baseline),
                cell(multiple.rate, 2),
                cell(multiple.cpu, 2),
                cell(multiple.p99, 2)
            );
        }
    }
    if !document.must_reach.is_empty() {
        out.push_str("\nmust reach\n");
        for judged in &document.must_reach {
            let _ = writeln!(
                out,
                "  {} {:<44} {:>12} {:>14}  {}",
                if judged.met { "pass" } else { "FAIL" },
                judged.what,
                cell(Some(judged.value), 3),
                judged.bound,
                judged.row
            );
        }
    }
    out
}

/// Figures that only some rows have, at the end of their line.
fn extras(row: &RowDocument) -> String {
    const IN_COLUMNS: [&str; 13] = [
        "rate_per_s",
        "p50_ms",
        "p99_ms",
        "p999_ms",
        "cpu_ms_per_1000",
        "server_cores",
        "server_waited_cores",
        "generator_cores",
        "generator_waited_cores",
        "load_average",
        "ops",
        "seconds",
        "switches_per_1000",
    ];
    let rest = row
        .median
        .iter()
        .filter(|(name, _)| !IN_COLUMNS.contains(&name.as_str()));
    rest.map(|(name, value)| format!(", {name} {}", cell(Some(*value), 2)))
        .collect()
}

fn cell(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

/// The settings any of these rows has, in the order they are shown.
pub(super) fn settings(rows: &[RowDocument]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for row in rows {
        for (name, _) in row.shown_settings() {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
    }
    names
}

/// For a page of documentation: the machine, all rows in one table, multiples, what was skipped.
pub(super) fn markdown(document: &Document) -> String {
    let mut out = format!(
        "Machine: {}.\nCommand: `{}`; medians of {} run(s) of {} s.\n\n",
        document.machine.line(),
        document.command,
        document.rows.iter().map(|row| row.runs.len()).max().unwrap_or(0),
        document.seconds
    );
    let settings = settings(&document.rows);
    let columns: Vec<_> = columns(&document.rows).collect();
    let titles = settings.iter().map(|name| name.replace('_', " "));
    let titles = titles.chain(columns.iter().map(|column| column.title.to_owned()));
    line(&mut out, std::iter::once(String::new()).chain(titles));
    let rules = settings
        .iter()
        .map(|_| "---")
        .chain(columns.iter().map(|_| "--:"));
    line(&mut out, std::iter::once("---").chain(rules).map(str::to_owned));
    for row in &document.rows {
        let settings = settings.iter().map(|name| row.setting(name).unwrap_or_default());
        let figures = columns.iter().map(|column| column.cell(row));
        line(
            &mut out,
            std::iter::once(row.name.clone()).chain(settings).chain(figures),
        );
    }
    if !document.multiples.is_empty() {
        out.push('\n');
        let head = ["", "raw baseline", "rate", "CPU", "p99"];
        line(&mut out, head.map(str::to_owned).into_iter());
        line(
            &mut out,
            ["---", "---", "--:", "--:", "--:"].map(str::to_owned).into_iter(),
        );
        for multiple in &document.multiples {
            let ratio = |ratio| cell(ratio, 2);
            let cells = [
                multiple.row.clone(),
                multiple.baseline.clone(),
                ratio(multiple.rate),
                ratio(multiple.cpu),
                ratio(multiple.p99),
            ];
            line(&mut out, cells.into_iter());
        }
    }
    for skipped in &document.skipped {
        let _ = writeln!(out, "\nSkipped: {}: {}", skipped.what, skipped.why);
    }
    out
}

fn line(out: &mut String, cells: impl Iterator<Item = String>) {
    for cell in cells {
        let _ = write!(out, "| {} ", cell.replace('|', "\\|").replace('\n', " "));
    }
    out.push_str("|\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::document;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(number(1_234_567.8, 0), "1 234 568");
        assert_eq!(number(-1234.5, 1), "-1 234.5");
        assert_eq!((number(999.0, 0), number(0.25, 2)), ("999".into(), "0.25".into()));
    }

    #[test]
    fn every_line_of_the_markdown_table_has_as_many_cells() {
        let mut document = document();
        document.rows[0].name = "a|b".into();
        let text = markdown(&document);
        let tables: Vec<&str> = text.split("\n\n").filter(|part| part.starts_with('|')).collect();
        assert_eq!(tables.len(), 2, "{text}");
        for table in tables {
            let cells = |line: &str| line.replace("\\|", "").matches('|').count();
            let widths: Vec<usize> = table.lines().map(cells).collect();
            assert!(
                widths.len() > 2 && widths.windows(2).all(|pair| pair[0] == pair[1]),
                "{table}"
            );
        }
        assert!(text.contains("Skipped: driver tokio-uring"), "{text}");
        assert!(text.contains("| uring | wss | 20 |"), "{text}");
    }

    #[test]
    fn the_plain_table_shows_what_only_a_row_has_and_what_is_missed() {
        let mut document = document();
        document.rows[0].median.insert("shed".into(), 7.0);
        document.must_reach[0].met = false;
        let text = plain(&document);
        assert!(text.contains(", shed 7.00") && text.contains("  FAIL "), "{text}");
        assert!(text.contains("media epoll ws 80 calls / raw-forward"), "{text}");
    }
}
