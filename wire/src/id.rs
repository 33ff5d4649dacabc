//! The fixed-width names of the protocol. Each is its own type, so that a group can't be passed for a hash.

use std::cmp::Ordering;
use std::fmt;

macro_rules! bytes_id {
    ($(#[$doc:meta])* $name:ident, $len:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(pub [u8; $len]);

        impl $name {
            /// Width in bytes.
            pub const LEN: usize = $len;

            /// The raw bytes.
            pub const fn as_bytes(&self) -> &[u8; $len] {
                &self.0
            }

            /// From a slice of exactly [`Self::LEN`] bytes; `None` for any other length.
            pub fn from_slice(bytes: &[u8]) -> Option<Self> {
                bytes.try_into().ok().map(Self)
            }

            /// The first eight bytes as a number: two that differ in it are in its order.
            const fn prefix(&self) -> u64 {
                let [a, b, c, d, e, f, g, h, ..] = self.0;
                u64::from_be_bytes([a, b, c, d, e, f, g, h])
            }
        }

        // By bytes, as derived, but without a call for all but those that begin alike.
        impl Ord for $name {
            fn cmp(&self, other: &Self) -> Ordering {
                let prefixes = self.prefix().cmp(&other.prefix());
                prefixes.then_with(|| self.0.cmp(&other.0))
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl From<[u8; $len]> for $name {
            fn from(bytes: [u8; $len]) -> Self {
                Self(bytes)
            }
        }

        impl From<$name> for [u8; $len] {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl AsRef<[u8]> for $name {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }

        // Twelve hex digits at most: what 13-operations.md §d.1 lets a debug line show of a group.
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                for byte in self.0.iter().take(6) {
                    write!(f, "{byte:02x}")?;
                }
                Ok(())
            }
        }
    };
}

bytes_id!(
    /// One MLS group: an opaque read scope (00-overview.md, glossary).
    GroupId, 32
);
bytes_id!(
    /// A BLAKE3-256 value: content address, set digest, fingerprint.
    Hash, 32
);
bytes_id!(
    /// An Ed25519 public key: a device, a recovery key, an authorizer, a quorum member.
    PublicKey, 32
);
bytes_id!(
    /// What the relay knows a principal by: `H(public key ‖ workspace salt)` (05 §2).
    EntryHash, 32
);
bytes_id!(
    /// An Ed25519 signature.
    Signature, 64
);
bytes_id!(
    /// An invite's token (06 §1).
    Token, 16
);
bytes_id!(
    /// A joiner's nonce (06 §1).
    Nonce, 16
);
bytes_id!(
    /// What a recovery wrap is kept under: blinded by clients, never computed here (07 B1).
    WrapTag, 32
);
bytes_id!(
    /// A call (10 §1).
    CallId, 16
);
bytes_id!(
    /// The random 32 bytes a workspace hashes its principals with (05 §2).
    Salt, 32
);

impl EntryHash {
    /// `H(key ‖ salt)`, the entry of `key` in the workspace with this salt.
    pub fn of(key: &PublicKey, salt: &Salt) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&key.0);
        hasher.update(&salt.0);
        Self(*hasher.finalize().as_bytes())
    }
}

impl Hash {
    /// `H(parts)`: BLAKE3 of the concatenation, without separators.
    pub fn of(parts: &[&[u8]]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(part);
        }
        Self(*hasher.finalize().as_bytes())
    }
}
