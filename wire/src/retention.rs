//! The records of the retention chain (08 §11, §12): who may say what a group still needs, what it needs, and when the
//! rest may go. Encodings, what is signed, digests, and the rules that need no store.
//!
//! | Record | Signed by | Digest over |
//! | --- | --- | --- |
//! | [`Control`], [`Manifest`], [`Resolution`] | one retention key | the whole record, signature included |
//! | [`Policy`], [`Destruction`] | authorizers of the access set, see [`authorize`] | what is signed |
//!
//! Records are decoded whole and owned, because they are stored and come back from a store.

mod threshold;

use ed25519_dalek::SigningKey;

pub use threshold::{Destruction, Policy, Refused, SOLE_AUTHORIZER_DELAY_S, authorize};
pub(crate) use threshold::{read_version, write_version};

use crate::access::{list, sign, verify};
use crate::cbor::{self, Reader, Writer};
use crate::error::Code;
use crate::id::{GroupId, Hash, PublicKey, Signature};

/// The sequence of a group's first manifest (08 §4).
pub const FIRST_SEQUENCE: u64 = 1;

/// Whose key speaks for a group in this epoch (08 §11, form 6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Control {
    /// The group.
    pub group: GroupId,
    /// Retention epoch; 0 is the first.
    pub epoch: u64,
    /// The key that signs this epoch's manifests and the next control.
    pub verifier: PublicKey,
    /// Digest of the control before; of any width here, since one that is none only fails to match.
    pub prev: Option<Vec<u8>>,
    /// By the control before, or in epoch 0 by the verifier itself.
    pub sig: Signature,
}

/// Everything a group still needs (08 §11, form 7). What it does not name may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The group.
    pub group: GroupId,
    /// The newest control's.
    pub epoch: u64,
    /// [`FIRST_SEQUENCE`], then one more each.
    pub sequence: u64,
    /// Digest of the manifest before; of any width here.
    pub prev: Option<Vec<u8>>,
    /// At most [`LIST_MAX`](crate::access::LIST_MAX), in the signer's order.
    pub blobs: Vec<Hash>,
    /// By the control's verifier.
    pub sig: Signature,
}

/// Names the genuine one of two controls that collided, which ends a freeze (08 §11, form 11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// The group.
    pub group: GroupId,
    /// The epoch two controls claimed.
    pub epoch: u64,
    /// The key of one of them.
    pub verifier: PublicKey,
    /// By that key.
    pub sig: Signature,
}

/// Decoding, encoding and signing of a record whose signature comes last; the record is what its digest covers.
macro_rules! signed_record {
    ($name:ident, $fields:literal) => {
        impl $name {
            /// Decodes a whole record.
            ///
            /// # Errors
            /// `reject/malformed_header`.
            pub fn decode(bytes: &[u8]) -> Result<Self, Code> {
                let mut r = Reader::new(bytes);
                let record = Self::read(&mut r).map_err(|_| Code::MalformedHeader)?;
                r.finish().map_err(|_| Code::MalformedHeader)?;
                Ok(record)
            }

            /// The canonical encoding.
            pub fn encode(&self) -> Vec<u8> {
                let mut out = Vec::new();
                self.write(&mut Writer::new(&mut out));
                out
            }

            /// What is signed: every field before the signature.
            pub fn signing_input(&self) -> Vec<u8> {
                let mut out = Vec::new();
                self.write_fields(Writer::new(&mut out).array($fields - 1));
                out
            }

            /// `H(record)`, the signature included.
            pub fn digest(&self) -> Hash {
                Hash::of(&[&self.encode()])
            }

            /// Whether this key made the signature.
            pub fn is_signed_by(&self, key: &PublicKey) -> bool {
                verify(key, &self.signing_input(), &self.sig)
            }

            /// The record with `sig` made by `key`.
            pub fn signed(mut self, key: &SigningKey) -> Self {
                self.sig = sign(key, &self.signing_input());
                self
            }

            pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, cbor::Error> {
                r.array_of($fields)?;
                Self::read_fields(r)
            }

            pub(crate) fn write(&self, w: &mut Writer<&mut Vec<u8>>) {
                self.write_fields(w.array($fields));
                w.bytes(self.sig);
            }
        }
    };
}

signed_record!(Control, 5);
signed_record!(Manifest, 6);
signed_record!(Resolution, 4);

impl Control {
    /// Whether this is a first control: epoch 0, nothing before it, signed by its own verifier.
    pub fn is_genesis(&self) -> bool {
        self.epoch == 0 && self.prev.is_none() && self.is_signed_by(&self.verifier)
    }

