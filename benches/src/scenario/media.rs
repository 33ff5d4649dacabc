//! Calls: every participant sends MEDIA at a steady pace, evenly spread over time; an operation is one frame at one
//! recipient. A frame carries the moment it was sent in its sequence number, which no relay looks at, so a latency is a
//! difference of two readings of one clock. Frames that never arrive are counted as lost.
//!
//! With `--saturate-p99-ms` the pace rises until the p99 passes that bound or frames are lost, and the last pace that
//! stayed below is reported. With `--replay-mb` one participant reads a stored log at the same time.

use super::fanout::push_seq;
use super::ingest::Ingest;
use super::{Bench, RAMP, TICK, row};
use crate::args::BenchArgs;
use crate::baseline::forward::{Forwarder, Forwarding};
use crate::error::Error;
use crate::inflight::{Latencies, latencies, record};
use crate::measure::{Row, Run, Window};
use crate::net::{Load, Net};
use crate::peer::{self, Peer, encoded};
use crate::process::Process;
use crate::wsframe;
use drover_wire::frame::{Frame, Wake};
use drover_wire::id::{CallId, GroupId};
use std::time::{Duration, Instant};

/// The reference setting.
const CALLS: usize = 80;
const PARTICIPANTS: usize = 5;
const SIZE_BYTES: usize = 160;
const FRAMES_PER_S: f64 = 50.0;
/// What one stream may carry (10 §5).
const STREAM_FRAMES_PER_S: f64 = 60.0;
/// Makes every sequence number eight bytes long: what is added to the clock, ns.
const SEQ_BASE: u64 = 1 << 62;
/// Where the eight bytes lie in a MEDIA frame.
const SEQ_AT: usize = 27;
/// Before them, in every frame of ours: `82 1818 84 50`, the call, `44`, the stream, `1b`.
const MEDIA_HEAD: [u8; 5] = [0x82, 0x18, 0x18, 0x84, 0x50];
/// How long frames may be under way after the last one was sent.
const DRAIN: Duration = Duration::from_millis(500);
/// How much faster each step of a saturation is.
const STEP: f64 = 1.25;
/// The log of `--replay-mb`: some large envelopes, so that the SUBs of a minute are enough, read over and over.
const REPLAY_SIZE_BYTES: usize = 28_000;
const REPLAY_ENVELOPES: usize = 1_785;

/// What is asked for.
#[derive(Clone, Copy)]
struct Plan {
    calls: usize,
    participants: usize,
    size_bytes: usize,
    frames_per_s: f64,
}

impl Plan {
    fn new(args: &BenchArgs) -> Self {
        Self {
            calls: args.calls.unwrap_or(CALLS).max(1),
            participants: args.participants.unwrap_or(PARTICIPANTS).max(1),
            size_bytes: args.size.unwrap_or(SIZE_BYTES),
            frames_per_s: args.frames.unwrap_or(FRAMES_PER_S).max(0.1),
        }
    }

    fn connections(&self) -> usize {
        self.calls * self.participants
    }

    fn what(&self, of: &str) -> String {
        format!(
            "{of}, {} calls of {}, {} B at {}/s",
            self.calls, self.participants, self.size_bytes, self.frames_per_s
        )
    }
}

