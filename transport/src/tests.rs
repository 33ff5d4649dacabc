//! The shard loop through real sockets, with the engine's [double](crate::double) behind it.

use crate::{COPY_BELOW, Io, Relay, RelayConfig, Snapshot, TURN_US_MAX, TlsSource};
use drover_engine::effects::Stores;
use drover_engine::{Config, Directory};
use drover_storage::embedded::Embedded;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::stream::MaybeTlsStream;
use tungstenite::{Bytes, Message, WebSocket, connect};

/// `DROVER_IO` chooses what the tests run on, as it does for the relay.
fn io() -> Io {
    std::env::var("DROVER_IO").map_or(Io::Auto, |word| Io::of_word(&word).unwrap())
}

type Client = WebSocket<MaybeTlsStream<TcpStream>>;

struct Served {
    relay: Option<Relay>,
    address: SocketAddr,
    dir: TempDir,
}

impl Served {
    fn with(change: impl FnOnce(&mut RelayConfig, &TempDir)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Embedded::open(&dir.path().join("store")).unwrap();
        let mut config = RelayConfig {
            listen: "127.0.0.1:0".into(),
            shards: 1,
            turn_us_max: TURN_US_MAX,
            copy_below: COPY_BELOW,
            io: io(),
            tls: TlsSource::Off,
            max_connections: None,
            trusted_proxy_hops: 0,
            public: None,
            engine: Arc::new(Config {
                handshake_timeout_ms: 1_000,
                ..Config::default()
            }),
            stores: Stores {
                log: Arc::new(store.clone()),
                control: Arc::new(store),
            },
            directory: Arc::new(Directory::default()),
            wakes: None,
        };
        change(&mut config, &dir);
        let relay = Relay::bind(config).unwrap().start().unwrap();
        Self {
            address: relay.local_addr(),
            relay: Some(relay),
            dir,
        }
    }

    fn new() -> Self {
        Self::with(|_, _| {})
    }

    fn relay(&self) -> &Relay {
        self.relay.as_ref().unwrap()
    }

    fn client(&self) -> Client {
        let client = self.try_client().unwrap();
        set_timeout(&client);
        client
    }

    fn try_client(&self) -> Result<Client, tungstenite::Error> {
        connect(format!("ws://{}/relay", self.address)).map(|(client, _)| client)
    }

