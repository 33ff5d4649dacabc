//! Scripts as the data files hold them: rules, and the steps that show whether a relay keeps one. vectors/README.md is
//! the reference of the format.

use crate::frames::Form;
use crate::values::{Bad, bad};
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeSet;
use std::path::Path;

/// The files of scripts, in the order they are run and printed.
const FILES: &[(&str, &str)] = &[
    ("capabilities", include_str!("../weald/scripts/capabilities.json")),
    ("session", include_str!("../weald/scripts/session.json")),
    ("states", include_str!("../weald/scripts/states.json")),
    ("refusals", include_str!("../weald/scripts/refusals.json")),
    ("sending", include_str!("../weald/scripts/sending.json")),
    ("recon", include_str!("../weald/scripts/recon.json")),
    ("plumbing", include_str!("../weald/scripts/plumbing.json")),
    ("live", include_str!("../weald/scripts/live.json")),
    ("wake", include_str!("../weald/scripts/wake.json")),
    ("limits", include_str!("../weald/scripts/limits.json")),
    ("retention", include_str!("../weald/scripts/retention.json")),
    ("calls", include_str!("../weald/scripts/calls.json")),
    ("blobs", include_str!("../weald/scripts/blobs.json")),
    ("map", include_str!("../weald/scripts/map.json")),
    ("invites", include_str!("../weald/scripts/invites.json")),
    ("access", include_str!("../weald/scripts/access.json")),
];

/// Who decides a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The protocol: every relay has to keep it.
    Required,
    /// This project, where the protocol leaves a choice or was amended (decisions.md). Told, but no fault of another
    /// relay.
    Drover,
}

/// One rule and how it is checked.
#[derive(Clone, Debug)]
pub struct Script {
    /// Unique, such as `send.hash-mismatch`.
    pub rule: String,
    /// What the relay has to do.
    pub text: String,
    /// Where that is said, with the numbers of the specification's test cases.
    pub spec: String,
    /// Who decides it.
    pub level: Level,
    /// Forms it applies to.
    pub forms: Vec<Form>,
    /// Capabilities the relay needs for it.
    pub needs: Vec<String>,
    /// Whether it waits out real time.
    pub slow: bool,
    /// Whether it changes what all share, and has to run alone, in the order of the file.
    pub alone: bool,
    /// Whether it is no rule but finds out what the relay can do.
    pub probe: bool,
    /// Actors who are in no access set.
    pub strangers: Vec<String>,
    /// Actors of the second workspace.
    pub outsiders: Vec<String>,
    /// Actors who are recovery keys of the first workspace, not devices.
    pub recovery: Vec<String>,
    /// What happens.
    pub steps: Vec<Step>,
}

/// One step: who, what, with what.
#[derive(Clone, Debug)]
pub struct Step {
    /// The connection: an actor's name, or `name.2` for another connection of the same actor.
    pub who: String,
    /// What it does or what happens to it.
    pub what: What,
}

/// See vectors/README.md, "Steps".
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum What {
    Opens {
        groups: Option<Json>,
        version: u64,
        until: Until,
        form: Option<Form>,
    },
    Sends {
        message: Message,
        form: Option<Form>,
    },
    Gets {
        frame: Frame,
    },
    GetsAll {
        frames: Vec<Frame>,
    },
    Refused {
        code: String,
        retry_after: Json,
        detail: Json,
        closes: bool,
    },
    Closed {
        status: Option<u16>,
    },
    Fences,
    Closes,
    Exhausts(Box<Exhausts>),
    Publishes {
        change: Map<String, Json>,
        refused: Option<(String, Json)>,
    },
    Lets {
        values: Map<String, Json>,
    },
    Repeats {
        times: Json,
        steps: Vec<Step>,
    },
    Waits {
        seconds: u64,
    },
}

