//! What time alone ends in a workspace's records (06 §10, 07 A3): lapsed reservations give their seats back, expired
//! invites are spent, cooled attempts, expired key packages, sealed handoffs and tombstones nobody can ask about any more go. One commit
//! for all of it; nothing here changes what is answered, but for the seats an invite still shows.

use super::{Op, Shard, Step};
use crate::effects::{Effects, StoreRequest};
use crate::limits::CONTROL_SWEEP_MS;
use crate::realm::Realm;
use crate::records::{self, Invite, InviteState, Seat, Shelf, ShelfEntry};
use crate::shard::keys::{package_key, packages_partition};
use crate::shard::{Pending, RealmState};
use drover_storage::control::{ControlBatch, Write};
use drover_wire::id::{GroupId, Hash, Nonce, Token};

/// A sweep on its way to the store: what is written is what is applied.
#[derive(Debug, Default)]
pub(crate) struct Swept {
    released: Vec<((Token, Nonce), Seat)>,
    /// Invites with seats returned or at their end, beside what they were.
    invites: Vec<(Token, Invite)>,
    /// Invites that end with this sweep: their large values go.
    ended: Vec<(Token, Invite)>,
    attempts: Vec<(Token, [u8; 32])>,
    shelves: Vec<(Hash, Shelf, Vec<ShelfEntry>)>,
    /// Tombstones past their invite's end, with what hung on them (06 D10). The grants stay void.
    tombstones: Vec<Token>,
    seats: Vec<(Token, Nonce)>,
    commits: Vec<(Token, Nonce, GroupId)>,
    /// The sealed bootstrap handoff has expired (06 §10).
    handoff: bool,
}

impl Shard {
    /// Puts a sweep in line for every realm in memory, every quarter of an hour and a bit (06 §1).
    pub(in crate::shard) fn sweep_realms<E: Effects>(&mut self, fx: &mut E) {
        self.next_control_sweep_ms =
            self.now.mono_ms + CONTROL_SWEEP_MS + self.secret % (CONTROL_SWEEP_MS / 10);
        if self.config.read_only {
            return;
        }
        for slot in 0..self.realms.len() as u32 {
            if self.realm_mut(slot).is_some() {
                self.enqueue(slot, Op::Sweep, fx);
            }
        }
    }

    /// Whether there is anything to sweep.
    pub(in crate::shard) fn has_realms(&self) -> bool {
        self.realms
            .iter()
            .any(|r| matches!(r.state, RealmState::Ready(_)))
    }

    pub(super) fn start_sweep<E: Effects>(&mut self, slot: u32, fx: &mut E) {
        let wall_ms = self.now.wall_ms;
        let Some(realm) = self.realm_mut(slot) else { return };
        let swept = sweep(realm, wall_ms);
        let writes = writes(&swept);
        if writes.is_empty() {
            return;
        }
        let batch = ControlBatch {
            writes,
            ..ControlBatch::default()
        };
        self.commit(slot, batch, Step::Swept(Box::new(swept)), fx);
    }

    pub(super) fn swept<E: Effects>(&mut self, slot: u32, swept: Swept, fx: &mut E) {
        let Some(realm) = self.realm_mut(slot) else { return };
        realm.seats.extend(swept.released);
        realm.invites.extend(swept.invites);
        for key in &swept.attempts {
            realm.attempts.remove(key);
        }
        if swept.handoff {
            realm.handoff = None;
        }
        for token in &swept.tombstones {
            realm.invites.remove(token);
        }
        for key in &swept.seats {
            realm.seats.remove(key);
        }
        for key in &swept.commits {
            realm.commits.remove(key);
        }
        let partition = packages_partition(&realm.id);
        let mut packages: Vec<Write> = Vec::new();
        for (shelf, record, expired) in swept.shelves {
            realm.shelves.insert(shelf, record);
            packages.extend(expired.iter().map(|e| records::remove(package_key(&shelf, e.id))));
        }
        if !packages.is_empty() {
            let ticket = self.ticket(Pending::Forgotten);
            let batch = ControlBatch {
                writes: packages,
                ..ControlBatch::default()
            };
            fx.store(ticket, StoreRequest::Commit(partition, batch));
        }
        self.note_founders(slot);
        for (token, invite) in &swept.ended {
            self.delete_bundles(slot, token, invite, fx);
        }
    }
}

fn sweep(realm: &Realm, wall_ms: u64) -> Swept {
    let mut swept = Swept::default();
    let lapsed = realm
        .seats
        .iter()
        .filter(|(_, s)| !s.consumed && !s.released && s.expires_ms <= wall_ms);
    swept.released = lapsed
        .map(|(key, seat)| {
            let seat = Seat {
                released: true,
                ..*seat
            };
            (*key, seat)
        })
        .collect();
    for (token, invite) in &realm.invites {
        let is_over = invite.expires_ms <= wall_ms;
        if invite.state == InviteState::Revoked {
            if is_over {
                swept.tombstones.push(*token);
            }
            continue;
        }
        let returned = swept.released.iter().filter(|((t, _), _)| t == token).count();
        let ends = is_over && invite.state == InviteState::Live;
        if returned == 0 && !ends {
            continue;
        }
        let mut after = invite.clone();
        after.remaining = after
            .uses
            .min(after.remaining.saturating_add(returned.min(255) as u8));
        if ends {
            after.state = InviteState::Spent;
            (after.record, after.refreshed) = (Vec::new(), Vec::new());
            swept.ended.push((*token, invite.clone()));
        }
        swept.invites.push((*token, after));
    }
    let of_tombstone = |token: &Token| swept.tombstones.contains(token);
    swept.seats = realm
        .seats
        .keys()
        .filter(|(t, _)| of_tombstone(t))
        .copied()
        .collect();
    swept.commits = realm
        .commits
        .iter()
        .filter(|(t, _, _)| of_tombstone(t))
        .copied()
        .collect();
    swept.attempts = realm
        .attempts
        .iter()
        .filter(|(_, attempt)| !attempt.is_live(wall_ms))
        .map(|(key, _)| *key)
        .collect();
    for (shelf, record) in &realm.shelves {
        let (kept, expired): (Vec<ShelfEntry>, Vec<ShelfEntry>) =
            record.entries.iter().partition(|e| wall_ms < e.expires_ms);
        if !expired.is_empty() {
            let record = Shelf {
                next_id: record.next_id,
                entries: kept,
            };
            swept.shelves.push((*shelf, record, expired));
        }
    }
    swept.handoff = realm.handoff.as_ref().is_some_and(|h| h.expires_ms <= wall_ms);
    swept
}

fn writes(swept: &Swept) -> Vec<Write> {
    let mut writes = Vec::new();
    if swept.handoff {
        writes.push(records::remove(records::HANDOFF.to_vec()));
    }
    for ((token, nonce), seat) in &swept.released {
        writes.push(records::put(records::seat_key(token, nonce), seat));
    }
    for (token, invite) in &swept.invites {
        writes.push(records::put(records::invite_key(token), invite));
    }
    for (token, source) in &swept.attempts {
        writes.push(records::remove(records::attempt_key(token, source)));
    }
    for (shelf, record, _) in &swept.shelves {
        writes.push(records::put(records::key(records::SHELF, &[&shelf.0]), record));
    }
    for token in &swept.tombstones {
        writes.push(records::remove(records::invite_key(token)));
    }
    for (token, nonce) in &swept.seats {
        writes.push(records::remove(records::seat_key(token, nonce)));
    }
    for (token, nonce, group) in &swept.commits {
        writes.push(records::remove(records::commit_key(token, nonce, group)));
    }
    writes
}
