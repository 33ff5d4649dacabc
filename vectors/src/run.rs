//! What one run of the runner has of its own: keys, groups and ids made from names, the relay's clock, and the
//! workspaces it founded. Two runs never meet, even on one relay.

use crate::cbor::Item;
use crate::frames::Fields;
use ed25519_dalek::{Signer, SigningKey};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// BLAKE3 over the parts, nothing in between.
pub fn blake3(parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

/// A workspace that was founded for the run, and the newest set of its chain.
#[derive(Debug)]
pub struct Workspace {
    /// What entry hashes are made with.
    pub salt: [u8; 32],
    /// Fields of the newest accepted set.
    pub head: Mutex<Head>,
}

/// The newest accepted access set.
#[derive(Clone, Debug)]
pub struct Head {
    /// As in ACCESS_PUBLISH.
    pub set: Fields,
    /// What its successor names as `prev_hash`.
    pub digest: Vec<u8>,
}

/// See the module.
#[derive(Debug)]
pub struct Run {
    id: [u8; 16],
    /// Private keys by public key: whoever was named.
    keys: Mutex<HashMap<[u8; 32], SigningKey>>,
    /// What a relay said its limits are, by rule: arrays name them, maps don't.
    limits: Mutex<HashMap<String, u64>>,
    /// Relay time minus ours, in milliseconds.
    skew_ms: AtomicI64,
    /// The first holds every actor that is no stranger and no outsider, the second the outsiders.
    pub workspaces: Vec<Workspace>,
}

impl Run {
    /// A run with this id, which nothing else may have.
    pub fn new(id: [u8; 16]) -> Self {
        Self {
            id,
            keys: Mutex::default(),
            limits: Mutex::default(),
            skew_ms: AtomicI64::new(0),
            workspaces: Vec::new(),
        }
    }

    /// 32 bytes that only this run derives from these words.
    pub fn derive(&self, label: &str, name: &[u8]) -> [u8; 32] {
        blake3(&[b"weald conformance ", label.as_bytes(), b" v1", &self.id, name])
    }

    /// The public key of whoever has this full name.
    pub fn key(&self, name: &str) -> [u8; 32] {
        let key = SigningKey::from_bytes(&self.derive("key", name.as_bytes()));
        let public = key.verifying_key().to_bytes();
        self.with_keys(|keys| {
            keys.entry(public).or_insert(key);
        });
        public
    }

    /// A signature by a key that was named before.
    pub fn sign(&self, public: &[u8], message: &[u8]) -> Option<Vec<u8>> {
        let public: [u8; 32] = public.try_into().ok()?;
        self.with_keys(|keys| Some(keys.get(&public)?.sign(message).to_bytes().to_vec()))
    }

    fn with_keys<T>(&self, f: impl FnOnce(&mut HashMap<[u8; 32], SigningKey>) -> T) -> T {
        f(&mut self.keys.lock().expect("no holder panics"))
    }

    /// Remembers the limit a refusal named.
    pub fn learn_limit(&self, rule: &str, limit: u64) {
        let mut limits = self.limits.lock().expect("no holder panics");
        limits.insert(rule.to_owned(), limit);
    }

    /// The limit a refusal named before.
    pub fn known_limit(&self, rule: &str) -> Option<u64> {
        self.limits.lock().expect("no holder panics").get(rule).copied()
    }

    /// Takes the relay's clock from what it said just now.
    pub fn set_clock(&self, relay_ms: u64) {
        self.skew_ms
            .store(relay_ms as i64 - local_ms() as i64, Ordering::Relaxed);
    }

    /// The relay's clock in milliseconds since the Unix epoch, as far as it is known.
    pub fn now_ms(&self) -> u64 {
        local_ms().saturating_add_signed(self.skew_ms.load(Ordering::Relaxed))
    }
}

impl Head {
    /// A list of the set, such as `entries`.
    pub fn list(&self, field: &str) -> Vec<Item> {
        match self.set.get(field) {
            Some(Item::Array(items)) => items.clone(),
            _ => Vec::new(),
        }
    }
}

fn local_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
