//! What can go wrong, said so that one knows what to change.

use crate::args::Scenario;
use drover_wire::error::Code;
use std::io;
use std::path::PathBuf;

/// Why a benchmark did not finish.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The options contradict each other or leave out something needed.
    #[error("{0}")]
    Usage(String),
    /// A file named on the command line.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A socket or the system.
    #[error("{doing}: {source}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The relay refused a frame; budgets that were not opened are the usual reason.
    #[error("the relay refused: {} (retry after {retry_after_s} s){}", name(*code), hint(*code))]
    Refused {
        /// Its code.
        code: Code,
        /// Seconds, 0 when absent.
        retry_after_s: u32,
    },
    /// The relay said or did something the protocol has no place for.
    #[error("unexpected: {0}")]
    Unexpected(String),
    /// One of the scenarios.
    #[error("{0:?} failed: {1}")]
    Scenario(Scenario, Box<Error>),
    /// What `compare` found.
    #[error("{0} figure(s) are worse")]
    Worse(usize),
    /// The spawned relay did not come up.
    #[error("the spawned relay did not start: {0}")]
    Spawn(String),
}

impl Error {
    /// What a scenario failed with.
    pub fn cause(&self) -> &Self {
        match self {
            Error::Scenario(_, error) => error.cause(),
            error => error,
        }
    }

    /// Why the spawned relay does not run on the driver it was given: the line of its log that names the setting.
    pub(crate) fn about_driver(&self) -> Option<&str> {
        let Error::Spawn(said) = self else {
            return None;
        };
        said.lines()
            .rev()
            .find(|line| line.contains(crate::spawn::DRIVER))
    }
}

fn name(code: Code) -> String {
    format!("{code:?}")
}

fn hint(code: Code) -> &'static str {
    match code {
        Code::RateLimited | Code::GroupIngressLimited => {
            "; open the relay's budgets (WEALD_RELAY_SEND_FRAMES_PER_MINUTE, …) or lower --seconds"
        }
        Code::WriterNotInAccessSet => "; the device is not admitted",
        _ => "",
    }
}

/// Says what was being done when the system refused.
pub(crate) trait Doing<T> {
    /// Wraps the error.
    fn doing(self, doing: &'static str) -> Result<T, Error>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: &'static str) -> Result<T, Error> {
        self.map_err(|source| Error::System { doing, source })
    }
}
