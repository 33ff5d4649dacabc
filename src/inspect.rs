//! What `drover workspace list`, `show` and `log` ask, and how the answer is told: counts, and the transparency log. The
//! private listener of a running relay and a store that nobody has open give the same answer.

use crate::cli::Failure;
use crate::workspace::hex;
use drover_engine::Directory;
use drover_engine::effects::Stores;
use drover_engine::inspect::{self, RealmReport, TransparencyLog};
use drover_storage::embedded::Embedded;
use drover_storage::{RealmId, StoreError};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::sync::Arc;

/// What the private listener says about a name it does not know.
pub(crate) const NO_SUCH: &str = "no such workspace";

/// A question about workspaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// Which there are.
    List,
    /// What can be counted of one.
    Show(RealmId),
    /// Its transparency log.
    Log(RealmId),
}

impl Question {
    /// Where the private listener answers it.
    pub(crate) fn path(&self) -> String {
        let of = |realm| format!("/workspaces/{}", in_a_path(name(realm)));
        match self {
            Self::List => "/workspaces".to_owned(),
            Self::Show(realm) => of(realm),
            Self::Log(realm) => of(realm) + "/log",
        }
    }

    /// The answer of a store that no relay has open; `None`: there is no such workspace. Blocks.
    ///
    /// # Errors
    /// When the store does not answer, or holds what can't be read.
    pub(crate) fn ask_stopped(&self, store: &Embedded) -> Result<Option<Value>, StoreError> {
        let stores = Stores {
            log: Arc::new(store.clone()),
            control: Arc::new(store.clone()),
        };
        let directory = Directory::open(store)?;
        let realms = directory.realms();
        let summary_of = |realm| inspect::report(&stores, &directory, realm).map(|report| summary(&report));
        Ok(match self {
            Self::List => Some(Value::Array(
                realms.iter().map(summary_of).collect::<Result<_, _>>()?,
            )),
            Self::Show(realm) | Self::Log(realm) if !realms.contains(realm) => None,
            Self::Show(realm) => Some(summary_of(realm)?),
            Self::Log(realm) => Some(log(&inspect::log(&stores, realm)?)),
        })
    }

    /// The answer as it is printed.
    ///
    /// # Errors
    /// 78 if the log's chain is broken; 69 if the answer is none of ours.
    pub(crate) fn tell(&self, answer: &Value) -> Result<String, Failure> {
        let told = match self {
            Self::List => tell_list(answer),
            Self::Show(_) => tell_summary(answer),
            Self::Log(realm) => {
                if let Some(seq) = answer["broken_at"].as_u64() {
                    return Err(Failure::config(format!(
                        "the transparency log of {} is broken: entry {seq} does not follow from the one before it",
                        name(realm)
                    )));
                }
                tell_log(answer)
            }
        };
        told.ok_or_else(|| Failure::unavailable("the relay answered in a way that is not understood"))
    }
}

/// A workspace's name, as it was given to `drover workspace new`.
pub(crate) fn name(realm: &RealmId) -> &str {
    realm.0.strip_prefix("ws:").unwrap_or(&realm.0)
}

/// Percent-encodes what is more than a plain letter.
fn in_a_path(name: &str) -> String {
    let mut path = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => path.push(char::from(byte)),
            _ => {
                let _ = write!(path, "%{byte:02X}");
            }
        }
    }
    path
}

/// The counts of one workspace.
pub(crate) fn summary(report: &RealmReport) -> Value {
    json!({
        "name": name(&report.realm),
        "founded": report.entries.is_some(),
        "entries": report.entries.unwrap_or_default(),
        "groups": report.groups,
        "log_bytes": report.log_bytes,
    })
}

/// A transparency log.
pub(crate) fn log(log: &TransparencyLog) -> Value {
    let entries: Vec<Value> = log
        .entries
        .iter()
        .map(|entry| {
            json!({
                "seq": entry.seq,
                "kind": entry.kind,
                "recorded_ms": entry.recorded_ms,
                "entry_hash": hex(&entry.entry_hash.0),
            })
        })
        .collect();
    json!({ "entries": entries, "broken_at": log.broken_at })
}

