//! Retention chains as a client keeps them, and the frames that carry their records.

use super::{C, Device, Got, World, frame};
use bytes::Bytes;
use drover_wire::blob::{Position, Request, Response};
use drover_wire::drop;
use drover_wire::frame::Frame;
use drover_wire::id::{GroupId, Hash, Signature};
use drover_wire::retention::{Control, Destruction, Manifest, Policy, Resolution};

const UNSIGNED: Signature = Signature([0; 64]);

pub fn blob(request: &Request<'_>) -> Bytes {
    let payload = request.encode();
    frame(&Frame::Blob { payload: &payload })
}

pub fn control(control: &Control) -> Bytes {
    blob(&Request::Control(control.clone()))
}

pub fn manifest(manifest: &Manifest) -> Bytes {
    blob(&Request::Manifest(manifest.clone()))
}

pub fn policy(policy: &Policy) -> Bytes {
    blob(&Request::Policy(policy.clone()))
}

pub fn destruction(destruction: &Destruction) -> Bytes {
    blob(&Request::Destruction(destruction.clone()))
}

pub fn position(group: GroupId) -> Bytes {
    blob(&Request::Position { group })
}

pub fn resolution(group: GroupId, epoch: u64, by: &Device) -> Bytes {
    blob(&Request::Resolution(a_resolution(group, epoch, by)))
}

pub fn a_resolution(group: GroupId, epoch: u64, by: &Device) -> Resolution {
    Resolution {
        group,
        epoch,
        verifier: by.public(),
        sig: UNSIGNED,
    }
    .signed(&by.key)
}

/// A policy of 30 days' media, due at once, that these authorizers sign.
pub fn a_policy(group: GroupId, version: u64, not_before_s: u64, by: &[&Device]) -> Policy {
    let terms = Policy {
        group,
        version,
        media_after_days: 30,
        text_after_days: 0,
        not_before_s,
        authorizers: by.iter().map(|d| d.public()).collect(),
        sigs: Vec::new(),
    };
    by.iter().fold(terms, |policy, d| policy.signed(&d.key))
}

pub fn a_destruction(
    group: GroupId,
    kind: &[u8],
    target: Hash,
    not_before_s: u64,
    by: &[&Device],
) -> Destruction {
    let terms = Destruction {
        group,
        kind: kind.to_vec(),
        target,
        policy_version: None,
        not_before_s,
        authorizers: by.iter().map(|d| d.public()).collect(),
        sigs: Vec::new(),
    };
    by.iter().fold(terms, |record, d| record.signed(&d.key))
}

/// An answer that acknowledges this digest.
pub fn acked(digest: Hash) -> Got {
    answered(&Response::Ack(digest))
}

pub fn resolved() -> Got {
    answered(&Response::Resolved)
}

pub fn answered(response: &Response<'_>) -> Got {
    Got::Blob(response.encode())
}

/// What the relay said to a DROP: counts.
pub fn ran(deleted: u64, bytes: u64, kept: u64) -> Got {
    Got::Drop(drop::Answer::Ran { deleted, bytes, kept })
}

pub fn against(verdict: drop::Verdict) -> Got {
    Got::Drop(drop::Answer::Against(verdict))
}

pub fn drop_frame(request: &drop::Request) -> Bytes {
    frame(&Frame::Drop {
        payload: &request.encode(),
    })
}

/// A group's chain, as whoever keeps it knows it.
#[derive(Clone)]
pub struct Chain {
    pub group: GroupId,
    /// The newest control's key.
    pub key: Device,
    pub control: Control,
    pub manifest: Option<(u64, Hash)>,
}

impl Chain {
    /// Not yet told to the relay.
    pub fn new(group: GroupId, key: Device) -> Self {
        let control = Control {
            group,
            epoch: 0,
            verifier: key.public(),
            prev: None,
            sig: UNSIGNED,
        }
        .signed(&key.key);
        Self {
            group,
            key,
            control,
            manifest: None,
        }
    }

    /// The control that hands over to this key.
    pub fn successor(&self, key: &Device) -> Control {
        Control {
            group: self.group,
            epoch: self.control.epoch + 1,
            verifier: key.public(),
            prev: Some(self.control.digest().0.to_vec()),
            sig: UNSIGNED,
        }
        .signed(&self.key.key)
    }

    /// The next manifest, changed as told before it is signed.
    pub fn draft(&self, blobs: &[Hash], change: impl FnOnce(&mut Manifest)) -> Manifest {
        let mut next = Manifest {
            group: self.group,
            epoch: self.control.epoch,
            sequence: self.manifest.map_or(1, |(sequence, _)| sequence + 1),
            prev: self.manifest.map(|(_, digest)| digest.0.to_vec()),
            blobs: blobs.to_vec(),
            sig: UNSIGNED,
        };
        change(&mut next);
        next.signed(&self.key.key)
    }

    /// A DROP below this checkpoint under policy 1.
    pub fn drop(&self, checkpoint: Hash, snapshots: &[Hash]) -> drop::Request {
        self.drop_with(checkpoint, snapshots, |_| {})
    }

    /// The same, changed as told before it is signed.
    pub fn drop_with(
        &self,
        checkpoint: Hash,
        snapshots: &[Hash],
        change: impl FnOnce(&mut drop::Request),
    ) -> drop::Request {
        let mut request = drop::Request {
            group: self.group,
            checkpoint,
            snapshots: snapshots.to_vec(),
            epoch: self.control.epoch,
            policy_version: Some(1),
            destruction_digest: None,
            sig: UNSIGNED,
        };
        change(&mut request);
        request.signed(&self.key.key)
    }
}

impl World {
    /// A chain whose first control the relay has taken.
    #[track_caller]
    pub fn begin_chain(&mut self, c: C, group: GroupId, key: Device) -> Chain {
        let chain = Chain::new(group, key);
        assert_eq!(
            self.ask1(c, control(&chain.control)),
            acked(chain.control.digest())
        );
        chain
    }

    /// The next control, taken by the relay.
    #[track_caller]
    pub fn hand_over(&mut self, c: C, chain: &mut Chain, key: Device) {
        let next = chain.successor(&key);
        assert_eq!(self.ask1(c, control(&next)), acked(next.digest()));
        (chain.control, chain.key) = (next, key);
    }

    /// The next manifest, taken by the relay.
    #[track_caller]
    pub fn claim(&mut self, c: C, chain: &mut Chain, blobs: &[Hash]) -> Manifest {
        let next = chain.draft(blobs, |_| {});
        assert_eq!(self.ask1(c, manifest(&next)), acked(next.digest()));
        chain.manifest = Some((next.sequence, next.digest()));
        next
    }

    /// Freezes the group by a rival of the next control; returns the rival's key.
    #[track_caller]
    pub fn freeze(&mut self, c: C, chain: &mut Chain) -> Device {
        let (winner, loser) = (Device::new(901), Device::new(902));
        let rival = chain.successor(&loser);
        self.hand_over(c, chain, winner);
        let got = self.ask1(c, control(&rival));
        assert_eq!(
            got,
            super::refused_with(
                drover_wire::error::Code::GroupFrozen,
                0,
                &chain.control.digest().0
            )
        );
        loser
    }

    #[track_caller]
    pub fn position(&mut self, c: C, group: GroupId) -> Position {
        match self.ask1(c, position(group)) {
            Got::Blob(payload) => match Response::decode(&payload) {
                Ok(Response::Position(position)) => position,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }
}
