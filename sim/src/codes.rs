//! One-time codes. Hashing one takes 20 ms by design, and says the same every time: each is hashed once in a process.

use drover_engine::bootstrap::{Minted, RANDOM_BYTES, mint_from};
use drover_engine::effects::CodeCheck;
use drover_storage::RealmId;
use drover_wire::id::Token;
use drover_wire::invite::canonical_code;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The code of every invite that an admin issues.
pub const CODE: &str = "28T5-CY4T-QKFF";
/// One that never matches.
pub const WRONG: &str = "0000-0000-0000";
/// Invites a workspace may have issued.
pub const TOKENS: usize = 2;

/// The token of a workspace's invite of this number.
pub fn token(workspace: usize, number: usize) -> Token {
    Token([(workspace * TOKENS + number + 1) as u8; 16])
}

type Key = ([u8; 12], [u8; 16]);

static HASHES: Mutex<BTreeMap<Key, Option<[u8; 32]>>> = Mutex::new(BTreeMap::new());

fn hash_of(code: [u8; 12], token: [u8; 16]) -> Option<[u8; 32]> {
    let mut known = HASHES.lock().unwrap_or_else(PoisonError::into_inner);
    *known
        .entry((code, token))
        .or_insert_with(|| drover_engine::code::hash(&code, &token))
}

/// What [`CODE`] hashes to with this token.
pub fn hash(token: &Token) -> Option<[u8; 32]> {
    hash_of(canonical_code(CODE)?, token.0)
}

/// What the engine asks to have computed elsewhere.
pub fn matches(check: &CodeCheck) -> bool {
    hash_of(check.code, check.token) == Some(check.code_hash)
}

/// The name of a workspace.
pub fn realm(workspace: usize) -> RealmId {
    RealmId(format!("ws:{workspace}").into())
}

/// The workspace whose records lie there, or beside it in a partition of its own.
pub fn workspace_of(realm: &RealmId) -> Option<usize> {
    let name = realm.0.split('/').next()?;
    name.strip_prefix("ws:")?.parse().ok()
}

/// A workspace as the operator mints it: the same in every world.
pub fn minted(workspace: usize) -> Option<Minted> {
    static MINTED: Mutex<BTreeMap<usize, Option<Minted>>> = Mutex::new(BTreeMap::new());
    let mut known = MINTED.lock().unwrap_or_else(PoisonError::into_inner);
    known
        .entry(workspace)
        .or_insert_with(|| {
            let random = crate::dice::Dice::new(workspace as u64, "mint").bytes::<RANDOM_BYTES>();
            mint_from(&random, &realm(workspace), crate::world::EPOCH_MS, workspace == 0).ok()
        })
        .clone()
}
