//! What the value of a setting may look like, and what it means. Nothing is coerced, and no complaint quotes the value:
//! a secret that was put into the wrong variable stays unseen.

use crate::handoff::HandoffKey;
use axum::http::Uri;
use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use std::net::IpAddr;
use std::path::PathBuf;

/// The largest number a setting can hold.
pub(crate) const U64: u64 = u64::MAX;

/// Which words besides a number turn a limit off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Off {
    /// None.
    Never,
    /// `unlimited`, in any case.
    Unlimited,
    /// `unlimited`, or the number 0.
    UnlimitedOrZero,
}

/// What a value may look like.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Anything that is not blank.
    Text,
    /// What stands between `https://` and the path of a link.
    Host,
    /// One of these words, exactly.
    Word(&'static [&'static str]),
    /// Unsigned decimal within bounds.
    Number {
        /// Smallest.
        min: u64,
        /// Largest.
        max: u64,
        /// What turns it off.
        off: Off,
    },
    /// `host:port`, split at the last colon.
    HostPort,
    /// Where records are kept (decisions.md 15).
    Database,
    /// Where blobs are kept.
    Storage,
    /// `off`, `file` or `dev` (decisions.md 18).
    Tls,
    /// An http or https address without query and fragment.
    HttpUrl,
    /// Base64 of 32 bytes, either alphabet, padding optional.
    Key32,
}

/// A host and a port, not resolved yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostPort {
    /// Name or address; an IPv6 address keeps its brackets.
    pub(crate) host: String,
    /// Port; 0 lets the system choose.
    pub(crate) port: u16,
}

impl HostPort {
    /// Whether only one socket could listen on both: the same port of the same host, or of all addresses of its family.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let [ours, theirs] = [self, other].map(|it| it.host.trim_matches(['[', ']']));
        let same = match (ours.parse::<IpAddr>(), theirs.parse::<IpAddr>()) {
            (Ok(ours), Ok(theirs)) => {
                ours == theirs
                    || (ours.is_ipv4() == theirs.is_ipv4()
                        && (ours.is_unspecified() || theirs.is_unspecified()))
            }
            _ => ours.eq_ignore_ascii_case(theirs),
        };
        // The system gives port 0 away only once.
        same && self.port == other.port && self.port != 0
    }
}

impl std::fmt::Display for HostPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Where records are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Database {
    /// The embedded store in this folder.
    Embedded(PathBuf),
    /// A ScyllaDB cluster shared by several nodes.
    Scylla,
}

/// Where blobs are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    /// A folder.
    Folder(PathBuf),
    /// A bucket, and what is put in front of every key (no slash at either end).
    S3 {
        /// The bucket.
        bucket: String,
        /// The prefix, often empty.
        prefix: String,
    },
}

impl std::fmt::Display for Storage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Folder(path) => write!(f, "file://{}", path.display()),
            Self::S3 { bucket, prefix } if prefix.is_empty() => write!(f, "s3://{bucket}"),
            Self::S3 { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
        }
    }
}

/// A value, understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// Neither stated nor defaulted.
    Unset,
    /// Text as given.
    Text(String),
    /// One of the allowed words.
    Word(&'static str),
    /// A number.
    Number(u64),
    /// A limit that is off.
    Unlimited,
    /// An address.
    HostPort(HostPort),
    /// Where records are kept.
    Database(Database),
    /// Where blobs are kept.
    Storage(Storage),
    /// A key to seal to.
    Key(HandoffKey),
}

impl Kind {
    /// Understands `text`.
    ///
    /// # Errors
    /// What is wrong, as the rest of a sentence that begins with the variable's name. Never quotes `text`.
    pub(crate) fn parse(self, text: &str) -> Result<Value, String> {
        if text.trim().is_empty() {
            return Err("is blank: unset it instead".to_owned());
        }
        match self {
            Self::Text => Ok(Value::Text(text.to_owned())),
            // An address here would make every invite link one that no browser opens.
            Self::Host if text.contains('/') => Err(
                "must be a host name alone, without https:// and without a slash: relay.example".to_owned(),
            ),
            Self::Host => Ok(Value::Text(text.to_owned())),
            Self::Word(words) => match words.iter().find(|word| **word == text) {
                Some(word) => Ok(Value::Word(word)),
                None => Err(format!("must be one of {} (exactly so)", words.join(", "))),
            },
            Self::Number { min, max, off } => parse_number(text, min, max, off),
            Self::HostPort => parse_host_port(text).map(Value::HostPort),
            Self::Database => parse_database(text).map(Value::Database),
            Self::Storage => parse_storage(text).map(Value::Storage),
            Self::Tls => match text {
                "acme" => Err(
                    "cannot be acme: certificates are not fetched here; let a proxy in front terminate TLS, \
                               or use file with certificate files"
                        .to_owned(),
                ),
                _ => Self::Word(TLS_WORDS).parse(text),
            },
            Self::HttpUrl => parse_http_url(text).map(Value::Text),
            Self::Key32 => handoff_key(text).map(Value::Key),
        }
    }
}

