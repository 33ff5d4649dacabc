//! One reader fetches a stored log by repeated SUB from the last seq and one; an operation is one envelope delivered.
//!
//! Every pass is made by a connection of its own, opened outside the measured windows: SUBs are budgeted per
//! connection (04 §3).

use super::fanout::push_seq;
use super::ingest::Ingest;
use super::{Bench, row};
use crate::args::BenchArgs;
use crate::error::Error;
use crate::inflight::{InFlight, Latencies, latencies};
use crate::measure::{Row, Run, Window};
use crate::net::{Load, Net};
use crate::peer::{self, Peer, encoded};
use crate::wsframe;
use drover_wire::frame::Frame;
use drover_wire::id::GroupId;
use std::time::{Duration, Instant};

/// Ciphertext of the reference setting, bytes.
const SIZE_BYTES: usize = 1024;
/// Silence after which a backfill that brought less than its bounds allow is taken for finished.
const STALL: Duration = Duration::from_millis(50);
/// A pass that has brought nothing for this long has failed.
const PASS_TIMEOUT: Duration = Duration::from_secs(20);
/// The bounds of one backfill (02 §8): envelopes, and bytes with 256 of overhead each.
const BACKFILL_ENVELOPES: usize = 255;
const BACKFILL_BYTES: usize = 7_335_936;
const BACKFILL_OVERHEAD_BYTES: usize = 256;

/// Measures it.
pub(super) fn run(args: &BenchArgs) -> Result<Row, Error> {
    let size_bytes = args.size_or(SIZE_BYTES);
    let bench = Bench::enter(args, super::LOADERS, false)?;
    let group = bench.workspace.groups(1)[0];
    Ingest::fill(&bench, group, size_bytes, args.stored())?;
    let mut batch_max =
        (BACKFILL_BYTES / (BACKFILL_OVERHEAD_BYTES + frame_bytes(size_bytes))).clamp(1, BACKFILL_ENVELOPES);
    // The first pass warms the relay, and tells how many envelopes a backfill of it really has.
    // How much room it keeps in its queue is its own business (02 §8).
    let warm = pass(args, &bench, group, batch_max)?;
    if warm.stalls > 1 {
        batch_max = warm.stalled_at_max;
    }
    let mut runs = Vec::new();
    for _ in 0..args.runs.max(1) {
        let mut passes = Vec::new();
        let mut left = Duration::from_secs_f64(args.seconds);
        while left > Duration::ZERO {
            let started = Instant::now();
            passes.push(pass(args, &bench, group, batch_max)?);
            left = left.saturating_sub(started.elapsed());
        }
        let stalls = passes.iter().map(|pass| pass.stalls as f64).sum();
        let count = passes.len() as f64;
        let mut run = Run::merged(passes.into_iter().map(|pass| pass.run))
            .ok_or_else(|| Error::Usage("--seconds has to be above 0".into()))?;
        let mb = run.ops as f64 * size_bytes as f64 / 1e6;
        run.extra = vec![
            ("mb_per_s", mb / (run.elapsed_ns as f64 / 1e9)),
            ("passes", count),
            ("backfill_envelopes", batch_max as f64),
            ("stalls", stalls),
        ];
        runs.push(run);
    }
    let what = format!("replay of {} envelopes of {size_bytes} B by SUB", args.stored());
    Ok(row("replay", what, runs))
}

/// One pass over the log.
struct Pass {
    run: Run,
    /// How often a backfill had to be waited out, because it brought less than was hoped for.
    stalls: usize,
    /// The most envelopes such a backfill brought.
    stalled_at_max: usize,
}

