//! DROP of a long log: an operation is one envelope deleted. Once alone, for its CPU time, and once beside SENDs of other
//! groups of the same shard, for what they notice of it. And what they notice of the compaction that follows.

use super::ingest::Ingest;
use super::steady::{self, Carries, Steady};
use super::{Bench, RAMP, row, turn_until};
use crate::args::BenchArgs;
use crate::error::Error;
use crate::inflight::{Latencies, latencies, record};
use crate::measure::{Row, Run, Window};
use crate::net::{Load, Net};
use crate::peer::{Peer, encoded, public_key};
use crate::workspace::new_key;
use crate::wsframe;
use drover_wire::blob;
use drover_wire::drop::{Answer, Request};
use drover_wire::frame::Frame;
use drover_wire::id::{GroupId, Hash, Signature};
use drover_wire::retention::{Control, Policy};
use ed25519_dalek::SigningKey;
use std::thread;
use std::time::{Duration, Instant};

/// Envelopes that are deleted, of the reference setting.
const ENVELOPES: usize = 100_000;
/// Their ciphertext, bytes.
const SIZE_BYTES: usize = 256;
/// How long a DROP may take.
const DROP_TIMEOUT: Duration = Duration::from_secs(120);
/// The relay has nothing to do for this long before its CPU time is read.
const SETTLE: Duration = Duration::from_millis(200);
const UNSIGNED: Signature = Signature([0; 64]);

/// Measures it, alone and beside SENDs.
pub(super) fn run(args: &BenchArgs) -> Result<Vec<Row>, Error> {
    let envelopes = args.envelopes.unwrap_or(ENVELOPES).max(1);
    let size_bytes = args.size_or(SIZE_BYTES);
    let (mut bench, second) = enter(args)?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..args.runs.max(1) {
        let log = Log::fill(&mut bench, &second, size_bytes, envelopes, None)?;
        alone.push(log.drop_alone(&bench)?);
        let log = Log::fill(&mut bench, &second, size_bytes, envelopes, None)?;
        beside.push(log.drop_beside_sends(args, &bench)?);
    }
    Ok(vec![
        row(
            "drop",
            format!("DROP of {envelopes} envelopes of {size_bytes} B"),
            alone,
        ),
        row(
            "drop-send",
            format!("SEND to other groups, {} per s, during such a DROP", steady::RATE),
            beside,
        ),
    ])
}

/// Envelopes of each of two groups in one piece, and pieces: several segments of which half is dropped.
const COMPACT_PIECE: usize = 25_000;
const COMPACT_PIECES: usize = 16;
/// How long a compaction may take to come and to end.
const COMPACT_TIMEOUT: Duration = Duration::from_secs(120);
/// How often is looked whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Measures SENDs beside compactions. A compaction takes a second or two, of which a p99 is a handful of SENDs: so those of
/// all runs are taken together, and so are those before.
pub(super) fn compact(args: &BenchArgs) -> Result<Row, Error> {
    let size_bytes = args.size_or(SIZE_BYTES);
    let (mut bench, second) = enter(args)?;
    let (mut idle, mut windows) = (latencies(), Vec::new());
    for _ in 0..args.runs.max(1) {
        let kept = bench.workspace.groups(1)[0];
        let log = Log::fill(&mut bench, &second, size_bytes, COMPACT_PIECE, Some(kept))?;
        let (before, window) = log.compact_beside_sends(args, &bench)?;
        idle.add(&before).expect("all histograms have the same bounds");
        windows.push(window);
    }
    let compactions = windows.len() as f64;
    let mut run = Run::merged(windows).ok_or_else(|| Error::Usage("--runs: at least 1".into()))?;
    let ms = |latencies: &Latencies| latencies.value_at_quantile(0.99) as f64 / 1e6;
    run.extra = vec![
        ("p99_ms_idle", ms(&idle)),
        ("p99_times", ms(&run.latencies) / ms(&idle).max(1e-6)),
        ("compaction_ms", run.elapsed_ns as f64 / 1e6 / compactions),
    ];
    let what = format!(
        "SEND, {} per s, while half-dead segments are rewritten",
        steady::RATE
    );
    Ok(row("compact", what, vec![run]))
}

/// A workspace that may drop, and the second key of its policy.
fn enter(args: &BenchArgs) -> Result<(Bench, SigningKey), Error> {
    let mut bench = Bench::enter(args, super::LOADERS.max(steady::WRITERS), false)?;
    // A policy that is due at once takes two authorizers (08 §12).
    let mut founder = bench.workspace.connect_founder(&bench.target, &[])?;
    let second = bench.workspace.device(0).clone();
    let set = bench.workspace.authority()?.joined_by(&second);
    bench.workspace.authority()?.publish(&mut founder, set)?;
    Ok((bench, second))
}

