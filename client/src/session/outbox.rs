//! Reliable writes: kept verbatim until the relay acknowledged them, sent within a window, sent again after a lost
//! connection or a refusal that only asks for patience. Duplicates cost nothing (02 §6, §10).

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;
use drover_wire::error::{Class, Code};
use drover_wire::id::{GroupId, Hash};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::backoff::Backoff;
use crate::connection::SendAck;
use crate::envelope::SealedEnvelope;
use crate::error::{Error, Refusal};
use crate::limits::{WINDOW_BYTES_MAX, WINDOW_WRITES_MAX};

/// What is written.
#[derive(Clone, Debug)]
pub(super) enum What {
    /// SEND.
    Envelope(SealedEnvelope),
    /// HANDSHAKE.
    Handshake(Bytes),
}

/// Who waits for it.
#[derive(Debug)]
pub(crate) enum Done {
    /// A caller of `send`.
    Ack(oneshot::Sender<Result<SendAck, Error>>),
    /// A caller of `publish_handshake`.
    Number(oneshot::Sender<Result<u64, Error>>),
    /// The group's reconciliation.
    Offer,
}

/// One write.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) id: u64,
    pub(super) group: GroupId,
    pub(super) what: What,
    frame: Bytes,
    in_flight: bool,
    done: Done,
    /// Room in the outbox, given back when the write is settled.
    _permits: Vec<OwnedSemaphorePermit>,
}

impl Write {
    /// Tells whoever waits.
    pub(super) fn settle(self, result: Result<u64, Error>) {
        match (self.done, self.what) {
            (Done::Ack(done), What::Envelope(envelope)) => {
                let hash = envelope.hash();
                let _ = done.send(result.map(|seq| SendAck { hash, seq }));
            }
            (Done::Number(done), _) => {
                let _ = done.send(result);
            }
            (Done::Ack(_) | Done::Offer, _) => {}
        }
    }

    /// The content address when it is an offer of the group's reconciliation.
    pub(super) fn offered(&self) -> Option<Hash> {
        match (&self.done, &self.what) {
            (Done::Offer, What::Envelope(envelope)) => Some(envelope.hash()),
            _ => None,
        }
    }
}

/// What a refusal means for a write (04 §1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reaction {
    /// The same bytes again, after a wait.
    Again,
    /// The relay does not know the group; naming it in CONNECT creates it (05 §10).
    NameGroup,
    /// The caller has to decide.
    Fail,
}

/// Judges a refusal.
pub(super) fn reaction(refusal: &Refusal) -> Reaction {
    match (refusal.class(), refusal.code) {
        (Class::Retry | Class::Limit, _) => Reaction::Again,
        (_, Code::RateLimited | Code::GroupIngressLimited) if refusal.limit() != Some(256) => Reaction::Again,
        (_, Code::GroupUnknown) => Reaction::NameGroup,
        _ => Reaction::Fail,
    }
}

/// The writes that are not settled, oldest first.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    writes: VecDeque<Write>,
    next_id: u64,
    in_flight: usize,
    in_flight_bytes: usize,
    /// Nothing is sent before this moment.
    hold_until: Option<Instant>,
    backoff: Backoff,
}

impl Outbox {
    /// Takes a write.
    pub(super) fn push(
        &mut self,
        group: GroupId,
        what: What,
        frame: Bytes,
        done: Done,
        permits: Vec<OwnedSemaphorePermit>,
    ) {
        let id = self.next_id;
        self.next_id += 1;
        self.writes.push_back(Write {
            id,
            group,
            what,
            frame,
            in_flight: false,
            done,
            _permits: permits,
        });
    }

    /// The next write to send now, if the window and the relay's wishes allow one.
    pub(super) fn next(&mut self, now: Instant) -> Option<(u64, Bytes)> {
        self.hold_until = self.hold_until.filter(|until| *until > now);
        if self.hold_until.is_some() || self.in_flight >= WINDOW_WRITES_MAX {
            return None;
        }
        let write = self.writes.iter_mut().find(|write| !write.in_flight)?;
        if self.in_flight > 0 && self.in_flight_bytes + write.frame.len() > WINDOW_BYTES_MAX {
            return None;
        }
        write.in_flight = true;
        self.in_flight += 1;
        self.in_flight_bytes += write.frame.len();
        Some((write.id, write.frame.clone()))
    }

