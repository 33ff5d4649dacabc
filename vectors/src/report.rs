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

    /// Lines with this kind of verdict: kept, failed, skipped.
    pub fn counts(&self) -> (usize, usize, usize) {
        let count = |is: fn(&Verdict) -> bool| self.lines.iter().filter(|line| is(&line.verdict)).count();
        (
            count(|verdict| matches!(verdict, Verdict::Kept)),
            count(|verdict| matches!(verdict, Verdict::Failed(_))),
            count(|verdict| matches!(verdict, Verdict::Skipped(_))),
        )
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
                    Verdict::Failed(why) => drop(writeln!(out, "    {}: {why}", line.form.name())),
                    Verdict::Skipped(why) => drop(writeln!(out, "    {}: {why}", line.form.name())),
                    Verdict::Kept => {}
                }
            }
        }
        for (what, why) in &self.missing {
            let _ = writeln!(out, "not offered: {what}: {why}");
        }
        let (kept, failed, skipped) = self.counts();
        let lenient = failed - self.failures(false).count();
        let _ = writeln!(
            out,
            "{kept} kept, {failed} failed ({lenient} of them drover's own), {skipped} skipped, in {:.1} s",
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
                };
                json!({
                    "rule": line.rule, "text": line.text, "spec": line.spec, "form": line.form.name(),
                    "level": match line.level { Level::Required => "required", Level::Drover => "drover" },
                    "verdict": verdict, "why": why, "ms": line.took.as_millis() as u64,
                })
            })
            .collect();
        let (kept, failed, skipped) = self.counts();
        json!({
            "kept": kept, "failed": failed, "failed_required": self.failures(false).count(), "skipped": skipped,
            "seconds": self.took.as_secs_f64(), "missing": self.missing.iter().map(|(what, _)| what).collect::<Vec<_>>(),
            "rules": lines,
        })
    }

    /// JUnit XML: a suite for each form. What only this project decides counts as skipped when it fails.
    pub fn junit(&self) -> String {
        let mut out = String::from(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"drover conform\">\n",
        );
        for form in Form::ALL {
            let lines: Vec<&Line> = self.lines.iter().filter(|line| line.form == form).collect();
            let fails =
                |line: &Line| matches!(line.verdict, Verdict::Failed(_)) && line.level == Level::Required;
            let failures = lines.iter().filter(|line| fails(line)).count();
            let skipped = lines
                .iter()
                .filter(|line| line.verdict != Verdict::Kept && !fails(line))
                .count();
            let _ = writeln!(
                out,
                "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{failures}\" skipped=\"{skipped}\">",
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
        assert_eq!(report.counts(), (1, 1, 1));
        let table = report.table();
        assert!(
            table.contains("FAILED") && table.contains("array: got <this>") && table.contains("no calls")
        );
        let xml = report.junit();
        assert!(
            xml.contains("failures=\"0\" skipped=\"2\"")
                && xml.contains("&lt;this&gt; &amp; &quot;that&quot;")
        );
        assert_eq!(report.json()["failed_required"], 0);

        let report = super::tests::report(vec![("a", None, failed())]);
        assert_eq!(report.failures(false).count(), 1);
        assert!(report.junit().contains("<failure "));
    }
}
