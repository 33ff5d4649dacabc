//! The embedded store keeps the contract.

use drover_storage::contract::Subject;
use drover_storage::embedded::Embedded;

struct InFolder(tempfile::TempDir);

impl InFolder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("temporary folder"))
    }
}

impl Subject for InFolder {
    type Store = Embedded;

    fn open(&self) -> Embedded {
        Embedded::open(self.0.path()).expect("opens")
    }
}

drover_storage::contract!(InFolder::new);
