//! A client that lacks a few envelopes of a stored log reconciles; an operation is one whole reconciliation.
//!
//! Every reconciliation lacks other envelopes, so that nothing the relay remembers of the one before helps it.

use super::ingest::Ingest;
use super::{Bench, row};
use crate::args::BenchArgs;
use crate::error::Error;
use crate::inflight::{Latencies, latencies, record};
use crate::measure::{Row, Run, Window};
use crate::peer::{Peer, encoded};
use drover_wire::envelope::Envelope;
use drover_wire::frame::Frame;
use drover_wire::id::{GroupId, Hash};
use drover_wire::recon::{self, Item, Range};
use std::time::{Duration, Instant};

/// Ciphertext of the reference setting, bytes.
const SIZE_BYTES: usize = 256;
/// Reconciliations by one connection: RECONs are budgeted per connection and minute (04 §3).
const PER_CONNECTION: u64 = 60;
/// A client gives up after this many rounds (03 §8).
const ROUNDS_MAX: usize = 64;

/// Measures it.
pub(super) fn run(args: &BenchArgs) -> Result<Row, Error> {
    let size_bytes = args.size_or(SIZE_BYTES);
    let bench = Bench::enter(args, super::LOADERS, false)?;
    let group = bench.workspace.groups(1)[0];
    let items = stored(&bench, group, size_bytes, args.stored())?;
    let mut client = Client::new(group, items, args.missing);
    client.connection(&bench, Duration::ZERO, 0)?;
    let mut runs = Vec::new();
    for _ in 0..args.runs.max(1) {
        let deadline = Instant::now() + Duration::from_secs_f64(args.seconds);
        let mut windows = Vec::new();
        let mut rounds_max = 0;
        while windows.is_empty() || Instant::now() < deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            let (window, rounds) = client.connection(&bench, left, PER_CONNECTION)?;
            windows.push(window);
            rounds_max = rounds_max.max(rounds);
        }
        let mut run =
            Run::merged(windows).ok_or_else(|| Error::Usage("--seconds has to be above 0".into()))?;
        run.extra = vec![("rounds_max", rounds_max as f64)];
        if let Some(server) = run.server {
            run.extra
                .push(("cpu_ms_each", server.ran_ns as f64 / run.ops as f64 / 1e6));
        }
        runs.push(run);
    }
    let what = format!(
        "RECON of {} envelopes of which the client lacks {}",
        args.stored(),
        client.missing
    );
    Ok(row("recon", what, runs))
}

/// Groups of the cold setting, each reconciled once after a start.
const COLD_GROUPS: usize = 8;
/// Ciphertext of its envelopes, bytes: together they are more than the log keeps in memory.
const COLD_SIZE_BYTES: usize = 1024;

/// Measures it with groups that are not in memory: the relay is killed and started before each run.
pub(super) fn cold(args: &BenchArgs) -> Result<Row, Error> {
    let size_bytes = args.size_or(COLD_SIZE_BYTES);
    let mut bench = Bench::enter(args, super::LOADERS, false)?;
    let groups = bench
        .workspace
        .groups(args.groups.unwrap_or(COLD_GROUPS).max(1) + 1);
    let (last, groups) = groups
        .split_last()
        .ok_or_else(|| Error::Usage("--groups: at least 1".into()))?;
    let mut clients = Vec::new();
    for group in groups {
        let items = stored(&bench, *group, size_bytes, args.stored())?;
        clients.push(Client::new(*group, items, args.missing));
    }
    // What comes last may stay in a segment whose index is in memory.
    let filling = 2 * SEGMENT_BYTES / size_bytes.max(1);
    stored(&bench, *last, size_bytes, filling)?;
    let mut runs = Vec::new();
    for _ in 0..args.runs.max(1) {
        bench.restart()?;
        let mut windows = Vec::new();
        let mut rounds_max = 0;
        for client in &mut clients {
            let (window, rounds) = client.connection(&bench, Duration::ZERO, 1)?;
            windows.push(window);
            rounds_max = rounds_max.max(rounds);
        }
        let mut run = Run::merged(windows).ok_or_else(|| Error::Usage("--groups: at least 1".into()))?;
        let ms = |quantile| run.latencies.value_at_quantile(quantile) as f64 / 1e6;
        run.extra = vec![
            ("p50_ms", ms(0.5)),
            ("max_ms", ms(1.0)),
            ("rounds_max", rounds_max as f64),
        ];
        runs.push(run);
    }
    let what = format!(
        "RECON of {} envelopes of which the client lacks {}, group cold",
        args.stored(),
        args.missing.min(args.stored())
    );
    Ok(row("recon-cold", what, runs))
}

