//! Bodies whose shape a security property rests on. The others are opaque here by design.

use bytes::Bytes;
use drover_wire::cbor::{Reader, Writer};
use drover_wire::id::{GroupId, Hash, PublicKey, WrapTag};

use super::fields::{Fields, list, list_of_some, whole};
use super::{Kind, Malformed};

/// A body with a known shape.
pub trait Body: Sized {
    /// The kind of payload that carries it.
    const KIND: Kind;

    /// Decodes a whole body.
    ///
    /// # Errors
    /// [`Malformed`].
    fn decode(body: &Bytes) -> Result<Self, Malformed>;

    /// The canonical encoding.
    fn encode(&self) -> Bytes;
}

/// Encoded bytes of a 32-byte string.
const ID_BYTES: usize = 34;

/// What its author has seen, group by group ([`Kind::HEAD_ATTEST`]): emitted on connect, then every
/// [`ATTEST_PERIOD_MS`](super::attest::ATTEST_PERIOD_MS) while connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadAttest {
    /// At least one.
    pub groups: Vec<GroupHeads>,
}

/// The heads of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupHeads {
    /// The group.
    pub group: GroupId,
    /// At least one: every author the attester has seen, itself and the agents whose keys it holds included.
    pub heads: Vec<AuthorHead>,
}

/// How far one author's chain was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthorHead {
    /// The author.
    pub author: PublicKey,
    /// Highest counter seen.
    pub ctr: u64,
    /// Content address of the envelope with that counter.
    pub hash: Hash,
    /// Set when the attester speaks for an agent it issued.
    pub proxied_for: Option<PublicKey>,
}

impl AuthorHead {
    /// Whose chain this is about when `attester` states it. The grammar does not say which of the two keys an attester
    /// puts first when it speaks for an agent; the one that is not its own is meant.
    pub fn subject(&self, attester: &PublicKey) -> PublicKey {
        match self.proxied_for {
            Some(agent) if agent != *attester => agent,
            _ => self.author,
        }
    }
}

impl Body for HeadAttest {
    const KIND: Kind = Kind::HEAD_ATTEST;

    fn decode(body: &Bytes) -> Result<Self, Malformed> {
        whole(body, |r| {
            let mut fields = Fields::open(r)?;
            let groups = list_of_some(
                "groups",
                fields.required(1)?,
                ID_BYTES + 2 * ID_BYTES,
                GroupHeads::read,
            )?;
            fields.end()?;
            Ok(Self { groups })
        })
    }

    fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        let mut w = Writer::new(&mut out);
        w.map(1).uint(1u8).array(self.groups.len());
        for group in &self.groups {
            w.map(2).uint(1u8).bytes(group.group);
            w.uint(2u8).array(group.heads.len());
            for head in &group.heads {
                w.map(3 + usize::from(head.proxied_for.is_some()));
                w.uint(1u8).bytes(head.author);
                w.uint(2u8).uint(head.ctr);
                w.uint(3u8).bytes(head.hash);
                if let Some(agent) = head.proxied_for {
                    w.uint(4u8).bytes(agent);
                }
            }
        }
        out.into()
    }
}

impl GroupHeads {
    fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut fields = Fields::open(r)?;
        let heads = Self {
            group: GroupId(*fields.required(1)?.fixed()?),
            heads: list_of_some("heads", fields.required(2)?, 2 * ID_BYTES, AuthorHead::read)?,
        };
        fields.end()?;
        Ok(heads)
    }
}

impl AuthorHead {
    fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut fields = Fields::open(r)?;
        let head = Self {
            author: PublicKey(*fields.required(1)?.fixed()?),
            ctr: fields.required(2)?.uint()?,
            hash: Hash(*fields.required(3)?.fixed()?),
            proxied_for: match fields.optional(4)? {
                Some(r) => Some(PublicKey(*r.fixed()?)),
                None => None,
            },
        };
        fields.end()?;
        Ok(head)
    }
}

/// An author lost its state and says so, signed and before the fact ([`Kind::CHAIN_RESET`]): what follows is a stated
/// gap and no tampering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainReset {
    /// The last link the author can prove.
    pub last_ctr: u64,
    /// Its content address.
    pub last_hash: Hash,
    /// The counter it resumes at.
    pub resumes_at: u64,
    /// Milliseconds since the Unix epoch by the author's clock.
    pub declared_at_ms: u64,
}

impl Body for ChainReset {
    const KIND: Kind = Kind::CHAIN_RESET;

    fn decode(body: &Bytes) -> Result<Self, Malformed> {
        whole(body, |r| {
            let mut fields = Fields::open(r)?;
            let reset = Self {
                last_ctr: fields.required(1)?.uint()?,
                last_hash: Hash(*fields.required(2)?.fixed()?),
                resumes_at: fields.required(3)?.uint()?,
                declared_at_ms: fields.required(4)?.uint()?,
            };
            fields.end()?;
            Ok(reset)
        })
    }

    fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        let mut w = Writer::new(&mut out);
        w.map(4).uint(1u8).uint(self.last_ctr);
        w.uint(2u8).bytes(self.last_hash);
        w.uint(3u8).uint(self.resumes_at);
        w.uint(4u8).uint(self.declared_at_ms);
        out.into()
    }
}

/// A group's secret and GroupInfo, sealed to a recovery key ([`Kind::RECOVERY_WRAP`]). The copy the relay keeps for
/// itself is a WRAP frame: [`crate::keys::store_wrap`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryWrap {
    /// The sealed secret of the current epoch.
    pub epoch_secret: Bytes,
    /// The sealed current GroupInfo.
    pub group_info: Bytes,
    /// Blinded anew in each epoch; never the recovery key.
    pub tag: WrapTag,
}

