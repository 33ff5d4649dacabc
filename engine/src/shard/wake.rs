//! WAKE (12): a device's registration with the ringer, and whom an event wakes. Registrations live with the realm;
//! that a handle is held once in the whole relay is the directory's doing.

use super::control::{Op, Origin, Step};
use super::{Posted, Shard, ShardMessage, Waiter};
use crate::budget::Sliding;
use crate::directory::Directory;
use crate::effects::Effects;
use crate::event::ConnId;
use crate::limits::{WAKE_EXPIRY_AHEAD_MS, WAKE_REGISTRATIONS, WAKE_WINDOW_MS};
use crate::message;
use crate::realm::{Admission, Realm};
use crate::records::{self, WakeRow};
use crate::session::Waiting;
use crate::wake::{Category, Wake, WakeHandle};
use bytes::Bytes;
use drover_storage::RealmId;
use drover_storage::control::{ControlBatch, DirectoryKey, DirectoryKind};
use drover_wire::error::{Code, Refusal};
use drover_wire::frame::{self, Frame};
use drover_wire::id::EntryHash;

/// A principal's registrations of the last hour.
pub(super) type Registered = Sliding<WAKE_REGISTRATIONS, WAKE_WINDOW_MS>;

/// A change of a registration in line, or on its way to the store.
#[derive(Clone, Debug)]
pub(crate) enum WakeOp {
    Register {
        origin: Origin,
        entry: EntryHash,
        row: WakeRow,
    },
    Clear {
        origin: Origin,
        entry: EntryHash,
    },
    /// The ringer does not know it.
    Forget(WakeHandle),
}

impl WakeOp {
    /// Who waits for it.
    pub(crate) fn origin(&self) -> Option<Origin> {
        match self {
            Self::Register { origin, .. } | Self::Clear { origin, .. } => Some(*origin),
            Self::Forget(_) => None,
        }
    }
}

/// A handle's place in the directory.
pub(crate) fn handle_key(handle: &WakeHandle) -> DirectoryKey {
    DirectoryKey {
        kind: DirectoryKind::WakeHandle,
        name: handle.0.to_vec(),
    }
}

impl ShardMessage {
    /// The ringer does not know this handle: its registration goes. With the shard to post it to.
    pub fn forget_handle(realm: RealmId, handle: WakeHandle, shards: usize) -> (usize, Self) {
        let shard = Directory::shard_of(&realm, shards);
        (shard, Self(Posted::ForgetHandle { realm, handle }))
    }
}

impl Shard {
    pub(super) fn wake<E: Effects>(
        &mut self,
        conn: ConnId,
        wake: &frame::Wake<'_>,
        message: &Bytes,
        fx: &mut E,
    ) {
        if let Err(refusal) = self.begin_wake(conn, wake, message, fx) {
            self.refuse(conn, refusal, fx);
        }
    }

    /// The checks of 12 §3 that need no look at other registrations, in their order.
    fn begin_wake<E: Effects>(
        &mut self,
        conn: ConnId,
        wake: &frame::Wake<'_>,
        message: &Bytes,
        fx: &mut E,
    ) -> Result<(), Refusal> {
        let (mono_ms, wall_ms) = (self.now.mono_ms, self.now.wall_ms);
        if let frame::Wake::Query = wake {
            let config = self.config.clone();
            let register_url = config.push.as_ref().map(|push| &*push.register_url);
            let capability = frame::Wake::Capability {
                enabled: register_url.is_some(),
                register_url: register_url.unwrap_or_default(),
            };
            self.reply(conn, message::frame(&Frame::Wake(capability)), fx);
            return Ok(());
        }
        if self.waits_its_turn(conn, message) {
            return Ok(());
        }
        if let frame::Wake::Register { expires_at_ms, .. } = wake
            && !(wall_ms + 1..=wall_ms + WAKE_EXPIRY_AHEAD_MS).contains(expires_at_ms)
        {
            return Err(Code::PushHandleMalformed.into()); // 2
        }
        if self.config.push.is_none() {
            return Err(Code::PushNotConfigured.into()); // 4
        }
        let session = self.session(conn);
        let bound = session.and_then(|s| s.realm.zip(s.entry));
        let (slot, entry) = bound.ok_or(Code::WriterNotInAccessSet)?; // 6
        if self.has_lapsed(conn) {
            self.evict(conn, fx); // 05 D11
            return Ok(());
        }
        let origin = Origin {
            shard: self.index,
            conn,
        };
        let op = match *wake {
            frame::Wake::Register {
                handle,
                categories,
                expires_at_ms,
            } => {
                if !self.registered.entry(entry).or_default().charge(mono_ms) {
                    let limit = WAKE_REGISTRATIONS as u64;
                    let retry_after_s = (WAKE_WINDOW_MS / 1000) as u32;
                    return Err(Refusal::number(Code::PushRegistrationRate, limit).after(retry_after_s)); // 8
                }
                let row = WakeRow {
                    handle,
                    categories,
                    expires_ms: expires_at_ms,
                    updated_ms: wall_ms,
                };
                WakeOp::Register { origin, entry, row }
            }
            frame::Wake::Clear => WakeOp::Clear { origin, entry },
            // Kept off by the state × frame table, or answered above.
            _ => return Ok(()),
        };
        if let Some(session) = self.session(conn) {
            session.waiting = Waiting::Working;
        }
        self.enqueue(slot, Op::Wake(op), fx);
        Ok(())
    }

