//! The configuration as a whole: defaults, refusals, rules, the report. Each refusal is one line that names its variable
//! and quotes no value.

use super::*;
use std::collections::BTreeSet;
use std::ffi::OsString;

const V: &str = "WEALD_RELAY_";
const SECRET: &str = "hunter2hunter2hunter2";

fn environment(pairs: &[(&str, &str)]) -> Environment {
    let full = |name: &str| match name.starts_with("DROVER_") {
        true => OsString::from(name),
        false => OsString::from(format!("{V}{name}")),
    };
    pairs
        .iter()
        .map(|(name, value)| (full(name), OsString::from(value)))
        .collect()
}

fn resolve(pairs: &[(&str, &str)]) -> Result<Config, String> {
    Config::without_file(&environment(pairs)).map_err(|error| error.to_string())
}

fn resolve_with(pairs: &[(&str, &str)], toml: &str) -> Result<Config, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("relay.toml");
    std::fs::write(&path, toml).unwrap();
    Config::load(&environment(pairs), Some(&path)).map_err(|error| error.to_string())
}

#[track_caller]
fn refused(pairs: &[(&str, &str)], name: &str) -> String {
    let refusal = resolve(pairs).expect_err("this configuration must be refused");
    let full = if name.starts_with("DROVER_") {
        name.to_owned()
    } else {
        format!("{V}{name}")
    };
    assert!(refusal.starts_with(&format!("{full} ")), "{pairs:?}: {refusal}");
    assert!(!refusal.contains(SECRET) && !refusal.contains('\n'), "{refusal}");
    refusal
}

/// A push configuration that stands, to change one thing in.
const PUSH: [(&str, &str); 2] = [("PUSH", "on"), ("PUSH_URL", "https://ringer.example/v1/wake")];

