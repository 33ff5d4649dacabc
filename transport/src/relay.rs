//! The whole of it for the binary: bind, start, look at, stop.

use crate::Shard;
use crate::admission::Admission;
use crate::clock;
use crate::config::{BindError, RelayConfig};
use crate::epoll::Epoll;
use crate::listen;
use crate::lobby::{self, Lobby};
use crate::mailbox::{Letter, Mailbox};
use crate::metrics::{Metrics, Snapshot};
use crate::offload::Offload;
use crate::stop::Stop;
use crate::tls::Certificates;
use crate::turn::{Parts, Turn};
use crate::world::{Shared, World};
use drover_engine::metrics::Metrics as EngineMetrics;
use drover_engine::shard::{Challenges, ShardMessage};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A relay whose port is bound and that serves nobody yet: connections wait in the kernel.
pub struct Bound {
    config: RelayConfig,
    address: SocketAddr,
    drivers: Vec<Epoll>,
    shared: Arc<Shared>,
    certificates: Option<Arc<Certificates>>,
    challenges: Arc<Challenges>,
}

/// A relay that serves.
pub struct Relay {
    address: SocketAddr,
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
        let mut drivers = Vec::with_capacity(shards);
        let mut doors = Vec::with_capacity(shards);
        for listener in listeners {
            let (driver, waker) = Epoll::new(listener)?;
            drivers.push(driver);
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
            drivers,
            shared,
            certificates,
            challenges: Arc::new(Challenges::new().map_err(io::Error::other)?),
        })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
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
    /// If the system refuses a thread.
    pub fn start(self) -> io::Result<Relay> {
        let Self {
            config,
            address,
            drivers,
            shared,
            certificates,
            challenges,
        } = self;
        let stop = Stop::new(drivers.len());
        let mut relay = Relay {
            address,
            shared,
            certificates,
            stop,
            metrics: Vec::new(),
            engine_metrics: Vec::new(),
            threads: Vec::new(),
        };
        for (index, driver) in drivers.into_iter().enumerate() {
            let metrics = Arc::new(Metrics::default());
            let engine_metrics = Arc::new(EngineMetrics::default());
            relay.metrics.push(metrics.clone());
            relay.engine_metrics.push(engine_metrics.clone());
            let (shared, stop) = (relay.shared.clone(), relay.stop.clone());
            let (config, certificates) = (config.clone(), relay.certificates.clone());
            let challenges = challenges.clone();
            let serve = move || {
                let shard = Shard::new(
                    index,
                    config.engine.clone(),
                    config.directory.clone(),
                    engine_metrics,
                    challenges,
                );
                let mailbox = shared.doors[index].clone();
                let request_ms = config.engine.handshake_timeout_ms;
                let world = World::new(
                    driver,
                    index,
                    request_ms,
                    config.copy_below,
                    metrics,
                    shared,
                    clock::now(Instant::now()),
                );
                let parts = Parts {
                    shard,
                    mailbox,
                    stop: stop.clone(),
                    certificates,
                    trusted_proxy_hops: config.trusted_proxy_hops,
                    public: config.public,
                    turn_max: Duration::from_micros(config.turn_us_max),
                };
                let failure = Failing(Some(stop));
                match Turn::new(world, parts).run() {
                    Ok(()) => failure.disarm(),
                    Err(error) => tracing::error!(%error, shard = index, "a shard can't go on"),
                }
            };
            let thread = thread::Builder::new()
                .name(format!("drover-shard-{index}"))
                .spawn(serve)?;
            relay.threads.push(thread);
        }
        Ok(relay)
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