    pub(super) fn start_wake<E: Effects>(&mut self, slot: u32, op: WakeOp, fx: &mut E) {
        let wall_ms = self.now.wall_ms;
        let Some(realm) = self.realm_mut(slot) else { return };
        let batch = match &op {
            WakeOp::Register { origin, entry, row } => match register(realm, entry, row, wall_ms) {
                Ok(batch) => batch,
                Err(code) => return self.answered_refusal(origin.conn, code.into(), fx),
            },
            // A registration that isn't there is cleared too: the answer, and how long it takes, is the same (12 §9).
            WakeOp::Clear { entry, .. } => removal(realm, entry),
            WakeOp::Forget(handle) => match realm.wakes.holder(handle) {
                Some(entry) => removal(realm, &entry),
                None => return,
            },
        };
        self.commit(slot, batch, Step::Wake(op), fx);
    }

    pub(super) fn wake_committed<E: Effects>(&mut self, slot: u32, op: WakeOp, fx: &mut E) {
        let Some(realm) = self.realm_mut(slot) else { return };
        let (origin, answer) = match op {
            WakeOp::Register { origin, entry, row } => {
                realm.wakes.insert(entry, row);
                let expires_at_ms = row.expires_ms;
                (origin, frame::Wake::Registered { expires_at_ms })
            }
            WakeOp::Clear { origin, entry } => {
                realm.wakes.remove(&entry);
                (origin, frame::Wake::Cleared)
            }
            WakeOp::Forget(handle) => {
                if let Some(entry) = realm.wakes.holder(&handle) {
                    realm.wakes.remove(&entry);
                }
                return;
            }
        };
        self.answered(origin.conn, message::frame(&Frame::Wake(answer)), fx);
    }

    /// The handle is held in another workspace (12 §3 row 9).
    pub(super) fn wake_refused<E: Effects>(&mut self, op: &WakeOp, fx: &mut E) {
        if let Some(origin) = op.origin() {
            self.answered_refusal(origin.conn, Code::PushHandleMalformed.into(), fx);
        }
    }

    pub(super) fn forget_handle<E: Effects>(&mut self, realm: &RealmId, handle: WakeHandle, fx: &mut E) {
        self.when_loaded(realm, Waiter::ForgetHandle(handle), fx);
    }

    /// Something was accepted in this realm: absent devices that registered for it are woken (12 §5). The event is
    /// durable, or needs not be.
    pub(super) fn wake_absent(&mut self, slot: u32, category: Category) {
        let now = self.now;
        let Some(window_ms) = self.config.push.as_ref().map(|push| push.coalesce_ms) else {
            return;
        };
        let mut woken = std::mem::take(&mut self.woken);
        if let Some(realm) = self.realm_mut(slot)
            && let Some(head) = &realm.chain.head
        {
            let (id, registry) = (&realm.id, &realm.registry);
            let is_absent = |entry: &EntryHash| head.entries.contains(entry) && !registry.contains_key(entry);
            realm.wakes.wake(category, now, window_ms, is_absent, |handle| {
                woken.push(Wake {
                    realm: id.clone(),
                    handle,
                    category,
                });
            });
        }
        self.woken = woken;
    }

    /// Principals that registered nothing for an hour are forgotten.
    pub(super) fn sweep_registered(&mut self) {
        let mono_ms = self.now.mono_ms;
        self.registered
            .retain(|_, registered| !registered.is_idle(mono_ms));
    }
}

/// Stores a registration in the place of the device's earlier one (12 §4).
fn register(realm: &Realm, entry: &EntryHash, row: &WakeRow, wall_ms: u64) -> Result<ControlBatch, Code> {
    // A set that was published meanwhile may have removed it.
    if realm.admits_entry(entry, wall_ms) == Admission::Refused {
        return Err(Code::WriterNotInAccessSet);
    }
    let handle = WakeHandle(row.handle);
    if realm.wakes.holder(&handle).is_some_and(|holder| holder != *entry) {
        return Err(Code::PushHandleMalformed); // 9, within the workspace
    }
    let mut directory = vec![(handle_key(&handle), Some(Bytes::new()))];
    let earlier = realm.wakes.get(entry).map(|row| WakeHandle(row.handle));
    directory.extend(
        earlier
            .filter(|earlier| *earlier != handle)
            .map(|earlier| (handle_key(&earlier), None)),
    );
    Ok(ControlBatch {
        writes: vec![records::put(records::wake_key(entry), row)],
        directory,
        ..ControlBatch::default()
    })
}

fn removal(realm: &Realm, entry: &EntryHash) -> ControlBatch {
    let handle = realm.wakes.get(entry).map(|row| WakeHandle(row.handle));
    ControlBatch {
        writes: vec![records::remove(records::wake_key(entry))],
        directory: handle.iter().map(|handle| (handle_key(handle), None)).collect(),
        ..ControlBatch::default()
    }
}
