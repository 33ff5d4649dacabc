//! The command line (13 §b). The first argument decides; exit codes are those of sysexits, because init systems and
//! schedulers branch on them.

use crate::config::{self, Config, ConfigError, Environment, Key};
use crate::conform::ConformArgs;
use crate::inspect::{NO_SUCH, Question};
use crate::output::Output;
use crate::{conform, demo, limits, operator_key, private_client, serve, store_check, workspace};
use clap::{CommandFactory, Parser, Subcommand, error::ErrorKind};
use drover_storage::StoreError;
use drover_storage::embedded::OpenError;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// How long the relay may copy its store: some 100 MB a second, and it is in no hurry.
const SNAPSHOT_PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// Why the program ends without having done what it was asked.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// What the process exits with.
    pub(crate) fn code(&self) -> i32 {
        i32::from(self.code)
    }

    /// 1: it ran, and found something wrong.
    pub(crate) fn found(message: impl Into<String>) -> Self {
        Self {
            code: 1,
            message: message.into(),
        }
    }

    /// 64: arguments that can't be used.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self {
            code: 64,
            message: message.into(),
        }
    }

    /// 69: something we depend on did not answer; worth trying again.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self {
            code: 69,
            message: message.into(),
        }
    }

    /// 74: what it printed or wrote did not arrive.
    pub(crate) fn output(message: impl Into<String>) -> Self {
        Self {
            code: 74,
            message: message.into(),
        }
    }

    /// 75: it began, and what it works with went away; what it found until then is incomplete.
    pub(crate) fn cut_short(message: impl Into<String>) -> Self {
        Self {
            code: 75,
            message: message.into(),
        }
    }

    /// 78: the configuration or the store can't be used; trying again won't help.
    pub(crate) fn config(message: impl Into<String>) -> Self {
        Self {
            code: 78,
            message: message.into(),
        }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::config(error.to_string())
    }
}

