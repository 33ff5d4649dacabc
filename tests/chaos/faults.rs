//! The preloaded file layer of `faults/`, from outside.

use crate::relay::Relay;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long anything that has to come may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked.
const LOOK: Duration = Duration::from_millis(10);

/// Waits for something that no descriptor tells of.
pub(crate) async fn until(what: &str, mut is_there: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_there() {
        assert!(Instant::now() < end, "it never came: {what}");
        tokio::time::sleep(LOOK).await;
    }
}

/// The control file. Nothing fails until [`Faults::begin`].
pub(crate) struct Faults {
    folder: TempDir,
}

impl Faults {
    pub(crate) fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn control(&self) -> PathBuf {
        self.folder.path().join("control")
    }

    /// The environment under which a program has this layer below it. Cargo builds the library beside this test.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let test = std::env::current_exe().unwrap();
        let library = test.with_file_name("libdrover_faults.so");
        assert!(library.exists(), "{}: not built", library.display());
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        vec![
            ("LD_PRELOAD".into(), text(library)),
            ("FAULTS_CONTROL".into(), text(self.control())),
        ]
    }

    /// A relay with this layer below it.
    pub(crate) fn start(&self, settings: &[(&str, &str)]) -> Relay {
        let environment = self.environment();
        let mut all: Vec<(&str, &str)> = environment
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();
        all.extend(settings);
        Relay::start(&all)
    }

    /// From now on these calls fail; see the words in `faults/src/lib.rs`.
    pub(crate) fn begin(&self, words: &str) {
        let _ = fs::remove_file(self.control().with_extension("hits"));
        // Never half of it.
        let new = self.folder.path().join("new");
        fs::write(&new, format!("{words}\n")).unwrap();
        fs::rename(new, self.control()).unwrap();
    }

    /// Everything works again.
    pub(crate) fn end(&self) {
        fs::remove_file(self.control()).unwrap();
    }

    /// What failed since the beginning, a line each.
    pub(crate) fn hits(&self) -> String {
        fs::read_to_string(self.control().with_extension("hits")).unwrap_or_default()
    }

    pub(crate) fn has_hit(&self) -> bool {
        !self.hits().is_empty()
    }
}
