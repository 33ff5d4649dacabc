//! The DROP bodies (09 §2): an instruction to delete what lies behind a checkpoint, and its two answers.

use std::fmt;

use ed25519_dalek::SigningKey;

use crate::access::{list, sign, verify};
use crate::cbor::{self, Reader, Writer};
use crate::error::Code;
use crate::id::{GroupId, Hash, PublicKey, Signature};
use crate::retention::{read_version, write_nullable, write_version};

/// Fields of an instruction; all but the last are signed.
const FIELDS: usize = 7;
/// The number a request begins with, and an answer that deleted.
const RUN: u64 = 1;
/// The number a verdict against begins with.
const AGAINST: u64 = 2;

/// An instruction to delete a group's envelopes below a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The group.
    pub group: GroupId,
    /// Content address of the envelope that carries the checkpoint.
    pub checkpoint: Hash,
    /// Content addresses of the envelopes the checkpoint rests on; at most 4096.
    pub snapshots: Vec<Hash>,
    /// The newest retention control's epoch.
    pub epoch: u64,
    /// The policy that allows it; decides alone if it is there. Eight bytes on the wire.
    pub policy_version: Option<u64>,
    /// Else the target of the destruction that allows it; of any width here, since a wrong one only fails to match.
    pub destruction_digest: Option<Vec<u8>>,
    /// By the newest retention control's verifier.
    pub sig: Signature,
}

impl Request {
    /// Decodes a whole request.
    ///
    /// # Errors
    /// `reject/malformed_header`, whatever is wrong.
    pub fn decode(payload: &[u8]) -> Result<Self, Code> {
        Self::read(Reader::new(payload)).map_err(|_| Code::MalformedHeader)
    }

    fn read(mut r: Reader<'_>) -> Result<Self, Code> {
        r.array_of(2)?;
        if r.uint()? != RUN {
            return Err(Code::MalformedHeader);
        }
        r.array_of(FIELDS)?;
        let request = Self {
            group: GroupId(*r.fixed()?),
            checkpoint: Hash(*r.fixed()?),
            snapshots: list(&mut r)?,
            epoch: r.uint()?,
            policy_version: read_version(&mut r)?,
            destruction_digest: r.nullable(|r| Ok::<_, cbor::Error>(r.bytes()?.to_vec()))?,
            sig: Signature(*r.fixed()?),
        };
        r.finish()?;
        Ok(request)
    }

    /// The canonical encoding.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut w = Writer::new(&mut out);
        self.write(w.array(2).uint(RUN).array(FIELDS));
        w.bytes(self.sig);
        out
    }

    /// What is signed: the fields before the signature, without the number in front of them.
    pub fn signing_input(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(Writer::new(&mut out).array(FIELDS - 1));
        out
    }

    /// Whether this key made the signature.
    pub fn is_signed_by(&self, key: &PublicKey) -> bool {
        verify(key, &self.signing_input(), &self.sig)
    }

    /// The request with `sig` made by `key`.
    pub fn signed(mut self, key: &SigningKey) -> Self {
        self.sig = sign(key, &self.signing_input());
        self
    }

    fn write(&self, w: &mut Writer<&mut Vec<u8>>) {
        w.bytes(self.group)
            .bytes(self.checkpoint)
            .bytes_array(&self.snapshots)
            .uint(self.epoch);
        write_version(w, self.policy_version);
        write_nullable(w, self.destruction_digest.as_deref());
    }
}

/// Why nothing was deleted, in the order of 09 §3. The text is the wire's; clients parse it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A retention conflict froze the group.
    GroupFrozen,
    /// The group has no retention control.
    NoRetentionChain,
    /// Another epoch than the newest, which is this.
    StaleEpoch(u64),
    /// Not signed by the newest control's verifier.
    BadSignature,
    /// Neither a policy nor a destruction allows it.
    NoAuthorization,
    /// What allows it is not due.
    AuthorizationNotDue,
    /// This many of the checkpoint and its snapshots are not held.
    IncompleteManifest(u64),
}

impl Verdict {
    /// The word, and the number behind it where there is one.
    const fn parts(self) -> (&'static str, Option<u64>) {
        match self {
            Verdict::GroupFrozen => ("group_frozen", None),
            Verdict::NoRetentionChain => ("no_retention_chain", None),
            Verdict::StaleEpoch(newest) => ("stale_epoch", Some(newest)),
            Verdict::BadSignature => ("bad_signature", None),
            Verdict::NoAuthorization => ("no_authorization", None),
            Verdict::AuthorizationNotDue => ("authorization_not_due", None),
            Verdict::IncompleteManifest(missing) => ("incomplete_manifest", Some(missing)),
        }
    }

    fn parse(reason: &[u8]) -> Option<Self> {
        let reason = std::str::from_utf8(reason).ok()?;
        let number = match reason.split_once(':') {
            None => 0,
            Some((_, digits)) => digits.parse().ok()?,
        };
        let all = [
            Verdict::GroupFrozen,
            Verdict::NoRetentionChain,
            Verdict::StaleEpoch(number),
            Verdict::BadSignature,
            Verdict::NoAuthorization,
            Verdict::AuthorizationNotDue,
            Verdict::IncompleteManifest(number),
        ];
        // One spelling each: no `+7`, no `007`, no number where none belongs.
        all.into_iter().find(|verdict| verdict.to_string() == reason)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts() {
            (word, None) => f.write_str(word),
            (word, Some(number)) => write!(f, "{word}:{number}"),
        }
    }
}

/// What the relay answers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was done.
    Ran {
        /// Envelopes deleted.
        deleted: u64,
        /// Bytes of their ciphertext.
        bytes: u64,
        /// Envelopes below the checkpoint that stay as anchors.
        kept: u64,
    },
    /// It was not, and nothing changed.
    Against(Verdict),
}

impl Answer {
    /// Decodes a whole answer.
    ///
    /// # Errors
    /// `reject/malformed_header`, also for a reason that is none.
    pub fn decode(payload: &[u8]) -> Result<Self, Code> {
        Self::read(Reader::new(payload)).map_err(|_| Code::MalformedHeader)
    }

    fn read(mut r: Reader<'_>) -> Result<Self, Code> {
        r.array_of(2)?;
        let answer = match r.uint()? {
            RUN => {
                r.array_of(3)?;
                Self::Ran {
                    deleted: r.uint()?,
                    bytes: r.uint()?,
                    kept: r.uint()?,
                }
            }
            AGAINST => {
                r.array_of(1)?;
                Self::Against(Verdict::parse(r.bytes()?).ok_or(Code::MalformedHeader)?)
            }
            _ => return Err(Code::MalformedHeader),
        };
        r.finish()?;
        Ok(answer)
    }

    /// The canonical encoding.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut w = Writer::new(&mut out);
        w.array(2);
        match self {
            Self::Ran { deleted, bytes, kept } => {
                w.uint(RUN).array(3).uint(*deleted).uint(*bytes).uint(*kept)
            }
            Self::Against(verdict) => w.uint(AGAINST).array(1).bytes(verdict.to_string()),
        };
        out
    }
}