/// Fetches the whole log once.
fn pass(args: &BenchArgs, bench: &Bench, group: GroupId, batch_max: usize) -> Result<Pass, Error> {
    let mut net = Net::new()?;
    net.add(bench.workspace.connect(&bench.target, 0, group)?)?;
    let mut load = Replay {
        group,
        batch_max,
        last_seq: 0,
        head_seq: u64::MAX,
        received: 0,
        in_batch: 0,
        due: true,
        in_flight: InFlight::default(),
        latencies: latencies(),
    };
    let (mut stalls, mut stalled_at_max) = (0, 0);
    let window = Window::open(bench.server.as_ref())?;
    net.nudge(0, &mut load)?;
    let mut progress = (0, Instant::now());
    while load.last_seq < load.head_seq {
        net.turn(Some(STALL), &mut load)?;
        if load.received != progress.0 {
            progress = (load.received, Instant::now());
        } else if progress.1.elapsed() > PASS_TIMEOUT {
            return Err(Error::Unexpected(format!("no PUSH within {PASS_TIMEOUT:?}")));
        } else if progress.1.elapsed() > STALL && load.in_batch > 0 {
            stalls += 1;
            stalled_at_max = stalled_at_max.max(load.in_batch);
            progress.1 = Instant::now();
            load.due = true;
            net.nudge(0, &mut load)?;
        }
    }
    let run = window.close(load.received, std::mem::replace(&mut load.latencies, latencies()))?;
    if load.received < args.stored() as u64 {
        return Err(Error::Unexpected(format!(
            "{} of {} envelopes were replayed",
            load.received,
            args.stored()
        )));
    }
    Ok(Pass {
        run,
        stalls,
        stalled_at_max,
    })
}

/// About what the relay charges an envelope of this ciphertext with.
fn frame_bytes(ct_bytes: usize) -> usize {
    ct_bytes + 100
}

struct Replay {
    group: GroupId,
    /// Envelopes a backfill brings at most.
    batch_max: usize,
    last_seq: u64,
    head_seq: u64,
    received: u64,
    in_batch: usize,
    /// Whether the next SUB is to be sent.
    due: bool,
    in_flight: InFlight,
    /// From a SUB to the last envelope it brought.
    latencies: Latencies,
}

impl Load for Replay {
    fn message(&mut self, _: usize, message: &[u8]) -> Result<(), Error> {
        if let [0x82, 8, ..] = message {
            return match peer::decode(message)? {
                Frame::SubAck { head_seq: 0, .. } => {
                    Err(Error::Unexpected("the reader was downgraded".into()))
                }
                Frame::SubAck { head_seq, .. } => {
                    self.head_seq = head_seq;
                    Ok(())
                }
                frame => Err(peer::unexpected(&frame)),
            };
        }
        let seq = push_seq(message)?;
        // A SUB that was sent too early, since the machine stood still for longer than a stall: seen already.
        if seq <= self.last_seq {
            return Ok(());
        }
        self.last_seq = seq;
        self.received += 1;
        self.in_batch += 1;
        if self.in_batch == self.batch_max || self.last_seq == self.head_seq {
            self.due = true;
        }
        Ok(())
    }

    fn settle(&mut self, _: usize, now_ns: u64, out: &mut Vec<u8>) -> Result<(), Error> {
        if self.due {
            self.due = false;
            self.in_batch = 0;
            let under_way = self.in_flight.count();
            self.in_flight.finished(under_way, now_ns, &mut self.latencies);
            if self.last_seq < self.head_seq {
                let sub = Frame::Sub {
                    group: self.group,
                    from_seq: self.last_seq + 1,
                };
                wsframe::put_message(&encoded(&sub), out);
                self.in_flight.sent(1, now_ns);
            }
        }
        Ok(())
    }
}

impl Ingest {
    /// Stores this many envelopes in the group; returns (seq, hash) of each.
    pub(super) fn fill(
        bench: &Bench,
        group: GroupId,
        size_bytes: usize,
        envelopes: usize,
    ) -> Result<Vec<(u64, [u8; 32])>, Error> {
        let mut net = Net::new()?;
        let mut load = Ingest::new(super::LOADER_WINDOW);
        load.kept = Some(Vec::with_capacity(envelopes));
        load.left = envelopes;
        for connection in 0..super::LOADERS {
            let peer: Peer = bench.workspace.connect(&bench.target, connection, group)?;
            net.add(peer)?;
            load.add_writer(group, size_bytes);
        }
        load.start(&mut net)?;
        super::turn_until(&mut net, &mut load, super::FILL_TIMEOUT, "SEND_ACK", |load| {
            load.acknowledged == envelopes as u64
        })?;
        Ok(load.kept.unwrap_or_default())
    }
}
