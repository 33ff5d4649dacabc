//! KEYS: each device's shelf of one-time key packages (07 A). The shelf's record lives with the realm; the packages
//! themselves lie in a partition of their own, so that loading a realm reads none of them. The swap of the shelf
//! record decides: an id that a swap took belongs to that fetch alone.

use super::control::{Op, Origin, Step};
use super::gather::Then;
use super::{Pending, RealmState, Shard};
use crate::effects::{Effects, StoreRequest};
use crate::event::ConnId;
use crate::limits::{
    KEY_PACKAGE_BYTES_MAX, KEY_PACKAGE_LIFE_MS, KEY_PACKAGES_PER_SHELF, KEYS_FETCH_MAX, KEYS_PER_MINUTE,
};
use crate::message;
use crate::outbox::Outbound;
use crate::realm::Admission;
use crate::records::{self, Shelf, ShelfEntry};
use crate::session::{Owed, Waiting};
use bytes::Bytes;
use drover_storage::control::{ControlBatch, Outcome, Write};
use drover_storage::{RealmId, StoreError};
use drover_wire::error::{Code, Refusal};
use drover_wire::frame::{BytesListBuf, Frame, Keys};
use drover_wire::id::{Hash, PublicKey};
use hashbrown::HashSet;

/// Packages taken off a shelf, until the frame that carries them is queued.
#[derive(Debug)]
pub(crate) struct Taken {
    realm: u32,
    shelf: Hash,
    entries: Vec<ShelfEntry>,
}

/// A publication or fetch in line.
#[derive(Debug)]
pub(crate) enum KeysOp {
    Publish {
        origin: Origin,
        shelf: Hash,
        packages: Vec<Bytes>,
    },
    Fetch {
        origin: Origin,
        shelf: Hash,
        count: usize,
    },
    Restore(Taken),
}

impl KeysOp {
    /// Who waits for it; a restoration answers nobody.
    pub(crate) fn origin(&self) -> Option<Origin> {
        match self {
            Self::Publish { origin, .. } | Self::Fetch { origin, .. } => Some(*origin),
            Self::Restore(_) => None,
        }
    }
}

/// A keys operation on its way to the store.
#[derive(Debug)]
pub(crate) enum KeysStep {
    /// The packages are being written; the shelf follows.
    Values {
        origin: Origin,
        shelf: Hash,
        ids: Vec<u64>,
    },
    /// The shelf with the new packages is being written.
    Published {
        origin: Origin,
        shelf: Hash,
        record: Shelf,
    },
    /// The shelf without the taken packages is being written.
    Fetched {
        origin: Origin,
        shelf: Hash,
        record: Shelf,
        taken: Vec<ShelfEntry>,
    },
    /// The shelf with packages put back is being written.
    Restored { shelf: Hash, record: Shelf },
}

impl KeysStep {
    pub(crate) fn origin(&self) -> Option<Origin> {
        match self {
            Self::Values { origin, .. } | Self::Published { origin, .. } | Self::Fetched { origin, .. } => {
                Some(*origin)
            }
            Self::Restored { .. } => None,
        }
    }
}

/// A fetch whose packages are being read.
#[derive(Debug)]
pub(crate) struct Fetch {
    conn: ConnId,
    taken: Taken,
}

/// The shelf a device's packages lie on.
pub(crate) fn shelf_of(device: &PublicKey) -> Hash {
    Hash::of(&[&device.0])
}

pub(super) fn packages_partition(realm: &RealmId) -> RealmId {
    RealmId(format!("{}/packages", realm.0).into())
}

pub(super) fn package_key(shelf: &Hash, id: u64) -> Vec<u8> {
    records::key(&[], &[&shelf.0, &id.to_be_bytes()])
}

/// Shelf and id of a [`package_key`].
pub(super) fn split_package_key(key: &[u8]) -> Option<(Hash, u64)> {
    let (shelf, id) = key.split_at_checked(Hash::LEN)?;
    Some((Hash::from_slice(shelf)?, u64::from_be_bytes(id.try_into().ok()?)))
}

impl Shard {
    pub(super) fn keys<E: Effects>(&mut self, conn: ConnId, keys: &Keys<'_>, message: &Bytes, fx: &mut E) {
        if let Err(refusal) = self.begin_keys(conn, keys, message, fx) {
            self.refuse(conn, refusal, fx);
        }
    }