    /// When sending may resume, if something waits for it.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.hold_until
            .filter(|_| self.writes.iter().any(|write| !write.in_flight))
    }

    /// Whether an envelope more would be sent rather than wait: how offers are metered.
    pub(super) fn has_window(&self) -> bool {
        self.writes.len() < WINDOW_WRITES_MAX
    }

    fn position(&self, id: u64) -> Option<usize> {
        self.writes.binary_search_by_key(&id, |write| write.id).ok()
    }

    /// The write with this number.
    pub(super) fn get(&self, id: u64) -> Option<&Write> {
        self.position(id).and_then(|at| self.writes.get(at))
    }

    /// Takes a settled write out.
    pub(super) fn take(&mut self, id: u64) -> Option<Write> {
        let write = self.position(id).and_then(|at| self.writes.remove(at))?;
        if write.in_flight {
            self.in_flight -= 1;
            self.in_flight_bytes -= write.frame.len();
        }
        Some(write)
    }

    /// The relay accepted something: patience is over.
    pub(super) fn accepted(&mut self) {
        self.backoff.reset();
    }

    /// The write will be sent again, after the wait the refusal asks for.
    pub(super) fn again(&mut self, id: u64, refusal: Option<&Refusal>, now: Instant) {
        let Some(at) = self.position(id) else { return };
        let write = &mut self.writes[at];
        if std::mem::take(&mut write.in_flight) {
            self.in_flight -= 1;
            self.in_flight_bytes -= write.frame.len();
        }
        if let Some(refusal) = refusal
            && self.hold_until.is_none_or(|until| until <= now)
        {
            // One wait for the whole window: the writes behind this one meet the same refusal.
            self.hold_until = Some(now + self.backoff.next(Some(refusal.retry_after_s).filter(|s| *s > 0)));
        }
    }

    /// The connection is gone: everything unacknowledged is sent again.
    pub(super) fn disconnected(&mut self) {
        for write in &mut self.writes {
            write.in_flight = false;
        }
        (self.in_flight, self.in_flight_bytes) = (0, 0);
    }

    /// Empties the outbox.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Write> + '_ {
        (self.in_flight, self.in_flight_bytes) = (0, 0);
        self.writes.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn outbox(sizes: impl IntoIterator<Item = usize>) -> Outbox {
        let mut outbox = Outbox::default();
        for size in sizes {
            let message = Bytes::from(vec![0; size]);
            outbox.push(
                GroupId([0; 32]),
                What::Handshake(message.clone()),
                message,
                Done::Offer,
                vec![],
            );
        }
        outbox
    }

    fn drain(outbox: &mut Outbox, now: Instant) -> Vec<u64> {
        std::iter::from_fn(|| outbox.next(now))
            .map(|(id, _)| id)
            .collect()
    }

    fn limited(retry_after_s: u32) -> Refusal {
        Refusal {
            code: Code::RateLimited,
            retry_after_s,
            detail: Default::default(),
        }
    }

    #[test]
    fn the_window_counts_writes_and_bytes_and_lets_one_through() {
        let now = Instant::now();
        assert_eq!(drain(&mut outbox([1; 100]), now).len(), WINDOW_WRITES_MAX);
        assert_eq!(drain(&mut outbox([WINDOW_BYTES_MAX / 2; 5]), now), [0, 1]);
        assert_eq!(drain(&mut outbox([WINDOW_BYTES_MAX + 1; 2]), now), [0]);
    }

    #[test]
    fn everything_unacknowledged_is_sent_again_in_order_after_a_lost_connection() {
        let now = Instant::now();
        let mut outbox = outbox([1; 4]);
        drain(&mut outbox, now);
        assert!(outbox.take(1).is_some());
        outbox.disconnected();
        assert_eq!(drain(&mut outbox, now), [0, 2, 3]);
    }

    #[test]
    fn a_quota_refusal_holds_the_window_for_as_long_as_asked() {
        let now = Instant::now();
        let mut outbox = outbox([1; 3]);
        drain(&mut outbox, now);
        outbox.again(0, Some(&limited(60)), now);
        outbox.again(1, Some(&limited(60)), now);
        assert!(outbox.next(now + Duration::from_secs(59)).is_none());
        let resume = outbox.deadline().expect("something waits");
        assert!(resume >= now + Duration::from_secs(60) && resume <= now + Duration::from_secs(62));
        assert_eq!(drain(&mut outbox, resume), [0, 1]);
    }

    #[test]
    fn refusals_are_judged_by_class() {
        let of = |code| {
            reaction(&Refusal {
                code,
                retry_after_s: 0,
                detail: Default::default(),
            })
        };
        assert_eq!(of(Code::Backpressure), Reaction::Again);
        assert_eq!(of(Code::RateLimited), Reaction::Again);
        assert_eq!(of(Code::GroupIngressLimited), Reaction::Again);
        assert_eq!(of(Code::GroupUnknown), Reaction::NameGroup);
        for code in [
            Code::LogBudgetExhausted,
            Code::HashMismatch,
            Code::GroupFrozen,
            Code::ServiceReadOnly,
        ] {
            assert_eq!(of(code), Reaction::Fail, "{code:?}");
        }
    }
}