/// Measures a relay, then the raw forwarder with and without turns.
pub(super) fn run(args: &BenchArgs, tls: bool) -> Result<Vec<Row>, Error> {
    let plan = Plan::new(args);
    let bench = Bench::enter(args, plan.connections() + super::LOADERS, tls)?;
    let group = bench.workspace.groups(1)[0];
    let mut net = Net::new()?;
    for number in 0..plan.connections() {
        let mut peer = bench.workspace.connect(&bench.target, number, group)?;
        let join = Frame::Call {
            call_id: call_id(number / plan.participants),
            group,
            epoch: 0,
            kind: 2,
            body: &[],
        };
        peer.send(&encoded(&join))?;
        // A join is not acknowledged: what is asked after it is answered after it.
        peer.send(&encoded(&Frame::Wake(Wake::Query)))?;
        peer.answer(|frame| matches!(frame, Frame::Wake(Wake::Capability { .. })).then_some(()))?;
        net.add(peer)?;
    }
    let mut load = Calls::new(plan, 0);
    let name = if tls { "media-tls" } else { "media" };
    let counters = || {
        bench
            .relay
            .as_ref()
            .and_then(|relay| Counters::of(&relay.borrow()))
    };
    let mut rows = Vec::new();
    if let Some(bound_ms) = args.saturate_p99_ms {
        let runs = saturate(args, bound_ms, bench.server.as_ref(), &mut net, &mut load)?;
        let what = plan.what(&format!("MEDIA as fast as p99 <= {bound_ms} ms allows, from"));
        return Ok(vec![row("media-saturated", what, runs)]);
    }
    let mut runs = Vec::new();
    for _ in 0..args.runs.max(1) {
        let before = counters();
        let mut run = measure(
            args,
            plan.frames_per_s,
            bench.server.as_ref(),
            &mut net,
            &mut load,
        )?;
        if let (Some(before), Some(after)) = (before, counters()) {
            run.extra.extend(after.since(&before));
        }
        runs.push(run);
    }
    rows.push(row(name, plan.what("MEDIA"), runs));
    if let Some(mb) = args.replay_mb {
        let log = bench.workspace.groups(1)[0];
        let envelopes = REPLAY_ENVELOPES.min((mb * 1e6 / REPLAY_SIZE_BYTES as f64).ceil() as usize);
        Ingest::fill(&bench, log, REPLAY_SIZE_BYTES, envelopes)?;
        let mut runs = Vec::new();
        for _ in 0..args.runs.max(1) {
            load.replay = Some(Replay::new(log, (mb * 1e6) as u64));
            let mut run = measure(
                args,
                plan.frames_per_s,
                bench.server.as_ref(),
                &mut net,
                &mut load,
            )?;
            if let Some(replay) = load.replay.take() {
                run.extra.push(("replayed_mb", replay.bytes as f64 / 1e6));
            }
            runs.push(run);
        }
        rows.push(row(
            "media-replay",
            plan.what("MEDIA while one participant replays"),
            runs,
        ));
    }
    drop((net, bench));
    if !args.no_baselines && !tls {
        for (name, turn_us) in [("raw-forward", 0), ("raw-forward-turns", 500)] {
            rows.push(baseline(args, plan, name, Duration::from_micros(turn_us))?);
        }
    }
    Ok(rows)
}

fn baseline(args: &BenchArgs, plan: Plan, name: &'static str, turn: Duration) -> Result<Row, Error> {
    let template = Template::new(call_id(0), 0, plan.size_bytes);
    let mut head = Vec::new();
    drover_wire::ws::binary_head(template.message.len() - template.payload_at, &mut head);
    let forwarding = Forwarding {
        participants: plan.participants,
        message_bytes: template.message.len(),
        cut_bytes: template.payload_at,
        head: head
            .try_into()
            .map_err(|_| Error::Usage("the raw forwarder needs a --size above 94".into()))?,
        turn,
    };
    let (forwarder, clients) = Forwarder::start(forwarding, plan.connections())?;
    let mut net = Net::new()?;
    for client in clients {
        net.add(Peer::raw(client)?)?;
    }
    let mut load = Calls::new(plan, wsframe::MASK_U64);
    let mut runs = Vec::new();
    for _ in 0..args.runs.max(1) {
        runs.push(measure(
            args,
            plan.frames_per_s,
            Some(&forwarder.process),
            &mut net,
            &mut load,
        )?);
    }
    drop(net);
    forwarder.join()?;
    Ok(row(
        name,
        plan.what(&format!("raw forwarding, turns of {} us", turn.as_micros())),
        runs,
    ))
}

