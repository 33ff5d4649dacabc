//! The options, the same in every scenario.

use crate::error::Error;
pub use crate::scenario::hostile::attack::Attack;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// Durable SENDs from many writers, closed loop.
    Ingest,
    /// One writer per group, everybody else subscribed: PUSH deliveries (`--rate` for an open loop).
    Fanout,
    /// Fanout at `--rate`, 100 SENDs per second unless given.
    FanoutPaced,
    /// One reader fetches a stored log by repeated SUB.
    Replay,
    /// A client that lacks a few envelopes reconciles.
    Recon,
    /// Memory of authenticated connections that do nothing; of a spawned relay, plain and over TLS.
    Idle,
    /// Idle, over TLS alone (spawned relays).
    IdleTls,
    /// The same with groups that are not in the relay's memory: it is killed before each run (spawned relays).
    ReconCold,
    /// Opening and authenticating connections.
    Open,
    /// A well-behaved client beside hostile ones, attack by attack (spawned relays; not part of `all`).
    Hostile,
    /// Publishing a full access set that drops connected devices.
    Access,
    /// JOINs racing for one seat, and SENDs while one-time codes are hashed.
    Join,
    /// DROP of a long log, and what another group's SENDs notice of it.
    Drop,
    /// SENDs while segments of the log are rewritten that are half dead, against those before it (spawned relays).
    Compact,
    /// Calls: MEDIA frames at their recipients, for every combination of the lists given.
    Media,
    /// The raw baselines alone, without a relay.
    Baseline,
    /// Ingest and fanout, and the same shapes of work done by Redis in the same run; skips aloud what is not installed.
    Peers,
    /// Everything, and the table of figures that must be reached.
    All,
}

impl Scenario {
    /// What is measured one after the other; TLS needs a relay that is spawned with it.
    pub(crate) fn parts(self, spawned: bool) -> Vec<Scenario> {
        match self {
            Scenario::All => [
                Scenario::Ingest,
                Scenario::Fanout,
                Scenario::FanoutPaced,
                Scenario::Replay,
                Scenario::Recon,
                Scenario::Open,
                Scenario::Access,
                Scenario::Join,
                Scenario::Drop,
                Scenario::Media,
                Scenario::Idle,
            ]
            .into_iter()
            .flat_map(|part| part.parts(spawned))
            .collect(),
            Scenario::Recon if spawned => vec![Scenario::Recon, Scenario::ReconCold],
            Scenario::Drop if spawned => vec![Scenario::Drop, Scenario::Compact],
            Scenario::Idle if spawned => vec![Scenario::Idle, Scenario::IdleTls],
            one => vec![one],
        }
    }
}

/// What calls are carried over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// WebSocket.
    Ws,
    /// WebSocket over TLS.
    Wss,
}

impl Transport {
    /// As a URL begins.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Transport::Ws => "ws",
            Transport::Wss => "wss",
        }
    }
}

/// How a latency of media is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Latency {
    /// From the send to the receipt, by the one clock of this process.
    #[default]
    OneWay,
    /// The last participant of a call answers each frame of the first at once; the first sees the round trip.
    RoundTrip,
}

/// Which participants are of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Side {
    /// All of them.
    #[default]
    Both,
    /// All but the last of each call, which is of a process with `--side far`: round trips only.
    Near,
    /// The last of each call, which answers. Ends when nothing has come for a while.
    Far,
}

/// `drover bench`: a measurement, or what is done with the files of earlier ones.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct BenchCommand {
    #[command(flatten)]
    pub(crate) measure: Option<BenchArgs>,
    #[command(subcommand)]
    pub(crate) tool: Option<Tool>,
}

/// What is done with the files of earlier measurements.
#[derive(Clone, Debug, Subcommand)]
pub enum Tool {
    /// Both files of --json side by side: exit code 1 if a figure of the second is worse than the first's by more than
    /// the tolerance and beyond what its runs were apart
    Compare(CompareArgs),
    /// The raw forwarder that `media` compares a relay with, which starts it
    #[command(hide = true)]
    RawForwarder(ForwarderArgs),
}