    /// One HTTP exchange, to the end of the connection.
    fn http(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Waits until the counters say so; fails after ten seconds.
    fn until(&self, what: impl Fn(&Snapshot) -> bool) -> Snapshot {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let snapshot = self.relay().metrics();
            if what(&snapshot) {
                return snapshot;
            }
            assert!(Instant::now() < end, "never: {snapshot:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn tcp(client: &Client) -> &TcpStream {
    match client.get_ref() {
        MaybeTlsStream::Plain(stream) => stream,
        _ => unreachable!("plain clients only"),
    }
}

fn set_timeout(client: &Client) {
    tcp(client)
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
}

fn say(client: &mut Client, text: &str) {
    client.send(Message::binary(text.as_bytes().to_vec())).unwrap();
}

fn heard(client: &mut Client) -> Bytes {
    match client.read().unwrap() {
        Message::Binary(bytes) => bytes,
        other => panic!("{other:?}"),
    }
}

/// Reads to the close frame and to the end of the stream, and gives the status.
fn closed(client: &mut Client) -> Option<CloseCode> {
    let code = match client.read().unwrap() {
        Message::Close(close) => close.map(|close| close.code),
        other => panic!("{other:?}"),
    };
    assert!(matches!(client.read(), Err(tungstenite::Error::ConnectionClosed)));
    code
}

#[test]
fn messages_of_all_sizes_come_back() {
    let served = Served::new();
    let mut client = served.client();
    for size in [0, 1, 125, 126, 65_535, 65_536, 300_000, 1_056_768] {
        let payload = vec![b'x'; size];
        client.send(Message::binary(payload.clone())).unwrap();
        assert_eq!(heard(&mut client), payload, "{size}");
    }
    for n in 0..1_000_u32 {
        client
            .write(Message::binary(format!("message {n}").into_bytes()))
            .unwrap();
    }
    client.flush().unwrap();
    for n in 0..1_000_u32 {
        assert_eq!(heard(&mut client), format!("message {n}").as_bytes());
    }
    drop(client);
    served.until(|m| m.sockets == 0 && m.connections == 0 && m.messages_in == 1_008);
}

/// W02.19, in part: a pong keeps a connection, because it reaches the engine as activity.
#[test]
fn pings_are_answered_and_count_as_activity() {
    let served = Served::new();
    let mut client = served.client();
    client.send(Message::Ping("one".into())).unwrap();
    client.send(Message::Ping("two".into())).unwrap();
    client.send(Message::Pong("unasked".into())).unwrap();
    assert_eq!(client.read().unwrap(), Message::Pong("one".into()));
    assert_eq!(client.read().unwrap(), Message::Pong("two".into()));
    say(&mut client, "activity");
    assert_eq!(heard(&mut client), [3_u8][..]);
    say(&mut client, "ping");
    assert_eq!(client.read().unwrap(), Message::Ping("".into()));
}

#[test]
fn text_is_answered_and_closed() {
    let served = Served::new();
    let mut client = served.client();
    client.send(Message::text("hello")).unwrap();
    assert_eq!(heard(&mut client), b"text"[..]);
    assert_eq!(closed(&mut client), None);
}

#[test]
fn a_client_that_closes_gets_its_code_back() {
    let served = Served::new();
    let mut client = served.client();
    let frame = tungstenite::protocol::CloseFrame {
        code: CloseCode::Away,
        reason: "later".into(),
    };
    client.close(Some(frame.clone())).unwrap();
    assert_eq!(client.read().unwrap(), Message::Close(Some(frame)));
    assert!(matches!(client.read(), Err(tungstenite::Error::ConnectionClosed)));
    served.until(|m| m.sockets == 0);
}

#[test]
fn what_is_queued_leaves_before_the_close_frame() {
    let served = Served::new();
    let mut client = served.client();
    // Sends on after the close: what comes in then must not turn the end into a reset.
    say(&mut client, "close");
    for _ in 0..200 {
        if client.send(Message::binary(vec![0; 10_000])).is_err() {
            break;
        }
    }
    assert_eq!(heard(&mut client), b"bye"[..]);
    assert_eq!(closed(&mut client), None);

    let mut client = served.client();
    say(&mut client, "restart");
    assert_eq!(closed(&mut client), Some(CloseCode::Restart));
    let closed = served.until(|m| m.sockets == 0).closed;
    assert_eq!((closed[0], closed[6]), (1, 1));
}

#[test]
fn an_oversize_message_or_a_broken_frame_drops_the_connection() {
    let served = Served::new();
    let mut client = served.client();
    let _ = client.send(Message::binary(vec![0; 1_056_769]));
    assert!(client.read().is_err());
    let mut client = served.client();
    tcp(&client).write_all(&[0x82, 0x01, 0x00]).unwrap();
    assert!(client.read().is_err());
    let m = served.until(|m| m.sockets == 0);
    assert_eq!((m.oversize, m.transport_failures), (1, 1));
}

/// Nobody's flood is handled in one go: others have their turn in between, and nothing of it is lost or out of order.
#[test]
fn a_flood_is_handled_a_share_a_turn() {
    const COUNT: u64 = 20_000;
    let served = Served::new();
    let mut flood = Vec::new();
    for n in 0..COUNT {
        // Of the same work for the loop: whole messages, fragments, pings.
        let frame: &[&[u8]] = match n % 3 {
            0 => &[&[0x82, 0x84, 0, 0, 0, 0], b"noop"],
            1 => &[&[0x02, 0x82, 0, 0, 0, 0], b"no", &[0x80, 0x82, 0, 0, 0, 0], b"op"],
            _ => &[&[0x8a, 0x80, 0, 0, 0, 0]],
        };
        flood.extend(frame.concat());
    }
    let mut client = served.client();
    let turns = served.relay().metrics().turns;
    tcp(&client).write_all(&flood).unwrap();
    say(&mut client, "the end");
    assert_eq!(heard(&mut client), b"the end"[..]);
    let m = served.relay().metrics();
    assert!(m.messages_in >= COUNT * 2 / 3);
    // Four reads a turn, 64 frames each.
    assert!(m.turns - turns >= COUNT / 256, "{}", m.turns - turns);

    let mut clients: Vec<Client> = (0..8).map(|_| served.client()).collect();
    let large = [b"noop ".to_vec(), vec![b'x'; 100_000]].concat();
    let turns = served.relay().metrics().turns;
    for client in &mut clients {
        for _ in 0..4 {
            client.write(Message::binary(large.clone())).unwrap();
        }
        say(client, "the end");
    }
    for client in &mut clients {
        assert_eq!(heard(client), b"the end"[..]);
    }
    // One of each connection and turn, since each is more than a share.
    assert!(served.relay().metrics().turns - turns >= 4);
}

/// Long messages are collected in line with others like them, and all come through.
#[test]
fn long_messages_wait_in_line() {
    let served = Served::new();
    let mut clients: Vec<Client> = (0..4).map(|_| served.client()).collect();
    let long = [b"noop ".to_vec(), vec![b'x'; 1 << 20]].concat();
    for client in &mut clients {
        client.write(Message::binary(long.clone())).unwrap();
        say(client, "the end");
    }
    for client in &mut clients {
        assert_eq!(heard(client), b"the end"[..]);
    }
    assert!(served.relay().metrics().deferred_long > 0);
}

/// Who sends nothing but pings, scraps of messages, texts or what is refused waits in line for it, and gets all of it
/// answered; in numbers that a client in earnest could have together, nobody waits.
#[test]
fn what_brings_nothing_forward_waits_in_line() {
    let kinds: [&[&[u8]]; 4] = [
        &[&[0x89, 0x81, 0, 0, 0, 0], b"?"],
        &[&[0x8a, 0x80, 0, 0, 0, 0]],
        &[&[0x02, 0x82, 0, 0, 0, 0], b"no", &[0x80, 0x82, 0, 0, 0, 0], b"op"],
        &[&[0x82, 0x86, 0, 0, 0, 0], b"refuse"],
    ];
    for kind in kinds.map(<[&[u8]]>::concat) {
        let served = Served::new();
        let mut client = served.client();
        for _ in 0..20 {
            tcp(&client).write_all(&kind.repeat(15)).unwrap();
            say(&mut client, "there");
            while client.read().unwrap() != Message::binary("there") {}
        }
        assert_eq!(served.relay().metrics().deferred_idle, 0);
        tcp(&client).write_all(&kind.repeat(5_000)).unwrap();
        say(&mut client, "the end");
        while client.read().unwrap() != Message::binary("the end") {}
        assert!(served.relay().metrics().deferred_idle > 0);
    }
}

/// W02.5, the transport's part: a full queue does not keep an evicted connection open.
#[test]
fn an_evicted_connection_with_a_full_queue_ends_at_once() {
    let served = Served::new();
    let mut stuck = served.client();
    say(&mut stuck, "flood 5000");
    let mut other = served.client();
    // The flood has filled the queue and every buffer on the way once turns go by without any of it leaving.
    let mut before = served.until(|m| m.messages_out > 256).bytes_out;
    loop {
        say(&mut other, "a turn");
        assert_eq!(heard(&mut other), b"a turn"[..]);
        let now = served.relay().metrics().bytes_out;
        // Its own answer is all that left.
        if now - before < 64 {
            break;
        }
        before = now;
    }
    assert!(served.relay().metrics().messages_out < 5_000);
    say(&mut other, "evictothers");
    served.until(|m| m.sockets == 1 && m.connections == 1);
    say(&mut other, "still here");
    assert_eq!(heard(&mut other), b"still here"[..]);
    // What was in the kernel's buffers may still arrive, whole messages and then the end.
    while stuck.read().is_ok() {}

    say(&mut other, "evict");
    assert_eq!(closed(&mut other), None);
    assert_eq!(served.until(|m| m.sockets == 0).closed[3], 2);
}

#[test]
fn a_flood_goes_on_as_the_peer_reads() {
    let served = Served::new();
    let mut client = served.client();
    say(&mut client, "flood 5000");
    served.until(|m| m.messages_out > 256);
    for _ in 0..5_000 {
        assert_eq!(heard(&mut client).len(), 10_000);
    }
}

#[test]
fn a_paused_connection_is_read_again_in_order() {
    let served = Served::new();
    let mut client = served.client();
    for n in 0..20 {
        client.write(Message::binary("pause")).unwrap();
        client
            .write(Message::binary(format!("after {n}").into_bytes()))
            .unwrap();
    }
    client.flush().unwrap();
    // More than fits into one read.
    client.send(Message::binary(vec![b'y'; 400_000])).unwrap();
    for n in 0..20 {
        assert_eq!(heard(&mut client), b"stored"[..]);
        assert_eq!(heard(&mut client), format!("after {n}").as_bytes());
    }
    assert_eq!(heard(&mut client).len(), 400_000);
}

#[test]
fn hashing_happens_elsewhere_and_is_refused_when_too_much_waits() {
    let served = Served::new();
    let mut client = served.client();
    for _ in 0..12 {
        client.write(Message::binary("hash")).unwrap();
    }
    client.flush().unwrap();
    let answers: Vec<_> = (0..12).map(|_| heard(&mut client)).collect();
    let count = |what: &[u8]| answers.iter().filter(|answer| answer[..] == *what).count();
    assert_eq!(count(b"match"), 0);
    assert!(count(b"other") >= 4 && count(b"busy") >= 1);
}

fn status(error: tungstenite::Error) -> u16 {
    match error {
        tungstenite::Error::Http(response) => response.status().as_u16(),
        other => panic!("{other}"),
    }
}

/// W02.20: the ceiling, the share of one source, and upgrades that never complete.
#[test]
fn seats_are_limited_and_always_come_back() {
    let served = Served::with(|config, _| config.max_connections = Some(8));
    let mut first = served.client();
    let _second = served.client();
    let refused = served.http(
        "GET /relay HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    );
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("\r\nRetry-After: 5\r\n"));
    assert!(refused.ends_with("\r\n\r\nat capacity\n"));
    say(&mut first, "authenticated");
    heard(&mut first);
    let mut others: Vec<Client> = Vec::new();
    for _ in 0..6 {
        let mut client = served.client();
        say(&mut client, "authenticated");
        heard(&mut client);
        others.push(client);
    }
    let m = served.until(|m| m.connections == 8);
    assert_eq!((m.refused_share, m.refused_ceiling), (1, 0));
    drop(_second);
    served.until(|m| m.connections == 7);
    let accepted = served.relay().metrics().accepted;
    // Upgrades whose client is gone before the answer, and half a request, leak nothing.
    for _ in 0..20 {
        let mut stream = TcpStream::connect(served.address).unwrap();
        let head = "GET /relay HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        drop(stream);
        let mut stream = TcpStream::connect(served.address).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        stream
            .write_all(b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
            .unwrap();
        drop(stream);
    }
    let accepted = accepted + 40;
    // A driver may see several of them at a time, and then some are over the ceiling.
    let m = served.until(|m| m.accepted == accepted && m.sockets == 7 && m.connections == 7);
    let refused = m.refused_ceiling;
    let mut last = served.client();
    say(&mut last, "authenticated");
    heard(&mut last);
    assert_eq!(status(served.try_client().err().unwrap()), 503);
    let m = served.until(|m| m.connections == 8);
    assert_eq!(m.refused_ceiling, refused + 1);
    // No seat is needed for anything else.
    assert!(
        served
            .http("GET /healthz HTTP/1.1\r\n\r\n")
            .starts_with("HTTP/1.1 200 ")
    );
}

#[test]
fn a_request_that_never_ends_is_cut_off() {
    let served = Served::new();
    let mut stream = TcpStream::connect(served.address).unwrap();
    stream.write_all(b"GET /relay HT").unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0);
    assert_eq!(served.until(|m| m.sockets == 0).head_deadline, 1);
    // What follows the part that is refused is read, up to as much again, so that the answer arrives.
    for bytes in [20_000, 32_000] {
        let endless = format!("GET / HTTP/1.1\r\nA: {}\r\n\r\n", "b".repeat(bytes));
        assert!(served.http(&endless).starts_with("HTTP/1.1 431 "), "{bytes}");
    }
    assert!(served.http("\x16\x03\x01").starts_with("HTTP/1.1 400 "));
}

#[test]
fn proxies_name_the_source() {
    let served = Served::with(|config, _| {
        config.trusted_proxy_hops = 1;
        config.max_connections = Some(8);
    });
    assert_eq!(status(served.try_client().err().unwrap()), 400);
    let with = |source: &str| {
        use tungstenite::client::IntoClientRequest;
        let mut request = format!("ws://{}/relay", served.address)
            .into_client_request()
            .unwrap();
        request
            .headers_mut()
            .insert("x-forwarded-for", source.parse().unwrap());
        connect(request).map(|(client, _)| client)
    };
    let _a = [
        with("spoofed, 203.0.113.1").unwrap(),
        with("203.0.113.1").unwrap(),
    ];
    assert_eq!(status(with("203.0.113.1").err().unwrap()), 503);
    assert!(with("203.0.113.2").is_ok());
}

/// W02.26, the transport's part.
#[test]
fn stopping_tells_everybody_and_refuses_newcomers() {
    let mut served = Served::with(|config, _| {
        config.shards = 2;
        config.engine = Arc::new(Config {
            shards: 2,
            ..Config::default()
        });
    });
    let mut clients: Vec<Client> = (0..8).map(|_| served.client()).collect();
    let address = served.address;
    let relay = served.relay.take().unwrap();
    // With a deadline that never comes: it must not wait for one.
    let stopper = std::thread::spawn(move || relay.drain(Duration::from_secs(86_400)));
    for client in &mut clients {
        assert_eq!(heard(client), b"failover"[..]);
        assert_eq!(closed(client), Some(CloseCode::Restart));
    }
    drop(clients);
    stopper.join().unwrap();
    assert_eq!(
        TcpStream::connect(address).unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
}

#[test]
fn stopping_does_not_wait_for_ever_and_refuses_meanwhile() {
    let mut served = Served::new();
    let mut stuck = served.client();
    say(&mut stuck, "flood 5000");
    served.until(|m| m.messages_out > 256);
    let relay = served.relay.take().unwrap();
    let address = served.address;
    let stopper = std::thread::spawn(move || relay.drain(Duration::from_secs(1)));
    // Until the shard has heard of it, it lets newcomers in.
    let refused = loop {
        if let Err(error) = connect(format!("ws://{address}/relay")) {
            break error;
        }
    };
    assert_eq!(status(refused), 503);
    stopper.join().unwrap();
}

mod tls {
    use super::*;
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
    use rustls_pki_types::pem::PemObject;
    use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

    type TlsClient = WebSocket<StreamOwned<ClientConnection, TcpStream>>;

    /// Accepts the one certificate it is given.
    #[derive(Debug)]
    struct Pinned(CertificateDer<'static>);

    impl ServerCertVerifier for Pinned {
        fn verify_server_cert(
            &self,
            leaf: &CertificateDer<'_>,
            _chain: &[CertificateDer<'_>],
            _name: &ServerName<'_>,
            _ocsp: &[u8],
            _now: UnixTime,
        ) -> Result<ServerCertVerified, rustls::Error> {
            assert_eq!(leaf.as_ref(), self.0.as_ref());
            Ok(ServerCertVerified::assertion())
        }
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _cert: &CertificateDer<'_>,
            _dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            unreachable!("TLS 1.3 only")
        }
        fn verify_tls13_signature(
            &self,
            _message: &[u8],
            _cert: &CertificateDer<'_>,
            _dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Ok(HandshakeSignatureValid::assertion())
        }
        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            rustls::crypto::aws_lc_rs::default_provider()
                .signature_verification_algorithms
                .supported_schemes()
        }
    }

    fn served() -> Served {
        Served::with(|config, dir| {
            config.tls = TlsSource::Dev {
                dir: dir.path().into(),
            }
        })
    }

    fn connection(
        served: &Served,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> ClientConnection {
        let cert = CertificateDer::from_pem_file(served.dir.path().join("dev-cert.pem")).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Pinned(cert)))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap()
    }

    fn client(served: &Served) -> TlsClient {
        let tcp = TcpStream::connect(served.address).unwrap();
        tcp.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let stream = StreamOwned::new(connection(served, &[&rustls::version::TLS13]), tcp);
        tungstenite::client("wss://localhost/relay", stream).unwrap().0
    }

    #[test]
    fn everything_works_sealed_too() {
        let served = served();
        let mut client = client(&served);
        {
            let tls = &client.get_ref().conn;
            assert_eq!(tls.alpn_protocol(), Some(&b"http/1.1"[..]));
            let suite = tls.negotiated_cipher_suite().unwrap().suite();
            assert_eq!(suite, rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
            let group = tls.negotiated_key_exchange_group().unwrap().name();
            assert_eq!(group, rustls::NamedGroup::X25519MLKEM768);
        }
        for size in [0, 1, 20_000, 1_056_768] {
            client.send(Message::binary(vec![b'x'; size])).unwrap();
            assert_eq!(client.read().unwrap().into_data(), vec![b'x'; size]);
        }
        for n in 0..20 {
            client.write(Message::binary("pause")).unwrap();
            client
                .write(Message::binary(format!("after {n}").into_bytes()))
                .unwrap();
        }
        client.send(Message::binary(vec![b'y'; 400_000])).unwrap();
        for n in 0..20 {
            assert_eq!(client.read().unwrap().into_data(), b"stored"[..]);
            assert_eq!(
                client.read().unwrap().into_data(),
                format!("after {n}").as_bytes()
            );
        }
        assert_eq!(client.read().unwrap().into_data().len(), 400_000);
        client.get_mut().conn.refresh_traffic_keys().unwrap();
        client.send(Message::binary("flood 3000")).unwrap();
        for _ in 0..3_000 {
            assert_eq!(client.read().unwrap().into_data().len(), 10_000);
        }
        client.send(Message::binary("close")).unwrap();
        assert_eq!(client.read().unwrap().into_data(), b"bye"[..]);
        assert_eq!(client.read().unwrap(), Message::Close(None));
        assert!(matches!(client.read(), Err(tungstenite::Error::ConnectionClosed)));
        drop(client);
        assert_eq!(served.until(|m| m.sockets == 0).tls_handshakes, 1);
    }

    /// Handshakes are the dearest thing a stranger can ask for: many at once are spread over turns, and all succeed.
    #[test]
    fn many_handshakes_at_once_wait_in_line() {
        const COUNT: usize = 128;
        let served = served();
        let mut fresh: Vec<_> = (0..COUNT)
            .map(|_| {
                let mut hello = Vec::new();
                let mut connection = connection(&served, &[&rustls::version::TLS13]);
                connection.write_tls(&mut hello).unwrap();
                let tcp = TcpStream::connect(served.address).unwrap();
                tcp.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                (connection, tcp, hello)
            })
            .collect();
        served.until(|m| m.sockets == COUNT as u64);
        for (_, tcp, hello) in &mut fresh {
            tcp.write_all(hello).unwrap();
        }
        for (connection, tcp, _) in fresh {
            let stream = StreamOwned::new(connection, tcp);
            tungstenite::client("wss://localhost/relay", stream).unwrap();
        }
        let m = served.until(|m| m.sockets == 0);
        assert_eq!((m.tls_handshakes, m.upgraded), (COUNT as u64, COUNT as u64));
        assert!(m.deferred_fresh > 0);
    }

    #[test]
    fn plain_text_is_refused_with_an_alert() {
        let served = served();
        let mut tcp = TcpStream::connect(served.address).unwrap();
        tcp.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        let _ = tcp.read_to_end(&mut answer);
        assert_eq!(answer.first(), Some(&21));
        assert_eq!(served.until(|m| m.sockets == 0).tls_failures, 1);
    }

    /// A client that leaves Nagle's algorithm on must not wait for a delayed ACK between its handshake and its request.
    #[test]
    fn the_handshake_costs_no_delayed_ack() {
        let served = served();
        let took = |nodelay: bool| {
            let mut times: Vec<_> = (0..9)
                .map(|_| {
                    let tcp = TcpStream::connect(served.address).unwrap();
                    tcp.set_nodelay(nodelay).unwrap();
                    let began = Instant::now();
                    let stream = StreamOwned::new(connection(&served, &[&rustls::version::TLS13]), tcp);
                    tungstenite::client("wss://localhost/relay", stream).unwrap();
                    began.elapsed()
                })
                .collect();
            times.sort();
            times[4]
        };
        let (on, off) = (took(false), took(true));
        eprintln!("median open: Nagle on {on:?}, off {off:?}");
        assert!(on < off + Duration::from_millis(25), "{on:?} against {off:?}");
    }
}
