//! What authorizers sign together: the policy (form 8) and destructions (form 9).

use super::{Change, Retaining};
use crate::effects::Effects;
use crate::retention::{Destruction as Stored, destruction_name};
use crate::shard::Shard;
use drover_wire::blob::Response;
use drover_wire::error::{Code, Refusal};
use drover_wire::id::PublicKey;
use drover_wire::retention::{Destruction, Policy};

impl Shard {
    pub(super) fn start_policy<E: Effects>(
        &mut self,
        slot: u32,
        retaining: &Retaining,
        policy: &Policy,
        fx: &mut E,
    ) {
        let now = self.retention_of(slot, retaining);
        let ack = Ok(Response::Ack(policy.digest()));
        let active = now.policy.as_ref();
        let judged = if policy.media_after_days < Policy::MEDIA_DAYS_MIN {
            Err(Code::MalformedHeader.into())
        } else if active.is_some_and(|active| policy.repeats(active)) {
            return self.answer_blob(retaining.origin, ack, fx);
        } else {
            policy.check_terms(active).map_err(Refusal::from).and_then(|()| {
                policy
                    .authorize(&self.authorizers(slot), self.now_s())
                    .map_err(Refusal::from)
            })
        };
        if let Err(refusal) = judged {
            return self.answer_blob(retaining.origin, Err(refusal), fx);
        }
        let mut next = now;
        next.policy = Some(Policy {
            authorizers: Vec::new(),
            sigs: Vec::new(),
            ..*policy
        });
        self.change(slot, Change::of(retaining, next, ack), fx);
    }

    /// The first record for a target stays in force. The same record again is acknowledged as it is: a sole
    /// authorizer's signature, good when it was given, need not be good for now (08 §12).
    pub(super) fn start_destruction<E: Effects>(
        &mut self,
        slot: u32,
        retaining: &Retaining,
        destruction: &Destruction,
        fx: &mut E,
    ) {
        let wall_ms = self.now.wall_ms;
        let now = self.retention_of(slot, retaining);
        let (digest, name) = (
            destruction.digest(),
            destruction_name(&destruction.kind, &destruction.target),
        );
        let ack = Ok(Response::Ack(digest));
        let Some(realm) = self.realm_mut(slot) else { return };
        let known = realm.destructions.get(&(retaining.group, name)).copied();
        if known.is_some_and(|known| known.digest == digest.0) {
            return self.answer_blob(retaining.origin, ack, fx);
        }
        if let Err(refused) = destruction.authorize(&self.authorizers(slot), self.now_s()) {
            return self.answer_blob(retaining.origin, Err(refused.into()), fx);
        }
        if known.is_some() {
            return self.answer_blob(retaining.origin, ack, fx);
        }
        let mut change = Change::of(retaining, now, ack);
        let stored = Stored {
            not_before_s: destruction.not_before_s,
            recorded_ms: wall_ms,
            digest: digest.0,
        };
        change.destruction = Some((name, stored));
        self.change(slot, change, fx);
    }

    fn retention_of(&mut self, slot: u32, retaining: &Retaining) -> crate::retention::Retention {
        self.realm_mut(slot)
            .and_then(|realm| realm.retention(&retaining.group).cloned())
            .unwrap_or_default()
    }

    /// Those of the newest set.
    fn authorizers(&mut self, slot: u32) -> Vec<PublicKey> {
        let head = self.realm_mut(slot).and_then(|realm| realm.chain.head.as_ref());
        head.map(|head| head.set.authorizers.clone()).unwrap_or_default()
    }

    pub(in crate::shard) fn now_s(&self) -> u64 {
        self.now.wall_ms / 1000
    }
}
