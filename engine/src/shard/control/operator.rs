//! What an operator may ask of a workspace: to be minted, and what can be counted of it. Never content, never a
//! second bootstrap invite.

use super::{Shard, Step};
use crate::bootstrap::{Banner, Handoff, Minted};
use crate::effects::{Effects, StoreRequest};
use crate::inspect::{RealmReport, TransparencyLog};
use crate::shard::{Pending, Waiter};
use bytes::Bytes;
use drover_storage::control::Outcome;
use drover_storage::{RealmId, StoreError};
use std::sync::Arc;

/// Where an answer for the operator goes; called once, on the shard's thread.
pub type Reply<T> = Box<dyn FnOnce(T) + Send>;

/// A request of the operator's surface.
pub enum Operator {
    /// Make this workspace exist.
    Mint {
        /// Its records, made elsewhere because hashing the code takes time.
        minted: Box<Minted>,
        /// What became of it.
        reply: Reply<MintOutcome>,
    },
    /// Count.
    Report {
        /// `None` if its state can't be read.
        reply: Reply<Option<RealmReport>>,
    },
    /// Read the transparency log. It is not kept in memory.
    Log {
        /// `None` if it can't be read.
        reply: Reply<Option<TransparencyLog>>,
    },
}

/// What became of a mint.
pub enum MintOutcome {
    /// It exists now; print this once.
    Minted(Banner),
    /// It existed already: nothing was made, no code is shown again.
    Existed,
    /// The store failed.
    Failed,
}

/// A mint on its way to the store.
pub(crate) struct Minting {
    first: bool,
    handoff: Option<Arc<Handoff>>,
    banner: Banner,
    reply: Reply<MintOutcome>,
}

impl Shard {
    pub(in crate::shard) fn operate<E: Effects>(&mut self, realm: &RealmId, operator: Operator, fx: &mut E) {
        match operator {
            Operator::Mint { reply, .. } if self.directory.realms().contains(realm) => {
                reply(MintOutcome::Existed)
            }
            Operator::Mint { minted, reply } => {
                let slot = self.unloaded_slot(realm);
                let Minted {
                    batch,
                    first,
                    handoff,
                    banner,
                    ..
                } = *minted;
                let step = Step::Mint(Minting {
                    first,
                    handoff,
                    banner,
                    reply,
                });
                let ticket = self.ticket(Pending::Control { realm: slot, step });
                fx.store(ticket, StoreRequest::Commit(realm.clone(), batch));
            }
            Operator::Log { reply } => {
                let ticket = self.ticket(Pending::Log { reply });
                fx.store(ticket, StoreRequest::Load(realm.clone()));
            }
            report @ Operator::Report { .. } => self.when_loaded(realm, Waiter::Operator(report), fx),
        }
    }

    /// The slot of a realm that has no records yet.
    fn unloaded_slot(&mut self, id: &RealmId) -> u32 {
        if let Some(&slot) = self.realm_slots.get(id) {
            return slot;
        }
        let slot = self.realms.len() as u32;
        self.realms.push(crate::shard::RealmSlot::new(id.clone()));
        self.realm_slots.insert(id.clone(), slot);
        slot
    }

    pub(super) fn minted<E: Effects>(
        &mut self,
        slot: u32,
        minting: Minting,
        result: Result<Outcome, StoreError>,
        fx: &mut E,
    ) {
        let Minting {
            first,
            handoff,
            banner,
            reply,
        } = minting;
        let id = self.realms[slot as usize].id.clone();
        match result {
            Ok(Outcome::Applied) => {
                self.directory.claimed_realm(&id, first);
                self.directory.claimed_token(banner.token, &id);
                self.directory.set_handoff(&id, handoff);
                self.realm_slot(&id, fx);
                reply(MintOutcome::Minted(banner));
            }
            Ok(Outcome::Refused) => reply(MintOutcome::Existed),
            Err(_) => reply(MintOutcome::Failed),
        }
    }

    pub(in crate::shard) fn serve_operator<E: Effects>(
        &mut self,
        slot: u32,
        operator: Operator,
        is_there: bool,
        fx: &mut E,
    ) {
        let _ = fx;
        match operator {
            Operator::Report { reply } => {
                let groups = self.directory.group_count(&self.realms[slot as usize].id);
                let realm = self.realm_mut(slot).filter(|_| is_there);
                reply(realm.map(|realm| RealmReport::of(realm, groups)));
            }
            Operator::Mint { reply, .. } => reply(MintOutcome::Existed),
            Operator::Log { reply } => reply(None),
        }
    }

    /// A realm's records were read for its log.
    pub(in crate::shard) fn log_read(
        reply: Reply<Option<TransparencyLog>>,
        result: &Result<Vec<(Vec<u8>, Bytes)>, StoreError>,
    ) {
        reply(
            result
                .as_ref()
                .ok()
                .and_then(|stored| TransparencyLog::of(stored).ok()),
        );
    }
}
