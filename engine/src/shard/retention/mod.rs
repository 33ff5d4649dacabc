//! BLOB's records of the retention chain (08 §11, §12): judged in the realm's line, stored, acknowledged once durable.
//!
//! What decides lies in the realm's own partition, one record a group. Whole controls and the latest manifest are large
//! or rarely asked for and lie in a partition beside it. There, a record is written before the one that decides: until
//! that says so, it has no meaning, and whatever comes in its place overwrites it.

mod control;
mod manifest;
mod threshold;

use super::control::{Op, Origin, Step};
use super::{Pending, Shard};
use crate::effects::{Effects, StoreRequest};
use crate::event::ConnId;
use crate::limits::CHAIN_PER_MINUTE;
use crate::message;
use crate::records;
use crate::retention::{Destruction as StoredDestruction, Retention};
use crate::session::Waiting;
use bytes::Bytes;
use drover_storage::control::{Check, ControlBatch, Write};
use drover_storage::{RealmId, StoreError};
use drover_wire::blob::{Request, Response};
use drover_wire::error::{Code, Refusal};
use drover_wire::frame::Frame;
use drover_wire::id::{GroupId, Hash, PublicKey};
use drover_wire::retention::{Control, Destruction, Manifest, Policy, Resolution};

/// What is asked of a group's chain.
#[derive(Debug)]
enum Ask {
    Control(Control),
    Manifest(Manifest),
    Policy(Policy),
    Destruction(Destruction),
    Resolution(Resolution),
    Position,
}

/// A request in line, or one whose records are being read.
#[derive(Debug)]
pub(crate) struct Retaining {
    pub(crate) origin: Origin,
    realm: u32,
    group: GroupId,
    /// Whose connection it came on.
    device: PublicKey,
    ask: Ask,
}

/// A change of a group's chain on its way to the store.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) origin: Origin,
    group: GroupId,
    /// Where the chain stands afterwards.
    next: Retention,
    /// A destruction that is new with it.
    destruction: Option<(Hash, StoredDestruction)>,
    /// A record of the partition beside, stored first.
    record: Option<Write>,
    /// One that nobody needs afterwards.
    stale: Option<Vec<u8>>,
    answer: Result<Response<'static>, Refusal>,
}

impl Change {
    /// One that changes nothing yet.
    fn of(retaining: &Retaining, next: Retention, answer: Result<Response<'static>, Refusal>) -> Box<Self> {
        Box::new(Self {
            origin: retaining.origin,
            group: retaining.group,
            next,
            destruction: None,
            record: None,
            stale: None,
            answer,
        })
    }
}

/// The partition of a realm's whole controls and manifests.
fn chains_partition(realm: &RealmId) -> RealmId {
    RealmId(format!("{}/retention", realm.0).into())
}

/// Where a control lies.
fn control_key(group: &GroupId, epoch: u64) -> Vec<u8> {
    records::key(b"control/", &[&group.0, &epoch.to_be_bytes()])
}

/// Where a manifest lies.
fn manifest_key(group: &GroupId, sequence: u64) -> Vec<u8> {
    records::key(b"manifest/", &[&group.0, &sequence.to_be_bytes()])
}

impl Shard {
    /// BLOB (08 §1).
    pub(super) fn blob<E: Effects>(&mut self, conn: ConnId, payload: &[u8], message: &Bytes, fx: &mut E) {
        if let Err(refusal) = self.begin_blob(conn, payload, message, fx) {
            self.refuse(conn, refusal, fx);
        }
    }

    fn begin_blob<E: Effects>(
        &mut self,
        conn: ConnId,
        payload: &[u8],
        message: &Bytes,
        fx: &mut E,
    ) -> Result<(), Refusal> {
        if self.waits_its_turn(conn, message) {
            return Ok(());
        }
        let request = Request::decode(payload)?;
        let writes = matches!(request.form(), 1 | 3..=9 | 11);
        if writes && self.config.read_only {
            return Err(Code::ServiceReadOnly.into());
        }
        if writes && self.has_lapsed(conn) {
            self.evict(conn, fx); // 05 D11
            return Ok(());
        }
        let (group, ask) = match request {
            Request::Control(control) => (control.group, Ask::Control(control)),
            Request::Manifest(manifest) => (manifest.group, Ask::Manifest(manifest)),
            Request::Policy(policy) => (policy.group, Ask::Policy(policy)),
            Request::Destruction(destruction) => (destruction.group, Ask::Destruction(destruction)),
            Request::Resolution(resolution) => (resolution.group, Ask::Resolution(resolution)),
            Request::Position { group } => (group, Ask::Position),
            other => return self.object_later(conn, &other),
        };
        let slot = self.authorize(conn, &group).map_err(|refusal| match ask {
            // Those two don't tell which it is (08 §5).
            Ask::Control(_) | Ask::Resolution(_) => Code::WriterNotInAccessSet.into(),
            _ => refusal,
        })?;
        self.charge_chain(conn)?;
        let realm = self.groups[slot as usize].realm;
        let origin = Origin {
            shard: self.index,
            conn,
        };
        let session = self.session(conn);
        let (session, device) = session
            .and_then(|s| s.device.map(|device| (s, device)))
            .ok_or(Code::WriterNotInAccessSet)?;
        session.waiting = Waiting::Working;
        let retaining = Box::new(Retaining {
            origin,
            realm,
            group,
            device,
            ask,
        });
        self.enqueue(realm, Op::Retain(retaining), fx);
        Ok(())
    }

