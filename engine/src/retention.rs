//! One group's retention chain as far as decisions need it (08 §11, §12): the newest control, where the manifests
//! stand, the policy, and what is held against a freeze. Pure: judged against one state, applied by the realm once the
//! commit is durable.
//!
//! It lives in memory for every group that has one, so it holds digests where digests do. Whole controls and the latest
//! manifest lie in a partition of their own and are read when somebody asks (`shard::chain`).

use crate::limits::{REFUSED_MANIFESTS_KEPT, RIVAL_CONTROLS_MAX};
use crate::records;
use drover_storage::StoreError;
use drover_storage::control::Write;
use drover_wire::error::{Code, Detail, Refusal};
use drover_wire::id::{GroupId, Hash, PublicKey};
use drover_wire::retention::{Control, Manifest, ManifestFault, Policy};
use minicbor::{Decode, Encode};

/// Why a group takes no new envelopes (09 §6). The first reason wins; the wire never carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Freeze {
    /// The epoch a second control claimed.
    #[n(0)]
    pub(crate) epoch: u64,
    #[n(1)]
    pub(crate) since_ms: u64,
}

/// A valid control for an epoch that another one had settled: evidence, and a key that may end the freeze.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Rival {
    #[n(0)]
    epoch: u64,
    #[n(1)]
    #[cbor(with = "minicbor::bytes")]
    verifier: [u8; 32],
    /// Of the record: each is held once.
    #[n(2)]
    #[cbor(with = "minicbor::bytes")]
    digest: [u8; 32],
    #[n(3)]
    at_ms: u64,
}

/// A manifest that was not the next one: evidence for the operator.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct RefusedManifest {
    /// Of the record: each is held once.
    #[n(0)]
    #[cbor(with = "minicbor::bytes")]
    digest: [u8; 32],
    #[n(1)]
    epoch: u64,
    #[n(2)]
    sequence: u64,
    #[n(3)]
    reason: String,
    #[n(4)]
    at_ms: u64,
}

/// A destruction (08 §12): one thing of a group that has to go. Held under [`destruction_name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Destruction {
    /// Unix seconds before which it stays.
    #[n(0)]
    pub(crate) not_before_s: u64,
    /// When the relay took it: a blob stays 7 days from here (decisions.md 11).
    #[n(1)]
    pub(crate) recorded_ms: u64,
    /// Of what was signed: the same record again needs no signatures.
    #[n(2)]
    #[cbor(with = "minicbor::bytes")]
    pub(crate) digest: [u8; 32],
}

/// What a destruction is known by: a kind of any length, among them those nobody acts upon, and its target.
pub(crate) fn destruction_name(kind: &[u8], target: &Hash) -> Hash {
    Hash::of(&[kind, &target.0])
}

/// A policy's terms, as far as the next one and a DROP are judged by them.
#[derive(Clone, Copy, Debug, Encode, Decode)]
struct Terms {
    #[n(0)]
    version: u64,
    #[n(1)]
    media_after_days: u32,
    #[n(2)]
    text_after_days: u32,
    #[n(3)]
    not_before_s: u64,
}

/// The record.
#[derive(Debug, Encode, Decode)]
struct Stored {
    /// As received.
    #[n(0)]
    #[cbor(with = "minicbor::bytes")]
    control: Option<Vec<u8>>,
    #[n(1)]
    sequence: u64,
    #[n(2)]
    #[cbor(with = "minicbor::bytes")]
    manifest: Option<[u8; 32]>,
    #[n(3)]
    policy: Option<Terms>,
    #[n(4)]
    frozen: Option<Freeze>,
    #[n(5)]
    rivals: Vec<Rival>,
    #[n(6)]
    refused: Vec<RefusedManifest>,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Retention {
    /// The newest.
    pub(crate) control: Option<Control>,
    /// Sequence and digest of the latest.
    pub(crate) manifest: Option<(u64, Hash)>,
    /// The active one, without its lists.
    pub(crate) policy: Option<Policy>,
    pub(crate) frozen: Option<Freeze>,
    rivals: Vec<Rival>,
    /// Oldest first.
    refused: Vec<RefusedManifest>,
}

/// What a control is to the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is the settled one of its epoch.
    Settled,
    /// It is the next one.
    Next,
    /// It is valid, and another one has settled its epoch.
    Rival,
}

