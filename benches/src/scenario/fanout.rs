//! PUSH deliveries: one writer per group, everybody else subscribed; an operation is one PUSH at one subscriber.
//!
//! Closed loop: a writer has at most a window of SENDs that are not acknowledged or have not reached every subscriber,
//! so that no subscriber falls behind for good. Open loop (`--rate`): SENDs leave when they are due.

use super::ingest::read_uint;
use super::writer::send_ack;
use super::{Bench, DRAIN_TIMEOUT, RAMP, TICK, row, turn_until};
use crate::args::BenchArgs;
use crate::error::Error;
use crate::inflight::{Latencies, latencies, record};
use crate::lane::Lane;
use crate::measure::{Row, Run, Window};
use crate::net::{Load, Net};
use crate::peer::{self, encoded};
use drover_wire::frame::Frame;
use std::time::{Duration, Instant};

/// Subscribers of the reference setting.
const SUBSCRIBERS: usize = 200;
/// Ciphertext of the reference setting, bytes.
const SIZE_BYTES: usize = 256;

/// Measures it.
pub(super) fn run(args: &BenchArgs) -> Result<Row, Error> {
    let subscribers = args.connections.unwrap_or(SUBSCRIBERS).max(1);
    let size_bytes = args.size_or(SIZE_BYTES);
    let groups = args.groups.unwrap_or(1).clamp(1, subscribers);
    let bench = Bench::enter(args, subscribers + groups, false)?;
    let ids = bench.workspace.groups(groups);
    let mut net = Net::new()?;
    let mut load = Fanout {
        window: args.window.max(1) as u64,
        closed_loop: false,
        groups: Vec::new(),
        subscribers: Vec::new(),
        delivered: 0,
        latencies: latencies(),
    };
    for (number, &id) in ids.iter().enumerate() {
        net.add(bench.workspace.connect(&bench.target, number, id)?)?;
        load.groups.push(Group::new(Lane::new(id, size_bytes)));
    }
    for number in 0..subscribers {
        let group = number % groups;
        let mut subscriber = bench
            .workspace
            .connect(&bench.target, groups + number, ids[group])?;
        subscriber.send(&encoded(&Frame::Sub {
            group: ids[group],
            from_seq: 0,
        }))?;
        subscriber.answer(|frame| matches!(frame, Frame::SubAck { .. }).then_some(()))?;
        net.add(subscriber)?;
        load.subscribers.push(Subscriber::new(group));
    }
    let mut runs = Vec::new();
    for _ in 0..args.runs.max(1) {
        runs.push(measure(args, &bench, &mut net, &mut load)?);
    }
    let pace = match args.rate {
        Some(rate) => format!("{rate} SENDs/s"),
        None => format!("window {}", args.window),
    };
    let what = format!("PUSH, {groups} group(s), {subscribers} subscribers, {size_bytes} B, {pace}");
    let name = if args.rate.is_some() {
        "fanout-paced"
    } else {
        "fanout"
    };
    Ok(row(name, what, runs))
}

fn measure(args: &BenchArgs, bench: &Bench, net: &mut Net, load: &mut Fanout) -> Result<Run, Error> {
    let mut pace = Pace::new(args.rate);
    load.closed_loop = args.rate.is_none();
    let started = Instant::now();
    while started.elapsed() < RAMP {
        turn(net, load, &mut pace)?;
    }
    load.latencies.reset();
    load.delivered = 0;
    let window = Window::open(bench.server.as_ref())?;
    let length = Duration::from_secs_f64(args.seconds);
    while window.elapsed() < length {
        turn(net, load, &mut pace)?;
    }
    let run = window.close(
        load.delivered,
        std::mem::replace(&mut load.latencies, latencies()),
    )?;
    load.closed_loop = false;
    turn_until(
        net,
        load,
        DRAIN_TIMEOUT,
        "PUSH at some subscriber",
        Fanout::all_arrived,
    )?;
    Ok(run)
}

/// When SENDs of an open loop are due.
struct Pace {
    period: Option<Duration>,
    next: Instant,
    sent: usize,
}

impl Pace {
    fn new(rate: Option<f64>) -> Self {
        Self {
            period: rate.map(|rate| Duration::from_secs_f64(1.0 / rate.max(1e-3))),
            next: Instant::now(),
            sent: 0,
        }
    }
}

fn turn(net: &mut Net, load: &mut Fanout, pace: &mut Pace) -> Result<(), Error> {
    let Some(period) = pace.period else {
        for group in 0..load.groups.len() {
            if load.room(group) > 0 {
                net.nudge(group, load)?;
            }
        }
        return net.turn(Some(TICK), load);
    };
    while pace.next <= Instant::now() {
        let group = pace.sent % load.groups.len();
        load.groups[group].due += 1;
        net.nudge(group, load)?;
        pace.sent += 1;
        pace.next += period;
    }
    net.turn(Some(pace.next.saturating_duration_since(Instant::now())), load)
}

struct Fanout {
    window: u64,
    closed_loop: bool,
    /// Group `n` is written by connection `n`; subscribers' connections come after those.
    groups: Vec<Group>,
    subscribers: Vec<Subscriber>,
    delivered: u64,
    latencies: Latencies,
}

struct Group {
    lane: Lane,
    sent: u64,
    acknowledged: u64,
    /// SENDs of an open loop that are due.
    due: u64,
    /// For every batch of SENDs the number sent with it and when, ns.
    batches: Vec<(u64, u64)>,
}

