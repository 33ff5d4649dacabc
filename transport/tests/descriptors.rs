//! The relay at the descriptor limit. Alone in its process, because the limit is the process's.

#![allow(clippy::unwrap_used)]

use drover_engine::effects::Stores;
use drover_engine::{Config, Directory};
use drover_storage::embedded::Embedded;
use drover_transport::{Relay, RelayConfig, TlsSource};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

fn healthz(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn without_descriptors_connections_are_turned_away_and_nothing_spins() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(&dir.path().join("store")).unwrap();
    let relay = Relay::bind(RelayConfig {
        listen: "127.0.0.1:0".into(),
        shards: 1,
        turn_us_max: 0,
        copy_below: drover_transport::COPY_BELOW,
        tls: TlsSource::Off,
        max_connections: None,
        trusted_proxy_hops: 0,
        public: None,
        engine: Arc::new(Config::default()),
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
    assert!(healthz(address).unwrap().contains(" 200 "));

    // Its descriptor would be one to spare.
    while relay.metrics().sockets > 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(256);
    setrlimit(Resource::Nofile, limit).unwrap();
    let mut filler = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        filler.push(file);
    }
    let turns = relay.metrics().turns;
    // One descriptor for the client's own end; the relay gets none for the other.
    for _ in 0..3 {
        filler.pop();
        let mut client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut byte = [0];
        let read = client.read(&mut byte);
        let turned_away = match read {
            Ok(bytes) => bytes == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        };
        assert!(turned_away);
        drop(client);
        filler.push(File::open("/dev/null").unwrap());
    }
    // A client sees its end before the shard has counted it.
    while relay.metrics().accept_descriptor_limit < 3 {
        std::thread::sleep(Duration::from_millis(5));
    }
    // Between one and the next the listener rests; a shard that looked all the while would have turned thousands of times.
    assert!(relay.metrics().turns - turns < 50);

    filler.clear();
    assert!(healthz(address).unwrap().contains(" 200 "));
    assert!(!relay.has_failed());
}
