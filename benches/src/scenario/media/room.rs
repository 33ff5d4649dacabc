//! The connections of a plan, in their calls, and one measured window over them.

use super::calls::Calls;
use super::plan::{Plan, call_id};
use crate::args::{BenchArgs, ForwarderArgs, Latency};
use crate::baseline::forward::{self, Forwarder};
use crate::error::Error;
use crate::inflight::latencies;
use crate::measure::{Run, Window};
use crate::net::Net;
use crate::peer::{Peer, encoded};
use crate::process::Process;
use crate::scenario::{Bench, RAMP, TICK};
use drover_wire::frame::{Frame, Wake};
use drover_wire::id::GroupId;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long frames may be under way after the last one was sent.
const DRAIN: Duration = Duration::from_millis(500);

/// See the module.
pub(super) struct Room<'a> {
    pub(super) bench: &'a Bench,
    /// Tells the calls of one room from those of the rooms before it, whose end the relay may not have seen yet.
    pub(super) cell: u32,
    pub(super) net: Net,
    pub(super) load: Calls,
}

impl<'a> Room<'a> {
    /// Everybody of the plan who is of this process, joined.
    pub(super) fn open(bench: &'a Bench, plan: Plan, cell: u32) -> Result<Self, Error> {
        let mut room = Self {
            bench,
            cell,
            net: Net::new()?,
            load: Calls::new(plan, false),
        };
        room.grow(plan.calls)?;
        Ok(room)
    }

    /// Lets more join, until there are this many calls.
    pub(super) fn grow(&mut self, calls: usize) -> Result<(), Error> {
        let plan = self.load.plan;
        let group = self.bench.workspace.root();
        for number in self.load.connections()..calls * plan.places().len() {
            let (call, place) = plan.seat(number);
            // The same device for the same participant, whichever process it is of.
            let device = self.bench.workspace.device(call * plan.participants + place);
            let mut peer = Peer::authenticated(&self.bench.target, device, &[group])?;
            peer.send(&join(group, self.cell, call))?;
            // A join is not acknowledged: what is asked after it is answered after it.
            peer.send(&encoded(&Frame::Wake(Wake::Query)))?;
            peer.answer(|frame| matches!(frame, Frame::Wake(Wake::Capability { .. })).then_some(()))?;
            self.net.add(peer)?;
            self.load
                .add(plan.templates(number, call_id(group, self.cell, call)));
        }
        Ok(())
    }

    /// One run in this many of the calls.
    pub(super) fn measure(&mut self, args: &BenchArgs, calls: usize) -> Result<Run, Error> {
        let before = self.bench.metrics().and_then(|page| Counters::of(&page));
        let server = self.bench.server.as_ref();
        let mut run = measure(args, calls, server, &mut self.net, &mut self.load)?;
        let after = self.bench.metrics().and_then(|page| Counters::of(&page));
        if let (Some(before), Some(after)) = (before, after) {
            run.extra.extend(after.since(&before));
        }
        Ok(run)
    }
}

/// A participant's CALL.
pub(super) fn join(group: GroupId, cell: u32, call: usize) -> Vec<u8> {
    encoded(&Frame::Call {
        call_id: call_id(group, cell, call),
        group,
        epoch: 0,
        kind: 2,
        body: &[],
    })
}

/// The same load on the raw forwarder.
pub(super) fn forwarded(args: &BenchArgs, plan: Plan, turn: Duration) -> Result<Vec<Run>, Error> {
    let forwarder = Forwarder::start(&forwarding(plan, turn))?;
    load_forwarder(args, plan, forwarder.address, &forwarder.process)
}

/// What a forwarder has to know of the plan.
fn forwarding(plan: Plan, turn: Duration) -> ForwarderArgs {
    let template = &plan.templates(0, call_id(GroupId([0; 32]), 0, 0))[0];
    let mut head = Vec::new();
    drover_wire::ws::binary_head(template.message.len() - template.payload_at, &mut head);
    ForwarderArgs {
        connections: plan.connections(),
        participants: plan.participants,
        message_bytes: template.message.len(),
        cut_bytes: template.payload_at,
        head,
        turn_us: turn.as_micros() as u64,
    }
}

fn load_forwarder(
    args: &BenchArgs,
    plan: Plan,
    address: SocketAddr,
    process: &Process,
) -> Result<Vec<Run>, Error> {
    let mut load = Calls::new(plan, true);
    let group = GroupId([0; 32]);
    for number in 0..plan.connections() {
        let (call, _) = plan.seat(number);
        load.add(plan.templates(number, call_id(group, 0, call)));
    }
    let mut net = Net::new()?;
    for client in forward::connect(address, plan.connections())? {
        net.add(Peer::raw(client)?)?;
    }
    (0..args.runs.max(1))
        .map(|_| measure(args, plan.calls, Some(process), &mut net, &mut load))
        .collect()
}