/// Raises the pace step by step; the last run that was good, one per `--runs`.
fn saturate(
    args: &BenchArgs,
    bound_ms: f64,
    server: Option<&Process>,
    net: &mut Net,
    load: &mut Calls,
) -> Result<Vec<Run>, Error> {
    let mut good = Vec::new();
    for _ in 0..args.runs.max(1) {
        let mut pace = load.plan.frames_per_s;
        let mut last = None;
        loop {
            let mut run = measure(args, pace, server, net, load)?;
            let is_lossless = run.extra.contains(&("lost", 0.0));
            // The generator may be what gives up first, and then a faster pace is none.
            let is_reached = run.rate() >= 0.95 * pace * load.recipients() as f64;
            if !is_lossless || !is_reached || run.latency_ms(0.99).is_none_or(|p99_ms| p99_ms > bound_ms) {
                break;
            }
            run.extra.push(("frames_per_s", pace));
            last = Some(run);
            pace *= STEP;
        }
        good.extend(last);
    }
    if good.is_empty() {
        return Err(Error::Unexpected(format!(
            "p99 above {bound_ms} ms at the first pace"
        )));
    }
    Ok(good)
}

fn measure(
    args: &BenchArgs,
    frames_per_s: f64,
    server: Option<&Process>,
    net: &mut Net,
    load: &mut Calls,
) -> Result<Run, Error> {
    load.begin(frames_per_s, net.now_ns());
    let started = Instant::now();
    while started.elapsed() < RAMP {
        load.turn(net)?;
    }
    (load.delivered, load.latencies, load.replayer) = (0, latencies(), latencies());
    load.late.reset();
    if load.replay.is_some() {
        net.nudge(0, load)?;
    }
    let window = Window::open(server)?;
    let length = Duration::from_secs_f64(args.seconds);
    while window.elapsed() < length && load.replay.as_ref().is_none_or(|replay| !replay.is_over()) {
        load.turn(net)?;
    }
    let (taken, replayer) = (
        std::mem::replace(&mut load.latencies, latencies()),
        std::mem::replace(&mut load.replayer, latencies()),
    );
    let mut run = window.close(load.delivered, taken)?;
    let ended = Instant::now();
    while load.missing() > 0 && ended.elapsed() < DRAIN {
        net.turn(Some(TICK), load)?;
    }
    run.extra.push(("lost", load.missing() as f64));
    run.extra
        .push(("late_p99_ms", load.late.value_at_quantile(0.99) as f64 / 1e6));
    if !replayer.is_empty() && load.replay.is_some() {
        run.extra
            .push(("replayer_p99_ms", replayer.value_at_quantile(0.99) as f64 / 1e6));
    }
    Ok(run)
}

/// The id of a call.
fn call_id(number: usize) -> CallId {
    let mut id = [0xc1; 16];
    id[..8].copy_from_slice(&(number as u64).to_be_bytes());
    CallId(id)
}

/// One participant's frames on one stream, masked.
struct Template {
    message: Vec<u8>,
    payload_at: usize,
}

impl Template {
    fn new(call_id: CallId, stream: u32, size_bytes: usize) -> Self {
        let frame = encoded(&Frame::Media {
            call_id,
            stream: stream.to_be_bytes(),
            seq: SEQ_BASE,
            ct: &vec![0x11; size_bytes],
        });
        let mut message = Vec::new();
        wsframe::put_message(&frame, &mut message);
        let payload_at = message.len() - frame.len();
        Self { message, payload_at }
    }

    fn put(&self, now_ns: u64, out: &mut Vec<u8>) {
        let seq_at = out.len() + self.payload_at + SEQ_AT;
        out.extend_from_slice(&self.message);
        let seq = &mut out[seq_at..seq_at + 8];
        seq.copy_from_slice(&(SEQ_BASE | now_ns).to_be_bytes());
        wsframe::mask(seq, SEQ_AT);
    }
}

/// A participant of calls.
struct Calls {
    plan: Plan,
    /// What the sequence numbers that arrive are masked with: the raw forwarder unmasks nothing.
    masked_with: u64,
    /// Per connection and stream.
    templates: Vec<Vec<Template>>,
    /// The order in which connections send: participants of one call are far apart.
    order: Vec<usize>,
    period_ns: f64,
    began_ns: u64,
    /// Frames of this run that were sent.
    sent: u64,
    /// The connection that is to send, at the next [`Load::settle`].
    due: Option<usize>,
    /// When the frames of the read that is being handed over were sent, ns.
    arrived: Vec<u64>,
    delivered: u64,
    received: u64,
    latencies: Latencies,
    /// Of the participant that replays.
    replayer: Latencies,
    /// How long after it was due a frame was sent.
    late: Latencies,
    replay: Option<Replay>,
}

