//! SENDs at a fixed rate beside something else: what that does to their latency. Writers are the first connections of
//! the loop.

use super::ingest::send_ack;
use crate::error::Error;
use crate::inflight::{InFlight, Latencies, latencies};
use crate::lane::Lane;
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
    writers: Vec<Writer>,
    /// When the next SEND is due, by the loop's clock.
    next_ns: u64,
    sent: usize,
    pub(super) latencies: Latencies,
}

struct Writer {
    lane: Lane,
    in_flight: InFlight,
    arrived: usize,
    due: usize,
}

/// A load that carries steady SENDs.
pub(super) trait Carries: Load {
    /// The SENDs.
    fn steady(&mut self) -> &mut Steady;
}

impl Steady {
    /// Writers of these groups.
    pub(super) fn new(groups: impl Iterator<Item = GroupId>) -> Self {
        let writer = |group| Writer {
            lane: Lane::new(group, SIZE_BYTES),
            in_flight: InFlight::default(),
            arrived: 0,
            due: 0,
        };
        Self {
            writers: groups.map(writer).collect(),
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
        self.writers[writer].due += 1;
        Some(writer)
    }

    /// Nothing is under way.
    pub(super) fn is_quiet(&self) -> bool {
        self.writers.iter().all(|writer| writer.in_flight.count() == 0)
    }

    /// What was measured since the last time.
    pub(super) fn take_latencies(&mut self) -> Latencies {
        std::mem::replace(&mut self.latencies, latencies())
    }
}

impl Load for Steady {
    fn message(&mut self, connection: usize, message: &[u8]) -> Result<(), Error> {
        let (hash, _) = send_ack(message)?;
        let writer = &mut self.writers[connection];
        if !writer.lane.acknowledged(hash) {
            return Err(Error::Unexpected("a SEND_ACK out of order".into()));
        }
        writer.arrived += 1;
        Ok(())
    }

    fn settle(&mut self, connection: usize, now_ns: u64, out: &mut Vec<u8>) -> Result<(), Error> {
        let writer = &mut self.writers[connection];
        let arrived = std::mem::take(&mut writer.arrived);
        if !writer.in_flight.finished(arrived, now_ns, &mut self.latencies) {
            return Err(Error::Unexpected("more SEND_ACKs than SENDs".into()));
        }
        let due = std::mem::take(&mut writer.due);
        for _ in 0..due {
            writer.lane.put_next(out);
        }
        writer.in_flight.sent(due, now_ns);
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
