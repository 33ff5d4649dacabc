//! What is measured, and what every scenario has in common.

mod access;
mod drop;
mod fanout;
pub(crate) mod hostile;
mod idle;
mod ingest;
mod join;
mod media;
mod open;
mod recon;
mod replay;
mod steady;
mod writer;

use crate::args::{BenchArgs, Scenario};
use crate::baseline;
use crate::error::{Doing as _, Error};
use crate::link::Target;
use crate::measure::Row;
use crate::net::{Load, Net};
use crate::process::Process;
use crate::report::Report;
use crate::spawn::Relay;
use crate::workspace::Workspace;
use std::cell::RefCell;
use std::io::Write;
use std::time::{Duration, Instant};

/// Load before a measured window opens, so that it is in its steady state.
const RAMP: Duration = Duration::from_millis(300);
/// Load before the first run, to warm the relay and to learn how many envelopes a run needs.
const WARM_UP: Duration = Duration::from_secs(1);
/// How long answers may be outstanding after the last request.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);
/// Connections that store a log before it is read, and what each has under way.
const LOADERS: usize = 8;
const LOADER_WINDOW: usize = 256;
/// How long storing it may take.
const FILL_TIMEOUT: Duration = Duration::from_secs(300);
/// The longest wait of the loop while it has a deadline.
const TICK: Duration = Duration::from_millis(5);

/// Runs what the options ask for, prints the table to `out`, and writes the JSON file.
///
/// # Errors
/// See [`Error`].
pub fn run(args: &BenchArgs, out: &mut dyn Write) -> Result<(), Error> {
    let mut report = Report::new(args.is_reference());
    let mut failed = None;
    for scenario in args.scenario.parts(args.is_spawned()) {
        match rows(args, scenario) {
            Ok(rows) => report.add(rows),
            // What was measured before is worth showing, and the rest worth measuring.
            Err(error) => {
                let error = Error::Scenario(scenario, Box::new(error));
                if let Some(earlier) = failed.replace(error) {
                    let _ = writeln!(std::io::stderr(), "{earlier}");
                }
            }
        }
    }
    let printed = match report.is_empty() {
        true => Ok(()),
        false => out
            .write_all(report.table().as_bytes())
            .and_then(|()| out.flush()),
    };
    if let Some(path) = &args.json {
        report.write(path, args)?;
    }
    failed.map_or(Ok(()), Err)?;
    printed.doing("print the table")
}

/// What one scenario measures, its baselines after it.
fn rows(args: &BenchArgs, scenario: Scenario) -> Result<Vec<Row>, Error> {
    let with_baselines =
        |row: Row, baselines: fn(&BenchArgs) -> Result<Vec<Row>, Error>, args: &BenchArgs| {
            let mut rows = vec![row];
            if !args.no_baselines {
                rows.extend(baselines(args)?);
            }
            Ok(rows)
        };
    let paced = BenchArgs {
        rate: args.rate.or(Some(baseline::PACED_RATE)),
        ..args.clone()
    };
    match scenario {
        Scenario::Ingest => with_baselines(ingest::run(args)?, baseline::ingest, args),
        Scenario::Fanout => with_baselines(fanout::run(args)?, baseline::fanout, args),
        Scenario::FanoutPaced => with_baselines(fanout::run(&paced)?, baseline::fanout, &paced),
        Scenario::Replay => with_baselines(replay::run(args)?, baseline::replay, args),
        Scenario::Recon => Ok(vec![recon::run(args)?]),
        Scenario::Open => Ok(vec![open::run(args)?]),
        Scenario::Access => Ok(vec![access::run(args)?]),
        Scenario::Join => join::run(args),
        Scenario::Drop => drop::run(args),
        Scenario::Idle => Ok(vec![idle::run(args, is_tls(args))?]),
        Scenario::IdleTls => Ok(vec![idle::run(args, true)?]),
        Scenario::Hostile => hostile::run(args),
        Scenario::Media => media::run(args, is_tls(args)),
        Scenario::MediaTls => media::run(args, true),
        Scenario::Baseline => {
            let mut rows = baseline::ingest(args)?;
            rows.extend(baseline::fanout(args)?);
            if args.rate.is_none() {
                rows.extend(baseline::fanout(&paced)?);
            }
            rows.extend(baseline::replay(args)?);
            Ok(rows)
        }
        Scenario::All => Ok(Vec::new()),
    }
}

/// Whether the relay's URL asks for TLS.
fn is_tls(args: &BenchArgs) -> bool {
    args.url.as_deref().is_some_and(|url| url.starts_with("wss"))
}

/// The relay under load, and the workspace in it.
struct Bench {
    /// Killed when it is dropped.
    relay: Option<RefCell<Relay>>,
    target: Target,
    workspace: Workspace,
    /// Whose CPU time is charged.
    server: Option<Process>,
}

impl Bench {
    /// Starts or finds the relay, and enters a workspace with this many devices.
    fn enter(args: &BenchArgs, devices: usize, tls: bool) -> Result<Self, Error> {
        Self::enter_as(args, devices, tls, |target| target)
    }

    /// The same, for clients that reach it in a way of their own.
    fn enter_as(
        args: &BenchArgs,
        devices: usize,
        tls: bool,
        reached: impl Fn(Target) -> Target,
    ) -> Result<Self, Error> {
        if args.is_spawned() {
            let relay = Relay::start(args, tls)?;
            let target = reached(Target::parse(&relay.url)?);
            let workspace = Workspace::join(&target, &relay.invite, &relay.code, devices)?;
            let server = Some(Process::new(relay.pid())?);
            return Ok(Self {
                relay: Some(RefCell::new(relay)),
                target,
                workspace,
                server,
            });
        }
        let url = args
            .url
            .as_deref()
            .ok_or_else(|| Error::Usage("--spawn or --url is needed".into()))?;
        let target = reached(Target::parse(url)?);
        let workspace = Workspace::enter(args, &target, devices)?;
        Ok(Self {
            relay: None,
            target,
            workspace,
            server: args.pid.map(Process::new).transpose()?,
        })
    }

    /// Mints a further workspace on a relay that was spawned; its invite link.
    fn mint(&self) -> Result<String, Error> {
        let relay = self.relay.as_ref();
        let relay = relay.ok_or_else(|| Error::Usage("--spawn is needed".into()))?;
        relay.borrow_mut().mint()
    }
}

/// Turns until `done`, or an error after `timeout`.
fn turn_until<L: Load>(
    net: &mut Net,
    load: &mut L,
    timeout: Duration,
    waiting_for: &str,
    mut done: impl FnMut(&L) -> bool,
) -> Result<(), Error> {
    let deadline = Instant::now() + timeout;
    while !done(load) {
        if Instant::now() > deadline {
            return Err(Error::Unexpected(format!("no {waiting_for} within {timeout:?}")));
        }
        net.turn(Some(TICK), load)?;
    }
    Ok(())
}

/// A row whose name is that of a must-reach figure.
fn row(name: &'static str, what: String, runs: Vec<crate::measure::Run>) -> Row {
    Row { name, what, runs }
}