/// A group's log that may be dropped.
struct Log {
    peer: Peer,
    envelopes: usize,
    instruction: Vec<u8>,
}

impl Log {
    /// Stores the envelopes and a checkpoint behind them in a new group, and what allows the DROP. With a group that is
    /// kept, both get as many by turns, several times.
    fn fill(
        bench: &mut Bench,
        second: &SigningKey,
        size_bytes: usize,
        mut envelopes: usize,
        kept: Option<GroupId>,
    ) -> Result<Self, Error> {
        let group = bench.workspace.groups(1)[0];
        if let Some(kept) = kept {
            for _ in 0..COMPACT_PIECES {
                Ingest::fill(bench, group, size_bytes, envelopes)?;
                Ingest::fill(bench, kept, size_bytes, envelopes)?;
            }
        }
        let stored = Ingest::fill(bench, group, size_bytes, envelopes + 1)?;
        if kept.is_some() {
            envelopes *= COMPACT_PIECES + 1;
        }
        let (_, checkpoint) = stored.into_iter().max().unwrap_or_default();
        let mut peer = bench.workspace.connect_founder(&bench.target, &[group])?;
        let key = new_key();
        let control = Control {
            group,
            epoch: 0,
            verifier: public_key(&key),
            prev: None,
            sig: UNSIGNED,
        };
        settle(&mut peer, blob::Request::Control(control.signed(&key)))?;
        let policy = Policy {
            group,
            version: 1,
            media_after_days: 30,
            text_after_days: 0,
            not_before_s: 0,
            authorizers: vec![public_key(&bench.workspace.authority()?.key), public_key(second)],
            sigs: Vec::new(),
        };
        let policy = policy.signed(&bench.workspace.authority()?.key).signed(second);
        settle(&mut peer, blob::Request::Policy(policy))?;
        let payload = Request {
            group,
            checkpoint: Hash(checkpoint),
            snapshots: Vec::new(),
            epoch: 0,
            policy_version: Some(1),
            destruction_digest: None,
            sig: UNSIGNED,
        }
        .signed(&key)
        .encode();
        // What the store still writes out of the filling is not the DROP's.
        thread::sleep(SETTLE);
        Ok(Self {
            peer,
            envelopes,
            instruction: encoded(&Frame::Drop { payload: &payload }),
        })
    }

    fn drop_alone(mut self, bench: &Bench) -> Result<Run, Error> {
        let mut latencies = latencies();
        let window = Window::open(bench.server.as_ref())?;
        self.peer.send(&self.instruction)?;
        let deleted = self.peer.answer(|frame| match frame {
            Frame::Drop { payload } => Some(deleted(payload)),
            _ => None,
        })??;
        record(&mut latencies, window.elapsed().as_nanos() as u64, 1);
        self.check(deleted)?;
        thread::sleep(SETTLE);
        let mut run = window.close(deleted, latencies)?;
        if let Some(server) = run.server {
            run.extra = vec![("cpu_us_each", server.ran_ns as f64 / run.ops as f64 / 1e3)];
        }
        Ok(run)
    }

    /// SENDs before it, and then until old segments are gone.
    fn compact_beside_sends(self, args: &BenchArgs, bench: &Bench) -> Result<(Latencies, Run), Error> {
        let (mut net, mut load, dropper, instruction) = self.beside(bench)?;
        steady::turn_for(&mut net, &mut load, RAMP)?;
        load.steady.latencies.reset();
        steady::turn_for(&mut net, &mut load, Duration::from_secs_f64(args.seconds))?;
        let idle = load.steady.take_latencies();

        let relay = bench.spawned()?;
        let before = relay.borrow().segments()?;
        load.due = Some(instruction);
        net.nudge(dropper, &mut load)?;
        let started = Instant::now();
        while load.deleted.is_none() && started.elapsed() < DROP_TIMEOUT {
            steady::turn(&mut net, &mut load)?;
        }
        load.steady.latencies.reset();
        let window = Window::open(bench.server.as_ref())?;
        while relay.borrow().segments()?.is_superset(&before) {
            if window.elapsed() > COMPACT_TIMEOUT {
                return Err(Error::Unexpected(format!(
                    "nothing was compacted within {COMPACT_TIMEOUT:?}"
                )));
            }
            steady::turn_for(&mut net, &mut load, LOOK_EVERY)?;
        }
        let busy = load.steady.take_latencies();
        Ok((idle, window.close(busy.len(), busy)?))
    }

