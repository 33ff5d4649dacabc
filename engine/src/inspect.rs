//! What an operator may see of a workspace: counts, and its transparency log with its chain verified (09 §10). A shard
//! answers from its memory; a store that no relay has open is read here, with the same result.

use crate::bootstrap::genesis_fingerprint;
use crate::directory::Directory;
use crate::effects::Stores;
use crate::realm::Realm;
use crate::records::{self, Transparency};
use bytes::Bytes;
use drover_storage::{Done, RealmId, StoreError};
use drover_wire::id::{GroupId, Hash, Token};
use std::sync::mpsc;

/// Counts of one workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RealmReport {
    /// Which.
    pub realm: RealmId,
    /// Entries of the newest access set; `None` before genesis.
    pub entries: Option<usize>,
    /// Group rows.
    pub groups: usize,
    /// Ciphertext and handshake bytes held.
    pub log_bytes: u64,
    /// Groups frozen by a retention conflict, ascending (`/readyz` shows them).
    pub frozen: Vec<GroupId>,
    /// The bootstrap invite's token and the genesis fingerprint, while it is unredeemed.
    pub unredeemed: Option<(Token, Hash)>,
}

impl RealmReport {
    pub(crate) fn of(realm: &Realm, groups: usize) -> Self {
        let genesis = realm.genesis.as_ref().filter(|g| g.redeemed_ms.is_none());
        let mut frozen: Vec<GroupId> = realm.frozen().copied().collect();
        frozen.sort_unstable();
        Self {
            frozen,
            realm: realm.id.clone(),
            entries: realm.chain.head.as_ref().map(|head| head.entries.len()),
            groups,
            log_bytes: realm.log_bytes,
            unredeemed: genesis.map(|g| (Token(g.token), genesis_fingerprint(&g.public_key))),
        }
    }
}

/// One entry of a workspace's transparency log, without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Its number, from 0.
    pub seq: u64,
    /// What it is about: `genesis`, `removal`, `recovery`, `probation_cleared`.
    pub kind: String,
    /// When it was written, Unix milliseconds.
    pub recorded_ms: u64,
    /// The hash that the next entry continues.
    pub entry_hash: Hash,
}

/// A workspace's transparency log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransparencyLog {
    /// All entries, by their number.
    pub entries: Vec<LogEntry>,
    /// The first entry that does not follow from the one before it.
    pub broken_at: Option<u64>,
}

impl TransparencyLog {
    /// From a realm's records, ascending by key.
    pub(crate) fn of(stored: &[(Vec<u8>, Bytes)]) -> Result<Self, StoreError> {
        let mut log = Self::default();
        let (mut next, mut prev_hash) = (0, [0; 32]);
        for (key, value) in stored {
            let Some(seq) = key.strip_prefix(records::TRANSPARENCY) else {
                continue;
            };
            let seq = u64::from_be_bytes(seq.try_into().map_err(|_| StoreError::Damaged)?);
            let entry: Transparency = records::get(value)?;
            let follows = seq == next
                && entry.prev_hash == prev_hash
                && entry.entry_hash == Hash::of(&[&prev_hash, &entry.body]).0;
            if !follows && log.broken_at.is_none() {
                log.broken_at = Some(seq);
            }
            (next, prev_hash) = (seq.wrapping_add(1), entry.entry_hash);
            log.entries.push(LogEntry {
                seq,
                kind: entry.kind,
                recorded_ms: entry.recorded_ms,
                entry_hash: Hash(entry.entry_hash),
            });
        }
        Ok(log)
    }
}

/// Counts a workspace of a store that no relay has open. Blocks.
///
/// # Errors
/// When the store does not answer or the workspace's state can't be read.
pub fn report(stores: &Stores, directory: &Directory, realm: &RealmId) -> Result<RealmReport, StoreError> {
    let stored = wait(|done| stores.control.load(realm.clone(), done))?;
    let log_bytes = wait(|done| stores.log.usage(realm.clone(), done))?;
    let groups = directory.group_count(realm);
    let realm = Realm::from_records(realm.clone(), &stored, log_bytes)?;
    Ok(RealmReport::of(&realm, groups))
}

/// Reads the transparency log of a workspace of a store that no relay has open. Blocks.
///
/// # Errors
/// When the store does not answer or an entry can't be read.
pub fn log(stores: &Stores, realm: &RealmId) -> Result<TransparencyLog, StoreError> {
    TransparencyLog::of(&wait(|done| stores.control.load(realm.clone(), done))?)
}

/// Asks a store and waits for its answer.
pub(crate) fn wait<T: Send + 'static>(ask: impl FnOnce(Done<T>)) -> Result<T, StoreError> {
    let (tell, told) = mpsc::sync_channel(1);
    ask(Box::new(move |answer| drop(tell.send(answer))));
    told.recv().unwrap_or(Err(StoreError::Unknown))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log of these bodies, as it is stored.
    fn stored(bodies: &[&str]) -> Vec<(u64, Transparency)> {
        let mut prev_hash = [0; 32];
        let entry = |body: &&str| {
            let body = body.as_bytes().to_vec();
            let entry_hash = Hash::of(&[&prev_hash, &body]).0;
            let entry = Transparency {
                kind: "removal".into(),
                body,
                prev_hash,
                entry_hash,
                recorded_ms: 7,
            };
            prev_hash = entry_hash;
            entry
        };
        (0..).zip(bodies.iter().map(entry)).collect()
    }

    fn read(entries: &[(u64, Transparency)]) -> TransparencyLog {
        let mut records = vec![(records::SALT.to_vec(), Bytes::from_static(b"not looked at"))];
        for (seq, entry) in entries {
            let key = records::key(records::TRANSPARENCY, &[&seq.to_be_bytes()]);
            records.push((key.clone(), records::put(key, entry).value.unwrap_or_default()));
        }
        TransparencyLog::of(&records).expect("entries that decode")
    }

    /// 09 §10: each entry continues the one before it, from number 0 and a hash of zeros.
    #[test]
    fn a_chain_is_verified() {
        let whole = stored(&["a", "b", "c"]);
        let log = read(&whole);
        assert_eq!((log.entries.len(), log.broken_at), (3, None));
        assert_eq!(log.entries[2].entry_hash.0, whole[2].1.entry_hash);
        assert_eq!(read(&[]), TransparencyLog::default());

        let mut altered = whole.clone();
        altered[1].1.body = b"B".to_vec();
        assert_eq!(read(&altered).broken_at, Some(1));
        let mut rehashed = altered;
        let Transparency { prev_hash, body, .. } = &rehashed[1].1;
        rehashed[1].1.entry_hash = Hash::of(&[prev_hash, body]).0;
        assert_eq!(read(&rehashed).broken_at, Some(2), "the next one gives it away");
        assert_eq!(read(&whole[1..]).broken_at, Some(1), "it begins at 0");
        assert_eq!(read(&[whole[0].clone(), whole[2].clone()]).broken_at, Some(2));
    }
}