/// What a segment of the relay's log takes, bytes.
const SEGMENT_BYTES: usize = 64 << 20;

/// Stores envelopes; their items, ascending.
fn stored(bench: &Bench, group: GroupId, size_bytes: usize, count: usize) -> Result<Vec<Item>, Error> {
    let stored = Ingest::fill(bench, group, size_bytes, count)?.into_iter();
    let mut items: Vec<Item> = stored.map(|(seq, hash)| recon::item(seq, &Hash(hash))).collect();
    items.sort_unstable();
    Ok(items)
}

struct Client {
    group: GroupId,
    /// All there is, ascending.
    items: Vec<Item>,
    missing: usize,
    random: u64,
}

impl Client {
    fn new(group: GroupId, items: Vec<Item>, missing: usize) -> Self {
        Self {
            group,
            missing: missing.min(items.len()),
            items,
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// Reconciles over one connection, once and then until `length` has passed or `limit` is reached. Returns what was
    /// measured and the most rounds one took.
    fn connection(&mut self, bench: &Bench, length: Duration, limit: u64) -> Result<(Run, usize), Error> {
        let mut peer = bench.workspace.connect(&bench.target, 0, self.group)?;
        let mut latencies = latencies();
        let mut rounds_max = 0;
        let mut done = 0;
        let window = Window::open(bench.server.as_ref())?;
        while done == 0 || (done < limit && window.elapsed() < length) {
            rounds_max = rounds_max.max(self.reconcile(&mut peer, &mut latencies)?);
            done += 1;
        }
        Ok((window.close(done, latencies)?, rounds_max))
    }

    /// One reconciliation; returns the RECONs sent.
    fn reconcile(&mut self, peer: &mut Peer, latencies: &mut Latencies) -> Result<usize, Error> {
        let mut held = self.items.clone();
        for _ in 0..self.missing {
            let at = self.next_random() % held.len();
            held.remove(at);
        }
        let started = Instant::now();
        let mut ranges = recon::opening(&held);
        for round in 1..=ROUNDS_MAX {
            let answer = self.round(peer, &ranges, &mut held)?;
            match recon::client_step(&held, &answer).ranges {
                Some(next) => ranges = next,
                None if held == self.items => {
                    record(latencies, started.elapsed().as_nanos() as u64, 1);
                    return Ok(round);
                }
                None => {
                    return Err(Error::Unexpected(
                        "a reconciliation that leaves something out".into(),
                    ));
                }
            }
        }
        Err(Error::Unexpected(format!(
            "no end after {ROUNDS_MAX} rounds of RECON"
        )))
    }

    /// Sends these ranges, takes over what is pushed, and returns the relay's ranges.
    fn round(&self, peer: &mut Peer, ranges: &[Range], held: &mut Vec<Item>) -> Result<Vec<Range>, Error> {
        let mut payload = Vec::new();
        recon::encode(ranges, &mut payload);
        peer.send(&encoded(&Frame::Recon {
            group: self.group,
            payload: &payload,
        }))?;
        loop {
            let answer = peer.answer(|frame| match frame {
                Frame::Push { envelope } => Envelope::decode(envelope)
                    .ok()
                    .map(|envelope| Answer::Item(recon::item(envelope.seq, &envelope.hash))),
                Frame::Recon { payload, .. } => recon::decode(payload).ok().map(Answer::Ranges),
                _ => None,
            })?;
            match answer {
                Answer::Item(item) => {
                    if let Err(at) = held.binary_search(&item) {
                        held.insert(at, item);
                    }
                }
                Answer::Ranges(ranges) => return Ok(ranges),
            }
        }
    }

    /// Xorshift: which envelopes are missing has to vary, not to be unforeseeable.
    fn next_random(&mut self) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random as usize
    }
}

enum Answer {
    Item(Item),
    Ranges(Vec<Range>),
}
