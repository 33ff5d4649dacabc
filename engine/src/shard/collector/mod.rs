//! The collector (09 §8, 13 §c.5): what has expired goes. Shard 0 keeps the schedule and adds up; each shard sweeps its
//! own realms, one after another and one per turn, so that no pass holds anybody up or keeps everything in memory.
//! Nothing here is ever an envelope.
//!
//! | Module | Story |
//! | --- | --- |
//! | [`realm`] | what is swept in one realm, step by step |
//! | [`steps`] | what each step finds to do |
//! | [`overdue`] | envelopes past the operator's window, counted |

mod overdue;
mod realm;
mod steps;

pub(super) use realm::{Sweep, Swept};

use super::control::operator::Reply;
use super::{Pending, Posted, RealmState, Shard, ShardMessage, Waiter};
use crate::collector::Collected;
use crate::directory::Directory;
use crate::effects::Effects;
use crate::limits::PASSES_PER_LISTING;
use drover_storage::RealmId;

/// The schedule, and this shard's share of the pass under way.
#[derive(Default)]
pub(super) struct Collector {
    /// When the next pass begins; shard 0 only, from its first turn on.
    next_ms: Option<u64>,
    /// Scheduled passes begun.
    passes: u64,
    /// The relay's pass under way; shard 0 only.
    pass: Option<Pass>,
    /// Who asked for a pass while one was under way, and whether it is to list.
    asked: Vec<(bool, Reply<Collected>)>,
    share: Option<Share>,
}

/// A pass of the whole relay.
struct Pass {
    /// Shards that have not reported.
    left: usize,
    sum: Collected,
    replies: Vec<Reply<Collected>>,
}

/// One shard's part of a pass.
struct Share {
    /// Whether partitions of larger values are read whole: what is left in them by a crash or by its age costs room
    /// and nothing else.
    listing: bool,
    /// Realms still to be swept.
    realms: Vec<RealmId>,
    /// The realm being swept, if it is in memory for that only.
    visitor: Option<RealmId>,
    /// `None` before the realms are done.
    overdue: Option<overdue::Count>,
    sum: Collected,
}

impl ShardMessage {
    /// Asks for one pass now, with or without a listing; and the shard to post that to.
    pub fn collect(listing: bool, reply: Reply<Collected>) -> (usize, Self) {
        (0, Self(Posted::CollectNow { listing, reply }))
    }
}

impl Collector {
    /// When a pass begins next.
    pub(super) fn next_ms(&self) -> Option<u64> {
        self.next_ms
    }
}

impl Shard {
    /// The first turn: the interval begins (it sleeps first).
    pub(super) fn begin_schedule(&mut self) {
        if self.index == 0 && self.collector.next_ms.is_none() {
            self.schedule_pass();
        }
    }

    fn schedule_pass(&mut self) {
        let interval_ms = self.config.janitor_interval_ms;
        let draw = (self.secret ^ self.collector.passes).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let jitter_ms = draw % (interval_ms / 10).max(1);
        let wait_ms = interval_ms.saturating_add(jitter_ms);
        self.collector.next_ms = Some(self.now.mono_ms.saturating_add(wait_ms));
    }

    /// Begins a pass if it is time for one.
    pub(super) fn collect_on_time<E: Effects>(&mut self, fx: &mut E) {
        if self
            .collector
            .next_ms
            .is_none_or(|at_ms| self.now.mono_ms < at_ms)
        {
            return;
        }
        self.collector.passes += 1;
        self.schedule_pass();
        if self.collector.pass.is_none() {
            let listing = self.collector.passes.is_multiple_of(PASSES_PER_LISTING);
            self.begin_pass(listing, Vec::new(), fx);
        }
    }

    /// Somebody wants a pass now: its own, not one that has begun already.
    pub(super) fn collect_now<E: Effects>(&mut self, listing: bool, reply: Reply<Collected>, fx: &mut E) {
        if self.collector.pass.is_some() {
            self.collector.asked.push((listing, reply));
        } else {
            self.begin_pass(listing, vec![reply], fx);
        }
    }

    fn begin_pass<E: Effects>(&mut self, listing: bool, replies: Vec<Reply<Collected>>, fx: &mut E) {
        if self.draining {
            return; // whoever asked finds that nobody answers
        }
        self.collector.pass = Some(Pass {
            left: self.config.shards,
            sum: Collected::default(),
            replies,
        });
        for shard in 0..self.config.shards {
            fx.post(shard, ShardMessage(Posted::Collect { listing }));
        }
    }

