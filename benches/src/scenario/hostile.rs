//! A well-behaved client beside hostile ones: the p99 of its SENDs in multiples of what it is without them, and the CPU
//! time the attack costs the relay.
//!
//! The client sends [`RATE`] envelopes a second on one connection, and a latency counts from the moment its SEND was due.
//! Attackers run on a thread of the lowest priority: on a real network they bring their own cores, and here they must not
//! take the relay's. The relay has its default limits, except for the client's own budgets.
//!
//! | Module | Story |
//! | --- | --- |
//! | [`attack`] | what each attack does |
//! | [`crowd`] | its sockets |
//! | [`sink`] | what they meet when no relay is attacked |
//!
//! What is before the upgrade is mostly the system's work, and the attackers' beside the relay on one machine. So the same
//! attack is made on a raw sink as well, while the client works with the relay as before: `sink_times_idle` is what the
//! machine costs the client then, `times_sink` what is left to the relay.

pub(crate) mod attack;
mod crowd;
mod sink;

use super::writer::Writer;
use super::{Bench, DRAIN_TIMEOUT, row, turn_until};
use crate::args::BenchArgs;
use crate::error::{Doing, Error};
use crate::inflight::{Latencies, latencies};
use crate::link::Target;
use crate::measure::{Row, Run, Window};
use crate::net::{Load, Net};
use crate::peer::Peer;
use attack::{Attack, Scene};
use crowd::Crowd;
use drover_wire::id::GroupId;
use sink::Sink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// SENDs of the well-behaved client, per second.
const RATE: f64 = 200.0;
/// Ciphertext of one, bytes.
const SIZE_BYTES: usize = 256;
/// The attack goes on for so long before it is measured, so that its sockets are there.
const RAMP: Duration = Duration::from_millis(700);
/// Sockets that may be in TIME_WAIT when an attack begins that opens many, and how long that is waited for.
const TIME_WAIT_MAX: u64 = 2_000;
const TIME_WAIT: Duration = Duration::from_secs(70);
/// What the relay is given to close the sockets of an attack that has ended.
const CALM: Duration = Duration::from_millis(500);
/// Envelopes in the log that subscribers and reconciliations meet.
const LOG: usize = 20_000;

/// Measures the attacks named, or all.
pub(super) fn run(args: &BenchArgs) -> Result<Vec<Row>, Error> {
    if !args.is_spawned() {
        return Err(Error::Usage(
            "hostile attacks a relay of its own only: --spawn is needed".into(),
        ));
    }
    let mut args = args.clone();
    args.env.insert(0, "WEALD_RELAY_MAX_CONNECTIONS=256".into());
    let all = match args.attacks.is_empty() {
        true => Attack::ALL.to_vec(),
        false => args.attacks.clone(),
    };
    all.into_iter().map(|attack| measure(&args, attack)).collect()
}

