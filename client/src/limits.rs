//! Every ceiling this crate keeps, with its reason. Names carry their unit.

use std::time::Duration;

/// The largest WebSocket message accepted or sent (01 §7): a larger one ends the connection before it is buffered.
pub const MESSAGE_BYTES_MAX: usize = 1_056_768;
/// Bytes the WebSocket layer may hold unsent: a few whole messages, so that one large frame never stalls small ones.
pub const WRITE_BUFFER_BYTES_MAX: usize = 4 * MESSAGE_BYTES_MAX;
/// Groups one CONNECT may name (02 §4).
pub const CONNECT_GROUPS_MAX: usize = 256;
/// The largest handshake message in bytes (01 §7).
pub const HANDSHAKE_BYTES_MAX: usize = 524_288;
/// The largest live beat in bytes (01 §7).
pub const LIVE_BYTES_MAX: usize = 4096;
/// The largest body of a CALL in bytes (10 §1).
pub const CALL_BODY_BYTES_MAX: usize = 4096;
/// The largest frame of sealed audio in bytes (10 §1).
pub const MEDIA_BYTES_MAX: usize = 1500;
/// The largest sealed bundle or wrap in bytes (01 §7).
pub const SEALED_BYTES_MAX: usize = 262_144;
/// The largest key package in bytes (07 A2): eight of them fit into one frame.
pub const KEY_PACKAGE_BYTES_MAX: usize = 131_072;
/// Key packages one fetch may ask for (07 A2); more would be enumeration.
pub const KEY_FETCH_MAX: u8 = 8;

/// Reliable writes waiting or in flight at once; further calls of `send` wait.
pub const OUTBOX_WRITES_MAX: usize = 1024;
/// Their bytes. Kept here verbatim until acknowledged, since a resend has to be byte-identical (02 §14).
pub const OUTBOX_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Writes in flight at once. The relay answers in order, so this is what one refusal can make us repeat.
pub const WINDOW_WRITES_MAX: usize = 64;
/// Bytes in flight at once; at least one write is always let through.
pub const WINDOW_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Events a subscription holds for a slow reader. A replay or a reconciliation round is at most 255 envelopes
/// (02 §8, 03 §7) and starts only below half, so it always fits.
pub const QUEUE_EVENTS_MAX: usize = 512;
/// Their cost: 256 + payload bytes each, as the relay counts (02 §9).
pub const QUEUE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How long reading the socket waits for a full subscription before its events are skipped and reconciled later.
pub const QUEUE_GRACE: Duration = Duration::from_millis(250);

/// Frames set aside by `Connection` while it waits for one answer.
pub const INBOX_FRAMES_MAX: usize = 4096;
/// Their bytes.
pub const INBOX_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Commands waiting for the client's task.
pub const COMMANDS_MAX: usize = 64;
/// Unanswered requests other than writes.
pub const REQUESTS_MAX: usize = 64;
/// Rounds of one reconciliation; then SUB from the start does it (03 §8, decision 5).
pub const RECON_ROUNDS_MAX: u32 = 64;

/// Time for TCP, TLS and the upgrade together.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for one answer. The relay gives the whole handshake 10 s (02 §2).
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Silence after which the client pings. Below the idle timeouts of common proxies (60 s).
pub const PING_AFTER: Duration = Duration::from_secs(45);
/// Further silence after which the connection counts as dead.
pub const PONG_WITHIN: Duration = Duration::from_secs(20);
/// First wait between two connection attempts, before jitter.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(250);
/// Longest wait between two attempts, before jitter, unless the relay asks for more.
pub const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Clock difference beyond which nothing that expires is issued (manifest.json, `clock-skew-*`).
pub const CLOCK_SKEW_MAX: Duration = Duration::from_secs(300);
