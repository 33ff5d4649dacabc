//! The chain of access sets of one workspace: what a publication must satisfy and what it changes (05 §7, §8). Pure:
//! judged against one state, applied by the realm once the commit is durable.

use crate::limits::ROTATION_PAUSE_MS;
use drover_wire::access::{self, AccessSet, Quorum, quorum_message};
use drover_wire::error::{Code, Detail, Refusal};
use drover_wire::id::{EntryHash, Hash, PublicKey, Salt};
use hashbrown::{HashMap, HashSet};

/// A device that a recovery key brought in and nobody has confirmed yet (05 §8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Probation {
    pub(crate) introduced_version: u64,
    /// The entries it may remove.
    pub(crate) pinned: Vec<EntryHash>,
    /// The version that cleared it.
    pub(crate) cleared_version: Option<u64>,
}

/// Who may found a workspace whose genesis key is unspent (05 D4, 06 §13).
#[derive(Clone, Copy, Debug)]
pub(crate) struct GenesisGate<'a> {
    /// Device hash and expiry of the live reservations on the bootstrap invite.
    pub(crate) reservations: &'a [(EntryHash, u64)],
}

/// What an accepted publication changes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Acceptance {
    pub(crate) digest: Hash,
    /// Entries of the prior set that are gone.
    pub(crate) removed: Vec<EntryHash>,
    /// A recovery rotation: the spent key, the successor and the device now on probation.
    pub(crate) rotation: Option<Rotation>,
    /// Devices whose probation ends.
    pub(crate) cleared: Vec<PublicKey>,
    /// Genesis: the founder's entry, whose reservation is consumed.
    pub(crate) founder: Option<EntryHash>,
}

/// See [`Acceptance::rotation`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rotation {
    pub(crate) spent: PublicKey,
    pub(crate) successor: PublicKey,
    pub(crate) device: PublicKey,
}

/// The newest accepted set with what is derived from it.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) set: AccessSet,
    pub(crate) digest: Hash,
    pub(crate) entries: HashSet<EntryHash>,
}

impl Head {
    pub(crate) fn new(set: AccessSet) -> Self {
        let digest = set.digest();
        let entries = set.entries.iter().copied().collect();
        Self { set, digest, entries }
    }
}

/// The chain's state.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    pub(crate) head: Option<Head>,
    pub(crate) probations: HashMap<PublicKey, Probation>,
    /// When each recovery lineage last rotated, under its current key (05 D15).
    pub(crate) rotations: HashMap<PublicKey, u64>,
}

type Judged<T> = Result<T, Refusal>;

fn rule(holds: bool) -> Judged<()> {
    if holds {
        Ok(())
    } else {
        Err(Code::WriterNotInAccessSet.into())
    }
}

fn difference<T: Copy + Eq + std::hash::Hash>(these: &[T], without: &[T]) -> Vec<T> {
    let without: HashSet<T> = without.iter().copied().collect();
    these.iter().copied().filter(|x| !without.contains(x)).collect()
}

impl Chain {
    /// Judges a decoded publication (05 §7), in the order that decides which code is answered.
    ///
    /// # Errors
    /// The refusal of 05 §14, with the head's digest where that table says so.
    pub(crate) fn judge(
        &self,
        set: &AccessSet,
        salt: &Salt,
        wall_ms: u64,
        gate: Option<GenesisGate<'_>>,
    ) -> Judged<Acceptance> {
        set.check_shape()?;
        let entries: HashSet<EntryHash> = set.entries.iter().copied().collect();
        let listed = |key: &PublicKey| entries.contains(&EntryHash::of(key, salt));
        let judged =
            rule(set.authorizers.iter().chain(&set.recovery).all(listed)).and_then(|()| match &self.head {
                None => self.judge_genesis(set, salt, wall_ms, gate),
                Some(head) => self.judge_successor(head, set, &entries, salt, wall_ms),
            });
        judged.map_err(|refusal| match &self.head {
            Some(head) if refusal.code == Code::WriterNotInAccessSet => {
                refusal.with(Detail::Hash(head.digest.0))
            }
            _ => refusal,
        })
    }

    fn judge_genesis(
        &self,
        set: &AccessSet,
        salt: &Salt,
        wall_ms: u64,
        gate: Option<GenesisGate<'_>>,
    ) -> Judged<Acceptance> {
        rule(set.version == 0 && set.prev_hash == Hash([0; 32]) && set.authorizers.contains(&set.signer))?;
        verify(set)?;
        rule(set.pending.is_empty())?;
        self.judge_quorum_keys(set, salt)?;
        let mut founder = None;
        if let Some(gate) = gate {
            // D4: while the genesis key is unspent, only the device that holds the seat, and alone.
            rule(set.authorizers.len() == 1 && set.authorizers[0] == set.signer)?;
            let entry = EntryHash::of(&set.signer, salt);
            rule(
                gate.reservations
                    .iter()
                    .any(|(hash, expires)| *hash == entry && wall_ms < *expires),
            )?;
            founder = Some(entry);
        }
        Ok(Acceptance {
            digest: set.digest(),
            removed: Vec::new(),
            rotation: None,
            cleared: Vec::new(),
            founder,
        })
    }

