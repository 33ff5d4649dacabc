//! The far side: the last participant of each call, which answers what the first one sends. It runs beside the process
//! with all the others, as a rule on another machine, and ends by itself when that one has.

use super::room::{Room, join};
use crate::error::Error;
use crate::inflight::latencies;
use crate::measure::{Run, Window};
use std::time::{Duration, Instant};

/// Without frames for so long the near side has ended. Longer than it takes between two of its runs.
const QUIET: Duration = Duration::from_secs(5);
/// A call without frames for 120 s is forgotten (10 §3), so while nobody is there yet it is joined over and over.
const REJOIN: Duration = Duration::from_secs(60);

/// Answers, from the first frame to the last.
pub(super) fn answer(room: &mut Room<'_>) -> Result<Run, Error> {
    let plan = room.load.plan;
    room.load.begin(plan.calls, 0);
    crate::tell!("answering in {} calls: start the near side", plan.calls);
    let mut joined = Instant::now();
    while room.load.delivered == 0 {
        room.load.turn(&mut room.net)?;
        if joined.elapsed() > REJOIN {
            room.join_again()?;
            joined = Instant::now();
        }
    }
    let window = Window::open(None)?;
    let (mut seen, mut last) = (room.load.delivered, Instant::now());
    while last.elapsed() < QUIET {
        room.load.turn(&mut room.net)?;
        if room.load.delivered > seen {
            (seen, last) = (room.load.delivered, Instant::now());
        }
    }
    let quiet_ns = last.elapsed().as_nanos() as u64;
    let mut run = window.close(seen, latencies())?;
    run.elapsed_ns = run.elapsed_ns.saturating_sub(quiet_ns).max(1);
    Ok(run)
}

impl Room<'_> {
    fn join_again(&mut self) -> Result<(), Error> {
        let group = self.bench.workspace.root();
        for number in 0..self.load.connections() {
            let (call, _) = self.load.plan.seat(number);
            self.net.send(number, &join(group, self.cell, call))?;
        }
        Ok(())
    }
}
