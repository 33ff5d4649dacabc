//! The same work without a relay: what this machine does when nothing but the bytes is handled. One thread serves over
//! loopback TCP, the calling thread loads it; messages are as long as the relay's frames and are told apart by length
//! alone.
//!
//! | Row | Work |
//! | --- | --- |
//! | `raw-echo`, `raw-echo-single` | what arrived goes back: in one write per socket and turn, or one per message |
//! | `raw-durable` | what arrived in a turn is appended and synced once, then every message is acknowledged |
//! | `raw-append-N` | N records appended, one fdatasync; no network |
//! | `raw-fanout`, `raw-fanout-single` | one writer's messages to every subscriber: one write per turn, or per message |
//! | `raw-fanout-paced` | `raw-fanout` at 100 messages per second |
//! | `raw-stream` | a reader asks for batches of as many messages as a backfill has |

mod client;
pub(crate) mod forward;
mod server;
mod socket;

use crate::args::BenchArgs;
use crate::error::{Doing, Error};
use crate::inflight::{latencies, record};
use crate::lane::Lane;
use crate::measure::{Row, Run, Window};
use crate::process::Process;
use client::Client;
use drover_wire::id::GroupId;
use server::Server;
pub(crate) use socket::Socket;
use std::fs::File;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// The reference settings of the scenarios these are baselines of.
const CONNECTIONS: usize = 64;
const SUBSCRIBERS: usize = 200;
const SIZE_BYTES: usize = 256;
const STREAM_SIZE_BYTES: usize = 1024;
const STREAM_BATCH: usize = 255;
/// SENDs per second of the paced fan-out.
pub(crate) const PACED_RATE: f64 = 100.0;
/// Bytes of a SEND_ACK on the wire.
const ACK_BYTES: usize = 42;
/// Baselines settle fast; longer runs tell nothing more.
const SECONDS_MAX: f64 = 2.0;
const RAMP: Duration = Duration::from_millis(200);
const TICK: Duration = Duration::from_millis(5);
const READ_BYTES: usize = 256 << 10;

/// What the serving thread does with what arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Echo { batched: bool },
    Durable,
    Fanout { batched: bool },
    Stream,
}

/// One baseline over the network.
struct Plan {
    name: &'static str,
    work: Work,
    connections: usize,
    message_bytes: usize,
    /// Messages a sender has under way.
    window: usize,
    rate: Option<f64>,
}

/// Baselines of ingest.
pub(crate) fn ingest(args: &BenchArgs) -> Result<Vec<Row>, Error> {
    let plan = |name, work| Plan {
        name,
        work,
        connections: args.connections.unwrap_or(CONNECTIONS).max(1),
        message_bytes: message_bytes(args.size_or(SIZE_BYTES)),
        window: args.window.max(1),
        rate: None,
    };
    let mut rows = vec![
        plan("raw-echo", Work::Echo { batched: true }).run(args)?,
        plan("raw-echo-single", Work::Echo { batched: false }).run(args)?,
        plan("raw-durable", Work::Durable).run(args)?,
    ];
    for (name, batch) in [
        ("raw-append-1", 1),
        ("raw-append-64", 64),
        ("raw-append-1024", 1024),
        ("raw-append-4096", 4096),
    ] {
        rows.push(append(args, name, batch)?);
    }
    Ok(rows)
}

/// Baselines of fan-out, paced if that is.
pub(crate) fn fanout(args: &BenchArgs) -> Result<Vec<Row>, Error> {
    let plan = |name, batched| Plan {
        name,
        work: Work::Fanout { batched },
        connections: 1 + args.connections.unwrap_or(SUBSCRIBERS).max(1),
        message_bytes: message_bytes(args.size_or(SIZE_BYTES)),
        window: args.window.max(1),
        rate: args.rate,
    };
    if args.rate.is_some() {
        return Ok(vec![plan("raw-fanout-paced", true).run(args)?]);
    }
    Ok(vec![
        plan("raw-fanout", true).run(args)?,
        plan("raw-fanout-single", false).run(args)?,
    ])
}

/// The baseline of replay.
pub(crate) fn replay(args: &BenchArgs) -> Result<Vec<Row>, Error> {
    let size_bytes = args.size_or(STREAM_SIZE_BYTES);
    let plan = Plan {
        name: "raw-stream",
        work: Work::Stream,
        connections: 1,
        message_bytes: message_bytes(size_bytes),
        window: STREAM_BATCH,
        rate: None,
    };
    let mut row = plan.run(args)?;
    for run in &mut row.runs {
        let mb_per_s = run.rate() * size_bytes as f64 / 1e6;
        run.extra.push(("mb_per_s", mb_per_s));
    }
    Ok(vec![row])
}

/// What an envelope of this size takes on the wire.
fn message_bytes(size_bytes: usize) -> usize {
    Lane::new(GroupId([0; 32]), size_bytes).message_bytes()
}

fn length(args: &BenchArgs) -> Duration {
    Duration::from_secs_f64(args.seconds.min(SECONDS_MAX))
}

/// A file that is gone when it is closed, on the disk a relay would use.
fn log_file(args: &BenchArgs) -> Result<File, Error> {
    match &args.dir {
        Some(dir) => tempfile::tempfile_in(dir),
        None => tempfile::tempfile(),
    }
    .doing("make a temporary file")
}

/// Appends and syncs batches of records.
fn append(args: &BenchArgs, name: &'static str, batch: usize) -> Result<Row, Error> {
    let record_bytes = message_bytes(args.size_or(SIZE_BYTES));
    let mut log = log_file(args)?;
    let records = vec![0x5a; batch * record_bytes];
    let process = Process::this_thread()?;
    let mut runs = Vec::new();
    for _ in 0..args.runs.max(1) {
        let mut taken = latencies();
        let mut done = 0;
        let window = Window::open(Some(&process))?;
        while window.elapsed() < length(args) {
            let started = Instant::now();
            log.write_all(&records).doing("append")?;
            log.sync_data().doing("sync")?;
            record(&mut taken, started.elapsed().as_nanos() as u64, batch);
            done += batch as u64;
        }
        runs.push(window.close(done, taken)?);
    }
    let what = format!("{batch} record(s) of {record_bytes} B appended, fdatasync");
    Ok(Row::new(name, what, runs))
}

impl Plan {
    fn run(&self, args: &BenchArgs) -> Result<Row, Error> {
        let listener = TcpListener::bind("127.0.0.1:0").doing("listen")?;
        let address = listener.local_addr().doing("listen")?;
        let mut client = Client::new(self)?;
        let mut server = Server::new(self, log_file(args)?)?;
        for _ in 0..self.connections {
            client.add(TcpStream::connect(address).doing("connect")?)?;
            server.add(listener.accept().doing("accept")?.0)?;
        }
        let (sender, process) = mpsc::channel();
        let serving = thread::spawn(move || {
            // The receiver waits for it.
            let _ = sender.send(Process::this_thread());
            server.serve()
        });
        let process = process
            .recv()
            .map_err(|_| Error::Unexpected("the serving thread ended".into()))??;
        let runs = (0..args.runs.max(1))
            .map(|_| client.measure(&process, length(args)))
            .collect::<Result<Vec<Run>, Error>>()?;
        drop(client);
        serving
            .join()
            .map_err(|_| Error::Unexpected("the serving thread panicked".into()))??;
        let what = format!(
            "{:?}, {} connection(s), {} B, window {}",
            self.work, self.connections, self.message_bytes, self.window
        );
        Ok(Row::new(self.name, what, runs))
    }
}
