//! Which answers are due, in order. Errors carry no correlation id, so the order is all there is (02 §14).
//!
//! LIVE and CALL have no answer unless they are refused. An ERROR that arrives while such a frame precedes a request
//! may belong to either. It is given to the unanswered frame and remembered as a suspicion; a fence (a request that is
//! always answered) then settles it: a request still unanswered when a later one is answered was the one refused.

use std::collections::VecDeque;

use drover_wire::id::GroupId;
use tokio::sync::oneshot;

use crate::connection::{Incoming, may_answer_live};
use crate::error::{Error, Refusal};

/// Unanswered frames remembered in a row; errors beyond them would be somebody else's.
const BEATS_MAX: usize = 64;

/// One request in flight.
#[derive(Debug)]
pub(super) enum Due {
    /// A reliable write, by its number in the outbox.
    Write(u64),
    /// SUB.
    Sub(GroupId),
    /// RECON.
    Recon(GroupId),
    /// The WAKE query sent after a SUB: its answer ends the replay.
    Barrier(GroupId),
    /// A WAKE query that only settles a suspicion.
    Fence,
    /// Anything else: its answer's tag, and who waits.
    Request {
        tag: u8,
        done: oneshot::Sender<Result<Incoming, Error>>,
    },
    /// LIVE or CALL: answered only when refused.
    Beat,
}

/// What an answer settled.
#[derive(Debug)]
pub(super) enum Settled {
    /// This request; those before it turned out to be refused.
    Hit(Due, Vec<(Due, Refusal)>),
    /// Nothing that is due next.
    Unsolicited,
}

/// Whom a refusal belongs to.
#[derive(Debug)]
pub(super) enum Refused {
    /// This request.
    Request(Due),
    /// A LIVE or CALL frame; `fence` when a fence is needed to be sure.
    Beat { fence: bool },
    /// Nothing was due: it is about the connection.
    Nobody,
}

/// The requests in flight, oldest first.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    due: VecDeque<Due>,
    suspicions: VecDeque<Refusal>,
}

impl Ledger {
    /// A frame of this kind was sent.
    pub(super) fn push(&mut self, due: Due) {
        let beats = self
            .due
            .iter()
            .rev()
            .take_while(|due| matches!(due, Due::Beat))
            .count();
        if matches!(due, Due::Beat) && beats >= BEATS_MAX {
            return;
        }
        self.due.push_back(due);
    }

    /// Whether an answer is due.
    pub(super) fn awaits_answer(&self) -> bool {
        self.due.iter().any(|due| !matches!(due, Due::Beat))
    }

    /// How many requests are in flight.
    pub(super) fn len(&self) -> usize {
        self.due.len()
    }

    /// A positive answer came; `hit` tells which request it can answer.
    pub(super) fn settle(&mut self, hit: impl Fn(&Due) -> bool) -> Settled {
        let Some(at) = self.due.iter().position(hit) else {
            return Settled::Unsolicited;
        };
        let skipped = self
            .due
            .iter()
            .take(at)
            .filter(|due| !matches!(due, Due::Beat))
            .count();
        if skipped > self.suspicions.len() {
            return Settled::Unsolicited;
        }
        let mut refused = Vec::new();
        for due in self.due.drain(..at) {
            if !matches!(due, Due::Beat)
                && let Some(refusal) = self.suspicions.pop_front()
            {
                refused.push((due, refusal));
            }
        }
        // Every suspicion was about this request or one before it.
        self.suspicions.clear();
        match self.due.pop_front() {
            Some(due) => Settled::Hit(due, refused),
            None => Settled::Unsolicited,
        }
    }

    /// An ERROR came.
    pub(super) fn refuse(&mut self, refusal: &Refusal) -> Refused {
        let answered = self.due.iter().position(|due| !matches!(due, Due::Beat));
        let beats_first = matches!(self.due.front(), Some(Due::Beat));
        if beats_first && (may_answer_live(refusal.code) || answered.is_none()) {
            self.due.pop_front();
            let fence = answered.is_some();
            if fence {
                self.suspicions.push_back(refusal.clone());
            }
            return Refused::Beat { fence };
        }
        match answered {
            Some(at) => {
                self.due.drain(..at);
                self.due.pop_front().map_or(Refused::Nobody, Refused::Request)
            }
            None => Refused::Nobody,
        }
    }

    /// The connection is gone: everything that was in flight.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = Due> + '_ {
        self.suspicions.clear();
        self.due.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drover_wire::error::Code;

    fn refusal(code: Code) -> Refusal {
        Refusal {
            code,
            retry_after_s: 0,
            detail: Default::default(),
        }
    }

    fn ledger(dues: impl IntoIterator<Item = Due>) -> Ledger {
        let mut ledger = Ledger::default();
        dues.into_iter().for_each(|due| ledger.push(due));
        ledger
    }

    fn is(id: u64) -> impl Fn(&Due) -> bool {
        move |due| matches!(due, Due::Write(n) if *n == id)
    }

    #[test]
    fn answers_settle_in_order_only() {
        let mut ledger = ledger([Due::Write(1), Due::Write(2)]);
        assert!(matches!(ledger.settle(is(2)), Settled::Unsolicited));
        assert!(matches!(ledger.settle(is(1)), Settled::Hit(Due::Write(1), refused) if refused.is_empty()));
        assert!(matches!(
            ledger.refuse(&refusal(Code::HashMismatch)),
            Refused::Request(Due::Write(2))
        ));
        assert!(matches!(
            ledger.refuse(&refusal(Code::RateLimited)),
            Refused::Nobody
        ));
    }

    #[test]
    fn a_beat_that_was_accepted_does_not_hide_a_refused_write() {
        let mut ledger = ledger([Due::Beat, Due::Write(1), Due::Fence]);
        assert!(matches!(
            ledger.refuse(&refusal(Code::RateLimited)),
            Refused::Beat { fence: true }
        ));
        let Settled::Hit(Due::Fence, refused) = ledger.settle(|due| matches!(due, Due::Fence)) else {
            panic!("the fence is answered")
        };
        assert!(matches!(&refused[..], [(Due::Write(1), why)] if why.code == Code::RateLimited));
    }

    #[test]
    fn a_refused_beat_leaves_the_write_alone() {
        let mut ledger = ledger([Due::Beat, Due::Write(1), Due::Write(2)]);
        ledger.refuse(&refusal(Code::RateLimited));
        assert!(matches!(ledger.settle(is(1)), Settled::Hit(_, refused) if refused.is_empty()));
        // The suspicion is over: a skipped answer is a violation again.
        assert!(matches!(ledger.settle(is(3)), Settled::Unsolicited));
    }

    #[test]
    fn a_code_no_beat_can_cause_belongs_to_the_write() {
        let mut ledger = ledger([Due::Beat, Due::Write(1)]);
        assert!(matches!(
            ledger.refuse(&refusal(Code::GroupFrozen)),
            Refused::Request(Due::Write(1))
        ));
    }

    #[test]
    fn beats_do_not_pile_up() {
        let ledger = ledger(std::iter::repeat_with(|| Due::Beat).take(1000));
        assert_eq!((ledger.len(), ledger.awaits_answer()), (BEATS_MAX, false));
    }
}
