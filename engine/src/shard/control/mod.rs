//! Control operations: decided on memory, committed atomically, applied and answered once durable. A realm has one
//! under way at a time; the others wait in line (architecture.md §4).

mod bundles;
mod invites;
mod join;
pub(crate) mod operator;
mod publish;
mod seats;

pub(crate) use bundles::BundleRead;
pub(crate) use invites::Recreated;
pub(crate) use join::CodeTry;

use super::collector::{Sweep, Swept};
use super::keys::{KeysOp, KeysStep};
use super::retention::{Change, Retaining};
use super::wake::WakeOp;
use super::wrap::Wrapping;
use super::{Pending, Posted, RealmState, Shard, ShardMessage, Waiter};
use crate::directory::Directory;
use crate::effects::{CloseHow, CloseReason, Effects, StoreRequest};
use crate::event::ConnId;
use crate::message;
use crate::session::Waiting;
use bytes::Bytes;
use drover_storage::control::{ControlBatch, Outcome};
use drover_storage::{RealmId, StoreError};
use drover_wire::error::{Code, Refusal};
use drover_wire::frame::Frame;
use drover_wire::id::GroupId;
use drover_wire::join as wire_join;

/// The connection a control operation answers to, wherever it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) shard: usize,
    pub(crate) conn: ConnId,
}

/// What a connection asks of a realm that may live on another shard.
#[derive(Debug)]
pub(crate) enum Request {
    /// A JOIN body that decodes, from this source address.
    Join { source: Box<str>, body: Bytes },
    /// An ACCESS state query.
    Query,
    /// An ACCESS publication that decodes; groups named in CONNECT.
    Publish { body: Bytes, groups: Box<[GroupId]> },
}

/// The body of the answering frame.
#[derive(Debug)]
pub(crate) enum Answered {
    Join(Vec<u8>),
    Access(Vec<u8>),
}

pub(crate) type Answer = Result<Answered, Refusal>;

/// The answer of a realm whose state can't be read: come again; an invite's record is simply not served (06 D11).
pub(super) fn unread(request: &Request) -> Answer {
    match request {
        Request::Join { body, .. }
            if matches!(
                wire_join::Request::decode(body),
                Some(wire_join::Request::Record { .. })
            ) =>
        {
            Ok(Answered::Join(
                wire_join::Response::Record { record: &[] }.encode(),
            ))
        }
        _ => Err(Code::Backpressure.into()),
    }
}

/// A control operation in line.
#[derive(Debug)]
pub(crate) enum Op {
    Publish(Box<publish::Publication>),
    Charge(join::Reserve),
    /// The code was not hashed after all: the charge is given back, the joiner told to come again.
    Refund(join::Reserve),
    Seat(join::Reserve),
    Keys(KeysOp),
    Commit(seats::CommitScope),
    Park(seats::SeatRequest),
    Create(Box<invites::Creation>),
    Revoke(invites::Revocation),
    Refresh(invites::Refresh),
    Wrap(Box<Wrapping>),
    Wake(WakeOp),
    Retain(Box<Retaining>),
    /// What time alone ends.
    Sweep(Sweep),
}

impl Op {
    fn origin(&self) -> Option<Origin> {
        match self {
            Op::Publish(publication) => Some(publication.origin),
            Op::Charge(reserve) | Op::Refund(reserve) | Op::Seat(reserve) => Some(reserve.origin),
            Op::Keys(op) => op.origin(),
            Op::Commit(commit) => Some(commit.seat.origin),
            Op::Park(seat) => Some(seat.origin),
            Op::Create(creation) => Some(creation.origin),
            Op::Revoke(revocation) => Some(revocation.origin),
            Op::Refresh(refresh) => Some(refresh.origin),
            Op::Wrap(wrapping) => Some(wrapping.origin),
            Op::Retain(retaining) => Some(retaining.origin),
            Op::Wake(op) => op.origin(),
            Op::Sweep(_) => None,
        }
    }

    /// What whoever waits is told if it comes to nothing.
    fn failure(&self) -> Code {
        match self {
            Op::Wake(_) => Code::PushBackpressure,
            _ => Code::Backpressure,
        }
    }

    /// The realm was dropped: whoever waits comes again.
    pub(super) fn abandon<E: Effects>(self, shard: &mut Shard, fx: &mut E) {
        if let Op::Sweep(_) = self {
            shard.sweep_ended(fx);
        }
        if let Some(origin) = self.origin() {
            shard.send_answer(origin, Err(self.failure().into()), fx);
        }
    }
}