    /// Charges the budget of chain records (08 decision 14). Its refusal names no limit (08 §6).
    pub(super) fn charge_chain(&mut self, conn: ConnId) -> Result<(), Refusal> {
        let wall_ms = self.now.wall_ms;
        let bound = self.session(conn).and_then(|s| Some((s.realm?, s.device_slot)));
        let device =
            bound.and_then(|(realm, device)| self.realm_mut(realm)?.devices.get_mut(device as usize));
        if let Some(device) = device {
            if !device.chain.fits(wall_ms, 1, CHAIN_PER_MINUTE) {
                return Err(Refusal::plain(Code::RateLimited).after(60));
            }
            device.chain.add(wall_ms, 1);
        }
        Ok(())
    }

    pub(super) fn start_retaining<E: Effects>(&mut self, slot: u32, retaining: Box<Retaining>, fx: &mut E) {
        match &retaining.ask {
            Ask::Control(_) => self.start_control(slot, retaining, fx),
            Ask::Resolution(_) => self.start_resolution(slot, retaining, fx),
            Ask::Manifest(manifest) => self.start_manifest(slot, &retaining, manifest, fx),
            Ask::Position => self.start_position(slot, retaining, fx),
            Ask::Policy(policy) => self.start_policy(slot, &retaining, policy, fx),
            Ask::Destruction(destruction) => self.start_destruction(slot, &retaining, destruction, fx),
        }
    }

    /// What the request needed of the partition beside is here.
    pub(super) fn retention_read<E: Effects>(
        &mut self,
        retaining: Box<Retaining>,
        values: Result<Vec<Option<Bytes>>, StoreError>,
        fx: &mut E,
    ) {
        let (slot, origin) = (retaining.realm, retaining.origin);
        if self.is_given_up(slot, Some((origin, Code::Backpressure)), fx) {
            return;
        }
        if let Some(realm) = self.realm_mut(slot) {
            realm.busy = false;
        }
        match values {
            Err(_) => self.answered_refusal(origin.conn, Code::Backpressure.into(), fx),
            Ok(values) => match &retaining.ask {
                Ask::Control(control) => self.control_read(slot, &retaining, control, &values, fx),
                Ask::Resolution(resolution) => {
                    self.resolution_read(slot, &retaining, resolution, &values, fx);
                }
                Ask::Position => self.position_read(slot, &retaining, &values, fx),
                // They need nothing but memory.
                Ask::Manifest(_) | Ask::Policy(_) | Ask::Destruction(_) => {}
            },
        }
        self.run_ops(slot, fx);
    }

    /// Stores a change: first what lies beside, then what decides.
    fn change<E: Effects>(&mut self, slot: u32, mut change: Box<Change>, fx: &mut E) {
        if let Some(write) = change.record.take() {
            let partition = chains_partition(&self.realms[slot as usize].id);
            let batch = ControlBatch {
                writes: vec![write],
                ..ControlBatch::default()
            };
            return self.commit_to(slot, partition, batch, Step::ChainStored(change), fx);
        }
        self.commit_change(slot, change, fx);
    }

    pub(super) fn commit_change<E: Effects>(&mut self, slot: u32, change: Box<Change>, fx: &mut E) {
        let Some(realm) = self.realm_mut(slot) else { return };
        let key = records::retention_key(&change.group);
        let stored = realm
            .retention(&change.group)
            .map(|before| before.record(&change.group));
        let mut batch = ControlBatch {
            checks: vec![match stored.and_then(|write| write.value) {
                Some(value) => Check::Equals(key, value),
                None => Check::Absent(key),
            }],
            writes: vec![change.next.record(&change.group)],
            directory: Vec::new(),
        };
        if let Some((name, destruction)) = &change.destruction {
            let key = records::destruction_key(&change.group, name);
            batch.checks.push(Check::Absent(key.clone()));
            batch.writes.push(records::put(key, destruction));
        }
        self.commit(slot, batch, Step::ChainChanged(change), fx);
    }

    /// The change is durable: memory follows.
    pub(super) fn chain_changed<E: Effects>(&mut self, slot: u32, change: Change, fx: &mut E) {
        let Some(realm) = self.realm_mut(slot) else { return };
        realm.retain(change.group, change.next);
        if let Some((name, destruction)) = change.destruction {
            realm.destructions.insert((change.group, name), destruction);
        }
        if let Some(key) = change.stale {
            let partition = chains_partition(&realm.id);
            let batch = ControlBatch {
                writes: vec![records::remove(key)],
                ..ControlBatch::default()
            };
            let ticket = self.ticket(Pending::Forgotten);
            fx.store(ticket, StoreRequest::Commit(partition, batch));
        }
        self.answer_blob(change.origin, change.answer, fx);
    }

    fn answer_blob<E: Effects>(&mut self, origin: Origin, answer: Result<Response<'_>, Refusal>, fx: &mut E) {
        match answer {
            Ok(response) => {
                let payload = response.encode();
                self.answered(
                    origin.conn,
                    message::frame(&Frame::Blob { payload: &payload }),
                    fx,
                );
            }
            Err(refusal) => self.answered_refusal(origin.conn, refusal, fx),
        }
    }
}
