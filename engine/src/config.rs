//! What an operator can choose, resolved: the binary reads the environment, the engine gets this.

use std::sync::Arc;

/// Settings of the engine (13 §a.2). Limits of `None` are off.
#[derive(Clone, Debug)]
pub struct Config {
    /// Public name: goes into links; the first workspace is `ws:` and this.
    pub hostname: Arc<str>,
    /// Refuse plaintext envelopes.
    pub min_enc_mls: bool,
    /// Maintenance: no durable writes.
    pub read_only: bool,
    /// Whether access sets rule (`enforce`).
    pub access_set: bool,
    /// LIVE on or off.
    pub live: bool,
    /// LIVE frames per connection and minute.
    pub live_frames_per_minute: u32,
    /// Calls the process may carry at a time; `None`: CALL and MEDIA are off.
    pub max_concurrent_calls: Option<usize>,
    /// SEND frames per device and minute.
    pub send_frames_per_minute: u64,
    /// SEND ciphertext bytes per device and minute.
    pub send_bytes_per_minute: u64,
    /// SEND bytes per principal, group and minute.
    pub group_ingress_bytes_per_minute: Option<u64>,
    /// SEND bytes per workspace and minute.
    pub workspace_ingress_bytes_per_minute: Option<u64>,
    /// Bytes of a device in a group that no other subscriber was sent.
    pub group_backlog_bytes: Option<u64>,
    /// Log bytes per workspace.
    pub max_log_bytes: Option<u64>,
    /// Accept the map form (docs/map-form.md).
    pub map_dialect: bool,
    /// Accept an empty `ct`.
    pub allow_empty_ct: bool,
    /// Upgrade to AUTH_ACK.
    pub handshake_timeout_ms: u64,
    /// Silence before the probe.
    pub idle_timeout_ms: u64,
    /// What AUTH_ACK reports as the build.
    pub build_digest: Arc<str>,
    /// Wakes for absent devices; `None`: off.
    pub push: Option<Push>,
    /// Time between collector passes, ms; up to a tenth is added at random.
    pub janitor_interval_ms: u64,
    /// Envelopes older than this are counted and nothing else.
    pub retention_days: Option<u64>,
    /// The number a group's next envelope gets at least ([`drover_storage::log::LogStore::first_seq`]).
    pub first_seq: u64,
    /// Shards of the process.
    pub shards: usize,
    /// Memory for the (seq, id) indexes of one shard's groups, bytes; idle groups are evicted beyond it.
    pub index_bytes_max: usize,
    /// Items looked at in one piece of an answer to RECON, some 10 to 40 ns each: all others wait for as long.
    pub recon_piece_items: usize,
}

/// What the engine must know of the ringer (12 §8).
#[derive(Clone, Debug)]
pub struct Push {
    /// Where devices are told to register.
    pub register_url: Arc<str>,
    /// How long the queue keeps a wake that is no call, ms.
    pub coalesce_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            hostname: "localhost".into(),
            min_enc_mls: false,
            read_only: false,
            access_set: true,
            live: true,
            live_frames_per_minute: 60,
            max_concurrent_calls: Some(8),
            send_frames_per_minute: 6_000,
            send_bytes_per_minute: 67_108_864,
            group_ingress_bytes_per_minute: Some(8 << 20),
            workspace_ingress_bytes_per_minute: Some(64 << 20),
            group_backlog_bytes: Some(32 << 20),
            max_log_bytes: None,
            map_dialect: true,
            allow_empty_ct: false,
            handshake_timeout_ms: 10_000,
            idle_timeout_ms: 300_000,
            build_digest: "unknown".into(),
            push: None,
            janitor_interval_ms: 900_000,
            retention_days: None,
            first_seq: 1,
            shards: 1,
            index_bytes_max: 256 << 20,
            recon_piece_items: 4_096,
        }
    }
}
