//! Publishes handshake messages.

use super::{Kind, Session};
use crate::world::Outside;

/// See the module.
#[derive(Default)]
pub struct Handshaker {
    published: u64,
}

impl Kind for Handshaker {
    fn act(&mut self, me: &mut Session, out: &mut Outside) {
        if let Some(group) = out.dice.pick(&me.groups).copied() {
            self.published += 1;
            let message = super::sender::ciphertext(me.client, self.published, out);
            me.publish(group, &message, out);
        }
    }
}
