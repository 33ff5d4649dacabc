//! Every setting, one row each: its name, what it may hold, its default and what it does. The environment, relay.toml,
//! `--check-config` and docs/configuration.md are all read off this table.

use super::kind::{Kind, Off, U64};
use drover_transport::Io;

/// Whether a value may be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// Printed as it is.
    Plain,
    /// A secret: `[set]` or `unset`.
    Set,
    /// A secret with a longer stand-in: `[set, not printed]` or `unset`.
    SetNotPrinted,
}

/// One setting.
pub(crate) struct Row {
    /// Which one.
    pub(crate) key: Key,
    /// Its full name, as in the environment.
    pub(crate) name: &'static str,
    /// What it may hold.
    pub(crate) kind: Kind,
    /// What holds when nobody states it; `None`: unset.
    pub(crate) default: Option<&'static str>,
    /// Whether its value may be printed.
    pub(crate) shown: Shown,
    /// What it does, for docs/configuration.md.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "docs/configuration.md is checked by a test")
    )]
    pub(crate) doc: &'static str,
}

impl Row {
    /// The spelling in the `[relay]` table of relay.toml: lower case, without the prefix.
    pub(crate) fn short(&self) -> String {
        let bare = PREFIXES.iter().find_map(|prefix| self.name.strip_prefix(prefix));
        bare.unwrap_or(self.name).to_ascii_lowercase()
    }
}

/// Prefixes of our names. An environment variable that has one and is no setting is refused (decisions.md 16).
pub(crate) const PREFIXES: [&str; 2] = ["WEALD_RELAY_", "DROVER_"];

/// The one name that may stand in the environment only (13 §a.2).
pub(crate) const IMAGE_DIGEST: &str = "WEALD_RELAY_IMAGE_DIGEST";

const ON_OFF: Kind = Kind::Word(&["on", "off"]);
const AT_LEAST_1: Kind = Kind::Number {
    min: 1,
    max: U64,
    off: Off::Never,
};
const FROM_0: Kind = Kind::Number {
    min: 0,
    max: U64,
    off: Off::Never,
};
const CEILING: Kind = Kind::Number {
    min: 1,
    max: U64,
    off: Off::Unlimited,
};
/// A count of 10^9 bytes whose product still fits a `u64`.
const GIGABYTES: Kind = Kind::Number {
    min: 1,
    max: U64 / 1_000_000_000,
    off: Off::Unlimited,
};
const BUDGET: Kind = Kind::Number {
    min: 0,
    max: U64,
    off: Off::UnlimitedOrZero,
};

macro_rules! settings {
    ($($key:ident $name:literal $kind:expr, $default:expr, $shown:ident, $doc:literal;)*) => {
        /// Names a setting in the program.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)] // The rows of the table say what each one is.
        pub(crate) enum Key { $($key),* }

        /// All settings, in the order they are printed. A row's place is its key's number.
        pub(crate) const TABLE: &[Row] = &[$(Row {
            key: Key::$key, name: $name, kind: $kind, default: $default, shown: Shown::$shown, doc: $doc,
        }),*];
    };
}

impl Key {
    /// The full name of the setting.
    pub(crate) fn name(self) -> &'static str {
        TABLE[self as usize].name
    }
}

