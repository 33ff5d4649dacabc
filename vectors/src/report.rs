//! What came out: a table for people, JSON and JUnit for machines.

use crate::frames::Form;
use crate::script::{Level, Script};
use serde_json::json;
use std::fmt::Write;
use std::time::Duration;

/// What became of one rule in one form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The relay keeps it.
    Kept,
    /// It does not, and how.
    Failed(String),
    /// Nobody looked, and why.
    Skipped(String),
    /// The relay went away while it was looked at, and how it showed.
    CutOff(String),
    /// The relay had gone before.
    NotRun,
}

/// How many lines have which verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// [`Verdict::Kept`].
    pub kept: usize,
    /// [`Verdict::Failed`].
    pub failed: usize,
    /// [`Verdict::Skipped`].
    pub skipped: usize,
    /// [`Verdict::CutOff`] and [`Verdict::NotRun`].
    pub not_run: usize,
}

/// One rule in one form.
#[derive(Clone, Debug)]
pub struct Line {
    pub(crate) index: usize,
    /// The rule's name.
    pub rule: String,
    /// What the relay has to do.
    pub text: String,
    /// Where that is said.
    pub spec: String,
    /// Who decides it.
    pub level: Level,
    /// The form it was checked in.
    pub form: Form,
    /// What came out.
    pub verdict: Verdict,
    /// How long that took.
    pub took: Duration,
}

impl Line {
    pub(crate) fn new(index: usize, script: &Script, form: Form, verdict: Verdict) -> Self {
        Self {
            index,
            rule: script.rule.clone(),
            text: script.text.clone(),
            spec: script.spec.clone(),
            level: script.level,
            form,
            verdict,
            took: Duration::ZERO,
        }
    }
}

/// A whole run.
#[derive(Clone, Debug)]
pub struct Report {
    /// In the order of the files, form by form.
    pub lines: Vec<Line>,
    /// What the relay does not offer, and how it showed.
    pub missing: Vec<(String, String)>,
    /// How it showed that the relay went away before the end, if it did.
    pub gone: Option<String>,
    /// From the first connection to the last.
    pub took: Duration,
}

