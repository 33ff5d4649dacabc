//! The scripts as data: all can be meant, and together they show every row of 04 §2 that can be shown from outside.

use crate::section;
use drover_vectors::script;
use drover_wire::error::Code;
use std::collections::{BTreeMap, BTreeSet};

#[test]
fn every_refusal_has_its_rules_or_a_reason() {
    let scripts = script::all(None).unwrap();
    let text: BTreeMap<&str, String> = scripts
        .iter()
        .map(|script| (script.rule.as_str(), format!("{:?}", script.steps)))
        .collect();
    let mut codes = BTreeSet::new();
    for row in section("coverage.json", "rows") {
        let code = row["code"].as_str().unwrap();
        codes.insert(code.to_owned());
        match row["rules"].as_array() {
            None => assert!(
                row["reason"].as_str().is_some_and(|reason| reason.len() > 10),
                "{row}"
            ),
            Some(rules) => {
                assert!(!rules.is_empty() && row["reason"].is_null(), "{row}");
                for rule in rules {
                    let rule = rule.as_str().unwrap();
                    let steps = text.get(rule).unwrap_or_else(|| panic!("no rule {rule}"));
                    assert!(steps.contains(code), "{rule} does not show {code}");
                }
            }
        }
    }
    let all: BTreeSet<_> = Code::ALL
        .iter()
        .map(|code| format!("{}/{}", code.class().as_str(), code.as_str()))
        .collect();
    assert_eq!(codes, all);
}

/// What a script needs is something that is looked for, and an actor who is nobody's is a mistake.
#[test]
fn scripts_need_what_is_probed_and_name_who_takes_part() {
    let scripts = script::all(None).unwrap();
    let probed: BTreeSet<_> = scripts
        .iter()
        .filter(|script| script.probe)
        .map(|script| script.rule.trim_start_matches("can ").to_owned())
        .chain(["second workspace".to_owned()])
        .collect();
    for script in scripts.iter().filter(|script| !script.probe) {
        for need in &script.needs {
            assert!(
                probed.contains(need),
                "{} needs {need}, which nobody looks for",
                script.rule
            );
        }
        let steps = format!("{:?}", script.steps);
        for name in script
            .strangers
            .iter()
            .chain(&script.outsiders)
            .chain(&script.recovery)
        {
            assert!(
                steps.contains(name.as_str()),
                "{}: {name} does not take part",
                script.rule
            );
        }
    }
}