impl Body for RecoveryWrap {
    const KIND: Kind = Kind::RECOVERY_WRAP;

    fn decode(body: &Bytes) -> Result<Self, Malformed> {
        whole(body, |r| {
            let mut fields = Fields::open(r)?;
            let wrap = Self {
                epoch_secret: body.slice_ref(fields.required(1)?.bytes()?),
                group_info: body.slice_ref(fields.required(2)?.bytes()?),
                tag: WrapTag(*fields.required(3)?.fixed()?),
            };
            fields.end()?;
            Ok(wrap)
        })
    }

    fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        let mut w = Writer::new(&mut out);
        w.map(3).uint(1u8).bytes(&self.epoch_secret);
        w.uint(2u8).bytes(&self.group_info);
        w.uint(3u8).bytes(self.tag);
        out.into()
    }
}

/// A Welcome into a two-person group, published in the workspace's root group ([`Kind::DM_WELCOME`]). It names no
/// group, so that other members do not learn which pair opened a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DmWelcome {
    /// [`DmWelcome::tag_for`] the key package it is for.
    pub tag: Hash,
    /// The MLS Welcome.
    pub welcome: Bytes,
}

impl DmWelcome {
    /// `H("weald dm welcome v1", key_package_ref)`: how the invited device finds its Welcome.
    pub fn tag_for(key_package_ref: &[u8]) -> Hash {
        Hash::of(&[b"weald dm welcome v1", key_package_ref])
    }
}

impl Body for DmWelcome {
    const KIND: Kind = Kind::DM_WELCOME;

    /// The grammar has this body twice, as a map and as an array of the same two fields. Both are read, the map is
    /// written.
    fn decode(body: &Bytes) -> Result<Self, Malformed> {
        whole(body, |r| {
            let mut ahead = *r;
            if ahead.array_of(2).is_ok() {
                let welcome = Self {
                    tag: Hash(*ahead.fixed()?),
                    welcome: body.slice_ref(ahead.bytes()?),
                };
                *r = ahead;
                return Ok(welcome);
            }
            let mut fields = Fields::open(r)?;
            let welcome = Self {
                tag: Hash(*fields.required(1)?.fixed()?),
                welcome: body.slice_ref(fields.required(2)?.bytes()?),
            };
            fields.end()?;
            Ok(welcome)
        })
    }

    fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        let mut w = Writer::new(&mut out);
        w.map(2).uint(1u8).bytes(self.tag);
        w.uint(2u8).bytes(&self.welcome);
        out.into()
    }
}

/// The blobs a group still refers to ([`Kind::MEDIA_RETAIN`]). What the relay acts upon is a manifest:
/// [`crate::retention::publish_manifest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaRetain {
    /// Hashes of ciphertexts.
    pub blobs: Vec<Hash>,
    /// Milliseconds since the Unix epoch.
    pub asserted_at_ms: u64,
}

impl Body for MediaRetain {
    const KIND: Kind = Kind::MEDIA_RETAIN;

    fn decode(body: &Bytes) -> Result<Self, Malformed> {
        whole(body, |r| {
            let mut fields = Fields::open(r)?;
            let retain = Self {
                blobs: list(fields.required(1)?, ID_BYTES, |r| Ok(Hash(*r.fixed()?)))?,
                asserted_at_ms: fields.required(2)?.uint()?,
            };
            fields.end()?;
            Ok(retain)
        })
    }

    fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        let mut w = Writer::new(&mut out);
        w.map(2).uint(1u8).bytes_array(&self.blobs);
        w.uint(2u8).uint(self.asserted_at_ms);
        out.into()
    }
}

/// What a device says about itself ([`Kind::ROSTER_UPDATE`]): admitted by a reader only while the device is in the
/// access set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RosterEntry {
    /// The device, which is the payload's author.
    pub device: PublicKey,
    /// Handle, normalized.
    pub handle: String,
    /// Display name.
    pub display_name: String,
    /// Machine id.
    pub machine: String,
    /// Email.
    pub email: Option<String>,
    /// Device label.
    pub label: Option<String>,
    /// Milliseconds since the Unix epoch.
    pub claimed_at_ms: u64,
}

impl Body for RosterEntry {
    const KIND: Kind = Kind::ROSTER_UPDATE;

    fn decode(body: &Bytes) -> Result<Self, Malformed> {
        fn text(r: &mut Reader<'_>) -> Result<String, Malformed> {
            Ok(r.text()?.to_owned())
        }
        whole(body, |r| {
            let mut fields = Fields::open(r)?;
            let entry = Self {
                device: PublicKey(*fields.required(1)?.fixed()?),
                handle: text(fields.required(2)?)?,
                display_name: text(fields.required(3)?)?,
                machine: text(fields.required(4)?)?,
                email: fields.optional(5)?.map(text).transpose()?,
                label: fields.optional(6)?.map(text).transpose()?,
                claimed_at_ms: fields.required(7)?.uint()?,
            };
            fields.end()?;
            Ok(entry)
        })
    }

    fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        let mut w = Writer::new(&mut out);
        w.map(5 + usize::from(self.email.is_some()) + usize::from(self.label.is_some()));
        w.uint(1u8).bytes(self.device);
        w.uint(2u8).text(&self.handle);
        w.uint(3u8).text(&self.display_name);
        w.uint(4u8).text(&self.machine);
        if let Some(email) = &self.email {
            w.uint(5u8).text(email);
        }
        if let Some(label) = &self.label {
            w.uint(6u8).text(label);
        }
        w.uint(7u8).uint(self.claimed_at_ms);
        out.into()
    }
}