impl Calls {
    fn new(plan: Plan, masked_with: u64) -> Self {
        let connections = plan.connections();
        // Every participant of every call, call by call: neighbours in time are of different calls.
        let order = (0..plan.participants)
            .flat_map(|participant| (0..plan.calls).map(move |call| call * plan.participants + participant))
            .collect();
        Self {
            plan,
            masked_with,
            templates: (0..connections).map(|_| Vec::new()).collect(),
            order,
            period_ns: 0.0,
            began_ns: 0,
            sent: 0,
            due: None,
            arrived: Vec::new(),
            delivered: 0,
            received: 0,
            latencies: latencies(),
            replayer: latencies(),
            late: latencies(),
            replay: None,
        }
    }

    /// Recipients of all participants' frames.
    fn recipients(&self) -> usize {
        self.plan.connections() * (self.plan.participants - 1)
    }

    fn begin(&mut self, frames_per_s: f64, now_ns: u64) {
        self.plan.frames_per_s = frames_per_s;
        let streams = (frames_per_s / STREAM_FRAMES_PER_S).ceil().max(1.0) as u32;
        for (number, templates) in self.templates.iter_mut().enumerate() {
            let id = call_id(number / self.plan.participants);
            let new = |stream| Template::new(id, stream, self.plan.size_bytes);
            *templates = (0..streams).map(new).collect();
        }
        self.period_ns = 1e9 / (frames_per_s * self.order.len() as f64);
        (self.began_ns, self.sent, self.received) = (now_ns, 0, 0);
    }

    /// Frames that were sent and did not arrive.
    fn missing(&self) -> u64 {
        (self.sent * (self.plan.participants as u64 - 1)).saturating_sub(self.received)
    }

    fn due_ns(&self) -> u64 {
        self.began_ns + (self.sent as f64 * self.period_ns) as u64
    }

    fn turn(&mut self, net: &mut Net) -> Result<(), Error> {
        while self.due_ns() <= net.now_ns() {
            let number = self.order[(self.sent % self.order.len() as u64) as usize];
            self.due = Some(number);
            net.nudge(number, self)?;
        }
        net.turn_until(self.due_ns(), self)
    }
}

impl Load for Calls {
    fn message(&mut self, connection: usize, message: &[u8]) -> Result<(), Error> {
        let seq = message
            .get(SEQ_AT..SEQ_AT + 8)
            .and_then(|bytes| bytes.first_chunk());
        match seq {
            Some(seq) if self.masked_with != 0 || message.starts_with(&MEDIA_HEAD) => {
                let sent_ns = (u64::from_be_bytes(*seq) ^ self.masked_with) & !SEQ_BASE;
                self.arrived.push(sent_ns);
                Ok(())
            }
            _ => match &mut self.replay {
                Some(replay) if connection == 0 => replay.message(message),
                _ => Err(peer::unexpected(&peer::decode(message)?)),
            },
        }
    }

    fn settle(&mut self, connection: usize, now_ns: u64, out: &mut Vec<u8>) -> Result<(), Error> {
        for sent_ns in self.arrived.drain(..) {
            // What was sent before this run is of no interest.
            if sent_ns >= self.began_ns {
                let latency_ns = now_ns.saturating_sub(sent_ns);
                record(&mut self.latencies, latency_ns, 1);
                if connection == 0 && self.replay.is_some() {
                    record(&mut self.replayer, latency_ns, 1);
                }
                self.delivered += 1;
                self.received += 1;
            }
        }
        if self.due == Some(connection) {
            let late_ns = now_ns.saturating_sub(self.due_ns());
            record(&mut self.late, late_ns, 1);
            let templates = &self.templates[connection];
            let round = self.sent / self.order.len() as u64;
            templates[(round % templates.len() as u64) as usize].put(now_ns, out);
            self.sent += 1;
            self.due = None;
        }
        if let Some(replay) = self.replay.as_mut().filter(|_| connection == 0) {
            replay.ask(out);
        }
        Ok(())
    }
}

