//! relay.toml (13 §a.1): full names at top level, or lower-case ones without their prefix under `[relay]`; both may be
//! mixed. Absence of the default file is no error. Complaints name the file and the key, and never quote a line.

use super::ConfigError;
use super::environment::nearest;
use super::table::{Row, TABLE};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

/// The file looked for in the working directory when none is named.
pub(crate) const DEFAULT: &str = "relay.toml";

/// What the file states, by the key's number. `named` is the argument of `--config`, which must exist.
///
/// # Errors
/// A file that can't be read, is not TOML, or holds a name or a type that has no place in it.
pub(crate) fn read(named: Option<&Path>) -> Result<BTreeMap<usize, String>, ConfigError> {
    let path = named.unwrap_or(Path::new(DEFAULT));
    let refuse = |what: &str| ConfigError::of_name(&path.display().to_string(), what);
    match std::fs::read(path) {
        Ok(bytes) => parse(&bytes, &refuse),
        Err(error) if error.kind() == ErrorKind::NotFound && named.is_none() => Ok(BTreeMap::new()),
        Err(error) => Err(refuse(&format!("cannot be read: {}", error.kind()))),
    }
}

/// What these bytes of a file state.
///
/// # Errors
/// What `refuse` makes of a complaint.
pub(super) fn parse(
    bytes: &[u8],
    refuse: &dyn Fn(&str) -> ConfigError,
) -> Result<BTreeMap<usize, String>, ConfigError> {
    let text = std::str::from_utf8(bytes).map_err(|_| refuse("is not UTF-8"))?;
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        // The error's own text quotes the line, which may hold a secret.
        let at = error.span().map_or(0, |span| span.start.min(text.len()));
        let line = 1 + text.as_bytes()[..at].iter().filter(|b| **b == b'\n').count();
        refuse(&format!("is not TOML, see line {line}"))
    })?;
    let mut values = BTreeMap::new();
    let mut insert = |row: Option<&Row>, key: &str, value: &toml::Value| {
        let row = row.ok_or_else(|| refuse(&not_a_setting(key)))?;
        let text = match value {
            toml::Value::String(text) => text.clone(),
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::Boolean(truth) => truth.to_string(),
            _ => {
                return Err(refuse(&format!(
                    "must give {} as a string, integer or boolean",
                    row.name
                )));
            }
        };
        match values.insert(row.key as usize, text) {
            None => Ok(()),
            Some(_) => Err(refuse(&format!("states {} twice", row.name))),
        }
    };
    for (key, value) in &table {
        match value {
            toml::Value::Table(relay) if key == "relay" => {
                for (key, value) in relay {
                    insert(TABLE.iter().find(|row| row.short() == *key), key, value)?;
                }
            }
            _ if key == "relay" => return Err(refuse("must have relay as a table: [relay]")),
            value => insert(TABLE.iter().find(|row| row.name == key), key, value)?,
        }
    }
    Ok(values)
}

fn not_a_setting(key: &str) -> String {
    let shown = key.escape_debug();
    let upper = key.to_ascii_uppercase();
    let full = if upper.starts_with("WEALD_RELAY_") || upper.starts_with("DROVER_") {
        nearest(&upper)
    } else {
        nearest(&format!("WEALD_RELAY_{upper}"))
    };
    format!("names {shown}, which is not a setting; did you mean {full}?")
}

#[cfg(test)]
mod tests {
    use super::super::table::Key;
    use super::*;

    fn parse_text(text: &str) -> Result<BTreeMap<usize, String>, String> {
        parse(text.as_bytes(), &|what| ConfigError::of_name(DEFAULT, what)).map_err(|e| e.to_string())
    }

    #[test]
    fn both_spellings_may_be_mixed() {
        let values = parse_text(
            "WEALD_RELAY_HOSTNAME = \"a\"\nDROVER_SHARDS = 2\n[relay]\nmax_connections = 4\ncalls = true\ndata_dir = \"/d\"\n",
        )
        .unwrap();
        for (key, text) in [
            (Key::Hostname, "a"),
            (Key::Shards, "2"),
            (Key::MaxConnections, "4"),
            (Key::Calls, "true"),
            (Key::DataDir, "/d"),
        ] {
            assert_eq!(values[&(key as usize)], text);
        }
    }

    #[test]
    fn what_has_no_place_in_it_is_refused_by_name() {
        for (text, mention) in [
            ("[relay]\nbogus_key = \"x\"\n", "bogus_key"),
            ("WEALD_RELAY_BOGUS = \"x\"\n", "WEALD_RELAY_BOGUS"),
            ("hostname = \"x\"\n", "WEALD_RELAY_HOSTNAME"),
            ("[relay]\nimage_digest = \"x\"\n", "image_digest"),
            ("WEALD_RELAY_IMAGE_DIGEST = \"x\"\n", "WEALD_RELAY_IMAGE_DIGEST"),
            ("[relay]\nWEALD_RELAY_LIVE = \"on\"\n", "WEALD_RELAY_LIVE"),
            ("[relay]\nmin_enc = [1]\n", "WEALD_RELAY_MIN_ENC"),
            ("[relay.min_enc]\nx = 1\n", "WEALD_RELAY_MIN_ENC"),
            ("[relay]\nmax_log_gb = 1.5\n", "WEALD_RELAY_MAX_LOG_GB"),
            ("[relay]\nhostname = 2024-01-01\n", "WEALD_RELAY_HOSTNAME"),
            ("relay = 3\n", "relay as a table"),
            ("[other]\n", "other"),
            (
                "[relay]\nhostname = \"a\"\n\"WEALD_RELAY_HOSTNAME\" = \"b\"\n",
                "WEALD_RELAY_HOSTNAME",
            ),
            (
                "WEALD_RELAY_HOSTNAME = \"a\"\n[relay]\nhostname = \"a\"\n",
                "states WEALD_RELAY_HOSTNAME twice",
            ),
        ] {
            let refusal = parse_text(text).unwrap_err();
            assert!(
                refusal.starts_with("relay.toml") && refusal.contains(mention),
                "{text:?}: {refusal}"
            );
        }
    }

    #[test]
    fn a_line_that_is_not_toml_is_numbered_and_not_shown() {
        let refusal = parse_text("[relay]\nhostname = \"a\"\noperator_token = \"hunter2\n").unwrap_err();
        assert!(
            refusal.contains("line 3") && !refusal.contains("hunter2") && !refusal.contains('\n'),
            "{refusal}"
        );
    }

    /// W13.45: a named file must be there, the default one need not.
    #[test]
    fn a_named_file_must_exist() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("other.toml");
        assert!(read(Some(&path)).unwrap_err().to_string().contains("other.toml"));
        std::fs::write(&path, "[relay]\nshards = 3\n").unwrap();
        assert_eq!(read(Some(&path)).unwrap()[&(Key::Shards as usize)], "3");
        assert!(read(Some(folder.path())).is_err(), "a folder is not a file");
    }
}