/// What a realm's control operation waits for.
pub(crate) enum Step {
    /// A founder's groups being claimed before the genesis commit.
    Claim(Box<publish::Judged>),
    Publish(Box<publish::Committing>),
    Charge(join::Charged),
    Refund(join::Reserve, crate::records::Attempt),
    Seat(Box<join::Seated>),
    Mint(operator::Minting),
    Keys(KeysStep),
    Committed(Box<seats::Committed>),
    Parked(Box<seats::Parked>),
    /// A large invite record is stored; the invite follows.
    RecordStored(Box<invites::Creation>),
    Created(Box<invites::Creation>),
    Revoked(Box<invites::Revoked>),
    /// A refreshed bundle is stored; the invite that lists it follows.
    BundleStored(Box<invites::Refreshing>),
    Refreshed(Box<invites::Refreshing>),
    ClaimTag(Box<Wrapping>),
    Wrapped(Box<Wrapping>),
    Wake(WakeOp),
    /// A whole record of a retention chain is stored; the one that decides follows.
    ChainStored(Box<Change>),
    ChainChanged(Box<Change>),
    Swept(Box<Swept>),
}

impl Step {
    /// Who waits for it.
    fn origin(&self) -> Option<Origin> {
        match self {
            Step::Publish(committing) => Some(committing.publication.origin),
            Step::Claim(judged) => Some(judged.publication.origin),
            Step::Charge(charged) => Some(charged.reserve.origin),
            Step::Refund(reserve, _) => Some(reserve.origin),
            Step::Seat(seated) => Some(seated.reserve.origin),
            Step::Keys(step) => step.origin(),
            Step::Committed(committed) => Some(committed.commit.seat.origin),
            Step::Parked(parked) => Some(parked.request.origin),
            Step::RecordStored(creation) | Step::Created(creation) => Some(creation.origin),
            Step::Revoked(revoked) => Some(revoked.origin),
            Step::BundleStored(refreshing) | Step::Refreshed(refreshing) => Some(refreshing.origin),
            Step::ClaimTag(wrapping) | Step::Wrapped(wrapping) => Some(wrapping.origin),
            Step::Wake(op) => op.origin(),
            Step::ChainStored(change) | Step::ChainChanged(change) => Some(change.origin),
            Step::Mint(_) | Step::Swept(_) => None,
        }
    }

    /// What they are told if it comes to nothing.
    fn failure(&self) -> Code {
        match self {
            Step::Wake(_) => Code::PushBackpressure,
            _ => Code::Backpressure,
        }
    }
}

impl Shard {
    /// Hands a connection's request to the realm's shard; its next frame waits for the answer.
    pub(super) fn request<E: Effects>(
        &mut self,
        conn: ConnId,
        realm: &RealmId,
        request: Request,
        fx: &mut E,
    ) {
        if let Some(session) = self.session(conn) {
            session.waiting = Waiting::Working;
        }
        let origin = Origin {
            shard: self.index,
            conn,
        };
        let shard = Directory::shard_of(realm, self.config.shards);
        if shard == self.index {
            self.when_loaded(realm, Waiter::Remote { origin, request }, fx);
        } else {
            fx.post(
                shard,
                ShardMessage(Posted::Remote {
                    origin,
                    realm: realm.clone(),
                    request,
                }),
            );
        }
    }

    /// Serves a request; the realm is in memory.
    pub(super) fn serve_request<E: Effects>(
        &mut self,
        slot: u32,
        origin: Origin,
        request: Request,
        fx: &mut E,
    ) {
        match request {
            Request::Query => {
                let state = self.realm_mut(slot).map(|realm| publish::state(realm));
                let answer = state.map(Answered::Access).ok_or(Code::Backpressure.into());
                self.send_answer(origin, answer, fx);
            }
            Request::Publish { body, groups } => self.enqueue_publication(slot, origin, body, groups, fx),
            Request::Join { source, body } => self.serve_join(slot, origin, &source, &body, fx),
        }
    }

    pub(super) fn send_answer<E: Effects>(&mut self, origin: Origin, answer: Answer, fx: &mut E) {
        if origin.shard == self.index {
            self.receive_answer(origin.conn, answer, fx);
        } else {
            fx.post(
                origin.shard,
                ShardMessage(Posted::Answer {
                    conn: origin.conn,
                    answer,
                }),
            );
        }
    }