/// Options of the raw forwarder: what is forwarded, and how.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct ForwarderArgs {
    /// Connections it waits for
    #[arg(long)]
    pub(crate) connections: usize,

    /// Connections per call, in the order they connect
    #[arg(long)]
    pub(crate) participants: usize,

    /// Bytes of a message as it arrives
    #[arg(long)]
    pub(crate) message_bytes: usize,

    /// Bytes in front of it that are replaced by those of --head
    #[arg(long)]
    pub(crate) cut_bytes: usize,

    /// What a recipient is sent first, bytes separated by commas
    #[arg(long, value_delimiter = ',')]
    pub(crate) head: Vec<u8>,

    /// Shortest time between two turns, µs
    #[arg(long)]
    pub(crate) turn_us: u64,
}

/// Options of `drover bench compare`.
#[derive(Clone, Debug, Args)]
pub struct CompareArgs {
    /// What is compared with
    pub before: PathBuf,

    /// What is judged
    pub after: PathBuf,

    /// Per cent by which a figure may be worse
    #[arg(long, default_value_t = 10.0)]
    pub tolerance: f64,
}

/// Options of a measurement.
#[derive(Clone, Debug, Args)]
pub struct BenchArgs {
    /// What to measure
    #[arg(value_enum)]
    pub scenario: Scenario,

    /// Attacks to measure (hostile) [default: all]
    #[arg(value_enum)]
    pub attacks: Vec<Attack>,

    /// Start a relay of this binary on a temporary directory, with its budgets opened
    #[arg(long, conflicts_with_all = ["url", "pid"])]
    pub spawn: bool,

    /// Where the relay is: ws://HOST:PORT/relay, or wss:// (certificates are not checked)
    #[arg(long)]
    pub url: Option<String>,

    /// Charge the CPU time and memory of this process
    #[arg(long)]
    pub pid: Option<u32>,

    /// Invite link or its 32 hex digits: a bootstrap invite founds the workspace, a member invite joins it
    #[arg(long, requires = "code")]
    pub invite: Option<String>,

    /// The invite's one-time code
    #[arg(long)]
    pub code: Option<String>,

    /// File of admitted devices and their groups, as --save-keys writes it
    #[arg(long, conflicts_with = "invite")]
    pub keys: Option<PathBuf>,

    /// Write the devices of a workspace that was founded here
    #[arg(long)]
    pub save_keys: Option<PathBuf>,

    /// Length of one measured run, seconds
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,

    /// Authenticated connections under load [default: 64; fanout 200 subscribers; idle 9000; access 100 dropped]
    #[arg(long)]
    pub connections: Option<usize>,

    /// Groups they are spread over [default: one per connection; fanout, replay, recon 1]
    #[arg(long)]
    pub groups: Option<usize>,

    /// Ciphertext of one envelope or MEDIA frame, bytes; a list for media [default: 256; replay 1024; media 160]
    #[arg(long, value_delimiter = ',')]
    pub size: Vec<usize>,

    /// Operations a connection has under way at most
    #[arg(long, default_value_t = 64)]
    pub window: usize,

    /// Runs; medians are shown
    #[arg(long, default_value_t = 3)]
    pub runs: usize,

    /// SENDs per second in all (fanout): an open loop instead of the window
    #[arg(long)]
    pub rate: Option<f64>,

    /// Calls; a list (media) [default: 80]
    #[arg(long, value_delimiter = ',')]
    pub calls: Vec<usize>,

    /// Participants of each call, 2 to 5; a list (media) [default: 5]
    #[arg(long, value_delimiter = ',')]
    pub participants: Vec<usize>,

    /// MEDIA frames per second and participant; a list (media) [default: 50]
    #[arg(long, value_delimiter = ',')]
    pub frames: Vec<f64>,

    /// ws, wss, or both (media, spawned relays; elsewhere the URL says) [default: both]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub transports: Vec<Transport>,

