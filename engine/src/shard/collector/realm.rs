//! One realm being swept: its steps wait in the realm's line as any other operation does, each with a commit of its own,
//! so that one that fails takes no other with it.

use super::steps::{self, Change, Found};
use crate::collector::Collected;
use crate::effects::{Effects, StoreRequest};
use crate::shard::control::{Op, Step};
use crate::shard::{Pending, RealmState, Shard};
use bytes::Bytes;
use drover_storage::StoreError;
use std::collections::VecDeque;

/// The steps, in their order (09 §8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sweep {
    /// Expired wake registrations.
    Wakes,
    /// Superseded wraps past their time; on a listing pass.
    Wraps,
    /// An expired bootstrap handoff.
    Handoff,
    /// Expired key packages.
    Packages,
    /// Packages that are on no shelf; on a listing pass.
    Strays,
    /// Seats of lapsed reservations.
    Seats,
    /// Invites past their end.
    Invites,
    /// Ended invites that decide nothing any more (06 D10).
    Tombstones,
    /// Wrong codes whose window is over.
    Attempts,
}

impl Sweep {
    const ALL: [Self; 9] = [
        Self::Wakes,
        Self::Wraps,
        Self::Handoff,
        Self::Packages,
        Self::Strays,
        Self::Seats,
        Self::Invites,
        Self::Tombstones,
        Self::Attempts,
    ];

    fn next(self) -> Option<Self> {
        Self::ALL.get(self as usize + 1).copied()
    }
}

/// A step on its way to the store.
#[derive(Debug)]
pub(crate) struct Swept {
    step: Sweep,
    change: Change,
    found: Collected,
    /// What is done next in the same step, before anybody else's turn: it was decided on the same records.
    rest: VecDeque<Found>,
}

impl Shard {
    /// The realm is in memory, or can't be.
    pub(in crate::shard) fn sweep_realm<E: Effects>(&mut self, slot: u32, is_there: bool, fx: &mut E) {
        if is_there {
            self.enqueue(slot, Op::Sweep(Sweep::ALL[0]), fx);
        } else {
            self.sweep_ended(fx);
        }
    }

    /// The realm was given up, or never read: the next pass comes back to it.
    pub(in crate::shard) fn sweep_ended<E: Effects>(&mut self, fx: &mut E) {
        self.step_failed();
        self.collect_later(fx);
    }

    pub(in crate::shard) fn start_sweep<E: Effects>(&mut self, slot: u32, first: Sweep, fx: &mut E) {
        let wall_ms = self.now.wall_ms;
        let listing = self.collector.share.as_ref().is_some_and(|s| s.listing);
        let mut next = Some(first).filter(|_| !self.draining);
        while let Some(step) = next {
            let Some(realm) = self.realm_mut(slot) else { return };
            if let Some(partition) = steps::whole_partition(step, &realm.id) {
                if listing {
                    realm.busy = true;
                    let ticket = self.ticket(Pending::Sweep { realm: slot, step });
                    fx.store(ticket, StoreRequest::Load(partition));
                    return;
                }
            } else if let Some(found) = steps::in_memory(realm, step, wall_ms) {
                return self.commit_sweep(slot, step, found, VecDeque::new(), fx);
            }
            next = step.next();
        }
        self.collect_later(fx);
    }

    /// A partition of larger values has been read; the realm's line waits.
    pub(in crate::shard) fn sweep_read<E: Effects>(
        &mut self,
        slot: u32,
        step: Sweep,
        records: Result<Vec<(Vec<u8>, Bytes)>, StoreError>,
        fx: &mut E,
    ) {
        if self.is_given_up(slot, None, fx) {
            return self.sweep_ended(fx);
        }
        let wall_ms = self.now.wall_ms;
        let in_use = self.taken_packages(slot);
        let Some(realm) = self.realm_mut(slot) else { return };
        realm.busy = false;
        let found = records.and_then(|records| steps::in_partition(realm, step, &records, &in_use, wall_ms));
        match found {
            Ok(mut rest) => match rest.pop_front() {
                Some(first) => self.commit_sweep(slot, step, first, rest, fx),
                None => self.sweep_on(slot, step.next(), fx),
            },
            Err(_) => self.sweep_failed(slot, step, fx),
        }
        self.run_ops(slot, fx);
    }

