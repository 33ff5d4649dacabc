//! JOIN: many devices race for the one seat of an invite (an operation is one JOIN answered), and devices whose one-time
//! codes are being hashed beside SENDs of the same shard (an operation is one SEND acknowledged).
//!
//! Attempts are budgeted per token and source (06 §6), so every connection comes from an address of its own, as a proxy
//! would say it; a relay that is not spawned needs `WEALD_RELAY_TRUSTED_PROXY_HOPS=1` for that. JOINs are budgeted per
//! connection and minute too.

use super::steady::{self, Carries, Steady};
use super::{Bench, RAMP, row, turn_until};
use crate::args::BenchArgs;
use crate::authority::Invite;
use crate::error::Error;
use crate::inflight::{Latencies, latencies, record};
use crate::link::Target;
use crate::measure::{Row, Run, Window};
use crate::net::{Load, Net};
use crate::peer::{Peer, encoded};
use crate::workspace::random;
use crate::wsframe;
use drover_wire::error::Code;
use drover_wire::frame::Frame;
use drover_wire::id::Token;
use drover_wire::join::{Request, Response};
use std::time::{Duration, Instant};

/// Connections that race, of the reference setting.
const RACERS: usize = 64;
/// Races of one run: what JOINs and INVITEs per connection and minute allow.
const RACES: usize = 18;
/// Devices whose codes are being hashed beside SENDs.
const JOINERS: usize = 8;
/// JOINs of one connection, below its budget.
const PER_CONNECTION: usize = 18;
/// Connections of one joiner, used one after the other.
const SPARES: usize = 24;
/// How long a race may take.
const RACE_TIMEOUT: Duration = Duration::from_secs(30);
/// Who was told to come again does so after this long.
const AGAIN: Duration = Duration::from_millis(20);

/// Measures both.
pub(super) fn run(args: &BenchArgs) -> Result<Vec<Row>, Error> {
    let mut args = args.clone();
    args.env.push("WEALD_RELAY_TRUSTED_PROXY_HOPS=1".into());
    let racers = args.connections.unwrap_or(RACERS).max(1);
    let mut bench = Bench::enter_as(&args, racers.max(steady::WRITERS), false, |target| {
        target.forwarded_for("192.0.2.1".into())
    })?;
    let (mut races, mut hashing) = (Vec::new(), Vec::new());
    for _ in 0..args.runs.max(1) {
        races.push(race(&args, &mut bench, racers)?);
    }
    for _ in 0..args.runs.max(1) {
        hashing.push(beside_hashes(&args, &mut bench)?);
    }
    Ok(vec![
        row("join-race", format!("{racers} JOINs racing for one seat"), races),
        row(
            "join-send",
            format!(
                "SEND, {} per s, while {JOINERS} one-time codes are hashed",
                steady::RATE
            ),
            hashing,
        ),
    ])
}

/// The relay, as reached from an address that only this number has.
fn source(bench: &Bench, number: usize) -> Target {
    let [high, low] = (number as u16).to_be_bytes();
    bench.target.forwarded_for(format!("10.0.{high}.{low}"))
}

/// What came of a reservation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Reserved,
    Refused,
    /// Too many codes were being hashed.
    ComeAgain,
}

fn outcome(message: &[u8]) -> Result<Outcome, Error> {
    match Frame::decode(message) {
        Ok(Frame::Join { body }) if matches!(Response::decode(0, body), Some(Response::Reserved { .. })) => {
            Ok(Outcome::Reserved)
        }
        Ok(Frame::Error {
            code: Code::SeatsExhausted,
            ..
        }) => Ok(Outcome::Refused),
        Ok(Frame::Error {
            code: Code::Backpressure,
            ..
        }) => Ok(Outcome::ComeAgain),
        _ => Err(Error::Unexpected("no answer to a JOIN".into())),
    }
}

/// A reservation by a device and under a nonce that nobody else has.
fn reservation(invite: &Invite) -> Vec<u8> {
    let Invite {
        token: Token(token),
        code,
    } = invite;
    let (nonce, device): ([u8; 16], [u8; 32]) = (random(), random());
    let body = Request::Reserve {
        token,
        code,
        nonce: &nonce,
        device: &device,
    }
    .encode();
    encoded(&Frame::Join { body: &body })
}

