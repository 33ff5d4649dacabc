//! What the collector reports (13 §c.5): counts, never names.

use std::ops::AddAssign;

/// Envelopes older than the operator's window (09 §9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overdue {
    /// How many.
    pub envelopes: u64,
    /// In how many workspaces.
    pub workspaces: u64,
    /// Whole days since the oldest was received.
    pub oldest_days: u64,
}

/// What one pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Groups with media.
    pub scopes: u64,
    /// Objects deleted.
    pub blobs_deleted: u64,
    /// Their bytes.
    pub bytes_released: u64,
    /// Uploads in parts that were given up.
    pub multipart_aborted: u64,
    /// Expired wake registrations.
    pub push_handles_dropped: u64,
    /// Superseded wraps past their 30 days.
    pub recovery_wraps_dropped: u64,
    /// Expired bootstrap handoffs.
    pub handoffs_dropped: u64,
    /// Key packages past their 90 days.
    pub key_packages_expired: u64,
    /// Seats of lapsed reservations.
    pub invite_seats_released: u64,
    /// Invites past their end.
    pub invites_expired: u64,
    /// Listings of the object storage.
    pub storage_listings: u64,
    /// Whether one was due and left out after a restoration.
    pub storage_listing_suppressed: bool,
    /// Only counted.
    pub retention_overdue: Overdue,
    /// Steps that failed; the next pass is their retry.
    pub steps_failed: u64,
}

impl AddAssign for Overdue {
    fn add_assign(&mut self, other: Self) {
        self.envelopes += other.envelopes;
        self.workspaces += other.workspaces;
        self.oldest_days = self.oldest_days.max(other.oldest_days);
    }
}

impl AddAssign for Collected {
    fn add_assign(&mut self, other: Self) {
        self.scopes += other.scopes;
        self.blobs_deleted += other.blobs_deleted;
        self.bytes_released += other.bytes_released;
        self.multipart_aborted += other.multipart_aborted;
        self.push_handles_dropped += other.push_handles_dropped;
        self.recovery_wraps_dropped += other.recovery_wraps_dropped;
        self.handoffs_dropped += other.handoffs_dropped;
        self.key_packages_expired += other.key_packages_expired;
        self.invite_seats_released += other.invite_seats_released;
        self.invites_expired += other.invites_expired;
        self.storage_listings += other.storage_listings;
        self.storage_listing_suppressed |= other.storage_listing_suppressed;
        self.retention_overdue += other.retention_overdue;
        self.steps_failed += other.steps_failed;
    }
}
