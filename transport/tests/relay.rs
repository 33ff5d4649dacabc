//! The relay through real sockets with the real engine behind it: what neither can show alone.

#![allow(clippy::unwrap_used)]

use drover_engine::bootstrap::{Banner, mint};
use drover_engine::effects::Stores;
use drover_engine::{Config, Directory};
use drover_storage::RealmId;
use drover_storage::control::{ControlStore, Outcome};
use drover_storage::embedded::Embedded;
use drover_transport::{COPY_BELOW, Relay, RelayConfig, TURN_US_MAX, TlsSource};
use drover_wire::error::Code;
use drover_wire::frame::{Frame, List32Buf};
use drover_wire::id::{PublicKey, Signature};
use drover_wire::join;
use ed25519_dalek::{Signer, SigningKey};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::{Message, WebSocket};

struct Served {
    relay: Relay,
    banner: Banner,
    dir: TempDir,
}

fn serve(shards: usize, tls: bool, change: impl FnOnce(&mut Config)) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(&dir.path().join("store")).unwrap();
    let realm = RealmId("ws:localhost".into());
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let minted = mint(&realm, now.as_millis() as u64, true).unwrap();
    let banner = minted.banner.clone();
    let (done, committed) = mpsc::channel();
    store.commit(
        realm,
        minted.into_batch(),
        Box::new(move |outcome| done.send(outcome).unwrap()),
    );
    assert!(matches!(committed.recv().unwrap(), Ok(Outcome::Applied)));
    let mut engine = Config {
        shards,
        ..Config::default()
    };
    change(&mut engine);
    let config = RelayConfig {
        listen: "127.0.0.1:0".into(),
        shards,
        turn_us_max: TURN_US_MAX,
        copy_below: COPY_BELOW,
        tls: if tls {
            TlsSource::Dev {
                dir: dir.path().into(),
            }
        } else {
            TlsSource::Off
        },
        max_connections: Some(256),
        trusted_proxy_hops: 0,
        public: None,
        engine: Arc::new(engine),
        directory: Arc::new(Directory::open(&store).unwrap()),
        wakes: None,
        stores: Stores {
            log: Arc::new(store.clone()),
            control: Arc::new(store),
        },
    };
    Served {
        relay: Relay::bind(config).unwrap().start().unwrap(),
        banner,
        dir,
    }
}

impl Served {
    fn tcp(&self) -> TcpStream {
        let tcp = TcpStream::connect(self.relay.local_addr()).unwrap();
        tcp.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        tcp
    }

    fn plain(&self) -> WebSocket<TcpStream> {
        tungstenite::client("ws://localhost/relay", self.tcp()).unwrap().0
    }

    fn sealed(&self) -> WebSocket<StreamOwned<ClientConnection, TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_file(self.dir.path().join("dev-cert.pem")).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let tls = ClientConnection::new(Arc::new(config), name).unwrap();
        tungstenite::client("wss://localhost/relay", StreamOwned::new(tls, self.tcp()))
            .unwrap()
            .0
    }

    /// Takes the founder's reservation on the bootstrap invite.
    fn reserve(&self, device: &SigningKey) {
        let mut client = self.plain();
        let body = join::Request::Reserve {
            token: &self.banner.token.0,
            code: &self.banner.code,
            nonce: &[1; 16],
            device: device.verifying_key().as_bytes(),
        }
        .encode();
        client.send(message(&Frame::Join { body: &body })).unwrap();
        let answer = client.read().unwrap().into_data();
        let Ok(Frame::Join { body }) = Frame::decode(&answer) else {
            panic!("{answer:?}")
        };
        assert!(matches!(
            join::Response::decode(0, body),
            Some(join::Response::Reserved { .. })
        ));
    }
}

fn message(frame: &Frame<'_>) -> Message {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    Message::binary(bytes)
}

fn connect_frame() -> Message {
    let groups: List32Buf = [[9_u8; 32]].into_iter().collect();
    message(&Frame::Connect {
        version: 4,
        groups: groups.as_list(),
        sent_at_ms: 0,
    })
}

fn error(client: &mut WebSocket<impl Read + Write>) -> Code {
    let bytes = client.read().unwrap().into_data();
    match Frame::decode(&bytes) {
        Ok(Frame::Error { code, .. }) => code,
        other => panic!("{other:?}"),
    }
}

