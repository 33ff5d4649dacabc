//! One workspace in memory: everything that must be decided in one place (architecture.md §1). Decisions read this
//! state; a change is made here only after its commit is durable.

use crate::budget::{Minute, Seldom};
use crate::chain::{Chain, Head};
use crate::event::ConnId;
use crate::records::{self, Attempt, Genesis, Grant, Handoff, Invite, InviteState, Seat, Shelf};
use crate::retention::{Destruction, Retention};
use crate::shard::control::Op;
use crate::wake::Registrations;
use bytes::Bytes;
use drover_storage::{RealmId, StoreError};
use drover_wire::access::AccessSet;
use drover_wire::error::Refusal;
use drover_wire::id::{EntryHash, GroupId, Hash, Nonce, PublicKey, Salt, Token};
use hashbrown::{HashMap, HashSet};
use std::collections::VecDeque;
use std::sync::Arc;

/// A device's SEND and chain budgets, shared by all its sockets; reconnecting does not clear them (02 §6).
#[derive(Debug, Default)]
pub(crate) struct Device {
    pub(crate) frames: Minute,
    pub(crate) bytes: Minute,
    /// Records of the retention chain (08 decision 14).
    pub(crate) chain: Minute,
}

/// How a realm admits a device (05 §6.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// In the newest set.
    InSet,
    /// By a live grant.
    Provisional,
    /// By neither, but it is founding this workspace, which has no set yet.
    Founding,
    /// Not.
    Refused,
}

/// The workspace.
#[derive(Debug)]
pub(crate) struct Realm {
    pub(crate) id: RealmId,
    pub(crate) salt: Salt,
    pub(crate) chain: Chain,
    pub(crate) grants: HashMap<EntryHash, Grant>,
    pub(crate) invites: HashMap<Token, Invite>,
    pub(crate) seats: HashMap<(Token, Nonce), Seat>,
    /// Scopes each seat has committed.
    pub(crate) commits: HashSet<(Token, Nonce, GroupId)>,
    pub(crate) attempts: HashMap<(Token, [u8; 32]), Attempt>,
    pub(crate) genesis: Option<Genesis>,
    /// The bootstrap invite sealed, until it is redeemed.
    pub(crate) handoff: Option<Arc<Handoff>>,
    /// Key packages by `H(device key)`.
    pub(crate) shelves: HashMap<Hash, Shelf>,
    pub(crate) wakes: Registrations,
    /// The retention chain of every group that has one.
    retention: HashMap<GroupId, Retention>,
    /// Those of them that take no new envelopes: what SEND looks at.
    frozen: HashSet<GroupId>,
    /// What has to go, by group and name.
    pub(crate) destructions: HashMap<(GroupId, Hash), Destruction>,
    /// Next number and last hash of the transparency log.
    pub(crate) transparency: (u64, Hash),
    /// Bytes accepted, those not yet durable included (log budget).
    pub(crate) log_bytes: u64,
    /// Sockets by the entry they were admitted with: the eviction registry.
    pub(crate) registry: HashMap<EntryHash, Vec<ConnId>>,
    pub(crate) devices: Vec<Device>,
    device_slots: HashMap<PublicKey, u32>,
    /// SEND bytes of the whole workspace in the running minute.
    pub(crate) ingress: Minute,
    /// Control operations that wait for the one under way.
    pub(crate) ops: VecDeque<Op>,
    /// One control commit at a time.
    pub(crate) busy: bool,
    /// The log line about having all the groups it may have.
    pub(crate) groups_full: Seldom,
}

