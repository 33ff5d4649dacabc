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

use crate::args::{BenchArgs, BenchCommand, Scenario, Tool};
use crate::baseline;
use crate::compare;
use crate::error::Error;
use crate::link::Target;
use crate::measure::Row;
use crate::net::{Load, Net};
use crate::peers;
use crate::process::Process;
use crate::report::{Report, Setting};
use crate::spawn::{self, DRIVER, Relay};
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

/// Does what the options ask for: measures, prints the tables to `out` and writes the files, or compares files.
///
/// # Errors
/// See [`Error`].
pub fn run(command: &BenchCommand, out: &mut dyn Write) -> Result<(), Error> {
    match (&command.tool, &command.measure) {
        (Some(Tool::Compare(args)), _) => compare::run(args, out),
        (Some(Tool::RawForwarder(args)), _) => baseline::forward::run(args, out),
        (None, Some(args)) => measure(args, out),
        (None, None) => Err(Error::Usage("what is to be measured?".into())),
    }
}

fn measure(args: &BenchArgs, out: &mut dyn Write) -> Result<(), Error> {
    args.check()?;
    let mut report = Report::new(args.is_reference());
    let mut failed = None;
    for scenario in args.scenario.parts(args.is_spawned()) {
        let mut no_baselines = args.no_baselines;
        for driver in drivers(args) {
            let mut args = args.clone();
            args.no_baselines = no_baselines;
            args.env.extend(driver.map(|word| format!("{DRIVER}={word}")));
            let mut measured = Vec::new();
            let result = rows(&args, scenario, &mut measured);
            for row in measured.iter_mut().filter(|row| !row.is_baseline()) {
                let word = driver.map(Setting::from);
                row.settings.extend(word.map(|word| ("driver".to_owned(), word)));
            }
            // Once is enough: the raw baselines know no driver.
            no_baselines |= !measured.is_empty();
            report.add(measured);
            let Err(error) = result else {
                continue;
            };
            if let (Some(driver), Some(why)) = (driver, error.about_driver()) {
                report.skip(format!("driver {driver}"), why.to_owned());
                continue;
            }
            // What was measured before is worth showing, and the rest worth measuring.
            let error = Error::Scenario(scenario, Box::new(error));
            if let Some(earlier) = failed.replace(error) {
                crate::tell!("{earlier}");
            }
        }
    }
    let is_empty = report.is_empty();
    let shown = report.show(args, out);
    match failed {
        Some(error) => Err(error),
        None if is_empty => Err(Error::Unexpected("nothing was measured".into())),
        None => shown,
    }
}

/// The drivers asked for; `None` is what the relay takes by itself.
fn drivers(args: &BenchArgs) -> Vec<Option<&str>> {
    match &args.drivers[..] {
        [] => vec![None],
        words => words.iter().map(|word| Some(word.as_str())).collect(),
    }
}

/// What one scenario measures, its baselines after it. What was measured before an error is kept.
fn rows(args: &BenchArgs, scenario: Scenario, rows: &mut Vec<Row>) -> Result<(), Error> {
    let mut with_baselines =
        |row: Row, baselines: fn(&BenchArgs) -> Result<Vec<Row>, Error>, args: &BenchArgs| {
            rows.push(row);
            if !args.no_baselines {
                rows.extend(baselines(args)?);
            }
            Ok(())
        };
    let paced = BenchArgs {
        rate: args.rate.or(Some(baseline::PACED_RATE)),
        ..args.clone()
    };
    match scenario {
        Scenario::Ingest => return with_baselines(ingest::run(args)?, baseline::ingest, args),
        Scenario::Fanout => return with_baselines(fanout::run(args)?, baseline::fanout, args),
        Scenario::Peers => {
            rows.push(ingest::run(args)?);
            rows.extend(peers::ingest(args)?);
            rows.push(fanout::run(args)?);
            rows.extend(peers::fanout(args)?);
        }
        Scenario::FanoutPaced => return with_baselines(fanout::run(&paced)?, baseline::fanout, &paced),
        Scenario::Replay => return with_baselines(replay::run(args)?, baseline::replay, args),
        Scenario::Recon => rows.push(recon::run(args)?),
        Scenario::ReconCold => rows.push(recon::cold(args)?),
        Scenario::Open => rows.push(open::run(args)?),
        Scenario::Access => rows.push(access::run(args)?),
        Scenario::Join => rows.extend(join::run(args)?),
        Scenario::Drop => rows.extend(drop::run(args)?),
        Scenario::Compact => rows.push(drop::compact(args)?),
        Scenario::Idle => rows.push(idle::run(args, is_tls(args))?),
        Scenario::IdleTls => rows.push(idle::run(args, true)?),
        Scenario::Hostile => rows.extend(hostile::run(args)?),
        Scenario::Media => media::run(args, rows)?,
        Scenario::Baseline => {
            rows.extend(baseline::ingest(args)?);
            rows.extend(baseline::fanout(args)?);
            if args.rate.is_none() {
                rows.extend(baseline::fanout(&paced)?);
            }
            rows.extend(baseline::replay(args)?);
        }
        Scenario::All => (),
    }
    Ok(())
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
    /// The relay's private listener, if it is known.
    private: Option<String>,
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
                private: Some(relay.private.clone()),
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
            private: args.metrics.clone(),
        })
    }

    /// The relay's /metrics, if it is known where.
    fn metrics(&self) -> Option<String> {
        spawn::private_page(self.private.as_ref()?, "/metrics", None)
    }

    /// What the shards of a spawned relay run on, if it says so.
    fn driver(&self) -> Option<String> {
        self.relay.as_ref()?.borrow().driver()
    }

    /// Mints a further workspace on a relay that was spawned; its invite link.
    fn mint(&self) -> Result<String, Error> {
        self.spawned()?.borrow_mut().mint()
    }

    /// Kills a relay that was spawned, and starts it again on what it left.
    fn restart(&mut self) -> Result<(), Error> {
        self.spawned()?.borrow_mut().restart()?;
        let pid = self.spawned()?.borrow().pid();
        self.server = Some(Process::new(pid)?);
        Ok(())
    }

    fn spawned(&self) -> Result<&RefCell<Relay>, Error> {
        let relay = self.relay.as_ref();
        relay.ok_or_else(|| Error::Usage("--spawn is needed".into()))
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
    Row::new(name, what, runs)
}
