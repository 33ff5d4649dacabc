//! What a client has of one group, kept across connections.

use crate::model::Subscription;
use crate::world::Outside;
use drover_client::recon::Reconciler;
use drover_wire::id::{GroupId, Hash};
use drover_wire::map::Span;
use drover_wire::recon::{self, Item, fingerprint, item_seq};
use std::collections::{BTreeMap, BTreeSet};

/// How it reconciles.
pub(super) enum Reconciling {
    /// By payloads, in either form.
    Payload(Reconciler),
    /// By lists, in the map form; this was the so many-th.
    Lists(u32),
}

/// What a client has of one group, across connections.
#[derive(Default)]
pub struct Held {
    /// Envelopes by content address, with their numbers.
    pub envelopes: BTreeMap<Hash, u64>,
    /// The same as RECON wants them.
    pub(super) items: Vec<Item>,
    /// Its ciphertexts that it may send again.
    pub own: Vec<Vec<u8>>,
    /// Come since the last RECON was sent: its answer may not know of them.
    pub(super) fresh: BTreeSet<Hash>,
    /// A reconciliation under way, and what was on disk when it began.
    pub(super) recon: Option<(Reconciling, BTreeSet<Hash>)>,
    /// On this connection.
    pub subscription: Option<Subscription>,
    /// It wants to be subscribed.
    pub wants: bool,
    /// It was told that it lacks something.
    pub behind: bool,
    /// A reconciliation came to its end since this was last taken back.
    pub whole: bool,
}

impl Held {
    pub(super) fn insert(&mut self, seq: u64, id: Hash) {
        let before = self.envelopes.insert(id, seq);
        self.fresh.insert(id);
        if before == Some(seq) {
            return;
        }
        if let Some(before) = before {
            // It was dropped, and sent again.
            let item = recon::item(before, &id);
            self.items.retain(|other| *other != item);
        }
        let item = recon::item(seq, &id);
        let at = self.items.partition_point(|other| *other < item);
        self.items.insert(at, item);
    }

    /// A reconciliation came to its end; `owed` was on disk when it began.
    pub(super) fn is_whole(&mut self, group: GroupId, owed: &BTreeSet<Hash>, out: &mut Outside) {
        out.model.reconciled(group, owed, &self.envelopes);
        self.behind = false;
        self.whole = true;
        if let Some(subscription) = &mut self.subscription {
            subscription.behind = false;
        }
    }

    /// The ranges, with what this client holds of them.
    pub(super) fn spans(&self, bounds: impl Iterator<Item = (u64, u64)>) -> Vec<Span> {
        let from = |bound| self.items.partition_point(|item| item_seq(item) < bound);
        let span = |(lower, upper)| Span {
            lower,
            upper,
            fingerprint: fingerprint(&self.items[from(lower)..from(upper)]),
        };
        bounds.map(span).collect()
    }

    /// What a DROP took is of no use to anybody.
    pub(super) fn let_go(&mut self, ids: &[Hash]) {
        for id in ids {
            if let Some(seq) = self.envelopes.remove(id) {
                let item = recon::item(seq, id);
                self.items.retain(|other| *other != item);
            }
        }
    }
}
