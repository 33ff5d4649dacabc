//! The options, the same in every scenario.

pub use crate::scenario::hostile::attack::Attack;
use clap::{Args, ValueEnum};
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
    /// Calls: MEDIA frames at their recipients.
    Media,
    /// Media, over TLS (spawned relays; elsewhere the URL says).
    MediaTls,
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
            Scenario::Media if spawned => vec![Scenario::Media, Scenario::MediaTls],
            Scenario::Recon if spawned => vec![Scenario::Recon, Scenario::ReconCold],
            Scenario::Drop if spawned => vec![Scenario::Drop, Scenario::Compact],
            Scenario::Idle if spawned => vec![Scenario::Idle, Scenario::IdleTls],
            one => vec![one],
        }
    }
}

/// Options of `drover bench`.
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

    /// Ciphertext of one envelope, bytes [default: 256; replay 1024; media 160]
    #[arg(long)]
    pub size: Option<usize>,

    /// Operations a connection has under way at most
    #[arg(long, default_value_t = 64)]
    pub window: usize,

    /// Runs; medians are shown
    #[arg(long, default_value_t = 3)]
    pub runs: usize,

    /// SENDs per second in all (fanout): an open loop instead of the window
    #[arg(long)]
    pub rate: Option<f64>,

    /// Calls (media) [default: 80]
    #[arg(long)]
    pub calls: Option<usize>,

    /// Participants of each call (media) [default: 5]
    #[arg(long)]
    pub participants: Option<usize>,

    /// MEDIA frames per second and participant (media) [default: 50]
    #[arg(long)]
    pub frames: Option<f64>,

    /// Raise the frames per second until the p99 passes this many ms, and report the last pace below it (media)
    #[arg(long)]
    pub saturate_p99_ms: Option<f64>,

    /// Measure again while one participant replays this many MB (media)
    #[arg(long)]
    pub replay_mb: Option<f64>,

    /// Envelopes in the stored log (replay, recon, drop) [default: 20000; drop 100000]
    #[arg(long)]
    pub envelopes: Option<usize>,

    /// Envelopes the client lacks (recon)
    #[arg(long, default_value_t = 10)]
    pub missing: usize,

    /// Write everything measured to this file as well
    #[arg(long)]
    pub json: Option<PathBuf>,

    /// Where a spawned relay keeps its data, and baselines their log [default: the system's temporary directory]
    #[arg(long)]
    pub dir: Option<PathBuf>,

    /// Environment of the spawned relay, beside what opens its budgets (repeatable)
    #[arg(long, value_name = "NAME=VALUE")]
    pub env: Vec<String>,

    /// Spawn this program instead of the one that runs
    #[arg(long, hide = true)]
    pub spawn_command: Option<PathBuf>,

    /// Leave out the raw baselines
    #[arg(long)]
    pub no_baselines: bool,
}

impl BenchArgs {
    /// Whether the settings are those for which figures are stated that must be reached.
    pub(crate) fn is_reference(&self) -> bool {
        let untouched = [self.connections, self.groups, self.size, self.envelopes]
            .iter()
            .all(Option::is_none);
        let untouched = untouched && (self.calls, self.participants, self.frames) == (None, None, None);
        untouched && self.missing == 10 && self.window == 64 && self.rate.is_none_or(|rate| rate == 100.0)
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
