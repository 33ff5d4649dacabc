//! Nobody is woken by a message.

use super::Saboteur;
use drover_engine::wake::{Category, Wake};

#[derive(Default)]
pub(super) struct Drowsy;

impl Saboteur for Drowsy {
    fn wakes(&mut self, wakes: Vec<Wake>) -> Vec<Wake> {
        wakes
            .into_iter()
            .filter(|wake| wake.category != Category::Message)
            .collect()
    }
}
