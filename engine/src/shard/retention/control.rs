//! Controls (form 6) and the resolution of a conflict between two of them (form 11).

use super::{Ask, Change, Retaining, chains_partition, control_key};
use crate::effects::Effects;
use crate::realm::Admission;
use crate::records;
use crate::retention::{Retention, Standing};
use crate::shard::Shard;
use crate::shard::gather::Then;
use bytes::Bytes;
use drover_storage::StoreError;
use drover_wire::blob::Response;
use drover_wire::error::Code;
use drover_wire::retention::{Control, Resolution};

/// A control that was read; one that is not there is damage, for its epoch is settled.
fn stored(value: Option<&Option<Bytes>>) -> Result<Control, StoreError> {
    let bytes = value.and_then(Option::as_ref).ok_or(StoreError::Damaged)?;
    Control::decode(bytes).map_err(|_| StoreError::Damaged)
}

impl Shard {
    pub(super) fn start_control<E: Effects>(&mut self, slot: u32, retaining: Box<Retaining>, fx: &mut E) {
        let wall_ms = self.now.wall_ms;
        let Ask::Control(control) = &retaining.ask else {
            return;
        };
        let Some(realm) = self.realm_mut(slot) else { return };
        // A first control is a member's; a grant is not enough.
        if control.epoch == 0 && realm.admits(&retaining.device, wall_ms).0 != Admission::InSet {
            return self.answer_blob(retaining.origin, Err(Code::WriterNotInAccessSet.into()), fx);
        }
        let newest = realm.retention(&retaining.group).and_then(|r| r.control.clone());
        let newest = match newest {
            Some(newest) if control.epoch <= newest.epoch => newest,
            newest => return self.control_judged(slot, &retaining, control, None, newest.as_ref(), fx),
        };
        // Its epoch is settled: it is compared with that control, and judged by the one before.
        let is_newest = control.epoch == newest.epoch;
        let mut keys = Vec::new();
        if !is_newest {
            keys.push(control_key(&retaining.group, control.epoch));
        }
        if let Some(before) = control.epoch.checked_sub(1).filter(|_| newest != *control) {
            keys.push(control_key(&retaining.group, before));
        }
        if keys.is_empty() {
            return self.control_judged(slot, &retaining, control, Some(&newest), None, fx);
        }
        self.read_chain(slot, keys, retaining, fx);
    }

    /// Reads records of the partition beside; no other operation of the realm runs meanwhile.
    pub(super) fn read_chain<E: Effects>(
        &mut self,
        slot: u32,
        keys: Vec<Vec<u8>>,
        retaining: Box<Retaining>,
        fx: &mut E,
    ) {
        let Some(realm) = self.realm_mut(slot) else { return };
        realm.busy = true;
        let partition = chains_partition(&realm.id);
        self.gather(&partition, keys, Then::Retention(retaining), fx);
    }

    pub(super) fn control_read<E: Effects>(
        &mut self,
        slot: u32,
        retaining: &Retaining,
        control: &Control,
        values: &[Option<Bytes>],
        fx: &mut E,
    ) {
        let newest = self
            .realm_mut(slot)
            .and_then(|realm| realm.retention(&retaining.group)?.control.clone());
        let mut values = values.iter();
        let settled = match newest {
            Some(newest) if newest.epoch == control.epoch => Ok(newest),
            _ => stored(values.next()),
        };
        let before = match control.epoch {
            0 => Ok(None),
            _ => stored(values.next()).map(Some),
        };
        match (settled, before) {
            (Ok(settled), Ok(before)) => {
                self.control_judged(slot, retaining, control, Some(&settled), before.as_ref(), fx);
            }
            _ => self.answer_blob(retaining.origin, Err(Code::Backpressure.into()), fx),
        }
    }

    /// Everything the control is judged by is here: the settled one of its epoch and the one before.
    fn control_judged<E: Effects>(
        &mut self,
        slot: u32,
        retaining: &Retaining,
        control: &Control,
        settled: Option<&Control>,
        before: Option<&Control>,
        fx: &mut E,
    ) {
        let wall_ms = self.now.wall_ms;
        let Some(realm) = self.realm_mut(slot) else { return };
        let now = realm.retention(&retaining.group).cloned().unwrap_or_default();
        let ack = Ok(Response::Ack(control.digest()));
        match Retention::judge_control(control, settled, before) {
            Err(code) => self.answer_blob(retaining.origin, Err(code.into()), fx),
            Ok(Standing::Settled) => self.answer_blob(retaining.origin, ack, fx),
            Ok(Standing::Next) => {
                let mut next = now;
                next.control = Some(control.clone());
                let mut change = Change::of(retaining, next, ack);
                let key = control_key(&retaining.group, control.epoch);
                change.record = Some(records::put_raw(key, control.encode()));
                self.change(slot, change, fx);
            }
            Ok(Standing::Rival) => {
                let mut next = now.clone();
                next.freeze(control, wall_ms);
                let frozen = Err(next.frozen_refusal());
                if next == now {
                    return self.answer_blob(retaining.origin, frozen, fx);
                }
                self.change(slot, Change::of(retaining, next, frozen), fx);
            }
        }
    }

    pub(super) fn start_resolution<E: Effects>(&mut self, slot: u32, retaining: Box<Retaining>, fx: &mut E) {
        let Ask::Resolution(resolution) = &retaining.ask else {
            return;
        };
        if !resolution.verifies() {
            return self.answer_blob(retaining.origin, Err(Code::MalformedHeader.into()), fx);
        }
        let Some(realm) = self.realm_mut(slot) else { return };
        let chain = realm.retention(&retaining.group);
        let newest = chain.and_then(|r| r.control.as_ref());
        let may = chain.is_some_and(|r| r.is_rival(resolution.epoch, &resolution.verifier))
            || newest.is_some_and(|c| c.epoch == resolution.epoch && c.verifier == resolution.verifier);
        let is_older = newest.is_some_and(|newest| resolution.epoch < newest.epoch);
        if is_older && !may {
            let keys = vec![control_key(&retaining.group, resolution.epoch)];
            return self.read_chain(slot, keys, retaining, fx);
        }
        self.resolution_judged(slot, &retaining, may, fx);
    }

    pub(super) fn resolution_read<E: Effects>(
        &mut self,
        slot: u32,
        retaining: &Retaining,
        resolution: &Resolution,
        values: &[Option<Bytes>],
        fx: &mut E,
    ) {
        match stored(values.first()) {
            Ok(control) => {
                self.resolution_judged(slot, retaining, control.verifier == resolution.verifier, fx);
            }
            Err(_) => self.answer_blob(retaining.origin, Err(Code::Backpressure.into()), fx),
        }
    }

    fn resolution_judged<E: Effects>(&mut self, slot: u32, retaining: &Retaining, may: bool, fx: &mut E) {
        if !may {
            return self.answer_blob(retaining.origin, Err(Code::WriterNotInAccessSet.into()), fx);
        }
        let Some(realm) = self.realm_mut(slot) else { return };
        let now = realm.retention(&retaining.group).cloned().unwrap_or_default();
        if now.frozen.is_none() {
            return self.answer_blob(retaining.origin, Ok(Response::Resolved), fx);
        }
        let mut next = now;
        next.frozen = None;
        self.change(slot, Change::of(retaining, next, Ok(Response::Resolved)), fx);
    }
}
