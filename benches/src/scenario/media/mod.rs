//! Calls: every participant sends MEDIA at a steady pace, evenly spread over time; an operation is one frame at one
//! recipient. Every combination of the lists given is measured, over every transport asked for.
//!
//! A frame carries the moment it was sent in its sequence number, which no relay looks at, so a latency is a difference of
//! two readings of one clock. With `--latency round-trip` the last participant of a call answers each frame of the first,
//! at once and with the same number, and the first sees how long that took; so the last may be a process on another
//! machine (`--side`). The answers are its frames: the load is that of the other method.
//!
//! | Module | Story |
//! | --- | --- |
//! | [`plan`] | one combination, and its frames |
//! | [`calls`] | the participants of this process |
//! | [`room`] | their connections, and one measured window |
//! | [`saturate`] | the most calls that hold |
//! | [`far`] | the side that answers |
//! | [`replay`] | one participant reads a log meanwhile |

mod calls;
mod far;
mod plan;
mod replay;
mod room;
mod saturate;

use super::ingest::Ingest;
use super::{Bench, LOADERS, row};
use crate::args::{BenchArgs, Side, Transport};
use crate::error::Error;
use crate::measure::{Row, Run};
use crate::report::Settings;
use crate::workspace::DEVICES_MAX;
use plan::Plan;
use replay::Replay;
use room::Room;
use std::time::Duration;

/// The raw forwarders: a name, and the shortest time between two turns.
const BASELINES: [(&str, u64); 2] = [("raw-forward", 0), ("raw-forward-turns", 500)];

/// Measures a relay, then the raw forwarder with and without turns under the same loads.
pub(super) fn run(args: &BenchArgs, rows: &mut Vec<Row>) -> Result<(), Error> {
    let plans = Plan::all(args)?;
    for transport in transports(args) {
        over(args, &plans, transport, rows)?;
    }
    if args.no_baselines || args.side != Side::Both || args.until_p99.is_some() {
        return Ok(());
    }
    for plan in plans {
        for (name, turn_us) in BASELINES {
            let runs = room::forwarded(args, plan, Duration::from_micros(turn_us))?;
            let what = plan.what(&format!("raw forwarding, turns of {turn_us} us"));
            rows.push(with_settings(row(name, what, runs), plan.settings()));
        }
    }
    Ok(())
}

/// Both for a relay that is spawned, else what the URL says.
fn transports(args: &BenchArgs) -> Vec<Transport> {
    match (args.is_spawned(), &args.transports[..]) {
        (true, []) => vec![Transport::Ws, Transport::Wss],
        (true, stated) => stated.to_vec(),
        (false, _) if super::is_tls(args) => vec![Transport::Wss],
        (false, _) => vec![Transport::Ws],
    }
}

/// Every plan on one relay.
fn over(args: &BenchArgs, plans: &[Plan], transport: Transport, rows: &mut Vec<Row>) -> Result<(), Error> {
    let devices = match args.until_p99 {
        Some(_) => DEVICES_MAX,
        None => plans
            .iter()
            .map(|plan| plan.calls * plan.participants + LOADERS)
            .max()
            .unwrap_or(1),
    };
    let bench = Bench::enter(args, devices, transport == Transport::Wss)?;
    let driver = bench.driver();
    let settings = |plan: &Plan| {
        let mut settings = plan.settings();
        settings.insert("transport".into(), transport.name().into());
        settings.extend(
            driver
                .as_deref()
                .map(|driver| ("driver".to_owned(), driver.into())),
        );
        settings
    };
    let over = match &driver {
        Some(driver) => format!("MEDIA over {}, {driver}", transport.name()),
        None => format!("MEDIA over {}", transport.name()),
    };
    for (cell, plan) in (0..).zip(plans) {
        let mut room = Room::open(&bench, *plan, cell)?;
        if let Some(bound_ms) = args.until_p99 {
            crate::tell!("{}, from here on up", plan.what(&over));
            let (calls, mut runs, saturation) = saturate::saturate(args, bound_ms, &mut room)?;
            for run in &mut runs {
                run.extra.push(("calls", calls as f64));
            }
            let what = Plan { calls, ..*plan }.what(&format!("{over}, the most with p99 <= {bound_ms} ms"));
            let mut settings = settings(plan);
            // It is what was looked for.
            settings.remove("calls");
            settings.insert("until_p99_ms".into(), bound_ms.into());
            let mut found = with_settings(row("media-saturated", what, runs), settings);
            found.saturation = Some(saturation);
            rows.push(found);
            continue;
        }
        if plan.side == Side::Far {
            let run = far::answer(&mut room)?;
            let row = row(
                "media-far",
                plan.what("MEDIA at the side that answers"),
                vec![run],
            );
            rows.push(with_settings(row, settings(plan)));
            continue;
        }
        let runs = (0..args.runs.max(1))
            .map(|_| room.measure(args, plan.calls))
            .collect::<Result<_, _>>()?;
        rows.push(with_settings(
            row("media", plan.what(&over), runs),
            settings(plan),
        ));
        if let Some(mb) = args.replay_mb {
            let runs = replayed(args, &bench, &mut room, mb)?;
            let what = plan.what(&format!("{over}, while one participant replays"));
            rows.push(with_settings(row("media-replay", what, runs), settings(plan)));
        }
    }
    Ok(())
}

/// The same while the first participant reads a log.
fn replayed(args: &BenchArgs, bench: &Bench, room: &mut Room<'_>, mb: f64) -> Result<Vec<Run>, Error> {
    let log = bench.workspace.groups(1)[0];
    let envelopes = (mb * 1e6 / replay::SIZE_BYTES as f64).ceil() as usize;
    Ingest::fill(bench, log, replay::SIZE_BYTES, envelopes.min(replay::ENVELOPES))?;
    let calls = room.load.plan.calls;
    let mut runs = Vec::new();
    for _ in 0..args.runs.max(1) {
        room.load.replay = Some(Replay::new(log, (mb * 1e6) as u64));
        let mut run = room.measure(args, calls)?;
        if let Some(replay) = room.load.replay.take() {
            run.extra.push(("replayed_mb", replay.bytes as f64 / 1e6));
        }
        runs.push(run);
    }
    Ok(runs)
}

fn with_settings(mut row: Row, settings: Settings) -> Row {
    row.settings = settings;
    row
}