/// W13.53: every name's default, one allowed value, and its refused values.
#[test]
fn every_name_has_its_default_and_refuses_what_it_must() {
    let on_off: &[&str] = &["maybe", "ON", "true", "1"];
    let count: &[&str] = &["0", "-1", "1.5", "8k", "x", "unlimited"];
    let limit: &[&str] = &["0", "-1", "1.5", "8k", "x"];
    let any_count: &[&str] = &["-1", "+1", "1.5", "2s", "x", "unlimited"];
    let listen: &[&str] = &["8443", ":8443", "host:", "host:65536", "host:-1"];
    // Name, default as reported, an allowed value, refused values.
    let rows: &[(&str, &str, &str, &[&str])] = &[
        (
            "HOSTNAME",
            "localhost",
            "relay.example",
            &[
                "https://relay.example",
                "https://relay.example/",
                "relay.example/",
            ],
        ),
        (
            "DATABASE_URL",
            "unset, embedded in the data folder",
            "file:///srv/store",
            &[
                "mysql://u:hunter2hunter2hunter2@h/d",
                "postgres://u:hunter2hunter2hunter2@h/d",
                "file://rel",
                "x",
            ],
        ),
        ("DB_POOL_SIZE", "8", "16", &["0", "x", "4294967296"]),
        (
            "STORAGE_URL",
            "",
            "s3://bucket/prefix",
            &["s3://", "file://rel", "https://u:hunter2hunter2hunter2@h/"],
        ),
        (
            "REDIS_URL",
            "unset, single-process mode",
            "",
            &["redis://:hunter2hunter2hunter2@cache/0"],
        ),
        ("LISTEN", "0.0.0.0:8443", "[::1]:8443", listen),
        ("OBSERVABILITY_LISTEN", "127.0.0.1:9090", "127.0.0.1:0", listen),
        ("TLS", "off", "dev", &["acme", "OFF", "on"]),
        ("MAX_STORAGE_GB", "unlimited", "50", limit),
        ("MAX_LOG_GB", "unlimited", "Unlimited", &["0", "x", "18446744074"]),
        ("RETENTION_DAYS", "unlimited", "30", limit),
        ("ACCESS_SET", "enforce", "off", &["on", "Enforce"]),
        ("MIN_ENC", "none", "mls", &["MLS", "aes"]),
        ("LIVE", "on", "off", on_off),
        (
            "LIVE_FANOUT",
            "process",
            "process",
            &["redis://:hunter2hunter2hunter2@cache", "Process"],
        ),
        ("CALLS", "on", "off", on_off),
        ("MAX_CONCURRENT_CALLS", "8", "4", count),
        ("MAX_CONNECTIONS", "256", "UNLIMITED", limit),
        ("HANDSHAKE_TIMEOUT_MS", "10000", "1", count),
        ("IDLE_TIMEOUT_MS", "300000", "45000", count),
        ("SEND_FRAMES_PER_MINUTE", "6000", "1", count),
        ("SEND_BYTES_PER_MINUTE", "67108864", "1", count),
        ("SMTP_URL", "unset", "smtp://u:p@mail", &[]),
        ("WRITE_MODE", "full", "read_only", &["readonly"]),
        ("RELEASE_CHECK", "on", "off", on_off),
        ("METRICS_GROUP_LABELS", "off", "on", on_off),
        (
            "BOOTSTRAP_HANDOFF_PUBKEY",
            "unset",
            "e06Qm75//kTEZaIgA31gjuNYl9Me+XLwf3SJLLD3PxM=",
            &[
                "hunter2hunter2hunter2",
                "AAAA",
                "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
            ],
        ),
        ("OPERATOR_TOKEN", "unset", "t", &[]),
        ("PROFILE", "self_host", "self_host", &["Hosted", "selfhost"]),
        ("PUSH", "off", "off", &["of", "ON"]),
        ("PUSH_URL", "unset, push off", "", &[]),
        ("PUSH_TOKEN", "unset", "", &[]),
        ("PUSH_REGISTER_URL", "unset, push off", "", &[]),
        ("PUSH_COALESCE_MS", "2000", "2000", any_count),
        ("PUSH_QUEUE", "1024", "1024", count),
        ("JANITOR_INTERVAL_MS", "900000", "1", count),
        ("GC_MIN_OBJECT_AGE_SECONDS", "172800", "0", any_count),
        ("MEDIA_UNCLAIMED_GRACE_SECONDS", "86400", "0", any_count),
        ("TRUSTED_PROXY_HOPS", "0", "2", any_count),
        ("LIVE_FRAMES_PER_MINUTE", "60", "900", count),
        ("GROUP_INGRESS_BYTES_PER_MINUTE", "8388608", "0", &["-1", "x"]),
        (
            "WORKSPACE_INGRESS_BYTES_PER_MINUTE",
            "67108864",
            "unlimited",
            &["-1", "x"],
        ),
        ("GROUP_BACKLOG_BYTES", "33554432", "0", &["-1", "x"]),
        ("MAP_DIALECT", "on", "off", on_off),
        ("ALLOW_EMPTY_CT", "off", "on", on_off),
        ("LOG_LEVEL", "info", "debug", &["INFO", "verbose"]),
        ("LOG_FORMAT", "json", "text", &["JSON", "pretty"]),
        ("DROVER_DATA_DIR", "./drover-data", "/srv/drover", &[]),
        ("DROVER_TLS_CERT_FILE", "unset", "", &[]),
        ("DROVER_TLS_KEY_FILE", "unset", "", &[]),
        ("DROVER_TURN_US_MAX", "500", "0", &["100001", "x"]),
        ("DROVER_COPY_BELOW", "2048", "0", &["65537", "x"]),
        ("DROVER_SHARDS", "", "4", &["0", "1025", "x"]),
        (
            "DROVER_PUBLIC_URL",
            "unset",
            "https://relay.example/base",
            &[
                "relay.example",
                "ftp://x/",
                "https://u:hunter2hunter2hunter2@h/",
                "https://h/?q",
            ],
        ),
    ];
    let names: Vec<String> = TABLE
        .iter()
        .map(|row| row.name.trim_start_matches(V).to_owned())
        .collect();
    assert_eq!(
        names,
        rows.iter().map(|row| row.0).collect::<Vec<_>>(),
        "one row per name, in order"
    );
    let defaults = report(&resolve(&[]).unwrap());
    for ((name, default, allowed, wrong), line) in rows.iter().zip(defaults.lines()) {
        if !default.is_empty() {
            assert_eq!(
                line.split_once(' ').unwrap().1.trim_start(),
                format!("{default:<34} default"),
                "{name}"
            );
        }
        if !allowed.is_empty() {
            resolve(&[(name, allowed)]).unwrap_or_else(|refusal| panic!("{name}={allowed}: {refusal}"));
        }
        for value in wrong.iter().chain(&["", "  ", "\t"]) {
            refused(&[(name, value)], name);
        }
    }
}

