//! Which realms are in memory: reading them, serving who waits for it, and giving one up whose state is uncertain.

use super::{
    Pending, Posted, RealmSlot, RealmState, Records, Shard, ShardMessage, Verdict, Waiter, control, wake,
};
use crate::effects::{CloseReason, Effects, StoreRequest};
use crate::event::ConnId;
use crate::group::Group;
use crate::realm::Realm;
use drover_storage::{RealmId, StoreError};
use drover_wire::error::{Code, Refusal};

impl Shard {
    pub(super) fn realm_mut(&mut self, slot: u32) -> Option<&mut Realm> {
        match self.realms.get_mut(slot as usize).map(|r| &mut r.state) {
            Some(RealmState::Ready(realm)) => Some(realm),
            _ => None,
        }
    }

    /// The slot of a realm of this shard; begins to load it if it isn't in memory.
    pub(super) fn realm_slot<E: Effects>(&mut self, id: &RealmId, fx: &mut E) -> u32 {
        let slot = match self.realm_slots.get(id) {
            Some(&slot) => slot,
            None => {
                let slot = self.realms.len() as u32;
                self.realms.push(RealmSlot::new(id.clone()));
                self.realm_slots.insert(id.clone(), slot);
                slot
            }
        };
        let state = &mut self.realms[slot as usize].state;
        if matches!(state, RealmState::Absent) {
            *state = RealmState::Loading {
                asked: false,
                records: None,
                usage: None,
                waiters: Vec::new(),
            };
            self.load(slot, fx);
        }
        slot
    }

    /// Asks the store for a realm, but not while something of it is under way: what is read must be all there is.
    pub(super) fn load<E: Effects>(&mut self, slot: u32, fx: &mut E) {
        let done = self.ingest.done();
        let place = &mut self.realms[slot as usize];
        let RealmState::Loading {
            asked: asked @ false, ..
        } = &mut place.state
        else {
            return;
        };
        if place.is_committing || place.after_batch > done {
            self.deferred.push(slot);
            return;
        }
        *asked = true;
        let id = place.id.clone();
        let load = self.ticket(Pending::Load { realm: slot });
        fx.store(load, StoreRequest::Load(id.clone()));
        let usage = self.ticket(Pending::Usage { realm: slot });
        fx.store(usage, StoreRequest::Usage(id));
    }

    pub(super) fn load_deferred<E: Effects>(&mut self, fx: &mut E) {
        for slot in std::mem::take(&mut self.deferred) {
            self.load(slot, fx);
        }
    }

    /// Serves `waiter` now if the realm is in memory, else once it is.
    pub(super) fn when_loaded<E: Effects>(&mut self, id: &RealmId, waiter: Waiter, fx: &mut E) {
        let slot = self.realm_slot(id, fx);
        match &mut self.realms[slot as usize].state {
            RealmState::Loading { waiters, .. } => waiters.push(waiter),
            _ => self.serve(slot, waiter, true, fx),
        }
    }

    pub(super) fn realm_read<E: Effects>(
        &mut self,
        slot: u32,
        part: Result<(Option<Records>, Option<u64>), StoreError>,
        fx: &mut E,
    ) {
        let place = &mut self.realms[slot as usize];
        let RealmState::Loading {
            records,
            usage,
            waiters,
            ..
        } = &mut place.state
        else {
            return;
        };
        let loaded = match part {
            Ok((got_records, got_usage)) => {
                *records = got_records.or(records.take());
                *usage = got_usage.or(*usage);
                match (&*records, *usage) {
                    (Some(records), Some(usage)) => Realm::from_records(place.id.clone(), records, usage),
                    _ => return,
                }
            }
            Err(error) => Err(error),
        };
        let waiters = std::mem::take(waiters);
        let is_there = match loaded {
            Ok(realm) => {
                self.metrics.log_bytes.add(realm.log_bytes);
                // A creation with an unknown outcome may have claimed its token.
                for token in realm.invites.keys() {
                    self.directory.claimed_token(*token, &realm.id);
                }
                place.state = RealmState::Ready(Box::new(realm));
                self.note_founders(slot);
                true
            }
            Err(error) => {
                tracing::warn!(%error, "a workspace could not be loaded");
                place.state = RealmState::Absent;
                false
            }
        };
        for waiter in waiters {
            self.serve(slot, waiter, is_there, fx);
        }
    }

