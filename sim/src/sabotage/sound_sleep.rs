//! Nobody is woken by a call.

use super::Saboteur;
use drover_engine::wake::{Category, Wake};

#[derive(Default)]
pub(super) struct SoundSleep;

impl Saboteur for SoundSleep {
    fn wakes(&mut self, wakes: Vec<Wake>) -> Vec<Wake> {
        wakes
            .into_iter()
            .filter(|wake| wake.category != Category::Call)
            .collect()
    }
}
