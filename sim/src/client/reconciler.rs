//! Reconciles what it holds with what the relay holds.

use super::{Kind, Session};
use crate::world::Outside;

/// See the module.
#[derive(Default)]
pub struct Reconciling;

impl Kind for Reconciling {
    fn act(&mut self, me: &mut Session, out: &mut Outside) {
        if let Some(group) = out.dice.pick(&me.groups).copied() {
            me.reconcile(group, out);
        }
    }
}
