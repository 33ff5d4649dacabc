//! A client's whole protocol state, without sockets and without a clock: frames, commands and `Instant`s go in; frames,
//! events and answers come out. It outlives connections.
//!
//! | File | Story |
//! | --- | --- |
//! | `ledger` | which answers are due, and whom an ERROR belongs to |
//! | `outbox` | reliable writes: window, resend, patience |
//! | `group` | one group's subscription, replay and reconciliation |

mod group;
mod ledger;
mod outbox;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use drover_wire::error::Code;
use drover_wire::frame::{Frame, Wake};
use drover_wire::id::{GroupId, Hash};
use tokio::sync::{Notify, OwnedSemaphorePermit, oneshot};

use crate::connection::{Incoming, encode, refusal};
use crate::envelope::SealedEnvelope;
use crate::error::{Error, Refusal};
use crate::events::{Event, EventQueue};
use crate::limits::{CONNECT_GROUPS_MAX, REQUESTS_MAX};
use crate::recon::Reconciled;
use crate::store::Store;

use group::{Group, Want};
use ledger::{Due, Ledger, Refused, Settled};
pub(crate) use outbox::Done;
use outbox::{Outbox, Reaction, What, Write, reaction};

/// The first version with WAKE, hence with a request that is always answered.
const BARRIER_VERSION: u16 = 4;

/// Why a connection is to be left.
#[derive(Debug)]
pub(crate) enum Leave {
    /// A group has to be named in CONNECT: connect again at once.
    NameGroups,
    /// The relay broke the protocol, or the store failed.
    Error(Error),
}

impl From<Error> for Leave {
    fn from(error: Error) -> Self {
        Leave::Error(error)
    }
}

/// A request that is not sent yet.
type Request = (Bytes, u8, oneshot::Sender<Result<Incoming, Error>>);

/// Protocol state of a client.
pub(crate) struct Session {
    store: Arc<dyn Store>,
    outbox: Outbox,
    ledger: Ledger,
    groups: HashMap<GroupId, Group>,
    requests: VecDeque<Request>,
    /// Payloads of running reconciliations: sent before anything else.
    rounds: VecDeque<(GroupId, Vec<u8>)>,
    beats: VecDeque<Bytes>,
    fence_wanted: bool,
    /// Named in every CONNECT.
    base: Vec<GroupId>,
    /// To be named in the next one, because the relay did not know them.
    fresh: Vec<GroupId>,
    /// Named in the current one.
    named: HashSet<GroupId>,
    /// Negotiated version; `None` while offline.
    version: Option<u16>,
    /// LIVE was refused: until when it is not sent (for ever when the path is off), and why.
    live_off: Option<(Option<Instant>, Refusal)>,
    /// What the relay said about when to come back.
    retry_after_s: Option<u32>,
    /// Wakes the driver when a reader made room.
    drained: Arc<Notify>,
}

impl Session {
    pub(crate) fn new(store: Arc<dyn Store>, base: Vec<GroupId>, drained: Arc<Notify>) -> Self {
        Self {
            store,
            outbox: Outbox::default(),
            ledger: Ledger::default(),
            groups: HashMap::new(),
            requests: VecDeque::new(),
            rounds: VecDeque::new(),
            beats: VecDeque::new(),
            fence_wanted: false,
            base,
            fresh: Vec::new(),
            named: HashSet::new(),
            version: None,
            live_off: None,
            retry_after_s: None,
            drained,
        }
    }

    // -- commands

    pub(crate) fn send(&mut self, envelope: SealedEnvelope, done: Done, permits: Vec<OwnedSemaphorePermit>) {
        let frame = envelope.send_frame();
        self.outbox
            .push(envelope.group(), What::Envelope(envelope), frame, done, permits);
    }

    pub(crate) fn handshake(
        &mut self,
        group: GroupId,
        message: Bytes,
        done: Done,
        permits: Vec<OwnedSemaphorePermit>,
    ) {
        let frame = encode(&Frame::Handshake {
            group,
            seq: 0,
            message: &message,
        });
        self.outbox
            .push(group, What::Handshake(message), frame, done, permits);
    }

