//! One group on one client: subscription, replay, de-duplication, reconciliation.
//!
//! After SUB the relay replays a bounded part of the log without an end marker (02 §8), so a barrier (a WAKE query,
//! answered in order) follows at once. Its answer shows whether the replay reached the head that SUB_ACK named. A group
//! that held something before always reconciles: cursors have gaps, own writes are never pushed back and deployed
//! relays may reorder, so a cursor alone proves nothing. That costs one round when nothing is missing.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use drover_wire::id::{GroupId, Hash};
use drover_wire::recon::Range;
use tokio::sync::oneshot;

use crate::backoff::Backoff;
use crate::envelope::SealedEnvelope;
use crate::error::{Error, Refusal};
use crate::events::{Event, EventQueue};
use crate::limits::QUEUE_GRACE;
use crate::recon::{Next, Reconciled, Reconciler};
use crate::store::Store;

/// How long a gap in handshake numbers waits before the log is replayed.
const GAP_WAIT: Duration = Duration::from_secs(1);

/// The subscription on the current connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sub {
    /// None.
    Off,
    /// SUB is to be sent.
    Wanted,
    /// SUB is in flight.
    Asked { from: u64 },
    /// Acknowledged; the barrier's answer ends the replay. `top` is the highest cursor up to `head` seen in it.
    Replaying { from: u64, head: u64, top: u64 },
    /// Live.
    On,
}

/// The reconciliation, at most one at a time.
#[derive(Debug)]
enum Recon {
    Idle,
    Wanted,
    /// A round is in flight.
    Round(Reconciler),
    /// Envelopes the relay lacks are being sent: those in the outbox, and those still to be put there.
    Offering {
        reconciler: Reconciler,
        sent: HashSet<Hash>,
        rest: VecDeque<Hash>,
    },
}

/// What a group wants to send.
#[derive(Debug)]
pub(super) enum Want {
    Sub { from: u64 },
    Barrier,
    Recon { payload: Vec<u8> },
}

#[derive(Debug)]
pub(super) struct Group {
    pub(super) id: GroupId,
    pub(super) queue: Option<Arc<EventQueue>>,
    /// Envelopes below it are never asked for.
    floor: u64,
    cursor: u64,
    next_handshake: u64,
    sub: Sub,
    barrier_wanted: bool,
    recon: Recon,
    /// A RECON frame is in flight, whether its answer is still of use or not.
    recon_in_flight: bool,
    /// Something was skipped while a reconciliation ran, so another has to follow.
    recon_again: bool,
    pub(super) waiters: Vec<oneshot::Sender<Result<Reconciled, Error>>>,
    /// Reading the log through with SUB from this cursor, because reconciliation did not end.
    paging: Option<u64>,
    /// The reader could not keep up: everything is skipped until it has room.
    lagging: bool,
    full_since: Option<Instant>,
    hold_until: Option<Instant>,
    backoff: Backoff,
}

impl Group {
    pub(super) fn new(id: GroupId, store: &dyn Store) -> Self {
        Self {
            id,
            queue: None,
            floor: 0,
            cursor: store.cursor(id),
            next_handshake: store.handshakes(id),
            sub: Sub::Off,
            barrier_wanted: false,
            recon: Recon::Idle,
            recon_in_flight: false,
            recon_again: false,
            waiters: Vec::new(),
            paging: None,
            lagging: false,
            full_since: None,
            hold_until: None,
            backoff: Backoff::default(),
        }
    }

    /// A reader subscribes; `floor` is the lowest cursor of interest.
    pub(super) fn subscribe(&mut self, queue: Arc<EventQueue>, floor: u64) {
        self.queue = Some(queue);
        self.floor = floor;
        self.lagging = false;
        self.full_since = None;
        self.sub = Sub::Wanted;
    }

    pub(super) fn want_recon(&mut self) {
        match self.recon {
            Recon::Idle => self.recon = Recon::Wanted,
            Recon::Wanted => {}
            Recon::Round(_) | Recon::Offering { .. } => self.recon_again = true,
        }
    }