fn measure(args: &BenchArgs, attack: Attack) -> Result<Row, Error> {
    let bench = Bench::enter(args, 2, false)?;
    let group = bench.workspace.groups(1)[0];
    let mut client = Client::new(
        bench.workspace.connect(&bench.target, 0, group)?,
        group,
        SIZE_BYTES,
    )?;
    if attack.needs_log() {
        client.fill(LOG)?;
    }
    let scene = Scene::new(&bench, group, attack)?;
    let length = Duration::from_secs_f64(args.seconds);
    let mut runs = Vec::new();
    client.work(RAMP)?;
    for _ in 0..args.runs.max(1) {
        if attack.is_before_upgrade() {
            wait_for_ports(&mut client)?;
        }
        let (idle, _) = window(&bench, &mut client, length)?;
        let Beside {
            mut run,
            mb_per_s,
            opens_per_s,
        } = beside(&bench, &mut client, &scene, &bench.target, length)?;
        let cores = |run: &Run| {
            run.server
                .map_or(0.0, |time| time.ran_ns as f64 / run.elapsed_ns as f64)
        };
        let (p99, idle_p99) = (run.latency_ms(0.99), idle.latency_ms(0.99));
        let ratio = |p99: Option<f64>, to: Option<f64>| p99.zip(to).map_or(f64::NAN, |(p99, to)| p99 / to);
        run.extra = vec![
            ("idle_p99_ms", idle_p99.unwrap_or(f64::NAN)),
            ("times_idle", ratio(p99, idle_p99)),
            ("attack_cores", cores(&run) - cores(&idle)),
            ("attack_mb_per_s", mb_per_s),
            ("attack_opens_per_s", opens_per_s),
        ];
        if attack.is_before_upgrade() {
            wait_for_ports(&mut client)?;
            let sink = Sink::begin()?;
            let beside = beside(&bench, &mut client, &scene, &sink.target, length)?;
            sink.end()?;
            let sink_p99 = beside.run.latency_ms(0.99);
            run.extra.extend([
                ("sink_p99_ms", sink_p99.unwrap_or(f64::NAN)),
                ("sink_times_idle", ratio(sink_p99, idle_p99)),
                ("times_sink", ratio(p99, sink_p99)),
                ("sink_mb_per_s", beside.mb_per_s),
                ("sink_opens_per_s", beside.opens_per_s),
            ]);
        }
        runs.push(run);
    }
    Ok(row(attack.row(), attack.what(), runs))
}

/// Waits, while the client works on, until the ports of an earlier attack are free again (a minute, on Linux): who opens a
/// connection while most are in TIME_WAIT keeps the kernel looking for one, with interrupts held back, for 100 ms and more.
fn wait_for_ports(client: &mut Client) -> Result<(), Error> {
    let waiting = || {
        let page = std::fs::read_to_string("/proc/net/sockstat").ok()?;
        let (_, rest) = page.split_once(" tw ")?;
        rest.split_whitespace().next()?.parse::<u64>().ok()
    };
    let begun = Instant::now();
    while waiting().is_some_and(|sockets| sockets > TIME_WAIT_MAX) && begun.elapsed() < TIME_WAIT {
        client.work(RAMP)?;
    }
    Ok(())
}

/// What was measured beside an attack.
struct Beside {
    run: Run,
    /// What the attackers' sockets took, and how often one was opened.
    mb_per_s: f64,
    opens_per_s: f64,
}

/// The client's window while `target` is attacked.
fn beside(
    bench: &Bench,
    client: &mut Client,
    scene: &Scene,
    target: &Target,
    length: Duration,
) -> Result<Beside, Error> {
    let assault = Assault::begin(scene.clone(), target.clone());
    client.work(RAMP)?;
    let (bytes, opened) = assault.counts();
    let (run, attacked) = window(bench, client, length)?;
    let (bytes_after, opened_after) = assault.counts();
    assault.end()?;
    thread::sleep(CALM);
    let seconds = attacked.as_secs_f64();
    Ok(Beside {
        run,
        mb_per_s: (bytes_after - bytes) as f64 / 1e6 / seconds,
        opens_per_s: (opened_after - opened) as f64 / seconds,
    })
}

/// The client works for this long, and the relay's CPU time is charged.
fn window(bench: &Bench, client: &mut Client, length: Duration) -> Result<(Run, Duration), Error> {
    let window = Window::open(bench.server.as_ref())?;
    let (sent, latencies) = client.work(length)?;
    let elapsed = window.elapsed();
    Ok((window.close(sent, latencies)?, elapsed))
}

/// The well-behaved one: one connection.
struct Client {
    net: Net,
    load: Sends,
}

impl Client {
    fn new(peer: Peer, group: GroupId, size_bytes: usize) -> Result<Self, Error> {
        let mut net = Net::new()?;
        net.add(peer)?;
        Ok(Self {
            net,
            load: Sends {
                writer: Writer::new(group, size_bytes),
                due: 0,
                due_ns: 0,
                acknowledged: 0,
                latencies: latencies(),
            },
        })
    }