    fn judge_successor(
        &self,
        head: &Head,
        set: &AccessSet,
        entries: &HashSet<EntryHash>,
        salt: &Salt,
        wall_ms: u64,
    ) -> Judged<Acceptance> {
        let prior = &head.set;
        rule(Some(set.version) == prior.version.checked_add(1))?;
        rule(set.prev_hash == head.digest)?;
        rule(set.workspace == prior.workspace)?;
        let authorizer = prior.authorizers.contains(&set.signer);
        rule(authorizer || prior.recovery.contains(&set.signer))?;
        verify(set)?;
        let removed: Vec<EntryHash> = prior
            .entries
            .iter()
            .copied()
            .filter(|e| !entries.contains(e))
            .collect();
        let on_probation = |key: &PublicKey| self.open_probation(key).is_some();
        let same_quorum = match (&prior.quorum, &set.quorum) {
            (None, None) => true,
            (Some(a), Some(b)) => a.threshold == b.threshold && a.keys == b.keys,
            _ => false,
        };
        // D7: only an unrestricted authorizer changes the quorum.
        let acceptance = if authorizer {
            self.judge_ordinary(prior, set, &removed)?;
            rule(same_quorum || !on_probation(&set.signer))?;
            let cleared = self.cleared_by(head, set, entries, salt);
            Acceptance {
                digest: set.digest(),
                removed,
                rotation: None,
                cleared,
                founder: None,
            }
        } else {
            let rotation = self.judge_rotation(head, set, &removed, salt, wall_ms)?;
            rule(same_quorum)?;
            Acceptance {
                digest: set.digest(),
                removed,
                rotation: Some(rotation),
                cleared: Vec::new(),
                founder: None,
            }
        };
        self.judge_quorum_keys(set, salt)?;
        Ok(acceptance)
    }

    /// 05 §7.4.
    fn judge_ordinary(&self, prior: &AccessSet, set: &AccessSet, removed: &[EntryHash]) -> Judged<()> {
        rule(
            prior
                .authorizers
                .iter()
                .any(|k| set.authorizers.binary_search(k).is_ok()),
        )?;
        rule(
            prior
                .recovery
                .iter()
                .any(|k| set.recovery.binary_search(k).is_ok()),
        )?;
        rule(set.pending.is_empty())?;
        if let Some(probation) = self.open_probation(&set.signer) {
            rule(removed.iter().all(|e| probation.pinned.contains(e)))?;
            rule(difference(&prior.authorizers, &set.authorizers).is_empty())?;
            rule(difference(&set.authorizers, &prior.authorizers).is_empty())?;
        }
        Ok(())
    }

    /// 05 §7.5.
    fn judge_rotation(
        &self,
        head: &Head,
        set: &AccessSet,
        removed: &[EntryHash],
        salt: &Salt,
        wall_ms: u64,
    ) -> Judged<Rotation> {
        let prior = &head.set;
        let last = self.rotations.get(&set.signer);
        rule(last.is_none_or(|&at| wall_ms >= at.saturating_add(ROTATION_PAUSE_MS)))?;
        rule(!set.recovery.contains(&set.signer))?;
        let new_recovery = difference(&set.recovery, &prior.recovery);
        rule(new_recovery.len() == 1)?;
        rule(difference(&prior.recovery, &set.recovery) == [set.signer])?;
        rule(removed == [EntryHash::of(&set.signer, salt)])?;
        let new_authorizers = difference(&set.authorizers, &prior.authorizers);
        rule(new_authorizers.len() == 1)?;
        let (successor, device) = (new_recovery[0], new_authorizers[0]);
        rule(successor != device)?;
        let mut added = difference(&set.entries, &prior.entries);
        let mut expected = vec![EntryHash::of(&successor, salt), EntryHash::of(&device, salt)];
        added.sort_unstable();
        expected.sort_unstable();
        rule(added == expected)?;
        rule(difference(&prior.authorizers, &set.authorizers).is_empty())?;
        let admins: HashSet<EntryHash> = prior.authorizers.iter().map(|k| EntryHash::of(k, salt)).collect();
        rule(
            set.pending
                .iter()
                .all(|e| head.entries.contains(e) && !admins.contains(e)),
        )?;
        Ok(Rotation {
            spent: set.signer,
            successor,
            device,
        })
    }

