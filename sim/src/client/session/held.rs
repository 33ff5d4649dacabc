//! What a client has of one group, kept across connections.

use crate::model::Subscription;
use drover_client::recon::Reconciler;
use drover_wire::id::Hash;
use drover_wire::recon::{self, Item};
use std::collections::{BTreeMap, BTreeSet};

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
    pub(super) recon: Option<(Reconciler, BTreeSet<Hash>)>,
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