/// One run of races.
fn race(args: &BenchArgs, bench: &mut Bench, racers: usize) -> Result<Run, Error> {
    let root = bench.workspace.root();
    let mut founder = bench.workspace.connect_founder(&bench.target, &[])?;
    let mut invites = Vec::new();
    for _ in 0..RACES {
        invites.push(bench.workspace.authority()?.invite(&mut founder, root, 1)?);
    }
    let mut net = Net::new()?;
    for number in 0..racers {
        let target = source(bench, number);
        net.add(Peer::authenticated(
            &target,
            bench.workspace.device(number),
            &[root],
        )?)?;
    }
    let (mut windows, mut again, mut winners_sum) = (Vec::new(), 0, 0);
    let started = Instant::now();
    for invite in &invites {
        if !windows.is_empty() && started.elapsed().as_secs_f64() > args.seconds {
            break;
        }
        let mut load = Race {
            requests: (0..racers).map(|_| Some(reservation(invite))).collect(),
            outcomes: Vec::new(),
            started_ns: net.now_ns(),
            latencies: latencies(),
        };
        let window = Window::open(bench.server.as_ref())?;
        (0..racers).try_for_each(|racer| net.nudge(racer, &mut load))?;
        turn_until(&mut net, &mut load, RACE_TIMEOUT, "answer to a JOIN", |load| {
            load.outcomes.len() == racers
        })?;
        windows.push(window.close(racers as u64, load.latencies)?);
        let count = |wanted| load.outcomes.iter().filter(|outcome| **outcome == wanted).count();
        let winners = count(Outcome::Reserved);
        // One race lost is one too many, whatever the median of the runs.
        if winners != 1 {
            return Err(Error::Unexpected(format!("{winners} winners of one seat")));
        }
        winners_sum += winners;
        again += count(Outcome::ComeAgain);
    }
    let races = windows.len() as f64;
    let mut run = Run::merged(windows).ok_or_else(|| Error::Usage("--runs has to be above 0".into()))?;
    run.extra = vec![
        ("winners_each", winners_sum as f64 / races),
        ("races", races),
        ("told_to_come_again", again as f64 / races),
    ];
    Ok(run)
}

struct Race {
    /// What each connection has to send yet.
    requests: Vec<Option<Vec<u8>>>,
    outcomes: Vec<Outcome>,
    started_ns: u64,
    latencies: Latencies,
}

impl Load for Race {
    fn message(&mut self, _: usize, message: &[u8]) -> Result<(), Error> {
        self.outcomes.push(outcome(message)?);
        Ok(())
    }

    fn settle(&mut self, connection: usize, now_ns: u64, out: &mut Vec<u8>) -> Result<(), Error> {
        match self.requests[connection].take() {
            Some(request) => wsframe::put_message(&request, out),
            None => record(&mut self.latencies, now_ns.saturating_sub(self.started_ns), 1),
        }
        Ok(())
    }
}

