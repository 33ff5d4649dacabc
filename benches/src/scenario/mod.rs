//! What is measured, and what every scenario has in common.

mod fanout;
mod ingest;

use crate::args::{BenchArgs, Scenario};
use crate::error::Error;
use crate::link::Target;
use crate::measure::Row;
use crate::net::{Load, Net};
use crate::process::Process;
use crate::report::Report;
use crate::spawn::Relay;
use crate::workspace::Workspace;
use std::time::{Duration, Instant};

/// Load before a measured window opens, so that it is in its steady state.
const RAMP: Duration = Duration::from_millis(300);
/// Load before the first run, to warm the relay and to learn how many envelopes a run needs.
const WARM_UP: Duration = Duration::from_secs(1);
/// How long answers may be outstanding after the last request.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);
/// The longest wait of the loop while it has a deadline.
const TICK: Duration = Duration::from_millis(5);

/// Runs what the options ask for, prints the table, and writes the JSON file.
///
/// # Errors
/// See [`Error`].
pub fn run(args: &BenchArgs) -> Result<(), Error> {
    let mut report = Report::default();
    match args.scenario {
        Scenario::Ingest => report.add(ingest::run(args)?),
        Scenario::Fanout => report.add(fanout::run(args)?),
        _ => return Err(Error::Usage("not yet".into())),
    }
    report.print();
    if let Some(path) = &args.json {
        report.write(path, args)?;
    }
    Ok(())
}

/// The relay under load, and the workspace in it.
struct Bench {
    /// Kept for its [`Drop`].
    _relay: Option<Relay>,
    target: Target,
    workspace: Workspace,
    /// Whose CPU time is charged.
    server: Option<Process>,
}

impl Bench {
    /// Starts or finds the relay, and enters a workspace with this many devices.
    fn enter(args: &BenchArgs, devices: usize, tls: bool) -> Result<Self, Error> {
        if args.spawn || args.spawn_command.is_some() {
            let relay = Relay::start(args, tls)?;
            let target = Target::parse(&relay.url)?;
            let workspace = Workspace::join(&target, &relay.invite, &relay.code, devices)?;
            let server = Some(Process::new(relay.pid())?);
            return Ok(Self {
                _relay: Some(relay),
                target,
                workspace,
                server,
            });
        }
        let url = args
            .url
            .as_deref()
            .ok_or_else(|| Error::Usage("--spawn or --url is needed".into()))?;
        let target = Target::parse(url)?;
        let workspace = Workspace::enter(args, &target, devices)?;
        Ok(Self {
            _relay: None,
            target,
            workspace,
            server: args.pid.map(Process::new).transpose()?,
        })
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
