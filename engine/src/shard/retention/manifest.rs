//! Manifests (form 7), and where a group's chain stands (form 12).

use super::{Change, Retaining, manifest_key};
use crate::effects::Effects;
use crate::records;
use crate::shard::Shard;
use bytes::Bytes;
use drover_wire::blob::{Position, Response};
use drover_wire::error::Code;
use drover_wire::retention::{FIRST_SEQUENCE, Manifest};

impl Shard {
    /// The objects a manifest names have no reservations here, so there is nothing to claim: a manifest may name what
    /// nobody uploaded.
    pub(super) fn start_manifest<E: Effects>(
        &mut self,
        slot: u32,
        retaining: &Retaining,
        manifest: &Manifest,
        fx: &mut E,
    ) {
        let wall_ms = self.now.wall_ms;
        let Some(realm) = self.realm_mut(slot) else { return };
        let now = realm.retention(&retaining.group).cloned().unwrap_or_default();
        let digest = manifest.digest();
        if now.is_latest(&digest) {
            return self.answer_blob(retaining.origin, Ok(Response::Ack(digest)), fx);
        }
        let mut next = now.clone();
        if let Err(fault) = manifest.check(now.control.as_ref(), now.manifest) {
            next.refuse(manifest, &digest, fault, wall_ms);
            let refused = Err(Code::MalformedHeader.into());
            if next == now {
                return self.answer_blob(retaining.origin, refused, fx);
            }
            return self.change(slot, Change::of(retaining, next, refused), fx);
        }
        next.manifest = Some((manifest.sequence, digest));
        let mut change = Change::of(retaining, next, Ok(Response::Ack(digest)));
        let key = |sequence| manifest_key(&retaining.group, sequence);
        change.record = Some(records::put_raw(key(manifest.sequence), manifest.encode()));
        // The one before it says nothing any more: only the latest counts.
        change.stale = now.manifest.map(|(before, _)| key(before));
        self.change(slot, change, fx);
    }

    /// In line like the rest, so that the manifest it reads is the latest until it is read.
    pub(super) fn start_position<E: Effects>(&mut self, slot: u32, retaining: Box<Retaining>, fx: &mut E) {
        let Some(realm) = self.realm_mut(slot) else { return };
        match realm.retention(&retaining.group).and_then(|r| r.manifest) {
            None => self.position_read(slot, &retaining, &[], fx),
            Some((sequence, _)) => {
                let keys = vec![manifest_key(&retaining.group, sequence)];
                self.read_chain(slot, keys, retaining, fx);
            }
        }
    }

    pub(super) fn position_read<E: Effects>(
        &mut self,
        slot: u32,
        retaining: &Retaining,
        values: &[Option<Bytes>],
        fx: &mut E,
    ) {
        let Some(realm) = self.realm_mut(slot) else { return };
        let chain = realm.retention(&retaining.group);
        let blobs = match chain.and_then(|r| r.manifest) {
            None => Some(Vec::new()),
            Some(_) => values
                .first()
                .and_then(Option::as_ref)
                .and_then(|bytes| Manifest::decode(bytes).ok())
                .map(|manifest| manifest.blobs),
        };
        let latest = chain.and_then(|r| r.manifest);
        let answer = match blobs {
            None => Err(Code::Backpressure.into()),
            Some(blobs) => Ok(Response::Position(Position {
                control_epoch: chain.and_then(|r| r.control.as_ref()).map_or(0, |c| c.epoch),
                control_digest: chain.and_then(|r| r.digest()),
                next_sequence: latest.map_or(FIRST_SEQUENCE, |(sequence, _)| sequence.saturating_add(1)),
                prev_manifest: latest.map(|(_, digest)| digest),
                blobs,
            })),
        };
        self.answer_blob(retaining.origin, answer, fx);
    }
}
