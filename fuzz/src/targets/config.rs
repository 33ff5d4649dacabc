//! The configuration: any environment and any relay.toml give a report or one complaint, and neither shows a secret.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use drover::check_settings;

use crate::allocation;
use crate::random::Rng;

/// Heap: the table of settings and its report, and a few times the input for TOML's tree of it.
fn heap_bytes(input_bytes: usize) -> usize {
    256 * 1024 + 256 * input_bytes
}

/// What secrets are made of here.
const SECRET: &str = "s3cr3t";
/// Settings whose values are never printed (13 §a.5).
const SECRETS: [&str; 7] = [
    "WEALD_RELAY_DATABASE_URL",
    "WEALD_RELAY_REDIS_URL",
    "WEALD_RELAY_LIVE_FANOUT",
    "WEALD_RELAY_SMTP_URL",
    "WEALD_RELAY_BOOTSTRAP_HANDOFF_PUBKEY",
    "WEALD_RELAY_OPERATOR_TOKEN",
    "WEALD_RELAY_PUSH_TOKEN",
];
/// Parts the environment from the file.
const FILE: &[u8] = b"---\n";

/// The input: lines `NAME=value`, then `---`, then relay.toml.
pub fn run(input: &[u8]) {
    let at = input.windows(FILE.len()).position(|part| part == FILE);
    let (environment, toml) = match at {
        Some(at) => (&input[..at], &input[at + FILE.len()..]),
        None => (input, &[][..]),
    };
    let mut hidden = true;
    let pairs = environment.split(|byte| *byte == b'\n').filter_map(|line| {
        let at = line.iter().position(|byte| *byte == b'=')?;
        hidden &= !contains(&line[..at], SECRET.as_bytes());
        let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        Some((text(&line[..at]), text(&line[at + 1..])))
    });
    let pairs: Vec<_> = pairs.collect();
    let names = toml.split(|byte| *byte == b'\n').all(|line| {
        let value = line.iter().position(|byte| *byte == b'=').unwrap_or(line.len());
        !contains(&line[..value], SECRET.as_bytes())
    });
    // A name may be shown; where values hold names, who can tell.
    let nested = toml.iter().any(|byte| matches!(byte, b'{')) || contains(toml, b"\"\"\"") || contains(toml, b"'''");
    hidden &= names && !nested;

    let most = heap_bytes(input.len());
    match allocation::within("the configuration", most, || check_settings(&pairs, toml)) {
        Ok(report) => {
            assert_eq!(report.lines().count(), check_settings(&Vec::new(), &[]).map_or(0, |r| r.lines().count()));
            for line in report.lines() {
                assert!(!line.chars().any(char::is_control), "{line:?}");
                let name = line.split(' ').next().unwrap_or_default();
                assert!(!SECRETS.contains(&name) || !line.contains(SECRET), "{line}");
            }
        }
        Err(complaint) => {
            assert!(!complaint.is_empty() && !complaint.chars().any(char::is_control), "{complaint:?}");
            assert!(!hidden || !complaint.contains(SECRET), "{complaint}");
        }
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Mostly settings there are, and values they may hold.
pub fn generate(rng: &mut Rng) -> Vec<u8> {
    let report = check_settings(&Vec::new(), &[]).unwrap_or_default();
    let names: Vec<&str> = report.lines().filter_map(|line| line.split(' ').next()).collect();
    let values = [
        "on",
        "off",
        "file",
        "dev",
        "mls",
        "unlimited",
        "0",
        "8",
        "18446744073709551615",
        "-1",
        "s3cr3t",
        "https://u:s3cr3t@h/",
        "https://ringer.example/v1/wake",
        "postgres://u:s3cr3t@h/d",
        "scylla://a:9042,b/w",
        "file:///srv/%41",
        "s3://bucket/p",
        "127.0.0.1:0",
        "[::1]:8443",
        "relay.example",
        "/etc/relay/cert.pem",
        "enforce",
        "read_only",
        "full",
        "",
        "\u{e9}\u{1f980}",
    ];
    let mut text = String::new();
    for _ in 0..rng.below(6) {
        text += &format!("{}={}\n", rng.pick(&names), rng.pick(&values));
    }
    if rng.once_in(2) {
        text += "---\n";
        for _ in 0..rng.below(3) {
            text += &format!("{} = \"{}\"\n", rng.pick(&names), rng.pick(&values));
        }
        text += "[relay]\n";
        for _ in 0..rng.below(5) {
            let name = rng.pick(&names);
            let short = name.trim_start_matches("WEALD_RELAY_").trim_start_matches("DROVER_");
            let value = match rng.below(4) {
                0 => "7".to_owned(),
                1 => "true".to_owned(),
                2 => "[1]".to_owned(),
                _ => format!("\"{}\"", rng.pick(&values)),
            };
            text += &format!("{} = {value}\n", short.to_ascii_lowercase());
        }
    }
    text.into_bytes()
}