    /// D7: a quorum key is neither an authorizer nor an entry.
    fn judge_quorum_keys(&self, set: &AccessSet, salt: &Salt) -> Judged<()> {
        let Some(quorum) = &set.quorum else { return Ok(()) };
        rule(quorum.keys.iter().all(|k| {
            set.authorizers.binary_search(k).is_err()
                && set.entries.binary_search(&EntryHash::of(k, salt)).is_err()
        }))
    }

    fn open_probation(&self, device: &PublicKey) -> Option<&Probation> {
        self.probations
            .get(device)
            .filter(|p| p.cleared_version.is_none())
    }

    /// Which probations an accepted ordinary set ends (05 §8, D5).
    fn cleared_by(
        &self,
        head: &Head,
        set: &AccessSet,
        entries: &HashSet<EntryHash>,
        salt: &Salt,
    ) -> Vec<PublicKey> {
        let unrestricted = self.open_probation(&set.signer).is_none();
        let mut cleared: Vec<PublicKey> = self
            .probations
            .iter()
            .filter(|(_, p)| p.cleared_version.is_none())
            .map(|(device, _)| *device)
            .filter(|device| {
                let entry = EntryHash::of(device, salt);
                entries.contains(&entry)
                    && (unrestricted
                        || confirmed(
                            head.set.quorum.as_ref(),
                            set.quorum.as_ref(),
                            &set.digest(),
                            &entry,
                        ))
            })
            .collect();
        cleared.sort_unstable();
        cleared
    }
}

fn verify(set: &AccessSet) -> Judged<()> {
    if access::verify(&set.signer, &set.signing_input(), &set.sig) {
        Ok(())
    } else {
        Err(Code::NoncanonicalCbor.into())
    }
}

/// Whether enough distinct keys of the prior quorum signed for this device under this set. Work is bounded: it stops
/// at the threshold, and each configured key is verified at most once per carried signature.
fn confirmed(prior: Option<&Quorum>, carried: Option<&Quorum>, digest: &Hash, entry: &EntryHash) -> bool {
    let (Some(prior), Some(carried)) = (prior, carried) else {
        return false;
    };
    let message = quorum_message(digest, entry);
    let mut counted: HashSet<PublicKey> = HashSet::new();
    for (key, sig) in carried.sigs.iter().take(access::LIST_MAX) {
        if counted.len() >= usize::from(prior.threshold) {
            break;
        }
        if prior.keys.binary_search(key).is_ok()
            && !counted.contains(key)
            && access::verify(key, &message.0, sig)
        {
            counted.insert(*key);
        }
    }
    counted.len() >= usize::from(prior.threshold)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value as Json;

    fn bytes(json: &Json) -> Vec<u8> {
        let digits = json.as_str().expect("hex").as_bytes().as_chunks::<2>().0;
        let pair = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).expect("hex"), 16);
        digits.iter().map(|digits| pair(digits).expect("hex")).collect()
    }

    /// W05.5, W05.7, W05.10 to W05.12, W05.25 as data: each step of vectors/weald/access-chain.json is judged against
    /// those accepted before it.
    #[test]
    fn the_published_chain_is_judged_as_stated() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../vectors/weald/access-chain.json");
        let file: Json = serde_json::from_slice(&std::fs::read(path).expect("the vectors")).expect("JSON");
        let salt = Salt(bytes(&file["salt"]).try_into().expect("32 bytes"));
        let mut chain = Chain::default();
        for step in file["steps"].as_array().expect("steps") {
            let what = &step["name"];
            let at_ms = step["at_ms"].as_u64().expect("a time");
            let set = AccessSet::decode(&bytes(&step["set"])).expect("a set");
            let judged = chain.judge(&set, &salt, at_ms, None);
            let code = judged.as_ref().err().map(|refusal| {
                let code = refusal.code;
                format!("{}/{}", code.class().as_str(), code.as_str())
            });
            assert_eq!(code.as_deref(), step["refused"].as_str(), "{what}");
            let Ok(acceptance) = judged else { continue };
            assert_eq!(acceptance.digest.0.to_vec(), bytes(&step["digest"]), "{what}");
            // What `published` does to the chain.
            for device in &acceptance.cleared {
                chain
                    .probations
                    .get_mut(device)
                    .expect("it was open")
                    .cleared_version = Some(set.version);
            }
            if let Some(rotation) = acceptance.rotation {
                chain.rotations.insert(rotation.spent, at_ms);
                chain.rotations.insert(rotation.successor, at_ms);
                let opened = Probation {
                    introduced_version: set.version,
                    pinned: set.pending.clone(),
                    cleared_version: None,
                };
                chain.probations.insert(rotation.device, opened);
            }
            chain.head = Some(Head::new(set));
        }
    }
}