#[test]
fn an_unknown_word_is_told_the_allowed_ones() {
    for (name, words) in [
        ("ACCESS_SET", "enforce, off"),
        ("PROFILE", "self_host, hosted"),
        ("TLS", "off, file, dev"),
    ] {
        assert!(refused(&[(name, "maybe")], name).contains(words));
    }
    assert!(refused(&[("TLS", "acme")], "TLS").contains("proxy"));
}

#[test]
fn the_environment_beats_the_file_and_the_file_the_default() {
    let toml = "[relay]\nmax_connections = 4\nmin_enc = \"mls\"\n";
    let config = resolve_with(&[("MAX_CONNECTIONS", "5")], toml).unwrap();
    assert_eq!(
        (
            config.number(Key::MaxConnections),
            config.source(Key::MaxConnections)
        ),
        (5, Source::Environment)
    );
    assert_eq!(
        (config.word(Key::MinEnc), config.source(Key::MinEnc)),
        ("mls", Source::File)
    );
    assert_eq!(
        (config.word(Key::Live), config.source(Key::Live)),
        ("on", Source::Default)
    );
    assert!(
        resolve_with(&[], "[relay]\ncalls = true\n")
            .unwrap_err()
            .contains("WEALD_RELAY_CALLS")
    );
    assert!(
        resolve_with(&[], "[relay]\nmax_connections = -4\n")
            .unwrap_err()
            .contains("WEALD_RELAY_MAX_CONNECTIONS")
    );
}

/// W13.54: what is wrong first is told first: the three, then each name, then the rules in their order.
#[test]
fn complaints_come_in_order() {
    let mut wrong = vec![
        ("HOSTNAME", " "),
        ("DATABASE_URL", "x"),
        ("STORAGE_URL", "x"),
        ("DB_POOL_SIZE", "0"),
        ("MEDIA_UNCLAIMED_GRACE_SECONDS", "x"),
        ("DROVER_TLS_CERT_FILE", "/cert.pem"),
        ("LIVE_FANOUT", "shared"),
        ("REDIS_URL", "redis://cache"),
        ("CALLS", "on"),
        ("PUSH_URL", "https://ringer.example/"),
        ("PROFILE", "hosted"),
    ];
    for name in [
        "HOSTNAME",
        "DATABASE_URL",
        "STORAGE_URL",
        "DB_POOL_SIZE",
        "MEDIA_UNCLAIMED_GRACE_SECONDS",
        "DROVER_TLS_CERT_FILE",
        "LIVE_FANOUT",
        "REDIS_URL",
    ] {
        refused(&wrong, name);
        wrong.retain(|(other, _)| *other != name);
    }
    refused(&wrong, "MAX_CONCURRENT_CALLS");
    wrong.retain(|(other, _)| *other != "CALLS");
    refused(&wrong, "PUSH_URL");
    wrong.retain(|(other, _)| *other != "PUSH_URL");
    refused(&wrong, "MIN_ENC");
}