/// A budget: the same frame again and again until it is refused.
#[derive(Clone, Debug)]
pub struct Exhausts {
    /// What is sent; `$n` counts from 0.
    pub message: Message,
    /// What every accepted one is answered with; `None` for frames without an answer.
    pub answer: Option<Frame>,
    /// The figure of the specification; a relay may have another and then has to name it.
    pub figure: u64,
    /// What ends it.
    pub code: String,
    /// Seconds in that refusal.
    pub retry_after: u64,
    /// Whether the window is a minute of the clock rather than one that begins with the first frame.
    pub aligned: bool,
}

/// How far a connection is brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Until {
    Fresh,
    Challenged,
    Ready,
}

/// A frame by name with fields or patterns.
#[derive(Clone, Debug)]
pub struct Frame {
    /// As in schema.json.
    pub name: String,
    /// Values to send, or patterns to match.
    pub fields: Map<String, Json>,
}

/// What a connection can send.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Message {
    Frame(Frame),
    Raw(String),
    Text(String),
    Ping,
}

/// All scripts: those built in, or instead those of the `.json` files of a folder.
///
/// # Errors
/// [`Bad`] names the file and the rule that can't be meant.
pub fn all(folder: Option<&Path>) -> Result<Vec<Script>, Bad> {
    let files = match folder {
        None => FILES
            .iter()
            .map(|(file, text)| ((*file).to_owned(), (*text).to_owned()))
            .collect(),
        Some(folder) => read(folder).map_err(|error| Bad(format!("{}: {error}", folder.display())))?,
    };
    let mut scripts = Vec::new();
    for (file, text) in &files {
        let within = |Bad(what): Bad| Bad(format!("{file}.json: {what}"));
        let json: Json = serde_json::from_str(text).map_err(|error| within(Bad(error.to_string())))?;
        scripts.extend(parse(&json).map_err(within)?);
    }
    if scripts.iter().all(|script| script.probe) {
        return bad("there is no rule in them");
    }
    let mut seen = BTreeSet::new();
    match scripts.iter().find(|script| !seen.insert(&script.rule)) {
        Some(twice) => bad(format!("{} is there twice", twice.rule)),
        None => Ok(scripts),
    }
}

/// Name and text of each file, in the order of the built-in ones, others by name behind them.
fn read(folder: &Path) -> std::io::Result<Vec<(String, String)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let name = path
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            files.push((name, std::fs::read_to_string(&path)?));
        }
    }
    let place = |name: &str| {
        FILES
            .iter()
            .position(|(file, _)| *file == name)
            .unwrap_or(FILES.len())
    };
    files.sort_by_cached_key(|(name, _)| (place(name), name.clone()));
    Ok(files)
}

/// The scripts of one file: those written out, and one for each row of its tables.
pub fn parse(file: &Json) -> Result<Vec<Script>, Bad> {
    let mut scripts = Vec::new();
    for json in array(&file["scripts"]) {
        let rule = json["rule"].as_str().unwrap_or("a script without a rule");
        scripts.push(script(json).map_err(|Bad(what)| Bad(format!("{rule}: {what}")))?);
    }
    for json in array(&file["rows"]) {
        let rule = json["rule"].as_str().unwrap_or("a row without a rule");
        scripts.push(row(json).map_err(|Bad(what)| Bad(format!("{rule}: {what}")))?);
    }
    Ok(scripts)
}

