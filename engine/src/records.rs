//! What a realm keeps in its control partition: keys and the CBOR of each record. A record that does not decode is
//! damage, never a default.

use crate::limits::CODE_COOLDOWN_MS;
use bytes::Bytes;
use drover_storage::StoreError;
use drover_storage::control::Write;
use drover_wire::id::{EntryHash, GroupId, Hash, Nonce, PublicKey, Token};
use minicbor::{Decode, Encode};

/// The workspace's salt: 32 raw bytes.
pub(crate) const SALT: &[u8] = b"salt";
/// The newest version, as 8 bytes big-endian: the compare-and-swap cell.
pub(crate) const HEAD: &[u8] = b"head";
/// The genesis record.
pub(crate) const GENESIS: &[u8] = b"genesis";
/// The bootstrap invite sealed to the operator's key; gone once the workspace is founded.
pub(crate) const HANDOFF: &[u8] = b"handoff";
/// Every accepted set under its version, as received.
pub(crate) const SET: &[u8] = b"set/";
pub(crate) const GRANT: &[u8] = b"grant/";
pub(crate) const INVITE: &[u8] = b"invite/";
pub(crate) const SEAT: &[u8] = b"seat/";
/// A scope committed by a seat: empty.
pub(crate) const COMMIT: &[u8] = b"commit/";
pub(crate) const ATTEMPT: &[u8] = b"attempt/";
pub(crate) const SHELF: &[u8] = b"shelf/";
pub(crate) const PROBATION: &[u8] = b"probation/";
pub(crate) const ROTATION: &[u8] = b"rotation/";
/// Wake registrations (12 §4) by entry hash.
pub(crate) const WAKE: &[u8] = b"wake/";
/// Where a group's retention chain stands ([`crate::retention`]).
pub(crate) const RETENTION: &[u8] = b"retention/";
/// A destruction, by its group and name.
pub(crate) const DESTRUCTION: &[u8] = b"destruction/";
/// The transparency log (05 §13) by its sequence number.
pub(crate) const TRANSPARENCY: &[u8] = b"transparency/";

/// A key of these parts.
pub(crate) fn key(prefix: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut key = prefix.to_vec();
    for part in parts {
        key.extend_from_slice(part);
    }
    key
}

pub(crate) fn grant_key(hash: &EntryHash) -> Vec<u8> {
    key(GRANT, &[&hash.0])
}

pub(crate) fn invite_key(token: &Token) -> Vec<u8> {
    key(INVITE, &[&token.0])
}

pub(crate) fn seat_key(token: &Token, nonce: &Nonce) -> Vec<u8> {
    key(SEAT, &[&token.0, &nonce.0])
}

pub(crate) fn commit_key(token: &Token, nonce: &Nonce, group: &GroupId) -> Vec<u8> {
    key(COMMIT, &[&token.0, &nonce.0, &group.0])
}

pub(crate) fn attempt_key(token: &Token, source: &[u8; 32]) -> Vec<u8> {
    key(ATTEMPT, &[&token.0, source])
}

pub(crate) fn probation_key(device: &PublicKey) -> Vec<u8> {
    key(PROBATION, &[&device.0])
}

pub(crate) fn rotation_key(recovery: &PublicKey) -> Vec<u8> {
    key(ROTATION, &[&recovery.0])
}

pub(crate) fn wake_key(entry: &EntryHash) -> Vec<u8> {
    key(WAKE, &[&entry.0])
}

pub(crate) fn retention_key(group: &GroupId) -> Vec<u8> {
    key(RETENTION, &[&group.0])
}

pub(crate) fn destruction_key(group: &GroupId, name: &Hash) -> Vec<u8> {
    key(DESTRUCTION, &[&group.0, &name.0])
}

/// The change that stores `value` under `key`.
pub(crate) fn put<T: Encode<()>>(key: Vec<u8>, value: &T) -> Write {
    // Encoding into a Vec has no failure.
    let bytes = minicbor::to_vec(value).unwrap_or_default();
    Write {
        key,
        value: Some(Bytes::from(bytes)),
    }
}

/// The change that stores raw bytes.
pub(crate) fn put_raw(key: Vec<u8>, value: impl Into<Bytes>) -> Write {
    Write {
        key,
        value: Some(value.into()),
    }
}

/// The change that removes a record.
pub(crate) fn remove(key: Vec<u8>) -> Write {
    Write { key, value: None }
}

/// Reads a stored record back.
pub(crate) fn get<'b, T: Decode<'b, ()>>(bytes: &'b [u8]) -> Result<T, StoreError> {
    minicbor::decode(bytes).map_err(|_| StoreError::Damaged)
}

