//! What is inside an envelope once MLS has opened it: sign-then-encrypt payloads, each author's chain of them, and how
//! members find out that a relay shows them different histories. Relays see none of this.
//!
//! Pure: no MLS, no clock, no I/O. The grammar is section 3 of the wire seed (`weald-wire.cddl`), the rules are those of
//! its prose (`weald-wire.md`, "Plaintext payload" and "The author chain").
//!
//! | Module | Story |
//! | --- | --- |
//! | here | [`Payload`], its header, its signature |
//! | [`chain`] | one chain per author and group: dense, linked, or evidence |
//! | [`attest`] | comparing notes, and noticing silence |
//! | [`Kind`], [`Certificate`], [`Body`] | what a payload is, who may author it, the bodies with a known shape |
//!
//! ```
//! use drover_client::payload::chain::{AuthorChain, Link, OwnChain};
//! use drover_client::payload::{Kind, Payload};
//! use drover_client::wire::id::GroupId;
//! use drover_client::{Identity, SealedEnvelope};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (group, device, mut own) = (GroupId([7; 32]), Identity::generate(), OwnChain::start());
//! let payload = Payload::new(group, 3, Kind::CHAT_MESSAGE, &b"hello"[..]).at(own.next(), 1_700_000_000_000);
//! let sealed = payload.signed(&device).encode(); // ... then through MLS
//! let envelope = SealedEnvelope::new(group, 3, sealed)?;
//! own.sealed(envelope.hash()); // in the transaction that stores the envelope, before it is sent
//!
//! let received = Payload::decode(envelope.ct())?; // ... out of MLS
//! received.verify(&envelope)?;
//! let verdict = AuthorChain::new().observe(Link::of(&received, envelope.hash()));
//! assert!(verdict.is_linked());
//! # Ok(())
//! # }
//! ```

pub mod attest;
mod body;
mod certificate;
pub mod chain;
mod fields;
mod kind;

use bytes::Bytes;
use drover_wire::access::verify;
use drover_wire::cbor::{self, Reader, Writer};
use drover_wire::envelope::CT_BYTES_MAX;
use drover_wire::id::{GroupId, Hash, PublicKey, Signature};

pub use body::{
    AuthorHead, Body, ChainReset, DmWelcome, GroupHeads, HeadAttest, MediaRetain, RecoveryWrap, RosterEntry,
};
pub use certificate::Certificate;
pub use kind::Kind;

use crate::envelope::SealedEnvelope;
use crate::identity::Identity;
use fields::{Fields, whole};

/// The largest payload, or body, in bytes: nothing longer fits into an envelope, encrypted or not.
pub const PAYLOAD_BYTES_MAX: usize = CT_BYTES_MAX;

/// Why bytes are no payload, or no body of their kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Outside the deterministic subset of CBOR, or of a wrong type or width.
    #[error(transparent)]
    Cbor(#[from] cbor::Error),
    /// A key that has to be there is not.
    #[error("key {0} is missing")]
    Missing(u64),
    /// A key that does not belong there.
    #[error("key {0} is unknown")]
    Unknown(u64),
    /// A header's version or encryption mode that this build does not know.
    #[error("unknown {0}")]
    Unsupported(&'static str),
    /// A list that needs an element has none.
    #[error("no {0}")]
    Empty(&'static str),
    /// Over [`PAYLOAD_BYTES_MAX`], or more than 4096 capabilities.
    #[error("too long")]
    TooLong,
}

/// Why a well-formed payload is not believed. It is kept and shown as rejected, never dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// The header inside is not the header it came with: somebody relabelled or moved the envelope.
    #[error("the header differs from the envelope's")]
    Header,
    /// The author did not sign it.
    #[error("not signed by its author")]
    Signature,
    /// The certificate is about another key, or of an issuer for itself.
    #[error("the certificate is not the author's")]
    CertificateOfAnother,
    /// Sent outside the certificate's time.
    #[error("outside the certificate's time")]
    CertificateTime,
    /// The issuer did not sign the certificate.
    #[error("certificate not signed by its issuer")]
    CertificateSignature,
}

/// The envelope's header fields that a relay could change, repeated where it can't.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Whether the envelope is marked as MLS ciphertext.
    pub encrypted: bool,
    /// The group.
    pub group: GroupId,
    /// The group's epoch.
    pub epoch: u64,
}

impl Header {
    /// That of an envelope as received.
    pub fn of(envelope: &SealedEnvelope) -> Self {
        Self {
            encrypted: envelope.is_encrypted(),
            group: envelope.group(),
            epoch: envelope.epoch(),
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut fields = Fields::open(reader)?;
        if fields.required(1)?.uint()? != 1 {
            return Err(Malformed::Unsupported("version"));
        }
        let header = Self {
            encrypted: match fields.required(2)?.uint()? {
                0 => false,
                1 => true,
                _ => return Err(Malformed::Unsupported("encryption mode")),
            },
            group: GroupId(*fields.required(3)?.fixed()?),
            epoch: fields.required(4)?.uint()?,
        };
        fields.end()?;
        Ok(header)
    }

    fn write(&self, w: &mut Writer<&mut Vec<u8>>) {
        w.map(4).uint(1u8).uint(1u8);
        w.uint(2u8).uint(u8::from(self.encrypted));
        w.uint(3u8).bytes(self.group);
        w.uint(4u8).uint(self.epoch);
    }
}

/// One event, as its author signed it. Clones share the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// What the envelope has to say.
    pub header: Header,
    /// What the body is.
    pub kind: Kind,
    /// Who signs.
    pub author: PublicKey,
    /// There when the author is an agent.
    pub cert: Option<Certificate>,
    /// The author's own count in this group, from 0, without gaps.
    pub ctr: u64,
    /// Content address of the author's previous envelope in this group; zero at 0.
    pub prev_self: Hash,
    /// Milliseconds since the Unix epoch by the author's clock.
    pub sent_at_ms: u64,
    /// Of the kind's own shape.
    pub body: Bytes,
    /// By the author.
    pub sig: Signature,
}

