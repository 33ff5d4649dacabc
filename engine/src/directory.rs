//! Which realm owns a name: read-mostly maps shared by all shards, filled from the control store at start and kept
//! current by the realms that claim. No hot path reads them after admission (architecture.md §2).

use drover_storage::RealmId;

/// The directory. All methods are short and may be called from any shard.
#[derive(Default)]
pub struct Directory {
    _private: (),
}

impl Directory {
    /// The shard that owns this realm.
    pub fn shard_of(realm: &RealmId, shards: usize) -> usize {
        let hash = blake3::hash(realm.0.as_bytes());
        let word = u64::from_le_bytes(hash.as_bytes()[..8].try_into().unwrap_or_default());
        (word % shards as u64) as usize
    }
}
