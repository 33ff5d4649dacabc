//! Publishing an access set as large as one may be: it drops connected devices and admits as many others; an operation
//! is one publication, with its answer and the end of every connection it drops.

use super::{Bench, row};
use crate::args::BenchArgs;
use crate::error::Error;
use crate::inflight::{Latencies, latencies, record};
use crate::measure::{Row, Run, Window};
use crate::peer::{Peer, encoded};
use crate::workspace::{DEVICES_MAX, new_key};
use drover_wire::frame::Frame;
use drover_wire::id::Hash;
use ed25519_dalek::SigningKey;
use std::thread;
use std::time::{Duration, Instant};

/// Connected devices that a publication of the reference setting drops.
const DROPPED: usize = 100;
/// Publications by one connection: ACCESS is budgeted per connection and minute (04 §3).
const PER_CONNECTION: usize = 25;
/// The relay has nothing to do for this long before its CPU time is read, which is behind for a thread that runs.
const SETTLE: Duration = Duration::from_millis(5);
/// Within this a dropped device has to be gone (W05.13).
const EVICTION_TIMEOUT: Duration = Duration::from_secs(5);

/// Measures it.
pub(super) fn run(args: &BenchArgs) -> Result<Row, Error> {
    let dropped = args.connections.unwrap_or(DROPPED).clamp(1, DEVICES_MAX);
    let mut bench = Bench::enter(args, DEVICES_MAX, false)?;
    let entries = bench.workspace.authority()?.entries();
    let mut runs = Vec::new();
    for _ in 0..args.runs.max(1) {
        runs.push(measure(args, &mut bench, dropped)?);
    }
    let what = format!("publication of {entries} entries that drops {dropped} connections");
    Ok(row("access", what, runs))
}

fn measure(args: &BenchArgs, bench: &mut Bench, dropped: usize) -> Result<Run, Error> {
    let mut publisher = bench.workspace.connect_founder(&bench.target, &[])?;
    let started = Instant::now();
    let (mut windows, mut open_max, mut late_max) = (Vec::new(), 0, Duration::ZERO);
    while windows.is_empty()
        || (windows.len() < PER_CONNECTION && started.elapsed().as_secs_f64() < args.seconds)
    {
        let one = publication(bench, &mut publisher, windows.len() * dropped, dropped)?;
        open_max = open_max.max(one.open_at_answer);
        late_max = late_max.max(one.late);
        windows.push(one.run);
    }
    let mut run = Run::merged(windows).ok_or_else(|| Error::Usage("--runs has to be above 0".into()))?;
    run.extra = vec![
        ("open_at_answer_max", open_max as f64),
        ("last_eviction_ms_max", late_max.as_secs_f64() * 1e3),
    ];
    if let Some(server) = run.server {
        run.extra
            .push(("cpu_ms_each", server.ran_ns as f64 / run.ops as f64 / 1e6));
    }
    Ok(run)
}

struct Publication {
    run: Run,
    /// Connections the relay had not ended when its answer was read.
    open_at_answer: usize,
    /// From the answer to the end of the last connection, as seen by looking at one after the other.
    late: Duration,
}

/// Connects the devices from `first` on, publishes a set without them, and sees them go.
fn publication(
    bench: &mut Bench,
    publisher: &mut Peer,
    first: usize,
    dropped: usize,
) -> Result<Publication, Error> {
    let places = first..first + dropped;
    let root = bench.workspace.root();
    let old: Vec<SigningKey> = places
        .clone()
        .map(|place| bench.workspace.device(place).clone())
        .collect();
    let mut connections: Vec<Peer> = old
        .iter()
        .map(|device| Peer::authenticated(&bench.target, device, &[root]))
        .collect::<Result<_, _>>()?;
    let new: Vec<SigningKey> = places.clone().map(|_| new_key()).collect();
    let set = bench.workspace.authority()?.replacing(&old, &new);
    let frame = encoded(&Frame::Access { body: &set.encode() });
    let digest = set.digest();
    thread::sleep(SETTLE);

    let mut latencies: Latencies = latencies();
    let window = Window::open(bench.server.as_ref())?;
    publisher.send(&frame)?;
    let answer = publisher.answer(|frame| match frame {
        Frame::Access { body } => Hash::from_slice(body),
        _ => None,
    })?;
    let answered = Instant::now();
    record(&mut latencies, window.elapsed().as_nanos() as u64, 1);
    let open_at_answer = still_open(&mut connections)?;
    while still_open(&mut connections)? > 0 {
        if answered.elapsed() > EVICTION_TIMEOUT {
            return Err(Error::Unexpected("a dropped device keeps its connection".into()));
        }
    }
    let late = answered.elapsed();
    thread::sleep(SETTLE);
    let run = window.close(1, latencies)?;

    if answer != digest {
        return Err(Error::Unexpected("another access set was accepted".into()));
    }
    bench.workspace.authority()?.accepted(set);
    for (place, device) in places.zip(new) {
        bench.workspace.replace_device(place, device);
    }
    Ok(Publication {
        run,
        open_at_answer,
        late,
    })
}

/// Takes out what has ended; returns how many are left.
fn still_open(connections: &mut Vec<Peer>) -> Result<usize, Error> {
    let mut open = Vec::new();
    for mut connection in connections.drain(..) {
        if !connection.has_ended()? {
            open.push(connection);
        }
    }
    *connections = open;
    Ok(connections.len())
}