/// Why a grant is dead (05 §11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub(crate) enum VoidReason {
    #[n(0)]
    Revoked,
    #[n(1)]
    Superseded,
}

/// A provisional grant (05 §11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Grant {
    #[n(0)]
    pub(crate) expires_ms: u64,
    /// The first accepted version that listed the device.
    #[n(1)]
    pub(crate) seen_version: Option<u64>,
    #[n(2)]
    pub(crate) voided: Option<VoidReason>,
}

impl Grant {
    /// Whether it admits its device now.
    pub(crate) fn is_live(&self, wall_ms: u64) -> bool {
        self.voided.is_none() && wall_ms < self.expires_ms
    }
}

/// An invite's state (06 §11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub(crate) enum InviteState {
    #[n(0)]
    Live,
    #[n(1)]
    Revoked,
    #[n(2)]
    Spent,
}

/// A stored invite (06 §16).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Invite {
    /// The signed record as received, if it is small; a larger one lies in the partition of large values.
    #[n(0)]
    #[cbor(with = "minicbor::bytes")]
    pub(crate) record: Vec<u8>,
    #[n(1)]
    pub(crate) remaining: u8,
    #[n(2)]
    pub(crate) state: InviteState,
    /// The relay's own first invite.
    #[n(3)]
    pub(crate) bootstrap: bool,
    #[n(4)]
    pub(crate) stored_ms: u64,
    /// Copied out of the record, which need not be decoded to judge a seat.
    #[n(5)]
    pub(crate) expires_ms: u64,
    #[n(6)]
    #[cbor(with = "minicbor::bytes")]
    pub(crate) code_hash: [u8; 32],
    #[n(7)]
    pub(crate) uses: u8,
    /// Scopes, back to back, strictly ascending.
    #[n(8)]
    #[cbor(with = "minicbor::bytes")]
    pub(crate) scopes: Vec<u8>,
    /// Bundles uploaded after the record, newest last; their ciphertext lies in the partition of large values.
    #[n(9)]
    pub(crate) refreshed: Vec<Refreshed>,
    /// Epochs of the bundles that came with the record, in scope order.
    #[n(10)]
    pub(crate) issued_epochs: Vec<u64>,
}

/// A refreshed bundle (06 §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Refreshed {
    #[n(0)]
    #[cbor(with = "minicbor::bytes")]
    pub(crate) group: [u8; 32],
    #[n(1)]
    pub(crate) epoch: u64,
    #[n(2)]
    pub(crate) uploaded_ms: u64,
}

impl Invite {
    /// Whether the invite opens this group.
    pub(crate) fn has_scope(&self, group: &[u8]) -> bool {
        self.scopes.chunks_exact(32).any(|scope| scope == group)
    }

    /// How many groups it opens.
    pub(crate) fn scope_count(&self) -> usize {
        self.scopes.len() / 32
    }
}

/// A seat taken (06 §16, reservation).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Seat {
    #[n(0)]
    #[cbor(with = "minicbor::bytes")]
    pub(crate) device_hash: [u8; 32],
    #[n(1)]
    pub(crate) expires_ms: u64,
    #[n(2)]
    pub(crate) consumed: bool,
    #[n(3)]
    pub(crate) released: bool,
    /// Parked once (06 §10).
    #[n(4)]
    pub(crate) extended: bool,
}

impl Seat {
    /// Whether the seat is still held without having been used.
    pub(crate) fn is_running(&self, wall_ms: u64) -> bool {
        !self.consumed && self.is_reserved(wall_ms)
    }

    /// Whether the reservation stands, used or not.
    pub(crate) fn is_reserved(&self, wall_ms: u64) -> bool {
        !self.released && wall_ms < self.expires_ms
    }
}

/// Wrong codes of one source on one token (06 §6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Attempt {
    #[n(0)]
    pub(crate) failures: u32,
    #[n(1)]
    pub(crate) window_started_ms: u64,
    #[n(2)]
    pub(crate) cooldown_until_ms: u64,
}

impl Attempt {
    /// Whether it still counts.
    pub(crate) fn is_live(&self, wall_ms: u64) -> bool {
        self.cooldown_until_ms > wall_ms || self.window_started_ms + CODE_COOLDOWN_MS > wall_ms
    }
}

/// The relay-made key that signed the bootstrap invite; its private half is dropped after signing (06 §13).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Genesis {
    #[n(0)]
    #[cbor(with = "minicbor::bytes")]
    pub(crate) public_key: [u8; 32],
    #[n(1)]
    #[cbor(with = "minicbor::bytes")]
    pub(crate) token: [u8; 16],
    #[n(2)]
    pub(crate) redeemed_ms: Option<u64>,
}

