//! Starting and stopping (13 §f). The store is opened before a port is bound, and the one-time code is printed only by a
//! process that is about to serve. On a signal readiness goes first, then the shards finish what is under way.

use crate::cli::Failure;
use crate::config::{Config, Key, Storage};
use crate::digest::build_digest;
use crate::handoff::HandoffPage;
use crate::limits;
use crate::logging::{self, Safe};
use crate::ringer::{Posting, Ringer};
use crate::running::{Mint, Running, probe_folder};
use crate::workspace::{self, Banner, Shown};
use crate::{operator_key, private};
use drover_engine::Directory;
use drover_engine::effects::Stores;
use drover_storage::RealmId;
use drover_storage::embedded::{Embedded, OpenError};
use drover_transport::{BindError, Io, PublicPages, Relay, RelayConfig, TlsSource};
use std::fs::DirBuilder;
use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// How long shards may take to finish, below any 10 s container default.
const DRAIN: Duration = Duration::from_secs(5);
/// How long requests on the private listener may take to end after that.
const LAST_REQUESTS: Duration = Duration::from_secs(1);
/// How long ending after a failure may take in all: what is broken may never answer.
const LAST_RESORT: Duration = Duration::from_secs(9);
/// How often it is looked whether a shard or the store died.
const WATCH: Duration = Duration::from_millis(500);
/// What `WEALD_RELAY_MAX_LOG_GB` counts in.
const GIGABYTE: u64 = 1_000_000_000;

/// Serves until a signal or a failure.
///
/// # Errors
/// 69 or 78 if it can't start; 69 if a listener, a shard or the store dies.
pub(crate) fn serve(config: Config, out: &mut dyn Write) -> Result<(), Failure> {
    logging::install(&config);
    limits::raise_open_files(config.limit(Key::MaxConnections))?;
    limits::avoid_huge_pages();
    let runtime = runtime()?;
    let served = runtime.block_on(async {
        let mut signals = Signals::new()?;
        let mut server = Server::start(config, out).await?;
        let how = tokio::select! {
            how = signals.next() => how,
            error = server.failure() => {
                // The line operators are told to look for, whichever part it was (13 §d).
                tracing::error!(%error, "wealdrelay listener stopped while serving");
                let failure = Failure::unavailable(format!("stopped while serving: {error}"));
                let code = failure.code();
                thread::spawn(move || {
                    thread::sleep(LAST_RESORT);
                    std::process::exit(code);
                });
                // Whoever waits for the exit code restarts us; clients are told to come back then.
                server.stop().await;
                return Err(failure);
            }
        };
        tracing::info!("shutting down on {how}");
        tokio::spawn(async move {
            signals.next().await;
            // Whoever asks twice does not want to wait. Nothing that was acknowledged is lost.
            std::process::exit(0);
        });
        server.stop().await;
        tracing::info!("wealdrelay stopped");
        Ok(())
    });
    // A probe of a disk that does not answer must not keep the process.
    runtime.shutdown_background();
    served
}

/// The runtime of everything that is not a shard.
///
/// # Errors
/// 69 if the system refuses.
pub(crate) fn runtime() -> Result<Runtime, Failure> {
    let mut builder = Builder::new_multi_thread();
    let runtime = builder
        .worker_threads(1)
        .max_blocking_threads(8)
        .thread_name("drover-http")
        .enable_all()
        .build();
    runtime.map_err(|error| Failure::unavailable(format!("cannot start the runtime: {error}")))
}

/// SIGXFSZ, the same number on Linux, macOS and the BSDs.
const SIGXFSZ: i32 = 25;

/// The two signals that stop it, and one that must not.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// Taken so that it does not kill: a file at the process's size limit then is a failed write, which is reported.
    _file_size: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| Failure::unavailable(format!("cannot take signals: {error}")))
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            _file_size: listen(SignalKind::from_raw(SIGXFSZ))?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "terminate",
            _ = self.interrupt.recv() => "interrupt",
        }
    }
}

/// A relay with both its listeners.
pub(crate) struct Server {
    pub(crate) running: Arc<Running>,
    /// Where the public one is.
    #[cfg_attr(not(test), expect(dead_code, reason = "asked for by tests"))]
    pub(crate) public: SocketAddr,
    /// Where the private one is.
    #[cfg_attr(not(test), expect(dead_code, reason = "asked for by tests"))]
    pub(crate) private: SocketAddr,
    /// With push on.
    posting: Option<Posting>,
    surface: JoinHandle<()>,
    /// Dropped to end it.
    end_surface: oneshot::Sender<()>,
}