fn measure(
    args: &BenchArgs,
    calls: usize,
    server: Option<&Process>,
    net: &mut Net,
    load: &mut Calls,
) -> Result<Run, Error> {
    load.begin(calls, net.now_ns());
    let started = Instant::now();
    while started.elapsed() < RAMP {
        load.turn(net)?;
    }
    load.open_window();
    if load.replay.is_some() {
        net.nudge(0, load)?;
    }
    let window = Window::open(server)?;
    let length = Duration::from_secs_f64(args.seconds);
    while window.elapsed() < length && load.replay.as_ref().is_none_or(|replay| !replay.is_over()) {
        load.turn(net)?;
    }
    let taken = std::mem::replace(&mut load.latencies, latencies());
    let replayer = std::mem::replace(&mut load.replayer, latencies());
    let mut run = window.close(load.delivered, taken)?;
    run.is_round_trip = load.plan.latency == Latency::RoundTrip;
    // Before the wait for what is under way: nothing is sent in it.
    let sent_share = load.sent as f64 / load.due_count(net.now_ns()).max(1.0);
    let ended = Instant::now();
    while (load.missing() > 0 || load.unanswered() > 0) && ended.elapsed() < DRAIN {
        net.turn(Some(TICK), load)?;
    }
    run.extra = vec![
        ("lost", load.missing() as f64),
        ("refused", load.refused as f64),
        ("late_p99_ms", load.late.value_at_quantile(0.99) as f64 / 1e6),
        ("sent_share", sent_share),
    ];
    if load.plan.latency == Latency::RoundTrip {
        run.extra.push(("unanswered", load.unanswered() as f64));
    }
    if !replayer.is_empty() && load.replay.is_some() {
        let p99_ms = replayer.value_at_quantile(0.99) as f64 / 1e6;
        run.extra.push(("replayer_p99_ms", p99_ms));
    }
    Ok(run)
}

/// What a relay says of itself on /metrics.
struct Counters {
    shed: f64,
    /// Only some say: bytes that were copied, and forwarded.
    copied: Option<f64>,
    forwarded: Option<f64>,
}

impl Counters {
    fn of(page: &str) -> Option<Self> {
        let value = |name: &str| -> Option<f64> {
            page.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
                .and_then(|value| value.parse().ok())
        };
        Some(Self {
            shed: value("weald_relay_media_frames_total{result=\"shed\"}")?,
            copied: value("weald_relay_copied_bytes_total"),
            forwarded: value("weald_relay_media_forwarded_bytes_total"),
        })
    }

    fn since(&self, before: &Self) -> Vec<(&'static str, f64)> {
        let difference = |name, after: Option<f64>, before: Option<f64>| Some((name, after? - before?));
        [
            difference("shed", Some(self.shed), Some(before.shed)),
            difference("copied_bytes", self.copied, before.copied),
            difference("forwarded_bytes", self.forwarded, before.forwarded),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::parse;
    use std::net::TcpListener;
    use std::thread;

    #[test]
    fn the_raw_forwarder_is_loaded_like_a_relay() {
        for (line, turn_us) in [
            (
                "media --spawn --seconds 0.2 --runs 1 --calls 2 --participants 3",
                0,
            ),
            (
                "media --spawn --seconds 0.2 --runs 1 --calls 2 --participants 3",
                500,
            ),
            ("media --spawn --seconds 0.2 --runs 1 --calls 2 --size 20", 0),
            (
                "media --spawn --seconds 0.2 --runs 1 --calls 2 --latency round-trip",
                0,
            ),
        ] {
            let args = parse(line).expect("arguments");
            let plan = Plan::all(&args).expect("a plan")[0];
            let forwarding = forwarding(plan, Duration::from_micros(turn_us));
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = listener.local_addr().expect("an address");
            let serving = thread::spawn(move || forward::serve(&forwarding, &listener));
            let process = Process::this_thread().expect("a thread");
            let runs = load_forwarder(&args, plan, address, &process).expect("runs");
            serving.join().expect("no panic").expect("no error");
            let (run, offered) = (&runs[0], plan.offered_per_s());
            assert!(run.extra.contains(&("lost", 0.0)), "{line}: {run:?}");
            assert!(
                run.latency_ms(0.5).is_some_and(|ms| ms < 1_000.0),
                "{line}: {run:?}"
            );
            assert_eq!(run.is_round_trip, line.contains("round-trip"));
            // As many frames as in the other method, answers included.
            assert!(
                run.ops as f64 > offered * 0.2 * 0.3,
                "{line}: {} of {offered}/s",
                run.ops
            );
        }
    }

    #[test]
    fn counters_of_a_page() {
        let page =
            "# HELP x\nweald_relay_media_frames_total{result=\"shed\"} 7\nweald_relay_copied_bytes_total 9\n";
        let (before, after) = (Counters::of(page), Counters::of(&page.replace(" 7", " 17")));
        let (before, after) = (before.expect("counters"), after.expect("counters"));
        assert_eq!(after.since(&before), [("shed", 10.0), ("copied_bytes", 0.0)]);
        assert!(Counters::of("nothing").is_none());
    }
}
