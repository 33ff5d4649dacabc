//! `drover bench compare`: two measurements side by side, and what of the second is worse than the first.
//!
//! A row is compared with the row of the same name and settings; where there is none, with the only one that differs in
//! its driver or transport alone, so that drivers can be told from each other. A figure is worse when its median is
//! worse by more than the tolerance *and* its runs and those of the first don't overlap: what lies within the spread of
//! the runs is noise.

use crate::args::CompareArgs;
use crate::error::{Doing as _, Error};
use crate::report::document::{Document, RowDocument};
use std::fmt::Write as _;
use std::io::Write;

/// Which way is better.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Better {
    Less,
    More,
}

/// The figures that are judged; others describe a run.
const JUDGED: [(&str, Better); 21] = [
    ("rate_per_s", Better::More),
    ("mb_per_s", Better::More),
    ("cpu_ms_per_1000", Better::Less),
    ("p50_ms", Better::Less),
    ("p99_ms", Better::Less),
    ("p999_ms", Better::Less),
    ("half_round_trip_p50_ms", Better::Less),
    ("half_round_trip_p99_ms", Better::Less),
    ("half_round_trip_p999_ms", Better::Less),
    ("replayer_p99_ms", Better::Less),
    ("lost", Better::Less),
    ("refused", Better::Less),
    ("unanswered", Better::Less),
    ("shed", Better::Less),
    ("rounds_max", Better::Less),
    ("cpu_ms_each", Better::Less),
    ("cpu_us_each", Better::Less),
    ("open_at_answer_max", Better::Less),
    ("kib_per_connection", Better::Less),
    ("p99_ratio", Better::Less),
    ("times_idle", Better::Less),
];
/// What two rows may differ in and still be compared, if nothing else fits.
const MAY_DIFFER: [&str; 2] = ["driver", "transport"];

/// What is said of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// The runs overlap.
    Same,
    /// Beyond the spread, within the tolerance.
    Within,
    Better,
    Worse,
}

impl Verdict {
    fn text(self) -> &'static str {
        match self {
            Verdict::Same => "",
            Verdict::Within => "within tolerance",
            Verdict::Better => "better",
            Verdict::Worse => "WORSE",
        }
    }
}

/// Prints the comparison to `out`.
///
/// # Errors
/// [`Error::System`] if it can't be printed; [`Error::Worse`] if a figure is; [`Error::Usage`] if a file can't be read as a measurement or nothing in them can be
/// compared.
pub(crate) fn run(args: &CompareArgs, out: &mut dyn Write) -> Result<(), Error> {
    if !(args.tolerance >= 0.0 && args.tolerance.is_finite()) {
        return Err(Error::Usage("--tolerance has to be 0 or more per cent".into()));
    }
    let [before, after] = [&args.before, &args.after].map(|path| Document::load(path));
    let comparison = Comparison::new(&before?, &after?, args.tolerance / 100.0);
    let printed = out
        .write_all(comparison.text.as_bytes())
        .and_then(|()| out.flush());
    match (comparison.compared, comparison.worse) {
        (0, _) => Err(Error::Usage("the files have no row in common".into())),
        (_, 0) => printed.doing("print the comparison"),
        (_, worse) => Err(Error::Worse(worse)),
    }
}

/// The table, and how many figures are in it.
struct Comparison {
    text: String,
    compared: usize,
    worse: usize,
}

impl Comparison {
    fn new(before: &Document, after: &Document, tolerance: f64) -> Self {
        let mut this = Self {
            text: String::new(),
            compared: 0,
            worse: 0,
        };
        for (what, document) in [("before", before), ("after", after)] {
            let (machine, command) = (document.machine.line(), &document.command);
            let _ = writeln!(this.text, "{what}: {machine}; {command}");
        }
        if before.machine != after.machine {
            this.text
                .push_str("The machines or builds differ: CPU and latencies tell of both.\n");
        }
        for (row, other) in pairs(before, after) {
            match other {
                Some(other) => this.compare(row, other, tolerance),
                None => {
                    let _ = writeln!(this.text, "\n{}: only before", row.label());
                }
            }
        }
        for row in &after.rows {
            if !pairs(before, after).any(|(_, other)| other.is_some_and(|other| std::ptr::eq(other, row))) {
                let _ = writeln!(this.text, "\n{}: only after", row.label());
            }
        }
        this
    }

    fn compare(&mut self, before: &RowDocument, after: &RowDocument, tolerance: f64) {
        let label = match before.settings == after.settings {
            true => before.label(),
            false => format!("{}, then {}", before.label(), after.label()),
        };
        let _ = writeln!(
            self.text,
            "\n{label}\n  {:<26} {:>14} {:>14} {:>8}",
            "", "before", "after", "ratio"
        );
        for (figure, better) in JUDGED {
            let (Some(old), Some(new)) = (before.median(figure), after.median(figure)) else {
                continue;
            };
            let spreads = [before, after].map(|row| row.spread(figure).unwrap_or_default());
            let verdict = verdict(better, [old, new], spreads, tolerance);
            self.compared += 1;
            self.worse += usize::from(verdict == Verdict::Worse);
            let ratio = match old {
                0.0 => "-".to_owned(),
                old => format!("{:.3}", new / old),
            };
            let line = format!(
                "  {figure:<26} {old:>14.3} {new:>14.3} {ratio:>8}  {}",
                verdict.text()
            );
            let _ = writeln!(self.text, "{}", line.trim_end());
        }
    }
}