impl Server {
    /// Opens, binds, mints, announces: in that order.
    ///
    /// # Errors
    /// See [`serve`].
    pub(crate) async fn start(config: Config, out: &mut dyn Write) -> Result<Self, Failure> {
        let store = open_embedded(&config)?.map_err(store_failure)?;
        open_blobs(&config)?;
        let stores = Stores {
            log: Arc::new(store.clone()),
            control: Arc::new(store.clone()),
        };
        let directory = Directory::open(&*stores.control).map(Arc::new);
        let directory = directory.map_err(|error| Failure::config(format!("the directory: {error}")))?;
        let handoff = handoff_page(&config, &store, &directory)?;

        let digest = build_digest(config.image_digest());
        let ringer = Ringer::configured(&config)
            .map_err(|error| Failure::config(format!("the requests to WEALD_RELAY_PUSH_URL: {error}")))?;
        let mut relay_config = relay_config(&config, &digest, &stores, &directory, handoff);
        relay_config.wakes = ringer.as_ref().map(Ringer::sink);
        let bound = Relay::bind(relay_config).map_err(bind_failure)?;
        let address = config.address(Key::ObservabilityListen);
        let busy = |error: io::Error| Failure::unavailable(format!("cannot listen on {address}: {error}"));
        let listener =
            TcpListener::bind((address.host.trim_matches(['[', ']']), address.port)).map_err(busy)?;
        listener.set_nonblocking(true).map_err(busy)?;
        let private = listener.local_addr().map_err(busy)?;
        let listener = tokio::net::TcpListener::from_std(listener).map_err(busy)?;

        let key = operator_key::renew(&config.data_dir());
        let key =
            key.map_err(|error| Failure::unavailable(format!("operator.key in DROVER_DATA_DIR: {error}")))?;
        let public = bound.local_addr();
        let running = Arc::new(Running::new(
            config,
            digest,
            store,
            stores,
            directory,
            ringer.clone(),
        ));
        let relay = bound.start();
        running.set_relay(
            relay.map_err(|error| Failure::unavailable(format!("cannot start a shard: {error}")))?,
        );
        let posting = ringer.map(|ringer| {
            let running = running.clone();
            Posting::start(ringer, move |realm, handle| running.forget_handle(realm, handle))
        });
        let posting = posting.transpose().map_err(|error| {
            Failure::unavailable(format!("cannot start the requests to the ringer: {error}"))
        })?;
        if let Some(banner) = first_workspace(&running).await
            && let Err(error) = write!(out, "{banner}").and_then(|()| out.flush())
        {
            // The log goes where the invite went. Serving goes on: nobody's traffic should wait for a reader.
            let _ = writeln!(
                io::stderr(),
                "drover: the invite could not be printed ({error}); drover workspace new makes another"
            );
        }
        announce(&running, public, private);
        // Until here, who asks the private listener waits: whoever gets an answer finds the line above in the log.
        let router = private::router(running.clone(), &key);
        let (end_surface, ended) = oneshot::channel::<()>();
        let serve = private::listener::serve(listener, router, private::listener::HEADERS, ended);
        let surface = tokio::spawn(serve);
        Ok(Self {
            running,
            public,
            private,
            posting,
            surface,
            end_surface,
        })
    }

    /// Comes back only if a listener, a shard or the store dies.
    async fn failure(&mut self) -> String {
        loop {
            tokio::select! {
                ended = &mut self.surface => return match ended {
                    Ok(()) => "the private listener ended".to_owned(),
                    Err(error) => format!("the private listener: {error}"),
                },
                () = tokio::time::sleep(WATCH) => if let Some(what) = self.running.failure() {
                    return what.to_owned();
                },
            }
        }
    }

    /// Refuses readiness, finishes what is under way, ends.
    pub(crate) async fn stop(self) {
        drop(self.posting);
        if let Some(relay) = self.running.stop() {
            // Joins threads.
            let _ = tokio::task::spawn_blocking(move || relay.drain(DRAIN)).await;
        }
        drop(self.end_surface);
        // With its last request the store is let go of.
        if !self.surface.is_finished() {
            let _ = tokio::time::timeout(LAST_REQUESTS, self.surface).await;
        }
    }
}