/// W13.54 rule 2; W13.28, decisions.md 18.
#[test]
fn tls_from_files_needs_both_and_nothing_else_takes_them() {
    let files = [
        ("DROVER_TLS_CERT_FILE", "/c.pem"),
        ("DROVER_TLS_KEY_FILE", "/k.pem"),
    ];
    refused(&[("TLS", "file")], "DROVER_TLS_CERT_FILE");
    refused(&[("TLS", "file"), files[0]], "DROVER_TLS_KEY_FILE");
    resolve(&[("TLS", "file"), files[0], files[1]]).unwrap();
    refused(&[files[0]], "DROVER_TLS_CERT_FILE");
    let config = resolve(&[("TLS", "file"), files[0], files[1]]).unwrap();
    let refusal = rules::servable(&config).unwrap_err().to_string();
    assert!(
        refusal.starts_with("DROVER_TLS_CERT_FILE ")
            && refusal.contains("/c.pem")
            && refusal.contains("No such file"),
        "{refusal}"
    );
    let pasted = ("DROVER_TLS_CERT_FILE", "-----BEGIN PRIVATE KEY-----\nhunter2\n");
    let config = resolve(&[("TLS", "file"), pasted, files[1]]).unwrap();
    let refusal = rules::servable(&config).unwrap_err().to_string();
    assert!(
        refusal.contains("PEM") && !refusal.contains("hunter2"),
        "{refusal}"
    );
    refused(&[("TLS", "dev"), files[1]], "DROVER_TLS_KEY_FILE");
}

/// W13.54 rule 3; decisions.md 25.
#[test]
fn several_processes_need_a_store_they_can_share() {
    let redis = ("REDIS_URL", "redis://:hunter2hunter2hunter2@cache/0");
    refused(&[redis], "REDIS_URL");
    refused(&[redis, ("LIVE", "off"), ("CALLS", "off")], "REDIS_URL");
    let scylla = ("DATABASE_URL", "scylla://db/weald");
    let config = resolve(&[scylla, redis]).unwrap();
    assert!(
        config.on(Key::Live) && config.on(Key::Calls),
        "it is ignored there"
    );
    refused(&[scylla, redis, ("LIVE_FANOUT", "shared")], "LIVE_FANOUT");
    assert!(
        rules::servable(&config)
            .unwrap_err()
            .to_string()
            .starts_with("WEALD_RELAY_DATABASE_URL")
    );
}

/// W13.54 rule 4; decisions.md 28.
#[test]
fn calls_stated_on_need_a_ceiling() {
    assert_eq!(resolve(&[]).unwrap().number(Key::MaxConcurrentCalls), 8);
    refused(&[("CALLS", "on")], "MAX_CONCURRENT_CALLS");
    refused(
        &[("CALLS", "off"), ("MAX_CONCURRENT_CALLS", "8")],
        "MAX_CONCURRENT_CALLS",
    );
    resolve(&[("CALLS", "on"), ("MAX_CONCURRENT_CALLS", "8")]).unwrap();
    resolve(&[("MAX_CONCURRENT_CALLS", "3")]).unwrap();
    let off = report(&resolve(&[("CALLS", "off")]).unwrap());
    assert!(off.contains("unset, calls off"));
}