    fn begin_keys<E: Effects>(
        &mut self,
        conn: ConnId,
        keys: &Keys<'_>,
        message: &Bytes,
        fx: &mut E,
    ) -> Result<(), Refusal> {
        let publish = matches!(keys, Keys::Publish { .. });
        if publish && self.config.read_only {
            return Err(Code::ServiceReadOnly.into());
        }
        if self.has_lapsed(conn) {
            self.evict(conn, fx); // 05 D11: a fetch takes packages off a shelf, too
            return Ok(());
        }
        if let Keys::Fetch { count, .. } = keys
            && !(1..=KEYS_FETCH_MAX).contains(count)
        {
            return Err(Refusal::number(Code::EnvelopeTooLarge, u64::from(KEYS_FETCH_MAX)));
        }
        self.charge_frame(conn, |b| &mut b.keys, KEYS_PER_MINUTE)?;
        if self.waits_its_turn(conn, message) {
            return Ok(());
        }
        let wall_ms = self.now.wall_ms;
        let session = self.session(conn);
        let (slot, device) = session
            .and_then(|s| s.realm.zip(s.device))
            .ok_or(Code::WriterNotInAccessSet)?;
        let origin = Origin {
            shard: self.index,
            conn,
        };
        let op = match keys {
            Keys::Publish { packages } => {
                if packages.iter().any(|p| p.len() > KEY_PACKAGE_BYTES_MAX) {
                    return Err(Refusal::number(
                        Code::EnvelopeTooLarge,
                        KEY_PACKAGE_BYTES_MAX as u64,
                    ));
                }
                if packages.len() > KEY_PACKAGES_PER_SHELF {
                    return Err(Refusal::number(
                        Code::SeatsExhausted,
                        KEY_PACKAGES_PER_SHELF as u64,
                    ));
                }
                let packages = packages.iter().map(|p| message.slice_ref(p)).collect();
                KeysOp::Publish {
                    origin,
                    shelf: shelf_of(&device),
                    packages,
                }
            }
            Keys::Fetch { device, count } => {
                let realm = self.realm_mut(slot).ok_or(Code::Backpressure)?;
                let (admission, _) = realm.admits(device, wall_ms);
                if !matches!(admission, Admission::InSet | Admission::Provisional) {
                    return Err(Code::WriterNotInAccessSet.into());
                }
                KeysOp::Fetch {
                    origin,
                    shelf: shelf_of(device),
                    count: usize::from(*count),
                }
            }
            // Kept off by the state × frame table.
            Keys::Published { .. } | Keys::Bundles { .. } | Keys::None => return Ok(()),
        };
        if let Some(session) = self.session(conn) {
            session.waiting = Waiting::Working;
        }
        self.enqueue(slot, Op::Keys(op), fx);
        Ok(())
    }