/// The participant that reads a log beside its call, over and over.
struct Replay {
    group: GroupId,
    bytes_max: u64,
    bytes: u64,
    last_seq: u64,
    head_seq: u64,
    /// Whether the next SUB is to be sent.
    is_due: bool,
}

impl Replay {
    fn new(group: GroupId, bytes_max: u64) -> Self {
        Self {
            group,
            bytes_max,
            bytes: 0,
            last_seq: 0,
            head_seq: 0,
            is_due: true,
        }
    }

    fn is_over(&self) -> bool {
        self.bytes >= self.bytes_max
    }

    fn message(&mut self, message: &[u8]) -> Result<(), Error> {
        if let [0x82, 8, ..] = message {
            if let Frame::SubAck { head_seq, .. } = peer::decode(message)? {
                self.head_seq = head_seq;
            }
            return Ok(());
        }
        self.last_seq = push_seq(message)?;
        self.bytes += message.len() as u64;
        // A backfill has at most 255 envelopes; asking a little early costs nothing but what is brought twice.
        self.is_due |= self.last_seq == self.head_seq || self.last_seq.is_multiple_of(200);
        Ok(())
    }

    fn ask(&mut self, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.is_due) && !self.is_over() {
            let from_seq = if self.last_seq == self.head_seq {
                1
            } else {
                self.last_seq + 1
            };
            let group = self.group;
            wsframe::put_message(&encoded(&Frame::Sub { group, from_seq }), out);
        }
    }
}

/// What a spawned relay says of itself.
struct Counters {
    shed: f64,
    copied: f64,
    forwarded: f64,
}

impl Counters {
    fn of(relay: &crate::spawn::Relay) -> Option<Self> {
        let page = relay.metrics()?;
        let value = |name: &str| -> Option<f64> {
            page.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
                .and_then(|value| value.parse().ok())
        };
        Some(Self {
            shed: value("weald_relay_media_frames_total{result=\"shed\"}")?,
            copied: value("weald_relay_copied_bytes_total")?,
            forwarded: value("weald_relay_media_forwarded_bytes_total")?,
        })
    }

    fn since(&self, before: &Self) -> [(&'static str, f64); 3] {
        [
            ("shed", self.shed - before.shed),
            ("copied_bytes", self.copied - before.copied),
            ("forwarded_bytes", self.forwarded - before.forwarded),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_carries_when_it_was_sent() {
        for size_bytes in [0, 100, 160, 1500] {
            let template = Template::new(call_id(3), 1, size_bytes);
            let mut out = Vec::new();
            template.put(77, &mut out);
            template.put(123_456_789, &mut out);
            let second = &mut out[template.message.len() + template.payload_at..];
            wsframe::mask(second, 0);
            let Ok(Frame::Media {
                call_id: id, seq, ct, ..
            }) = Frame::decode(second)
            else {
                panic!("no MEDIA")
            };
            assert_eq!(
                (id, seq, ct.len()),
                (call_id(3), SEQ_BASE | 123_456_789, size_bytes)
            );
        }
    }

    #[test]
    fn the_raw_forwarder_is_loaded_like_a_relay() {
        use clap::Parser;
        #[derive(Parser)]
        struct Cli {
            #[command(flatten)]
            bench: BenchArgs,
        }
        let line = "bench media --seconds 0.2 --runs 1 --calls 2 --participants 3";
        let args = Cli::parse_from(line.split(' ')).bench;
        for turn_us in [0, 500] {
            let row =
                baseline(&args, Plan::new(&args), "raw", Duration::from_micros(turn_us)).expect("a row");
            let run = &row.runs[0];
            assert!(run.ops > 0 && run.extra.contains(&("lost", 0.0)), "{run:?}");
            assert!(run.latency_ms(0.5).is_some_and(|ms| ms < 1_000.0));
        }
    }
}
