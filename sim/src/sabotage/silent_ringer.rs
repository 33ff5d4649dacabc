//! Nobody is woken by what is of one category.

use super::Saboteur;
use drover_engine::wake::{Category, Wake};

pub(super) struct SilentRinger(pub(super) Category);

impl Saboteur for SilentRinger {
    fn wakes(&mut self, mut wakes: Vec<Wake>) -> Vec<Wake> {
        wakes.retain(|wake| wake.category != self.0);
        wakes
    }
}
