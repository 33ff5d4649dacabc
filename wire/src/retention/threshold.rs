//! Records that authorizers of the access set sign together (08 §12): the policy of a group, and the destruction of
//! one thing.

use ed25519_dalek::SigningKey;

use super::write_nullable;
use crate::access::{list, sign, signatures, verify, write_signatures};
use crate::cbor::{self, Reader, Writer};
use crate::error::{Code, Detail, Refusal};
use crate::id::{GroupId, Hash, PublicKey, Signature};

/// What a record that a sole authorizer signed has to wait at least, in seconds: 7 days (08 §4).
pub const SOLE_AUTHORIZER_DELAY_S: u64 = 604_800;

/// Fields of either record; all but the last are signed.
const FIELDS: usize = 7;

/// When what no manifest names any more may go (form 8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The group.
    pub group: GroupId,
    /// 1, then one more each.
    pub version: u64,
    /// Days from its claim to the end of a blob.
    pub media_after_days: u32,
    /// For clients; the relay never evaluates it (09 §3).
    pub text_after_days: u32,
    /// Unix seconds before which nothing goes by this policy.
    pub not_before_s: u64,
    /// At least one; stored, and compared with nothing.
    pub authorizers: Vec<PublicKey>,
    /// Any order, any key; see [`authorize`].
    pub sigs: Vec<(PublicKey, Signature)>,
}

/// That one thing has to go (form 9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destruction {
    /// The group.
    pub group: GroupId,
    /// [`Self::BLOB`], [`Self::DROP_BEFORE`], or something that no one acts upon.
    pub kind: Vec<u8>,
    /// What has to go; a blob's hash, or what a DROP names.
    pub target: Hash,
    /// Eight bytes on the wire.
    pub policy_version: Option<u64>,
    /// Unix seconds before which it stays.
    pub not_before_s: u64,
    /// At least one; stored, and compared with nothing.
    pub authorizers: Vec<PublicKey>,
    /// Any order, any key; see [`authorize`].
    pub sigs: Vec<(PublicKey, Signature)>,
}

/// Why a threshold record has no authority. Always `denied/writer_not_in_access_set`, with a word for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The workspace has no set, or one without authorizers.
    #[error("no_authorizers")]
    NoAuthorizers,
    /// Fewer authorizers than needed signed it.
    #[error("insufficient_signatures")]
    InsufficientSignatures,
    /// The only authorizer signed it, for a time too near.
    #[error("sole_authorizer_too_soon")]
    SoleAuthorizerTooSoon {
        /// Seconds until the same record would do.
        retry_after_s: u32,
    },
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        let (word, retry_after_s) = match refused {
            Refused::NoAuthorizers => ("no_authorizers", 0),
            Refused::InsufficientSignatures => ("insufficient_signatures", 0),
            Refused::SoleAuthorizerTooSoon { retry_after_s } => ("sole_authorizer_too_soon", retry_after_s),
        };
        Refusal::plain(Code::WriterNotInAccessSet)
            .after(retry_after_s)
            .with(Detail::Word(word))
    }
}

/// Whether the authorizers of the newest access set stand behind a record: the only one with time to spare, or two of
/// several. `authorizers` ascend strictly, as an accepted set's do.
///
/// Of each key the first signature counts and the rest are not looked at, and counting ends when there are enough, so
/// that a list of thousands of bad signatures costs no more than the set has authorizers.
///
/// # Errors
/// The rule of 08 §12 that is broken.
pub fn authorize(
    signing_input: &[u8],
    sigs: &[(PublicKey, Signature)],
    authorizers: &[PublicKey],
    not_before_s: u64,
    now_s: u64,
) -> Result<(), Refused> {
    debug_assert!(
        authorizers.is_sorted_by(|a, b| a < b),
        "authorizers do not ascend"
    );
    let needed = match authorizers.len() {
        0 => return Err(Refused::NoAuthorizers),
        1 => 1,
        _ => 2,
    };
    let mut judged = vec![false; authorizers.len()];
    let valid = sigs.iter().filter(|(key, sig)| {
        authorizers.binary_search(key).is_ok_and(|place| {
            !std::mem::replace(&mut judged[place], true) && verify(key, signing_input, sig)
        })
    });
    if valid.take(needed).count() < needed {
        return Err(Refused::InsufficientSignatures);
    }
    let due_s = now_s.saturating_add(SOLE_AUTHORIZER_DELAY_S);
    if needed == 1 && not_before_s < due_s {
        let retry_after_s = (due_s - not_before_s).try_into().unwrap_or(u32::MAX);
        return Err(Refused::SoleAuthorizerTooSoon { retry_after_s });
    }
    Ok(())
}

