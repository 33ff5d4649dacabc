//! What the binary tells the transport.

use crate::pages::PublicPages;
use drover_engine::effects::Stores;
use drover_engine::wake::Wake;
use drover_engine::{Config, Directory};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Settings of the public listener and of the shards behind it.
#[derive(Clone)]
pub struct RelayConfig {
    /// Host and port to listen on, such as `0.0.0.0:8443`. Port 0 takes a free one ([`crate::Bound::local_addr`]).
    pub listen: String,
    /// Threads, one shard each; at least 1. Must equal `engine.shards`.
    pub shards: usize,
    /// Longest time a busy shard collects work for before it writes, µs; 0 switches that off.
    pub turn_us_max: u64,
    /// Queued messages shorter than this are copied into one buffer when they are written together, bytes; 0: each is
    /// written from where it lies.
    pub copy_below: usize,
    /// TLS on the public listener.
    pub tls: TlsSource,
    /// Most connections at a time; `None` for no ceiling and then no share per source either (02 §1).
    pub max_connections: Option<u64>,
    /// How many proxies in front are trusted to have written `X-Forwarded-For`; 0: none (13 §h).
    pub trusted_proxy_hops: usize,
    /// Further pages of the public listener.
    pub public: Option<Arc<dyn PublicPages>>,
    /// The engine's own settings.
    pub engine: Arc<Config>,
    /// Where the shards keep things.
    pub stores: Stores,
    /// Which realm owns a name.
    pub directory: Arc<Directory>,
    /// Takes the devices to be woken; called on shard threads, so it must neither wait nor take long. Unused with
    /// push off.
    pub wakes: Option<WakeSink>,
}

/// See [`RelayConfig::wakes`].
pub type WakeSink = Arc<dyn Fn(Vec<Wake>) + Send + Sync>;

/// Default of [`RelayConfig::turn_us_max`].
pub const TURN_US_MAX: u64 = 500;

/// Default of [`RelayConfig::copy_below`]. One write of N messages that lie apart, gathered / copied first, ns
/// (docs/performance.md): 4 of 200 B 1102/907, 4 of 1540 B 1188/1032, 16 of 200 B 1737/1054, 16 of 1540 B 2236/1913,
/// 64 of 200 B 4425/1750; but 4 of 4096 B 1548/1626, 16 of 4096 B 4326/5400. Every MEDIA frame is below it.
pub const COPY_BELOW: usize = 2048;

/// Where the certificate comes from (decisions.md 18, 40).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TlsSource {
    /// Plain text: something in front terminates TLS.
    #[default]
    Off,
    /// PEM files, read again when they change.
    File {
        /// The certificate chain, leaf first.
        cert: PathBuf,
        /// Its private key.
        key: PathBuf,
    },
    /// A self-signed certificate for the hostname, `localhost` and the loopback addresses, made in this directory
    /// at the first start. The key is kept, because clients pin it (13 §h).
    Dev {
        /// The data directory.
        dir: PathBuf,
    },
}

/// Why the relay can't start serving.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address can't be listened on.
    #[error("cannot listen on {listen}: {source}")]
    Listen {
        /// As configured.
        listen: String,
        /// What the system says.
        source: io::Error,
    },
    /// The certificate or key can't be used.
    #[error("cannot use the TLS certificate: {0}")]
    Tls(#[from] TlsError),
    /// The system refused something else a shard needs.
    #[error("cannot set up the shards: {0}")]
    System(#[from] io::Error),
}

/// What is wrong with a certificate or key. Never carries their content.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file can't be read or written.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// There is no such thing in the file.
    #[error("{path} holds no {what} in PEM form")]
    Missing {
        /// Which.
        path: PathBuf,
        /// What was looked for.
        what: &'static str,
    },
    /// They don't fit together, or are of a kind that is not supported.
    #[error("the certificate and the key can't be used together: {0}")]
    Unusable(#[from] rustls::Error),
    /// The development certificate could not be made.
    #[error("the development certificate can't be made: {0}")]
    Dev(#[from] rcgen::Error),
}
