//! Which driver runs the shard loops, and why.

use crate::config::BindError;

/// What the operator wants under the shard loops (`DROVER_IO`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Io {
    /// io_uring if all it takes works here, else epoll.
    #[default]
    Auto,
    /// io_uring, by the `io-uring` crate.
    Uring,
    /// io_uring, by the `tokio-uring` runtime: for comparison.
    TokioUring,
    /// epoll, or what the system has in its place.
    Epoll,
}

impl Io {
    /// All words for it.
    pub const WORDS: &'static [&'static str] = &["auto", "uring", "tokio-uring", "epoll"];

    /// The choice a word stands for.
    pub fn of_word(word: &str) -> Option<Self> {
        Some(match word {
            "auto" => Self::Auto,
            "uring" => Self::Uring,
            "tokio-uring" => Self::TokioUring,
            "epoll" => Self::Epoll,
            _ => return None,
        })
    }
}

/// The driver that was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoDriver {
    /// `uring`, `tokio-uring` or `epoll`.
    pub name: &'static str,
    /// Why this one, in a few words.
    pub reason: String,
}

/// Which one it is to be. `try_uring` does all the io_uring driver does and says what does not work.
pub(crate) fn choose(
    wanted: Io,
    try_uring: impl FnOnce() -> Result<(), String>,
    try_tokio_uring: impl FnOnce() -> Result<(), String>,
) -> Result<IoDriver, BindError> {
    let stated = "stated by DROVER_IO";
    let (name, reason) = match wanted {
        Io::Epoll => ("epoll", stated.to_owned()),
        Io::Auto => match try_uring() {
            Ok(()) => ("uring", "all its operations work here".to_owned()),
            Err(what) => ("epoll", format!("io_uring does not work here: {what}")),
        },
        Io::Uring => {
            try_uring().map_err(BindError::Io)?;
            ("uring", stated.to_owned())
        }
        Io::TokioUring => {
            try_tokio_uring().map_err(BindError::Io)?;
            ("tokio-uring", stated.to_owned())
        }
    };
    Ok(IoDriver { name, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "asked by .ci/run, which leaves a driver's tests out where it can't work"]
    fn the_driver_that_is_asked_for_works_here() {
        let wanted = std::env::var("DROVER_IO").unwrap();
        let io = crate::relay::choose(Io::of_word(&wanted).unwrap(), 1, 64).unwrap();
        assert!(wanted == "auto" || io.name == wanted);
        println!("driver: {}", io.name);
    }

    #[test]
    fn only_auto_falls_back_and_every_choice_has_its_reason() {
        let broken = || Err("multishot accept: no".to_owned());
        let auto = choose(Io::Auto, broken, || unreachable!()).unwrap();
        assert_eq!(auto.name, "epoll");
        assert!(auto.reason.contains("multishot accept: no"));
        assert_eq!(
            choose(Io::Auto, || Ok(()), || unreachable!()).unwrap().name,
            "uring"
        );
        assert!(choose(Io::Uring, broken, || unreachable!()).is_err());
        assert!(choose(Io::TokioUring, || unreachable!(), broken).is_err());
        let epoll = choose(Io::Epoll, || unreachable!(), || unreachable!()).unwrap();
        assert_eq!(epoll.name, "epoll");
        for word in Io::WORDS {
            assert!(Io::of_word(word).is_some());
        }
    }
}
