//! The store of the session target keeps the contract of every store.

use drover_fuzz::memory::Memory;
use drover_storage::contract::Subject;

/// Opened again, it is the same.
#[derive(Default)]
struct Kept(Memory);

impl Kept {
    fn new() -> Self {
        Self::default()
    }
}

impl Subject for Kept {
    type Store = Memory;

    fn open(&self) -> Memory {
        self.0.clone()
    }
}

drover_storage::contract!(Kept::new);
