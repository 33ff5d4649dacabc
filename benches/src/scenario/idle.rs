//! Memory of authenticated connections that do nothing, and the CPU time they cost.

use super::{Bench, row};
use crate::args::BenchArgs;
use crate::error::Error;
use crate::inflight::latencies;
use crate::measure::{Row, Run, Window};
use crate::peer::Peer;
use std::thread;
use std::time::Duration;

/// Connections of the reference setting.
const CONNECTIONS: usize = 9000;
/// The allocator and the kernel get this long to settle.
const SETTLE: Duration = Duration::from_secs(1);

/// Measures it; `tls` has a meaning only for a relay that is spawned.
pub(super) fn run(args: &BenchArgs, tls: bool) -> Result<Row, Error> {
    let connections = args.connections.unwrap_or(CONNECTIONS).max(1);
    let mut runs = Vec::new();
    for _ in 0..args.runs.max(1) {
        runs.push(measure(args, connections, tls)?);
    }
    let name = if tls { "idle-tls" } else { "idle" };
    let over = if tls { "TLS" } else { "plain" };
    Ok(row(
        name,
        format!("{connections} idle authenticated connections, {over}"),
        runs,
    ))
}

fn measure(args: &BenchArgs, connections: usize, tls: bool) -> Result<Run, Error> {
    // A relay of its own, since memory given back by the connections of a run before would be reused.
    let bench = Bench::enter(args, connections, tls)?;
    let server = bench
        .server
        .as_ref()
        .ok_or_else(|| Error::Usage("idle needs --pid or --spawn".into()))?;
    let group = bench.workspace.groups(1)[0];
    let open = |number| bench.workspace.connect(&bench.target, number, group);
    // As many again before memory is read the first time: they take what founding and admitting have left behind in
    // the allocator, and what the relay needs once is not counted.
    let warm: Vec<Peer> = (0..connections).map(open).collect::<Result<_, _>>()?;
    thread::sleep(SETTLE);
    let before = server.resident_bytes()?;
    let idle: Vec<Peer> = (0..connections).map(open).collect::<Result<_, _>>()?;
    thread::sleep(SETTLE);
    let after = server.resident_bytes()?;
    let window = Window::open(Some(server))?;
    thread::sleep(Duration::from_secs_f64(args.seconds.min(2.0)));
    let mut run = window.close(0, latencies())?;
    let each = after.saturating_sub(before) as f64 / connections as f64 / 1024.0;
    run.extra = vec![("kib_per_connection", each)];
    drop((warm, idle));
    Ok(run)
}