/// Makes the relay's own workspace if it has none; what is to be printed about it. A failure is logged: the relay
/// serves what it has.
async fn first_workspace(running: &Running) -> Option<Banner> {
    let config = &running.config;
    let Some(realm) = running.first() else {
        let minted = match workspace::realm(config.hostname()) {
            Ok(realm) => running.mint(&realm, true).await.map(|mint| (realm, mint)),
            Err(what) => Err(anyhow::anyhow!(what)),
        };
        return match minted {
            Ok((realm, Mint::Minted(banner))) => {
                let (realm, fingerprint) = (Safe(&*realm.0), Safe(&banner.fingerprint));
                tracing::info!(workspace = %realm, %fingerprint, redeemed = false, "minted the genesis key");
                Some(banner)
            }
            Ok((realm, Mint::Existed)) => remind(running, &realm).await,
            Err(error) => {
                tracing::warn!(%error, "the genesis key could not be minted");
                None
            }
        };
    };
    remind(running, &realm).await
}

/// Link and fingerprint of a workspace that still waits for its founder.
async fn remind(running: &Running, realm: &RealmId) -> Option<Banner> {
    let report = match running.report(realm).await {
        Ok(report) => report,
        Err(error) => {
            tracing::warn!(%error, "the first workspace could not be read");
            return None;
        }
    };
    let config = &running.config;
    let banner = report.unredeemed.map(|(token, fingerprint)| Banner {
        invite: Shown::Open {
            link: workspace::link(config.hostname(), &token.0),
            code: None,
        },
        fingerprint: workspace::hex(&fingerprint.0),
    });
    let fingerprint = banner
        .as_ref()
        .map(|banner| tracing::field::display(Safe(&banner.fingerprint)));
    let redeemed = banner.is_none();
    tracing::info!(workspace = %Safe(&*realm.0), fingerprint, redeemed, "genesis key already exists");
    // Where invites are sealed, nobody who reads the log is shown one.
    banner.filter(|_| config.handoff_key().is_none())
}

fn announce(running: &Running, public: SocketAddr, private: SocketAddr) {
    let config = &running.config;
    tracing::info!(
        listen = %Safe(public),
        observability_listen = %Safe(private),
        storage = %Safe(config.storage()),
        access_set = %Safe(config.word(Key::AccessSet)),
        min_enc = %Safe(config.word(Key::MinEnc)),
        "wealdrelay listening"
    );
    if matches!(config.storage(), Storage::S3 { .. }) {
        tracing::warn!("no part of this build uses the bucket of WEALD_RELAY_STORAGE_URL yet");
    }
}

/// Opens the embedded store, making its folder if need be. The store's own error is for those who can do something
/// about a store that is in use.
pub(crate) fn open_embedded(config: &Config) -> Result<Result<Embedded, OpenError>, Failure> {
    let folder = config.store_dir();
    make_private(Key::DataDir, &config.data_dir())?;
    let named_by = match config.is_stated(Key::DatabaseUrl) {
        true => Key::DatabaseUrl,
        false => Key::DataDir,
    };
    make_private(named_by, &folder)?;
    Ok(Embedded::open(&folder))
}

/// 69 if another process has the store or the system refuses; 78 if what is there can't be used.
pub(crate) fn store_failure(error: OpenError) -> Failure {
    match error {
        OpenError::Locked(_) | OpenError::Io { .. } => Failure::unavailable(format!("the store: {error}")),
        OpenError::Unusable { .. } => Failure::config(format!("the store: {error}")),
    }
}

/// A folder of our own: nobody else looks in. 69 if the disk is at fault, 78 if the setting `key` names no place where a
/// folder can be.
fn make_private(key: Key, folder: &Path) -> Result<(), Failure> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| {
        let what = format!(
            "{}: {} can't be used as a folder: {error}",
            key.name(),
            folder.display()
        );
        match error.kind() {
            ErrorKind::AlreadyExists
            | ErrorKind::NotADirectory
            | ErrorKind::NotFound
            | ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::InvalidFilename
            | ErrorKind::InvalidInput => Failure::config(what),
            _ => Failure::unavailable(what),
        }
    })
}

/// A blob folder that was named must be there: a mount that is missing would otherwise be written beside.
fn open_blobs(config: &Config) -> Result<(), Failure> {
    let Storage::Folder(folder) = config.storage() else {
        return Ok(());
    };
    if !config.is_stated(Key::StorageUrl) {
        make_private(Key::DataDir, &folder)?;
    }
    let probed = probe_folder(&folder);
    probed.map_err(|error| {
        Failure::unavailable(format!(
            "the blob folder {} can't be written: {error}",
            folder.display()
        ))
    })
}

