//! What the client holds per group: the [`Store`] it keeps up to date, and one in memory.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use drover_wire::id::{GroupId, Hash};
use drover_wire::recon::{self, Item};

use crate::envelope::SealedEnvelope;

/// A store's own failure.
pub type StoreError = Arc<dyn std::error::Error + Send + Sync>;

/// The durable side of a client. Called on the client's task, so it must not block for long; shared, so it locks for
/// itself. An envelope is put before its event is handed out, and is never handed out again.
pub trait Store: Send + Sync {
    /// Everything held in the group that has a relay cursor, ascending: what is reconciled (03 §1).
    fn items(&self, group: GroupId) -> Vec<Item>;

    /// The highest cursor held; 0 when nothing is. A fresh subscription starts here.
    fn cursor(&self, group: GroupId) -> u64 {
        self.items(group).last().map_or(0, recon::item_seq)
    }

    /// The cursor this envelope is held under.
    fn seq_of(&self, group: GroupId, hash: &Hash) -> Option<u64>;

    /// Whether this envelope is held.
    fn contains(&self, group: GroupId, hash: &Hash) -> bool {
        self.seq_of(group, hash).is_some()
    }

    /// The envelope itself, if its bytes are still kept: it is sent when the relay lacks it.
    fn envelope(&self, group: GroupId, hash: &Hash) -> Option<SealedEnvelope>;

    /// Keeps an envelope under its `seq`; one already held under another `seq` is renumbered.
    ///
    /// # Errors
    /// Any failure stops the client ([`crate::Error::Store`]).
    fn put(&self, envelope: SealedEnvelope) -> Result<(), StoreError>;

    /// How many handshake messages of the group were taken, which is the number of the next one (07 C2).
    fn handshakes(&self, group: GroupId) -> u64;

    /// Remembers that the handshake messages below `next` were taken.
    ///
    /// # Errors
    /// Any failure stops the client.
    fn set_handshakes(&self, group: GroupId, next: u64) -> Result<(), StoreError>;
}

/// A [`Store`] that forgets everything with the process. It keeps every envelope, so it grows with the log: for tests,
/// tools and short-lived agents.
#[derive(Debug, Default)]
pub struct MemoryStore {
    groups: Mutex<HashMap<GroupId, Held>>,
}

#[derive(Debug, Default)]
struct Held {
    items: BTreeSet<Item>,
    envelopes: HashMap<Hash, SealedEnvelope>,
    handshakes: u64,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many envelopes of the group are held.
    pub fn len(&self, group: GroupId) -> usize {
        self.lock().get(&group).map_or(0, |held| held.envelopes.len())
    }

    /// Whether none is.
    pub fn is_empty(&self, group: GroupId) -> bool {
        self.len(group) == 0
    }

    // A panic while the lock was held can't have left a half-made change: every change is one call.
    fn lock(&self) -> MutexGuard<'_, HashMap<GroupId, Held>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn items(&self, group: GroupId) -> Vec<Item> {
        self.lock()
            .get(&group)
            .map_or_else(Vec::new, |held| held.items.iter().copied().collect())
    }

    fn cursor(&self, group: GroupId) -> u64 {
        self.lock()
            .get(&group)
            .and_then(|held| held.items.last().map(recon::item_seq))
            .unwrap_or(0)
    }

    fn seq_of(&self, group: GroupId, hash: &Hash) -> Option<u64> {
        self.lock()
            .get(&group)?
            .envelopes
            .get(hash)
            .map(SealedEnvelope::seq)
    }

    fn envelope(&self, group: GroupId, hash: &Hash) -> Option<SealedEnvelope> {
        self.lock().get(&group)?.envelopes.get(hash).cloned()
    }

    fn put(&self, envelope: SealedEnvelope) -> Result<(), StoreError> {
        let mut groups = self.lock();
        let held = groups.entry(envelope.group()).or_default();
        let (seq, hash) = (envelope.seq(), envelope.hash());
        if let Some(old) = held.envelopes.insert(hash, envelope) {
            held.items.remove(&recon::item(old.seq(), &hash));
        }
        if seq > 0 {
            held.items.insert(recon::item(seq, &hash));
        }
        Ok(())
    }

    fn handshakes(&self, group: GroupId) -> u64 {
        self.lock().get(&group).map_or(0, |held| held.handshakes)
    }

    fn set_handshakes(&self, group: GroupId, next: u64) -> Result<(), StoreError> {
        self.lock().entry(group).or_default().handshakes = next;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renumbered_envelope_is_held_once() {
        let store = MemoryStore::new();
        let group = GroupId([1; 32]);
        let envelope = SealedEnvelope::new(group, 0, vec![1]).expect("valid");
        store.put(envelope.clone().with_seq(5)).expect("memory");
        store.put(envelope.clone().with_seq(9)).expect("memory");
        assert_eq!(store.items(group), vec![recon::item(9, &envelope.hash())]);
        assert_eq!((store.cursor(group), store.len(group)), (9, 1));
    }
}