    /// LIVE: sent now or never.
    pub(crate) fn live(&mut self, group: GroupId, epoch: u64, ct: &[u8], now: Instant) -> Result<(), Error> {
        if self.version.is_none() {
            return Err(Error::Lost);
        }
        if let Some((until, why)) = &self.live_off {
            if until.is_none_or(|until| until > now) {
                return Err(Error::Refused(why.clone()));
            }
            self.live_off = None;
        }
        if self.beats.len() >= REQUESTS_MAX {
            return Err(Error::Timeout);
        }
        self.beats.push_back(encode(&Frame::Live { group, epoch, ct }));
        Ok(())
    }

    pub(crate) fn subscribe(&mut self, id: GroupId, floor: u64) -> Result<Arc<EventQueue>, Error> {
        let group = self
            .groups
            .entry(id)
            .or_insert_with(|| Group::new(id, &*self.store));
        if group.queue.as_ref().is_some_and(|queue| !queue.is_abandoned()) {
            return Err(Error::AlreadySubscribed);
        }
        let queue = Arc::new(EventQueue::new(self.drained.clone()));
        group.subscribe(queue.clone(), floor);
        Ok(queue)
    }

    pub(crate) fn reconcile(&mut self, id: GroupId, done: oneshot::Sender<Result<Reconciled, Error>>) {
        let group = self
            .groups
            .entry(id)
            .or_insert_with(|| Group::new(id, &*self.store));
        group.waiters.push(done);
        group.want_recon();
    }

    pub(crate) fn request(&mut self, frame: Bytes, tag: u8, done: oneshot::Sender<Result<Incoming, Error>>) {
        if self.requests.len() >= REQUESTS_MAX {
            let _ = done.send(Err(Error::Invalid("too many requests at once")));
        } else {
            self.requests.push_back((frame, tag, done));
        }
    }

    // -- connections

    /// What the next CONNECT is to name.
    pub(crate) fn connect_groups(&mut self) -> Vec<GroupId> {
        let fresh: Vec<_> = self
            .fresh
            .iter()
            .copied()
            .filter(|group| !self.base.contains(group))
            .collect();
        let mut groups = self.base.clone();
        groups.truncate(CONNECT_GROUPS_MAX - fresh.len());
        groups.extend(fresh);
        self.named = groups.iter().copied().collect();
        groups
    }

    pub(crate) fn connected(&mut self, version: u16) {
        self.version = Some(version);
        self.fresh.clear();
        self.retry_after_s = None;
    }

    /// The connection is gone; returns what the relay said about when to come back.
    pub(crate) fn disconnected(&mut self) -> Option<u32> {
        self.version = None;
        for due in self.ledger.clear() {
            if let Due::Request { done, .. } = due {
                let _ = done.send(Err(Error::Lost));
            }
        }
        self.outbox.disconnected();
        self.rounds.clear();
        self.beats.clear();
        self.fence_wanted = false;
        self.groups.values_mut().for_each(Group::disconnected);
        self.groups.retain(|_, group| !group.is_idle());
        self.retry_after_s.take()
    }

    /// The client stops: everyone who waits learns why.
    pub(crate) fn stop(&mut self, why: &Error) {
        self.disconnected();
        for (_, _, done) in self.requests.drain(..) {
            let _ = done.send(Err(why.clone()));
        }
        for write in self.outbox.drain() {
            write.settle(Err(why.clone()));
        }
        self.groups.values_mut().for_each(|group| group.fail(why.clone()));
        self.groups.clear();
    }

    /// Whether an answer is due.
    pub(crate) fn awaits_answer(&self) -> bool {
        self.ledger.awaits_answer()
    }

