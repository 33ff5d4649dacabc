//! Access sets: who may connect (05 §3, §4).

use crate::error::Code;
use crate::id::{EntryHash, GroupId, Hash, PublicKey, Salt, Signature};

/// The longest list in a set.
pub const LIST_MAX: usize = 4096;

/// External keys that can confirm one recovery (05 §8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quorum {
    /// Signatures needed, 1 to the number of keys.
    pub threshold: u8,
    /// Strictly ascending.
    pub keys: Vec<PublicKey>,
    /// Carried confirmations, any order; not covered by the set's signature.
    pub sigs: Vec<(PublicKey, Signature)>,
}

/// One version of who may connect. Lists are in wire order; [`AccessSet::decode`] does not judge sorting.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // 05 §3, by name.
pub struct AccessSet {
    pub workspace: [u8; 32],
    pub version: u64,
    pub prev_hash: Hash,
    pub issued_at_ms: u64,
    pub entries: Vec<EntryHash>,
    pub authorizers: Vec<PublicKey>,
    pub recovery: Vec<PublicKey>,
    pub quorum: Option<Quorum>,
    pub pending: Vec<EntryHash>,
    pub signer: PublicKey,
    pub sig: Signature,
}

impl AccessSet {
    /// Decodes a whole set; a list of more than [`LIST_MAX`] is a decode failure.
    ///
    /// # Errors
    /// Always `reject/malformed_header` (05 §5 step 4).
    pub fn decode(_bytes: &[u8]) -> Result<Self, Code> {
        todo!()
    }

    /// The canonical encoding.
    pub fn encode(&self) -> Vec<u8> {
        todo!()
    }

    /// What the signer signs: the first ten fields, quorum signatures emptied (05 §4).
    pub fn signing_input(&self) -> Vec<u8> {
        todo!()
    }

    /// `H(signing input)`: the chain link.
    pub fn digest(&self) -> Hash {
        Hash::of(&[&self.signing_input()])
    }

    /// The shape rules of 05 §7.1 rows 1 and 2: non-empty, sorted, threshold in range.
    ///
    /// # Errors
    /// `reject/malformed_header`.
    pub fn check_shape(&self) -> Result<(), Code> {
        todo!()
    }

    /// The set with `sig` made by `key`, whose public half becomes the signer.
    pub fn signed(self, _key: &ed25519_dalek::SigningKey) -> Self {
        todo!()
    }
}

/// What a quorum key signs to confirm `replacement` under the set with this digest (05 §4).
pub fn quorum_message(digest: &Hash, replacement: &EntryHash) -> Hash {
    Hash::of(&[b"weald recovery-confirm v1", &digest.0, &replacement.0])
}

/// The answer to a state query: `[salt, head]` (05 §5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessState {
    /// The workspace's salt.
    pub salt: Salt,
    /// Newest version and its digest; `None` before genesis.
    pub head: Option<(u64, Hash)>,
}

impl AccessState {
    /// Decodes a whole answer.
    ///
    /// # Errors
    /// `reject/malformed_header`.
    pub fn decode(_bytes: &[u8]) -> Result<Self, Code> {
        todo!()
    }

    /// The canonical encoding.
    pub fn encode(&self) -> Vec<u8> {
        todo!()
    }
}

/// Ordinary Ed25519 verification as deployed (05 §1): cofactorless, canonical `s`.
pub fn verify(_key: &PublicKey, _message: &[u8], _signature: &Signature) -> bool {
    todo!()
}

#[allow(unused)]
fn _uses(_: GroupId) {}
