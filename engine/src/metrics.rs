//! What a shard counts. One writer (the shard), read by the metrics page; labels come from closed sets only.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter with one writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. One writer, so a plain load and store is enough.
    pub fn add(&self, n: u64) {
        self.0
            .store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }
    /// Takes `n` away (gauges).
    pub fn sub(&self, n: u64) {
        self.0
            .store(self.0.load(Ordering::Relaxed).wrapping_sub(n), Ordering::Relaxed);
    }
    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one shard's engine counts.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Frames received, by tag (index 0: undecodable).
    pub frames_in: [Counter; 26],
    /// Errors sent, by position in [`drover_wire::error::Code::ALL`].
    pub errors_sent: [Counter; 25],
    /// Sessions in state Ready.
    pub ready: Counter,
    /// Envelopes made durable.
    pub envelopes_accepted: Counter,
    /// Envelopes answered with an earlier number.
    pub envelopes_duplicate: Counter,
    /// PUSH and HANDSHAKE frames queued for subscribers.
    pub fanout_frames: Counter,
    /// Downgrade episodes begun.
    pub subscriber_downgrades: Counter,
    /// LIVE frames a full queue shed.
    pub live_shed: Counter,
    /// RECON rounds answered.
    pub recon_rounds: Counter,
    /// Append batches that were committed.
    pub commits: Counter,
    /// Append batches that failed.
    pub commits_failed: Counter,
    /// Ciphertext and handshake bytes in realms loaded here.
    pub log_bytes: Counter,
    /// Outbound frames above the frame ceiling: a defect of ours.
    pub oversized_outbound_frames: Counter,
}
