//! What `--check-config` prints (13 §a.5): one line per setting with its value and where it came from.

use super::kind::Value;
use super::table::{Key, Row, Shown, TABLE};
use super::{Config, Source};
use std::fmt::Write as _;

/// All lines.
pub(crate) fn report(config: &Config) -> String {
    let mut out = String::new();
    let width = TABLE.iter().map(|row| row.name.len()).max().unwrap_or_default();
    for row in TABLE {
        let source = match config.source(row.key) {
            Source::Environment => "environment",
            Source::File => "relay.toml",
            Source::Default => "default",
        };
        let _ = writeln!(out, "{:<width$} {:<34} {source}", row.name, shown(config, row));
    }
    out
}

/// The value as it may be shown on one line.
fn shown(config: &Config, row: &Row) -> String {
    match row.key {
        Key::RedisUrl if !config.is_set(row.key) => "unset, single-process mode".to_owned(),
        Key::DatabaseUrl if !config.is_set(row.key) => "unset, embedded in the data folder".to_owned(),
        Key::SmtpUrl if config.is_set(row.key) => "[set, and unused: this relay sends no mail]".to_owned(),
        Key::MaxConcurrentCalls if !config.on(Key::Calls) => "unset, calls off".to_owned(),
        Key::PushUrl | Key::PushRegisterUrl if !config.on(Key::Push) => "unset, push off".to_owned(),
        Key::PushRegisterUrl => plain(config.push_register_url().as_deref().unwrap_or("unset")),
        Key::LiveFanout if config.text(row.key) == Some("process") => "process".to_owned(),
        Key::StorageUrl => plain(&config.storage().to_string()),
        Key::Shards => config.shards().to_string(),
        _ => match (config.value(row.key), row.shown) {
            (Value::Unset, _) => "unset".to_owned(),
            (_, Shown::Set) => "[set]".to_owned(),
            (_, Shown::SetNotPrinted) => "[set, not printed]".to_owned(),
            (Value::Text(text), Shown::Plain) => plain(text),
            (Value::Word(word), Shown::Plain) => (*word).to_owned(),
            (Value::Number(number), Shown::Plain) => number.to_string(),
            (Value::Unlimited, Shown::Plain) => "unlimited".to_owned(),
            (Value::HostPort(address), Shown::Plain) => plain(&address.to_string()),
            (Value::Storage(storage), Shown::Plain) => plain(&storage.to_string()),
            (Value::Database(_) | Value::Key(_), Shown::Plain) => "[set, not printed]".to_owned(),
        },
    }
}

/// Free text on one line.
fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}
