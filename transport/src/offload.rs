//! Work too heavy for a shard, on threads of its own: hashing one-time codes (06 §3) and reading a changed
//! certificate.

use crossbeam::channel::{Sender, TrySendError, bounded};
use std::io;
use std::thread;

/// Jobs that may wait: with the one that runs, eight devices that redeem an invite at once are all served, the last one
/// after some 150 ms. A hash takes about 20 ms and, while it runs, 19 MiB; who comes when these are taken is told to
/// come again.
const QUEUED_MAX: usize = 7;

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

#[cfg(test)]
mod tests {
    use super::*;

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
