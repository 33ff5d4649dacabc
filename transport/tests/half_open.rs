//! Sockets that are opened and left at that. Alone in its process, because the limit on open files is the process's.

#![allow(clippy::unwrap_used)]

use drover_engine::effects::Stores;
use drover_engine::{Config, Directory};
use drover_storage::embedded::Embedded;
use drover_transport::{Relay, RelayConfig, Snapshot, TlsSource};
use rustix::process::{Resource, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

struct Served {
    relay: Relay,
    _dir: tempfile::TempDir,
}

impl Served {
    /// A relay that was bound while the process might open so many files.
    fn new(open_files: Option<u64>, max_connections: u64, trusted_proxy_hops: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Embedded::open(&dir.path().join("store")).unwrap();
        let config = RelayConfig {
            listen: "127.0.0.1:0".into(),
            shards: 2,
            turn_us_max: 0,
            copy_below: drover_transport::COPY_BELOW,
            tls: TlsSource::Off,
            max_connections: Some(max_connections),
            trusted_proxy_hops,
            public: None,
            engine: Arc::new(Config {
                handshake_timeout_ms: 600_000,
                shards: 2,
                ..Config::default()
            }),
            directory: Arc::new(Directory::default()),
            wakes: None,
            stores: Stores {
                log: Arc::new(store.clone()),
                control: Arc::new(store),
            },
        };
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = open_files.or(limit.maximum);
        setrlimit(Resource::Nofile, limit).unwrap();
        let bound = Relay::bind(config).unwrap();
        // The clients are in this process too.
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit).unwrap();
        Self {
            relay: bound.start().unwrap(),
            _dir: dir,
        }
    }

    /// A connection from a loopback address of this number.
    fn connect(&self, from: u8) -> TcpStream {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket
            .bind(&SocketAddr::from(([127, 0, 0, from], 0)).into())
            .unwrap();
        socket.connect(&self.relay.local_addr().into()).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    }

    fn connect_many(&self, from: u8, count: usize) -> Vec<TcpStream> {
        (0..count).map(|_| self.connect(from)).collect()
    }

    /// Whether somebody who comes now from there is answered; else the connection was closed.
    fn answers(&self, from: u8) -> bool {
        let mut stream = self.connect(from);
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\n\r\n");
        let mut answer = String::new();
        match stream.read_to_string(&mut answer) {
            Ok(_) => answer.contains(" 200 "),
            Err(error) => {
                assert!(matches!(
                    error.kind(),
                    ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
                ));
                false
            }
        }
    }

    fn upgrade(&self, from: u8) -> tungstenite::WebSocket<TcpStream> {
        tungstenite::client("ws://localhost/relay", self.connect(from))
            .unwrap()
            .0
    }

    /// Waits until the counters say so; fails after ten seconds.
    fn until(&self, what: impl Fn(&Snapshot) -> bool) {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let snapshot = self.relay.metrics();
            if what(&snapshot) {
                return;
            }
            assert!(Instant::now() < end, "never: {snapshot:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn an_address_is_turned_away_beyond_its_share() {
    let served = Served::new(None, 1_000, 0);
    // Whoever has upgraded is not half-open.
    let upgraded: Vec<_> = (0..80).map(|_| served.upgrade(1)).collect();
    let mut idle = served.connect_many(1, 256);
    served.until(|m| m.sockets == 336);
    for _ in 0..3 {
        assert!(!served.answers(1));
    }
    assert_eq!(served.relay.metrics().accept_half_open, 3);
    assert!(served.answers(2), "another address has its own share");

    served.until(|m| m.sockets == 336);
    idle.pop();
    served.until(|m| m.sockets == 335);
    assert!(served.answers(1));
    served.until(|m| m.sockets == 335);

    // Three more shares, then nobody has a place.
    let others: Vec<_> = [(1, 1), (2, 256), (3, 256), (4, 256)]
        .into_iter()
        .flat_map(|(from, count)| served.connect_many(from, count))
        .collect();
    served.until(|m| m.sockets == 80 + 1_024);
    assert!(!served.answers(5));
    drop(others);
    served.until(|m| m.sockets == 335);
    assert!(served.answers(5));
    assert_eq!(served.relay.metrics().accept_descriptor_limit, 0);
    drop((upgraded, idle));
}

fn a_trusted_proxy_has_no_share_but_the_places_are_bounded() {
    let served = Served::new(None, 1_000, 1);
    let idle = served.connect_many(1, 1_024);
    served.until(|m| m.sockets == 1_024);
    assert!(!served.answers(1));
    assert_eq!(served.relay.metrics().accept_half_open, 1);
    drop(idle);
    served.until(|m| m.sockets == 0);
    assert!(served.answers(1));
}

fn descriptors_of_the_store_are_not_given_to_sockets() {
    // Half of so few is kept.
    let served = Served::new(Some(100), 1_000, 0);
    let upgraded: Vec<_> = (0..20).map(|_| served.upgrade(1)).collect();
    let idle = served.connect_many(1, 30);
    served.until(|m| m.sockets == 50);
    for from in [1, 2] {
        assert!(!served.answers(from));
    }
    let m = served.relay.metrics();
    assert_eq!((m.accept_descriptor_limit, m.accept_half_open), (2, 0));
    drop(upgraded);
    served.until(|m| m.sockets == 30);
    assert!(served.answers(2));
    drop(idle);
}

#[test]
fn half_open_sockets_take_nothing_from_others() {
    an_address_is_turned_away_beyond_its_share();
    a_trusted_proxy_has_no_share_but_the_places_are_bounded();
    descriptors_of_the_store_are_not_given_to_sockets();
}