/// The columns of a summary: name, founded, entries, groups, log bytes.
fn columns(summary: &Value) -> Option<[String; 5]> {
    let number = |field: &str| summary[field].as_u64().map(|number| number.to_string());
    Some([
        summary["name"].as_str()?.to_owned(),
        if summary["founded"].as_bool()? {
            "yes"
        } else {
            "no"
        }
        .to_owned(),
        number("entries")?,
        number("groups")?,
        number("log_bytes")?,
    ])
}

const TITLES: [&str; 5] = ["NAME", "FOUNDED", "ENTRIES", "GROUPS", "LOG_BYTES"];

fn tell_list(answer: &Value) -> Option<String> {
    let mut rows = vec![TITLES.map(str::to_owned)];
    for summary in answer.as_array()? {
        rows.push(columns(summary)?);
    }
    let widest = rows.iter().map(|row| row[0].chars().count()).max()?;
    let mut told = String::new();
    for [name, founded, entries, groups, log_bytes] in &rows {
        let _ = writeln!(
            told,
            "{name:<widest$}  {founded:<7}  {entries:>7}  {groups:>6}  {log_bytes:>14}"
        );
    }
    Some(told)
}

fn tell_summary(answer: &Value) -> Option<String> {
    let mut told = String::new();
    for (title, value) in TITLES.iter().zip(columns(answer)?) {
        let title = title.to_lowercase().replace('_', " ");
        let _ = writeln!(told, "{title:<9}  {value}");
    }
    Some(told)
}

fn tell_log(answer: &Value) -> Option<String> {
    let entries = answer["entries"].as_array()?;
    let mut told = String::new();
    for entry in entries {
        let (seq, kind) = (entry["seq"].as_u64()?, entry["kind"].as_str()?);
        let (at, hash) = (utc(entry["recorded_ms"].as_u64()?), entry["entry_hash"].as_str()?);
        let _ = writeln!(told, "{seq:>6}  {kind:<17}  {at}  {hash}");
    }
    let noun = if entries.len() == 1 { "entry" } else { "entries" };
    let _ = writeln!(told, "chain verified: {} {noun}", entries.len());
    Some(told)
}

/// A moment as RFC 3339 in UTC, to the second.
fn utc(ms: u64) -> String {
    let (days, second) = (ms / 86_400_000, ms / 1_000 % 86_400);
    // Years that begin in March end with the leap day; 719 468 days lie between the first of them and 1970.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399_999, "2000-02-28T23:59:59Z"),
            (951_868_799_000, "2000-02-29T23:59:59Z"),
            (951_868_800_000, "2000-03-01T00:00:00Z"),
            (1_700_000_000_000, "2023-11-14T22:13:20Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(ms), text);
        }
    }

    #[test]
    fn names_in_paths() {
        let realm = |name: &str| RealmId(format!("ws:{name}").into());
        for (asked, path) in [
            (Question::List, "/workspaces"),
            (Question::Show(realm("team.example")), "/workspaces/team.example"),
            (
                Question::Log(realm("a/b ?é")),
                "/workspaces/a%2Fb%20%3F%C3%A9/log",
            ),
        ] {
            assert_eq!(asked.path(), path);
        }
    }

    #[test]
    fn answers_are_told() {
        let summary =
            json!({ "name": "team.example", "founded": true, "entries": 5, "groups": 2, "log_bytes": 1234 });
        let told = Question::List.tell(&json!([summary])).unwrap();
        let words: Vec<Vec<&str>> = told
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            words,
            [TITLES.to_vec(), vec!["team.example", "yes", "5", "2", "1234"]]
        );
        let realm = RealmId("ws:team.example".into());
        let told = Question::Show(realm.clone()).tell(&summary).unwrap();
        assert!(told.ends_with("log bytes  1234\n"), "{told}");
        let entry = json!({ "seq": 0, "kind": "genesis", "recorded_ms": 0, "entry_hash": "ab" });
        let told = Question::Log(realm.clone()).tell(&json!({ "entries": [entry], "broken_at": null }));
        assert_eq!(
            told.unwrap(),
            "     0  genesis            1970-01-01T00:00:00Z  ab\nchain verified: 1 entry\n"
        );
        let broken = Question::Log(realm).tell(&json!({ "entries": [entry], "broken_at": 0 }));
        assert!(broken.unwrap_err().to_string().contains("entry 0"));
        assert!(Question::List.tell(&json!({})).is_err());
    }
}
