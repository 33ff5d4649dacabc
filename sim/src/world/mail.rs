//! When shards have their turns, and the mail they find then.

use super::agenda::Happening;
use super::net::{Line, Phase};
use super::outside::Outside;
use crate::plan::Fault;
use drover_engine::event::{StoreAnswer, Ticket};
use drover_engine::shard::{Session, ShardMessage};
use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

/// Mail for a shard.
pub(super) enum Letter {
    Stored(Ticket, StoreAnswer),
    Offloaded(Ticket, bool),
    Posted(ShardMessage),
    /// A connection was accepted.
    Opened(Line),
    /// A connection with its state.
    Parcel(Line, Box<Session>),
}

/// One shard's, written to by the stores' answers as well.
pub(super) type Mailbox = Arc<Mutex<VecDeque<Letter>>>;

impl Outside {
    /// A shard has its turn soon.
    pub(super) fn wake(&mut self, shard: usize) {
        let pause_us = if self.strikes(Fault::Order) {
            self.misfortune.skewed(10, 2_000_000)
        } else {
            self.misfortune.between(1, 40)
        };
        self.wake_at(shard, self.now_us() + pause_us);
    }

    pub(super) fn wake_at(&mut self, shard: usize, at_us: u64) {
        let Some(turn) = self.turns.get_mut(shard) else {
            return;
        };
        if turn.is_none_or(|due| at_us < due) {
            *turn = Some(at_us);
            let process = self.process;
            self.agenda.add(at_us, Happening::Turn { shard, process });
        }
    }

    /// Whether this is the turn that was due; others were meanwhile called for earlier.
    pub(super) fn turn_begins(&mut self, shard: usize) -> bool {
        if self.turns[shard] != Some(self.now_us()) {
            return false;
        }
        self.turns[shard] = None;
        self.note(&[b't', shard as u8], |line| {
            let _ = write!(line, "shard {shard} has its turn");
        });
        true
    }

    pub(super) fn post(&mut self, shard: usize, letter: Letter) {
        if let Some(mailbox) = self.mail.get(shard) {
            mailbox
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push_back(letter);
            self.wake(shard);
        }
    }

    /// The letters of this turn: all there are, or the first few.
    pub(super) fn letters(&mut self, shard: usize) -> Vec<Letter> {
        let mailbox = self.mail[shard].clone();
        let mut mailbox = mailbox.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = mailbox.len();
        let most = if self.strikes(Fault::Order) {
            1 + self.misfortune.below(waiting)
        } else {
            waiting
        };
        let letters = mailbox.drain(..most.min(waiting)).collect();
        if !mailbox.is_empty() {
            self.wake(shard);
        }
        letters
    }

    /// Connections of a shard with something to read, in some order.
    pub(super) fn readable(&mut self, shard: usize) -> Vec<Line> {
        let mut lines = std::mem::take(&mut self.net.readable[shard]);
        for at in (1..lines.len()).rev() {
            let other = self.misfortune.below(at + 1);
            lines.swap(at, other);
        }
        lines
    }

    pub(super) fn depart(&mut self, line: Line) {
        let conn = &mut self.net.conns[line];
        if let Phase::Moving(to, session) = std::mem::replace(&mut conn.phase, Phase::Travelling) {
            self.net.forget(line);
            self.coverage.add("moves between shards", 1);
            self.note_line(b'm', line, |text| {
                let _ = write!(text, "moves to shard {to}");
            });
            self.post(to, Letter::Parcel(line, session));
        }
    }
}
