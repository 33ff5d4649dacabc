//! Control operations: decided on memory, committed atomically, applied and answered once durable. A realm has one
//! under way at a time; the others wait in line (architecture.md §4).

mod join;
pub(crate) mod operator;
mod publish;

pub(crate) use join::CodeTry;

use super::{Pending, Posted, RealmState, Shard, ShardMessage, Waiter};
use crate::directory::Directory;
use crate::effects::{Effects, StoreRequest};
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
}

impl Op {
    fn origin(&self) -> Origin {
        match self {
            Op::Publish(publication) => publication.origin,
            Op::Charge(reserve) | Op::Refund(reserve) | Op::Seat(reserve) => reserve.origin,
        }
    }

    /// The realm was dropped: whoever waits comes again.
    pub(super) fn abandon<E: Effects>(self, shard: &mut Shard, fx: &mut E) {
        shard.send_answer(self.origin(), Err(Code::Backpressure.into()), fx);
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
}

impl Step {
    /// Who is answered.
    fn origin(&self) -> Option<Origin> {
        match self {
            Step::Publish(committing) => Some(committing.publication.origin),
            Step::Claim(judged) => Some(judged.publication.origin),
            Step::Charge(charged) => Some(charged.reserve.origin),
            Step::Refund(reserve, _) => Some(reserve.origin),
            Step::Seat(seated) => Some(seated.reserve.origin),
            Step::Mint(_) => None,
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

    fn enqueue<E: Effects>(&mut self, slot: u32, op: Op, fx: &mut E) {
        match self.realm_mut(slot) {
            Some(realm) => realm.ops.push_back(op),
            None => return op.abandon(self, fx),
        }
        self.run_ops(slot, fx);
    }

    /// Starts operations until one waits for the store.
    fn run_ops<E: Effects>(&mut self, slot: u32, fx: &mut E) {
        while let Some(realm) = self.realm_mut(slot).filter(|r| !r.busy) {
            let Some(op) = realm.ops.pop_front() else { return };
            match op {
                Op::Publish(publication) => self.start_publication(slot, *publication, fx),
                Op::Charge(reserve) => self.start_charge(slot, reserve, fx),
                Op::Refund(reserve) => self.start_refund(slot, reserve, fx),
                Op::Seat(reserve) => self.start_seat(slot, reserve, fx),
            }
        }
    }

    /// Commits for a realm; no other operation of it starts before the answer.
    fn commit<E: Effects>(&mut self, slot: u32, batch: ControlBatch, step: Step, fx: &mut E) {
        if let Some(realm) = self.realm_mut(slot) {
            realm.busy = true;
        }
        let id = self.realms[slot as usize].id.clone();
        let ticket = self.ticket(Pending::Control { realm: slot, step });
        fx.store(ticket, StoreRequest::Commit(id, batch));
    }

    /// Whether the realm was given up while this step was under way. Nobody here knows what it was decided on any
    /// more: who asked comes again, and the realm may be read now.
    fn was_given_up<E: Effects>(&mut self, slot: u32, step: &Step, fx: &mut E) -> bool {
        let given_up = std::mem::take(&mut self.realms[slot as usize].is_committing);
        if given_up {
            if let Some(origin) = step.origin() {
                self.send_answer(origin, Err(Code::Backpressure.into()), fx);
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
                Step::Claim(_) | Step::Mint(_) => {}
            },
            Ok(Outcome::Refused) | Err(_) => {
                if let Some(origin) = step.origin() {
                    self.send_answer(origin, Err(Code::Backpressure.into()), fx);
                }
                // A refused check means that memory and store differ: like an unknown outcome, load it again.
                if result != Err(StoreError::NotCommitted) {
                    self.drop_realm(slot, fx);
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
        if let Step::Claim(judged) = step {
            match result {
                Ok(owners) => self.founding_groups_claimed(slot, judged, &owners, fx),
                Err(_) => self.send_answer(judged.publication.origin, Err(Code::Backpressure.into()), fx),
            }
        }
        self.run_ops(slot, fx);
    }

    /// Keeps the directory's knowledge of who is founding this workspace current.
    pub(super) fn note_founders(&mut self, slot: u32) {
        let (wall_ms, directory) = (self.now.wall_ms, self.directory.clone());
        if let RealmState::Ready(realm) = &self.realms[slot as usize].state {
            let founders = (realm.chain.head.is_none() && realm.is_unspent())
                .then(|| (realm.salt, realm.founders(wall_ms).collect()));
            directory.set_founders(&realm.id, founders);
        }
    }
}