    pub(super) fn serve<E: Effects>(&mut self, slot: u32, waiter: Waiter, is_there: bool, fx: &mut E) {
        let down = || Refusal::plain(Code::Backpressure);
        match waiter {
            Waiter::Ask { from, conn, device } => {
                let (wall_ms, id) = (self.now.wall_ms, self.realms[slot as usize].id.clone());
                let verdict = match self.realm_mut(slot) {
                    Some(realm) => {
                        let (admission, entry) = realm.admits(&device, wall_ms);
                        Verdict::Judged(admission, entry)
                    }
                    None => Verdict::StoreDown,
                };
                if from == self.index {
                    self.verdict(conn, id, verdict, fx);
                } else {
                    fx.post(
                        from,
                        ShardMessage(Posted::Verdict {
                            conn,
                            realm: id,
                            verdict,
                        }),
                    );
                }
            }
            Waiter::Finish { conn } if is_there => self.finish_auth(conn, fx),
            Waiter::Finish { conn } => self.fail(conn, down(), CloseReason::Protocol, fx),
            Waiter::Remote { origin, request } if is_there => self.serve_request(slot, origin, request, fx),
            Waiter::ForgetHandle(handle) if is_there => {
                self.enqueue(slot, control::Op::Wake(wake::WakeOp::Forget(handle)), fx);
            }
            Waiter::ForgetHandle(_) => {} // the next wake finds out again
            Waiter::Wake(category) if is_there => self.wake_absent(slot, category),
            Waiter::Wake(_) => {} // a failed read wakes nobody (12 §5)
            Waiter::Sweep => self.sweep_realm(slot, is_there, fx),
            Waiter::Remote { origin, request } => self.send_answer(origin, control::unread(&request), fx),
            Waiter::Operator(operator) => self.serve_operator(slot, operator, is_there, fx),
        }
    }

    /// The store's answer about this realm is unknown: forget it, end its connections, load it again on next use
    /// (decisions.md 47).
    pub(super) fn drop_realm<E: Effects>(&mut self, slot: u32, fx: &mut E) {
        if !matches!(self.realms[slot as usize].state, RealmState::Ready(_)) {
            return;
        }
        let conns: Vec<ConnId> = self
            .connections()
            .filter(|(_, s)| s.realm == Some(slot))
            .map(|(c, _)| c)
            .collect();
        // What is under way is acknowledged if it becomes durable; the open batch loses what it has of this realm.
        let under_way = self.ingest.open_number() - 1;
        for conn in conns {
            self.fail_waiting(conn, under_way, fx);
            self.fail(conn, Code::Failover.into(), CloseReason::Shutdown, fx);
        }
        let groups = &self.groups;
        let involved = self
            .ingest
            .forget(slot, |group| groups[group as usize].realm == slot);
        self.drops.forget(|group| groups[group as usize].realm == slot);
        let place = &mut self.realms[slot as usize];
        if involved {
            place.after_batch = under_way;
        }
        if let RealmState::Ready(realm) = std::mem::replace(&mut place.state, RealmState::Absent) {
            place.is_committing = realm.busy;
            self.metrics.log_bytes.sub(realm.log_bytes);
            for op in realm.ops {
                op.abandon(self, fx);
            }
        }
        for group in self.groups.iter_mut().filter(|g| g.realm == slot) {
            let id = group.id;
            *group = Group::new(id, slot, self.now.mono_ms);
        }
    }
}
