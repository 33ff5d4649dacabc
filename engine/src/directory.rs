//! Which realm owns a name: read-mostly maps shared by all shards, filled from the control store at start and kept
//! current by the realms that claim. No hot path reads them after admission (architecture.md §2).

use crate::bootstrap::FIRST_WORKSPACE;
use crate::inspect;
use crate::records::{self, Handoff};
use drover_media::CallTable;
use drover_storage::control::{ControlStore, DirectoryKind};
use drover_storage::{RealmId, StoreError};
use drover_wire::id::{EntryHash, GroupId, PublicKey, Salt, Token};
use hashbrown::{HashMap, HashSet};
use std::sync::{Arc, RwLock};

/// A workspace that has no access set yet, and who is founding it.
#[derive(Clone, Debug)]
struct Unfounded {
    realm: RealmId,
    salt: Salt,
    /// Holders of a running reservation on the bootstrap invite, with its expiry.
    founders: HashMap<EntryHash, u64>,
}

#[derive(Default)]
struct Maps {
    groups: HashMap<GroupId, RealmId>,
    tokens: HashMap<Token, RealmId>,
    group_counts: HashMap<RealmId, usize>,
    unfounded: Vec<Unfounded>,
    realms: HashSet<RealmId>,
    /// The relay's own, made at its first start.
    first: Option<RealmId>,
    /// Sealed bootstrap invites of workspaces nobody has founded yet.
    handoffs: HashMap<RealmId, Arc<Handoff>>,
}

/// The directory. All methods are short and may be called from any shard.
#[derive(Default)]
pub struct Directory {
    maps: RwLock<Maps>,
    /// Ids of open calls: never stored.
    calls: Arc<CallTable>,
}

impl Directory {
    /// Fills a directory from the store. Blocks: called once at start.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if an entry can't be read.
    pub fn open(control: &dyn ControlStore) -> Result<Self, StoreError> {
        let mut maps = Maps::default();
        for entry in control.directory(DirectoryKind::Group)? {
            let group = GroupId::from_slice(&entry.key.name).ok_or(StoreError::Damaged)?;
            *maps.group_counts.entry(entry.realm.clone()).or_default() += 1;
            maps.groups.insert(group, entry.realm);
        }
        for entry in control.directory(DirectoryKind::Token)? {
            let token = Token::from_slice(&entry.key.name).ok_or(StoreError::Damaged)?;
            maps.tokens.insert(token, entry.realm);
        }
        for entry in control.directory(DirectoryKind::Realm)? {
            if &entry.value[..] == FIRST_WORKSPACE {
                maps.first = Some(entry.realm.clone());
            }
            maps.realms.insert(entry.realm);
        }
        Ok(Self {
            maps: RwLock::new(maps),
            calls: Arc::default(),
        })
    }

    /// The open calls of the process.
    pub fn calls(&self) -> &Arc<CallTable> {
        &self.calls
    }

    /// Reads every sealed bootstrap invite, so that they can be served from memory. Blocks: called once at start.
    ///
    /// # Errors
    /// When the store does not answer or a record can't be read.
    pub fn read_handoffs(&self, control: &dyn ControlStore) -> Result<(), StoreError> {
        for realm in self.realms() {
            let key = records::HANDOFF.to_vec();
            if let Some(bytes) = inspect::wait(|done| control.get(realm.clone(), key, done))? {
                self.set_handoff(&realm, Some(Arc::new(records::get(&bytes)?)));
            }
        }
        Ok(())
    }

    /// The shard that owns this realm.
    pub fn shard_of(realm: &RealmId, shards: usize) -> usize {
        let hash = blake3::hash(realm.0.as_bytes());
        let word = u64::from_le_bytes(hash.as_bytes()[..8].try_into().unwrap_or_default());
        (word % shards.max(1) as u64) as usize
    }

    /// Every workspace of this relay.
    pub fn realms(&self) -> Vec<RealmId> {
        let mut all: Vec<_> = self.read(|m| m.realms.iter().cloned().collect());
        all.sort();
        all
    }

    /// The workspace the relay made for itself at its first start, if it has one. Its identity was stored then; a
    /// hostname that changed since changes links and nothing else (13 B9).
    pub fn first(&self) -> Option<RealmId> {
        self.read(|m| m.first.clone())
    }

    /// The sealed bootstrap invite of a workspace that nobody has founded yet (06 §14); it may have expired.
    pub fn handoff(&self, realm: &RealmId) -> Option<Arc<Handoff>> {
        self.read(|m| m.handoffs.get(realm).cloned())
    }