    pub(super) fn start_keys<E: Effects>(&mut self, slot: u32, op: KeysOp, fx: &mut E) {
        let wall_ms = self.now.wall_ms;
        let Some(realm) = self.realm_mut(slot) else { return };
        match op {
            KeysOp::Publish {
                origin,
                shelf,
                packages,
            } => {
                let record = realm.shelves.get(&shelf).cloned().unwrap_or_default();
                if record.live(wall_ms) + packages.len() > KEY_PACKAGES_PER_SHELF {
                    let refusal = Refusal::number(Code::SeatsExhausted, KEY_PACKAGES_PER_SHELF as u64);
                    return self.answered_refusal(origin.conn, refusal, fx);
                }
                if packages.is_empty() {
                    let remaining = record.live(wall_ms) as u32;
                    let out = message::frame(&Frame::Keys(Keys::Published { remaining }));
                    return self.answered(origin.conn, out, fx);
                }
                let ids: Vec<u64> = (record.next_id..).take(packages.len()).collect();
                let writes = ids
                    .iter()
                    .zip(packages)
                    .map(|(&id, package)| records::put_raw(package_key(&shelf, id), package))
                    .collect();
                let partition = packages_partition(&realm.id);
                let batch = ControlBatch {
                    writes,
                    ..ControlBatch::default()
                };
                self.commit_to(
                    slot,
                    partition,
                    batch,
                    Step::Keys(KeysStep::Values { origin, shelf, ids }),
                    fx,
                );
            }
            KeysOp::Fetch { origin, shelf, count } => {
                let record = realm.shelves.get(&shelf).cloned().unwrap_or_default();
                let (mut taken, mut kept) = (Vec::new(), Vec::new());
                for entry in record.entries {
                    // Expired ones stay listed until the sweep deletes them.
                    if taken.len() < count && wall_ms < entry.expires_ms {
                        taken.push(entry)
                    } else {
                        kept.push(entry)
                    }
                }
                if taken.is_empty() {
                    return self.answered(origin.conn, message::frame(&Frame::Keys(Keys::None)), fx);
                }
                let record = Shelf {
                    next_id: record.next_id,
                    entries: kept,
                };
                self.commit_shelf(
                    slot,
                    KeysStep::Fetched {
                        origin,
                        shelf,
                        record,
                        taken,
                    },
                    fx,
                );
            }
            KeysOp::Restore(mut taken) => {
                let shelf = taken.shelf;
                let mut record = realm.shelves.get(&shelf).cloned().unwrap_or_default();
                // Whole seconds of life are left, or the package is gone (07 A3).
                let left_s = |e: &ShelfEntry| e.expires_ms.saturating_sub(wall_ms) / 1000;
                record.entries.extend(
                    taken
                        .entries
                        .iter()
                        .filter(|e| left_s(e) > 0)
                        .map(|e| ShelfEntry {
                            expires_ms: wall_ms + left_s(e) * 1000,
                            ..*e
                        }),
                );
                taken.entries.retain(|e| left_s(e) == 0);
                if !taken.entries.is_empty() {
                    self.forget_packages(&taken, fx);
                }
                self.commit_shelf(slot, KeysStep::Restored { shelf, record }, fx);
            }
        }
    }

    fn commit_shelf<E: Effects>(&mut self, slot: u32, step: KeysStep, fx: &mut E) {
        let (KeysStep::Published { shelf, record, .. }
        | KeysStep::Fetched { shelf, record, .. }
        | KeysStep::Restored { shelf, record }) = &step
        else {
            return;
        };
        let batch = ControlBatch {
            writes: vec![shelf_write(shelf, record)],
            ..ControlBatch::default()
        };
        self.commit(slot, batch, Step::Keys(step), fx);
    }

    pub(super) fn keys_committed<E: Effects>(&mut self, slot: u32, step: KeysStep, fx: &mut E) {
        let wall_ms = self.now.wall_ms;
        let Some(realm) = self.realm_mut(slot) else { return };
        match step {
            KeysStep::Values { origin, shelf, ids } => {
                let mut record = realm.shelves.get(&shelf).cloned().unwrap_or_default();
                record.next_id = ids.last().map_or(record.next_id, |last| last + 1);
                let expires_ms = wall_ms + KEY_PACKAGE_LIFE_MS;
                record
                    .entries
                    .extend(ids.into_iter().map(|id| ShelfEntry { id, expires_ms }));
                self.commit_shelf(
                    slot,
                    KeysStep::Published {
                        origin,
                        shelf,
                        record,
                    },
                    fx,
                );
            }
            KeysStep::Published {
                origin,
                shelf,
                record,
            } => {
                let remaining = record.live(wall_ms) as u32;
                realm.shelves.insert(shelf, record);
                let out = message::frame(&Frame::Keys(Keys::Published { remaining }));
                self.answered(origin.conn, out, fx);
            }
            KeysStep::Fetched {
                origin,
                shelf,
                record,
                taken,
            } => {
                realm.shelves.insert(shelf, record);
                let partition = packages_partition(&realm.id);
                let keys = taken.iter().map(|e| package_key(&shelf, e.id)).collect();
                let taken = Taken {
                    realm: slot,
                    shelf,
                    entries: taken,
                };
                self.gather(
                    &partition,
                    keys,
                    Then::Packages(Fetch {
                        conn: origin.conn,
                        taken,
                    }),
                    fx,
                );
            }
            KeysStep::Restored { shelf, record } => {
                realm.shelves.insert(shelf, record);
            }
        }
    }