    /// This shard's share of a pass begins.
    pub(super) fn begin_share<E: Effects>(&mut self, listing: bool, fx: &mut E) {
        let mut realms = self.directory.realms();
        realms.retain(|realm| Directory::shard_of(realm, self.config.shards) == self.index);
        realms.reverse();
        if self.config.read_only {
            realms.clear(); // no durable writes: only the count is left
        }
        self.collector.share = Some(Share {
            listing,
            realms,
            visitor: None,
            overdue: None,
            sum: Collected::default(),
        });
        self.collect_on(fx);
    }

    /// The next realm, or what comes after the last one.
    pub(super) fn collect_on<E: Effects>(&mut self, fx: &mut E) {
        self.dismiss_visitor();
        let draining = self.draining;
        let Some(share) = &mut self.collector.share else {
            return;
        };
        match share.realms.pop().filter(|_| !draining) {
            Some(realm) => {
                let slot = self.realm_slots.get(&realm);
                let state = slot.map(|slot| &self.realms[*slot as usize].state);
                if matches!(state, None | Some(RealmState::Absent)) {
                    share.visitor = Some(realm.clone());
                }
                self.when_loaded(&realm, Waiter::Sweep, fx);
            }
            None if draining => self.end_share(fx),
            None => self.count_overdue(fx),
        }
    }

    /// A realm that was read for the sweep, and that nobody has come to since, leaves memory again.
    fn dismiss_visitor(&mut self) {
        let visitor = self
            .collector
            .share
            .as_mut()
            .and_then(|share| share.visitor.take());
        let Some(&slot) = visitor.and_then(|realm| self.realm_slots.get(&realm)) else {
            return;
        };
        let in_use = self.pending.values().any(|pending| match pending {
            Pending::Code { realm, .. } | Pending::Control { realm, .. } => *realm == slot,
            _ => false,
        });
        let place = &mut self.realms[slot as usize];
        // Whoever is admitted has its budgets there for good: without any, nobody has come.
        if let RealmState::Ready(realm) = &place.state
            && realm.devices.is_empty()
            && realm.ops.is_empty()
            && !realm.busy
            && !in_use
        {
            self.metrics.log_bytes.sub(realm.log_bytes);
            place.state = RealmState::Absent;
        }
    }

    /// In a turn of its own: however many realms have nothing to be swept, no turn is long.
    fn collect_later<E: Effects>(&mut self, fx: &mut E) {
        fx.post(self.index, ShardMessage(Posted::CollectOn));
    }

    fn end_share<E: Effects>(&mut self, fx: &mut E) {
        if let Some(share) = self.collector.share.take() {
            fx.post(0, ShardMessage(Posted::Collected(Box::new(share.sum))));
        }
    }

    /// A shard is done with its share; with the last one the pass ends.
    pub(super) fn share_done<E: Effects>(&mut self, sum: &Collected, fx: &mut E) {
        let Some(pass) = &mut self.collector.pass else {
            return;
        };
        pass.sum += *sum;
        pass.left -= 1;
        if pass.left > 0 {
            return;
        }
        let Some(Pass { sum, replies, .. }) = self.collector.pass.take() else {
            return;
        };
        self.metrics.collected(&sum, self.now.wall_ms);
        log(&sum);
        for reply in replies {
            reply(sum);
        }
        let asked = std::mem::take(&mut self.collector.asked);
        if !asked.is_empty() {
            let listing = asked.iter().any(|(listing, _)| *listing);
            self.begin_pass(listing, asked.into_iter().map(|(_, reply)| reply).collect(), fx);
        }
    }

    fn tally(&mut self, found: &Collected) {
        if let Some(share) = &mut self.collector.share {
            share.sum += *found;
        }
    }

    fn step_failed(&mut self) {
        self.tally(&Collected {
            steps_failed: 1,
            ..Collected::default()
        });
    }
}

fn log(sum: &Collected) {
    tracing::info!(
        scopes = sum.scopes,
        blobs_deleted = sum.blobs_deleted,
        bytes_released = sum.bytes_released,
        multipart_aborted = sum.multipart_aborted,
        push_handles_dropped = sum.push_handles_dropped,
        recovery_wraps_dropped = sum.recovery_wraps_dropped,
        handoffs_dropped = sum.handoffs_dropped,
        key_packages_expired = sum.key_packages_expired,
        invite_seats_released = sum.invite_seats_released,
        invites_expired = sum.invites_expired,
        storage_listings = sum.storage_listings,
        storage_listing_suppressed = sum.storage_listing_suppressed,
        steps_failed = sum.steps_failed,
        "collector pass"
    );
    let overdue = &sum.retention_overdue;
    if overdue.envelopes > 0 {
        tracing::warn!(
            envelopes = overdue.envelopes,
            workspaces = overdue.workspaces,
            oldest_days = overdue.oldest_days,
            "envelopes are older than WEALD_RELAY_RETENTION_DAYS; nothing is deleted for it"
        );
    }
}
