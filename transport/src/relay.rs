//! The whole of it for the binary: bind, start, look at, stop.

use crate::Shard;
use crate::admission::Admission;
use crate::clock;
use crate::config::{BindError, RelayConfig};
use crate::driver::{Driver, Waker};
use crate::epoll::Epoll;
use crate::io::{self as choice, IoDriver};
use crate::listen;
use crate::lobby::{self, Lobby};
use crate::mailbox::{Letter, Mailbox};
use crate::metrics::{Metrics, Snapshot};
use crate::offload::Offload;
use crate::stop::Stop;
use crate::tls::Certificates;
use crate::turn::{Parts, Turn};
use crate::world::{Shared, World};
#[cfg(target_os = "linux")]
use crate::{tokio_uring::TokioUring, uring::Uring};
use drover_engine::metrics::Metrics as EngineMetrics;
use drover_engine::shard::{Challenges, ShardMessage};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A relay whose port is bound and that serves nobody yet: connections wait in the kernel.
pub struct Bound {
    config: RelayConfig,
    address: SocketAddr,
    seeds: Vec<Seed>,
    io: IoDriver,
    shared: Arc<Shared>,
    certificates: Option<Arc<Certificates>>,
    challenges: Arc<Challenges>,
}

/// What a shard's driver is made of, on its thread.
enum Seed {
    Epoll(Box<Epoll>),
    #[cfg(target_os = "linux")]
    Uring(std::net::TcpListener, Arc<std::os::fd::OwnedFd>, u32),
    #[cfg(target_os = "linux")]
    TokioUring(std::net::TcpListener, Arc<tokio::sync::Notify>, bool),
}

impl Seed {
    /// For one of so many shards, with so many sockets each at most; and what wakes the shard.
    #[cfg_attr(
        not(target_os = "linux"),
        expect(unused_variables, reason = "epoll needs neither")
    )]
    fn new(
        io: &str,
        listener: std::net::TcpListener,
        shards: usize,
        sockets: u32,
    ) -> io::Result<(Self, Waker)> {
        match io {
            #[cfg(target_os = "linux")]
            "uring" => {
                let (waker, eventfd) = Waker::eventfd()?;
                Ok((Self::Uring(listener, eventfd, sockets), waker))
            }
            #[cfg(target_os = "linux")]
            "tokio-uring" => {
                let (waker, happened) = crate::tokio_uring::waker();
                Ok((Self::TokioUring(listener, happened, shards > 1), waker))
            }
            _ => Epoll::new(listener).map(|(epoll, waker)| (Self::Epoll(Box::new(epoll)), waker)),
        }
    }
}