impl Payload {
    /// A payload for an MLS envelope, at the start of its author's chain, unsigned: continue with [`Payload::at`] and
    /// [`Payload::signed`].
    pub fn new(group: GroupId, epoch: u64, kind: Kind, body: impl Into<Bytes>) -> Self {
        Self {
            header: Header {
                encrypted: true,
                group,
                epoch,
            },
            kind,
            author: PublicKey([0; 32]),
            cert: None,
            ctr: 0,
            prev_self: Hash([0; 32]),
            sent_at_ms: 0,
            body: body.into(),
            sig: Signature([0; 64]),
        }
    }

    /// The same with a body of known shape.
    pub fn with<B: Body>(group: GroupId, epoch: u64, body: &B) -> Self {
        Self::new(group, epoch, B::KIND, body.encode())
    }

    /// At this place of its author's chain, sent now.
    #[must_use]
    pub fn at(mut self, place: chain::Place, now_ms: u64) -> Self {
        self.ctr = place.ctr;
        self.prev_self = place.prev_self;
        self.sent_at_ms = now_ms;
        self
    }

    /// By an agent with this certificate.
    #[must_use]
    pub fn certified(mut self, cert: Certificate) -> Self {
        self.cert = Some(cert);
        self
    }

    /// Authored and signed by this identity.
    #[must_use]
    pub fn signed(mut self, author: &Identity) -> Self {
        self.author = author.public();
        self.sig = author.sign(&self.signing_input());
        self
    }

    /// Decodes a whole payload; the body is shared with `plaintext`.
    ///
    /// # Errors
    /// [`Malformed`]. An unknown [`Kind`] is none.
    pub fn decode(plaintext: &Bytes) -> Result<Self, Malformed> {
        whole(plaintext, |r| {
            let mut fields = Fields::open(r)?;
            let payload = Self {
                header: Header::read(fields.required(1)?)?,
                kind: Kind(fields.required(2)?.uint()?),
                author: PublicKey(*fields.required(3)?.fixed()?),
                cert: fields.optional(4)?.map(Certificate::read).transpose()?,
                ctr: fields.required(5)?.uint()?,
                prev_self: Hash(*fields.required(6)?.fixed()?),
                sent_at_ms: fields.required(7)?.uint()?,
                body: plaintext.slice_ref(fields.required(8)?.bytes()?),
                sig: Signature(*fields.required(9)?.fixed()?),
            };
            fields.end()?;
            Ok(payload)
        })
    }

    /// The canonical encoding, to be encrypted.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut w = Writer::new(&mut out);
        self.write_fields(&mut w, 1);
        w.uint(9u8).bytes(self.sig);
        out
    }

    /// What is signed: the map of every field before the signature.
    pub fn signing_input(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write_fields(&mut Writer::new(&mut out), 0);
        out
    }

    /// Whether to believe a payload that came in `envelope`: first the header, then the author's signature, then the
    /// certificate at the time of sending. Its place in the author's chain is [`chain`]'s to judge, and whether author
    /// and issuer are members is the group's.
    ///
    /// # Errors
    /// [`Rejected`]: keep it and show it as rejected.
    pub fn verify(&self, envelope: &SealedEnvelope) -> Result<(), Rejected> {
        if self.header != Header::of(envelope) {
            return Err(Rejected::Header);
        }
        if !verify(&self.author, &self.signing_input(), &self.sig) {
            return Err(Rejected::Signature);
        }
        match &self.cert {
            Some(cert) => cert.verify(&self.author, self.sent_at_ms),
            None => Ok(()),
        }
    }

    /// The body as `B`; `None` for a payload of another kind.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn body_as<B: Body>(&self) -> Result<Option<B>, Malformed> {
        if self.kind == B::KIND {
            B::decode(&self.body).map(Some)
        } else {
            Ok(None)
        }
    }

    /// The device that answers for this author: the certificate's issuer, or `None` for a device's own payload.
    pub fn issuer(&self) -> Option<PublicKey> {
        self.cert.as_ref().map(|cert| cert.issuer)
    }

    /// The head of a map with `more` fields to follow, and the signed ones.
    fn write_fields(&self, w: &mut Writer<&mut Vec<u8>>, more: usize) {
        w.map(7 + usize::from(self.cert.is_some()) + more);
        self.header.write(w.uint(1u8));
        w.uint(2u8).uint(self.kind.0);
        w.uint(3u8).bytes(self.author);
        if let Some(cert) = &self.cert {
            cert.write(w.uint(4u8));
        }
        w.uint(5u8).uint(self.ctr);
        w.uint(6u8).bytes(self.prev_self);
        w.uint(7u8).uint(self.sent_at_ms);
        w.uint(8u8).bytes(&self.body);
    }
}
