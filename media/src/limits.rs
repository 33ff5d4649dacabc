//! Every figure of 10-calls.md that nobody can override.

/// Connections in one call (§3).
pub const PARTICIPANTS_MAX: usize = 5;
/// Sealed audio in one MEDIA frame, bytes (§1).
pub const CT_BYTES_MAX: usize = 1500;
/// Sealed body of one CALL frame, bytes (§1).
pub const BODY_BYTES_MAX: usize = 4096;
/// Sealed audio one connection may send in [`BYTE_WINDOW_MS`], bytes (§5).
pub const BYTES_PER_WINDOW: u64 = 1_048_576;
/// See [`BYTES_PER_WINDOW`]: one minute, ms.
pub const BYTE_WINDOW_MS: u64 = 60_000;
/// MEDIA frames of one stream in [`STREAM_WINDOW_MS`] (§5).
pub const FRAMES_PER_STREAM: u32 = 60;
/// See [`FRAMES_PER_STREAM`]: one second, ms.
pub const STREAM_WINDOW_MS: u64 = 1_000;
/// Streams of one connection whose windows are open (§5).
pub const STREAMS_MAX: usize = 32;
/// Shortest time between two refusals of MEDIA on one connection, ms (§5, decisions.md 33).
pub const COMPLAINT_MS: u64 = 1_000;
/// A call without MEDIA and without a new joiner for this long goes at the next join, ms (§3).
pub const IDLE_MS: u64 = 120_000;
/// What a refused joiner is told to wait, s (§3).
pub const JOIN_RETRY_S: u32 = 5;
/// MEDIA frames waiting for one recipient (§6, decisions.md 9).
pub const LANE_FRAMES_MAX: usize = 64;
/// Oldest MEDIA frame that is still worth sending, ms (§6, decisions.md 9).
pub const LANE_AGE_MS_MAX: u64 = 200;
