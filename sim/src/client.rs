//! Clients: a [`Session`] and one or more kinds of behaviour. A kind is one file: what it does when its turn comes, and
//! what it makes of the answers to what it asked.
//!
//! | Kind | Does |
//! | --- | --- |
//! | [`founder`] | takes the bootstrap seat and publishes the genesis set |
//! | [`admin`] | publishes sets: takes members in and out, promotes; issues and revokes invites |
//! | [`joiner`] | takes a seat of an invite, and waits to be let in |
//! | [`recovery`] | holds the recovery key, and spends it once |
//! | [`sender`] | SENDs, and again what was acknowledged long ago |
//! | [`subscriber`] | SUBs, from its cursor or from anywhere |
//! | [`reconciler`] | RECONs |
//! | [`handshaker`] | publishes handshakes |
//! | [`live`] | sends LIVE |
//! | [`keeper`] | keeps retention chains and DROPs |
//! | [`caller`] | joins and leaves calls, and talks in them |
//! | [`stocker`] | publishes key packages, and takes those of others |
//! | [`wrapper`] | stores recovery wraps |
//! | [`sleeper`] | registers to be woken, and sleeps |

pub mod admin;
pub mod caller;
pub mod founder;
pub mod handshaker;
pub mod joiner;
pub mod keeper;
pub mod live;
pub mod reconciler;
pub mod recovery;
pub mod sender;
mod session;
pub mod sleeper;
pub mod stocker;
pub mod subscriber;
pub mod wrapper;

pub use session::{Held, SOURCES, Session, State};

use crate::plan::Fault;
use crate::world::Outside;
use bytes::Bytes;
use drover_wire::error::Code;
use drover_wire::id::{GroupId, Hash, PublicKey, Token};

/// A request of a kind, to tell its answer by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// The ACCESS state query.
    State,
    /// An access set.
    Publish(Hash),
    /// An invite to be stored.
    Create(Token),
    /// An invite to be ended.
    Revoke(Token),
    /// A seat.
    Reserve(Token),
    /// A scope of a seat.
    Scope(Token, GroupId),
    /// The first control of a retention chain.
    Begin(GroupId),
    /// Its policy.
    Policy(GroupId),
    /// A DROP.
    Drop(GroupId),
    /// Key packages, there or back.
    Keys,
    /// A recovery wrap.
    Wrap,
    /// A registration to be woken, or its end.
    Wake,
}

/// Something a session tells its kinds.
#[derive(Clone, Debug)]
pub enum Notice {
    /// AUTH_ACK.
    Admitted,
    /// The frame that answers a request.
    Answered(Ask, Bytes),
    /// The refusal that does.
    Refused(Ask, Code),
    /// The connection went before an answer came.
    Lost(Ask),
}

/// One kind of behaviour.
pub trait Kind {
    /// One action. Ready means a session that may say something; only those that say so act on others.
    fn act(&mut self, me: &mut Session, out: &mut Outside);

    /// Something it may have waited for.
    fn told(&mut self, _notice: &Notice, _me: &mut Session, _out: &mut Outside) {}

    /// Whether it acts without an admitted session, and before anything else.
    fn comes_first(&self) -> bool {
        false
    }

    /// Whether something it began has yet to end.
    fn is_busy(&self) -> bool {
        false
    }

    /// Nothing goes wrong any more: what is uncertain is to be found out.
    fn heal(&mut self) {}

    /// Everybody holds everything: calls are to be left.
    fn part(&mut self) {}

    /// Nothing changes any more: whoever is in a call is to be heard in it, and whoever is not, not.
    fn answer_the_roll(&mut self) {}
}

/// A client.
pub struct Client {
    /// Its connection and what it keeps.
    pub session: Session,
    kinds: Vec<Box<dyn Kind>>,
    /// Actions left.
    pub actions: u32,
    /// An [`Acts`](crate::world::Happening::Acts) is on the agenda.
    pub(crate) acts_due: bool,
    /// At its last turn there was nothing left to do, and nothing awaited.
    pub(crate) rests: bool,
    /// It is to reconcile every group once more.
    pub(crate) wants_whole: bool,
}

impl Client {
    pub(crate) fn new(session: Session, kinds: Vec<Box<dyn Kind>>, actions: u32) -> Self {
        Self {
            session,
            kinds,
            actions,
            acts_due: false,
            rests: false,
            wants_whole: false,
        }
    }

    /// Its key.
    pub fn device(&self) -> PublicKey {
        self.session.identity.public()
    }

    /// Its turn: duties first, then an action. Returns whether it rests: nothing is left to do and nothing is awaited.
    pub(crate) fn act(&mut self, out: &mut Outside) -> bool {
        let first = self.kinds.iter().position(|kind| kind.comes_first());
        if let Some(at) = first {
            self.kinds[at].act(&mut self.session, out);
            self.tell(out);
        }
        if self.kinds.iter().any(|kind| kind.comes_first()) {
            self.session.duties(out);
            self.tell(out);
            return false;
        }
        let mut rests = self.session.duties(out);
        if self.wants_whole {
            for group in self.session.groups.clone() {
                if self.session.held.get(&group).is_some_and(|held| !held.whole) {
                    self.session.reconcile(group, out);
                    rests = false;
                }
            }
        }
        self.tell(out);
        if self.session.may_say() {
            if out.strikes(Fault::Resend) {
                self.session.repeat_one(out);
            }
            let busy = self.kinds.iter().position(|kind| kind.is_busy());
            let at = busy.unwrap_or_else(|| out.dice.below(self.kinds.len()));
            if self.actions > 0 || busy.is_some() {
                self.actions = self.actions.saturating_sub(1);
                if let Some(kind) = self.kinds.get_mut(at) {
                    kind.act(&mut self.session, out);
                }
                self.tell(out);
                return false;
            }
        }
        rests && self.actions == 0 && !self.is_busy()
    }

    /// Whether something it began has yet to end.
    pub fn is_busy(&self) -> bool {
        self.kinds.iter().any(|kind| kind.is_busy() || kind.comes_first())
    }

    /// A message arrives.
    pub(crate) fn receive(&mut self, message: &Bytes, out: &mut Outside) {
        self.session.receive(message, out);
        self.tell(out);
    }

    /// Its connection is gone.
    pub(crate) fn lost(&mut self, out: &mut Outside) {
        self.session.lost(out);
        self.tell(out);
    }

    fn tell(&mut self, out: &mut Outside) {
        for notice in std::mem::take(&mut self.session.notices) {
            for kind in &mut self.kinds {
                kind.told(&notice, &mut self.session, out);
            }
        }
    }

    /// One more envelope in every group.
    pub(crate) fn nudge(&mut self, out: &mut Outside) {
        for group in self.session.groups.clone() {
            let ct = format!("the last one of {}", self.session.name);
            self.session.send(group, ct.as_bytes(), out);
        }
    }

    /// No more actions of its own accord.
    pub(crate) fn heal(&mut self) {
        self.actions = 0;
        self.kinds.iter_mut().for_each(|kind| kind.heal());
    }

    /// Calls are to be left.
    pub(crate) fn part(&mut self) {
        self.kinds.iter_mut().for_each(|kind| kind.part());
    }

    /// The roll is called.
    pub(crate) fn answer_the_roll(&mut self) {
        self.kinds.iter_mut().for_each(|kind| kind.answer_the_roll());
    }
}