    /// Whether this is the control after `previous`: of the same group and the next epoch, naming its digest, signed
    /// by its verifier.
    pub fn succeeds(&self, previous: &Control) -> bool {
        self.group == previous.group
            && previous.epoch.checked_add(1) == Some(self.epoch)
            && self.prev.as_deref() == Some(previous.digest().as_ref())
            && self.is_signed_by(&previous.verifier)
    }

    fn read_fields(r: &mut Reader<'_>) -> Result<Self, cbor::Error> {
        Ok(Self {
            group: GroupId(*r.fixed()?),
            epoch: r.uint()?,
            verifier: PublicKey(*r.fixed()?),
            prev: nullable_bytes(r)?,
            sig: Signature(*r.fixed()?),
        })
    }

    fn write_fields(&self, w: &mut Writer<&mut Vec<u8>>) {
        w.bytes(self.group).uint(self.epoch).bytes(self.verifier);
        write_nullable(w, self.prev.as_deref());
    }
}

/// Why a manifest is not the group's next one, in judging order (08 §11). Each is `reject/malformed_header` to the
/// client, and its text is what the evidence row says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestFault {
    /// The group has no control.
    #[error("no_control")]
    NoControl,
    /// Not the newest control's epoch.
    #[error("stale_epoch")]
    Epoch,
    /// Not signed by the newest control's verifier.
    #[error("bad_signature")]
    Signature,
    /// Not one more than the latest.
    #[error("wrong_sequence")]
    Sequence,
    /// Not the digest of the latest, or there is none to name.
    #[error("wrong_predecessor")]
    Predecessor,
}

impl Manifest {
    /// Whether this is the group's next manifest, after its newest control and the latest manifest's sequence and
    /// digest. That a named blob fits its reservation is for the caller to find out before.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self, control: Option<&Control>, latest: Option<(u64, Hash)>) -> Result<(), ManifestFault> {
        let control = control.ok_or(ManifestFault::NoControl)?;
        if self.epoch != control.epoch {
            return Err(ManifestFault::Epoch);
        }
        if !self.is_signed_by(&control.verifier) {
            return Err(ManifestFault::Signature);
        }
        let next = latest.map_or(Some(FIRST_SEQUENCE), |(sequence, _)| sequence.checked_add(1));
        if Some(self.sequence) != next {
            return Err(ManifestFault::Sequence);
        }
        let before = latest.as_ref().map(|(_, digest)| digest.as_ref());
        if self.prev.as_deref() != before {
            return Err(ManifestFault::Predecessor);
        }
        Ok(())
    }

    fn read_fields(r: &mut Reader<'_>) -> Result<Self, cbor::Error> {
        Ok(Self {
            group: GroupId(*r.fixed()?),
            epoch: r.uint()?,
            sequence: r.uint()?,
            prev: nullable_bytes(r)?,
            blobs: list(r)?,
            sig: Signature(*r.fixed()?),
        })
    }

    fn write_fields(&self, w: &mut Writer<&mut Vec<u8>>) {
        w.bytes(self.group).uint(self.epoch).uint(self.sequence);
        write_nullable(w, self.prev.as_deref());
        w.bytes_array(&self.blobs);
    }
}

impl Resolution {
    /// Whether the key it names made the signature. Whether that key is one of the colliding controls' is for the
    /// caller to find out after (08 §11).
    pub fn verifies(&self) -> bool {
        self.is_signed_by(&self.verifier)
    }

    fn read_fields(r: &mut Reader<'_>) -> Result<Self, cbor::Error> {
        Ok(Self {
            group: GroupId(*r.fixed()?),
            epoch: r.uint()?,
            verifier: PublicKey(*r.fixed()?),
            sig: Signature(*r.fixed()?),
        })
    }

    fn write_fields(&self, w: &mut Writer<&mut Vec<u8>>) {
        w.bytes(self.group).uint(self.epoch).bytes(self.verifier);
    }
}

fn nullable_bytes(r: &mut Reader<'_>) -> Result<Option<Vec<u8>>, cbor::Error> {
    r.nullable(|r| r.bytes().map(<[u8]>::to_vec))
}

/// Null, or a byte string.
pub(crate) fn write_nullable(w: &mut Writer<&mut Vec<u8>>, bytes: Option<&[u8]>) {
    match bytes {
        None => w.null(),
        Some(bytes) => w.bytes(bytes),
    };
}