fn verdict(
    better: Better,
    [old, new]: [f64; 2],
    [before, after]: [(f64, f64); 2],
    tolerance: f64,
) -> Verdict {
    if before.0 <= after.1 && after.0 <= before.1 {
        return Verdict::Same;
    }
    let is_worse = match better {
        Better::Less => new > old,
        Better::More => new < old,
    };
    let is_within = match better {
        Better::Less => new <= old * (1.0 + tolerance),
        Better::More => new >= old * (1.0 - tolerance),
    };
    match (is_worse, is_within) {
        (false, _) => Verdict::Better,
        (true, true) => Verdict::Within,
        (true, false) => Verdict::Worse,
    }
}

/// Every row of the first with its counterpart in the second.
fn pairs<'a>(
    before: &'a Document,
    after: &'a Document,
) -> impl Iterator<Item = (&'a RowDocument, Option<&'a RowDocument>)> {
    before
        .rows
        .iter()
        .map(|row| (row, counterpart(row, before, after)))
}

fn counterpart<'a>(row: &RowDocument, before: &Document, after: &'a Document) -> Option<&'a RowDocument> {
    let is_same = |other: &&RowDocument| other.name == row.name && other.settings == row.settings;
    if let Some(same) = after.rows.iter().find(is_same) {
        return Some(same);
    }
    let alike = |other: &RowDocument| {
        let of = |row: &RowDocument| {
            let mut settings = row.settings.clone();
            settings.retain(|name, _| !MAY_DIFFER.contains(&name.as_str()));
            settings
        };
        other.name == row.name && of(other) == of(row)
    };
    let mut candidates = after.rows.iter().filter(|other| alike(other));
    let only = candidates.next().filter(|_| candidates.next().is_none())?;
    let rivals = before.rows.iter().filter(|other| alike(other)).count();
    (rivals == 1).then_some(only)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{document, media};

    fn of(rows: Vec<crate::measure::Row>) -> Document {
        let mut document = document();
        document.rows = rows.iter().map(RowDocument::new).collect();
        document
    }

    #[test]
    fn worse_is_beyond_the_spread_and_the_tolerance() {
        let verdict = |better, old: (f64, f64), new: (f64, f64)| {
            let middle = |(least, most): (f64, f64)| (least + most) / 2.0;
            super::verdict(better, [middle(old), middle(new)], [old, new], 0.1)
        };
        assert_eq!(verdict(Better::Less, (1.0, 2.0), (1.9, 9.0)), Verdict::Same);
        assert_eq!(verdict(Better::Less, (1.0, 2.0), (2.1, 2.2)), Verdict::Worse);
        assert_eq!(verdict(Better::Less, (2.0, 2.0), (2.1, 2.1)), Verdict::Within);
        assert_eq!(verdict(Better::Less, (2.0, 3.0), (1.0, 1.9)), Verdict::Better);
        assert_eq!(verdict(Better::More, (2.0, 3.0), (1.0, 1.9)), Verdict::Worse);
        assert_eq!(verdict(Better::More, (2.0, 2.0), (1.9, 1.9)), Verdict::Within);
        assert_eq!(verdict(Better::More, (1.0, 1.9), (2.0, 3.0)), Verdict::Better);
        // Nothing was lost, and now something is.
        assert_eq!(verdict(Better::Less, (0.0, 0.0), (3.0, 3.0)), Verdict::Worse);
    }

    #[test]
    fn a_measurement_is_not_worse_than_itself() {
        let document = document();
        let comparison = Comparison::new(&document, &document, 0.0);
        assert_eq!(comparison.worse, 0, "{}", comparison.text);
        assert!(comparison.compared > 10 && !comparison.text.contains("only"));
    }

    #[test]
    fn rows_are_compared_with_their_like() {
        let before = of(vec![
            media("epoll", "ws", 80, &[3.0]),
            media("epoll", "ws", 20, &[5.0]),
        ]);
        let after = of(vec![
            media("uring", "ws", 80, &[6.0]),
            media("epoll", "ws", 7, &[5.0]),
        ]);
        let comparison = Comparison::new(&before, &after, 0.1);
        assert_eq!(comparison.worse, 1, "{}", comparison.text);
        assert!(
            comparison.text.contains("then media uring"),
            "{}",
            comparison.text
        );
        assert!(
            comparison.text.contains("20 calls: only before"),
            "{}",
            comparison.text
        );
        assert!(
            comparison.text.contains("7 calls: only after"),
            "{}",
            comparison.text
        );
        // Which of two drivers is meant can't be known.
        let two = of(vec![
            media("uring", "ws", 80, &[3.0]),
            media("auto", "ws", 80, &[3.0]),
        ]);
        let one = of(vec![media("epoll", "ws", 80, &[3.0])]);
        assert_eq!(Comparison::new(&one, &two, 0.1).compared, 0);
        assert_eq!(Comparison::new(&two, &one, 0.1).compared, 0);
    }
}