    /// Stores so many.
    fn fill(&mut self, count: usize) -> Result<(), Error> {
        const TOGETHER: usize = 200;
        for _ in 0..count / TOGETHER {
            self.load.due = TOGETHER;
            self.load.due_ns = self.net.now_ns();
            self.net.nudge(0, &mut self.load)?;
            self.drain()?;
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<(), Error> {
        turn_until(&mut self.net, &mut self.load, DRAIN_TIMEOUT, "SEND_ACK", |load| {
            load.writer.under_way() == 0
        })
    }

    /// An open loop: a SEND leaves when it is due, whatever is under way, and its latency counts from then. Answers
    /// that are late are waited for.
    fn work(&mut self, length: Duration) -> Result<(u64, Latencies), Error> {
        let (started, pace) = (Instant::now(), Duration::from_secs_f64(1.0 / RATE));
        let started_ns = self.net.now_ns();
        self.load
            .writer
            .prepare((length.as_secs_f64() * RATE) as usize + 1);
        self.load.latencies.reset();
        self.load.acknowledged = 0;
        let mut sent = 0u32;
        while pace * sent < length {
            let wait = (started + pace * sent).saturating_duration_since(Instant::now());
            if wait.is_zero() {
                self.load.due = 1;
                self.load.due_ns = started_ns + (pace * sent).as_nanos() as u64;
                self.net.nudge(0, &mut self.load)?;
                sent += 1;
            } else {
                self.net.turn(Some(wait), &mut self.load)?;
            }
        }
        self.drain()?;
        let taken = std::mem::replace(&mut self.load.latencies, latencies());
        Ok((self.load.acknowledged, taken))
    }
}

/// What [`Client`] does with its connection.
struct Sends {
    writer: Writer,
    /// SENDs to leave now, and the moment they were due.
    due: usize,
    due_ns: u64,
    acknowledged: u64,
    latencies: Latencies,
}

impl Load for Sends {
    fn message(&mut self, _: usize, message: &[u8]) -> Result<(), Error> {
        self.writer.acknowledged(message)?;
        Ok(())
    }

    fn settle(&mut self, _: usize, now_ns: u64, out: &mut Vec<u8>) -> Result<(), Error> {
        self.acknowledged += self.writer.finish(now_ns, &mut self.latencies)? as u64;
        self.writer.send(std::mem::take(&mut self.due), self.due_ns, out);
        Ok(())
    }
}

/// The attackers' thread.
struct Assault {
    over: Arc<AtomicBool>,
    bytes: Arc<AtomicU64>,
    opened: Arc<AtomicU64>,
    thread: thread::JoinHandle<Result<(), Error>>,
}

impl Assault {
    fn begin(scene: Scene, target: Target) -> Self {
        let (over, bytes, opened) = <(Arc<AtomicBool>, Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let (until, written, connected) = (over.clone(), bytes.clone(), opened.clone());
        let thread = thread::spawn(move || {
            // Of this thread alone, on Linux.
            rustix::process::nice(19)
                .map_err(std::io::Error::from)
                .doing("give way to the relay")?;
            let mut crowd = Crowd::new(scene, target);
            while !until.load(Ordering::Relaxed) {
                crowd.pass(&until);
                written.store(crowd.bytes, Ordering::Relaxed);
                connected.store(crowd.opened, Ordering::Relaxed);
            }
            Ok(())
        });
        Self {
            over,
            bytes,
            opened,
            thread,
        }
    }

    /// Bytes the relay's sockets took, and connections opened.
    fn counts(&self) -> (u64, u64) {
        (
            self.bytes.load(Ordering::Relaxed),
            self.opened.load(Ordering::Relaxed),
        )
    }

    fn end(self) -> Result<(), Error> {
        self.over.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .unwrap_or_else(|_| Err(Error::Unexpected("the attackers' thread panicked".into())))
    }
}
