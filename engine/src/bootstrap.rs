//! Minting a workspace: a genesis key, the one invite it signs, and the salt, in one commit (06 §12). The key's private
//! half is dropped here, after its only signature.

use crate::limits::BOOTSTRAP_MS;
use crate::records::{self, Genesis, Invite, InviteState};
use drover_storage::RealmId;
use drover_storage::control::{Check, ControlBatch, DirectoryKey, DirectoryKind};
use drover_wire::id::{Hash, PublicKey, Signature, Token};
use drover_wire::invite::{Record, canonical_code, grouped_code};
use ed25519_dalek::SigningKey;
use std::sync::Arc;

/// Marks, in the directory, the workspace that the relay made for itself at its first start (13 B9).
pub const FIRST_WORKSPACE: &[u8] = b"first";

pub use crate::records::Handoff;

/// A workspace about to exist.
#[derive(Clone)]
pub struct Minted {
    pub(crate) batch: ControlBatch,
    /// It is the relay's own.
    pub(crate) first: bool,
    pub(crate) handoff: Option<Arc<Handoff>>,
    /// When the invite expires, Unix milliseconds.
    pub expires_ms: u64,
    /// What is printed once.
    pub banner: Banner,
}

impl Minted {
    /// Stores link and code sealed, in the same commit (06 §14, 13 B25).
    #[must_use]
    pub fn with_handoff(mut self, handoff: Handoff) -> Self {
        let key = records::HANDOFF.to_vec();
        self.batch.checks.push(Check::Absent(key.clone()));
        self.batch.writes.push(records::put(key, &handoff));
        self.handoff = Some(Arc::new(handoff));
        self
    }

    /// The commit that makes it exist, for a store no relay has open.
    pub fn into_batch(self) -> ControlBatch {
        self.batch
    }
}

/// The three values of the first-run banner.
#[derive(Clone)]
pub struct Banner {
    /// The invite's token.
    pub token: Token,
    /// The one-time code, grouped; never shown again.
    pub code: String,
    /// The genesis key's fingerprint.
    pub fingerprint: Hash,
}

/// Why minting failed.
#[derive(Debug, thiserror::Error)]
pub enum MintError {
    /// The operating system gave no randomness.
    #[error("no randomness: {0}")]
    Random(#[from] getrandom::Error),
    /// The code could not be hashed.
    #[error("the one-time code could not be hashed")]
    Hash,
}

/// `H("weald genesis v1" ‖ public key)`: what is printed and compared.
pub fn genesis_fingerprint(public_key: &[u8; 32]) -> Hash {
    Hash::of(&[b"weald genesis v1", public_key])
}

/// Makes the records of a new workspace. Hashes a code (some 20 ms): not for a shard's thread.
///
/// # Errors
/// See [`MintError`].
pub fn mint(realm: &RealmId, now_ms: u64, first: bool) -> Result<Minted, MintError> {
    let mut random = [0; RANDOM_BYTES];
    getrandom::fill(&mut random)?;
    mint_from(&random, realm, now_ms, first)
}

/// Random bytes that go into a mint: genesis key, token, update key, salt, code.
pub const RANDOM_BYTES: usize = 32 + 16 + 32 + 32 + 8;

/// The same from bytes drawn elsewhere, which must be as good as [`mint`]'s own: keys and the code are made of them.
///
/// # Errors
/// [`MintError::Hash`].
pub fn mint_from(
    random: &[u8; RANDOM_BYTES],
    realm: &RealmId,
    now_ms: u64,
    first: bool,
) -> Result<Minted, MintError> {
    let take = |range: std::ops::Range<usize>| &random[range];
    let array32 = |range| -> [u8; 32] { take(range).try_into().unwrap_or_default() };
    let key = SigningKey::from_bytes(&array32(0..32));
    let token = Token(take(32..48).try_into().unwrap_or_default());
    let (update_pub, salt) = (array32(48..80), array32(80..112));
    let bits = u64::from_le_bytes(take(112..120).try_into().unwrap_or_default()) >> 4; // 60 bits
    let code = grouped_code(bits);
    let symbols = canonical_code(&code).ok_or(MintError::Hash)?;
    let code_hash = crate::code::hash(&symbols, &token.0).ok_or(MintError::Hash)?;
    let public_key = key.verifying_key().to_bytes();
    let record = Record {
        token,
        workspace: Hash::of(&[realm.0.as_bytes()]).0,
        issuer: PublicKey(public_key),
        issued_at_ms: now_ms,
        expires_ms: now_ms + BOOTSTRAP_MS,
        uses: 1,
        code_hash: Hash(code_hash),
        scopes: Vec::new(),
        caps: vec![b"admin".to_vec()],
        update_pub,
        bundles: Vec::new(),
        sig: Signature([0; 64]),
    }
    .signed(&key);
    drop(key);
    let invite = Invite {
        record: record.encode(),
        remaining: 1,
        state: InviteState::Live,
        bootstrap: true,
        stored_ms: now_ms,
        expires_ms: record.expires_ms,
        code_hash,
        uses: 1,
        scopes: Vec::new(),
        refreshed: Vec::new(),
        issued_epochs: Vec::new(),
    };
    let genesis = Genesis {
        public_key,
        token: token.0,
        redeemed_ms: None,
    };
    let fingerprint = genesis_fingerprint(&public_key);
    let batch = ControlBatch {
        checks: vec![
            Check::Absent(records::SALT.to_vec()),
            Check::Absent(records::GENESIS.to_vec()),
        ],
        writes: vec![
            records::put_raw(records::SALT.to_vec(), salt.to_vec()),
            records::put(records::GENESIS.to_vec(), &genesis),
            records::put(records::invite_key(&token), &invite),
        ],
        directory: vec![
            (
                realm_key(realm),
                Some(if first {
                    FIRST_WORKSPACE.into()
                } else {
                    bytes::Bytes::new()
                }),
            ),
            (
                DirectoryKey {
                    kind: DirectoryKind::Token,
                    name: token.0.to_vec(),
                },
                Some(bytes::Bytes::new()),
            ),
        ],
    };
    Ok(Minted {
        batch,
        first,
        handoff: None,
        expires_ms: record.expires_ms,
        banner: Banner {
            token,
            code,
            fingerprint,
        },
    })
}

/// A workspace's name in the directory.
pub fn realm_key(realm: &RealmId) -> DirectoryKey {
    DirectoryKey {
        kind: DirectoryKind::Realm,
        name: Hash::of(&[realm.0.as_bytes()]).0.to_vec(),
    }
}
