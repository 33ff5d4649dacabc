//! Holds the recovery key, and spends it once: a replacement becomes an authorizer on probation, a successor the new
//! recovery key, and the spent key is out.

use super::founder::{dated, state_of};
use super::{Ask, Kind, Notice, Session};
use crate::world::Outside;
use drover_client::Workspace;
use drover_wire::frame::Frame;
use drover_wire::id::PublicKey;

/// See the module.
pub struct Recovery {
    replacement: PublicKey,
    successor: PublicKey,
    asked: bool,
    unsure: bool,
}

impl Recovery {
    pub(crate) fn new(replacement: PublicKey, successor: PublicKey) -> Self {
        Self {
            replacement,
            successor,
            asked: false,
            unsure: false,
        }
    }
}

impl Kind for Recovery {
    fn act(&mut self, me: &mut Session, out: &mut Outside) {
        if self.asked {
            return;
        }
        if self.unsure {
            self.asked = true;
            return me.ask(&Frame::Access { body: b"" }, Ask::State, out);
        }
        if !out.dice.chance(0.1) {
            return; // it is seldom needed
        }
        let access = &out.model.access[me.workspace];
        let Some((salt, head)) = access.salt.zip(access.head().cloned()) else {
            return;
        };
        let workspace = Workspace::new(salt, head);
        let set = workspace.recovery_rotation(&me.identity, &self.replacement, &self.successor, []);
        if let Ok(set) = set {
            let set = dated(set, &me.identity, out);
            out.model.access[me.workspace].proposed(&set);
            self.asked = true;
            let body = set.encode();
            me.ask(&Frame::Access { body: &body }, Ask::Publish(set.digest()), out);
        }
    }

    fn told(&mut self, notice: &Notice, _me: &mut Session, _out: &mut Outside) {
        match notice {
            Notice::Answered(Ask::State, frame) => {
                (self.asked, self.unsure) = (false, state_of(frame).is_none());
            }
            Notice::Answered(Ask::Publish(_), _) => self.asked = false,
            Notice::Refused(Ask::Publish(_), _) | Notice::Lost(Ask::Publish(_)) => {
                (self.asked, self.unsure) = (false, true);
            }
            Notice::Refused(Ask::State, _) | Notice::Lost(Ask::State) => self.asked = false,
            _ => {}
        }
    }

    fn is_busy(&self) -> bool {
        self.asked || self.unsure
    }
}
