//! Listens: from its cursor, and now and then again from anywhere before it.

use super::{Kind, Session};
use crate::world::Outside;

/// See the module.
#[derive(Default)]
pub struct Subscriber;

impl Kind for Subscriber {
    fn act(&mut self, me: &mut Session, out: &mut Outside) {
        let Some(group) = out.dice.pick(&me.groups).copied() else {
            return;
        };
        let Some(held) = me.held.get_mut(&group) else {
            return;
        };
        held.wants = true;
        if held.subscription.is_none() || out.dice.chance(0.3) {
            let seqs: Vec<u64> = held.envelopes.values().copied().collect();
            let from = out.dice.pick(&seqs).copied().unwrap_or(0);
            me.subscribe(group, from, out);
        }
    }
}