/// Chooses the driver for `shards` shards with so many sockets each at most.
#[cfg(target_os = "linux")]
pub(crate) fn choose(wanted: choice::Io, shards: usize, sockets: u32) -> Result<IoDriver, BindError> {
    let try_uring = || crate::uring::probe::probe(shards, sockets);
    choice::choose(wanted, try_uring, TokioUring::probe)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn choose(wanted: choice::Io, _shards: usize, _sockets: u32) -> Result<IoDriver, BindError> {
    let nowhere = || Err("it is Linux's".to_owned());
    choice::choose(wanted, nowhere, nowhere)
}

/// A relay that serves.
pub struct Relay {
    address: SocketAddr,
    io: IoDriver,
    shared: Arc<Shared>,
    certificates: Option<Arc<Certificates>>,
    stop: Arc<Stop>,
    metrics: Vec<Arc<Metrics>>,
    engine_metrics: Vec<Arc<EngineMetrics>>,
    threads: Vec<JoinHandle<()>>,
}

impl Relay {
    /// Binds the port and loads the certificate. The process's limit on open files is read here: raise it before.
    ///
    /// # Errors
    /// [`BindError`], if the port is taken, the certificate can't be used or the system is out of something.
    pub fn bind(config: RelayConfig) -> Result<Bound, BindError> {
        clock::begin();
        let shards = config.shards.max(1);
        debug_assert_eq!(
            shards, config.engine.shards,
            "the engine must know how many shards there are"
        );
        let certificates = Certificates::open(&config.tls, &config.engine.hostname)?;
        let (listeners, address) = listen::bind(&config.listen, shards)?;
        let sockets = lobby::sockets_at_once(config.max_connections);
        let io = choose(config.io, shards, sockets)?;
        tracing::info!(driver = io.name, reason = %io.reason, "driver of the shard loops");
        let mut seeds = Vec::with_capacity(shards);
        let mut doors = Vec::with_capacity(shards);
        for listener in listeners {
            let (seed, waker) = Seed::new(io.name, listener, shards, sockets)?;
            seeds.push(seed);
            doors.push(Arc::new(Mailbox::new(waker)));
        }
        let shared = Arc::new(Shared {
            doors: doors.into(),
            stores: config.stores.clone(),
            offload: Offload::start()?,
            lobby: Lobby::new(
                config.max_connections,
                config.trusted_proxy_hops > 0,
                lobby::sockets_max(),
            ),
            admission: Admission::new(config.max_connections),
            wakes: config.wakes.clone(),
        });
        Ok(Bound {
            config,
            address,
            seeds,
            io,
            shared,
            certificates,
            challenges: Arc::new(Challenges::new().map_err(io::Error::other)?),
        })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// What runs below the shard loops, and why.
    pub fn io(&self) -> &IoDriver {
        &self.io
    }

    /// What all shards have counted.
    pub fn metrics(&self) -> Snapshot {
        let mut snapshot = Snapshot {
            connections: self.shared.admission.taken(),
            tls_reload_failures: self
                .certificates
                .as_ref()
                .map_or(0, |certificates| certificates.failures()),
            ..Snapshot::default()
        };
        self.metrics.iter().for_each(|metrics| snapshot.add(metrics));
        snapshot
    }

    /// What each shard's engine counts.
    pub fn engine_metrics(&self) -> &[Arc<EngineMetrics>] {
        &self.engine_metrics
    }

    /// Posts a message to a shard. A number beyond the last shard is ignored.
    pub fn post(&self, shard: usize, message: ShardMessage) {
        if let Some(door) = self.shared.doors.get(shard) {
            door.post(Letter::Posted(message));
        }
    }

    /// Whether a shard has ended by itself, after which its realms are not served: the process should end.
    pub fn has_failed(&self) -> bool {
        self.stop.has_failed()
    }

    /// Stops: upgrades are refused with 503, what is under way is finished, clients are told, sockets closed
    /// (13 §f.2). Returns when all shards have ended, at the latest shortly after `deadline`.
    pub fn drain(mut self, deadline: Duration) {
        self.stop
            .set_deadline(clock::mono_ms(Instant::now()) + deadline.as_millis() as u64);
        self.end(|| Letter::Drain);
    }

    fn end(&mut self, letter: fn() -> Letter) {
        for door in &self.shared.doors {
            door.post(letter());
        }
        for thread in self.threads.drain(..) {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for Relay {
    /// Without [`Relay::drain`] the shards end at once.
    fn drop(&mut self) {
        self.stop.set_deadline(0);
        self.end(|| Letter::Look);
    }
}

impl Bound {
    /// Where it listens, with the port that was free if the configuration said 0.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Starts one thread per shard.
    ///
    /// # Errors
    /// If the system refuses a thread, or a shard what its driver needs.
    pub fn start(self) -> io::Result<Relay> {
        let seeds = self.seeds;
        let stop = Stop::new(seeds.len());
        let mut relay = Relay {
            address: self.address,
            io: self.io,
            shared: self.shared,
            certificates: self.certificates,
            stop,
            metrics: Vec::new(),
            engine_metrics: Vec::new(),
            threads: Vec::new(),
        };
        let (begun, begins) = mpsc::channel();
        for (index, seed) in seeds.into_iter().enumerate() {
            let metrics = Arc::new(Metrics::default());
            let engine_metrics = Arc::new(EngineMetrics::default());
            relay.metrics.push(metrics.clone());
            relay.engine_metrics.push(engine_metrics.clone());
            let thread = ShardThread {
                index,
                config: self.config.clone(),
                shared: relay.shared.clone(),
                certificates: relay.certificates.clone(),
                challenges: self.challenges.clone(),
                stop: relay.stop.clone(),
                metrics,
                engine_metrics,
                begun: begun.clone(),
            };
            let serve = move || match seed {
                Seed::Epoll(epoll) => thread.serve(Ok(*epoll)),
                #[cfg(target_os = "linux")]
                Seed::Uring(listener, waker, sockets) => thread.serve(Uring::new(listener, waker, sockets)),
                #[cfg(target_os = "linux")]
                Seed::TokioUring(listener, happened, may_move) => {
                    thread.serve(TokioUring::new(listener, happened, may_move));
                }
            };
            let thread = thread::Builder::new()
                .name(format!("drover-shard-{index}"))
                .spawn(serve)?;
            relay.threads.push(thread);
        }
        drop(begun);
        for result in begins {
            result?;
        }
        Ok(relay)
    }
}

/// What one shard's thread takes along.
struct ShardThread {
    index: usize,
    config: RelayConfig,
    shared: Arc<Shared>,
    certificates: Option<Arc<Certificates>>,
    challenges: Arc<Challenges>,
    stop: Arc<Stop>,
    metrics: Arc<Metrics>,
    engine_metrics: Arc<EngineMetrics>,
    /// Told once whether the driver works.
    begun: mpsc::Sender<io::Result<()>>,
}

impl ShardThread {
    /// Runs the shard's loop to its end.
    fn serve<D: Driver>(self, driver: io::Result<D>) {
        let Self { index, config, .. } = self;
        // Whoever waits for it may have given up because of another shard.
        let driver = match driver {
            Ok(driver) => {
                let _ = self.begun.send(Ok(()));
                driver
            }
            Err(error) => {
                let _ = self.begun.send(Err(error));
                return;
            }
        };
        drop(self.begun);
        let shard = Shard::new(
            index,
            config.engine.clone(),
            config.directory.clone(),
            self.engine_metrics,
            self.challenges,
        );
        let mailbox = self.shared.doors[index].clone();
        let request_ms = config.engine.handshake_timeout_ms;
        let now = clock::now(Instant::now());
        let world = World::new(
            driver,
            index,
            request_ms,
            config.copy_below,
            self.metrics,
            self.shared,
            now,
        );
        let parts = Parts {
            shard,
            mailbox,
            stop: self.stop.clone(),
            certificates: self.certificates,
            trusted_proxy_hops: config.trusted_proxy_hops,
            public: config.public,
            turn_max: Duration::from_micros(config.turn_us_max),
        };
        let failure = Failing(Some(self.stop));
        match Turn::new(world, parts).run() {
            Ok(()) => failure.disarm(),
            Err(error) => tracing::error!(%error, shard = index, "a shard can't go on"),
        }
    }
}

/// Reports a shard that ends in any other way than by stopping.
struct Failing(Option<Arc<Stop>>);

impl Failing {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Failing {
    fn drop(&mut self) {
        if let Some(stop) = &self.0 {
            stop.fail();
        }
    }
}
