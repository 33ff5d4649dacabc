//! How much memory an idle connection takes, transport and engine together. Measured, not asserted:
//! `cargo test --release -p drover-transport --test idle -- --ignored --nocapture`.

#![allow(clippy::unwrap_used)]

use drover_engine::effects::Stores;
use drover_engine::{Config, Directory};
use drover_storage::embedded::Embedded;
use drover_transport::{Relay, RelayConfig, TlsSource};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::Read;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const CONNECTIONS: u64 = 4_000;

/// The other process: opens the connections and holds them until its input ends.
fn client(address: &str) {
    let config = std::env::var("IDLE_CERT").ok().map(|cert| {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(cert).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]);
        Arc::new(
            config
                .unwrap()
                .with_root_certificates(roots)
                .with_no_client_auth(),
        )
    });
    let (mut plain, mut sealed) = (Vec::new(), Vec::new());
    for _ in 0..CONNECTIONS {
        let tcp = TcpStream::connect(address).unwrap();
        match &config {
            None => plain.push(tungstenite::client("ws://localhost/relay", tcp).unwrap()),
            Some(config) => {
                let name = ServerName::try_from("localhost").unwrap();
                let tls = ClientConnection::new(config.clone(), name).unwrap();
                sealed
                    .push(tungstenite::client("wss://localhost/relay", StreamOwned::new(tls, tcp)).unwrap());
            }
        }
    }
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4_096
}

fn measure(tls: bool) {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(&dir.path().join("store")).unwrap();
    let relay = Relay::bind(RelayConfig {
        listen: "127.0.0.1:0".into(),
        shards: 1,
        turn_us_max: 500,
        copy_below: drover_transport::COPY_BELOW,
        tls: if tls {
            TlsSource::Dev {
                dir: dir.path().into(),
            }
        } else {
            TlsSource::Off
        },
        max_connections: None,
        trusted_proxy_hops: 0,
        public: None,
        wakes: None,
        engine: Arc::new(Config {
            handshake_timeout_ms: 600_000,
            ..Config::default()
        }),
        directory: Arc::new(Directory::default()),
        stores: Stores {
            log: Arc::new(store.clone()),
            control: Arc::new(store),
        },
    })
    .unwrap()
    .start()
    .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let before = resident_bytes();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--ignored", "idle"])
        .env("IDLE_CLIENT", relay.local_addr().to_string());
    if tls {
        command.env("IDLE_CERT", dir.path().join("dev-cert.pem"));
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    while relay.metrics().upgraded < CONNECTIONS {
        assert!(
            child.try_wait().unwrap().is_none(),
            "the client has ended: {:?}",
            relay.metrics()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_millis(500));
    let each = resident_bytes().saturating_sub(before) / CONNECTIONS;
    println!(
        "{}: {each} bytes per idle connection",
        if tls { "TLS" } else { "plain" }
    );
    drop(child.stdin.take());
    child.wait().unwrap();
}

#[test]
#[ignore = "a measurement"]
fn idle() {
    match std::env::var("IDLE_CLIENT") {
        Ok(address) => client(&address),
        Err(_) => {
            measure(false);
            measure(true);
        }
    }
}
