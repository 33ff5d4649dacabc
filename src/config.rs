//! What the operator chose (13 §a): environment before relay.toml before the default, each value understood once, then
//! the rules over several of them.
//!
//! | Module | Story |
//! | --- | --- |
//! | [`table`] | every setting, one row each |
//! | [`kind`] | what a value may look like |
//! | [`environment`] | names in the process environment |
//! | [`mod@file`] | relay.toml |
//! | [`rules`] | what may not stand together |
//! | [`mod@report`] | `--check-config` |

mod environment;
mod file;
mod kind;
#[cfg(test)]
mod reference;
mod report;
mod rules;
mod table;
#[cfg(test)]
mod tests;

pub use environment::Environment;
pub(crate) use kind::{Database, HostPort, Storage};
pub(crate) use report::report;
pub(crate) use table::Key;

use crate::handoff::HandoffKey;
use kind::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use table::TABLE;

/// Why the configuration can't be used: exit code 78. One line that names the variable or the file, and no secret.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ConfigError(String);

impl ConfigError {
    /// A complaint about a setting.
    pub(crate) fn of_key(key: Key, what: &str) -> Self {
        Self::of_name(key.name(), what)
    }

    /// A complaint about a file or an unknown name.
    fn of_name(name: &str, what: &str) -> Self {
        Self(format!("{} {what}", name.escape_debug()))
    }
}

/// Whether these bytes are the name of a setting.
pub(crate) fn is_setting(name: &[u8]) -> bool {
    TABLE.iter().any(|row| row.name.as_bytes() == name)
}

/// What `--check-config` prints for these settings and this relay.toml. Unlike it, opens no file they name.
///
/// # Errors
/// The complaint, one line.
pub fn check_settings(environment: &Environment, relay_toml: &[u8]) -> Result<String, String> {
    let resolve = || {
        let stated = environment::read(environment)?;
        let refuse = |what: &str| ConfigError::of_name(file::DEFAULT, what);
        Config::resolve(stated, file::parse(relay_toml, &refuse)?)
    };
    resolve()
        .map(|config| report(&config))
        .map_err(|error: ConfigError| error.to_string())
}

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The process environment.
    Environment,
    /// relay.toml.
    File,
    /// Nobody stated it.
    Default,
}

/// Every setting, understood and checked.
#[derive(Debug)]
pub(crate) struct Config {
    /// By the key's number.
    values: Vec<(Value, Source)>,
    image_digest: Option<String>,
}

impl Config {
    /// Resolves every setting. `file` is the argument of `--config`.
    ///
    /// # Errors
    /// The first thing that is wrong, in the order of 13 §a.3.
    pub(crate) fn load(environment: &Environment, file: Option<&Path>) -> Result<Self, ConfigError> {
        let stated = environment::read(environment)?;
        let config = Self::resolve(stated, file::read(file)?)?;
        rules::servable(&config)?;
        Ok(config)
    }

    /// The same without relay.toml.
    ///
    /// # Errors
    /// As [`Config::load`].
    #[cfg(test)]
    pub(crate) fn without_file(environment: &Environment) -> Result<Self, ConfigError> {
        Self::resolve(environment::read(environment)?, BTreeMap::new())
    }

    fn resolve(
        mut from_environment: environment::Stated,
        mut from_file: BTreeMap<usize, String>,
    ) -> Result<Self, ConfigError> {
        let mut values = vec![(Value::Unset, Source::Default); TABLE.len()];
        // The three that used to be required are looked at first.
        let first = [Key::Hostname, Key::DatabaseUrl, Key::StorageUrl].map(|key| key as usize);
        for place in first
            .into_iter()
            .chain((0..TABLE.len()).filter(|place| !first.contains(place)))
        {
            let row = &TABLE[place];
            let stated = match (from_environment.values.remove(&place), from_file.remove(&place)) {
                (Some(text), _) => Some((text, Source::Environment)),
                (None, Some(text)) => Some((text, Source::File)),
                (None, None) => row.default.map(|text| (text.to_owned(), Source::Default)),
            };
            if let Some((text, source)) = stated {
                let value = row
                    .kind
                    .parse(&text)
                    .map_err(|what| ConfigError::of_key(row.key, &what))?;
                values[place] = (value, source);
            }
        }
        let config = Self {
            values,
            image_digest: from_environment.image_digest,
        };
        rules::check(&config)?;
        Ok(config)
    }