/// Authenticates, with more requests behind AUTH in the same write, and expects every answer in order.
fn talk<S: Read + Write>(client: &mut WebSocket<S>, device: &SigningKey, token: &[u8]) {
    client.send(connect_frame()).unwrap();
    let ack = client.read().unwrap().into_data();
    assert!(matches!(Frame::decode(&ack), Ok(Frame::ConnectAck { .. })));
    let challenge = client.read().unwrap().into_data();
    let Ok(Frame::AuthChallenge { challenge }) = Frame::decode(&challenge) else {
        panic!("no challenge")
    };
    let auth = Frame::Auth {
        device_key: PublicKey(device.verifying_key().to_bytes()),
        signature: Signature(device.sign(challenge).to_bytes()),
    };
    client.write(message(&auth)).unwrap();
    let body = join::Request::Record { token }.encode();
    for _ in 0..5 {
        client.write(message(&Frame::Join { body: &body })).unwrap();
    }
    client.write(Message::Ping("still here".into())).unwrap();
    client.flush().unwrap();
    let (mut acked, mut records, mut pongs) = (false, 0, 0);
    while records < 5 || pongs < 1 {
        match client.read().unwrap() {
            Message::Binary(bytes) => match Frame::decode(&bytes).unwrap() {
                Frame::AuthAck { .. } => acked = true,
                Frame::Join { .. } => {
                    assert!(acked, "an answer before AUTH_ACK");
                    records += 1;
                }
                other => panic!("{other:?}"),
            },
            Message::Pong(payload) => {
                assert_eq!(payload, b"still here"[..]);
                pongs += 1;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_connection_moves_to_its_realm_with_everything_it_has_sent() {
    let served = serve(4, false, |_| {});
    let device = SigningKey::from_bytes(&[3; 32]);
    served.reserve(&device);
    let mut clients: Vec<_> = (0..16).map(|_| served.plain()).collect();
    for client in &mut clients {
        talk(client, &device, &served.banner.token.0);
    }
    let m = served.relay.metrics();
    assert!(m.migrated > 0 && m.migrated < 17, "{}", m.migrated);
    // The one that reserved has gone.
    until(|| served.relay.metrics().connections == 16);
    drop(clients);
    until(|| served.relay.metrics().sockets == 0 && served.relay.metrics().connections == 0);
}

#[test]
fn a_sealed_connection_moves_too() {
    let served = serve(4, true, |_| {});
    let device = SigningKey::from_bytes(&[3; 32]);
    {
        let mut client = served.sealed();
        let body = join::Request::Reserve {
            token: &served.banner.token.0,
            code: &served.banner.code,
            nonce: &[1; 16],
            device: device.verifying_key().as_bytes(),
        }
        .encode();
        client.send(message(&Frame::Join { body: &body })).unwrap();
        client.read().unwrap();
    }
    let mut clients: Vec<_> = (0..16).map(|_| served.sealed()).collect();
    for client in &mut clients {
        talk(client, &device, &served.banner.token.0);
    }
    assert!(served.relay.metrics().migrated > 0);
}

fn until(what: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !what() {
        assert!(Instant::now() < end, "never");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// W02.19, the handshake deadline: an ERROR, then a close frame without status.
#[test]
fn silence_before_authentication_ends_with_an_error() {
    let served = serve(2, false, |config| config.handshake_timeout_ms = 300);
    let mut silent = served.plain();
    let mut halfway = served.plain();
    halfway.send(connect_frame()).unwrap();
    halfway.read().unwrap();
    halfway.read().unwrap();
    for client in [&mut silent, &mut halfway] {
        assert_eq!(error(client), Code::RateLimited);
        assert_eq!(client.read().unwrap(), Message::Close(None));
    }
    until(|| served.relay.metrics().sockets == 0);
    assert_eq!(served.relay.metrics().closed[1], 2);
}

#[test]
fn text_is_refused_and_closed() {
    let served = serve(1, false, |_| {});
    let mut client = served.plain();
    client.send(Message::text("hello")).unwrap();
    assert_eq!(error(&mut client), Code::MalformedHeader);
    assert_eq!(client.read().unwrap(), Message::Close(None));
    assert!(matches!(client.read(), Err(tungstenite::Error::ConnectionClosed)));
}

/// W02.26: shutdown is told with an ERROR and a close frame 1012.
#[test]
fn stopping_is_told() {
    let served = serve(3, false, |_| {});
    let device = SigningKey::from_bytes(&[3; 32]);
    served.reserve(&device);
    let mut clients: Vec<_> = (0..6).map(|_| served.plain()).collect();
    for client in &mut clients {
        talk(client, &device, &served.banner.token.0);
    }
    let mut fresh = served.plain();
    let relay = served.relay;
    // With a deadline that never comes: it must not wait for one.
    let stopper = std::thread::spawn(move || relay.drain(Duration::from_secs(86_400)));
    for client in clients.iter_mut().chain([&mut fresh]) {
        assert_eq!(error(client), Code::Failover);
        match client.read().unwrap() {
            Message::Close(Some(close)) => assert_eq!(close.code, CloseCode::Restart),
            other => panic!("{other:?}"),
        }
        assert!(matches!(client.read(), Err(tungstenite::Error::ConnectionClosed)));
    }
    drop((clients, fresh));
    stopper.join().unwrap();
}