/// The words of `WEALD_RELAY_TLS`.
pub(crate) const TLS_WORDS: &[&str] = &["off", "file", "dev"];

fn parse_number(text: &str, min: u64, max: u64, off: Off) -> Result<Value, String> {
    let limit = |value| match value {
        0 if off == Off::UnlimitedOrZero => Value::Unlimited,
        value => Value::Number(value),
    };
    if off != Off::Never && text.eq_ignore_ascii_case("unlimited") {
        return Ok(Value::Unlimited);
    }
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    match text.parse::<u64>() {
        Ok(value) if digits && (min..=max).contains(&value) => Ok(limit(value)),
        _ => {
            let range = if max == U64 {
                format!("of at least {min}")
            } else {
                format!("from {min} to {max}")
            };
            let words = match off {
                Off::Never => "",
                Off::Unlimited => ", or unlimited",
                Off::UnlimitedOrZero => ", or unlimited (as 0 is)",
            };
            Err(format!(
                "must be a whole number {range}{words}, without sign or unit"
            ))
        }
    }
}

fn parse_host_port(text: &str) -> Result<HostPort, String> {
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err("must be host:port".to_owned());
    };
    let digits = port.bytes().all(|b| b.is_ascii_digit());
    match port.parse() {
        Ok(port) if digits && !host.trim().is_empty() => Ok(HostPort {
            host: host.to_owned(),
            port,
        }),
        Ok(_) if digits => Err("must be host:port, and its host is empty".to_owned()),
        _ => Err("must be host:port with a port from 0 to 65535".to_owned()),
    }
}

fn parse_database(text: &str) -> Result<Database, String> {
    match text.split_once("://") {
        Some(("file", path)) => absolute(path).map(Database::Embedded),
        Some(("scylla", rest)) => match rest.split_once('/') {
            Some((hosts, keyspace)) if hosts.split(',').all(is_scylla_host) && is_keyspace(keyspace) => {
                Ok(Database::Scylla)
            }
            _ => Err("must name hosts and a keyspace: scylla://host[:port][,host…]/keyspace".to_owned()),
        },
        Some(("postgres" | "postgresql", _)) => {
            Err("names a PostgreSQL database, which this relay does not run on, and its import is not built yet: name \
             the embedded store as file:///absolute/path, or unset this for the store in DROVER_DATA_DIR"
                .to_owned())
        }
        _ => Err("must be file:///absolute/path or scylla://host[:port][,host…]/keyspace".to_owned()),
    }
}

fn is_scylla_host(host: &str) -> bool {
    let name = host.split_once(':').map_or(host, |(name, _)| name);
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._[]:".contains(&b);
    !name.is_empty() && host.bytes().all(plain)
}

fn is_keyspace(name: &str) -> bool {
    (1..=48).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn parse_storage(text: &str) -> Result<Storage, String> {
    match text.split_once("://") {
        Some(("file", path)) => absolute(path).map(Storage::Folder),
        Some(("s3", rest)) => {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
            if bucket.is_empty() || !bucket.bytes().all(plain) {
                return Err("must name a bucket: s3://bucket or s3://bucket/prefix".to_owned());
            }
            Ok(Storage::S3 {
                bucket: bucket.to_owned(),
                prefix: prefix.trim_matches('/').to_owned(),
            })
        }
        _ => Err("must be file:///absolute/path or s3://bucket[/prefix]".to_owned()),
    }
}

/// The path of a `file://` address, `%41` and its like decoded.
fn absolute(path: &str) -> Result<PathBuf, String> {
    if !path.starts_with('/') {
        return Err("must hold an absolute path: file:///absolute/path".to_owned());
    }
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let hex = tail.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match hex.and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(byte) if first == b'%' => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    match String::from_utf8(bytes) {
        Ok(path) if !path.contains('\0') => Ok(PathBuf::from(path)),
        _ => Err("must hold a path in UTF-8".to_owned()),
    }
}

fn parse_http_url(text: &str) -> Result<String, String> {
    let uri: Option<Uri> = text.parse().ok();
    let fits = uri.is_some_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.host().is_some_and(|host| !host.is_empty())
            && uri.authority().is_some_and(|a| !a.as_str().contains('@'))
            && !text.contains(['?', '#'])
    });
    if !fits {
        return Err("must be an http or https address without user, query and fragment".to_owned());
    }
    Ok(text.trim_end_matches('/').to_owned())
}