settings! {
    Hostname "WEALD_RELAY_HOSTNAME" Kind::Host, Some("localhost"), Plain,
        "Public name. Goes into invite links (`https://HOSTNAME/join/TOKEN`); the first workspace is named after it once, and a later change only changes links.";
    DatabaseUrl "WEALD_RELAY_DATABASE_URL" Kind::Database, None, SetNotPrinted,
        "Where envelopes and control records are kept: `file:///abs/path` for the embedded store. Unset: the embedded store in `DROVER_DATA_DIR/store`. `postgres://` is refused: importing such a database is not built yet.";
    DbPoolSize "WEALD_RELAY_DB_POOL_SIZE" Kind::Number { min: 1, max: u32::MAX as u64, off: Off::Never }, Some("8"), Plain,
        "Reported in the readiness document as `db_pool.size`; the embedded store uses no connections.";
    StorageUrl "WEALD_RELAY_STORAGE_URL" Kind::Storage, None, Plain,
        "Where encrypted blobs go: `file:///abs/path` or `s3://bucket[/prefix]`. Unset: `DROVER_DATA_DIR/blobs`.";
    RedisUrl "WEALD_RELAY_REDIS_URL" Kind::Text, None, SetNotPrinted,
        "Declares that several processes share one store. Never dialled; refused with the embedded store, which one process owns.";
    Listen "WEALD_RELAY_LISTEN" Kind::HostPort, Some("0.0.0.0:8443"), Plain,
        "Public listener, `host:port`.";
    ObservabilityListen "WEALD_RELAY_OBSERVABILITY_LISTEN" Kind::HostPort, Some("127.0.0.1:9090"), Plain,
        "Private listener for readiness, metrics and operator routes, `host:port`, another than the public one's. Never route it to the outside.";
    Tls "WEALD_RELAY_TLS" Kind::Tls, Some("off"), Plain,
        "`off`: plain, behind a proxy. `file`: TLS 1.3 with the files named below, read again when they change. `dev`: TLS 1.3 with a self-signed certificate kept in the data directory.";
    MaxStorageGb "WEALD_RELAY_MAX_STORAGE_GB" GIGABYTES, Some("unlimited"), Plain,
        "Ceiling on media of one workspace, stored and reserved, in units of 10^9 bytes. Text is never refused for it.";
    MaxLogGb "WEALD_RELAY_MAX_LOG_GB" GIGABYTES, Some("unlimited"), Plain,
        "Ceiling on the envelope and handshake bytes of one workspace, in units of 10^9 bytes. Reaching it refuses writes and deletes nothing.";
    RetentionDays "WEALD_RELAY_RETENTION_DAYS" CEILING, Some("unlimited"), Plain,
        "Warning only: envelopes older than this are counted and logged. Deletes nothing.";
    AccessSet "WEALD_RELAY_ACCESS_SET" Kind::Word(&["enforce", "off"]), Some("enforce"), Plain,
        "`off` lets any well-formed device key authenticate, without a workspace: for diagnosis only.";
    MinEnc "WEALD_RELAY_MIN_ENC" Kind::Word(&["none", "mls"]), Some("none"), Plain,
        "`mls` refuses every envelope that is not marked as MLS ciphertext.";
    Live "WEALD_RELAY_LIVE" ON_OFF, Some("on"), Plain,
        "Presence frames.";
    LiveFanout "WEALD_RELAY_LIVE_FANOUT" Kind::Text, Some("process"), SetNotPrinted,
        "Only `process` is accepted: presence stays inside the process that owns the workspace.";
    Calls "WEALD_RELAY_CALLS" ON_OFF, Some("on"), Plain,
        "Call signalling and audio. Stated `on` needs a stated `WEALD_RELAY_MAX_CONCURRENT_CALLS`.";
    MaxConcurrentCalls "WEALD_RELAY_MAX_CONCURRENT_CALLS" AT_LEAST_1, Some("8"), Plain,
        "Calls the process may carry. One connection may hold at most a quarter of it, at least one.";
    MaxConnections "WEALD_RELAY_MAX_CONNECTIONS" CEILING, Some("256"), Plain,
        "Open client sockets. Beyond it: HTTP 503 with `Retry-After: 5`. One unauthenticated source may hold a quarter.";
    HandshakeTimeoutMs "WEALD_RELAY_HANDSHAKE_TIMEOUT_MS" AT_LEAST_1, Some("10000"), Plain,
        "Milliseconds from the upgrade to authentication. Activity does not extend it.";
    IdleTimeoutMs "WEALD_RELAY_IDLE_TIMEOUT_MS" AT_LEAST_1, Some("300000"), Plain,
        "Milliseconds of silence on an authenticated socket before it is pinged. Behind a proxy with a shorter limit, set it below that.";
    SendFramesPerMinute "WEALD_RELAY_SEND_FRAMES_PER_MINUTE" AT_LEAST_1, Some("6000"), Plain,
        "SEND frames of one device per clock minute, all its sockets together.";
    SendBytesPerMinute "WEALD_RELAY_SEND_BYTES_PER_MINUTE" AT_LEAST_1, Some("67108864"), Plain,
        "Ciphertext bytes sent by one device per clock minute.";
    SmtpUrl "WEALD_RELAY_SMTP_URL" Kind::Text, None, Set,
        "Accepted and unused: the relay sends no mail.";
    WriteMode "WEALD_RELAY_WRITE_MODE" Kind::Word(&["full", "read_only"]), Some("full"), Plain,
        "`read_only` refuses every durable write with `denied/service_read_only` and turns readiness to 503; reading goes on.";
    ReleaseCheck "WEALD_RELAY_RELEASE_CHECK" ON_OFF, Some("on"), Plain,
        "Accepted and unused: no release feed is ever asked. `on` reports the state `unknown`, `off` reports `disabled`.";
    MetricsGroupLabels "WEALD_RELAY_METRICS_GROUP_LABELS" ON_OFF, Some("off"), Plain,
        "Accepted; no metric carries a group today.";
    BootstrapHandoffPubkey "WEALD_RELAY_BOOTSTRAP_HANDOFF_PUBKEY" Kind::Key32, None, Set,
        "Base64 of an X25519 public key that invites to new workspaces are sealed to instead of being printed. The public listener serves them to whoever has the operator token: the first workspace's at `/handoff/ID` (ID: the key's SHA-256 in base64url), any one's at `/handoff/ID/FINGERPRINT`.";
    OperatorToken "WEALD_RELAY_OPERATOR_TOKEN" Kind::Text, None, Set,
        "Bearer for the operator routes and the details of `/readyz`. Unset: those routes do not exist.";
    Profile "WEALD_RELAY_PROFILE" Kind::Word(&["self_host", "hosted"]), Some("self_host"), Plain,
        "`hosted` only takes away: no SMTP, the access set enforced, the floor `mls`, no group labels, https to the ringer.";
    Push "WEALD_RELAY_PUSH" ON_OFF, Some("off"), Plain,
        "Whether wakes are sent to a ringer.";
    PushUrl "WEALD_RELAY_PUSH_URL" Kind::Text, None, Plain,
        "Where a wake is posted: `https`, or `http` to this machine. It has no default.";
    PushToken "WEALD_RELAY_PUSH_TOKEN" Kind::Text, None, Set,
        "Bearer sent to the ringer.";
    PushRegisterUrl "WEALD_RELAY_PUSH_REGISTER_URL" Kind::Text, None, Plain,
        "Where devices are told to register, at most 512 bytes. Unset: the push URL with `/v1/handles` in the place of a `/v1/wake` at its end, or behind it.";
    PushCoalesceMs "WEALD_RELAY_PUSH_COALESCE_MS" FROM_0, Some("2000"), Plain,
        "Milliseconds within which wakes of one handle become one; 0: none do. Wakes for calls skip it.";
    PushQueue "WEALD_RELAY_PUSH_QUEUE" AT_LEAST_1, Some("1024"), Plain,
        "Bound on waiting wakes; overflow drops the oldest that is not for a call.";
    JanitorIntervalMs "WEALD_RELAY_JANITOR_INTERVAL_MS" AT_LEAST_1, Some("900000"), Plain,
        "Milliseconds between collector passes, plus up to a tenth at random.";
    GcMinObjectAgeSeconds "WEALD_RELAY_GC_MIN_OBJECT_AGE_SECONDS" FROM_0, Some("172800"), Plain,
        "An object without a record is never deleted younger than this; 0: no floor.";
    MediaUnclaimedGraceSeconds "WEALD_RELAY_MEDIA_UNCLAIMED_GRACE_SECONDS" FROM_0, Some("86400"), Plain,
        "How long an uploaded object that nobody claimed is left alone.";
    TrustedProxyHops "WEALD_RELAY_TRUSTED_PROXY_HOPS" FROM_0, Some("0"), Plain,
        "How many proxies in front append to `X-Forwarded-For`. Wrong, and all clients count as one source.";
    LiveFramesPerMinute "WEALD_RELAY_LIVE_FRAMES_PER_MINUTE" Kind::Number { min: 1, max: u32::MAX as u64, off: Off::Never }, Some("60"), Plain,
        "LIVE frames of one connection per clock minute. Set 900 for clients that stream pointers.";
    GroupIngressBytesPerMinute "WEALD_RELAY_GROUP_INGRESS_BYTES_PER_MINUTE" BUDGET, Some("8388608"), Plain,
        "Ciphertext bytes one principal may send to one group per clock minute.";
    WorkspaceIngressBytesPerMinute "WEALD_RELAY_WORKSPACE_INGRESS_BYTES_PER_MINUTE" BUDGET, Some("67108864"), Plain,
        "Ciphertext bytes one workspace may send per clock minute.";
    GroupBacklogBytes "WEALD_RELAY_GROUP_BACKLOG_BYTES" BUDGET, Some("33554432"), Plain,
        "Bytes of one device in one group that no other subscriber was sent yet. A first history upload into an unattended group can exceed the default.";
    MapDialect "WEALD_RELAY_MAP_DIALECT" ON_OFF, Some("on"), Plain,
        "Whether frames in map form are understood beside the array form.";
    AllowEmptyCt "WEALD_RELAY_ALLOW_EMPTY_CT" ON_OFF, Some("off"), Plain,
        "Whether an envelope with empty ciphertext is accepted.";
    LogLevel "WEALD_RELAY_LOG_LEVEL" Kind::Word(&["error", "warn", "info", "debug", "trace"]), Some("info"), Plain,
        "How much is logged. Nothing that identifies people or content is logged at any level.";
    LogFormat "WEALD_RELAY_LOG_FORMAT" Kind::Word(&["json", "text"]), Some("json"), Plain,
        "One JSON object per line, or text.";
    DataDir "DROVER_DATA_DIR" Kind::Text, Some("./drover-data"), Plain,
        "Folder of the embedded store, the default blob folder, the development certificate and `operator.key`. The store keeps 256 MiB of its disk free: a SEND that would leave less is refused, and readiness says so; half of it is there for DROP.";
    TlsCertFile "DROVER_TLS_CERT_FILE" Kind::Text, None, Plain,
        "Certificate chain in PEM, for `WEALD_RELAY_TLS=file`.";
    TlsKeyFile "DROVER_TLS_KEY_FILE" Kind::Text, None, Plain,
        "Private key in PEM, for `WEALD_RELAY_TLS=file`. Clients pin the key: keep it when the certificate is renewed.";
    TurnUsMax "DROVER_TURN_US_MAX" Kind::Number { min: 0, max: 100_000, off: Off::Never }, Some("500"), Plain,
        "Longest a busy shard gathers work before a turn, in microseconds. An idle one never waits.";
    Io "DROVER_IO" Kind::Word(Io::WORDS), Some("auto"), Plain,
        "What moves bytes under the shards: `uring`, `tokio-uring` (both io_uring) or `epoll`. `auto` tries all that `uring` does and takes `epoll` if any of it fails, as in a container that forbids io_uring. Named and impossible, it is an error. See io_uring.md.";
    CopyBelow "DROVER_COPY_BELOW" Kind::Number { min: 0, max: 65_536, off: Off::Never }, Some("2048"), Plain,
        "Queued messages shorter than this many bytes are copied into one buffer when a connection is written; longer ones are written from where they were received. 0: none is ever copied. With TLS encryption reads a copy in any case.";
    Shards "DROVER_SHARDS" Kind::Number { min: 1, max: 1024, off: Off::Never }, None, Plain,
        "Shards of the process, each a thread. Unset: one per core.";
    PublicUrl "DROVER_PUBLIC_URL" Kind::HttpUrl, None, Plain,
        "Base of blob links. Unset: `https://HOSTNAME` if a hostname is stated, else the listener on this machine.";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_rows_place_is_its_key_and_both_spellings_are_unique() {
        let mut names = HashSet::new();
        for (place, row) in TABLE.iter().enumerate() {
            assert_eq!(row.key as usize, place, "{}", row.name);
            assert!(
                names.insert(row.name.to_owned()) && names.insert(row.short()),
                "{}",
                row.name
            );
            assert!(PREFIXES.iter().any(|p| row.name.starts_with(p)), "{}", row.name);
        }
    }

    #[test]
    fn the_deployed_names_come_first() {
        let deployed = TABLE.iter().position(|r| r.key == Key::TrustedProxyHops);
        assert_eq!(deployed, Some(38), "13 §a.2 lists 39 names");
    }
}