/// A row is a script in one line: somebody is brought to a state, sends, and is refused.
fn row(json: &Json) -> Result<Script, Bad> {
    let keys = [
        "rule",
        "text",
        "spec",
        "level",
        "forms",
        "needs",
        "state",
        "sends",
        "refused",
        "retry_after",
        "detail",
        "closes",
    ];
    only(json, &keys)?;
    let state = json["state"].as_str().unwrap_or("ready");
    let mut options = Map::new();
    for key in ["retry_after", "detail", "closes"] {
        if let Some(value) = json.get(key) {
            options.insert(key.to_owned(), value.clone());
        }
    }
    let mut steps = vec![json!(["member", "opens", {"until": state}])];
    steps.push(json!(["member", "sends", json["sends"]]));
    steps.push(match &json["refused"] {
        // BYE has its own end.
        Json::Null => json!(["member", "closed"]),
        code => json!(["member", "refused", code, options]),
    });
    let mut whole = json.as_object().cloned().unwrap_or_default();
    for key in ["state", "sends", "refused", "retry_after", "detail", "closes"] {
        whole.remove(key);
    }
    whole.insert("steps".into(), steps.into());
    script(&whole.into())
}

fn script(json: &Json) -> Result<Script, Bad> {
    let keys = [
        "rule",
        "text",
        "spec",
        "level",
        "forms",
        "needs",
        "slow",
        "alone",
        "probe",
        "strangers",
        "outsiders",
        "recovery",
        "steps",
    ];
    only(json, &keys)?;
    let text = |key: &str| match json[key].as_str() {
        Some(text) if !text.is_empty() => Ok(text.to_owned()),
        _ => bad(format!("{key} is missing")),
    };
    let outsiders = names(&json["outsiders"]);
    let mut needs = names(&json["needs"]);
    if !outsiders.is_empty() {
        needs.push("second workspace".into());
    }
    Ok(Script {
        rule: text("rule")?,
        text: text("text")?,
        spec: text("spec")?,
        level: match json["level"].as_str() {
            None => Level::Required,
            Some("drover") => Level::Drover,
            Some(other) => return bad(format!("no level {other}")),
        },
        forms: match names(&json["forms"]) {
            forms if forms.is_empty() => Form::ALL.to_vec(),
            forms => forms.iter().map(|name| form(name)).collect::<Result<_, _>>()?,
        },
        needs,
        slow: json["slow"] == true,
        alone: json["alone"] == true,
        probe: json["probe"] == true,
        strangers: names(&json["strangers"]),
        outsiders,
        recovery: names(&json["recovery"]),
        steps: steps(&json["steps"])?,
    })
}

impl Script {
    /// What its names are within, in this form.
    pub fn scope_name(&self, form: Form) -> String {
        format!("{}/{}", form.name(), self.rule)
    }

    /// Every actor with a connection or a key in the script.
    pub fn actors(&self) -> BTreeSet<String> {
        fn walk(steps: &[Step], out: &mut BTreeSet<String>) {
            for step in steps {
                match &step.what {
                    What::Repeats { steps, .. } => walk(steps, out),
                    What::Lets { .. } | What::Waits { .. } => {}
                    _ => {
                        out.insert(step.actor().to_owned());
                    }
                }
            }
        }
        let mut out = BTreeSet::new();
        walk(&self.steps, &mut out);
        out
    }

    /// Whether the relay has to end a connection in it: what a relay that crashes does as well.
    pub fn has_an_end(&self) -> bool {
        fn is_in(steps: &[Step]) -> bool {
            steps.iter().any(|step| match &step.what {
                What::Closed { .. } | What::Closes | What::Refused { closes: true, .. } => true,
                What::Repeats { steps, .. } => is_in(steps),
                _ => false,
            })
        }
        is_in(&self.steps)
    }
}

impl Step {
    /// Whose connection it is.
    pub fn actor(&self) -> &str {
        self.who.split('.').next().unwrap_or(&self.who)
    }
}

pub(crate) fn steps(json: &Json) -> Result<Vec<Step>, Bad> {
    let steps: Vec<Step> = array(json)
        .enumerate()
        .map(|(index, json)| step(json).map_err(|Bad(what)| Bad(format!("step {index}, {json}: {what}"))))
        .collect::<Result<_, _>>()?;
    match steps.is_empty() {
        true => bad("no steps"),
        false => Ok(steps),
    }
}