/// The bootstrap invite's link and code, sealed to a key of the operator's (06 §14). Made with the invite, in the same
/// commit, and never again.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Handoff {
    /// The sealed link, as it is served.
    #[n(0)]
    pub blob: String,
    /// The sealed code, as it is served.
    #[n(1)]
    pub sealed_code: String,
    /// The genesis key's fingerprint, lower-case hex.
    #[n(2)]
    pub fingerprint: String,
    /// From when on it is not served, Unix milliseconds.
    #[n(3)]
    pub expires_ms: u64,
    /// SHA-256 of the key it was sealed to: nobody else has a use for it.
    #[n(4)]
    #[cbor(with = "minicbor::bytes")]
    pub recipient: [u8; 32],
}

/// A superseded wrap (07 B2).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct PriorWrap {
    #[n(0)]
    pub(crate) epoch: u64,
    #[n(1)]
    #[cbor(with = "minicbor::bytes")]
    pub(crate) ct: Vec<u8>,
    #[n(2)]
    pub(crate) expires_ms: u64,
}

/// A recovery slot (07 B3), under its tag.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct WrapSlot {
    #[n(0)]
    #[cbor(with = "minicbor::bytes")]
    pub(crate) group: [u8; 32],
    #[n(1)]
    pub(crate) epoch: u64,
    #[n(2)]
    #[cbor(with = "minicbor::bytes")]
    pub(crate) ct: Vec<u8>,
    #[n(3)]
    pub(crate) prior: Option<PriorWrap>,
}

/// As much of a [`WrapSlot`] as tells whether something of it is over.
#[derive(Clone, Copy, Debug, Decode)]
pub(crate) struct PriorExpiry {
    #[n(3)]
    prior: Option<Expiry>,
}

/// As much of a [`PriorWrap`].
#[derive(Clone, Copy, Debug, Decode)]
struct Expiry {
    #[n(2)]
    expires_ms: u64,
}

impl PriorExpiry {
    /// Whether there is a superseded wrap whose time is over.
    pub(crate) fn is_over(&self, wall_ms: u64) -> bool {
        self.prior.is_some_and(|prior| prior.expires_ms <= wall_ms)
    }
}

/// A key package on a shelf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct ShelfEntry {
    #[n(0)]
    pub(crate) id: u64,
    #[n(1)]
    pub(crate) expires_ms: u64,
}

/// A device's shelf of key packages (07 A4), oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Shelf {
    #[n(0)]
    pub(crate) next_id: u64,
    #[n(1)]
    pub(crate) entries: Vec<ShelfEntry>,
}

impl Shelf {
    /// Packages that can still be served.
    pub(crate) fn live(&self, wall_ms: u64) -> usize {
        self.entries.iter().filter(|e| wall_ms < e.expires_ms).count()
    }
}

/// A device's wake registration (12 §4).
#[derive(Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub(crate) struct WakeRow {
    #[n(0)]
    #[cbor(with = "minicbor::bytes")]
    pub(crate) handle: [u8; 16],
    /// Mask of [`crate::wake::Category::bit`].
    #[n(1)]
    pub(crate) categories: u8,
    #[n(2)]
    pub(crate) expires_ms: u64,
    #[n(3)]
    pub(crate) updated_ms: u64,
}

impl WakeRow {
    /// Whether its device may still be woken.
    pub(crate) fn is_live(&self, wall_ms: u64) -> bool {
        wall_ms < self.expires_ms
    }
}

// By hand, because a handle is never rendered anywhere (12 §9).
impl std::fmt::Debug for WakeRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WakeRow")
    }
}

/// A probation (05 §8).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Probation {
    #[n(0)]
    pub(crate) introduced_version: u64,
    /// Pinned entry hashes, back to back.
    #[n(1)]
    #[cbor(with = "minicbor::bytes")]
    pub(crate) pinned: Vec<u8>,
    #[n(2)]
    pub(crate) cleared_version: Option<u64>,
}

/// One entry of the transparency log (05 §13).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Transparency {
    #[n(0)]
    pub(crate) kind: String,
    #[n(1)]
    #[cbor(with = "minicbor::bytes")]
    pub(crate) body: Vec<u8>,
    #[n(2)]
    #[cbor(with = "minicbor::bytes")]
    pub(crate) prev_hash: [u8; 32],
    #[n(3)]
    #[cbor(with = "minicbor::bytes")]
    pub(crate) entry_hash: [u8; 32],
    #[n(4)]
    pub(crate) recorded_ms: u64,
}
