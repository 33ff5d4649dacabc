//! Invite records and one-time codes (06 §2, §3).

use crate::error::Code;
use crate::id::{GroupId, Hash, PublicKey, Signature, Token};

/// Symbols in a code.
pub const CODE_SYMBOLS: usize = 12;

/// A signed invite (06 §2).
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Record {
    pub token: Token,
    pub workspace: [u8; 32],
    pub issuer: PublicKey,
    pub issued_at_ms: u64,
    pub expires_ms: u64,
    pub uses: u8,
    pub code_hash: Hash,
    pub scopes: Vec<GroupId>,
    pub caps: Vec<Vec<u8>>,
    pub update_pub: [u8; 32],
    pub bundles: Vec<(GroupId, u64, Vec<u8>)>,
    pub sig: Signature,
}

impl Record {
    /// Decodes a whole record.
    ///
    /// # Errors
    /// `reject/noncanonical_cbor`; `reject/malformed_header` when a list or bundle is over its bound.
    pub fn decode(_bytes: &[u8]) -> Result<Self, Code> {
        todo!()
    }
    /// The canonical encoding.
    pub fn encode(&self) -> Vec<u8> {
        todo!()
    }
    /// The first eleven fields, which the issuer signs.
    pub fn signing_input(&self) -> Vec<u8> {
        todo!()
    }
    /// The record with `sig` made by `key`, whose public half becomes the issuer.
    pub fn signed(self, _key: &ed25519_dalek::SigningKey) -> Self {
        todo!()
    }
}

/// The twelve canonical symbols of a code in any accepted spelling; `None` if it is none (06 §3).
pub fn canonical_code(_text: &str) -> Option<[u8; CODE_SYMBOLS]> {
    todo!()
}

/// The code of these 60 bits, grouped for display.
pub fn grouped_code(_bits: u64) -> String {
    todo!()
}
