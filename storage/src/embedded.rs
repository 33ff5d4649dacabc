//! Both stores on fjall in one folder: the default.

use std::path::{Path, PathBuf};

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process holds the store (exit code 69).
    #[error("{0}: another process has this store open")]
    Locked(PathBuf),
    /// Written by a newer Drover, damaged, or not a store (exit code 78): names the file and what to do.
    #[error("{file}: {reason}")]
    Unusable {
        /// The file or folder concerned.
        file: PathBuf,
        /// What is wrong and what to do about it.
        reason: String,
    },
    /// The operating system refused (exit code 69).
    #[error("{file}: {error}")]
    Io {
        /// The file or folder concerned.
        file: PathBuf,
        /// What it said.
        error: std::io::Error,
    },
}

/// The embedded store. Cheap to clone; the last clone closes it.
#[derive(Clone)]
pub struct Embedded {
    _private: (),
}

impl Embedded {
    /// Opens or creates the store in `folder`.
    ///
    /// # Errors
    /// See [`OpenError`]. Nothing that could not be read is ever deleted or rewritten.
    pub fn open(_folder: &Path) -> Result<Self, OpenError> {
        todo!()
    }

    /// Whether the last commit succeeded (readiness).
    pub fn healthy(&self) -> bool {
        todo!()
    }
}