/// Decoding, encoding and signing of a record with a list of signatures behind it.
macro_rules! threshold_record {
    ($name:ident) => {
        impl $name {
            /// Decodes a whole record.
            ///
            /// # Errors
            /// `reject/malformed_header`, also for an empty list of authorizers.
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

            /// What is signed: every field before the signatures.
            pub fn signing_input(&self) -> Vec<u8> {
                let mut out = Vec::new();
                self.write_fields(Writer::new(&mut out).array(FIELDS - 1));
                out
            }

            /// `H(signing input)`, which the relay acknowledges.
            pub fn digest(&self) -> Hash {
                Hash::of(&[&self.signing_input()])
            }

            /// Whether these authorizers stand behind it; see [`authorize`].
            ///
            /// # Errors
            /// The rule of 08 §12 that is broken.
            pub fn authorize(&self, authorizers: &[PublicKey], now_s: u64) -> Result<(), Refused> {
                let signing_input = self.signing_input();
                authorize(
                    &signing_input,
                    &self.sigs,
                    authorizers,
                    self.not_before_s,
                    now_s,
                )
            }

            /// The record with one more signature, made by `key`.
            pub fn signed(mut self, key: &SigningKey) -> Self {
                let sig = sign(key, &self.signing_input());
                self.sigs
                    .push((PublicKey(key.verifying_key().to_bytes()), sig));
                self
            }

            pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, cbor::Error> {
                r.array_of(FIELDS)?;
                Self::read_fields(r)
            }

            pub(crate) fn write(&self, w: &mut Writer<&mut Vec<u8>>) {
                self.write_fields(w.array(FIELDS));
                write_signatures(w, &self.sigs);
            }
        }
    };
}

threshold_record!(Policy);
threshold_record!(Destruction);

impl Policy {
    /// Days that media are kept at least.
    pub const MEDIA_DAYS_MIN: u32 = 30;

    /// Whether this states what `active` does: a repetition, acknowledged without a look at its signatures (08 §12).
    pub fn repeats(&self, active: &Policy) -> bool {
        let terms = |policy: &Self| {
            (
                policy.group,
                policy.version,
                policy.media_after_days,
                policy.text_after_days,
                policy.not_before_s,
            )
        };
        terms(self) == terms(active)
    }

    /// The rules of 08 §12 before any signature is looked at, for a policy that is no repetition: the next version,
    /// media kept for [`MEDIA_DAYS_MIN`](Self::MEDIA_DAYS_MIN) days and no shorter than before.
    ///
    /// # Errors
    /// `reject/malformed_header`.
    pub fn check_terms(&self, active: Option<&Policy>) -> Result<(), Code> {
        let (next, days_min) = match active {
            None => (Some(1), 0),
            Some(active) => (active.version.checked_add(1), active.media_after_days),
        };
        if Some(self.version) == next && self.media_after_days >= days_min.max(Self::MEDIA_DAYS_MIN) {
            Ok(())
        } else {
            Err(Code::MalformedHeader)
        }
    }

    fn read_fields(r: &mut Reader<'_>) -> Result<Self, cbor::Error> {
        Ok(Self {
            group: GroupId(*r.fixed()?),
            version: r.uint()?,
            media_after_days: r.u32()?,
            text_after_days: r.u32()?,
            not_before_s: r.uint()?,
            authorizers: authorizer_list(r)?,
            sigs: signatures(r)?,
        })
    }

    fn write_fields(&self, w: &mut Writer<&mut Vec<u8>>) {
        w.bytes(self.group)
            .uint(self.version)
            .uint(self.media_after_days)
            .uint(self.text_after_days)
            .uint(self.not_before_s)
            .bytes_array(&self.authorizers);
    }
}

impl Destruction {
    /// The kind whose target is a blob's ciphertext hash.
    pub const BLOB: &[u8] = b"blob";
    /// The kind that lets a DROP go ahead (09 §3).
    pub const DROP_BEFORE: &[u8] = b"drop_before";

    fn read_fields(r: &mut Reader<'_>) -> Result<Self, cbor::Error> {
        Ok(Self {
            group: GroupId(*r.fixed()?),
            kind: r.bytes()?.to_vec(),
            target: Hash(*r.fixed()?),
            policy_version: read_version(r)?,
            not_before_s: r.uint()?,
            authorizers: authorizer_list(r)?,
            sigs: signatures(r)?,
        })
    }

    fn write_fields(&self, w: &mut Writer<&mut Vec<u8>>) {
        w.bytes(self.group).bytes(&self.kind).bytes(self.target);
        write_version(w, self.policy_version);
        w.uint(self.not_before_s).bytes_array(&self.authorizers);
    }
}

fn authorizer_list(r: &mut Reader<'_>) -> Result<Vec<PublicKey>, cbor::Error> {
    let keys: Vec<PublicKey> = list(r)?;
    if keys.is_empty() {
        return Err(cbor::Error::WrongCount);
    }
    Ok(keys)
}

/// A policy's version where it is named: eight bytes, big-endian, or null.
pub(crate) fn read_version(r: &mut Reader<'_>) -> Result<Option<u64>, cbor::Error> {
    r.nullable(|r| r.fixed().map(|bytes| u64::from_be_bytes(*bytes)))
}

/// What [`read_version`] reads.
pub(crate) fn write_version(w: &mut Writer<&mut Vec<u8>>, version: Option<u64>) {
    write_nullable(w, version.map(u64::to_be_bytes).as_ref().map(<[u8; 8]>::as_slice));
}
