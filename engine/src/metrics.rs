//! What a shard counts. One writer (the shard), read by the metrics page; labels come from closed sets only.

use crate::collector::Collected;
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
    /// Puts another value in its place (gauges).
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
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
    /// LIVE and CALL frames a full queue shed, per recipient.
    pub live_shed: Counter,
    /// CALLs refused because the connection has its share of the calls.
    pub calls_share_refused: Counter,
    /// MEDIA frames of connections that are not in the call, reported or not.
    pub media_denied: Counter,
    /// MEDIA frames queued, per recipient.
    pub media_forwarded: Counter,
    /// Bytes of those, as they are written.
    pub media_forwarded_bytes: Counter,
    /// Bytes of MEDIA copied because the transport had no head in front of them.
    pub media_copied_bytes: Counter,
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
    /// When the last pass of the collector without a failed step ended, Unix milliseconds; shard 0 only, as what
    /// follows.
    pub collector_passed_ms: Counter,
    /// Expired wake registrations deleted.
    pub collected_handles: Counter,
    /// Superseded wraps deleted.
    pub collected_prior_wraps: Counter,
    /// Expired bootstrap handoffs deleted.
    pub collected_handoffs: Counter,
    /// Expired key packages deleted.
    pub collected_key_packages: Counter,
    /// Seats given back.
    pub collected_reservations: Counter,
    /// Invites ended.
    pub collected_invites: Counter,
}

impl Metrics {
    /// Counts what a pass did.
    pub(crate) fn collected(&self, sum: &Collected, wall_ms: u64) {
        if sum.steps_failed == 0 {
            self.collector_passed_ms.set(wall_ms);
        }
        self.collected_handles.add(sum.push_handles_dropped);
        self.collected_prior_wraps.add(sum.recovery_wraps_dropped);
        self.collected_handoffs.add(sum.handoffs_dropped);
        self.collected_key_packages.add(sum.key_packages_expired);
        self.collected_reservations.add(sum.invite_seats_released);
        self.collected_invites.add(sum.invites_expired);
    }
}
