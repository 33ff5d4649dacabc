//! Comes by invite: tries codes until it has a seat, then connects on the strength of it, and commits its scopes.

use super::{Ask, Kind, Notice, Session, State};
use crate::codes;
use crate::world::Outside;
use drover_wire::frame::Frame;
use drover_wire::id::Token;
use drover_wire::join;

/// See the module.
pub struct Joiner {
    nonce: [u8; 16],
    seat: Option<Token>,
    asked: bool,
    /// Nobody invites it any more.
    over: bool,
}

impl Joiner {
    pub(crate) fn new(nonce: [u8; 16]) -> Self {
        Self {
            nonce,
            seat: None,
            asked: false,
            over: false,
        }
    }

    fn reserve(&mut self, me: &mut Session, out: &mut Outside) {
        me.retry_at_us = out.now_us() + out.dice.skewed(500_000, 20_000_000);
        let Some(token) = out.dice.pick(&out.invites[me.workspace].clone()).copied() else {
            return;
        };
        me.open(out);
        if me.state != State::Fresh {
            return;
        }
        self.asked = true;
        let code = if out.dice.chance(0.2) {
            codes::WRONG
        } else {
            codes::CODE
        };
        let body = join::Request::Reserve {
            token: &token.0,
            code,
            nonce: &self.nonce,
            device: &me.identity.public().0,
        }
        .encode();
        me.ask(&Frame::Join { body: &body }, Ask::Reserve(token), out);
    }
}

impl Kind for Joiner {
    fn comes_first(&self) -> bool {
        self.seat.is_none() && !self.over
    }

    fn act(&mut self, me: &mut Session, out: &mut Outside) {
        if out.model.access[me.workspace].lists(&me.identity.public()) {
            // Somebody let it in, seat or not.
            (self.over, me.dials) = (true, true);
        }
        if out.is_healed() && !self.asked {
            self.over = true;
        }
        me.dials = self.seat.is_some() || self.over;
        match (self.seat, me.state) {
            (None, State::Down) if !self.over && !self.asked && out.now_us() >= me.retry_at_us => {
                self.reserve(me, out);
            }
            (Some(token), State::Ready) => {
                if let Some(group) = out.dice.pick(&me.groups).copied() {
                    let body = join::Request::Commit {
                        token: &token.0,
                        nonce: &self.nonce,
                        device: &me.identity.public().0,
                        group: &group.0,
                    }
                    .encode();
                    me.ask(&Frame::Join { body: &body }, Ask::Scope(token, group), out);
                }
            }
            _ => {}
        }
    }

    fn told(&mut self, notice: &Notice, me: &mut Session, out: &mut Outside) {
        match notice {
            Notice::Answered(Ask::Reserve(token), _) => {
                (self.seat, self.asked) = (Some(*token), false);
                me.hang_up(out);
                me.retry_at_us = out.now_us();
                me.dials = true;
            }
            Notice::Refused(Ask::Reserve(_), _) => {
                self.asked = false;
                me.hang_up(out);
                me.retry_at_us = out.now_us() + out.dice.skewed(1_000_000, 1_000_000_000);
            }
            Notice::Lost(Ask::Reserve(_)) => self.asked = false,
            _ => {}
        }
    }
}
