//! Memory that the kernel locks for io_uring. It counts against a limit of the user (`RLIMIT_MEMLOCK`), and that of a ring
//! that was closed still counts until the kernel has taken the ring apart, a while later: one of the probe, or one of the
//! process before this one.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// How long that may take. The kernel does it within milliseconds unless it has a lot to do.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

/// Makes something with a ring, again and again while there is no room for it.
pub(crate) fn make<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
                if Instant::now() >= end {
                    let what = format!("{error} (a ring for each shard counts against RLIMIT_MEMLOCK)");
                    return Err(io::Error::new(error.kind(), what));
                }
                thread::sleep(PAUSE);
            }
            made => return made,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_no_room_is_tried_again_and_other_errors_are_not() {
        let mut tries = 0;
        let made = make(|| {
            tries += 1;
            match tries {
                3 => Ok(7),
                _ => Err(io::Error::from_raw_os_error(libc::ENOMEM)),
            }
        });
        assert_eq!((made.unwrap(), tries), (7, 3));
        let mut tries = 0;
        let made: io::Result<()> = make(|| {
            tries += 1;
            Err(io::Error::from_raw_os_error(libc::EPERM))
        });
        assert_eq!((made.unwrap_err().raw_os_error(), tries), (Some(libc::EPERM), 1));
    }
}