fn bind_failure(error: BindError) -> Failure {
    match error {
        BindError::Tls(error) => Failure::config(format!("WEALD_RELAY_TLS: {error}")),
        error => Failure::unavailable(error.to_string()),
    }
}

/// The sealed handoff's page, which exists only with both the key and the operator token (06 §14).
fn handoff_page(
    config: &Config,
    store: &Embedded,
    directory: &Arc<Directory>,
) -> Result<Option<Arc<dyn PublicPages>>, Failure> {
    let (Some(key), Some(token)) = (config.handoff_key(), config.text(Key::OperatorToken)) else {
        return Ok(None);
    };
    let read = directory.read_handoffs(store);
    read.map_err(|error| Failure::config(format!("the sealed handoff: {error}")))?;
    let store = store.clone();
    let page = HandoffPage::new(key.clone(), token, directory.clone(), move || store.healthy());
    Ok(Some(Arc::new(page)))
}

fn relay_config(
    config: &Config,
    digest: &str,
    stores: &Stores,
    directory: &Arc<Directory>,
    public: Option<Arc<dyn PublicPages>>,
) -> RelayConfig {
    let path = |key| config.text(key).unwrap_or_default().into();
    RelayConfig {
        listen: config.address(Key::Listen).to_string(),
        shards: config.shards(),
        turn_us_max: config.number(Key::TurnUsMax),
        io: Io::of_word(config.word(Key::Io)).unwrap_or_default(),
        copy_below: config.number(Key::CopyBelow) as usize,
        tls: match config.word(Key::Tls) {
            "file" => TlsSource::File {
                cert: path(Key::TlsCertFile),
                key: path(Key::TlsKeyFile),
            },
            "dev" => TlsSource::Dev {
                dir: config.data_dir(),
            },
            _ => TlsSource::Off,
        },
        max_connections: config.limit(Key::MaxConnections),
        trusted_proxy_hops: usize::try_from(config.number(Key::TrustedProxyHops)).unwrap_or(usize::MAX),
        public,
        engine: Arc::new(engine_config(config, digest, stores.log.first_seq())),
        stores: stores.clone(),
        directory: directory.clone(),
        wakes: None,
    }
}

fn engine_config(config: &Config, digest: &str, first_seq: u64) -> drover_engine::Config {
    drover_engine::Config {
        hostname: config.hostname().into(),
        min_enc_mls: config.word(Key::MinEnc) == "mls",
        read_only: config.word(Key::WriteMode) == "read_only",
        access_set: config.word(Key::AccessSet) == "enforce",
        live: config.on(Key::Live),
        max_concurrent_calls: config
            .on(Key::Calls)
            .then(|| usize::try_from(config.number(Key::MaxConcurrentCalls)).unwrap_or(usize::MAX)),
        live_frames_per_minute: u32::try_from(config.number(Key::LiveFramesPerMinute)).unwrap_or(u32::MAX),
        send_frames_per_minute: config.number(Key::SendFramesPerMinute),
        send_bytes_per_minute: config.number(Key::SendBytesPerMinute),
        group_ingress_bytes_per_minute: config.limit(Key::GroupIngressBytesPerMinute),
        workspace_ingress_bytes_per_minute: config.limit(Key::WorkspaceIngressBytesPerMinute),
        group_backlog_bytes: config.limit(Key::GroupBacklogBytes),
        max_log_bytes: config.limit(Key::MaxLogGb).map(|gigabytes| gigabytes * GIGABYTE),
        map_dialect: config.on(Key::MapDialect),
        allow_empty_ct: config.on(Key::AllowEmptyCt),
        handshake_timeout_ms: config.number(Key::HandshakeTimeoutMs),
        idle_timeout_ms: config.number(Key::IdleTimeoutMs),
        build_digest: digest.into(),
        push: config
            .push_register_url()
            .map(|register_url| drover_engine::config::Push {
                register_url: register_url.into(),
                coalesce_ms: config.number(Key::PushCoalesceMs),
            }),
        janitor_interval_ms: config.number(Key::JanitorIntervalMs),
        retention_days: config.limit(Key::RetentionDays),
        first_seq,
        shards: config.shards(),
        ..drover_engine::Config::default()
    }
}