/// W13.54 rule 5, W12.12.
#[test]
fn push_needs_its_address_and_off_takes_nothing() {
    refused(&[("PUSH", "on")], "PUSH_URL");
    refused(&[("PUSH_URL", "not an address")], "PUSH_URL");
    refused(&[("PUSH_TOKEN", SECRET)], "PUSH_TOKEN");
    refused(
        &[("PUSH_REGISTER_URL", "https://ringer.example/")],
        "PUSH_REGISTER_URL",
    );
    refused(&[("PUSH_COALESCE_MS", "1")], "PUSH_COALESCE_MS");
    refused(&[("PUSH_QUEUE", "1")], "PUSH_QUEUE");
    resolve(&[("PUSH_COALESCE_MS", "2000"), ("PUSH_QUEUE", "1024")]).unwrap();
    refused(
        &[PUSH[0], ("PUSH_URL", "http://ringer.example/v1/wake")],
        "PUSH_URL",
    );
    refused(
        &[PUSH[0], PUSH[1], ("PUSH_REGISTER_URL", "http://ringer.example/")],
        "PUSH_REGISTER_URL",
    );
    let long = format!("https://ringer.example/{}", "x".repeat(490));
    refused(
        &[PUSH[0], PUSH[1], ("PUSH_REGISTER_URL", &long)],
        "PUSH_REGISTER_URL",
    );
    resolve(&[PUSH[0], PUSH[1], ("PUSH_REGISTER_URL", &long[..512])]).unwrap();
    // A derived one is bounded too.
    refused(&[PUSH[0], ("PUSH_URL", &long[..502])], "PUSH_REGISTER_URL");
    resolve(&[PUSH[0], ("PUSH_URL", &long[..501])]).unwrap();
    refused(&[PUSH[0], PUSH[1], ("PUSH_QUEUE", "0")], "PUSH_QUEUE");
    refused(&[PUSH[0], ("PUSH_URL", "")], "PUSH_URL");
    for empty in ["PUSH_TOKEN", "PUSH_REGISTER_URL", "PUSH_COALESCE_MS"] {
        refused(&[PUSH[0], PUSH[1], (empty, "")], empty);
    }
    resolve(&[
        PUSH[0],
        PUSH[1],
        ("PUSH_TOKEN", SECRET),
        ("PUSH_COALESCE_MS", "0"),
        ("PUSH_QUEUE", "1"),
    ])
    .unwrap();
}

/// W12.12.
#[test]
fn the_register_address_is_derived() {
    for (url, register) in [
        ("https://r.example/v1/wake", "https://r.example/v1/handles"),
        (
            "https://r.example/base/v1/wake",
            "https://r.example/base/v1/handles",
        ),
        ("https://r.example/v1/wake//", "https://r.example/v1/handles"),
        ("https://r.example", "https://r.example/v1/handles"),
        ("https://r.example/", "https://r.example/v1/handles"),
        ("https://r.example//v1/wake", "https://r.example/v1/handles"),
        ("https://r.example/other", "https://r.example/other/v1/handles"),
    ] {
        let config = resolve(&[("PUSH", "on"), ("PUSH_URL", url)]).unwrap();
        assert_eq!(config.push_register_url().as_deref(), Some(register));
    }
}

/// W13.60: each requirement of the hosted profile, refused alone with its reason.
#[test]
fn the_hosted_profile_only_takes_away() {
    let base = [("PROFILE", "hosted"), ("MIN_ENC", "mls")];
    resolve(&base).unwrap();
    resolve(&[base[0], base[1], PUSH[0], PUSH[1]]).unwrap();
    let loopback = ("PUSH_URL", "http://127.0.0.1:1/v1/wake");
    let register = ("PUSH_REGISTER_URL", "http://localhost/");
    for (extra, name, reason) in [
        (vec![("SMTP_URL", SECRET)], "SMTP_URL", "invitee email addresses"),
        (vec![("ACCESS_SET", "off")], "ACCESS_SET", "customer-configurable"),
        (
            vec![("METRICS_GROUP_LABELS", "on")],
            "METRICS_GROUP_LABELS",
            "not offered",
        ),
        (vec![PUSH[0], loopback], "PUSH_URL", "https"),
        (vec![PUSH[0], PUSH[1], register], "PUSH_REGISTER_URL", "https"),
    ] {
        let pairs: Vec<_> = base.iter().copied().chain(extra.iter().copied()).collect();
        let refusal = refused(&pairs, name);
        assert!(
            refusal.contains(reason) && refusal.contains("WEALD_RELAY_PROFILE=hosted"),
            "{refusal}"
        );
        resolve(&extra).unwrap_or_else(|refusal| panic!("self_host takes {extra:?}: {refusal}"));
    }
    for floor in [None, Some(("MIN_ENC", "none"))] {
        let pairs: Vec<_> = [base[0]].into_iter().chain(floor).collect();
        assert!(refused(&pairs, "MIN_ENC").contains("pins mls"));
    }
    assert!(
        resolve_with(&[], "[relay]\nprofile = \"hosted\"\n")
            .unwrap_err()
            .starts_with("WEALD_RELAY_MIN_ENC")
    );
}