    pub(super) fn receive_answer<E: Effects>(&mut self, conn: ConnId, answer: Answer, fx: &mut E) {
        match answer {
            Ok(Answered::Join(body)) => self.answered(conn, message::frame(&Frame::Join { body: &body }), fx),
            Ok(Answered::Access(body)) => {
                self.answered(conn, message::frame(&Frame::Access { body: &body }), fx)
            }
            Err(refusal) => self.answered_refusal(conn, refusal, fx),
        }
    }

    // ---- the line

    pub(super) fn enqueue<E: Effects>(&mut self, slot: u32, op: Op, fx: &mut E) {
        match self.realm_mut(slot) {
            Some(realm) => realm.ops.push_back(op),
            None => return op.abandon(self, fx),
        }
        self.run_ops(slot, fx);
    }

    /// Starts operations until one waits for the store.
    pub(super) fn run_ops<E: Effects>(&mut self, slot: u32, fx: &mut E) {
        while let Some(realm) = self.realm_mut(slot).filter(|r| !r.busy) {
            let Some(op) = realm.ops.pop_front() else { return };
            match op {
                Op::Publish(publication) => self.start_publication(slot, *publication, fx),
                Op::Charge(reserve) => self.start_charge(slot, reserve, fx),
                Op::Refund(reserve) => self.start_refund(slot, reserve, fx),
                Op::Seat(reserve) => self.start_seat(slot, reserve, fx),
                Op::Keys(op) => self.start_keys(slot, op, fx),
                Op::Commit(commit) => self.start_commit(slot, commit, fx),
                Op::Park(seat) => self.start_park(slot, &seat, fx),
                Op::Create(creation) => self.start_creation(slot, creation, fx),
                Op::Revoke(revocation) => self.start_revocation(slot, revocation, fx),
                Op::Refresh(refresh) => self.start_refresh(slot, refresh, fx),
                Op::Wrap(wrapping) => self.start_wrap(slot, wrapping, fx),
                Op::Wake(op) => self.start_wake(slot, op, fx),
                Op::Sweep(step) => self.start_sweep(slot, step, fx),
                Op::Retain(retaining) => self.start_retaining(slot, retaining, fx),
            }
        }
    }

    /// Commits for a realm; no other operation of it starts before the answer.
    pub(super) fn commit<E: Effects>(&mut self, slot: u32, batch: ControlBatch, step: Step, fx: &mut E) {
        let partition = self.realms[slot as usize].id.clone();
        self.commit_to(slot, partition, batch, step, fx);
    }

    /// The same in a partition that holds a realm's larger values.
    pub(super) fn commit_to<E: Effects>(
        &mut self,
        slot: u32,
        partition: RealmId,
        batch: ControlBatch,
        step: Step,
        fx: &mut E,
    ) {
        if let Some(realm) = self.realm_mut(slot) {
            realm.busy = true;
        }
        let ticket = self.ticket(Pending::Control { realm: slot, step });
        fx.store(ticket, StoreRequest::Commit(partition, batch));
    }

    /// Whether the realm was given up while this step was under way. Nobody here knows what it was decided on any
    /// more: who asked comes again, and the realm may be read now.
    fn was_given_up<E: Effects>(&mut self, slot: u32, step: &Step, fx: &mut E) -> bool {
        let waits = step.origin().map(|origin| (origin, step.failure()));
        let given_up = self.is_given_up(slot, waits, fx);
        if given_up && matches!(step, Step::Swept(_)) {
            self.sweep_ended(fx);
        }
        given_up
    }

    /// The same for an operation that was still reading.
    pub(super) fn is_given_up<E: Effects>(
        &mut self,
        slot: u32,
        waits: Option<(Origin, Code)>,
        fx: &mut E,
    ) -> bool {
        let given_up = std::mem::take(&mut self.realms[slot as usize].is_committing);
        if given_up {
            if let Some((origin, failure)) = waits {
                self.send_answer(origin, Err(failure.into()), fx);
            }
            self.load_deferred(fx);
        }
        given_up
    }

