//! What the store is asked for, and who gets its answers.

use super::{Reply, Shard, collector, control};
use crate::effects::{Effects, StoreRequest};
use crate::event::{ConnId, StoreAnswer, Ticket};
use crate::group::Loaded;
use crate::inspect::TransparencyLog;
use crate::session::{Session, Waiting};
use bytes::Bytes;
use drover_storage::StoreError;
use drover_storage::log::{StreamId, StreamKind};
use drover_wire::error::Code;
use drover_wire::id::GroupId;

/// What a ticket stands for.
pub(super) enum Pending {
    /// The batch under way.
    Batch,
    /// A group's index.
    Index { group: u32, kind: StreamKind },
    /// A realm's records.
    Load { realm: u32 },
    /// A realm's records, for its transparency log.
    Log { reply: Reply<Option<TransparencyLog>> },
    /// A realm's byte count.
    Usage { realm: u32 },
    /// A page of a connection's replay.
    Replay { conn: ConnId },
    /// The envelopes of a connection's RECON.
    Recon { conn: ConnId },
    /// The accepted envelope a duplicate of a map session is answered with.
    Again { conn: ConnId },
    /// Groups named by a member.
    Claim { conn: ConnId, groups: Vec<GroupId> },
    /// A stage of a group's DROP.
    Drop { group: u32 },
    /// A control operation's claim or commit.
    Control { realm: u32, step: control::Step },
    /// One of several records.
    Gather { gather: u64, at: usize },
    /// Served packages being deleted.
    Forgotten,
    /// A partition the collector looks through.
    Sweep { realm: u32, step: collector::Sweep },
    /// A record or an index the collector counts by.
    Overdue,
    /// A one-time code being hashed.
    Code { realm: u32, check: control::CodeTry },
}

impl Shard {
    /// Whether a stream's index is in memory; if not, it is asked for and the frame parked.
    pub(super) fn has_index<E: Effects>(
        &mut self,
        conn: ConnId,
        group: u32,
        kind: StreamKind,
        message: &Bytes,
        fx: &mut E,
    ) -> bool {
        let id = self.groups[group as usize].id;
        let loaded = self.loaded(group, kind);
        match loaded {
            Loaded::Warm(_) => return true,
            // A frame handled again for another reason waits already.
            Loaded::Loading { waiters, .. } if waiters.contains(&conn) => {}
            Loaded::Loading { waiters, .. } => waiters.push(conn),
            Loaded::Cold => {
                let ticket = self.ticket(Pending::Index { group, kind });
                let waiters = vec![conn];
                *self.loaded(group, kind) = Loaded::Loading { ticket, waiters };
                fx.store(ticket, StoreRequest::Index(StreamId { kind, group: id }));
            }
        }
        self.park(conn, message);
        false
    }

    pub(super) fn loaded(&mut self, group: u32, kind: StreamKind) -> &mut Loaded {
        let group = &mut self.groups[group as usize];
        match kind {
            StreamKind::Envelopes => &mut group.envelopes,
            StreamKind::Handshakes => &mut group.handshakes,
        }
    }

    pub(super) fn ticket(&mut self, pending: Pending) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.pending.insert(ticket, pending);
        ticket
    }

    pub(super) fn stored<E: Effects>(&mut self, ticket: Ticket, answer: StoreAnswer, fx: &mut E) {
        match (self.pending.remove(&ticket), answer) {
            (Some(Pending::Batch), StoreAnswer::Append(result)) => self.batch_done(result, fx),
            (Some(Pending::Index { group, kind }), StoreAnswer::Index(result)) => {
                self.index_read(ticket, group, kind, result, fx);
            }
            (Some(Pending::Load { realm }), StoreAnswer::Load(result)) => {
                self.realm_read(realm, result.map(|r| (Some(r), None)), fx);
            }
            (Some(Pending::Log { reply }), StoreAnswer::Load(result)) => Self::log_read(reply, &result),
            (Some(Pending::Usage { realm }), StoreAnswer::Usage(result)) => {
                self.realm_read(realm, result.map(|u| (None, Some(u))), fx);
            }
            (Some(Pending::Replay { conn }), StoreAnswer::Read(result)) => self.replay_read(conn, result, fx),
            (Some(Pending::Recon { conn }), StoreAnswer::Read(result)) => self.recon_read(conn, result, fx),
            (Some(Pending::Again { conn }), StoreAnswer::Read(result)) => self.again_read(conn, result, fx),
            (Some(Pending::Claim { conn, groups }), StoreAnswer::Claim(result)) => {
                self.groups_claimed(conn, &groups, result, fx);
            }
            (Some(Pending::Drop { group }), answer) => self.drop_stored(ticket, group, answer, fx),
            (Some(Pending::Gather { gather, at }), StoreAnswer::Get(result)) => {
                self.gather_read(gather, at, result, fx);
            }
            (Some(Pending::Sweep { realm, step }), StoreAnswer::Load(result)) => {
                self.sweep_read(realm, step, result, fx);
            }
            (Some(Pending::Overdue), answer) => self.overdue_read(answer, fx),
            (Some(Pending::Forgotten), StoreAnswer::Commit(result)) => self.packages_forgotten(result),
            (Some(Pending::Control { realm, step }), StoreAnswer::Commit(result)) => {
                self.control_committed(realm, step, result, fx);
            }
            (Some(Pending::Control { realm, step }), StoreAnswer::Claim(result)) => {
                self.control_claimed(realm, step, result, fx);
            }
            (pending, _) => debug_assert!(pending.is_none(), "an answer of another shape than its request"),
        }
    }

    fn index_read<E: Effects>(
        &mut self,
        asked: Ticket,
        group: u32,
        kind: StreamKind,
        result: Result<Vec<drover_storage::log::IndexEntry>, StoreError>,
        fx: &mut E,
    ) {
        let (secret, first_seq) = (self.secret, self.config.first_seq);
        let loaded = self.loaded(group, kind);
        let waiters = match std::mem::take(loaded) {
            Loaded::Loading { ticket, waiters } if ticket == asked => waiters,
            other => {
                *loaded = other; // the realm was dropped meanwhile, and perhaps loaded again
                return;
            }
        };
        match result {
            Ok(entries) => {
                let first = match kind {
                    StreamKind::Envelopes => first_seq,
                    StreamKind::Handshakes => 0,
                };
                *loaded = Loaded::Warm(crate::group::Index::new(&entries, first, secret));
                self.retry.extend(waiters);
            }
            Err(_) => {
                for conn in waiters {
                    let waits = |s: &mut Session| matches!(s.waiting, Waiting::Parked(_));
                    if self.session(conn).is_some_and(waits) {
                        self.answered_refusal(conn, Code::Backpressure.into(), fx);
                    }
                }
            }
        }
    }
}