/// Whether a wake may be posted there (13 §a.2): https, or http to this machine; no user, since it is printed.
pub(crate) fn check_push_url(text: &str, https_only: bool) -> Result<(), String> {
    let uri: Option<Uri> = text.parse().ok();
    let authority = uri.as_ref().and_then(Uri::authority);
    let (Some(uri), Some(authority)) = (&uri, authority) else {
        return Err("must be an https address".to_owned());
    };
    if authority.as_str().contains('@') || authority.host().is_empty() {
        return Err("must be an address without user and password".to_owned());
    }
    match (uri.scheme_str(), authority.host()) {
        (Some("https"), _) => Ok(()),
        (Some("http"), "127.0.0.1" | "localhost" | "[::1]") if !https_only => Ok(()),
        _ => Err("must be https (plain http only to 127.0.0.1, localhost or [::1])".to_owned()),
    }
}

/// The X25519 key of `WEALD_RELAY_BOOTSTRAP_HANDOFF_PUBKEY` (06 §14), in symbols of either alphabet or both.
fn handoff_key(text: &str) -> Result<HandoffKey, String> {
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    let text = text.trim();
    let text = text.split_once('=').map_or(text, |(symbols, _)| symbols);
    let text = text.replace('-', "+").replace('_', "/");
    let decoded = GeneralPurpose::new(&alphabet::STANDARD, config).decode(text).ok();
    let bytes = decoded.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    let bytes = bytes.ok_or("must be the base64 of a 32-byte X25519 public key")?;
    HandoffKey::new(bytes).ok_or_else(|| "is no X25519 public key that can be sealed to".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unsigned_decimal() {
        let kind = Kind::Number {
            min: 1,
            max: U64,
            off: Off::Never,
        };
        assert_eq!(kind.parse("007"), Ok(Value::Number(7)));
        for wrong in [
            "+7",
            "-7",
            "7.0",
            "7ms",
            " 7",
            "7 ",
            "0x7",
            "",
            " ",
            "0",
            "18446744073709551616",
            "unlimited",
            "٣",
        ] {
            assert!(kind.parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn unlimited_is_accepted_in_any_case_and_zero_only_where_it_says_so() {
        let limit = Kind::Number {
            min: 1,
            max: U64,
            off: Off::Unlimited,
        };
        let budget = Kind::Number {
            min: 0,
            max: U64,
            off: Off::UnlimitedOrZero,
        };
        for word in ["unlimited", "UNLIMITED", "Unlimited"] {
            assert_eq!(limit.parse(word), Ok(Value::Unlimited));
            assert_eq!(budget.parse(word), Ok(Value::Unlimited));
        }
        assert!(limit.parse("0").is_err());
        assert_eq!(budget.parse("0"), Ok(Value::Unlimited));
        assert_eq!(budget.parse("5"), Ok(Value::Number(5)));
    }

    #[test]
    fn an_address_is_split_at_the_last_colon() {
        for (text, host, port) in [
            ("[::1]:8443", "[::1]", 8443),
            ("relay:0", "relay", 0),
            ("::1:65535", "::1", 65535),
        ] {
            assert_eq!(
                Kind::HostPort.parse(text),
                Ok(Value::HostPort(HostPort {
                    host: host.to_owned(),
                    port
                }))
            );
        }
        for wrong in [
            "8443",
            ":8443",
            " :8443",
            "relay:",
            "relay:65536",
            "relay:-1",
            "relay:+1",
            "relay:x",
        ] {
            assert!(Kind::HostPort.parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn two_sockets_can_not_listen_on_one_address() {
        let overlap = |one: &str, other: &str| {
            let [Ok(Value::HostPort(one)), Ok(Value::HostPort(other))] =
                [one, other].map(|text| Kind::HostPort.parse(text))
            else {
                panic!("{one}, {other}")
            };
            assert_eq!(one.overlaps(&other), other.overlaps(&one));
            one.overlaps(&other)
        };
        for (one, other) in [
            ("127.0.0.1:9", "127.0.0.1:9"),
            ("0.0.0.0:9", "127.0.0.1:9"),
            ("[::]:9", "[::1]:9"),
            ("::1:9", "[::1]:9"),
            ("localhost:9", "LocalHost:9"),
        ] {
            assert!(overlap(one, other), "{one}, {other}");
        }
        for (one, other) in [
            ("127.0.0.1:9", "127.0.0.1:8"),
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("127.0.0.1:9", "127.0.0.2:9"),
            ("0.0.0.0:9", "[::1]:9"),
            ("localhost:9", "relay:9"),
        ] {
            assert!(!overlap(one, other), "{one}, {other}");
        }
    }

    #[test]
    fn storage_is_a_folder_or_a_bucket() {
        for (text, shown) in [
            ("file:///var/lib/blobs", "file:///var/lib/blobs"),
            ("file:///with%20blank", "file:///with blank"),
            ("s3://bucket", "s3://bucket"),
            ("s3://bucket/", "s3://bucket"),
            ("s3://bucket//a/b//", "s3://bucket/a/b"),
        ] {
            let Ok(Value::Storage(storage)) = Kind::Storage.parse(text) else {
                panic!("{text}")
            };
            assert_eq!(storage.to_string(), shown);
        }
        for wrong in [
            "file://relative",
            "file:///%00",
            "s3://",
            "s3:///prefix",
            "s3://u:p@bucket",
            "https://x/y",
            "/var/blobs",
        ] {
            assert!(Kind::Storage.parse(wrong).is_err(), "{wrong:?}");
        }
    }

    /// decisions.md 15: what names a store, and what a PostgreSQL address is told.
    #[test]
    fn the_store_is_a_folder_or_a_cluster() {
        assert_eq!(
            Kind::Database.parse("file:///srv/relay"),
            Ok(Value::Database(Database::Embedded(PathBuf::from("/srv/relay"))))
        );
        for cluster in [
            "scylla://db/weald",
            "scylla://a:9042,b,10.0.0.3:9042/weald_1",
            "scylla://[::1]:9042/w",
        ] {
            assert_eq!(
                Kind::Database.parse(cluster),
                Ok(Value::Database(Database::Scylla)),
                "{cluster}"
            );
        }
        for wrong in [
            "file://relative",
            "sqlite:///x",
            "mysql://root:pw@db/x",
            "scylla://db",
            "scylla:///k",
            "scylla://u:p@db/k",
            "scylla://a,,b/k",
            "no url",
        ] {
            assert!(Kind::Database.parse(wrong).is_err(), "{wrong:?}");
        }
        for scheme in ["postgres", "postgresql"] {
            let complaint = Kind::Database
                .parse(&format!("{scheme}://weald:hunter2@db/weald"))
                .unwrap_err();
            assert!(
                complaint.contains("import is not built yet") && complaint.contains("file:///"),
                "{complaint}"
            );
            assert!(!complaint.contains("hunter2"));
        }
    }

    #[test]
    fn a_wake_goes_out_encrypted_or_not_at_all() {
        for (url, free, strict) in [
            ("https://ringer.example/v1/wake", true, true),
            ("http://127.0.0.1:1/v1/wake", true, false),
            ("http://localhost/v1/wake", true, false),
            ("http://[::1]:8080/v1/wake", true, false),
            ("http://ringer.example/v1/wake", false, false),
            ("http://127.0.0.1.evil.example/", false, false),
            ("http://127.0.0.1@evil.example/", false, false),
            ("https://u:p@ringer.example/", false, false),
            ("ftp://ringer.example/", false, false),
            ("/v1/wake", false, false),
            ("ringer", false, false),
        ] {
            assert_eq!(check_push_url(url, false).is_ok(), free, "{url}");
            assert_eq!(check_push_url(url, true).is_ok(), strict, "{url}");
        }
    }

    #[test]
    fn a_handoff_key_is_read_in_both_alphabets() {
        let key = [0xfb; 32];
        let usable = HandoffKey::new(key).unwrap();
        let standard = base64::engine::general_purpose::STANDARD.encode(key);
        let url = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(key);
        assert!(standard.contains('+') && url.contains('-'));
        for text in [
            standard.clone(),
            url,
            standard.trim_end_matches('=').to_owned(),
            format!(" {standard}\n"),
            format!("{standard}=what follows is not looked at"),
            standard.replacen('+', "-", 1),
        ] {
            assert_eq!(handoff_key(&text).as_ref(), Ok(&usable), "{text}");
        }
        let zero = "A".repeat(43);
        for wrong in ["AAAA", "!!", &standard[1..], "", &zero] {
            let complaint = handoff_key(wrong).unwrap_err();
            assert!(wrong.is_empty() || !complaint.contains(wrong), "{wrong:?}");
        }
    }
}