    /// A load of SENDs, and the DROP that is not sent yet.
    fn beside(self, bench: &Bench) -> Result<(Net, Beside, usize, Vec<u8>), Error> {
        let groups: Vec<GroupId> = bench.workspace.groups(steady::WRITERS);
        let mut net = Net::new()?;
        for (number, &group) in groups.iter().enumerate() {
            net.add(bench.workspace.connect(&bench.target, number, group)?)?;
        }
        let dropper = net.add(self.peer)?;
        let load = Beside {
            steady: Steady::new(groups.into_iter()),
            due: None,
            deleted: None,
        };
        Ok((net, load, dropper, self.instruction))
    }

    /// SENDs before it, for half the time, and then until it has ended.
    fn drop_beside_sends(self, args: &BenchArgs, bench: &Bench) -> Result<Run, Error> {
        let envelopes = self.envelopes;
        let (mut net, mut load, dropper, instruction) = self.beside(bench)?;
        steady::turn_for(&mut net, &mut load, RAMP)?;
        load.steady.latencies.reset();
        steady::turn_for(&mut net, &mut load, Duration::from_secs_f64(args.seconds / 2.0))?;
        let idle = load.steady.take_latencies();

        let window = Window::open(bench.server.as_ref())?;
        load.due = Some(instruction);
        net.nudge(dropper, &mut load)?;
        while load.deleted.is_none() {
            if window.elapsed() > DROP_TIMEOUT {
                return Err(Error::Unexpected(format!(
                    "no end of a DROP within {DROP_TIMEOUT:?}"
                )));
            }
            steady::turn(&mut net, &mut load)?;
        }
        let took = window.elapsed();
        // The SENDs that were under way when it ended count.
        turn_until(&mut net, &mut load, DROP_TIMEOUT, "SEND_ACK", |load| {
            load.steady.is_quiet()
        })?;
        let busy = load.steady.take_latencies();
        if load.deleted != Some(envelopes as u64) {
            return Err(Error::Unexpected(format!("{:?} envelopes deleted", load.deleted)));
        }
        let ms = |latencies: &Latencies, quantile| latencies.value_at_quantile(quantile) as f64 / 1e6;
        let extra = vec![
            ("p99_ms_idle", ms(&idle, 0.99)),
            ("max_ms_idle", ms(&idle, 1.0)),
            ("max_ms", ms(&busy, 1.0)),
            ("drop_ms", took.as_secs_f64() * 1e3),
        ];
        let mut run = window.close(busy.len(), busy)?;
        run.extra = extra;
        Ok(run)
    }

    fn check(&self, deleted: u64) -> Result<(), Error> {
        if deleted == self.envelopes as u64 {
            return Ok(());
        }
        Err(Error::Unexpected(format!(
            "{deleted} of {} envelopes were deleted",
            self.envelopes
        )))
    }
}

/// Stores a record of the retention chain.
fn settle(peer: &mut Peer, request: blob::Request<'_>) -> Result<(), Error> {
    let payload = request.encode();
    peer.send(&encoded(&Frame::Blob { payload: &payload }))?;
    peer.answer(|frame| match frame {
        Frame::Blob { payload } => {
            matches!(blob::Response::decode(payload), Ok(blob::Response::Ack(_))).then_some(())
        }
        _ => None,
    })
}

/// How many envelopes a DROP has deleted.
fn deleted(payload: &[u8]) -> Result<u64, Error> {
    match Answer::decode(payload) {
        Ok(Answer::Ran { deleted, .. }) => Ok(deleted),
        Ok(Answer::Against(verdict)) => Err(Error::Unexpected(format!("DROP was answered {verdict}"))),
        Err(_) => Err(Error::Unexpected("a DROP answer that does not decode".into())),
    }
}

struct Beside {
    steady: Steady,
    /// The DROP, until it is sent.
    due: Option<Vec<u8>>,
    deleted: Option<u64>,
}

impl Load for Beside {
    fn message(&mut self, connection: usize, message: &[u8]) -> Result<(), Error> {
        if self.steady.has(connection) {
            return self.steady.message(connection, message);
        }
        match crate::peer::decode(message)? {
            Frame::Drop { payload } => self.deleted = Some(deleted(payload)?),
            frame => return Err(crate::peer::unexpected(&frame)),
        }
        Ok(())
    }

    fn settle(&mut self, connection: usize, now_ns: u64, out: &mut Vec<u8>) -> Result<(), Error> {
        if self.steady.has(connection) {
            return self.steady.settle(connection, now_ns, out);
        }
        if let Some(drop) = self.due.take() {
            wsframe::put_message(&drop, out);
        }
        Ok(())
    }
}

impl Carries for Beside {
    fn steady(&mut self) -> &mut Steady {
        &mut self.steady
    }
}