/// W13.55: the texts scripts rely on, and no secret among them.
#[test]
fn the_report_shows_values_and_hides_secrets() {
    let config = resolve(&[
        ("DATABASE_URL", "file:///srv/hunter2hunter2hunter2"),
        ("STORAGE_URL", "s3://bucket/prefix/"),
        ("SMTP_URL", SECRET),
        ("OPERATOR_TOKEN", SECRET),
        (
            "BOOTSTRAP_HANDOFF_PUBKEY",
            "e06Qm75//kTEZaIgA31gjuNYl9Me+XLwf3SJLLD3PxM=",
        ),
        PUSH[0],
        PUSH[1],
        ("PUSH_TOKEN", SECRET),
        ("MAX_LOG_GB", "Unlimited"),
        ("GROUP_BACKLOG_BYTES", "0"),
        ("DROVER_SHARDS", "3"),
    ])
    .unwrap();
    let report = report(&config);
    assert_eq!(report.lines().count(), TABLE.len());
    assert!(!report.contains(SECRET) && !report.contains("e06Qm75"));
    for (name, value, source) in [
        ("WEALD_RELAY_HOSTNAME", "localhost", "default"),
        ("WEALD_RELAY_DATABASE_URL", "[set, not printed]", "environment"),
        ("WEALD_RELAY_STORAGE_URL", "s3://bucket/prefix", "environment"),
        (
            "WEALD_RELAY_SMTP_URL",
            "[set, and unused: this relay sends no mail]",
            "environment",
        ),
        ("WEALD_RELAY_OPERATOR_TOKEN", "[set]", "environment"),
        ("WEALD_RELAY_BOOTSTRAP_HANDOFF_PUBKEY", "[set]", "environment"),
        (
            "WEALD_RELAY_PUSH_URL",
            "https://ringer.example/v1/wake",
            "environment",
        ),
        (
            "WEALD_RELAY_PUSH_REGISTER_URL",
            "https://ringer.example/v1/handles",
            "default",
        ),
        ("WEALD_RELAY_PUSH_TOKEN", "[set]", "environment"),
        ("WEALD_RELAY_MAX_LOG_GB", "unlimited", "environment"),
        ("WEALD_RELAY_GROUP_BACKLOG_BYTES", "unlimited", "environment"),
        ("DROVER_SHARDS", "3", "environment"),
    ] {
        let line = |l: &&str| l.split_whitespace().next() == Some(name);
        let line = report.lines().find(line).unwrap_or_default();
        let rest = line.strip_prefix(name).unwrap_or_default().trim_start();
        assert_eq!(rest, format!("{value:<34} {source}"), "{report}");
    }
    let columns = report.lines().map(|line| {
        let name = line.find(' ').unwrap();
        name + line[name..].find(|c| c != ' ').unwrap()
    });
    let columns: BTreeSet<usize> = columns.collect();
    assert_eq!(columns.len(), 1, "values stand below each other: {report}");
}

#[test]
fn stated_paths_are_taken_and_the_rest_lies_in_the_data_folder() {
    let config = resolve(&[("DROVER_DATA_DIR", "/srv/drover")]).unwrap();
    assert_eq!(config.store_dir(), Path::new("/srv/drover/store"));
    assert_eq!(config.storage(), Storage::Folder("/srv/drover/blobs".into()));
    let config = resolve(&[("DATABASE_URL", "file:///a"), ("STORAGE_URL", "file:///b")]).unwrap();
    assert_eq!(
        (config.store_dir(), config.storage()),
        ("/a".into(), Storage::Folder("/b".into()))
    );
    assert!(config.data_dir().is_absolute());
}