impl Realm {
    /// From the records of its control partition and the log's count of accepted bytes.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if a record can't be read or the chain does not hold together.
    pub(crate) fn from_records(
        id: RealmId,
        stored: &[(Vec<u8>, Bytes)],
        log_bytes: u64,
    ) -> Result<Self, StoreError> {
        let mut realm = Self {
            id,
            salt: Salt([0; 32]),
            chain: Chain::default(),
            grants: HashMap::new(),
            invites: HashMap::new(),
            seats: HashMap::new(),
            commits: HashSet::new(),
            attempts: HashMap::new(),
            genesis: None,
            handoff: None,
            shelves: HashMap::new(),
            wakes: Registrations::default(),
            retention: HashMap::new(),
            frozen: HashSet::new(),
            destructions: HashMap::new(),
            transparency: (0, Hash([0; 32])),
            log_bytes,
            registry: HashMap::new(),
            devices: Vec::new(),
            device_slots: HashMap::new(),
            ingress: Minute::default(),
            ops: VecDeque::new(),
            busy: false,
            groups_full: Seldom::default(),
        };
        let (mut newest, mut salted, mut head) = (None, false, None);
        for (key, value) in stored {
            let tail = |prefix: &[u8]| key.strip_prefix(prefix);
            if key == records::SALT {
                realm.salt = Salt::from_slice(value).ok_or(StoreError::Damaged)?;
                salted = true;
            } else if key == records::HEAD {
                head = Some(u64::from_be_bytes(
                    value[..].try_into().map_err(|_| StoreError::Damaged)?,
                ));
            } else if key == records::GENESIS {
                realm.genesis = Some(records::get(value)?);
            } else if key == records::HANDOFF {
                realm.handoff = Some(Arc::new(records::get(value)?));
            } else if tail(records::SET).is_some() {
                newest = Some(value); // ascending by version
            } else if let Some(hash) = tail(records::GRANT) {
                realm.grants.insert(
                    EntryHash::from_slice(hash).ok_or(StoreError::Damaged)?,
                    records::get(value)?,
                );
            } else if let Some(token) = tail(records::INVITE) {
                realm.invites.insert(
                    Token::from_slice(token).ok_or(StoreError::Damaged)?,
                    records::get(value)?,
                );
            } else if let Some(rest) = tail(records::SEAT) {
                let (token, nonce) = rest.split_at_checked(16).ok_or(StoreError::Damaged)?;
                let token = Token::from_slice(token).ok_or(StoreError::Damaged)?;
                let nonce = Nonce::from_slice(nonce).ok_or(StoreError::Damaged)?;
                realm.seats.insert((token, nonce), records::get(value)?);
            } else if let Some(rest) = tail(records::COMMIT) {
                let id = |from: usize, to: usize| rest.get(from..to).ok_or(StoreError::Damaged);
                let token = Token::from_slice(id(0, 16)?).ok_or(StoreError::Damaged)?;
                let nonce = Nonce::from_slice(id(16, 32)?).ok_or(StoreError::Damaged)?;
                let group = GroupId::from_slice(id(32, rest.len())?).ok_or(StoreError::Damaged)?;
                realm.commits.insert((token, nonce, group));
            } else if let Some(rest) = tail(records::ATTEMPT) {
                let (token, source) = rest.split_at_checked(16).ok_or(StoreError::Damaged)?;
                let token = Token::from_slice(token).ok_or(StoreError::Damaged)?;
                let source = source.try_into().map_err(|_| StoreError::Damaged)?;
                realm.attempts.insert((token, source), records::get(value)?);
            } else if let Some(shelf) = tail(records::SHELF) {
                realm.shelves.insert(
                    Hash::from_slice(shelf).ok_or(StoreError::Damaged)?,
                    records::get(value)?,
                );
            } else if let Some(entry) = tail(records::WAKE) {
                let entry = EntryHash::from_slice(entry).ok_or(StoreError::Damaged)?;
                realm.wakes.insert(entry, records::get(value)?);
            } else if let Some(device) = tail(records::PROBATION) {
                let stored: records::Probation = records::get(value)?;
                let device = PublicKey::from_slice(device).ok_or(StoreError::Damaged)?;
                realm.chain.probations.insert(
                    device,
                    crate::chain::Probation {
                        introduced_version: stored.introduced_version,
                        pinned: stored
                            .pinned
                            .chunks_exact(32)
                            .filter_map(EntryHash::from_slice)
                            .collect(),
                        cleared_version: stored.cleared_version,
                    },
                );
            } else if let Some(recovery) = tail(records::ROTATION) {
                let recovery = PublicKey::from_slice(recovery).ok_or(StoreError::Damaged)?;
                let at = u64::from_be_bytes(value[..].try_into().map_err(|_| StoreError::Damaged)?);
                realm.chain.rotations.insert(recovery, at);
            } else if let Some(group) = tail(records::RETENTION) {
                let group = GroupId::from_slice(group).ok_or(StoreError::Damaged)?;
                realm.retain(group, Retention::from_record(group, value)?);
            } else if let Some(rest) = tail(records::DESTRUCTION) {
                let (group, name) = rest.split_at_checked(32).ok_or(StoreError::Damaged)?;
                let group = GroupId::from_slice(group).ok_or(StoreError::Damaged)?;
                let name = Hash::from_slice(name).ok_or(StoreError::Damaged)?;
                realm.destructions.insert((group, name), records::get(value)?);
            } else if let Some(seq) = tail(records::TRANSPARENCY) {
                let seq = u64::from_be_bytes(seq.try_into().map_err(|_| StoreError::Damaged)?);
                let entry: records::Transparency = records::get(value)?;
                realm.transparency = (seq + 1, Hash(entry.entry_hash));
            } else {
                return Err(StoreError::Damaged); // written by something that knows more than we do
            }
        }
        if !salted {
            return Err(StoreError::Damaged);
        }
        if let Some(bytes) = newest {
            let set = AccessSet::decode(bytes).map_err(|_| StoreError::Damaged)?;
            if head != Some(set.version) {
                return Err(StoreError::Damaged);
            }
            realm.chain.head = Some(Head::new(set));
        }
        Ok(realm)
    }