    pub(super) fn control_committed<E: Effects>(
        &mut self,
        slot: u32,
        step: Step,
        result: Result<Outcome, StoreError>,
        fx: &mut E,
    ) {
        let step = match step {
            Step::Mint(minting) => return self.minted(slot, minting, result, fx),
            other => other,
        };
        if self.was_given_up(slot, &step, fx) {
            return;
        }
        if let Some(realm) = self.realm_mut(slot) {
            realm.busy = false;
        }
        match result {
            Ok(Outcome::Applied) => match step {
                Step::Publish(committing) => self.published(slot, *committing, fx),
                Step::Charge(charged) => self.charged(slot, charged, fx),
                Step::Refund(reserve, attempt) => self.refunded(slot, &reserve, attempt, fx),
                Step::Seat(seated) => self.seated(slot, *seated, fx),
                Step::Keys(step) => self.keys_committed(slot, step, fx),
                Step::Committed(committed) => self.committed(slot, *committed, fx),
                Step::Parked(parked) => self.parked(slot, *parked, fx),
                Step::RecordStored(creation) => self.commit_invite(slot, creation, fx),
                Step::Created(creation) => self.created(slot, *creation, fx),
                Step::Revoked(revoked) => self.revoked(slot, *revoked, fx),
                Step::BundleStored(refreshing) => self.commit_refresh(slot, refreshing, fx),
                Step::Refreshed(refreshing) => self.refreshed(slot, *refreshing, fx),
                Step::Wrapped(wrapping) => self.wrapped(&wrapping, fx),
                Step::Wake(op) => self.wake_committed(slot, op, fx),
                Step::Swept(swept) => self.swept(slot, *swept, fx),
                Step::ChainStored(change) => self.commit_change(slot, change, fx),
                Step::ChainChanged(change) => self.chain_changed(slot, *change, fx),
                Step::ClaimTag(_) => {}
                Step::Claim(_) | Step::Mint(_) => {}
            },
            // A name that is taken elsewhere: nothing of ours is out of step.
            Ok(Outcome::Refused) if matches!(step, Step::Created(_) | Step::Wake(_)) => match step {
                Step::Created(creation) => self.creation_refused(&creation, fx),
                Step::Wake(op) => self.wake_refused(&op, fx),
                _ => {}
            },
            Ok(Outcome::Refused) | Err(_) => {
                if let Some(origin) = step.origin() {
                    self.send_answer(origin, Err(step.failure().into()), fx);
                }
                // A refused check means that memory and store differ: like an unknown outcome, load it again.
                if result != Err(StoreError::NotCommitted) {
                    self.drop_realm(slot, fx);
                }
                if let Step::Swept(swept) = &step {
                    self.sweep_uncommitted(slot, swept, fx);
                }
            }
        }
        self.run_ops(slot, fx);
    }

    pub(super) fn control_claimed<E: Effects>(
        &mut self,
        slot: u32,
        step: Step,
        result: Result<Vec<RealmId>, StoreError>,
        fx: &mut E,
    ) {
        if self.was_given_up(slot, &step, fx) {
            return;
        }
        if let Some(realm) = self.realm_mut(slot) {
            realm.busy = false;
        }
        match (step, result) {
            (Step::Claim(judged), Ok(owners)) => self.founding_groups_claimed(slot, judged, &owners, fx),
            (Step::ClaimTag(wrapping), Ok(owners)) => self.tag_claimed(slot, wrapping, &owners, fx),
            (Step::Claim(judged), Err(_)) => {
                self.send_answer(judged.publication.origin, Err(Code::Backpressure.into()), fx);
            }
            (Step::ClaimTag(wrapping), Err(_)) => {
                self.send_answer(wrapping.origin, Err(Code::Backpressure.into()), fx);
            }
            _ => {}
        }
        self.run_ops(slot, fx);
    }

    /// Cuts a device off; if it is the one that asked for it, its answer leaves first (W05.18).
    fn evict_or_answer<E: Effects>(&mut self, conn: ConnId, origin: Origin, fx: &mut E) {
        if origin
            == (Origin {
                shard: self.index,
                conn,
            })
        {
            self.detach(conn);
            self.close_when_flushed(conn, CloseHow::Flush, CloseReason::Evicted, fx);
        } else {
            self.evict(conn, fx);
        }
    }

    /// Keeps the directory's knowledge of who is founding this workspace current, and of the invite they need for it.
    pub(super) fn note_founders(&mut self, slot: u32) {
        let (wall_ms, directory) = (self.now.wall_ms, self.directory.clone());
        if let RealmState::Ready(realm) = &self.realms[slot as usize].state {
            let founders = (realm.chain.head.is_none() && realm.is_unspent())
                .then(|| (realm.salt, realm.founders(wall_ms).collect()));
            directory.set_founders(&realm.id, founders);
            directory.set_handoff(&realm.id, realm.handoff.clone());
        }
    }
}
