//! Work too heavy for a shard, on threads of its own: hashing one-time codes (06 §3) and reading a changed
//! certificate.

use argon2::{Algorithm, Argon2, Params, Version};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use crossbeam::channel::{Sender, TrySendError, bounded};
use drover_engine::effects::CodeCheck;
use std::io;
use std::thread;

/// Jobs that may wait. A hash takes about 20 ms and 19 MiB; who comes when these are taken is told to come again.
const QUEUED_MAX: usize = 4;

type Job = Box<dyn FnOnce() + Send>;

/// The threads. They end when this is dropped and the queue is empty.
pub(crate) struct Offload {
    jobs: Sender<Job>,
}

impl Offload {
    pub(crate) fn start() -> io::Result<Self> {
        let (jobs, queue) = bounded::<Job>(QUEUED_MAX);
        let threads = if thread::available_parallelism().map_or(1, usize::from) >= 4 {
            2
        } else {
            1
        };
        for n in 0..threads {
            let queue = queue.clone();
            thread::Builder::new()
                .name(format!("drover-offload-{n}"))
                .spawn(move || {
                    for job in queue {
                        job();
                    }
                })?;
        }
        Ok(Self { jobs })
    }

    /// Runs the job on one of the threads. `false` if too much waits already.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) -> bool {
        !matches!(
            self.jobs.try_send(Box::new(job)),
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_))
        )
    }
}

/// Whether the code hashes to the expected value: Argon2id version 0x13, 19 456 KiB, 2 passes, 1 lane, 32 bytes,
/// salted with the token, compared in constant time. Any internal failure is a mismatch (06 §3).
pub(crate) fn code_matches(check: &CodeCheck) -> bool {
    let Ok(params) = Params::new(19_456, 2, 1, Some(32)) else {
        return false;
    };
    let mut hash = [0; 32];
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into(&check.code, &check.token, &mut hash)
        .is_ok_and(|()| verify_slices_are_equal(&hash, &check.code_hash).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex<const N: usize>(text: &str) -> [u8; N] {
        std::array::from_fn(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap())
    }

    #[test]
    fn the_published_examples_match_and_nothing_else_does() {
        let cases = [
            (
                "00000000000000000000000000000000",
                b"000000000000",
                "794c4b55d301afdc2d81606440761dda2adfdd2136d8d149453f2714d4d3165f",
            ),
            (
                "00112233445566778899aabbccddeeff",
                b"28T5CY4TQKFF",
                "c7b6fc098f6ffadaad1246fa8dc141cdf090147325cafc5fd7c49d82235746db",
            ),
        ];
        for (token, code, hash) in cases {
            let mut check = CodeCheck {
                code: *code,
                token: hex(token),
                code_hash: hex(hash),
            };
            assert!(code_matches(&check));
            check.code[11] ^= 1;
            assert!(!code_matches(&check));
        }
    }

    #[test]
    fn a_full_queue_says_so() {
        let offload = Offload::start().unwrap();
        let (hold, held) = bounded::<()>(0);
        let blocked = |held: crossbeam::channel::Receiver<()>| {
            move || {
                let _ = held.recv();
            }
        };
        let taken = (0..20).take_while(|_| offload.run(blocked(held.clone()))).count();
        assert!((QUEUED_MAX..QUEUED_MAX + 3).contains(&taken));
        drop(hold);
    }
}