    /// Where a group's retention chain stands.
    pub(crate) fn retention(&self, group: &GroupId) -> Option<&Retention> {
        self.retention.get(group)
    }

    /// It stands there from now on.
    pub(crate) fn retain(&mut self, group: GroupId, state: Retention) {
        if state.frozen.is_some() {
            self.frozen.insert(group);
        } else {
            self.frozen.remove(&group);
        }
        self.retention.insert(group, state);
    }

    /// Groups that take no new envelopes.
    pub(crate) fn frozen(&self) -> impl Iterator<Item = &GroupId> {
        self.frozen.iter()
    }

    /// What a new envelope of this group is refused with, if it is frozen.
    pub(crate) fn frozen_refusal(&self, group: &GroupId) -> Option<Refusal> {
        let frozen = !self.frozen.is_empty() && self.frozen.contains(group);
        frozen.then(|| self.retention.get(group).map(Retention::frozen_refusal))?
    }

    /// Judges a device against the newest state (05 §6.2).
    pub(crate) fn admits(&self, device: &PublicKey, wall_ms: u64) -> (Admission, EntryHash) {
        let entry = EntryHash::of(device, &self.salt);
        (self.admits_entry(&entry, wall_ms), entry)
    }

    /// The same for an entry hash.
    pub(crate) fn admits_entry(&self, entry: &EntryHash, wall_ms: u64) -> Admission {
        if self
            .chain
            .head
            .as_ref()
            .is_some_and(|h| h.entries.contains(entry))
        {
            Admission::InSet
        } else if self.grants.get(entry).is_some_and(|g| g.is_live(wall_ms)) {
            Admission::Provisional
        } else if self.chain.head.is_none() && self.founders(wall_ms).any(|(hash, _)| hash == *entry) {
            Admission::Founding
        } else {
            Admission::Refused
        }
    }

    /// Device hashes (and expiries) with a running seat on the unspent bootstrap invite.
    pub(crate) fn founders(&self, wall_ms: u64) -> impl Iterator<Item = (EntryHash, u64)> + '_ {
        let token = self
            .genesis
            .as_ref()
            .filter(|g| g.redeemed_ms.is_none())
            .map(|g| Token(g.token));
        self.seats
            .iter()
            .filter(move |((t, _), seat)| Some(*t) == token && seat.is_running(wall_ms))
            .map(|(_, seat)| (EntryHash(seat.device_hash), seat.expires_ms))
    }

    /// Whether the genesis key is still unspent.
    pub(crate) fn is_unspent(&self) -> bool {
        self.genesis.as_ref().is_some_and(|g| g.redeemed_ms.is_none())
    }

    /// The live invite under this token.
    pub(crate) fn live_invite(&self, token: &Token, wall_ms: u64) -> Option<&Invite> {
        self.invites
            .get(token)
            .filter(|i| i.state == InviteState::Live && wall_ms < i.expires_ms)
    }

    /// The slot of a device's budgets. Never given back: they must outlive its sockets, and an admitted device is
    /// the only kind there is.
    pub(crate) fn device_slot(&mut self, key: &PublicKey) -> u32 {
        *self.device_slots.entry(*key).or_insert_with(|| {
            self.devices.push(Device::default());
            self.devices.len() as u32 - 1
        })
    }

    /// A socket of this device is gone.
    pub(crate) fn leave(&mut self, entry: &EntryHash, conn: ConnId) {
        if let Some(conns) = self.registry.get_mut(entry) {
            conns.retain(|c| *c != conn);
            if conns.is_empty() {
                self.registry.remove(entry);
                self.wakes.stir();
            }
        }
    }
}