    /// Drivers of the spawned relay, one after the other, as DROVER_IO names them: epoll,uring,tokio-uring. What the
    /// relay or the machine hasn't is skipped [default: what the relay takes by itself]
    #[arg(long, value_delimiter = ',')]
    pub drivers: Vec<String>,

    /// Raise the number of calls, from --calls on, until the p99 passes this many ms, and report the most that held
    /// (media)
    #[arg(long, value_name = "MS", conflicts_with = "replay_mb")]
    pub until_p99: Option<f64>,

    /// How latencies are taken (media)
    #[arg(long, value_enum, default_value_t)]
    pub latency: Latency,

    /// Whose participants this process is (media)
    #[arg(long, value_enum, default_value_t, conflicts_with_all = ["spawn", "pid"])]
    pub side: Side,

    /// HOST:PORT of the relay's private listener, whose /metrics tells what was shed (media; known of a spawned relay)
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "spawn")]
    pub metrics: Option<String>,

    /// Measure again while one participant replays this many MB (media)
    #[arg(long)]
    pub replay_mb: Option<f64>,

    /// Envelopes in the stored log (replay, recon, drop) [default: 20000; drop 100000]
    #[arg(long)]
    pub envelopes: Option<usize>,

    /// Envelopes the client lacks (recon)
    #[arg(long, default_value_t = 10)]
    pub missing: usize,

    /// Write everything measured to this file as well, for `compare` and other programs
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write a report with plots to this file as well, one page that needs nothing else
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Print the tables in Markdown, with the machine's description
    #[arg(long)]
    pub markdown: bool,

    /// Where a spawned relay keeps its data, and baselines their log [default: the system's temporary directory]
    #[arg(long)]
    pub dir: Option<PathBuf>,

    /// Environment of the spawned relay, beside what opens its budgets (repeatable)
    #[arg(long, value_name = "NAME=VALUE")]
    pub env: Vec<String>,

    /// Spawn this program instead of the one that runs
    #[arg(long, hide = true)]
    pub spawn_command: Option<PathBuf>,

    /// Leave out the raw baselines, with which the figures are compared
    #[arg(long)]
    pub no_baselines: bool,
}

impl BenchArgs {
    /// Whether the settings are those for which figures are stated that must be reached.
    pub(crate) fn is_reference(&self) -> bool {
        let untouched = [self.connections, self.groups, self.envelopes]
            .iter()
            .all(Option::is_none);
        let lists = [
            self.size.len(),
            self.calls.len(),
            self.participants.len(),
            self.frames.len(),
        ];
        let untouched = untouched && lists == [0; 4];
        untouched && self.missing == 10 && self.window == 64 && self.rate.is_none_or(|rate| rate == 100.0)
    }

    /// The size asked for.
    pub(crate) fn size_or(&self, default: usize) -> usize {
        self.size.first().copied().unwrap_or(default)
    }

