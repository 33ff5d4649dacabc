//! WRAP: a group's secret sealed for recovery, one slot per tag, the superseded value kept one deep (07 B).

use super::control::{Op, Origin, Step};
use super::gather::Then;
use super::{Pending, Shard};
use crate::effects::{Effects, StoreRequest};
use crate::event::ConnId;
use crate::limits::{PRIOR_WRAP_MS, WRAP_PER_MINUTE};
use crate::message;
use crate::records::{self, PriorWrap, WrapSlot};
use crate::session::Waiting;
use bytes::Bytes;
use drover_storage::control::{ControlBatch, DirectoryKey, DirectoryKind};
use drover_storage::{RealmId, StoreError};
use drover_wire::error::{Code, Refusal};
use drover_wire::frame::Frame;
use drover_wire::id::{GroupId, WrapTag};
use drover_wire::wrap::Wrap;

/// A wrap in line, or on its way to the store.
#[derive(Debug)]
pub(crate) struct Wrapping {
    pub(crate) origin: Origin,
    realm: u32,
    group: GroupId,
    tag: WrapTag,
    slot: WrapSlot,
}

pub(super) fn wraps_partition(realm: &RealmId) -> RealmId {
    RealmId(format!("{}/wraps", realm.0).into())
}

fn wrap_key(tag: &WrapTag) -> Vec<u8> {
    records::key(b"wrap/", &[&tag.0])
}

impl Shard {
    pub(super) fn wrap<E: Effects>(&mut self, conn: ConnId, body: &[u8], message: &Bytes, fx: &mut E) {
        if let Err(refusal) = self.begin_wrap(conn, body, message, fx) {
            self.refuse(conn, refusal, fx);
        }
    }

    fn begin_wrap<E: Effects>(
        &mut self,
        conn: ConnId,
        body: &[u8],
        message: &Bytes,
        fx: &mut E,
    ) -> Result<(), Refusal> {
        if self.config.read_only {
            return Err(Code::ServiceReadOnly.into());
        }
        if self.has_lapsed(conn) {
            self.evict(conn, fx); // 05 D11
            return Ok(());
        }
        self.charge_frame(conn, |b| &mut b.wrap, WRAP_PER_MINUTE)?;
        if self.waits_its_turn(conn, message) {
            return Ok(());
        }
        let Wrap {
            group,
            epoch,
            tag,
            ct,
        } = Wrap::decode(body)?;
        let place = self.authorize(conn, &group)?;
        let realm = self.groups[place as usize].realm;
        let slot = WrapSlot {
            group: group.0,
            epoch,
            ct: ct.to_vec(),
            prior: None,
        };
        let wrapping = Wrapping {
            origin: Origin {
                shard: self.index,
                conn,
            },
            realm,
            group,
            tag,
            slot,
        };
        if let Some(session) = self.session(conn) {
            session.waiting = Waiting::Working;
        }
        self.enqueue(realm, Op::Wrap(Box::new(wrapping)), fx);
        Ok(())
    }

    /// Reads the slot; no other operation of the realm runs until it is judged.
    pub(super) fn start_wrap<E: Effects>(&mut self, slot: u32, wrapping: Box<Wrapping>, fx: &mut E) {
        let Some(realm) = self.realm_mut(slot) else { return };
        realm.busy = true;
        let partition = wraps_partition(&realm.id);
        self.gather(
            &partition,
            vec![wrap_key(&wrapping.tag)],
            Then::Wrap(wrapping),
            fx,
        );
    }

    pub(super) fn wrap_read<E: Effects>(
        &mut self,
        mut wrapping: Box<Wrapping>,
        values: Result<Vec<Option<Bytes>>, StoreError>,
        fx: &mut E,
    ) {
        let (slot, wall_ms) = (wrapping.realm, self.now.wall_ms);
        if self.is_given_up(slot, Some((wrapping.origin, Code::Backpressure)), fx) {
            return;
        }
        let stored = values.and_then(|mut v| match v.pop().flatten() {
            Some(bytes) => records::get::<WrapSlot>(&bytes).map(Some),
            None => Ok(None),
        });
        let judged = match stored {
            Err(_) => Err(Code::Backpressure.into()),
            Ok(None) => Ok(()),
            // D4: a tag belongs to one group.
            Ok(Some(held)) if held.group != wrapping.group.0 => Err(Code::MalformedHeader.into()),
            Ok(Some(held)) if held.epoch >= wrapping.slot.epoch => {
                Err(Refusal::number(Code::WrapNotNewer, held.epoch))
            }
            Ok(Some(held)) => {
                let expires_ms = wall_ms + PRIOR_WRAP_MS;
                wrapping.slot.prior = Some(PriorWrap {
                    epoch: held.epoch,
                    ct: held.ct,
                    expires_ms,
                });
                Ok(())
            }
        };
        match judged {
            Err(refusal) => self.end_wrap(slot, wrapping.origin, Err(refusal), fx),
            Ok(()) if wrapping.slot.prior.is_some() => self.store_wrap(slot, wrapping, fx),
            Ok(()) => {
                let id = self.realms[slot as usize].id.clone();
                let keys = vec![DirectoryKey {
                    kind: DirectoryKind::WrapTag,
                    name: wrapping.tag.0.to_vec(),
                }];
                let ticket = self.ticket(Pending::Control {
                    realm: slot,
                    step: Step::ClaimTag(wrapping),
                });
                fx.store(ticket, StoreRequest::Claim(id, keys));
            }
        }
    }

    /// The tag is claimed by whoever had it first.
    pub(super) fn tag_claimed<E: Effects>(
        &mut self,
        slot: u32,
        wrapping: Box<Wrapping>,
        owners: &[RealmId],
        fx: &mut E,
    ) {
        if owners.first() == Some(&self.realms[slot as usize].id) {
            self.store_wrap(slot, wrapping, fx);
        } else {
            self.answered_refusal(wrapping.origin.conn, Code::MalformedHeader.into(), fx);
        }
    }

    fn store_wrap<E: Effects>(&mut self, slot: u32, wrapping: Box<Wrapping>, fx: &mut E) {
        let partition = wraps_partition(&self.realms[slot as usize].id);
        let writes = vec![records::put(wrap_key(&wrapping.tag), &wrapping.slot)];
        let batch = ControlBatch {
            writes,
            ..ControlBatch::default()
        };
        self.commit_to(slot, partition, batch, Step::Wrapped(wrapping), fx);
    }

    pub(super) fn wrapped<E: Effects>(&mut self, wrapping: &Wrapping, fx: &mut E) {
        let out = message::frame(&Frame::Wrap {
            body: &wrapping.tag.0,
        });
        self.answered(wrapping.origin.conn, out, fx);
    }

    fn end_wrap<E: Effects>(&mut self, slot: u32, origin: Origin, result: Result<(), Refusal>, fx: &mut E) {
        if let Some(realm) = self.realm_mut(slot) {
            realm.busy = false;
        }
        if let Err(refusal) = result {
            self.answered_refusal(origin.conn, refusal, fx);
        }
        self.run_ops(slot, fx);
    }
}
