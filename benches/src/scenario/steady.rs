//! SENDs at a fixed rate beside something else: what that does to their latency. Writers are the first connections of
//! the loop.

use super::writer::Writer;
use crate::error::Error;
use crate::inflight::{Latencies, latencies};
use crate::net::{Load, Net};
use drover_wire::id::GroupId;
use std::time::{Duration, Instant};

/// Connections the SENDs are spread over, each with one under way as a rule.
pub(super) const WRITERS: usize = 8;
/// SENDs per second in all.
pub(super) const RATE: f64 = 500.0;
/// Ciphertext, bytes.
const SIZE_BYTES: usize = 256;

/// See the module.
pub(super) struct Steady {
    /// Each with the SENDs that are due on it.
    writers: Vec<(Writer, usize)>,
    /// When the next SEND is due, by the loop's clock.
    next_ns: u64,
    sent: usize,
    pub(super) latencies: Latencies,
}

/// A load that carries steady SENDs.
pub(super) trait Carries: Load {
    /// The SENDs.
    fn steady(&mut self) -> &mut Steady;
}

impl Steady {
    /// Writers of these groups.
    pub(super) fn new(groups: impl Iterator<Item = GroupId>) -> Self {
        Self {
            writers: groups.map(|group| (Writer::new(group, SIZE_BYTES), 0)).collect(),
            next_ns: 0,
            sent: 0,
            latencies: latencies(),
        }
    }

    /// Whether this connection is one of the writers.
    pub(super) fn has(&self, connection: usize) -> bool {
        connection < self.writers.len()
    }

    /// The writer whose SEND is due.
    fn due(&mut self, now_ns: u64) -> Option<usize> {
        if now_ns < self.next_ns {
            return None;
        }
        let period_ns = (1e9 / RATE) as u64;
        // What a stall of this thread has missed is not made up for by a burst.
        self.next_ns = (self.next_ns + period_ns).max(now_ns.saturating_sub(period_ns));
        let writer = self.sent % self.writers.len();
        self.sent += 1;
        self.writers[writer].1 += 1;
        Some(writer)
    }

    /// Nothing is under way.
    pub(super) fn is_quiet(&self) -> bool {
        self.writers.iter().all(|(writer, _)| writer.under_way() == 0)
    }

    /// What was measured since the last time.
    pub(super) fn take_latencies(&mut self) -> Latencies {
        std::mem::replace(&mut self.latencies, latencies())
    }
}

impl Load for Steady {
    fn message(&mut self, connection: usize, message: &[u8]) -> Result<(), Error> {
        self.writers[connection].0.acknowledged(message)?;
        Ok(())
    }

    fn settle(&mut self, connection: usize, now_ns: u64, out: &mut Vec<u8>) -> Result<(), Error> {
        let (writer, due) = &mut self.writers[connection];
        writer.finish(now_ns, &mut self.latencies)?;
        writer.send(std::mem::take(due), now_ns, out);
        Ok(())
    }
}

impl Carries for Steady {
    fn steady(&mut self) -> &mut Steady {
        self
    }
}

/// Sends what is due, then waits until the next is, or for sockets.
pub(super) fn turn(net: &mut Net, load: &mut impl Carries) -> Result<(), Error> {
    while let Some(writer) = {
        let now_ns = net.now_ns();
        load.steady().due(now_ns)
    } {
        net.nudge(writer, load)?;
    }
    let wait_ns = load.steady().next_ns.saturating_sub(net.now_ns());
    net.turn(Some(Duration::from_nanos(wait_ns)), load)
}

/// Keeps it up for this long.
pub(super) fn turn_for(net: &mut Net, load: &mut impl Carries, length: Duration) -> Result<(), Error> {
    let started = Instant::now();
    while started.elapsed() < length {
        turn(net, load)?;
    }
    Ok(())
}