fn step(json: &Json) -> Result<Step, Bad> {
    let parts: Vec<&Json> = array(json).collect();
    let (Some(who), Some(verb)) = (
        parts.first().and_then(|part| part.as_str()),
        parts.get(1).and_then(|part| part.as_str()),
    ) else {
        return bad("who does what?");
    };
    let null = Json::Null;
    let (first, second) = (*parts.get(2).unwrap_or(&&null), *parts.get(3).unwrap_or(&&null));
    if parts.len() > 4 {
        return bad("a step has four parts at most");
    }
    let optional_form = |json: &Json| json["form"].as_str().map(form).transpose();
    let what = match verb {
        "opens" => {
            only(first, &["groups", "version", "until", "form"])?;
            What::Opens {
                groups: first.get("groups").cloned(),
                version: first["version"].as_u64().unwrap_or(4),
                until: match first["until"].as_str() {
                    None | Some("ready") => Until::Ready,
                    Some("challenged") => Until::Challenged,
                    Some("fresh") => Until::Fresh,
                    Some(other) => return bad(format!("no state {other}")),
                },
                form: optional_form(first)?,
            }
        }
        "sends" => {
            only(second, &["form"])?;
            What::Sends {
                message: message(first)?,
                form: optional_form(second)?,
            }
        }
        "gets" => What::Gets { frame: frame(first)? },
        "gets in any order" => What::GetsAll {
            frames: array(first).map(frame).collect::<Result<_, _>>()?,
        },
        "refused" => {
            only(second, &["retry_after", "detail", "closes"])?;
            What::Refused {
                code: code(first)?,
                retry_after: second.get("retry_after").cloned().unwrap_or(json!(0)),
                detail: second.get("detail").cloned().unwrap_or(json!("")),
                closes: second["closes"] == true,
            }
        }
        "closed" => {
            only(first, &["status"])?;
            What::Closed {
                status: first["status"].as_u64().map(|status| status as u16),
            }
        }
        "fences" => What::Fences,
        "closes" => What::Closes,
        "exhausts" => {
            only(second, &["answer", "figure", "code", "retry_after", "aligned"])?;
            What::Exhausts(Box::new(Exhausts {
                message: message(first)?,
                answer: second.get("answer").map(frame).transpose()?,
                figure: match second["figure"].as_u64() {
                    Some(figure) => figure,
                    None => return bad("figure is missing"),
                },
                code: second["code"].as_str().unwrap_or("quota/rate_limited").to_owned(),
                retry_after: second["retry_after"].as_u64().unwrap_or(60),
                aligned: second["aligned"] == true,
            }))
        }
        "publishes" => {
            only(first, &["add", "remove", "set", "confirm", "signed_by"])?;
            only(second, &["refused", "detail"])?;
            What::Publishes {
                change: first.as_object().cloned().unwrap_or_default(),
                refused: match second.get("refused") {
                    Some(json) => Some((code(json)?, second.get("detail").cloned().unwrap_or(json!("")))),
                    None => None,
                },
            }
        }
        "lets" => What::Lets {
            values: first.as_object().cloned().unwrap_or_default(),
        },
        "repeats" => What::Repeats {
            times: first.clone(),
            steps: steps(second)?,
        },
        "waits" => What::Waits {
            seconds: first.as_u64().unwrap_or_default(),
        },
        other => return bad(format!("nobody {other}")),
    };
    Ok(Step {
        who: who.to_owned(),
        what,
    })
}

fn message(json: &Json) -> Result<Message, Bad> {
    let object = json.as_object().into_iter().flatten();
    let parts: Vec<(&str, &Json)> = object.map(|(key, value)| (key.as_str(), value)).collect();
    Ok(match parts[..] {
        [("raw", Json::String(expression))] => Message::Raw(expression.clone()),
        [("text", Json::String(text))] => Message::Text(text.clone()),
        [("ping", _)] => Message::Ping,
        _ => Message::Frame(frame(json)?),
    })
}