    fn value(&self, key: Key) -> &Value {
        &self.values[key as usize].0
    }

    fn source(&self, key: Key) -> Source {
        self.values[key as usize].1
    }

    /// Whether the operator said it.
    pub(crate) fn is_stated(&self, key: Key) -> bool {
        self.source(key) != Source::Default
    }

    fn is_set(&self, key: Key) -> bool {
        self.value(key) != &Value::Unset
    }

    fn is_default_value(&self, key: Key) -> bool {
        let row = &TABLE[key as usize];
        row.default.and_then(|text| row.kind.parse(text).ok()).as_ref() == Some(self.value(key))
    }

    /// A free text; `None`: unset.
    pub(crate) fn text(&self, key: Key) -> Option<&str> {
        match self.value(key) {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A word out of the row's list.
    pub(crate) fn word(&self, key: Key) -> &'static str {
        match self.value(key) {
            Value::Word(word) => word,
            value => unreachable!("{key:?} is a word with a default, not {value:?}"),
        }
    }

    /// An on/off switch.
    pub(crate) fn on(&self, key: Key) -> bool {
        self.word(key) == "on"
    }

    /// A limit; `None`: off.
    pub(crate) fn limit(&self, key: Key) -> Option<u64> {
        match self.value(key) {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// A number that can't be turned off.
    pub(crate) fn number(&self, key: Key) -> u64 {
        match self.value(key) {
            Value::Number(number) => *number,
            value => unreachable!("{key:?} is a number with a default, not {value:?}"),
        }
    }

    /// An address to listen on.
    pub(crate) fn address(&self, key: Key) -> &HostPort {
        match self.value(key) {
            Value::HostPort(address) => address,
            value => unreachable!("{key:?} is an address with a default, not {value:?}"),
        }
    }

    /// The public name.
    pub(crate) fn hostname(&self) -> &str {
        self.text(Key::Hostname).unwrap_or_default()
    }

    /// The data folder, absolute.
    pub(crate) fn data_dir(&self) -> PathBuf {
        let path = Path::new(self.text(Key::DataDir).unwrap_or_default());
        std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
    }

    /// The folder of the embedded store.
    pub(crate) fn store_dir(&self) -> PathBuf {
        match self.value(Key::DatabaseUrl) {
            Value::Database(Database::Embedded(path)) => path.clone(),
            _ => self.data_dir().join("store"),
        }
    }

    /// Where blobs go.
    pub(crate) fn storage(&self) -> Storage {
        match self.value(Key::StorageUrl) {
            Value::Storage(storage) => storage.clone(),
            _ => Storage::Folder(self.data_dir().join("blobs")),
        }
    }

    /// Shards of the process: stated, or one per core.
    pub(crate) fn shards(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        self.limit(Key::Shards)
            .and_then(|n| usize::try_from(n).ok())
            .unwrap_or_else(cores)
    }

    /// Where devices are told to register while push is on (12 §8).
    pub(crate) fn push_register_url(&self) -> Option<String> {
        if !self.on(Key::Push) {
            return None;
        }
        let stated = self.text(Key::PushRegisterUrl).map(str::to_owned);
        stated.or_else(|| {
            let url = self.text(Key::PushUrl)?.trim_end_matches('/');
            let base = url.strip_suffix("/v1/wake").unwrap_or(url);
            Some(format!("{}/v1/handles", base.trim_end_matches('/')))
        })
    }

    /// The key first invites are sealed to instead of being printed.
    pub(crate) fn handoff_key(&self) -> Option<&HandoffKey> {
        match self.value(Key::BootstrapHandoffPubkey) {
            Value::Key(key) => Some(key),
            _ => None,
        }
    }

    /// The digest the image was given, if any.
    pub(crate) fn image_digest(&self) -> Option<&str> {
        self.image_digest.as_deref()
    }
}