/// SENDs without and then with codes being hashed beside them, for half the time each.
fn beside_hashes(args: &BenchArgs, bench: &mut Bench) -> Result<Run, Error> {
    let root = bench.workspace.root();
    let mut founder = bench.workspace.connect_founder(&bench.target, &[])?;
    let invite = bench
        .workspace
        .authority()?
        .invite(&mut founder, root, JOINERS as u8)?;
    let groups = bench.workspace.groups(steady::WRITERS);
    let mut net = Net::new()?;
    for (number, &group) in groups.iter().enumerate() {
        net.add(bench.workspace.connect(&bench.target, number, group)?)?;
    }
    let mut load = Beside {
        steady: Steady::new(groups.into_iter()),
        joiners: Vec::new(),
        hashed: 0,
        again: 0,
    };
    for joiner in 0..JOINERS {
        let target = source(bench, RACERS + joiner);
        for _ in 0..SPARES {
            net.add(Peer::authenticated(
                &target,
                bench.workspace.device(joiner),
                &[root],
            )?)?;
        }
        load.joiners.push(Joiner {
            request: reservation(&invite),
            asked: 0,
            state: State::Idle(0),
        });
    }
    let half = Duration::from_secs_f64(args.seconds / 2.0);
    steady::turn_for(&mut net, &mut load, RAMP)?;
    load.steady.latencies.reset();
    steady::turn_for(&mut net, &mut load, half)?;
    let idle = load.steady.take_latencies();

    let deadline = Instant::now() + RAMP;
    load.hash_until(&mut net, deadline)?;
    load.steady.latencies.reset();
    (load.hashed, load.again) = (0, 0);
    let window = Window::open(bench.server.as_ref())?;
    load.hash_until(&mut net, Instant::now() + half)?;
    let busy = load.steady.take_latencies();
    let sent = busy.len();
    let (hashed, again) = (load.hashed, load.again);
    let p99_ms = |latencies: &Latencies| latencies.value_at_quantile(0.99) as f64 / 1e6;
    let (idle_ms, busy_ms) = (p99_ms(&idle), p99_ms(&busy));
    let mut run = window.close(sent, busy)?;
    run.extra = vec![
        ("p99_ms_idle", idle_ms),
        ("p99_ratio", busy_ms / idle_ms),
        ("hashes_per_s", hashed as f64 / half.as_secs_f64()),
        ("told_to_come_again", again as f64),
    ];
    turn_until(&mut net, &mut load, RACE_TIMEOUT, "answer to a JOIN", |load| {
        load.steady.is_quiet()
            && load
                .joiners
                .iter()
                .all(|joiner| !matches!(joiner.state, State::Asked))
    })?;
    Ok(run)
}

/// Steady SENDs, and joiners that have a code hashed all the time.
struct Beside {
    steady: Steady,
    joiners: Vec<Joiner>,
    hashed: u64,
    again: u64,
}

/// One device that redeems the same seat over and over: it is answered the same, and its code is hashed each time.
struct Joiner {
    request: Vec<u8>,
    /// JOINs so far, which say what connection is the next one's.
    asked: usize,
    state: State,
}

enum State {
    /// Asks again from this moment on, by the loop's clock.
    Idle(u64),
    /// To be written now.
    Asking,
    Asked,
}

impl Beside {
    fn joiner_of(&self, connection: usize) -> Option<usize> {
        (!self.steady.has(connection)).then(|| (connection - steady::WRITERS) / SPARES)
    }

    /// Keeps SENDs and joiners busy.
    fn hash_until(&mut self, net: &mut Net, deadline: Instant) -> Result<(), Error> {
        while Instant::now() < deadline {
            let now_ns = net.now_ns();
            for number in 0..self.joiners.len() {
                let joiner = &mut self.joiners[number];
                if matches!(joiner.state, State::Idle(from_ns) if from_ns <= now_ns) {
                    let spare = joiner.asked / PER_CONNECTION % SPARES;
                    joiner.asked += 1;
                    joiner.state = State::Asking;
                    net.nudge(steady::WRITERS + number * SPARES + spare, self)?;
                }
            }
            steady::turn(net, self)?;
        }
        Ok(())
    }
}

impl Load for Beside {
    fn message(&mut self, connection: usize, message: &[u8]) -> Result<(), Error> {
        let Some(number) = self.joiner_of(connection) else {
            return self.steady.message(connection, message);
        };
        let outcome = outcome(message)?;
        match outcome {
            Outcome::Reserved => self.hashed += 1,
            Outcome::ComeAgain => self.again += 1,
            Outcome::Refused => return Err(Error::Unexpected("a joiner with a seat was refused".into())),
        }
        // Settled right after, with the clock read.
        self.joiners[number].state = State::Idle(if outcome == Outcome::ComeAgain {
            u64::MAX
        } else {
            0
        });
        Ok(())
    }

    fn settle(&mut self, connection: usize, now_ns: u64, out: &mut Vec<u8>) -> Result<(), Error> {
        let Some(number) = self.joiner_of(connection) else {
            return self.steady.settle(connection, now_ns, out);
        };
        let joiner = &mut self.joiners[number];
        match joiner.state {
            State::Asking => {
                joiner.state = State::Asked;
                wsframe::put_message(&joiner.request, out);
            }
            State::Idle(u64::MAX) => joiner.state = State::Idle(now_ns + AGAIN.as_nanos() as u64),
            State::Idle(_) | State::Asked => (),
        }
        Ok(())
    }
}

impl Carries for Beside {
    fn steady(&mut self) -> &mut Steady {
        &mut self.steady
    }
}