    /// Whether nobody is interested any more.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_none()
            && self.waiters.is_empty()
            && !self.recon_in_flight
            && !self.barrier_wanted
            && matches!(self.recon, Recon::Idle)
            && matches!(self.sub, Sub::Off | Sub::On)
    }

    fn is_roomy(&self) -> bool {
        self.queue.as_ref().is_none_or(|queue| queue.is_roomy())
    }

    fn emit(&self, event: Event) {
        if let Some(queue) = &self.queue {
            queue.push(event);
        }
    }

    // -- sending

    /// The next frame this group wants to send now.
    pub(super) fn next(&mut self, store: &dyn Store, barriers: bool, now: Instant) -> Option<Want> {
        if self.queue.as_ref().is_some_and(|queue| queue.is_abandoned()) {
            self.queue = None;
            self.lagging = false;
        }
        if self.barrier_wanted {
            self.barrier_wanted = false;
            return Some(Want::Barrier);
        }
        self.hold_until = self.hold_until.filter(|until| *until > now);
        if self.hold_until.is_some() || !self.is_roomy() {
            return None;
        }
        if self.lagging && matches!(self.sub, Sub::On | Sub::Off) {
            // A replay brings the handshakes that were skipped, and a reconciliation the envelopes.
            self.lagging = false;
            self.sub = Sub::Wanted;
        }
        if self.sub == Sub::Wanted {
            // Inclusive: asking for the last one held again makes SUB_ACK name the true head.
            let from = self.paging.unwrap_or(self.cursor).max(self.floor);
            self.sub = Sub::Asked { from };
            self.barrier_wanted = barriers;
            return Some(Want::Sub { from });
        }
        if matches!(self.recon, Recon::Wanted)
            && !self.recon_in_flight
            && self.paging.is_none()
            && matches!(self.sub, Sub::On | Sub::Off)
        {
            let mut reconciler = Reconciler::new(self.floor);
            let payload = reconciler.open(&store.items(self.id));
            self.recon = Recon::Round(reconciler);
            self.recon_in_flight = true;
            return Some(Want::Recon { payload });
        }
        None
    }

    /// The next envelope to offer, if any is left.
    pub(super) fn next_offer(&mut self, store: &dyn Store) -> Option<SealedEnvelope> {
        let Recon::Offering { sent, rest, .. } = &mut self.recon else {
            return None;
        };
        while let Some(hash) = rest.pop_front() {
            if let Some(envelope) = store.envelope(self.id, &hash) {
                sent.insert(hash);
                return Some(envelope);
            }
        }
        None
    }

    /// When [`Group::next`] may have something to say again.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.hold_until
    }

    // -- the reader

    /// Until when reading the socket should pause so that a full reader may catch up.
    pub(super) fn pause_until(&mut self, now: Instant) -> Option<Instant> {
        let full = !self.lagging
            && self
                .queue
                .as_ref()
                .is_some_and(|q| q.is_full() && !q.is_abandoned());
        if !full {
            self.full_since = None;
            return None;
        }
        let until = *self.full_since.get_or_insert(now) + QUEUE_GRACE;
        (until > now).then_some(until)
    }

    fn lag(&mut self) {
        if !std::mem::replace(&mut self.lagging, true) {
            self.emit(Event::Downgraded);
            self.want_recon();
        }
    }

    // -- receiving

    /// SUB_ACK: the answer to a SUB, or unasked: the relay skipped something (02 §9).
    pub(super) fn sub_ack(&mut self, answered: bool, head: u64, barriers: bool) {
        match self.sub {
            Sub::Asked { from } if answered => {
                self.backoff.reset();
                self.sub = Sub::Replaying { from, head, top: 0 };
                if !barriers {
                    self.replayed(true);
                }
            }
            _ => {
                self.emit(Event::Downgraded);
                self.want_recon();
            }
        }
    }

    /// The barrier was answered, or there is none (`unsure`): the replay is over.
    pub(super) fn replayed(&mut self, unsure: bool) {
        let Sub::Replaying { from, head, top } = self.sub else {
            return;
        };
        self.sub = Sub::On;
        let held = unsure || from > self.floor;
        let behind = head > top && head > from;
        if let Some(page) = self.paging {
            if behind {
                // At least one envelope came, or the relay had no room: the same page again, later.
                self.paging = Some(if top > 0 { top + 1 } else { page });
                self.sub = Sub::Wanted;
                return;
            }
            self.paging = None;
            self.finish(Reconciled {
                fell_back: true,
                ..Reconciled::default()
            });
        } else if behind || held || !matches!(self.recon, Recon::Idle) {
            self.want_recon();
        } else {
            self.emit(Event::CaughtUp);
        }
    }

    /// A PUSH of this group.
    pub(super) fn push(&mut self, envelope: SealedEnvelope, store: &dyn Store) -> Result<(), Error> {
        let (seq, hash) = (envelope.seq(), envelope.hash());
        if let Sub::Replaying { head, top, .. } = &mut self.sub
            && seq <= *head
        {
            *top = (*top).max(seq);
        }
        let working = self.paging.is_some() || matches!(self.recon, Recon::Round(_));
        if self.lagging || (self.queue.is_none() && !working) {
            return Ok(());
        }
        match store.seq_of(self.id, &hash) {
            Some(held) if held == seq => {}
            Some(_) => store.put(envelope).map_err(Error::Store)?,
            None => {
                if self.queue.as_ref().is_some_and(|queue| queue.is_full()) {
                    self.lag();
                    return Ok(());
                }
                store.put(envelope.clone()).map_err(Error::Store)?;
                if let Recon::Round(reconciler) = &mut self.recon {
                    reconciler.received += 1;
                }
                self.emit(Event::Envelope(envelope));
            }
        }
        self.cursor = self.cursor.max(seq);
        Ok(())
    }

    /// An own envelope was acknowledged; it is never pushed to its writer.
    pub(super) fn acknowledged(&mut self, seq: u64) {
        self.cursor = self.cursor.max(seq);
    }

    /// A HANDSHAKE: delivered, replayed, or the acknowledgement of an own one.
    pub(super) fn handshake(
        &mut self,
        seq: u64,
        message: Bytes,
        store: &dyn Store,
        now: Instant,
    ) -> Result<(), Error> {
        let Some(queue) = &self.queue else { return Ok(()) };
        if self.lagging || seq < self.next_handshake {
            return Ok(());
        }
        if seq > self.next_handshake {
            // A replay still running brings what is missing; otherwise one has to be asked for.
            if self.sub == Sub::On {
                self.sub = Sub::Wanted;
                self.hold_until = Some(now + GAP_WAIT);
            }
            return Ok(());
        }
        if queue.is_full() {
            self.lag();
            return Ok(());
        }
        self.next_handshake = seq + 1;
        store
            .set_handshakes(self.id, self.next_handshake)
            .map_err(Error::Store)?;
        self.emit(Event::Handshake { seq, message });
        Ok(())
    }

    /// An unstored frame: shed when the reader has no room.
    pub(super) fn unstored(&mut self, event: Event) {
        if !self.lagging {
            self.emit(event);
        }
    }

    /// The relay's answer to a round; `Some` is the next payload.
    pub(super) fn recon_answer(&mut self, ranges: Vec<Range>, store: &dyn Store) -> Option<Vec<u8>> {
        self.recon_in_flight = false;
        if self.lagging {
            // Pushes were skipped: start over once the reader has room.
            self.recon = Recon::Wanted;
            return None;
        }
        let Recon::Round(mut reconciler) = std::mem::replace(&mut self.recon, Recon::Idle) else {
            self.want_recon();
            return None;
        };
        let next = reconciler.answered(&store.items(self.id), ranges);
        self.proceed(reconciler, next, store)
    }

    /// An offer was acknowledged, refused for good, or is gone.
    pub(super) fn offer_settled(&mut self, hash: Hash, accepted: bool, store: &dyn Store) -> Option<Vec<u8>> {
        let Recon::Offering { reconciler, sent, .. } = &mut self.recon else {
            return None;
        };
        if sent.remove(&hash) {
            reconciler.sent += u64::from(accepted);
        }
        self.offers_settled(store)
    }

    /// Goes on when every offer is settled.
    pub(super) fn offers_settled(&mut self, store: &dyn Store) -> Option<Vec<u8>> {
        match &self.recon {
            Recon::Offering { sent, rest, .. } if sent.is_empty() && rest.is_empty() => {}
            _ => return None,
        }
        let Recon::Offering { mut reconciler, .. } = std::mem::replace(&mut self.recon, Recon::Idle) else {
            return None;
        };
        let next = reconciler.offered(&store.items(self.id));
        self.proceed(reconciler, next, store)
    }

    fn proceed(&mut self, reconciler: Reconciler, next: Next, store: &dyn Store) -> Option<Vec<u8>> {
        match next {
            Next::Offer(hashes) => {
                self.recon = Recon::Offering {
                    reconciler,
                    sent: HashSet::new(),
                    rest: hashes.into(),
                };
                // Nothing to offer after all when the bytes of every envelope are gone.
                if let Recon::Offering { rest, .. } = &mut self.recon {
                    rest.retain(|hash| store.envelope(self.id, hash).is_some());
                }
                return self.offers_settled(store);
            }
            Next::Round(payload) => {
                self.recon = Recon::Round(reconciler);
                self.recon_in_flight = true;
                return Some(payload);
            }
            Next::Done => self.finish(reconciler.summary()),
            Next::GiveUp => {
                self.recon = Recon::Idle;
                self.paging = Some(self.floor);
                self.sub = Sub::Wanted;
            }
        }
        None
    }

    fn finish(&mut self, done: Reconciled) {
        self.recon = Recon::Idle;
        if std::mem::take(&mut self.recon_again) {
            self.recon = Recon::Wanted;
            return;
        }
        self.emit(Event::CaughtUp);
        for waiter in self.waiters.drain(..) {
            let _ = waiter.send(Ok(done));
        }
    }

    // -- failure

    /// SUB or RECON was refused in a way that passes: it is repeated after a wait.
    pub(super) fn wait(&mut self, refusal: Option<&Refusal>, was_recon: bool, now: Instant) {
        let asked = refusal
            .map(|refusal| refusal.retry_after_s)
            .filter(|seconds| *seconds > 0);
        self.hold_until = Some(now + self.backoff.next(asked));
        if was_recon {
            self.recon_in_flight = false;
            self.recon = Recon::Wanted;
        } else if self.sub != Sub::Off {
            // Also when the relay failed within a replay (02 §8): the replay has to be repeated.
            self.sub = Sub::Wanted;
            self.barrier_wanted = false;
        }
    }

    /// Subscription and reconciliation end for this reason.
    pub(super) fn fail(&mut self, why: Error) {
        self.sub = Sub::Off;
        self.recon = Recon::Idle;
        self.recon_in_flight = false;
        self.paging = None;
        if let Some(queue) = self.queue.take() {
            queue.end(why.clone());
        }
        for waiter in self.waiters.drain(..) {
            let _ = waiter.send(Err(why.clone()));
        }
    }

    /// The connection is gone: what was going on starts over on the next one.
    pub(super) fn disconnected(&mut self) {
        let wanted = !self.waiters.is_empty() || self.paging.is_some();
        self.sub = if self.queue.is_some() {
            Sub::Wanted
        } else {
            Sub::Off
        };
        self.recon = if wanted { Recon::Wanted } else { Recon::Idle };
        (self.barrier_wanted, self.recon_in_flight, self.recon_again) = (false, false, false);
        self.paging = None;
        self.hold_until = None;
        self.emit(Event::Disconnected);
    }
}
