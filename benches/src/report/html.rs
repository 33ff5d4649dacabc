//! The report as one HTML page: tables and plots, no script, nothing fetched from anywhere. It is well-formed XML too.

use super::chart::{self, Axis, Bar, Series};
use super::document::{Document, RowDocument, SCHEMA};
use super::text::{columns, number, settings};
use super::xml::Xml;

/// Without `<`, `>` and `&`, so that HTML and XML read it alike.
const STYLE: &str = "
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; }
code { overflow-wrap: anywhere; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { padding: 3px 9px; border-bottom: 1px solid #8886; text-align: right; white-space: nowrap; }
th:first-child, td:first-child, td.words, th.words { text-align: left; }
td.what { text-align: left; white-space: normal; min-width: 18em; }
.missed { color: #c00; font-weight: bold; }
svg { width: 100%; max-width: 900px; display: block; font: 12px system-ui, sans-serif; }
svg text { fill: currentColor; }
.grid { stroke: #8884; }
.spread { stroke: currentColor; stroke-width: 1.5; }
.bound { stroke: #d55e00; stroke-width: 1.5; stroke-dasharray: 6 4; }
.failed { stroke: #c00; stroke-width: 2; }
polyline { stroke-width: 1.8; }
";

/// Figures that are drawn as bars, of all rows that have them.
const BARS: [(&str, &str, usize); 8] = [
    ("cpu_ms_per_1000", "CPU of the server, ms per 1000 operations", 2),
    ("rate_per_s", "Operations per second", 0),
    ("p99_ms", "p99 latency, ms", 3),
    ("half_round_trip_p99_ms", "Half of the p99 round trip, ms", 3),
    ("lost", "Frames lost", 0),
    ("shed", "Frames shed by the relay", 0),
    ("kib_per_connection", "KiB per idle connection", 2),
    ("times_idle", "p99 beside an attack, times that without", 2),
];
/// With more lines than this a plot shows nothing.
const LINES_MAX: usize = 12;

/// The page.
pub(super) fn page(document: &Document) -> String {
    let mut xml = Xml::html();
    xml.element(
        "html",
        &[("lang", &"en"), ("xmlns", &"http://www.w3.org/1999/xhtml")],
        |xml| {
            xml.element("head", &[], |xml| {
                xml.leaf("meta", &[("charset", &"utf-8")]);
                let view = "width=device-width, initial-scale=1";
                xml.leaf("meta", &[("name", &"viewport"), ("content", &view)]);
                xml.words("title", &[], "drover bench");
                xml.words("style", &[], STYLE);
            });
            xml.element("body", &[], |xml| body(xml, document));
        },
    );
    xml.finish()
}

fn body(xml: &mut Xml, document: &Document) {
    xml.words("h1", &[], "drover bench");
    xml.element("p", &[], |xml| xml.words("code", &[], &document.command));
    xml.words("p", &[], format!("Machine: {}.", document.machine.line()));
    let runs = document.rows.iter().map(|row| row.runs.len()).max().unwrap_or(0);
    let medians = format!(
        "Figures are medians of {runs} run(s) of {} s. The marks across a bar are the least and the most of all runs. \
         Data: {SCHEMA}, measured at {} s after 1970.",
        document.seconds,
        document.measured_at_ms / 1000
    );
    xml.words("p", &[], medians);
    for skipped in &document.skipped {
        let text = format!("Skipped: {}: {}", skipped.what, skipped.why);
        xml.words("p", &[("class", &"missed")], text);
    }
    table(xml, &document.rows);
    for (figure, title, digits) in BARS {
        let bars: Vec<Bar> = document.rows.iter().filter_map(|row| bar(row, figure)).collect();
        if bars.iter().any(|bar| bar.value != 0.0) {
            xml.words("h2", &[], title);
            chart::bars(xml, digits, &bars);
        }
    }
    latencies(xml, &document.rows);
    saturations(xml, &document.rows);
    multiples(xml, document);
    must_reach(xml, document);
}

fn bar(row: &RowDocument, figure: &str) -> Option<Bar> {
    Some(Bar {
        label: row.label(),
        value: row.median(figure)?,
        spread: row.spread(figure)?,
    })
}

fn table(xml: &mut Xml, rows: &[RowDocument]) {
    let settings = settings(rows);
    let columns: Vec<_> = columns(rows).collect();
    let mut titles = vec![String::new()];
    titles.extend(settings.iter().map(|name| name.replace('_', " ")));
    titles.extend(columns.iter().map(|column| column.title.to_owned()));
    titles.push("what".into());
    plain_table(xml, &titles, |xml| {
        for row in rows {
            xml.element("tr", &[], |xml| {
                xml.words("td", &[], &row.name);
                for name in &settings {
                    xml.words("td", &[], row.setting(name).unwrap_or_default());
                }
                for column in &columns {
                    xml.words("td", &[], column.cell(row));
                }
                xml.words("td", &[("class", &"what")], &row.what);
            });
        }
    });
}

fn plain_table(xml: &mut Xml, titles: &[String], rows: impl FnOnce(&mut Xml)) {
    xml.element("div", &[("class", &"wide")], |xml| {
        xml.element("table", &[], |xml| {
            xml.element("thead", &[], |xml| {
                xml.element("tr", &[], |xml| {
                    for title in titles {
                        xml.words("th", &[], title);
                    }
                });
            });
            xml.element("tbody", &[], rows);
        });
    });
}

/// Latency by quantile, round trips apart.
fn latencies(xml: &mut Xml, rows: &[RowDocument]) {
    let is_round_trip = |row: &RowDocument| row.median("round_trip_p99_ms").is_some();
    for (title, round_trip) in [("Latency", false), ("Round trips", true)] {
        let series: Vec<Series> = rows
            .iter()
            .filter(|row| !row.latency_curve_ms.is_empty() && is_round_trip(row) == round_trip)
            .map(|row| Series {
                label: row.label(),
                points: row.latency_curve_ms.clone(),
                failed: Vec::new(),
            })
            .collect();
        let parts = series.len().div_ceil(LINES_MAX);
        for (part, series) in series.chunks(LINES_MAX).enumerate() {
            let of = if parts > 1 {
                format!(", {} of {parts}", part + 1)
            } else {
                String::new()
            };
            xml.words("h2", &[], format!("{title} by quantile, ms{of}"));
            let quantiles = series
                .iter()
                .flat_map(|one| one.points.iter().map(|point| point.0));
            let last = quantiles.filter(|&quantile| quantile < 1.0).fold(0.0, f64::max);
            let axes = [Axis::Nines { last }, Axis::Log];
            chart::lines(xml, ["quantile", "ms"], axes, series, None);
        }
    }
}

/// The searches for the highest load.
fn saturations(xml: &mut Xml, rows: &[RowDocument]) {
    for row in rows {
        let Some(saturation) = &row.saturation else {
            continue;
        };
        xml.words("h2", &[], row.label());
        let found = format!(
            "Load was raised until {}. Crosses mark loads that did not hold; the dashed line is the bound.",
            saturation.stopped_by
        );
        xml.words("p", &[], found);
        let point = |step: &super::Step| Some((step.offered_per_s, step.p99_ms?));
        let held = saturation.steps.iter().filter(|step| step.failed_by.is_none());
        let failed = saturation.steps.iter().filter(|step| step.failed_by.is_some());
        let mut points: Vec<_> = held.filter_map(point).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let series = Series {
            label: "p99, ms".into(),
            points,
            failed: failed.filter_map(point).collect(),
        };
        let axes = [Axis::Linear, Axis::Log];
        let titles = ["frames offered per second", "p99, ms"];
        chart::lines(xml, titles, axes, &[series], Some(saturation.until_p99_ms));
    }
}

fn multiples(xml: &mut Xml, document: &Document) {
    if document.multiples.is_empty() {
        return;
    }
    xml.words("h2", &[], "In multiples of baselines");
    let titles = ["", "raw baseline", "rate", "CPU", "p99"].map(str::to_owned);
    plain_table(xml, &titles, |xml| {
        for multiple in &document.multiples {
            xml.element("tr", &[], |xml| {
                xml.words("td", &[], &multiple.row);
                xml.words("td", &[("class", &"words")], &multiple.baseline);
                for ratio in [multiple.rate, multiple.cpu, multiple.p99] {
                    let text = ratio.map_or_else(String::new, |ratio| number(ratio, 2));
                    xml.words("td", &[], text);
                }
            });
        }
    });
}

fn must_reach(xml: &mut Xml, document: &Document) {
    if document.must_reach.is_empty() {
        return;
    }
    xml.words("h2", &[], "Figures that must be reached");
    let titles = ["", "row", "measured", "bound", ""].map(str::to_owned);
    plain_table(xml, &titles, |xml| {
        for judged in &document.must_reach {
            xml.element("tr", &[], |xml| {
                xml.words("td", &[], &judged.what);
                xml.words("td", &[("class", &"words")], &judged.row);
                xml.words("td", &[], number(judged.value, 3));
                xml.words("td", &[], &judged.bound);
                match judged.met {
                    true => xml.words("td", &[], "reached"),
                    false => xml.words("td", &[("class", &"missed")], "missed"),
                }
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::document;

    /// The page as an XML parser reads it.
    fn parsed(page: &str) -> roxmltree::Document<'_> {
        let options = roxmltree::ParsingOptions {
            allow_dtd: true,
            ..Default::default()
        };
        roxmltree::Document::parse_with_options(page, options).expect("well-formed")
    }

    #[test]
    fn it_is_well_formed_and_shows_every_row_and_plot() {
        let document = document();
        let text = page(&document);
        let page = parsed(&text);
        let count = |name: &str| {
            page.descendants()
                .filter(|node| node.tag_name().name() == name)
                .count()
        };
        let all: String = page.descendants().filter_map(|node| node.text()).collect();
        for row in &document.rows {
            assert!(
                all.contains(&row.label()) && all.contains(&row.what),
                "{}",
                row.label()
            );
        }
        // CPU, rate and p99 as bars, latencies and a search as lines.
        assert_eq!(count("svg"), 5);
        // Three rows for each of three figures; the rest of the rows has one run.
        assert_eq!(count("rect"), 3 * document.rows.len());
        assert!(count("polyline") >= document.rows.len());
        assert!(all.contains("Skipped: driver tokio-uring: Operation not permitted <os error 1>"));
    }

    #[test]
    fn it_runs_nothing_and_fetches_nothing() {
        let mut document = document();
        let evil = "</style><script src=\"http://evil.example/x.js\">alert(1)</script>";
        document.rows[0].what = evil.into();
        document.rows[0].name = evil.into();
        document.command = evil.into();
        document.machine.cpu = evil.into();
        document.skipped[0].why = evil.into();
        let text = page(&document);
        let page = parsed(&text);
        for node in page.descendants() {
            let name = node.tag_name().name();
            let forbidden = [
                "script", "link", "iframe", "object", "embed", "img", "image", "use", "a", "base",
            ];
            assert!(!forbidden.contains(&name), "{name}");
            for attribute in node.attributes() {
                let (name, value) = (attribute.name(), attribute.value());
                assert!(
                    !name.starts_with("on") && !["src", "href", "style"].contains(&name),
                    "{name}"
                );
                assert!(!value.contains("url("), "{value}");
            }
        }
        assert!(!STYLE.contains("url(") && !STYLE.contains("@import") && !STYLE.contains(['<', '>', '&']));
        // HTML parsers know script where XML parsers know text, and the other way round.
        assert!(!text.to_lowercase().contains("<script"));
    }

    #[test]
    fn a_page_of_nothing_is_a_page() {
        let mut document = document();
        document.rows.clear();
        document.multiples.clear();
        document.must_reach.clear();
        parsed(&page(&document));
    }
}
