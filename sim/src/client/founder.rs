//! Founds its workspace: takes the seat of the bootstrap invite, asks for the salt, publishes the genesis set.

use super::{Ask, Kind, Notice, Session, State};
use crate::world::Outside;
use bytes::Bytes;
use drover_client::{Identity, SetDraft};
use drover_wire::access::{AccessSet, AccessState};
use drover_wire::error::Code;
use drover_wire::frame::Frame;
use drover_wire::id::PublicKey;
use drover_wire::join;
use ed25519_dalek::SigningKey;

/// See the module.
pub struct Founder {
    members: Vec<PublicKey>,
    recovery: PublicKey,
    nonce: [u8; 16],
    /// It holds the seat.
    seated: bool,
    asked: bool,
    genesis: Option<AccessSet>,
    done: bool,
    /// Its workspace can't be founded any more: the invite has lapsed.
    tries: u32,
}

impl Founder {
    pub(crate) fn new(members: Vec<PublicKey>, recovery: PublicKey, nonce: [u8; 16]) -> Self {
        Self {
            members,
            recovery,
            nonce,
            seated: false,
            asked: false,
            genesis: None,
            done: false,
            tries: 0,
        }
    }

    /// Whoever founded a workspace comes in again as a member.
    fn finish(&mut self, me: &mut Session, out: &mut Outside) {
        self.done = true;
        me.hang_up(out);
    }

    fn reserve(&mut self, me: &mut Session, out: &mut Outside) {
        let Some(banner) = out.banners[me.workspace].clone() else {
            me.retry_at_us = out.now_us() + 1_000_000;
            return;
        };
        me.open(out);
        if me.state == State::Fresh {
            self.asked = true;
            let body = join::Request::Reserve {
                token: &banner.token.0,
                code: &banner.code,
                nonce: &self.nonce,
                device: &me.identity.public().0,
            }
            .encode();
            me.ask(&Frame::Join { body: &body }, Ask::Reserve(banner.token), out);
        }
    }
}

impl Kind for Founder {
    fn comes_first(&self) -> bool {
        !self.done
    }

    fn act(&mut self, me: &mut Session, out: &mut Outside) {
        if self.done {
            return;
        }
        let refused = matches!(me.refused, Some(Code::WriterNotInAccessSet | Code::GroupUnknown));
        if me.state == State::Down && self.seated && refused {
            self.seated = false; // it lapsed
            me.refused = None;
        }
        me.dials = self.seated;
        match me.state {
            State::Down if !self.seated && out.now_us() >= me.retry_at_us => self.reserve(me, out),
            State::Ready if !self.asked => {
                self.asked = true;
                match &self.genesis {
                    Some(set) => {
                        let body = set.encode();
                        me.ask(&Frame::Access { body: &body }, Ask::Publish(set.digest()), out);
                    }
                    None => me.ask(&Frame::Access { body: b"" }, Ask::State, out),
                }
            }
            _ => {}
        }
    }

    fn told(&mut self, notice: &Notice, me: &mut Session, out: &mut Outside) {
        if self.done {
            return;
        }
        match notice {
            Notice::Answered(Ask::Reserve(_), _) => {
                (self.seated, self.asked) = (true, false);
                me.hang_up(out);
                me.retry_at_us = out.now_us();
            }
            Notice::Refused(Ask::Reserve(_), _) => {
                // Too many answers were lost, or the seat is another attempt's: it comes back in time (06 §6).
                self.asked = false;
                self.tries += 1;
                self.nonce[0] = self.nonce[0].wrapping_add(1);
                me.hang_up(out);
                me.retry_at_us = out.now_us() + 300_000_000;
                if self.tries > 20 {
                    out.abandon(me.workspace);
                    self.done = true;
                }
            }
            Notice::Admitted => self.asked = false,
            Notice::Lost(_) => self.asked = false,
            Notice::Answered(Ask::State, frame) => {
                self.asked = false;
                let state = state_of(frame);
                let Some(state) = state else { return };
                out.model.access[me.workspace].salt = Some(state.salt);
                match state.head {
                    Some(_) => self.finish(me, out), // an answer was lost
                    None => {
                        let mut draft = SetDraft::genesis(state.salt, me.groups[0]);
                        draft
                            .add_authorizer(&me.identity.public())
                            .add_recovery(&self.recovery);
                        for member in &self.members {
                            draft.add(member);
                        }
                        self.genesis = draft
                            .sign(&me.identity)
                            .ok()
                            .map(|set| dated(set, &me.identity, out));
                        if let Some(set) = &self.genesis {
                            out.model.access[me.workspace].proposed(set);
                        }
                    }
                }
            }
            Notice::Answered(Ask::Publish(_), _) => self.finish(me, out),
            Notice::Refused(Ask::Publish(_), code) => {
                self.asked = false;
                if *code == Code::WriterNotInAccessSet {
                    // The seat lapsed, or the set is the head already: the state will tell.
                    self.genesis = None;
                    me.hang_up(out);
                }
            }
            Notice::Refused(..) => self.asked = false,
            _ => {}
        }
        me.dials = self.seated || self.done;
    }
}

/// The state an ACCESS frame carries.
pub(super) fn state_of(frame: &Bytes) -> Option<AccessState> {
    match Frame::decode(frame) {
        Ok(Frame::Access { body }) => AccessState::decode(body).ok(),
        _ => None,
    }
}

/// The set with the world's date in place of the machine's.
pub(super) fn dated(mut set: AccessSet, signer: &Identity, out: &Outside) -> AccessSet {
    set.issued_at_ms = out.now_us() / 1_000;
    set.signed(&SigningKey::from_bytes(&signer.seed()))
}