    pub(super) fn packages_read<E: Effects>(
        &mut self,
        fetch: Fetch,
        values: Result<Vec<Option<Bytes>>, StoreError>,
        fx: &mut E,
    ) {
        let Fetch { conn, taken } = fetch;
        match values {
            Ok(values) => {
                let packages: BytesListBuf = values.iter().flatten().map(|v| v.as_ref()).collect();
                let out = message::frame(&Frame::Keys(Keys::Bundles {
                    packages: packages.as_list(),
                }));
                self.owe_bundles(conn, out, taken, fx);
            }
            Err(_) => {
                self.put_back(taken, fx);
                self.answered_refusal(conn, Code::Backpressure.into(), fx);
            }
        }
    }

    /// Queues the packages; they are gone from the store once they are.
    fn owe_bundles<E: Effects>(&mut self, conn: ConnId, out: Outbound, taken: Taken, fx: &mut E) {
        let Some(session) = self.session(conn) else {
            return self.put_back(taken, fx);
        };
        session.waiting = Waiting::No;
        session.owed.push_back(Owed::Bundles {
            out,
            taken: Box::new(taken),
        });
        self.flush_owed(conn, fx);
    }

    /// The frame is queued: its packages are never needed again.
    pub(super) fn forget_packages<E: Effects>(&mut self, taken: &Taken, fx: &mut E) {
        let packages = taken.entries.iter().map(|e| (taken.shelf, e.id)).collect();
        self.delete_packages(taken.realm, packages, fx);
    }

    /// Deletes packages that are on no shelf any more.
    pub(super) fn delete_packages<E: Effects>(&mut self, slot: u32, packages: Vec<(Hash, u64)>, fx: &mut E) {
        let Some(realm) = self.realm_mut(slot) else { return };
        let partition = packages_partition(&realm.id);
        let writes: Vec<Write> = packages
            .iter()
            .map(|(shelf, id)| records::remove(package_key(shelf, *id)))
            .collect();
        let ticket = self.ticket(Pending::Forgotten);
        let batch = ControlBatch {
            writes,
            ..ControlBatch::default()
        };
        fx.store(ticket, StoreRequest::Commit(partition, batch));
    }

    /// Packages of a realm that are on no shelf because a fetch has them, and that may come back to it.
    pub(super) fn taken_packages(&self, slot: u32) -> HashSet<(Hash, u64)> {
        let owed = self.connections().flat_map(|(_, session)| &session.owed);
        let owed = owed.filter_map(|owed| match owed {
            Owed::Bundles { taken, .. } => Some(&**taken),
            _ => None,
        });
        let read = self.gathers.values().filter_map(|gather| match &gather.then {
            Then::Packages(fetch) => Some(&fetch.taken),
            _ => None,
        });
        let waiting = match self.realms.get(slot as usize).map(|place| &place.state) {
            Some(RealmState::Ready(realm)) => Some(&realm.ops),
            _ => None,
        };
        let restored = waiting.into_iter().flatten().filter_map(|op| match op {
            Op::Keys(KeysOp::Restore(taken)) => Some(taken),
            _ => None,
        });
        owed.chain(read)
            .chain(restored)
            .filter(|taken| taken.realm == slot)
            .flat_map(|taken| taken.entries.iter().map(|e| (taken.shelf, e.id)))
            .collect()
    }

    /// The frame could not be queued: exactly these packages go back on their shelf (07 A3).
    pub(super) fn put_back<E: Effects>(&mut self, taken: Taken, fx: &mut E) {
        let slot = taken.realm;
        self.enqueue(slot, Op::Keys(KeysOp::Restore(taken)), fx);
    }

    /// Nothing is done about records that could not be deleted, key packages or others: nothing names them any more.
    pub(super) fn packages_forgotten(&mut self, result: Result<Outcome, StoreError>) {
        if result.is_err() {
            tracing::warn!("records that nobody needs any more could not be deleted from the store");
        }
    }
}

pub(super) fn shelf_write(shelf: &Hash, record: &Shelf) -> Write {
    let key = records::key(records::SHELF, &[&shelf.0]);
    if record.entries.is_empty() && record.next_id == 0 {
        records::remove(key)
    } else {
        records::put(key, record)
    }
}
