//! Sends LIVE: forwarded and forgotten.

use super::{Kind, Session};
use crate::world::Outside;

/// See the module.
#[derive(Default)]
pub struct Beating {
    sent: u64,
}

impl Kind for Beating {
    fn act(&mut self, me: &mut Session, out: &mut Outside) {
        if let Some(group) = out.dice.pick(&me.groups).copied() {
            self.sent += 1;
            let ct = [(me.client as u64).to_be_bytes(), self.sent.to_be_bytes()].concat();
            me.beat(group, &ct, out);
        }
    }
}