impl Report {
    /// Rules that were not kept; those of [`Level::Drover`] only where `strict`.
    pub fn failures(&self, strict: bool) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(move |line| {
            matches!(line.verdict, Verdict::Failed(_)) && (strict || line.level == Level::Required)
        })
    }

    /// How many lines have which verdict.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for line in &self.lines {
            *match &line.verdict {
                Verdict::Kept => &mut counts.kept,
                Verdict::Failed(_) => &mut counts.failed,
                Verdict::Skipped(_) => &mut counts.skipped,
                Verdict::CutOff(_) | Verdict::NotRun => &mut counts.not_run,
            } += 1;
        }
        counts
    }

    /// If the relay went away: how it showed, what was under way then and what was not run.
    pub fn ended_early(&self) -> Option<String> {
        let gone = self.gone.as_ref()?;
        let cut_off = self
            .lines
            .iter()
            .filter(|line| matches!(line.verdict, Verdict::CutOff(_)));
        let mut rules: Vec<&str> = cut_off.map(|line| line.rule.as_str()).collect();
        rules.dedup();
        let during = match rules[..] {
            [] => String::new(),
            _ => format!(" during {}", rules.join(", ")),
        };
        let not_run = self.counts().not_run;
        let of = self.lines.len();
        Some(format!(
            "the relay went away{during} ({gone}): {not_run} of {of} lines were not run to their end"
        ))
    }

    /// A line for each rule, its verdict in each form, and the reasons below what was not kept.
    pub fn table(&self) -> String {
        let mut out = String::new();
        let mut rules: Vec<&str> = Vec::new();
        for line in &self.lines {
            if !rules.contains(&line.rule.as_str()) {
                rules.push(&line.rule);
            }
        }
        let _ = writeln!(out, "{:<44} {:<7} {:<7} {:<8} what", "rule", "array", "map", "");
        for rule in rules {
            let lines: Vec<&Line> = self.lines.iter().filter(|line| line.rule == rule).collect();
            let word = |form: Form| match lines
                .iter()
                .find(|line| line.form == form)
                .map(|line| &line.verdict)
            {
                None => "",
                Some(Verdict::Kept) => "ok",
                Some(Verdict::Failed(_)) => "FAILED",
                Some(Verdict::Skipped(_)) => "skipped",
                Some(Verdict::CutOff(_) | Verdict::NotRun) => "not run",
            };
            let first = lines[0];
            let level = match first.level {
                Level::Required => "",
                Level::Drover => "drover",
            };
            let (array, map) = (word(Form::Array), word(Form::Map));
            let _ = writeln!(
                out,
                "{rule:<44} {array:<7} {map:<7} {level:<8} {} ({})",
                first.text, first.spec
            );
            for line in lines {
                match &line.verdict {
                    Verdict::Failed(why) | Verdict::Skipped(why) | Verdict::CutOff(why) => {
                        let _ = writeln!(out, "    {}: {why}", line.form.name());
                    }
                    Verdict::Kept | Verdict::NotRun => {}
                }
            }
        }
        for (what, why) in &self.missing {
            let _ = writeln!(out, "not offered: {what}: {why}");
        }
        let Counts {
            kept,
            failed,
            skipped,
            not_run,
        } = self.counts();
        let lenient = failed - self.failures(false).count();
        let not_run = match not_run {
            0 => String::new(),
            not_run => format!(", {not_run} not run"),
        };
        let _ = writeln!(
            out,
            "{kept} kept, {failed} failed ({lenient} of them drover's own), {skipped} skipped{not_run}, in {:.1} s",
            self.took.as_secs_f64()
        );
        out
    }

    /// One object a line of the table, and the totals.
    pub fn json(&self) -> serde_json::Value {
        let lines: Vec<_> = self
            .lines
            .iter()
            .map(|line| {
                let (verdict, why) = match &line.verdict {
                    Verdict::Kept => ("kept", None),
                    Verdict::Failed(why) => ("failed", Some(why)),
                    Verdict::Skipped(why) => ("skipped", Some(why)),
                    Verdict::CutOff(why) => ("cut_off", Some(why)),
                    Verdict::NotRun => ("not_run", None),
                };
                json!({
                    "rule": line.rule, "text": line.text, "spec": line.spec, "form": line.form.name(),
                    "level": match line.level { Level::Required => "required", Level::Drover => "drover" },
                    "verdict": verdict, "why": why, "ms": line.took.as_millis() as u64,
                })
            })
            .collect();
        let Counts {
            kept,
            failed,
            skipped,
            not_run,
        } = self.counts();
        json!({
            "kept": kept, "failed": failed, "failed_required": self.failures(false).count(), "skipped": skipped,
            "not_run": not_run, "gone": self.gone,
            "seconds": self.took.as_secs_f64(), "missing": self.missing.iter().map(|(what, _)| what).collect::<Vec<_>>(),
            "rules": lines,
        })
    }

    /// JUnit XML: a suite for each form. What only this project decides counts as skipped when it fails, as does what
    /// was not run because the relay had gone; during what it went is an error.
    pub fn junit(&self) -> String {
        let mut out = String::from(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"drover conform\">\n",
        );
        for form in Form::ALL {
            let lines: Vec<&Line> = self.lines.iter().filter(|line| line.form == form).collect();
            let fails =
                |line: &Line| matches!(line.verdict, Verdict::Failed(_)) && line.level == Level::Required;
            let failures = lines.iter().filter(|line| fails(line)).count();
            let is_error = |line: &Line| matches!(line.verdict, Verdict::CutOff(_));
            let errors = lines.iter().filter(|line| is_error(line)).count();
            let kept = lines.iter().filter(|line| line.verdict == Verdict::Kept).count();
            let skipped = lines.len() - kept - failures - errors;
            let _ = writeln!(
                out,
                "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{failures}\" errors=\"{errors}\" \
                 skipped=\"{skipped}\">",
                form.name(),
                lines.len(),
            );
            for line in lines {
                let _ = write!(
                    out,
                    "    <testcase classname=\"weald.{}\" name=\"{}\" time=\"{:.3}\"",
                    form.name(),
                    escaped(&line.rule),
                    line.took.as_secs_f64()
                );
                let _ = match &line.verdict {
                    Verdict::Kept => writeln!(out, "/>"),
                    Verdict::Failed(why) if fails(line) => {
                        writeln!(out, "><failure message=\"{}\"/></testcase>", escaped(why))
                    }
                    Verdict::Failed(why) | Verdict::Skipped(why) => {
                        writeln!(out, "><skipped message=\"{}\"/></testcase>", escaped(why))
                    }
                    Verdict::CutOff(why) => {
                        writeln!(out, "><error message=\"{}\"/></testcase>", escaped(why))
                    }
                    Verdict::NotRun => {
                        writeln!(
                            out,
                            "><skipped message=\"not run: the relay had gone\"/></testcase>"
                        )
                    }
                };
            }
            out.push_str("  </testsuite>\n");
        }
        out.push_str("</testsuites>\n");
        out
    }
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for symbol in text.chars() {
        match symbol {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            symbol if symbol.is_control() => out.push(' '),
            symbol => out.push(symbol),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script;
    use serde_json::json;

    fn report(verdicts: Vec<(&str, Option<&str>, Verdict)>) -> Report {
        let line = |(index, (rule, level, verdict)): (usize, (&str, Option<&str>, Verdict))| {
            let mut json =
                json!({"rule": rule, "text": "is done", "spec": "02 §6", "steps": [["a", "opens"]]});
            if let Some(level) = level {
                json["level"] = level.into();
            }
            let scripts = script::parse(&json!({"scripts": [json]})).unwrap();
            Line::new(index, &scripts[0], Form::Array, verdict)
        };
        Report {
            lines: verdicts.into_iter().enumerate().map(line).collect(),
            missing: Vec::new(),
            gone: None,
            took: Duration::from_secs(1),
        }
    }

    /// What only this project decides is told but fails nobody, unless it is asked for.
    #[test]
    fn drovers_own_rules_fail_only_drover() {
        let failed = || Verdict::Failed("got <this> & \"that\"".into());
        let report = report(vec![
            ("a", None, Verdict::Kept),
            ("b", Some("drover"), failed()),
            ("c", None, Verdict::Skipped("no calls".into())),
        ]);
        assert_eq!(
            (report.failures(false).count(), report.failures(true).count()),
            (0, 1)
        );
        let counts = report.counts();
        assert_eq!(
            (counts.kept, counts.failed, counts.skipped, counts.not_run),
            (1, 1, 1, 0)
        );
        assert_eq!(report.ended_early(), None);
        let table = report.table();
        assert!(
            table.contains("FAILED") && table.contains("array: got <this>") && table.contains("no calls")
        );
        let xml = report.junit();
        assert!(
            xml.contains("failures=\"0\" errors=\"0\" skipped=\"2\"")
                && xml.contains("&lt;this&gt; &amp; &quot;that&quot;")
        );
        assert_eq!(report.json()["failed_required"], 0);

        let report = super::tests::report(vec![("a", None, failed())]);
        assert_eq!(report.failures(false).count(), 1);
        assert!(report.junit().contains("<failure "));
    }

    /// Nobody can be blamed for what was not looked at, and nobody may overlook that it was not.
    #[test]
    fn a_relay_that_went_away_has_broken_nothing_more() {
        let mut report = report(vec![
            ("a", None, Verdict::Kept),
            ("b", None, Verdict::CutOff("the connection ended".into())),
            ("c", None, Verdict::NotRun),
        ]);
        report.gone = Some("no connection: refused".into());
        assert_eq!((report.failures(true).count(), report.counts().not_run), (0, 2));
        let said = report.ended_early().unwrap();
        assert_eq!(
            said,
            "the relay went away during b (no connection: refused): 2 of 3 lines were not run to their end"
        );
        let table = report.table();
        assert!(
            table.contains("0 failed") && table.contains("2 not run") && !table.contains("FAILED"),
            "{table}"
        );
        let json = report.json();
        let verdicts: Vec<_> = (0..3).map(|n| json["rules"][n]["verdict"].clone()).collect();
        assert_eq!(verdicts, ["kept", "cut_off", "not_run"]);
        assert_eq!(
            (&json["not_run"], &json["gone"]),
            (&json!(2), &json!("no connection: refused"))
        );
        let xml = report.junit();
        assert!(xml.contains("failures=\"0\" errors=\"1\" skipped=\"1\""), "{xml}");
        assert!(
            xml.contains("<error message=\"the connection ended\"") && xml.contains("not run"),
            "{xml}"
        );
    }
}
