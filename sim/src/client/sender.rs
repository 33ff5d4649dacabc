//! Sends envelopes: new ones, and now and then one that was acknowledged long ago.

use super::{Kind, Session};
use crate::plan::Fault;
use crate::world::Outside;

/// See the module.
#[derive(Default)]
pub struct Sender {
    sent: u64,
}

impl Kind for Sender {
    fn act(&mut self, me: &mut Session, out: &mut Outside) {
        for _ in 0..out.dice.skewed(1, out.plan.burst as u64) {
            let Some(group) = out.dice.pick(&me.groups).copied() else {
                return;
            };
            if !me.may_say() {
                return;
            }
            let old = me.held.get(&group).map(|h| h.own.as_slice()).unwrap_or_default();
            if out.strikes(Fault::Resend)
                && let Some(ct) = out.dice.pick(old).cloned()
            {
                me.send(group, &ct, out);
                continue;
            }
            self.sent += 1;
            let ct = ciphertext(me.client, self.sent, out);
            me.send(group, &ct, out);
            if let Some(held) = me.held.get_mut(&group) {
                held.own.push(ct);
            }
        }
    }
}

/// A ciphertext that nobody else sends.
pub fn ciphertext(client: usize, number: u64, out: &mut Outside) -> Vec<u8> {
    let length = out.dice.skewed(16, out.plan.ct_bytes as u64) as usize;
    let mut ct = [(client as u64).to_be_bytes(), number.to_be_bytes()].concat();
    ct.resize(length.max(16), 0x5a);
    ct
}