    /// The next moment at which [`Session::poll_transmit`] may have something to say without a new input.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.groups
            .values()
            .filter_map(Group::deadline)
            .chain(self.outbox.deadline())
            .min()
    }

    /// Until when reading should pause, because a reader is full and may yet catch up.
    pub(crate) fn pause_until(&mut self, now: Instant) -> Option<Instant> {
        self.groups
            .values_mut()
            .filter_map(|group| group.pause_until(now))
            .max()
    }

    // -- sending

    /// The next message to send, if any.
    pub(crate) fn poll_transmit(&mut self, now: Instant) -> Option<Bytes> {
        let barriers = self.version? >= BARRIER_VERSION;
        if let Some((group, payload)) = self.rounds.pop_front() {
            self.ledger.push(Due::Recon(group));
            return Some(encode(&Frame::Recon {
                group,
                payload: &payload,
            }));
        }
        if std::mem::take(&mut self.fence_wanted) {
            self.ledger.push(Due::Fence);
            return Some(encode(&Frame::Wake(Wake::Query)));
        }
        for group in self.groups.values_mut() {
            let id = group.id;
            match group.next(&*self.store, barriers, now) {
                Some(Want::Sub { from }) => {
                    self.ledger.push(Due::Sub(id));
                    return Some(encode(&Frame::Sub {
                        group: id,
                        from_seq: from,
                    }));
                }
                Some(Want::Barrier) => {
                    self.ledger.push(Due::Barrier(id));
                    return Some(encode(&Frame::Wake(Wake::Query)));
                }
                Some(Want::Recon { payload }) => {
                    self.ledger.push(Due::Recon(id));
                    return Some(encode(&Frame::Recon {
                        group: id,
                        payload: &payload,
                    }));
                }
                None => {}
            }
            while self.outbox.has_window() {
                let Some(envelope) = group.next_offer(&*self.store) else {
                    break;
                };
                let frame = envelope.send_frame();
                self.outbox
                    .push(id, What::Envelope(envelope), frame, Done::Offer, Vec::new());
            }
        }
        if self.ledger.len() < 4 * REQUESTS_MAX
            && let Some((frame, tag, done)) = self.requests.pop_front()
        {
            self.ledger.push(Due::Request { tag, done });
            return Some(frame);
        }
        if let Some(beat) = self.beats.pop_front() {
            self.ledger.push(Due::Beat);
            return Some(beat);
        }
        let (id, frame) = self.outbox.next(now)?;
        self.ledger.push(Due::Write(id));
        Some(frame)
    }

    // -- receiving

    /// Takes one received message.
    pub(crate) fn receive(&mut self, incoming: &Incoming, now: Instant) -> Result<(), Leave> {
        match incoming.frame()? {
            Frame::Push { envelope } => {
                // An envelope with a wrong address is not worth the connection: the relay would send it again.
                if let Ok(envelope) = SealedEnvelope::from_push(&incoming.share(envelope))
                    && let Some(group) = self.groups.get_mut(&envelope.group())
                {
                    group.push(envelope, &*self.store)?;
                }
            }
            Frame::SendAck { hash, seq } => self.send_ack(hash, seq, now)?,
            Frame::Handshake { group, seq, message } => {
                self.handshake_came(group, seq, incoming.share(message), now)?;
            }
            Frame::SubAck { group, head_seq } => {
                let barriers = self.version.is_some_and(|version| version >= BARRIER_VERSION);
                let answered = self
                    .settle(|due| matches!(due, Due::Sub(id) if *id == group), now)?
                    .is_some();
                if let Some(group) = self.groups.get_mut(&group) {
                    group.sub_ack(answered, head_seq, barriers);
                }
            }
            Frame::Recon { group, payload } => {
                self.settle(|due| matches!(due, Due::Recon(id) if *id == group), now)?
                    .ok_or(Error::Protocol("RECON not asked for"))?;
                let ranges =
                    drover_wire::recon::decode(payload).map_err(|_| Error::Protocol("undecodable RECON"))?;
                if let Some(group) = self.groups.get_mut(&group)
                    && let Some(payload) = group.recon_answer(ranges, &*self.store)
                {
                    self.rounds.push_back((group.id, payload));
                }
            }
            Frame::Wake(Wake::Capability { .. }) => {
                let hit =
                    |due: &Due| matches!(due, Due::Barrier(_) | Due::Fence | Due::Request { tag: 25, .. });
                // Unasked is legal: a barrier whose replay failed was settled by that failure.
                match self.settle(hit, now)? {
                    Some(Due::Barrier(group)) => {
                        if let Some(group) = self.groups.get_mut(&group) {
                            group.replayed(false);
                        }
                    }
                    Some(Due::Request { done, .. }) => {
                        let _ = done.send(Ok(incoming.clone()));
                    }
                    _ => {}
                }
            }
            Frame::Live { group, epoch, ct } => {
                if let Some(group) = self.groups.get_mut(&group) {
                    group.unstored(Event::Live {
                        epoch,
                        ct: incoming.share(ct),
                    });
                }
            }
            Frame::Call {
                call_id,
                group,
                epoch,
                kind,
                body,
            } => {
                if let Some(group) = self.groups.get_mut(&group) {
                    group.unstored(Event::Call {
                        call_id,
                        epoch,
                        kind,
                        body: incoming.share(body),
                    });
                }
            }
            // Calls are driven on a connection of their own ([`crate::Call`]).
            Frame::Media { .. } => {}
            Frame::Error { .. } => {
                if let Some(refusal) = refusal(incoming) {
                    self.refused(refusal, now)?;
                }
            }
            Frame::Bye { .. } => return Err(Error::Closed { code: None }.into()),
            other => {
                let answer = other.tag();
                match self.settle(
                    |due| matches!(due, Due::Request { tag, .. } if *tag == answer),
                    now,
                )? {
                    Some(Due::Request { done, .. }) => {
                        let _ = done.send(Ok(incoming.clone()));
                    }
                    _ => return Err(Error::Protocol("answer without a request").into()),
                }
            }
        }
        Ok(())
    }

    /// Settles the request an answer belongs to, and those that turn out to have been refused before it.
    fn settle(&mut self, hit: impl Fn(&Due) -> bool, now: Instant) -> Result<Option<Due>, Leave> {
        match self.ledger.settle(hit) {
            Settled::Hit(due, refused) => {
                for (due, refusal) in refused {
                    self.refuse(due, refusal, now)?;
                }
                Ok(Some(due))
            }
            Settled::Unsolicited => Ok(None),
        }
    }

    fn send_ack(&mut self, hash: Hash, seq: u64, now: Instant) -> Result<(), Leave> {
        let due = self.ledger_hit(
            now,
            |write| matches!(&write.what, What::Envelope(e) if e.hash() == hash),
        )?;
        let Some(Due::Write(id)) = due else {
            return Err(Error::Protocol("SEND_ACK without a SEND").into());
        };
        let Some(write) = self.outbox.take(id) else {
            return Ok(());
        };
        self.outbox.accepted();
        if let What::Envelope(envelope) = &write.what {
            self.store
                .put(envelope.clone().with_seq(seq))
                .map_err(Error::Store)?;
        }
        if let Some(group) = self.groups.get_mut(&write.group) {
            group.acknowledged(seq);
        }
        self.offer_settled(&write, true);
        write.settle(Ok(seq));
        Ok(())
    }

    /// The acknowledgement of an own handshake, or a delivered one: the same shape, told apart by what is due next.
    fn handshake_came(&mut self, id: GroupId, seq: u64, message: Bytes, now: Instant) -> Result<(), Leave> {
        let due = self.ledger_hit(now, |write| {
            write.group == id && matches!(&write.what, What::Handshake(own) if *own == message)
        })?;
        if let Some(Due::Write(number)) = due
            && let Some(write) = self.outbox.take(number)
        {
            self.outbox.accepted();
            write.settle(Ok(seq));
        }
        if let Some(group) = self.groups.get_mut(&id) {
            group.handshake(seq, message, &*self.store, now)?;
        }
        Ok(())
    }

    fn ledger_hit(&mut self, now: Instant, is: impl Fn(&Write) -> bool) -> Result<Option<Due>, Leave> {
        let outbox = &self.outbox;
        let hit = |due: &Due| matches!(due, Due::Write(id) if outbox.get(*id).is_some_and(&is));
        match self.ledger.settle(hit) {
            Settled::Hit(due, refused) => {
                for (due, refusal) in refused {
                    self.refuse(due, refusal, now)?;
                }
                Ok(Some(due))
            }
            Settled::Unsolicited => Ok(None),
        }
    }

    fn offer_settled(&mut self, write: &Write, accepted: bool) {
        if let Some(hash) = write.offered()
            && let Some(group) = self.groups.get_mut(&write.group)
            && let Some(payload) = group.offer_settled(hash, accepted, &*self.store)
        {
            self.rounds.push_back((group.id, payload));
        }
    }

    // -- refusals

    fn refused(&mut self, refusal: Refusal, now: Instant) -> Result<(), Leave> {
        if refusal.code == Code::Failover {
            // About the connection, whatever is in flight: the close follows, and everything is sent again.
            self.retry_after_s = Some(refusal.retry_after_s);
            return Ok(());
        }
        match self.ledger.refuse(&refusal) {
            Refused::Request(due) => self.refuse(due, refusal, now),
            Refused::Beat { fence } => {
                let until = match refusal.code {
                    Code::ProtocolUnsupported => None,
                    _ => Some(now + std::time::Duration::from_secs(u64::from(refusal.retry_after_s).max(1))),
                };
                self.live_off = Some((until, refusal));
                if fence {
                    if self.version.is_none_or(|version| version < BARRIER_VERSION) {
                        return Err(Error::Protocol("refusal of an unknown frame").into());
                    }
                    self.fence_wanted = true;
                }
                Ok(())
            }
            // A deadline (02 §2); the close follows.
            Refused::Nobody => {
                self.retry_after_s = Some(refusal.retry_after_s).filter(|seconds| *seconds > 0);
                Ok(())
            }
        }
    }

    fn refuse(&mut self, due: Due, refusal: Refusal, now: Instant) -> Result<(), Leave> {
        match due {
            Due::Write(id) => self.refuse_write(id, refusal, now),
            Due::Sub(id) => self.refuse_group(id, refusal, false, now),
            Due::Recon(id) => self.refuse_group(id, refusal, true, now),
            // Within a replay: the relay's store failed (02 §8).
            Due::Barrier(id) => self.refuse_group(id, refusal, false, now),
            Due::Request { done, .. } => {
                let _ = done.send(Err(Error::Refused(refusal)));
                Ok(())
            }
            Due::Fence | Due::Beat => Ok(()),
        }
    }

    fn refuse_write(&mut self, id: u64, refusal: Refusal, now: Instant) -> Result<(), Leave> {
        let Some(group) = self.outbox.get(id).map(|write| write.group) else {
            return Ok(());
        };
        match reaction(&refusal) {
            Reaction::Again => self.outbox.again(id, Some(&refusal), now),
            Reaction::NameGroup if self.name(group) => {
                self.outbox.again(id, None, now);
                return Err(Leave::NameGroups);
            }
            Reaction::NameGroup | Reaction::Fail => {
                if let Some(write) = self.outbox.take(id) {
                    self.offer_settled(&write, false);
                    write.settle(Err(Error::Refused(refusal)));
                }
            }
        }
        Ok(())
    }

    fn refuse_group(
        &mut self,
        id: GroupId,
        refusal: Refusal,
        recon: bool,
        now: Instant,
    ) -> Result<(), Leave> {
        let verdict = match reaction(&refusal) {
            Reaction::NameGroup if self.name(id) => Reaction::NameGroup,
            Reaction::NameGroup => Reaction::Fail,
            verdict => verdict,
        };
        let Some(group) = self.groups.get_mut(&id) else {
            return Ok(());
        };
        match verdict {
            Reaction::Again => group.wait(Some(&refusal), recon, now),
            Reaction::NameGroup => {
                group.wait(None, recon, now);
                return Err(Leave::NameGroups);
            }
            // Denied, or a defect of one side that a new connection won't mend.
            Reaction::Fail => {
                group.fail(Error::Refused(refusal));
                self.groups.remove(&id);
            }
        }
        Ok(())
    }

    /// Has a group named in the next CONNECT; `false` when the current one named it already.
    fn name(&mut self, group: GroupId) -> bool {
        if self.named.contains(&group) || self.fresh.len() >= CONNECT_GROUPS_MAX / 2 {
            return false;
        }
        if !self.fresh.contains(&group) {
            self.fresh.push(group);
        }
        true
    }
}
