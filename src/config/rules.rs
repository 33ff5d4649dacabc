//! Rules over several settings (13 §a.3, §e; decisions.md 18, 25, 28), in the order they are checked. Only the first
//! complaint is reported.

use super::kind::{Database, Value, check_push_url};
use super::table::Key;
use super::{Config, ConfigError};
use std::fs::File;

/// The longest address a device is told to register with, bytes (13 §a.2).
const REGISTER_URL_BYTES_MAX: usize = 512;

/// Checks every rule over several settings.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    listeners(config)?;
    tls(config)?;
    processes(config)?;
    calls(config)?;
    push(config)?;
    hosted(config)
}

/// What depends on this machine or this build rather than on the settings alone.
pub(super) fn servable(config: &Config) -> Result<(), ConfigError> {
    for key in [Key::TlsCertFile, Key::TlsKeyFile] {
        let Some(path) = config.text(key) else { continue };
        if let Err(error) = File::open(path) {
            // Whoever put the key itself here, instead of its file's name, must not find it in a log.
            let path = match path.contains("-----") {
                true => "PEM instead of a path".to_owned(),
                false => path.escape_debug().to_string(),
            };
            return refuse(key, &format!("names a file that can't be read: {path}: {error}"));
        }
    }
    if config.value(Key::DatabaseUrl) == &Value::Database(Database::Scylla) {
        return refuse(
            Key::DatabaseUrl,
            "names a ScyllaDB cluster, and this build has only the embedded store",
        );
    }
    Ok(())
}

fn refuse(key: Key, what: &str) -> Result<(), ConfigError> {
    Err(ConfigError::of_key(key, what))
}

/// Names are compared as they stand: what they resolve to is found out by listening.
fn listeners(config: &Config) -> Result<(), ConfigError> {
    let [public, private] = [Key::Listen, Key::ObservabilityListen].map(|key| config.address(key));
    match public.overlaps(private) {
        true => refuse(
            Key::ObservabilityListen,
            "must be another address than WEALD_RELAY_LISTEN: the private listener has a port of its own",
        ),
        false => Ok(()),
    }
}

fn tls(config: &Config) -> Result<(), ConfigError> {
    let files = [Key::TlsCertFile, Key::TlsKeyFile];
    let from_files = config.word(Key::Tls) == "file";
    for key in files {
        if from_files && !config.is_set(key) {
            return refuse(key, "is needed with WEALD_RELAY_TLS=file");
        }
        if !from_files && config.is_set(key) {
            return refuse(
                key,
                "is set, and without WEALD_RELAY_TLS=file nothing would use it",
            );
        }
    }
    Ok(())
}

fn processes(config: &Config) -> Result<(), ConfigError> {
    if config.text(Key::LiveFanout) != Some("process") {
        return refuse(
            Key::LiveFanout,
            "must be process: a shared fan-out is not implemented",
        );
    }
    let shared = config.value(Key::DatabaseUrl) == &Value::Database(Database::Scylla);
    if config.is_set(Key::RedisUrl) && !shared {
        return refuse(
            Key::RedisUrl,
            "declares several processes, and the embedded store belongs to exactly one: unset it",
        );
    }
    Ok(())
}

fn calls(config: &Config) -> Result<(), ConfigError> {
    let ceiling_stated = config.is_stated(Key::MaxConcurrentCalls);
    match (config.on(Key::Calls), ceiling_stated) {
        (true, false) if config.is_stated(Key::Calls) => refuse(
            Key::MaxConcurrentCalls,
            "must be stated with WEALD_RELAY_CALLS=on: say how many calls this host can carry",
        ),
        (false, true) => refuse(Key::MaxConcurrentCalls, "is set while WEALD_RELAY_CALLS is off"),
        _ => Ok(()),
    }
}

fn push(config: &Config) -> Result<(), ConfigError> {
    if config.on(Key::Push) {
        let Some(url) = config.text(Key::PushUrl) else {
            return refuse(Key::PushUrl, "is needed with WEALD_RELAY_PUSH=on");
        };
        check_push_url(url, false).map_err(|what| ConfigError::of_key(Key::PushUrl, &what))?;
        let register = config.push_register_url().unwrap_or_default();
        if register.len() > REGISTER_URL_BYTES_MAX {
            return refuse(Key::PushRegisterUrl, "must be at most 512 bytes");
        }
        return check_push_url(&register, false)
            .map_err(|what| ConfigError::of_key(Key::PushRegisterUrl, &what));
    }
    let off = "is set while WEALD_RELAY_PUSH is off";
    for key in [Key::PushUrl, Key::PushToken, Key::PushRegisterUrl] {
        if config.is_set(key) {
            return refuse(key, off);
        }
    }
    for key in [Key::PushCoalesceMs, Key::PushQueue] {
        if !config.is_default_value(key) {
            return refuse(key, off);
        }
    }
    Ok(())
}

fn hosted(config: &Config) -> Result<(), ConfigError> {
    if config.word(Key::Profile) != "hosted" {
        return Ok(());
    }
    let broken = [
        (
            Key::SmtpUrl,
            config.is_set(Key::SmtpUrl),
            "be unset",
            "invitee email addresses stay with the customer",
        ),
        (
            Key::AccessSet,
            config.word(Key::AccessSet) != "enforce",
            "be enforce",
            "access enforcement is not customer-configurable",
        ),
        (
            Key::MinEnc,
            config.word(Key::MinEnc) != "mls",
            "be stated as mls",
            "a hosted relay pins mls",
        ),
        (
            Key::MetricsGroupLabels,
            config.on(Key::MetricsGroupLabels),
            "be off",
            "group labels are not offered on a hosted relay",
        ),
    ];
    for (key, is_broken, must, reason) in broken {
        if is_broken {
            return refuse(
                key,
                &format!("must {must} with WEALD_RELAY_PROFILE=hosted: {reason}"),
            );
        }
    }
    let urls = [
        (Key::PushUrl, config.text(Key::PushUrl).map(str::to_owned)),
        (Key::PushRegisterUrl, config.push_register_url()),
    ];
    for (key, url) in urls {
        if url.is_some_and(|url| check_push_url(&url, true).is_err()) {
            return refuse(
                key,
                "must be https with WEALD_RELAY_PROFILE=hosted: this machine is no exception there",
            );
        }
    }
    Ok(())
}
