//! The Ed25519 key a device, a recovery phrase or a quorum member is known by.

use std::fmt;

use drover_wire::id::{EntryHash, PublicKey, Salt, Signature};
use ed25519_dalek::{Signer, SigningKey};

use crate::random;

/// A private Ed25519 key and its public half. The key is wiped from memory when the identity is dropped.
#[derive(Clone)]
pub struct Identity {
    key: SigningKey,
}

impl Identity {
    /// A fresh key from the system's random source.
    pub fn generate() -> Self {
        Self::from_seed(&random::bytes())
    }

    /// The key of this 32-byte seed (RFC 8032 §5.1.5). Keep the seed as secret as the key.
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self {
            key: SigningKey::from_bytes(seed),
        }
    }

    /// The seed, to be stored in the device's keychain.
    pub fn seed(&self) -> [u8; 32] {
        self.key.to_bytes()
    }

    /// The public half: what others know the principal by.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.key.verifying_key().to_bytes())
    }

    /// What the relay knows the principal by in the workspace with this salt (05 §2).
    pub fn entry(&self, salt: &Salt) -> EntryHash {
        EntryHash::of(&self.public(), salt)
    }

    /// Signs exactly these bytes: no prefix, no pre-hash.
    pub fn sign(&self, message: &[u8]) -> Signature {
        Signature(self.key.sign(message).to_bytes())
    }

    pub(crate) fn key(&self) -> &SigningKey {
        &self.key
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({:?})", self.public())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_01_gives_the_key_and_entry_of_the_worked_example() {
        let device = Identity::from_seed(&[1; 32]);
        let hex: String = device.public().0.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c"
        );
        let hex: String = device
            .entry(&Salt([0x5a; 32]))
            .0
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        assert_eq!(
            hex,
            "6da2bcadb21464db2a50ab766b2bc27f76684b9760b091a16a0e3e793af82e40"
        );
    }

    #[test]
    fn debug_never_shows_the_private_half() {
        let device = Identity::from_seed(&[1; 32]);
        assert_eq!(format!("{device:?}"), "Identity(8a88e3dd7409)");
    }
}