impl Retention {
    /// From its record.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub(crate) fn from_record(group: GroupId, record: &[u8]) -> Result<Self, StoreError> {
        let stored: Stored = records::get(record)?;
        let control = stored.control.map(|bytes| Control::decode(&bytes));
        let policy = stored.policy.map(|terms| Policy {
            group,
            version: terms.version,
            media_after_days: terms.media_after_days,
            text_after_days: terms.text_after_days,
            not_before_s: terms.not_before_s,
            authorizers: Vec::new(),
            sigs: Vec::new(),
        });
        Ok(Self {
            control: control.transpose().map_err(|_| StoreError::Damaged)?,
            manifest: stored.manifest.map(|digest| (stored.sequence, Hash(digest))),
            policy,
            frozen: stored.frozen,
            rivals: stored.rivals,
            refused: stored.refused,
        })
    }

    /// The change that stores it.
    pub(crate) fn record(&self, group: &GroupId) -> Write {
        let stored = Stored {
            control: self.control.as_ref().map(Control::encode),
            sequence: self.manifest.map_or(0, |(sequence, _)| sequence),
            manifest: self.manifest.map(|(_, digest)| digest.0),
            policy: self.policy.as_ref().map(|policy| Terms {
                version: policy.version,
                media_after_days: policy.media_after_days,
                text_after_days: policy.text_after_days,
                not_before_s: policy.not_before_s,
            }),
            frozen: self.frozen,
            rivals: self.rivals.clone(),
            refused: self.refused.clone(),
        };
        records::put(records::retention_key(group), &stored)
    }

    /// The newest control's digest.
    pub(crate) fn digest(&self) -> Option<Hash> {
        self.control.as_ref().map(Control::digest)
    }

    /// What a frozen group is refused with: the newest control's digest tells the client what to look at (09 decision
    /// 3).
    pub(crate) fn frozen_refusal(&self) -> Refusal {
        let refusal = Refusal::plain(Code::GroupFrozen);
        match self.digest() {
            Some(digest) => refusal.with(Detail::Hash(digest.0)),
            None => refusal,
        }
    }

    /// What a control is to the chain, given the settled one of its epoch and the one before that, as far as there are
    /// any. That a first control comes from a member is for the caller to find out before.
    ///
    /// # Errors
    /// `reject/malformed_header`: it has no place here.
    pub(crate) fn judge_control(
        control: &Control,
        settled: Option<&Control>,
        before: Option<&Control>,
    ) -> Result<Standing, Code> {
        match settled {
            Some(settled) if settled == control => return Ok(Standing::Settled),
            // A second first control harms nobody: no key has been followed yet that it could be a rival to.
            Some(_) if control.epoch == 0 => return Err(Code::MalformedHeader),
            _ => {}
        }
        let valid = match before {
            None => control.is_genesis(),
            Some(before) => control.succeeds(before),
        };
        match (valid, settled) {
            (false, _) => Err(Code::MalformedHeader),
            (true, None) => Ok(Standing::Next),
            (true, Some(_)) => Ok(Standing::Rival),
        }
    }

    /// Notes a rival and freezes the group. Evidence beyond the bound is left out: the settled control's key ends the
    /// freeze as well.
    pub(crate) fn freeze(&mut self, rival: &Control, wall_ms: u64) {
        self.frozen.get_or_insert(Freeze {
            epoch: rival.epoch,
            since_ms: wall_ms,
        });
        let digest = rival.digest().0;
        if self.rivals.len() < RIVAL_CONTROLS_MAX && self.rivals.iter().all(|r| r.digest != digest) {
            self.rivals.push(Rival {
                epoch: rival.epoch,
                verifier: rival.verifier.0,
                digest,
                at_ms: wall_ms,
            });
        }
    }

    /// Whether this key is the one of a rival for this epoch.
    pub(crate) fn is_rival(&self, epoch: u64, verifier: &PublicKey) -> bool {
        self.rivals
            .iter()
            .any(|r| r.epoch == epoch && r.verifier == verifier.0)
    }

    /// Whether this is the latest manifest once more (08 decision 13).
    pub(crate) fn is_latest(&self, digest: &Hash) -> bool {
        self.manifest.is_some_and(|(_, latest)| latest == *digest)
    }

    /// Notes a manifest that was refused; the oldest ones go.
    pub(crate) fn refuse(&mut self, manifest: &Manifest, digest: &Hash, fault: ManifestFault, wall_ms: u64) {
        if self.refused.iter().any(|r| r.digest == digest.0) {
            return;
        }
        if self.refused.len() >= REFUSED_MANIFESTS_KEPT {
            self.refused.remove(0);
        }
        self.refused.push(RefusedManifest {
            digest: digest.0,
            epoch: manifest.epoch,
            sequence: manifest.sequence,
            reason: fault.to_string(),
            at_ms: wall_ms,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drover_wire::id::Signature;
    use ed25519_dalek::SigningKey;

    const GROUP: GroupId = GroupId([7; 32]);

    fn key(n: u8) -> SigningKey {
        SigningKey::from_bytes(&[n; 32])
    }

    fn control(epoch: u64, verifier: u8, prev: Option<&Control>, by: u8) -> Control {
        Control {
            group: GROUP,
            epoch,
            verifier: PublicKey(key(verifier).verifying_key().to_bytes()),
            prev: prev.map(|p| p.digest().0.to_vec()),
            sig: Signature([0; 64]),
        }
        .signed(&key(by))
    }

    #[test]
    fn a_record_comes_back_as_it_was() {
        let genesis = control(0, 1, None, 1);
        let mut state = Retention {
            control: Some(genesis.clone()),
            manifest: Some((3, Hash([9; 32]))),
            policy: None,
            ..Retention::default()
        };
        let manifest = Manifest {
            group: GROUP,
            epoch: 0,
            sequence: 9,
            prev: None,
            blobs: Vec::new(),
            sig: Signature([0; 64]),
        };
        state.refuse(&manifest, &manifest.digest(), ManifestFault::Sequence, 5);
        state.freeze(&control(1, 3, Some(&genesis), 1), 6);
        for state in [state, Retention::default()] {
            let record = state.record(&GROUP).value.expect("a value");
            assert_eq!(Retention::from_record(GROUP, &record), Ok(state));
        }
    }

    #[test]
    fn evidence_is_held_once_and_bounded() {
        let genesis = control(0, 1, None, 1);
        let mut state = Retention::default();
        for n in 0..=255 {
            for _ in 0..2 {
                state.freeze(&control(1, n, Some(&genesis), 1), u64::from(n));
            }
            let manifest = Manifest {
                group: GROUP,
                epoch: 0,
                sequence: u64::from(n),
                prev: None,
                blobs: Vec::new(),
                sig: Signature([0; 64]),
            };
            state.refuse(&manifest, &manifest.digest(), ManifestFault::Epoch, 0);
            state.refuse(&manifest, &manifest.digest(), ManifestFault::Epoch, 0);
        }
        assert_eq!(state.rivals.len(), RIVAL_CONTROLS_MAX);
        assert_eq!(state.frozen.map(|f| f.since_ms), Some(0), "the first reason wins");
        let kept: Vec<u64> = state.refused.iter().map(|r| r.sequence).collect();
        assert_eq!(
            kept,
            (256 - REFUSED_MANIFESTS_KEPT as u64..256).collect::<Vec<_>>()
        );
    }
}