    /// The same by the genesis key's fingerprint, lower-case hex.
    pub fn handoff_of(&self, fingerprint: &str) -> Option<Arc<Handoff>> {
        self.read(|m| {
            m.handoffs
                .values()
                .find(|handoff| handoff.fingerprint == fingerprint)
                .cloned()
        })
    }

    fn read<R>(&self, f: impl FnOnce(&Maps) -> R) -> R {
        f(&self
            .maps
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    fn write<R>(&self, f: impl FnOnce(&mut Maps) -> R) -> R {
        f(&mut self
            .maps
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Who owns a group.
    pub(crate) fn group(&self, group: &GroupId) -> Option<RealmId> {
        self.read(|m| m.groups.get(group).cloned())
    }

    /// The distinct owners of these groups, in order of first mention (05 §6.2 a).
    pub(crate) fn owners(&self, groups: &[GroupId]) -> Vec<RealmId> {
        self.read(|m| {
            let mut owners: Vec<RealmId> = Vec::new();
            for realm in groups.iter().filter_map(|g| m.groups.get(g)) {
                if !owners.contains(realm) {
                    owners.push(realm.clone());
                }
            }
            owners
        })
    }

    /// Who owns an invite token.
    pub(crate) fn token(&self, token: &Token) -> Option<RealmId> {
        self.read(|m| m.tokens.get(token).cloned())
    }

    /// Notes a durable claim of a group.
    pub(crate) fn claimed_group(&self, group: GroupId, realm: &RealmId) {
        self.write(|m| {
            if m.groups.insert(group, realm.clone()).is_none() {
                *m.group_counts.entry(realm.clone()).or_default() += 1;
            }
        });
    }

    /// Notes a durable claim of a token.
    pub(crate) fn claimed_token(&self, token: Token, realm: &RealmId) {
        self.write(|m| m.tokens.insert(token, realm.clone()));
    }

    /// These tokens name nothing any more.
    pub(crate) fn released_tokens(&self, tokens: &HashSet<Token>) {
        self.write(|m| {
            for token in tokens {
                m.tokens.remove(token);
            }
        });
    }

    /// Notes that a workspace exists, and whether it is the relay's own.
    pub(crate) fn claimed_realm(&self, realm: &RealmId, first: bool) {
        self.write(|m| {
            m.realms.insert(realm.clone());
            if first {
                m.first = Some(realm.clone());
            }
        });
    }

    /// Every group of a shard's realms, those of one realm together.
    pub(crate) fn groups_of_shard(&self, shard: usize, shards: usize) -> Vec<(RealmId, GroupId)> {
        let mut groups: Vec<_> = self.read(|m| {
            let of_shard = m
                .groups
                .iter()
                .filter(|(_, realm)| Self::shard_of(realm, shards) == shard);
            of_shard.map(|(group, realm)| (realm.clone(), *group)).collect()
        });
        groups.sort_unstable();
        groups
    }

    /// States the sealed bootstrap invite of a workspace; `None` once it is redeemed or if there is none.
    pub(crate) fn set_handoff(&self, realm: &RealmId, handoff: Option<Arc<Handoff>>) {
        self.write(|m| match handoff {
            Some(handoff) => m.handoffs.insert(realm.clone(), handoff),
            None => m.handoffs.remove(realm),
        });
    }

    /// Group rows of a workspace.
    pub(crate) fn group_count(&self, realm: &RealmId) -> usize {
        self.read(|m| m.group_counts.get(realm).copied().unwrap_or_default())
    }

    /// States who is founding a workspace that has no access set yet; `None` once it has one.
    pub(crate) fn set_founders(&self, realm: &RealmId, founders: Option<(Salt, HashMap<EntryHash, u64>)>) {
        self.write(|m| {
            m.unfounded.retain(|u| &u.realm != realm);
            if let Some((salt, founders)) = founders {
                m.unfounded.push(Unfounded {
                    realm: realm.clone(),
                    salt,
                    founders,
                });
            }
        });
    }

    /// The workspace this device is founding (05 §6.2 d).
    pub(crate) fn founding(&self, device: &PublicKey, wall_ms: u64) -> Option<RealmId> {
        self.read(|m| {
            m.unfounded
                .iter()
                .filter(|u| !u.founders.is_empty())
                .find(|u| {
                    u.founders
                        .get(&EntryHash::of(device, &u.salt))
                        .is_some_and(|&e| wall_ms < e)
                })
                .map(|u| u.realm.clone())
        })
    }
}