fn frame(json: &Json) -> Result<Frame, Bad> {
    let object = json.as_object().into_iter().flatten();
    let parts: Vec<(&String, &Json)> = object.collect();
    match parts[..] {
        [(name, Json::Object(fields))] => Ok(Frame {
            name: name.clone(),
            fields: fields.clone(),
        }),
        _ => bad(format!("no frame: {json}")),
    }
}

fn code(json: &Json) -> Result<String, Bad> {
    match json.as_str() {
        Some(code) if code.split('/').count() == 2 => Ok(code.to_owned()),
        _ => bad(format!("no code: {json}")),
    }
}

fn form(name: &str) -> Result<Form, Bad> {
    let found = Form::ALL.into_iter().find(|form| form.name() == name);
    found.ok_or_else(|| Bad(format!("no form {name}")))
}

fn array(json: &Json) -> impl Iterator<Item = &Json> {
    json.as_array().into_iter().flatten()
}

fn names(json: &Json) -> Vec<String> {
    array(json)
        .filter_map(|name| Some(name.as_str()?.to_owned()))
        .collect()
}

fn only(json: &Json, keys: &[&str]) -> Result<(), Bad> {
    match json
        .as_object()
        .into_iter()
        .flatten()
        .find(|(key, _)| !keys.contains(&key.as_str()))
    {
        Some((key, _)) => bad(format!("{key} means nothing here")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A script that can't be meant says so instead of proving nothing.
    #[test]
    fn mistakes_in_scripts_are_told() {
        let script = |changes: Json| {
            let mut json = json!({"rule": "r", "text": "t", "spec": "s", "steps": [["a", "opens"]]});
            for (key, value) in changes.as_object().unwrap() {
                json[key] = value.clone();
            }
            parse(&json!({"scripts": [json]})).map_err(|Bad(what)| what)
        };
        assert_eq!(script(json!({})).unwrap()[0].forms, Form::ALL);
        for (changes, mention) in [
            (json!({"sloow": true}), "sloow"),
            (json!({"level": "mine"}), "mine"),
            (json!({"forms": ["tree"]}), "tree"),
            (json!({"steps": []}), "no steps"),
            (json!({"steps": [["a", "jumps"]]}), "jumps"),
            (json!({"steps": [["a", "refused", "code"]]}), "code"),
            (
                json!({"steps": [["a", "refused", "c/d", {"detial": ""}]]}),
                "detial",
            ),
            (json!({"steps": [["a", "opens", {"until": "noon"}]]}), "noon"),
            (json!({"text": ""}), "text"),
        ] {
            let what = script(changes).unwrap_err();
            assert!(what.contains(mention), "{what}");
        }
        let row = json!({"rows": [{"rule": "r", "text": "t", "spec": "s", "state": "fresh", "sends": {"raw": "00"},
            "refused": "reject/noncanonical_cbor"}]});
        assert_eq!(parse(&row).unwrap()[0].steps.len(), 3);
    }

    /// Wherever in a script the relay has to end a connection, that is seen.
    #[test]
    fn scripts_with_an_end_are_known() {
        let has_an_end = |steps: Json| {
            let json = json!({"rule": "r", "text": "t", "spec": "s", "steps": steps});
            parse(&json!({"scripts": [json]})).unwrap()[0].has_an_end()
        };
        assert!(!has_an_end(json!([["a", "opens"], ["a", "refused", "c/d"]])));
        for steps in [
            json!([["a", "opens"], ["a", "refused", "c/d", {"closes": true}]]),
            json!([["a", "opens"], ["a", "closed", {"status": 1000}]]),
            json!([["a", "closes"], ["a", "opens"]]),
            json!([["a", "repeats", 3, [["a", "opens"], ["a", "closed"]]]]),
        ] {
            assert!(has_an_end(steps.clone()), "{steps}");
        }
    }
}
