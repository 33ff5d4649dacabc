//! The command line (13 §b). The first argument decides; exit codes are those of sysexits, because init systems and
//! schedulers branch on them.

use crate::config::{self, Config, ConfigError};
use clap::{CommandFactory, Parser, Subcommand, error::ErrorKind};
use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Why the program ends without having done what it was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl Failure {
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

Exit codes: 0 done; 64 bad arguments; 69 something it depends on did not answer; 78 settings or store
unusable.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve (the default)
    Serve,
}

/// Runs the program and says how it ended.
pub(crate) fn main(args: Vec<OsString>) -> ExitCode {
    match run(&args) {
        Ok(code) => code,
        Err(failure) => {
            // Nothing is left to tell it to if stderr is closed.
            let _ = writeln!(std::io::stderr(), "drover: {}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}

fn run(args: &[OsString]) -> Result<ExitCode, Failure> {
    // These three ignore what follows, so the parser does not get to see it.
    match args.get(1).and_then(|first| first.to_str()) {
        Some("--version" | "-V") => return print_version(),
        Some("--help" | "-h") => return print(&Cli::command().render_help().to_string()),
        Some("--check-config") => return check_config(config_argument(&args[2..]).as_deref()),
        _ => {}
    }
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) if error.kind() == ErrorKind::DisplayHelp => return print(&error.to_string()),
        Err(error) => {
            let text = error.to_string();
            return Err(Failure::usage(
                text.strip_prefix("error: ").unwrap_or(&text).trim_end(),
            ));
        }
    };
    let file = cli.config.as_deref();
    if cli.version {
        return print_version();
    }
    if cli.check_config {
        return check_config(file);
    }
    match cli.command.unwrap_or(Command::Serve) {
        Command::Serve => {
            let config = load(file)?;
            crate::logging::install(&config);
            Ok(ExitCode::SUCCESS)
        }
    }
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

fn load(file: Option<&Path>) -> Result<Config, ConfigError> {
    Config::load(&std::env::vars_os().collect(), file)
}

fn check_config(file: Option<&Path>) -> Result<ExitCode, Failure> {
    print(&config::report(&load(file)?))
}

fn print_version() -> Result<ExitCode, Failure> {
    print(concat!("drover ", env!("CARGO_PKG_VERSION"), "\n"))
}

/// Writes to stdout; a reader that went away is no failure of ours.
fn print(text: &str) -> Result<ExitCode, Failure> {
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(ExitCode::SUCCESS)
}