    fn commit_sweep<E: Effects>(
        &mut self,
        slot: u32,
        step: Sweep,
        found: Found,
        rest: VecDeque<Found>,
        fx: &mut E,
    ) {
        let Some(realm) = self.realm_mut(slot) else { return };
        let partition = found.partition.unwrap_or_else(|| realm.id.clone());
        let swept = Swept {
            step,
            change: found.change,
            found: found.counts,
            rest,
        };
        self.commit_to(slot, partition, found.batch, Step::Swept(Box::new(swept)), fx);
    }

    pub(in crate::shard) fn swept<E: Effects>(&mut self, slot: u32, swept: Swept, fx: &mut E) {
        let Swept {
            step,
            change,
            found,
            mut rest,
        } = swept;
        self.tally(&found);
        let Some(realm) = self.realm_mut(slot) else { return };
        match change {
            Change::Nothing => {}
            Change::Wakes(entries) => entries.iter().for_each(|entry| realm.wakes.remove(entry)),
            Change::Handoff => {
                realm.handoff = None;
                self.note_founders(slot);
            }
            Change::Shelves { shelves, packages } => {
                realm.shelves.extend(shelves);
                // A failure leaves strays.
                self.delete_packages(slot, packages, fx);
            }
            Change::Seats { seats, invites } => {
                realm.seats.extend(seats);
                realm.invites.extend(invites);
                self.note_founders(slot);
            }
            Change::Invites(invites) => {
                for (token, invite) in invites {
                    if let Some(ended) = self.realm_mut(slot).and_then(|r| r.invites.insert(token, invite)) {
                        self.delete_bundles(slot, &token, &ended, fx);
                    }
                }
            }
            Change::Tombstones(tokens) => {
                realm.invites.retain(|token, _| !tokens.contains(token));
                realm.seats.retain(|(token, _), _| !tokens.contains(token));
                realm.commits.retain(|(token, _, _)| !tokens.contains(token));
                realm.attempts.retain(|(token, _), _| !tokens.contains(token));
                self.directory.released_tokens(&tokens);
            }
            Change::Attempts(attempts) => {
                for attempt in &attempts {
                    realm.attempts.remove(attempt);
                }
            }
        }
        match rest.pop_front() {
            Some(found) => self.commit_sweep(slot, step, found, rest, fx),
            // There may be more of it than one commit takes.
            None if steps::whole_partition(step, &self.realms[slot as usize].id).is_none() => {
                self.sweep_on(slot, Some(step), fx);
            }
            None => self.sweep_on(slot, step.next(), fx),
        }
    }

    /// A commit of this step came to nothing. If that is certain the others have their turn; if not, the realm was
    /// given up.
    pub(in crate::shard) fn sweep_uncommitted<E: Effects>(&mut self, slot: u32, swept: &Swept, fx: &mut E) {
        match self.realms[slot as usize].state {
            RealmState::Ready(_) => self.sweep_failed(slot, swept.step, fx),
            _ => self.sweep_ended(fx),
        }
    }

    fn sweep_failed<E: Effects>(&mut self, slot: u32, step: Sweep, fx: &mut E) {
        tracing::warn!(?step, "a step of the collector failed");
        self.step_failed();
        self.sweep_on(slot, step.next(), fx);
    }

    fn sweep_on<E: Effects>(&mut self, slot: u32, step: Option<Sweep>, fx: &mut E) {
        match step {
            Some(step) => self.enqueue(slot, Op::Sweep(step), fx),
            None => self.collect_later(fx),
        }
    }
}
