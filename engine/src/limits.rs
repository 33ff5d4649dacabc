//! Every figure of spec/weald/04-errors-and-limits.md §3 that the engine enforces and nobody can override.

/// Groups one connection may name in CONNECT or hold by SUB.
pub(crate) const GROUPS_PER_CONNECTION: usize = 256;
/// Group rows of one workspace.
pub(crate) const GROUPS_PER_WORKSPACE: usize = 8192;
/// SUB frames per connection and minute.
pub(crate) const SUB_PER_MINUTE: u32 = 300;
/// RECON frames per connection and minute.
pub(crate) const RECON_PER_MINUTE: u32 = 600;
/// HANDSHAKE frames per connection and minute.
pub(crate) const HANDSHAKE_PER_MINUTE: u32 = 120;
/// ACCESS frames per connection and minute.
pub(crate) const ACCESS_PER_MINUTE: u32 = 30;
/// WRAP frames per connection and minute.
pub(crate) const WRAP_PER_MINUTE: u32 = 30;
/// INVITE frames per connection and minute.
pub(crate) const INVITE_PER_MINUTE: u32 = 30;
/// JOIN frames per connection and minute.
pub(crate) const JOIN_PER_MINUTE: u32 = 20;
/// KEYS frames per connection and minute.
pub(crate) const KEYS_PER_MINUTE: u32 = 30;
/// CALL frames per connection and minute.
pub(crate) const CALL_PER_MINUTE: u32 = 120;
/// DROP frames per connection and minute (09 decision 8).
pub(crate) const DROP_PER_MINUTE: u32 = 120;
/// Records of the retention chain, their readings and BLOB aborts per device and minute (08 decision 14).
pub(crate) const CHAIN_PER_MINUTE: u64 = 300;
/// Rival controls remembered of one group, as keys that may end its freeze. Ours: any member that once held the key of
/// an epoch can make as many as it likes.
pub(crate) const RIVAL_CONTROLS_MAX: usize = 64;
/// Refused manifests remembered of one group, the newest ones. Ours.
pub(crate) const REFUSED_MANIFESTS_KEPT: usize = 16;
/// Envelopes one commit deletes, so that nobody's SEND waits for more than some milliseconds of a DROP. Ours.
pub(crate) const DELETES_PER_COMMIT: usize = 2048;
/// One key package.
pub(crate) const KEY_PACKAGE_BYTES_MAX: usize = 131_072;
/// Key packages on one device's shelf.
pub(crate) const KEY_PACKAGES_PER_SHELF: usize = 100;
/// A key package's life: 90 days.
pub(crate) const KEY_PACKAGE_LIFE_MS: u64 = 90 * 86_400_000;
/// Key packages one KEYS fetch may ask for.
pub(crate) const KEYS_FETCH_MAX: u8 = 8;
/// Ciphertext of one LIVE frame.
pub(crate) const LIVE_BYTES_MAX: usize = 4096;
/// One handshake message.
pub(crate) const HANDSHAKE_BYTES_MAX: usize = 524_288;
/// How far ahead a wake registration may expire: 30 days and 5 minutes of slack (decisions.md 10).
pub(crate) const WAKE_EXPIRY_AHEAD_MS: u64 = (30 * 24 * 60 + 5) * 60_000;
/// Wake registrations of one principal within [`WAKE_WINDOW_MS`] (12 §3).
pub(crate) const WAKE_REGISTRATIONS: usize = 5;
/// See [`WAKE_REGISTRATIONS`]: a sliding hour.
pub(crate) const WAKE_WINDOW_MS: u64 = 3_600_000;
/// PUSH frames of one backfill or RECON batch, beside the bound by free queue slots.
pub(crate) const BACKFILL_FRAMES: usize = 255;
/// Cost units of one backfill or RECON batch.
pub(crate) const BACKFILL_COST: usize = 7_335_936;
/// Cost kept free behind a backfill, so that the answer that follows it always fits.
pub(crate) const BACKFILL_RESERVE: usize = 1_052_672;
/// How long a peer may leave an owed frame unread (02 §2 and decision 1).
pub(crate) const STALL_MS: u64 = 10_000;
/// The longest wait for an answer to the idle probe.
pub(crate) const PROBE_MS: u64 = 10_000;
/// How often a session that a grant admitted is looked at (05 D11).
pub(crate) const PROVISIONAL_CHECK_MS: u64 = 60_000;
/// A reservation's life (06 §1).
pub(crate) const RESERVATION_MS: u64 = 600_000;
/// The bootstrap invite's life (06 §12).
pub(crate) const BOOTSTRAP_MS: u64 = 86_400_000;
/// Wrong codes one source may try on one token, and all sources together (06 §6).
pub(crate) const CODE_TRIES_PER_SOURCE: u32 = 5;
/// See [`CODE_TRIES_PER_SOURCE`].
pub(crate) const CODE_TRIES_PER_TOKEN: u32 = 25;
/// Window and cooldown of wrong codes.
pub(crate) const CODE_COOLDOWN_MS: u64 = 900_000;
/// Refreshed bundles kept per token and group, beside the issued one (06 §1).
pub(crate) const REFRESHED_KEPT: usize = 3;
/// Invite records up to this size lie with the invite; larger ones in a partition of their own. Ours.
pub(crate) const RECORD_INLINE_BYTES: usize = 4096;
/// How long a superseded wrap is kept: 30 days.
pub(crate) const PRIOR_WRAP_MS: u64 = 30 * 86_400_000;
/// A recovery key's pause between rotations (05 §7.5).
pub(crate) const ROTATION_PAUSE_MS: u64 = 86_400_000;

/// Every so many scheduled passes of the collector list storage, never the first (09 §8).
pub(crate) const PASSES_PER_LISTING: u64 = 96;
/// Rows one commit of the collector takes, about. Ours: clients wait in the same line.
pub(crate) const SWEPT_PER_COMMIT: usize = 512;
/// Bytes such a commit writes, about. Ours.
pub(crate) const SWEPT_BYTES_PER_COMMIT: usize = 4 << 20;

/// Answers one connection may have waiting for a commit or for room before its next frame is left unread. Ours: it
/// bounds the memory a pipelining client can claim.
pub(crate) const ANSWERS_WAITING_MAX: usize = 1024;
/// Bytes a shard accepts beyond its last commit before SEND is answered `retry/backpressure`. Ours.
pub(crate) const UNCOMMITTED_BYTES_MAX: usize = 64 << 20;
/// Undelivered envelopes remembered per group for the backlog budget; beyond it the oldest are forgiven. Ours.
pub(crate) const BACKLOG_ENTRIES_MAX: usize = 65_536;