/// A relay server for sealed (end-to-end encrypted) traffic.
#[derive(Debug, Parser)]
#[command(name = "drover", disable_help_subcommand = true, disable_version_flag = true, after_help = AFTER_HELP)]
struct Cli {
    /// Read settings from PATH instead of relay.toml in the working directory
    #[arg(long, value_name = "PATH", global = true)]
    config: Option<PathBuf>,
    /// Check the settings, print each with its source, and open nothing
    #[arg(long)]
    check_config: bool,
    /// Print name and version
    #[arg(long, short = 'V')]
    version: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

const AFTER_HELP: &str = "\
Without a command, drover serves. Settings come from the environment (WEALD_RELAY_*, DROVER_*), then
relay.toml; see docs/configuration.md.

Exit codes: 0 done; 1 a check (conform, bench compare, healthcheck, status) found something wrong; 64 bad arguments;
69 something it depends on did not answer; 74 its output could not be written; 75 the relay that was
checked went away before the end; 78 settings or store unusable.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve (the default)
    Serve,
    /// Make further workspaces, and look at those there are
    Workspace {
        #[command(subcommand)]
        command: WorkspaceCommand,
    },
    /// Run a relay in a temporary folder and let a team of devices use it
    Demo,
    /// Measure a relay: rates, latencies, server CPU time, memory
    Bench(Box<drover_benches::BenchCommand>),
    /// Check any relay by its URL against the protocol's rules: exit code 0, 1 if one is not kept, or 75 if the relay
    /// went away
    Conform(Box<ConformArgs>),
    /// Ask the running relay whether it lives, not whether it is ready: exit code 0 or 1
    Healthcheck,
    /// Print the readiness document of the running relay: exit code 0 if it is ready, else 1
    Status,
    /// Look at every byte of a stopped store's log: exit code 0 if it is intact, 78 if not
    Verify,
    /// Copy the store as it is at this moment, of a running relay or a stopped one, into a new folder (blobs excepted)
    Snapshot {
        /// The copy's folder, which is made; on the relay's machine
        folder: PathBuf,
    },
    /// Save what is intact of a stopped store into a new one
    Repair {
        /// The new store's folder, which is made
        folder: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
enum WorkspaceCommand {
    /// Mint a workspace, on a running relay or a stopped store, and print its invite once
    New {
        /// Its name, such as team.example
        name: String,
    },
    /// List all workspaces: whether founded, entries of the access set, groups, log bytes
    List,
    /// Show the same of one workspace
    Show {
        /// Its name
        name: String,
    },
    /// Print a workspace's transparency log, its chain verified
    Log {
        /// Its name
        name: String,
    },
}

/// Runs the program and says how it ended.
pub fn main(args: &[OsString]) -> ExitCode {
    let environment = std::env::vars_os().collect();
    match run(args, &environment, &mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Nothing is left to tell it to if stderr is closed.
            let _ = writeln!(std::io::stderr(), "drover: {}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}

/// The program with its surroundings handed in. What it prints goes to `out`; a reader that went away is no failure.
fn run(args: &[OsString], environment: &Environment, out: &mut dyn Write) -> Result<(), Failure> {
    let mut out = Output::new(out);
    let ended = command(args, environment, &mut out);
    out.end(ended)
}

fn command(args: &[OsString], environment: &Environment, out: &mut Output<'_>) -> Result<(), Failure> {
    let mut print = |text: &str| {
        let _ = out.print(text);
        Ok(())
    };
    let load = |file: Option<&Path>| Config::load(environment, file);
    // These three ignore what follows, so the parser does not get to see it.
    match args.get(1).and_then(|first| first.to_str()) {
        Some("--version" | "-V") => return print(VERSION),
        Some("--help" | "-h") => return print(&Cli::command().render_help().to_string()),
        Some("--check-config") => {
            return print(&config::report(&load(config_argument(&args[2..]).as_deref())?));
        }
        _ => {}
    }
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) if error.kind() == ErrorKind::DisplayHelp => return print(&error.to_string()),
        Err(error) => return Err(usage(&error)),
    };
    if cli.version {
        return print(VERSION);
    }
    let command = match cli.command.unwrap_or(Command::Serve) {
        Command::Demo => {
            limits::raise();
            return demo::demo(out);
        }
        Command::Bench(args) => {
            // Each connection it makes is an open file of its own.
            limits::raise();
            return match drover_benches::run(&args, out) {
                Err(drover_benches::Error::System { .. }) if out.is_closed() => Ok(()),
                ended => ended.map_err(bench_failure),
            };
        }
        Command::Conform(args) => return conform::run(&args, out),
        command => command,
    };
    let config = load(cli.config.as_deref())?;
    if cli.check_config {
        return print(&config::report(&config));
    }
    match command {
        Command::Serve => serve::serve(config, out.inner()),
        Command::Demo | Command::Bench(_) | Command::Conform(_) => {
            unreachable!("it was run without a configuration")
        }
        Command::Workspace { command } => {
            let named = |name: &str| workspace::realm(name).map_err(Failure::usage);
            match command {
                WorkspaceCommand::New { name } => new_workspace(&config, &name, out),
                WorkspaceCommand::List => see(&config, &Question::List, out),
                WorkspaceCommand::Show { name } => see(&config, &Question::Show(named(&name)?), out),
                WorkspaceCommand::Log { name } => see(&config, &Question::Log(named(&name)?), out),
            }
        }
        Command::Healthcheck => healthcheck(&config),
        Command::Status => status(&config, out),
        Command::Verify => store_check::verify(&config, out),
        Command::Snapshot { folder } => snapshot(&config, &folder, out),
        Command::Repair { folder } => store_check::repair(&config, &folder, out),
    }
}

fn bench_failure(error: drover_benches::Error) -> Failure {
    let message = error.to_string();
    match error.cause() {
        drover_benches::Error::Usage(_) => Failure::usage(message),
        drover_benches::Error::Worse(_) => Failure::found(message),
        _ => Failure::unavailable(message),
    }
}

const VERSION: &str = concat!("drover ", env!("CARGO_PKG_VERSION"), "\n");

/// The parser's complaint in our form; a bare `drover workspace` gets the help of that command.
fn usage(error: &clap::Error) -> Failure {
    let text = error.to_string();
    let text = match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => format!("a command is missing\n\n{text}"),
        _ => text.strip_prefix("error: ").unwrap_or(&text).to_owned(),
    };
    Failure::usage(text.trim_end())
}

/// The value of `--config` among arguments that are otherwise ignored.
fn config_argument(args: &[OsString]) -> Option<PathBuf> {
    let at = args.iter().position(|arg| {
        arg == OsStr::new("--config") || arg.to_str().is_some_and(|text| text.starts_with("--config="))
    })?;
    match args[at].to_str().and_then(|text| text.strip_prefix("--config=")) {
        Some(path) => Some(path.into()),
        None => args.get(at + 1).map(PathBuf::from),
    }
}

/// decisions.md 49. The store's lock tells whether a relay runs on it.
fn new_workspace(config: &Config, name: &str, out: &mut Output<'_>) -> Result<(), Failure> {
    let realm = workspace::realm(name).map_err(Failure::usage)?;
    let is_new = !config.store_dir().exists();
    let banner = match serve::open_embedded(config)? {
        Err(OpenError::Locked(_)) => mint_running(config, name)?,
        opened => {
            let store = opened.map_err(serve::store_failure)?;
            // An invite into a store that no relay will ever open is of no use: its maker should see where it is.
            let _ = writeln!(std::io::stderr(), "drover: {}", stopped_store(config, is_new));
            let minted = workspace::mint_stopped(&store, &realm, config.hostname(), config.handoff_key());
            minted.map_err(|error| Failure::unavailable(format!("the store: {error}")))?
        }
    };
    match banner {
        // Its code is never shown again: that it was lost has to be told, though it be for want of a reader.
        Some(banner) => out.print(&banner.to_string()).map_err(|error| {
            Failure::output(format!(
                "the workspace was made, and its invite is lost, because it could not be printed: {error}; make another"
            ))
        }),
        None => {
            let _ = writeln!(
                std::io::stderr(),
                "drover: that workspace exists; nothing was minted"
            );
            Ok(())
        }
    }
}

/// What is said before something is minted beside the relay.
fn stopped_store(config: &Config, is_new: bool) -> String {
    format!(
        "no relay is running: the store in {} was {}",
        config.store_dir().display(),
        if is_new { "created here" } else { "opened" }
    )
}

/// Asks the running relay, with the key from its data folder.
fn ask_as_operator(
    config: &Config,
    method: &str,
    path: &str,
    body: &str,
) -> Result<private_client::Answer, Failure> {
    ask_patiently_as_operator(config, method, path, body, private_client::STEP)
}

fn ask_patiently_as_operator(
    config: &Config,
    method: &str,
    path: &str,
    body: &str,
    patience: Duration,
) -> Result<private_client::Answer, Failure> {
    let key = operator_key::read(&config.data_dir());
    let key = key.map_err(|error| {
        Failure::unavailable(format!(
            "a relay has the store, and its key can't be read: {error}"
        ))
    })?;
    ask_patiently(config, method, path, Some(&key), body, patience)
}

fn mint_running(config: &Config, name: &str) -> Result<Option<workspace::Banner>, Failure> {
    let body = serde_json::json!({ "name": name }).to_string();
    let answer = ask_as_operator(config, "POST", "/workspaces", &body)?;
    let document: Option<serde_json::Value> = serde_json::from_str(&answer.body).ok();
    let banner = document.as_ref().and_then(workspace::Banner::from_json);
    match (answer.status, banner) {
        (201, Some(banner)) => Ok(Some(banner)),
        (200, _) => Ok(None),
        _ => Err(unexpected(&answer)),
    }
}

fn unexpected(answer: &private_client::Answer) -> Failure {
    Failure::unavailable(format!(
        "the relay answered {}: {}",
        answer.status,
        answer.body.trim()
    ))
}

/// Answers a question about workspaces. Changes nothing: where there is no store, none is made.
fn see(config: &Config, question: &Question, out: &mut Output<'_>) -> Result<(), Failure> {
    if !config.store_dir().exists() {
        return Err(Failure::config("there is no store yet: no relay ever ran here"));
    }
    let answer = match serve::open_embedded(config)? {
        Err(OpenError::Locked(_)) => see_running(config, question)?,
        opened => {
            let store = opened.map_err(serve::store_failure)?;
            question.ask_stopped(&store).map_err(|error| match error {
                StoreError::Damaged => Failure::config(format!("the store: {error}")),
                error => Failure::unavailable(format!("the store: {error}")),
            })?
        }
    };
    let answer = answer.ok_or_else(|| Failure::usage("there is no workspace of that name"))?;
    let told = question.tell(&answer)?;
    let _ = out.print(&told);
    Ok(())
}

fn see_running(config: &Config, question: &Question) -> Result<Option<serde_json::Value>, Failure> {
    let answer = ask_as_operator(config, "GET", &question.path(), "")?;
    match (answer.status, serde_json::from_str(&answer.body)) {
        (200, Ok(document)) => Ok(Some(document)),
        (404, _) if answer.body.trim() == NO_SUCH => Ok(None),
        _ => Err(unexpected(&answer)),
    }
}

/// Copies the store, by the relay that has it or on our own.
fn snapshot(config: &Config, folder: &Path, out: &mut Output) -> Result<(), Failure> {
    if !config.store_dir().exists() {
        return Err(Failure::config("there is no store yet: no relay ever ran here"));
    }
    // The relay's working directory is another one.
    let folder =
        std::path::absolute(folder).map_err(|error| Failure::usage(format!("{folder:?}: {error}")))?;
    let copied = match serve::open_embedded(config)? {
        Err(OpenError::Locked(_)) => {
            let body = serde_json::json!({ "folder": folder }).to_string();
            let answer = ask_patiently_as_operator(config, "POST", "/snapshot", &body, SNAPSHOT_PATIENCE)?;
            match (answer.status, serde_json::from_str(&answer.body)) {
                (201, Ok(copied)) => copied,
                _ => return Err(unexpected(&answer)),
            }
        }
        opened => {
            let store = opened.map_err(serve::store_failure)?;
            store_check::snapshot(&store, &folder).map_err(serve::store_failure)?
        }
    };
    store_check::tell_snapshot(&copied, &folder, out)
}

fn healthcheck(config: &Config) -> Result<(), Failure> {
    match ask(config, "GET", "/healthz", None, "") {
        Ok(answer) if answer.status == 200 => Ok(()),
        Ok(answer) => Err(Failure {
            code: 1,
            message: format!("the relay answered {}", answer.status),
        }),
        Err(failure) => Err(Failure { code: 1, ..failure }),
    }
}

fn status(config: &Config, out: &mut Output<'_>) -> Result<(), Failure> {
    let answer = ask(config, "GET", "/readyz", config.text(Key::OperatorToken), "")?;
    let _ = out.print(&format!("{}\n", answer.body.trim_end()));
    match answer.status {
        200 => Ok(()),
        status => Err(Failure {
            code: 1,
            message: format!("the relay is not ready ({status})"),
        }),
    }
}

fn ask(
    config: &Config,
    method: &str,
    path: &str,
    bearer: Option<&str>,
    body: &str,
) -> Result<private_client::Answer, Failure> {
    ask_patiently(config, method, path, bearer, body, private_client::STEP)
}

fn ask_patiently(
    config: &Config,
    method: &str,
    path: &str,
    bearer: Option<&str>,
    body: &str,
    patience: Duration,
) -> Result<private_client::Answer, Failure> {
    let listener = config.address(Key::ObservabilityListen);
    let answer = private_client::ask(listener, method, path, bearer, body, patience);
    answer.map_err(|error| {
        Failure::unavailable(format!(
            "no answer from the private listener at {listener}: {error}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `drover ARGS` in a folder of its own; a file `relay.toml` there is named by `--config` where the test
    /// wants it read.
    fn drover(args: &[&str], environment: &[(&str, &str)]) -> (u8, String, String) {
        let args: Vec<OsString> = std::iter::once("drover")
            .chain(args.iter().copied())
            .map(OsString::from)
            .collect();
        let environment = environment
            .iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        let mut out = Vec::new();
        let (code, message) = match run(&args, &environment, &mut out) {
            Ok(()) => (0, String::new()),
            Err(failure) => (failure.code, failure.message),
        };
        (code, String::from_utf8(out).unwrap(), message)
    }

    fn broken_toml(folder: &Path) -> String {
        let path = folder.join("relay.toml");
        std::fs::write(&path, "not toml at all").unwrap();
        path.display().to_string()
    }

    /// W13.55, W13.45: version and help need no configuration; nothing else works with a broken one.
    #[test]
    fn version_and_help_work_beside_a_broken_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = broken_toml(folder.path());
        let wrong = [("WEALD_RELAY_NO_SUCH", "x")];
        for args in [
            &["--version"][..],
            &["-V"],
            &["--version", "--frobnicate"],
            &["--config", &path, "--version"],
        ] {
            assert_eq!(
                drover(args, &wrong),
                (0, VERSION.to_owned(), String::new()),
                "{args:?}"
            );
        }
        for args in [
            &["--help"][..],
            &["-h"],
            &["--help", "--frobnicate"],
            &["serve", "--help"],
        ] {
            let (code, out, _) = drover(args, &wrong);
            assert!(code == 0 && out.contains("Usage: drover"), "{args:?}: {out}");
        }
        for args in [
            &["--check-config", "--config", &path][..],
            &["--config", &path],
            &["serve", "--config", &path],
            &["status", "--config", &path],
        ] {
            let (code, out, message) = drover(args, &[]);
            assert_eq!((code, out.as_str()), (78, ""), "{args:?}");
            assert!(message.contains("relay.toml is not TOML"), "{message}");
        }
    }

    /// W13.56, as far as the commands exist: 64 names the argument and shows usage.
    #[test]
    fn bad_arguments_are_64() {
        for (args, mention) in [
            (&["--frobnicate", "--version"][..], "--frobnicate"),
            (&["frobnicate"], "frobnicate"),
            (&["serve", "extra"], "extra"),
            (&["workspace"], "workspace"),
            (&["workspace", "new"], "<NAME>"),
            (&["workspace", "new", " "], "name"),
            (&["workspace", "show"], "<NAME>"),
            (&["workspace", "log", "a\nb"], "name"),
            (&["workspace", "list", "extra"], "extra"),
            (&["conform", "ws://127.0.0.1:1"], "--invite"),
            (&["conform", "http://127.0.0.1", "--invite", "x", "y"], "ws://"),
            (&["--config"], "--config"),
        ] {
            let (code, out, message) = drover(args, &[("DROVER_DATA_DIR", "/nonexistent/drover")]);
            assert_eq!((code, out.as_str()), (64, ""), "{args:?}: {message}");
            assert!(
                message.contains(mention) && !message.starts_with("error"),
                "{message}"
            );
        }
    }

    #[test]
    fn check_config_refuses_what_serving_refuses() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("relay.toml").display().to_string();
        std::fs::write(&path, "").unwrap();
        for (name, value) in [
            ("WEALD_RELAY_MIN_ENC", "bogus"),
            ("WEALD_RELAY_LISTEN", "8443"),
            // Where the private listener is.
            ("WEALD_RELAY_LISTEN", "127.0.0.1:9090"),
            ("WEALD_RELAY_PUSH", "on"),
            ("WEALD_RELAY_PROFILE", "hosted"),
            ("WEALD_RELAY_DATABASE_URL", "scylla://db/weald"),
            ("WEALD_RELAY_MIN_ENCC", "mls"),
        ] {
            let checked = drover(&["--check-config", "--config", &path], &[(name, value)]);
            assert_eq!((checked.0, checked.1.as_str()), (78, ""));
            assert_eq!(checked, drover(&["serve", "--config", &path], &[(name, value)]));
        }
        let checked = drover(
            &["--check-config", "--frobnicate", &format!("--config={path}")],
            &[],
        );
        assert_eq!((checked.0, checked.2.as_str()), (0, ""));
    }

    /// 69 is for what may work another time.
    #[test]
    fn nobody_to_ask_is_69_and_an_unhealthy_relay_1() {
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let nobody = [("WEALD_RELAY_OBSERVABILITY_LISTEN", port.to_string())];
        let nobody = nobody.each_ref().map(|(name, value)| (*name, value.as_str()));
        assert_eq!(drover(&["healthcheck"], &nobody).0, 1);
        assert_eq!(drover(&["status"], &nobody).0, 69);
    }

    /// Takes so many bytes, then fails.
    struct Full {
        room: usize,
        kind: std::io::ErrorKind,
    }

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let taken = bytes.len().min(self.room);
            self.room -= taken;
            match taken {
                0 if !bytes.is_empty() => Err(self.kind.into()),
                taken => Ok(taken),
            }
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// What could not be printed was not done; a reader that went away has seen enough. An invite is never shown again,
    /// so its loss is told in either case.
    #[test]
    fn a_write_that_fails_is_noticed() {
        use std::io::ErrorKind::{BrokenPipe, StorageFull};
        let folder = tempfile::tempdir().unwrap();
        let data = OsString::from(folder.path().join("data"));
        let environment = vec![("DROVER_DATA_DIR".into(), data)];
        let ends = |args: &[&str], room, kind| {
            let args: Vec<OsString> = std::iter::once("drover")
                .chain(args.iter().copied())
                .map(OsString::from)
                .collect();
            let ended = run(&args, &environment, &mut Full { room, kind });
            ended.map_or_else(|failure| failure.code, |()| 0)
        };
        assert_eq!(ends(&["workspace", "new", "a.example"], 10, BrokenPipe), 74);
        assert_eq!(ends(&["workspace", "new", "b.example"], 10, StorageFull), 74);
        for args in [
            &["--version"][..],
            &["--help"],
            &["serve", "--help"],
            &["--check-config"],
            &["workspace", "list"],
            &["workspace", "show", "a.example"],
            &["workspace", "log", "a.example"],
        ] {
            assert_eq!(ends(args, usize::MAX, StorageFull), 0, "{args:?}");
            for room in [0, 10] {
                assert_eq!(ends(args, room, StorageFull), 74, "{args:?}");
                assert_eq!(ends(args, room, BrokenPipe), 0, "{args:?}");
            }
        }
        // What was found out before stands.
        assert_eq!(ends(&["workspace", "show", "c.example"], 0, StorageFull), 64);
    }

    /// Looking at workspaces makes none, and no store.
    #[test]
    fn a_stopped_store_is_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data").display().to_string();
        let settings = [("DROVER_DATA_DIR", data.as_str())];
        let (code, out, message) = drover(&["workspace", "list"], &settings);
        assert_eq!((code, out.as_str()), (78, ""), "{message}");
        assert!(!folder.path().join("data").exists());
        let (code, banner, message) = drover(&["workspace", "new", "team.example"], &settings);
        assert!(code == 0 && banner.contains("invite code"), "{message}");
        let (code, list, _) = drover(&["workspace", "list"], &settings);
        let last: Vec<_> = list.lines().last().unwrap().split_whitespace().collect();
        assert_eq!((code, &last[..]), (0, &["team.example", "no", "0", "0", "0"][..]));
        let (code, shown, _) = drover(&["workspace", "show", "team.example"], &settings);
        assert!(
            code == 0 && shown.contains("founded    no\n") && !shown.contains("invite"),
            "{shown}"
        );
        let (code, log, _) = drover(&["workspace", "log", "team.example"], &settings);
        assert_eq!((code, log.as_str()), (0, "chain verified: 0 entries\n"));
        for command in ["show", "log"] {
            let (code, out, message) = drover(&["workspace", command, "other.example"], &settings);
            assert_eq!((code, out.as_str()), (64, ""), "{message}");
        }
    }

    /// Whoever mints in the wrong directory must see it, and a script that reads the invite must not.
    #[test]
    fn a_store_that_is_made_for_a_workspace_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let settings = vec![("DROVER_DATA_DIR".into(), data.clone().into_os_string())];
        let config = Config::without_file(&settings).unwrap();
        let place = data.join("store").display().to_string();
        let new = stopped_store(&config, true);
        assert!(new.contains(&place) && new.contains("no relay is running") && new.contains("created here"));
        let old = stopped_store(&config, false);
        assert!(old.contains(&place) && !old.contains("created"));
        let settings = [("DROVER_DATA_DIR", data.to_str().unwrap())];
        let (_, out, _) = drover(&["workspace", "new", "team.example"], &settings);
        assert!(!out.contains("no relay"), "{out}");
    }

    /// With a handoff key a stopped store seals as well.
    #[test]
    fn a_further_workspace_is_sealed_too() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().display().to_string();
        let settings = [
            ("DROVER_DATA_DIR", data.as_str()),
            (
                "WEALD_RELAY_BOOTSTRAP_HANDOFF_PUBKEY",
                crate::handoff::tests::PAIR.1,
            ),
        ];
        let (code, out, message) = drover(&["workspace", "new", "team.example"], &settings);
        assert_eq!(code, 0, "{message}");
        let labels: Vec<_> = out
            .lines()
            .filter_map(|line| line.split_whitespace().nth(1))
            .collect();
        assert_eq!(labels, ["hostname", "genesis"], "{out}");
    }

    /// W13.61 in part: what stands in the way of a start, and its exit code.
    #[test]
    fn a_start_that_fails_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = busy.local_addr().unwrap().to_string();
        let data = folder.path().join("data").display().to_string();
        let base = |name: &'static str, value: &str| {
            vec![
                ("DROVER_DATA_DIR", data.clone()),
                ("WEALD_RELAY_LISTEN", "127.0.0.1:0".into()),
                ("WEALD_RELAY_OBSERVABILITY_LISTEN", "127.0.0.1:0".into()),
                (name, value.to_owned()),
            ]
        };
        for (name, value, code, mention) in [
            ("WEALD_RELAY_LISTEN", taken.as_str(), 69, taken.as_str()),
            ("WEALD_RELAY_OBSERVABILITY_LISTEN", &taken, 69, &taken),
            (
                "WEALD_RELAY_STORAGE_URL",
                "file:///nonexistent/blobs",
                69,
                "/nonexistent/blobs",
            ),
            (
                "DROVER_DATA_DIR",
                "/dev/null/data",
                78,
                "DROVER_DATA_DIR: /dev/null/data",
            ),
            (
                "DROVER_DATA_DIR",
                "/etc/passwd",
                78,
                "DROVER_DATA_DIR: /etc/passwd",
            ),
            (
                "WEALD_RELAY_DATABASE_URL",
                "file:///etc/passwd",
                78,
                "WEALD_RELAY_DATABASE_URL: /etc/passwd",
            ),
        ] {
            let settings = base(name, value);
            let settings: Vec<_> = settings
                .iter()
                .map(|(name, value)| (*name, value.as_str()))
                .collect();
            let (got, out, message) = drover(&["serve"], &settings);
            assert!(
                got == code && message.contains(mention) && !out.contains("invite"),
                "{name}: {got} {message} {out}"
            );
        }
    }
}
