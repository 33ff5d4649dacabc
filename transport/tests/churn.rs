//! Ten thousand connections that come and go in every way. Alone in its process, because it counts the descriptors.

#![allow(clippy::unwrap_used)]

use drover_engine::effects::Stores;
use drover_engine::{Config, Directory};
use drover_storage::embedded::Embedded;
use drover_transport::{COPY_BELOW, Io, Relay, RelayConfig, Snapshot, TURN_US_MAX, TlsSource};
use socket2::SockRef;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tungstenite::{Message, WebSocket};

/// At a time: below what one address may hold before its upgrades.
const TOGETHER: usize = 200;
const CONNECTIONS: usize = 10_000;
/// Slots of a pool that was never short. A lost slot for each connection would use them up many times over.
const SLOTS_AT_FIRST: u64 = 64;

/// `DROVER_IO` chooses what the test runs on, as it does for the relay.
fn io() -> Io {
    std::env::var("DROVER_IO").map_or(Io::Auto, |word| Io::of_word(&word).unwrap())
}

fn until(relay: &Relay, what: impl Fn(&Snapshot) -> bool) -> Snapshot {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let snapshot = relay.metrics();
        if what(&snapshot) {
            return snapshot;
        }
        assert!(Instant::now() < end, "never: {snapshot:?}, held {:?}", held());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn open(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

fn upgraded(address: SocketAddr) -> WebSocket<TcpStream> {
    tungstenite::client("ws://localhost/relay", open(address))
        .unwrap()
        .0
}

/// Opens one connection in the `kind`th way and leaves it in a state in which it will be dropped.
fn come(kind: usize, address: SocketAddr) -> TcpStream {
    match kind {
        // Half a request.
        0 => {
            let mut stream = open(address);
            stream.write_all(b"GET /relay HTTP/1.1\r\nUpg").unwrap();
            stream
        }
        // A whole one, answered to its end.
        1 => {
            let mut stream = open(address);
            stream.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 "));
            stream
        }
        // A closing handshake.
        2 => {
            let mut client = upgraded(address);
            client.close(None).unwrap();
            while client.read().is_ok() {}
            client.get_ref().try_clone().unwrap()
        }
        // Ended in the middle of a message that needs several slots.
        3 => {
            let client = upgraded(address);
            let mut stream = client.get_ref();
            stream.write_all(&[0x82, 0xff, 0, 0, 0, 0, 0, 1, 0, 0]).unwrap();
            stream.write_all(&[7; 40_000]).unwrap();
            client.get_ref().try_clone().unwrap()
        }
        // Reset, with bytes on their way in both directions.
        _ => {
            let mut client = upgraded(address);
            client.send(Message::Ping("x".into())).unwrap();
            let stream = client.get_ref().try_clone().unwrap();
            SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
            stream
        }
    }
}

/// Descriptors of the process; and what no descriptor shows, by what the system says of the rings: files in their tables,
/// operations under way.
fn held() -> (usize, usize, usize) {
    let (mut descriptors, mut files, mut operations) = (0, 0, 0);
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let path = entry.unwrap().path();
        descriptors += 1;
        if std::fs::read_link(&path).is_ok_and(|what| what.as_os_str() == "anon_inode:[io_uring]") {
            let info = std::path::Path::new("/proc/self/fdinfo").join(path.file_name().unwrap());
            // It says nothing while the ring is in use.
            let mut text = String::new();
            while !text.contains("UserFiles:") {
                text = std::fs::read_to_string(&info).unwrap();
            }
            let section = |from: &str, to: &str| {
                let rest = text.split_once(from).map_or("", |(_, rest)| rest);
                let lines = rest.split_once(to).map_or("", |(lines, _)| lines).lines();
                // The rest of the line that names it comes first.
                lines.skip(1).count()
            };
            files += section("UserFiles:", "UserBufs:");
            operations += section("PollList:", "CqOverflowList:");
        }
    }
    (descriptors, files, operations)
}

#[test]
fn ten_thousand_connections_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(&dir.path().join("store")).unwrap();
    let relay = Relay::bind(RelayConfig {
        listen: "127.0.0.1:0".into(),
        shards: 2,
        turn_us_max: TURN_US_MAX,
        io: io(),
        copy_below: COPY_BELOW,
        tls: TlsSource::Off,
        max_connections: None,
        trusted_proxy_hops: 0,
        public: None,
        engine: Arc::new(Config {
            shards: 2,
            handshake_timeout_ms: 600_000,
            ..Config::default()
        }),
        directory: Arc::new(Directory::default()),
        wakes: None,
        stores: Stores {
            log: Arc::new(store.clone()),
            control: Arc::new(store),
        },
    })
    .unwrap()
    .start()
    .unwrap();
    let address = relay.local_addr();
    drop((0..5).map(|kind| come(kind, address)).collect::<Vec<_>>());
    until(&relay, |m| m.accepted == 5 && m.sockets == 0);
    // What the last ones held is let go of in the turn that ends them.
    until(&relay, |_| held().1 == 0);
    let before = held();
    let client = upgraded(address);
    let io = relay.io().name;
    assert_eq!(held().1, usize::from(io == "uring"), "are the rings looked at?");
    drop(client);
    until(&relay, |m| m.accepted == 6 && m.sockets == 0);

    for round in 1..=CONNECTIONS / TOGETHER {
        let held: Vec<_> = (0..TOGETHER).map(|n| come(n % 5, address)).collect();
        drop(held);
        let accepted = (6 + round * TOGETHER) as u64;
        until(&relay, |m| {
            m.accepted == accepted && m.sockets == 0 && m.connections == 0
        });
    }
    let m = relay.metrics();
    println!("{io}: {m:?}");
    until(&relay, |_| {
        let (descriptors, files, operations) = held();
        descriptors <= before.0 && files == 0 && operations <= before.2
    });
    let pools = if io == "uring" { 2 } else { 0 };
    assert!(
        m.receive_slots <= pools * SLOTS_AT_FIRST,
        "the pool grew: {}",
        m.receive_slots
    );
    drop(upgraded(address));
    relay.drain(Duration::from_secs(5));
}