    /// What the parser can't see.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub(crate) fn check(&self) -> Result<(), Error> {
        let usage = |what: &str| Err(Error::Usage(what.into()));
        let is_media = matches!(self.scenario, Scenario::Media | Scenario::All);
        let media_only = !self.calls.is_empty()
            || !self.participants.is_empty()
            || !self.frames.is_empty()
            || !self.transports.is_empty()
            || self.until_p99.is_some()
            || self.replay_mb.is_some()
            || self.metrics.is_some()
            || (self.latency, self.side) != (Latency::OneWay, Side::Both)
            || self.size.len() > 1;
        if media_only && !is_media {
            return usage(
                "--calls, --participants, --frames, --transports, --until-p99, --latency, --side, --metrics, --replay-mb \
                 and a list of sizes are for media",
            );
        }
        if !self.is_spawned() && (!self.drivers.is_empty() || !self.transports.is_empty()) {
            return usage("--drivers and --transports are for a relay that is spawned");
        }
        if self.is_spawned() && self.side != Side::Both {
            return usage("--side is for a relay that is not spawned");
        }
        if self.side == Side::Near && self.latency != Latency::RoundTrip {
            return usage("--side near needs --latency round-trip: the other side has another clock");
        }
        if self.side == Side::Far && self.until_p99.or(self.replay_mb).is_some() {
            return usage("--side far answers; --until-p99 and --replay-mb are for the near side");
        }
        if !(self.seconds > 0.0 && self.seconds.is_finite()) {
            return usage("--seconds has to be above 0");
        }
        if self.until_p99.is_some_and(|ms| ms.is_nan() || ms <= 0.0) {
            return usage("--until-p99 has to be above 0");
        }
        Ok(())
    }

    /// Envelopes in the stored log that is read.
    pub(crate) fn stored(&self) -> usize {
        self.envelopes.unwrap_or(20_000)
    }

    /// Whether a relay is started.
    pub(crate) fn is_spawned(&self) -> bool {
        self.spawn || self.spawn_command.is_some()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        bench: BenchCommand,
    }

    fn command(line: &str) -> Result<BenchCommand, clap::Error> {
        Ok(Cli::try_parse_from(["bench"].into_iter().chain(line.split_whitespace()))?.bench)
    }

    /// A measurement.
    pub(crate) fn parse(line: &str) -> Result<BenchArgs, clap::Error> {
        Ok(command(line)?.measure.expect("a measurement"))
    }

    #[test]
    fn a_measurement_or_a_tool() {
        Cli::command().debug_assert();
        let compare = command("compare a.json b.json --tolerance 5").expect("a tool");
        let Some(Tool::Compare(args)) = compare.tool else {
            panic!("no tool")
        };
        assert_eq!(
            (args.before, args.after, args.tolerance),
            ("a.json".into(), "b.json".into(), 5.0)
        );
        let hostile = parse("hostile recon pings --spawn").expect("a measurement");
        assert_eq!((hostile.scenario, hostile.attacks.len()), (Scenario::Hostile, 2));
        let media =
            parse("media --spawn --calls 20,80 --size 160,1200 --drivers epoll,uring").expect("lists");
        assert_eq!((media.calls, media.size), (vec![20, 80], vec![160, 1200]));
        assert_eq!(media.drivers, ["epoll", "uring"]);
        for wrong in [
            "",
            "compare a.json",
            "compare a.json b.json c.json",
            "media --spawn --calls x",
            "media --spawn --transports quic",
            "media --spawn --url ws://h",
            "media --until-p99 2 --replay-mb 5",
            "media --side both --spawn --latency clock",
            "nothing",
        ] {
            assert!(command(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn options_that_mean_nothing_together_are_refused() {
        for wrong in [
            "ingest --spawn --calls 3",
            "ingest --spawn --latency round-trip",
            "replay --spawn --size 1,2",
            "media --url ws://h --keys k --drivers uring",
            "media --url ws://h --keys k --transports ws",
            "media --url ws://h --keys k --side near",
            "media --url ws://h --keys k --side far --until-p99 2",
            "media --spawn --until-p99 0",
            "media --spawn --seconds 0",
        ] {
            let args = parse(wrong).expect(wrong);
            assert!(matches!(args.check(), Err(Error::Usage(_))), "{wrong}");
        }
        for right in [
            "media --spawn --until-p99 2 --transports ws --drivers epoll,uring",
            "media --url ws://h --keys k --side near --latency round-trip",
            "fanout --spawn --drivers epoll --size 100",
            "all --spawn --replay-mb 20",
        ] {
            assert!(parse(right).expect(right).check().is_ok(), "{right}");
        }
    }

    #[test]
    fn the_reference_settings_are_those_untouched() {
        assert!(parse("media --spawn").expect("arguments").is_reference());
        for other in [
            "--calls 80",
            "--size 160",
            "--frames 50",
            "--participants 5",
            "--window 2",
        ] {
            let line = format!("media --spawn {other}");
            assert!(!parse(&line).expect("arguments").is_reference(), "{line}");
        }
    }
}
