//! Access sets: who may connect (05 §3, §4).

use ed25519_dalek::{Signer, SigningKey, Verifier, VerifyingKey};

use crate::cbor::{self, Reader, Writer};
use crate::error::Code;
use crate::id::{EntryHash, Hash, PublicKey, Salt, Signature};

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

/// Fields of a set; the signer signs all but the last.
const FIELDS: usize = 11;

impl AccessSet {
    /// Decodes a whole set; a list of more than [`LIST_MAX`] is a decode failure.
    ///
    /// # Errors
    /// Always `reject/malformed_header` (05 §5 step 4).
    pub fn decode(bytes: &[u8]) -> Result<Self, Code> {
        Self::read(Reader::new(bytes)).map_err(|_| Code::MalformedHeader)
    }

    fn read(mut r: Reader<'_>) -> Result<Self, cbor::Error> {
        r.array_of(FIELDS)?;
        let set = Self {
            workspace: *r.fixed()?,
            version: r.uint()?,
            prev_hash: Hash(*r.fixed()?),
            issued_at_ms: r.uint()?,
            entries: list(&mut r)?,
            authorizers: list(&mut r)?,
            recovery: list(&mut r)?,
            quorum: r.nullable(Quorum::read)?,
            pending: list(&mut r)?,
            signer: PublicKey(*r.fixed()?),
            sig: Signature(*r.fixed()?),
        };
        r.finish()?;
        Ok(set)
    }

    /// The canonical encoding.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut w = Writer::new(&mut out);
        self.write(w.array(FIELDS), true);
        w.bytes(self.sig);
        out
    }

    /// What the signer signs: the first ten fields, quorum signatures emptied (05 §4).
    pub fn signing_input(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(Writer::new(&mut out).array(FIELDS - 1), false);
        out
    }

    /// The first ten fields, with the confirmations the quorum carries or with none.
    fn write(&self, w: &mut Writer<&mut Vec<u8>>, confirmations: bool) {
        w.bytes(self.workspace)
            .uint(self.version)
            .bytes(self.prev_hash)
            .uint(self.issued_at_ms);
        w.bytes_array(&self.entries)
            .bytes_array(&self.authorizers)
            .bytes_array(&self.recovery);
        match &self.quorum {
            None => {
                w.null();
            }
            Some(quorum) => {
                let sigs: &[_] = if confirmations { &quorum.sigs } else { &[] };
                w.array(3).uint(quorum.threshold).bytes_array(&quorum.keys);
                write_signatures(w, sigs);
            }
        }
        w.bytes_array(&self.pending).bytes(self.signer);
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
        let fits = is_list(&self.entries, 1)
            && is_list(&self.authorizers, 1)
            && is_list(&self.recovery, 1)
            && is_list(&self.pending, 0)
            && self.quorum.as_ref().is_none_or(Quorum::has_shape);
        if fits { Ok(()) } else { Err(Code::MalformedHeader) }
    }

    /// The set with `sig` made by `key`, whose public half becomes the signer.
    pub fn signed(mut self, key: &SigningKey) -> Self {
        self.signer = PublicKey(key.verifying_key().to_bytes());
        self.sig = sign(key, &self.signing_input());
        self
    }
}

impl Quorum {
    fn read(r: &mut Reader<'_>) -> Result<Self, cbor::Error> {
        r.array_of(3)?;
        Ok(Self {
            threshold: r.u8()?,
            keys: list(r)?,
            sigs: signatures(r)?,
        })
    }

    fn has_shape(&self) -> bool {
        is_list(&self.keys, 1)
            && (1..=self.keys.len()).contains(&usize::from(self.threshold))
            && self.sigs.len() <= LIST_MAX
    }
}

/// A list of 32-byte strings, of at most [`LIST_MAX`].
pub(crate) fn list<T: From<[u8; 32]>>(r: &mut Reader<'_>) -> Result<Vec<T>, cbor::Error> {
    let count = r.array_up_to(LIST_MAX)?;
    r.ids(count)
}

/// A list of `[key, signature]`, of at most [`LIST_MAX`].
pub(crate) fn signatures(r: &mut Reader<'_>) -> Result<Vec<(PublicKey, Signature)>, cbor::Error> {
    let count = r.array_up_to(LIST_MAX)?;
    let encoded_len = 1 + 34 + 66;
    let mut sigs = Vec::with_capacity(count.min(r.rest().len() / encoded_len));
    for _ in 0..count {
        r.array_of(2)?;
        sigs.push((PublicKey(*r.fixed()?), Signature(*r.fixed()?)));
    }
    Ok(sigs)
}

/// What [`signatures`] reads.
pub(crate) fn write_signatures(w: &mut Writer<&mut Vec<u8>>, sigs: &[(PublicKey, Signature)]) {
    w.array(sigs.len());
    for (key, sig) in sigs {
        w.array(2).bytes(key).bytes(sig);
    }
}

/// Between `least` and [`LIST_MAX`] elements, strictly ascending.
fn is_list<T: Ord>(items: &[T], least: usize) -> bool {
    (least..=LIST_MAX).contains(&items.len()) && items.is_sorted_by(|a, b| a < b)
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
    pub fn decode(bytes: &[u8]) -> Result<Self, Code> {
        Self::read(Reader::new(bytes)).map_err(|_| Code::MalformedHeader)
    }

    fn read(mut r: Reader<'_>) -> Result<Self, cbor::Error> {
        r.array_of(2)?;
        let salt = Salt(*r.fixed()?);
        let head = r.nullable(|r| {
            r.array_of(2)?;
            Ok::<_, cbor::Error>((r.uint()?, Hash(*r.fixed()?)))
        })?;
        r.finish()?;
        Ok(Self { salt, head })
    }

    /// The canonical encoding.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut w = Writer::new(&mut out);
        w.array(2).bytes(self.salt);
        match self.head {
            None => w.null(),
            Some((version, digest)) => w.array(2).uint(version).bytes(digest),
        };
        out
    }
}

/// Ordinary Ed25519 verification as deployed (05 §1): cofactorless, canonical `s`. Small-order keys are not refused
/// as such, hence `verify` and not `verify_strict`: what deployed peers accept has to be accepted here.
pub fn verify(key: &PublicKey, message: &[u8], signature: &Signature) -> bool {
    VerifyingKey::from_bytes(&key.0).is_ok_and(|key| {
        key.verify(message, &ed25519_dalek::Signature::from_bytes(&signature.0))
            .is_ok()
    })
}

/// An Ed25519 signature over the message itself, as [`verify`] judges it.
pub fn sign(key: &SigningKey, message: &[u8]) -> Signature {
    Signature(key.sign(message).to_bytes())
}