impl Group {
    fn new(lane: Lane) -> Self {
        Self {
            lane,
            sent: 0,
            acknowledged: 0,
            due: 0,
            batches: Vec::new(),
        }
    }
}

struct Subscriber {
    group: usize,
    received: u64,
    last_seq: u64,
    /// PUSHes of the read that is being handed over.
    arrived: u64,
    /// The batch the next PUSH belongs to.
    batch: usize,
}

impl Subscriber {
    fn new(group: usize) -> Self {
        Self {
            group,
            received: 0,
            last_seq: 0,
            arrived: 0,
            batch: 0,
        }
    }
}

impl Fanout {
    /// SENDs this group may have sent now.
    fn room(&self, number: usize) -> u64 {
        let group = &self.groups[number];
        if !self.closed_loop {
            return group.due;
        }
        let slowest = self
            .subscribers
            .iter()
            .filter(|subscriber| subscriber.group == number)
            .map(|subscriber| subscriber.received)
            .min();
        let finished = slowest.unwrap_or(u64::MAX).min(group.acknowledged);
        self.window.saturating_sub(group.sent - finished)
    }

    fn all_arrived(&self) -> bool {
        self.groups.iter().all(|group| group.acknowledged == group.sent)
            && self
                .subscribers
                .iter()
                .all(|subscriber| subscriber.received == self.groups[subscriber.group].sent)
    }
}

impl Load for Fanout {
    fn message(&mut self, connection: usize, message: &[u8]) -> Result<(), Error> {
        let Some(number) = connection.checked_sub(self.groups.len()) else {
            let group = &mut self.groups[connection];
            let (hash, _) = send_ack(message)?;
            if !group.lane.acknowledged(hash) {
                return Err(Error::Unexpected("a SEND_ACK out of order".into()));
            }
            group.acknowledged += 1;
            return Ok(());
        };
        let subscriber = &mut self.subscribers[number];
        let seq = push_seq(message)?;
        if seq <= subscriber.last_seq {
            return Err(Error::Unexpected(format!(
                "PUSH {seq} after {}",
                subscriber.last_seq
            )));
        }
        subscriber.last_seq = seq;
        subscriber.arrived += 1;
        Ok(())
    }

    fn settle(&mut self, connection: usize, now_ns: u64, out: &mut Vec<u8>) -> Result<(), Error> {
        let Some(number) = connection.checked_sub(self.groups.len()) else {
            let count = self.room(connection);
            let group = &mut self.groups[connection];
            for _ in 0..count {
                group.lane.put_next(out);
            }
            if count > 0 {
                group.due = 0;
                group.sent += count;
                group.batches.push((group.sent, now_ns));
            }
            return Ok(());
        };
        let subscriber = &mut self.subscribers[number];
        let batches = &self.groups[subscriber.group].batches;
        self.delivered += subscriber.arrived;
        while subscriber.arrived > 0 {
            let Some(&(end, sent_ns)) = batches.get(subscriber.batch) else {
                return Err(Error::Unexpected("a PUSH that was never sent".into()));
            };
            let count = subscriber.arrived.min(end - subscriber.received);
            record(&mut self.latencies, now_ns - sent_ns, count as usize);
            subscriber.received += count;
            subscriber.arrived -= count;
            if subscriber.received == end {
                subscriber.batch += 1;
            }
        }
        Ok(())
    }
}

/// The seq of a PUSH; anything else is decoded in full, to say what it is.
pub(super) fn push_seq(message: &[u8]) -> Result<u64, Error> {
    if let [0x82, 10, 0x81, head, rest @ ..] = message {
        // The byte string's head, then `88 01 01 5820`, the group, the epoch and the seq.
        let envelope = rest.get(uint_bytes(*head)..).unwrap_or_default();
        if let Some(&[epoch, ref after @ ..]) = envelope.get(37..)
            && let Some(seq) = after.get(uint_bytes(epoch)..).and_then(read_uint)
        {
            return Ok(seq);
        }
    }
    match peer::decode(message)? {
        Frame::SubAck { head_seq: 0, .. } => Err(Error::Unexpected(
            "a subscriber was downgraded: the relay could not send as fast as it accepted".into(),
        )),
        frame => Err(peer::unexpected(&frame)),
    }
}

/// Bytes of the argument after this initial byte of a CBOR item.
fn uint_bytes(initial: u8) -> usize {
    match initial & 31 {
        24 => 1,
        25 => 2,
        26 => 4,
        27 => 8,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drover_wire::envelope::Envelope;
    use drover_wire::id::{GroupId, Hash};

    #[test]
    fn pushes_are_read_as_the_codec_writes_them() {
        for (ct, epoch, seq) in [
            (1, 0, 1),
            (200, 1, 24),
            (256, 300, 70_000),
            (70_000, u64::MAX, 1 << 33),
        ] {
            let mut envelope = Vec::new();
            Envelope {
                v: 1,
                enc: 1,
                group: GroupId([1; 32]),
                epoch,
                seq,
                ts_ms: 1,
                hash: Hash([2; 32]),
                ct: &vec![3; ct],
            }
            .encode(&mut envelope);
            let frame = encoded(&Frame::Push { envelope: &envelope });
            assert_eq!(push_seq(&frame).expect("a PUSH"), seq);
        }
        let downgrade = encoded(&Frame::SubAck {
            group: GroupId([1; 32]),
            head_seq: 0,
        });
        assert!(
            push_seq(&downgrade)
                .expect_err("no PUSH")
                .to_string()
                .contains("downgraded")
        );
    }
}
